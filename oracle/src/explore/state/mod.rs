//! States and moves: the consumers, signals and boundaries here, packet words in `packets.rs`, the producers in
//! `ring.rs`.

mod packets;
mod ring;

use std::collections::HashSet;

use amk_schedule_ir::BufferId;

use super::compile::{Accesses, Compiled, Mask};
use super::{Hazard, Limits, Site, Witness};

/// A consumer's place within an instruction.
const BEFORE: u32 = 0;
const READING: u32 = 1;
const WORKING: u32 = 2;
/// Flag: the packets have been written before those of the instruction were read.
const EARLY: u32 = 8;

/// Where things stand in a state, a list of numbers.
struct Layout {
    step: usize,
    launch: usize,
    /// Per SM: queue place, place within the instruction, chunks of the run consumed.
    at: usize,
    stage: usize,
    eaten: usize,
    /// Per SM: signals of the step performed.
    performed: usize,
    /// Per SM: chunks of the launch issued.
    issued: usize,
    /// Per SM a clock: of each consumer the entries known, of each producer the chunks.
    clocks: usize,
    /// Per SM: the consumers' entries its producer knows.
    producers: usize,
    /// Per node, for two steps in turn: the clock its run was released with.
    released: usize,
    /// Per counter: value. Per crossing: clock of the signals up to it.
    values: usize,
    crossed: usize,
    /// Per node: the clock its signals were posted with, until they are performed.
    posted: usize,
    /// Per packet word: epoch held, epoch held when the step began; and if words are written more than once in a
    /// step, for each writer the place of its write among those of the word, from 1.
    held: usize,
    began: usize,
    turn: usize,
    size: usize,
    /// Width of a clock.
    wide: usize,
}

type State = Box<[u32]>;

/// What a consumer could do.
enum Move {
    Done,
    Blocked,
    /// It can go on, but when it does matters.
    Choice,
}

#[derive(Clone, Copy)]
enum Choice {
    Consumer(usize),
    Early(usize),
    Signal(usize),
    Issue(usize),
    Boundary,
}

pub(super) struct Search<'a> {
    c: &'a Compiled,
    l: Layout,
    reduce: bool,
    /// Are signals performed apart from being posted?
    apart: bool,
    /// Can the time of a packet matter to more than its readers?
    early: bool,
    budget: &'a mut usize,
    /// Signals of each SM: (node, counter, amount).
    signals: Vec<Vec<(usize, usize, u32)>>,
    /// Of each node, how many signals its SM has posted before it.
    posted_before: Vec<usize>,
    writers_many: bool,
    streams: bool,
}

