//! Programs of a peer (its program JSON, IR 0.2.0) as programs of our IR, so that our validator can judge
//! them.
//!
//! A peer's program is a list of tasks over buffers. `peer.rs` reads the file; here tasks become opaque
//! instructions with the accesses that their tile parameters declare:
//!
//! - a task writes rows `m_off .. m_off + M_tile` and columns `n_off .. n_off + N_tile` of its outputs, and all of
//!   an extent whose parameters are absent. Rows are the last extent but one, columns the last;
//! - it reads all of its inputs, except the tile alone where the input is also an output, or the op works
//!   element by element on tensors of one shape;
//! - it adds 1 to its counter when it is done, and waits for its thresholds before it starts;
//! - tasks of an SM run in the order of the list; tasks without an SM are dealt to the SMs in turn;
//! - read-only kinds become constants. A buffer in shared memory is local, and the pages are the area
//!   local memory has;
//! - a launch is one step at one position: such a program says nothing of others.
//!
//! What this cannot say is refused with a sentence: [`ImportError`].

mod peer;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use amk_schedule_ir::limits::{MAX_EXTENT, MAX_RANK};
use amk_schedule_ir::op::{BoundaryArrive, Opaque};
use amk_schedule_ir::unique::Unique;
use amk_schedule_ir::{
    Access, Area, Boundary, BoundaryOp, Bucket, Buffer, BufferId, BufferKind, BufferSync, Counter,
    CounterId, DType, Epochs, FORMAT_VERSION, InstrId, Instruction, Op, Program, Region, Resources,
    SharedArea, Signal, Sm, SmId, Span, Wait,
};

pub use peer::{Id, PeerBuffer, PeerProgram, PeerTask};

/// Most SMs a program may name.
const MAX_SMS: u64 = 4096;
/// Most inputs and outputs of a task, by the peer's format.
const MAX_INPUTS: usize = 8;
const MAX_OUTPUTS: usize = 4;

