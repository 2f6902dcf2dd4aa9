//! What acceptance leaves behind for a second look: see [`crate::checker`], which says what each part
//! proves.

use amk_schedule_ir::hash::{hex, sha256};
use amk_schedule_ir::{Bound, InstrId, Program};
use serde::{Deserialize, Serialize};

use crate::classes::Classes;
use crate::deadlock::Execution;
use crate::fault::Faults;
use crate::model::{Model, appended};
use crate::order::Signals;
use crate::structure;

/// Version of the certificate's form.
pub const CERTIFICATE_VERSION: u32 = 1;

/// Evidence that a program can neither deadlock nor race.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    pub version: u32,
    /// Canonical hash of the program, hexadecimal.
    pub program: String,
    /// Every instruction, in an order in which one step can run.
    pub order: Vec<InstrId>,
    /// Per counter, every signalling instruction with what the counter cannot exceed without it.
    pub counters: Vec<Vec<Limit>>,
    /// Grids of the buffers that instructions write, by buffer id.
    pub grids: Vec<Grid>,
    /// SHA-256 of all fields above, hexadecimal: tells a damaged file from a wrong one.
    pub digest: String,
}

/// Until `instruction` has signalled, the counter gains at most `without` in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    pub instruction: InstrId,
    pub without: u64,
}

/// How a buffer is cut into cells that every access takes whole, on each part of the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    pub buffer: u32,
    pub parts: Vec<GridPart>,
}

/// The cuts for the positions `first..=last`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridPart {
    pub first: u64,
    pub last: u64,
    /// Per dimension, bounds that do not decrease at any of these positions.
    pub cuts: Vec<Vec<Bound>>,
}

impl Certificate {
    pub(crate) fn new(m: &Model, run: &Execution, bounds: &Signals) -> Certificate {
        let counters = bounds
            .iter()
            .map(|sms| {
                let mut limits: Vec<Limit> = sms
                    .iter()
                    .flat_map(|(_, list)| list)
                    .map(|s| Limit { instruction: InstrId(s.node), without: s.without })
                    .collect();
                limits.sort_by_key(|l| l.instruction);
                limits
            })
            .collect();
        let instructions = run.order.iter().filter(|&&n| n < m.boundary());
        let mut certificate = Certificate {
            version: CERTIFICATE_VERSION,
            program: hex(&m.program.hash()),
            order: instructions.map(|&n| InstrId(n)).collect(),
            counters,
            grids: grids(m),
            digest: String::new(),
        };
        certificate.digest = certificate.sum();
        certificate
    }

    /// What `digest` has to be.
    pub fn sum(&self) -> String {
        // Every field in a fixed order, lists with their lengths.
        let mut bytes = Vec::new();
        let mut put = |x: u64| bytes.extend_from_slice(&x.to_le_bytes());
        put(u64::from(self.version));
        put(self.program.len() as u64);
        self.program.bytes().for_each(|b| put(u64::from(b)));
        put(self.order.len() as u64);
        self.order.iter().for_each(|i| put(u64::from(i.0)));
        put(self.counters.len() as u64);
        for limits in &self.counters {
            put(limits.len() as u64);
            for l in limits {
                put(u64::from(l.instruction.0));
                put(l.without);
            }
        }
        put(self.grids.len() as u64);
        for grid in &self.grids {
            put(u64::from(grid.buffer));
            put(grid.parts.len() as u64);
            for part in &grid.parts {
                put(part.first);
                put(part.last);
                put(part.cuts.len() as u64);
                for cuts in &part.cuts {
                    put(cuts.len() as u64);
                    for &cut in cuts {
                        let (kind, a, b) = match cut {
                            Bound::At(x) => (0, x, 0),
                            Bound::Pos(o) => (1, o as u64, 0),
                            Bound::Clip(x) => (2, x, 0),
                            Bound::Split { part, parts } => (3, u64::from(part), u64::from(parts)),
                        };
                        [kind, a, b].into_iter().for_each(&mut put);
                    }
                }
            }
        }
        hex(&sha256(&bytes))
    }
}

fn grids(m: &Model) -> Vec<Grid> {
    let mut out = Vec::new();
    for (i, (buffer, model)) in m.program.buffers.iter().zip(&m.buffers).enumerate() {
        if model.pieces.is_empty() {
            continue;
        }
        let whole = amk_schedule_ir::Region::whole(&buffer.shape);
        let step = appended(&buffer.shape, m.program.tokens);
        let mut numbers: Vec<Vec<u64>> = vec![Vec::new(); buffer.shape.len()];
        let regions = model.classes.iter().filter_map(|&c| m.region(c));
        let is_cache = buffer.kind == amk_schedule_ir::BufferKind::Kv;
        for region in regions.chain([&whole]).chain(is_cache.then_some(&step)) {
            for (list, span) in numbers.iter_mut().zip(&region.0) {
                for b in [span.lo, span.hi] {
                    if let Bound::At(x) = b {
                        list.push(x);
                    }
                }
            }
        }
        for list in &mut numbers {
            list.sort_unstable();
            list.dedup();
        }
        let parts = model
            .pieces
            .iter()
            .map(|p| {
                let cuts = numbers.iter().enumerate().map(|(d, numbers)| match p.order(d) {
                    [] => numbers.iter().map(|&x| Bound::At(x)).collect(),
                    ranks => ranks.to_vec(),
                });
                GridPart { first: p.bucket.first, last: p.bucket.last, cuts: cuts.collect() }
            })
            .collect();
        out.push(Grid { buffer: i as u32, parts });
    }
    out
}

/// The evidence there is for a program, enough or not: [`crate::checker::check`] decides. `None` if the
/// program's structure is unsound.
pub fn certify(program: &Program) -> Option<Certificate> {
    let mut faults = Faults::default();
    let mut classes = Classes::new(program);
    let structure = structure::check(program, &mut faults, |i, x, _, _| {
        classes.add(i as u32, &x.reads, &x.writes);
    });
    if !structure.sound || program.sms.len() > crate::MAX_SMS {
        return None;
    }
    Some(from(&Model::new(program, structure.nodes, classes)))
}

/// The same of a program whose structure is known to be sound.
pub(crate) fn of(program: &Program) -> Certificate {
    from(&Model::of(program))
}

fn from(model: &Model) -> Certificate {
    let (run, _, bounds) = crate::execute(model, &mut Faults::default());
    Certificate::new(model, &run, &bounds)
}
