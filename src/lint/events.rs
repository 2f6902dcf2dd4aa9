//! What each instruction means for the edges of a schedule: its form (opcode and scope, matched
//! exactly) and its place (which word or area it addresses, found from the address alone). Where the
//! two do not belong together the instruction is a fault.

use super::expected::{Expected, Place};
use super::flow::Flow;
use super::ptx::{Instr, Kernel, Operand};
use super::value::{Origin, Values};
use super::{LintFault, Rule};

/// An instruction's part in an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `bar.sync 0`: the whole block.
    BlockBarrier,
    /// `bar.sync 1` over all consumer warps.
    ConsumerBarrier,
    WarpBarrier,
    MbarrierInit(Barrier),
    InitFence,
    ProxyFence,
    ExpectTx,
    BulkCopy,
    AsyncCopy,
    AsyncArrive,
    MbarrierWait(Barrier),
    Release,
    PacketStore,
    PacketLoad,
    CounterWait,
    CounterSignal,
    Arrival,
    TokenRelease,
    TokenAcquire,
    HostToken,
    HostProgress,
    CancelLoad,
    /// Read of the report's first word at the boundary.
    GivenUpLoad,
    ReportLoad,
    /// Claim of the report for a wait given up.
    ReportClaim,
    /// Claim of the report for a logit that is no number.
    NanClaim,
    FlagStore,
    FlagLoad,
    /// Weak access to data that instructions share.
    Data,
    /// Weak read of the argmax keys.
    KeyRead,
    /// Weak write of a report, by the one that claimed it.
    ReportWrite,
    /// Read of a chunk of the ring.
    RingRead,
    SharedStore,
    /// Count of a draw in shared memory.
    DrawCount,
    /// Mark of a draw in shared memory.
    DrawMark,
    Exit,
    Nothing,
}

/// Which of a slot's two mbarriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    Full,
    Empty,
    /// One that the address does not tell.
    Unknown,
}

/// Forms of accesses to memory, and where each belongs.
const FORMS: &[(&str, Event, Place)] = &[
    ("st.relaxed.gpu.global.b64", Event::PacketStore, Place::Data),
    ("ld.relaxed.gpu.global.b64", Event::PacketLoad, Place::Data),
    ("ld.relaxed.gpu.global.v2.b64", Event::PacketLoad, Place::Data),
    ("ld.acquire.gpu.global.u32", Event::CounterWait, Place::Counter),
    ("red.release.gpu.global.add.u32", Event::CounterSignal, Place::Counter),
    ("atom.acq_rel.gpu.global.add.u32", Event::Arrival, Place::Arrivals),
    ("st.release.gpu.global.b64", Event::TokenRelease, Place::TokenWord),
    ("ld.acquire.gpu.global.b64", Event::TokenAcquire, Place::TokenWord),
    ("st.relaxed.sys.global.u32", Event::HostToken, Place::HostTokens),
    ("st.release.sys.global.u32", Event::HostProgress, Place::HostProgress),
    ("ld.relaxed.sys.global.u32", Event::CancelLoad, Place::Cancel),
    ("ld.relaxed.sys.global.u32", Event::GivenUpLoad, Place::GivenUp),
    ("ld.relaxed.gpu.global.u32", Event::ReportLoad, Place::GivenUp),
    // Relaxed at gpu scope is what PTX takes where nothing is written, as NVRTC does.
    ("atom.global.cas.b32", Event::ReportClaim, Place::GivenUp),
    ("atom.relaxed.global.cas.b32", Event::ReportClaim, Place::GivenUp),
    ("atom.relaxed.gpu.global.cas.b32", Event::ReportClaim, Place::GivenUp),
    // Counts and marks of a draw, which a barrier of the consumers makes known.
    ("red.relaxed.cta.shared.add.u32", Event::DrawCount, Place::Shared),
    ("red.relaxed.cta.shared.or.b32", Event::DrawMark, Place::Shared),
    ("st.relaxed.cta.shared.u32", Event::FlagStore, Place::Flag),
    ("ld.relaxed.cta.shared.u32", Event::FlagLoad, Place::Flag),
];

