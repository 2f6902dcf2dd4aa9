//! Happens-before from the certificate's limits, and the limits from what must run first.
//!
//! Per instruction and SM, how many of that SM's instructions have all their accesses before it by
//! happens-before. It follows from the queues and from the counter waits with the signals that precede them: a
//! signal whose limit is below the threshold. Packets say nothing, not even about what runs first.

use std::collections::HashMap;

use amk_schedule_ir::{InstrId, Program};

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
        let rows = rows(p, places, c, &signals);
        limits(p, &rows, &signals)?;
        Ok(Clocks { places: places.clone(), rows })
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

fn rows(p: &Program, places: &Places, c: &Certificate, signals: &[Vec<Signal>]) -> Vec<Row> {
    let zero = vec![0u32; p.sms.len()];
    let mut rows = vec![zero.clone(); p.instructions.len()];
    let mut sm_rows = vec![zero.clone(); p.sms.len()];
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
        if let Some(r) = sm_rows.get_mut(place.0) {
            r.clone_from(&row);
        }
        if let Some(r) = rows.get_mut(id.index()) {
            *r = row;
        }
    }
    rows
}

/// Waits on one counter by SM, in queue order: position and largest threshold so far.
fn waits(p: &Program) -> Vec<Vec<Vec<(usize, u64)>>> {
    let mut out = vec![vec![Vec::new(); p.sms.len()]; p.counters.len()];
    for (s, sm) in p.sms.iter().enumerate() {
        for (pos, id) in sm.queue.iter().enumerate() {
            for w in p.instruction(*id).map_or(&[][..], |x| &x.waits) {
                let list: Option<&mut Vec<(usize, u64)>> =
                    out.get_mut(w.counter.index()).and_then(|sms| sms.get_mut(s));
                if let Some(list) = list {
                    let before = list.last().map_or(0, |l| l.1);
                    list.push((pos, w.threshold.max(before)));
                }
            }
        }
    }
    out
}

/// A signal as the sums see it.
struct Step {
    instruction: usize,
    pos: usize,
    /// The largest threshold of the waits on this counter that it comes after.
    guard: u64,
    /// What the signals of its SM add up to, this one included.
    sum: u64,
}

/// Every limit of the certificate holds.
fn limits(p: &Program, must: &[Row], signals: &[Vec<Signal>]) -> Result<(), Refusal> {
    let count = |instruction: usize, sm: usize| {
        must.get(instruction).and_then(|r| r.get(sm)).map_or(0, |&n| n as usize)
    };
    for (counter, (list, waits)) in signals.iter().zip(waits(p)).enumerate() {
        // By SM, in queue order. Guards and what comes before can only grow along a queue.
        let mut sms: Vec<Vec<Step>> = p.sms.iter().map(|_| Vec::new()).collect();
        let mut sorted: Vec<&Signal> = list.iter().collect();
        sorted.sort_by_key(|s| s.place);
        for s in sorted {
            let seen = waits.iter().enumerate().filter_map(|(sm, waits)| {
                // An instruction's own waits come before its signals.
                let known = if sm == s.place.0 { s.place.1 + 1 } else { count(s.instruction, sm) };
                let end = waits.partition_point(|w| w.0 < known);
                end.checked_sub(1).and_then(|i| waits.get(i)).map(|w| w.1)
            });
            let guard = seen.max().unwrap_or(0);
            if let Some(steps) = sms.get_mut(s.place.0) {
                let (before, sum) = steps.last().map_or((0, 0), |l| (l.guard, l.sum));
                steps.push(Step {
                    instruction: s.instruction,
                    pos: s.place.1,
                    guard: guard.max(before),
                    sum: sum.saturating_add(s.amount),
                });
            }
        }
        for s in list {
            let mut sum = 0u64;
            for (sm, steps) in sms.iter().enumerate() {
                // Those whose waits ask for no more than the limit, up to the first that comes after `s`:
                // on its own SM itself, elsewhere what follows the next instruction of its queue.
                let asked = steps.partition_point(|x| x.guard <= s.without);
                let after = match sm == s.place.0 {
                    true => steps.partition_point(|x| x.pos < s.place.1),
                    false => {
                        steps.partition_point(|x| count(x.instruction, s.place.0) <= s.place.1 + 1)
                    }
                };
                let last = asked.min(after).checked_sub(1).and_then(|i| steps.get(i));
                sum = sum.saturating_add(last.map_or(0, |x| x.sum));
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
