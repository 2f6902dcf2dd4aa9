//! What a device will run, as far as it can be seen without one: programs of one model that share their memory,
//! prompts handed from prefill to decoding, packed weights, planted faults, helper kernels and traced texts.

mod faults;
mod handover;
mod overlay;
mod texts;
