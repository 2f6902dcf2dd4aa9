//! Comparison layer by layer.

use super::{GoldenError, versioned};
use crate::files::read_limited;
use crate::limits;
use crate::reference::{Observer, Place, Reference, ReferenceError, Want};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Greatest difference of a residual stream from HuggingFace's, relative to its greatest element.
pub const HIDDEN_TOLERANCE: f64 = 1e-4;

/// The residual stream of one prompt's last position: the embedding, the stream after each layer but the last, and the
/// output of the final norm, as HuggingFace's `output_hidden_states` gives them.
#[derive(Debug, Clone, Deserialize)]
pub struct HiddenGolden {
    /// The checkpoint's name.
    pub checkpoint: String,
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// One vector per place.
    pub layers: Vec<Vec<f32>>,
}

impl HiddenGolden {
    /// Reads a hidden-state file.
    pub fn read(path: &Path) -> Result<Self, GoldenError> {
        let name = path
            .file_name()
            .map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        versioned(&name, &read_limited(path, limits::MAX_GOLDEN_BYTES)?)
    }
}

/// The result: the greatest relative difference per place, in the golden's order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HiddenReport {
    /// Whether every place is within [`HIDDEN_TOLERANCE`].
    pub ok: bool,
    /// Greatest relative difference per place; infinite where a vector is missing or of another length.
    pub relative_errors: Vec<f64>,
}

/// Runs the golden's prompt and compares the residual stream at its last position.
pub fn verify_hidden(
    golden: &HiddenGolden,
    reference: &mut Reference,
) -> Result<HiddenReport, ReferenceError> {
    struct Collect {
        last: usize,
        final_layer: usize,
        seen: Vec<Vec<f32>>,
    }
    impl Observer for Collect {
        fn hidden(&mut self, place: Place, position: usize, values: &[f32]) {
            if position == self.last && place != Place::Layer(self.final_layer) {
                self.seen.push(values.to_vec());
            }
        }
    }
    let mut collect = Collect {
        last: golden.prompt_ids.len().saturating_sub(1),
        final_layer: reference.config().num_layers - 1,
        seen: Vec::new(),
    };
    reference.reset();
    reference.run(&golden.prompt_ids, 0, Want::Last, Some(&mut collect), &mut |_, _| {})?;
    let relative_errors: Vec<f64> = golden
        .layers
        .iter()
        .enumerate()
        .map(|(i, expected)| match collect.seen.get(i) {
            Some(actual) if actual.len() == expected.len() => relative(expected, actual),
            _ => f64::INFINITY,
        })
        .collect();
    let ok = collect.seen.len() == golden.layers.len()
        && relative_errors.iter().all(|e| *e <= HIDDEN_TOLERANCE);
    Ok(HiddenReport { ok, relative_errors })
}

/// Greatest difference over greatest element.
fn relative(expected: &[f32], actual: &[f32]) -> f64 {
    let scale = expected.iter().fold(0f64, |m, e| m.max(f64::from(e.abs())));
    let worst = expected.iter().zip(actual).fold(0f64, |m, (e, a)| {
        let d = f64::from((e - a).abs());
        if d.is_nan() { f64::INFINITY } else { m.max(d) }
    });
    if worst == 0.0 { 0.0 } else { worst / scale }
}
