//! The kernel text with every wait, release, acquire, barrier and copy-wait made droppable, one by one.
//!
//! The places are found in the text: calls of the primitives that hold raw synchronisation on the GPU,
//! memory orders of their counterparts on the host, and waits. A few edits that put something wrong in
//! the place of something right are a table. Each stands behind a switch, so that one compiled program
//! holds all of them.

use amk::codegen::templates;
use amk::lint::raw_synchronisation;

use crate::places::{Function, bounded_waits, find, functions, without_comments};

/// A way to break the text.
#[derive(Clone, Debug)]
pub struct Mutant {
    pub id: u32,
    pub name: String,
}

/// (name, text as it is, text with `M` for "this mutant runs"). Those that do not fit a text, such as
/// one with another ring, are left out; all must fit one of them. A call in brackets is no place.
const EDITS: &[(&str, &str, &str)] = &[
    (
        "bytes a bulk copy is waited for",
        "mbar_arrive_expect(r.full(slot), bytes)",
        "(M ? (mbar_arrive)(r.full(slot)) : mbar_arrive_expect(r.full(slot), bytes))",
    ),
    (
        "wait of an arrival for its copies",
        "mbar_arrive_copies(r.full(slot))",
        "(M ? (mbar_arrive)(r.full(slot)) : mbar_arrive_copies(r.full(slot)))",
    ),
    ("wait for every arrival at the boundary", "(place + 1) %", "(place + 1 + M) %"),
];

/// Places that nobody on the host can miss, with the reason.
const UNSEEN: &[(&str, &str)] = &[
    ("mbar_publish()", "the host has one proxy; the lint judges both fences"),
    ("amk_host_load()", "nobody cancels here; the lint judges the form"),
    ("amk_report_load()", "only a launch that was given up differs"),
    ("amk_report_claim()", "only a launch that was given up differs"),
    ("release in amk_host_release", "the host looks when the launch is over"),
    ("amk_host_release() ", "the host looks when the launch is over"),
    ("mbarrier wait 2 in ring_walk", "the window bounds what is in flight, not what is right"),
];

/// Why a place cannot be seen to be missing, if it is one of those.
pub fn unseen(name: &str) -> Option<&'static str> {
    UNSEEN.iter().find(|(start, _)| name.starts_with(start)).map(|(_, why)| *why)
}

/// Names of [`EDITS`].
pub fn edit_names() -> impl Iterator<Item = &'static str> {
    EDITS.iter().map(|(name, ..)| *name)
}

/// Names and result types of the functions that hold raw synchronisation on the GPU.
fn primitives() -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (name, text) in templates() {
        if !name.starts_with("sync/ptx") && !name.starts_with("ring/ptx_") {
            continue;
        }
        let text = without_comments(text);
        for f in functions(&text) {
            let body = &text[f.body.clone()];
            if !raw_synchronisation(body).is_empty() || body.contains("atomicCAS(") {
                out.push((f.name, f.result));
            }
        }
    }
    assert!(out.len() >= 20, "{}", out.len());
    out
}

/// Edits of a text, each a piece put in at an offset.
struct Plants {
    mutants: Vec<Mutant>,
    pieces: Vec<(usize, String)>,
}

impl Plants {
    fn switch(&mut self, name: String) -> String {
        let id = self.mutants.len() as u32 + 1;
        self.mutants.push(Mutant { id, name });
        format!("(amk_host::mutant == {id})")
    }

    fn put(&mut self, at: usize, piece: impl Into<String>) {
        self.pieces.push((at, piece.into()));
    }

    fn apply(mut self, text: &str) -> (String, Vec<Mutant>) {
        let mut out = text.to_owned();
        // Of two pieces at one offset, the one put in first comes first in the text.
        self.pieces.reverse();
        self.pieces.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, piece) in self.pieces {
            out.insert_str(at, &piece);
        }
        (out, self.mutants)
    }
}

/// The end of a call whose name starts at `at`.
fn end_of_call(text: &str, at: usize) -> usize {
    let open = at + text[at..].find('(').unwrap();
    crate::places::close(text, open)
}

/// The text with a switch at every place, and what each switch drops.
pub fn plant(text: &str) -> (String, Vec<Mutant>) {
    let mut whole = text.to_owned();
    let mut plants = Plants { mutants: Vec::new(), pieces: Vec::new() };
    for (name, from, to) in EDITS {
        if whole.matches(from).count() == 1 {
            let switch = plants.switch((*name).to_owned());
            let to = to.replace("(M ", &format!("({switch} "));
            whole = whole.replace(from, &to.replace("+ M)", &format!("+ {switch})")));
        }
    }
    let text = without_comments(&whole);
    let functions = functions(&text);
    for place in bounded_waits(&text, &functions) {
        let switch = plants.switch(format!("wait {} in {}", place.nth, place.within));
        plants.put(place.at, format!("{switch} || "));
    }
    let wait = "while (!mbar_test(";
    for place in find(&text, &functions, wait) {
        let switch = plants.switch(format!("mbarrier wait {} in {}", place.nth, place.within));
        plants.put(place.at + "while (".len(), format!("!{switch} && "));
    }
    let primitives = primitives();
    for (name, result) in &primitives {
        // Its waits are dropped above.
        if name == "mbar_test" {
            continue;
        }
        let inside = |f: &str| primitives.iter().any(|(name, _)| name == f);
        for place in find(&text, &functions, &format!("{name}(")) {
            if inside(&place.within) {
                continue;
            }
            let switch = plants.switch(format!("{name}() {} in {}", place.nth, place.within));
            plants.put(place.at, format!("({switch} ? {result}() : "));
            plants.put(end_of_call(&text, place.at), ")");
        }
    }
    orders(&text, &functions, &mut plants);
    plants.apply(&whole)
}

/// Memory orders: each operation that has one is done with a weaker one instead.
fn orders(text: &str, functions: &[Function], plants: &mut Plants) {
    for (order, weaker) in [
        ("__ATOMIC_ACQUIRE", &[("acquire", "__ATOMIC_RELAXED")][..]),
        ("__ATOMIC_RELEASE", &[("release", "__ATOMIC_RELAXED")]),
        ("__ATOMIC_ACQ_REL", &[("release", "__ATOMIC_ACQUIRE"), ("acquire", "__ATOMIC_RELEASE")]),
    ] {
        for place in find(text, functions, order) {
            let start = text[..place.at].rfind("__atomic_").unwrap();
            let end = end_of_call(text, start);
            for (what, weaker) in weaker {
                let switch = plants.switch(format!("{what} in {}", place.within));
                let call = text[start..end].replace(order, weaker);
                plants.put(start, format!("{switch} ? {call} : "));
            }
        }
    }
}
