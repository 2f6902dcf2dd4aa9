//! Runs a model on a CUDA device: goldens, tokens with logits, and launch times. One JSON line per call.
//!
//! gpu verify MODEL GOLDEN bf16|f32 [PROMPTS]
//! gpu run MODEL IDS STEPS bf16|f32 [LOGITS_FILE]
//! gpu time MODEL POSITION STEPS bf16|f32 LAUNCHES [KNOBS_JSON]

use std::error::Error;

use amk::device::Device;
use amk::engine::{Engine, OpenOptions, RunOptions, open};
use amk::image::ImageCache;
use amk::lower::{Knobs, Mode};
use amk::toolchain::{FindOptions, SpillPolicy, find_nvrtc};
use amk_models::golden::{Golden, Limits, verify_f32, verify_reduced};
use amk_models::{Checkpoint, Reference};
use amk_schedule_ir::Bucket;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map(String::as_str).unwrap_or_default();
    let model = (arg(1) != "embedded").then(|| arg(1));
    let checkpoint = Checkpoint::open(model, false)?;
    let device = Device::open(0)?;
    let found = find_nvrtc(&FindOptions::from_env(None))?;
    let cache = ImageCache::from_env()?;
    let bring =
        |mode: &str, knobs: Knobs, buckets: Vec<Bucket>| -> Result<Engine, Box<dyn Error>> {
            let options = OpenOptions {
                mode: if mode == "f32" { Mode::F32 } else { Mode::Bf16 },
                knobs,
                buckets,
                nvrtc: &found.nvrtc,
                cache: &cache,
                render: Default::default(),
                spills: SpillPolicy::Report,
            };
            Ok(open(&device, &checkpoint, &options, &mut |_, _| ())?)
        };
    match arg(0) {
        "verify" => {
            let golden = Golden::read(std::path::Path::new(arg(2)))?;
            let mut engine = bring(arg(3), Knobs::default(), Vec::new())?;
            let prompts = arg(4).parse().unwrap_or(usize::MAX);
            let limits = Limits { prompts, ..Limits::default() };
            let report = if arg(3) == "f32" {
                verify_f32(&golden, &mut engine, limits)?
            } else {
                let mut reference = Reference::new(&checkpoint)?;
                verify_reduced(&golden, "bf16", &mut engine, &mut reference, limits)?
            };
            println!("{}", serde_json::to_string(&report)?);
        }
        "run" => {
            let ids: Vec<u32> = arg(2).split(',').filter_map(|x| x.parse().ok()).collect();
            let steps: u64 = arg(3).parse()?;
            let mut engine = bring(arg(4), Knobs::default(), Vec::new())?;
            engine.set_tokens(0, &ids)?;
            let options =
                RunOptions { prompt_len: ids.len() as u64, logits: true, ..Default::default() };
            let out = engine.run(0, ids.len() as u64 - 1 + steps, &options)?;
            println!("{}", serde_json::json!({ "tokens": &out[ids.len() - 1..] }));
            if !arg(5).is_empty() {
                let bytes: Vec<u8> =
                    engine.logits()?.iter().flat_map(|v| v.to_le_bytes()).collect();
                std::fs::write(arg(5), bytes)?;
            }
        }
        "time" => {
            let (position, steps): (u64, u64) = (arg(2).parse()?, arg(3).parse()?);
            let knobs: Knobs = match arg(6) {
                "" => Knobs::default(),
                text => serde_json::from_str(text)?,
            };
            let bucket = Bucket { first: position, last: position + steps - 1 };
            let mut engine = bring(arg(4), knobs, vec![bucket])?;
            engine.set_tokens(position, &[5])?;
            let launches: usize = arg(5).parse()?;
            let mut times = Vec::new();
            let mut last = Vec::new();
            for i in 0..launches + 20 {
                let start = device.record()?;
                engine.submit(position, steps, &RunOptions::default())?;
                let end = device.record()?;
                engine.finish()?;
                if i >= 20 {
                    times.push(f64::from(start.elapsed_ms(&end)?) * 1e3 / steps as f64);
                }
                let (_, token) = engine.progress(steps as usize - 1)?;
                last.push(token);
            }
            times.sort_by(f64::total_cmp);
            let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
            last.dedup();
            println!(
                "{}",
                serde_json::json!({
                    "position": position, "steps": steps, "us_median": at(0.5), "us_p10": at(0.1),
                    "us_p90": at(0.9), "weight_bytes": engine.weight_bytes(), "same_tokens": last.len() == 1,
                })
            );
        }
        other => return Err(format!("unknown command {other:?}").into()),
    }
    Ok(())
}
