//! **S, structure.** Exact statement:
//!
//! - The format version is the one known. Ids of buffers, counters, SMs, instructions and of the runs
//!   of each SM are their list indices. Every id that is used exists.
//! - There is at least one SM. Every instruction stands in exactly one queue, once. Every queue ends
//!   with its only `boundary` instruction, which has no accesses, waits, signals or run.
//! - `tokens` is 1 to 16, the bucket is ordered and ends below the extent limit, `max_steps >= 1`.
//! - Buffers have 1 to 4 extents of at least 1 within the limits. `kv` and `weight` buffers have the
//!   rank their layout needs, `tokens` buffers are vectors of `u32`.
//! - Every op's parameters are in range, its constants finite. Its accesses are as many as its
//!   footprint has, on buffers of the kinds, element types and extents it asks for. Opaque ops may
//!   access anything of the right rank. Bounds are within the limits.
//! - The boundary's accesses are those of its op: none for `plain`; for `argmax` one read of a `key`
//!   activation and one write of the element `pos + tokens` of a `tokens` buffer.
//! - Every run belongs to one instruction of its own SM, is what that instruction's op consumes, is
//!   laid out so that its chunks fit a slot, and its window is 1 to the number of ring slots. A kv run
//!   reads one kv head, has a gate of at least 1, and (except for opaque ops) reads exactly the past
//!   rows that its instruction declares.
//! - Counters start at 0; their signals of a step sum to `per_step`, all steps of a launch stay below
//!   2^32, thresholds are 1 to `per_step`.
//! - Phases of packet accesses are below `epochs.per_step`, which is at least 1.

mod streams;

use amk_schedule_ir::limits::{MAX_ELEMENTS, MAX_EXTENT, MAX_RANK, MAX_TOKENS};
use amk_schedule_ir::{
    Access, Bound, BoundaryOp, Buffer, BufferKind, BufferSync, DType, FORMAT_VERSION, Footprint,
    Instruction, Op, OpContext, Operand, Program, Region, Span, WeightUse, text::print_access,
};

use crate::fault::{Fault, Faults, Invariant, Place};
use crate::nodes::{NONE, Nodes};

/// What S leaves for the other checks.
pub(crate) struct Structure {
    /// The program is resolvable: every id exists and every instruction has its place.
    pub sound: bool,
    pub nodes: Nodes,
}

/// What an op takes from its stream.
struct Takes {
    weight: Option<WeightUse>,
    kv: bool,
}

/// Is there anything to say of what an instruction takes?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taking {
    /// Nothing is known.
    Unknown,
    /// It is what the run at the instruction's place holds.
    Fits,
    /// Worth a look.
    Open,
}

/// Counters are 32-bit words on the device.
const COUNTER_LIMIT: u128 = 1 << 32;

struct Check<'a> {
    p: &'a Program,
    faults: &'a mut Faults,
    sound: bool,
}

/// Judges S. `each` is called with every instruction and its footprint, which is `None` for opaque ops
/// and where the parameters are out of range or the accesses too few or many.
pub(crate) fn check<'p>(
    p: &'p Program,
    faults: &mut Faults,
    mut each: impl FnMut(usize, &'p Instruction, Option<&Footprint>, &mut Faults),
) -> Structure {
    let mut nodes = Nodes::new(p);
    // One walk over the instructions, which are most of the program. What it finds is said in its turn.
    let mut found = Faults::default();
    let mut c = Check { p, faults: &mut found, sound: true };
    let mut takings = Vec::with_capacity(p.instructions.len());
    let mut wrong_ids = Vec::new();
    for (i, x) in p.instructions.iter().enumerate() {
        let footprint = c.instruction(i, x);
        each(i, x, footprint.as_ref(), c.faults);
        takings.push(c.taking(x, footprint.as_ref(), nodes.sm.get(i).copied().unwrap_or(NONE)));
        nodes.add(x);
        if is_wrong(i, x.id.0) {
            wrong_ids.push((i, x.id.0));
        }
    }
    let sound = c.sound;
    let mut c = Check { p, faults, sound };
    c.header();
    c.buffers();
    c.ids(&wrong_ids);
    c.queues(&nodes);
    c.faults.absorb(found);
    c.boundary();
    c.runs(&nodes, &takings);
    c.counters(&nodes);
    Structure { sound: c.sound, nodes }
}

