//! A checkpoint opened on a device: the target from the device itself unless another is asked for, and one program
//! for each bucket of positions the run reaches, with and without prefill.

use std::path::PathBuf;

use amk_autoresearch::store::Store;
use amk_models::Checkpoint;
use amk_schedule_ir::{Bucket, Target};

use super::{BuildRequest, Built, Engine, EngineError, Keep, Memory, PackedCache, build, packed};
use crate::codegen::RenderOptions;
use crate::device::{Device, DeviceError, Form, form_for};
use crate::image::ImageCache;
use crate::lower::{Knobs, LowerError, Mode, Shape, buckets, lower, most_tokens};
use crate::lowered::Lowered;
use crate::search::stored::choose_all;
use crate::target::{Arch, DeviceFacts, Mismatch, check_device, describe_device, records};
use crate::toolchain::{Nvrtc, SpillPolicy};
use crate::vm::{Data, RecipeData};

/// Positions of the cache, where the model has as many and the run needs no more.
const CAPACITY: u64 = 4096;

/// How to open a model.
pub struct OpenOptions<'a> {
    pub mode: Mode,
    pub knobs: Knobs,
    pub want: Want,
    /// The part to compile for; absent: the device.
    pub target: Option<Target>,
    pub nvrtc: &'a Nvrtc,
    pub cache: &'a ImageCache,
    pub render: RenderOptions,
    /// What to do about register spills.
    pub spills: SpillPolicy,
    /// The folder packed weights are kept in, if they are to be.
    pub keep: Option<PathBuf>,
    /// A fault to plant in the text; see [`BuildRequest::corrupt`].
    pub corrupt: Option<(String, String)>,
    /// Where the best schedules are kept; those of it come before `knobs`.
    pub stored: Option<Store>,
}

/// What a run will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Feed prompts of up to `prompt` positions and decode up to `positions` in all.
    Sequence { prompt: u64, positions: u64 },
    /// Anything up to that many positions: prompts in passes, and single steps from every position.
    Anything { positions: u64 },
    /// Launches of single steps in these buckets, none other.
    Decode(Vec<Bucket>),
}

/// First positions of a program and the positions of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub bucket: Bucket,
    pub tokens: u32,
}

/// The record of the device's part with the device's own numbers, or one made from its answers.
pub fn target_of(facts: &DeviceFacts, nvrtc: &Nvrtc) -> Result<Target, EngineError> {
    let (mut target, _) = describe_device(facts, Some(nvrtc.supported()))
        .map_err(|e| EngineError::Mismatch(e.to_string()))?;
    let lower = facts.name.to_lowercase();
    if let Some(known) = records().iter().find(|r| lower.contains(&r.target.name))
        && known.target.sm == target.sm
    {
        target.measured_gbps = known.target.measured_gbps;
        target.nominal_gbps = known.target.nominal_gbps;
    }
    Ok(target)
}

/// Checks that a target describes no more than the device has. The architecture may be an older one, whose PTX the
/// device runs.
///
/// # Errors
/// Every field that does not hold.
pub fn check_target(target: &Target, facts: &DeviceFacts) -> Result<(), DeviceError> {
    let form = target.sm.parse::<Arch>().ok().and_then(|a| form_for(a, facts.capability));
    let faults: Vec<Mismatch> = match check_device(target, facts) {
        Ok(()) => return Ok(()),
        Err(faults) => faults,
    };
    let faults: Vec<Mismatch> =
        faults.into_iter().filter(|f| !(f.field == "sm" && form == Some(Form::Ptx))).collect();
    if faults.is_empty() { Ok(()) } else { Err(DeviceError::NotThatPart(faults)) }
}

/// The device's own architecture with no more of everything than another part has, to run that part's schedules
/// where there is none of it.
pub fn limited_to(own: &Target, other: &Target) -> Target {
    Target {
        name: format!("{} within {}", own.name, other.name),
        sm_count: own.sm_count.min(other.sm_count),
        shared_per_block: own.shared_per_block.min(other.shared_per_block),
        shared_per_sm: own.shared_per_sm.min(other.shared_per_sm),
        registers_per_sm: own.registers_per_sm.min(other.registers_per_sm),
        ..own.clone()
    }
}

/// The programs a run needs, and the positions of the cache they share. `prefill` is the most positions of a step.
pub fn choose(max_positions: u64, want: &Want, prefill: u32) -> (Vec<Range>, u64) {
    let most = |positions: u64| positions.clamp(1, max_positions);
    let (prompt, positions, steps_from) = match want {
        Want::Sequence { prompt, positions } => (*prompt, most(*positions), u64::MAX),
        Want::Anything { positions } => (most(*positions), most(*positions), 0),
        Want::Decode(buckets) => {
            let last = buckets.iter().map(|b| b.last + 1).max().unwrap_or(1);
            let ranges = buckets.iter().map(|&bucket| Range { bucket, tokens: 1 }).collect();
            return (ranges, last.max(CAPACITY).min(max_positions));
        }
    };
    let all = buckets(max_positions);
    let reached = all.iter().find(|b| positions <= b.last + 1).map_or(positions, |b| b.last + 1);
    let capacity = reached.max(CAPACITY).min(max_positions);
    let step = u64::from(prefill.max(1));
    let passes = if prefill > 1 { prompt.min(positions) / step } else { 0 };
    let alone = passes * step;
    let mut ranges = Vec::new();
    for bucket in &all {
        let last = bucket.last.min(capacity - 1);
        if bucket.first < positions && last >= alone.min(positions - 1).min(steps_from) {
            ranges.push(Range { bucket: Bucket { first: bucket.first, last }, tokens: 1 });
        }
        // A step must end within the cache.
        let last = bucket.last.min(capacity.saturating_sub(step));
        if bucket.first < alone && bucket.first <= last {
            ranges.push(Range { bucket: Bucket { first: bucket.first, last }, tokens: prefill });
        }
    }
    (ranges, capacity)
}

