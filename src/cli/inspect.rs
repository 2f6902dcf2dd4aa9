//! `amk inspect`: what a model is.

use std::path::PathBuf;

use amk::lower::{Knobs, Mode, Shape, lower_for};
use amk::pipeline::default_mode;
use amk::target::default_targets;
use amk_models::config::RopeScaling;
use amk_models::{Checkpoint, Feature, ModelConfig, Role, Source, shape_only};
use clap::Args;
use serde::Serialize;

use super::{Failure, Outcome, Verdict, model};
use crate::output::{self, Output, Tone};

/// Show what a model is: architecture, sizes, weights and what each tensor became, tokenizer, memory, targets.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk inspect
  amk inspect path/to/checkpoint --json
  amk inspect --shape-only config.json")]
pub struct InspectArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// Read a config.json alone, without weights.
    #[arg(long, value_name = "CONFIG.json", conflicts_with = "model")]
    shape_only: Option<PathBuf>,
}

#[derive(Serialize)]
struct InspectDocument<'a> {
    name: String,
    source: Option<&'a Source>,
    config: &'a ModelConfig,
    parameters: Option<u64>,
    kv_bytes_per_position_f32: u64,
    /// What it does beyond the plain Llama block.
    features: Vec<Feature>,
    /// Stored weights, and keys and values of the whole context in float32, bytes; activations are small beside them.
    memory_bytes_full_context: Option<u64>,
    /// Parts that have a schedule for it.
    targets: Vec<TargetFit>,
    weights: Option<WeightsDocument>,
    tokenizer: Option<TokenizerDocument>,
    eos_ids: Vec<u32>,
    not_applied: &'a [String],
}

#[derive(Serialize)]
struct TargetFit {
    name: String,
    fits: bool,
    /// Why not.
    reason: Option<String>,
}

/// A tensor of the checkpoint and what it became.
#[derive(Serialize)]
struct TensorDocument {
    name: String,
    became: Role,
    layer: Option<usize>,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
    file: String,
}

#[derive(Serialize)]
struct WeightsDocument {
    bytes: u64,
    tensors: usize,
    files: Vec<String>,
    dtypes: Vec<String>,
    tied: bool,
    tensors_became: Vec<TensorDocument>,
}

#[derive(Serialize)]
struct TokenizerDocument {
    vocab_size: usize,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    chat_template: bool,
}

pub fn run(args: &InspectArgs, out: &Output) -> Outcome {
    if let Some(path) = &args.shape_only {
        let config = shape_only(path).map_err(|e| model::failure(&e))?;
        let document = InspectDocument {
            name: path.display().to_string(),
            source: None,
            parameters: config.parameter_count(),
            kv_bytes_per_position_f32: kv_bytes(&config),
            features: config.features(),
            memory_bytes_full_context: None,
            targets: fits(Shape::of_config("", &config), Mode::Bf16),
            weights: None,
            tokenizer: None,
            eos_ids: config.eos_token_ids.clone(),
            not_applied: &[],
            config: &config,
        };
        show(&document, out);
        out.document(&document);
        return Ok(Verdict::Yes);
    }
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let document = describe(&checkpoint)?;
    show(&document, out);
    out.document(&document);
    Ok(Verdict::Yes)
}

fn describe(checkpoint: &Checkpoint) -> Result<InspectDocument<'_>, Failure> {
    let config = checkpoint.config();
    let weights = checkpoint.weights();
    let tokenizer = checkpoint.tokenizer().map_err(|e| model::failure(&e))?;
    let eos = checkpoint.eos_ids().map_err(|e| model::failure(&e))?;
    Ok(InspectDocument {
        name: checkpoint.name(),
        source: Some(checkpoint.source()),
        config,
        parameters: config.parameter_count(),
        kv_bytes_per_position_f32: kv_bytes(config),
        features: config.features(),
        memory_bytes_full_context: kv_bytes(config)
            .checked_mul(config.capacity() as u64)
            .and_then(|kv| kv.checked_add(weights.bytes())),
        targets: fits(Shape::of(checkpoint), default_mode(checkpoint)),
        weights: Some(WeightsDocument {
            bytes: weights.bytes(),
            tensors: weights.iter().count(),
            files: weights.files().to_vec(),
            dtypes: weights.dtypes().iter().map(ToString::to_string).collect(),
            tied: weights.is_tied(),
            tensors_became: weights
                .roles()
                .map(|(layer, became, t)| TensorDocument {
                    name: t.name().to_owned(),
                    became,
                    layer,
                    dtype: t.stored_dtype().to_owned(),
                    shape: t.shape().to_vec(),
                    bytes: t.bytes().len() as u64,
                    file: t.file().to_owned(),
                })
                .collect(),
        }),
        tokenizer: tokenizer.map(|t| TokenizerDocument {
            vocab_size: t.vocab_size(),
            bos_id: t.bos_id(),
            eos_id: t.eos_id(),
            chat_template: t.chat_template().is_some(),
        }),
        eos_ids: eos.into_iter().collect(),
        not_applied: &checkpoint.generation().not_applied,
    })
}

