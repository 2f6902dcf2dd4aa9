//! Where the time of a step goes: stamps the kernel leaves, turned into a timeline per SM and instruction.
//!
//! A kernel rendered with `RenderOptions.trace` writes, per SM, a head of four words (clock and nanoseconds at its start
//! and at its end) and four words per queue entry: the clock when the instruction was reached, when its input was
//! there, when it was done, and a spare one. Clocks of SMs are not those of their neighbours; each SM's own head maps
//! its clock to the nanoseconds they share. `chrome` writes the events for Perfetto, `view` draws them.

mod chrome;
mod view;

use std::collections::BTreeMap;

use amk_schedule_ir::Program;
use serde::Serialize;

pub use chrome::chrome;
pub use view::{PageError, page};

/// Words before the first instruction's.
pub const HEAD: usize = 4;
/// Words of one queue entry.
pub const ENTRY: usize = 4;

/// Words of one SM: enough for the longest queue.
pub fn words_per_sm(program: &Program) -> u32 {
    let longest = program.sms.iter().map(|s| s.queue.len()).max().unwrap_or(0);
    u32::try_from(HEAD + longest * ENTRY).unwrap_or(u32::MAX)
}

/// Why stamps are no timeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("there are {found} stamps where the program has {expected}")]
    Length { found: usize, expected: usize },
    #[error(
        "SM {sm} left no start and end; the kernel was rendered without stamps, or did not end"
    )]
    Head { sm: usize },
}

/// One instruction on one SM. Times are microseconds since the first SM began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    pub sm: u32,
    pub queue_index: u32,
    pub instruction: u32,
    pub op: &'static str,
    /// First buffer written, for people.
    pub what: String,
    /// Reached.
    pub begin: f64,
    /// Its input was there; equal to `begin` where the op says nothing of it.
    pub ready: f64,
    pub end: f64,
}

/// Time of one SM or op by what it was spent on, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Split {
    pub waiting: f64,
    pub computing: f64,
    pub idle: f64,
    pub events: usize,
}

/// A whole step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    pub sms: usize,
    /// From the first SM's start to the last one's end, microseconds.
    pub us: f64,
    /// By SM: from its first stamp to its last.
    pub spans: Vec<(f64, f64)>,
    pub events: Vec<Event>,
}

impl Timeline {
    /// Reads the stamps of one step, SM after SM, `words` each.
    ///
    /// # Errors
    /// The stamps are not those of this program.
    pub fn new(program: &Program, stamps: &[u64], words: usize) -> Result<Timeline, TraceError> {
        let sms = program.sms.len();
        let enough = words >= HEAD && stamps.len() >= sms * words;
        if !enough {
            return Err(TraceError::Length { found: stamps.len(), expected: sms * words });
        }
        let heads: Vec<&[u64]> = (0..sms).map(|s| &stamps[s * words..][..HEAD]).collect();
        if let Some(sm) = heads.iter().position(|h| h[2] <= h[0] || h[3] < h[1]) {
            return Err(TraceError::Head { sm });
        }
        let start = heads.iter().map(|h| h[1]).min().unwrap_or(0);
        let mut events = Vec::new();
        let mut spans = Vec::new();
        for (sm, (entry, head)) in program.sms.iter().zip(&heads).enumerate() {
            // Microseconds of one cycle of this SM.
            let cycle = (head[3] - head[1]) as f64 / (head[2] - head[0]) as f64 / 1e3;
            let begin = (head[1] - start) as f64 / 1e3;
            let time = |clock: u64| {
                let since = clock.clamp(head[0], head[2]) - head[0];
                begin + since as f64 * cycle
            };
            spans.push((begin, time(head[2])));
            for (pc, id) in entry.queue.iter().enumerate() {
                let at = sm * words + HEAD + pc * ENTRY;
                let Some([reached, ready, end]) = stamps.get(at..at + 3) else { continue };
                let Some(i) = program.instruction(*id) else { continue };
                if *end == 0 || end < reached {
                    continue;
                }
                let ready = if (*reached..=*end).contains(ready) { *ready } else { *reached };
                let written = i.writes.first().and_then(|w| program.buffer(w.buffer));
                events.push(Event {
                    sm: sm as u32,
                    queue_index: pc as u32,
                    instruction: id.0,
                    op: i.op.name(),
                    what: written.map_or_else(String::new, |b| b.name.clone()),
                    begin: time(*reached),
                    ready: time(ready),
                    end: time(*end),
                });
            }
        }
        let us = spans.iter().map(|s| s.1).fold(0.0, f64::max);
        Ok(Timeline { sms, us, spans, events })
    }

    /// Where each SM's time goes. Idle is whatever lies between its instructions and at its ends.
    pub fn by_sm(&self) -> Vec<Split> {
        let mut out = vec![Split::default(); self.sms];
        for e in &self.events {
            let Some(s) = out.get_mut(e.sm as usize) else { continue };
            s.waiting += e.ready - e.begin;
            s.computing += e.end - e.ready;
            s.events += 1;
        }
        for s in &mut out {
            s.idle = (self.us - s.waiting - s.computing).max(0.0);
        }
        out
    }

    /// Where the time of each op goes, summed over SMs.
    pub fn by_op(&self) -> BTreeMap<&'static str, Split> {
        let mut out: BTreeMap<&'static str, Split> = BTreeMap::new();
        for e in &self.events {
            let s = out.entry(e.op).or_default();
            s.waiting += e.ready - e.begin;
            s.computing += e.end - e.ready;
            s.events += 1;
        }
        out
    }

    /// All of it, mean over the SMs.
    pub fn total(&self) -> Split {
        let n = self.sms.max(1) as f64;
        let mut all = Split::default();
        for s in self.by_sm() {
            all.waiting += s.waiting / n;
            all.computing += s.computing / n;
            all.idle += s.idle / n;
            all.events += s.events;
        }
        all
    }
}

#[cfg(test)]
mod tests;
