//! The index of a sharded checkpoint, and what to say when the weights are not where they should be.

use super::{INDEX, WeightsError};
use crate::files::Files;
use crate::limits;
use serde_json::Value;
use std::collections::BTreeMap;

/// Reads the index: tensor name to shard name. Shard names are plain file names; a path would leave the folder.
pub(super) fn read(files: &Files) -> Result<BTreeMap<String, String>, WeightsError> {
    let bad = |what: String| WeightsError::BadIndex { what };
    let bytes = files.read(INDEX, limits::MAX_INDEX_BYTES)?;
    let json: Value = serde_json::from_slice(&bytes)
        .map_err(|e| bad(format!("not JSON ({e}); download the file again")))?;
    let Some(Value::Object(map)) = json.get("weight_map") else {
        return Err(bad("it has no \"weight_map\" object; download the file again".to_string()));
    };
    if map.is_empty() {
        return Err(bad("its \"weight_map\" is empty; download the file again".to_string()));
    }
    map.iter()
        .map(|(tensor, shard)| match shard.as_str() {
            Some(s)
                if !s.is_empty()
                    && !s.contains(['/', '\\'])
                    && s != ".."
                    && s.ends_with(".safetensors") =>
            {
                Ok((tensor.clone(), s.to_string()))
            }
            _ => Err(bad(format!(
                "the shard of {tensor} is {}, not the name of a safetensors file",
                crate::config::short(shard)
            ))),
        })
        .collect()
}

/// The error for a shard that is not there, with a hint where the folder has shards of another numbering.
pub(super) fn missing_shard(files: &Files, shard: &str) -> WeightsError {
    let others: Vec<&str> = files.names().filter(|n| n.ends_with(".safetensors")).collect();
    let total = |name: &str| name.rsplit_once("-of-").map(|(_, t)| t.to_string());
    let renamed = others.iter().find(|o| total(o).is_some() && total(o) != total(shard));
    let hint = match renamed {
        Some(other) => format!(
            "; the folder has {other} instead, so the index is stale: it belongs to a checkpoint cut into another number of shards, download it again"
        ),
        None if others.is_empty() => {
            "; the folder has no shard at all, download the weights".to_string()
        }
        None => "; download that shard".to_string(),
    };
    WeightsError::MissingShard { shard: shard.to_string(), folder: files.label().to_string(), hint }
}

/// The error for a folder without safetensors weights.
pub(super) fn no_weights(files: &Files) -> WeightsError {
    let foreign =
        [".bin", ".pt", ".pth", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx", ".npz", ".ckpt"];
    let mut found: Vec<&str> = files
        .names()
        .filter(|n| foreign.iter().any(|e| n.ends_with(e)) && *n != "training_args.bin")
        .collect();
    if found.is_empty() {
        found = files.names().filter(|n| n.ends_with(".safetensors")).collect();
        if found.is_empty() {
            return WeightsError::NoWeights { folder: files.label().to_string() };
        }
        return WeightsError::BadIndex {
            what: format!(
                "it is not in {}, which has {} without being named model.safetensors; put the index beside the shards",
                files.label(),
                found.join(", ")
            ),
        };
    }
    if let Some(gguf) = found.iter().find(|n| n.ends_with(".gguf")) {
        // It brings a config of its own, which must not be mixed with the folder's.
        let (folder, file) = (files.label().to_string(), gguf.to_string());
        return WeightsError::GgufBesideConfig { folder, file };
    }
    found.truncate(3);
    WeightsError::UnsupportedFormat { folder: files.label().to_string(), found: found.join(", ") }
}
