//! A structurally sound program, resolved for the checks: who runs what where, and which accesses
//! meet. Accesses to the same region in the same phase form a *class*; classes of one buffer that
//! share an element are listed with each other once, so that no check compares instructions pairwise.

use amk_schedule_ir::limits::MAX_RANK;
use amk_schedule_ir::{
    Access, Bound, BufferKind, BufferSync, Program, Region, RunId, RunSource, Signal, Span, Wait,
    text,
};

pub(crate) use crate::classes::{Acc, Class};
use crate::classes::{Classes, tracked};
use crate::fault::{Place, Witness};
use crate::geometry::{self, Index, Piece, Rect, TooIrregular};
pub(crate) use crate::nodes::NONE;
use crate::nodes::{Lists, Nodes};

/// Most listed overlaps between classes; bounds memory on programs that overlap everything.
const MAX_OVERLAPS: usize = 1 << 26;

/// What the checks know of a buffer.
#[derive(Default)]
pub(crate) struct BufferModel {
    pub pieces: Vec<Piece>,
    pub classes: Vec<u32>,
    /// The class of the rows `[0, pos)` of a cache, or [`NONE`], and the region.
    pub past: u32,
    past_region: Option<Region>,
    /// Writes happen in more than one phase.
    pub many_phases: bool,
    /// The bounds cannot be ordered within the limits; nothing is known about overlaps.
    pub undecided: bool,
}

/// What stands for no rectangle.
const EMPTY: Rect = [[0, 0]; MAX_RANK];

/// The rectangle of a class on a piece.
fn rect(class: &Class, spans: &[[u64; 2]], piece: usize) -> Rect {
    let rank = usize::from(class.rank);
    let first = class.rects + piece * rank;
    let Some(own) = spans.get(first..first + rank) else { return EMPTY };
    let mut out = [[0, 1]; MAX_RANK];
    for (o, s) in out.iter_mut().zip(own) {
        *o = *s;
    }
    out
}

/// See the module page. Instructions are nodes `0..n` by list index; node `n` is the boundary.
pub(crate) struct Model<'p> {
    pub program: &'p Program,
    /// SM and queue position of each instruction.
    pub sm: Vec<u32>,
    pub pos: Vec<u32>,
    nodes: Nodes,
    accesses: Lists<Acc>,
    pub classes: Vec<Class>,
    regions: Vec<&'p Region>,
    pub buffers: Vec<BufferModel>,
    spans: Vec<[u64; 2]>,
    overlaps: Vec<u32>,
    /// Where those of a class begin, and how many they are.
    overlap_at: Vec<(u32, u32)>,
    /// Overlaps were cut off at [`MAX_OVERLAPS`].
    pub too_many: bool,
}

