//! Kernels in which one part of one edge is another than it must be: the lint must find each. Three ways
//! to make them: edits of the rendered text that put something wrong in the place of something right,
//! which are compiled again and must be found by the rule that speaks of them; edits of single
//! instructions of the PTX, of every instruction in turn; and every instruction of the templates weakened
//! or missing wherever it stands, on every target. What is merely left out is in `places.rs`.

use std::collections::BTreeSet;

use amk::lint::{Expected, Rule, check_ptx, raw_synchronisation};
use rayon::prelude::*;

use crate::lint::{expected, ptx};
use crate::support::{Kernel, kernels, others, pool};

/// An edit of the rendered text and the rule that must find it.
struct Mutant {
    name: &'static str,
    from: &'static str,
    to: &'static str,
    rule: Rule,
}

macro_rules! mutants {
    ($($name:literal: $from:literal => $to:literal, $rule:ident;)*) => {
        &[$(Mutant { name: $name, from: $from, to: $to, rule: Rule::$rule }),*]
    };
}

/// Edits of any kernel.
const COMMON: &[Mutant] = mutants! {
    "a weak packet store":
        r#"asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(((u64)tag << 32) | value) : "memory");"# =>
        r#"*p = ((u64)tag << 32) | value;"#, PacketStore;
    "a packet without its tag":
        r#"::"l"(p), "l"(((u64)tag << 32) | value) : "memory""# => r#"::"l"(p), "l"((u64)value) : "memory""#, PacketStore;
    "weak packet loads":
        r#"asm volatile("ld.relaxed.gpu.global.v2.b64 { %0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");"# =>
        r#"a = ((volatile const u64*)p)[0]; b = ((volatile const u64*)p)[1];"#, Form;
    "plain packet loads":
        r#"asm volatile("ld.relaxed.gpu.global.v2.b64 { %0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");"# =>
        r#"a = p[0]; b = p[1];"#, PacketLoad;
    "the second word's tag not looked at":
        "(valid <= 2 || (u32)(b >> 32) == tag)" => "true", PacketLoad;
    "lanes that leave a wait one by one": "return __all_sync(~0u, v);" => "return v;", PacketLoad;
    "a plain load of a counter":
        r#"asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");"# => "v = *p;", Place;
    "a volatile load of a counter":
        r#"asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");"# =>
        "v = *(volatile const u32*)p;", Form;
    "a counter signalled by atomicAdd":
        r#"asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");"# => "atomicAdd(p, v);", Form;
    "a counter signalled by a store":
        r#"asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");"# => "*p = *p + v;", Place;
    "an arrival by atomicAdd":
        r#"asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory");"# => "v = atomicAdd(p, 1u);", Form;
    "a plain store of the token":
        r#"asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");"# => "*p = v;", Place;
    "a volatile load of the token":
        r#"asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");"# => "v = *(volatile const u64*)p;", Form;
    "the host's progress before its token":
        "amk_host_store(p.host_tokens + cx.step, token);\n        amk_host_release(p.host_progress, cx.step + 1);" =>
        "amk_host_release(p.host_progress, cx.step + 1);\n        amk_host_store(p.host_tokens + cx.step, token);", Host;
    "a plain store of the host's token":
        "amk_host_store(p.host_tokens + cx.step, token);" => "p.host_tokens[cx.step] = token;", Place;
    "a plain load of the cancel word":
        "amk_host_load((const u32*)(p.arena + CANCEL_AT))" => "*(const u32*)(p.arena + CANCEL_AT)", Place;
    "the report claimed by a store":
        "return atomicCAS(p, 0u, v) == 0;" => "*p = v; return true;", Place;
    "the stop flag stored plainly":
        "if (stop) amk_store_shared_flag(cx.smem + CONTROL_AT, 1);" => "if (stop) control[0] = 1;", Place;
    "the block barrier before the ring is made":
        "ring_init(ring, smem, t);" => "amk_block_sync(); ring_init(ring, smem, t);", RingInit;
    "an empty barrier that one warp less completes":
        "mbar_init(r.empty(i), NW)" => "mbar_init(r.empty(i), NW - 1)", RingInit;
    "a wait for the wrong barrier":
        "while (!mbar_test(r.full(r.slot), r.parity)) {}" => "while (!mbar_test(r.empty(r.slot), r.parity)) {}", RingWait;
    "the wrong barrier arrived on":
        "mbar_arrive(r.empty(r.slot))" => "mbar_arrive(r.full(r.slot))", Place;
    "slots filled again without a wait":
        "while (!mbar_test(r.empty(next.slot), next.parity ^ 1))\n            if (amk_load_shared_flag(smem + CONTROL_AT)) goto drain;" =>
        "if (amk_load_shared_flag(smem + CONTROL_AT)) goto drain;", RingCopy;
    "copies in flight without end":
        "while (in_flight >= run.window) {" => "while (false) {", RingCopy;
    "the producer ends before its copies":
        "for (; in_flight; --in_flight) {" => "for (; false;) {", RingDrain;
};

