//! Whole decode programs are accepted, whatever their shape and way of handing over.

mod common;
#[path = "common/llama.rs"]
mod llama;

use amk_validator::validate;
use llama::{Handover, Shape, llama};

fn accept(shape: Shape) {
    if let Err(rejected) = validate(llama(shape), &common::target()) {
        let list: Vec<String> = rejected.faults.iter().take(5).map(ToString::to_string).collect();
        panic!("{shape:?}: {rejected}\n{}", list.join("\n"));
    }
}

#[test]
fn shapes_are_accepted() {
    for handover in [Handover::Packets, Handover::Counters] {
        for (layers, sms, splits) in
            [(1, 1, 1), (1, 2, 1), (2, 3, 1), (2, 3, 2), (3, 5, 3), (2, 17, 4), (4, 132, 2)]
        {
            for tokens in [1, 3] {
                accept(Shape { layers, sms, splits, tokens, handover, ..Shape::TINY });
            }
        }
        for (hidden, inner, vocab, head_dim) in
            [(60, 100, 509, 14), (96, 200, 1003, 8), (576, 1536, 512, 64)]
        {
            accept(Shape { hidden, inner, vocab, head_dim, handover, ..Shape::TINY });
        }
    }
}

#[test]
fn an_8b_shape_is_accepted() {
    accept(Shape { layers: 4, ..Shape::LLAMA_8B });
    accept(Shape { layers: 4, handover: Handover::Counters, ..Shape::LLAMA_8B });
}
