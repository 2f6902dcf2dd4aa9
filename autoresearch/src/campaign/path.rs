//! The one path of candidates: proposal, prepare, compile, measure, judge.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::{Campaign, CampaignError};
use crate::candidate::{Candidate, Point};
use crate::journal::Trial;
use crate::judge::{self, Known};
use crate::rng;
use crate::seams::{Evidence, Job, Prepared, Refusal, Worker};
use crate::space::SpaceError;
use crate::verdict::{Decision, Stage, Verdict};

/// Most characters of a proposer's note that are written down.
const NOTE: usize = 2000;

/// What is known of a candidate before its turn.
struct Underway {
    candidate: Candidate,
    prepared: Option<Prepared>,
    image: Option<String>,
    /// Set by the first stage that refused it.
    verdict: Option<Verdict>,
    seconds: f64,
}

/// What a worker brought, and what the test of it may err by.
struct Measured {
    result: Result<Evidence, Refusal>,
    alpha: f64,
}

/// What every thread that prepares needs.
struct Common<'a> {
    worker: &'a dyn Worker,
    measures: bool,
    /// Predicted times above are not worth a measurement.
    limit_us: Option<f64>,
}

impl Campaign<'_> {
    /// Takes candidates down the path, in order, and writes down what came of each. Ends early when the campaign is over.
    pub(super) fn judge_all(
        &mut self,
        batch: u64,
        candidates: Vec<Candidate>,
    ) -> Result<(), CampaignError> {
        self.parts.observer.proposed(&candidates);
        let mut underway = self.admit(candidates);
        self.prepare(&mut underway);
        // Measured before their turn where there are several devices.
        let mut early: Vec<Option<Measured>> = Vec::new();
        let mut against = None;
        for i in 0..underway.len() {
            // The start is judged before anything can be over.
            if self.stopped() || !self.history.is_empty() && self.over().is_some() {
                return Ok(());
            }
            let began = Instant::now();
            if early.len() <= i || against != self.history.incumbent_entry {
                early.truncate(i);
                against = self.history.incumbent_entry;
                let end = (i + self.limits.devices.max(1)).min(underway.len());
                early.extend(self.measure(&underway[i..end]));
            }
            let measured = early[i].take();
            let u = &mut underway[i];
            let (verdict, tested) = match u.verdict.take() {
                Some(verdict) => (verdict, Vec::new()),
                None => self.verdict(u, measured),
            };
            // A process that was ended because the campaign is, proves nothing against its candidate.
            let ended = matches!(verdict, Verdict::Crashed { .. } | Verdict::TimedOut { .. });
            if self.stopped() && ended {
                return Ok(());
            }
            let u = &underway[i];
            let prepared = u.prepared.as_ref();
            let trial = Trial {
                index: self.history.len(),
                batch,
                candidate: u.candidate.clone(),
                seed: rng::mix(self.header.seed, batch),
                incumbent: self.history.incumbent_entry,
                program: prepared.map(|p| p.program.clone()),
                body: prepared.map(|p| p.body.clone()),
                image: u.image.clone(),
                predicted_us: prepared.map(|p| p.prediction.us),
                tested_positions: tested,
                verdict,
                seconds: u.seconds + began.elapsed().as_secs_f64(),
            };
            self.write(trial)?;
        }
        Ok(())
    }

    /// What can be said of candidates without doing anything.
    fn admit(&self, candidates: Vec<Candidate>) -> Vec<Underway> {
        let mut seen = BTreeSet::new();
        let mut admit = |mut candidate: Candidate| {
            if let Some(note) = &mut candidate.note
                && let Some((at, _)) = note.char_indices().nth(NOTE)
            {
                note.truncate(at);
            }
            let reason = match self.parts.space.complete(&candidate.knobs) {
                Err(errors) => Some(sentences(&errors)),
                Ok(point) => {
                    candidate.knobs = point;
                    let id = candidate.id();
                    let parent = candidate.parent.as_ref().filter(|p| !self.history.was_tried(p));
                    match parent {
                        _ if !seen.insert(id.clone()) || self.history.was_tried(&id) => {
                            Some(format!("candidate {id} was judged before"))
                        }
                        Some(parent) => Some(format!(
                            "its parent {parent} is no candidate of this journal; leave the parent out or name one that was tried"
                        )),
                        None => None,
                    }
                }
            };
            let verdict = reason.map(|reason| Verdict::Rejected { stage: Stage::Proposal, reason });
            Underway { candidate, prepared: None, image: None, verdict, seconds: 0.0 }
        };
        candidates.into_iter().map(&mut admit).collect()
    }

    /// Lowers, validates, renders, predicts, and where there is a device compiles, on several threads.
    fn prepare(&self, underway: &mut [Underway]) {
        let incumbent = self.history.incumbent_predicted_us;
        let common = Common {
            worker: self.parts.worker,
            measures: self.header.device.is_some(),
            limit_us: self.limits.prune.zip(incumbent).map(|(factor, us)| factor * us),
        };
        let history = &self.history;
        let judged = |p: &Prepared| history.judged_as(&p.body).is_some();
        let next = AtomicUsize::new(0);
        let slots: Vec<Mutex<&mut Underway>> = underway.iter_mut().map(Mutex::new).collect();
        let work = || {
            while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                // Nobody else takes this slot.
                if let Ok(mut u) = slot.lock() {
                    prepare_one(&mut u, &common, &judged);
                }
            }
        };
        let threads = self.limits.jobs.clamp(1, slots.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
    }

    /// Has the candidates that are still in the running measured, all against the incumbent of now.
    fn measure(&self, underway: &[Underway]) -> Vec<Option<Measured>> {
        let mut k = self.history.measured;
        let start = self.history.is_empty();
        let jobs: Vec<Option<Job>> = underway
            .iter()
            .map(|u| {
                let p = u.prepared.as_ref().filter(|_| u.verdict.is_none())?;
                if self.header.device.is_none() || self.history.judged_as(&p.body).is_some() {
                    return None;
                }
                k += 1;
                let point = u.candidate.knobs.clone();
                let incumbent = if start { point.clone() } else { self.history.incumbent.clone() };
                let alpha = judge::share(self.header.confidence, k);
                Some(self.job(point, incumbent, self.header.threshold, alpha))
            })
            .collect();
        let worker = self.parts.worker;
        let run = |job: &Job| Measured {
            result: guard(Stage::Time, || worker.measure(job)),
            alpha: job.alpha,
        };
        if jobs.iter().flatten().count() <= 1 {
            return jobs.iter().map(|job| job.as_ref().map(run)).collect();
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = jobs
                .iter()
                .map(|job| job.as_ref().map(|job| (scope.spawn(move || run(job)), job.alpha)))
                .collect();
            let join = |(thread, alpha): (std::thread::ScopedJoinHandle<'_, Measured>, f64)| {
                thread
                    .join()
                    .unwrap_or_else(|_| Measured { result: Err(panicked(Stage::Time)), alpha })
            };
            threads.into_iter().map(|t| t.map(join)).collect()
        })
    }

    pub(super) fn job(
        &self,
        candidate: Point,
        incumbent: Point,
        threshold: f64,
        alpha: f64,
    ) -> Job {
        let Self { header, .. } = self;
        let (min_rounds, max_rounds) = (header.min_rounds, header.max_rounds);
        Job { candidate, incumbent, min_rounds, max_rounds, threshold, alpha }
    }

    /// The verdict on a candidate whose turn it is, and where its image was tested.
    fn verdict(&self, u: &mut Underway, measured: Option<Measured>) -> (Verdict, Vec<u64>) {
        let refused = |stage, reason: &str| Verdict::Rejected { stage, reason: reason.to_owned() };
        let Some(prepared) = &u.prepared else {
            return (refused(Stage::Lower, "it was not lowered"), Vec::new());
        };
        if let Some(of) = self.history.judged_as(&prepared.body) {
            return (Verdict::Repeated { of }, Vec::new());
        }
        if self.header.device.is_none() {
            return (self.predict(u), Vec::new());
        }
        let Some(Measured { result, alpha }) = measured else {
            return (refused(Stage::Time, "it was not measured"), Vec::new());
        };
        let evidence = match result {
            Ok(evidence) => evidence,
            Err(refusal) => return (refusal.into(), Vec::new()),
        };
        let tested = evidence.tested_positions.clone();
        let start = self.history.is_empty();
        let known = Known {
            header: &self.header,
            candidate: prepared,
            image: u.image.as_deref().unwrap_or_default(),
            incumbent_program: match &self.history.incumbent_program {
                Some(program) if !start => program,
                _ => &prepared.program,
            },
            incumbent_share: self.history.incumbent_share,
            alpha,
            threshold: self.header.threshold,
        };
        match judge::judge(evidence, &known) {
            Verdict::Measured(m) if start && m.decision == Decision::Kept => {
                let reason = format!(
                    "the start measured against itself is {:.4} times as fast ({:.4} to {:.4}): the measuring is biased",
                    m.speedup.median, m.speedup.low, m.speedup.high
                );
                (Verdict::Quarantined { reason, measurement: Some(m) }, tested)
            }
            verdict => (verdict, tested),
        }
    }

    /// The verdict where there is no device. What would be kept must compile, where there is a compiler.
    fn predict(&self, u: &mut Underway) -> Verdict {
        let Some(prepared) = &u.prepared else {
            return Verdict::Rejected { stage: Stage::Lower, reason: "it was not lowered".into() };
        };
        let p = &prepared.prediction;
        let sound = p.us.is_finite() && p.floor_us.is_finite() && p.floor_us >= 0.0;
        if !sound || p.us < p.floor_us || p.us <= 0.0 {
            let reason = format!(
                "the model of cost {} says {} us, and reading the bytes takes {} us",
                p.model, p.us, p.floor_us
            );
            return Verdict::Quarantined { reason, measurement: None };
        }
        let start = self.history.is_empty();
        let incumbent_us = if start { p.us } else { self.history.incumbent_us.unwrap_or(p.us) };
        let decision = judge::predicted(p.us, incumbent_us, self.header.threshold);
        let verdict = Verdict::Predicted {
            us: p.us,
            floor_us: p.floor_us,
            incumbent_us,
            model: p.model.clone(),
            decision,
        };
        if start || decision == Decision::Kept {
            match guard(Stage::Compile, || self.parts.worker.compile(&u.candidate.knobs)) {
                Ok(image) => u.image = image,
                Err(refusal) => return refusal.into(),
            }
        }
        verdict
    }
}

