//! Real lowerings: model shapes x targets x knobs. They must be accepted, and are what mutants of real
//! schedules are made from.

use std::sync::OnceLock;

use amk_models::ModelConfig;
use amk_schedule_ir::{Bucket, DType, Program, Target};

use super::draw::Draw;
use crate::lower::{EdgeKind, Edges, Knobs, Mode, Shape, Sizes, Windows, lower};
use crate::vm::rng::Rng;

/// Name that stands for shapes made up at random.
pub const RANDOM: &str = "random";

macro_rules! shapes {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../tests/shapes/", $name, ".json")))),*]
    };
}

/// Configs of known models.
const CONFIGS: [(&str, &str); 7] = shapes![
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "smollm2-1.7b",
    "smollm2-360m",
    "tinyllama-1.1b"
];

/// Shapes of the known models.
fn known() -> &'static [Shape] {
    static SHAPES: OnceLock<Vec<Shape>> = OnceLock::new();
    SHAPES.get_or_init(|| {
        // A test asserts that each parses, so none is lost here.
        let parse = |(name, text): &(&str, &str)| {
            let config = ModelConfig::from_slice(name, text.as_bytes()).ok()?;
            Some(Shape::of_config(name, &config))
        };
        CONFIGS.iter().filter_map(parse).collect()
    })
}

/// Every name [`Models::only`] knows.
pub fn names() -> Vec<&'static str> {
    CONFIGS.iter().map(|c| c.0).chain([RANDOM]).collect()
}

/// Which models are lowered.
#[derive(Clone, Debug)]
pub struct Models {
    known: Vec<&'static Shape>,
    random: bool,
}

impl Default for Models {
    fn default() -> Models {
        Models { known: known().iter().collect(), random: true }
    }
}

impl Models {
    /// Only the models with these names; `Err` is a name that is not known.
    pub fn only(list: &[String]) -> Result<Models, String> {
        let mut models = Models { known: Vec::new(), random: false };
        for name in list {
            match known().iter().find(|s| s.name == *name) {
                Some(shape) => models.known.push(shape),
                None if name == RANDOM => models.random = true,
                None => return Err(name.clone()),
            }
        }
        Ok(models)
    }
}

/// How many instructions a program should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    pub least: usize,
    pub most: usize,
}

impl Want {
    fn holds(self, n: usize) -> bool {
        (self.least..=self.most).contains(&n)
    }
}

/// Draws until a lowering has the size wanted; `None` if none did.
pub fn lowering(
    rng: &mut Rng,
    models: &Models,
    want: Want,
    parts: &[Target],
) -> Option<(Program, Target)> {
    for _ in 0..40 {
        // A step of a large model takes the VM seconds: its streams are long.
        let often = if want.least >= 20_000 { 10 } else { 4 };
        let pick_known = !models.known.is_empty() && (!models.random || rng.chance(1, often));
        let mut target = parts[rng.below(parts.len())].clone();
        let shape = if pick_known {
            models.known[rng.below(models.known.len())].clone()
        } else {
            random_shape(rng, want, &target)
        };
        // Stages a layer has, about: their instructions are one per SM.
        let stages = 4 * shape.sizes.layers as usize + 2;
        let fewest = (want.least.div_ceil(stages)).max(1) as u32;
        let most = ((want.most / stages).max(1) as u32).min(target.sm_count);
        if fewest > most {
            continue;
        }
        target.sm_count = rng.range(u64::from(fewest), u64::from(most)) as u32;
        let knobs = knobs(rng, &shape);
        let mode = if rng.chance(1, 3) { Mode::F32 } else { Mode::Bf16 };
        let last = shape.sizes.max_positions - u64::from(knobs.tokens);
        let first = rng.pick(&[0, 0, 100, 256, 1024]).min(last);
        let bucket = Bucket { first, last: last.min(first + rng.pick(&[0, 63, 255, 767, 3071])) };
        if let Ok(lowered) = lower(&shape, &target, &knobs, bucket, mode)
            && want.holds(lowered.program.instructions.len())
        {
            return Some((lowered.program, target));
        }
    }
    None
}

fn random_shape(rng: &mut Rng, want: Want, target: &Target) -> Shape {
    let dtypes = [DType::Bf16, DType::F16, DType::F32];
    let (layers, rows) = if want.least < 100 {
        (rng.range(1, 3), 150)
    } else {
        // Enough rows for a tile on every SM, and layers enough for the size.
        let sms = u64::from(target.sm_count).min(want.least as u64 / 5).max(1);
        let least = want.least as u64 / (4 * sms) + 1;
        (rng.range(least, least + 2), 6 * sms)
    };
    let kv_heads = rng.range(1, 4);
    let heads = kv_heads * rng.range(1, 4);
    let head_dim = 2 * rng.range(4, 32);
    let sizes = Sizes {
        hidden: 2 * rng.range(rows.div_ceil(4).max(4), rows.max(8)),
        layers,
        heads,
        kv_heads,
        head_dim,
        inner: rng.range(rows.div_ceil(2), 2 * rows + 100),
        vocab: rng.range(1, 4 * rows + 100),
        max_positions: rng.range(16, 400),
        eps: 1e-5,
        scale: (head_dim as f32).sqrt().recip(),
    };
    let dtype = rng.pick(&dtypes);
    let mut shape = Shape::llama("random", sizes, rng.chance(1, 2), dtype);
    // Mixed storage types within one fused matrix.
    shape.layers[0].key.dtype = rng.pick(&dtypes);
    let dtype = rng.pick(&dtypes);
    shape.layers[0].input_norm.iter_mut().for_each(|t| t.dtype = dtype);
    shape
}

fn knobs(rng: &mut Rng, shape: &Shape) -> Knobs {
    let mut edge = || rng.pick(&[EdgeKind::Packet, EdgeKind::Counter]);
    let edges =
        Edges { hidden: edge(), qkv: edge(), attention: edge(), act: edge(), partial: edge() };
    let mut maybe = |lo, hi| rng.chance(1, 3).then(|| rng.range(lo, hi) as u32);
    let windows = Windows { dense: maybe(1, 30), chain: maybe(1, 30), head: maybe(1, 30) };
    let (ring_slots, splits, unit_stride) = (maybe(2, 20), maybe(1, 6), maybe(1, 25));
    let slot_bytes = maybe(8, 32).map(|n| u64::from(n) * 512);
    let q_heads_per_unit = maybe(1, shape.sizes.group()).map(u64::from);
    Knobs {
        edges,
        consumer_warps: rng.range(1, 8) as u32,
        slot_bytes,
        ring_slots,
        windows,
        splits,
        q_heads_per_unit,
        rotation: rng.range(0, 25) as u32,
        unit_stride,
        tokens: if rng.chance(1, 5) { rng.range(2, 16) as u32 } else { 1 },
        sampled: rng.chance(1, 4),
        ..Knobs::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_config_is_a_shape_with_its_name() {
        let shapes = known();
        assert_eq!(shapes.len(), CONFIGS.len());
        for (shape, (name, _)) in shapes.iter().zip(CONFIGS) {
            assert_eq!(shape.name, name);
            shape.check().unwrap();
        }
        assert!(Models::only(&["llama-3.1-8b".into(), "random".into()]).is_ok());
        assert_eq!(Models::only(&["gpt-2".into()]).unwrap_err(), "gpt-2");
    }
}
