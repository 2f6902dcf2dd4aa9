//! Compares the CPU reference with a golden and measures its speed; with 0 PROMPTS the speed alone.
//!
//! `cargo run --release -p amk-models --example reference -- FOLDER GOLDEN [PROMPTS]`

use amk_models::golden::{Golden, Limits, verify_f32};
use amk_models::{Checkpoint, Reference, greedy};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, golden, rest @ ..] = args.as_slice() else {
        eprintln!("usage: reference FOLDER GOLDEN [PROMPTS]");
        std::process::exit(2);
    };
    let start = Instant::now();
    let checkpoint = Checkpoint::from_folder(Path::new(folder))?;
    let mut reference = Reference::new(&checkpoint)?;
    println!("loaded in {:?}", start.elapsed());

    let start = Instant::now();
    let tokens = 64;
    let mut token = checkpoint.config().bos_token_id.unwrap_or(0);
    for position in 0..tokens {
        token = greedy(&reference.forward(token, position)?).ok_or("NaN")?;
    }
    println!("decode: {:.1} tokens/s", tokens as f64 / start.elapsed().as_secs_f64());

    if rest.first().is_some_and(|n| n == "0") {
        return Ok(());
    }
    let golden = Golden::read(Path::new(golden))?;
    let start = Instant::now();
    golden.check_files(checkpoint.files())?;
    println!("files are the golden's, checked in {:?}", start.elapsed());
    let start = Instant::now();
    let prompts = rest.first().map_or(Ok(usize::MAX), |n| n.parse())?;
    let report = verify_f32(&golden, &mut reference, Limits { prompts, ..Limits::default() })?;
    println!("{}\ncompared in {:?}", serde_json::to_string_pretty(&report)?, start.elapsed());
    std::process::exit(if report.ok { 0 } else { 1 });
}
