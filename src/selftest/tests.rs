//! The test itself, with the CPU reference playing the device.

use amk_models::{Checkpoint, Reference};
use amk_schedule_ir::Bucket;

use super::*;

/// A reference that plays an engine, with an optional fault.
struct Player {
    reference: Reference,
    programs: Vec<ProgramFacts>,
    fault: Option<fn(u64, &mut Vec<f32>)>,
    rows: usize,
    /// Draws, with this many positions' difference in what it believes the position to be.
    drawn: Option<u64>,
    settings: Settings,
    line: Vec<u32>,
}

impl Player {
    fn new(checkpoint: &Checkpoint, fault: Option<fn(u64, &mut Vec<f32>)>) -> Player {
        let bucket = |first, last| Bucket { first, last };
        let facts = |bucket, tokens| ProgramFacts { bucket, tokens, max_steps: 64 };
        Player {
            reference: Reference::new(checkpoint).unwrap(),
            programs: vec![
                facts(bucket(0, 255), 1),
                facts(bucket(256, 511), 1),
                facts(bucket(0, 240), 16),
            ],
            fault,
            rows: 0,
            drawn: None,
            settings: Settings::default(),
            line: Vec::new(),
        }
    }
}

impl Subject for Player {
    fn programs(&self) -> Vec<ProgramFacts> {
        self.programs.clone()
    }

    fn fill(
        &mut self,
        layer: usize,
        rows: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), SourceError> {
        self.rows = rows;
        let width = self.reference.config().head_dim;
        let heads = self.reference.config().num_kv_heads;
        let turn = |v: &[f32]| -> Vec<f32> {
            let mut out = vec![0.0; v.len()];
            for h in 0..heads {
                for r in 0..rows {
                    let (from, to) = ((h * rows + r) * width, (r * heads + h) * width);
                    out[to..to + width].copy_from_slice(&v[from..from + width]);
                }
            }
            out
        };
        Ok(self.reference.preload(layer, rows, turn(keys), turn(values))?)
    }

    fn launch(
        &mut self,
        plan: &LaunchPlan,
        tokens: &[u32],
    ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
        let at = plan.position as usize;
        let mut logits = self.reference.prefill(tokens, at, Want::Last)?.remove(0);
        let mut said = Vec::new();
        self.line.resize(at, 0);
        self.line.extend(tokens);
        for step in 0..plan.steps {
            if let Some(fault) = self.fault {
                fault(plan.position + step, &mut logits);
            }
            let scores = self.settings.scores(&logits, &self.line);
            let place = self.line.len() as u64 + self.drawn.unwrap_or(0);
            let token = self.settings.choose(&scores, place).unwrap_or(0);
            self.line.push(token);
            said.push(token);
            if step + 1 < plan.steps {
                logits = self.reference.forward(token, at + tokens.len() + step as usize)?;
            }
        }
        Ok((said, logits))
    }

    fn draws(&self, _: usize) -> bool {
        self.drawn.is_some()
    }

    fn draw_by(&mut self, settings: Settings) {
        self.settings = settings;
    }

    fn launch_after(
        &mut self,
        plan: &LaunchPlan,
        line: &[u32],
    ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
        let (before, now) = line.split_at(plan.position as usize);
        self.line = before.to_vec();
        self.launch(plan, now)
    }
}

fn findings(fault: Option<fn(u64, &mut Vec<f32>)>) -> Vec<(usize, Findings)> {
    let checkpoint = Checkpoint::embedded().unwrap();
    let mut player = Player::new(&checkpoint, fault);
    test(&mut player, &checkpoint, Mode::F32, &[0, 1, 2]).unwrap()
}

#[test]
fn a_right_executor_passes_at_positions_with_a_past() {
    let found = findings(None);
    assert_eq!(found.len(), 3);
    for (_, f) in &found {
        assert!(f.ok, "{f:?}");
        assert_eq!(f.difference, 0.0);
        assert!(f.positions.iter().all(|p| *p >= 5));
    }
    assert_eq!(found[0].1.positions, [96, 5]);
    assert_eq!(found[1].1.positions, [352, 261]);
    assert_eq!(found[2].1.positions, [5]);
}

