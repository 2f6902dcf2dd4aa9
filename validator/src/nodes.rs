//! What the checks of order need of each instruction, in flat arrays. They visit instructions queue by queue or in
//! the order of an execution; the program itself, many times larger, is read front to back, once.

use amk_schedule_ir::{Instruction, Op, Program, RunId, Signal, Wait};

/// Marks the absence of an index.
pub(crate) const NONE: u32 = u32::MAX;

/// Lists of one kind, one after the other.
pub(crate) struct Lists<T> {
    items: Vec<T>,
    /// Where each begins, and the end.
    first: Vec<u32>,
}

impl<T> Lists<T> {
    pub fn with_capacity(lists: usize) -> Lists<T> {
        let mut first = Vec::with_capacity(lists + 1);
        first.push(0);
        Lists { items: Vec::new(), first }
    }

    /// Adds to the list that is not finished yet.
    pub fn push(&mut self, item: T) {
        self.items.push(item);
    }

    /// Finishes a list.
    pub fn end(&mut self) {
        self.first.push(self.items.len() as u32);
    }

    /// The `i`-th list; empty if there is none.
    pub fn get(&self, i: usize) -> &[T] {
        match (self.first.get(i), self.first.get(i.saturating_add(1))) {
            (Some(&a), Some(&b)) => self.items.get(a as usize..b as usize).unwrap_or(&[]),
            _ => &[],
        }
    }
}

/// See the module page; all of it by list index.
pub(crate) struct Nodes {
    /// SM and queue position, or [`NONE`] in no queue; the last place if there are several.
    pub sm: Vec<u32>,
    pub pos: Vec<u32>,
    /// The run it consumes.
    pub run: Vec<Option<RunId>>,
    /// Is it a `boundary` instruction?
    pub arrival: Vec<bool>,
    waits: Lists<Wait>,
    signals: Lists<Signal>,
}

impl Nodes {
    /// The places of the instructions; the rest is added one by one.
    pub fn new(p: &Program) -> Nodes {
        let n = p.instructions.len();
        let (mut sms, mut positions) = (vec![NONE; n], vec![NONE; n]);
        for (s, sm) in p.sms.iter().enumerate() {
            for (pos, id) in sm.queue.iter().enumerate() {
                if let (Some(a), Some(b)) = (sms.get_mut(id.index()), positions.get_mut(id.index()))
                {
                    (*a, *b) = (s as u32, pos as u32);
                }
            }
        }
        Nodes {
            sm: sms,
            pos: positions,
            run: Vec::with_capacity(n),
            arrival: Vec::with_capacity(n),
            waits: Lists::with_capacity(n),
            signals: Lists::with_capacity(n),
        }
    }

    /// Adds the next instruction.
    pub fn add(&mut self, x: &Instruction) {
        self.run.push(x.run);
        self.arrival.push(matches!(x.op, Op::Boundary(_)));
        x.waits.iter().for_each(|w| self.waits.push(*w));
        self.waits.end();
        x.signals.iter().for_each(|s| self.signals.push(*s));
        self.signals.end();
    }

    pub fn waits(&self, node: usize) -> &[Wait] {
        self.waits.get(node)
    }

    pub fn signals(&self, node: usize) -> &[Signal] {
        self.signals.get(node)
    }
}
