//! The campaign behind a server.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use amk_autoresearch::bridge::{self, Relay};
use amk_autoresearch::cost::Simulated;
use amk_autoresearch::{
    CampaignError, Header, Limits, Observer, Parts, Point, Space, journal, resume,
};

use crate::search::child::Program;
use crate::search::request::Request;
use crate::search::{Patience, Processes, Subject, cost_model, space};

/// What a session is about.
pub struct Setup {
    pub subject: Subject,
    /// A request about the subject, whatever its task.
    pub base: Request,
    /// What compiles and measures.
    pub program: Program,
    /// Fingerprint of the device behind it.
    pub device: Option<String>,
    pub patience: Patience,
    pub header: Header,
    pub journal: PathBuf,
    pub jobs: usize,
    pub stop: Arc<AtomicBool>,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    #[error("no thread could be started for the campaign: {0}")]
    Thread(std::io::Error),
    #[error("the campaign's thread ended unexpectedly; its journal stays good")]
    Ended,
}

/// A campaign that waits for candidates.
pub struct Session {
    pub subject: Subject,
    pub space: Space,
    pub base: Request,
    pub program: Program,
    pub patience: Patience,
    pub journal: PathBuf,
    pub predicted: bool,
    pub stop: Arc<AtomicBool>,
    /// The simulation that a trace summary is made with.
    pub simulated: Simulated,
    relay: Mutex<Option<Relay>>,
    over: Mutex<Option<String>>,
    campaign: Mutex<Option<JoinHandle<Result<(), CampaignError>>>>,
}

struct Silent;
impl Observer for Silent {}

impl Session {
    /// Begins the campaign, or goes on with it if the journal is there.
    ///
    /// # Errors
    /// No thread can be started. What is wrong with the journal is said by the first tool that needs the campaign.
    pub fn begin(setup: Setup) -> Result<Arc<Session>, SessionError> {
        let Setup { subject, base, program, device, patience, header, journal, jobs, stop } = setup;
        let (relay, mut proposer) = bridge::relay("mcp", Arc::clone(&stop));
        let space = space(&subject);
        let simulated = Simulated::for_target(&subject.target);
        let session = Arc::new(Session {
            subject,
            space,
            base,
            program,
            patience,
            journal,
            predicted: device.is_none(),
            stop,
            simulated,
            relay: Mutex::new(Some(relay)),
            over: Mutex::new(None),
            campaign: Mutex::new(None),
        });
        let own = Arc::clone(&session);
        let run = move || {
            let s = &*own;
            let (program, base) = (s.program.clone(), s.base.clone());
            let worker = Processes::new(
                &s.subject,
                cost_model(),
                program,
                base,
                device,
                s.patience,
                &s.stop,
            );
            let parts = Parts {
                space: &s.space,
                worker: &worker,
                proposer: &mut proposer,
                observer: &mut Silent,
                stop: &s.stop,
            };
            let limits = Limits { jobs, ..Limits::default() };
            let ended = resume(&s.journal, &header, parts, limits);
            let reason = ended.as_ref().map_or_else(ToString::to_string, |e| e.reason.clone());
            *lock(&s.over) = Some(reason);
            ended.map(|_| ())
        };
        let thread = std::thread::Builder::new().name("campaign".to_owned()).spawn(run);
        *lock(&session.campaign) = Some(thread.map_err(SessionError::Thread)?);
        Ok(session)
    }

    /// The way to the campaign; an error says why it is over.
    ///
    /// # Errors
    /// A sentence.
    pub fn relay(&self) -> Result<Relay, String> {
        if let Some(reason) = lock(&self.over).clone() {
            return Err(reason);
        }
        lock(&self.relay).clone().ok_or_else(|| "the server is ending".to_owned())
    }

    /// Why the campaign is over, if it is.
    pub fn over(&self) -> Option<String> {
        lock(&self.over).clone()
    }

    /// Has nothing more to propose: the campaign measures its winner against the start and ends.
    ///
    /// # Errors
    /// The campaign failed.
    pub fn end(&self) -> Result<(), SessionError> {
        drop(lock(&self.relay).take());
        let Some(campaign) = lock(&self.campaign).take() else { return Ok(()) };
        match campaign.join() {
            Ok(ended) => Ok(ended?),
            Err(_) => Err(SessionError::Ended),
        }
    }

    /// Was it stopped from outside?
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reads the journal from end to end.
    ///
    /// # Errors
    /// It cannot be read or does not hold together.
    pub fn read(
        &self,
        each: &mut dyn FnMut(&amk_autoresearch::Entry),
    ) -> Result<journal::Summary, amk_autoresearch::JournalError> {
        let path: &Path = &self.journal;
        journal::check(path, each)
    }

    /// A point with every knob, or what is wrong with it.
    ///
    /// # Errors
    /// One fault for each knob that is none.
    pub fn complete(&self, point: &Point, place: &str) -> Result<Point, Vec<bridge::Fault>> {
        let wrong = |_| bridge::space_faults(&self.space, point, place);
        self.space.complete(point).map_err(wrong)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
