//! The dependence graph of a program, one node per stage instead of one per instruction.
//!
//! A stage is the instructions of one op that write the same buffer last. Stages are taken in the
//! order the program lists them; an edge leads from the stage that last wrote a buffer to each later
//! one that reads it. Works on any program, also on one no validator has seen.

use std::collections::{BTreeMap, HashMap};

use amk_schedule_ir::program::{BLOCK_BYTES, TILE_ROWS, weight_blocks};
use amk_schedule_ir::program::{BufferKind, BufferSync, Instruction, Program, RunSource};
use amk_schedule_ir::{BufferId, Target};
use petgraph::Direction;
use petgraph::dot::{Config, Dot};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use serde::Serialize;

use crate::predict::{Predicted, predict};

/// How a value gets from one stage to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Kept by its SM.
    Local,
    /// Words with epochs.
    Packet,
    /// Plain memory behind a counter.
    Counter,
    /// Plain memory behind the boundary.
    Boundary,
}

/// A stage of a program.
#[derive(Clone, Debug, Serialize)]
pub struct StageNode {
    pub op: &'static str,
    /// What it makes: the name of the buffer written last.
    pub label: String,
    pub instructions: usize,
    /// Packed weight bytes by SM, over the SMs that take part.
    #[serde(skip)]
    pub sm_bytes: BTreeMap<usize, u64>,
    /// SMs that take part.
    pub sms: usize,
    /// Packed weight bytes of all SMs.
    pub weight_bytes: u64,
    /// Cache bytes read by all SMs at the last position of the bucket.
    pub kv_bytes: u64,
    /// Predicted, not measured.
    pub predicted: Predicted,
}

/// Values that go from one stage to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageEdge {
    /// Names of the buffers.
    pub buffers: Vec<String>,
    /// The slowest of their links.
    pub link: Link,
}

/// Stages and what goes between them within one step.
#[derive(Clone, Debug)]
pub struct DependenceGraph {
    pub graph: DiGraph<StageNode, StageEdge>,
    /// Predicted time of one step at the last position of the bucket, microseconds.
    pub step_us: f64,
    /// Predicted time of reading every weight and cache byte once at full bandwidth, microseconds.
    pub read_us: f64,
}

impl DependenceGraph {
    /// Gathers a program's stages and predicts their times on `target`.
    pub fn new(program: &Program, target: &Target) -> DependenceGraph {
        let mut graph = stages(program);
        let (step_us, read_us) = predict(&mut graph, program, target);
        DependenceGraph { graph, step_us, read_us }
    }

    /// The chain of stages each of which starts when the one before it ends, as predicted, from the
    /// first stage to the one that ends last.
    pub fn critical_path(&self) -> Vec<NodeIndex> {
        let later = |a: &NodeIndex, b: &NodeIndex| {
            let end = |n: &NodeIndex| self.graph[*n].predicted.end_us;
            end(a).total_cmp(&end(b)).then(b.cmp(a))
        };
        let mut path = Vec::new();
        let mut at = self.graph.node_indices().max_by(later);
        while let Some(node) = at {
            path.push(node);
            at = self.graph.neighbors_directed(node, Direction::Incoming).max_by(later);
        }
        path.reverse();
        path
    }

