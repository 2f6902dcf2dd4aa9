//! The program under construction: buffers, counters, instructions, queues and streams. Knows nothing
//! of models.

use amk_schedule_ir::program::*;
use amk_schedule_ir::{BufferId, CounterId, InstrId, Op, OpContext, RunId, SmId};

use super::LowerError;
use super::knobs::EdgeKind;
use crate::lowered::Recipe;

/// Which window a run loads with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Dense,
    Chain,
    Head,
}

/// A buffer that SMs hand to each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub buffer: BufferId,
    /// The counter its writers signal, if it is plain memory.
    pub counter: Option<CounterId>,
}

/// What an instruction does beside its op.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links<'a> {
    /// Buffers read, in operand order.
    pub reads: &'a [BufferId],
    /// Buffers written, in operand order.
    pub writes: &'a [BufferId],
    /// Edge waited for.
    pub input: Option<Edge>,
    /// Edge signalled.
    pub output: Option<Edge>,
    /// Matrix streamed, with its window.
    pub weight: Option<(BufferId, Phase)>,
}

pub(super) struct Build {
    pub cx: OpContext,
    pub buffers: Vec<Buffer>,
    pub recipes: Vec<Option<Recipe>>,
    pub counters: Vec<Counter>,
    pub sms: Vec<Sm>,
    /// Phases of the runs of each SM.
    pub phases: Vec<Vec<Phase>>,
    pub instructions: Vec<Instruction>,
    pub boundary: Boundary,
}

fn id32(n: usize, what: &'static str) -> Result<u32, LowerError> {
    u32::try_from(n).map_err(|_| LowerError::TooMany { what })
}

impl Build {
    pub fn new(cx: OpContext, grid: u64) -> Result<Build, LowerError> {
        let grid = u32::try_from(grid).map_err(|_| LowerError::TooMany { what: "SMs" })?;
        Ok(Build {
            cx,
            buffers: Vec::new(),
            recipes: Vec::new(),
            counters: Vec::new(),
            sms: (0..grid)
                .map(|s| Sm { id: SmId(s), queue: Vec::new(), stream: Vec::new() })
                .collect(),
            phases: vec![Vec::new(); grid as usize],
            instructions: Vec::new(),
            boundary: Boundary { op: BoundaryOp::Argmax, reads: Vec::new(), writes: Vec::new() },
        })
    }

    pub fn buffer(
        &mut self,
        name: String,
        kind: BufferKind,
        sync: BufferSync,
        dtype: DType,
        shape: Vec<u64>,
        recipe: Option<Recipe>,
    ) -> Result<BufferId, LowerError> {
        let id = BufferId(id32(self.buffers.len(), "buffers")?);
        self.buffers.push(Buffer { id, name, kind, sync, dtype, shape, sequence: 0 });
        self.recipes.push(recipe);
        Ok(id)
    }

    /// A counter nobody signals yet.
    pub fn counter(&mut self, name: String) -> Result<CounterId, LowerError> {
        let id = CounterId(id32(self.counters.len(), "counters")?);
        self.counters.push(Counter { id, name, init: 0, per_step: 0 });
        Ok(id)
    }

    /// An activation handed from SM to SM.
    pub fn edge(
        &mut self,
        name: String,
        kind: EdgeKind,
        dtype: DType,
        shape: Vec<u64>,
    ) -> Result<Edge, LowerError> {
        let sync = match kind {
            EdgeKind::Packet => BufferSync::Packet,
            EdgeKind::Counter => BufferSync::Plain,
        };
        let counter = match kind {
            EdgeKind::Packet => None,
            EdgeKind::Counter => Some(self.counter(name.clone())?),
        };
        let buffer = self.buffer(name, BufferKind::Activation, sync, dtype, shape, None)?;
        Ok(Edge { buffer, counter })
    }

    /// Appends an instruction to the queue of SM `sm`. All writers of an edge must come before its
    /// first reader, which waits for all of them.
    pub fn instruction(&mut self, sm: u64, op: Op, links: Links<'_>) -> Result<(), LowerError> {
        op.check().map_err(|message| LowerError::Op { op: op.name(), message })?;
        let footprint = op.footprint(self.cx);
        let access = |(operand, &buffer): (amk_schedule_ir::Operand, &BufferId)| Access {
            buffer,
            region: operand.region,
            phase: 0,
        };
        debug_assert_eq!(footprint.reads.len(), links.reads.len());
        debug_assert_eq!(footprint.writes.len(), links.writes.len());
        let reads = footprint.reads.into_iter().zip(links.reads).map(access).collect();
        let writes = footprint.writes.into_iter().zip(links.writes).map(access).collect();
        let waits = links
            .input
            .and_then(|e| e.counter)
            .map(|counter| Wait { counter, threshold: self.counters[counter.index()].per_step })
            .into_iter()
            .collect();
        let signals: Vec<Signal> = links
            .output
            .and_then(|e| e.counter)
            .map(|counter| Signal { counter, amount: 1 })
            .into_iter()
            .collect();
        for s in &signals {
            self.counters[s.counter.index()].per_step += s.amount;
        }
        let id = InstrId(id32(self.instructions.len(), "instructions")?);
        let at = sm as usize;
        let run = match (footprint.weight, links.weight) {
            (Some(part), Some((buffer, phase))) => {
                let run = RunId(id32(self.sms[at].stream.len(), "runs")?);
                let source =
                    RunSource::Weight { buffer, lo: part.lo, hi: part.hi, tiles: 1, blocks: 1 };
                self.sms[at].stream.push(Run { id: run, source, window: 1 });
                self.phases[at].push(phase);
                Some(run)
            }
            _ => None,
        };
        self.sms[at].queue.push(id);
        self.instructions.push(Instruction { id, op, reads, writes, waits, signals, run });
        Ok(())
    }
}
