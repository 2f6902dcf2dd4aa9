//! Real lowerings: model shapes x targets x knobs. They must be accepted, and are what mutants of real
//! schedules are made from.

use std::sync::OnceLock;

use amk_models::ModelConfig;
use amk_schedule_ir::op::Activation;
use amk_schedule_ir::{Bucket, DType, Program, Target};

use super::draw::Draw;
use crate::lower::{
    Caps, EdgeKind, Edges, Factors, Knobs, LayerExtras, Mode, Shape, Sizes, TensorInfo, Windows,
    lower,
};
use crate::vm::rng::Rng;

/// Name that stands for shapes made up at random.
pub const RANDOM: &str = "random";

macro_rules! shapes {
    ($($name:literal in $folder:literal as $file:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../tests/", $folder, "/", $file, ".json")))),*]
    };
}

/// Configs of known models, and small ones of families that have more than the plain block.
const CONFIGS: [(&str, &str); 17] = shapes![
    "llama-3.1-70b" in "shapes" as "llama-3.1-70b",
    "llama-3.1-8b" in "shapes" as "llama-3.1-8b",
    "llama-3.2-1b" in "shapes" as "llama-3.2-1b",
    "llama-3.2-3b" in "shapes" as "llama-3.2-3b",
    "smollm2-1.7b" in "shapes" as "smollm2-1.7b",
    "smollm2-360m" in "shapes" as "smollm2-360m",
    "tinyllama-1.1b" in "shapes" as "tinyllama-1.1b",
    "gemma-small" in "shapes" as "gemma-small",
    "gemma2-small" in "checkpoints/gemma2-bf16" as "config",
    "gemma3-small" in "checkpoints/gemma3-text-bf16" as "config",
    "olmo2-small" in "checkpoints/olmo2-f32" as "config",
    "granite-small" in "checkpoints/granite-tied-bf16" as "config",
    "mistral-small" in "checkpoints/mistral-swa-bf16" as "config",
    "phi3-small" in "checkpoints/phi3-swa-bf16" as "config",
    "qwen2-small" in "checkpoints/qwen2-bf16" as "config",
    "qwen3-small" in "checkpoints/qwen3-bf16" as "config",
    "smollm3-small" in "checkpoints/smollm3-nope-bf16" as "config",
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
    let large_enough = |s: &&&Shape| want.least <= s.sizes.hidden.div_ceil(8) as usize * stages(s);
    let known: Vec<&Shape> = models.known.iter().filter(large_enough).copied().collect();
    for _ in 0..40 {
        // A step of a large model takes the VM seconds: its streams are long.
        let often = if want.least >= 20_000 { 10 } else { 4 };
        let pick_known = !known.is_empty() && (!models.random || rng.chance(1, often));
        let mut target = parts[rng.below(parts.len())].clone();
        let shape = if pick_known {
            known[rng.below(known.len())].clone()
        } else {
            random_shape(rng, want, &target)
        };
        let stages = stages(&shape);
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

/// Stages of a step, about: their instructions are one per SM.
fn stages(shape: &Shape) -> usize {
    4 * shape.sizes.layers as usize + 2
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
    if rng.chance(1, 2) {
        family(rng, &mut shape);
    }
    shape
}

/// What the families have beside the plain block, mixed as no model mixes it.
fn family(rng: &mut Rng, shape: &mut Shape) {
    let dtype = rng.pick(&[DType::Bf16, DType::F16, DType::F32]);
    shape.one_plus = rng.chance(1, 3);
    shape.activation = rng.pick(&[Activation::Silu, Activation::Gelu, Activation::GeluTanh]);
    let mut some = |x: f32| rng.chance(1, 3).then_some(x);
    shape.caps = Caps { scores: some(50.0), logits: some(30.0) };
    shape.factors = Factors { embedding: some(12.0), residual: some(0.22), logits: some(0.125) };
    if rng.chance(1, 4) {
        shape.rotary = Some(2 * rng.range(1, shape.sizes.head_dim / 2));
    }
    let [no_input_norms, output_norms, head_norms, wide] = [6, 2, 3, 2].map(|of| rng.chance(1, of));
    let [qkv_bias, other_bias] = [5, 6].map(|of| rng.chance(1, of));
    let (window, every) = (rng.range(1, 100), rng.range(1, 4));
    let [windows, local_rope, unrotated] = [2, 3, 5].map(|of| rng.chance(1, of));
    for (l, layer) in shape.layers.iter_mut().enumerate() {
        let at = |part: &str| TensorInfo { name: format!("model.layers.{l}.{part}"), dtype };
        // Every so many layers one sees all positions.
        let far = (l as u64 + 1).is_multiple_of(every);
        if no_input_norms {
            (layer.input_norm, layer.post_norm) = (None, None);
        }
        layer.extra = LayerExtras {
            qkv_bias: qkv_bias.then(|| ["q.bias", "k.bias", "v.bias"].map(at)),
            output_bias: other_bias.then(|| at("o.bias")),
            gate_up_bias: other_bias.then(|| ["gate.bias", "up.bias"].map(at)),
            down_bias: other_bias.then(|| at("down.bias")),
            head_norms: head_norms.then(|| ["q_norm.weight", "k_norm.weight"].map(at)),
            wide_norm: head_norms && wide,
            output_norm: output_norms.then(|| at("output_norm.weight")),
            down_norm: output_norms.then(|| at("down_norm.weight")),
            local_rope: local_rope && !far,
            unrotated: unrotated && far,
            window: (windows && !far).then_some(window),
        };
    }
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

    /// Of small lowerings some have each of the ops and features that not every family has.
    #[test]
    fn lowerings_have_what_the_families_have() {
        let parts: Vec<Target> =
            crate::target::records().iter().map(|r| r.target.clone()).collect();
        let (mut rng, models) = (Rng::new(5, 1), Models::default());
        let mut texts = String::new();
        for _ in 0..80 {
            let want = Want { least: 1, most: 480 };
            let (p, target) = lowering(&mut rng, &models, want, &parts).unwrap();
            assert!(amk_validator::check(&p, &target).ok);
            texts += &amk_schedule_ir::text::print(&p);
        }
        for part in
            ["norm_residual", "gelu_tanh", "wide_norm", " cap=", "window=", "unrotated", "rotary="]
        {
            assert!(texts.contains(part), "no lowering has {part}");
        }
    }

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
