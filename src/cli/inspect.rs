//! `amk inspect`: what a model is.

use std::collections::BTreeSet;
use std::path::PathBuf;

use amk::lower::{Knobs, Mode, Shape, lower_for};
use amk::pipeline::default_mode;
use amk::target::default_targets;
use amk_models::config::RopeScaling;
use amk_models::files::Files;
use amk_models::{
    Checkpoint, CheckpointError, Feature, ModelConfig, Refusal, Role, Source, Survey, WeightTensor,
};
use clap::Args;
use serde::Serialize;

use super::{Outcome, Verdict, model};
use crate::output::{self, Output, Tone};

/// Show what a model is: architecture, sizes, weights and what each tensor became, tokenizer, memory, targets.
#[derive(Args)]
#[command(after_help = "\
A model that is refused is described as far as it is understood, with every reason against it: family,
field, tensor, file (exit code 2). Other commands stop at the first.

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
    /// Whether it is loaded.
    ok: bool,
    name: String,
    source: Option<&'a Source>,
    /// None where the numbers it consists of are refused.
    config: Option<&'a ModelConfig>,
    /// Every reason against it.
    refusals: Vec<Refusal>,
    parameters: Option<u64>,
    kv_bytes_per_position_f32: Option<u64>,
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
    /// None for a tensor without a place.
    became: Option<Role>,
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
        let survey = Survey::of_config(path).map_err(|e| model::failure(&e))?;
        let name = path.display().to_string();
        return Ok(answer(&surveyed(name, None, &survey), out));
    }
    let model = args.model.as_deref();
    let named = |e| model::named(model, &e);
    let (files, source) = Checkpoint::locate(model, out.shows_progress()).map_err(named)?;
    match Checkpoint::from_files(files.clone(), source.clone()) {
        Ok(checkpoint) => match describe(&checkpoint) {
            Ok(document) => Ok(answer(&document, out)),
            // The tokenizer is at fault.
            Err(error) => refused(model, &files, &source, error, out),
        },
        Err(error) => refused(model, &files, &source, error, out),
    }
}

/// Says what a refused model is and all that is wrong with it.
fn refused(
    model: Option<&str>,
    files: &Files,
    source: &Source,
    error: CheckpointError,
    out: &Output,
) -> Outcome {
    let survey = match Survey::of_files(files) {
        Ok(survey) if !survey.refusals.is_empty() => survey,
        // There is nothing to describe.
        _ => return Err(model::named(model, &error)),
    };
    let name = model.map_or_else(|| source.name(), str::to_owned);
    Ok(answer(&surveyed(name, Some(source), &survey), out))
}

/// Refusals that are printed; a document has them all.
const SHOWN: usize = 8;

fn answer(document: &InspectDocument<'_>, out: &Output) -> Verdict {
    show(document, out);
    out.document(document);
    for refusal in document.refusals.iter().take(SHOWN) {
        let name = match refusal.message.contains(&document.name) {
            true => String::new(),
            false => format!("{}: ", document.name),
        };
        out.error(format!("{name}{}", refusal.message), None);
    }
    if let Some(more) = document.refusals.len().checked_sub(SHOWN).filter(|n| *n > 0) {
        out.error(format!("{}: {more} refusals more; --json lists them", document.name), None);
    }
    if document.ok { Verdict::Yes } else { Verdict::Refused }
}

