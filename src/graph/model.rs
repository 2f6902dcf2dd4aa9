//! The model graph: fused stages and the values between them, before any thought of SMs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use amk_schedule_ir::DType;
use amk_schedule_ir::program::{BLOCK_BYTES, BLOCK_K, TILE_ROWS};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::lower::{LayerTensors, Shape, TensorInfo, widest};
use crate::lowered::Recipe;

/// What a stage computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageKind {
    /// Embedding rows into the residual.
    Embed,
    /// Norm and the fused query, key and value projection.
    Qkv,
    /// RoPE, KV append, attention.
    Attention,
    /// Output projection added to the residual.
    Output,
    /// Norm of the output projection, added to the residual.
    OutputNorm,
    /// Norm, gate and up projections, activation and product.
    GateUp,
    /// Down projection added to the residual.
    Down,
    /// Norm of the down projection, added to the residual.
    DownNorm,
    /// Norm and LM head.
    Head,
    /// Argmax and the end of the step.
    Boundary,
}

/// What kind of tensor a value is; the knobs choose its synchronisation by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Residual rows kept by their owners.
    Residual,
    /// Residual rows published to everybody.
    Hidden,
    /// A projection before its norm.
    Output,
    Qkv,
    Attention,
    Act,
    /// Largest logits by SM.
    Best,
}

/// Index into [`ModelGraph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// A tensor between stages, `[tokens, width]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub name: String,
    pub class: Class,
    /// Elements per token; 0 where the schedule decides.
    pub width: u64,
}

/// The weight matrix of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    pub name: String,
    /// Output rows.
    pub rows: u64,
    /// Input width.
    pub k: u64,
    pub dtype: DType,
    pub recipe: Recipe,
}

impl Matrix {
    /// Bytes in packed form: whole tiles of 8 rows and whole blocks of 32 K, every bf16 term.
    pub fn packed_bytes(&self) -> u64 {
        self.rows.div_ceil(TILE_ROWS) * self.k.div_ceil(BLOCK_K) * self.dtype.terms() * BLOCK_BYTES
    }
}

/// A fused stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    pub kind: StageKind,
    /// Decoder layer; none outside the layers.
    pub layer: Option<usize>,
    /// The matrix it multiplies by.
    pub matrix: Option<Matrix>,
    /// The norm in front of it, or of what it adds.
    pub norm: Option<TensorInfo>,
    /// Value it makes for other SMs; the residual it updates in place is not named.
    pub output: Option<ValueId>,
}

impl Stage {
    /// Name such as `layer 3 gate/up`.
    pub fn label(&self) -> String {
        let what = match self.kind {
            StageKind::Embed => "embed",
            StageKind::Qkv => "qkv",
            StageKind::Attention => "attention",
            StageKind::Output => "output",
            StageKind::OutputNorm => "output norm",
            StageKind::GateUp => "gate/up",
            StageKind::Down => "down",
            StageKind::DownNorm => "down norm",
            StageKind::Head => "lm head",
            StageKind::Boundary => "boundary",
        };
        match self.layer {
            Some(l) => format!("layer {l} {what}"),
            None => what.to_owned(),
        }
    }
}

/// Stages as nodes, values as edges.
#[derive(Clone, Debug)]
pub struct ModelGraph {
    pub graph: DiGraph<Stage, ValueId>,
    pub values: Vec<Value>,
}

impl ModelGraph {
    /// The graph of a Llama-family model. Shape must have passed [`Shape::check`].
    pub fn new(shape: &Shape) -> ModelGraph {
        let s = &shape.sizes;
        let mut b = Builder { graph: DiGraph::new(), values: Vec::new() };
        let residual = b.value("residual", Class::Residual, s.hidden);
        let embed = b.stage(StageKind::Embed, None, None, None, None);
        // Last stage that touched the residual, and the stage that published it, if any.
        let mut owner = embed;
        let mut published = None;
        for (l, t) in shape.layers.iter().enumerate() {
            let at = |name: &str| format!("layer {l} {name}");
            let qkv = b.value(&at("qkv"), Class::Qkv, s.qkv_width());
            let attention = b.value(&at("attention"), Class::Attention, s.q_width());
            let middle = b.value(&at("hidden after attention"), Class::Hidden, s.hidden);
            let act = b.value(&at("act"), Class::Act, s.inner);
            let after = b.value(&at("hidden after mlp"), Class::Hidden, s.hidden);
            let [wqkv, wo, wgu, wd] = matrices(shape, l, t);

            let a = b.stage(StageKind::Qkv, Some(l), Some(wqkv), t.input_norm.clone(), Some(qkv));
            if let Some((stage, value)) = published {
                b.graph.add_edge(stage, a, value);
            }
            let c = b.stage(StageKind::Attention, Some(l), None, None, Some(attention));
            b.graph.add_edge(a, c, qkv);
            let kinds = (StageKind::Output, StageKind::OutputNorm);
            let o = b.added(kinds, l, wo, &t.extra.output_norm, middle);
            b.graph.add_edge(c, o.first, attention);
            b.graph.add_edge(owner, o.last, residual);
            let g = b.stage(StageKind::GateUp, Some(l), Some(wgu), t.post_norm.clone(), Some(act));
            b.graph.add_edge(o.last, g, middle);
            let kinds = (StageKind::Down, StageKind::DownNorm);
            let d = b.added(kinds, l, wd, &t.extra.down_norm, after);
            b.graph.add_edge(g, d.first, act);
            b.graph.add_edge(o.last, d.last, residual);
            owner = d.last;
            published = Some((d.last, after));
        }
        let best = b.value("best", Class::Best, 0);
        let head = Matrix {
            name: "head".to_owned(),
            rows: s.vocab,
            k: s.hidden,
            dtype: shape.head.dtype,
            recipe: Recipe::Concat(vec![shape.head.name.clone()]),
        };
        let norm = shape.final_norm.clone();
        let head = b.stage(StageKind::Head, None, Some(head), Some(norm), Some(best));
        if let Some((stage, value)) = published {
            b.graph.add_edge(stage, head, value);
        }
        let end = b.stage(StageKind::Boundary, None, None, None, None);
        b.graph.add_edge(head, end, best);
        ModelGraph { graph: b.graph, values: b.values }
    }

