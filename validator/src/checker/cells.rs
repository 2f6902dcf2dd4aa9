//! What happens to every cell of every written buffer, along the order of the certificate.

use amk_schedule_ir::{Access, Area, Bound, Buffer, BufferKind, BufferSync, Program, Region, Span};

use super::clocks::Clocks;
use super::grid::{Cells, tiles_bucket};
use super::{Places, Refusal};
use crate::certificate::{Certificate, GridPart};
use crate::resources::Areas;

/// An access, in the order of the certificate. The boundary is the instruction after the last.
struct Touch<'p> {
    node: usize,
    write: bool,
    access: &'p Access,
}

/// What is known of a cell at some point of the order.
#[derive(Clone, Default)]
struct Cell {
    /// Was there when the step started.
    given: bool,
    /// The last writer.
    writer: Option<usize>,
    /// Who has read since.
    readers: Vec<usize>,
    /// Phases written so far, in order; one entry per write for buffers without phases.
    phases: Vec<u32>,
    /// The SM that touches it, for local buffers.
    owner: Option<usize>,
}

struct Check<'a, 'p> {
    p: &'p Program,
    places: &'a Places,
    order: &'a Clocks,
    buffer: usize,
    b: &'p Buffer,
    touches: &'a [Touch<'p>],
}

pub(super) fn check(
    p: &Program,
    places: &Places,
    certificate: &Certificate,
    order: &Clocks,
    areas: &Areas,
) -> Result<(), Refusal> {
    let mut touches: Vec<Vec<Touch>> = p.buffers.iter().map(|_| Vec::new()).collect();
    let boundary = (p.instructions.len(), &p.boundary.reads, &p.boundary.writes);
    let instructions = certificate
        .order
        .iter()
        .filter_map(|id| p.instruction(*id).map(|x| (id.index(), &x.reads, &x.writes)));
    for (node, reads, writes) in instructions.chain([boundary]) {
        for (write, list) in [(false, reads), (true, writes)] {
            for access in list {
                if let Some(touches) = touches.get_mut(access.buffer.index()) {
                    touches.push(Touch { node, write, access });
                }
            }
        }
    }
    let mut grids = certificate.grids.iter();
    // Bytes of local elements by SM.
    let mut local = vec![0u128; p.sms.len()];
    for (i, (b, touches)) in p.buffers.iter().zip(&touches).enumerate() {
        if !matches!(b.kind, BufferKind::Activation | BufferKind::Kv | BufferKind::Output) {
            continue;
        }
        let refuse = |why: &str| Err(Refusal::Grid { buffer: i, why: why.to_owned() });
        let Some(grid) = grids.next().filter(|g| g.buffer as usize == i) else {
            return refuse("it is missing, or not in its place");
        };
        if !tiles_bucket(p, grid) {
            return refuse("its parts do not tile the bucket");
        }
        let check = Check { p, places, order, buffer: i, b, touches };
        // An SM is charged the elements it touches, or the buffer where those may follow the position.
        let mut kept = vec![0u128; p.sms.len()];
        for part in &grid.parts {
            let cells = check.part(part)?;
            if b.sync == BufferSync::Local {
                check.owned(part, &cells, grid.parts.len() == 1, &mut kept);
            }
        }
        for (sum, elements) in local.iter_mut().zip(kept) {
            let bytes = u128::from(b.dtype.bytes().max(4));
            *sum = sum.saturating_add(elements.saturating_mul(bytes));
        }
    }
    if let Some(grid) = grids.next() {
        let why = "the buffer has no use for one".to_owned();
        return Err(Refusal::Grid { buffer: grid.buffer as usize, why });
    }
    let has = u128::from(areas.get(Area::Local));
    match local.iter().position(|&need| need > has) {
        Some(sm) => Err(Refusal::Cell {
            buffer: 0,
            instruction: format!("sm {sm}"),
            why: format!("its local elements take more than the {has} bytes of their area"),
        }),
        None => Ok(()),
    }
}

