//! What a model of cost thinks best.

use rayon::prelude::*;

use super::moves::{any, fresh, neighbour, parent};
use crate::candidate::Point;
use crate::journal::Trial;
use crate::rng::Rng;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};

/// Microseconds per token a model of cost predicts of a point; `None` where it cannot be lowered.
pub type Cost<'a> = Box<dyn Fn(&Point) -> Option<f64> + Send + Sync + 'a>;

/// Points drawn for each one that is named.
const DRAWN: usize = 6;
/// One in so many is named though the model does not think it best, for the model may be wrong.
const DOUBT: usize = 4;

/// Draws many points, mostly neighbours of good ones, and names those with the least predicted time. It prunes: what is
/// kept, the judge decides.
pub struct Guided<'a> {
    cost: Cost<'a>,
}

impl<'a> Guided<'a> {
    /// Ranks by `cost`.
    pub fn new(cost: Cost<'a>) -> Guided<'a> {
        Guided { cost }
    }
}

impl Proposer for Guided<'_> {
    fn name(&self) -> &str {
        "guided"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let mut rng = Rng::new(ask.seed);
        let wide = Ask { count: ask.count * DRAWN, ..*ask };
        let pool = fresh(&wide, "guided", &mut rng, &mut |rng| match rng.chance(0.15) {
            true => (any(ask.space, rng), None),
            false => {
                let from = parent(ask.history, rng);
                (neighbour(ask.space, from, rng), Some(from.id()))
            }
        });
        if pool.is_empty() {
            return Ok(Proposal::Done("every point that was drawn has been tried".to_owned()));
        }
        let mut ranked: Vec<(f64, usize)> = pool
            .par_iter()
            .enumerate()
            .map(|(i, c)| ((self.cost)(&c.knobs).unwrap_or(f64::INFINITY), i))
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let doubted = ask.count / DOUBT;
        let mut picked: Vec<usize> = ranked.iter().take(ask.count - doubted).map(|r| r.1).collect();
        // Of the rest any, in the order they were drawn.
        let rest = (0..pool.len()).filter(|i| !picked.contains(i));
        let rest: Vec<usize> = rest.take(ask.count - picked.len()).collect();
        picked.extend(rest);
        let named = picked.into_iter().filter_map(|i| pool.get(i).cloned()).collect();
        Ok(Proposal::Candidates(named))
    }

    fn told(&mut self, _: &Trial) {}
}