/// Programs for all ranges of a run.
pub struct BuiltAll {
    pub built: Vec<Built>,
    pub lowered: Vec<Lowered>,
    /// Which stored schedules are used or left out, a sentence each.
    pub stored: Vec<String>,
}

/// Lowers, validates and compiles a model for a target, one program per range.
///
/// # Errors
/// Whatever any stage refuses.
pub fn build_all(
    shape: &Shape,
    target: &Target,
    options: &OpenOptions<'_>,
) -> Result<BuiltAll, EngineError> {
    let max = shape.sizes.max_positions;
    let prefill = match &options.want {
        Want::Sequence { prompt: n, .. } | Want::Anything { positions: n } if *n > 1 => {
            most_tokens(shape, target, &options.knobs, 0, options.mode)
        }
        _ => 1,
    };
    let (ranges, capacity) = choose(max, &options.want, prefill);
    let request = BuildRequest {
        target,
        nvrtc: options.nvrtc,
        cache: options.cache,
        options: options.knobs.render_options(options.render),
        spills: options.spills,
        corrupt: options.corrupt.as_ref(),
    };
    let single: Vec<Bucket> = ranges.iter().filter(|r| r.tokens == 1).map(|r| r.bucket).collect();
    let (chosen, common, stored) = match &options.stored {
        Some(store) => choose_all(store, shape, target, options.mode, &single),
        None => (Vec::new(), options.knobs.clone(), Vec::new()),
    };
    let knobs_for = |range: &Range| {
        let at = single.iter().position(|b| range.tokens == 1 && *b == range.bucket);
        at.and_then(|i| chosen.get(i).cloned().flatten()).unwrap_or_else(|| common.clone())
    };
    let make = |range: &Range| -> Result<(Built, Lowered), EngineError> {
        let knobs = Knobs {
            tokens: range.tokens,
            capacity: options.knobs.capacity.or(Some(capacity)),
            sampled: options.knobs.sampled,
            ..knobs_for(range)
        };
        let low = lower(shape, target, &knobs, range.bucket, options.mode)?;
        let options = knobs.render_options(options.render);
        let request = BuildRequest { options, ..request };
        Ok((build(low.program.clone(), &request)?, low))
    };
    // Each program is lowered, proved and compiled on a thread of its own.
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranges.iter().map(|r| scope.spawn(move || make(r))).collect();
        let joined = threads.into_iter().map(|t| {
            t.join().unwrap_or_else(|_| {
                Err(EngineError::Mismatch("making a program ended unexpectedly".to_owned()))
            })
        });
        joined.collect()
    });
    let (mut built, mut lowered) = (Vec::new(), Vec::new());
    for result in made {
        let (b, l) = result?;
        built.push(b);
        lowered.push(l);
    }
    Ok(BuiltAll { built, lowered, stored })
}

/// A model on a device, and what it was made for.
pub struct Opened {
    pub engine: Engine,
    pub target: Target,
    pub mode: Mode,
    /// The images run from their PTX, which the driver compiles, since the device is newer than the target.
    pub from_ptx: bool,
    /// Which stored schedules are used or left out, a sentence each.
    pub stored: Vec<String>,
}

