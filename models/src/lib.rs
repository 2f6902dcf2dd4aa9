//! Checkpoints: config, weights, tokenizer, chat template, CPU reference.