/// The rows of a cache between two offsets from the position.
fn rows(b: &Buffer, lo: Bound, hi: Bound) -> Region {
    let mut region = Region::whole(&b.shape);
    if let Some(rows) = region.0.get_mut(1) {
        *rows = Span { lo, hi };
    }
    region
}

impl Check<'_, '_> {
    fn refuse<T>(&self, node: usize, why: &str) -> Result<T, Refusal> {
        let instruction = match node < self.places.len() {
            true => format!("instr {node}"),
            false => "the boundary".to_owned(),
        };
        Err(Refusal::Cell { buffer: self.buffer, instruction, why: why.to_owned() })
    }

    /// Does `a` come before `b`, or is it `b` itself?
    fn upto(&self, a: usize, b: usize) -> bool {
        a == b || self.order.before(a, b)
    }

    /// Follows every cell through the order; returns them as the step leaves them.
    fn part(&self, part: &GridPart) -> Result<(Cells, Vec<Cell>), Refusal> {
        let tokens = i64::from(self.p.tokens);
        let whole = Region::whole(&self.b.shape);
        let cache = self.b.kind == BufferKind::Kv;
        let past = rows(self.b, Bound::At(0), Bound::Pos(0));
        let step = rows(self.b, Bound::Pos(0), Bound::Pos(tokens));
        let mut regions: Vec<&Region> = self.touches.iter().map(|t| &t.access.region).collect();
        regions.push(&whole);
        if cache {
            regions.extend([&past, &step]);
        }
        let grid = Cells::new(self.buffer, part, regions.into_iter())?;
        let mut cells = vec![Cell::default(); grid.count];
        if cache {
            grid.each(&grid.block(&past), |i| {
                if let Some(c) = cells.get_mut(i) {
                    c.given = true;
                }
                Ok(())
            })?;
        }
        let epochs = self.p.epochs;
        let few = self.b.sync == BufferSync::Packet && epochs.tags < 2 * u64::from(epochs.per_step);
        // Reads that may see what the step before left, where tags are few enough to repeat.
        let mut unsettled: Vec<(&Touch, usize)> = Vec::new();
        for t in self.touches {
            grid.each(&grid.block(&t.access.region), |i| {
                let Some(cell) = cells.get_mut(i) else { return Ok(()) };
                if few && !t.write && !cell.writer.is_some_and(|w| self.order.before(w, t.node)) {
                    unsettled.push((t, i));
                }
                self.touch(t, cell)
            })?;
        }
        if few {
            for (t, i) in unsettled {
                let last = cells.get(i).and_then(|c| c.phases.last()).copied().unwrap_or(0);
                let now = u64::from(t.access.phase) + u64::from(epochs.per_step);
                if (now - u64::from(last)).is_multiple_of(epochs.tags) {
                    return self.refuse(t.node, "the step before leaves the tag it waits for");
                }
            }
        }
        let must = if cache { Some(&step) } else { None };
        let must = if self.b.kind == BufferKind::Output { Some(&whole) } else { must };
        if let Some(region) = must {
            grid.each(&grid.block(region), |i| {
                let writes = cells.get(i).map_or(0, |c| c.phases.len());
                match writes {
                    0 => self.refuse(self.places.len(), "the step ends with an element unwritten"),
                    1 => Ok(()),
                    _ if cache => Ok(()),
                    _ => self.refuse(self.places.len(), "an output element is written twice"),
                }
            })?;
        }
        Ok((grid, cells))
    }

    fn touch(&self, t: &Touch, cell: &mut Cell) -> Result<(), Refusal> {
        match (self.b.sync, t.write) {
            (BufferSync::Packet, false) => self.take(t, cell),
            (BufferSync::Packet, true) => self.send(t, cell),
            (sync, write) => {
                if sync == BufferSync::Local {
                    let Some(&(sm, _)) = self.places.get(t.node) else {
                        return self.refuse(t.node, "a local element belongs to an SM");
                    };
                    if *cell.owner.get_or_insert(sm) != sm {
                        return self.refuse(t.node, "a local element belongs to another SM");
                    }
                }
                if write { self.store(t, cell) } else { self.load(t, cell) }
            }
        }
    }

