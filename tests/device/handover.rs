//! The loop that drives an engine, driving schedules on the VM: prompts of every length go through prefill and are
//! handed to decoding, within and across buckets.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use amk::decode::{Executor, LaunchOptions, LaunchPlan, ProgramFacts, decode, feed, next_launch};
use amk::engine::{Want, choose, facts_of};
use amk::generate::{FinishReason, Request, generate};
use amk::lower::{Knobs, Mode, Shape, lower, most_tokens};
use amk::rotary::SequenceRope;
use amk::target::{Target, resolve};
use amk::vm::{Options, RecipeData, VmModel};
use amk_models::golden::{LogitSource, SourceError};
use amk_models::{Checkpoint, Reference};
use amk_schedule_ir::Program;

struct Prepared {
    program: Arc<Program>,
    data: Arc<RecipeData>,
}

/// Programs of a run on the VM. The line of tokens is the host's, as in the engine.
struct Machine {
    prepared: Vec<Prepared>,
    current: Option<(usize, VmModel)>,
    line: Vec<u32>,
    vocab: usize,
    launches: Vec<LaunchPlan>,
    rotary: Option<SequenceRope>,
}

impl Machine {
    fn new(checkpoint: &Checkpoint, mode: Mode, prompt: u64, positions: u64) -> Machine {
        let shape = Shape::of(checkpoint);
        let target = Target { sm_count: 6, ..resolve("h200").unwrap().target };
        let most = most_tokens(&shape, &target, &Knobs::default(), 0, mode);
        let want = Want::Sequence { prompt, positions };
        let (ranges, capacity) = choose(shape.sizes.max_positions, &want, most);
        let prepared = ranges
            .iter()
            .map(|r| {
                let knobs =
                    Knobs { tokens: r.tokens, capacity: Some(capacity), ..Knobs::default() };
                let lowered = lower(&shape, &target, &knobs, r.bucket, mode).unwrap();
                let data = Arc::new(RecipeData::new(&lowered, checkpoint).unwrap());
                Prepared { program: Arc::new(lowered.program), data }
            })
            .collect();
        let vocab = checkpoint.config().vocab_size;
        let rotary = SequenceRope::new(checkpoint.config());
        Machine { prepared, current: None, line: Vec::new(), vocab, launches: Vec::new(), rotary }
    }

    /// What the engine does about rotary frequencies that depend on the sequence: positions fed once more, and a
    /// launch cut short.
    fn rotate(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
    ) -> Result<LaunchPlan, SourceError> {
        let pass = options.pass_len();
        let Some(sequence) = self.rotary.clone() else { return Ok(*plan) };
        if sequence.renews(plan, pass) {
            let end = plan.position;
            let longer = LaunchOptions { prompt_len: end + 1, pass, ..LaunchOptions::default() };
            self.current = None;
            let mut at = 0;
            while at < end {
                let again = next_launch(&self.programs(), at, end, end, 16).unwrap();
                self.fly(&again, &longer, &mut |_| true)?;
                at = again.end();
            }
        }
        let steps = self.rotary.as_ref().unwrap().steps(plan, pass);
        Ok(LaunchPlan { steps, ..*plan })
    }

    fn fly(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u64, SourceError> {
        self.launches.push(*plan);
        if self.current.as_ref().map(|c| c.0) != Some(plan.program) {
            let p = &self.prepared[plan.program];
            let mut next =
                VmModel::with_data(p.program.clone(), p.data.clone(), Options::default())?;
            if let Some((_, last)) = &self.current {
                next.take_over(last, plan.position)?;
            }
            let from = plan.position as usize;
            next.vm().put_tokens(plan.position, &self.line[from..])?;
            self.current = Some((plan.program, next));
        }
        self.prepared[plan.program].data.set_length(options.pass_len());
        let (_, model) = self.current.as_mut().unwrap();
        let outcome = model.vm().run(plan.position, plan.steps).map_err(amk::vm::VmError::from)?;
        let mut steps = 0;
        for step in &outcome.steps {
            steps += 1;
            let next = (plan.position + steps * plan.tokens) as usize;
            let said = step.token.unwrap_or_default();
            let token = match next < options.prompt_len as usize {
                true => self.line[next],
                false => {
                    self.line.resize(next, 0);
                    self.line.push(said);
                    said
                }
            };
            if !each(token) {
                break;
            }
        }
        if let Some(sequence) = &mut self.rotary {
            sequence.done(plan, options.pass_len(), steps);
        }
        Ok(steps)
    }
}

impl Executor for Machine {
    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn programs(&self) -> Vec<ProgramFacts> {
        self.prepared.iter().map(|p| facts_of(&p.program)).collect()
    }

    fn steps_cap(&self) -> u64 {
        16
    }

    fn put_tokens(&mut self, at: u64, tokens: &[u32]) -> Result<(), SourceError> {
        self.line.resize(at as usize, 0);
        self.line.extend(tokens);
        Ok(())
    }

