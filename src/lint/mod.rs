//! The M-text lint: that the compiled kernel holds, for each kind of edge, the instruction sequence the
//! schedule's semantics ask for. A program is validated against the semantics of `schedule_ir`; the lint
//! ties those to the PTX that NVRTC made of the templates.
//!
//! [`check_ptx`] reads the PTX, follows addresses back to the kernel's parameters, the arena's words and
//! the shared-memory map, and gives every instruction its part in an edge. Then, on every path:
//!
//! | edge | sequence |
//! | --- | --- |
//! | packet | `st.relaxed.gpu.global.b64` of a word with a tag; `ld.relaxed.gpu.global(.v2).b64`, again and again until every word's tag is the step's |
//! | counter wait | `ld.acquire.gpu.global.u32` until the threshold, then `bar.sync 1` over all consumer warps before anybody touches data |
//! | counter signal | `bar.sync 1` after the last access, then `red.release.gpu.global.add.u32` |
//! | boundary | `bar.sync 1` after the last access, `atom.acq_rel.gpu.global.add.u32`, `bar.warp.sync`, the keys are read, `bar.warp.sync`, `st.release.gpu.global.b64` of the token word; `ld.acquire.gpu.global.b64` of it until the tag is the step's, then `bar.sync 1` |
//! | ring, made | `mbarrier.init` with the right counts; with bulk copies `fence.mbarrier_init.release.cluster` and `fence.proxy.async.shared::cta`; `bar.sync 0` |
//! | ring, bulk | `mbarrier.arrive.expect_tx` and at once `cp.async.bulk...complete_tx` of the same bytes on the same barrier |
//! | ring, `cp.async` | each lane's copies, then its `cp.async.mbarrier.arrive.noinc` |
//! | ring, read | `mbarrier.try_wait.parity` (`test_wait` before sm_90) on the full barrier until it completes, the chunk is read, `bar.warp.sync`, one lane's `mbarrier.arrive` on the empty barrier |
//! | ring, filled again | a wait on the empty barrier in the producer's loop; before the producer ends, one on the full barrier |
//! | gate of a kv chunk | none: codegen refuses keys and values in a stream, so a bulk copy of what the kernel itself wrote does not occur, and the acquire and proxy fence it would need are no form |
//! | host words | `st.relaxed.sys` of the token, then `st.release.sys` of the progress; `ld.relaxed.sys` of what the host may set |
//!
//! Each op's part of the dispatch holds the parts of the edges its instructions have (`cases.rs`).
//! Each of these words is accessed in its own form alone, and any other instruction that orders,
//! synchronises or copies asynchronously is a fault: a weaker scope or a missing `.release` is not a
//! form. Loops are recognised by their shape, so a wait that no longer repeats is found. What the lint
//! does not judge: parities and thresholds (the kernel run as host C++ does), and shared memory within
//! one op.
//!
//! [`check_templates`] keeps raw synchronisation out of the other templates.

mod cases;
mod events;
mod expected;
mod flow;
mod polls;
mod ptx;
mod rules;
mod text;
mod value;

use serde::Serialize;

pub use cases::Case;
use events::{Barrier, Event, classify};
pub use expected::{Expected, params};
use flow::Flow;
use ptx::Instr;
use rules::Judged;
pub use text::{TextFault, check_templates, raw_synchronisation};
use value::Values;

/// What a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The text is not PTX of one kernel.
    Ptx,
    /// An instruction that synchronises in no known form.
    Form,
    /// A synchronisation word accessed in another form than its own.
    Place,
    /// Something that must be there is not.
    Missing,
    PacketStore,
    PacketLoad,
    CounterWait,
    CounterSignal,
    Arrival,
    Token,
    Host,
    RingInit,
    RingCopy,
    RingWait,
    RingRelease,
    RingDrain,
}

/// A sequence that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[error(
    "PTX line {line}: {message} ({rule:?}, at {instruction}); the templates or the compiler broke an edge of the schedule"
)]
pub struct LintFault {
    pub rule: Rule,
    /// Line in the PTX, from 1; 0 for something that is missing.
    pub line: u32,
    /// Opcode at that line.
    pub instruction: String,
    pub message: String,
}

impl LintFault {
    fn new(rule: Rule, at: &Instr, message: impl Into<String>) -> LintFault {
        LintFault { rule, line: at.line, instruction: at.opcode.clone(), message: message.into() }
    }

