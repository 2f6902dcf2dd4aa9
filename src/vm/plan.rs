//! A program prepared for execution: every index checked once, constant regions flattened.
//!
//! Only what would leave the semantics without meaning is refused here (a missing buffer, a queue
//! without its boundary, a stream that is not a list of chunks). Everything that *has* an execution,
//! however wrong, is executed.

use std::sync::Arc;

use amk_schedule_ir::limits::{MAX_ELEMENTS, MAX_RANK};
use amk_schedule_ir::{
    Access, Bound, Buffer, BufferKind, BufferSync, InstrId, Op, Program, Region, RunSource,
};

use super::fault::VmFault;

/// Most pieces one access, and all accesses with constant regions together, may fall into.
const MAX_INTERVALS: u128 = 1 << 22;
const MAX_ALL_INTERVALS: usize = 1 << 26;

/// A half-open interval of flattened elements.
pub(crate) type Interval = (u64, u64);

/// An access with its elements.
#[derive(Clone, Debug)]
pub(crate) struct AccessPlan {
    pub buffer: usize,
    pub phase: u32,
    /// Intervals that hold for every position; `None` if they follow it.
    pub fixed: Option<Vec<Interval>>,
    pub region: Region,
}

/// A buffer's facts.
#[derive(Clone, Debug)]
pub(crate) struct BufferPlan {
    pub elements: u64,
    /// Elements per packet word; 1 where the buffer is not packets.
    pub per_word: u64,
    pub kind: BufferKind,
    pub sync: BufferSync,
    /// Accesses are recorded: somebody may write it.
    pub tracked: bool,
    /// Producers read it.
    pub streamed: bool,
    /// Where constant regions start and end, ascending.
    pub cuts: Vec<u64>,
}

/// A run of a stream.
#[derive(Clone, Debug)]
pub(crate) struct RunPlan {
    /// First chunk within the step.
    pub first: u64,
    pub chunks: u64,
    pub window: u32,
    pub kv: Option<KvPlan>,
}

/// What a kv run reads.
#[derive(Clone, Debug)]
pub(crate) struct KvPlan {
    pub buffer: usize,
    pub region: Region,
    pub rows: u64,
    pub gate: u64,
}

/// An instruction with its accesses.
#[derive(Clone, Debug)]
pub(crate) struct InstrPlan {
    pub reads: Vec<AccessPlan>,
    pub writes: Vec<AccessPlan>,
}

/// One SM.
#[derive(Clone, Debug)]
pub(crate) struct SmPlan {
    pub queue: Vec<InstrId>,
    pub runs: Vec<RunPlan>,
    /// Chunks per step.
    pub chunks: u64,
    /// Index of P among the clocks, if its accesses matter.
    pub producer: Option<usize>,
}

/// The prepared program.
#[derive(Debug)]
pub(crate) struct Plan {
    pub program: Arc<Program>,
    pub buffers: Vec<BufferPlan>,
    pub instructions: Vec<InstrPlan>,
    pub boundary: InstrPlan,
    pub sms: Vec<SmPlan>,
    /// Vector clock components: consumers by SM, then producers that read the cache.
    pub agents: usize,
    /// SM of each agent.
    pub sm_of: Vec<usize>,
    pub max_gate: u64,
    /// Thresholds of each counter, ascending.
    pub thresholds: Vec<Vec<u64>>,
}

fn malformed(what: String) -> VmFault {
    VmFault::Malformed { what, instruction: None }
}

