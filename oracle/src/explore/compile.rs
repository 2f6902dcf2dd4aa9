//! A program prepared for execution from one position: queues and streams by number, and per step who
//! conflicts with whom, which writers a read needs, and the packet words.

use amk_schedule_ir::{
    Access, BufferId, BufferKind, BufferSync, InstrId, Instruction, Op, Program, RunSource,
};

use super::table::{Rect, cells, follows_position, meet, rect};
use super::{Hazard, Limits, Site, Witness};

/// A set of nodes.
pub(super) type Mask = u128;
const MAX_NODES: usize = 128;
const MAX_SMS: usize = 16;
const MAX_WORDS: usize = 512;
const MAX_WRITERS: usize = 32;

/// Why a program is not executed.
pub(super) enum Refused {
    TooBig(&'static str),
    Unsafe(Witness),
}

/// An entry of a queue.
pub(super) struct Node {
    pub sm: usize,
    /// Place in the queue.
    pub at: u32,
    pub id: InstrId,
    /// (counter, threshold, index into `Compiled::crossings`).
    pub waits: Vec<(usize, u32, usize)>,
    pub signals: Vec<(usize, u32)>,
    /// First chunk of its run, and how many.
    pub run: Option<(u32, u32)>,
}

/// What a node does in one step.
#[derive(Default)]
pub(super) struct Accesses {
    /// Nodes of other SMs with a conflicting access of plain memory.
    pub conflicts: Vec<(u16, BufferId)>,
    /// Chunks of other SMs' producers that read what this node writes: (sm, chunk of the launch).
    pub streamed: Vec<(u16, u32, BufferId)>,
    /// Of each element read, the nodes that write it; one must have run.
    pub needs: Vec<(Mask, BufferId)>,
    /// (word, phase).
    pub reads: Vec<(u16, u32)>,
    pub writes: Vec<(u16, u32)>,
}

/// The packet accesses of one word in a step: (node, phase).
#[derive(Default)]
pub(super) struct Word {
    pub writers: Vec<(u16, u32)>,
    pub readers: Vec<(u16, u32)>,
}

/// One step.
pub(super) struct Table {
    pub nodes: Vec<Accesses>,
    pub words: Vec<Word>,
    /// As `Accesses::needs`, of the boundary.
    pub boundary: Vec<(Mask, BufferId)>,
}

/// What the producer reads with a chunk of the launch.
#[derive(Default)]
pub(super) struct Copy {
    /// (step, node) that write an element of it.
    pub conflicts: Vec<(u32, u16)>,
    /// Of each element that was not there at the start, its writers; one must have run.
    pub needs: Vec<Vec<(u32, u16)>>,
    pub buffer: Option<BufferId>,
}

/// A chunk of a step.
pub(super) struct Chunk {
    /// Node that consumes it, and its number in the run.
    pub consumer: Option<(u16, u32)>,
    /// Gate, where it is the first of a kv run.
    pub gate: Option<u32>,
    /// A window of 0 lets nothing through.
    pub closed: bool,
}

/// The stream of an SM.
pub(super) struct Stream {
    pub chunks: Vec<Chunk>,
    /// By chunk of the launch; empty where the SM streams weights only.
    pub copies: Vec<Copy>,
}

pub(super) struct Compiled {
    pub pos: u64,
    pub steps: u32,
    pub launches: u32,
    pub nodes: Vec<Node>,
    /// First node of each SM, and one past the last.
    pub first: Vec<usize>,
    pub streams: Vec<Stream>,
    pub slots: u32,
    /// Are there kv runs?
    pub copies: bool,
    /// One, or one for each step.
    pub tables: Vec<Table>,
    pub words: usize,
    pub word_buffer: Vec<BufferId>,
    /// Most writers of a word in a step.
    pub writers: usize,
    pub per_step: Vec<u32>,
    /// (counter, threshold) waited for.
    pub crossings: Vec<(usize, u32)>,
    /// Does the order of its signals matter?
    pub ordered: Vec<bool>,
    pub phases: u32,
    pub tags: u64,
}

fn malformed(pos: u64, sm: usize, instruction: Option<InstrId>) -> Refused {
    let at = Some(Site { sm: sm as u32, instruction });
    Refused::Unsafe(Witness {
        hazard: Hazard::Malformed,
        pos,
        step: 0,
        buffer: None,
        at,
        with: None,
    })
}

fn number(x: u64) -> Result<u32, Refused> {
    u32::try_from(x).ok().filter(|x| *x < 1 << 24).ok_or(Refused::TooBig("numbers"))
}

impl Compiled {
    pub fn new(p: &Program, pos: u64, steps: u64, limits: Limits) -> Result<Compiled, Refused> {
        let n = p.sms.len();
        if n == 0 || p.buffers.iter().enumerate().any(|(i, b)| b.id.index() != i) {
            return Err(malformed(pos, 0, None));
        }
        if n > MAX_SMS {
            return Err(Refused::TooBig("sms"));
        }
        let launches = limits.steps.div_ceil(steps.max(1));
        let mut c = Compiled {
            pos,
            steps: number(steps)?,
            // Leftovers of a launch meet the next one only where launches are short.
            launches: if p.max_steps < limits.steps { number(launches)? } else { 1 },
            nodes: Vec::new(),
            first: vec![0],
            streams: Vec::new(),
            slots: p.resources.ring_slots,
            copies: false,
            tables: Vec::new(),
            words: 0,
            word_buffer: Vec::new(),
            writers: 0,
            per_step: Vec::new(),
            crossings: Vec::new(),
            ordered: Vec::new(),
            phases: p.epochs.per_step.max(1),
            tags: p.epochs.tags.max(1),
        };
        for counter in &p.counters {
            c.per_step.push(number(counter.per_step)?);
        }
        c.queues(p)?;
        c.streams(p)?;
        c.counters();
        c.memory(p)?;
        Ok(c)
    }

