//! Kernels that cheat, played by the CPU reference: each fails its self-test, the campaign keeps none, and the journal
//! says why.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use amk::decode::{LaunchPlan, ProgramFacts};
use amk::lower::Mode;
use amk::search::{Subject, cost_model, evaluate, space};
use amk::selftest::{Subject as Tested, test};
use amk::target::resolve;
use amk_autoresearch::{
    CostModel, Event, Evidence, Job, Limits, Observer, Parts, Point, Prepared, Refusal, Stage,
    Worker, begin, journal, proposers,
};
use amk_models::golden::SourceError;
use amk_models::{Checkpoint, Reference, greedy};

/// What the kernel does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cheat {
    Honest,
    /// Ignores the cache: attention sees its own key alone.
    ForgetsThePast,
    /// RoPE of position 0 everywhere.
    StandsStill,
    /// Logits of the launch before.
    StaleOutput,
    /// NaN where the argmax would be.
    NaN,
    /// Right logits, and a token of its own.
    OtherToken,
    /// The same tokens whatever it is asked.
    Precomputed,
    /// Returns early: all logits zero.
    ReturnsEarly,
    /// Logits of half the vocabulary.
    HalfTheHead,
    /// Says one thing step by step and another in one launch.
    OneLaunch,
    /// A constant added and a factor: argmax is right.
    Scaled,
}

const CHEATS: [Cheat; 10] = [
    Cheat::ForgetsThePast,
    Cheat::StandsStill,
    Cheat::StaleOutput,
    Cheat::NaN,
    Cheat::OtherToken,
    Cheat::Precomputed,
    Cheat::ReturnsEarly,
    Cheat::HalfTheHead,
    Cheat::OneLaunch,
    Cheat::Scaled,
];

struct Player {
    reference: Reference,
    facts: ProgramFacts,
    cheat: Cheat,
    last: Vec<f32>,
}

impl Tested for Player {
    fn programs(&self) -> Vec<ProgramFacts> {
        vec![self.facts]
    }

    fn fill(
        &mut self,
        layer: usize,
        rows: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), SourceError> {
        let (width, heads) =
            (self.reference.config().head_dim, self.reference.config().num_kv_heads);
        let turn = |v: &[f32]| -> Vec<f32> {
            let at = |row: usize| (0..heads).map(move |h| (h * rows + row) * width);
            (0..rows).flat_map(at).flat_map(|a| v[a..a + width].iter().copied()).collect()
        };
        Ok(self.reference.preload(layer, rows, turn(keys), turn(values))?)
    }

    fn launch(
        &mut self,
        plan: &LaunchPlan,
        tokens: &[u32],
    ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
        let mut said = Vec::new();
        let (mut feed, mut logits) = (tokens[0], Vec::new());
        for step in 0..plan.steps {
            let mut position = (plan.position + step) as usize;
            if matches!(self.cheat, Cheat::ForgetsThePast | Cheat::StandsStill) {
                position = 0;
            }
            logits = self.reference.forward(feed, position)?;
            feed = greedy(&logits).unwrap_or(0);
            said.push(feed);
        }
        let honest = logits.clone();
        match self.cheat {
            Cheat::StaleOutput if !self.last.is_empty() => logits.clone_from(&self.last),
            Cheat::NaN => logits[0] = f32::NAN,
            Cheat::OtherToken => said.iter_mut().for_each(|t| *t ^= 1),
            Cheat::Precomputed => {
                said.fill(7);
                logits.fill(0.0);
                logits[7] = 30.0;
            }
            Cheat::ReturnsEarly => logits.fill(0.0),
            Cheat::HalfTheHead => logits.truncate(honest.len() / 2),
            Cheat::OneLaunch if plan.steps > 1 => said[1] ^= 1,
            Cheat::Scaled => logits.iter_mut().for_each(|l| *l = *l * 1.5 + 2.0),
            _ => {}
        }
        self.last = honest;
        Ok((said, logits))
    }
}