fn prepare_one(u: &mut Underway, common: &Common<'_>, judged: &dyn Fn(&Prepared) -> bool) {
    if u.verdict.is_some() {
        return;
    }
    let began = Instant::now();
    let point = &u.candidate.knobs;
    let mut steps = || -> Result<(), Refusal> {
        let prepared = guard(Stage::Lower, || common.worker.prepare(point))?;
        let us = prepared.prediction.us;
        let known = judged(&prepared);
        u.prepared = Some(prepared);
        if !common.measures || known {
            return Ok(());
        }
        if let Some(limit) = common.limit_us.filter(|limit| us > *limit) {
            let reason = format!(
                "predicted {us:.1} us a token, and above {limit:.1} us nothing is measured"
            );
            return Err(Refusal::Rejected { stage: Stage::Predict, reason });
        }
        u.image = guard(Stage::Compile, || common.worker.compile(point))?;
        if u.image.is_none() {
            let reason = "there is no compiler, and an image is what is measured".to_owned();
            return Err(Refusal::Rejected { stage: Stage::Compile, reason });
        }
        Ok(())
    };
    if let Err(refusal) = steps() {
        u.verdict = Some(refusal.into());
    }
    u.seconds = began.elapsed().as_secs_f64();
}

/// A panic costs the candidate that it happened to.
pub(super) fn guard<T>(
    stage: Stage,
    run: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(panicked(stage)))
}

fn panicked(stage: Stage) -> Refusal {
    Refusal::Crashed { stage, reason: "it panicked; this is a fault of amk".to_owned() }
}

/// Several errors as one sentence.
pub fn sentences(errors: &[SpaceError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