/// Every instruction's event, and the instructions that are none of the forms.
pub fn classify(
    kernel: &Kernel,
    flow: &Flow,
    values: &Values,
    expected: &Expected,
) -> (Vec<Event>, Vec<LintFault>) {
    let mut faults = Vec::new();
    let mut events = vec![Event::Nothing; kernel.instrs.len()];
    let reachable: std::collections::BTreeSet<usize> = flow.order.iter().copied().collect();
    for (i, instr) in kernel.instrs.iter().enumerate() {
        if !reachable.contains(&kernel.block_of[i]) {
            continue;
        }
        match event(kernel, values, expected, instr) {
            Ok(event) => events[i] = event,
            Err((rule, what)) => faults.push(LintFault::new(rule, instr, what)),
        }
    }
    (events, faults)
}

fn event(
    kernel: &Kernel,
    values: &Values,
    expected: &Expected,
    instr: &Instr,
) -> Result<Event, (Rule, String)> {
    let value = |n: usize| instr.operands.get(n).map(|o| values.operand(kernel, o));
    let constant = |n: usize| match value(n) {
        Some(v) if v.origin == Origin::Number && !v.varies => Some(v.offset),
        _ => None,
    };
    let place = match instr.address() {
        Some((base, offset)) => {
            expected.place(values.address(kernel, base, offset), instr.opcode.contains("shared"))
        }
        None => Place::Nowhere,
    };
    let unknown = || {
        let what = format!("{} is no form of any edge", instr.opcode);
        Err((Rule::Form, what))
    };
    let barrier = || match place {
        Place::Full => Barrier::Full,
        Place::Empty => Barrier::Empty,
        _ => Barrier::Unknown,
    };
    let mut forms = FORMS.iter().filter(|(form, ..)| *form == instr.opcode).peekable();
    if forms.peek().is_some() {
        return match forms.find(|(_, _, home)| *home == place) {
            Some((_, Event::ReportClaim, _)) if constant(3) == Some(2) => Ok(Event::NanClaim),
            Some((_, Event::ReportClaim, _)) if constant(3) != Some(1) => {
                Err((Rule::Form, "a claim of the report for no known reason".to_owned()))
            }
            Some((_, event, _)) => Ok(*event),
            None => Err((Rule::Place, format!("{} addresses {place}", instr.opcode))),
        };
    }
    match instr.opcode.as_str() {
        "bar.sync" => match (constant(0), constant(1), instr.operands.len()) {
            (Some(0), None, 1) => Ok(Event::BlockBarrier),
            (Some(1), Some(n), 2) if n == expected.consumer_threads => Ok(Event::ConsumerBarrier),
            _ => Err((
                Rule::Form,
                format!(
                    "a barrier that is neither the block's nor that of all {} consumer threads",
                    expected.consumer_threads
                ),
            )),
        },
        "bar.warp.sync" => match constant(0) {
            Some(mask) if mask as u32 == u32::MAX => Ok(Event::WarpBarrier),
            _ => Err((Rule::Form, "a warp barrier that leaves lanes out".to_owned())),
        },
        "mbarrier.init.shared.b64" => {
            let want = match barrier() {
                Barrier::Full => expected.full_count,
                Barrier::Empty => expected.empty_count,
                Barrier::Unknown => {
                    return Err((Rule::Place, format!("mbarrier.init addresses {place}")));
                }
            };
            match constant(1) {
                Some(n) if n == want => Ok(Event::MbarrierInit(barrier())),
                other => Err((
                    Rule::RingInit,
                    format!(
                        "{place} is made for {} arrivals, not for {want}",
                        other.map_or("unknown".to_owned(), |n| n.to_string())
                    ),
                )),
            }
        }
        "mbarrier.try_wait.parity.shared.b64" | "mbarrier.test_wait.parity.shared.b64" => {
            match barrier() {
                Barrier::Unknown => Err((Rule::Place, format!("an mbarrier wait on {place}"))),
                known => Ok(Event::MbarrierWait(known)),
            }
        }
        "mbarrier.arrive.shared.b64" => at(place, Place::Empty, Event::Release),
        "fence.mbarrier_init.release.cluster" if expected.bulk => Ok(Event::InitFence),
        "fence.proxy.async.shared::cta" if expected.bulk => Ok(Event::ProxyFence),
        "mbarrier.arrive.expect_tx.shared.b64" if expected.bulk => {
            at(place, Place::Full, Event::ExpectTx)
        }
        BULK if expected.bulk => at(place, Place::Ring, Event::BulkCopy),
        "cp.async.cg.shared.global" if !expected.bulk => at(place, Place::Ring, Event::AsyncCopy),
        "cp.async.mbarrier.arrive.noinc.shared.b64" if !expected.bulk => {
            at(place, Place::Full, Event::AsyncArrive)
        }
        _ if is_synchronisation(&instr.opcode) => unknown(),
        _ => weak(instr, place),
    }
}

