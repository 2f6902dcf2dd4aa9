//! `amk inspect`: what a model is.

use std::path::PathBuf;

use amk_models::config::RopeScaling;
use amk_models::{Checkpoint, ModelConfig, Source, shape_only};
use clap::Args;
use serde::Serialize;

use super::{Failure, Outcome, Verdict, model};
use crate::output::{self, Output, Tone};

/// Show what a model is: architecture, sizes, weights, tokenizer.
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
    weights: Option<WeightsDocument>,
    tokenizer: Option<TokenizerDocument>,
    eos_ids: Vec<u32>,
    not_applied: &'a [String],
}

#[derive(Serialize)]
struct WeightsDocument {
    bytes: u64,
    tensors: usize,
    files: Vec<String>,
    dtypes: Vec<String>,
    tied: bool,
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
        weights: Some(WeightsDocument {
            bytes: weights.bytes(),
            tensors: weights.iter().count(),
            files: weights.files().to_vec(),
            dtypes: weights.dtypes().iter().map(ToString::to_string).collect(),
            tied: weights.is_tied(),
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
        RopeScaling::Linear { factor } => format!(", linear factor {factor}"),
        RopeScaling::Llama3 { factor, .. } => format!(", llama3 factor {factor}"),
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