    fn launch(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u64, SourceError> {
        let plan = self.rotate(plan, options)?;
        self.fly(&plan, options, each)
    }
}

fn prompt(checkpoint: &Checkpoint, n: usize) -> Vec<u32> {
    let vocab = checkpoint.config().vocab_size as u32;
    (0..n as u32).map(|i| (i * 7919 + 13) % vocab).collect()
}

fn case(checkpoint: &Checkpoint, mode: Mode, n: usize, new: usize) -> Machine {
    let prompt = prompt(checkpoint, n);
    let capacity = checkpoint.config().capacity();
    let stop = Default::default();
    let request = Request { prompt: &prompt, max_tokens: new, stop: &stop, capacity };
    let mut reference = Reference::new(checkpoint).unwrap();
    let expected = generate(&mut reference, &request, &mut |_| {}).unwrap();
    let mut machine = Machine::new(checkpoint, mode, n as u64, (n + new).min(capacity) as u64);
    let done = decode(&mut machine, &request, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(done.tokens, expected.tokens, "{n} tokens of prompt");
    assert_eq!(done.finish_reason, FinishReason::Length);
    machine
}

fn checkpoint(name: &str) -> Checkpoint {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    Checkpoint::from_folder(&root.join("tests/checkpoints").join(name)).unwrap()
}

#[test]
fn prompts_of_every_length_are_handed_over() {
    let checkpoint = checkpoint("llama-mha-f32");
    for n in [1, 2, 4, 5, 6, 10, 13] {
        let machine = case(&checkpoint, Mode::F32, n, 4);
        let passes = machine.launches.iter().filter(|l| l.tokens > 1).count();
        // Three terms of float32 leave room for five positions a step.
        assert_eq!(passes, n / 5, "{n}");
    }
}

/// A checkpoint of the repository with other rotary parameters.
fn rotated(name: &str, change: &dyn Fn(&mut serde_json::Value)) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    for entry in std::fs::read_dir(root.join(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
    let checkpoint = Checkpoint::from_folder(folder.path()).unwrap();
    (folder, checkpoint)
}

/// Frequencies that grow with the sequence: a prompt within the plain positions that leaves them while decoding, one
/// that is past them at once, and several passes. Keys keep their rotation.
#[test]
fn dynamic_frequencies_follow_the_sequence() {
    let (_folder, checkpoint) = rotated("llama-mha-f32", &|config| {
        config["max_position_embeddings"] = 16.into();
        config["rope_scaling"] = serde_json::json!({"rope_type": "dynamic", "factor": 4.0});
    });
    assert_eq!(checkpoint.config().capacity(), 64);
    for (n, new) in [(7, 14), (16, 3), (17, 3), (31, 5), (3, 4)] {
        case(&checkpoint, Mode::F32, n, new);
    }
}

/// Two sets of frequencies: a sequence that outgrows the original context is made anew with the long ones.
#[test]
fn keys_are_made_anew_where_a_sequence_outgrows_its_context() {
    let (_folder, checkpoint) = rotated("phi3-swa-bf16", &|config| {
        let n = checkpoint_rotary(config) / 2;
        let list = |by: f64| (0..n).map(|i| 1.0 + by * i as f64).collect::<Vec<_>>();
        config["max_position_embeddings"] = 64.into();
        config["original_max_position_embeddings"] = 16.into();
        config["rope_scaling"] = serde_json::json!({
            "type": "longrope", "short_factor": list(0.1), "long_factor": list(0.7)
        });
    });
    for (n, new) in [(7, 14), (16, 4), (15, 4), (17, 4), (31, 3), (3, 4)] {
        let machine = case(&checkpoint, Mode::F32, n, new);
        let again = machine.launches.iter().filter(|l| l.position == 0).count();
        // The last token is never fed back.
        let crossed = n <= 16 && n + new - 1 > 16;
        assert_eq!(again, if crossed { 2 } else { 1 }, "{n} {new}: {:?}", machine.launches);
    }
}

/// Components of a head that are rotated.
fn checkpoint_rotary(config: &serde_json::Value) -> u64 {
    let number = |field: &str| config[field].as_u64();
    let heads = number("num_attention_heads").unwrap();
    number("head_dim").unwrap_or(number("hidden_size").unwrap() / heads)
}

#[test]
fn sixteen_positions_share_a_pass_in_bf16() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let machine = case(&checkpoint, Mode::Bf16, 35, 4);
    let passes: Vec<_> = machine.launches.iter().filter(|l| l.tokens == 16).collect();
    assert_eq!(passes.iter().map(|l| l.position).collect::<Vec<_>>(), [0, 16]);
}

#[test]
fn a_prompt_and_its_answer_cross_buckets() {
    let machine = case(&Checkpoint::embedded().unwrap(), Mode::F32, 252, 10);
    let programs: Vec<usize> = machine.launches.iter().map(|l| l.program).collect();
    let distinct: std::collections::BTreeSet<_> = programs.iter().collect();
    assert!(distinct.len() >= 3, "{programs:?}");
}

/// What `verify` asks of an engine: the logits after a prompt fed in passes.
#[test]
fn a_fed_prompt_leaves_the_reference_s_logits() {
    let checkpoint = checkpoint("llama-mha-f32");
    let prompt = prompt(&checkpoint, 12);
    let mut machine = Machine::new(&checkpoint, Mode::F32, 12, 13);
    feed(&mut machine, &prompt).unwrap();
    assert_eq!(machine.launches.last().unwrap().end(), 12);
    let mut reference = Reference::new(&checkpoint).unwrap();
    let expected = amk_models::greedy(&LogitSource::prompt(&mut reference, &prompt).unwrap());
    assert_eq!(machine.line.get(12).copied(), expected);
}
