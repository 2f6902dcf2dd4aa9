//! Model graph and dependence graph.

use amk::graph::{DependenceGraph, Link, ModelGraph, StageKind};
use amk::lower::{Knobs, Mode, Shape, lower_for};
use amk_schedule_ir::DType;

use crate::common::{odd_shape, sizes, target};

#[test]
fn model_stages_come_after_what_they_read() {
    let model = ModelGraph::new(&odd_shape());
    let order = model.order();
    assert_eq!(order.len(), model.graph.node_count());
    let kinds: Vec<StageKind> = order.iter().map(|&n| model.graph[n].kind).collect();
    use StageKind::*;
    let layer = [Qkv, Attention, Output, GateUp, Down];
    let all = [&[Embed][..], &layer, &layer, &[Head, Boundary]].concat();
    assert_eq!(kinds, all);
    let mut place = vec![0; order.len()];
    for (i, n) in order.iter().enumerate() {
        place[n.index()] = i;
    }
    for e in model.graph.edge_indices() {
        let (a, b) = model.graph.edge_endpoints(e).unwrap();
        assert!(place[a.index()] < place[b.index()]);
    }
}

/// A norm of what is added is a stage of its own, and the residual passes it by.
#[test]
fn norms_of_outputs_are_stages() {
    let mut shape = odd_shape();
    for layer in &mut shape.layers {
        layer.extra.output_norm = layer.input_norm.take();
        layer.extra.down_norm = layer.post_norm.take();
    }
    let model = ModelGraph::new(&shape);
    use StageKind::*;
    let layer = [Qkv, Attention, Output, OutputNorm, GateUp, Down, DownNorm];
    let kinds: Vec<StageKind> = model.order().iter().map(|&n| model.graph[n].kind).collect();
    assert_eq!(kinds, [&[Embed][..], &layer, &layer, &[Head, Boundary]].concat());
    let lowered = lower_for(&shape, &target(7), &Knobs::default(), 0, Mode::Bf16).unwrap();
    let graph = DependenceGraph::new(&lowered.program, &target(7));
    // One step of the residual from each stage that adds to the next.
    assert_eq!(graph.links().filter(|(_, _, e)| e.link == Link::Local).count(), 4);
    let added = graph.graph.node_weights().filter(|s| s.op == "norm_residual").count();
    assert_eq!(added, 4);
}

#[test]
fn weight_bytes_of_model_and_program_agree() {
    let shape = odd_shape();
    let lowered = lower_for(&shape, &target(7), &Knobs::default(), 0, Mode::Bf16).unwrap();
    let graph = DependenceGraph::new(&lowered.program, &target(7));
    let program: u64 = graph.graph.node_weights().map(|s| s.weight_bytes).sum();
    assert_eq!(program, ModelGraph::new(&shape).weight_bytes());
}

#[test]
fn dependence_graph_follows_the_chain() {
    let shape = odd_shape();
    let knobs = Knobs { splits: Some(2), ..Knobs::default() };
    let lowered = lower_for(&shape, &target(7), &knobs, 0, Mode::Bf16).unwrap();
    let graph = DependenceGraph::new(&lowered.program, &target(7));
    let per_layer = [
        "norm_qkv",
        "attention",
        "attention_merge",
        "linear_residual",
        "norm_gate_up",
        "linear_residual",
    ];
    let ops: Vec<&str> = graph.graph.node_weights().map(|s| s.op).collect();
    assert_eq!(
        ops,
        [&["embed"][..], &per_layer, &per_layer, &["norm_lm_head", "boundary"]].concat()
    );
    // Residual, qkv, partial, attention, hidden, act and hidden again in each layer; the second
    // layer's first stage reads what the first published.
    let path: Vec<&str> = graph.critical_path().iter().map(|&n| graph.graph[n].op).collect();
    assert_eq!(path, [&per_layer[..], &per_layer, &["norm_lm_head", "boundary"]].concat());
    let links: Vec<Link> = graph.links().map(|(_, _, e)| e.link).collect();
    assert_eq!(links.iter().filter(|l| **l == Link::Local).count(), 4);
    assert_eq!(links.iter().filter(|l| **l == Link::Boundary).count(), 1);
    let dot = graph.dot();
    assert!(dot.starts_with("digraph") && dot.contains("layer 1 hidden after mlp"), "{dot}");
    assert_eq!(dot.matches("penwidth=3").count(), path.len());
    assert!(graph.graph.node_weights().any(|s| s.kv_bytes > 0));
}

#[test]
fn predictions_are_no_faster_than_reading_and_follow_the_knobs() {
    let shape =
        Shape::llama("1b", sizes(2048, 16, 32, 8, 64, 8192, 128_256, 131_072), true, DType::Bf16);
    let part = target(132);
    let step = |knobs: &Knobs, position| {
        let lowered = lower_for(&shape, &part, knobs, position, Mode::Bf16).unwrap();
        let graph = DependenceGraph::new(&lowered.program, &part);
        assert!(graph.step_us >= graph.read_us, "{} < {}", graph.step_us, graph.read_us);
        graph.step_us
    };
    let base = Knobs::default();
    let plain = step(&base, 0);
    // Fewer slots hide less of the chain; counters take two hops; a longer past takes longer.
    assert!(step(&Knobs { ring_slots: Some(2), ..base.clone() }, 0) > plain);
    let mut counters = base.clone();
    counters.edges.hidden = amk::lower::EdgeKind::Counter;
    assert!(step(&counters, 0) > plain);
    assert!(step(&base, 3000) > plain);
}
