//! Contents of a lowered model's read-only buffers, made from a checkpoint by their recipes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use amk_models::{Checkpoint, Rope, WeightTensor};
use amk_schedule_ir::BufferId;

use super::data::{Data, DataError};
use crate::lowered::{Lowered, Recipe};
use crate::rotary::RotaryTable;

/// Matrices of all buffers together up to this many elements are widened once and kept.
const KEPT_ELEMENTS: u64 = 1 << 24;

enum Contents {
    /// All elements, `width` a row.
    Kept { values: Vec<f32>, width: usize },
    /// Tensors one below the other, each with its first row.
    Concat(Vec<(u64, WeightTensor)>),
    /// Two tensors, row by row.
    Interleave(Box<[WeightTensor; 2]>),
    /// A rotary table of that many rows that depends on the sequence.
    Rotary(RotaryTable, u64),
}

/// Read-only buffers of one lowered model.
pub struct RecipeData {
    buffers: Vec<Option<Contents>>,
    /// Length of the sequence that rotary tables are for.
    length: AtomicU64,
}

fn tensor_error(what: String) -> DataError {
    DataError::Tensor(what)
}

impl RecipeData {
    /// Finds the tensors of every recipe.
    ///
    /// # Errors
    /// The checkpoint lacks a tensor, or the tensors do not have the buffer's shape.
    pub fn new(lowered: &Lowered, checkpoint: &Checkpoint) -> Result<RecipeData, DataError> {
        RecipeData::keeping(lowered, checkpoint, KEPT_ELEMENTS)
    }

    /// The same, with matrices widened once if all of them have at most `limit` elements together, and
    /// row by row as they are asked for otherwise.
    ///
    /// # Errors
    /// As [`RecipeData::new`].
    pub fn keeping(
        lowered: &Lowered,
        checkpoint: &Checkpoint,
        limit: u64,
    ) -> Result<RecipeData, DataError> {
        let tensors: BTreeMap<&str, &WeightTensor> =
            checkpoint.weights().iter().map(|t| (t.name(), t)).collect();
        let find = |name: &String| {
            tensors.get(name.as_str()).copied().cloned().ok_or_else(|| {
                tensor_error(format!(
                    "the checkpoint has no tensor {name}, which the schedule needs"
                ))
            })
        };
        let buffers = &lowered.program.buffers;
        let total = buffers.iter().zip(&lowered.recipes).filter(|(_, r)| r.is_some());
        let total: u64 = total.map(|(b, _)| b.shape.iter().product::<u64>()).sum();
        let mut contents = Vec::with_capacity(buffers.len());
        for (buffer, recipe) in buffers.iter().zip(&lowered.recipes) {
            let elements: u64 = buffer.shape.iter().product();
            let width = match buffer.shape.as_slice() {
                [n] => *n,
                [_, rest @ ..] => rest.iter().product(),
                [] => 1,
            };
            let misfit = |found: u64| {
                let name = &buffer.name;
                tensor_error(format!("`{name}` has {elements} elements, its tensors {found}"))
            };
            let made = match recipe {
                None => None,
                Some(Recipe::Rope) => {
                    Some(rope(checkpoint, &checkpoint.config().rope, elements, width))
                }
                Some(Recipe::LocalRope) => {
                    let config = checkpoint.config();
                    let base = config.local_rope.as_ref().unwrap_or(&config.rope);
                    Some(rope(checkpoint, base, elements, width))
                }
                Some(Recipe::OnePlus(name)) => {
                    let tensor = find(name)?;
                    if count(&tensor) != elements {
                        return Err(misfit(count(&tensor)));
                    }
                    let values = tensor.to_f32().into_iter().map(|w| w + 1.0).collect();
                    Some(Contents::Kept { values, width: width as usize })
                }
                Some(Recipe::Concat(names)) => {
                    let parts: Vec<_> = names.iter().map(find).collect::<Result<_, _>>()?;
                    let found = parts.iter().map(count).sum();
                    if found != elements {
                        return Err(misfit(found));
                    }
                    let mut row = 0;
                    Some(if buffer.shape.len() == 1 {
                        let values = parts.iter().flat_map(WeightTensor::to_f32).collect();
                        Contents::Kept { values, width: width as usize }
                    } else {
                        Contents::Concat(
                            parts
                                .into_iter()
                                .map(|t| {
                                    let first = row;
                                    row += count(&t) / width;
                                    (first, t)
                                })
                                .collect(),
                        )
                    })
                }
                Some(Recipe::Interleave(even, odd)) => {
                    let (even, odd) = (find(even)?, find(odd)?);
                    if 2 * count(&even) != elements || 2 * count(&odd) != elements {
                        return Err(misfit(count(&even) + count(&odd)));
                    }
                    Some(if buffer.shape.len() == 1 {
                        let pairs = even.to_f32().into_iter().zip(odd.to_f32());
                        let values = pairs.flat_map(|(a, b)| [a, b]).collect();
                        Contents::Kept { values, width: width as usize }
                    } else {
                        Contents::Interleave(Box::new([even, odd]))
                    })
                }
            };
            contents.push(made);
        }
        let mut data = RecipeData { buffers: contents, length: AtomicU64::new(0) };
        if total <= limit {
            data.keep(lowered)?;
        }
        Ok(data)
    }

