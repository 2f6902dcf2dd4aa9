//! One line of a benchmark, as JSON.

use serde::Serialize;

use super::Samples;
use super::stats::{Ratio, Summary, median, ratio, summary};
use super::system::Look;
use crate::selftest::Verdict;

/// Confidence of intervals.
const CONFIDENCE: f64 = 0.95;

/// What was measured at one position. Times are microseconds per token, of whole tokens: embedding to argmax.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Model, arithmetic, position, steps of a launch.
    pub work: String,
    pub model: String,
    pub mode: &'static str,
    pub position: u64,
    /// Steps of one launch.
    pub steps: u64,
    /// Positions of one step.
    pub tokens: u64,
    pub device: String,
    pub driver: String,
    /// Of the source that made the program, where it was told.
    pub commit: Option<String>,
    pub amk: &'static str,
    pub compiler: String,
    pub program_hash: String,
    pub us_median: f64,
    pub us_p10: f64,
    pub us_p90: f64,
    pub tokens_per_second: f64,
    /// Packed weight bytes and the cache's bytes up to the position.
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    /// The fastest plain read of that many bytes.
    pub ceiling_us: f64,
    pub ceiling_way: String,
    pub percent_of_ceiling: f64,
    /// Bytes over time, 10^9 bytes a second.
    pub gb_per_second: f64,
    /// How many times longer the CUDA-graphed baseline takes; paired by round.
    pub ratio_to_graph: Option<f64>,
    pub ratio_interval: Option<[f64; 2]>,
    pub ratio_to_compile: Option<f64>,
    pub ratio_to_compile_interval: Option<[f64; 2]>,
    pub baselines: Vec<BaselineRow>,
    /// The self-test's verdict on this very image; null where it was left out.
    pub correct: Option<bool>,
    pub self_test: Option<Verdict>,
    /// Which stored schedules the engine runs, and where they come from, or why one was left out: a sentence each.
    pub stored: Vec<String>,
    pub rounds: usize,
    /// Launches of one sample.
    pub batch: usize,
    /// While it was measured.
    pub clocks: Option<Look>,
}

/// A baseline's own figures.
#[derive(Clone, Debug, Serialize)]
pub struct BaselineRow {
    pub name: String,
    #[serde(flatten)]
    pub summary: Summary,
    /// Over ours, by round.
    pub ratio: Option<Ratio>,
    /// What the script says of itself: versions, how long preparing took.
    pub about: serde_json::Value,
}

/// Bytes the ceiling reads, and everything else the row is about.
pub struct Facts {
    pub model: String,
    pub mode: &'static str,
    pub position: u64,
    pub steps: u64,
    pub tokens: u64,
    pub device: String,
    pub driver: String,
    pub commit: Option<String>,
    pub compiler: String,
    pub program_hash: String,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    pub verdict: Option<Verdict>,
    /// See [`Row::stored`].
    pub stored: Vec<String>,
    pub batch: usize,
    pub clocks: Option<Look>,
    /// By name of baseline.
    pub about: Vec<(String, serde_json::Value)>,
}