    /// Stages in the order of execution: every stage after those it takes values from, and among
    /// those that are ready the one added first.
    pub fn order(&self) -> Vec<NodeIndex> {
        let mut missing: Vec<usize> = self
            .graph
            .node_indices()
            .map(|n| self.graph.edges_directed(n, Direction::Incoming).count())
            .collect();
        let mut ready: BinaryHeap<Reverse<NodeIndex>> =
            self.graph.externals(Direction::Incoming).map(Reverse).collect();
        let mut order = Vec::with_capacity(missing.len());
        while let Some(Reverse(node)) = ready.pop() {
            order.push(node);
            for next in self.graph.neighbors_directed(node, Direction::Outgoing) {
                missing[next.index()] -= 1;
                if missing[next.index()] == 0 {
                    ready.push(Reverse(next));
                }
            }
        }
        order
    }

    /// Packed bytes of all matrices, what one step reads.
    pub fn weight_bytes(&self) -> u64 {
        self.graph.node_weights().filter_map(|s| s.matrix.as_ref()).map(Matrix::packed_bytes).sum()
    }
}

struct Builder {
    graph: DiGraph<Stage, ValueId>,
    values: Vec<Value>,
}

impl Builder {
    fn value(&mut self, name: &str, class: Class, width: u64) -> ValueId {
        self.values.push(Value { name: name.to_owned(), class, width });
        ValueId(self.values.len() - 1)
    }

    fn stage(
        &mut self,
        kind: StageKind,
        layer: Option<usize>,
        matrix: Option<Matrix>,
        norm: Option<TensorInfo>,
        output: Option<ValueId>,
    ) -> NodeIndex {
        self.graph.add_node(Stage { kind, layer, matrix, norm, output })
    }
}

/// Stages that add a projection to the residual: the one that takes its input, and the one that adds, which are
/// one where the projection has no norm of its own.
struct Added {
    first: NodeIndex,
    last: NodeIndex,
}

impl Builder {
    /// A projection of layer `l` added to the residual, which is published as `hidden`. `kinds` are those of the
    /// projection and of its norm.
    fn added(
        &mut self,
        kinds: (StageKind, StageKind),
        l: usize,
        matrix: Matrix,
        norm: &Option<TensorInfo>,
        hidden: ValueId,
    ) -> Added {
        if norm.is_none() {
            let stage = self.stage(kinds.0, Some(l), Some(matrix), None, Some(hidden));
            return Added { first: stage, last: stage };
        }
        let name = match kinds.0 {
            StageKind::Output => format!("layer {l} attention output"),
            _ => format!("layer {l} mlp output"),
        };
        let output = self.value(&name, Class::Output, matrix.rows);
        let first = self.stage(kinds.0, Some(l), Some(matrix), None, Some(output));
        let last = self.stage(kinds.1, Some(l), None, norm.clone(), Some(hidden));
        self.graph.add_edge(first, last, output);
        Added { first, last }
    }
}

/// The four matrices of a layer: QKV, output, gate/up, down.
fn matrices(shape: &Shape, l: usize, t: &LayerTensors) -> [Matrix; 4] {
    let s = &shape.sizes;
    let names = |list: &[&TensorInfo]| list.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    let qkv = [&t.query, &t.key, &t.value];
    [
        Matrix {
            name: format!("layer {l} wqkv"),
            rows: s.qkv_width(),
            k: s.hidden,
            dtype: widest(&qkv),
            recipe: Recipe::Concat(names(&qkv)),
        },
        Matrix {
            name: format!("layer {l} wo"),
            rows: s.hidden,
            k: s.q_width(),
            dtype: t.output.dtype,
            recipe: Recipe::Concat(names(&[&t.output])),
        },
        Matrix {
            name: format!("layer {l} wgu"),
            rows: 2 * s.inner,
            k: s.hidden,
            dtype: widest(&[&t.gate, &t.up]),
            recipe: Recipe::Interleave(t.gate.name.clone(), t.up.name.clone()),
        },
        Matrix {
            name: format!("layer {l} wd"),
            rows: s.hidden,
            k: s.inner,
            dtype: t.down.dtype,
            recipe: Recipe::Concat(names(&[&t.down])),
        },
    ]
}
