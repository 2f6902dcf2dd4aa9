//! The space of schedule parameters for one model, target and bucket.

use amk_autoresearch::{Domain, Knob, Point, Space, Value};
use amk_schedule_ir::TILE_ROWS;
use serde_json::{Map, Value as Json};

use super::Subject;
use crate::codegen::{RenderOptions, op_variants};
use crate::lower::Knobs;

/// Knobs that are no choice of a schedule but what it is for: positions of a step, and the cache that all programs of a run
/// share.
pub const FIXED: [&str; 2] = ["tokens", "capacity"];

/// Starts by name.
pub const PRESETS: [&str; 2] = ["default", "naive"];

/// Most ring slots that are tried.
const SLOTS: u64 = 64;

fn choices(values: impl IntoIterator<Item = u64>) -> Domain {
    let values = values.into_iter().map(Value::Int);
    Domain::Choices { values: std::iter::once(Value::Auto).chain(values).collect() }
}

fn range(low: u64, high: u64, step: u64, auto: bool) -> Domain {
    Domain::Range { low, high, step, auto }
}

/// The space of a subject. Only knobs that can change its program are in it: where a choice has one value, there is no
/// knob.
pub fn space(subject: &Subject) -> Space {
    let (target, sizes) = (&subject.target, &subject.shape.sizes);
    let sms = u64::from(target.sm_count);
    let threads = u64::from(target.threads_per_block);
    let warps = (threads / 32).saturating_sub(1).clamp(1, 16);
    let rows = subject.bucket.last + 1;
    let edges = Domain::Choices { values: vec![Value::word("packet"), Value::word("counter")] };
    let defaults = point_of(&Knobs::default());
    let mut knobs = Vec::new();
    let mut add = |name: &str, about: &str, domain: Domain| {
        let default = defaults.get(name).cloned().unwrap_or_default();
        if domain.len() > 1 {
            knobs.push(Knob { name: name.to_owned(), about: about.to_owned(), domain, default });
        }
    };
    let how = "how its values reach the SMs that read them: packet, words that carry their epoch, one hop; counter, plain memory and a signal, two hops and half the bytes";
    let mut edge = |name: &str, what: &str| {
        add(&format!("edges.{name}"), &format!("{what}: {how}"), edges.clone());
    };
    edge("hidden", "residual rows");
    edge("qkv", "queries, keys and values of the step");
    edge("attention", "attention output");
    edge("act", "activation of the MLP");
    let splits = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].into_iter().filter(|n| *n <= rows);
    let splits = choices(splits);
    let has_splits = splits.len() > 2;
    if has_splits {
        edge("partial", "partial results of split attention");
    }
    add("consumer_warps", "warps that compute; each sums a slice of K", range(1, warps, 1, false));
    let kilobytes = [2, 4, 6, 8, 12, 16, 24, 32, 48].into_iter().map(|k| k * 1024);
    add(
        "slot_bytes",
        "largest chunk of weights in bytes; null: 16384, or less where that leaves fewer than four slots",
        choices(kilobytes.filter(|b| *b <= target.shared_per_block / 4)),
    );
    add(
        "ring_slots",
        "most chunks the shared memory holds; there are never more than fit",
        range(2, SLOTS, 1, true),
    );
    for (phase, what) in
        [("dense", "MLP"), ("chain", "QKV and output projections"), ("head", "LM head")]
    {
        add(
            &format!("windows.{phase}"),
            &format!(
                "chunks in flight while the {what} streams: few make hops fast, many keep the memory busy; never more than the ring; null: from the bandwidth of an SM"
            ),
            range(1, SLOTS, 1, true),
        );
    }
    add("splits", "parts the past is cut into for attention; null: by the bucket", splits);
    if sizes.group() > 1 {
        add(
            "q_heads_per_unit",
            "query heads of one attention unit; null: as few as leave each unit an SM",
            range(1, sizes.group(), 1, true),
        );
    }
    add(
        "rotation",
        "SMs by which each matrix stage shifts its tiles against the one before, so that remainders do not fall on the same SMs",
        range(0, sms.saturating_sub(1), 1, false),
    );
    add(
        "unit_stride",
        "SMs from one attention unit to the next; null: as far apart as they go",
        range(1, (sms / sizes.kv_heads.max(1)).max(1), 1, true),
    );
    add("grid", "blocks of the grid; null: one per SM", range((sms / 2).max(1), sms, 1, true));
    // Instructions are cut where an SM has several tiles.
    let tiles = |rows: u64, tile: u64| rows.div_ceil(tile).div_ceil(sms.max(1));
    let most = |n: u64, values: &[u64]| choices(values.iter().copied().filter(|v| *v < n));
    for (stage, what, n, values) in [
        ("qkv", "queries, keys and values", tiles(sizes.qkv_width(), TILE_ROWS), &[1, 2, 3, 4][..]),
        (
            "gate_up",
            "gate and up projections",
            tiles(2 * sizes.inner, TILE_ROWS),
            &[1, 2, 4, 8, 16],
        ),
        ("head", "LM head", tiles(sizes.vocab, TILE_ROWS), &[4, 8, 16, 32, 64]),
    ] {
        add(
            &format!("tiles.{stage}"),
            &format!(
                "most row tiles of one instruction of the {what}: small ones publish earlier, and each waits for its input anew; null: all that an SM has, fused into one"
            ),
            most(n, values),
        );
    }
    let profiles = subject.balance.iter().map(|p| Value::word(p));
    add(
        "balance",
        "shares of the SMs by their measured speed, a digit each, 5 for the usual share and 2% for each digit more or less; null: all alike",
        Domain::Choices { values: std::iter::once(Value::Auto).chain(profiles).collect() },
    );
    if has_splits {
        add(
            "merge_heads",
            "query heads whose splits one instruction merges; null: as few as leave each an SM",
            most(sizes.heads + 1, &[1, 2, 4, 8]),
        );
    }
    let registers = u64::from(target.registers_per_thread.min(255));
    add(
        "registers",
        "registers the compiler may use for a thread; null: as many as the part has for the block. A kernel that spills is refused",
        most(registers + 1, &[80, 96, 112, 128, 144, 160, 176, 192, 208, 224]),
    );
    add(
        "taken",
        "weight chunks that warps take into registers while they wait for their input; null: 3",
        range(0, u64::from(RenderOptions::MOST_TAKEN), 1, true),
    );
    add(
        "accumulators",
        "independent sums of a product within a warp: more keep dependent products apart, fewer leave registers; null: 4",
        choices([2]),
    );
    add(
        "unroll",
        "packed blocks of a chunk that a warp multiplies without a branch; null: 8",
        choices([1, 2, 4]),
    );
    add(
        "fragments",
        "most input fragments a warp keeps in registers from tile to tile, instead of reading them again from shared memory; null: 16",
        choices([0, 4, 8]),
    );
    for (name, what) in [("layers", "products of the layers"), ("head", "LM head")] {
        add(
            &format!("groups.{name}"),
            &format!(
                "row tiles of the {what} whose sums are added up at once, behind one block barrier; null: 16"
            ),
            choices([2, 4, 8]),
        );
    }
    for (op, about) in [("sum", "how the sums of the warps are added up")] {
        let known: Vec<_> = op_variants(op)
            .filter(|v| {
                !subject.refused.iter().any(|(o, n)| (o.as_str(), n.as_str()) == (v.op, v.name))
            })
            .collect();
        let text: Vec<String> = known.iter().map(|v| format!("{}, {}", v.name, v.about)).collect();
        // The first is what is used by default.
        let values = known.iter().skip(1).map(|v| Value::word(v.name));
        add(
            &format!("variants.{op}"),
            &format!("{about}: {}; null: the first", text.join("; ")),
            Domain::Choices { values: std::iter::once(Value::Auto).chain(values).collect() },
        );
    }
    let title = format!(
        "schedules of {} for {} at positions {} to {}",
        subject.shape.name, target.name, subject.bucket.first, subject.bucket.last
    );
    Space { title, knobs }
}

