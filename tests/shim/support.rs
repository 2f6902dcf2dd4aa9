//! A checkpoint lowered for a few SMs, and the files the host program reads.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use amk::codegen::arena::{COUNTER_STRIDE, pitch};
use amk::codegen::{self, Arena, Backend, RenderOptions, Source};
use amk::lower::{Knobs, Mode, Shape, lower};
use amk::lowered::Lowered;
use amk::vm::{Data, RecipeData};
use amk_models::sampling::Settings;
use amk_models::{Checkpoint, Reference, Want, greedy};
use amk_schedule_ir::program::{BufferKind, BufferSync};
use amk_schedule_ir::{Bucket, BufferId, DType, Features, Program, Target};
use amk_validator::Validated;

use crate::pack;

/// A checkpoint of the tree.
pub fn checkpoint(name: &str) -> Checkpoint {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    Checkpoint::from_folder(&root.join("checkpoints").join(name)).unwrap()
}

/// A folder for a case, kept after the test for people to look at.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("shim").join(name)
}

/// A small part, with bulk copies or without.
pub fn target(sm_count: u32, bulk_copy: bool) -> Target {
    Target {
        name: "host".to_owned(),
        sm: if bulk_copy { "sm_90a" } else { "sm_80" }.to_owned(),
        sm_count,
        shared_per_block: 101_376,
        shared_per_sm: 102_400,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        threads_per_block: 1024,
        barriers: 16,
        l2_bytes: 6 << 20,
        nominal_gbps: 700.0,
        measured_gbps: None,
        features: Features {
            cp_async: true,
            bulk_copy,
            wgmma: false,
            setmaxnreg: false,
            cluster: false,
        },
    }
}

/// One launch of a case.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    pub pos0: u64,
    pub steps: u64,
    pub epoch_base: u64,
    /// Switches a wait may take; 0: for ever.
    pub spin_limit: u64,
    pub eos: Vec<u32>,
}

/// A lowered checkpoint, ready to be rendered for the host.
pub struct Case {
    pub checkpoint: Checkpoint,
    pub program: Validated<Program>,
    pub target: Target,
    pub options: RenderOptions,
    /// How tokens are drawn, where the program draws them.
    pub settings: Settings,
    data: RecipeData,
}

impl Case {
    pub fn new(
        checkpoint: Checkpoint,
        sms: u32,
        bulk_copy: bool,
        knobs: &Knobs,
        mode: Mode,
    ) -> Case {
        let target = target(sms, bulk_copy);
        let shape = Shape::of(&checkpoint);
        let end = knobs.capacity.unwrap_or(u64::MAX).min(shape.sizes.max_positions);
        let bucket = Bucket { first: 0, last: 63.min(end - u64::from(knobs.tokens)) };
        let lowered: Lowered = lower(&shape, &target, knobs, bucket, mode).unwrap();
        let data = RecipeData::new(&lowered, &checkpoint).unwrap();
        let program = amk_validator::validate(lowered.program, &target)
            .unwrap_or_else(|r| panic!("{} faults, first: {}", r.faults.len(), r.faults[0]));
        let options = knobs
            .render_options(RenderOptions { backend: Backend::Host, ..RenderOptions::default() });
        Case { checkpoint, program, target, options, settings: Settings::default(), data }
    }

    pub fn render(&self) -> Source {
        codegen::render(&self.program, &self.target, self.options).unwrap()
    }

    pub fn prompt(&self, n: usize) -> Vec<u32> {
        let vocab = self.checkpoint.config().vocab_size as u32;
        (0..n as u32).map(|i| (i * 7919 + 13) % vocab).collect()
    }

    /// The plain reference's greedy continuation, and the logits behind each of its tokens.
    pub fn expected(&self, prompt: &[u32], new: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        let mut reference = Reference::new(&self.checkpoint).unwrap();
        let mut logits = vec![reference.prefill(prompt, 0, Want::Last).unwrap().pop().unwrap()];
        let mut tokens = vec![greedy(&logits[0]).unwrap()];
        while tokens.len() < new {
            let at = tokens.len() - 1;
            logits.push(reference.forward(tokens[at], prompt.len() + at).unwrap());
            tokens.push(greedy(&logits[at + 1]).unwrap());
        }
        (tokens, logits)
    }