/// Flattened intervals of a region at `pos`, in row-major order; `Err` names the dimension that
/// leaves the buffer.
pub(crate) fn intervals(
    shape: &[u64],
    region: &Region,
    pos: u64,
    out: &mut Vec<Interval>,
) -> Result<(), (usize, i128, i128)> {
    out.clear();
    let rank = shape.len().min(MAX_RANK);
    let mut spans = [(0u64, 0u64); MAX_RANK];
    if region.0.iter().any(|s| s.hi.eval(pos) <= s.lo.eval(pos)) {
        return Ok(());
    }
    for (d, span) in region.0.iter().take(rank).enumerate() {
        let (lo, hi) = (span.lo.eval(pos), span.hi.eval(pos));
        if lo < 0 || hi > i128::from(shape[d]) {
            return Err((d, lo, hi));
        }
        spans[d] = (lo as u64, hi as u64);
    }
    // Dimensions from `split` on are one contiguous piece.
    let mut split = rank - 1;
    while split > 0 && spans[split] == (0, shape[split]) {
        split -= 1;
    }
    let mut inner = 1u64;
    let mut stride = [1u64; MAX_RANK];
    for d in (0..rank).rev() {
        stride[d] = inner;
        inner *= shape[d];
    }
    let (lo, hi) = spans[split];
    let mut at = spans;
    loop {
        let base: u64 = (0..split).map(|d| at[d].0 * stride[d]).sum();
        out.push((base + lo * stride[split], base + hi * stride[split]));
        let mut d = split;
        loop {
            if d == 0 {
                return Ok(());
            }
            d -= 1;
            at[d].0 += 1;
            if at[d].0 < spans[d].1 {
                break;
            }
            at[d].0 = spans[d].0;
        }
    }
}

fn is_fixed(region: &Region) -> bool {
    region.0.iter().all(|s| !s.lo.is_symbolic() && !s.hi.is_symbolic())
}

/// Indices of a flattened element.
pub(crate) fn indices(shape: &[u64], mut element: u64) -> Vec<u64> {
    let mut out = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        let n = shape[d].max(1);
        out[d] = element % n;
        element /= n;
    }
    out
}

fn buffer_plan(i: usize, b: &Buffer) -> Result<BufferPlan, VmFault> {
    let named = |what: &str| malformed(format!("buffer {i} `{}` {what}", b.name));
    if b.id.index() != i {
        return Err(named("is not listed under its id"));
    }
    if b.shape.is_empty() || b.shape.len() > MAX_RANK {
        return Err(named("has an impossible rank"));
    }
    let elements = b.shape.iter().try_fold(1u64, |a, &n| a.checked_mul(n));
    let Some(elements) = elements.filter(|&n| n > 0 && n <= MAX_ELEMENTS) else {
        return Err(named("has no elements, or too many"));
    };
    let packet = b.sync == BufferSync::Packet;
    let per_word = if packet { b.dtype.per_word() } else { 1 };
    if per_word == 0 {
        return Err(named("has a type that does not fit a packet word"));
    }
    let constant = matches!(b.kind, BufferKind::Weight | BufferKind::Constant);
    if constant && b.sync != BufferSync::Plain {
        return Err(named("is read-only, but not plain"));
    }
    Ok(BufferPlan {
        elements,
        per_word,
        kind: b.kind,
        sync: b.sync,
        tracked: !constant,
        streamed: false,
        cuts: Vec::new(),
    })
}

struct Builder<'a> {
    program: &'a Program,
    buffers: Vec<BufferPlan>,
    /// Pieces of constant regions so far.
    pieces: usize,
}

