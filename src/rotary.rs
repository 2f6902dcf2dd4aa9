//! Rotary tables whose frequencies depend on how long the sequence is: `dynamic` and `longrope` scaling.
//!
//! A program knows one table, a row per position. What HuggingFace computes is told by two lengths: a prompt is fed in
//! one pass with the frequencies of its whole length, and a token at position p after it with those of p + 1, while
//! keys in the cache keep the rotation they were made with. So row p of a request is made for max(prompt, p + 1)
//! positions ([`RotaryTable::rows`]). One thing more for `longrope`: where a sequence outgrows the original context,
//! all its keys are made anew with the long factors ([`SequenceRope::renews`]).

use std::ops::Range;

use amk_models::{ModelConfig, Rope};

use crate::decode::LaunchPlan;

/// Makes rows of a rotary table.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    rope: Rope,
    head_dim: usize,
}

impl RotaryTable {
    /// The rows of a rope in heads of this width.
    pub fn new(rope: &Rope, head_dim: usize) -> RotaryTable {
        RotaryTable { rope: rope.clone(), head_dim }
    }

    /// Rows one after another, each the cosines of a position, then its sines. A row is for a sequence of `length`
    /// positions, or of as many as end with it where that is more.
    pub fn rows(&self, rows: Range<u64>, length: u64) -> Vec<f32> {
        let mut out = Vec::new();
        let mut table = None;
        for row in rows {
            let needed = self.length_of(row, length);
            let table = match &mut table {
                Some((made, table)) if self.rope.alike(*made, needed) => table,
                other => &mut other.insert((needed, self.rope.table(self.head_dim, needed))).1,
            };
            let (cos, sin) = table.cos_sin(row as usize);
            out.extend(cos.into_iter().chain(sin));
        }
        out
    }

    /// Rows that are not the same for sequences of `a` and of `b` positions, and all between them.
    pub fn differ(&self, a: u64, b: u64) -> Range<u64> {
        let differs =
            |row: &u64| !self.rope.alike(self.length_of(*row, a), self.length_of(*row, b));
        let last = (0..a.max(b)).rev().find(differs);
        last.map_or(0..0, |last| (0..last).find(differs).unwrap_or(last)..last + 1)
    }

    fn length_of(&self, row: u64, length: u64) -> usize {
        length.max(row + 1) as usize
    }
}

/// The lengths a sequence on some executor has to do with, where its model's frequencies depend on them.
#[derive(Clone, Debug)]
pub struct SequenceRope {
    rope: Rope,
    /// Length that the tables are made for.
    length: u64,
    /// Length that the keys in the cache were made for.
    made_for: u64,
    /// Positions whose keys were computed one after another from the first on.
    made: u64,
}

impl SequenceRope {
    /// For an empty sequence. None where the model's tables are the same for all.
    pub fn new(config: &ModelConfig) -> Option<SequenceRope> {
        let rope = config.rope.clone();
        config.depends_on_length().then_some(SequenceRope { rope, length: 0, made_for: 0, made: 0 })
    }

    /// Length the tables are made for.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The tables are made for sequences of `length` positions from now on.
    pub fn set_length(&mut self, length: u64) {
        self.length = length;
    }