/// Edits of a kernel with bulk copies.
const BULK: &[Mutant] = mutants! {
    "a full barrier that two arrivals complete":
        "mbar_init(r.full(i), 1)" => "mbar_init(r.full(i), 2)", RingInit;
    "an arrival in place of expect_tx":
        "mbar_arrive_expect(r.full(slot), bytes);" => "mbar_arrive(r.full(slot));", Place;
    "fewer bytes expected than copied":
        "mbar_arrive_expect(r.full(slot), bytes);" => "mbar_arrive_expect(r.full(slot), bytes / 2);", RingCopy;
    "a copy that completes on the empty barrier":
        "bytes, r.full(slot), policy);" => "bytes, r.empty(slot), policy);", RingCopy;
};

/// Edits of a kernel with `cp.async`.
const CP_ASYNC: &[Mutant] = mutants! {
    "an arrival that does not wait for the copies":
        "mbar_arrive_copies(r.full(slot));" => "mbar_arrive(r.full(slot));", RingCopy;
    "copies of the threads' own":
        r#"asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");"# =>
        r#"asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(*(const u32*)from) : "memory");"#, Missing;
    "a full barrier that one lane completes":
        "mbar_init(r.full(i), 32)" => "mbar_init(r.full(i), 1)", RingInit;
};

fn kernel(golden: &str) -> &'static Kernel {
    kernels().iter().find(|k| k.golden == golden).unwrap()
}

/// Cases of a short text.
const KEPT: [&str; 3] = ["op_norm_qkv<false", "op_attention<", "op_boundary<"];

/// What a short text is held to.
pub fn short_expected(kernel: &Kernel) -> Expected {
    let mut expected = expected(kernel);
    expected.cases.retain(|case| KEPT.iter().any(|call| case.call.contains(call)));
    assert_eq!(expected.cases.len(), KEPT.len(), "{}", kernel.golden);
    expected
}

