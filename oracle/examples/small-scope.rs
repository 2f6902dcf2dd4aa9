//! Compares the validator with the oracle over every program of the small scope.
//!
//! `cargo run --release -p amk-oracle --example small-scope -- [SIZE] [OUT.json]`; SIZE is 0 (seconds) to 2 (all).

use std::time::Instant;

use amk_oracle::Limits;
use amk_oracle::scope::{compare, enumerate, families};

#[path = "../tests/classes/mod.rs"]
mod classes;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let size = args.first().and_then(|a| a.parse().ok()).unwrap_or(2);
    if args.get(1).is_some_and(|a| a == "count") {
        let mut total = 0u64;
        for f in families(size) {
            let (mut n, start) = (0u64, Instant::now());
            enumerate(&f, |_| n += 1);
            total += n;
            println!(
                "{n:>10} {:>6.2}s {} (marks {})",
                start.elapsed().as_secs_f64(),
                f.name,
                f.marks
            );
        }
        println!("{total}");
        return;
    }
    let start = Instant::now();
    let summary = compare(&families(size), Limits::default(), classes::judge, |n| {
        if n % (1 << 18) == 0 {
            eprintln!("{n} programs, {:.0} s", start.elapsed().as_secs_f64());
        }
    });
    println!("{}", serde_json::to_string_pretty(&summary).unwrap());
    eprintln!("{:.1} s", start.elapsed().as_secs_f64());
}
