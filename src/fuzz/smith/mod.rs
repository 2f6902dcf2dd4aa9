//! The smith: random programs that are valid by construction.
//!
//! A program is written down as one sequence of instructions, each dealt to some SM. The sequence is an
//! execution, so nothing can deadlock; what it would take to keep every other interleaving from going wrong
//! is added as it grows. The smith keeps, per instruction, a vector clock of what happens before it, and per
//! tile of every buffer who wrote and who read it last; an access that a clock does not cover gets a wait
//! (`order.rs`). Nothing here is taken from the validator.
//!
//! `pools.rs` has the buffers and their tiles, `order.rs` clocks and counters, `streams.rs` runs and
//! resources. At the end ids are shuffled, so that the order in which things are listed means nothing.

mod order;
mod pools;
mod streams;

use std::collections::BTreeMap;

use amk_schedule_ir::op::{BoundaryArrive, Opaque};
use amk_schedule_ir::{
    Access, Boundary, BoundaryOp, Bucket, CounterId, Epochs, FORMAT_VERSION, InstrId, Instruction,
    Op, Program, Region, Resources, Sm, SmId, Span, Target,
};

use super::draw::Draw;
use crate::vm::rng::Rng;
use order::Order;
use pools::{Pool, PoolKind};

/// A smith at work.
pub(crate) struct Smith<'r> {
    rng: &'r mut Rng,
    p: Program,
    order: Order,
    pools: Vec<Pool>,
    /// The instruction being written.
    now: Draft,
}

/// An instruction being written.
#[derive(Default)]
struct Draft {
    sm: usize,
    reads: Vec<Access>,
    writes: Vec<Access>,
    /// Instructions that must happen before it.
    after: Vec<usize>,
    /// Pools written, which are written once.
    written: Vec<usize>,
    /// The sequence of its caches.
    sequence: Option<u32>,
}

/// A program of about `instructions` instructions, and the part it is for.
pub(crate) fn smith(rng: &mut Rng, instructions: usize, parts: &[Target]) -> (Program, Target) {
    let most = match instructions {
        0..=8 => 2,
        9..=100 => 5,
        101..=5000 => 24,
        _ => 100,
    };
    let sms = 1 + rng.below(most);
    let mut part = parts[rng.below(parts.len())].clone();
    part.sm_count = (sms + rng.below(3)) as u32;
    let mut smith = Smith::new(rng, sms, &part, instructions);
    for _ in 0..instructions {
        smith.instruction();
    }
    smith.finish();
    (smith.p, part)
}

