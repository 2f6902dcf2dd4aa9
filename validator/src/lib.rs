//! Decides whether a schedule can deadlock, race or leave its buffers.
//!
//! [`validate`] is the only maker of [`Validated`], and holding a `Validated<Program>` is the only way
//! into code generation. The semantics are those of [`amk_schedule_ir`]'s page.
//!
//! # What acceptance promises
//!
//! For every interleaving of the agents, every number of steps up to `max_steps`, and every first
//! position that keeps the launch inside the bucket:
//!
//! - **S, structure** ([`structure`]): known version; ids are indices; every instruction in one queue, once,
//!   and one boundary at the end of each; parameters, constants, extents and bounds in range; arity, kinds,
//!   types and shapes as each op asks; every run consumed once by its own SM, with chunks that fit their slot
//!   and a window within the ring; counters that start at 0, add up, and have reachable thresholds.
//! - **B, bounds** ([`bounds`]): every region inside its buffer at every position, equal to its op's footprint;
//!   nothing read-only is written; packets in whole words and the same at every position; a local element
//!   touched by one SM; no more ids to choose among than embedding rows.
//! - **C, coverage** ([`coverage`]): in every step every element that is read was written before in the step,
//!   or was there when it began; every output element written exactly once; every cache appended to.
//! - **D, deadlock freedom** ([`deadlock`], [`packets`]): every wait of every step is satisfied in the end (data,
//!   counters, queue order, ring slots, gates, boundary), and no packet reader misses its epoch.
//! - **R, race freedom** ([`race`], [`packets`]): conflicting accesses of plain memory are ordered by
//!   happens-before, within a step and across steps; a packet word has one writer per step and phase.
//! - **E, epochs** ([`epoch`]): no packet reader can take an old word for the one it waits for, wrap included.
//! - **M, memory model** ([`edges`]): only what fits a 64-bit word with its tag is a packet; packets order nothing.
//! - **O, static resources** ([`resources`]): grid, threads, registers, barriers and the shared-memory map are
//!   within the target record, and every area holds what the ops need of it.
//! - **K, caches and positions** ([`kv`]): appends and streamed rows are inside the cache and visible at every
//!   position; one instruction serves one sequence.
//!
//! The module pages have the exact statements and how each is decided.
//!
//! # Evidence
//!
//! [`Validated::certificate`] is evidence for D, R, C and E that [`checker`], which is much smaller and
//! searches nothing, checks again.
//!
//! # The memory model
//!
//! The promise is about programs whose edges are what [`edges`] says in PTX: release and acquire at gpu
//! scope for counters and boundaries, mbarrier phases for the ring, a proxy fence between an acquired
//! boundary and a copy, and 64-bit relaxed packets. A relaxed packet is single-copy atomic and delivers its
//! own word; nothing else is inferred from having seen it.
//!
//! # What is not promised
//!
//! - That the maths is right: the reference VM and the goldens show that.
//! - That the text implements its edges, or that ops keep their own shared memory free of hazards.
//! - That the compiled function fits the device; the launch asks the driver.
//! - That the host fills what it owes (weights, constants, prompt, cache rows before the first position),
//!   keeps the launch inside the bucket, gives token ids that the tables have rows for, and keeps packet memory
//!   as [`epoch`] asks across launches; that an opaque op chooses ids the tables have.
//! - Anything about opaque ops beyond their declared accesses.
//! - Acceptance of every safe program. Rejected although safe are:
//!   - order that several counters impose only together (a wait that either of two signals may satisfy,
//!     each of them after the access in question), or that signals have only because packets lie between them;
//!   - cache rows that only the ring makes visible to the producer, and writes of past rows;
//!   - packet readers whom only another access of the word, to a later epoch and before them, keeps from an
//!     old word with the same tag;
//!   - waits for 0 and signals of 0, which do nothing;
//!   - `boundary` instructions with waits or signals, and `plain` boundaries with accesses;
//!   - regions that are empty but lie outside; symbolic bounds that may cut a packet word; accesses that meet
//!     only at positions where another bound keeps them apart; bounds that are more, or cross at more
//!     places, than are looked at; tiles that overlap too irregularly to be added up;
//!   - packet regions that follow the position; local ones, where the area does not hold the whole buffer;
//!   - token ids that only the host's having a longer prompt would provide.
//!
//! [`checker`] looks at every cell of the grid a certificate cuts a buffer into and refuses more than 2^26 of them: a
//! program whose regions cut one buffer very finely in several dimensions may be accepted and its certificate not.
//!
//! Nothing here panics, does I/O or recurses on its input; memory is bounded by the size of the program and, in the
//! checker, by that number of cells.

#![forbid(unsafe_code)]

pub mod bounds;
mod certificate;
pub mod checker;
mod classes;
pub mod coverage;
pub mod deadlock;
pub mod edges;
pub mod epoch;
mod fault;
mod geometry;
pub mod kv;
mod model;
mod nodes;
mod order;
pub mod packets;
pub mod race;
pub mod resources;
pub mod structure;

use std::ops::Deref;

use amk_schedule_ir::{Instruction, Program, Target};

