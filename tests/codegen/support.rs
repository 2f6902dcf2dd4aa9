//! The programs whose text is kept under `tests/goldens/`, and the compiler.

use std::path::PathBuf;
use std::sync::OnceLock;

use amk::codegen::{RenderOptions, Source, render};
use amk::lower::{Knobs, Mode, Shape, Sizes, lower_for};
use amk::target::{Target, default_targets};
use amk::toolchain::{FindOptions, Nvrtc, find_nvrtc};
use amk_models::Checkpoint;
use amk_schedule_ir::{DType, Program};
use amk_validator::{Validated, validate};

/// A program and its text.
pub struct Kernel {
    pub program: Validated<Program>,
    pub source: Source,
    /// The golden file, relative to the root of the package.
    pub golden: String,
}

impl Kernel {
    pub fn path(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(&self.golden)
    }

    /// The golden text.
    pub fn golden_text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_else(|e| {
            panic!("{}: {e}; AMK_BLESS=1 makes the golden sources anew", self.golden)
        })
    }
}

/// The embedded model.
fn embedded() -> Shape {
    let checkpoint = Checkpoint::embedded().unwrap();
    let c = checkpoint.config();
    let sizes = Sizes {
        hidden: c.hidden_size as u64,
        layers: c.num_layers as u64,
        heads: c.num_heads as u64,
        kv_heads: c.num_kv_heads as u64,
        head_dim: c.head_dim as u64,
        inner: c.intermediate_size as u64,
        vocab: c.vocab_size as u64,
        max_positions: c.max_position_embeddings as u64,
        eps: c.rms_norm_eps,
        scale: c.attention_scale(),
    };
    Shape::llama(&checkpoint.name(), sizes, c.tie_word_embeddings, DType::Bf16)
}

/// Sizes that are multiples of nothing the kernel works in.
fn odd() -> Shape {
    let sizes = Sizes {
        hidden: 60,
        layers: 2,
        heads: 3,
        kv_heads: 3,
        head_dim: 20,
        inner: 100,
        vocab: 509,
        max_positions: 512,
        eps: 1e-5,
        scale: 20f32.sqrt().recip(),
    };
    Shape::llama("odd", sizes, false, DType::Bf16)
}

fn kernel(name: &str, shape: &Shape, target: &Target, mode: Mode) -> Kernel {
    let lowered = lower_for(shape, target, &Knobs::default(), 0, mode).unwrap();
    let program = validate(lowered.program, target).unwrap();
    let source = render(&program, target, RenderOptions::default()).unwrap();
    Kernel { program, source, golden: format!("tests/goldens/{}/{name}.cu", target.sm) }
}

/// Every kernel with a golden text: the embedded model on each default target, and on one of them in
/// float32 and in an odd shape.
pub fn kernels() -> &'static [Kernel] {
    static KERNELS: OnceLock<Vec<Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let targets = default_targets();
        assert_eq!(targets.len(), 6);
        let (embedded, odd) = (embedded(), odd());
        let hopper = targets.iter().find(|t| t.sm == "sm_90a").unwrap();
        let mut out: Vec<Kernel> =
            targets.iter().map(|t| kernel("default-bf16", &embedded, t, Mode::Bf16)).collect();
        out.push(kernel("default-f32", &embedded, hopper, Mode::F32));
        out.push(kernel("odd-bf16", &odd, hopper, Mode::Bf16));
        out
    })
}

/// The NVRTC of this machine, opened once.
pub fn nvrtc() -> &'static Nvrtc {
    static NVRTC: OnceLock<Nvrtc> = OnceLock::new();
    NVRTC.get_or_init(|| match find_nvrtc(&FindOptions::from_env(None)) {
        Ok(found) => found.nvrtc,
        Err(error) => panic!("these tests need NVRTC: run `amk toolchain fetch` first ({error})"),
    })
}