/// The one form of bulk copy.
const BULK: &str =
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint";

fn at(place: Place, want: Place, event: Event) -> Result<Event, (Rule, String)> {
    match place == want {
        true => Ok(event),
        false => Err((Rule::Place, format!("{event:?} on {place}, not on {want}"))),
    }
}

/// Whether an opcode orders, synchronises or copies asynchronously: everything of this kind must be a
/// known form.
pub fn is_synchronisation(opcode: &str) -> bool {
    const FAMILIES: [&str; 16] = [
        "fence",
        "membar",
        "bar",
        "barrier",
        "mbarrier",
        "cp",
        "atom",
        "red",
        "multimem",
        "griddepcontrol",
        "clusterlaunchcontrol",
        "tensormap",
        "getctarank",
        "mapa",
        "elect",
        "setmaxnreg",
    ];
    const QUALIFIERS: [&str; 12] = [
        "volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio", "cta", "cluster",
        "gpu", "sys", "async",
    ];
    let mut parts = opcode.split('.');
    let first = parts.next().unwrap_or_default();
    FAMILIES.contains(&first)
        || matches!(first, "ld" | "st") && parts.any(|p| QUALIFIERS.contains(&p))
}

/// An instruction of no special form.
fn weak(instr: &Instr, place: Place) -> Result<Event, (Rule, String)> {
    let (load, store) = (instr.part(0) == "ld", instr.part(0) == "st");
    match instr.part(0) {
        "ret" | "exit" | "trap" => return Ok(Event::Exit),
        "call" => return Err((Rule::Form, "a call, which cannot be judged".to_owned())),
        _ => {}
    }
    if !load && !store || instr.has("param") || instr.has("local") {
        return Ok(Event::Nothing);
    }
    let word = || {
        let what = format!("{} accesses {place}, which takes its own form", instr.opcode);
        Err((Rule::Place, what))
    };
    match place {
        Place::Counter
        | Place::Arrivals
        | Place::TokenWord
        | Place::Cancel
        | Place::GivenUp
        | Place::HostTokens
        | Place::HostProgress
        | Place::Flag
        | Place::Full
        | Place::Empty => word(),
        Place::Report if store => Ok(Event::ReportWrite),
        Place::Report => word(),
        Place::Keys if load && !instr.has("nc") => Ok(Event::KeyRead),
        // Read-only for the whole launch.
        Place::Table | Place::Trace => Ok(Event::Nothing),
        Place::Data | Place::Keys => match instr.has("nc") {
            true => Ok(Event::Nothing),
            false => Ok(Event::Data),
        },
        Place::Ring if load => Ok(Event::RingRead),
        Place::Shared | Place::Ring if store => Ok(Event::SharedStore),
        _ => Ok(Event::Nothing),
    }
}

/// Whether two operands name the same registers.
pub fn same(a: Option<&Operand>, b: Option<&Operand>) -> bool {
    let all = |o: Option<&Operand>| {
        let mut out = Vec::new();
        o.into_iter().for_each(|o| o.registers(&mut out));
        out
    };
    let (a, b) = (all(a), all(b));
    !a.is_empty() && a == b
}