/// Which parts have a schedule for a model. One layer says as much as all of them.
fn fits(mut shape: Shape, mode: Mode) -> Vec<TargetFit> {
    // No part holds a layer of that many elements, and planning one takes memory.
    let s = &shape.sizes;
    let widest = u128::from(s.hidden) * (u128::from(s.vocab) + 4 * u128::from(s.inner));
    if widest > 1 << 35 {
        return Vec::new();
    }
    shape.layers.truncate(1);
    shape.sizes.layers = shape.layers.len() as u64;
    default_targets()
        .into_iter()
        .map(|target| {
            let lowered = lower_for(&shape, &target, &Knobs::default(), 0, mode);
            let reason = lowered.err().map(|e| e.to_string());
            TargetFit { name: target.name, fits: reason.is_none(), reason }
        })
        .collect()
}

/// Keys and values of one position in float32, bytes.
fn kv_bytes(config: &ModelConfig) -> u64 {
    8 * config.num_layers as u64 * config.kv_width() as u64
}

fn show(d: &InspectDocument<'_>, out: &Output) {
    let c = d.config;
    let row = |name: &str, value: String| out.line(format!("{name:<14} {value}"));
    out.line(out.paint(Tone::Strong, &d.name));
    row("family", c.family.architecture.to_owned());
    if let Some(parameters) = d.parameters {
        row("parameters", format!("{:.3} million", parameters as f64 / 1e6));
    }
    row(
        "layers",
        format!("{} of width {}, MLP {}", c.num_layers, c.hidden_size, c.intermediate_size),
    );
    row(
        "heads",
        format!("{} query, {} key/value, of width {}", c.num_heads, c.num_kv_heads, c.head_dim),
    );
    let tied = if c.tie_word_embeddings { ", output head tied" } else { "" };
    row("vocabulary", format!("{}{tied}", c.vocab_size));
    row("context", format!("{} positions", c.max_position_embeddings));
    let scaling = match c.rope.scaling {
        RopeScaling::Default => String::new(),
        RopeScaling::LongRope { ref short_factor, .. } => {
            format!(", longrope of {} factors", short_factor.len())
        }
        RopeScaling::Linear { factor }
        | RopeScaling::Dynamic { factor, .. }
        | RopeScaling::Llama3 { factor, .. }
        | RopeScaling::Yarn { factor, .. } => {
            format!(", {} factor {factor}", c.rope.scaling.name())
        }
    };
    row("rope", format!("theta {}{scaling}", c.rope.theta));
    row("norm", format!("RMS, epsilon {:e}", c.rms_norm_eps));
    if let Some(w) = &d.weights {
        let files = output::count(w.files.len(), "file");
        let tensors = output::count(w.tensors, "tensor");
        row(
            "weights",
            format!("{} {} in {tensors}, {files}", output::bytes(w.bytes), w.dtypes.join(" and ")),
        );
    }
    if let Some(w) = &d.weights {
        show_tensors(w, out);
    }
    if let Some(memory) = d.memory_bytes_full_context {
        row(
            "memory",
            format!(
                "{} with the keys and values of {} positions",
                output::bytes(memory),
                c.capacity()
            ),
        );
    }
    for feature in &d.features {
        row("feature", feature.describe().to_owned());
    }
    match d.targets.iter().find_map(|t| t.reason.as_ref()) {
        Some(reason) if d.targets.iter().all(|t| !t.fits) => {
            row("targets", format!("none: {reason}"));
        }
        None if d.targets.is_empty() => row("targets", "none: the layers are too large".to_owned()),
        _ => {
            let names = d.targets.iter().filter(|t| t.fits).map(|t| t.name.as_str());
            row("targets", names.collect::<Vec<_>>().join(", "));
        }
    }
    match &d.tokenizer {
        Some(t) => {
            let chat = if t.chat_template { "with" } else { "without" };
            let id = |id: Option<u32>| id.map_or_else(|| "none".to_owned(), |i| i.to_string());
            let (bos, eos) = (id(t.bos_id), id(t.eos_id));
            row(
                "tokenizer",
                format!("{} ids, BOS {bos}, EOS {eos}, {chat} chat template", t.vocab_size),
            );
        }
        None if d.weights.is_some() => {
            row("tokenizer", "none; prompts are given as ids".to_owned())
        }
        None => {}
    }
    for setting in d.not_applied {
        row("not applied", format!("{setting} of generation_config.json: decoding is greedy"));
    }
}

/// A line for each kind of tensor: those of all layers together.
fn show_tensors(w: &WeightsDocument, out: &Output) {
    let mut kinds: Vec<(&TensorDocument, usize, u64)> = Vec::new();
    for t in &w.tensors_became {
        let same = |k: &&mut (&TensorDocument, usize, u64)| {
            (k.0.became, &k.0.shape, &k.0.dtype) == (t.became, &t.shape, &t.dtype)
        };
        match kinds.iter_mut().find(same) {
            Some(kind) => (kind.1, kind.2) = (kind.1 + 1, kind.2 + t.bytes),
            None => kinds.push((t, 1, t.bytes)),
        }
    }
    for (t, count, bytes) in kinds {
        let became = serde_json::to_value(t.became).ok();
        let became = became.as_ref().and_then(|v| v.as_str()).unwrap_or_default().replace('_', " ");
        out.detail(format!(
            "  {became:<22} {:>4} x {:?} {}, {}: {}",
            count,
            t.shape,
            t.dtype,
            output::bytes(bytes),
            t.name
        ));
    }
}
