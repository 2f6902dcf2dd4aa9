//! A checkpoint opened on a device: target from the device itself, one program per position bucket.

use amk_models::Checkpoint;
use amk_schedule_ir::{Bucket, Target};

use super::{BuildRequest, Built, Engine, EngineError, build};
use crate::codegen::RenderOptions;
use crate::device::Device;
use crate::image::ImageCache;
use crate::lower::{Knobs, Mode, Shape, buckets, lower};
use crate::target::{describe_device, records};
use crate::toolchain::{Nvrtc, SpillPolicy};
use crate::vm::{Data, RecipeData};

/// How to open a model.
pub struct OpenOptions<'a> {
    pub mode: Mode,
    pub knobs: Knobs,
    /// Position buckets to build; empty = all up to the cache's capacity.
    pub buckets: Vec<Bucket>,
    pub nvrtc: &'a Nvrtc,
    pub cache: &'a ImageCache,
    pub render: RenderOptions,
    /// What to do about register spills.
    pub spills: SpillPolicy,
}

/// The record of the device's part with the device's own numbers, or one made from its answers.
pub fn target_of(device: &Device, nvrtc: &Nvrtc) -> Result<Target, EngineError> {
    let facts = device.facts();
    let (mut target, _) = describe_device(facts, Some(nvrtc.supported()))
        .map_err(|e| EngineError::Mismatch(e.to_string()))?;
    let lower = facts.name.to_lowercase();
    if let Some(known) = records().iter().find(|r| lower.contains(&r.target.name)) {
        if known.target.sm == target.sm {
            target.measured_gbps = known.target.measured_gbps;
            target.nominal_gbps = known.target.nominal_gbps;
        }
    }
    Ok(target)
}

/// Lowers, validates and compiles a model for the device, one program per bucket.
///
/// # Errors
/// Whatever any stage refuses.
pub fn build_all(
    shape: &Shape,
    target: &Target,
    options: &OpenOptions<'_>,
) -> Result<(Vec<Built>, Vec<crate::lowered::Lowered>), EngineError> {
    let mut knobs = options.knobs.clone();
    let mut wanted = options.buckets.clone();
    if wanted.is_empty() {
        let most = knobs.capacity.unwrap_or(shape.sizes.max_positions.min(4096));
        wanted = buckets(most);
    }
    // All programs share one cache.
    let last = wanted.iter().map(|b| b.last).max().unwrap_or(0);
    knobs
        .capacity
        .get_or_insert((last + u64::from(knobs.tokens)).max(shape.sizes.max_positions.min(4096)));
    let request = BuildRequest {
        target,
        nvrtc: options.nvrtc,
        cache: options.cache,
        options: options.render,
        spills: options.spills,
    };
    let (mut built, mut lowered) = (Vec::new(), Vec::new());
    for bucket in wanted {
        let low = lower(shape, target, &knobs, bucket, options.mode)?;
        built.push(build(low.program.clone(), &request)?);
        lowered.push(low);
    }
    Ok((built, lowered))
}

/// Opens a checkpoint on a device.
///
/// # Errors
/// Whatever any stage refuses.
pub fn open(
    device: &Device,
    checkpoint: &Checkpoint,
    options: &OpenOptions<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Engine, EngineError> {
    let target = target_of(device, options.nvrtc)?;
    let shape = Shape::of(checkpoint);
    let (built, lowered) = build_all(&shape, &target, options)?;
    let first = lowered
        .first()
        .ok_or_else(|| EngineError::Mismatch("no bucket was asked for".to_owned()))?;
    let data = RecipeData::new(first, checkpoint)?;
    Engine::new(device, built, &data as &dyn Data, progress)
}
