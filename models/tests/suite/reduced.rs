//! The rule for reduced precision, as a pure function and over whole files.

use crate::common;
use amk_models::golden::{
    FileJudge, Golden, Judgement, Limits, LogitSource, ReducedRule, SourceError, verify_reduced,
};
use amk_models::{Checkpoint, Reference};

#[test]
fn regret_decides_between_excused_and_mismatch() {
    let rule = ReducedRule { regret_allowed: 0.25, rms_allowed: 0.1, not_exact_allowed: 2 };
    assert_eq!(rule.judge(5, 10.0, 5, f64::NAN), Judgement::Exact);
    assert_eq!(rule.judge(5, 10.0, 6, 9.75), Judgement::Excused);
    assert_eq!(rule.judge(5, 10.0, 6, 9.7499), Judgement::Mismatch);
    assert_eq!(rule.judge(5, 10.0, 6, f64::NAN), Judgement::Mismatch);
}

#[test]
fn the_numbers_come_from_huggingfaces_own_run() {
    let golden = Golden::read(&common::golden("SmolLM2-135M-Instruct.json")).unwrap();
    let rule = ReducedRule::of(&golden, "bf16", usize::MAX).unwrap();
    let runs = &golden.runs["bf16"].prompts;
    let along: Vec<_> = runs.iter().map(|p| p.along_f32_path.as_ref().unwrap()).collect();
    let mean = along.iter().map(|a| a.rms_dlogit.powi(2)).sum::<f64>() / along.len() as f64;
    assert!((rule.rms_allowed - 0.8 * mean.sqrt()).abs() < 1e-12);
    assert!((rule.regret_allowed - 4.0 * mean.sqrt()).abs() < 1e-12);
    assert_eq!(
        rule.not_exact_allowed,
        along.iter().map(|a| a.argmax_differs_at.len()).sum::<usize>() + 2
    );
    assert_eq!(rule.not_exact_allowed, 10);
    let odd = Golden::read(&common::golden("llama-odd-f32.json")).unwrap();
    assert!(ReducedRule::of(&odd, "bf16", usize::MAX).is_err());
    // A small error of HuggingFace's does not make the rule stricter than a quarter.
    let f16 = Golden::read(&common::golden("llama-rope-linear-f16.json")).unwrap();
    assert_eq!(ReducedRule::of(&f16, "f16", usize::MAX).unwrap().regret_allowed, 0.25);
}

/// The reference with its logits spoilt.
struct Spoilt<F: FnMut(usize, &mut Vec<f32>)>(Reference, F);

impl<F: FnMut(usize, &mut Vec<f32>)> LogitSource for Spoilt<F> {
    fn vocab_size(&self) -> usize {
        self.0.config().vocab_size
    }
    fn reset(&mut self) -> Result<(), SourceError> {
        self.0.reset();
        Ok(())
    }
    fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
        let mut logits = self.0.forward(token, position)?;
        (self.1)(position, &mut logits);
        Ok(logits)
    }
}

fn judged(spoil: impl FnMut(usize, &mut Vec<f32>)) -> amk_models::golden::FileReport {
    let name = "llama-gqa-bf16";
    let checkpoint = Checkpoint::from_folder(&common::checkpoint(name)).unwrap();
    let golden = Golden::read(&common::golden(&format!("{name}.json"))).unwrap();
    let mut device = Spoilt(Reference::new(&checkpoint).unwrap(), spoil);
    let mut reference = Reference::new(&checkpoint).unwrap();
    verify_reduced(&golden, "bf16", &mut device, &mut reference, Limits::default()).unwrap()
}

#[test]
fn float32_itself_passes_and_is_exact() {
    let report = judged(|_, _| {});
    assert!(report.ok, "{:?}", report.failures);
    assert_eq!((report.prompts, report.positions, report.exact, report.excused), (4, 256, 256, 0));
    assert_eq!((report.rms_logit_error, report.max_abs_logit_error), (Some(0.0), 0.0));
    assert!(report.free_running.is_empty());
}

/// bf16 rounding of the logits is a correct way of rounding.
#[test]
fn rounded_logits_pass() {
    let report = judged(|_, logits| {
        for l in logits {
            *l = half::bf16::from_f32(*l).to_f32();
        }
    });
    assert!(report.ok, "{:?}", report.failures);
    assert_eq!(report.exact + report.excused, 256);
}

#[test]
fn a_wrong_token_a_drift_and_a_nan_each_fail() {
    // One position where the least likely token is preferred.
    let report = judged(|position, logits| {
        if position == 20 {
            let worst = (0..logits.len()).min_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            logits[worst] = 100.0;
        }
    });
    assert!(!report.ok && report.mismatched >= 1);
    let first = report.first_mismatch.unwrap();
    assert!(
        first.actual_logit == 100.0
            && first.expected_token != first.actual_token
            && first.margin.is_some()
    );
    assert!(!report.free_running.is_empty());
    // The right tokens with logits too far off.
    let report = judged(|_, logits| logits.iter_mut().for_each(|l| *l *= 1.5));
    assert!(
        !report.ok && report.exact == 256 && report.failures[0].contains("rms logit difference"),
        "{:?}",
        report.failures
    );
    // No token at all.
    let golden = Golden::read(&common::golden("llama-gqa-bf16.json")).unwrap();
    let rule = ReducedRule::of(&golden, "bf16", usize::MAX).unwrap();
    let mut judge = FileJudge::new("x", "bf16", rule);
    let p = &golden.runs["f32"].prompts[0];
    assert_eq!(judge.position(p, 0, &vec![f32::NAN; 512], &vec![0.0; 512]), Judgement::Mismatch);
    assert!(!judge.finish().ok);
    assert!(!FileJudge::new("x", "bf16", rule).finish().ok, "an empty comparison is no success");
}

/// Small excused differences at too many positions fail as well.
#[test]
fn too_many_excused_positions_fail() {
    let golden = Golden::read(&common::golden("llama-gqa-bf16.json")).unwrap();
    let rule = ReducedRule {
        not_exact_allowed: 2,
        ..ReducedRule::of(&golden, "bf16", usize::MAX).unwrap()
    };
    let p = &golden.runs["f32"].prompts[0];
    let mut judge = FileJudge::new("x", "bf16", rule);
    for step in 0..3 {
        let [best, second] = p.top2_ids[step];
        let mut float32 = vec![-50.0f32; 512];
        float32[best as usize] = p.top2_logits[step][0];
        float32[second as usize] = p.top2_logits[step][0] - 0.01;
        let mut ours = float32.clone();
        ours[second as usize] = p.top2_logits[step][0] + 0.01;
        assert_eq!(judge.position(p, step, &ours, &float32), Judgement::Excused);
    }
    let report = judge.finish();
    assert_eq!((report.exact, report.excused, report.mismatched), (0, 3, 0));
    assert_eq!(report.failures, ["3 positions are not exact, 2 are allowed"]);
}
