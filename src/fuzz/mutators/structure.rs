//! Mutators of **S**: ids, queues, parameters, runs and counters that make no sense.

use amk_schedule_ir::op::Op;
use amk_schedule_ir::{
    Bound, BufferId, CounterId, InstrId, Program, RunId, RunSource, Scalar, SmId, TILE_ROWS,
};

use super::{List, instruction, run, works};
use crate::fuzz::draw::Draw;
use crate::fuzz::edit;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("id-wrong", id_wrong),
    ("id-dangling", id_dangling),
    ("instruction-twice-queued", twice_queued),
    ("instruction-unqueued", unqueued),
    ("boundary-moved", boundary_moved),
    ("window-past-ring", window),
    ("constant-not-finite", constant),
    ("operand-count", operands),
    ("counter-sum", counter_sum),
    ("run-shared", run_shared),
    ("run-rows", run_rows),
    ("chunk-past-slot", chunk),
    ("extent-impossible", extent),
    ("keys-none", keys_none),
];

/// A boundary that chooses among no keys.
fn keys_none(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let span = p.boundary.reads.first_mut()?.region.0.first_mut()?;
    span.hi = if rng.chance(1, 2) { span.lo } else { Bound::Pos(0) };
    Some(())
}

/// An object that says it is another.
fn id_wrong(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let off = |rng: &mut Rng, n: usize, i: usize| {
        if n > 1 && rng.chance(1, 2) { (i + 1) as u32 % n as u32 } else { (i + n) as u32 }
    };
    match rng.below(5) {
        0 => {
            let i = instruction(p, rng, works)?;
            p.instructions[i].id = InstrId(off(rng, p.instructions.len(), i));
        }
        1 if !p.buffers.is_empty() => {
            let i = rng.below(p.buffers.len());
            p.buffers[i].id = BufferId(off(rng, p.buffers.len(), i));
        }
        2 if !p.counters.is_empty() => {
            let i = rng.below(p.counters.len());
            p.counters[i].id = CounterId(off(rng, p.counters.len(), i));
        }
        3 => {
            let (s, r) = run(p, rng, |_| true)?;
            p.sms[s].stream[r].id = RunId(off(rng, p.sms[s].stream.len(), r));
        }
        _ => {
            let i = rng.below(p.sms.len());
            p.sms[i].id = SmId(off(rng, p.sms.len(), i));
        }
    }
    Some(())
}

/// A name of something that is not there.
fn id_dangling(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let past = |rng: &mut Rng, n: usize| n as u32 + rng.pick(&[0, 1, 1 << 20]);
    match rng.below(4) {
        0 => {
            let i = instruction(p, rng, |x| edit::accesses(x).next().is_some())?;
            let id = BufferId(past(rng, p.buffers.len()));
            edit::accesses_mut(&mut p.instructions[i]).next()?.buffer = id;
        }
        1 => {
            let i = instruction(p, rng, |x| !x.waits.is_empty())?;
            p.instructions[i].waits[0].counter = CounterId(past(rng, p.counters.len()));
        }
        2 => {
            let i = instruction(p, rng, |x| x.run.is_some())?;
            p.instructions[i].run = Some(RunId(past(rng, p.instructions.len())));
        }
        _ => {
            let s = rng.below(p.sms.len());
            let n = p.instructions.len();
            *p.sms[s].queue.first_mut()? = InstrId(past(rng, n));
        }
    }
    Some(())
}

fn twice_queued(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, works)?;
    let s = rng.below(p.sms.len());
    let queue = &mut p.sms[s].queue;
    queue.insert(rng.below(queue.len()), InstrId(i as u32));
    Some(())
}

fn unqueued(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = rng.find(p.sms.len(), |s| (p.sms[s].queue.len() > 1).then_some(s))?;
    let queue = &mut p.sms[s].queue;
    queue.remove(rng.below(queue.len() - 1));
    Some(())
}

/// A queue that ends without its boundary, or goes on after it.
fn boundary_moved(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = rng.find(p.sms.len(), |s| (p.sms[s].queue.len() > 1).then_some(s))?;
    let queue = &mut p.sms[s].queue;
    let last = queue.len() - 1;
    if rng.chance(1, 3) {
        let arrival = queue[last];
        queue.pop();
        let keep: Vec<bool> = (0..p.instructions.len()).map(|i| i != arrival.index()).collect();
        edit::retain_instructions(p, &keep);
    } else {
        let at = rng.below(last);
        queue.swap(at, last);
    }
    Some(())
}

