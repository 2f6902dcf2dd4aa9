//! Processor time and memory of `check` on whole decode programs: `cargo bench -p amk-validator`, on one core.
//! With `-- --out FILE` the figures are written as JSON too. What is asked of them is asserted at the end.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/llama.rs"]
mod llama;

use std::path::Path;

use llama::{Handover, Shape, llama};
use serde_json::json;

/// Largest resident set so far, MiB, where the system says.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

/// Seconds this thread has run, where the system says: other work on the machine does not count.
fn cpu_seconds() -> f64 {
    // The system adds the time up when the thread gives way, and on clock ticks of milliseconds otherwise.
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn main() {
    let shape = Shape::LLAMA_8B;
    let cases = [
        ("135m", shape_135m()),
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
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let out = args.iter().position(|a| a == "--out").and_then(|i| args.get(i + 1)).cloned();
    let only = args.first().filter(|a| !a.starts_with('-')).cloned();
    let mut rows = Vec::new();
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
        let instructions = program.instructions.len();
        rows.push(json!({
            "program": name,
            "instructions": instructions,
            "check_seconds": best,
            "hash_seconds": hashing,
            "certificate_seconds": certifying,
            "checker_seconds": checking,
            "peak_mib": checked_peak,
        }));
        println!(
            "{name}: {} instructions, check {best:.3} s and at most {checked_peak:?} MiB, hash {hashing:.3} s \
             ({:02x}..), certificate {certifying:.3} s, checker {checking:.3} s",
            program.instructions.len(),
            hash[0],
        );
    }
    if only.is_some() {
        return;
    }
    let mutants = mutants();
    println!("mutants of a 135m program: {mutants:.1} a second");
    let row = |name: &str| rows.iter().find(|r| r["program"] == name).expect("a row");
    let number = |name: &str, key: &str| row(name)[key].as_f64().unwrap_or(f64::INFINITY);
    let growth = [Handover::Packets, Handover::Counters].map(growth);
    for (growth, handover) in growth.iter().zip(["packets", "counters"]) {
        println!(
            "time per instruction, 80 layers against 8, {handover}: {:.2} (least of {} turns; median {:.2})",
            growth.least, growth.turns, growth.median
        );
    }
    let [packets, counters] = growth;
    if let Some(out) = out {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let document = json!({
            "pin": amk_validator::PIN,
            "programs": rows,
            "growth_8_to_80_layers_against_linear": {
                "packets": packets.json(),
                "counters": counters.json(),
            },
            "mutants_of_135m_per_second": mutants,
            "load_average": load.split_whitespace().next(),
        });
        let text = serde_json::to_string_pretty(&document).expect("plain numbers");
        // Benches run in the folder of their package.
        std::fs::write(Path::new("..").join(out), text + "\n").expect("the file can be written");
    }
    assert!(number("8b", "check_seconds") <= 1.5 && number("8b", "peak_mib") <= 1024.0);
    assert!(number("135m", "check_seconds") <= 0.25);
    assert!(packets.least <= 1.3 && counters.least <= 1.3, "growth is not near-linear");
}

/// Time per instruction of `check`, 80 layers against 8.
struct Growth {
    turns: usize,
    /// Of the least times.
    least: f64,
    /// Of the two times of each turn.
    median: f64,
    /// Least seconds of one check.
    seconds: [f64; 2],
}

impl Growth {
    fn json(&self) -> serde_json::Value {
        json!({
            "turns": self.turns,
            "least": self.least,
            "median": self.median,
            "seconds_8_layers": self.seconds[0],
            "seconds_80_layers": self.seconds[1],
        })
    }
}

/// Measures small and large program in turn, for about as long, so that whatever else the machine does meets both.
fn growth(handover: Handover) -> Growth {
    let programs = [8, 80].map(|layers| llama(Shape { layers, handover, ..Shape::LLAMA_8B }));
    let [small, large] = programs.each_ref().map(|p| p.instructions.len() as f64);
    let target = common::target();
    let (turns, checks) = (20, [2 * (large / small) as u32, 2]);
    let (mut least, mut ratios) = ([f64::INFINITY; 2], Vec::new());
    // The first turn finds caches and allocator cold.
    for turn in 0..=turns {
        let mut seconds = [0.0; 2];
        for ((seconds, program), n) in seconds.iter_mut().zip(&programs).zip(checks) {
            let start = cpu_seconds();
            for _ in 0..n {
                assert!(amk_validator::check(program, &target).ok);
            }
            *seconds = (cpu_seconds() - start) / f64::from(n);
        }
        if turn > 0 {
            ratios.push(seconds[1] / seconds[0] * small / large);
            least = [least[0].min(seconds[0]), least[1].min(seconds[1])];
        }
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(turns / 2).copied().unwrap_or(f64::INFINITY);
    Growth { turns, least: least[1] / least[0] * small / large, median, seconds: least }
}

/// Mutants judged per second of processor time: two queue entries of a SmolLM2-135M program swapped.
fn mutants() -> f64 {
    let base = llama(shape_135m());
    let mut seconds = 0.0;
    let n = 40;
    for i in 0..n {
        let mut mutant = base.clone();
        let sms = mutant.sms.len();
        let queue = &mut mutant.sms[i * 7 % sms].queue;
        let at = i * 31 % (queue.len() - 2);
        queue.swap(at, at + 1);
        let start = cpu_seconds();
        std::hint::black_box(amk_validator::check(&mutant, &common::target()));
        seconds += cpu_seconds() - start;
    }
    n as f64 / seconds
}

/// SmolLM2-135M.
fn shape_135m() -> Shape {
    Shape {
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        inner: 1536,
        vocab: 49_152,
        ..Shape::LLAMA_8B
    }
}