impl Builder<'_> {
    fn access(&self, a: &Access, by: Option<InstrId>) -> Result<AccessPlan, VmFault> {
        let named = |what: String| VmFault::Malformed { what, instruction: by };
        let who = by.map_or("the boundary".to_owned(), |id| format!("instr {}", id.0));
        let i = a.buffer.index();
        let (Some(buffer), Some(plan)) = (self.program.buffers.get(i), self.buffers.get(i)) else {
            return Err(named(format!("{who} accesses buffer {i}, which does not exist")));
        };
        if a.region.rank() != buffer.shape.len() {
            let name = &buffer.name;
            return Err(named(format!("{who} accesses `{name}` with a region of another rank")));
        }
        let packet = plan.sync == BufferSync::Packet;
        if a.phase != 0 && (!packet || a.phase >= self.program.epochs.per_step) {
            return Err(named(format!("{who} accesses `{}` in phase {}", buffer.name, a.phase)));
        }
        let outer = a.region.0.iter().zip(&buffer.shape).rev().skip(1).fold(1u128, |n, (s, x)| {
            let len = s.constant_len().unwrap_or(*x).min(*x);
            n.saturating_mul(u128::from(len))
        });
        if plan.tracked && outer > MAX_INTERVALS {
            return Err(named(format!("{who} accesses `{}` in too many pieces", buffer.name)));
        }
        let fixed = match plan.tracked && is_fixed(&a.region) {
            false => None,
            true => {
                let mut list = Vec::new();
                intervals(&buffer.shape, &a.region, 0, &mut list)
                    .map_err(|e| out_of_bounds(buffer, e, by))?;
                check_words(buffer, plan, &list, by)?;
                Some(list)
            }
        };
        Ok(AccessPlan { buffer: i, phase: a.phase, fixed, region: a.region.clone() })
    }

    fn unit(
        &mut self,
        reads: &[Access],
        writes: &[Access],
        by: Option<InstrId>,
    ) -> Result<InstrPlan, VmFault> {
        let all = |list: &[Access]| -> Result<Vec<AccessPlan>, VmFault> {
            list.iter().map(|a| self.access(a, by)).collect()
        };
        let (reads, writes) = (all(reads)?, all(writes)?);
        for access in reads.iter().chain(&writes) {
            self.pieces += access.fixed.as_ref().map_or(0, Vec::len);
            let cuts = &mut self.buffers[access.buffer].cuts;
            for &(lo, hi) in access.fixed.iter().flatten() {
                cuts.extend([lo, hi]);
            }
        }
        if self.pieces > MAX_ALL_INTERVALS {
            return Err(malformed("its accesses fall into too many pieces".into()));
        }
        Ok(InstrPlan { reads, writes })
    }

    fn stream(&mut self, sm: usize) -> Result<(Vec<RunPlan>, u64), VmFault> {
        let mut first = 0u64;
        let mut runs = Vec::new();
        for (r, run) in self.program.sms[sm].stream.iter().enumerate() {
            let named = |what: &str| malformed(format!("run {r} of sm {sm} {what}"));
            if run.id.index() != r {
                return Err(named("is not listed under its id"));
            }
            let i = run.source.buffer().index();
            let Some(buffer) = self.program.buffers.get(i) else {
                return Err(named("names a buffer that does not exist"));
            };
            let chunks =
                run.source.chunks(buffer).ok_or_else(|| named("is not a list of chunks"))?;
            let kv = match &run.source {
                RunSource::Weight { .. } if buffer.kind != BufferKind::Weight => {
                    return Err(named("streams weights from a buffer of another kind"));
                }
                RunSource::Weight { .. } => None,
                RunSource::Kv { .. } if buffer.kind != BufferKind::Kv => {
                    return Err(named("streams a cache from a buffer of another kind"));
                }
                RunSource::Kv { region, rows, gate, .. } => {
                    if buffer.shape.len() != 3 || region.rank() != 3 {
                        return Err(named("streams a cache that has not three dimensions"));
                    }
                    self.buffers[i].streamed = true;
                    Some(KvPlan {
                        buffer: i,
                        region: region.clone(),
                        rows: u64::from(*rows),
                        gate: u64::from(*gate),
                    })
                }
            };
            runs.push(RunPlan { first, chunks, window: run.window, kv });
            first = first
                .checked_add(chunks)
                .filter(|&n| n <= u64::from(u32::MAX))
                .ok_or_else(|| named("has too many chunks"))?;
        }
        Ok((runs, first))
    }
}

/// Packet regions start and end on whole words.
pub(crate) fn check_words(
    buffer: &Buffer,
    plan: &BufferPlan,
    list: &[Interval],
    by: Option<InstrId>,
) -> Result<(), VmFault> {
    let w = plan.per_word;
    let split = |&(lo, hi): &Interval| lo % w != 0 || hi % w != 0 && hi != plan.elements;
    if w > 1 && list.iter().any(split) {
        let what = format!("an access of packets `{}` does not cover whole words", buffer.name);
        return Err(VmFault::Malformed { what, instruction: by });
    }
    Ok(())
}

/// The fault for a region that leaves its buffer.
pub(crate) fn out_of_bounds(
    buffer: &Buffer,
    (dimension, lo, hi): (usize, i128, i128),
    instruction: Option<InstrId>,
) -> VmFault {
    let extent = buffer.shape.get(dimension).copied().unwrap_or(0);
    VmFault::OutOfBounds { instruction, buffer: buffer.name.clone(), dimension, lo, hi, extent }
}

