//! Happens-before from the certificate's limits, and the limits from what must run first.
//!
//! Per instruction and SM two numbers: how many of that SM's instructions have all their accesses before
//! it by happens-before, and how many must have made them before it in any execution, where packets count
//! too. Both follow from the queues, from the counter waits with the signals that precede them (a
//! signal whose limit is below the threshold), and the latter from the writers of the packets read.

use std::collections::HashMap;

use amk_schedule_ir::{Access, Bound, BufferSync, InstrId, Program, Region};

use super::{Places, Refusal};
use crate::certificate::Certificate;

/// Counts by SM.
type Row = Vec<u32>;

pub(super) struct Clocks {
    places: Places,
    /// Happens-before; empty for programs without counters.
    rows: Vec<Row>,
}

/// A signalling instruction of one counter.
struct Signal {
    instruction: usize,
    place: (usize, usize),
    amount: u64,
    without: u64,
}

impl Clocks {
    /// Clocks of a program whose order has been checked.
    pub fn new(p: &Program, places: &Places, c: &Certificate) -> Result<Clocks, Refusal> {
        let signals = signals(p, places, c)?;
        if p.counters.is_empty() {
            return Ok(Clocks { places: places.clone(), rows: Vec::new() });
        }
        limits(p, &rows(p, places, c, &signals, true), &signals)?;
        Ok(Clocks { places: places.clone(), rows: rows(p, places, c, &signals, false) })
    }

    /// Do the accesses of `a` happen before those of `b`?
    pub fn before(&self, a: usize, b: usize) -> bool {
        let (Some(&(sa, pa)), Some(&(sb, pb))) = (self.places.get(a), self.places.get(b)) else {
            // The boundary comes after every instruction.
            return a < self.places.len();
        };
        if sa == sb {
            return pa < pb;
        }
        self.rows.get(b).and_then(|r| r.get(sa)).is_some_and(|&n| n as usize > pa)
    }
}

/// Every signalling instruction of every counter, with its limit from the certificate.
fn signals(p: &Program, places: &Places, c: &Certificate) -> Result<Vec<Vec<Signal>>, Refusal> {
    let mut out: Vec<Vec<Signal>> = p.counters.iter().map(|_| Vec::new()).collect();
    for (i, x) in p.instructions.iter().enumerate() {
        for s in &x.signals {
            let (Some(list), Some(&place)) = (out.get_mut(s.counter.index()), places.get(i)) else {
                continue;
            };
            match list.last_mut() {
                Some(last) if last.instruction == i => {
                    last.amount = last.amount.saturating_add(s.amount);
                }
                _ => list.push(Signal { instruction: i, place, amount: s.amount, without: 0 }),
            }
        }
    }
    let wrong = |counter: usize, i: u32, why: &str| Refusal::Limit {
        counter,
        instruction: InstrId(i),
        why: why.to_owned(),
    };
    if c.counters.len() != out.len() {
        return Err(wrong(
            out.len().min(c.counters.len()),
            0,
            "counters and lists differ in number",
        ));
    }
    for (counter, (list, limits)) in out.iter_mut().zip(&c.counters).enumerate() {
        if list.len() != limits.len() {
            return Err(wrong(counter, 0, "limits and signalling instructions differ in number"));
        }
        for (s, l) in list.iter_mut().zip(limits) {
            if l.instruction.index() != s.instruction {
                return Err(wrong(counter, l.instruction.0, "it is not the next that signals"));
            }
            s.without = l.without;
        }
    }
    Ok(out)
}

fn raise(row: &mut Row, other: &Row) {
    for (a, b) in row.iter_mut().zip(other) {
        *a = (*a).max(*b);
    }
}

/// Adds an instruction and what is before it.
fn follow(row: &mut Row, rows: &[Row], instruction: usize, place: (usize, usize)) {
    if let Some(other) = rows.get(instruction) {
        raise(row, other);
    }
    if let Some(n) = row.get_mut(place.0) {
        *n = (*n).max(place.1 as u32 + 1);
    }
}

fn packet(p: &Program, a: &Access) -> bool {
    p.buffer(a.buffer).is_some_and(|b| b.sync == BufferSync::Packet)
}

