//! One tensor: its bytes where they lie, its type, its shape.

use crate::files::Bytes;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Storage type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// Something that is not read; such a tensor never becomes part of a model.
    Other,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::Bf16 | DType::F16 => 2,
            DType::F32 => 4,
            DType::Other => 0,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::Other => "other",
        })
    }
}

/// A view of one tensor in a mapped file. Cloning it copies no data.
///
/// A tensor of one dimension counts as one row; a matrix is row-major, `[out_features, in_features]`.
#[derive(Clone)]
pub struct WeightTensor {
    pub(super) storage: Arc<Bytes>,
    pub(super) range: Range<usize>,
    pub(super) name: String,
    pub(super) file: Arc<str>,
    pub(super) dtype: DType,
    pub(super) stored_dtype: String,
    pub(super) shape: Vec<usize>,
}

impl fmt::Debug for WeightTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {} in {}", self.name, self.shape, self.stored_dtype, self.file)
    }
}

impl WeightTensor {
    /// A tensor whose bytes are `range` of `storage`.
    pub(crate) fn from_parts(
        storage: Arc<Bytes>,
        range: Range<usize>,
        name: String,
        file: Arc<str>,
        dtype: DType,
        stored_dtype: &str,
        shape: Vec<usize>,
    ) -> Self {
        Self { storage, range, name, file, dtype, stored_dtype: stored_dtype.to_string(), shape }
    }

    /// Name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the file that holds it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Storage type as the file spells it.
    pub fn stored_dtype(&self) -> &str {
        &self.stored_dtype
    }

    /// Shape, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Raw little-endian bytes, in row-major order; not necessarily aligned.
    pub fn bytes(&self) -> &[u8] {
        &self.storage[self.range.clone()]
    }

    /// Rows: the first dimension, or 1 for a vector.
    pub fn rows(&self) -> usize {
        if self.shape.len() < 2 { 1 } else { self.shape[0] }
    }

    /// Elements of one row.
    pub fn cols(&self) -> usize {
        let skip = usize::from(self.shape.len() >= 2);
        self.shape.iter().skip(skip).product()
    }

    /// Raw bytes of a range of rows; empty if the range is not inside the tensor.
    pub fn row_bytes(&self, rows: Range<usize>) -> &[u8] {
        let width = self.cols() * self.dtype.size();
        if rows.start > rows.end || rows.end > self.rows() {
            return &[];
        }
        &self.bytes()[rows.start * width..rows.end * width]
    }

    /// A range of rows widened to f32, which is exact for every supported type; empty if the range is not inside.
    pub fn rows_f32(&self, rows: Range<usize>) -> Vec<f32> {
        let bytes = self.row_bytes(rows);
        let mut out = vec![0.0; bytes.len().checked_div(self.dtype.size()).unwrap_or(0)];
        widen(self.dtype, bytes, &mut out);
        out
    }

    /// The whole tensor widened to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        self.rows_f32(0..self.rows())
    }

    /// A view of some rows of a matrix, named after them; empty if the range is not inside.
    pub(super) fn part(&self, rows: Range<usize>) -> WeightTensor {
        let width = self.cols() * self.dtype.size();
        let inside = rows.start <= rows.end && rows.end <= self.rows();
        let rows = if inside { rows } else { 0..0 };
        let start = self.range.start;
        let mut shape = self.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = rows.len();
        }
        WeightTensor {
            range: start + rows.start * width..start + rows.end * width,
            name: format!("{}[{}..{}]", self.name, rows.start, rows.end),
            shape,
            ..self.clone()
        }
    }

    /// The elements as 16-bit words, if they are 16 bits wide and aligned.
    pub fn words16(&self) -> Option<&[u16]> {
        // SAFETY: every bit pattern is a valid u16; `align_to` finds the aligned middle.
        let (head, middle, tail) = unsafe { self.bytes().align_to::<u16>() };
        (self.dtype.size() == 2 && head.is_empty() && tail.is_empty()).then_some(middle)
    }

    /// The elements as f32, if that is their type and they are aligned.
    pub fn words32(&self) -> Option<&[f32]> {
        // SAFETY: every bit pattern is a valid f32; `align_to` finds the aligned middle.
        let (head, middle, tail) = unsafe { self.bytes().align_to::<f32>() };
        (self.dtype == DType::F32 && head.is_empty() && tail.is_empty()).then_some(middle)
    }

    /// The same tensor with its elements aligned: itself, or a copy where the file has it at an odd place.
    pub fn aligned(&self) -> WeightTensor {
        if self.words16().is_some() || self.words32().is_some() {
            return self.clone();
        }
        let bytes = self.bytes();
        WeightTensor {
            storage: Arc::new(Bytes::aligned_copy(bytes)),
            range: 0..bytes.len(),
            ..self.clone()
        }
    }
}

/// Widens little-endian elements to f32, exactly. `out` has one place per element.
fn widen(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (o, c) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*c);
            }
        }
        DType::Bf16 => {
            for (o, c) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = bf16::from_le_bytes(*c).to_f32();
            }
        }
        DType::F16 => {
            let mut block = [f16::ZERO; 256];
            for (o, chunk) in out.chunks_mut(256).zip(bytes.chunks(512)) {
                for (h, c) in block.iter_mut().zip(chunk.as_chunks::<2>().0) {
                    *h = f16::from_le_bytes(*c);
                }
                let n = o.len().min(chunk.len() / 2);
                block[..n].convert_to_f32_slice(&mut o[..n]);
            }
        }
        DType::Other => {}
    }
}