/// A model of which only the survey is known.
fn surveyed<'a>(
    name: String,
    source: Option<&'a Source>,
    survey: &'a Survey,
) -> InspectDocument<'a> {
    let config = survey.config.as_ref();
    let tensors = survey.tensors.iter();
    let bytes = tensors.clone().map(|(t, _)| t.bytes().len() as u64).sum();
    let files: BTreeSet<&str> = tensors.clone().map(|(t, _)| t.file()).collect();
    let types: BTreeSet<&str> = tensors.clone().map(|(t, _)| t.stored_dtype()).collect();
    let texts = |set: BTreeSet<&str>| set.into_iter().map(str::to_owned).collect();
    let weights = (!survey.tensors.is_empty()).then(|| WeightsDocument {
        bytes,
        tensors: survey.tensors.len(),
        files: texts(files),
        dtypes: texts(types),
        tied: config.is_some_and(|c| c.tie_word_embeddings),
        tensors_became: tensors.map(|(t, role)| tensor(t, *role, layer_of(t.name()))).collect(),
    });
    InspectDocument {
        ok: survey.refusals.is_empty(),
        name,
        source,
        config,
        refusals: survey.refusals.clone(),
        parameters: config.and_then(ModelConfig::parameter_count),
        kv_bytes_per_position_f32: config.and_then(ModelConfig::kv_bytes_f32),
        features: config.map(ModelConfig::features).unwrap_or_default(),
        memory_bytes_full_context: weights
            .as_ref()
            .zip(config)
            .and_then(|(w, c)| memory(c, w.bytes)),
        targets: config.map(|c| fits(Shape::of_config("", c), Mode::Bf16)).unwrap_or_default(),
        weights,
        tokenizer: None,
        eos_ids: config.map(|c| c.eos_token_ids.clone()).unwrap_or_default(),
        not_applied: &[],
    }
}

fn describe(checkpoint: &Checkpoint) -> Result<InspectDocument<'_>, CheckpointError> {
    let config = checkpoint.config();
    let weights = checkpoint.weights();
    let tokenizer = checkpoint.tokenizer()?;
    let eos = checkpoint.eos_ids()?;
    Ok(InspectDocument {
        ok: true,
        name: checkpoint.name(),
        source: Some(checkpoint.source()),
        config: Some(config),
        refusals: Vec::new(),
        parameters: config.parameter_count(),
        kv_bytes_per_position_f32: config.kv_bytes_f32(),
        features: config.features(),
        memory_bytes_full_context: memory(config, weights.bytes()),
        targets: fits(Shape::of(checkpoint), default_mode(checkpoint)),
        weights: Some(WeightsDocument {
            bytes: weights.bytes(),
            tensors: weights.iter().count(),
            files: weights.files().to_vec(),
            dtypes: weights.dtypes().iter().map(ToString::to_string).collect(),
            tied: weights.is_tied(),
            tensors_became: weights
                .roles()
                .map(|(layer, became, t)| tensor(t, Some(became), layer))
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

fn tensor(t: &WeightTensor, became: Option<Role>, layer: Option<usize>) -> TensorDocument {
    TensorDocument {
        name: t.name().to_owned(),
        became,
        layer,
        dtype: t.stored_dtype().to_owned(),
        shape: t.shape().to_vec(),
        bytes: t.bytes().len() as u64,
        file: t.file().to_owned(),
    }
}

/// The layer that a tensor's name speaks of.
fn layer_of(name: &str) -> Option<usize> {
    name.split('.').find_map(|part| part.parse().ok())
}

/// Bytes of weights, and of keys and values of the whole context in float32.
fn memory(config: &ModelConfig, weights: u64) -> Option<u64> {
    config.kv_bytes_f32()?.checked_mul(config.capacity() as u64)?.checked_add(weights)
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

fn show(d: &InspectDocument<'_>, out: &Output) {
    let row = |name: &str, value: String| out.line(format!("{name:<14} {value}"));
    out.line(out.paint(Tone::Strong, &d.name));
    if let Some(config) = d.config {
        show_config(config, d.parameters, &row);
    }
    show_rest(d, &row, out);
}

fn show_config(c: &ModelConfig, parameters: Option<u64>, row: &dyn Fn(&str, String)) {
    row("family", c.family.architecture.to_owned());
    if let Some(parameters) = parameters {
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
    row("context", format!("{} positions", c.capacity()));
    let scaling = match c.rope.scaling {
        RopeScaling::Default => String::new(),
        RopeScaling::Factors { ref factors } => format!(", {} factors", factors.len()),
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
}

fn show_rest(d: &InspectDocument<'_>, row: &dyn Fn(&str, String), out: &Output) {
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
    if let (Some(memory), Some(c)) = (d.memory_bytes_full_context, d.config) {
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
        None if d.config.is_none() => {}
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
        None if d.weights.is_some() && d.ok => {
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
        let became = became.as_ref().and_then(|v| v.as_str()).unwrap_or("nothing");
        let became = became.replace('_', " ");
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