/// Gives the start an honest kernel and every other candidate one that cheats.
struct Cheating<'a> {
    subject: &'a Subject,
    cost: Box<dyn CostModel>,
    next: AtomicUsize,
}

impl Worker for Cheating<'_> {
    fn device(&self) -> Result<Option<String>, Refusal> {
        Ok(Some("played".to_owned()))
    }
    fn prepare(&self, point: &Point) -> Result<Prepared, Refusal> {
        self.subject.make(point, &*self.cost).map(|m| m.prepared)
    }
    fn compile(&self, point: &Point) -> Result<Option<String>, Refusal> {
        Ok(Some(point.id().to_string()))
    }
    fn measure(&self, job: &Job) -> Result<Evidence, Refusal> {
        let start = job.candidate == job.incumbent;
        let cheat = match start {
            true => Cheat::Honest,
            false => CHEATS[self.next.fetch_add(1, Ordering::SeqCst) % CHEATS.len()],
        };
        let checkpoint = self.subject.checkpoint.as_ref().unwrap();
        let facts = ProgramFacts { bucket: self.subject.bucket, tokens: 1, max_steps: 64 };
        let reference = Reference::new(checkpoint).unwrap();
        let mut player = Player { reference, facts, cheat, last: Vec::new() };
        let found = test(&mut player, checkpoint, Mode::Bf16, &[0]).unwrap();
        let findings = &found[0].1;
        if !findings.ok {
            let reason = format!("{cheat:?}: {}", findings.reason.clone().unwrap_or_default());
            return Err(Refusal::Rejected { stage: Stage::SelfTest, reason });
        }
        let (a, b) = (self.prepare(&job.candidate)?, self.prepare(&job.incumbent)?);
        let us = |start: bool, r: u32| {
            let noise = f64::from(r % 5) * 0.01;
            if start { 100.0 + noise } else { 80.0 + noise }
        };
        let sample = |r| amk_autoresearch::Sample {
            candidate_us: us(start, r),
            incumbent_us: us(true, r + 3),
        };
        Ok(Evidence {
            candidate_program: a.program,
            incumbent_program: b.program,
            candidate_image: job.candidate.id().to_string(),
            incumbent_image: job.incumbent.id().to_string(),
            device: "played".to_owned(),
            tested_positions: findings.positions.clone(),
            difference: findings.difference,
            bytes: a.bytes,
            read_us: 50.0,
            samples: (0..job.max_rounds).map(sample).collect(),
        })
    }
}

struct Quiet;
impl Observer for Quiet {}

#[test]
fn no_kernel_that_cheats_is_kept_and_the_journal_says_why() {
    let checkpoint = Checkpoint::open(None, false).unwrap();
    let target = resolve("h200").unwrap().target;
    let subject = Subject::of(checkpoint, None, target, Some(Mode::Bf16), 16).unwrap();
    let worker = Cheating { subject: &subject, cost: cost_model(), next: AtomicUsize::new(0) };
    let space = space(&subject);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let header = evaluate::header(&subject, Some("played".to_owned()), "none");
    let stop = AtomicBool::new(false);
    let mut proposer = proposers::Mutate;
    let parts = Parts {
        space: &space,
        worker: &worker,
        proposer: &mut proposer,
        observer: &mut Quiet,
        stop: &stop,
    };
    let limits = Limits { iters: Some(24), ..Limits::default() };
    let outcome = begin(&path, header, parts, limits).unwrap();
    assert_eq!(outcome.history.incumbent, space.default_point(), "a cheat was kept");
    let mut reasons = Vec::new();
    journal::check(&path, &mut |e| {
        if let Event::Trial(t) = &e.event {
            reasons.push(t.verdict.reason());
        }
    })
    .unwrap();
    assert!(worker.next.load(Ordering::SeqCst) >= CHEATS.len(), "not every cheat had its turn");
    for cheat in CHEATS {
        let name = format!("self-test: {cheat:?}: ");
        assert!(
            reasons.iter().any(|r| r.contains(&name)),
            "{cheat:?} was not refused: {reasons:#?}"
        );
    }
}
