//! One function per stage: which instructions it becomes on which SMs.

use amk_schedule_ir::op::*;
use amk_schedule_ir::program::{Access, BufferKind, BufferSync, DType};
use amk_schedule_ir::{BufferId, Region, Scalar, Span};

use super::build::{Build, Edge, Links, Phase};
use super::knobs::{EdgeKind, Plan};
use super::partition::{PAIR_TILE, RowTiles, Spread, TILE, pieces};
use super::{LowerError, Mode, Shape, Sizes};
use crate::graph::{Class, Matrix, ModelGraph, Stage, StageKind, ValueId};
use crate::lowered::Recipe;

/// Emits every stage of the model, in an order of execution.
pub(super) fn emit(
    shape: &Shape,
    plan: &Plan,
    model: &ModelGraph,
    mode: Mode,
) -> Result<Build, LowerError> {
    let mut build = Build::new(plan.cx, plan.grid)?;
    let globals = Globals::new(&mut build, shape, plan)?;
    let edges = vec![None; model.values.len()];
    let s = shape.sizes;
    // A packet word holds two bf16, so a row of odd width would share a word with the next; and the
    // inputs of all products have one type.
    let odd = plan.edges.act == EdgeKind::Packet && !s.inner.is_multiple_of(2);
    let activation = if odd { DType::F32 } else { mode.dtype() };
    let mut e = Emit { build, s, shape, activation, plan, model, mode, globals, edges, shifts: 0 };
    for node in model.order() {
        let stage = &model.graph[node];
        // Values other SMs have published; the residual is local.
        let input = model
            .graph
            .edges_directed(node, petgraph::Direction::Incoming)
            .map(|edge| *edge.weight())
            .find(|v| !matches!(model.values[v.0].class, Class::Residual));
        let input = input.and_then(|v| e.edges[v.0]);
        match stage.kind {
            StageKind::Embed => e.embed()?,
            StageKind::Qkv => e.qkv(stage, input)?,
            StageKind::Attention => e.attention(stage, input)?,
            StageKind::Output | StageKind::Down => e.residual(stage, input)?,
            StageKind::OutputNorm | StageKind::DownNorm => e.norm_residual(stage, input)?,
            StageKind::GateUp => e.gate_up(stage, input)?,
            StageKind::Head => e.head(stage, input)?,
            StageKind::Boundary => e.boundary(input)?,
        }
    }
    Ok(e.build)
}

/// Buffers that belong to no layer.
struct Globals {
    tokens: BufferId,
    embedding: BufferId,
    rope: BufferId,
    /// The table of layers with a rotary base of their own, if there are any.
    local_rope: Option<BufferId>,
    residual: BufferId,
}

impl Globals {
    fn new(b: &mut Build, shape: &Shape, plan: &Plan) -> Result<Globals, LowerError> {
        use BufferKind::*;
        let s = &shape.sizes;
        let table = Recipe::Concat(vec![shape.embedding.name.clone()]);
        let local = vec![plan.cx.tokens, s.hidden];
        let plain = BufferSync::Plain;
        let positions = vec![plan.capacity + plan.cx.tokens];
        let turned = vec![s.max_positions, shape.rotary.unwrap_or(s.head_dim)];
        let local_rope = match shape.layers.iter().any(|l| l.extra.local_rope) {
            true => {
                let (name, recipe) = ("local rope".into(), Some(Recipe::LocalRope));
                Some(b.buffer(name, Constant, plain, DType::F32, turned.clone(), recipe)?)
            }
            false => None,
        };
        Ok(Globals {
            local_rope,
            tokens: b.buffer("tokens".into(), Tokens, plain, DType::U32, positions, None)?,
            embedding: b.buffer(
                "embedding".into(),
                Constant,
                plain,
                shape.embedding.dtype,
                vec![s.vocab, s.hidden],
                Some(table),
            )?,
            rope: b.buffer(
                "rope".into(),
                Constant,
                plain,
                DType::F32,
                turned,
                Some(Recipe::Rope),
            )?,
            residual: b.buffer(
                "residual".into(),
                Activation,
                BufferSync::Local,
                DType::F32,
                local,
                None,
            )?,
        })
    }
}