/// Opens a checkpoint on a device. `say` gets the memory needed and free before anything is uploaded.
///
/// # Errors
/// Whatever any stage refuses.
pub fn open(
    device: &Device,
    checkpoint: &Checkpoint,
    options: &OpenOptions<'_>,
    say: &mut dyn FnMut(&Memory, u64),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Opened, EngineError> {
    let target = match &options.target {
        Some(target) => target.clone(),
        None => target_of(device.facts(), options.nvrtc)?,
    };
    check_target(&target, device.facts())?;
    let shape = Shape::of(checkpoint);
    let BuiltAll { built, lowered, stored } = build_all(&shape, &target, options)?;
    let first = lowered.first().ok_or_else(|| LowerError::Shape {
        what: "number of positions",
        value: 0,
        expected: "at least 1".to_owned(),
    })?;
    let data = RecipeData::new(first, checkpoint)?;
    let keep = options.keep.as_ref().and_then(|folder| {
        let key = packed::key(&first.program, checkpoint)?;
        Some(Keep { cache: PackedCache::at(folder.clone()), key })
    });
    let mut engine = Engine::new(device, built, &data as &dyn Data, keep.as_ref(), say, progress)?;
    engine.rotate_by(first, checkpoint.config());
    let arch = target.sm.parse::<Arch>().ok();
    let form = arch.and_then(|a| form_for(a, device.facts().capability));
    Ok(Opened { engine, target, mode: options.mode, from_ptx: form == Some(Form::Ptx), stored })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::resolve;

    fn ranges(max: u64, prompt: u64, positions: u64, prefill: u32) -> (Vec<(u64, u64, u32)>, u64) {
        let (r, capacity) = choose(max, &Want::Sequence { prompt, positions }, prefill);
        (r.iter().map(|r| (r.bucket.first, r.bucket.last, r.tokens)).collect(), capacity)
    }

    #[test]
    fn a_short_run_needs_two_programs() {
        assert_eq!(ranges(131_072, 20, 80, 16), (vec![(0, 255, 1), (0, 255, 16)], 4096));
        assert_eq!(ranges(131_072, 15, 80, 16), (vec![(0, 255, 1)], 4096));
        assert_eq!(ranges(131_072, 20, 80, 1), (vec![(0, 255, 1)], 4096));
    }

    #[test]
    fn steps_of_several_positions_end_within_the_cache() {
        let (r, capacity) = ranges(512, 500, 512, 16);
        assert_eq!(capacity, 512);
        assert_eq!(r, [(0, 255, 16), (256, 511, 1), (256, 496, 16)]);
        let (r, capacity) = ranges(131_072, 4090, 4096, 5);
        assert_eq!(capacity, 4096);
        assert_eq!(r, [(0, 255, 5), (256, 1023, 5), (1024, 4095, 1), (1024, 4091, 5)]);
    }

    #[test]
    fn anything_needs_single_steps_everywhere() {
        let (r, _) = choose(512, &Want::Anything { positions: 500 }, 16);
        let r: Vec<_> = r.iter().map(|r| (r.bucket.first, r.bucket.last, r.tokens)).collect();
        assert_eq!(r, [(0, 255, 1), (0, 255, 16), (256, 511, 1), (256, 496, 16)]);
    }

    #[test]
    fn longer_runs_have_a_larger_cache() {
        let (r, capacity) = ranges(131_072, 10, 5000, 16);
        assert_eq!(capacity, 16_384);
        assert_eq!(r.iter().map(|r| r.0).collect::<Vec<_>>(), [0, 256, 1024, 4096]);
    }

    /// Whatever the prompt, every launch that will be made has a program.
    #[test]
    fn every_position_of_a_run_is_covered() {
        use crate::decode::{ProgramFacts, next_launch};
        for (max, prefill) in [(40u64, 3u32), (300, 16), (512, 5), (2000, 16)] {
            for prompt in (1..max).step_by(7) {
                for new in [1, 9, 400] {
                    let positions = (prompt + new).min(max);
                    let (ranges, capacity) =
                        choose(max, &Want::Sequence { prompt, positions }, prefill);
                    assert!(ranges.iter().all(|r| r.bucket.last + u64::from(r.tokens) <= capacity));
                    let facts: Vec<_> = ranges
                        .iter()
                        .map(|r| ProgramFacts {
                            bucket: r.bucket,
                            tokens: u64::from(r.tokens),
                            max_steps: if r.tokens > 1 { 1 } else { 1 << 16 },
                        })
                        .collect();
                    let end = (prompt + new - 1).min(max);
                    let mut at = 0;
                    while at < end {
                        let plan = next_launch(&facts, at, prompt, end, 1024);
                        let plan = plan.unwrap_or_else(|| {
                            panic!("{max} {prefill} {prompt} {new}: nothing at {at}: {ranges:?}")
                        });
                        at = plan.end();
                    }
                }
            }
        }
    }

    #[test]
    fn targets_within_the_device_are_taken() {
        let own = resolve("h200").unwrap().target;
        let facts = DeviceFacts {
            name: "NVIDIA H200".into(),
            capability: (9, 0),
            sm_count: 132,
            shared_per_block: 232_448,
            shared_per_sm: 233_472,
            reserved_shared: 1024,
            registers_per_sm: 65_536,
            threads_per_block: 1024,
            l2_bytes: 60 << 20,
            memory_clock_khz: 0,
            memory_bus_bits: 6144,
            memory_bytes: 1,
            cooperative: true,
        };
        check_target(&own, &facts).unwrap();
        check_target(&resolve("sm_80").unwrap().target, &facts).unwrap();
        let consumer = resolve("sm_120").unwrap().target;
        let text = check_target(&consumer, &facts).unwrap_err().to_string();
        assert!(text.contains("sm_120") && text.contains("9.0"), "{text}");
        let limited = limited_to(&own, &consumer);
        assert_eq!(limited.sm, own.sm);
        assert_eq!(limited.shared_per_block, consumer.shared_per_block);
        check_target(&limited, &facts).unwrap();
        let claims = Target { sm_count: 200, ..own };
        let text = check_target(&claims, &facts).unwrap_err().to_string();
        assert!(text.contains("200") && text.contains("132"), "{text}");
    }
}