pub use certificate::{CERTIFICATE_VERSION, Certificate, Grid, GridPart, Limit, certify};
use classes::Classes;
use deadlock::Execution;
use fault::Faults;
pub use fault::{Fault, Invariant, MAX_FAULTS, Place, Report, Skipped, Witness};
use model::Model;
use order::{Order, Signals};

/// Hash of the sources that decide verdicts, hexadecimal: figures about the validator are about this one.
pub const PIN: &str = include_str!("../FROZEN").trim_ascii();

/// Most SMs whose order is judged; bounds the memory of the clocks.
const MAX_SMS: usize = 4096;

/// A value that passed every check. Only [`validate`] makes one.
#[derive(Clone, Debug)]
pub struct Validated<T> {
    inner: T,
    hash: [u8; 32],
}

impl<T> Validated<T> {
    /// What was validated.
    pub fn get(&self) -> &T {
        &self.inner
    }

    /// Gives up the proof.
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// Canonical hash of what was validated.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }
}

impl Validated<Program> {
    /// Evidence that [`checker::check`] can check without searching. Made on demand.
    pub fn certificate(&self) -> Certificate {
        certificate::of(&self.inner)
    }
}

impl<T> Deref for Validated<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// A program that did not pass, with every fault found.
#[derive(Debug, thiserror::Error)]
#[error("the schedule is rejected with {} faults; the first: {}", .faults.len(), .faults.first().map_or_else(String::new, ToString::to_string))]
pub struct Rejected {
    /// The program, unchanged.
    pub program: Box<Program>,
    pub faults: Vec<Fault>,
    /// Checks that could not be made because of other faults.
    pub skipped: Vec<Skipped>,
}

/// Judges a program for a target.
pub fn validate(program: Program, target: &Target) -> Result<Validated<Program>, Rejected> {
    let report = check(&program, target);
    if report.ok {
        let hash = program.hash();
        Ok(Validated { inner: program, hash })
    } else {
        Err(Rejected { program: Box::new(program), faults: report.faults, skipped: report.skipped })
    }
}

/// Judges a program and reports, without making a [`Validated`].
pub fn check(program: &Program, target: &Target) -> Report {
    let mut faults = Faults::default();
    let mut classes = Classes::new(program);
    let (structure, areas) = check_objects(program, target, &mut faults, |i, x| {
        classes.add(i as u32, &x.reads, &x.writes);
    });
    epoch::check_range(program, &mut faults);
    if !structure.sound || program.sms.len() > MAX_SMS {
        if structure.sound {
            faults.push(Fault::new(
                Invariant::O,
                Place::Program,
                format!(
                    "the grid has {} blocks, but at most {MAX_SMS} can be judged",
                    program.sms.len()
                ),
            ));
        }
        for invariant in [Invariant::C, Invariant::D, Invariant::R, Invariant::E] {
            faults.skip(invariant, "the structure is not sound, see the faults of S and O");
        }
        return faults.report(program);
    }
    let model = Model::new(program, structure.nodes, classes);
    bounds::check_local(&model, &mut faults);
    resources::check_local(&model, &areas, &mut faults);
    let (run, _, _) = execute(&model, &mut faults);
    if !run.complete {
        for invariant in [Invariant::C, Invariant::R, Invariant::E] {
            faults.skip(invariant, "judged only on the instructions that run before the deadlock");
        }
    }
    faults.report(program)
}

/// The invariants that are about single objects. `each` is called with every instruction while it is at hand.
fn check_objects<'p>(
    program: &'p Program,
    target: &Target,
    faults: &mut Faults,
    mut each: impl FnMut(usize, &'p Instruction),
) -> (structure::Structure, resources::Areas) {
    let areas = resources::Areas::new(program);
    let mut vocabulary = bounds::Vocabulary::default();
    edges::buffers(program, faults);
    kv::caches(program, faults);
    let structure = structure::check(program, faults, |i, x, footprint, faults| {
        bounds::instruction(program, i, x, footprint, faults);
        resources::instruction(program, &areas, i, x, footprint, faults);
        edges::instruction(program, i, x, faults);
        kv::instruction(program, i, x, faults);
        coverage::tokens(program, i, x, faults);
        vocabulary.see(i, x);
        each(i, x);
    });
    bounds::check(program, &vocabulary, faults);
    edges::boundary(program, faults);
    resources::check(program, &areas, target, faults);
    kv::streams(program, &structure.nodes, faults);
    (structure, areas)
}

/// The invariants that are about order.
fn execute(model: &Model, faults: &mut Faults) -> (Execution, Order, Signals) {
    let run = deadlock::check(model, faults);
    let mut verdict = Faults::default();
    let (order, bounds) = order::happens_before(model, &run, |order| {
        verdict = Faults::default();
        packets::check(model, &run, order, &mut verdict);
        let racing = race::check(model, &run, order, &mut verdict);
        coverage::check(model, &run, &racing, &mut verdict);
        epoch::check(model, &run, order, &mut verdict);
        verdict.is_empty()
    });
    faults.append(verdict);
    (run, order, bounds)
}
