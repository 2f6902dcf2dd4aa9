//! A world without a device: a small space, times that follow from the knobs, and everything that goes wrong at night.

#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amk_autoresearch::judge::sequential;
use amk_autoresearch::rng::{Rng, mix};
use amk_autoresearch::*;

pub const DEVICE: &str = "synthetic part, 132 SMs, driver 13000";

pub fn space() -> Space {
    let knob = |name: &str, domain: Domain, default: Value| Knob {
        name: name.to_owned(),
        about: "of the synthetic world".to_owned(),
        domain,
        default,
    };
    let range = |low, high, auto| Domain::Range { low, high, step: 1, auto };
    let edges = || Domain::Choices { values: vec![Value::word("packet"), Value::word("counter")] };
    Space {
        title: "synthetic".to_owned(),
        knobs: vec![
            knob("edges.a", edges(), Value::word("packet")),
            knob("edges.b", edges(), Value::word("counter")),
            knob("warps", range(1, 16, false), 4.into()),
            knob("window", range(1, 24, true), Value::Auto),
            knob("ring", range(2, 40, false), 8.into()),
            knob("splits", range(1, 16, false), 1.into()),
            knob("rotation", range(0, 30, false), 0.into()),
            knob(
                "slots",
                Domain::Range { low: 512, high: 8192, step: 512, auto: false },
                512.into(),
            ),
        ],
    }
}

fn int(point: &Point, name: &str, auto: u64) -> f64 {
    match point.get(name) {
        Some(Value::Int(n)) => *n as f64,
        _ => auto as f64,
    }
}

/// The true time of a point, microseconds: a bowl with ripples, of which one point alone is the bottom.
pub fn truth(point: &Point) -> f64 {
    let word = |name: &str| point.get(name) == Some(&Value::word("counter"));
    let bowl = |name: &str, auto, best: f64, weight: f64| {
        weight * ((int(point, name, auto) - best) / best.max(1.0)).abs()
    };
    let ripple = (int(point, "rotation", 0) * 1.7).sin().abs() * 4.0;
    560.0
        + if word("edges.a") { 40.0 } else { 0.0 }
        + if word("edges.b") { 60.0 } else { 0.0 }
        + bowl("warps", 0, 8.0, 60.0)
        + bowl("window", 3, 6.0, 50.0)
        + bowl("ring", 0, 24.0, 80.0)
        + bowl("splits", 0, 4.0, 30.0)
        + bowl("slots", 0, 4096.0, 40.0)
        + ripple
}

/// What plagues the night.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plagues {
    pub noise: f64,
    /// Slow drift of the clock, and steps of it.
    pub drift: bool,
    /// One in so many candidates; 0 for none.
    pub crash: u64,
    pub hang: u64,
    pub out_of_memory: u64,
    pub compiler: u64,
    pub wrong: u64,
    /// Measures candidates as twice as fast as they are, below the read.
    pub liar: u64,
    pub panic: u64,
    pub outliers: bool,
}

pub struct World {
    pub device: Option<String>,
    pub plagues: Plagues,
    pub rounds: AtomicU64,
    pub measured: AtomicU64,
    pub stop_after: Option<u64>,
    pub stop: AtomicBool,
    /// Changes evidence before it is handed over: a cheat.
    pub cheat: Option<Box<dyn Fn(&Job, &mut Evidence) + Send + Sync>>,
    pub seen: Mutex<Vec<CandidateId>>,
}

impl World {
    pub fn new(device: bool, plagues: Plagues) -> World {
        World {
            device: device.then(|| DEVICE.to_owned()),
            plagues,
            rounds: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            stop_after: None,
            stop: AtomicBool::new(false),
            cheat: None,
            seen: Mutex::new(Vec::new()),
        }
    }

    fn struck(&self, point: &Point, what: u64, one_in: u64) -> bool {
        let id = u64::from_str_radix(&point.id().0, 16).unwrap();
        // The start of a campaign is spared.
        one_in > 0 && *point != space().default_point() && mix(id, what).is_multiple_of(one_in)
    }

    /// The clock of a round, relative to the fastest.
    fn clock(&self, round: u64) -> f64 {
        if !self.plagues.drift {
            return 1.0;
        }
        let t = round as f64;
        let step = if (round / 977).is_multiple_of(3) { 0.12 } else { 0.0 };
        1.0 - 0.15 * (t / 4000.0).sin().abs() - step
    }
}

pub const FLOOR: f64 = 500.0;
pub const BYTES: u64 = 2_400_000_000;

pub fn program(point: &Point) -> String {
    format!("{:0>64}", point.id().0)
}

impl Worker for World {
    fn device(&self) -> Result<Option<String>, Refusal> {
        Ok(self.device.clone())
    }

    fn prepare(&self, point: &Point) -> Result<Prepared, Refusal> {
        assert!(!self.struck(point, 7, self.plagues.panic), "planted");
        if int(point, "ring", 0) * int(point, "slots", 0) > 200_000.0 {
            let reason = "the ring does not fit the shared memory".to_owned();
            return Err(Refusal::Rejected { stage: Stage::Lower, reason });
        }
        let us = truth(point).max(FLOOR);
        let prediction = Prediction { us, floor_us: FLOOR, model: "truth 1".to_owned() };
        Ok(Prepared { program: program(point), body: program(point), bytes: BYTES, prediction })
    }

    fn compile(&self, point: &Point) -> Result<Option<String>, Refusal> {
        match self.struck(point, 1, self.plagues.compiler) {
            true => Err(Refusal::Rejected {
                stage: Stage::Compile,
                reason: "error: identifier \"x\" is undefined".to_owned(),
            }),
            false => Ok(self.device.as_ref().map(|_| format!("image {}", point.id()))),
        }
    }