impl<'a> Search<'a> {
    pub fn new(c: &'a Compiled, limits: Limits, budget: &'a mut usize) -> Search<'a> {
        let n = c.first.len() - 1;
        let wide = if c.copies { 2 * n } else { n };
        let mut next = 0;
        let mut take = |count: usize| {
            let at = next;
            next += count;
            at
        };
        let ordered = c.ordered.contains(&true);
        let apart = ordered || !limits.reduce;
        let nodes = c.nodes.len();
        let streams = c.streams.iter().any(|s| !s.chunks.is_empty());
        let mut l = Layout {
            step: take(1),
            launch: take(1),
            at: take(n),
            stage: take(n),
            eaten: take(if streams { n } else { 0 }),
            performed: take(n),
            issued: take(if streams { n } else { 0 }),
            clocks: take(n * wide),
            producers: take(if c.copies { n * n } else { 0 }),
            released: take(if c.copies { 2 * nodes * n } else { 0 }),
            values: take(c.per_step.len()),
            crossed: take(c.crossings.len() * wide),
            posted: take(if apart { nodes * wide } else { 0 }),
            held: take(c.words),
            began: take(c.words),
            turn: take(if c.writers > 1 { c.words * c.writers } else { 0 }),
            size: 0,
            wide,
        };
        l.size = next;
        let mut signals = vec![Vec::new(); n];
        let mut posted_before = Vec::with_capacity(nodes);
        for (i, node) in c.nodes.iter().enumerate() {
            let list: &mut Vec<_> = &mut signals[node.sm];
            posted_before.push(list.len());
            list.extend(node.signals.iter().map(|&(counter, amount)| (i, counter, amount)));
        }
        let early = !limits.reduce || ordered || c.writers > 1;
        Search {
            c,
            l,
            reduce: limits.reduce,
            apart,
            early,
            budget,
            signals,
            posted_before,
            writers_many: c.writers > 1,
            streams,
        }
    }

    /// `Ok(false)`: too many states.
    pub fn run(self) -> Result<bool, Witness> {
        let mut seen: HashSet<State> = HashSet::new();
        let mut stack = vec![vec![0; self.l.size].into_boxed_slice()];
        let mut choices = Vec::new();
        while let Some(mut s) = stack.pop() {
            if self.reduce {
                self.settle(&mut s)?;
            }
            if s[self.l.launch] == self.c.launches {
                continue;
            }
            let must = self.choices(&s, &mut choices);
            if !must {
                return Err(self.stuck(&s));
            }
            if choices.len() > 1 || !self.reduce {
                if seen.contains(&s) {
                    continue;
                }
                if *self.budget == 0 {
                    return Ok(false);
                }
                *self.budget -= 1;
                seen.insert(s.clone());
            }
            let last = choices.len() - 1;
            for (k, &choice) in choices.iter().enumerate() {
                let mut next = if k == last { std::mem::take(&mut s) } else { s.clone() };
                self.make(&mut next, choice)?;
                stack.push(next);
            }
        }
        Ok(true)
    }

    fn sms(&self) -> usize {
        self.c.first.len() - 1
    }

    /// The node an SM is at; `None` when it has arrived at the boundary.
    fn node(&self, s: &[u32], sm: usize) -> Option<usize> {
        let node = self.c.first[sm] + s[self.l.at + sm] as usize;
        (node < self.c.first[sm + 1]).then_some(node)
    }

    /// Have the plain accesses of a node been made in this step?
    fn entered(&self, s: &[u32], node: usize) -> bool {
        let n = &self.c.nodes[node];
        let at = s[self.l.at + n.sm];
        at > n.at || at == n.at && s[self.l.stage + n.sm] != BEFORE
    }

    /// The stamp of a node's accesses in a step; a clock that knows it has it, or more.
    fn stamp(&self, step: u32, at: u32) -> u32 {
        step * (self.c.nodes.len() as u32 + 1) + at + 1
    }

    /// Does the consumer of `sm` come after the accesses that a node has made in this step?
    fn after(&self, s: &[u32], sm: usize, node: usize) -> bool {
        let n = &self.c.nodes[node];
        if n.sm == sm {
            return n.at < s[self.l.at + sm];
        }
        s[self.l.clocks + sm * self.l.wide + n.sm] >= self.stamp(s[self.l.step], n.at)
    }

    fn hazard(
        &self,
        s: &[u32],
        hazard: Hazard,
        buffer: Option<BufferId>,
        at: Option<Site>,
        with: Option<Site>,
    ) -> Witness {
        let step = u64::from(s[self.l.step]);
        Witness { hazard, pos: self.c.pos, step, buffer, at, with }
    }

    fn producer(&self, sm: usize) -> Option<Site> {
        Some(Site { sm: sm as u32, instruction: None })
    }

    /// The first agent that cannot go on.
    fn stuck(&self, s: &[u32]) -> Witness {
        let at = (0..self.sms()).find_map(|sm| self.node(s, sm)).map(|node| self.c.site(node));
        self.hazard(s, Hazard::Deadlock, None, at.or(self.producer(0)), None)
    }

    /// Makes moves whose time does not matter until there is none.
    fn settle(&self, s: &mut [u32]) -> Result<(), Witness> {
        loop {
            let mut moved = false;
            for sm in 0..self.sms() {
                loop {
                    let mut more = self.issue(s, sm)?;
                    if let Some(&(_, counter, _)) = self.pending(s, sm)
                        && !self.c.ordered[counter]
                    {
                        self.perform(s, sm);
                        more = true;
                    }
                    if let Move::Done = self.consume(s, sm, false)? {
                        more = true;
                    }
                    if !more {
                        break;
                    }
                    moved = true;
                }
            }
            if self.all_arrived(s) {
                self.boundary(s)?;
                if s[self.l.launch] == self.c.launches {
                    return Ok(());
                }
                moved = true;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Lists what can be done next; is there a move that some agent has to make?
    fn choices(&self, s: &[u32], out: &mut Vec<Choice>) -> bool {
        out.clear();
        for sm in 0..self.sms() {
            if let Some(&(_, counter, _)) = self.pending(s, sm)
                && (!self.reduce || self.c.ordered[counter])
            {
                out.push(Choice::Signal(sm));
            }
            if !self.reduce && self.can_issue(s, sm) {
                out.push(Choice::Issue(sm));
            }
            if self.ready(s, sm) {
                out.push(Choice::Consumer(sm));
            }
        }
        if !self.reduce && self.all_arrived(s) {
            out.push(Choice::Boundary);
        }
        let must = !out.is_empty();
        if self.early {
            for sm in 0..self.sms() {
                if self.can_be_early(s, sm) {
                    out.push(Choice::Early(sm));
                }
            }
        }
        must
    }

    fn make(&self, s: &mut [u32], choice: Choice) -> Result<(), Witness> {
        match choice {
            Choice::Consumer(sm) => self.consume(s, sm, true).map(|_| ()),
            Choice::Early(sm) => {
                let Some(node) = self.node(s, sm) else { return Ok(()) };
                self.write(s, sm, node, true)?;
                s[self.l.stage + sm] |= EARLY;
                Ok(())
            }
            Choice::Signal(sm) => {
                self.perform(s, sm);
                Ok(())
            }
            Choice::Issue(sm) => self.issue(s, sm).map(|_| ()),
            Choice::Boundary => self.boundary(s),
        }
    }

    /// Can the consumer make its next micro-step?
    fn ready(&self, s: &[u32], sm: usize) -> bool {
        let Some(node) = self.node(s, sm) else { return false };
        match s[self.l.stage + sm] & !EARLY {
            BEFORE => self.waits_hold(s, node),
            READING => self.words_there(s, node),
            _ => match self.next_chunk(s, sm, node) {
                Some(u) => s[self.l.issued + sm] > u,
                None => true,
            },
        }
    }

    /// One micro-step of a consumer; with `force` also one whose time matters.
    fn consume(&self, s: &mut [u32], sm: usize, force: bool) -> Result<Move, Witness> {
        let Some(node) = self.node(s, sm) else { return Ok(Move::Blocked) };
        if !self.ready(s, sm) {
            return Ok(Move::Blocked);
        }
        let acc = &self.c.table(s[self.l.step]).nodes[node];
        match s[self.l.stage + sm] & !EARLY {
            BEFORE => {
                self.enter(s, sm, node, acc)?;
                s[self.l.stage + sm] = if acc.reads.is_empty() { WORKING } else { READING };
            }
            READING => {
                self.read(s, sm, node, acc)?;
                s[self.l.stage + sm] = WORKING | s[self.l.stage + sm] & EARLY;
            }
            _ => {
                if let Some(u) = self.next_chunk(s, sm, node) {
                    s[self.l.eaten + sm] += 1;
                    if self.c.copies {
                        // Issue before consume: the copy's reads are known from here on.
                        let at = self.l.clocks + sm * self.l.wide + self.sms() + sm;
                        s[at] = s[at].max(u + 1);
                    }
                    return Ok(Move::Done);
                }
                let words = &self.c.table(s[self.l.step]).words;
                let many = |w: &(u16, u32)| words[w.0 as usize].writers.len() > 1;
                if !force && self.writers_many && acc.writes.iter().any(many) {
                    return Ok(Move::Choice);
                }
                self.write(s, sm, node, false)?;
                self.post(s, sm, node);
            }
        }
        Ok(Move::Done)
    }

    fn waits_hold(&self, s: &[u32], node: usize) -> bool {
        self.c.nodes[node].waits.iter().all(|&(counter, threshold, _)| {
            let target = s[self.l.step] * self.c.per_step[counter] + threshold;
            s[self.l.values + counter] >= target
        })
    }

    /// The waits hold: their clocks are acquired, and plain accesses made.
    fn enter(&self, s: &mut [u32], sm: usize, node: usize, acc: &Accesses) -> Result<(), Witness> {
        let (wide, n) = (self.l.wide, self.sms());
        let mine = self.l.clocks + sm * wide;
        for &(_, _, crossing) in &self.c.nodes[node].waits {
            for k in 0..wide {
                s[mine + k] = s[mine + k].max(s[self.l.crossed + crossing * wide + k]);
            }
        }
        let step = s[self.l.step];
        if self.c.copies && self.c.nodes[node].run.is_some() {
            // A slot is released with what came before the instruction.
            let to = self.l.released + ((step as usize & 1) * self.c.nodes.len() + node) * n;
            s.copy_within(mine..mine + n, to);
        }
        let site = |node: usize| Some(self.c.site(node));
        for &(other, buffer) in &acc.conflicts {
            let other = other as usize;
            if self.entered(s, other) && !self.after(s, sm, other) {
                let (a, b) = (site(node), site(other));
                return Err(self.hazard(s, Hazard::Race, Some(buffer), a, b));
            }
        }
        for &(other, chunk, buffer) in &acc.streamed {
            let other = other as usize;
            if s[self.l.issued + other] > chunk && s[mine + n + other] <= chunk {
                let (a, b) = (site(node), self.producer(other));
                return Err(self.hazard(s, Hazard::Race, Some(buffer), a, b));
            }
        }
        self.written(s, &acc.needs, site(node))?;
        s[mine + sm] = self.stamp(step, self.c.nodes[node].at);
        Ok(())
    }

    fn written(
        &self,
        s: &[u32],
        needs: &[(Mask, BufferId)],
        at: Option<Site>,
    ) -> Result<(), Witness> {
        for &(mut mask, buffer) in needs {
            let mut there = false;
            while mask != 0 && !there {
                there = self.entered(s, mask.trailing_zeros() as usize);
                mask &= mask - 1;
            }
            if !there {
                return Err(self.hazard(s, Hazard::Unwritten, Some(buffer), at, None));
            }
        }
        Ok(())
    }

    /// Posts the signals of an instruction and goes on to the next.
    fn post(&self, s: &mut [u32], sm: usize, node: usize) {
        s[self.l.at + sm] += 1;
        s[self.l.stage + sm] = BEFORE;
        if self.streams {
            s[self.l.eaten + sm] = 0;
        }
        if self.apart && !self.c.nodes[node].signals.is_empty() {
            let (from, wide) = (self.l.clocks + sm * self.l.wide, self.l.wide);
            s.copy_within(from..from + wide, self.l.posted + node * wide);
        }
        if !self.apart {
            while self.pending(s, sm).is_some() {
                self.perform(s, sm);
            }
        }
    }

    /// The next signal that the SM has posted and not performed.
    fn pending(&self, s: &[u32], sm: usize) -> Option<&(usize, usize, u32)> {
        let posted = match self.node(s, sm) {
            Some(node) => self.posted_before[node],
            None => self.signals[sm].len(),
        };
        let next = s[self.l.performed + sm] as usize;
        self.signals[sm][..posted].get(next)
    }

    fn perform(&self, s: &mut [u32], sm: usize) {
        let Some(&(node, counter, amount)) = self.pending(s, sm) else { return };
        let wide = self.l.wide;
        let from = match self.apart {
            true => self.l.posted + node * wide,
            false => self.l.clocks + sm * wide,
        };
        for (k, &(of, threshold)) in self.c.crossings.iter().enumerate() {
            let target = s[self.l.step] * self.c.per_step[counter] + threshold;
            if of == counter && s[self.l.values + counter] < target {
                for j in 0..wide {
                    let at = self.l.crossed + k * wide + j;
                    s[at] = s[at].max(s[from + j]);
                }
            }
        }
        s[self.l.values + counter] = s[self.l.values + counter].saturating_add(amount);
        s[self.l.performed + sm] += 1;
        let next = s[self.l.performed + sm] as usize;
        if self.apart && self.signals[sm].get(next).is_none_or(|x| x.0 != node) {
            s[from..from + wide].fill(0);
        }
    }

    fn all_arrived(&self, s: &[u32]) -> bool {
        s[self.l.launch] < self.c.launches
            && (0..self.sms()).all(|sm| self.node(s, sm).is_none() && self.pending(s, sm).is_none())
    }

    /// The boundary: its own accesses, and everything known to everybody.
    fn boundary(&self, s: &mut [u32]) -> Result<(), Witness> {
        let (n, wide) = (self.sms(), self.l.wide);
        let step = s[self.l.step];
        self.written(s, &self.c.table(step).boundary, None)?;
        for sm in 0..n {
            (s[self.l.at + sm], s[self.l.performed + sm]) = (0, 0);
        }
        let all = self.stamp(step + 1, 0) - 1;
        for k in 0..wide {
            let most = (0..n).map(|sm| s[self.l.clocks + sm * wide + k]).max().unwrap_or(0);
            let now = if k < n { all } else { most };
            (0..n).for_each(|sm| s[self.l.clocks + sm * wide + k] = now);
        }
        s[self.l.crossed..self.l.crossed + self.c.crossings.len() * wide].fill(0);
        s.copy_within(self.l.held..self.l.held + self.c.words, self.l.began);
        s[self.l.turn..].fill(0);
        s[self.l.step] += 1;
        if s[self.l.step] < self.c.steps {
            return Ok(());
        }
        // The end of a launch: producers have issued everything there is.
        for sm in 0..n {
            while self.issue(s, sm)? {}
            let total = self.c.steps * self.c.streams[sm].chunks.len() as u32;
            if total > 0 && s[self.l.issued + sm] < total {
                let me = self.producer(sm);
                return Err(self.hazard(s, Hazard::Deadlock, None, me, None));
            }
        }
        s[self.l.step] = 0;
        s[self.l.launch] += 1;
        let (held, end) = (self.l.held, self.l.turn);
        s[self.l.at..held].fill(0);
        s[end..].fill(0);
        Ok(())
    }
}
