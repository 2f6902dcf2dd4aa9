//! The programs whose text is kept under `tests/goldens/`, and the compiler.

use std::path::PathBuf;
use std::sync::OnceLock;

use amk::codegen::{RenderOptions, Source, render};
use amk::lower::{EdgeKind, Edges, Knobs, Mode, Shape, Sizes, lower_for};
use amk::target::{Target, default_targets};
use amk::toolchain::{CompileRequest, Compiled, FindOptions, Nvrtc, SpillPolicy, find_nvrtc};
use amk_models::Checkpoint;
use amk_schedule_ir::{DType, Program};
use amk_validator::{Validated, validate};

/// A program and its text.
pub struct Kernel {
    pub program: Validated<Program>,
    pub source: Source,
    /// The golden file, relative to the root of the package.
    pub golden: String,
    compiled: OnceLock<Result<Compiled, String>>,
}

impl Kernel {
    pub fn path(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(&self.golden)
    }

    /// The golden text, or its own where it has none, compiled for its target, spills or not.
    pub fn compile(&self) -> Result<Compiled, String> {
        let text = match self.golden.starts_with("tests/") {
            true => self.golden_text(),
            false => self.source.text.clone(),
        };
        let request = CompileRequest {
            source: &text,
            name: &self.golden,
            arch: self.source.sm.parse().unwrap(),
            options: &[],
            spills: SpillPolicy::Report,
        };
        nvrtc().compile(&request).map_err(|e| e.to_string())
    }

    /// The same, compiled once.
    pub fn compiled(&self) -> Result<&Compiled, String> {
        self.compiled.get_or_init(|| self.compile()).as_ref().map_err(Clone::clone)
    }

    /// The golden text.
    pub fn golden_text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_else(|e| {
            panic!("{}: {e}; AMK_BLESS=1 makes the golden sources anew", self.golden)
        })
    }
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
    let golden = format!("tests/goldens/{}/{name}.cu", target.sm);
    let program = lower_for(shape, target, &Knobs::default(), 0, mode).unwrap().program;
    finish(golden, program, target, RenderOptions::default())
}

fn finish(golden: String, program: Program, target: &Target, options: RenderOptions) -> Kernel {
    let program = validate(program, target).unwrap();
    let source = render(&program, target, options).unwrap();
    Kernel { program, source, golden, compiled: OnceLock::new() }
}

/// Kernels of other kinds of programs, without golden files: counters in place of packets, split
/// attention, prefill, float32, time stamps.
pub fn others() -> Vec<Kernel> {
    let odd = odd();
    let all = Edges {
        hidden: EdgeKind::Counter,
        qkv: EdgeKind::Counter,
        attention: EdgeKind::Counter,
        act: EdgeKind::Counter,
        partial: EdgeKind::Counter,
    };
    let partial = Edges { partial: EdgeKind::Counter, ..Edges::default() };
    let target = |sm: &str| default_targets().into_iter().find(|t| t.sm == sm).unwrap();
    let make = |name: &str, sm: &str, knobs: Knobs, mode: Mode, trace: bool| {
        let target = target(sm);
        let program = lower_for(&odd, &target, &knobs, 0, mode).unwrap().program;
        finish(name.to_owned(), program, &target, RenderOptions { trace, ..Default::default() })
    };
    // Tiles of two chunks, the first of which warps take early.
    let even = Shape::llama(
        "even",
        Sizes { hidden: 512, inner: 512, heads: 8, kv_heads: 2, head_dim: 64, ..odd.sizes },
        false,
        DType::Bf16,
    );
    let taken = || {
        let target = target("sm_90a");
        let knobs = Knobs { taken: Some(3), slot_bytes: Some(4096), ..Knobs::default() };
        let program = lower_for(&even, &target, &knobs, 0, Mode::Bf16).unwrap().program;
        let options = knobs.render_options(RenderOptions::default());
        finish("taken".to_owned(), program, &target, options)
    };
    vec![
        taken(),
        make("counters", "sm_90a", Knobs { edges: all, ..Knobs::default() }, Mode::Bf16, false),
        make("splits", "sm_100a", Knobs { splits: Some(3), ..Knobs::default() }, Mode::F32, false),
        make(
            "prefill",
            "sm_80",
            Knobs { tokens: 5, splits: Some(2), edges: partial, ..Knobs::default() },
            Mode::F32,
            false,
        ),
        make("drawn", "sm_86", Knobs { sampled: true, ..Knobs::default() }, Mode::Bf16, false),
        make("drawn-f32", "sm_100a", Knobs { sampled: true, ..Knobs::default() }, Mode::F32, false),
        make("trace", "sm_120", Knobs { tokens: 2, ..Knobs::default() }, Mode::Bf16, true),
    ]
}

/// Every kernel with a golden text: the embedded model on each default target, and on one of them in
/// float32 and in an odd shape.
pub fn kernels() -> &'static [Kernel] {
    static KERNELS: OnceLock<Vec<Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let targets = default_targets();
        assert_eq!(targets.len(), 6);
        let (embedded, odd) = (Shape::of(&Checkpoint::embedded().unwrap()), odd());
        let hopper = targets.iter().find(|t| t.sm == "sm_90a").unwrap();
        let mut out: Vec<Kernel> =
            targets.iter().map(|t| kernel("default-bf16", &embedded, t, Mode::Bf16)).collect();
        out.push(kernel("default-f32", &embedded, hopper, Mode::F32));
        out.push(kernel("odd-bf16", &odd, hopper, Mode::Bf16));
        out
    })
}

/// The embedded model on each default target with its tokens drawn.
pub fn drawn() -> Vec<Kernel> {
    let embedded = Shape::of(&Checkpoint::embedded().unwrap());
    let make = |target: &Target| {
        let knobs = Knobs { sampled: true, ..Knobs::default() };
        let program = lower_for(&embedded, target, &knobs, 0, Mode::Bf16).unwrap().program;
        finish(format!("drawn {}", target.sm), program, target, RenderOptions::default())
    };
    default_targets().iter().map(make).collect()
}

/// The NVRTC of this machine, opened once.
pub fn nvrtc() -> &'static Nvrtc {
    static NVRTC: OnceLock<Nvrtc> = OnceLock::new();
    NVRTC.get_or_init(|| match find_nvrtc(&FindOptions::from_env(None)) {
        Ok(found) => found.nvrtc,
        Err(error) => panic!("these tests need NVRTC: run `amk toolchain fetch` first ({error})"),
    })
}

/// Two threads, however many the machine has: a compile takes some hundred megabytes.
pub fn pool() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap()
}
