//! Every knob of the space changes the program or the kernel's text; every schedule parameter is in the space or fixed
//! by use.

use std::collections::BTreeSet;

use amk::lower::{Knobs, Mode, Shape, Sizes};
use amk::search::{
    FIXED, PRESETS, Subject, cost_model, knobs_of, point_of, preset, profiles, space, speeds,
};
use amk::target::resolve;
use amk_autoresearch::Value;
use amk_schedule_ir::{DType, Target};

/// Groups of three heads, an odd width, positions enough for splits, and few enough SMs that each has several tiles.
fn subject(target: &str, position: u64) -> Subject {
    let sizes = Sizes {
        hidden: 96,
        layers: 2,
        heads: 6,
        kv_heads: 2,
        head_dim: 16,
        inner: 200,
        vocab: 300,
        max_positions: 2048,
        eps: 1e-5,
        scale: 0.25,
    };
    let shape = Shape::llama("search", sizes, true, DType::Bf16);
    let target = Target { sm_count: 6, ..resolve(target).unwrap().target };
    let mut subject =
        Subject::new("search".to_owned(), shape, target, Mode::Bf16, position).unwrap();
    subject.balance = profiles(&[1.0, 1.02, 0.97, 1.0, 1.0, 1.04]);
    subject
}

#[test]
fn two_values_of_every_knob_give_two_programs() {
    let cost = cost_model();
    for (target, position) in [("h200", 16), ("sm_120", 1024)] {
        let subject = subject(target, position);
        let space = space(&subject);
        // Two splits and small chunks, so that every class of edge exists and windows and rings bind.
        let base = space.default_point().with("splits", 2).with("slot_bytes", 1024);
        let body =
            |point: &amk_autoresearch::Point| subject.make(point, &*cost).map(|m| m.prepared.body);
        for knob in &space.knobs {
            let n = knob.domain.len();
            let bodies: BTreeSet<String> = (0..n.min(12))
                .filter_map(|i| knob.domain.at(i))
                .filter_map(|value| {
                    let mut point = base.clone();
                    point.0.insert(knob.name.clone(), value);
                    body(&point).ok()
                })
                .collect();
            assert!(bodies.len() > 1, "{} changes nothing on {target}", knob.name);
        }
    }
}

#[test]
fn every_schedule_parameter_is_a_knob_or_fixed_by_use() {
    let space = space(&subject("h200", 1024));
    let mut known: BTreeSet<&str> = space.knobs.iter().map(|k| k.name.as_str()).collect();
    known.extend(FIXED);
    let json = serde_json::to_value(Knobs::default()).unwrap();
    let mut names = BTreeSet::new();
    for (name, value) in json.as_object().unwrap() {
        match value.as_object() {
            Some(inner) => names.extend(inner.keys().map(|k| format!("{name}.{k}"))),
            None => drop(names.insert(name.clone())),
        }
    }
    assert_eq!(known, names.iter().map(String::as_str).collect());
}

#[test]
fn points_and_parameters_are_two_forms_of_one_thing() {
    let space = space(&subject("h200", 16));
    for name in PRESETS {
        let point = preset(name, &space).unwrap();
        assert!(space.complete(&point).is_ok(), "{name}");
        assert_eq!(space.complete(&point_of(&knobs_of(&point).unwrap())).unwrap(), point, "{name}");
    }
    assert!(preset("best", &space).is_none());
    assert!(knobs_of(&space.default_point().with("tokens", 2)).is_err());
    assert!(knobs_of(&space.default_point().with("text", 1)).unwrap_err().contains("text"));
}

/// The naive start is what it says: counters, no split, as much in flight as the ring holds.
#[test]
fn the_naive_start_is_naive() {
    let subject = subject("h200", 1024);
    let space = space(&subject);
    let knobs = knobs_of(&preset("naive", &space).unwrap()).unwrap();
    assert_eq!((knobs.rotation, knobs.splits, knobs.unit_stride), (0, Some(1), Some(1)));
    let made = subject.make(&preset("naive", &space).unwrap(), &*cost_model()).unwrap();
    let program = made.program.get();
    assert!(!program.counters.is_empty());
    let default = subject.make(&space.default_point(), &*cost_model()).unwrap();
    assert!(made.prepared.prediction.us > default.prepared.prediction.us);
    assert_eq!(point_of(&knobs).get("edges.hidden"), Some(&Value::word("counter")));
}

/// A trace of an H200 says how fast its SMs were; the faster ones get the remainders.
#[test]
fn measured_speeds_become_shares() {
    let event = |sm: u64, us: f64| serde_json::json!({ "tid": sm, "cat": "compute", "name": "norm_lm_head", "dur": us });
    let events: Vec<_> = [10.0, 10.5, 9.6, 10.0, 9.9, 10.1]
        .into_iter()
        .enumerate()
        .map(|(s, us)| event(s as u64, us))
        .collect();
    let mut subject = subject("h200", 16);
    subject.balance = profiles(&speeds(&serde_json::json!({ "traceEvents": events })).unwrap());
    let space = space(&subject);
    assert_eq!(subject.balance.len(), 3);
    let make = |point: &amk_autoresearch::Point| subject.make(point, &*cost_model()).unwrap();
    let rows = |made: &amk::search::Made| -> Vec<u64> {
        let program = made.program.get();
        let of = |sm: &amk_schedule_ir::program::Sm| {
            sm.stream
                .iter()
                .map(|r| match r.source {
                    amk_schedule_ir::program::RunSource::Weight { lo, hi, .. } => hi - lo,
                    _ => 0,
                })
                .sum()
        };
        program.sms.iter().map(of).collect()
    };
    let alike = rows(&make(&space.default_point()));
    let last = subject.balance.last().unwrap();
    let shared = rows(&make(&space.default_point().with("balance", Value::word(last))));
    assert!(shared[2] > alike[2] && shared[1] < alike[1], "{alike:?} {shared:?}");
    assert_eq!(alike.iter().sum::<u64>(), shared.iter().sum::<u64>());
}

/// Templates that failed their test are no choice.
#[test]
fn what_failed_its_test_is_not_in_the_space() {
    let mut subject = subject("h200", 16);
    assert!(space(&subject).knob("variants.sum").is_some());
    subject.refused = vec![("sum".to_owned(), "pairs".to_owned())];
    assert!(space(&subject).knob("variants.sum").is_none());
}
