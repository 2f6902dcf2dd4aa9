//! What a worker does with a request.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use amk_autoresearch::judge::{self, Known};
use amk_autoresearch::{
    Candidate, CostModel, Header, Job, Point, Prepared, Refusal, Stage, Verdict, journal,
};
use amk_models::Checkpoint;
use amk_schedule_ir::Target;

use super::request::{Part, Reply, Request, Task};
use super::{Subject, cost_model, device, space};
use crate::engine::{BuildRequest, build};
use crate::image::ImageCache;
use crate::target::resolve;
use crate::toolchain::{FindOptions, SpillPolicy, find_nvrtc};
use crate::watch;

/// The part where none is named and no device is there.
pub const TARGET: &str = "h200";
/// Threshold, confidence and rounds of a single evaluation; a campaign has its own.
pub const THRESHOLD: f64 = 0.003;
pub const CONFIDENCE: f64 = 0.95;
pub const ROUNDS: (u32, u32) = (12, 100);
/// How long lowering and compiling may take.
const COMPILING: Duration = Duration::from_secs(280);

/// Answers a request. Whatever is wrong with the candidate is a reply; only a request that makes no sense is an error,
/// a sentence.
///
/// # Errors
/// The model, the target or the position is none.
pub fn answer(request: &Request) -> Result<Reply, String> {
    let reply = match &request.task {
        Task::Device => device::device(request.ordinal, request.nvrtc.as_deref())
            .map(|device| Reply::Device { device }),
        _ => {
            let subject = subject(request)?;
            work(&subject, request)
        }
    };
    Ok(reply.unwrap_or_else(|refusal| Reply::Refused { refusal }))
}

/// What a request is about.
///
/// # Errors
/// A sentence.
pub fn subject(request: &Request) -> Result<Subject, String> {
    let mut subject = named(request)?;
    subject.balance.clone_from(&request.balance);
    Ok(subject)
}

fn named(request: &Request) -> Result<Subject, String> {
    let target = target(request)?;
    if let Some(path) = &request.shape_only {
        return Subject::of_config(path, target, request.mode, request.position)
            .map_err(|e| e.to_string());
    }
    let model = request.model.as_deref();
    let checkpoint = Checkpoint::open(model, false).map_err(|e| e.to_string())?;
    Subject::of(checkpoint, model, target, request.mode, request.position)
        .map_err(|e| e.to_string())
}

fn target(request: &Request) -> Result<Target, String> {
    let named = |name: &str| resolve(name).map(|r| r.target).map_err(|e| e.to_string());
    match &request.target {
        Some(Part::Record(target)) => Ok((**target).clone()),
        Some(Part::Name(name)) => named(name),
        None => match device::device(request.ordinal, request.nvrtc.as_deref()) {
            Ok(Some(device)) => Ok(device.target),
            _ => named(TARGET),
        },
    }
}

fn work(subject: &Subject, request: &Request) -> Result<Reply, Refusal> {
    let cost = cost_model();
    let complete = |point: &Point| {
        space(subject).complete(point).map_err(|errors| Refusal::Rejected {
            stage: Stage::Proposal,
            reason: amk_autoresearch::campaign::sentences(&errors),
        })
    };
    match &request.task {
        Task::Device => Err(Refusal::Rejected {
            stage: Stage::Reply,
            reason: "a device is no candidate".to_owned(),
        }),
        Task::Prepare { point } => {
            let made = subject.make(&complete(point)?, &*cost)?;
            Ok(Reply::Prepared { prepared: made.prepared })
        }
        Task::Compile { point } => {
            Ok(Reply::Compiled { image: compile(subject, &complete(point)?, request)? })
        }
        Task::Measure { job } => {
            let job = Job {
                candidate: complete(&job.candidate)?,
                incumbent: complete(&job.incumbent)?,
                ..job.clone()
            };
            let nvrtc = request.nvrtc.as_deref();
            let evidence = device::measure(subject, &job, request.ordinal, nvrtc)?;
            Ok(Reply::Measured { evidence })
        }
        Task::Evaluate { candidate, incumbent } => {
            let incumbent = complete(incumbent.as_ref().unwrap_or(&Point::default()))?;
            let candidate = Candidate { knobs: complete(&candidate.knobs)?, ..candidate.clone() };
            let mut prepared = None;
            let verdict = evaluate(subject, &candidate, &incumbent, request, &*cost, &mut prepared)
                .unwrap_or_else(Verdict::from);
            Ok(Reply::Evaluated { prepared, verdict })
        }
    }
}

