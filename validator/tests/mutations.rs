//! Programs with anything changed anywhere: no panic, the same verdict every time, and the checker
//! never accepts what the validator rejects nor refuses what it accepts.

use std::fs;
use std::path::Path;

use amk_schedule_ir::{Program, text};
use amk_validator::{certify, check, checker};
use proptest::prelude::*;
use serde_json::Value;

mod common;
#[path = "common/llama.rs"]
mod llama;

use llama::{Handover, Shape, llama};

fn bases() -> Vec<Value> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/schedules/accept");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut programs: Vec<Program> =
        files.iter().map(|p| text::parse(&fs::read_to_string(p).unwrap()).unwrap()).collect();
    for handover in [Handover::Packets, Handover::Counters] {
        programs.push(llama(Shape { handover, sms: 2, layers: 1, ..Shape::TINY }));
    }
    programs.iter().map(|p| serde_json::to_value(p).unwrap()).collect()
}

fn count(v: &Value) -> usize {
    1 + match v {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// The `n`-th value inside, in preorder.
fn nth<'v>(v: &'v mut Value, n: &mut usize) -> Option<&'v mut Value> {
    if *n == 0 {
        return Some(v);
    }
    *n -= 1;
    match v {
        Value::Array(items) => items.iter_mut().find_map(|i| nth(i, n)),
        Value::Object(map) => map.values_mut().find_map(|i| nth(i, n)),
        _ => None,
    }
}

const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    5,
    8,
    16,
    33,
    64,
    255,
    1 << 20,
    u32::MAX as u64,
    1 << 40,
    (1 << 40) + 1,
    i64::MAX as u64,
    u64::MAX,
];
const WORDS: [&str; 14] = [
    "plain",
    "packet",
    "local",
    "bf16",
    "f32",
    "u32",
    "key",
    "weight",
    "constant",
    "kv",
    "activation",
    "output",
    "argmax",
    "NaN",
];

fn mutate(v: &mut Value, at: usize, how: usize, other: usize) {
    let total = count(v);
    let Some(here) = nth(v, &mut (at % total)) else { return };
    match here {
        Value::Number(n) => {
            let old = n.as_u64().unwrap_or(0);
            *here = match how % 4 {
                0 => Value::from(old.wrapping_add(1)),
                1 => Value::from(old.wrapping_sub(1)),
                2 => Value::from(NUMBERS[other % NUMBERS.len()]),
                _ => Value::from(-(NUMBERS[other % 12] as i64)),
            };
        }
        Value::String(_) => *here = Value::from(WORDS[other % WORDS.len()]),
        Value::Array(items) if !items.is_empty() => {
            let (i, j) = (other % items.len(), how % items.len());
            match how % 3 {
                0 => drop(items.remove(i)),
                1 => items.swap(i, j),
                _ => items.insert(i, items[j].clone()),
            }
        }
        Value::Bool(b) => *b = !*b,
        Value::Null => *here = Value::from(other as u64 % 3),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_the_checker_agrees(
        base in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<usize>()), 1..4),
    ) {
        thread_local!(static BASES: Vec<Value> = bases());
        let mut value = BASES.with(|b| base.get(b).clone());
        for (at, how, other) in changes {
            mutate(&mut value, at, how, other);
        }
        let Ok(program) = serde_json::from_value::<Program>(value) else { return Ok(()) };
        let target = common::target();
        let report = check(&program, &target);
        prop_assert_eq!(&report, &check(&program, &target));
        if let Some(certificate) = certify(&program) {
            let checked = checker::check(&program, &target, &certificate);
            prop_assert_eq!(report.ok, checked.is_ok(), "{:?}\n{:?}\n{}", report.faults, checked, text::print(&program));
        } else {
            prop_assert!(!report.ok);
        }
    }
}
