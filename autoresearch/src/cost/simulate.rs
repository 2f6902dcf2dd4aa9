//! The simulation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use amk_schedule_ir::{Program, Target};
use serde::Serialize;

use super::calibration::CHUNK_BYTES;
use super::layout::{Floor, Layout, SmPlan, Step};
use super::{Calibration, CostError};

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Position of every step: later ones of a launch are taken to be alike.
    pub position: u64,
    /// Steps of the launch, at least 1.
    pub steps: u32,
    /// Keep the stamps of the last step.
    pub stamps: bool,
    /// Most chunks that warps take into registers while they wait for their input.
    pub taken: u32,
}

/// One instruction on one SM in the last step, microseconds since the launch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stamp {
    pub sm: u32,
    pub queue_index: u32,
    pub instruction: u32,
    /// Reached.
    pub begin: f64,
    /// Its input was there and read.
    pub ready: f64,
    /// The last product was done.
    pub products: f64,
    /// Published.
    pub end: f64,
}

/// What a launch takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulation {
    /// The launch, microseconds.
    pub launch_us: f64,
    /// The same by step.
    pub step_us: f64,
    pub floor: Floor,
    /// In no order; empty where none were asked for.
    pub stamps: Vec<Stamp>,
}

/// Simulates one launch.
///
/// # Errors
/// [`CostError`]: only programs that a validator would refuse.
pub fn simulate(
    program: &Program,
    target: &Target,
    calibration: &Calibration,
    options: Options,
) -> Result<Simulation, CostError> {
    let layout = Layout::new(program, target, calibration, options)?;
    let mut run = Run::new(&layout, target, calibration, options);
    let end = run.launch()?;
    let launch_us = (end / 1e3).max(layout.floor.us());
    Ok(Simulation {
        launch_us,
        step_us: launch_us / f64::from(options.steps.max(1)),
        floor: layout.floor,
        stamps: run.stamps,
    })
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The producer issues its next chunk.
    Issue,
    /// The instruction that runs ends.
    End,
}

/// Multiples of it, taken modulo 1, lie evenly.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Times are not negative, so their bits order as they do.
type Event = Reverse<(u64, Kind, u32)>;

fn event(time: f64, kind: Kind, sm: usize) -> Event {
    Reverse((time.max(0.0).to_bits(), kind, sm as u32))
}

/// State of one SM. Times are ns.
struct Sm {
    /// Chunk of the step, run and step the producer is at.
    next: usize,
    run: usize,
    round: u32,
    /// Chunks through all steps.
    issued: usize,
    consumed: usize,
    /// By ring slot: when its chunk landed, and when it was released.
    landed: Vec<f64>,
    released: Vec<f64>,
    /// The producer waits for a slot or for a boundary.
    parked: bool,
    /// When this SM's own link is free.
    link: f64,
    /// From the memory's service to the landing of a chunk.
    latency: f64,
    /// Place in the queue, chunks the instruction still needs, the next chunk's place in the step.
    place: usize,
    left: u32,
    chunk: usize,
    /// Chunks of the instruction in registers, when the last of them was there, and what multiplying them takes.
    took: u32,
    held: f64,
    owed: f64,
    /// The instruction that was reached has all it reads.
    running: bool,
    begin: f64,
    ready: f64,
    /// Everything of the instruction up to now is done.
    time: f64,
}

impl Sm {
    /// The next chunk that was issued, if any: its slot, and what multiplying it takes in an instruction, ns.
    fn next_chunk(&mut self, plan: &SmPlan, step: &Step, c: &Calibration) -> Option<(usize, f64)> {
        if self.consumed == self.issued {
            return None;
        }
        let slot = self.consumed % self.landed.len();
        let bytes = f64::from(plan.chunks.get(self.chunk).copied().unwrap_or(0));
        self.consumed += 1;
        self.chunk += 1;
        let small = (1.0 - bytes / CHUNK_BYTES).max(0.0);
        Some((slot, bytes * step.byte_ns + c.chunk * c.cycle_ns() * small))
    }
}

