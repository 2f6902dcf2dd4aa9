//! What each knob did.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::candidate::{Point, Value};
use crate::journal::Trial;

/// Trials with one value of a knob.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    pub value: String,
    /// Trials with a time.
    pub trials: usize,
    /// Median and greatest of how many times as fast as the incumbent of then they were.
    pub median: f64,
    pub best: f64,
    /// The same for those that differ from the incumbent of then in this knob alone.
    pub alone: usize,
    pub alone_median: Option<f64>,
}

/// One knob's values that were tried, in the order of the values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnobEffects {
    pub name: String,
    pub values: Vec<Effect>,
}

/// Collects them.
#[derive(Default)]
pub(super) struct Effects {
    found: BTreeMap<String, BTreeMap<Value, (Vec<f32>, Vec<f32>)>>,
}

impl Effects {
    /// Takes in a trial whose incumbent was `incumbent`, and the times of both.
    pub fn add(&mut self, trial: &Trial, incumbent: &Point, speedup: f64) {
        let differs = trial.candidate.knobs.differs_in(incumbent);
        for (name, value) in &trial.candidate.knobs.0 {
            let values = self.found.entry(name.clone()).or_default();
            let (all, alone) = values.entry(value.clone()).or_default();
            all.push(speedup as f32);
            if differs.len() == 1 && differs[0] == *name {
                alone.push(speedup as f32);
            }
        }
    }

    /// Knobs of which more than one value was tried.
    pub fn finish(self) -> Vec<KnobEffects> {
        let effect = |(value, (mut all, mut alone)): (Value, (Vec<f32>, Vec<f32>))| Effect {
            value: value.to_string(),
            trials: all.len(),
            best: all.iter().copied().fold(0.0, f32::max).into(),
            median: median(&mut all).unwrap_or(1.0),
            alone: alone.len(),
            alone_median: median(&mut alone),
        };
        let several = |(name, values): (String, BTreeMap<Value, (Vec<f32>, Vec<f32>)>)| {
            let values: Vec<Effect> = values.into_iter().map(effect).collect();
            (values.len() > 1).then_some(KnobEffects { name, values })
        };
        self.found.into_iter().filter_map(several).collect()
    }
}

fn median(values: &mut [f32]) -> Option<f64> {
    values.sort_by(f32::total_cmp);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2].into()),
        n => Some((f64::from(values[n / 2 - 1]) + f64::from(values[n / 2])) / 2.0),
    }
}
