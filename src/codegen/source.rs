//! Rendering: what a plan says, through the templates.

use amk_schedule_ir::*;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, context};

use super::error::CodegenError;
use super::registry::op_variant;
use super::variants::Plan;

/// A rendered kernel.
#[derive(Clone, Debug)]
pub struct Source {
    /// Self-contained CUDA text.
    pub text: String,
    /// Architecture to compile for.
    pub sm: String,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Name of the constant array that holds the program hash.
    pub hash_symbol: &'static str,
    /// Dynamic shared memory of a launch, bytes.
    pub shared_bytes: u64,
    /// Threads of a block.
    pub threads: u64,
    /// Blocks of the grid.
    pub blocks: u64,
}

/// What the text is compiled for. Everything but the primitives is the same text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// CUDA, for NVRTC.
    #[default]
    Cuda,
    /// C++20 on the host, beside the files of [`HOST_FILES`]: each GPU thread is a thread of its own
    /// under a seeded scheduler, so that sanitizers see what the kernel does.
    Host,
}

/// How many values a lane has in flight at once: loads, positions of attention, heads of a pass. More hide
/// more latency and take more registers. Results depend on it by the rounding of attention alone: positions
/// that are in flight together are taken in together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum InFlight {
    /// As many as most shapes have registers for.
    #[default]
    Many,
    /// Where those spill: fewer when splits are merged, and of rows of several tokens.
    Several,
    /// Where those spill: fewer in attention, too.
    Some,
    /// Where those spill, too.
    Few,
    /// One of each.
    One,
}

impl InFlight {
    /// From the most values to the fewest.
    pub const ALL: [InFlight; 5] =
        [InFlight::Many, InFlight::Several, InFlight::Some, InFlight::Few, InFlight::One];
}

/// How matrix products are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Products {
    /// Independent sums of a product within a warp, 2 or 4.
    pub accumulators: u32,
    /// Packed blocks of a chunk that a warp multiplies without a branch, 1 to 8.
    pub unroll: u32,
    /// Most input fragments that a warp keeps in registers from tile to tile, at most 16.
    pub fragments: u32,
    /// Row tiles whose partial sums are added up at once, in layers and in the LM head, 2 to [`MOST_TILE_GROUP`],
    /// and no more than a step of its tokens has room for.
    pub group: u32,
    pub head_group: u32,
    /// How the sums of the warps are added up: a name of [`super::OP_VARIANTS`].
    pub sum: &'static str,
}

impl Default for Products {
    fn default() -> Products {
        Products {
            accumulators: 4,
            unroll: 8,
            fragments: 16,
            group: MOST_TILE_GROUP,
            head_group: MOST_TILE_GROUP,
            sum: "serial",
        }
    }
}

/// Choices that change the text but not the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenderOptions {
    /// Time stamps per instruction.
    pub trace: bool,
    pub backend: Backend,
    pub in_flight: InFlight,
    /// Weight chunks that warps take into registers before they look at their input, at most
    /// [`RenderOptions::MOST_TAKEN`]; with [`InFlight::Some`] and more alone.
    pub taken: u32,
    /// Most registers of a thread; absent: what the part has for the block.
    pub registers: Option<u32>,
    pub products: Products,
}

impl RenderOptions {
    /// Most chunks that can be taken.
    pub const MOST_TAKEN: u32 = 3;
}

/// Files a host rendering is compiled with, by name. The rendering itself is to be called `kernel.cpp`.
pub const HOST_FILES: &[(&str, &str)] = &[
    ("runtime.h", include_str!("../../templates/host/runtime.h")),
    ("runtime.cpp", include_str!("../../templates/host/runtime.cpp")),
    ("main.cpp", include_str!("../../templates/host/main.cpp")),
];

macro_rules! templates {
    ($($name:literal),* $(,)?) => {
        /// Every template with its text, by name.
        const TEMPLATES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../templates/", $name)))),*];
    };
}

templates! {
    "megakernel.cu.j2",
    "arch/base.cu.j2",
    "arch/cuda.cu.j2",
    "host/arch.cu.j2",
    "host/sync.cu.j2",
    "host/bulk.cu.j2",
    "host/cp_async.cu.j2",
    "sync/ptx.cu.j2",
    "sync/spin.cu.j2",
    "sync/packet.cu.j2",
    "sync/counter.cu.j2",
    "sync/boundary.cu.j2",
    "ring/common.cu.j2",
    "ring/bulk.cu.j2",
    "ring/cp_async.cu.j2",
    "ring/ptx_bulk.cu.j2",
    "ring/ptx_cp_async.cu.j2",
    "ops/context.cu.j2",
    "ops/linear.cu.j2",
    "ops/sum/serial.cu.j2",
    "ops/sum/pairs.cu.j2",
    "ops/embed.cu.j2",
    "ops/norm_qkv.cu.j2",
    "ops/attention.cu.j2",
    "ops/attention_merge.cu.j2",
    "ops/linear_residual.cu.j2",
    "ops/norm_residual.cu.j2",
    "ops/norm_gate_up.cu.j2",
    "ops/norm_lm_head.cu.j2",
    "ops/sample.cu.j2",
    "sync/ptx_sample.cu.j2",
    "host/sample.cu.j2",
}

