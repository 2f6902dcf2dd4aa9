//! Who wrote and read what: intervals of one buffer, each with its last write, and the reads since.
//!
//! An interval is split where an access starts or ends inside it, so that the record is exact to the
//! element without being kept per element.

use crate::vm::plan::{BufferPlan, Interval};
use amk_schedule_ir::{BufferKind, BufferSync};

/// Agent of an interval nobody has written.
pub(crate) const NOBODY: u32 = u32::MAX;
/// Agent of what the host put there before the launch.
pub(crate) const HOST: u32 = u32::MAX - 1;
/// `site` of an access that belongs to the boundary, or to a stream.
pub(crate) const NO_INSTRUCTION: u32 = u32::MAX;

/// An access made, with the agent's clock at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub agent: u32,
    pub stamp: u32,
    pub site: u32,
    /// Step counted through all launches.
    pub step: u64,
    /// Epoch of a packet access.
    pub epoch: Option<u64>,
}

const UNWRITTEN: Record =
    Record { agent: NOBODY, stamp: 0, site: NO_INSTRUCTION, step: 0, epoch: None };

#[derive(Clone, Copy, Debug)]
struct Segment {
    lo: u64,
    last: Record,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    lo: u64,
    hi: u64,
    by: Record,
}

/// An access being made.
#[derive(Clone, Copy)]
pub(crate) struct Actor<'a> {
    pub by: Record,
    pub clock: &'a [u32],
    /// First step of the launch, counted through all launches.
    pub launch: u64,
}

impl Actor<'_> {
    /// Does the earlier access happen before this one?
    fn follows(&self, earlier: &Record) -> bool {
        earlier.agent >= HOST
            || earlier.agent == self.by.agent
            || earlier.step < self.launch
            || self.clock.get(earlier.agent as usize).is_none_or(|&c| c >= earlier.stamp)
    }
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Not ordered with the other access, which was a write.
    RaceWithWrite,
    /// Not ordered with the other access, which was a read.
    RaceWithRead,
    Unwritten,
    Stale,
    /// Packet: another epoch than expected.
    Epoch,
    /// A second write in the same step (output) or epoch (packet).
    Again,
    /// A local element of another SM.
    Foreign,
}

/// Trouble with the elements `[lo, hi)`, because of `other`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub trouble: Trouble,
    pub lo: u64,
    pub hi: u64,
    pub other: Record,
}

/// State of a packet interval for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packets {
    Ready,
    /// The first word without the tag, and the epoch it carries.
    Missing {
        at: u64,
        carries: Option<u64>,
    },
}

/// The record of one buffer.
pub(crate) struct Shadow {
    segments: Vec<Segment>,
    elements: u64,
    reads: Vec<Read>,
    reads_step: u64,
    kind: BufferKind,
    sync: BufferSync,
    streamed: bool,
    /// Intervals at which neighbours are merged.
    merge_at: usize,
    /// Elements of an output written in step `written_step`.
    written: u64,
    written_step: u64,
}

impl Shadow {
    pub fn new(plan: &BufferPlan) -> Shadow {
        let mut segments = vec![Segment { lo: 0, last: UNWRITTEN }];
        if plan.tracked {
            let cuts = plan.cuts.iter().filter(|&&c| c > 0 && c < plan.elements);
            segments.extend(cuts.map(|&lo| Segment { lo, last: UNWRITTEN }));
        }
        let merge_at = 2 * segments.len() + 256;
        Shadow {
            segments,
            elements: plan.elements,
            reads: Vec::new(),
            reads_step: 0,
            kind: plan.kind,
            sync: plan.sync,
            streamed: plan.streamed,
            merge_at,
            written: 0,
            written_step: 0,
        }
    }

    fn index(&self, at: u64) -> usize {
        self.segments.partition_point(|s| s.lo <= at).saturating_sub(1)
    }