    /// Writes tables, arena, weights and launches into `folder`.
    pub fn write(&self, folder: &Path, prompt: &[u32], launches: &[Launch]) {
        let program: &Program = &self.program;
        let tables = codegen::tables(&self.program).unwrap();
        let arena = Arena::new(program);
        let mut bytes = vec![0xffu8; arena.bytes as usize];
        bytes[arena.zero_from as usize..].fill(0);
        let mut text = format!("blocks {}\n", program.sms.len());
        for buffer in &program.buffers {
            let Some(offset) = arena.offsets[buffer.id.index()] else { continue };
            let at = offset as usize;
            // Nobody writes into the room between buffers.
            let end = offset + codegen::arena::buffer_bytes(buffer);
            let gap = end.next_multiple_of(256) - end;
            writeln!(text, "kept {end} {gap}").unwrap();
            match buffer.kind {
                BufferKind::Constant => {
                    let size = codegen::arena::buffer_bytes(buffer);
                    let contents = self.contents(buffer.id, buffer.dtype);
                    assert_eq!(contents.len() as u64, size, "{}", buffer.name);
                    bytes[at..at + contents.len()].copy_from_slice(&contents);
                    // Reads of four elements may pass the end of a row.
                    writeln!(text, "constant {at} {}", size + 16).unwrap();
                }
                BufferKind::Tokens => {
                    for (i, token) in prompt.iter().enumerate() {
                        bytes[at + 4 * i..at + 4 * i + 4].copy_from_slice(&token.to_le_bytes());
                    }
                }
                BufferKind::Output => {
                    writeln!(text, "output {at} {}", 4 * buffer.shape[0]).unwrap();
                }
                BufferKind::Activation if buffer.sync == BufferSync::Plain => {
                    // Nothing may lean on what was there before.
                    let size = codegen::arena::buffer_bytes(buffer) as usize;
                    bytes[at..at + size].fill(0xff);
                    assert!(pitch(buffer) >= *buffer.shape.last().unwrap());
                }
                _ => {}
            }
        }
        let counters = program.counters.len() as u64 * COUNTER_STRIDE;
        writeln!(text, "zero {} {counters}\nzero {} 4", arena.counters, arena.arrivals).unwrap();
        for l in launches {
            write!(text, "launch {} {} {} ", l.pos0, l.steps, l.epoch_base).unwrap();
            write!(text, "{} 1 {}", prompt.len(), l.spin_limit).unwrap();
            for id in &l.eos {
                write!(text, " {id}").unwrap();
            }
            text.push('\n');
        }
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("tables.bin"), &tables.bytes).unwrap();
        std::fs::write(folder.join("arena.bin"), bytes).unwrap();
        std::fs::write(folder.join("weights.bin"), pack::streams(program, &self.data)).unwrap();
        std::fs::write(folder.join("case.txt"), text).unwrap();
    }

    fn contents(&self, buffer: BufferId, dtype: DType) -> Vec<u8> {
        if dtype == DType::U32 {
            return self.settings.words().iter().flat_map(|w| w.to_le_bytes()).collect();
        }
        let rows = self.program.buffer(buffer).unwrap().shape[0];
        // A vector is one row to the recipes.
        let rank = self.program.buffer(buffer).unwrap().shape.len();
        let values = self.data.rows(buffer, 0..if rank == 1 { 1 } else { rows }).unwrap();
        let mut out = Vec::new();
        for v in values.iter() {
            match dtype {
                DType::Bf16 => out.extend(half::bf16::from_f32(*v).to_le_bytes()),
                DType::F16 => out.extend(half::f16::from_f32(*v).to_le_bytes()),
                _ => out.extend(v.to_le_bytes()),
            }
        }
        out
    }
}