    /// The table of a step.
    pub fn table(&self, step: u32) -> &Table {
        &self.tables[(step as usize).min(self.tables.len() - 1)]
    }

    fn queues(&mut self, p: &Program) -> Result<(), Refused> {
        let mut queued = vec![false; p.instructions.len()];
        for (s, sm) in p.sms.iter().enumerate() {
            let wrong = |id| malformed(self.pos, s, id);
            for (at, id) in sm.queue.iter().enumerate() {
                let Some(x) = p.instruction(*id).filter(|x| x.id == *id) else {
                    return Err(wrong(Some(*id)));
                };
                let last = at + 1 == sm.queue.len();
                let arrives = matches!(x.op, Op::Boundary(_));
                if std::mem::replace(&mut queued[id.index()], true) || arrives != last {
                    return Err(wrong(Some(*id)));
                }
                let node = node(p, x, s, at, &mut self.crossings)
                    .ok_or_else(|| malformed(self.pos, s, Some(*id)))??;
                self.nodes.push(node);
            }
            if sm.queue.is_empty() {
                return Err(malformed(self.pos, s, None));
            }
            self.first.push(self.nodes.len());
        }
        if queued.contains(&false) {
            return Err(malformed(self.pos, 0, None));
        }
        match self.nodes.len() <= MAX_NODES {
            true => Ok(()),
            false => Err(Refused::TooBig("instructions")),
        }
    }

    fn streams(&mut self, p: &Program) -> Result<(), Refused> {
        for (s, sm) in p.sms.iter().enumerate() {
            let mut chunks = Vec::new();
            for (r, run) in sm.stream.iter().enumerate() {
                let count = p.buffer(run.source.buffer()).and_then(|b| run.source.chunks(b));
                let count = number(count.ok_or_else(|| malformed(self.pos, s, None))?)?;
                if chunks.len() + count as usize > 1 << 12 {
                    return Err(Refused::TooBig("chunks"));
                }
                let (lo, hi) = (self.first[s], self.first[s + 1]);
                let mut users = (lo..hi).filter(|&i| {
                    let x = p.instruction(self.nodes[i].id);
                    x.is_some_and(|x| x.run.is_some_and(|q| q.index() == r))
                });
                let user = users.next();
                if users.next().is_some() {
                    return Err(malformed(self.pos, s, None));
                }
                if let Some(user) = user {
                    self.nodes[user].run = Some((chunks.len() as u32, count));
                }
                let gate = match run.source {
                    RunSource::Kv { gate, .. } => Some(gate),
                    RunSource::Weight { .. } => None,
                };
                self.copies |= gate.is_some();
                chunks.extend((0..count).map(|k| Chunk {
                    consumer: user.map(|u| (u as u16, k)),
                    gate: gate.filter(|_| k == 0),
                    closed: run.window == 0,
                }));
            }
            let lost = (self.first[s]..self.first[s + 1]).any(|i| {
                let x = p.instruction(self.nodes[i].id);
                x.is_some_and(|x| x.run.is_some_and(|r| r.index() >= sm.stream.len()))
            });
            if lost {
                return Err(malformed(self.pos, s, None));
            }
            self.streams.push(Stream { chunks, copies: Vec::new() });
        }
        Ok(())
    }

