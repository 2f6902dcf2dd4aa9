//! Checkpoints, targets, lowerings and the plain reference.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use amk::lower::{Knobs, Mode, Shape, lower};
use amk::lowered::Lowered;
use amk::vm::{Options, Policy, RecipeData, VmModel};
use amk_models::{Checkpoint, Reference, Want, greedy};
use amk_schedule_ir::{Bucket, Features, Program, Target};

/// Every checkpoint of the tree that can be decoded.
pub const CHECKPOINTS: [&str; 20] = [
    "llama-mha-f32",
    "llama-odd-f32",
    "llama-gqa-bf16",
    "llama-gqa-tied-bf16",
    "llama-headdim-bf16",
    "llama-rope-linear-f16",
    "llama-rope-llama3-bf16",
    "llama-sharded-bf16",
    "llama-v5config-bf16",
    "mistral-full-bf16",
    "mistral-swa-bf16",
    "llama-attnbias-f32",
    "qwen2-bf16",
    "qwen3-bf16",
    "smollm3-nope-bf16",
    "phi3-swa-bf16",
    "granite-tied-bf16",
    "gemma2-bf16",
    "gemma3-text-bf16",
    "olmo2-f32",
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

pub fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::from_folder(&root().join("checkpoints").join(name)).unwrap()
}

/// A part with some SMs.
pub fn target(sm_count: u32) -> Target {
    Target {
        name: "test part".to_owned(),
        sm: "sm_90a".to_owned(),
        sm_count,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        threads_per_block: 1024,
        barriers: 16,
        l2_bytes: 50 << 20,
        nominal_gbps: 4800.0,
        measured_gbps: None,
        features: Features {
            cp_async: true,
            bulk_copy: true,
            wgmma: true,
            setmaxnreg: true,
            cluster: true,
        },
    }
}

/// A checkpoint, its schedule for positions up to `last` on `sms` SMs, and the contents of its buffers.
pub struct Case {
    pub checkpoint: Checkpoint,
    pub lowered: Lowered,
    pub program: Arc<Program>,
    pub data: Arc<RecipeData>,
}

impl Case {
    pub fn new(checkpoint: Checkpoint, sms: u32, knobs: &Knobs, last: u64, mode: Mode) -> Case {
        let shape = Shape::of(&checkpoint);
        let end = knobs.capacity.unwrap_or(u64::MAX).min(shape.sizes.max_positions);
        let last = last.min(end - u64::from(knobs.tokens));
        let bucket = Bucket { first: 0, last };
        let lowered = lower(&shape, &target(sms), knobs, bucket, mode).unwrap();
        let data = Arc::new(RecipeData::new(&lowered, &checkpoint).unwrap());
        let program = Arc::new(lowered.program.clone());
        Case { checkpoint, lowered, program, data }
    }

    pub fn model(&self, options: Options) -> VmModel {
        VmModel::with_data(self.program.clone(), self.data.clone(), options).unwrap()
    }

    pub fn prompt(&self, n: usize) -> Vec<u32> {
        let vocab = self.checkpoint.config().vocab_size as u32;
        (0..n as u32).map(|i| (i * 7919 + 13) % vocab).collect()
    }

    /// The plain reference's greedy continuation, and its logits along the way: those after the
    /// prompt first.
    pub fn expected(&self, prompt: &[u32], new: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        let mut reference = Reference::new(&self.checkpoint).unwrap();
        let mut logits = vec![reference.prefill(prompt, 0, Want::Last).unwrap().pop().unwrap()];
        let mut tokens = vec![greedy(&logits[0]).unwrap()];
        while tokens.len() < new {
            let (token, at) = (tokens[tokens.len() - 1], prompt.len() + tokens.len() - 1);
            logits.push(reference.forward(token, at).unwrap());
            tokens.push(greedy(&logits[logits.len() - 1]).unwrap());
        }
        (tokens, logits)
    }
}

/// Every policy, each with its own seed.
pub fn policies() -> impl Iterator<Item = Options> {
    let all = Policy::ALL.into_iter().enumerate();
    all.map(|(i, policy)| Options { seed: 100 + i as u64, policy, ..Options::default() })
}

/// Largest absolute difference.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}