#[test]
fn a_scaled_logit_vector_fails_everywhere() {
    let found = findings(Some(|_, logits| logits.iter_mut().for_each(|v| *v *= 1.02)));
    assert!(found.iter().all(|(_, f)| !f.ok && f.reason.as_ref().unwrap().contains("differ")));
}

#[test]
fn a_fault_in_one_program_is_found_there_alone() {
    let found = findings(Some(|position, logits| {
        if position >= 300 {
            logits[7] += 100.0;
        }
    }));
    assert!(found[0].1.ok && found[2].1.ok);
    assert!(found[1].1.reason.as_ref().unwrap().contains("at position 352"));
}

/// Feedback that differs from single steps is found even where every step alone is right.
#[test]
fn steps_together_must_say_what_steps_alone_say() {
    struct Forgetful(Player);
    impl Subject for Forgetful {
        fn programs(&self) -> Vec<ProgramFacts> {
            self.0.programs()
        }
        fn fill(&mut self, l: usize, r: usize, k: &[f32], v: &[f32]) -> Result<(), SourceError> {
            self.0.fill(l, r, k, v)
        }
        fn launch(
            &mut self,
            plan: &LaunchPlan,
            tokens: &[u32],
        ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
            let (mut said, logits) = self.0.launch(plan, tokens)?;
            if plan.steps > 1 {
                said[1] = 0;
            }
            Ok((said, logits))
        }
        fn draws(&self, program: usize) -> bool {
            self.0.draws(program)
        }
        fn draw_by(&mut self, settings: Settings) {
            self.0.draw_by(settings);
        }
        fn launch_after(
            &mut self,
            plan: &LaunchPlan,
            line: &[u32],
        ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
            self.0.launch_after(plan, line)
        }
    }
    let checkpoint = Checkpoint::embedded().unwrap();
    let mut player = Forgetful(Player::new(&checkpoint, None));
    let found = test(&mut player, &checkpoint, Mode::F32, &[0]).unwrap();
    assert!(found[0].1.reason.as_ref().unwrap().contains("one launch"), "{found:?}");
}

#[test]
fn what_is_drawn_is_judged_by_the_rule() {
    let checkpoint = Checkpoint::embedded().unwrap();
    for (off, ok) in [(0, true), (1, false)] {
        let mut player = Player::new(&checkpoint, None);
        player.drawn = Some(off);
        let found = test(&mut player, &checkpoint, Mode::F32, &[0, 2]).unwrap();
        assert_eq!(player.settings, Settings::default());
        for (_, f) in found {
            assert_eq!(f.ok, ok, "{f:?}");
            assert!(ok || f.reason.unwrap().contains("the kernel draws"));
        }
    }
}

/// A past that differs by the rounding of bf16 moves the logits of a trained model by less than the test allows bf16.
#[test]
fn the_past_of_the_test_is_one_that_rounding_does_not_upset() {
    struct Rounded(Player);
    impl Subject for Rounded {
        fn programs(&self) -> Vec<ProgramFacts> {
            self.0.programs()
        }
        fn fill(&mut self, l: usize, r: usize, k: &[f32], v: &[f32]) -> Result<(), SourceError> {
            // Half a unit of bf16's last place, up or down.
            let near = |x: &[f32]| -> Vec<f32> {
                let element = |(i, v): (usize, &f32)| v * (1.0 + noise(mix(i as u64)) / 512.0);
                x.iter().enumerate().map(element).collect()
            };
            self.0.fill(l, r, &near(k), &near(v))
        }
        fn launch(
            &mut self,
            plan: &LaunchPlan,
            tokens: &[u32],
        ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
            self.0.launch(plan, tokens)
        }
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/SmolLM2-135M-Instruct");
    let checkpoint = Checkpoint::from_folder(std::path::Path::new(folder)).unwrap();
    let mut subject = Rounded(Player::new(&checkpoint, None));
    let found = test(&mut subject, &checkpoint, Mode::Bf16, &[0]).unwrap();
    // A quarter of what is allowed: the kernel rounds in every stage, and not in the past alone.
    assert!(found[0].1.ok && found[0].1.difference < 0.025, "{found:?}");
}
