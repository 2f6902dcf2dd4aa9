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
//! | id | invariant | statement and method |
//! | --- | --- | --- |
//! | S | structure | [`structure`] |
//! | B | bounds | [`bounds`] |
//! | C | coverage | [`coverage`] |
//! | D | deadlock freedom | [`deadlock`], [`packets`] |
//! | R | race freedom | [`race`], [`packets`] |
//! | E | epochs | [`epoch`] |
//! | M | memory model, as far as the schedule shows it | [`edges`] |
//! | O | static resources | [`resources`] |
//! | K | caches and positions | [`kv`] |
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
//!   keeps the launch inside the bucket, and keeps packet memory as [`epoch`] asks across launches.
//! - Anything about opaque ops beyond their declared accesses.
//! - Acceptance of every safe program. Rejected although safe are: programs that lean on orders that
//!   several counters impose only together; cache reads by the producer ordered by the ring alone; reads of
//!   cache rows written in the past by other means than appending; `boundary` instructions with waits;
//!   regions that are empty but lie outside; packets with symbolic bounds that share words; bounds that
//!   cross at more places than are looked at.
//!
//! Nothing here panics, does I/O or recurses on its input; memory is bounded by the size of the program.

#![forbid(unsafe_code)]

pub mod bounds;
mod certificate;
pub mod checker;
pub mod coverage;
pub mod deadlock;
pub mod edges;
pub mod epoch;
mod fault;
mod geometry;
pub mod kv;
mod model;
mod order;
pub mod packets;
pub mod race;
pub mod resources;
pub mod structure;

use std::ops::Deref;

use amk_schedule_ir::{Program, Target};

pub use certificate::{CERTIFICATE_VERSION, Certificate, Grid, GridPart, Limit, certify};
use deadlock::Execution;
use fault::Faults;
pub use fault::{Fault, Invariant, MAX_FAULTS, Place, Report, Skipped, Witness};
use model::Model;
use order::{Order, Signals};

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
    let (structure, areas) = check_objects(program, target, &mut faults);
    coverage::tokens(program, &mut faults);
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
    let model = Model::new(program);
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

/// The invariants that are about single objects.
fn check_objects(
    program: &Program,
    target: &Target,
    faults: &mut Faults,
) -> (structure::Structure, resources::Areas) {
    let areas = resources::Areas::new(program);
    let structure = structure::check(program, faults, |i, x, footprint, faults| {
        bounds::instruction(program, i, x, footprint, faults);
        resources::instruction(program, &areas, i, x, footprint, faults);
    });
    bounds::check(program, faults);
    edges::check(program, faults);
    resources::check(program, &areas, target, faults);
    kv::check(program, faults);
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
