//! Edits that keep the ids of a program dense: what generators and the shrinker have in common.

use amk_schedule_ir::{
    Access, BufferId, CounterId, InstrId, Instruction, Op, Program, Run, RunId, SmId,
};

/// The SM of every instruction, by id; `None` where it stands in no queue.
pub(crate) fn owners(p: &Program) -> Vec<Option<usize>> {
    let mut owner = vec![None; p.instructions.len()];
    for (s, sm) in p.sms.iter().enumerate() {
        for id in &sm.queue {
            if let Some(o) = owner.get_mut(id.index()) {
                *o = Some(s);
            }
        }
    }
    owner
}

/// All accesses of an instruction.
pub(crate) fn accesses(x: &Instruction) -> impl Iterator<Item = &Access> {
    x.reads.iter().chain(&x.writes)
}

/// All accesses of an instruction, to be changed.
pub(crate) fn accesses_mut(x: &mut Instruction) -> impl Iterator<Item = &mut Access> {
    x.reads.iter_mut().chain(&mut x.writes)
}

/// Is this an arrival at the boundary?
pub(crate) fn is_boundary(x: &Instruction) -> bool {
    matches!(x.op, Op::Boundary(_))
}

/// Drops the instructions for which `keep` is false, with the runs they consume, and closes the gaps
/// among instruction and run ids. Counters that added up still do.
pub(crate) fn retain_instructions(p: &mut Program, keep: &[bool]) {
    let kept = |id: InstrId| keep.get(id.index()).copied().unwrap_or(true);
    for x in &p.instructions {
        if !kept(x.id) {
            for s in &x.signals {
                if let Some(c) = p.counters.get_mut(s.counter.index()) {
                    c.per_step = c.per_step.saturating_sub(s.amount);
                }
            }
        }
    }
    let mut renamed = vec![InstrId(u32::MAX); p.instructions.len()];
    let mut next = 0u32;
    for (i, &k) in keep.iter().enumerate() {
        if k && let Some(r) = renamed.get_mut(i) {
            *r = InstrId(next);
            next += 1;
        }
    }
    for sm in &mut p.sms {
        let mut used = vec![false; sm.stream.len()];
        sm.queue.retain(|&id| kept(id));
        for id in &sm.queue {
            if let Some(r) = p.instructions.get(id.index()).and_then(|x| x.run)
                && let Some(u) = used.get_mut(r.index())
            {
                *u = true;
            }
        }
        let runs = renumber_runs(&mut sm.stream, &used);
        for id in &mut sm.queue {
            if let Some(x) = p.instructions.get_mut(id.index())
                && let Some(r) = &mut x.run
                && let Some(&to) = runs.get(r.index())
            {
                *r = to;
            }
            if let Some(&to) = renamed.get(id.index()) {
                *id = to;
            }
        }
    }
    let mut at = 0;
    p.instructions.retain(|_| {
        at += 1;
        keep.get(at - 1).copied().unwrap_or(true)
    });
    for (i, x) in p.instructions.iter_mut().enumerate() {
        x.id = InstrId(i as u32);
    }
}

/// Keeps the runs that are used; answers the new id of each old one.
fn renumber_runs(stream: &mut Vec<Run>, used: &[bool]) -> Vec<RunId> {
    let mut ids = Vec::with_capacity(used.len());
    let mut next = 0;
    for &u in used {
        ids.push(RunId(next));
        next += u32::from(u);
    }
    let mut at = 0;
    stream.retain(|_| {
        at += 1;
        used[at - 1]
    });
    for (i, run) in stream.iter_mut().enumerate() {
        run.id = RunId(i as u32);
    }
    ids
}

/// Drops an SM with all its instructions.
pub(crate) fn remove_sm(p: &mut Program, sm: usize) {
    let mut keep = vec![true; p.instructions.len()];
    for id in &p.sms[sm].queue {
        if let Some(k) = keep.get_mut(id.index()) {
            *k = false;
        }
    }
    p.sms.remove(sm);
    for (i, s) in p.sms.iter_mut().enumerate() {
        s.id = SmId(i as u32);
    }
    retain_instructions(p, &keep);
}

/// Drops buffers and counters that nothing names, and closes the gaps among their ids.
pub(crate) fn drop_unused(p: &mut Program) {
    let mut buffers = vec![false; p.buffers.len()];
    let mut counters = vec![false; p.counters.len()];
    let mut see = |b: BufferId| {
        if let Some(u) = buffers.get_mut(b.index()) {
            *u = true;
        }
    };
    for x in &p.instructions {
        accesses(x).for_each(|a| see(a.buffer));
        for c in x.waits.iter().map(|w| w.counter).chain(x.signals.iter().map(|s| s.counter)) {
            if let Some(u) = counters.get_mut(c.index()) {
                *u = true;
            }
        }
    }
    p.boundary.reads.iter().chain(&p.boundary.writes).for_each(|a| see(a.buffer));
    p.sms.iter().flat_map(|sm| &sm.stream).for_each(|run| see(run.source.buffer()));

    let new = |used: &[bool]| -> Vec<u32> {
        used.iter()
            .scan(0u32, |next, &u| {
                let id = *next;
                *next += u32::from(u);
                Some(id)
            })
            .collect()
    };
    let (b, c) = (new(&buffers), new(&counters));
    let buffer = |id: &mut BufferId| {
        if let Some(&to) = b.get(id.index()) {
            *id = BufferId(to);
        }
    };
    let counter = |id: &mut CounterId| {
        if let Some(&to) = c.get(id.index()) {
            *id = CounterId(to);
        }
    };
    for x in &mut p.instructions {
        x.waits.iter_mut().for_each(|w| counter(&mut w.counter));
        x.signals.iter_mut().for_each(|s| counter(&mut s.counter));
        accesses_mut(x).for_each(|a| buffer(&mut a.buffer));
    }
    for a in p.boundary.reads.iter_mut().chain(&mut p.boundary.writes) {
        buffer(&mut a.buffer);
    }
    for run in p.sms.iter_mut().flat_map(|sm| &mut sm.stream) {
        buffer(run_buffer(run));
    }
    keep_used(&mut p.buffers, &buffers);
    keep_used(&mut p.counters, &counters);
    for (i, b) in p.buffers.iter_mut().enumerate() {
        b.id = BufferId(i as u32);
    }
    for (i, c) in p.counters.iter_mut().enumerate() {
        c.id = CounterId(i as u32);
    }
}

fn keep_used<T>(list: &mut Vec<T>, used: &[bool]) {
    let mut at = 0;
    list.retain(|_| {
        at += 1;
        used[at - 1]
    });
}

/// The buffer a run streams, to be changed.
pub(crate) fn run_buffer(run: &mut Run) -> &mut BufferId {
    match &mut run.source {
        amk_schedule_ir::RunSource::Weight { buffer, .. }
        | amk_schedule_ir::RunSource::Kv { buffer, .. } => buffer,
    }
}
