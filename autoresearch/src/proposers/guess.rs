//! What a model of cost says of points, put right by what was measured.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rayon::prelude::*;

use crate::candidate::{Candidate, Point, Value};
use crate::history::History;
use crate::journal::Trial;
use crate::verdict::Verdict;

/// What a model of cost says of a point before anything is done with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Guess {
    /// Microseconds per token.
    pub us: f64,
    /// What does the same has the same; see [`crate::Prepared::body`].
    pub body: String,
}

/// Guesses the time of a point; `None` where it cannot be scheduled.
pub type Cost<'a> = Box<dyn Fn(&Point) -> Option<Guess> + Send + Sync + 'a>;

/// Guesses kept at most.
const MOST_KNOWN: usize = 1_000;

/// A candidate with its time, as guessed and corrected.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    pub us: f64,
    pub body: String,
    /// Knobs in which it differs from the incumbent.
    pub moves: usize,
    pub candidate: Candidate,
}

/// Guesses by point, since a campaign comes by the same ones often, and what measurements said about them.
pub(super) struct Guesses<'a> {
    cost: Cost<'a>,
    known: BTreeMap<Point, Option<Guess>>,
    lessons: Lessons,
}

impl<'a> Guesses<'a> {
    pub fn new(cost: Cost<'a>) -> Guesses<'a> {
        Guesses { cost, known: BTreeMap::new(), lessons: Lessons::default() }
    }

    /// Makes guesses of points that have none yet, several at once.
    fn guess(&mut self, points: &[&Point]) {
        let new: Vec<&Point> =
            points.iter().copied().filter(|p| !self.known.contains_key(*p)).collect();
        let cost = &self.cost;
        let made: Vec<(Point, Option<Guess>)> =
            new.into_par_iter().map(|p| (p.clone(), cost(p))).collect();
        self.known.extend(made);
    }

    /// Candidates with their times, in their order; without those that cannot be scheduled or do what another does that
    /// was judged or stands before them.
    pub fn rank(&mut self, candidates: Vec<Candidate>, history: &History) -> Vec<Ranked> {
        if self.known.len() > MOST_KNOWN {
            self.known.clear();
        }
        let points: Vec<&Point> = candidates.iter().map(|c| &c.knobs).collect();
        self.guess(&points);
        let learnt = self.lessons.learn();
        let mut bodies = BTreeSet::new();
        let ranked = |candidate: Candidate| {
            let guess = self.known.get(&candidate.knobs)?.as_ref()?;
            if history.judged_as(&guess.body).is_some() || !bodies.insert(guess.body.clone()) {
                return None;
            }
            let us = guess.us * learnt.factor(&candidate.knobs);
            let moves = candidate.knobs.differs_in(&history.incumbent).len();
            Some(Ranked { us, body: guess.body.clone(), moves, candidate })
        };
        candidates.into_iter().filter_map(ranked).collect()
    }

    /// The corrected time of a point.
    pub fn us(&mut self, point: &Point) -> Option<f64> {
        self.guess(&[point]);
        let guess = self.known.get(point)?.as_ref()?;
        Some(guess.us * self.lessons.learn().factor(point))
    }

    pub fn told(&mut self, trial: &Trial) {
        self.lessons.told(trial);
    }
}

/// What measurements say about the predictions: logarithms of measured over predicted times.
#[derive(Clone, Debug, Default)]
struct Lessons {
    trials: VecDeque<(Point, f64)>,
    learnt: Learnt,
    /// Trials since it was learnt.
    stale: bool,
}

/// Trials learnt from, the last ones.
const LESSONS: usize = 256;
/// As many trials without an error the effect of a value is averaged with: one trial alone proves little.
const DOUBTS: f64 = 1.0;
/// Passes in which the effects of the knobs are told apart.
const PASSES: usize = 6;

/// By what the values of the knobs are mispredicted, as logarithms.
#[derive(Clone, Debug, Default)]
struct Learnt(BTreeMap<String, BTreeMap<Value, f64>>);

impl Learnt {
    fn of(&self, name: &str, value: &Value) -> f64 {
        self.0.get(name).and_then(|values| values.get(value)).copied().unwrap_or(0.0)
    }

    fn effect(&self, point: &Point) -> f64 {
        point.0.iter().map(|(name, value)| self.of(name, value)).sum()
    }

    fn factor(&self, point: &Point) -> f64 {
        self.effect(point).exp()
    }
}

impl Lessons {
    fn told(&mut self, trial: &Trial) {
        let (Verdict::Measured(m), Some(predicted)) = (&trial.verdict, trial.predicted_us) else {
            return;
        };
        let error = (m.candidate_us / predicted).ln();
        if error.is_finite() {
            if self.trials.len() == LESSONS {
                self.trials.pop_front();
            }
            self.trials.push_back((trial.candidate.knobs.clone(), error));
            self.stale = true;
        }
    }

    /// One effect for each value of each knob, by backfitting: knob by knob, the mean of what the others leave, drawn
    /// towards none (Hastie, Tibshirani, "Generalized additive models", 1990).
    fn learn(&mut self) -> &Learnt {
        if self.stale {
            self.stale = false;
            self.learnt = fit(&self.trials);
        }
        &self.learnt
    }
}

fn fit(trials: &VecDeque<(Point, f64)>) -> Learnt {
    let mut learnt = Learnt::default();
    let mean = trials.iter().map(|l| l.1).sum::<f64>() / trials.len().max(1) as f64;
    let names: BTreeSet<&String> = trials.iter().flat_map(|l| l.0.0.keys()).collect();
    // What the effects so far leave of each error.
    let mut left: Vec<f64> = trials.iter().map(|l| l.1 - mean).collect();
    for _ in 0..PASSES {
        for name in &names {
            let mut sums: BTreeMap<&Value, (f64, f64)> = BTreeMap::new();
            for ((point, _), left) in trials.iter().zip(&left) {
                let Some(value) = point.get(name) else { continue };
                let sum = sums.entry(value).or_default();
                *sum = (sum.0 + left + learnt.of(name, value), sum.1 + 1.0);
            }
            let new: BTreeMap<Value, f64> = sums
                .into_iter()
                .map(|(value, (sum, count))| (value.clone(), sum / (count + DOUBTS)))
                .collect();
            for ((point, _), left) in trials.iter().zip(&mut left) {
                let Some(value) = point.get(name) else { continue };
                *left += learnt.of(name, value) - new.get(value).copied().unwrap_or(0.0);
            }
            learnt.0.insert((*name).clone(), new);
        }
    }
    learnt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_correct_what_the_model_gets_wrong() {
        // The model thinks counters cost nothing; measured, they save a tenth. What else moves is as predicted.
        let mut trials = VecDeque::new();
        for i in 0..24u64 {
            let edge = if i % 3 == 0 { "counter" } else { "packet" };
            let point = Point::default().with("edge", Value::word(edge)).with("warps", i % 4);
            let error = 0.3 + if edge == "counter" { -0.1 } else { 0.0 };
            trials.push_back((point, error));
        }
        let learnt = fit(&trials);
        let factor = |edge: &str, warps: u64| {
            learnt.factor(&Point::default().with("edge", Value::word(edge)).with("warps", warps))
        };
        let saved = (factor("counter", 1) / factor("packet", 1)).ln();
        assert!((-0.11..-0.07).contains(&saved), "{saved}");
        let warps = (factor("packet", 1) / factor("packet", 2)).ln();
        assert!(warps.abs() < 0.01, "{warps}");
        assert_eq!(Lessons::default().learn().factor(&Point::default()), 1.0);
    }
}
