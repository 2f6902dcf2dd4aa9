//! Checks a program against its certificate: lists, sums and one pass over an order that the
//! certificate names, no search. What is to be proved by machine is this folder.
//!
//! S, B, M, O and K are statements about single objects; they are judged by the predicates of
//! [`crate::structure`] and its neighbours (ownership and size of local elements excepted, which are judged
//! here). The rest:
//!
//! - **D.** [`Certificate::order`] names every instruction once, in the order of each queue. Walking it, every
//!   counter wait holds when its instruction comes, every packet word it reads carries the phase it is read
//!   in, and the ring can serve its run. So the step can run to its end in this order, and waits being
//!   monotone, in every order.
//! - **Happens-before** (`clocks.rs`). [`Certificate::counters`] claims for every signal what the counter cannot
//!   exceed without it. A claim `v` for `s` holds if the signals that can come before `s` at all and whose
//!   own earlier waits on the counter ask for at most `v` sum to `v` or less. Claims may lean on each other:
//!   in any execution the first event to break one would need an earlier one broken.
//! - **R, C, E, and readers that miss their epoch** (`cells.rs`). [`Certificate::grids`] cuts every written
//!   buffer into cells of which every access takes whole ones. Each cell is followed through the order: a
//!   read finds what it needs, a write comes happens-after all accesses since the last write. Happens-before
//!   is transitive, so looking at neighbours is looking at all pairs.

mod cells;
mod clocks;
mod grid;

use amk_schedule_ir::hash::hex;
use amk_schedule_ir::{InstrId, Program, Target};

use crate::certificate::{CERTIFICATE_VERSION, Certificate};
use crate::fault::{Fault, Faults};

/// Why a certificate does not prove its program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "the certificate has version {0}, but this checker knows version {CERTIFICATE_VERSION}; make a new one"
    )]
    Version(u32),
    #[error(
        "the certificate is damaged: its digest is {found}, its content has {expected}; make a new one"
    )]
    Damaged { found: String, expected: String },
    #[error(
        "the certificate is for the program {certificate}, but this one is {program}; make one for this program"
    )]
    OtherProgram { certificate: String, program: String },
    #[error("the program fails on its own: {0}")]
    Program(Box<Fault>),
    #[error("the order of the certificate is no run of a step: {0}")]
    Order(String),
    #[error("the certificate's limit of {counter} without {instruction} does not hold: {why}")]
    Limit { counter: usize, instruction: InstrId, why: String },
    #[error("the certificate's grid of buffer {buffer} does not fit: {why}")]
    Grid { buffer: usize, why: String },
    #[error("{instruction} is not safe in buffer {buffer}: {why}")]
    Cell { buffer: usize, instruction: String, why: String },
}

/// Where each instruction runs: SM and position in its queue.
pub(crate) type Places = Vec<(usize, usize)>;

/// Does the certificate prove that the program is safe on the target?
pub fn check(program: &Program, target: &Target, certificate: &Certificate) -> Result<(), Refusal> {
    if certificate.version != CERTIFICATE_VERSION {
        return Err(Refusal::Version(certificate.version));
    }
    let expected = certificate.sum();
    if certificate.digest != expected {
        return Err(Refusal::Damaged { found: certificate.digest.clone(), expected });
    }
    let hash = hex(&program.hash());
    if certificate.program != hash {
        let certificate = certificate.program.clone();
        return Err(Refusal::OtherProgram { certificate, program: hash });
    }
    let mut faults = Faults::default();
    let (_, areas) = crate::check_objects(program, target, &mut faults, |_, _| {});
    crate::epoch::check_range(program, &mut faults);
    if let Some(fault) = faults.report(program).faults.into_iter().next() {
        return Err(Refusal::Program(Box::new(fault)));
    }
    let places = places(program)?;
    run(program, &places, &certificate.order)?;
    ring(program)?;
    let order = clocks::Clocks::new(program, &places, certificate)?;
    cells::check(program, &places, certificate, &order, &areas)
}

fn places(p: &Program) -> Result<Places, Refusal> {
    let mut places = vec![None; p.instructions.len()];
    for (s, sm) in p.sms.iter().enumerate() {
        for (pos, id) in sm.queue.iter().enumerate() {
            if let Some(place) = places.get_mut(id.index()) {
                *place = Some((s, pos));
            }
        }
    }
    let all: Option<Places> = places.into_iter().collect();
    all.ok_or_else(|| Refusal::Order("an instruction stands in no queue".to_owned()))
}

/// The order is that of the queues, complete, and every counter wait holds when its instruction comes.
fn run(p: &Program, places: &Places, order: &[InstrId]) -> Result<(), Refusal> {
    let mut next = vec![0; p.sms.len()];
    let mut counters = vec![0u64; p.counters.len()];
    for id in order {
        let (Some(x), Some(&(sm, pos))) = (p.instruction(*id), places.get(id.index())) else {
            return Err(Refusal::Order(format!("{id} does not exist")));
        };
        match next.get_mut(sm) {
            Some(n) if *n == pos => *n += 1,
            _ => return Err(Refusal::Order(format!("{id} comes out of the order of its queue"))),
        }
        for w in &x.waits {
            let value = counters.get(w.counter.index()).copied().unwrap_or(0);
            if value < w.threshold {
                return Err(Refusal::Order(format!(
                    "{id} waits for {} >= {}, which has {value} by then",
                    w.counter, w.threshold
                )));
            }
        }
        for s in &x.signals {
            if let Some(value) = counters.get_mut(s.counter.index()) {
                *value = value.saturating_add(s.amount);
            }
        }
    }
    for (sm, n) in p.sms.iter().zip(next) {
        if n != sm.queue.len() {
            return Err(Refusal::Order(format!("it leaves {} before its end", sm.id)));
        }
    }
    Ok(())
}

/// Every run fits the ring together with the earlier runs of the stream that are still unconsumed.
fn ring(p: &Program) -> Result<(), Refusal> {
    for sm in &p.sms {
        // First chunk of each run, and the end.
        let mut start = vec![0u128];
        for run in &sm.stream {
            let chunks = p.buffer(run.source.buffer()).and_then(|b| run.source.chunks(b));
            start.push(start.last().copied().unwrap_or(0) + u128::from(chunks.unwrap_or(0)));
        }
        // A run without chunks waits for nothing and holds nothing.
        let chunks = |run: usize| match (start.get(run), start.get(run + 1)) {
            (Some(first), Some(end)) => end.saturating_sub(*first),
            _ => 0,
        };
        let mut consumed: Vec<bool> = (0..sm.stream.len()).map(|run| chunks(run) == 0).collect();
        // All runs before this one are consumed.
        let mut lowest = consumed.iter().take_while(|c| **c).count();
        for id in &sm.queue {
            let Some(run) = p.instruction(*id).and_then(|x| x.run) else { continue };
            let first = start.get(lowest).copied().unwrap_or(0);
            let end = start.get(run.index() + 1).copied().unwrap_or(u128::MAX);
            let waits = chunks(run.index()) > 0 && run.index() != lowest;
            if waits && end - first.min(end) > u128::from(p.resources.ring_slots) {
                return Err(Refusal::Order(format!("the ring cannot hold the run of {id}")));
            }
            if let Some(c) = consumed.get_mut(run.index()) {
                *c = true;
            }
            while consumed.get(lowest) == Some(&true) {
                lowest += 1;
            }
        }
    }
    Ok(())
}