    fn counters(&mut self) {
        for counter in 0..self.per_step.len() {
            let of = |i: &&Node| i.signals.iter().any(|s| s.0 == counter);
            let mut sms: Vec<usize> = self.nodes.iter().filter(of).map(|i| i.sm).collect();
            sms.dedup();
            let partial = |c: &(usize, u32)| c.0 == counter && c.1 < self.per_step[counter];
            self.ordered.push(sms.len() > 1 && self.crossings.iter().any(partial));
        }
    }

    fn memory(&mut self, p: &Program) -> Result<(), Refused> {
        let tables = if follows_position(p) { self.steps } else { 1 };
        let new = |_| Table {
            nodes: self.nodes.iter().map(|_| Accesses::default()).collect(),
            words: Vec::new(),
            boundary: Vec::new(),
        };
        self.tables = (0..tables).map(new).collect();
        if self.copies {
            for s in &mut self.streams {
                s.copies.resize_with(s.chunks.len() * self.steps as usize, Copy::default);
            }
        }
        for (i, b) in p.buffers.iter().enumerate() {
            // (step, node or boundary, phase, write, rectangle).
            let mut all: Vec<(u32, Option<u16>, u32, bool, Rect)> = Vec::new();
            for t in 0..tables {
                let at = self.pos + u64::from(t) * u64::from(p.tokens);
                let mut note = |node: Option<u16>, list: &[Access], write: bool| {
                    for a in list.iter().filter(|a| a.buffer.index() == i) {
                        if a.region.rank() != b.shape.len() {
                            return Err(malformed(self.pos, 0, None));
                        }
                        if let Some(r) = rect(&a.region, at) {
                            all.push((t, node, a.phase, write, r));
                        }
                    }
                    Ok(())
                };
                for (k, node) in self.nodes.iter().enumerate() {
                    let x = &p.instructions[node.id.index()];
                    note(Some(k as u16), &x.reads, false)?;
                    note(Some(k as u16), &x.writes, true)?;
                }
                note(None, &p.boundary.reads, false)?;
                note(None, &p.boundary.writes, true)?;
            }
            match b.sync {
                BufferSync::Packet => self.packets(b.id, &all)?,
                _ => self.plain(p, b.id, &all)?,
            }
        }
        let wide = self.tables.iter().flat_map(|t| &t.words).map(|w| w.writers.len()).max();
        self.writers = wide.unwrap_or(0);
        if self.words > MAX_WORDS || self.writers > MAX_WRITERS {
            return Err(Refused::TooBig("packet words"));
        }
        Ok(())
    }

    fn packets(
        &mut self,
        buffer: BufferId,
        all: &[(u32, Option<u16>, u32, bool, Rect)],
    ) -> Result<(), Refused> {
        let rects: Vec<Rect> = all.iter().map(|a| a.4).collect();
        let mut sets: Vec<Vec<usize>> = Vec::new();
        if !cells(&rects, |set| sets.push(set.to_vec())) {
            return Err(Refused::TooBig("regions"));
        }
        for set in sets {
            let word = self.words as u16;
            self.words += 1;
            self.word_buffer.push(buffer);
            for t in &mut self.tables {
                t.words.push(Word::default());
            }
            for &k in &set {
                let (step, node, phase, write, _) = all[k];
                let Some(node) = node else { return Err(malformed(self.pos, 0, None)) };
                let t = &mut self.tables[step as usize];
                let w = &mut t.words[word as usize];
                let list = if write { &mut w.writers } else { &mut w.readers };
                if list.contains(&(node, phase)) && !write {
                    continue;
                }
                if let Some(&(other, _)) = list.iter().find(|o| write && o.1 == phase) {
                    return Err(Refused::Unsafe(Witness {
                        hazard: Hazard::TwoWriters,
                        pos: self.pos,
                        step: u64::from(step),
                        buffer: Some(buffer),
                        at: Some(self.site(node as usize)),
                        with: Some(self.site(other as usize)),
                    }));
                }
                list.push((node, phase));
                let acc = &mut t.nodes[node as usize];
                let list = if write { &mut acc.writes } else { &mut acc.reads };
                list.push((word, phase));
            }
        }
        Ok(())
    }