/// A kernel's text with the cases of one product, of attention and of the boundary alone: all edges are
/// there, and a compile takes a third of the time.
pub fn short_text(kernel: &Kernel) -> String {
    let lines = kernel.source.text.lines().filter(|line| {
        let case = line.trim_start().starts_with("case ");
        !case || KEPT.iter().any(|call| line.contains(call))
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// Applies every edit in turn and says which of them the lint did not find as it should.
fn survivors(kernel: &Kernel, mutants: &[&Mutant]) -> Vec<String> {
    let source = short_text(kernel);
    let expected = short_expected(kernel);
    let judge = |text: &str| check_ptx(&ptx(kernel, text), &expected);
    if let Err(faults) = judge(&source) {
        panic!("{} is at fault without any edit: {faults:#?}", kernel.golden);
    }
    let judged = |m: &&Mutant| {
        let text = source.replace(m.from, m.to);
        if text == source {
            return Some(format!("{}: the text does not hold what it replaces", m.name));
        }
        match judge(&text) {
            Ok(_) => Some(format!("{}: not found", m.name)),
            Err(faults) if faults.iter().any(|f| f.rule == m.rule) => None,
            Err(faults) => {
                let rules: Vec<_> = faults.iter().map(ToString::to_string).collect();
                Some(format!("{}: found by another rule: {}", m.name, rules.join("\n    ")))
            }
        }
    };
    pool().install(|| mutants.par_iter().filter_map(judged).collect())
}

#[test]
fn every_broken_edge_is_found_with_bulk_copies() {
    let mutants: Vec<&Mutant> = COMMON.iter().chain(BULK).collect();
    let left = survivors(kernel("tests/goldens/sm_120/default-bf16.cu"), &mutants);
    assert!(left.is_empty(), "{} of {}:\n{}", left.len(), mutants.len(), left.join("\n"));
}

#[test]
fn every_broken_edge_is_found_with_cp_async() {
    let ring = COMMON.iter().filter(|m| {
        matches!(
            m.rule,
            Rule::RingInit | Rule::RingWait | Rule::RingRelease | Rule::RingCopy | Rule::RingDrain
        )
    });
    let mutants: Vec<&Mutant> = ring.chain(CP_ASYNC).collect();
    let left = survivors(kernel("tests/goldens/sm_80/default-bf16.cu"), &mutants);
    assert!(left.is_empty(), "{} of {}:\n{}", left.len(), mutants.len(), left.join("\n"));
}

/// Weaker or other forms of an instruction: every one of these must be a fault wherever it stands.
fn weakenings(line: &str) -> Vec<String> {
    let text = line.trim_start();
    let opcode = text.split([' ', ';']).next().unwrap();
    let parts: Vec<&str> = opcode.split('.').collect();
    let mut out = Vec::new();
    let mut put = |parts: Vec<&str>| out.push(line.replacen(opcode, &parts.join("."), 1));
    let without = |drop: &[&str]| parts.iter().copied().filter(|p| !drop.contains(p)).collect();
    let with = |from: &str, to: &'static str| {
        parts.iter().map(|p| if *p == from { to } else { *p }).collect::<Vec<_>>()
    };
    for (semantics, weaker) in [
        ("acquire", "relaxed"),
        ("release", "relaxed"),
        ("acq_rel", "relaxed"),
        ("acq_rel", "acquire"),
        ("acq_rel", "release"),
    ] {
        if parts.contains(&semantics) && parts[0] != "fence" {
            put(with(semantics, weaker));
            put(without(&[semantics]));
        }
    }
    for scope in ["gpu", "sys"] {
        if parts.contains(&scope) {
            put(with(scope, "cta"));
            put(with(scope, "cluster"));
            put(without(&["relaxed", "acquire", "release", "acq_rel", scope]));
        }
    }
    if parts.contains(&"relaxed") {
        put(without(&["relaxed", "cta", "gpu", "sys"]));
        put(parts
            .iter()
            .map(|p| if *p == "relaxed" { "volatile" } else { *p })
            .filter(|p| !["cta", "gpu", "sys"].contains(p))
            .collect());
    }
    match (parts[0], parts.get(1).copied()) {
        ("bar", Some("sync")) => {
            out.push(line.replace("1, 256", "1, 128"));
            out.push(line.replace("1, 256", "2, 256"));
            out.push(line.replace("bar.sync 0", "bar.sync 0, 64"));
            out.push(line.replace("bar.sync", "bar.arrive"));
        }
        ("bar", Some("warp")) => out.push(line.replace("0xffffffff", "0x7fffffff")),
        ("fence", _) => {
            out.push(line.replace("cluster", "cta"));
            out.push(line.replace(".async", ".alias"));
            out.push(String::new());
        }
        ("mbarrier", Some("try_wait" | "test_wait")) => {
            out.push(line.replace("parity", "parity.relaxed.cta"));
            out.push(String::new());
        }
        ("mbarrier", Some("arrive")) => {
            out.push(line.replace("arrive", "arrive.relaxed.cta"));
            out.push(line.replace("arrive", "arrive_drop"));
        }
        // Relaxed, and of the scope that is the default: only its absence is worse.
        ("atom", _) if parts.contains(&"cas") => out.clear(),
        ("cp", _) => {
            out.push(line.replace("complete_tx::bytes", "noinc"));
            out.push(line.replace("cp.async.cg", "cp.async.ca"));
            out.push(line.replace(".noinc", ""));
        }
        _ => {}
    }
    out.retain(|l| l != line);
    out.sort();
    out.dedup();
    out
}

#[test]
fn every_instruction_weakened_alone_is_found() {
    for golden in ["tests/goldens/sm_90a/default-bf16.cu", "tests/goldens/sm_80/default-bf16.cu"] {
        let kernel = kernel(golden);
        let ptx = ptx(kernel, &short_text(kernel));
        let expected = short_expected(kernel);
        check_ptx(&ptx, &expected).unwrap();
        let lines: Vec<&str> = ptx.lines().collect();
        let edits: Vec<(usize, String)> = (0..lines.len())
            .flat_map(|n| weakenings(lines[n]).into_iter().map(move |to| (n, to)))
            .collect();
        assert!(edits.len() > 150, "{golden}: {}", edits.len());
        let missed = |(n, to): &(usize, String)| {
            let mut lines = lines.clone();
            lines[*n] = to;
            let text = lines.join("\n");
            check_ptx(&text, &expected)
                .is_ok()
                .then(|| format!("line {}: {} -> {to}", n + 1, lines[*n]))
        };
        let missed: Vec<String> = pool().install(|| edits.par_iter().filter_map(missed).collect());
        assert!(
            missed.is_empty(),
            "{golden}: {} of {}:\n{}",
            missed.len(),
            edits.len(),
            missed.join("\n")
        );
    }
}

/// Opcodes of all raw synchronisation that a kernel's text holds.
fn opcodes(kernel: &Kernel) -> BTreeSet<String> {
    raw_synchronisation(&kernel.source.text).into_iter().collect()
}

/// The lines of a PTX text whose opcode this is.
fn lines_of(lines: &[&str], opcode: &str) -> Vec<usize> {
    let is = |n: &usize| lines[*n].trim_start().split([' ', ';', '\t']).next() == Some(opcode);
    (0..lines.len()).filter(is).collect()
}

/// Instructions that have no weaker form.
const NO_WEAKER: [&str; 1] = ["mbarrier.init.shared.b64"];

/// Every instruction of the templates, in the kernels of every target: missing altogether, and weakened
/// in one place alone.
#[test]
fn every_instruction_of_the_templates_is_judged_on_every_target() {
    let others = others();
    let all: Vec<&Kernel> = kernels().iter().chain(&others).collect();
    let (mut wanted, mut met) = (BTreeSet::new(), BTreeSet::new());
    let mut missed = Vec::new();
    for kernel in all {
        let ptx = match kernel.golden.ends_with(".cu") {
            true => kernel.compiled().unwrap().ptx.clone(),
            false => ptx(kernel, &kernel.source.text),
        };
        let expected = expected(kernel);
        let lines: Vec<&str> = ptx.lines().collect();
        let mut edits: Vec<(String, String)> = Vec::new();
        for opcode in opcodes(kernel) {
            wanted.insert(opcode.clone());
            let places = lines_of(&lines, &opcode);
            let Some(&first) = places.first() else { continue };
            met.insert(opcode.clone());
            let without = |n: usize| if places.contains(&n) { "" } else { lines[n] };
            let text: Vec<&str> = (0..lines.len()).map(without).collect();
            edits.push((format!("no {opcode}"), text.join("\n")));
            // One weaker form in one place: all forms in all places are judged above.
            let weaker = weakenings(lines[first]);
            let known = !weaker.is_empty() || NO_WEAKER.contains(&opcode.as_str());
            assert!(known, "no weaker form of {opcode} is known to this test");
            if let Some(to) = weaker.first() {
                let mut text = lines.clone();
                text[first] = to;
                edits.push((format!("{} -> {to}", lines[first]), text.join("\n")));
            }
        }
        let judge = |(name, text): &(String, String)| {
            check_ptx(text, &expected).is_ok().then(|| format!("{}: {name}", kernel.golden))
        };
        let found = edits.par_iter().filter_map(judge);
        missed.extend(pool().install(|| found.collect::<Vec<_>>()));
    }
    assert!(missed.is_empty(), "{}:\n{}", missed.len(), missed.join("\n"));
    let never: Vec<_> = wanted.difference(&met).collect();
    assert!(never.is_empty(), "in the templates and in no kernel's PTX: {never:?}");
}