    /// Steps of a launch that keep to one kind of keys, for a prompt of `prompt` positions.
    pub fn steps(&self, plan: &LaunchPlan, prompt: u64) -> u64 {
        let kept = |steps: &u64| {
            let end = plan.position + steps * plan.tokens;
            !self.rope.switches(self.first(plan, prompt), end.max(prompt) as usize)
        };
        // There is one border at most, and the keys of what was given rather than computed have no kind.
        if kept(&plan.steps) || self.foreign(plan) {
            return plan.steps;
        }
        let (mut low, mut high) = (1, plan.steps);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if kept(&middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Whether the keys before a launch must be made anew first.
    pub fn renews(&self, plan: &LaunchPlan, prompt: u64) -> bool {
        let switches = self.rope.switches(self.made_for as usize, self.first(plan, prompt));
        switches && plan.position > 0 && !self.foreign(plan)
    }

    /// A launch of `steps` steps is done.
    pub fn done(&mut self, plan: &LaunchPlan, prompt: u64, steps: u64) {
        if !self.foreign(plan) {
            self.made = plan.position + steps * plan.tokens;
            self.made_for = self.made.max(prompt);
        }
    }

    /// Keys were put into the cache; they stay whatever comes.
    pub fn given(&mut self) {
        self.made = 0;
    }

    /// Length of the sequence at the first step of a launch.
    fn first(&self, plan: &LaunchPlan, prompt: u64) -> usize {
        (plan.position + plan.tokens).max(prompt) as usize
    }

    /// The keys before it are not computed ones.
    fn foreign(&self, plan: &LaunchPlan) -> bool {
        plan.position > self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amk_models::config::RopeScaling;

    fn longrope() -> Rope {
        let (short_factor, long_factor) = (vec![1.0, 1.5], vec![2.0, 4.0]);
        let scaling = RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max_position_embeddings: 16,
            attention_factor: 1.1,
        };
        Rope { theta: 1e4, partial_rotary_factor: 1.0, scaling }
    }

    fn dynamic() -> Rope {
        let scaling = RopeScaling::Dynamic { factor: 4.0, plain_positions: 16 };
        Rope { theta: 1e4, partial_rotary_factor: 1.0, scaling }
    }

    fn sequence(rope: Rope) -> SequenceRope {
        SequenceRope { rope, length: 0, made_for: 0, made: 0 }
    }

    fn plan(position: u64, steps: u64, tokens: u64) -> LaunchPlan {
        LaunchPlan { program: 0, position, steps, tokens }
    }

    #[test]
    fn a_row_is_for_the_prompt_or_for_the_sequence_that_ends_with_it() {
        for rope in [longrope(), dynamic()] {
            let table = RotaryTable::new(&rope, 4);
            for (length, row) in [(0u64, 3u64), (0, 15), (0, 16), (20, 3), (20, 30), (16, 16)] {
                let (cos, sin) = rope.table(4, length.max(row + 1) as usize).cos_sin(row as usize);
                let expected: Vec<f32> = cos.into_iter().chain(sin).collect();
                assert_eq!(table.rows(row..row + 1, length), expected, "{length} {row}");
                assert_eq!(table.rows(0..40, length)[row as usize * 4..][..4], expected);
            }
        }
    }

    #[test]
    fn rows_that_change_with_the_length_are_known() {
        let table = RotaryTable::new(&longrope(), 4);
        assert_eq!(table.differ(0, 16), 0..0);
        assert_eq!(table.differ(0, 17), 0..16);
        assert_eq!(table.differ(17, 40), 0..0);
        let table = RotaryTable::new(&dynamic(), 4);
        assert_eq!(table.differ(0, 16), 0..0);
        assert_eq!(table.differ(0, 20), 0..19);
        assert_eq!(table.differ(20, 22), 0..21);
        for (a, b) in [(0, 20), (20, 22), (22, 0)] {
            let (left, right) = (table.rows(0..40, a), table.rows(0..40, b));
            let differ = table.differ(a, b);
            let same = (0..40).filter(|r| !differ.contains(r)).map(|r| r as usize * 4);
            assert!(same.into_iter().all(|at| left[at..at + 4] == right[at..at + 4]));
        }
    }

    #[test]
    fn launches_end_where_keys_are_made_anew() {
        let mut s = sequence(longrope());
        assert_eq!(s.steps(&plan(0, 30, 1), 10), 16);
        s.done(&plan(0, 16, 1), 10, 16);
        assert!(s.renews(&plan(16, 14, 1), 10));
        assert_eq!(s.steps(&plan(16, 14, 1), 10), 14);
        // All of it again, for 17 positions.
        assert_eq!(s.steps(&plan(0, 2, 8), 17), 2);
        s.done(&plan(0, 2, 8), 17, 2);
        assert!(!s.renews(&plan(16, 14, 1), 10));
        s.done(&plan(16, 14, 1), 10, 14);
        assert!(!s.renews(&plan(30, 1, 1), 10));
        // Back to where it was short.
        assert!(s.renews(&plan(5, 1, 1), 3));
        assert!(!s.renews(&plan(0, 1, 1), 3));
        // A long prompt is long from its first step on.
        assert!(!s.renews(&plan(0, 1, 8), 20));
        s.done(&plan(0, 1, 8), 20, 1);
        assert!(!s.renews(&plan(8, 1, 8), 20));
        assert_eq!(s.steps(&plan(8, 30, 1), 20), 30);
        // Keys that were put there have no kind.
        s.given();
        assert!(!s.renews(&plan(5, 1, 1), 6));
        assert_eq!(s.steps(&plan(14, 5, 1), 15), 5);
    }

    #[test]
    fn dynamic_frequencies_leave_keys_as_they_are() {
        let mut s = sequence(dynamic());
        assert_eq!(s.steps(&plan(0, 60, 1), 10), 60);
        s.done(&plan(0, 16, 1), 10, 16);
        assert!(!s.renews(&plan(16, 14, 1), 10));
    }
}
