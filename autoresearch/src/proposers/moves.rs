//! Draws points of a space.

use std::collections::BTreeSet;

use crate::candidate::{Candidate, CandidateId, Point, Value};
use crate::history::History;
use crate::rng::Rng;
use crate::seams::Ask;
use crate::space::{Knob, Space};

/// Draws before one gives up finding a point that was not tried.
const PATIENCE: u32 = 200;

/// Values from which on a domain is wide: one of counts, where small ones differ more than large ones.
const WIDE: u64 = 16;

/// A place in a domain of `n` values: any, and in a wide one every other time a small one, so that each doubling is
/// as likely as the next.
fn place(n: u64, rng: &mut Rng) -> u64 {
    match n > WIDE && rng.chance(0.5) {
        true => {
            let doublings = (n as f64).ln() * rng.below(1 << 20) as f64 / (1u64 << 20) as f64;
            (doublings.exp() as u64 - 1).min(n - 1)
        }
        false => rng.below(n),
    }
}

/// Any point: each knob at its default with probability 1/3, so that not everything is strange at once.
pub fn any(space: &Space, rng: &mut Rng) -> Point {
    let draw = |knob: &Knob| {
        let value = match rng.chance(1.0 / 3.0) {
            true => knob.default.clone(),
            false => knob.domain.at(place(knob.domain.len(), rng)).unwrap_or_default(),
        };
        (knob.name.clone(), value)
    };
    Point(space.knobs.iter().map(draw).collect())
}

/// Another value of a knob: mostly a near one, sometimes any, in a wide domain every other time any.
pub fn step(knob: &Knob, value: &Value, rng: &mut Rng) -> Value {
    let n = knob.domain.len();
    if n < 2 {
        return value.clone();
    }
    let at = knob.domain.index(value).unwrap_or(0);
    let to = match rng.chance(if n > WIDE { 0.5 } else { 0.35 }) {
        true => {
            let other = place(n - 1, rng);
            other + u64::from(other >= at)
        }
        false => {
            let far = 1 + rng.below(3);
            let up = rng.chance(0.5);
            let moved = if up { at.saturating_add(far).min(n - 1) } else { at.saturating_sub(far) };
            // At an end the way leads back.
            match moved == at {
                true if at == 0 => 1,
                true => at - 1,
                false => moved,
            }
        }
    };
    knob.domain.at(to).unwrap_or_default()
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
