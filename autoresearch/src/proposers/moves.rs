//! Draws points of a space.

use std::collections::BTreeSet;

use crate::candidate::{Candidate, CandidateId, Point, Value};
use crate::history::History;
use crate::rng::Rng;
use crate::seams::Ask;
use crate::space::{Domain, Knob, Space};

/// Draws before one gives up finding a point that was not tried.
const PATIENCE: u32 = 200;

/// Any point: each knob at its default with probability 1/3, so that not everything is strange at once.
pub fn any(space: &Space, rng: &mut Rng) -> Point {
    let draw = |knob: &Knob| {
        let value = match rng.chance(1.0 / 3.0) {
            true => knob.default.clone(),
            false => {
                let rungs = rungs(knob);
                let at = rng.below(rungs.len().max(1) as u64) as usize;
                rungs.into_iter().nth(at).unwrap_or_default()
            }
        };
        (knob.name.clone(), value)
    };
    Point(space.knobs.iter().map(draw).collect())
}

/// A domain of more values than this is walked on a few rungs.
const FEW: u64 = 12;
/// Rungs of a range whose ends are not far apart.
const RUNGS: u64 = 8;

/// Values of a knob that lie far enough apart to matter, in order: all of a few; of a wide range the ends, and between
/// them 1, 1.5, 2, 3, 4, 6, 8 and so on, or where the ends are within a factor of eight equal steps; its default and `auto`
/// too.
pub fn rungs(knob: &Knob) -> Vec<Value> {
    let n = knob.domain.len();
    let (low, high, step) = match &knob.domain {
        Domain::Range { low, high, step, .. } if n > FEW => (*low, *high, (*step).max(1)),
        domain => return (0..n).filter_map(|i| domain.at(i)).collect(),
    };
    let mut values = vec![low, high];
    if high / low.max(1) < RUNGS {
        values.extend((1..RUNGS).map(|i| low + (high - low) * i / RUNGS));
    } else {
        let doubled = std::iter::successors(Some(1u64), |v| v.checked_mul(2));
        values.extend(doubled.take_while(|v| *v <= high).flat_map(|v| [v, v + v / 2]));
    }
    let mut at: Vec<u64> = values
        .iter()
        .map(|v| v / step * step)
        .chain(values.iter().map(|v| v.div_ceil(step) * step).filter(|_| step > 1))
        .filter_map(|v| knob.domain.index(&Value::Int(v)))
        .chain(knob.domain.index(&Value::Auto))
        .chain(knob.domain.index(&knob.default))
        .collect();
    at.sort_unstable();
    at.dedup();
    at.into_iter().filter_map(|i| knob.domain.at(i)).collect()
}

/// Another value of a knob: mostly a near rung, sometimes any rung, at times one of the values right beside it.
pub fn step(knob: &Knob, value: &Value, rng: &mut Rng) -> Value {
    let n = knob.domain.len();
    if n < 2 {
        return value.clone();
    }
    let at = knob.domain.index(value).unwrap_or(0);
    let fine = n > FEW && rng.chance(0.15);
    let to = match fine {
        true => near(at, n, 3, rng),
        false => {
            let rungs: Vec<u64> = rungs(knob).iter().filter_map(|v| knob.domain.index(v)).collect();
            let m = rungs.len() as u64;
            // Between two rungs one starts from the upper.
            let from = rungs.partition_point(|r| *r < at) as u64;
            let from = from.min(m.saturating_sub(1));
            let to = if rng.chance(0.35) { rng.below(m.max(1)) } else { near(from, m, 2, rng) };
            let to = rungs.get(to as usize).copied().unwrap_or(at);
            if to == at { near(at, n, 1, rng) } else { to }
        }
    };
    knob.domain.at(to).unwrap_or_default()
}

/// An index up to `far` from another of `n`, and not that; at an end the way leads back.
fn near(at: u64, n: u64, far: u64, rng: &mut Rng) -> u64 {
    let far = 1 + rng.below(far);
    let up = rng.chance(0.5);
    let moved = if up { (at + far).min(n.max(1) - 1) } else { at.saturating_sub(far) };
    match moved == at {
        true if at == 0 => 1.min(n.max(1) - 1),
        true => at - 1,
        false => moved,
    }
}

/// A neighbour: one knob moved, or with probability 0.4 each one more, up to four.
pub fn neighbour(space: &Space, from: &Point, rng: &mut Rng) -> Point {
    let mut point = from.clone();
    for moved in 0..4 {
        if moved > 0 && !rng.chance(0.4) {
            break;
        }
        let Some(knob) = space.knobs.get(rng.below(space.knobs.len() as u64) as usize) else {
            break;
        };
        let value = point.get(&knob.name).cloned().unwrap_or_default();
        point.0.insert(knob.name.clone(), step(knob, &value, rng));
    }
    point
}

/// The point to start a move from: mostly the incumbent, sometimes another good one.
pub fn parent<'a>(history: &'a History, rng: &mut Rng) -> &'a Point {
    let others = history.best.len() as u64;
    match rng.chance(0.25) && others > 0 {
        true => {
            let i = rng.below(others).min(rng.below(others)) as usize;
            history.best.get(i).map_or(&history.incumbent, |t| &t.candidate.knobs)
        }
        false => &history.incumbent,
    }
}

/// Up to `count` candidates that were not tried, drawn by `draw`: a point and what it was made from.
pub fn fresh(
    ask: &Ask<'_>,
    source: &str,
    rng: &mut Rng,
    draw: &mut dyn FnMut(&mut Rng) -> (Point, Option<CandidateId>),
) -> Vec<Candidate> {
    let mut out = Vec::new();
    let mut ids = BTreeSet::new();
    for _ in 0..PATIENCE.saturating_mul(ask.count as u32) {
        if out.len() == ask.count {
            break;
        }
        let (point, parent) = draw(rng);
        let Ok(knobs) = ask.space.complete(&point) else { continue };
        let id = knobs.id();
        if !ask.history.was_tried(&id) && ids.insert(id) {
            // The start may be a point that was never a candidate by another name.
            let parent = parent.filter(|p| ask.history.was_tried(p));
            out.push(Candidate { knobs, parent, source: source.to_owned(), note: None });
        }
    }
    out
}
