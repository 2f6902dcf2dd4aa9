//! `amk verify`: does an executor say what HuggingFace transformers says?

use std::path::PathBuf;

use amk::lower::Mode;
use amk_models::Reference;
use amk_models::golden::{
    FileReport, Golden, GoldenError, Limits, LogitSource, Run, VerifyReport, verify_f32,
    verify_reduced,
};
use clap::Args;

use super::compile::Compute;
use super::device::{CudaArgs, Plan, source_failure};
use super::generate::{Device, source};
use super::{Failure, Outcome, Verdict, model};
use crate::output::{self, Output, Tone};

/// Compare with golden outputs of HuggingFace transformers.
#[derive(Args)]
#[command(after_help = "\
Exit code 0 if every file passes, 1 if one does not, 2 if a golden was made from other files than the
model's.

Examples:
  amk verify path/to/checkpoint --golden golden.json
  amk verify path/to/checkpoint --golden golden.json --prompts 2 --json
  amk verify path/to/checkpoint --golden golden.json --activations bf16 --device cuda")]
pub struct VerifyArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// Golden files of this very checkpoint.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    golden: Vec<PathBuf>,
    /// The arithmetic to compare in: f32 token for token, logits within 1e-3; bf16 by a rule fixed
    /// beforehand, which the CPU has no need of.
    #[arg(long = "activations", visible_alias = "compute", value_enum, default_value_t = Compute::F32)]
    compute: Compute,
    /// What runs the model.
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub device: Device,
    /// Compare the first N prompts of each file only.
    #[arg(long, value_name = "N")]
    prompts: Option<usize>,
    /// Compare the first N generated tokens of each prompt only.
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    #[command(flatten)]
    cuda: CudaArgs,
}

pub fn run(args: &VerifyArgs, out: &Output) -> Outcome {
    let checkpoint = model::open(args.model.as_deref(), out)?;
    // All files are read and matched before anything is computed.
    let mut goldens = Vec::new();
    for path in &args.golden {
        let golden = Golden::read(path).map_err(Failure::input)?;
        golden.check_files(checkpoint.files()).map_err(Failure::input)?;
        goldens.push(golden);
    }
    let positions = positions(&goldens);
    let mut source: Box<dyn LogitSource> = match args.device.choose(&args.cuda, &checkpoint) {
        Device::Cuda => {
            // The teacher-forced pass steps through every position.
            let plan = Plan::anything(Mode::from(args.compute), positions);
            Box::new(args.cuda.open(&checkpoint, &plan, out)?.opened.engine)
        }
        other => source(other, Some(args.compute), &checkpoint, positions)?,
    };
    let mut reference = match args.compute {
        Compute::F32 => None,
        Compute::Bf16 => Some(Reference::new(&checkpoint).map_err(Failure::input)?),
    };
    let limits = Limits {
        prompts: args.prompts.unwrap_or(usize::MAX),
        tokens: args.tokens.unwrap_or(usize::MAX),
        ..Limits::default()
    };
    let mut files = Vec::new();
    for golden in &goldens {
        let spinner = out.spinner(&format!("comparing with {}", golden.checkpoint));
        let result = match &mut reference {
            None => verify_f32(golden, source.as_mut(), limits),
            Some(reference) => verify_reduced(golden, "bf16", source.as_mut(), reference, limits),
        };
        spinner.finish_and_clear();
        let report = result.map_err(|error| match &error {
            GoldenError::Source { source, .. } => {
                source_failure(source.as_ref(), &error.to_string())
            }
            _ => Failure::input(error),
        })?;
        show(&report, out);
        files.push(report);
    }
    let report = VerifyReport::new(files);
    out.document(&report);
    Ok(Verdict::of(report.ok))
}

/// Positions that the longest sequence of the goldens takes.
fn positions(goldens: &[Golden]) -> usize {
    let runs = goldens.iter().flat_map(|g| g.runs.values());
    let prompts =
        |r: &Run| r.prompts.iter().map(|p| p.prompt_ids.len() + p.generated_ids.len()).max();
    runs.flat_map(|r| [prompts(r).unwrap_or(0), r.perplexity.ids.len()]).max().unwrap_or(1)
}

fn show(report: &FileReport, out: &Output) {
    let verdict = match report.ok {
        true => out.paint(Tone::Good, "passed"),
        false => out.paint(Tone::Bad, "failed"),
    };
    out.line(format!(
        "{verdict}  {} in {}: {}, {} exact, {} excused, {} mismatched of {}, largest logit difference {:.2e}",
        report.name,
        report.compute,
        output::count(report.prompts, "prompt"),
        report.exact,
        report.excused,
        report.mismatched,
        output::count(report.positions, "position"),
        report.max_abs_logit_error
    ));
    for failure in &report.failures {
        out.line(format!("        {failure}"));
    }
    if let Some(m) = &report.first_mismatch {
        let margin =
            m.margin.map_or_else(String::new, |m| format!("; HuggingFace's margin there {m}"));
        out.line(format!(
            "        first difference: prompt {}, {} step {}, {}: token {} with {} expected, token {} with {} found{margin}",
            m.prompt, m.pass, m.step, m.what, m.expected_token, m.expected_logit, m.actual_token, m.actual_logit
        ));
    }
    if let Some(p) = &report.perplexity {
        out.detail(format!(
            "        perplexity {:.6}, HuggingFace {:.6}, {} tokens",
            p.actual, p.expected, p.tokens
        ));
    }
}