    pub fn site(&self, node: usize) -> Site {
        let n = &self.nodes[node];
        Site { sm: n.sm as u32, instruction: Some(n.id) }
    }

    fn plain(
        &mut self,
        p: &Program,
        buffer: BufferId,
        all: &[(u32, Option<u16>, u32, bool, Rect)],
    ) -> Result<(), Refused> {
        let b = &p.buffers[buffer.index()];
        // Conflicts of consumers in one step; the boundary orders the steps.
        for (k, &(t, x, _, xw, ref r)) in all.iter().enumerate() {
            for &(u, y, _, yw, ref q) in &all[..k] {
                let (Some(x), Some(y)) = (x, y) else { continue };
                let apart = self.nodes[x as usize].sm == self.nodes[y as usize].sm;
                if t != u || !(xw || yw) || apart || !meet(r, q) {
                    continue;
                }
                let nodes = &mut self.tables[t as usize].nodes;
                nodes[x as usize].conflicts.push((y, buffer));
                nodes[y as usize].conflicts.push((x, buffer));
            }
        }
        if matches!(b.kind, BufferKind::Weight | BufferKind::Constant) {
            return Ok(());
        }
        let lasting = matches!(b.kind, BufferKind::Kv | BufferKind::Tokens);
        let there = self.there(p, buffer);
        for t in 0..self.tables.len() as u32 {
            // Elements that are there when the step starts: the host's, and those of earlier steps.
            let mut rects: Vec<Rect> = there.iter().copied().collect();
            let earlier = all.iter().filter(|a| lasting && a.0 < t && a.3);
            rects.extend(earlier.map(|a| a.4));
            let old = rects.len();
            let now: Vec<_> = all.iter().filter(|a| a.0 == t).collect();
            if now.iter().all(|a| a.3) {
                continue;
            }
            rects.extend(now.iter().map(|a| a.4));
            let table = &mut self.tables[t as usize];
            let fits = cells(&rects, |set| {
                if set[0] < old {
                    return;
                }
                let of =
                    |write: bool| set.iter().map(|&k| now[k - old]).filter(move |a| a.3 == write);
                let writers = of(true).filter_map(|a| a.1).fold(0, |m: Mask, node| m | 1 << node);
                for read in of(false) {
                    let list = match read.1 {
                        Some(node) => &mut table.nodes[node as usize].needs,
                        None => &mut table.boundary,
                    };
                    // Reads come before the writes of the same instruction.
                    let need = (read.1.map_or(writers, |node| writers & !(1 << node)), buffer);
                    if !list.contains(&need) {
                        list.push(need);
                    }
                }
            });
            if !fits {
                return Err(Refused::TooBig("regions"));
            }
        }
        if b.kind == BufferKind::Kv {
            self.copies(p, buffer, all, there.as_ref())?;
        }
        Ok(())
    }

    /// What the host has put into a buffer before the launch.
    fn there(&self, p: &Program, buffer: BufferId) -> Option<Rect> {
        let b = &p.buffers[buffer.index()];
        let n = |x: u64| i64::try_from(x).unwrap_or(i64::MAX);
        let mut r = [[0, 1]; amk_schedule_ir::limits::MAX_RANK];
        for (r, &x) in r.iter_mut().zip(&b.shape) {
            r[1] = n(x);
        }
        match b.kind {
            BufferKind::Kv if self.pos == 0 => return None,
            BufferKind::Kv => r[1] = [0, n(self.pos)],
            BufferKind::Tokens => r[0] = [0, n(self.pos + u64::from(p.tokens))],
            _ => return None,
        }
        Some(r)
    }