impl<'p> Model<'p> {
    /// Resolves a program that has passed the structural check, of which all instructions were added to both.
    pub fn new(program: &'p Program, mut nodes: Nodes, mut classes: Classes<'p>) -> Model<'p> {
        let boundary = program.instructions.len() as u32;
        classes.add(boundary, &program.boundary.reads, &program.boundary.writes);
        let buffers = place(program, &mut classes);
        let mut m = Model {
            program,
            sm: std::mem::take(&mut nodes.sm),
            pos: std::mem::take(&mut nodes.pos),
            nodes,
            accesses: classes.accesses,
            classes: classes.classes,
            regions: classes.regions,
            buffers,
            spans: classes.spans,
            overlaps: Vec::new(),
            overlap_at: Vec::new(),
            too_many: false,
        };
        m.overlap_at = vec![(0, 0); m.classes.len()];
        m.overlaps.reserve(m.classes.len());
        m.find_overlaps();
        m
    }

    /// The same from the program alone.
    pub fn of(program: &'p Program) -> Model<'p> {
        let (mut nodes, mut classes) = (Nodes::new(program), Classes::new(program));
        for (node, x) in program.instructions.iter().enumerate() {
            nodes.add(x);
            classes.add(node as u32, &x.reads, &x.writes);
        }
        Model::new(program, nodes, classes)
    }

    fn find_overlaps(&mut self) {
        // Of one buffer at a time.
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let (mut targets, mut stack) = (Vec::new(), Vec::new());
        let (classes, spans, overlaps) = (&self.classes, &self.spans, &mut self.overlaps);
        for (buffer, model) in self.program.buffers.iter().zip(&mut self.buffers) {
            let all = buffer.sync == BufferSync::Local;
            let written =
                |c: u32| c == model.past || classes.get(c as usize).is_some_and(|c| c.writes > 0);
            pairs.clear();
            for p in 0..model.pieces.len() {
                let rect = |c: u32| classes.get(c as usize).map_or(EMPTY, |c| rect(c, spans, p));
                targets.clear();
                targets.extend(
                    model.classes.iter().filter(|&&c| all || written(c)).map(|&c| (c, rect(c))),
                );
                let index = Index::new(&targets);
                for &c in &model.classes {
                    let q = rect(c);
                    if geometry::is_empty(&q) || overlaps.len() + pairs.len() > MAX_OVERLAPS {
                        continue;
                    }
                    index.query(&q, &mut stack, |other| {
                        if geometry::overlap(&q, &rect(other)) {
                            pairs.push((c, other));
                            if !all && !written(c) {
                                pairs.push((other, c));
                            }
                        }
                    });
                }
            }
            if model.pieces.len() > 1 {
                pairs.sort_unstable();
                pairs.dedup();
            }
            list(&pairs, &model.classes, &mut self.overlap_at, overlaps);
            let mut phases = model
                .classes
                .iter()
                .filter_map(|&c| classes.get(c as usize))
                .filter(|c| c.writes > 0)
                .map(|c| c.phase);
            let one = phases.next();
            model.many_phases = phases.any(|p| Some(p) != one);
        }
        self.too_many = self.overlaps.len() > MAX_OVERLAPS;
    }

    /// The number of instructions, which is also the boundary's node.
    pub fn boundary(&self) -> u32 {
        self.sm.len() as u32
    }

    /// Accesses of a node: reads, then writes, in the order of the program.
    pub fn accesses(&self, node: u32) -> &[Acc] {
        self.accesses.get(node as usize)
    }

    pub fn waits(&self, node: u32) -> &[Wait] {
        self.nodes.waits(node as usize)
    }

    pub fn signals(&self, node: u32) -> &[Signal] {
        self.nodes.signals(node as usize)
    }

    /// The run an instruction consumes.
    pub fn run(&self, node: u32) -> Option<RunId> {
        self.nodes.run.get(node as usize).copied().flatten()
    }

    /// Is the node the arrival of its SM at the boundary?
    pub fn is_arrival(&self, node: u32) -> bool {
        self.nodes.arrival.get(node as usize) == Some(&true)
    }

    /// The `k`-th access of a node as the program has it.
    pub fn access(&self, node: u32, k: usize) -> Option<&'p Access> {
        let (reads, writes) = match self.program.instructions.get(node as usize) {
            Some(i) => (&i.reads, &i.writes),
            None => (&self.program.boundary.reads, &self.program.boundary.writes),
        };
        reads.get(k).or_else(|| writes.get(k.checked_sub(reads.len())?))
    }

    pub fn class(&self, class: u32) -> Option<&Class> {
        self.classes.get(class as usize)
    }

    pub fn region(&self, class: u32) -> Option<&Region> {
        if let Some(region) = self.regions.get(class as usize) {
            return Some(region);
        }
        // Those of the past come after those of the program.
        self.buffers.get(self.class(class)?.buffer as usize)?.past_region.as_ref()
    }

    /// Synchronisation of the buffer of a class.
    pub fn sync(&self, class: u32) -> Option<BufferSync> {
        Some(self.class(class)?.sync)
    }

    /// Classes that share an element with this one at some position (itself included), as far as one
    /// of the two is written or past; for `local` buffers all.
    pub fn overlaps(&self, class: u32) -> &[u32] {
        let Some(&(first, len)) = self.overlap_at.get(class as usize) else { return &[] };
        self.overlaps.get(first as usize..first as usize + len as usize).unwrap_or(&[])
    }

    pub fn rect(&self, class: u32, piece: usize) -> Rect {
        self.class(class).map_or(EMPTY, |c| rect(c, &self.spans, piece))
    }

    /// Number of pieces of the buffer of a class.
    pub fn pieces(&self, class: u32) -> usize {
        self.class(class)
            .and_then(|c| self.buffers.get(c.buffer as usize))
            .map_or(0, |b| b.pieces.len())
    }

    /// The elements of `class` outside all of `cover`, as text, if there are any at some position.
    pub fn uncovered(&self, class: u32, cover: &[u32]) -> Result<Option<String>, TooIrregular> {
        let (Some(c), Some(region)) = (self.class(class), self.region(class)) else {
            return Ok(None);
        };
        self.outside(c.buffer, region.rank(), cover, |p, _| self.rect(class, p))
    }

    /// The same for any region whose bounds the buffer's pieces know.
    pub fn uncovered_region(
        &self,
        buffer: u32,
        region: &Region,
        cover: &[u32],
    ) -> Result<Option<String>, TooIrregular> {
        self.outside(buffer, region.rank(), cover, |_, piece| piece.rect(region))
    }

    fn outside(
        &self,
        buffer: u32,
        rank: usize,
        cover: &[u32],
        rect: impl Fn(usize, &Piece) -> Rect,
    ) -> Result<Option<String>, TooIrregular> {
        let Some(model) = self.buffers.get(buffer as usize) else { return Ok(None) };
        for (p, piece) in model.pieces.iter().enumerate() {
            let q = rect(p, piece);
            if cover.iter().any(|&c| geometry::contains(&self.rect(c, p), &q)) {
                continue;
            }
            let mut rects: Vec<Rect> = cover.iter().map(|&c| self.rect(c, p)).collect();
            let rest = geometry::uncovered(&q, &mut rects)?;
            if !rest.is_empty() {
                let list: Vec<String> =
                    rest.iter().take(4).map(|r| piece.describe(r, rank)).collect();
                let mut text = list.join(" ");
                if rest.len() > 4 {
                    text += &format!(" and {} more rectangles", rest.len() - 4);
                }
                if model.pieces.len() > 1 {
                    text +=
                        &format!(" where pos is {}..={}", piece.bucket.first, piece.bucket.last);
                }
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// The elements two classes share, as text.
    pub fn shared(&self, a: u32, b: u32) -> String {
        let Some(c) = self.class(a) else { return String::new() };
        let Some(model) = self.buffers.get(c.buffer as usize) else { return String::new() };
        for (p, piece) in model.pieces.iter().enumerate() {
            let both = geometry::intersect(&self.rect(a, p), &self.rect(b, p));
            if !geometry::is_empty(&both) {
                return piece.describe(&both, self.region(a).map_or(0, Region::rank));
            }
        }
        String::new()
    }

    /// `buffer 3 "h"`.
    pub fn buffer_name(&self, buffer: u32) -> String {
        match self.program.buffers.get(buffer as usize) {
            Some(b) => format!("buffer {buffer} {:?}", b.name),
            None => format!("buffer {buffer}"),
        }
    }

    /// `instr 7 (norm_qkv, sm 3)`.
    pub fn node_name(&self, node: u32) -> String {
        match self.program.instructions.get(node as usize) {
            Some(i) => {
                let sm = self.sm.get(node as usize).copied().unwrap_or(NONE);
                format!("instr {node} ({}, sm {sm})", i.op.name())
            }
            None => "the step boundary".to_owned(),
        }
    }

    pub fn node_place(&self, node: u32) -> Place {
        if (node as usize) < self.sm.len() {
            Place::Instruction(node as usize)
        } else {
            Place::Boundary
        }
    }

    /// `instr 7 (opaque, sm 0) writes 3[0..1, 0..8]`.
    pub fn access_name(&self, node: u32, k: usize) -> String {
        let write = self.accesses(node).get(k).is_some_and(|a| a.write);
        let verb = if write { "writes" } else { "reads" };
        let access = self.access(node, k).map(text::print_access).unwrap_or_default();
        format!("{} {verb} {access}", self.node_name(node))
    }

    pub fn range(&self, buffer: u32, elements: String) -> Witness {
        Witness::Range { buffer: self.buffer_name(buffer), elements }
    }

    /// Chunks of a run in every step.
    pub fn chunks(&self, source: &RunSource) -> u64 {
        self.program.buffer(source.buffer()).and_then(|b| source.chunks(b)).unwrap_or(0)
    }
}

/// Sorts classes into buffers, adds the past of every cache, and gives every class its rectangles.
fn place(program: &Program, all: &mut Classes) -> Vec<BufferModel> {
    let mut sizes = vec![0usize; program.buffers.len()];
    for c in &all.classes {
        if let Some(n) = sizes.get_mut(c.buffer as usize) {
            *n += 1;
        }
    }
    // One more for the past.
    let mut models: Vec<BufferModel> = sizes
        .iter()
        .map(|n| BufferModel {
            classes: Vec::with_capacity(n + 1),
            past: NONE,
            ..Default::default()
        })
        .collect();
    for (i, c) in all.classes.iter().enumerate() {
        if let Some(b) = models.get_mut(c.buffer as usize) {
            b.classes.push(i as u32);
        }
    }
    for (i, (buffer, model)) in program.buffers.iter().zip(&mut models).enumerate() {
        if buffer.kind == BufferKind::Kv {
            let mut region = Region::whole(&buffer.shape);
            if let Some(rows) = region.0.get_mut(1) {
                *rows = Span { lo: Bound::At(0), hi: Bound::Pos(0) };
            }
            model.past = all.push(i as u32, 0, buffer.sync, &region);
            model.classes.push(model.past);
            model.past_region = Some(region);
        }
    }
    for (i, (buffer, model)) in program.buffers.iter().zip(&mut models).enumerate() {
        if model.classes.is_empty() && !tracked(buffer.kind) {
            continue;
        }
        // Numbers are the same on the whole bucket.
        if all.symbolic.get(i) == Some(&false) {
            model.pieces = vec![Piece::of_numbers(program.bucket)];
            continue;
        }
        let mut extra = vec![Region::whole(&buffer.shape)];
        if buffer.kind == BufferKind::Kv {
            extra.push(appended(&buffer.shape, program.tokens));
        }
        let (known, past) = (&all.regions, model.past_region.as_ref());
        let region = |c: u32| known.get(c as usize).copied().or(past);
        let regions = model.classes.iter().filter_map(|&c| region(c));
        let found = geometry::pieces(regions.chain(&extra), buffer.shape.len(), program.bucket);
        model.undecided = found.is_none();
        model.pieces = found.unwrap_or_default();
        for &c in &model.classes {
            let (Some(class), Some(region)) = (all.classes.get_mut(c as usize), region(c)) else {
                continue;
            };
            class.rects = all.spans.len();
            for p in &model.pieces {
                all.spans.extend(p.rect(region).iter().take(usize::from(class.rank)));
            }
        }
    }
    models
}

/// Appends the second of each pair to the list of the first, which is one of `classes`.
fn list(pairs: &[(u32, u32)], classes: &[u32], at: &mut [(u32, u32)], overlaps: &mut Vec<u32>) {
    for (c, _) in pairs {
        if let Some((_, len)) = at.get_mut(*c as usize) {
            *len += 1;
        }
    }
    let mut first = overlaps.len() as u32;
    for &c in classes {
        if let Some(entry) = at.get_mut(c as usize) {
            let len = std::mem::take(&mut entry.1);
            entry.0 = first;
            first += len;
        }
    }
    overlaps.resize(first as usize, 0);
    for &(c, other) in pairs {
        if let Some((first, len)) = at.get_mut(c as usize) {
            if let Some(slot) = overlaps.get_mut((*first + *len) as usize) {
                *slot = other;
            }
            *len += 1;
        }
    }
}

/// The rows a step appends to a cache of this shape, all heads.
pub(crate) fn appended(shape: &[u64], tokens: u32) -> Region {
    let mut region = Region::whole(shape);
    if let Some(rows) = region.0.get_mut(1) {
        *rows = Span::pos(0, i64::from(tokens));
    }
    region
}
