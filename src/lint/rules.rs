//! The sequence each kind of edge must have, on every path: automata over the events of the kernel.

use super::events::{Barrier, Event, same};
use super::expected::Expected;
use super::flow::{Flow, Step, reach};
use super::ptx::Kernel;
use super::{LintFault, Rule};

/// A kernel with what its instructions mean.
pub struct Judged<'a> {
    pub kernel: &'a Kernel,
    pub flow: &'a Flow,
    pub events: &'a [Event],
    pub expected: &'a Expected,
}

impl Judged<'_> {
    /// All sequence rules.
    pub fn sequences(&self, faults: &mut Vec<LintFault>) {
        self.init(faults);
        self.after_acquire(Rule::CounterWait, Event::CounterWait, faults);
        self.after_acquire(Rule::Token, Event::TokenAcquire, faults);
        self.before_release(faults);
        self.boundary(faults);
        self.host(faults);
        self.consumer(faults);
        match self.expected.bulk {
            true => self.bulk(faults),
            false => self.cp_async(faults),
        }
        self.producer(faults);
    }

    /// Instructions with this event.
    pub fn all(&self, event: Event) -> impl Iterator<Item = usize> {
        (0..self.events.len()).filter(move |i| self.events[*i] == event)
    }

    pub fn fault(&self, rule: Rule, at: usize, what: impl Into<String>) -> LintFault {
        LintFault::new(rule, &self.kernel.instrs[at], what)
    }

    fn run(&self, rule: Rule, faults: &mut Vec<LintFault>, step: impl Fn(u8, Event) -> Step) {
        let matters = |i: usize| self.events[i] != Event::Nothing;
        let found =
            self.flow.simulate(self.kernel, matters, |state, i| step(state, self.events[i]));
        faults.extend(found.into_iter().map(|(i, what)| self.fault(rule, i, what)));
    }

    /// mbarrier.init, its fences, and the block barrier stand before the ring's first use.
    fn init(&self, faults: &mut Vec<LintFault>) {
        use Event::*;
        // 0: nothing has been made.
        const MADE: u8 = 1;
        const FENCED: u8 = 2;
        const DONE: u8 = 3;
        const READY: u8 = 4;
        let bulk = self.expected.bulk;
        self.run(Rule::RingInit, faults, |state, event| match event {
            MbarrierInit(_) if state == READY => {
                Step::Fault(state, "an mbarrier is made after the block barrier")
            }
            MbarrierInit(_) => Step::To(if bulk { MADE } else { DONE }),
            InitFence if state == MADE => Step::To(FENCED),
            ProxyFence if state == FENCED => Step::To(DONE),
            BlockBarrier if state == MADE => {
                Step::Fault(READY, "no fence.mbarrier_init.release.cluster after mbarrier.init")
            }
            BlockBarrier if state == FENCED => Step::Fault(
                READY,
                "no fence.proxy.async.shared::cta after the fence of the mbarriers",
            ),
            BlockBarrier => Step::To(READY),
            ExpectTx | BulkCopy | AsyncCopy | AsyncArrive | MbarrierWait(_) | Release
                if state != READY =>
            {
                Step::Fault(
                    READY,
                    "the ring is used before the block barrier that follows its making",
                )
            }
            _ => Step::To(state),
        });
    }

    /// What was acquired by one thread reaches the others through a barrier before anybody touches
    /// data.
    fn after_acquire(&self, rule: Rule, acquire: Event, faults: &mut Vec<LintFault>) {
        use Event::*;
        self.run(rule, faults, |state, event| match event {
            _ if event == acquire => Step::To(1),
            ConsumerBarrier => Step::To(0),
            Data | KeyRead | PacketStore | PacketLoad | CounterSignal | Arrival | RingRead
            | Exit
                if state == 1 =>
            {
                Step::Fault(0, "no barrier of the consumer warps since the acquire")
            }
            _ => Step::To(state),
        });
    }

    /// A signal or an arrival stands after a barrier of all consumer warps, with no data touched in
    /// between.
    fn before_release(&self, faults: &mut Vec<LintFault>) {
        use Event::*;
        for (rule, release) in [(Rule::CounterSignal, CounterSignal), (Rule::Arrival, Arrival)] {
            self.run(rule, faults, |state, event| match event {
                ConsumerBarrier => Step::To(1),
                Data | KeyRead | PacketStore | PacketLoad => Step::To(0),
                _ if event == release && state == 0 => Step::Fault(
                    0,
                    "no barrier of the consumer warps between the last access and the release",
                ),
                _ => Step::To(state),
            });
        }
    }

    /// The warp of the last arriver: the arrival reaches all lanes before they read keys, and their
    /// reads are over before the token is released.
    fn boundary(&self, faults: &mut Vec<LintFault>) {
        use Event::*;
        const CLEAR: u8 = 0;
        const ARRIVED: u8 = 1;
        const READ: u8 = 2;
        self.run(Rule::Arrival, faults, |state, event| match event {
            Arrival => Step::To(ARRIVED),
            WarpBarrier | ConsumerBarrier => Step::To(CLEAR),
            Data | KeyRead | TokenRelease if state == ARRIVED => {
                Step::Fault(CLEAR, "no warp barrier between the arrival and what it acquired")
            }
            KeyRead => Step::To(READ),
            _ => Step::To(state),
        });
        self.run(Rule::Token, faults, |state, event| match event {
            KeyRead => Step::To(READ),
            WarpBarrier | ConsumerBarrier => Step::To(CLEAR),
            TokenRelease if state == READ => Step::Fault(
                CLEAR,
                "no warp barrier between reading the keys and releasing the token",
            ),
            _ => Step::To(state),
        });
    }

    /// The host sees a step's token no later than its progress.
    fn host(&self, faults: &mut Vec<LintFault>) {
        use Event::*;
        self.run(Rule::Host, faults, |state, event| match event {
            HostToken => Step::To(1),
            HostProgress if state == 0 => {
                Step::Fault(0, "the host's progress is released before its token is stored")
            }
            HostProgress => Step::To(0),
            _ => Step::To(state),
        });
    }

    /// A warp reads a chunk after waiting for it, and releases it when all lanes have read.
    fn consumer(&self, faults: &mut Vec<LintFault>) {
        use Event::*;
        const RELEASED: u8 = 0;
        const LANDED: u8 = 1;
        const READ: u8 = 2;
        self.run(Rule::RingWait, faults, |state, event| match event {
            MbarrierWait(Barrier::Full) => Step::To(LANDED),
            RingRead if state == RELEASED => {
                Step::Fault(LANDED, "a chunk is read without waiting for its full barrier")
            }
            Release => Step::To(RELEASED),
            _ => Step::To(state),
        });
        self.run(Rule::RingRelease, faults, |state, event| match event {
            RingRead => Step::To(READ),
            WarpBarrier | ConsumerBarrier => Step::To(LANDED),
            Release if state == READ => Step::Fault(
                LANDED,
                "no warp barrier between the lanes' reads and the release of the slot",
            ),
            Release if state == RELEASED => {
                Step::Fault(LANDED, "a slot is released that was not waited for")
            }
            MbarrierWait(Barrier::Full) => Step::To(LANDED),
            _ => Step::To(state),
        });
        // Only one lane releases, so it is asked for on some path, not on all.
        for wait in self.all(MbarrierWait(Barrier::Full)) {
            let next = |i: usize| i != wait && self.events[i] == MbarrierWait(Barrier::Full);
            let until_next = reach(self.kernel, wait, next);
            let meets = |event| self.all(event).any(|i| until_next[i]);
            if meets(RingRead) && !meets(Release) {
                let what =
                    "a chunk is read whose slot is not released before the next is waited for";
                faults.push(self.fault(Rule::RingRelease, wait, what));
            }
        }
    }

    /// Each bulk copy stands right after the expect_tx of the same barrier and the same bytes.
    fn bulk(&self, faults: &mut Vec<LintFault>) {
        let near = |i: usize, step: isize| {
            let block = &self.kernel.blocks[self.kernel.block_of[i]];
            let mut at = i.checked_add_signed(step)?;
            while (block.first..block.end).contains(&at) {
                if self.events[at] != Event::Nothing {
                    return Some(at);
                }
                at = at.checked_add_signed(step)?;
            }
            None
        };
        for i in self.all(Event::BulkCopy) {
            let expect = near(i, -1).filter(|e| self.events[*e] == Event::ExpectTx);
            let Some(expect) = expect else {
                faults.push(self.fault(
                    Rule::RingCopy,
                    i,
                    "no expect_tx right before the bulk copy",
                ));
                continue;
            };
            let (copy, expect) =
                (&self.kernel.instrs[i].operands, &self.kernel.instrs[expect].operands);
            if !same(copy.get(3), expect.get(1)) || !same(copy.get(2), expect.get(2)) {
                let what =
                    "the bulk copy completes another barrier, or other bytes, than were expected";
                faults.push(self.fault(Rule::RingCopy, i, what));
            }
        }
        for i in self.all(Event::ExpectTx) {
            if near(i, 1).is_none_or(|c| self.events[c] != Event::BulkCopy) {
                faults.push(self.fault(Rule::RingCopy, i, "no bulk copy right after expect_tx"));
            }
        }
    }

    /// Every lane's copies arrive on the slot's barrier.
    fn cp_async(&self, faults: &mut Vec<LintFault>) {
        use Event::*;
        self.run(Rule::RingCopy, faults, |state, event| match event {
            AsyncCopy => Step::To(1),
            AsyncArrive => Step::To(0),
            MbarrierWait(_) | Exit if state == 1 => {
                Step::Fault(0, "cp.async without the arrival that reports it")
            }
            _ => Step::To(state),
        });
    }

    /// The producer waits for a slot to be empty before it fills it again, for its oldest copy where the
    /// window is full, and for its last copies before it ends.
    fn producer(&self, faults: &mut Vec<LintFault>) {
        let issue = if self.expected.bulk { Event::ExpectTx } else { Event::AsyncArrive };
        for i in self.all(issue) {
            let after = reach(self.kernel, i, |_| false);
            let again = |w: &usize| reach(self.kernel, *w, |_| false)[i];
            let waits = |which: Barrier| {
                let after = &after;
                self.all(Event::MbarrierWait(which)).filter(move |w| after[*w])
            };
            if !waits(Barrier::Empty).any(|w| again(&w)) {
                let what = "no wait for the slot's empty barrier before it is filled again";
                faults.push(self.fault(Rule::RingCopy, i, what));
            }
            if !waits(Barrier::Full).any(|w| again(&w)) {
                let what = "the producer never waits for its oldest copy, whatever the window";
                faults.push(self.fault(Rule::RingCopy, i, what));
            }
            if !waits(Barrier::Full).any(|w| !again(&w)) {
                let what = "the producer ends without waiting for its last copies";
                faults.push(self.fault(Rule::RingDrain, i, what));
            }
        }
    }
}
