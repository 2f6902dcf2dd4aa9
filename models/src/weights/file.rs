//! One safetensors file: the header is checked by the `safetensors` crate before anything is allocated, and what it
//! finds is told in a sentence that says where and what to do.

use super::{DType, WeightTensor, WeightsError};
use crate::files::Files;
use crate::limits;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A mapped safetensors file whose header is valid.
pub(super) struct SafetensorsFile {
    tensors: BTreeMap<String, WeightTensor>,
}

impl SafetensorsFile {
    /// Maps and checks a file.
    pub fn open(files: &Files, name: &str) -> Result<Self, WeightsError> {
        let storage = Arc::new(files.map(name)?);
        let (header, metadata) = SafeTensors::read_metadata(&storage).map_err(|e| {
            WeightsError::BadFile { file: name.to_string(), what: explain(&e, &storage) }
        })?;
        let base = header + 8;
        let file: Arc<str> = Arc::from(name);
        let tensors = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                let tensor = WeightTensor {
                    storage: storage.clone(),
                    range: base + info.data_offsets.0..base + info.data_offsets.1,
                    name: name.clone(),
                    file: file.clone(),
                    dtype: match info.dtype {
                        Dtype::BF16 => DType::Bf16,
                        Dtype::F16 => DType::F16,
                        Dtype::F32 => DType::F32,
                        _ => DType::Other,
                    },
                    stored_dtype: format!("{:?}", info.dtype),
                    shape: info.shape.clone(),
                };
                (name, tensor)
            })
            .collect();
        Ok(Self { tensors })
    }

    /// The tensors by name.
    pub fn into_tensors(self) -> BTreeMap<String, WeightTensor> {
        self.tensors
    }
}

/// What is wrong with the file and what to do about it.
fn explain(error: &SafeTensorError, bytes: &[u8]) -> String {
    let size = bytes.len() as u64;
    let stated = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
    match (error, stated) {
        (SafeTensorError::HeaderTooSmall, _) | (_, None) => {
            format!("it has {size} bytes, too few for a safetensors file; download it again")
        }
        (SafeTensorError::HeaderTooLarge | SafeTensorError::InvalidHeaderLength, Some(header)) => format!(
            "it says that its header has {header} bytes, but the file has {size} and a header at most {}; it is cut off or not a safetensors file, download it again",
            limits::MAX_HEADER_BYTES
        ),
        (SafeTensorError::MetadataIncompleteBuffer, Some(header)) => {
            let described = data_end(bytes, header).and_then(|end| end.checked_add(8 + header));
            match described {
                Some(d) if d > size => {
                    format!("the file is {} bytes short of the {d} its header describes: it is truncated, download it again", d - size)
                }
                Some(d) => format!(
                    "the file has {} trailing bytes after the {d} its header describes; download it again",
                    size - d
                ),
                None => "its size is not what its header describes; download it again".to_string(),
            }
        }
        (SafeTensorError::InvalidOffset(tensor), _) => format!(
            "the tensor {tensor} overlaps another one or leaves a gap before it; the header is damaged, download the file again"
        ),
        (SafeTensorError::TensorInvalidInfo, Some(header)) => match misfit(bytes, header) {
            Some(tensor) => format!("the tensor {tensor} has more or fewer bytes than its shape and type take; the header is damaged"),
            None => "a tensor has more or fewer bytes than its shape and type take; the header is damaged".to_string(),
        },
        (SafeTensorError::ValidationOverflow, _) => {
            "a tensor's shape is too large to count; the header is damaged".to_string()
        }
        (SafeTensorError::InvalidHeader(_) | SafeTensorError::InvalidHeaderDeserialization(_), _) => {
            format!("its header cannot be read ({error}); it is damaged or not a safetensors file")
        }
        _ => format!("{error}; download the file again"),
    }
}

fn header_json(bytes: &[u8], header: u64) -> Option<serde_json::Map<String, Value>> {
    let end = usize::try_from(header).ok()?.checked_add(8)?;
    match serde_json::from_slice(bytes.get(8..end)?).ok()? {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

/// Where the header says the data ends.
fn data_end(bytes: &[u8], header: u64) -> Option<u64> {
    let map = header_json(bytes, header)?;
    map.values().filter_map(|v| v.get("data_offsets")?.get(1)?.as_u64()).max().or(Some(0))
}

/// The first tensor whose bytes do not fit its shape.
fn misfit(bytes: &[u8], header: u64) -> Option<String> {
    header_json(bytes, header)?.into_iter().find_map(|(name, v)| {
        let width: u64 = match v.get("dtype")?.as_str()? {
            "F64" | "I64" | "U64" => 8,
            "F32" | "I32" | "U32" => 4,
            "BF16" | "F16" | "I16" | "U16" => 2,
            "BOOL" | "I8" | "U8" => 1,
            _ => return None,
        };
        let (start, end) =
            (v.get("data_offsets")?.get(0)?.as_u64()?, v.get("data_offsets")?.get(1)?.as_u64()?);
        let elements = v
            .get("shape")?
            .as_array()?
            .iter()
            .try_fold(width, |a, d| a.checked_mul(d.as_u64()?))?;
        (end.checked_sub(start)? != elements).then_some(name)
    })
}
