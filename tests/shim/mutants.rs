//! The kernel text with every wait, release, acquire, barrier and copy-wait made droppable, one by one.
//!
//! Barriers are found in the text by themselves; all else is a table of edits. Each edit stands behind a
//! switch, so that one compiled program holds all of them.

/// A way to break the text.
#[derive(Clone, Debug)]
pub struct Mutant {
    pub id: u32,
    pub name: String,
}

/// In which texts an edit is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    All,
    /// With packets on the edges.
    Packets,
    /// With counters on the edges.
    Counters,
    /// With a ring of bulk copies.
    Bulk,
    /// With a ring of 16-byte copies.
    Async,
}

/// What a text was rendered from.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub packets: bool,
    pub bulk: bool,
    /// More than one position per step.
    pub prefill: bool,
}

/// Statements that are dropped wherever they stand.
const BARRIERS: &[&str] = &["amk_consumer_sync();", "amk_warp_sync();", "amk_block_sync();"];

/// Barriers that only programs of several positions per step need.
const PREFILL: &str = "if (TOKENS > 1) ";

/// (name, where, text as it is, text with `M` for "this mutant runs").
const EDITS: &[(&str, In, &str, &str)] = &[
    (
        "wait for a counter",
        In::Counters,
        "if (seen >= want || spin",
        "if (M || seen >= want || spin",
    ),
    (
        "signal of a counter",
        In::Counters,
        "for (u32 i = 0; i < n; ++i) amk_counter_release(",
        "for (u32 i = M ? n : 0; i < n; ++i) amk_counter_release(",
    ),
    (
        "acquire of a counter",
        In::Counters,
        "return __atomic_load_n(p, __ATOMIC_ACQUIRE);\n}\nAMK_FN void amk_counter_release(",
        "return M ? __atomic_load_n(p, __ATOMIC_RELAXED) : __atomic_load_n(p, __ATOMIC_ACQUIRE);\n}\nAMK_FN void amk_counter_release(",
    ),
    (
        "release of a counter",
        In::Counters,
        "__atomic_fetch_add(p, v, __ATOMIC_RELEASE);",
        "M ? __atomic_fetch_add(p, v, __ATOMIC_RELAXED) : __atomic_fetch_add(p, v, __ATOMIC_RELEASE);",
    ),
    (
        "wait for the packets of an input row",
        In::Packets,
        "!in[i].ready(tag, width - k)",
        "!M && !in[i].ready(tag, width - k)",
    ),
    (
        "wait for the packets of queries, keys and values",
        In::Packets,
        "if (((u32)(a >> 32) == tag &&",
        "if (M || ((u32)(a >> 32) == tag &&",
    ),
    (
        "wait for the packets of partial results",
        In::Packets,
        "(u32)(word[x][e] >> 32) != tag",
        "!M && (u32)(word[x][e] >> 32) != tag",
    ),
    (
        "wait for a chunk",
        In::All,
        "if (in_chunk == 0) ring_wait(ring);",
        "if (!M && in_chunk == 0) ring_wait(ring);",
    ),
    (
        "release of a slot",
        In::All,
        "if (lane == 0) mbar_arrive(r.empty(r.slot));",
        "if (!M && lane == 0) mbar_arrive(r.empty(r.slot));",
    ),
    ("wait for the release of a slot", In::All, "if (!first_round)", "if (!M && !first_round)"),
    (
        "wait for copies before the end",
        In::All,
        "for (; in_flight; --in_flight) {",
        "for (; !M && in_flight; --in_flight) {",
    ),
    (
        "bytes a bulk copy is waited for",
        In::Bulk,
        "mbar_arrive_expect(r.full(slot), bytes);",
        "if (M) mbar_arrive(r.full(slot)); else mbar_arrive_expect(r.full(slot), bytes);",
    ),
    (
        "wait of an arrival for its copies",
        In::Async,
        "mbar_arrive_copies(r.full(slot));",
        "if (M) mbar_arrive(r.full(slot)); else mbar_arrive_copies(r.full(slot));",
    ),
    (
        "release of an arrival at the boundary",
        In::All,
        "const u32 v = __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL);",
        "const u32 v = M ? __atomic_fetch_add(p, 1, __ATOMIC_ACQUIRE) : __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL);",
    ),
    (
        "acquire of the last arrival at the boundary",
        In::All,
        ": __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL);",
        ": M ? __atomic_fetch_add(p, 1, __ATOMIC_RELEASE) : __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL);",
    ),
    (
        "wait for every arrival at the boundary",
        In::All,
        "if ((place + 1) % AMK_BLOCKS == 0) {",
        "if ((place + 1 + M) % AMK_BLOCKS == 0) {",
    ),
    (
        "wait for the token word",
        In::All,
        "if ((u32)(seen >> 32) == tag) break;",
        "if (M || (u32)(seen >> 32) == tag) break;",
    ),
    (
        "release of the token word",
        In::All,
        "__atomic_store_n(p, v, __ATOMIC_RELEASE);\n  amk_host::changed();",
        "if (M) __atomic_store_n(p, v, __ATOMIC_RELAXED); else __atomic_store_n(p, v, __ATOMIC_RELEASE);\n  amk_host::changed();",
    ),
    (
        "acquire of the token word",
        In::All,
        "  return __atomic_load_n(p, __ATOMIC_ACQUIRE);\n}\nAMK_FN void amk_host_store(",
        "  return M ? __atomic_load_n(p, __ATOMIC_RELAXED) : __atomic_load_n(p, __ATOMIC_ACQUIRE);\n}\nAMK_FN void amk_host_store(",
    ),
    (
        "flag that stops the producer",
        In::All,
        "if (stop) amk_store_shared_flag(",
        "if (!M && stop) amk_store_shared_flag(",
    ),
];

