//! A structurally sound program, resolved for the checks: who runs what where, and which accesses
//! meet. Accesses to the same region in the same phase form a *class*; classes of one buffer that
//! share an element are listed with each other once, so that no check compares instructions pairwise.

use std::collections::HashMap;

use amk_schedule_ir::{
    Access, Bound, BufferKind, BufferSync, InstrId, Op, Program, Region, RunSource, Span, text,
};

use crate::fault::{Place, Witness};
use crate::geometry::{self, Index, Piece, Rect, TooIrregular};

/// Marks the absence of an index.
pub(crate) const NONE: u32 = u32::MAX;
/// Most listed overlaps between classes; bounds memory on programs that overlap everything.
const MAX_OVERLAPS: usize = 1 << 26;

/// One access of an instruction, or of the boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acc {
    /// The class, or [`NONE`] for buffers nobody may write (and token ids, which have rules of their own).
    pub class: u32,
    pub write: bool,
}

/// Accesses of one region of one buffer in one phase.
pub(crate) struct Class<'p> {
    pub buffer: u32,
    pub phase: u32,
    /// Number of reading and writing accesses.
    pub reads: u32,
    pub writes: u32,
    /// An instruction that writes it, or [`NONE`].
    pub writer: u32,
    pub region: RegionRef<'p>,
    rects: u32,
}

/// A region of the program, or the past rows of a cache, which are there when a step starts.
pub(crate) enum RegionRef<'p> {
    Of(&'p Region),
    Past(Region),
}

impl RegionRef<'_> {
    pub fn get(&self) -> &Region {
        match self {
            RegionRef::Of(r) => r,
            RegionRef::Past(r) => r,
        }
    }
}

/// What the checks know of a buffer.
#[derive(Default)]
pub(crate) struct BufferModel {
    pub pieces: Vec<Piece>,
    pub classes: Vec<u32>,
    /// The class of the rows `[0, pos)` of a cache, or [`NONE`].
    pub past: u32,
    /// Writes happen in more than one phase.
    pub many_phases: bool,
    /// The bounds cannot be ordered within the limits; nothing is known about overlaps.
    pub undecided: bool,
}

/// See the module page. Instructions are nodes `0..n` by list index; node `n` is the boundary.
pub(crate) struct Model<'p> {
    pub program: &'p Program,
    /// SM and queue position of each instruction.
    pub sm: Vec<u32>,
    pub pos: Vec<u32>,
    accesses: Vec<Acc>,
    first: Vec<u32>,
    pub classes: Vec<Class<'p>>,
    pub buffers: Vec<BufferModel>,
    rects: Vec<Rect>,
    overlaps: Vec<u32>,
    overlap_at: Vec<usize>,
    /// Overlaps were cut off at [`MAX_OVERLAPS`].
    pub too_many: bool,
}

fn tracked(kind: BufferKind) -> bool {
    matches!(kind, BufferKind::Activation | BufferKind::Kv | BufferKind::Output)
}

