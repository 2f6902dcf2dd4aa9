//! Shares of the SMs from how fast they were.
//!
//! A trace of the device (`amk trace`) says how long each SM took for the same work. An SM that was faster than most
//! gets more rows. Blocks come to lie on multiprocessors in an order that is the device's, so what was measured on one
//! device is worth something on that device alone.

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// Ops of which every SM has about the same, often and much enough that their remainders do not matter.
const ALIKE: [&str; 2] = ["norm_gate_up", "norm_lm_head"];
/// What a digit of [`crate::lower::Knobs::balance`] more or less is worth.
const DIGIT: f64 = 0.02;
/// The digit of an SM that is as fast as the median.
const MIDDLE: f64 = 5.0;
/// By how much differences of speed are exaggerated, and named.
const STRENGTHS: [f64; 3] = [0.5, 1.0, 2.0];

/// Why a trace says nothing of the SMs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BalanceError {
    #[error("the trace is none: it has no list traceEvents; `amk trace` writes one")]
    NoTrace,
    #[error(
        "the trace has no times of {} on SM {sm}, so its speed is not known; trace a schedule that gives every SM work",
        ALIKE.join(" or ")
    )]
    Silent { sm: u64 },
}

/// Speed of each SM over that of the median one, by SM.
///
/// # Errors
/// It is no trace, or an SM is not in it.
pub fn speeds(trace: &Json) -> Result<Vec<f64>, BalanceError> {
    let events = trace["traceEvents"].as_array().ok_or(BalanceError::NoTrace)?;
    let mut taken: BTreeMap<u64, f64> = BTreeMap::new();
    let mut sms = 0;
    for e in events {
        let Some(sm) = e["tid"].as_u64() else { continue };
        sms = sms.max(sm + 1);
        let alike = e["cat"] == "compute" && ALIKE.iter().any(|op| e["name"] == *op);
        if let Some(us) = e["dur"].as_f64().filter(|us| alike && us.is_finite() && *us > 0.0) {
            *taken.entry(sm).or_default() += us;
        }
    }
    if let Some(sm) = (0..sms).find(|sm| !taken.contains_key(sm)) {
        return Err(BalanceError::Silent { sm });
    }
    let mut sorted: Vec<f64> = taken.values().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().ok_or(BalanceError::Silent { sm: 0 })?;
    Ok(taken.values().map(|us| median / us).collect())
}

/// Values of the knob `balance` for these speeds, the weakest first; none where all SMs are alike.
pub fn profiles(speeds: &[f64]) -> Vec<String> {
    let digit = |speed: f64| (MIDDLE + (speed - 1.0) / DIGIT).round().clamp(0.0, 9.0) as u32;
    let mut out: Vec<String> = STRENGTHS
        .iter()
        .map(|strength| {
            let digits = speeds.iter().map(|s| digit(1.0 + strength * (s - 1.0)));
            digits.filter_map(|d| char::from_digit(d, 10)).collect()
        })
        .filter(|text: &String| text.chars().any(|c| c != '5'))
        .collect();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(sm: u64, name: &str, category: &str, us: f64) -> Json {
        json!({ "ph": "X", "tid": sm, "cat": category, "name": name, "dur": us })
    }

    #[test]
    fn who_took_longer_gets_less() {
        let mut events = vec![event(2, "attention", "compute", 900.0)];
        for (sm, us) in [(0, 10.0), (1, 10.2), (2, 9.6), (3, 10.0)] {
            events.push(event(sm, "norm_gate_up", "compute", us));
            events.push(event(sm, "norm_gate_up", "wait", 50.0));
        }
        let found = speeds(&json!({ "traceEvents": events })).unwrap();
        assert!(found[1] < 0.99 && found[2] > 1.03 && (found[0] - 1.0).abs() < 0.01, "{found:?}");
        assert_eq!(profiles(&found), ["5565", "5475", "5395"]);
        assert!(profiles(&[1.0, 1.001, 0.999]).is_empty());
    }

    #[test]
    fn what_is_no_trace_is_said() {
        assert_eq!(speeds(&json!([1, 2])), Err(BalanceError::NoTrace));
        let silent = json!({ "traceEvents": [event(0, "norm_gate_up", "compute", 1.0), event(1, "embed", "compute", 1.0)] });
        assert_eq!(speeds(&silent), Err(BalanceError::Silent { sm: 1 }));
        assert!(speeds(&json!({ "traceEvents": [] })).is_err());
    }
}