/// Ops in the order their templates are included; the merge uses the head constants of attention.
const OP_ORDER: &[&str] = &[
    "embed",
    "norm_qkv",
    "attention",
    "attention_merge",
    "linear_residual",
    "norm_residual",
    "norm_gate_up",
    "norm_lm_head",
    "sample",
];

/// Every template with its text, by name.
pub fn templates() -> &'static [(&'static str, &'static str)] {
    TEMPLATES
}

pub(super) fn environment() -> Result<Environment<'static>, CodegenError> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).keep_trailing_newline(true).build()?;
    env.set_syntax(syntax);
    for (name, text) in TEMPLATES {
        env.add_template(name, text)?;
    }
    Ok(env)
}

/// Renders a program. Public to this crate only: from outside, a validated program is needed.
pub(crate) fn render(
    program: &Program,
    target: &Target,
    options: RenderOptions,
) -> Result<Source, CodegenError> {
    if program.sm_arch != target.sm {
        return Err(CodegenError::Target {
            program: program.sm_arch.clone(),
            target: target.sm.clone(),
        });
    }
    if !target.features.bulk_copy && !target.features.cp_async {
        return Err(CodegenError::Program(format!(
            "{} has neither bulk copies nor cp.async, and the ring needs one of them",
            target.name
        )));
    }
    let plan = Plan::new(program)?;
    let (Some(best), Some(tokens), Some(attention)) = (plan.best, plan.tokens, plan.attention)
    else {
        return Err(CodegenError::Program(
            "it has no attention, no token buffer or no argmax, so it decodes nothing".to_owned(),
        ));
    };
    let area = |area: Area| program.resources.shared.iter().find(|s| s.area == area);
    let at = |a: Area| area(a).map_or(0, |s| s.offset);
    let shared_bytes =
        program.resources.shared.iter().map(|s| s.offset + s.bytes).max().unwrap_or(0);
    let vector = match (attention.kv, attention.head_dim) {
        (DType::F32, d) if d % 4 == 0 => 4,
        (DType::F32, _) => 2,
        (_, d) if d % 8 == 0 => 8,
        (_, d) if d % 4 == 0 => 4,
        _ => 2,
    };
    let word = match (attention.kv, vector) {
        (DType::F32, 4) | (_, 8) => "Quad",
        (DType::F32, _) | (_, 4) => "Pair",
        _ => "u32",
    };
    // Registers hold a query and an output row slice per head of a pass: 16 values of each at most.
    // So wide heads are shared by more lanes, and a warp takes fewer positions at once.
    let slice_of = |lanes| (attention.head_dim / vector).div_ceil(lanes) * vector;
    let lanes = if slice_of(8) >= 32 { 16 } else { 8 };
    let slice = slice_of(lanes);
    let level = options.in_flight;
    let many = level <= InFlight::Some;
    let pass = if many { (16 / slice).clamp(1, 8).min(attention.group_max) } else { 1 };
    // Positions in flight: so many loads of a lane as there are registers for beside the pass and the ops around it.
    let wide_kv = target.sm == "sm_90a" && attention.kv == DType::Bf16;
    let most = match level {
        InFlight::Many | InFlight::Several if wide_kv => 4,
        InFlight::Some if wide_kv => 2,
        _ => 1,
    };
    let depth = (4 / (slice / vector)).clamp(1, most);
    // Partial results of one head that a merge fetches at once.
    let merge_batch = match level {
        InFlight::Many => 4,
        InFlight::Several => 2,
        InFlight::Some | InFlight::Few | InFlight::One => 1,
    };
    let taken = if many { options.taken.min(RenderOptions::MOST_TAKEN) } else { 0 };
    // Loads of one lane in flight, of four elements each; input fragments a warp keeps.
    let wide = plan.activation != DType::F32 && target.sm == "sm_90a";
    let kept = options.products.fragments;
    let (norm, plain, rows, held) = match level {
        InFlight::Many if wide => (4, 8, 16, kept),
        InFlight::Several | InFlight::Some if wide => (4, 8, 8, kept),
        InFlight::Many | InFlight::Several | InFlight::Some | InFlight::Few => (2, 4, 4, kept),
        InFlight::One => (1, 1, 1, 0),
    };
    let tile_group = tile_group(u64::from(program.tokens));
    let hash = program.hash();
    let hash_bytes: Vec<String> = hash.iter().map(u8::to_string).collect();
    let op_templates: Vec<String> = OP_ORDER
        .iter()
        .filter(|op| plan.ops.contains(op))
        .map(|op| format!("ops/{op}.cu.j2"))
        .collect();
    let calls = (0..plan.calls.len()).map(|case| plan.text_of(case));
    let variants: Vec<_> = calls.map(|call| context! { call }).collect();
    let bulk = target.features.bulk_copy;
    let (arch, sync, ring, note) = match (options.backend, bulk) {
        (Backend::Cuda, true) => ("arch/cuda", "sync/ptx", "ring/ptx_bulk", ""),
        (Backend::Cuda, false) => ("arch/cuda", "sync/ptx", "ring/ptx_cp_async", ""),
        (Backend::Host, true) => ("host/arch", "host/sync", "host/bulk", ", run on the host"),
        (Backend::Host, false) => ("host/arch", "host/sync", "host/cp_async", ", run on the host"),
    };
    let sample = match options.backend {
        Backend::Cuda => "sync/ptx_sample",
        Backend::Host => "host/sample",
    };
    let file = |name: &str| format!("{name}.cu.j2");
    let best_slots = program.buffer(best).and_then(|b| b.shape.first().copied()).unwrap_or(0);
    let text = environment()?.get_template("megakernel.cu.j2")?.render(context! {
        program => context! {
            name => one_line(&program.name),
            hash_bytes => hash_bytes.join(", "),
            tokens => program.tokens,
        },
        target => context! { sm => &target.sm, bulk_copy => bulk },
        primitives => context! {
            arch => file(arch), sync => file(sync), ring => file(ring),
            sample => file(sample), note,
        },
        res => context! {
            consumer_warps => program.resources.consumer_warps,
            ring_slots => program.resources.ring_slots,
            slot_bytes => program.resources.slot_bytes,
        },
        act => context! {
            terms => plan.activation.terms(),
            dtype => if plan.activation == DType::F32 { "F32" } else { "BF16" },
        },
        epochs => context! { tags => program.epochs.tags, per_step => program.epochs.per_step },
        smem => context! {
            ring => at(Area::Ring), mbarrier => at(Area::Mbarrier), input => at(Area::Input),
            partial => at(Area::Partial), scratch => at(Area::Scratch), local => at(Area::Local),
            control => at(Area::Control), total => shared_bytes,
            input_stride => op::input_row_bytes(plan.widest),
        },
        arena => context! {
            arrivals => plan.arena.arrivals, token_word => plan.arena.token_word,
            cancel => plan.arena.cancel, report => plan.arena.report,
            counters => plan.arena.counters, best => plan.arena.offset(best),
            tokens => plan.arena.offset(tokens), best_slots,
        },
        attn => context! {
            head_dim => attention.head_dim, heads => attention.heads,
            kv_heads => attention.kv_heads, group_max => attention.group_max,
            kv => if attention.kv == DType::F32 { "F32" } else { "BF16" },
            rotary => if attention.rotary == 0 { attention.head_dim } else { attention.rotary },
            head_norm => attention.head_norm.is_some(), windows => attention.windows,
            wide_norm => attention.wide_norm,
            // Shortest decimal that reads back as the same number, with its point.
            cap => attention.cap.map(|cap| format!("{:?}f", cap.0)),
            vector, word, pass, depth, merge_batch,
            lanes,
        },
        forms => context! {
            plain => plan.forms.plain.unwrap_or(false), raw => plan.forms.raw.unwrap_or(false),
            logit_cap => plan.forms.logit_cap.unwrap_or(false),
            activation => op::Param::print(&plan.forms.activation.unwrap_or_default()),
        },
        tile_group, registers => options.registers,
        products => context! {
            accumulators => options.products.accumulators, unroll => options.products.unroll,
            group => options.products.group.min(tile_group),
            head_group => options.products.head_group.min(tile_group),
            sum => op_variant("sum", options.products.sum).map_or("", |v| v.template),
        },
        loads => context! { norm, plain, rows }, held, taken,
        op_templates, variants,
        trace => options.trace,
    })?;
    Ok(Source {
        text,
        sm: target.sm.clone(),
        kernel: "amk_megakernel",
        hash_symbol: "amk_program_hash",
        shared_bytes,
        threads: program.resources.threads(),
        blocks: program.sms.len() as u64,
    })
}

/// Text that is safe inside a `//` comment.
fn one_line(s: &str) -> String {
    s.chars().map(|c| if c.is_control() || c == '\\' { ' ' } else { c }).collect()
}
