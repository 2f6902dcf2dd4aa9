//! Processor time and memory of `check` on whole decode programs: `cargo bench -p amk-validator`.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/llama.rs"]
mod llama;

use llama::{Handover, Shape, llama};

/// Largest resident set so far, MiB, where the system says.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

/// Seconds this thread has run, where the system says: other work on the machine does not count.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn main() {
    let shape = Shape::LLAMA_8B;
    let cases = [
        (
            "135m",
            Shape {
                layers: 30,
                hidden: 576,
                heads: 9,
                kv_heads: 3,
                head_dim: 64,
                inner: 1536,
                vocab: 49_152,
                ..shape
            },
        ),
        ("8b, 8 layers", Shape { layers: 8, ..shape }),
        ("8b", shape),
        ("8b, 80 layers", Shape { layers: 80, ..shape }),
        ("8b, counters", Shape { handover: Handover::Counters, ..shape }),
        ("8b, 80 layers, counters", Shape { layers: 80, handover: Handover::Counters, ..shape }),
        (
            "70b",
            Shape {
                layers: 80,
                hidden: 8192,
                heads: 64,
                kv_heads: 8,
                inner: 28_672,
                sms: 132,
                ..shape
            },
        ),
    ];
    let only = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    for (name, shape) in cases {
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        let program = llama(shape);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let start = cpu_seconds();
            let report = amk_validator::check(&program, &common::target());
            best = best.min(cpu_seconds() - start);
            assert!(report.ok, "{name}: {:?}", report.faults.first());
        }
        let start = cpu_seconds();
        let hash = program.hash();
        let hashing = cpu_seconds() - start;
        let checked_peak = peak_mib();
        let start = cpu_seconds();
        let certificate = amk_validator::certify(&program).expect("a sound structure");
        let certifying = cpu_seconds() - start;
        let start = cpu_seconds();
        let verdict = amk_validator::checker::check(&program, &common::target(), &certificate);
        let checking = cpu_seconds() - start;
        assert!(verdict.is_ok(), "{name}: {verdict:?}");
        println!(
            "{name}: {} instructions, check {best:.3} s and at most {checked_peak:?} MiB, hash {hashing:.3} s \
             ({:02x}..), certificate {certifying:.3} s, checker {checking:.3} s",
            program.instructions.len(),
            hash[0],
        );
    }
}