    fn load(&self, t: &Touch, cell: &mut Cell) -> Result<(), Refusal> {
        match cell.writer {
            Some(w) if !self.upto(w, t.node) => {
                return self.refuse(t.node, "it reads what a write not ordered before it stores");
            }
            None if !cell.given => return self.refuse(t.node, "it reads what nobody has written"),
            _ => {}
        }
        cell.readers.push(t.node);
        Ok(())
    }

    fn store(&self, t: &Touch, cell: &mut Cell) -> Result<(), Refusal> {
        if cell.writer.is_some_and(|w| !self.upto(w, t.node)) {
            return self.refuse(t.node, "it writes over a write not ordered before it");
        }
        if cell.readers.iter().any(|&r| !self.upto(r, t.node)) {
            return self.refuse(t.node, "it writes over what a read not ordered before it wants");
        }
        cell.readers.clear();
        cell.writer = Some(t.node);
        cell.phases.push(0);
        Ok(())
    }

    fn take(&self, t: &Touch, cell: &mut Cell) -> Result<(), Refusal> {
        let phase = t.access.phase;
        if cell.phases.last() != Some(&phase) {
            return self
                .refuse(t.node, "it waits for a packet that is not there, or there no more");
        }
        let tags = self.p.epochs.tags;
        let same = |j: &u32| u64::from(j.abs_diff(phase)).is_multiple_of(tags);
        // After its writer a reader cannot see what was there before.
        if cell.writer.is_some_and(|w| self.order.before(w, t.node)) {
            cell.readers.push(t.node);
            return Ok(());
        }
        if cell.phases.iter().any(|j| *j != phase && same(j)) {
            return self.refuse(t.node, "an earlier phase leaves the tag it waits for");
        }
        cell.readers.push(t.node);
        Ok(())
    }

    fn send(&self, t: &Touch, cell: &mut Cell) -> Result<(), Refusal> {
        let phase = t.access.phase;
        if cell.phases.contains(&phase) {
            return self.refuse(t.node, "a packet has two writers in one phase");
        }
        if cell.readers.iter().any(|&r| !self.upto(r, t.node)) {
            return self.refuse(t.node, "it rewrites a packet before a reader has surely seen it");
        }
        // A reader that has seen the last write is after it, and before this one.
        if cell.readers.is_empty() && cell.writer.is_some_and(|w| !self.order.before(w, t.node)) {
            return self.refuse(t.node, "it may come before the write it is to replace");
        }
        cell.readers.clear();
        cell.writer = Some(t.node);
        cell.phases.push(phase);
        Ok(())
    }

    /// Adds the local elements that each SM keeps: the cells it owns, or the whole buffer where their sizes
    /// depend on the position.
    fn owned(
        &self,
        part: &GridPart,
        (grid, cells): &(Cells, Vec<Cell>),
        alone: bool,
        kept: &mut [u128],
    ) {
        let size = |cuts: &[Bound], i: usize| match (cuts.get(i), cuts.get(i + 1)) {
            (Some(Bound::At(a)), Some(Bound::At(b))) => u128::from(b.saturating_sub(*a)),
            _ => 0,
        };
        let constant = alone && part.cuts.iter().flatten().all(|c| matches!(c, Bound::At(_)));
        let whole = self.b.shape.iter().fold(1u128, |n, &x| n.saturating_mul(u128::from(x)));
        for (i, cell) in cells.iter().enumerate() {
            let Some(n) = cell.owner.and_then(|sm| kept.get_mut(sm)) else { continue };
            if !constant {
                *n = whole;
                continue;
            }
            let mut elements = 1u128;
            let mut rest = i;
            for (cuts, &extent) in part.cuts.iter().zip(&grid.extent).rev() {
                elements = elements.saturating_mul(size(cuts, rest % extent.max(1)));
                rest /= extent.max(1);
            }
            *n = n.saturating_add(elements);
        }
    }
}