struct Emit<'a> {
    build: Build,
    s: Sizes,
    shape: &'a Shape,
    plan: &'a Plan,
    model: &'a ModelGraph,
    mode: Mode,
    /// Type of what products take as input.
    activation: DType,
    globals: Globals,
    /// Buffers of the values emitted so far.
    edges: Vec<Option<Edge>>,
    /// Matrix stages whose rows may shift, so far.
    shifts: u64,
}

impl Emit<'_> {
    fn name(&self, stage: &Stage, what: &str) -> String {
        match stage.layer {
            Some(l) => format!("layer {l} {what}"),
            None => what.to_owned(),
        }
    }

    /// Row tiles of a stage whose output rows have no fixed owner.
    fn shifting(&mut self, rows: u64, tile: u64) -> RowTiles {
        let n = self.plan.grid;
        let shift = self.shifts * (self.plan.rotation % n) % n;
        self.shifts += 1;
        RowTiles::new(rows, tile, n, shift, &self.plan.weights)
    }

    /// Row tiles of the residual, alike in every stage.
    fn owned(&self) -> RowTiles {
        RowTiles::new(self.s.hidden, TILE, self.plan.grid, 0, &self.plan.weights)
    }

    /// What each SM has of a stage, in instructions of at most `most` tiles; in the order of SMs and rows.
    fn shares(&self, tiles: &RowTiles, tile: u64, most: Option<u32>) -> Vec<(u64, Rows)> {
        let cut = |sm: u64| {
            let rows = tiles.of(sm).map(|rows| pieces(rows, tile, most.map(u64::from)));
            rows.into_iter().flatten().map(move |rows| (sm, rows))
        };
        (0..self.plan.grid).flat_map(cut).collect()
    }

    /// The weight of a norm: as it is stored, or in float32.
    fn norm_weight(
        &mut self,
        name: String,
        t: &super::TensorInfo,
        width: u64,
        wide: bool,
    ) -> Result<BufferId, LowerError> {
        let (recipe, dtype) = match self.shape.one_plus {
            // One more than a bf16 number is none, as a rule.
            true => (Recipe::OnePlus(t.name.clone()), DType::F32),
            false if wide => (Recipe::Concat(vec![t.name.clone()]), DType::F32),
            false => (Recipe::Concat(vec![t.name.clone()]), t.dtype),
        };
        let (kind, sync) = (BufferKind::Constant, BufferSync::Plain);
        self.build.buffer(name, kind, sync, dtype, vec![width], Some(recipe))
    }

    /// The weight of the norm of a stage, if it has one.
    fn norm(&mut self, stage: &Stage) -> Result<Option<BufferId>, LowerError> {
        let (name, wide) = match stage.kind {
            StageKind::Qkv => (self.name(stage, "input norm"), false),
            StageKind::OutputNorm => (self.name(stage, "output norm"), true),
            StageKind::GateUp => (self.name(stage, "post norm"), false),
            StageKind::DownNorm => (self.name(stage, "down norm"), true),
            _ => ("final norm".to_owned(), false),
        };
        let width = self.s.hidden;
        stage.norm.as_ref().map(|t| self.norm_weight(name, t, width, wide)).transpose()
    }

    /// The same of a stage that cannot do without.
    fn must_norm(&mut self, stage: &Stage) -> Result<BufferId, LowerError> {
        self.norm(stage)?.ok_or_else(|| malformed(stage, "a norm"))
    }

    /// A float32 vector: tensors one after the other, or row by row of two.
    fn vector(
        &mut self,
        name: String,
        tensors: &[super::TensorInfo],
        interleaved: bool,
        width: u64,
    ) -> Result<BufferId, LowerError> {
        let recipe = match tensors {
            [even, odd] if interleaved => Recipe::Interleave(even.name.clone(), odd.name.clone()),
            all => Recipe::Concat(all.iter().map(|t| t.name.clone()).collect()),
        };
        let (kind, sync) = (BufferKind::Constant, BufferSync::Plain);
        self.build.buffer(name, kind, sync, DType::F32, vec![width], Some(recipe))
    }

    /// What a family has beside the matrices of a stage's layer.
    fn extra(&self, stage: &Stage) -> super::LayerExtras {
        let layer = stage.layer.and_then(|l| self.shape.layers.get(l));
        layer.map(|l| l.extra.clone()).unwrap_or_default()
    }

    fn weight(&mut self, stage: &Stage) -> Result<BufferId, LowerError> {
        let Some(Matrix { name, rows, k, dtype, recipe }) = stage.matrix.clone() else {
            return Err(malformed(stage, "a matrix"));
        };
        let (kind, sync) = (BufferKind::Weight, BufferSync::Plain);
        self.build.buffer(name, kind, sync, dtype, vec![rows, k], Some(recipe))
    }

    /// The buffer of the value a stage makes.
    fn output(&mut self, stage: &Stage) -> Result<Edge, LowerError> {
        let Some(ValueId(at)) = stage.output else {
            return Err(malformed(stage, "an output"));
        };
        let value = &self.model.values[at];
        let knobs = &self.plan.edges;
        let (kind, dtype) = match value.class {
            Class::Hidden | Class::Residual | Class::Best => (knobs.hidden, self.activation),
            Class::Output => (knobs.hidden, DType::F32),
            Class::Qkv => (knobs.qkv, DType::F32),
            Class::Attention => (knobs.attention, self.activation),
            Class::Act => (knobs.act, self.activation),
        };
        let shape = vec![self.plan.cx.tokens, value.width];
        let edge = self.build.edge(value.name.clone(), kind, dtype, shape)?;
        self.edges[at] = Some(edge);
        Ok(edge)
    }

    fn embed(&mut self) -> Result<(), LowerError> {
        let tiles = self.owned();
        for sm in 0..self.plan.grid {
            let Some(rows) = tiles.of(sm) else { continue };
            let factor = self.shape.factors.embedding.map(Scalar);
            let op = Op::Embed(Embed { hidden: self.s.hidden, vocab: self.s.vocab, rows, factor });
            let g = &self.globals;
            let links = Links {
                reads: &[g.tokens, g.embedding],
                writes: &[g.residual],
                ..Links::default()
            };
            self.build.instruction(sm, op, links)?;
        }
        Ok(())
    }

    fn qkv(&mut self, stage: &Stage, input: Option<Edge>) -> Result<(), LowerError> {
        let norm = self.norm(stage)?;
        let weight = self.weight(stage)?;
        let out = self.output(stage)?;
        let total = self.s.qkv_width();
        let tiles = self.shifting(total, TILE);
        // The first layer reads the embedding itself: nobody has published a hidden state yet.
        let (source, vocab) = match input {
            Some(_) => (Source::Hidden, 0),
            None => (Source::Embedding, self.s.vocab),
        };
        let mut reads = match input {
            Some(edge) => vec![edge.buffer],
            None => vec![self.globals.tokens, self.globals.embedding],
        };
        reads.extend(norm);
        let biases = self.extra(stage).qkv_bias;
        if let Some(biases) = &biases {
            reads.push(self.vector(self.name(stage, "qkv bias"), biases, false, total)?);
        }
        let factor = self.shape.factors.embedding.map(Scalar).filter(|_| input.is_none());
        for (sm, rows) in self.shares(&tiles, TILE, self.plan.tiles.qkv) {
            let op = Op::NormQkv(NormQkv {
                hidden: self.s.hidden,
                total,
                rows,
                eps: Scalar(self.s.eps),
                source,
                vocab,
                bias: biases.is_some(),
                factor,
                plain: norm.is_none(),
            });
            let links = Links {
                reads: &reads,
                writes: &[out.buffer],
                input,
                output: Some(out),
                weight: Some((weight, Phase::Chain)),
            };
            self.build.instruction(sm, op, links)?;
        }
        Ok(())
    }

    fn attention(&mut self, stage: &Stage, input: Option<Edge>) -> Result<(), LowerError> {
        let qkv = input.ok_or_else(|| malformed(stage, "an input"))?;
        let (s, plan) = (self.s, self.plan);
        let mut cache = |what: &str| {
            let name = self.name(stage, what);
            let shape = vec![s.kv_heads, plan.capacity, s.head_dim];
            let dtype = self.mode.dtype();
            self.build.buffer(name, BufferKind::Kv, BufferSync::Plain, dtype, shape, None)
        };
        let (keys, values) = (cache("keys")?, cache("values")?);
        let split = plan.splits > 1;
        let partial = if split {
            let name = self.name(stage, "partial");
            let shape = vec![s.heads, plan.splits, plan.cx.tokens, s.head_dim + 2];
            Some(self.build.edge(name, plan.edges.partial, DType::F32, shape)?)
        } else {
            None
        };
        let extra = self.extra(stage);
        let mut constants = Vec::new();
        if !extra.unrotated {
            let local = self.globals.local_rope.filter(|_| extra.local_rope);
            constants.push(local.unwrap_or(self.globals.rope));
        }
        if let Some([query, key]) = &extra.head_norms {
            let heads = if extra.wide_norm { [s.heads, s.kv_heads] } else { [1, 1] };
            for (what, tensor, heads) in
                [("query norm", query, heads[0]), ("key norm", key, heads[1])]
            {
                let name = self.name(stage, what);
                constants.push(self.norm_weight(name, tensor, heads * s.head_dim, true)?);
            }
        }
        let out = self.output(stage)?;
        let target = partial.unwrap_or(out);
        let parts = s.group().div_ceil(plan.q_heads_per_unit);
        let units = s.kv_heads * parts * plan.splits;
        let spread = Spread::new(plan.grid, units, plan.unit_stride, 0);
        for unit in 0..units {
            let (heads, split) = (unit / plan.splits, unit % plan.splits);
            let (kv_head, part) = (heads / parts, heads % parts);
            let first = kv_head * s.group();
            let q = Rows {
                lo: first + part * plan.q_heads_per_unit,
                hi: first + ((part + 1) * plan.q_heads_per_unit).min(s.group()),
            };
            let last = split + 1 == plan.splits;
            let append = last && part == 0;
            let op = Op::Attention(Attention {
                head_dim: s.head_dim,
                heads: s.heads,
                kv_heads: s.kv_heads,
                kv_head,
                q,
                split,
                splits: plan.splits,
                append,
                scale: Scalar(s.scale),
                capacity: plan.capacity,
                max_positions: s.max_positions,
                rotary: self.shape.rotary.filter(|_| !extra.unrotated),
                unrotated: extra.unrotated,
                window: extra.window,
                head_norm: extra.head_norms.is_some().then_some(Scalar(s.eps)),
                wide_norm: extra.head_norms.is_some() && extra.wide_norm,
                cap: self.shape.caps.scores.map(Scalar),
            });
            let mut reads = vec![qkv.buffer];
            if last {
                reads.extend([qkv.buffer, qkv.buffer]);
            }
            reads.extend(&constants);
            reads.extend([keys, values]);
            let mut writes = Vec::new();
            if append {
                writes.extend([keys, values]);
            }
            writes.push(target.buffer);
            let links =
                Links { reads: &reads, writes: &writes, input, output: Some(target), weight: None };
            self.build.instruction(spread.sm(unit), op, links)?;
        }
        match partial {
            Some(partial) => self.merge(partial, out),
            None => Ok(()),
        }
    }

    fn merge(&mut self, partial: Edge, out: Edge) -> Result<(), LowerError> {
        let (s, plan) = (self.s, self.plan);
        let each = plan.merge_heads.unwrap_or_else(|| s.heads.div_ceil(plan.grid));
        let units = s.heads.div_ceil(each);
        // Beside the attention units, where there is room beside them.
        let spread = Spread::new(plan.grid, units, None, 1);
        for unit in 0..units {
            let q = Rows { lo: unit * each, hi: ((unit + 1) * each).min(s.heads) };
            let op = Op::AttentionMerge(AttentionMerge {
                head_dim: s.head_dim,
                heads: s.heads,
                q,
                splits: plan.splits,
            });
            let links = Links {
                reads: &[partial.buffer],
                writes: &[out.buffer],
                input: Some(partial),
                output: Some(out),
                weight: None,
            };
            self.build.instruction(spread.sm(unit), op, links)?;
        }
        Ok(())
    }

    /// Output and down projections.
    fn residual(&mut self, stage: &Stage, input: Option<Edge>) -> Result<(), LowerError> {
        let edge = input.ok_or_else(|| malformed(stage, "an input"))?;
        let (inner, phase) = match stage.kind {
            StageKind::Output => (self.s.q_width(), Phase::Chain),
            _ => (self.s.inner, Phase::Dense),
        };
        let weight = self.weight(stage)?;
        let out = self.output(stage)?;
        let tiles = self.owned();
        let residual = self.globals.residual;
        let (mut reads, mut writes) = (vec![edge.buffer], vec![]);
        let extra = self.extra(stage);
        let (bias, norm) = match stage.kind {
            StageKind::Output => (extra.output_bias, extra.output_norm),
            _ => (extra.down_bias, extra.down_norm),
        };
        let raw = norm.is_some();
        if !raw {
            reads.push(residual);
            writes.push(residual);
        }
        writes.push(out.buffer);
        if let Some(bias) = &bias {
            let what = if stage.kind == StageKind::Output { "output bias" } else { "down bias" };
            let name = self.name(stage, what);
            reads.push(self.vector(name, std::slice::from_ref(bias), false, self.s.hidden)?);
        }
        for sm in 0..self.plan.grid {
            let Some(rows) = tiles.of(sm) else { continue };
            let op = Op::LinearResidual(LinearResidual {
                inner,
                hidden: self.s.hidden,
                rows,
                bias: bias.is_some(),
                factor: self.shape.factors.residual.map(Scalar).filter(|_| !raw),
                raw,
            });
            let links = Links {
                reads: &reads,
                writes: &writes,
                input,
                output: Some(out),
                weight: Some((weight, phase)),
            };
            self.build.instruction(sm, op, links)?;
        }
        Ok(())
    }

    /// A projection normalised and added to the residual by the owners of its rows.
    fn norm_residual(&mut self, stage: &Stage, input: Option<Edge>) -> Result<(), LowerError> {
        let edge = input.ok_or_else(|| malformed(stage, "an input"))?;
        let norm = self.must_norm(stage)?;
        let out = self.output(stage)?;
        let tiles = self.owned();
        let residual = self.globals.residual;
        for sm in 0..self.plan.grid {
            let Some(rows) = tiles.of(sm) else { continue };
            let op = Op::NormResidual(NormResidual {
                hidden: self.s.hidden,
                rows,
                eps: Scalar(self.s.eps),
                factor: self.shape.factors.residual.map(Scalar),
            });
            let links = Links {
                reads: &[edge.buffer, norm, residual],
                writes: &[residual, out.buffer],
                input,
                output: Some(out),
                weight: None,
            };
            self.build.instruction(sm, op, links)?;
        }
        Ok(())
    }

    fn gate_up(&mut self, stage: &Stage, input: Option<Edge>) -> Result<(), LowerError> {
        let edge = input.ok_or_else(|| malformed(stage, "an input"))?;
        let norm = self.norm(stage)?;
        let weight = self.weight(stage)?;
        let out = self.output(stage)?;
        let tiles = self.shifting(self.s.inner, PAIR_TILE);
        let mut reads = vec![edge.buffer];
        reads.extend(norm);
        let biases = self.extra(stage).gate_up_bias;
        if let Some(biases) = &biases {
            let name = self.name(stage, "gate/up bias");
            reads.push(self.vector(name, biases, true, 2 * self.s.inner)?);
        }
        for (sm, rows) in self.shares(&tiles, PAIR_TILE, self.plan.tiles.gate_up) {
            let op = Op::NormGateUp(NormGateUp {
                hidden: self.s.hidden,
                inner: self.s.inner,
                rows,
                eps: Scalar(self.s.eps),
                bias: biases.is_some(),
                plain: norm.is_none(),
                activation: self.shape.activation,
            });
            let links = Links {
                reads: &reads,
                writes: &[out.buffer],
                input,
                output: Some(out),
                weight: Some((weight, Phase::Dense)),
            };
            self.build.instruction(sm, op, links)?;
        }
        Ok(())
    }

    fn head(&mut self, stage: &Stage, input: Option<Edge>) -> Result<(), LowerError> {
        let edge = input.ok_or_else(|| malformed(stage, "an input"))?;
        let norm = self.must_norm(stage)?;
        let weight = self.weight(stage)?;
        let vocab = self.s.vocab;
        let tiles = self.shifting(vocab, TILE);
        let parts = self.shares(&tiles, TILE, self.plan.tiles.head);
        let slots = parts.len() as u64;
        let plain = BufferSync::Plain;
        let logits = self.build.buffer(
            "logits".into(),
            BufferKind::Output,
            plain,
            DType::F32,
            vec![vocab],
            None,
        )?;
        let best = self.build.buffer(
            "best".into(),
            BufferKind::Activation,
            plain,
            DType::Key,
            vec![slots],
            None,
        )?;
        // Whoever draws needs all logits; the boundary needs the best keys alone.
        let drawn = match self.plan.sampled {
            true => {
                Some(Edge { buffer: logits, counter: Some(self.build.counter("logits".into())?) })
            }
            false => None,
        };
        for (slot, (sm, rows)) in parts.into_iter().enumerate() {
            let op = Op::NormLmHead(NormLmHead {
                hidden: self.s.hidden,
                vocab,
                rows,
                eps: Scalar(self.s.eps),
                slot: slot as u64,
                slots,
                factor: self.shape.factors.logits.map(Scalar),
                cap: self.shape.caps.logits.map(Scalar),
            });
            let links = Links {
                reads: &[edge.buffer, norm],
                writes: &[logits, best],
                input,
                output: drawn,
                weight: Some((weight, Phase::Head)),
            };
            self.build.instruction(sm, op, links)?;
        }
        let chosen = match drawn {
            Some(logits) => self.sample(logits)?,
            None => best,
        };
        if let Some(ValueId(at)) = stage.output {
            self.edges[at] = Some(Edge { buffer: chosen, counter: None });
        }
        Ok(())
    }

    /// The draw of the next token, on the last SM. Gives the buffer of the one key it leaves.
    fn sample(&mut self, logits: Edge) -> Result<BufferId, LowerError> {
        let vocab = self.s.vocab;
        let mut buffer = |name: &str, kind, dtype, n| {
            self.build.buffer(name.into(), kind, BufferSync::Plain, dtype, vec![n], None)
        };
        let settings = buffer("settings", BufferKind::Constant, DType::U32, SETTINGS_WORDS)?;
        let scores = buffer("scores", BufferKind::Activation, DType::F32, vocab)?;
        let choice = buffer("choice", BufferKind::Activation, DType::Key, 1)?;
        let links = Links {
            reads: &[logits.buffer, self.globals.tokens, settings],
            writes: &[scores, choice],
            input: Some(logits),
            ..Links::default()
        };
        self.build.instruction(self.plan.grid - 1, Op::Sample(Sample { vocab }), links)?;
        Ok(choice)
    }

    fn boundary(&mut self, input: Option<Edge>) -> Result<(), LowerError> {
        for sm in 0..self.plan.grid {
            self.build.instruction(sm, Op::Boundary(BoundaryArrive {}), Links::default())?;
        }
        let tokens = self.plan.cx.tokens as i64;
        if let Some(best) = input {
            let shape = &self.build.buffers[best.buffer.index()].shape;
            let region = Region::whole(shape);
            self.build.boundary.reads.push(Access { buffer: best.buffer, region, phase: 0 });
        }
        self.build.boundary.writes.push(Access {
            buffer: self.globals.tokens,
            region: Region(vec![Span::pos(tokens, tokens + 1)]),
            phase: 0,
        });
        Ok(())
    }
}

/// A stage of a model graph that lacks what its kind needs: only a graph made by hand can.
fn malformed(stage: &Stage, what: &str) -> LowerError {
    LowerError::Op { op: "stage", message: format!("{} lacks {what}", stage.label()) }
}
