//! The part of S that is about streams: every run has its consumer, is what that consumer takes, and is
//! well formed.

use amk_schedule_ir::{
    BufferKind, Footprint, Instruction, OpContext, Run, RunSource, Span, TILE_ROWS, weight_blocks,
};

use super::{Check, Takes, Taking};
use crate::fault::Place;
use crate::nodes::{NONE, Nodes};

impl Check<'_> {
    /// What is known, before the streams are looked at, of what an instruction in the queue of `sm` takes.
    pub(super) fn taking(&self, x: &Instruction, footprint: Option<&Footprint>, sm: u32) -> Taking {
        let Some(footprint) = footprint else { return Taking::Unknown };
        let takes = Takes { weight: footprint.weight, kv: footprint.kv };
        let stream = self.p.sms.get(sm as usize).map_or(&[][..], |sm| &sm.stream);
        let fits = match x.run {
            None => takes.weight.is_none(),
            Some(run) => {
                stream.get(run.index()).is_some_and(|run| self.misfit(x, &takes, run).is_none())
            }
        };
        if fits { Taking::Fits } else { Taking::Open }
    }

    pub(super) fn runs(&mut self, nodes: &Nodes, takings: &[Taking]) {
        let p = self.p;
        for (s, sm) in p.sms.iter().enumerate() {
            let mut users = vec![NONE; sm.stream.len()];
            for id in &sm.queue {
                let Some(&run) = nodes.run.get(id.index()) else { continue };
                let place = Place::Instruction(id.index());
                // Taken from the program again where there may be something to say.
                let open = match takings.get(id.index()) {
                    Some(Taking::Open) => true,
                    Some(Taking::Fits) => nodes.sm.get(id.index()) != Some(&(s as u32)),
                    _ => false,
                };
                let open = p.instruction(*id).filter(|_| open).map(|x| {
                    let f = x.op.footprint(OpContext { tokens: u64::from(p.tokens) });
                    (x, Takes { weight: f.weight, kv: f.kv })
                });
                let Some(run) = run else {
                    if let Some((x, Takes { weight: Some(w), .. })) = open {
                        self.fault(
                            place,
                            format!(
                                "{id} ({}) consumes rows {}..{} of a weight matrix, but has no run",
                                x.op.name(),
                                w.lo,
                                w.hi
                            ),
                        );
                    }
                    continue;
                };
                let Some(user) = users.get_mut(run.index()) else {
                    self.broken(
                        place,
                        format!(
                            "{id} consumes {run}, but the stream of sm {s} has {} runs",
                            sm.stream.len()
                        ),
                    );
                    continue;
                };
                let first = std::mem::replace(user, id.0);
                if first != NONE {
                    self.broken(
                        place,
                        format!("{id} consumes {run} of sm {s}, which instr {first} has consumed already; a run has one consumer"),
                    );
                }
                if let (Some((x, f)), Some(run)) = (open, sm.stream.get(run.index()))
                    && let Some(message) = self.misfit(x, &f, run)
                {
                    self.fault(place, message);
                }
            }
            for (r, run) in sm.stream.iter().enumerate() {
                let place = Place::Run { sm: s, run: r };
                if users.get(r) == Some(&NONE) {
                    self.broken(
                        place,
                        format!("run {r} of sm {s} has no consumer, so its chunks are never released; give it to an instruction or remove it"),
                    );
                }
                self.run(place, s, r, run);
            }
        }
    }

    /// Why the run is not what the op consumes.
    fn misfit(&self, x: &Instruction, f: &Takes, run: &Run) -> Option<String> {
        let who = || format!("{} ({}) consumes {}", x.id, x.op.name(), run.id);
        match (&run.source, f.weight) {
            (RunSource::Weight { buffer, lo, hi, .. }, Some(w)) => {
                let shape = self.p.buffer(*buffer).map(|b| b.shape.as_slice());
                (shape != Some(&w.shape) || *lo != w.lo || *hi != w.hi).then(|| {
                    format!(
                        "{}, rows {lo}..{hi} of {buffer} {:?}, but the op needs rows {}..{} of a matrix {:?}", who(),
                        shape.unwrap_or(&[]), w.lo, w.hi, w.shape
                    )
                })
            }
            (RunSource::Weight { .. }, None) => {
                Some(format!("{}, which streams weights, but the op takes none", who()))
            }
            (RunSource::Kv { .. }, Some(_)) => {
                Some(format!("{}, which streams a cache, but the op takes weights", who()))
            }
            (RunSource::Kv { buffer, region, .. }, None) => {
                let declared = f.kv
                    && x.reads.iter().any(|a| {
                        a.buffer == *buffer
                            && a.region == *region
                            && self.p.buffer(a.buffer).is_some_and(|b| b.kind == BufferKind::Kv)
                    });
                (!declared).then(|| {
                    format!("{}, which streams a cache region that is none of the past rows the op reads", who())
                })
            }
        }
    }

    /// The run itself is well formed.
    fn run(&mut self, place: Place, s: usize, r: usize, run: &Run) {
        let who = || format!("run {r} of sm {s}");
        let slots = self.p.resources.ring_slots;
        if run.window == 0 || run.window > slots {
            self.fault(
                place,
                format!("{} has a window of {}, but the ring has {slots} slots; the window must be 1 to that", who(), run.window),
            );
        }
        let id = run.source.buffer();
        let Some(buffer) = self.p.buffer(id) else {
            self.broken(
                place,
                format!("{} reads {id}, but there are {} buffers", who(), self.p.buffers.len()),
            );
            return;
        };
        match &run.source {
            RunSource::Weight { lo, hi, tiles, blocks, .. } => {
                if buffer.kind != BufferKind::Weight {
                    self.broken(
                        place,
                        format!(
                            "{} streams weights from {id}, which is a {:?} buffer",
                            who(),
                            buffer.kind
                        ),
                    );
                    return;
                }
                let rows = buffer.shape.first().copied().unwrap_or(0);
                if lo >= hi || *hi > rows || !lo.is_multiple_of(TILE_ROWS) {
                    self.broken(
                        place,
                        format!("{} streams rows {lo}..{hi} of {id} with {rows} rows; rows must be ordered, inside the buffer, and start at a multiple of {TILE_ROWS}", who()),
                    );
                }
                let k_blocks = weight_blocks(buffer).unwrap_or(0);
                if *tiles == 0 || *blocks == 0 || u64::from(*blocks) > k_blocks {
                    self.broken(
                        place,
                        format!("{} has chunks of {tiles} tiles of {blocks} blocks, but a tile of {id} has 1 to {k_blocks} blocks", who()),
                    );
                } else if *tiles > 1 && u64::from(*blocks) != k_blocks {
                    self.fault(
                        place,
                        format!("{} has chunks of {tiles} tiles with {blocks} of {k_blocks} blocks; several tiles to a chunk need all blocks of each", who()),
                    );
                }
            }
            RunSource::Kv { region, rows, gate, .. } => {
                if buffer.kind != BufferKind::Kv {
                    self.broken(
                        place,
                        format!(
                            "{} streams cache rows from {id}, which is a {:?} buffer",
                            who(),
                            buffer.kind
                        ),
                    );
                    return;
                }
                if !self.region(place, &who, buffer, region) {
                    return;
                }
                if *rows == 0 {
                    self.broken(place, format!("{} has chunks of 0 rows", who()));
                }
                if *gate == 0 {
                    self.fault(place, format!("{} has gate 0; the newest boundary that can precede a chunk of step t ends step t - 1, so a gate is at least 1", who()));
                }
                let dim = buffer.shape.get(2).copied().unwrap_or(0);
                let one_head = matches!(region.0.as_slice(), [heads, _, width]
                    if heads.constant_len() == Some(1) && *width == Span::at(0, dim));
                if !one_head {
                    self.fault(
                        place,
                        format!("{} must read one kv head over its whole width 0..{dim}", who()),
                    );
                }
            }
        }
        match run.source.chunk_bytes(buffer) {
            Some(bytes) if bytes <= self.p.resources.slot_bytes => {}
            bytes => self.fault(
                place,
                format!(
                    "{} has chunks of {} bytes, but a ring slot holds {}",
                    who(),
                    bytes.map_or_else(|| "too many".to_owned(), |b| b.to_string()),
                    self.p.resources.slot_bytes
                ),
            ),
        }
    }
}