    fn measure(&self, job: &Job) -> Result<Evidence, Refusal> {
        let n = self.measured.fetch_add(1, Ordering::SeqCst) + 1;
        if self.stop_after == Some(n) {
            self.stop.store(true, Ordering::SeqCst);
        }
        self.seen.lock().unwrap().push(job.candidate.id());
        let p = self.plagues;
        let struck = |what, one_in| self.struck(&job.candidate, what, one_in);
        if struck(2, p.crash) {
            let reason = "the process ended with signal 11".to_owned();
            return Err(Refusal::Crashed { stage: Stage::Load, reason });
        }
        if struck(3, p.hang) {
            return Err(Refusal::TimedOut { stage: Stage::Time, seconds: 30.0 });
        }
        if struck(4, p.out_of_memory) {
            let reason = "the device has no memory left".to_owned();
            return Err(Refusal::Crashed { stage: Stage::Load, reason });
        }
        if struck(5, p.wrong) {
            let reason = "the logits differ by 0.8 of their spread, 0.1 is allowed".to_owned();
            return Err(Refusal::Rejected { stage: Stage::SelfTest, reason });
        }
        let lies = if struck(6, p.liar) { 0.5 } else { 1.0 };
        let first = self.rounds.fetch_add(u64::from(job.max_rounds), Ordering::SeqCst);
        let mut rng = Rng::new(mix(first, u64::from_str_radix(&job.candidate.id().0, 16).unwrap()));
        let mut samples = Vec::new();
        for round in 0..job.max_rounds {
            let clock = self.clock(first + u64::from(round));
            let mut time = |us: f64| {
                let outlier = if p.outliers && rng.chance(0.03) { 3.0 } else { 1.0 };
                us / clock * (1.0 + p.noise * rng.normal()).max(0.5) * outlier
            };
            samples.push(Sample {
                candidate_us: time(truth(&job.candidate)) * lies,
                incumbent_us: time(truth(&job.incumbent)),
            });
            if round + 1 >= job.min_rounds
                && sequential::decide(&samples, job.threshold, job.alpha) != Decision::Undecided
            {
                break;
            }
        }
        let mut evidence = Evidence {
            candidate_program: program(&job.candidate),
            incumbent_program: program(&job.incumbent),
            candidate_image: format!("image {}", job.candidate.id()),
            incumbent_image: format!("image {}", job.incumbent.id()),
            device: self.device.clone().unwrap_or_default(),
            tested_positions: vec![96, 5],
            difference: 0.002,
            bytes: BYTES,
            read_us: FLOOR / self.clock(first),
            samples,
        };
        if let Some(cheat) = &self.cheat {
            cheat(job, &mut evidence);
        }
        Ok(evidence)
    }
}

pub fn header(world: &World, proposer: &str, seed: u64) -> Header {
    Header {
        format: journal::FORMAT,
        amk: "0.1.0".to_owned(),
        model: "synthetic".to_owned(),
        shape: "00".to_owned(),
        target: "synthetic".to_owned(),
        sm: "sm_90a".to_owned(),
        mode: "bf16".to_owned(),
        position: 16,
        bucket: (0, 255),
        device: world.device.clone(),
        cost_model: "truth 1".to_owned(),
        space: space().hash(),
        proposer: proposer.to_owned(),
        seed,
        batch: 4,
        threshold: 0.003,
        confidence: 0.95,
        min_rounds: 12,
        max_rounds: 80,
        start: "default".to_owned(),
        original: space().default_point(),
    }
}

/// Says nothing.
pub struct Quiet;
impl Observer for Quiet {}

pub struct Ran {
    pub folder: tempfile::TempDir,
    pub path: PathBuf,
    pub outcome: Result<Outcome, CampaignError>,
}

pub fn cost(point: &Point) -> Option<proposers::Guess> {
    Some(proposers::Guess { us: truth(point), body: program(point) })
}

/// A folder in memory where there is one: what is tested is not how long a disk takes to sync.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Runs a campaign from its beginning in a new folder.
pub fn run(world: &World, proposer: &str, seed: u64, limits: Limits) -> Ran {
    let mut made = proposers::by_name(proposer, Box::new(cost)).unwrap();
    run_with(world, &mut *made, seed, limits)
}

pub fn run_with(world: &World, proposer: &mut dyn Proposer, seed: u64, limits: Limits) -> Ran {
    let folder = folder();
    let path = folder.path().join("journal.jsonl");
    let header = header(world, proposer.name(), seed);
    let space = space();
    let parts =
        Parts { space: &space, worker: world, proposer, observer: &mut Quiet, stop: &world.stop };
    let outcome = begin(&path, header, parts, limits);
    Ran { folder, path, outcome }
}

/// Goes on.
pub fn go_on(world: &World, proposer: &str, ran: &mut Ran, seed: u64, limits: Limits) {
    let mut made = proposers::by_name(proposer, Box::new(cost)).unwrap();
    let header = header(world, proposer, seed);
    let space = space();
    let parts = Parts {
        space: &space,
        worker: world,
        proposer: &mut *made,
        observer: &mut Quiet,
        stop: &world.stop,
    };
    ran.outcome = resume(&ran.path, &header, parts, limits);
}

/// The trials of a journal that holds together.
pub fn trials(path: &std::path::Path) -> Vec<Trial> {
    let mut out = Vec::new();
    journal::check(path, &mut |e| {
        if let Event::Trial(t) = &e.event {
            out.push(t.clone());
        }
    })
    .unwrap();
    out
}

pub fn iters(n: u64) -> Limits {
    Limits { iters: Some(n), jobs: 2, ..Limits::default() }
}
