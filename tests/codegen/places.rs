//! Every place of the kernel's text where something is synchronised, broken in turn: the lint must find
//! each. The places are found in the text, so a new one is judged without being listed here. Barriers
//! within one op are the exception: they are dropped by the tests that run the text on the host.

use std::collections::{BTreeMap, BTreeSet};

use amk::codegen::templates;
use amk::lint::{check_ptx, raw_synchronisation};

use crate::lint::{expected, ptx};
use crate::mutants::{short_expected, short_text};
use crate::source::{Function, Place, bounded_waits, find, functions, without_comments};
use crate::support::{Kernel, kernels, others};

/// Stands in for a call that is dropped.
const DROPPED: &str =
    "template <class R, class... A> AMK_FN R amk_dropped(const A&...) { return R(); }\n";

/// The template a function of the text comes from.
fn home(name: &str) -> &'static str {
    let defines = |text: &str| {
        let line = |l: &str| {
            (l.contains("AMK_FN ") || l.contains("AMK_KERNEL("))
                && [" ", "*", "&"].iter().any(|before| l.contains(&format!("{before}{name}(")))
        };
        text.lines().any(line)
    };
    let device = templates().iter().filter(|(file, _)| !file.starts_with("host/"));
    let mut homes = device.filter(|(_, text)| defines(text)).map(|(file, _)| *file);
    homes.next().unwrap_or_else(|| panic!("no template defines {name}"))
}

/// A way to break the text.
struct Break {
    name: String,
    edits: Vec<(Range, String)>,
}

type Range = std::ops::Range<usize>;

impl Break {
    fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let mut edits = self.edits.clone();
        edits.sort_by_key(|(range, _)| range.start);
        for (range, with) in edits.into_iter().rev() {
            text.replace_range(range, &with);
        }
        let at = text.find("struct Params {").unwrap();
        text.insert_str(at, DROPPED);
        text
    }
}

/// Whether what a function does belongs to one op, rather than to an edge.
fn within_op(function: &str) -> bool {
    home(function).starts_with("ops/") && !function.starts_with("counter_")
}

/// Whether a function is a primitive: raw synchronisation stands in it.
fn is_primitive(text: &str, f: &Function) -> bool {
    let body = &text[f.body.clone()];
    !raw_synchronisation(body).is_empty() || body.contains("atomicCAS(")
}

/// Every way to break a text in one place; of what an op calls several times, all at once.
fn breaks(source: &str) -> Vec<Break> {
    let text = without_comments(source);
    let functions = functions(&text);
    let (primitives, others): (Vec<_>, Vec<_>) =
        functions.iter().partition(|f| is_primitive(&text, f));
    assert!(primitives.len() >= 20, "{}", primitives.len());
    let mut called: Vec<&Function> = primitives.clone();
    // What the templates of synchronisation and ring make of primitives.
    called.extend(others.into_iter().filter(|f| {
        let edge = !within_op(&f.name) && !["amk_megakernel", "give_up"].contains(&f.name.as_str());
        let body = &text[f.body.clone()];
        edge && primitives.iter().any(|p| body.contains(&format!("{}(", p.name)))
    }));
    let mut out = Vec::new();
    for callee in called {
        let name = format!("{}(", callee.name);
        let barrier =
            raw_synchronisation(&text[callee.body.clone()]).iter().any(|o| o.starts_with("bar."));
        let mut groups: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for place in find(&text, &functions, &name) {
            let op = within_op(&place.within);
            if op && barrier {
                continue;
            }
            let key = match op {
                true => format!("{name}) in {}", place.within),
                false => format!("{name}) {} in {}", place.nth, place.within),
            };
            groups.entry(key).or_default().push(place);
        }
        for (key, places) in groups {
            let with = format!("amk_dropped<{}>(", callee.result);
            let edits = places.iter().map(|p| (p.at..p.at + name.len(), with.clone())).collect();
            out.push(Break { name: format!("dropped {key}"), edits });
        }
    }
    for place in bounded_waits(&text, &functions) {
        let edits = vec![(place.at..place.at, "true || ".to_owned())];
        let Place { within, nth, .. } = place;
        out.push(Break { name: format!("wait {nth} in {within} looks once"), edits });
    }
    let wait = "while (!mbar_test(";
    for place in find(&text, &functions, wait) {
        let edits = vec![(place.at..place.at + wait.len(), "if (!mbar_test(".to_owned())];
        let Place { within, nth, .. } = place;
        out.push(Break { name: format!("mbarrier wait {nth} in {within} looks once"), edits });
    }
    out
}

#[test]
fn every_place_of_synchronisation_broken_alone_is_found() {
    let bulk = kernels().iter().find(|k| k.golden.contains("sm_120/default-bf16")).unwrap();
    let others = others();
    let other = |name: &str| others.iter().find(|k| k.golden == name).unwrap();
    let judged: [(&Kernel, String, _); 5] = [
        (bulk, short_text(bulk), short_expected(bulk)),
        (other("splits"), other("splits").source.text.clone(), expected(other("splits"))),
        (other("prefill"), other("prefill").source.text.clone(), expected(other("prefill"))),
        (other("taken"), other("taken").source.text.clone(), expected(other("taken"))),
        (other("drawn"), other("drawn").source.text.clone(), expected(other("drawn"))),
    ];
    let (mut all, mut found, mut missed) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for (kernel, source, expected) in &judged {
        let whole = ptx(kernel, source);
        check_ptx(&whole, expected).unwrap_or_else(|f| panic!("{}: {f:#?}", kernel.golden));
        for broken in breaks(source) {
            all.insert(broken.name.clone());
            // In the kernels after the first, what that one does not have, and the other kind of ring.
            let ring = !expected.bulk && broken.name.contains("in ring_");
            if found.contains(&broken.name) && !ring {
                continue;
            }
            let ptx = ptx(kernel, &broken.apply(source));
            if ptx == whole {
                continue;
            }
            match check_ptx(&ptx, expected) {
                Ok(_) => missed.push(format!("{}: {}", kernel.golden, broken.name)),
                Err(_) => drop(found.insert(broken.name)),
            }
        }
    }
    let missed: Vec<_> = missed.into_iter().chain(all.difference(&found).cloned()).collect();
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), all.len(), missed.join("\n"));
    println!("{} places", all.len());
}