/// A named start. `default` leaves everything to the lowering. `naive` is what one writes first: tiles dealt out to the SMs
/// in one order, neighbouring attention units side by side with all heads of a group, a counter on every edge, as much in
/// flight as the ring holds, nothing taken into registers, no split of the past.
pub fn preset(name: &str, space: &Space) -> Option<Point> {
    let point = space.default_point();
    let naive = || {
        let mut point = point.clone();
        for knob in &space.knobs {
            let value = match knob.name.as_str() {
                name if name.starts_with("edges.") => Value::word("counter"),
                name if name.starts_with("windows.") => Value::Int(SLOTS),
                "splits" | "unit_stride" => Value::Int(1),
                "rotation" | "taken" => Value::Int(0),
                "q_heads_per_unit" => {
                    knob.domain.at(knob.domain.len().saturating_sub(1)).unwrap_or_default()
                }
                _ => continue,
            };
            point.0.insert(knob.name.clone(), value);
        }
        point
    };
    match name {
        "default" => Some(point),
        "naive" => Some(naive()),
        _ => None,
    }
}

/// Schedule parameters as a point.
pub fn point_of(knobs: &Knobs) -> Point {
    let mut point = Point::default();
    let json = serde_json::to_value(knobs).unwrap_or_default();
    let mut put = |name: String, value: &Json| {
        let value = match value {
            Json::Number(n) => n.as_u64().map_or(Value::Auto, Value::Int),
            Json::String(s) => Value::word(s),
            _ => Value::Auto,
        };
        if !FIXED.contains(&name.as_str()) {
            point.0.insert(name, value);
        }
    };
    for (name, value) in json.as_object().into_iter().flatten() {
        match value {
            Json::Object(inner) => {
                inner.iter().for_each(|(k, v)| put(format!("{name}.{k}"), v));
            }
            value => put(name.clone(), value),
        }
    }
    point
}

/// A point as schedule parameters; `tokens` and `capacity` are left at their defaults.
///
/// # Errors
/// A name or a value that is none, as a sentence.
pub fn knobs_of(point: &Point) -> Result<Knobs, String> {
    let mut json = Map::new();
    for (name, value) in &point.0 {
        if FIXED.contains(&name.as_str()) {
            return Err(format!("{name} is not a choice of the schedule"));
        }
        let value = match value {
            Value::Auto => Json::Null,
            Value::Int(n) => (*n).into(),
            Value::Word(w) => w.as_str().into(),
        };
        match name.split_once('.') {
            None => drop(json.insert(name.clone(), value)),
            Some((outer, inner)) => {
                let object = json.entry(outer).or_insert_with(|| Map::new().into());
                if let Some(object) = object.as_object_mut() {
                    object.insert(inner.to_owned(), value);
                }
            }
        }
    }
    serde_json::from_value(json.into()).map_err(|e| format!("the knobs are none: {e}"))
}