/// Compiles a point for its target, or takes its image from the cache; `None` without a compiler.
fn compile(subject: &Subject, point: &Point, request: &Request) -> Result<Option<String>, Refusal> {
    let Ok(found) = find_nvrtc(&FindOptions::from_env(request.nvrtc.clone())) else {
        return match &request.nvrtc {
            None => Ok(None),
            // One that was named must work.
            Some(_) => device::compiler(request.nvrtc.as_deref()).map(|_| None),
        };
    };
    watch::begin("compiling", COMPILING);
    let cache = ImageCache::from_env().unwrap_or_else(|_| ImageCache::disabled());
    let made = subject.make(point, &*cost_model())?;
    let knobs = subject
        .knobs(point)
        .map_err(|reason| Refusal::Rejected { stage: Stage::Proposal, reason })?;
    let request = BuildRequest {
        target: &subject.target,
        nvrtc: &found.nvrtc,
        cache: &cache,
        options: knobs.render_options(Default::default()),
        spills: SpillPolicy::Refuse,
        corrupt: None,
    };
    let built = build(made.program.get().clone(), &request)
        .map_err(|e| device::refusal(Stage::Compile, &e))?;
    watch::end();
    Ok(Some(built.key.to_string()))
}

/// The whole path of one candidate, measured where there is a device, else predicted.
fn evaluate(
    subject: &Subject,
    candidate: &Candidate,
    incumbent: &Point,
    request: &Request,
    cost: &dyn CostModel,
    out: &mut Option<Prepared>,
) -> Result<Verdict, Refusal> {
    let made = subject.make(&candidate.knobs, cost)?;
    let prepared = out.insert(made.prepared);
    let beside = subject.make(incumbent, cost)?.prepared;
    let nvrtc = request.nvrtc.as_deref();
    let there = match subject.checkpoint {
        Some(_) => device::device(request.ordinal, nvrtc)?,
        None => None,
    };
    let Some(there) = there else {
        if request.compile {
            compile(subject, &candidate.knobs, request)?;
        }
        let (us, incumbent_us) = (prepared.prediction.us, beside.prediction.us);
        return Ok(Verdict::Predicted {
            us,
            floor_us: prepared.prediction.floor_us,
            incumbent_us,
            model: prepared.prediction.model.clone(),
            decision: judge::predicted(us, incumbent_us, THRESHOLD),
        });
    };
    let alpha = judge::share(CONFIDENCE, 1);
    let job = Job {
        candidate: candidate.knobs.clone(),
        incumbent: incumbent.clone(),
        min_rounds: ROUNDS.0,
        max_rounds: ROUNDS.1,
        threshold: THRESHOLD,
        alpha,
    };
    let evidence = device::measure(subject, &job, request.ordinal, nvrtc)?;
    let header = header(subject, Some(there.fingerprint), cost_model().name());
    let image = evidence.candidate_image.clone();
    let known = Known {
        header: &header,
        candidate: prepared,
        image: &image,
        incumbent_program: &beside.program,
        incumbent_share: None,
        alpha,
        threshold: THRESHOLD,
    };
    Ok(judge::judge(evidence, &known))
}

/// The header of a campaign about a subject, with everything a campaign chooses at its default.
pub fn header(subject: &Subject, device: Option<String>, cost_model: &str) -> Header {
    let space = space(subject);
    Header {
        format: journal::FORMAT,
        amk: env!("CARGO_PKG_VERSION").to_owned(),
        model: subject.model.clone(),
        shape: subject.shape_hash(),
        target: subject.target.name.clone(),
        sm: subject.target.sm.clone(),
        mode: subject.mode_name().to_owned(),
        position: subject.position,
        bucket: (subject.bucket.first, subject.bucket.last),
        device,
        cost_model: cost_model.to_owned(),
        space: space.hash(),
        proposer: String::new(),
        seed: 0,
        batch: 8,
        threshold: THRESHOLD,
        confidence: CONFIDENCE,
        min_rounds: ROUNDS.0,
        max_rounds: ROUNDS.1,
        start: "default".to_owned(),
        original: space.default_point(),
    }
}

/// Never set: for callers that stop nothing.
pub static NEVER: AtomicBool = AtomicBool::new(false);