/// Why a program cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("this is no program of the peer's: {0}")]
    Json(#[from] serde_json::Error),
    #[error("two {what} have the id {id}; give each its own")]
    Repeated { what: &'static str, id: String },
    #[error("{who} names {what} {id}, which is not in the file; add it or correct the id")]
    Missing { who: String, what: &'static str, id: String },
    #[error("{what} is `{value}`, which cannot be expressed; it must be {expected}")]
    Value { what: String, value: String, expected: String },
    #[error("{who} has {found} {what}, but the format allows {limit}")]
    TooMany { who: String, what: &'static str, found: usize, limit: usize },
}

/// What the file leaves open.
#[derive(Clone, Debug)]
pub struct Open {
    /// Architecture, where the program's own is to be overridden.
    pub sm_arch: Option<String>,
    /// SMs that tasks without one are dealt to, where no task names a higher one.
    pub sms: Option<u32>,
}

/// Reads the peer's JSON and expresses it in our IR.
///
/// # Errors
/// [`ImportError`]; nothing is guessed.
pub fn import(name: &str, json: &[u8], open: &Open) -> Result<Program, ImportError> {
    serde_json::from_slice::<Unique>(json)?;
    let peer: PeerProgram = serde_json::from_slice(json)?;
    let buffers = Names::new("buffers", peer.buffers.iter().map(|b| &b.id))?;
    let counters = Names::new("counters", peer.counters.iter().map(|c| &c.id))?;
    Names::new("tasks", peer.tasks.iter().map(|t| &t.id))?;

    let mut per_step = vec![0u64; peer.counters.len()];
    let mut instructions = Vec::with_capacity(peer.tasks.len());
    let list = peer.buffers.iter().enumerate();
    let ours = list.map(|(i, b)| buffer(i, b)).collect::<Result<Vec<_>, _>>()?;
    for (i, task) in peer.tasks.iter().enumerate() {
        instructions.push(instruction(i, task, &ours, &buffers, &counters, &mut per_step)?);
    }
    let mut queues = queues(&peer, open)?;
    for queue in &mut queues {
        let id = InstrId(instructions.len() as u32);
        queue.push(id);
        instructions.push(empty(id, Op::Boundary(BoundaryArrive {})));
    }
    let ops: BTreeSet<&str> = peer.tasks.iter().map(|t| t.op.as_str()).collect();
    let ops: Vec<&str> = ops.into_iter().collect();
    let sm_arch = match &open.sm_arch {
        Some(arch) => arch.clone(),
        None => peer.target.arch().unwrap_or_default(),
    };
    let bytes = |n: u64| SharedArea { area: Area::Local, offset: 0, bytes: n };
    Ok(Program {
        version: FORMAT_VERSION,
        name: name.to_owned(),
        sm_arch,
        bucket: Bucket { first: 0, last: 0 },
        tokens: 1,
        max_steps: 1,
        epochs: Epochs { per_step: 1, tags: u64::from(u32::MAX) },
        meta: BTreeMap::from([
            ("imported".to_owned(), "peer IR 0.2.0".to_owned()),
            ("ops".to_owned(), ops.join(" ")),
        ]),
        resources: Resources {
            consumer_warps: 8,
            ring_slots: 1,
            slot_bytes: 1024,
            registers: 168,
            barriers: 2,
            shared: peer.page_bytes().map(bytes).into_iter().collect(),
        },
        buffers: ours,
        counters: peer
            .counters
            .iter()
            .zip(per_step)
            .enumerate()
            .map(|(i, (c, per_step))| Counter {
                id: CounterId(i as u32),
                name: format!("counter {}", c.id),
                init: c.init,
                per_step,
            })
            .collect(),
        boundary: Boundary { op: BoundaryOp::Plain, reads: Vec::new(), writes: Vec::new() },
        sms: queues
            .into_iter()
            .enumerate()
            .map(|(i, queue)| Sm { id: SmId(i as u32), queue, stream: Vec::new() })
            .collect(),
        instructions,
    })
}

/// Ids of a list, whatever they look like, by place.
struct Names(HashMap<String, usize>);

impl Names {
    fn new<'a>(
        what: &'static str,
        ids: impl Iterator<Item = &'a Id>,
    ) -> Result<Names, ImportError> {
        let mut map = HashMap::new();
        for (i, id) in ids.enumerate() {
            if map.insert(id.to_string(), i).is_some() {
                return Err(ImportError::Repeated { what, id: id.to_string() });
            }
        }
        Ok(Names(map))
    }

    fn get(&self, who: &str, what: &'static str, id: &Id) -> Result<usize, ImportError> {
        let missing = || ImportError::Missing { who: who.to_owned(), what, id: id.to_string() };
        self.0.get(&id.to_string()).copied().ok_or_else(missing)
    }
}

fn value(
    what: impl Into<String>,
    value: impl ToString,
    expected: impl Into<String>,
) -> ImportError {
    ImportError::Value { what: what.into(), value: value.to_string(), expected: expected.into() }
}

fn buffer(i: usize, b: &PeerBuffer) -> Result<Buffer, ImportError> {
    let who = |field: &str| format!("`{field}` of buffer {}", b.id);
    let dtype = match b.dtype.to_ascii_lowercase().as_str() {
        "bf16" | "bfloat16" => DType::Bf16,
        "f16" | "fp16" | "float16" | "half" => DType::F16,
        "f32" | "fp32" | "float32" | "float" => DType::F32,
        "u32" | "i32" | "uint32" | "int32" => DType::U32,
        _ => return Err(value(who("dtype"), &b.dtype, "bf16, f16, f32 or a 32-bit integer")),
    };
    let kind = match b.kind.to_ascii_lowercase().as_str() {
        "weight" | "weights" | "param" | "constant" | "const" | "input" => BufferKind::Constant,
        "activation" | "intermediate" | "scratch" | "temp" | "workspace" => BufferKind::Activation,
        "output" => BufferKind::Output,
        "kv" | "kv_cache" | "cache" => {
            return Err(value(
                who("kind"),
                &b.kind,
                "other than a cache: which rows exist depends on the position, which the file does not say",
            ));
        }
        _ => {
            return Err(value(
                who("kind"),
                &b.kind,
                "weight, constant, input, activation or output",
            ));
        }
    };
    let sync = match b.space.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("global" | "gmem" | "hbm" | "device") => BufferSync::Plain,
        Some("shared" | "smem" | "page" | "local" | "register") => BufferSync::Local,
        Some(other) => return Err(value(who("space"), other, "global or shared")),
    };
    if b.shape.is_empty() || b.shape.len() > MAX_RANK {
        let found = format!("{:?}", b.shape);
        return Err(value(who("shape"), found, format!("1 to {MAX_RANK} extents")));
    }
    Ok(Buffer {
        id: BufferId(i as u32),
        name: if b.name.is_empty() { format!("buffer {}", b.id) } else { b.name.clone() },
        kind,
        sync,
        dtype,
        shape: b.shape.clone(),
        sequence: 0,
    })
}

fn empty(id: InstrId, op: Op) -> Instruction {
    Instruction {
        id,
        op,
        reads: Vec::new(),
        writes: Vec::new(),
        waits: Vec::new(),
        signals: Vec::new(),
        run: None,
    }
}

fn instruction(
    i: usize,
    task: &PeerTask,
    ours: &[Buffer],
    buffers: &Names,
    counters: &Names,
    per_step: &mut [u64],
) -> Result<Instruction, ImportError> {
    let who = format!("task {}", task.id);
    for (what, found, limit) in
        [("inputs", task.inputs.len(), MAX_INPUTS), ("outputs", task.outputs.len(), MAX_OUTPUTS)]
    {
        if found > limit {
            return Err(ImportError::TooMany { who, what, found, limit });
        }
    }
    let mut x = empty(InstrId(i as u32), Op::Opaque(Opaque { tag: i as u64 + 1 }));
    let mut outputs = Vec::new();
    for id in &task.outputs {
        let b = &ours[buffers.get(&who, "buffer", id)?];
        outputs.push(b);
        x.writes.push(Access { buffer: b.id, region: tile(&who, task, b)?, phase: 0 });
    }
    for id in &task.inputs {
        let b = &ours[buffers.get(&who, "buffer", id)?];
        let same = outputs.iter().any(|o| o.id == b.id)
            || elementwise(&task.op) && outputs.iter().all(|o| o.shape == b.shape);
        let region = if same { tile(&who, task, b)? } else { Region::whole(&b.shape) };
        x.reads.push(Access { buffer: b.id, region, phase: 0 });
    }
    for w in &task.waits {
        let counter = CounterId(counters.get(&who, "counter", &w.counter)? as u32);
        // Every counter is at 0 from the start.
        if w.threshold > 0 {
            x.waits.push(Wait { counter, threshold: w.threshold });
        }
    }
    if let Some(id) = &task.out_counter {
        let c = counters.get(&who, "counter", id)?;
        per_step[c] += 1;
        x.signals.push(Signal { counter: CounterId(c as u32), amount: 1 });
    }
    Ok(x)
}

/// Ops that read of each input what they write of the output.
fn elementwise(op: &str) -> bool {
    let op = op.to_ascii_lowercase();
    ["add", "mul", "silu", "silu_mul", "gelu", "copy", "cast", "residual_add"]
        .contains(&op.as_str())
}

/// The tile of a task in a buffer.
fn tile(who: &str, task: &PeerTask, b: &Buffer) -> Result<Region, ImportError> {
    let param = |name: &str| -> Result<Option<u64>, ImportError> {
        match task.params.get(name) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(v) => {
                let n = v.as_u64().filter(|n| *n <= MAX_EXTENT);
                let what = format!("parameter `{name}` of {who}");
                n.map(Some).ok_or_else(|| value(what, v, format!("a number up to {MAX_EXTENT}")))
            }
        }
    };
    let mut region = Region::whole(&b.shape);
    for (from_end, offset, width) in [(1, "n_off", "N_tile"), (2, "m_off", "M_tile")] {
        let Some(d) = b.shape.len().checked_sub(from_end) else { continue };
        let (offset, width) = (param(offset)?, param(width)?);
        if offset.is_some() || width.is_some() {
            let lo = offset.unwrap_or(0);
            let hi = width.map_or(b.shape[d].max(lo), |n| lo + n);
            region.0[d] = Span::at(lo, hi);
        }
    }
    Ok(region)
}

/// Tasks by SM, in list order.
fn queues(peer: &PeerProgram, open: &Open) -> Result<Vec<Vec<InstrId>>, ImportError> {
    let mut sms = u64::from(open.sms.unwrap_or(1));
    for task in &peer.tasks {
        if let Some(sm) = task.sm {
            if sm >= MAX_SMS {
                let what = format!("`sm` of task {}", task.id);
                return Err(value(what, sm, format!("below {MAX_SMS}")));
            }
            sms = sms.max(sm + 1);
        }
    }
    if sms == 0 || sms > MAX_SMS {
        return Err(value("the number of SMs", sms, format!("1 to {MAX_SMS}")));
    }
    let mut queues = vec![Vec::new(); sms as usize];
    let mut next = 0;
    for (i, task) in peer.tasks.iter().enumerate() {
        let sm = match task.sm {
            Some(sm) => sm as usize,
            None => {
                next += 1;
                (next - 1) % queues.len()
            }
        };
        queues[sm].push(InstrId(i as u32));
    }
    Ok(queues)
}