fn window(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let (s, r) = run(p, rng, |_| true)?;
    let slots = p.resources.ring_slots;
    p.sms[s].stream[r].window = rng.pick(&[0, slots + 1, slots + 2, 2 * slots + 1]);
    Some(())
}

/// NaN and its kind among the constants of an op, or parameters out of range.
fn constant(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, works)?;
    let bad = Scalar(rng.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1.0]));
    match &mut p.instructions[i].op {
        Op::NormQkv(o) => o.eps = bad,
        Op::NormGateUp(o) => o.eps = bad,
        Op::NormLmHead(o) => o.eps = bad,
        Op::NormResidual(o) => o.eps = bad,
        Op::Attention(o) => o.scale = bad,
        Op::AttentionMerge(o) => o.splits = 0,
        Op::LinearResidual(o) => o.rows.hi = o.rows.lo,
        Op::Embed(o) => o.rows.hi = o.rows.lo,
        Op::Sample(o) => o.vocab = 0,
        Op::Opaque(o) => o.tag = rng.pick(&[0, 1 << 32]),
        Op::Boundary(_) => return None,
    }
    Some(())
}

/// An access too few or too many for the op.
fn operands(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let fixed =
        |x: &amk_schedule_ir::Instruction| works(x) && !super::is_opaque(x) && !x.reads.is_empty();
    let i = instruction(p, rng, fixed)?;
    let x = &mut p.instructions[i];
    let reads = rng.chance(1, 2);
    let list = if reads { &mut x.reads } else { &mut x.writes };
    if list.is_empty() {
        return None;
    }
    let at = rng.below(list.len());
    if rng.chance(1, 2) {
        list.remove(at);
    } else {
        let again = list.get(at)?.clone();
        list.push(again);
    }
    Some(())
}

/// A counter that starts elsewhere or adds up to something else.
fn counter_sum(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.counters.is_empty() {
        return None;
    }
    let i = rng.below(p.counters.len());
    let c = &mut p.counters[i];
    match rng.below(4) {
        0 => c.init = rng.pick(&[1, u64::from(u32::MAX)]),
        1 => c.per_step = c.per_step.wrapping_add(1),
        2 => c.per_step = c.per_step.saturating_sub(1),
        _ => c.per_step = u64::MAX,
    }
    Some(())
}

/// A run with two consumers or none.
fn run_shared(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, |x| x.run.is_some())?;
    let (run, owner) = (p.instructions[i].run, edit::owners(p)[i]?);
    if rng.chance(1, 2) {
        p.instructions[i].run = None;
        return Some(());
    }
    let queue = p.sms[owner].queue.clone();
    let other = rng.find(queue.len(), |q| {
        let x = p.instructions.get(queue[q].index())?;
        (works(x) && x.run != run).then_some(queue[q].index())
    })?;
    p.instructions[other].run = run;
    Some(())
}

/// A run over other rows, or none at all.
fn run_rows(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let (s, r) = run(p, rng, |x| matches!(x.source, RunSource::Weight { .. }))?;
    let rows = p.buffers.get(p.sms[s].stream[r].source.buffer().index())?;
    let rows = *rows.shape.first()?;
    if let RunSource::Weight { lo, hi, tiles, blocks, .. } = &mut p.sms[s].stream[r].source {
        match rng.below(6) {
            0 => *hi = rows + TILE_ROWS,
            1 => *lo += 1,
            2 => *hi = *lo,
            3 => *tiles = 0,
            4 => *blocks = 0,
            _ => *blocks += 1 << 20,
        }
    }
    Some(())
}

/// A chunk that does not fit its slot.
fn chunk(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if rng.chance(1, 3) && p.sms.iter().any(|sm| !sm.stream.is_empty()) {
        p.resources.slot_bytes = p.resources.slot_bytes / 32 * 16;
        return Some(());
    }
    let slot = p.resources.slot_bytes;
    let (s, r) = run(p, rng, |_| true)?;
    match &mut p.sms[s].stream[r].source {
        RunSource::Weight { tiles, .. } => *tiles += (slot / 512) as u32 + 1,
        RunSource::Kv { rows, .. } => *rows += slot as u32,
    }
    Some(())
}

fn extent(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.buffers.is_empty() {
        return None;
    }
    let i = rng.below(p.buffers.len());
    let shape = &mut p.buffers[i].shape;
    match rng.below(4) {
        0 => *shape.first_mut()? = 0,
        1 => shape.iter_mut().for_each(|n| *n = 1 << 63),
        2 => shape.extend([1, 1, 1, 1]),
        _ => shape.clear(),
    }
    Some(())
}