impl Plan {
    /// Prepares a program, or says why it has no execution.
    pub fn new(program: Arc<Program>) -> Result<Plan, VmFault> {
        if program.tokens == 0 || program.epochs.tags == 0 || program.sms.is_empty() {
            return Err(malformed("it has no positions per step, no epoch tags or no SMs".into()));
        }
        let buffers = program.buffers.iter().enumerate().map(|(i, b)| buffer_plan(i, b));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let mut builder = Builder { program: &program, buffers, pieces: 0 };

        let mut thresholds = vec![Vec::new(); program.counters.len()];
        for (i, c) in program.counters.iter().enumerate() {
            if c.id.index() != i || c.init != 0 {
                return Err(malformed(format!(
                    "counter {i} has another id, or does not start at 0"
                )));
            }
        }
        let mut instructions = Vec::with_capacity(program.instructions.len());
        for (i, instr) in program.instructions.iter().enumerate() {
            let by = Some(instr.id);
            let named = |what: &str| VmFault::Malformed {
                what: format!("instr {i} {what}"),
                instruction: by,
            };
            if instr.id.index() != i {
                return Err(named("is not listed under its id"));
            }
            let counters = instr.waits.iter().map(|w| w.counter);
            let known = |c: amk_schedule_ir::CounterId| c.index() < program.counters.len();
            if !counters.chain(instr.signals.iter().map(|s| s.counter)).all(known) {
                return Err(named("names a counter that does not exist"));
            }
            for wait in &instr.waits {
                thresholds[wait.counter.index()].push(wait.threshold);
            }
            instructions.push(builder.unit(&instr.reads, &instr.writes, by)?);
        }
        let (reads, writes) = (&program.boundary.reads, &program.boundary.writes);
        let boundary = builder.unit(reads, writes, None)?;

        let mut queued = vec![false; program.instructions.len()];
        let (mut sms, mut max_gate) = (Vec::with_capacity(program.sms.len()), 0);
        let mut sm_of: Vec<usize> = (0..program.sms.len()).collect();
        for (s, sm) in program.sms.iter().enumerate() {
            let (runs, chunks) = builder.stream(s)?;
            for (q, id) in sm.queue.iter().enumerate() {
                let Some(instr) = program.instruction(*id) else {
                    return Err(malformed(format!("sm {s} queues {id}, which does not exist")));
                };
                let named = |what: &str| VmFault::Malformed {
                    what: format!("{id} {what}"),
                    instruction: Some(*id),
                };
                if std::mem::replace(&mut queued[id.index()], true) {
                    return Err(named("is queued twice"));
                }
                if matches!(instr.op, Op::Boundary(_)) != (q + 1 == sm.queue.len()) {
                    return Err(named(
                        "is a boundary before the end of its queue, or no boundary at it",
                    ));
                }
                if instr.run.is_some_and(|r| r.index() >= runs.len()) {
                    return Err(named("consumes a run its SM does not have"));
                }
            }
            if sm.id.index() != s || sm.queue.is_empty() {
                return Err(malformed(format!(
                    "sm {s} has another id, or no boundary in its queue"
                )));
            }
            let producer = runs.iter().any(|r| r.kv.is_some()).then(|| {
                sm_of.push(s);
                sm_of.len() - 1
            });
            max_gate =
                runs.iter().filter_map(|r| r.kv.as_ref()).fold(max_gate, |m, k| m.max(k.gate));
            sms.push(SmPlan { queue: sm.queue.clone(), runs, chunks, producer });
        }
        if let Some(i) = queued.iter().position(|q| !q) {
            return Err(malformed(format!("instr {i} is in no queue")));
        }
        for list in &mut thresholds {
            list.sort_unstable();
            list.dedup();
        }
        let mut buffers = builder.buffers;
        for b in &mut buffers {
            b.cuts.sort_unstable();
            b.cuts.dedup();
        }
        let agents = sm_of.len();
        Ok(Plan {
            program,
            buffers,
            instructions,
            boundary,
            sms,
            agents,
            sm_of,
            max_gate,
            thresholds,
        })
    }

