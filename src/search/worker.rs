//! The worker of a campaign: lowering here, everything that may crash or hang in processes of its own.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use amk_autoresearch::proposers::Guess;
use amk_autoresearch::{CostModel, Evidence, Job, Point, Prepared, Refusal, Stage, Worker};

use super::Subject;
use super::child::{Program, ask};
use super::request::{DeviceReply, Reply, Request, Task};

/// How long each may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub device: Duration,
    pub compile: Duration,
    pub measure: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            device: Duration::from_secs(120),
            compile: Duration::from_secs(300),
            measure: Duration::from_secs(600),
        }
    }
}

/// Lowers, validates, renders and predicts in this process, where everything is safe code; compiles, self-tests and
/// times in a process per candidate.
pub struct Processes<'a> {
    subject: &'a Subject,
    cost: Box<dyn CostModel>,
    program: Program,
    /// What every request has in common.
    base: Request,
    device: Option<String>,
    patience: Patience,
    stop: &'a AtomicBool,
}

/// The device behind a worker, if there is one.
///
/// # Errors
/// There is one and it does not work, or the worker is none.
pub fn device_of(
    program: &Program,
    base: &Request,
    patience: Patience,
    stop: &AtomicBool,
) -> Result<Option<DeviceReply>, Refusal> {
    let request = Request { task: Task::Device, ..base.clone() };
    match ask(program, &request, Stage::Load, patience.device, stop)? {
        Reply::Device { device } => Ok(device),
        other => Err(unasked(&other)),
    }
}

impl<'a> Processes<'a> {
    /// A worker for a subject. `base` is a request about it, whatever its task; `device` the fingerprint of the device behind
    /// `program`.
    pub fn new(
        subject: &'a Subject,
        cost: Box<dyn CostModel>,
        program: Program,
        base: Request,
        device: Option<String>,
        patience: Patience,
        stop: &'a AtomicBool,
    ) -> Processes<'a> {
        Processes { subject, cost, program, base, device, patience, stop }
    }

    /// What the model of cost says of a point; `None` where it cannot be scheduled.
    pub fn guess(&self, point: &Point) -> Option<Guess> {
        let Prepared { prediction, body, .. } = self.prepare(point).ok()?;
        Some(Guess { us: prediction.us, body })
    }
}

impl Worker for Processes<'_> {
    fn device(&self) -> Result<Option<String>, Refusal> {
        Ok(self.device.clone())
    }

    fn prepare(&self, point: &Point) -> Result<Prepared, Refusal> {
        self.subject.make(point, &*self.cost).map(|made| made.prepared)
    }

    fn compile(&self, point: &Point) -> Result<Option<String>, Refusal> {
        if !self.base.compile && self.device.is_none() {
            return Ok(None);
        }
        let request = Request { task: Task::Compile { point: point.clone() }, ..self.base.clone() };
        match ask(&self.program, &request, Stage::Compile, self.patience.compile, self.stop)? {
            Reply::Compiled { image } => Ok(image),
            other => Err(unasked(&other)),
        }
    }

    fn measure(&self, job: &Job) -> Result<Evidence, Refusal> {
        let request = Request { task: Task::Measure { job: job.clone() }, ..self.base.clone() };
        match ask(&self.program, &request, Stage::Time, self.patience.measure, self.stop)? {
            Reply::Measured { evidence } => Ok(evidence),
            other => Err(unasked(&other)),
        }
    }
}

fn unasked(reply: &Reply) -> Refusal {
    let reason = format!("the worker answered something else than it was asked: {reply:?}");
    let reason = reason.chars().take(300).collect();
    Refusal::Rejected { stage: Stage::Reply, reason }
}