    /// The reads that producers make of a cache.
    fn copies(
        &mut self,
        p: &Program,
        buffer: BufferId,
        all: &[(u32, Option<u16>, u32, bool, Rect)],
        there: Option<&Rect>,
    ) -> Result<(), Refused> {
        let writes: Vec<_> = all.iter().filter(|a| a.3 && a.1.is_some()).collect();
        for s in 0..self.streams.len() {
            let per_step = self.streams[s].chunks.len() as u32;
            let mut first = 0;
            for run in &p.sms[s].stream {
                let count = run.source.chunks(&p.buffers[run.source.buffer().index()]).unwrap_or(0);
                let count = number(count)?;
                let base = first;
                first += count;
                let RunSource::Kv { buffer: from, region, rows, .. } = &run.source else {
                    continue;
                };
                if *from != buffer || region.rank() != 3 {
                    continue;
                }
                for t in 0..self.steps {
                    let at = self.pos + u64::from(t) * u64::from(p.tokens);
                    let Some(whole) = rect(region, at) else { continue };
                    for k in 0..count {
                        let lo = whole[1][0] + i64::from(k) * i64::from(*rows);
                        let hi = (lo + i64::from(*rows)).min(whole[1][1]);
                        if lo >= hi {
                            continue;
                        }
                        let mut r = whole;
                        r[1] = [lo, hi];
                        let chunk = t * per_step + base + k;
                        self.copy(s, chunk, &r, buffer, &writes, there)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        s: usize,
        chunk: u32,
        r: &Rect,
        buffer: BufferId,
        writes: &[&(u32, Option<u16>, u32, bool, Rect)],
        there: Option<&Rect>,
    ) -> Result<(), Refused> {
        let mut copy = Copy { buffer: Some(buffer), ..Copy::default() };
        let mut rects = vec![*r];
        rects.extend(there);
        let old = rects.len();
        rects.extend(writes.iter().map(|w| w.4));
        let fits = cells(&rects, |set| {
            if set[0] != 0 || set.get(1).is_some_and(|&k| k < old) {
                return;
            }
            let by = set[1..].iter().filter_map(|&k| Some((writes[k - old].0, writes[k - old].1?)));
            copy.needs.push(by.collect());
        });
        if !fits {
            return Err(Refused::TooBig("regions"));
        }
        for w in writes.iter().filter(|w| meet(r, &w.4)) {
            let Some(node) = w.1 else { continue };
            copy.conflicts.push((w.0, node));
            let list = &mut self.tables[w.0 as usize].nodes[node as usize].streamed;
            list.push((s as u16, chunk, buffer));
        }
        self.streams[s].copies[chunk as usize] = copy;
        Ok(())
    }
}

/// A queue entry; `None` if it names a counter or buffer that is not there.
fn node(
    p: &Program,
    x: &Instruction,
    sm: usize,
    at: usize,
    crossings: &mut Vec<(usize, u32)>,
) -> Option<Result<Node, Refused>> {
    let counters = p.counters.len();
    let unknown = x.waits.iter().any(|w| w.counter.index() >= counters)
        || x.signals.iter().any(|s| s.counter.index() >= counters)
        || x.reads.iter().chain(&x.writes).any(|a| p.buffer(a.buffer).is_none());
    if unknown {
        return None;
    }
    let mut waits = Vec::new();
    for w in &x.waits {
        let (counter, threshold) = (
            w.counter.index(),
            match number(w.threshold) {
                Ok(t) => t,
                Err(e) => return Some(Err(e)),
            },
        );
        let key = (counter, threshold);
        let index = crossings.iter().position(|c| *c == key).unwrap_or_else(|| {
            crossings.push(key);
            crossings.len() - 1
        });
        waits.push((counter, threshold, index));
    }
    let mut signals = Vec::new();
    for s in &x.signals {
        match number(s.amount) {
            Ok(amount) => signals.push((s.counter.index(), amount)),
            Err(e) => return Some(Err(e)),
        }
    }
    Some(Ok(Node { sm, at: at as u32, id: x.id, waits, signals, run: None }))
}