    /// Graphviz text; stages of the critical path are bold.
    pub fn dot(&self) -> String {
        let path = self.critical_path();
        let edge = |_: &DiGraph<StageNode, StageEdge>,
                    e: petgraph::graph::EdgeReference<'_, StageEdge>| {
            let style = match e.weight().link {
                Link::Local => "dotted",
                Link::Packet => "solid",
                Link::Counter | Link::Boundary => "dashed",
            };
            format!("label=\"{}\" style={style}", escape(&e.weight().buffers.join(", ")))
        };
        let node = |_: &DiGraph<StageNode, StageEdge>, (id, n): (NodeIndex, &StageNode)| {
            let bold = if path.contains(&id) { " penwidth=3" } else { "" };
            format!(
                "shape=box label=\"{}\\n{}\\n{} SMs, {} bytes\\npredicted {:.1} to {:.1} us\"{bold}",
                n.op,
                escape(&n.label),
                n.sms,
                n.weight_bytes + n.kv_bytes,
                n.predicted.start_us,
                n.predicted.end_us,
            )
        };
        let config = [Config::EdgeNoLabel, Config::NodeNoLabel];
        format!("{:?}", Dot::with_attr_getters(&self.graph, &config, &edge, &node))
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn stages(program: &Program) -> DiGraph<StageNode, StageEdge> {
    let mut graph: DiGraph<StageNode, StageEdge> = DiGraph::new();
    let mut found: HashMap<(&'static str, Option<BufferId>), NodeIndex> = HashMap::new();
    let sm_of = owners(program);
    // Stages with one instruction each: those of a stage touch the same buffers.
    let mut first: Vec<(NodeIndex, &Instruction)> = Vec::new();
    for i in &program.instructions {
        let made = i.writes.last().map(|a| a.buffer);
        let op = i.op.name();
        let node = *found.entry((op, made)).or_insert_with(|| {
            let name = made.and_then(|b| program.buffer(b)).map_or(op, |b| b.name.as_str());
            let node = graph.add_node(StageNode {
                op,
                label: name.to_owned(),
                instructions: 0,
                sm_bytes: BTreeMap::new(),
                sms: 0,
                weight_bytes: 0,
                kv_bytes: 0,
                predicted: Predicted::default(),
            });
            first.push((node, i));
            node
        });
        let Some(&sm) = sm_of.get(&i.id.0) else { continue };
        let weight = weight_bytes(program, sm, i);
        let stage = &mut graph[node];
        stage.instructions += 1;
        stage.weight_bytes += weight;
        stage.kv_bytes += kv_bytes(program, i);
        *stage.sm_bytes.entry(sm).or_insert(0) += weight;
        stage.sms = stage.sm_bytes.len();
    }
    let mut writer: HashMap<BufferId, NodeIndex> = HashMap::new();
    for (node, i) in first {
        let end = i.op.name() == "boundary";
        let (reads, writes) = match end {
            true => (&program.boundary.reads, &program.boundary.writes),
            false => (&i.reads, &i.writes),
        };
        for access in reads {
            let Some(&from) = writer.get(&access.buffer) else { continue };
            let Some(buffer) = program.buffer(access.buffer) else { continue };
            let link = match buffer.sync {
                BufferSync::Local => Link::Local,
                BufferSync::Packet => Link::Packet,
                BufferSync::Plain if end => Link::Boundary,
                BufferSync::Plain => Link::Counter,
            };
            match graph.find_edge(from, node) {
                Some(edge) => {
                    let edge = &mut graph[edge];
                    if !edge.buffers.contains(&buffer.name) {
                        edge.buffers.push(buffer.name.clone());
                    }
                    edge.link = edge.link.max(link);
                }
                None => {
                    let buffers = vec![buffer.name.clone()];
                    graph.add_edge(from, node, StageEdge { buffers, link });
                }
            }
        }
        for access in writes {
            writer.insert(access.buffer, node);
        }
    }
    graph
}

/// The SM whose queue holds each instruction.
fn owners(program: &Program) -> HashMap<u32, usize> {
    let queues = program.sms.iter().enumerate();
    queues.flat_map(|(s, sm)| sm.queue.iter().map(move |id| (id.0, s))).collect()
}

/// Packed bytes of the weight run an instruction consumes.
fn weight_bytes(program: &Program, sm: usize, i: &Instruction) -> u64 {
    let run = i.run.and_then(|r| program.sms.get(sm)?.stream.get(r.index()));
    let Some(RunSource::Weight { buffer, lo, hi, .. }) = run.map(|r| &r.source) else { return 0 };
    let blocks = program.buffer(*buffer).and_then(weight_blocks).unwrap_or(0);
    let tiles = hi.saturating_sub(*lo).div_ceil(TILE_ROWS);
    tiles.saturating_mul(blocks).saturating_mul(BLOCK_BYTES)
}

/// Bytes of past keys and values an instruction reads at the last position of the bucket.
fn kv_bytes(program: &Program, i: &Instruction) -> u64 {
    let reads = i.reads.iter().filter_map(|a| {
        let buffer = program.buffer(a.buffer).filter(|b| b.kind == BufferKind::Kv)?;
        let elements = u64::try_from(a.region.volume(program.bucket.last)?).ok()?;
        elements.checked_mul(buffer.dtype.bytes())
    });
    reads.fold(0, u64::saturating_add)
}

impl DependenceGraph {
    /// Edges with the labels of their ends, for reports.
    pub fn links(&self) -> impl Iterator<Item = (&StageNode, &StageNode, &StageEdge)> {
        self.graph
            .edge_references()
            .map(|e| (&self.graph[e.source()], &self.graph[e.target()], e.weight()))
    }
}