    fn end(&self, i: usize) -> u64 {
        self.segments.get(i + 1).map_or(self.elements, |s| s.lo)
    }

    fn split(&mut self, at: u64) -> usize {
        if at >= self.elements {
            return self.segments.len();
        }
        let i = self.index(at);
        if self.segments[i].lo == at {
            return i;
        }
        let last = self.segments[i].last;
        self.segments.insert(i + 1, Segment { lo: at, last });
        i + 1
    }

    /// Drops reads that every consumer's access of `step` follows.
    fn forget_reads(&mut self, step: u64) {
        if self.reads_step < step {
            self.reads_step = step;
            self.reads.retain(|r| r.by.step >= step);
        }
    }

    /// Puts the record of something that was there before the launch: the host's values, or with an
    /// epoch the leftovers of an earlier launch.
    pub fn preset(&mut self, (lo, hi): Interval, epoch: Option<u64>) {
        let (a, b) = (self.split(lo), self.split(hi));
        for s in &mut self.segments[a..b] {
            s.last = Record { agent: HOST, epoch, ..UNWRITTEN };
        }
    }

    /// Has anybody written the element?
    pub fn is_written(&self, at: u64) -> bool {
        self.segments[self.index(at)].last.agent != NOBODY
    }

    /// Looks for the first word from `lo` on whose tag is not that of `epoch`.
    pub fn packets(&self, (lo, hi): Interval, epoch: u64, tags: u64) -> Packets {
        let tag = epoch % tags;
        for i in self.index(lo)..self.segments.len() {
            let s = &self.segments[i];
            if s.lo >= hi {
                break;
            }
            if s.last.epoch.is_none_or(|e| e % tags != tag) {
                return Packets::Missing { at: s.lo.max(lo), carries: s.last.epoch };
            }
        }
        Packets::Ready
    }

    /// Records a read and reports what is wrong with it. `sm_of` is the SM of each agent.
    pub fn read(
        &mut self,
        (lo, hi): Interval,
        actor: &Actor<'_>,
        sm_of: &[usize],
        found: &mut Vec<Found>,
    ) {
        let packet = actor.by.epoch.is_some();
        let persistent = matches!(self.kind, BufferKind::Kv | BufferKind::Tokens);
        for i in self.index(lo)..self.segments.len() {
            let s = self.segments[i];
            if s.lo >= hi {
                break;
            }
            let mut report = |trouble| {
                let (lo, hi) = (s.lo.max(lo), self.end(i).min(hi));
                found.push(Found { trouble, lo, hi, other: s.last });
            };
            if packet {
                if s.last.epoch != actor.by.epoch {
                    report(Trouble::Epoch);
                }
                continue;
            }
            if s.last.agent == NOBODY {
                report(Trouble::Unwritten);
                continue;
            }
            if self.sync == BufferSync::Local && foreign(&s.last, actor, sm_of) {
                report(Trouble::Foreign);
            } else if !actor.follows(&s.last) {
                report(Trouble::RaceWithWrite);
            }
            if !persistent && s.last.step != actor.by.step {
                report(Trouble::Stale);
            }
        }
        self.reads.push(Read { lo, hi, by: actor.by });
    }

