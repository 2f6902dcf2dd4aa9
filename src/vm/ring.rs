//! The chunk ring of one SM: which chunk each slot holds, what is in flight.

use std::rc::Rc;

use super::memory::Values;
use super::plan::Interval;

/// Rows of a cache, brought by a kv chunk.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub buffer: usize,
    pub elements: Vec<Interval>,
    pub values: Option<Values>,
}

impl Rows {
    /// Copies those of the rows that lie in `[lo, hi)` to their place in `to`.
    pub fn copy_into(&self, (lo, hi): Interval, to: &mut [f32]) {
        let Some(Values::Real(values)) = &self.values else { return };
        let mut start = 0;
        for &(a, b) in &self.elements {
            let (from, end) = (a.max(lo), b.min(hi));
            if from < end {
                let n = (end - from) as usize;
                let source = start + (from - a) as usize;
                to[(from - lo) as usize..][..n].copy_from_slice(&values[source..source + n]);
            }
            start += (b - a) as usize;
        }
    }
}

/// A chunk on chip or on its way.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub chunk: u64,
    pub landed: bool,
    /// P's own clock when it issued the chunk.
    pub issued_at: u32,
    /// Rows of a kv chunk, taken when it landed.
    pub rows: Option<Rows>,
}

/// Slots of the ring; chunk `u` goes through slot `u mod S`.
pub(crate) struct Ring {
    slots: Vec<Option<Held>>,
    /// Per slot, the consumers' clock at its last release; kept where P's accesses matter.
    pub released: Vec<Option<Rc<[u32]>>>,
    /// Issued and not landed, in no order.
    pub in_flight: Vec<u64>,
    /// Chunks issued so far.
    pub issued: u64,
    /// The chunk the consumers wait for.
    pub awaited: Option<u64>,
    /// P waits for a slot or for the window.
    pub producer_waits: bool,
}

impl Ring {
    pub fn new(slots: usize) -> Ring {
        Ring {
            slots: (0..slots).map(|_| None).collect(),
            released: vec![None; slots],
            in_flight: Vec::new(),
            issued: 0,
            awaited: None,
            producer_waits: false,
        }
    }

    /// Slot of a chunk; `None` if there are no slots.
    pub fn slot(&self, chunk: u64) -> Option<usize> {
        (!self.slots.is_empty()).then(|| (chunk % self.slots.len() as u64) as usize)
    }

    /// The chunk that holds the slot of `chunk`.
    pub fn holder(&self, chunk: u64) -> Option<&Held> {
        self.slots.get(self.slot(chunk)?)?.as_ref()
    }

    /// Has `chunk` landed in its slot?
    pub fn has_landed(&self, chunk: u64) -> bool {
        self.holder(chunk).is_some_and(|h| h.chunk == chunk && h.landed)
    }

    /// Puts an issued chunk into its free slot.
    pub fn issue(&mut self, held: Held) {
        if let Some(slot) = self.slot(held.chunk) {
            self.in_flight.push(held.chunk);
            self.issued = held.chunk + 1;
            self.slots[slot] = Some(held);
        }
    }

    /// The chunk `in_flight[i]` arrives.
    pub fn land(&mut self, i: usize) -> Option<&mut Held> {
        let chunk = self.in_flight.swap_remove(i);
        let slot = self.slot(chunk)?;
        let held = self.slots.get_mut(slot)?.as_mut()?;
        held.landed = true;
        Some(held)
    }

    /// Consumes a landed chunk and frees its slot.
    pub fn consume(&mut self, chunk: u64) -> Option<Held> {
        let slot = self.slot(chunk)?;
        self.slots[slot].take()
    }

    /// Chunks that hold a slot.
    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.slots.iter().flatten()
    }
}
