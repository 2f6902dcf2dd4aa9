//! One knob at a time.

use std::collections::BTreeMap;

use super::guess::{Cost, Guesses};
use super::moves::rungs;
use crate::candidate::{Candidate, Point, Value};
use crate::journal::Trial;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};
use crate::verdict::Verdict;

/// Values of one knob that are looked at for each one that is named.
const VALUES: usize = 4;
/// Knobs that are looked at for each one that is named, at least.
const KNOBS: usize = 2;
/// Speed-up below which the value of another trial is not worth being crossed into the incumbent.
const GAIN: f64 = 1.002;
/// Values crossed in at most.
const MOST_CROSSED: usize = 8;

/// Moves one knob of the incumbent after another, each to the value the corrected model thinks best of those that were not
/// tried; and crosses in all single moves at once that were measured to be faster. Every knob has its turn, whatever the
/// model thinks of it: models know nothing of some.
pub struct Sweep<'a> {
    guesses: Guesses<'a>,
    turns: Turns,
}

/// What was moved, as a function of the trials.
#[derive(Default)]
pub(super) struct Turns {
    /// Moves of each knob alone.
    moved: BTreeMap<String, u64>,
    /// Single moves that were faster than what they were moved from: knob, value, speed-up. The last of each knob.
    faster: BTreeMap<String, (Value, f64)>,
    incumbent: Point,
}

impl Turns {
    pub fn told(&mut self, trial: &Trial) {
        let speedup = match &trial.verdict {
            Verdict::Measured(m) => m.speedup.median,
            Verdict::Predicted { us, incumbent_us, .. } => incumbent_us / us,
            _ => 0.0,
        };
        let point = &trial.candidate.knobs;
        let moved = point.differs_in(&self.incumbent);
        if let ([name], true) = (moved.as_slice(), trial.index > 0) {
            *self.moved.entry(name.clone()).or_default() += 1;
            if speedup > GAIN
                && self.faster.get(name).is_none_or(|(_, known)| speedup > *known)
                && let Some(value) = point.get(name)
            {
                self.faster.insert(name.clone(), (value.clone(), speedup));
            }
        }
        if trial.index == 0 || trial.verdict.kept() {
            self.incumbent = point.clone();
            // What the new one has is no move from it.
            self.faster.retain(|name, (value, _)| point.get(name) != Some(value));
        }
    }

    /// The incumbent with everything that was faster alone.
    fn crossed(&self, incumbent: &Point) -> Option<Point> {
        let mut moves: Vec<(&String, &(Value, f64))> = self.faster.iter().collect();
        moves.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        let mut point = incumbent.clone();
        for (name, (value, _)) in moves.into_iter().take(MOST_CROSSED) {
            point.0.insert(name.clone(), value.clone());
        }
        (point != *incumbent).then_some(point)
    }

    /// See [`Proposer::propose`], with guesses that somebody else keeps.
    pub fn search(&self, guesses: &mut Guesses<'_>, ask: &Ask<'_>) -> Vec<Candidate> {
        let from = &ask.history.incumbent;
        let parent = Some(from.id()).filter(|id| ask.history.was_tried(id));
        let candidate = |knobs: Point| Candidate {
            knobs,
            parent: parent.clone(),
            source: "sweep".to_owned(),
            note: None,
        };
        let mut named: Vec<Candidate> = Vec::new();
        let crossed = self.crossed(from).and_then(|p| ask.space.complete(&p).ok());
        if let Some(point) = crossed.filter(|p| !ask.history.was_tried(&p.id())) {
            named.extend(
                guesses.rank(vec![candidate(point)], ask.history).into_iter().map(|r| r.candidate),
            );
        }
        // The knobs that were moved least, and of those the ones from which most is to be had.
        let turns_of = |name: &str| self.moved.get(name).copied().unwrap_or(0);
        let mut singles: Vec<(u64, Vec<Candidate>)> = Vec::new();
        for knob in &ask.space.knobs {
            let turns = turns_of(&knob.name);
            let value = from.get(&knob.name).cloned().unwrap_or_default();
            let at = knob.domain.index(&value).unwrap_or(0);
            let mut values: Vec<(u64, Value)> = rungs(knob)
                .into_iter()
                .filter(|v| *v != value)
                .filter_map(|v| Some((knob.domain.index(&v)?.abs_diff(at), v)))
                .filter(|(_, v)| !ask.history.was_tried(&from.with(&knob.name, v.clone()).id()))
                .collect();
            // Left to the lowering, and near ones; later turns look further.
            values.sort_by_key(|(far, v)| (*v != Value::Auto, *far));
            values.truncate(VALUES * (1 + turns as usize / VALUES));
            let moved = |(_, v)| candidate(from.with(&knob.name, v));
            singles.push((turns, values.into_iter().map(moved).collect()));
        }
        singles.retain(|s| !s.1.is_empty());
        singles.sort_by_key(|s| s.0);
        // Knobs much moved are not looked at while there are others.
        let enough = singles.get((KNOBS * ask.count).saturating_sub(1)).map_or(u64::MAX, |s| s.0);
        let drawn = singles.into_iter().filter(|s| s.0 <= enough).flat_map(|s| s.1).collect();
        let mut best: BTreeMap<String, (f64, Candidate)> = BTreeMap::new();
        for r in guesses.rank(drawn, ask.history) {
            let Some(name) = r.candidate.knobs.differs_in(from).into_iter().next() else {
                continue;
            };
            if best.get(&name).is_none_or(|(us, _)| r.us < *us) {
                best.insert(name, (r.us, r.candidate));
            }
        }
        let mut found: Vec<(u64, f64, Candidate)> =
            best.into_iter().map(|(name, (us, c))| (turns_of(&name), us, c)).collect();
        found.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        named.extend(found.into_iter().map(|f| f.2));
        named.truncate(ask.count);
        named
    }
}

impl<'a> Sweep<'a> {
    /// Ranks by `cost`.
    pub fn new(cost: Cost<'a>) -> Sweep<'a> {
        Sweep { guesses: Guesses::new(cost), turns: Turns::default() }
    }
}

impl Proposer for Sweep<'_> {
    fn name(&self) -> &str {
        "sweep"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let found = self.turns.search(&mut self.guesses, ask);
        Ok(match found.is_empty() {
            true => Proposal::Done("every move of a single knob has been tried".to_owned()),
            false => Proposal::Candidates(found),
        })
    }

    fn told(&mut self, trial: &Trial) {
        self.guesses.told(trial);
        self.turns.told(trial);
    }
}