struct Run<'a> {
    layout: &'a Layout,
    c: &'a Calibration,
    steps: u32,
    keep: bool,
    sms: Vec<Sm>,
    events: BinaryHeap<Event>,
    /// When the memory has served every chunk issued so far.
    memory: f64,
    /// ns of one byte of all memory, of one SM's link.
    byte_ns: f64,
    link_ns: f64,
    /// By latch: what is still to come, and when what came was there.
    missing: Vec<u64>,
    there: Vec<f64>,
    /// By SM and place in the queue: latches that are not complete, and when the others were.
    waits: Vec<Vec<(u32, f64)>>,
    step: u32,
    arrived: usize,
    last_arrival: f64,
    stamps: Vec<Stamp>,
}

impl<'a> Run<'a> {
    fn new(layout: &'a Layout, target: &Target, c: &'a Calibration, options: Options) -> Run<'a> {
        let slots = layout.ring_slots;
        // Which block is on which multiprocessor is not known: near and far ones are spread over the grid evenly.
        let far = |s: usize| 2.0 * (s as f64 * GOLDEN).fract() - 1.0;
        let sm = |(s, _): (usize, &SmPlan)| Sm {
            next: 0,
            run: 0,
            round: 0,
            issued: 0,
            consumed: 0,
            landed: vec![0.0; slots],
            released: vec![0.0; slots],
            parked: false,
            link: 0.0,
            latency: c.stream_latency_ns * (1.0 + c.latency_spread * far(s)),
            place: 0,
            left: 0,
            chunk: 0,
            took: 0,
            held: 0.0,
            owed: 0.0,
            running: false,
            begin: 0.0,
            ready: 0.0,
            time: 0.0,
        };
        Run {
            sms: layout.sms.iter().enumerate().map(sm).collect(),
            layout,
            c,
            steps: options.steps.max(1),
            keep: options.stamps,
            events: BinaryHeap::with_capacity(4 * layout.sms.len()),
            memory: 0.0,
            byte_ns: 1e9 / (target.bandwidth() * c.stream_efficiency),
            link_ns: 1.0 / c.sm_gbps,
            missing: vec![0; layout.latches.len()],
            there: vec![0.0; layout.latches.len()],
            waits: layout.sms.iter().map(|s| vec![(0, 0.0); s.queue.len()]).collect(),
            step: 0,
            arrived: 0,
            last_arrival: 0.0,
            stamps: Vec::new(),
        }
    }

    /// Runs to the last boundary; returns its time, the launch included.
    fn launch(&mut self) -> Result<f64, CostError> {
        let start = self.c.launch_ns;
        for s in 0..self.sms.len() {
            self.schedule_issue(s, start);
        }
        self.begin_step(start);
        loop {
            while self.arrived == self.sms.len() {
                let end = self.boundary();
                self.step += 1;
                if self.step == self.steps {
                    return Ok(end);
                }
                self.begin_step(end);
                // A producer may have waited for this boundary.
                for s in 0..self.sms.len() {
                    if self.sms[s].parked {
                        self.schedule_issue(s, end);
                    }
                }
            }
            let Some(Reverse((bits, kind, s))) = self.events.pop() else { break };
            let (now, s) = (f64::from_bits(bits), s as usize);
            match kind {
                Kind::Issue => self.issue(s, now),
                Kind::End => self.end(s, now),
            }
        }
        let waits = |(s, sm): &(usize, &Sm)| {
            let step = self.layout.sms[*s].queue.get(sm.place);
            !step.is_some_and(|step| step.boundary && sm.running)
        };
        let (sm, queue_index) =
            self.sms.iter().enumerate().find(waits).map_or((0, 0), |(s, sm)| (s, sm.place));
        Err(CostError::Stuck { sm, queue_index })
    }

    /// How long the memory's queue is at a time.
    fn queue(&self, now: f64) -> f64 {
        (self.memory - now).max(0.0) * self.c.queue_share
    }

    fn begin_step(&mut self, at: f64) {
        for (latch, missing) in self.layout.latches.iter().zip(&mut self.missing) {
            *missing = latch.need;
        }
        self.there.fill(0.0);
        for (plan, waits) in self.layout.sms.iter().zip(&mut self.waits) {
            for (step, wait) in plan.queue.iter().zip(waits) {
                *wait = (step.needs, 0.0);
            }
        }
        // Thresholds and regions that nothing contributes to hold from the start.
        for (latch, missing) in self.layout.latches.iter().zip(&self.missing) {
            if *missing == 0 {
                for &(s, place) in &latch.readers {
                    self.waits[s as usize][place as usize].0 -= 1;
                }
            }
        }
        self.arrived = 0;
        self.last_arrival = 0.0;
        for s in 0..self.sms.len() {
            self.sms[s].place = 0;
            self.sms[s].chunk = 0;
            self.reach(s, at, at);
        }
    }

    /// Every SM has arrived: returns when all of them go on.
    fn boundary(&mut self) -> f64 {
        let keys = self.layout.boundary_bytes / self.c.sm_l2_gbps;
        self.last_arrival + self.c.boundary_ns + keys + self.queue(self.last_arrival)
    }

    /// The consumers reach the next instruction at `at`; it is `now`.
    fn reach(&mut self, s: usize, at: f64, now: f64) {
        let plan = &self.layout.sms[s];
        self.sms[s].running = false;
        if self.sms[s].place == plan.queue.len() {
            return;
        }
        let sm = &mut self.sms[s];
        (sm.begin, sm.took, sm.held, sm.owed) = (at, 0, 0.0, 0.0);
        self.take(s, now);
        if self.waits[s][self.sms[s].place].0 == 0 {
            self.start(s, now);
        }
    }

    /// Takes what has landed or is known to land into registers: its slots are free before the input is there.
    fn take(&mut self, s: usize, now: f64) {
        let plan = &self.layout.sms[s];
        let sm = &mut self.sms[s];
        let Some(step) = plan.queue.get(sm.place) else { return };
        let before = sm.consumed;
        while sm.took < step.takes
            && let Some((slot, work)) = sm.next_chunk(plan, step, self.c)
        {
            let at = sm.landed[slot].max(sm.begin);
            sm.released[slot] = at;
            sm.held = sm.held.max(at);
            sm.owed += work;
            sm.took += 1;
        }
        if sm.parked && sm.consumed > before {
            self.schedule_issue(s, now);
        }
    }

    /// All that the instruction reads is published, and it was reached.
    fn start(&mut self, s: usize, now: f64) {
        let step = &self.layout.sms[s].queue[self.sms[s].place];
        let there = self.waits[s][self.sms[s].place].1;
        let c = self.c;
        let mut kv = 0.0;
        if step.kv_bytes > 0.0 {
            // The past is fetched as soon as the instruction is reached.
            self.memory = self.memory.max(now) + step.kv_bytes * self.byte_ns;
            kv = self.memory + c.stream_latency_ns;
        }
        let reads = step.needs > 0 || step.input_bytes > 0.0;
        let queue = self.queue(now);
        let sm = &mut self.sms[s];
        let mut ready = sm.begin.max(there);
        if reads {
            let rate = (c.l2_gbps / step.sharers).min(c.sm_l2_gbps);
            ready += c.load_ns + step.input_bytes / rate + queue;
        }
        sm.ready = ready.max(kv);
        sm.time = (sm.ready + step.before_ns).max(sm.held) + sm.owed;
        sm.left = step.chunks - sm.took;
        sm.running = true;
        if step.boundary {
            self.arrived += 1;
            self.last_arrival = self.last_arrival.max(sm.time + step.after_ns);
            return;
        }
        self.consume(s, now);
    }

    /// Consumes what has landed or is known to land.
    fn consume(&mut self, s: usize, now: f64) {
        let plan = &self.layout.sms[s];
        let sm = &mut self.sms[s];
        let step = &plan.queue[sm.place];
        let before = sm.consumed;
        while sm.left > 0
            && let Some((slot, work)) = sm.next_chunk(plan, step, self.c)
        {
            sm.time = sm.time.max(sm.landed[slot]) + work;
            sm.released[slot] = sm.time;
            sm.left -= 1;
        }
        let done = sm.left == 0;
        let (time, parked) = (sm.time, sm.parked && sm.consumed > before);
        if parked {
            self.schedule_issue(s, now);
        }
        if done {
            let end = time + step.after_ns;
            self.events.push(event(end, Kind::End, s));
        }
    }

    /// Plans the issue of the next chunk, or parks the producer until a slot is released.
    fn schedule_issue(&mut self, s: usize, now: f64) {
        let plan = &self.layout.sms[s];
        let slots = self.layout.ring_slots;
        let sm = &mut self.sms[s];
        sm.parked = false;
        if sm.next == plan.chunks.len() {
            if sm.round + 1 >= self.steps || plan.chunks.is_empty() {
                return;
            }
            sm.round += 1;
            sm.next = 0;
            sm.run = 0;
        }
        while plan.runs[sm.run].end as usize <= sm.next {
            sm.run += 1;
        }
        let run = plan.runs[sm.run];
        let u = sm.issued;
        if u >= slots && sm.consumed <= u - slots {
            sm.parked = true;
            return;
        }
        // Gate g: the boundary that ends step t - g; before the first there is the start of the launch.
        if let Some(gate) = run.gate
            && sm.round >= gate.max(1)
            && self.step <= sm.round - gate.max(1)
        {
            sm.parked = true;
            return;
        }
        let mut at = now;
        if u >= slots {
            at = at.max(sm.released[u % slots]);
        }
        let window = (run.window as usize).min(slots);
        if u >= window {
            at = at.max(sm.landed[(u - window) % slots]);
        }
        self.events.push(event(at, Kind::Issue, s));
    }

    fn issue(&mut self, s: usize, now: f64) {
        let plan = &self.layout.sms[s];
        let slots = self.layout.ring_slots;
        let sm = &mut self.sms[s];
        let bytes = f64::from(plan.chunks[sm.next]);
        let polls = if sm.running { 1.0 } else { 1.0 + self.c.poll_share };
        self.memory = self.memory.max(now) + bytes * self.byte_ns * polls;
        sm.link = sm.link.max(now) + bytes * self.link_ns;
        let u = sm.issued;
        sm.landed[u % slots] = self.memory.max(sm.link) + sm.latency;
        sm.issued += 1;
        sm.next += 1;
        if !sm.running {
            self.take(s, now);
        } else if sm.left > 0 {
            self.consume(s, now);
        }
        self.schedule_issue(s, now);
    }

    /// The instruction publishes, and the consumers go on to the next.
    fn end(&mut self, s: usize, now: f64) {
        let layout = self.layout;
        let step = &layout.sms[s].queue[self.sms[s].place];
        if self.keep && self.step + 1 == self.steps {
            let sm = &self.sms[s];
            self.stamps.push(Stamp {
                sm: s as u32,
                queue_index: sm.place as u32,
                instruction: step.id,
                begin: sm.begin / 1e3,
                ready: sm.ready / 1e3,
                products: sm.time / 1e3,
                end: now / 1e3,
            });
        }
        // Before anything is published: the next instruction may read what this one wrote.
        self.sms[s].place += 1;
        let dispatch = self.c.dispatch * self.c.cycle_ns();
        self.reach(s, now + dispatch, now);
        let queue = self.queue(now);
        for &(latch, amount) in &step.feeds {
            let at = latch as usize;
            if self.missing[at] == 0 {
                continue;
            }
            let l = &layout.latches[at];
            let tail = self.c.tail_ns * (1.0 + f64::from(l.writers)).ln();
            let hop = self.c.store_ns + queue;
            // A counter's reader sees the signal first and then fetches: one hop and one round more.
            let more = if l.counter { hop + self.c.counter_ns } else { 0.0 };
            self.there[at] = self.there[at].max(now + hop + tail + more);
            self.missing[at] = self.missing[at].saturating_sub(amount);
            if self.missing[at] == 0 {
                self.complete(at, now);
            }
        }
    }

    fn complete(&mut self, latch: usize, now: f64) {
        let layout = self.layout;
        for &(s, place) in &layout.latches[latch].readers {
            let (s, place) = (s as usize, place as usize);
            let wait = &mut self.waits[s][place];
            wait.0 = wait.0.saturating_sub(1);
            wait.1 = wait.1.max(self.there[latch]);
            let sm = &self.sms[s];
            // Reached already, and this was the last it waited for.
            if wait.0 == 0 && sm.place == place && !sm.running {
                self.start(s, now);
            }
        }
    }
}