impl<'p> Model<'p> {
    /// Resolves a program that has passed the structural check.
    pub fn new(program: &'p Program) -> Model<'p> {
        let n = program.instructions.len();
        let mut m = Model {
            program,
            sm: vec![NONE; n],
            pos: vec![NONE; n],
            accesses: Vec::new(),
            first: vec![0],
            classes: Vec::new(),
            buffers: program.buffers.iter().map(|_| BufferModel::default()).collect(),
            rects: Vec::new(),
            overlaps: Vec::new(),
            overlap_at: vec![0],
            too_many: false,
        };
        for (s, sm) in program.sms.iter().enumerate() {
            for (p, id) in sm.queue.iter().enumerate() {
                if let (Some(a), Some(b)) = (m.sm.get_mut(id.index()), m.pos.get_mut(id.index())) {
                    (*a, *b) = (s as u32, p as u32);
                }
            }
        }
        let mut known: HashMap<(u32, u32, &'p Region), u32> = HashMap::new();
        for (node, i) in program.instructions.iter().enumerate() {
            m.add_node(&mut known, node as u32, &i.reads, &i.writes);
        }
        m.add_node(&mut known, n as u32, &program.boundary.reads, &program.boundary.writes);
        drop(known);
        m.place_classes();
        m.find_overlaps();
        m
    }

    fn add_node(
        &mut self,
        known: &mut HashMap<(u32, u32, &'p Region), u32>,
        node: u32,
        reads: &'p [Access],
        writes: &'p [Access],
    ) {
        let program = self.program;
        for (access, write) in
            reads.iter().map(|a| (a, false)).chain(writes.iter().map(|a| (a, true)))
        {
            let class = match program.buffer(access.buffer) {
                Some(buffer) if tracked(buffer.kind) => {
                    let classes = &mut self.classes;
                    let key = (access.buffer.0, access.phase, &access.region);
                    let id = *known.entry(key).or_insert_with(|| {
                        classes.push(Class {
                            buffer: access.buffer.0,
                            phase: access.phase,
                            reads: 0,
                            writes: 0,
                            writer: NONE,
                            region: RegionRef::Of(&access.region),
                            rects: 0,
                        });
                        classes.len() as u32 - 1
                    });
                    if let Some(c) = self.classes.get_mut(id as usize) {
                        if write {
                            c.writes = c.writes.saturating_add(1);
                            c.writer = node;
                        } else {
                            c.reads = c.reads.saturating_add(1);
                        }
                    }
                    id
                }
                _ => NONE,
            };
            self.accesses.push(Acc { class, write });
        }
        self.first.push(self.accesses.len() as u32);
    }

    /// Sorts classes into buffers, adds the past of every cache, and gives every class its rectangles.
    fn place_classes(&mut self) {
        for (i, c) in self.classes.iter().enumerate() {
            if let Some(b) = self.buffers.get_mut(c.buffer as usize) {
                b.classes.push(i as u32);
            }
        }
        for (i, (buffer, model)) in self.program.buffers.iter().zip(&mut self.buffers).enumerate() {
            model.past = NONE;
            if buffer.kind == BufferKind::Kv {
                let mut region = Region::whole(&buffer.shape);
                if let Some(rows) = region.0.get_mut(1) {
                    *rows = Span { lo: Bound::At(0), hi: Bound::Pos(0) };
                }
                model.past = self.classes.len() as u32;
                model.classes.push(model.past);
                self.classes.push(Class {
                    buffer: i as u32,
                    phase: 0,
                    reads: 0,
                    writes: 0,
                    writer: NONE,
                    region: RegionRef::Past(region),
                    rects: 0,
                });
            }
        }
        for (buffer, model) in self.program.buffers.iter().zip(&mut self.buffers) {
            if model.classes.is_empty() && !tracked(buffer.kind) {
                continue;
            }
            let mut extra = vec![Region::whole(&buffer.shape)];
            if buffer.kind == BufferKind::Kv {
                extra.push(appended(&buffer.shape, self.program.tokens));
            }
            let classes = &self.classes;
            let regions = model
                .classes
                .iter()
                .filter_map(|&c| classes.get(c as usize))
                .map(|c| c.region.get());
            let found =
                geometry::pieces(regions.chain(&extra), buffer.shape.len(), self.program.bucket);
            model.undecided = found.is_none();
            model.pieces = found.unwrap_or_default();
            for &c in &model.classes {
                if let Some(class) = self.classes.get_mut(c as usize) {
                    class.rects = self.rects.len() as u32;
                    self.rects.extend(model.pieces.iter().map(|p| p.rect(class.region.get())));
                }
            }
        }
    }

    fn find_overlaps(&mut self) {
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for (buffer, model) in self.program.buffers.iter().zip(&mut self.buffers) {
            let all = buffer.sync == BufferSync::Local;
            let classes = &self.classes;
            let written =
                |c: u32| c == model.past || classes.get(c as usize).is_some_and(|c| c.writes > 0);
            let start = pairs.len();
            for p in 0..model.pieces.len() {
                let rect = |c: u32| {
                    let at = classes.get(c as usize).map_or(0, |c| c.rects as usize) + p;
                    self.rects.get(at).copied().unwrap_or([[0, 0]; 4])
                };
                let targets: Vec<(u32, Rect)> = model
                    .classes
                    .iter()
                    .filter(|&&c| all || written(c))
                    .map(|&c| (c, rect(c)))
                    .collect();
                let index = Index::new(&targets);
                for &c in &model.classes {
                    let q = rect(c);
                    if geometry::is_empty(&q) || pairs.len() > MAX_OVERLAPS {
                        continue;
                    }
                    index.query(&q, |other| {
                        if geometry::overlap(&q, &rect(other)) {
                            pairs.push((c, other));
                            if !all && !written(c) {
                                pairs.push((other, c));
                            }
                        }
                    });
                }
            }
            if model.pieces.len() > 1
                && let Some(tail) = pairs.get_mut(start..)
            {
                tail.sort_unstable();
                let mut unique = tail.to_vec();
                unique.dedup();
                pairs.truncate(start);
                pairs.extend(unique);
            }
            let mut phases = model
                .classes
                .iter()
                .filter_map(|&c| classes.get(c as usize))
                .filter(|c| c.writes > 0)
                .map(|c| c.phase);
            let one = phases.next();
            model.many_phases = phases.any(|p| Some(p) != one);
        }
        self.too_many = pairs.len() > MAX_OVERLAPS;
        let mut count = vec![0usize; self.classes.len() + 1];
        for (c, _) in &pairs {
            if let Some(n) = count.get_mut(*c as usize + 1) {
                *n += 1;
            }
        }
        for i in 1..count.len() {
            count[i] += count[i - 1];
        }
        self.overlap_at = count.clone();
        self.overlaps = vec![0; pairs.len()];
        for (c, other) in pairs {
            if let Some(at) = count.get_mut(c as usize) {
                if let Some(slot) = self.overlaps.get_mut(*at) {
                    *slot = other;
                }
                *at += 1;
            }
        }
    }

    /// The number of instructions, which is also the boundary's node.
    pub fn boundary(&self) -> u32 {
        self.sm.len() as u32
    }

    /// Accesses of a node: reads, then writes, in the order of the program.
    pub fn accesses(&self, node: u32) -> &[Acc] {
        let at = |i: usize| self.first.get(i).map_or(0, |&x| x as usize);
        self.accesses.get(at(node as usize)..at(node as usize + 1)).unwrap_or(&[])
    }

    /// The `k`-th access of a node as the program has it.
    pub fn access(&self, node: u32, k: usize) -> Option<&'p Access> {
        let (reads, writes) = match self.program.instructions.get(node as usize) {
            Some(i) => (&i.reads, &i.writes),
            None => (&self.program.boundary.reads, &self.program.boundary.writes),
        };
        reads.get(k).or_else(|| writes.get(k.checked_sub(reads.len())?))
    }

    pub fn class(&self, class: u32) -> Option<&Class<'p>> {
        self.classes.get(class as usize)
    }

    /// Synchronisation of the buffer of a class.
    pub fn sync(&self, class: u32) -> Option<BufferSync> {
        Some(self.program.buffers.get(self.class(class)?.buffer as usize)?.sync)
    }

    /// Classes that share an element with this one at some position (itself included), as far as one
    /// of the two is written or past; for `local` buffers all.
    pub fn overlaps(&self, class: u32) -> &[u32] {
        let at = |i: usize| self.overlap_at.get(i).copied().unwrap_or(0);
        self.overlaps.get(at(class as usize)..at(class as usize + 1)).unwrap_or(&[])
    }

    pub fn rect(&self, class: u32, piece: usize) -> Rect {
        let at = self.class(class).map_or(0, |c| c.rects as usize) + piece;
        self.rects.get(at).copied().unwrap_or([[0, 0]; 4])
    }

    /// Number of pieces of the buffer of a class.
    pub fn pieces(&self, class: u32) -> usize {
        self.class(class)
            .and_then(|c| self.buffers.get(c.buffer as usize))
            .map_or(0, |b| b.pieces.len())
    }

    /// The elements of `class` outside all of `cover`, as text, if there are any at some position.
    pub fn uncovered(&self, class: u32, cover: &[u32]) -> Result<Option<String>, TooIrregular> {
        let Some(c) = self.class(class) else { return Ok(None) };
        self.uncovered_region(c.buffer, c.region.get(), cover)
    }

    /// The same for any region whose bounds the buffer's pieces know.
    pub fn uncovered_region(
        &self,
        buffer: u32,
        region: &Region,
        cover: &[u32],
    ) -> Result<Option<String>, TooIrregular> {
        let Some(model) = self.buffers.get(buffer as usize) else { return Ok(None) };
        for (p, piece) in model.pieces.iter().enumerate() {
            let q = piece.rect(region);
            let mut rects: Vec<Rect> = cover.iter().map(|&c| self.rect(c, p)).collect();
            if rects.iter().any(|r| geometry::contains(r, &q)) {
                continue;
            }
            let rest = geometry::uncovered(&q, &mut rects)?;
            if !rest.is_empty() {
                let list: Vec<String> =
                    rest.iter().take(4).map(|r| piece.describe(r, region.rank())).collect();
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
                return piece.describe(&both, c.region.get().rank());
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

    /// Is the node the arrival of its SM at the boundary?
    pub fn is_arrival(&self, id: InstrId) -> bool {
        self.program.instruction(id).is_some_and(|i| matches!(i.op, Op::Boundary(_)))
    }

    /// Chunks of a run in every step.
    pub fn chunks(&self, source: &RunSource) -> u64 {
        self.program.buffer(source.buffer()).and_then(|b| source.chunks(b)).unwrap_or(0)
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
