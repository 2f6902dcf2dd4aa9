//! Predictions against measurements: do both put the candidates in the same order?

use serde::{Deserialize, Serialize};

use crate::candidate::Point;

/// Version of the file of measured candidates.
pub const MEASURED_FORMAT: u32 = 1;

/// Candidates measured on one device, with what was measured by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRows {
    /// See [`MEASURED_FORMAT`].
    pub format: u32,
    /// The device, as its driver names it.
    pub device: String,
    /// Name of the target record.
    pub target: String,
    pub rows: Vec<Measured>,
}

/// Why a file of measured candidates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    #[error("the file of measured candidates is not of its form: {0}")]
    Json(#[from] serde_json::Error),
    #[error(
        "the file of measured candidates has format {found}; this amk reads format {MEASURED_FORMAT}"
    )]
    Format { found: u32 },
    #[error("row {row} of the measured candidates took {us} us; it must be a finite time above 0")]
    Time { row: usize, us: f64 },
}

impl MeasuredRows {
    /// Reads a file.
    ///
    /// # Errors
    /// It is not of the form, or a time is none.
    pub fn parse(text: &str) -> Result<MeasuredRows, MeasuredError> {
        let rows: MeasuredRows = serde_json::from_str(text)?;
        if rows.format != MEASURED_FORMAT {
            return Err(MeasuredError::Format { found: rows.format });
        }
        match rows.rows.iter().enumerate().find(|(_, r)| !(r.us.is_finite() && r.us > 0.0)) {
            Some((row, r)) => Err(MeasuredError::Time { row, us: r.us }),
            None => Ok(rows),
        }
    }
}

/// One candidate and the time it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Name of the model's shape, a file of `tests/shapes` or `embedded`.
    pub shape: String,
    /// Version of the kernel's text: times of different ones are not compared with one another.
    pub kernel: String,
    /// `bf16` or `f32`.
    pub mode: String,
    pub position: u64,
    pub knobs: Point,
    /// Microseconds per token, median.
    pub us: f64,
    /// Where the figure stands.
    pub from: String,
}

/// How well predictions order measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranked {
    pub rows: usize,
    /// Rank correlation over all rows; `None` for fewer than three.
    pub spearman: Option<f64>,
    /// Median of |predicted / measured - 1|.
    pub median_error: f64,
}

/// Compares predictions with measurements, pair by pair.
pub fn rank(pairs: &[(f64, f64)]) -> Ranked {
    let (predicted, measured): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let mut errors: Vec<f64> = pairs.iter().map(|(p, m)| (p / m - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    Ranked {
        rows: pairs.len(),
        spearman: spearman(&predicted, &measured),
        median_error: errors.get(errors.len() / 2).copied().unwrap_or(0.0),
    }
}

/// Spearman's rank correlation: Pearson's of the ranks, equal values sharing the mean of theirs. `None` for fewer than
/// three pairs, or where one side is all alike.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() || a.len() < 3 {
        return None;
    }
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let sum =
        |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(p, q)| (p - mean) * (q - mean)).sum::<f64>();
    let spread = (sum(&a, &a) * sum(&b, &b)).sqrt();
    (spread > 0.0).then(|| sum(&a, &b) / spread)
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let alike = order[from..].iter().take_while(|&&i| values[i] == values[order[from]]).count();
        let rank = from as f64 + (alike as f64 + 1.0) / 2.0;
        order[from..from + alike].iter().for_each(|&i| ranks[i] = rank);
        from += alike;
    }
    ranks
}