/// Barriers a program does not need, by what it was rendered from, with the reason.
pub fn spare(name: &str, kind: Kind) -> Option<&'static str> {
    match name {
        "amk_consumer_sync 1 of op_boundary" if !kind.packets => {
            Some("signals and the argmax have barriers of their own after every access")
        }
        "amk_warp_sync 2 of op_boundary" if !kind.packets => {
            Some("before the next head every SM waits for signals of every other")
        }
        _ => None,
    }
}

/// The function a place of the text is in.
fn function(text: &str, at: usize) -> &str {
    let before = &text[..at];
    let start = before.rfind("AMK_FN ").unwrap_or(0);
    if before.rfind("AMK_KERNEL(").is_some_and(|kernel| kernel > start) {
        return "amk_megakernel";
    }
    let head = &before[start..];
    let name = &head[..head.find('(').unwrap_or(0)];
    name.rsplit(' ').next().unwrap_or(name)
}

/// The text with a switch at every place, and what each switch drops.
///
/// # Panics
/// An edit of the table does not fit the text exactly once: the table is to follow the text.
pub fn plant(text: &str, kind: Kind) -> (String, Vec<Mutant>) {
    let mut mutants = Vec::new();
    let mut add = |name: String| {
        let id = mutants.len() as u32 + 1;
        mutants.push(Mutant { id, name });
        format!("(amk_host::mutant == {id})")
    };
    let mut text = text.to_owned();
    for (name, place, from, to) in EDITS {
        let here = match place {
            In::All => true,
            In::Packets => kind.packets,
            In::Counters => !kind.packets,
            In::Bulk => kind.bulk,
            In::Async => !kind.bulk,
        };
        if !here {
            continue;
        }
        assert_eq!(text.matches(from).count(), 1, "the edit `{name}` does not fit the text");
        // `M` as a word of its own.
        let switch = add((*name).to_owned());
        let to = to.replace("M ?", &format!("{switch} ?")).replace("(M", &format!("({switch}"));
        let to = to.replace("!M", &format!("!{switch}")).replace("+ M)", &format!("+ {switch})"));
        text = text.replace(from, &to);
    }
    for barrier in BARRIERS {
        let places: Vec<usize> = text.match_indices(barrier).map(|(at, _)| at).collect();
        let mut seen = std::collections::BTreeMap::<String, u32>::new();
        let mut edits = Vec::new();
        for at in places {
            if text[..at].ends_with(PREFILL) && !kind.prefill {
                continue;
            }
            let function = function(&text, at).to_owned();
            // Nobody waits for a counter where there is none.
            if kind.packets && function.starts_with("counter_") {
                continue;
            }
            let nth = seen.entry(function.clone()).or_insert(0);
            *nth += 1;
            let switch = add(format!("{} {nth} of {function}", barrier.trim_end_matches("();")));
            edits.push((at, format!("if (!{switch}) ")));
        }
        for (at, guard) in edits.into_iter().rev() {
            text.insert_str(at, &guard);
        }
    }
    (text, mutants)
}