impl<'r> Smith<'r> {
    fn new(rng: &'r mut Rng, sms: usize, part: &Target, instructions: usize) -> Smith<'r> {
        let tokens = if rng.chance(4, 5) { 1 } else { rng.range(2, 16) as u32 };
        let first = if rng.chance(1, 2) { 0 } else { rng.range(0, 40) };
        let last = first + if rng.chance(1, 6) { 0 } else { rng.range(0, 40) };
        let argmax = rng.chance(1, 2);
        // Of the tokens a step of several positions needs, the boundary makes only the first.
        let one_step = tokens > 1 && rng.chance(1, 2) || rng.chance(1, 10);
        let per_step = rng.range(1, 3) as u32;
        let tags = rng.pick(&[
            2 * u64::from(per_step),
            2 * u64::from(per_step) + 3,
            65_535,
            u64::from(u32::MAX),
        ]);
        let p = Program {
            version: FORMAT_VERSION,
            name: "smith".to_owned(),
            sm_arch: part.sm.clone(),
            bucket: Bucket { first, last },
            tokens,
            max_steps: if one_step { 1 } else { rng.pick(&[2, 3, 8, 64]) },
            epochs: Epochs { per_step, tags },
            meta: BTreeMap::new(),
            resources: Resources {
                consumer_warps: rng.range(1, 8) as u32,
                ring_slots: rng.range(1, 5) as u32,
                slot_bytes: rng.pick(&[1024, 2048, 4096]),
                registers: 8 * rng.range(4, 21) as u32,
                barriers: rng.range(1, 4) as u32,
                shared: Vec::new(),
            },
            buffers: Vec::new(),
            counters: Vec::new(),
            boundary: Boundary { op: BoundaryOp::Plain, reads: Vec::new(), writes: Vec::new() },
            sms: (0..sms)
                .map(|s| Sm { id: SmId(s as u32), queue: Vec::new(), stream: Vec::new() })
                .collect(),
            instructions: Vec::new(),
        };
        let mut smith =
            Smith { rng, p, order: Order::new(sms), pools: Vec::new(), now: Draft::default() };
        smith.furnish(instructions, argmax);
        smith
    }

    /// One more instruction, on any SM.
    fn instruction(&mut self) {
        self.now = Draft { sm: self.rng.below(self.p.sms.len()), ..Draft::default() };
        for _ in 0..self.rng.below(4) {
            self.read();
        }
        for _ in 0..self.rng.below(3) {
            self.write();
        }
        let run = if self.rng.chance(1, 3) { self.run() } else { None };
        self.commit(run);
    }

    /// Adds the draft to the program.
    fn commit(&mut self, run: Option<amk_schedule_ir::RunId>) {
        let draft = std::mem::take(&mut self.now);
        let id = self.p.instructions.len();
        self.p.instructions.push(Instruction {
            id: InstrId(id as u32),
            op: Op::Opaque(Opaque { tag: self.rng.range(1, u64::from(u32::MAX)) }),
            reads: draft.reads,
            writes: draft.writes,
            waits: Vec::new(),
            signals: Vec::new(),
            run,
        });
        self.p.sms[draft.sm].queue.push(InstrId(id as u32));
        self.order.push(draft.sm);
        self.order.bring_before(self.rng, &mut self.p, id, &draft.after);
        if self.rng.chance(1, 20) && id > 0 {
            // An edge nobody needs.
            let other = self.rng.below(id);
            self.order.bring_before(self.rng, &mut self.p, id, &[other]);
        }
    }

    /// Writes what every step owes, ends the queues, and lays out shared memory.
    fn finish(&mut self) {
        for pool in 0..self.pools.len() {
            let owed = match self.pools[pool].kind {
                PoolKind::Output | PoolKind::Append | PoolKind::Keys => true,
                _ => continue,
            };
            let tiles = self.pools[pool].tiles.len();
            let mut at = 0;
            while owed && at < tiles {
                if self.pools[pool].tiles[at].writer.is_some() {
                    at += 1;
                    continue;
                }
                let open = self.pools[pool].tiles[at..].iter().take_while(|t| t.writer.is_none());
                let end = at + 1 + self.rng.below(open.count());
                self.now = Draft { sm: self.rng.below(self.p.sms.len()), ..Draft::default() };
                self.write_tiles(pool, at, end);
                self.commit(None);
                at = end;
            }
        }
        self.boundary();
        for s in 0..self.p.sms.len() {
            let id = InstrId(self.p.instructions.len() as u32);
            self.p.instructions.push(Instruction {
                id,
                op: Op::Boundary(BoundaryArrive {}),
                reads: Vec::new(),
                writes: Vec::new(),
                waits: Vec::new(),
                signals: Vec::new(),
                run: None,
            });
            self.p.sms[s].queue.push(id);
        }
        self.resources();
        self.shuffle();
    }

    fn boundary(&mut self) {
        let keys = self.pools.iter().find(|p| p.kind == PoolKind::Keys);
        let tokens = self.pools.iter().find(|p| p.kind == PoolKind::Tokens);
        if let (Some(keys), Some(tokens)) = (keys, tokens) {
            let shape = &self.p.buffers[keys.buffer.index()].shape;
            let next = i64::from(self.p.tokens);
            self.p.boundary = Boundary {
                op: BoundaryOp::Argmax,
                reads: vec![Access { buffer: keys.buffer, region: Region::whole(shape), phase: 0 }],
                writes: vec![Access {
                    buffer: tokens.buffer,
                    region: Region(vec![Span::pos(next, next + 1)]),
                    phase: 0,
                }],
            };
        }
    }

    /// Lists instructions and counters in another order.
    fn shuffle(&mut self) {
        let p = &mut self.p;
        let mut to: Vec<u32> = (0..p.instructions.len() as u32).collect();
        let mut counters: Vec<u32> = (0..p.counters.len() as u32).collect();
        if self.rng.chance(1, 2) {
            self.rng.shuffle(&mut to);
            self.rng.shuffle(&mut counters);
        }
        for id in p.sms.iter_mut().flat_map(|sm| &mut sm.queue) {
            *id = InstrId(to[id.index()]);
        }
        for x in &mut p.instructions {
            x.id = InstrId(to[x.id.index()]);
            for c in x
                .waits
                .iter_mut()
                .map(|w| &mut w.counter)
                .chain(x.signals.iter_mut().map(|s| &mut s.counter))
            {
                *c = CounterId(counters[c.index()]);
            }
        }
        for c in &mut p.counters {
            c.id = CounterId(counters[c.id.index()]);
        }
        p.instructions.sort_by_key(|x| x.id);
        p.counters.sort_by_key(|c| c.id);
    }
}