    /// Elements of an access at `pos`.
    pub fn elements(
        &self,
        access: &AccessPlan,
        pos: u64,
        by: Option<InstrId>,
        out: &mut Vec<Interval>,
    ) -> Result<(), VmFault> {
        if let Some(fixed) = &access.fixed {
            out.clear();
            out.extend_from_slice(fixed);
            return Ok(());
        }
        let (buffer, plan) = (&self.program.buffers[access.buffer], &self.buffers[access.buffer]);
        if !plan.tracked {
            return self.check_bounds(access, pos, by);
        }
        intervals(&buffer.shape, &access.region, pos, out)
            .map_err(|e| out_of_bounds(buffer, e, by))?;
        check_words(buffer, plan, out, by)
    }

    /// Bounds of an access to a buffer whose elements are not followed.
    fn check_bounds(
        &self,
        access: &AccessPlan,
        pos: u64,
        by: Option<InstrId>,
    ) -> Result<(), VmFault> {
        let buffer = &self.program.buffers[access.buffer];
        for (d, (span, &extent)) in access.region.0.iter().zip(&buffer.shape).enumerate() {
            let (lo, hi) = (span.lo.eval(pos), span.hi.eval(pos));
            if lo < hi && (lo < 0 || hi > i128::from(extent)) {
                return Err(out_of_bounds(buffer, (d, lo, hi), by));
            }
        }
        Ok(())
    }

    /// Rows `[lo, hi)` of a kv run that chunk `index` holds at `pos`, with the interval list.
    pub fn chunk_region(&self, kv: &KvPlan, index: u64, pos: u64) -> Region {
        let mut region = kv.region.clone();
        let (lo, hi) = region.0[1].eval(pos);
        let from = (lo + i128::from(index) * i128::from(kv.rows)).min(hi);
        let to = (from + i128::from(kv.rows)).min(hi);
        // A span that starts before the buffer stays as it is, for the bounds check to find.
        match (u64::try_from(from), u64::try_from(to)) {
            (Ok(from), Ok(to)) => {
                region.0[1] = amk_schedule_ir::Span { lo: Bound::At(from), hi: Bound::At(to) };
            }
            _ => region.0[1] = amk_schedule_ir::Span { lo: Bound::Pos(i64::MIN), hi: Bound::At(1) },
        }
        region
    }

    /// The packet tag of an epoch.
    pub fn tag(&self, epoch: Option<u64>) -> u64 {
        epoch.map_or(0, |e| 1 + e % self.program.epochs.tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amk_schedule_ir::Span;

    fn list(shape: &[u64], region: Vec<Span>, pos: u64) -> Vec<Interval> {
        let mut out = Vec::new();
        intervals(shape, &Region(region), pos, &mut out).unwrap();
        out
    }

    #[test]
    fn rectangles_flatten_in_row_major_order() {
        assert_eq!(list(&[8], vec![Span::at(2, 5)], 0), [(2, 5)]);
        assert_eq!(list(&[2, 8], vec![Span::at(0, 2), Span::at(0, 8)], 0), [(0, 16)]);
        assert_eq!(list(&[2, 8], vec![Span::at(0, 2), Span::at(6, 8)], 0), [(6, 8), (14, 16)]);
        let rows = vec![Span::at(1, 2), Span::pos(0, 1), Span::at(0, 4)];
        assert_eq!(list(&[2, 8, 4], rows, 3), [(44, 48)]);
        let middle = vec![Span::at(0, 2), Span::at(1, 2), Span::at(0, 2), Span::at(0, 3)];
        assert_eq!(list(&[2, 2, 2, 3], middle, 0), [(6, 12), (18, 24)]);
        assert!(list(&[8], vec![Span::at(5, 5)], 0).is_empty());
    }

    #[test]
    fn leaving_the_buffer_names_the_dimension() {
        let mut out = Vec::new();
        let region = Region(vec![Span::at(0, 1), Span::pos(0, 1)]);
        assert_eq!(intervals(&[1, 4], &region, 4, &mut out), Err((1, 4, 5)));
        let region = Region(vec![Span::at(0, 1), Span::pos(-1, 0)]);
        assert_eq!(intervals(&[1, 4], &region, 0, &mut out), Err((1, -1, 0)));
    }
}