fn rows(
    p: &Program,
    places: &Places,
    c: &Certificate,
    signals: &[Vec<Signal>],
    packets: bool,
) -> Vec<Row> {
    let zero = vec![0u32; p.sms.len()];
    let mut rows = vec![zero.clone(); p.instructions.len()];
    let mut sm_rows = vec![zero.clone(); p.sms.len()];
    // The same without the packets that the instruction itself reads: it may write some of its own
    // packets before those are there, so this is what the readers of its packets know.
    let mut entered = if packets { rows.clone() } else { Vec::new() };
    // Writers so far of each packet buffer and phase; what a region waits for is found once, because
    // all its writers stand before its first reader.
    let mut writers: HashMap<(u32, u32), Vec<(&Region, usize)>> = HashMap::new();
    let mut read: HashMap<(u32, u32, &Region), Row> = HashMap::new();
    let mut waited: HashMap<(u32, u64), Row> = HashMap::new();
    for id in &c.order {
        let (Some(x), Some(&place)) = (p.instruction(*id), places.get(id.index())) else {
            continue;
        };
        let mut row = sm_rows.get(place.0).cloned().unwrap_or_default();
        for w in &x.waits {
            let before = waited.entry((w.counter.0, w.threshold)).or_insert_with(|| {
                let mut row = zero.clone();
                let list = signals.get(w.counter.index()).map_or(&[][..], |l| l);
                for s in list.iter().filter(|s| s.without < w.threshold) {
                    follow(&mut row, &rows, s.instruction, s.place);
                }
                row
            });
            raise(&mut row, before);
        }
        if let Some(r) = entered.get_mut(id.index()) {
            r.clone_from(&row);
        }
        for a in x.reads.iter().filter(|a| packets && packet(p, a)) {
            let before = read.entry((a.buffer.0, a.phase, &a.region)).or_insert_with(|| {
                let mut row = zero.clone();
                for (region, i) in writers.get(&(a.buffer.0, a.phase)).into_iter().flatten() {
                    if let Some(&place) = places.get(*i)
                        && shares(region, &a.region)
                    {
                        follow(&mut row, &entered, *i, place);
                    }
                }
                row
            });
            raise(&mut row, before);
        }
        for a in x.writes.iter().filter(|a| packets && packet(p, a)) {
            writers.entry((a.buffer.0, a.phase)).or_default().push((&a.region, id.index()));
        }
        if let Some(r) = sm_rows.get_mut(place.0) {
            r.clone_from(&row);
        }
        if let Some(r) = rows.get_mut(id.index()) {
            *r = row;
        }
    }
    rows
}

/// Do the regions share an element whatever the position? Only constant ones are said to.
fn shares(a: &Region, b: &Region) -> bool {
    a.rank() == b.rank()
        && a.0.iter().zip(&b.0).all(|(a, b)| match (a.lo, a.hi, b.lo, b.hi) {
            (Bound::At(a), Bound::At(b), Bound::At(c), Bound::At(d)) => a.max(c) < b.min(d),
            _ => false,
        })
}

/// Every limit of the certificate holds.
fn limits(p: &Program, must: &[Row], signals: &[Vec<Signal>]) -> Result<(), Refusal> {
    for (counter, list) in signals.iter().enumerate() {
        // Waits on this counter by SM: (position, threshold).
        let mut waits: Vec<Vec<(usize, u64)>> = vec![Vec::new(); p.sms.len()];
        for (sm, waits) in p.sms.iter().zip(&mut waits) {
            for (pos, id) in sm.queue.iter().enumerate() {
                let of = p.instruction(*id).map_or(&[][..], |x| &x.waits);
                waits.extend(
                    of.iter().filter(|w| w.counter.index() == counter).map(|w| (pos, w.threshold)),
                );
            }
        }
        // The largest threshold that each signal comes after.
        let guards: Vec<u64> = list
            .iter()
            .map(|s| {
                let row = must.get(s.instruction);
                let of_sm = |(sm, waits): (usize, &Vec<(usize, u64)>)| {
                    let known = row.and_then(|r| r.get(sm)).map_or(0, |&n| n as usize);
                    let known = if sm == s.place.0 { s.place.1 + 1 } else { known };
                    waits.iter().filter(|w| w.0 < known).map(|w| w.1).max()
                };
                waits.iter().enumerate().filter_map(of_sm).max().unwrap_or(0)
            })
            .collect();
        for s in list {
            let mut sum = 0u64;
            for (other, &guard) in list.iter().zip(&guards) {
                let after = if other.place.0 == s.place.0 {
                    other.place.1 >= s.place.1
                } else {
                    // After the next instruction of `s`'s queue, hence after its signals.
                    let row = must.get(other.instruction);
                    row.and_then(|r| r.get(s.place.0)).is_some_and(|&n| n as usize > s.place.1 + 1)
                };
                if guard <= s.without && !after {
                    sum = sum.saturating_add(other.amount);
                }
            }
            if sum > s.without {
                return Err(Refusal::Limit {
                    counter,
                    instruction: InstrId(s.instruction as u32),
                    why: format!("others can add {sum} before it, not {}", s.without),
                });
            }
        }
    }
    Ok(())
}