impl Row {
    /// Sums up samples: `ours` first, then plain reads (names beginning with `read`), then baselines by name.
    pub fn new(facts: Facts, samples: &[Samples]) -> Row {
        let none = Samples { name: String::new(), us: Vec::new() };
        let ours = samples.first().unwrap_or(&none);
        let (reads, others): (Vec<&Samples>, Vec<&Samples>) =
            samples.iter().skip(1).partition(|s| s.name.starts_with("read"));
        let ceiling = reads
            .iter()
            .map(|s| (median(&s.us), s.name.clone()))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::NAN, String::new()));
        let s = summary(&ours.us);
        let baselines: Vec<BaselineRow> = others
            .iter()
            .enumerate()
            .map(|(i, o)| BaselineRow {
                name: o.name.clone(),
                summary: summary(&o.us),
                ratio: ratio(&o.us, &ours.us, CONFIDENCE, 17 + i as u64),
                about: facts
                    .about
                    .iter()
                    .find(|(name, _)| *name == o.name)
                    .map_or(serde_json::Value::Null, |(_, v)| v.clone()),
            })
            .collect();
        let of = |name: &str| baselines.iter().find(|b| b.name == name).and_then(|b| b.ratio);
        let (graph, compile) = (of("graph"), of("compile"));
        let bytes = (facts.weight_bytes + facts.kv_bytes) as f64;
        Row {
            work: format!(
                "{} {} position {}, {} a launch",
                facts.model,
                facts.mode,
                facts.position,
                match (facts.steps, facts.tokens) {
                    (1, 1) => "1 token".to_owned(),
                    (n, 1) => format!("{n} tokens"),
                    (_, m) => format!("{m} positions of a prompt"),
                }
            ),
            model: facts.model,
            mode: facts.mode,
            position: facts.position,
            steps: facts.steps,
            tokens: facts.tokens,
            device: facts.device,
            driver: facts.driver,
            commit: facts.commit,
            amk: env!("CARGO_PKG_VERSION"),
            compiler: facts.compiler,
            program_hash: facts.program_hash,
            us_median: s.median,
            us_p10: s.p10,
            us_p90: s.p90,
            tokens_per_second: 1e6 / s.median * facts.tokens as f64,
            weight_bytes: facts.weight_bytes,
            kv_bytes: facts.kv_bytes,
            ceiling_us: ceiling.0,
            ceiling_way: ceiling.1,
            percent_of_ceiling: 100.0 * ceiling.0 / s.median,
            gb_per_second: bytes / s.median / 1e3,
            ratio_to_graph: graph.map(|r| r.median),
            ratio_interval: graph.map(|r| [r.low, r.high]),
            ratio_to_compile: compile.map(|r| r.median),
            ratio_to_compile_interval: compile.map(|r| [r.low, r.high]),
            baselines,
            correct: facts.verdict.as_ref().map(|v| v.findings.ok),
            self_test: facts.verdict,
            stored: facts.stored,
            rounds: ours.us.len(),
            batch: facts.batch,
            clocks: facts.clocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts() -> Facts {
        Facts {
            model: "m".into(),
            mode: "bf16",
            position: 16,
            steps: 1,
            tokens: 1,
            device: "d".into(),
            driver: "580".into(),
            commit: None,
            compiler: "NVRTC 13.0".into(),
            program_hash: "ab".into(),
            weight_bytes: 2_000_000,
            kv_bytes: 400_000,
            stored: vec!["positions 0 to 255: the schedule of entry 3".to_owned()],
            verdict: None,
            batch: 10,
            clocks: None,
            about: vec![("graph".into(), json!({ "torch": "2.11" }))],
        }
    }

    #[test]
    fn figures_follow_from_the_samples() {
        let row = |name: &str, us: &[f64]| Samples { name: name.into(), us: us.to_vec() };
        let samples = [
            row("amk", &[600.0, 610.0, 590.0]),
            row("read a", &[560.0, 570.0, 550.0]),
            row("read b", &[540.0, 545.0, 535.0]),
            row("graph", &[1800.0, 1830.0, 1770.0]),
        ];
        let r = Row::new(facts(), &samples);
        assert_eq!((r.us_median, r.rounds), (600.0, 3));
        assert_eq!((r.ceiling_us, r.ceiling_way.as_str()), (540.0, "read b"));
        assert!((r.percent_of_ceiling - 90.0).abs() < 1e-9);
        assert!((r.gb_per_second - 4.0).abs() < 1e-9);
        assert_eq!(r.ratio_to_graph, Some(3.0));
        assert_eq!(r.ratio_interval, Some([3.0, 3.0]));
        assert_eq!(r.ratio_to_compile, None);
        assert_eq!(r.correct, None);
        let text = serde_json::to_value(&r).unwrap();
        assert_eq!(text["baselines"][0]["about"]["torch"], "2.11");
        for field in [
            "work",
            "stored",
            "device",
            "commit",
            "us_median",
            "us_p10",
            "us_p90",
            "ceiling_us",
            "percent_of_ceiling",
            "ratio_to_graph",
            "ratio_interval",
            "correct",
        ] {
            assert!(text.get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn a_row_without_a_ceiling_or_baseline_is_a_row() {
        let r = Row::new(facts(), &[Samples { name: "amk".into(), us: vec![5.0] }]);
        assert!(r.ceiling_us.is_nan() && r.baselines.is_empty());
        // NaN is null in JSON.
        assert!(serde_json::to_value(&r).unwrap()["ceiling_us"].is_null());
    }
}
