//! Neighbours of the best, by what paid off before.

use std::collections::BTreeMap;

use super::moves::{fresh, step};
use crate::candidate::Point;
use crate::journal::Trial;
use crate::rng::Rng;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};
use crate::verdict::Verdict;

/// Speed-up by which a move counts as a full success.
const FULL: f64 = 0.05;

/// What moving a knob has brought.
#[derive(Clone, Copy, Debug, Default)]
struct Arm {
    pulls: f64,
    reward: f64,
}

/// One arm for each knob. The next knob to move is the one with the greatest upper confidence bound of its reward (UCB1:
/// Auer, Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem", 2002); the reward of a move is
/// its speed-up over the incumbent, from 0 for slower or refused to 1 for 5% and more.
#[derive(Clone, Debug, Default)]
pub struct Bandit {
    arms: BTreeMap<String, Arm>,
    incumbent: Point,
}

impl Bandit {
    /// Knobs by bound, the best first; ties by lot.
    fn order(&self, ask: &Ask<'_>, rng: &mut Rng) -> Vec<usize> {
        let total: f64 = self.arms.values().map(|a| a.pulls).sum::<f64>().max(1.0);
        let mut bounds: Vec<(f64, u64, usize)> = ask
            .space
            .knobs
            .iter()
            .enumerate()
            .map(|(i, knob)| {
                let arm = self.arms.get(&knob.name).copied().unwrap_or_default();
                let bound = match arm.pulls > 0.0 {
                    true => arm.reward / arm.pulls + (0.5 * total.ln() / arm.pulls).sqrt(),
                    false => f64::INFINITY,
                };
                (bound, rng.next(), i)
            })
            .collect();
        bounds.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        bounds.into_iter().map(|b| b.2).collect()
    }
}

impl Proposer for Bandit {
    fn name(&self) -> &str {
        "bandit"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let mut rng = Rng::new(ask.seed);
        let order = self.order(ask, &mut rng);
        let from = &ask.history.incumbent;
        let mut draws = 0usize;
        let found = fresh(ask, "bandit", &mut rng, &mut |rng| {
            // The best knobs first, each a few times, then further down the order.
            let at = order.get((draws / 4) % order.len().max(1));
            draws += 1;
            let Some(knob) = at.and_then(|&i| ask.space.knobs.get(i)) else {
                return (from.clone(), None);
            };
            let value = from.get(&knob.name).cloned().unwrap_or_default();
            (from.with(&knob.name, step(knob, &value, rng)), Some(from.id()))
        });
        Ok(match found.is_empty() {
            true => Proposal::Done("every move of a single knob has been tried".to_owned()),
            false => Proposal::Candidates(found),
        })
    }

    fn told(&mut self, trial: &Trial) {
        let speedup = match &trial.verdict {
            Verdict::Measured(m) => m.speedup.median,
            Verdict::Predicted { us, incumbent_us, .. } => incumbent_us / us,
            _ => 0.0,
        };
        let reward = ((speedup - 1.0) / FULL).clamp(0.0, 1.0);
        let moved = trial.candidate.knobs.differs_in(&self.incumbent);
        // A move of many knobs at once says little about any.
        if trial.index > 0 && (1..=4).contains(&moved.len()) {
            let share = 1.0 / moved.len() as f64;
            for name in moved {
                let arm = self.arms.entry(name).or_default();
                arm.pulls += share;
                arm.reward += share * reward;
            }
        }
        if trial.index == 0 || trial.verdict.kept() {
            self.incumbent = trial.candidate.knobs.clone();
        }
    }
}