    /// Records a write and reports what is wrong with it.
    pub fn write(
        &mut self,
        (lo, hi): Interval,
        actor: &Actor<'_>,
        sm_of: &[usize],
        found: &mut Vec<Found>,
    ) {
        self.forget_reads(actor.by.step);
        if self.segments.len() >= self.merge_at {
            self.merge(actor.by.step);
        }
        let packet = actor.by.epoch.is_some();
        // Where this agent, or whoever happens before, has read an epoch of the words: the write that
        // stored it precedes this one by the coherence of the word.
        let mut delivered: Vec<Read> = match packet {
            true => self
                .reads
                .iter()
                .filter(|r| r.lo < hi && lo < r.hi && actor.follows(&r.by))
                .copied()
                .collect(),
            false => Vec::new(),
        };
        delivered.sort_unstable_by_key(|r| r.lo);
        self.reads.retain(|r| {
            if r.lo >= hi || r.hi <= lo {
                return true;
            }
            let delivered = packet && r.by.epoch == actor.by.epoch;
            if !(delivered || actor.follows(&r.by)) {
                let (lo, hi) = (r.lo.max(lo), r.hi.min(hi));
                found.push(Found { trouble: Trouble::RaceWithRead, lo, hi, other: r.by });
            }
            // Whoever conflicts with a read that this write covers conflicts with this write too.
            r.lo < lo || r.hi > hi
        });
        let (a, b) = (self.split(lo), self.split(hi));
        // `split(hi)` may have inserted behind `a` only.
        for i in a..b {
            let s = self.segments[i];
            let mut report = |trouble| {
                found.push(Found { trouble, lo: s.lo, hi: self.end(i), other: s.last });
            };
            if s.last.agent < HOST {
                if self.sync == BufferSync::Local && foreign(&s.last, actor, sm_of) {
                    report(Trouble::Foreign);
                } else if packet && s.last.epoch == actor.by.epoch {
                    report(Trouble::Again);
                } else if !actor.follows(&s.last)
                    && !covers(&delivered, s.last.epoch, (s.lo, self.end(i)))
                {
                    report(Trouble::RaceWithWrite);
                } else if self.kind == BufferKind::Output && s.last.step == actor.by.step {
                    report(Trouble::Again);
                }
            }
            self.segments[i].last = actor.by;
        }
        if self.kind == BufferKind::Output {
            if self.written_step != actor.by.step {
                (self.written, self.written_step) = (0, actor.by.step);
            }
            self.written += hi - lo;
        }
    }

    /// Elements of an output this step has not written.
    pub fn missing(&self, step: u64) -> u64 {
        match self.written_step == step {
            true => self.elements.saturating_sub(self.written),
            false => self.elements,
        }
    }

    /// Merges neighbours of one state; what lies so far back that everybody follows it counts as the
    /// host's where only its presence matters.
    fn merge(&mut self, step: u64) {
        let persistent = matches!(self.kind, BufferKind::Kv | BufferKind::Tokens);
        if persistent && self.sync == BufferSync::Plain && !self.streamed {
            for s in &mut self.segments {
                if s.last.agent != NOBODY && s.last.step < step {
                    s.last = Record { agent: HOST, ..UNWRITTEN };
                }
            }
        }
        self.segments.dedup_by(|b, a| a.last == b.last);
        self.merge_at = 2 * self.segments.len() + 256;
    }
}

/// Do the reads of this epoch, sorted by where they start, cover the interval?
fn covers(reads: &[Read], epoch: Option<u64>, (lo, hi): Interval) -> bool {
    let mut at = lo;
    for r in reads.iter().filter(|r| r.by.epoch == epoch && epoch.is_some()) {
        if r.lo <= at {
            at = at.max(r.hi);
        }
    }
    at >= hi
}