    /// Rotary tables that depend on the sequence are for one of `length` positions from now on, and rows from there on
    /// for sequences that end with them; 0 to begin with.
    pub fn set_length(&self, length: u64) {
        self.length.store(length, Ordering::Relaxed);
    }

    /// Widens every matrix once.
    fn keep(&mut self, lowered: &Lowered) -> Result<(), DataError> {
        for (i, buffer) in lowered.program.buffers.iter().enumerate() {
            if let Some(Contents::Concat(_) | Contents::Interleave(_)) = &self.buffers[i] {
                let rows = buffer.shape.first().copied().unwrap_or(0);
                let values = self.rows(BufferId(i as u32), 0..rows)?.into_owned();
                let width = values.len() / rows.max(1) as usize;
                self.buffers[i] = Some(Contents::Kept { values, width });
            }
        }
        Ok(())
    }
}

fn count(tensor: &WeightTensor) -> u64 {
    tensor.shape().iter().map(|&n| n as u64).product()
}

/// The table of [`Recipe::Rope`] or [`Recipe::LocalRope`]: per position the cosines, then the sines.
fn rope(checkpoint: &Checkpoint, rope: &Rope, elements: u64, width: u64) -> Contents {
    let positions = elements / width.max(1);
    let table = RotaryTable::new(rope, checkpoint.config().head_dim);
    match rope.depends_on_length() {
        true => Contents::Rotary(table, positions),
        false => Contents::Kept { values: table.rows(0..positions, 0), width: width as usize },
    }
}

impl Data for RecipeData {
    fn rows(&self, buffer: BufferId, rows: Range<u64>) -> Result<Cow<'_, [f32]>, DataError> {
        let contents = self.buffers.get(buffer.index()).and_then(|c| c.as_ref());
        let missing = || DataError::NoRows { buffer, lo: rows.start, hi: rows.end };
        match contents.ok_or(DataError::NoContents(buffer))? {
            Contents::Kept { values, width } => {
                let range = rows.start as usize * width..rows.end as usize * width;
                values.get(range).map(Cow::Borrowed).ok_or_else(missing)
            }
            Contents::Concat(parts) => {
                let mut out = Vec::new();
                for (i, (first, tensor)) in parts.iter().enumerate() {
                    let end = parts.get(i + 1).map_or(first + tensor.rows() as u64, |p| p.0);
                    let (lo, hi) = (rows.start.max(*first), rows.end.min(end));
                    if lo < hi {
                        let part = tensor.rows_f32((lo - first) as usize..(hi - first) as usize);
                        if part.is_empty() {
                            return Err(missing());
                        }
                        if lo == rows.start && hi == rows.end {
                            return Ok(Cow::Owned(part));
                        }
                        out.extend(part);
                    }
                }
                let width = parts.first().map_or(0, |(_, t)| t.cols());
                match out.len() == (rows.end - rows.start) as usize * width {
                    true => Ok(Cow::Owned(out)),
                    false => Err(missing()),
                }
            }
            Contents::Rotary(table, positions) => match rows.end <= *positions {
                true => Ok(Cow::Owned(table.rows(rows, self.length.load(Ordering::Relaxed)))),
                false => Err(missing()),
            },
            Contents::Interleave(pair) => {
                let mut out = Vec::new();
                for row in rows.clone() {
                    let tensor = &pair[(row % 2) as usize];
                    let at = (row / 2) as usize;
                    let part = tensor.rows_f32(at..at + 1);
                    if part.is_empty() {
                        return Err(missing());
                    }
                    out.extend(part);
                }
                Ok(Cow::Owned(out))
            }
        }
    }
}