fn is_wrong(i: usize, id: u32) -> bool {
    u32::try_from(i) != Ok(id)
}

impl Check<'_> {
    fn fault(&mut self, place: Place, message: String) {
        self.faults.push(Fault::new(Invariant::S, place, message));
    }

    /// A fault after which ids, accesses or numbers cannot be relied on.
    fn broken(&mut self, place: Place, message: String) {
        self.sound = false;
        self.fault(place, message);
    }

    fn header(&mut self) {
        let p = self.p;
        if p.version != FORMAT_VERSION {
            self.broken(
                Place::Program,
                format!("format version {} is not known; this validator judges version {FORMAT_VERSION}", p.version),
            );
        }
        if p.tokens == 0 || p.tokens > MAX_TOKENS {
            self.broken(
                Place::Program,
                format!("`tokens` is {}, but a step handles 1 to {MAX_TOKENS} positions", p.tokens),
            );
        }
        if p.bucket.first > p.bucket.last || p.bucket.last > MAX_EXTENT {
            self.broken(
                Place::Program,
                format!(
                    "the bucket {}..={} must be ordered and end at {MAX_EXTENT} at most",
                    p.bucket.first, p.bucket.last
                ),
            );
        }
        if p.max_steps == 0 {
            self.broken(Place::Program, "`steps` is 0, but a launch runs at least one step".into());
        }
        if p.epochs.per_step == 0 {
            self.fault(
                Place::Program,
                "`epochs per_step` is 0, but every step has at least one phase".into(),
            );
        }
        if p.sms.is_empty() {
            self.broken(Place::Program, "the program has no SM; add at least one `sm`".into());
        }
    }

    fn buffers(&mut self) {
        for (i, b) in self.p.buffers.iter().enumerate() {
            let place = Place::Buffer(i);
            if b.shape.is_empty() || b.shape.len() > MAX_RANK {
                self.broken(
                    place,
                    format!(
                        "buffer {i} has {} extents, but must have 1 to {MAX_RANK}",
                        b.shape.len()
                    ),
                );
                continue;
            }
            let elements = b.shape.iter().try_fold(1u64, |n, &x| n.checked_mul(x));
            if b.shape.iter().any(|&x| x == 0 || x > MAX_EXTENT)
                || elements.is_none_or(|n| n > MAX_ELEMENTS)
            {
                self.broken(
                    place,
                    format!(
                        "buffer {i} has extents {:?}, but each must be 1 to {MAX_EXTENT} and all together at most {MAX_ELEMENTS} elements",
                        b.shape
                    ),
                );
                continue;
            }
            let (rank, dtypes): (Option<usize>, &[DType]) = match b.kind {
                BufferKind::Weight => (Some(2), &[DType::Bf16, DType::F16, DType::F32]),
                BufferKind::Kv => (Some(3), &[DType::Bf16, DType::F16, DType::F32]),
                BufferKind::Tokens => (Some(1), &[DType::U32]),
                _ => (None, &[]),
            };
            if rank.is_some_and(|r| r != b.shape.len()) {
                self.broken(
                    place,
                    format!(
                        "buffer {i} is {:?} with {} extents, but needs {}: weights are [rows, k], caches [kv_heads, capacity, head_dim], token ids [positions]",
                        b.kind, b.shape.len(), rank.unwrap_or(0)
                    ),
                );
            }
            if !dtypes.is_empty() && !dtypes.contains(&b.dtype) {
                self.fault(
                    place,
                    format!(
                        "buffer {i} is {:?} of {:?}, but must be of one of {dtypes:?}",
                        b.kind, b.dtype
                    ),
                );
            }
        }
    }

    fn ids(&mut self, wrong_instructions: &[(usize, u32)]) {
        let p = self.p;
        let say = |what: &str, i: usize, id: u32| {
            format!(
                "{what} number {i} in the list has id {id}; ids must be the index, without gaps or repeats"
            )
        };
        for (i, x) in p.buffers.iter().enumerate() {
            if is_wrong(i, x.id.0) {
                self.broken(Place::Buffer(i), say("buffer", i, x.id.0));
            }
        }
        for (i, x) in p.counters.iter().enumerate() {
            if is_wrong(i, x.id.0) {
                self.broken(Place::Counter(i), say("counter", i, x.id.0));
            }
        }
        for &(i, id) in wrong_instructions {
            self.broken(Place::Instruction(i), say("instruction", i, id));
        }
        for (i, x) in p.sms.iter().enumerate() {
            if is_wrong(i, x.id.0) {
                self.broken(Place::Sm(i), say("sm", i, x.id.0));
            }
            for (j, run) in x.stream.iter().enumerate() {
                if is_wrong(j, run.id.0) {
                    self.broken(Place::Run { sm: i, run: j }, say("run", j, run.id.0));
                }
            }
        }
    }

    fn queues(&mut self, nodes: &Nodes) {
        let p = self.p;
        let mut owner = vec![NONE; p.instructions.len()];
        for (s, sm) in p.sms.iter().enumerate() {
            for (at, id) in sm.queue.iter().enumerate() {
                let Some(slot) = owner.get_mut(id.index()) else {
                    self.broken(
                        Place::Sm(s),
                        format!(
                            "the queue of sm {s} names {id}, but there are {} instructions",
                            p.instructions.len()
                        ),
                    );
                    continue;
                };
                match std::mem::replace(slot, s as u32) {
                    NONE => {}
                    first => self.broken(
                        Place::Instruction(id.index()),
                        format!("{id} stands in the queue of sm {first} and again in that of sm {s}; it must stand in one queue, once"),
                    ),
                }
                let arrival = nodes.arrival.get(id.index()) == Some(&true);
                let last = at + 1 == sm.queue.len();
                if arrival && !last {
                    self.broken(
                        Place::Instruction(id.index()),
                        format!("{id} is the `boundary` of sm {s}, but {} instructions follow it in the queue; it must be the last", sm.queue.len() - at - 1),
                    );
                }
                if last && !arrival {
                    self.broken(
                        Place::Sm(s),
                        format!("the queue of sm {s} ends with {id}, but every queue must end with a `boundary` instruction"),
                    );
                }
            }
            if sm.queue.is_empty() {
                self.broken(
                    Place::Sm(s),
                    format!("the queue of sm {s} is empty; an SM without work still needs its `boundary` instruction"),
                );
            }
        }
        for (i, &o) in owner.iter().enumerate() {
            if o == NONE {
                self.broken(
                    Place::Instruction(i),
                    format!(
                        "instr {i} stands in no queue, so it never runs; add it to one or remove it"
                    ),
                );
            }
        }
    }

    fn instruction(&mut self, i: usize, x: &Instruction) -> Option<Footprint> {
        let place = Place::Instruction(i);
        if matches!(x.op, Op::Boundary(_))
            && !(x.waits.is_empty()
                && x.signals.is_empty()
                && x.reads.is_empty()
                && x.writes.is_empty()
                && x.run.is_none())
        {
            self.broken(
                place,
                format!("instr {i} is a `boundary`, which has no accesses, waits, signals or run of its own; move them to an instruction before it"),
            );
        }
        let mut regions_ok = true;
        for a in x.reads.iter().chain(&x.writes) {
            regions_ok &= self.access(place, &|| format!("instr {i}"), a);
        }
        if let Err(why) = x.op.check() {
            self.fault(place, format!("instr {i} ({}): {why}", x.op.name()));
            return None;
        }
        if matches!(x.op, Op::Opaque(_)) {
            return None;
        }
        let f = x.op.footprint(OpContext { tokens: u64::from(self.p.tokens) });
        for (what, declared, wanted) in
            [("reads", &x.reads, &f.reads), ("writes", &x.writes, &f.writes)]
        {
            if declared.len() != wanted.len() {
                let roles: Vec<&str> = wanted.iter().map(|o| o.role).collect();
                self.fault(
                    place,
                    format!(
                        "instr {i} ({}) declares {} {what}, but the op has {}: {}",
                        x.op.name(),
                        declared.len(),
                        wanted.len(),
                        roles.join(", ")
                    ),
                );
                return None;
            }
            if regions_ok {
                for (a, o) in declared.iter().zip(wanted) {
                    self.operand(place, i, x, a, o);
                }
            }
        }
        Some(f)
    }

    /// An access is resolvable: its buffer exists, ranks agree, bounds and phase are in range.
    fn access(&mut self, place: Place, who: &dyn Fn() -> String, a: &Access) -> bool {
        let Some(buffer) = self.p.buffer(a.buffer) else {
            self.broken(
                place,
                format!(
                    "{} accesses {}, but there are {} buffers",
                    who(),
                    a.buffer,
                    self.p.buffers.len()
                ),
            );
            return false;
        };
        let said = || format!("{} accesses {}", who(), print_access(a));
        if !self.region(place, &said, buffer, &a.region) {
            return false;
        }
        if buffer.sync == BufferSync::Packet && a.phase >= self.p.epochs.per_step {
            self.fault(
                place,
                format!(
                    "{} in phase {}, but a step has {} phases",
                    said(),
                    a.phase,
                    self.p.epochs.per_step
                ),
            );
        }
        true
    }

    fn region(
        &mut self,
        place: Place,
        who: &dyn Fn() -> String,
        buffer: &Buffer,
        region: &Region,
    ) -> bool {
        if region.rank() != buffer.shape.len() {
            self.broken(
                place,
                format!(
                    "{}, a region of rank {}, but the buffer has {} extents",
                    who(),
                    region.rank(),
                    buffer.shape.len()
                ),
            );
            return false;
        }
        for Span { lo, hi } in &region.0 {
            for b in [lo, hi] {
                let ok = match *b {
                    Bound::At(x) | Bound::Clip(x) => x <= MAX_EXTENT,
                    Bound::Pos(o) => o.unsigned_abs() <= MAX_EXTENT,
                    Bound::Split { part, parts } => part <= parts && parts > 0,
                };
                if !ok {
                    self.broken(
                        place,
                        format!(
                            "{}, with a bound past {MAX_EXTENT} or a split `part/parts` outside 0 to 1",
                            who()
                        ),
                    );
                    return false;
                }
            }
        }
        true
    }

    fn operand(&mut self, place: Place, i: usize, x: &Instruction, a: &Access, o: &Operand) {
        let Some(b) = self.p.buffer(a.buffer) else { return };
        let who = || format!("operand `{}` of instr {i} ({})", o.role, x.op.name());
        if !o.kinds.contains(&b.kind) {
            self.fault(
                place,
                format!(
                    "{} is {}, a {:?} buffer, but must be one of {:?}",
                    who(),
                    a.buffer,
                    b.kind,
                    o.kinds
                ),
            );
        }
        if !o.dtypes.contains(&b.dtype) {
            self.fault(
                place,
                format!(
                    "{} is {} of {:?}, but must be one of {:?}",
                    who(),
                    a.buffer,
                    b.dtype,
                    o.dtypes
                ),
            );
        }
        let fits = b.shape.len() == o.shape.len()
            && b.shape.iter().zip(&o.shape).all(|(&n, want)| want.is_none_or(|w| w == n));
        if !fits {
            let want: Vec<String> = o
                .shape
                .iter()
                .map(|w| w.map_or_else(|| "_".to_owned(), |w| w.to_string()))
                .collect();
            self.fault(
                place,
                format!(
                    "{} is {} with extents {:?}, but must have [{}]",
                    who(),
                    a.buffer,
                    b.shape,
                    want.join(", ")
                ),
            );
        }
    }

    fn boundary(&mut self) {
        let p = self.p;
        let b = &p.boundary;
        let place = Place::Boundary;
        let mut ok = true;
        for a in b.reads.iter().chain(&b.writes) {
            ok &= self.access(place, &|| "the boundary".to_owned(), a);
        }
        if !ok {
            return;
        }
        match b.op {
            BoundaryOp::Plain => {
                if !b.reads.is_empty() || !b.writes.is_empty() {
                    self.fault(place, "a `plain` boundary has no accesses; use `argmax`, or move them to an instruction".into());
                }
            }
            BoundaryOp::Argmax => {
                let read = match b.reads.as_slice() {
                    [r] => {
                        let some = |s: &Span| match (s.lo, s.hi) {
                            (Bound::At(lo), Bound::At(hi)) => lo < hi,
                            _ => false,
                        };
                        r.region.0.iter().all(some)
                            && p.buffer(r.buffer).is_some_and(|x| {
                                x.dtype == DType::Key && x.kind == BufferKind::Activation
                            })
                    }
                    _ => false,
                };
                let next = i64::from(p.tokens);
                let write = match b.writes.as_slice() {
                    [w] => {
                        p.buffer(w.buffer).is_some_and(|x| x.kind == BufferKind::Tokens)
                            && w.region == Region(vec![Span::pos(next, next + 1)])
                    }
                    _ => false,
                };
                if !read || !write {
                    self.fault(
                        place,
                        format!("an `argmax` boundary has one read of a fixed region of at least one key of a `key` activation and one write of [pos+{next}..pos+{}] of a `tokens` buffer", next + 1),
                    );
                }
            }
        }
    }

    fn counters(&mut self, nodes: &Nodes) {
        let p = self.p;
        let mut sums = vec![0u128; p.counters.len()];
        for i in 0..p.instructions.len() {
            let place = Place::Instruction(i);
            for s in nodes.signals(i) {
                match sums.get_mut(s.counter.index()) {
                    Some(sum) => *sum += u128::from(s.amount),
                    None => self.broken(
                        place,
                        format!(
                            "instr {i} signals {}, but there are {} counters",
                            s.counter,
                            p.counters.len()
                        ),
                    ),
                }
                if s.amount == 0 {
                    self.fault(
                        place,
                        format!("instr {i} signals {} with 0, which signals nothing", s.counter),
                    );
                }
            }
            for w in nodes.waits(i) {
                let Some(c) = p.counters.get(w.counter.index()) else {
                    self.broken(
                        place,
                        format!(
                            "instr {i} waits for {}, but there are {} counters",
                            w.counter,
                            p.counters.len()
                        ),
                    );
                    continue;
                };
                if w.threshold == 0 || w.threshold > c.per_step {
                    self.fault(
                        place,
                        format!(
                            "instr {i} waits for {} >= {}, but a step adds {} to it, so the threshold must be 1 to that",
                            w.counter, w.threshold, c.per_step
                        ),
                    );
                }
            }
        }
        for (i, (c, sum)) in p.counters.iter().zip(&sums).enumerate() {
            let place = Place::Counter(i);
            if c.init != 0 {
                self.fault(
                    place,
                    format!("counter {i} starts at {}, but counters start at 0", c.init),
                );
            }
            if *sum != u128::from(c.per_step) {
                self.fault(
                    place,
                    format!("the signals of counter {i} add up to {sum} in a step, but `per_step` says {}", c.per_step),
                );
            }
            if u128::from(c.per_step) * u128::from(p.max_steps) >= COUNTER_LIMIT {
                self.fault(
                    place,
                    format!("counter {i} reaches {} x {} in one launch, but it is a 32-bit word; launch fewer steps", c.per_step, p.max_steps),
                );
            }
        }
    }
}