    fn missing(rule: Rule, message: impl Into<String>) -> LintFault {
        LintFault { rule, line: 0, instruction: "nothing".to_owned(), message: message.into() }
    }
}

/// How often each part of an edge was found in the PTX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LintReport {
    /// Instructions read.
    pub instructions: usize,
    pub packet_stores: usize,
    pub packet_loads: usize,
    pub counter_waits: usize,
    pub counter_signals: usize,
    pub arrivals: usize,
    pub token_releases: usize,
    pub token_acquires: usize,
    /// Stores for the host and loads of what it sets.
    pub host_words: usize,
    pub ring_barriers: usize,
    pub ring_copies: usize,
    pub ring_waits: usize,
    pub ring_releases: usize,
}

/// Judges the PTX of a rendered kernel against what its program needs.
///
/// # Errors
/// Every fault found, in the order of the PTX within each rule.
pub fn check_ptx(ptx: &str, expected: &Expected) -> Result<LintReport, Vec<LintFault>> {
    let kernel = ptx::read(ptx).map_err(|e| {
        let (line, message) = (e.line, e.what);
        vec![LintFault { rule: Rule::Ptx, line, instruction: String::new(), message }]
    })?;
    let flow = Flow::new(&kernel);
    let values = Values::new(&kernel, &flow, params::EPOCH_BASE);
    let (events, mut faults) = classify(&kernel, &flow, &values, expected);
    let judged = Judged { kernel: &kernel, flow: &flow, events: &events, expected };
    let count = |event: Event| judged.all(event).count();
    let both = |of: fn(Barrier) -> Event| count(of(Barrier::Full)) + count(of(Barrier::Empty));
    let report = LintReport {
        instructions: kernel.instrs.len(),
        packet_stores: count(Event::PacketStore),
        packet_loads: count(Event::PacketLoad),
        counter_waits: count(Event::CounterWait),
        counter_signals: count(Event::CounterSignal),
        arrivals: count(Event::Arrival),
        token_releases: count(Event::TokenRelease),
        token_acquires: count(Event::TokenAcquire),
        host_words: [Event::HostToken, Event::HostProgress, Event::CancelLoad, Event::GivenUpLoad]
            .into_iter()
            .map(count)
            .sum(),
        ring_barriers: both(Event::MbarrierInit),
        ring_copies: count(Event::BulkCopy) + count(Event::AsyncCopy),
        ring_waits: both(Event::MbarrierWait),
        ring_releases: count(Event::Release),
    };
    missing(&judged, &mut faults);
    judged.cases(&mut faults);
    judged.sequences(&mut faults);
    judged.waits(&values, &mut faults);
    if faults.is_empty() { Ok(report) } else { Err(faults) }
}

/// Parts that every kernel must have.
fn missing(judged: &Judged<'_>, faults: &mut Vec<LintFault>) {
    use Event::*;
    let expected = judged.expected;
    let mut wanted = vec![
        (CounterWait, "a wait for a counter"),
        (CounterSignal, "a signal of a counter"),
        (ReportLoad, "the look at whether another wait was given up"),
        (ReportClaim, "the claim of the report of a wait given up"),
        (MbarrierInit(Barrier::Full), "mbarrier.init of the full barriers"),
        (MbarrierInit(Barrier::Empty), "mbarrier.init of the empty barriers"),
        (MbarrierWait(Barrier::Empty), "a wait for an empty slot"),
        (FlagLoad, "the load of the stop flag"),
    ];
    match expected.bulk {
        true => wanted.extend([(ExpectTx, "expect_tx"), (BulkCopy, "a bulk copy")]),
        false => wanted.extend([
            (AsyncCopy, "cp.async"),
            (AsyncArrive, "the arrival of cp.async on the slot's barrier"),
        ]),
    }
    for (event, what) in wanted {
        if judged.all(event).next().is_none() {
            faults.push(LintFault::missing(Rule::Missing, format!("the kernel lacks {what}")));
        }
    }
    // The producer polls the flag from the start, so it is cleared before the block barrier.
    let kernel = judged.kernel;
    let mut early = flow::reach(kernel, 0, |i| judged.events[i] == BlockBarrier);
    early[0] = true;
    if !(0..early.len()).any(|i| early[i] && judged.events[i] == FlagStore) {
        let what = "the stop flag is not cleared before the block barrier";
        faults.push(LintFault::missing(Rule::Missing, what));
    }
}
