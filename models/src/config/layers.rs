//! What differs from layer to layer: windows and rotary embedding.

use super::ConfigError;
use super::family::Windows;
use super::fields::{Reader, short};
use serde::Serialize;
use serde_json::Value;

/// The rotary embedding of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerRope {
    /// The model's.
    Main,
    /// The one of windowed layers, where the family has two.
    Local,
    /// None: positions are not told apart but by the mask.
    None,
}

/// One decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LayerPlan {
    /// Position i sees the positions j <= i with i - j < window; none for all of them. A window no smaller than the
    /// context is none.
    pub window: Option<usize>,
    /// Rotary embedding.
    pub rope: LayerRope,
}

/// The layers of a config of `count` layers and `capacity` positions.
pub(super) fn read(
    reader: &Reader<'_>,
    count: usize,
    capacity: usize,
) -> Result<Vec<LayerPlan>, ConfigError> {
    let rotates = rotating(reader, count)?;
    let windowed = windowed(reader, count, &rotates)?;
    let size = match windowed.iter().any(|w| *w) {
        true => Some(reader.size("sliding_window")?),
        false => None,
    };
    let local = reader.family.rope.local_base.is_some();
    Ok(windowed
        .into_iter()
        .zip(rotates)
        .map(|(windowed, rotates)| LayerPlan {
            window: size.filter(|w| windowed && *w < capacity),
            rope: match (rotates, local && windowed) {
                (false, _) => LayerRope::None,
                (true, true) => LayerRope::Local,
                (true, false) => LayerRope::Main,
            },
        })
        .collect())
}

/// Which layers have rotary embedding: `no_rope_layers` has 1 for those that do.
fn rotating(reader: &Reader<'_>, count: usize) -> Result<Vec<bool>, ConfigError> {
    if !reader.family.rope.skipped_layers {
        return Ok(vec![true; count]);
    }
    if let Some(value) = reader.get("no_rope_layers") {
        let expected = format!(
            "a list of {count} numbers, 1 for a layer with rotary embedding and 0 for one without"
        );
        let list = value.as_array().filter(|l| l.len() == count);
        let list = list.ok_or_else(|| reader.bad("no_rope_layers", &expected))?;
        return list
            .iter()
            .map(|v| match v.as_u64() {
                Some(n @ (0 | 1)) => Ok(n == 1),
                _ => Err(reader.bad("no_rope_layers", &expected)),
            })
            .collect();
    }
    // The class assumes an interval of 4; which layers rotate is not assumed here.
    let interval = reader.optional_size("no_rope_layer_interval")?;
    let interval = interval.ok_or_else(|| reader.missing("no_rope_layers"))?;
    Ok((1..=count).map(|i| !i.is_multiple_of(interval)).collect())
}

/// Which layers have a window.
fn windowed(reader: &Reader<'_>, count: usize, rotates: &[bool]) -> Result<Vec<bool>, ConfigError> {
    let rule = reader.family.windows;
    let stated = reader.get("sliding_window").is_some();
    let used = match rule {
        Windows::FromLayer | Windows::WithoutRope => {
            let on = reader.flag("use_sliding_window")?.unwrap_or(false);
            if on && !stated {
                return Err(reader.missing("sliding_window"));
            }
            on
        }
        _ => stated,
    };
    let listed = match reader.get("layer_types") {
        None => None,
        Some(value) => Some(layer_types(reader, value, count)?),
    };
    let by_rule = match rule {
        Windows::None => vec![false; count],
        Windows::Every => vec![used; count],
        Windows::Listed => vec![used; count],
        Windows::WithoutRope => rotates.iter().map(|r| used && !r).collect(),
        Windows::FromLayer if used && listed.is_none() => {
            let first = reader.get("max_window_layers");
            let first = first.ok_or_else(|| reader.missing("max_window_layers"))?.as_u64();
            let first =
                first.ok_or_else(|| reader.bad("max_window_layers", "a number of layers"))?;
            (0..count).map(|i| i as u64 >= first).collect()
        }
        Windows::FromLayer => vec![false; count],
        Windows::Alternating { field, default } => {
            let n = match field {
                Some(field) => reader.optional_size(field)?.unwrap_or(default),
                None => default,
            };
            // Written by exporters beside `layer_types`, and read by nothing.
            let twin = "_sliding_window_pattern";
            if listed.is_none() && reader.optional_size(twin)?.is_some_and(|other| other != n) {
                return Err(reader
                    .bad(twin, &format!("{n}, as the class reads it, or a list of layer_types")));
            }
            (1..=count).map(|i| !i.is_multiple_of(n)).collect()
        }
    };
    let Some(listed) = listed else { return Ok(by_rule) };
    let refused = |supported: &str| {
        let value = reader.get("layer_types").map(short).unwrap_or_default();
        Err(reader.unsupported_text("layer_types", &value, supported))
    };
    match rule {
        // The class does not read the list, so it may only say what is so.
        Windows::None | Windows::Every if listed != by_rule => {
            refused("the same kind in every layer, as \"sliding_window\" says")
        }
        Windows::FromLayer | Windows::WithoutRope if !used && listed.contains(&true) => {
            refused("\"full_attention\" in every layer unless \"use_sliding_window\" is true")
        }
        _ => Ok(listed),
    }
}

fn layer_types(reader: &Reader<'_>, value: &Value, count: usize) -> Result<Vec<bool>, ConfigError> {
    let list = value.as_array().filter(|l| l.len() == count);
    let list = list.ok_or_else(|| {
        reader.bad("layer_types", &format!("a list of {count} kinds, one for each layer"))
    })?;
    list.iter()
        .map(|v| match v.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(reader.unsupported_text(
                "layer_types",
                &short(v),
                "\"full_attention\" and \"sliding_attention\"",
            )),
        })
        .collect()
}
