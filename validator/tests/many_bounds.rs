//! Programs with very many bounds that follow the position end with a sentence, and not with hours of comparisons.

use std::fmt::Write;
use std::time::{Duration, Instant};

use amk_schedule_ir::text::parse;
use amk_validator::{Invariant, check};

mod common;

/// One SM that writes a region with each of the bounds as its end.
fn program(bounds: impl Iterator<Item = String>) -> String {
    let mut text = String::from(
        "amk-schedule 1\nname \"bounds\"\ntarget sm_90a\nbucket 0..=8191\ntokens 1\nsteps 8\n\
         epochs per_step 1 tags 4294967295\n\
         resources warps 4 slots 2 slot_bytes 4096 registers 64 barriers 1\n\
         buffer 0 \"x\" activation plain f32 [8192]\nboundary plain\nsm 0\n  queue",
    );
    let bounds: Vec<String> = bounds.collect();
    (0..=bounds.len()).for_each(|i| write!(text, " {i}").unwrap());
    text += "\n";
    for (i, bound) in bounds.iter().enumerate() {
        writeln!(text, "instr {i} opaque{{tag=1}}\n  writes 0[0..{bound}]").unwrap();
    }
    writeln!(text, "instr {} boundary{{}}", bounds.len()).unwrap();
    text
}

fn clips(n: usize) -> impl Iterator<Item = String> {
    (1..=n).map(|x| format!("min({},pos)", 8 * x))
}

fn splits(n: usize) -> impl Iterator<Item = String> {
    (1..n).map(move |part| format!("split({part}/{n})"))
}

#[test]
fn too_many_bounds_are_refused_with_a_sentence_and_soon() {
    let cases = [
        (program(clips(200)), true),
        (program(splits(900)), true),
        (program(clips(3).chain(splits(20))), true),
        (program(clips(1000)), false),
        (program(clips(250).chain(splits(4000))), false),
        (program(splits(5000)), false),
    ];
    for (i, (text, ok)) in cases.iter().enumerate() {
        let start = Instant::now();
        let report = check(&parse(text).unwrap(), &common::target());
        assert_eq!(report.ok, *ok, "case {i}: {:?}", report.faults.first());
        if !ok {
            let [fault] = report.faults.as_slice() else { panic!("case {i}: {:?}", report.faults) };
            assert_eq!(fault.invariant, Invariant::C);
            assert!(fault.message.contains("too many different bounds"), "{fault}");
        }
        eprintln!("case {i}: {:?}", start.elapsed());
        // Comparing all pairs at all places would take minutes.
        assert!(start.elapsed() < Duration::from_secs(20), "case {i}: {:?}", start.elapsed());
    }
}