fn foreign(last: &Record, actor: &Actor<'_>, sm_of: &[usize]) -> bool {
    last.agent < HOST && sm_of.get(last.agent as usize) != sm_of.get(actor.by.agent as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shadow(kind: BufferKind, sync: BufferSync) -> Shadow {
        Shadow::new(&BufferPlan {
            elements: 100,
            per_word: 1,
            kind,
            sync,
            tracked: true,
            streamed: false,
            cuts: vec![0, 50, 100],
        })
    }

    fn by(agent: u32, stamp: u32, epoch: Option<u64>) -> Record {
        Record { agent, stamp, site: agent, step: 0, epoch }
    }

    const SMS: [usize; 3] = [0, 1, 2];

    fn trouble(found: &mut Vec<Found>) -> Vec<(Trouble, u64, u64)> {
        found.drain(..).map(|f| (f.trouble, f.lo, f.hi)).collect()
    }

    #[test]
    fn unordered_accesses_are_races_in_every_order() {
        let mut s = shadow(BufferKind::Activation, BufferSync::Plain);
        let mut found = Vec::new();
        let (zero, one) = ([1, 0, 0], [0, 1, 0]);
        let actor = |agent, clock| Actor { by: by(agent, 1, None), clock, launch: 0 };
        s.write((10, 30), &actor(0, &zero), &SMS, &mut found);
        assert!(found.is_empty());
        s.read((20, 40), &actor(1, &one), &SMS, &mut found);
        assert_eq!(
            trouble(&mut found),
            [(Trouble::RaceWithWrite, 20, 30), (Trouble::Unwritten, 30, 40)]
        );
        s.write((25, 35), &actor(2, &[1, 0, 1]), &SMS, &mut found);
        assert_eq!(trouble(&mut found), [(Trouble::RaceWithRead, 25, 35)]);
        s.write((0, 100), &actor(2, &[1, 1, 1]), &SMS, &mut found);
        assert!(found.is_empty());
        s.read((0, 100), &actor(0, &[1, 0, 1]), &SMS, &mut found);
        assert!(found.is_empty());
    }

    #[test]
    fn a_packet_is_missing_until_every_word_has_its_tag() {
        let mut s = shadow(BufferKind::Activation, BufferSync::Packet);
        let mut found = Vec::new();
        let clock = [1, 0, 0];
        let actor = Actor { by: by(0, 1, Some(5)), clock: &clock, launch: 0 };
        s.write((0, 60), &actor, &SMS, &mut found);
        let missing = Packets::Missing { at: 60, carries: None };
        assert_eq!(s.packets((10, 80), 5, 1000), missing);
        s.write((60, 100), &actor, &SMS, &mut found);
        assert_eq!(s.packets((10, 80), 5, 1000), Packets::Ready);
        assert_eq!(s.packets((10, 80), 8, 3), Packets::Ready, "tags wrap");
        s.write((90, 100), &actor, &SMS, &mut found);
        assert_eq!(trouble(&mut found), [(Trouble::Again, 90, 100)]);
        let later = Actor { by: by(1, 1, Some(6)), clock: &[0, 1, 0], launch: 0 };
        s.write((0, 10), &later, &SMS, &mut found);
        assert_eq!(trouble(&mut found), [(Trouble::RaceWithWrite, 0, 10)]);
    }

    #[test]
    fn a_reader_of_a_word_comes_after_its_writer() {
        let mut s = shadow(BufferKind::Activation, BufferSync::Packet);
        let mut found = Vec::new();
        let first = Actor { by: by(0, 1, Some(5)), clock: &[1, 0, 0], launch: 0 };
        s.write((0, 100), &first, &SMS, &mut found);
        let reader = Actor { by: by(1, 1, Some(5)), clock: &[0, 1, 0], launch: 0 };
        s.read((10, 20), &reader, &SMS, &mut found);
        s.read((20, 30), &reader, &SMS, &mut found);
        let second = Actor { by: by(1, 1, Some(6)), clock: &[0, 1, 0], launch: 0 };
        s.write((10, 30), &second, &SMS, &mut found);
        assert!(found.is_empty(), "{found:?}");
        s.write((30, 40), &second, &SMS, &mut found);
        assert_eq!(trouble(&mut found), [(Trouble::RaceWithWrite, 30, 40)]);
    }

    #[test]
    fn a_cache_stays_small() {
        let mut s = shadow(BufferKind::Kv, BufferSync::Plain);
        let mut found = Vec::new();
        for step in 0..3000u64 {
            let at = step % 100;
            let record = Record { step, ..by(0, step as u32, None) };
            s.write((at, at + 1), &Actor { by: record, clock: &[0], launch: 0 }, &SMS, &mut found);
        }
        assert!(found.is_empty() && s.segments.len() <= 300);
    }
}
