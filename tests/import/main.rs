//! `amk import`: a peer's programs get the verdicts they deserve, or a sentence that says why not.

use std::path::Path;

use amk::import::{Open, import};
use amk::target::resolve;
use amk_validator::{Invariant, check};
use serde_json::{Value, json};

fn read(name: &str) -> Vec<u8> {
    std::fs::read(Path::new("tests/peer").join(format!("{name}.json"))).unwrap()
}

const OPEN: Open = Open { sm_arch: None, sms: None };

/// The invariants with faults, each once.
fn verdict(json: &[u8]) -> Vec<Invariant> {
    let program = import("test", json, &OPEN).unwrap_or_else(|e| panic!("{e}"));
    let mut found: Vec<_> = check(&program, &resolve("h200").unwrap().target)
        .faults
        .iter()
        .map(|f| f.invariant)
        .collect();
    found.dedup();
    found
}

#[test]
fn each_kind_of_fault_is_found() {
    use Invariant::*;
    for (name, wanted) in [
        ("good", vec![]),
        ("list-order", vec![]),
        ("ids-odd", vec![]),
        ("pages", vec![]),
        ("queue-order", vec![D]),
        ("tile-out-of-bounds", vec![B, C]),
        ("half-written", vec![C]),
        ("weight-written", vec![B]),
        ("threshold-too-low", vec![R]),
        ("wait-missing", vec![R]),
        ("threshold-unreachable", vec![S, D]),
        ("page-too-small", vec![O]),
        ("counter-init", vec![S]),
    ] {
        assert_eq!(verdict(&read(name)), wanted, "{name}");
    }
}

#[test]
fn what_cannot_be_expressed_is_refused_with_a_sentence() {
    for (name, says) in [
        ("ids-repeated", "two tasks have the id 2"),
        ("ids-dangling", "task 3 names buffer 99"),
        ("cache", "`kind` of buffer 4 is `kv_cache`"),
    ] {
        let error = import("test", &read(name), &OPEN).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
    let spoilt = |edit: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_slice(&read("good")).unwrap();
        edit(&mut value);
        import("test", value.to_string().as_bytes(), &OPEN).unwrap_err().to_string()
    };
    for (edit, says) in [
        (
            &(|v: &mut Value| v["buffers"][0]["dtype"] = json!("int4")) as &dyn Fn(&mut Value),
            "int4",
        ),
        (&|v| v["buffers"][0]["space"] = json!("cluster"), "cluster"),
        (&|v| v["buffers"][0]["shape"] = json!([1, 1, 1, 1, 1]), "1 to 4 extents"),
        (&|v| v["buffers"][0]["shape"] = json!([-1, 1]), "-1"),
        (&|v| v["tasks"][0]["sm"] = json!(1u64 << 63), "below 4096"),
        (&|v| v["tasks"][0]["params"]["n_off"] = json!(1u64 << 63), "n_off"),
        (&|v| v["tasks"][0]["params"]["N_tile"] = json!("many"), "N_tile"),
        (&|v| v["tasks"][0]["inputs"] = json!([1, 1, 1, 1, 1, 1, 1, 1, 1]), "9 inputs"),
        (&|v| v["tasks"][0]["priority"] = json!(3), "priority"),
        (&|v| v["tasks"] = json!(null), "null"),
    ] {
        let error = spoilt(edit);
        assert!(error.contains(says), "{says}: {error}");
    }
    let good = String::from_utf8(read("good")).unwrap();
    let twice =
        good.replacen("\"params\":", "\"params\": {\"n_off\": 0, \"n_off\": 8}, \"was\":", 1);
    assert_ne!(good, twice);
    let error = import("test", twice.as_bytes(), &OPEN).unwrap_err().to_string();
    assert!(error.contains("the key \"n_off\" is given twice"), "{error}");
    assert!(import("test", b"", &OPEN).is_err());
    assert!(import("test", b"[[[[", &OPEN).is_err());
}

#[test]
fn tasks_without_an_sm_are_dealt_in_turn() {
    let mut value: Value = serde_json::from_slice(&read("good")).unwrap();
    for task in value["tasks"].as_array_mut().unwrap() {
        task.as_object_mut().unwrap().remove("sm");
    }
    let bytes = value.to_string();
    let one = import("test", bytes.as_bytes(), &OPEN).unwrap();
    assert_eq!(one.sms.len(), 1);
    let three = import("test", bytes.as_bytes(), &Open { sms: Some(3), ..OPEN }).unwrap();
    let queues: Vec<Vec<u32>> =
        three.sms.iter().map(|sm| sm.queue.iter().map(|id| id.0).collect()).collect();
    assert_eq!(queues, [vec![0, 3, 4], vec![1, 5], vec![2, 6]]);
    assert!(check(&three, &resolve("h200").unwrap().target).ok);
}

/// A chain of `tasks` over 64 SMs, each task reading the tile of the one before.
fn chain(tasks: usize) -> Value {
    let list: Vec<Value> = (0..tasks)
        .map(|i| {
            let waits = match i {
                0 => json!([]),
                i => json!([{"counter": i - 1, "threshold": 1}]),
            };
            let inputs = if i == 0 { json!([]) } else { json!([i - 1]) };
            json!({"id": i, "op": "matmul", "inputs": inputs, "outputs": [i], "out_counter": i,
                   "waits": waits, "params": {}, "sm": i * 7 % 64})
        })
        .collect();
    let buffers: Vec<Value> = (0..tasks)
        .map(|i| json!({"id": i, "name": "", "kind": "activation", "dtype": "bf16", "shape": [1, 64], "space": "global"}))
        .collect();
    let counters: Vec<Value> = (0..tasks).map(|i| json!({"id": i, "init": 0})).collect();
    json!({"target": {"arch": "sm_90a"}, "buffers": buffers, "counters": counters, "tasks": list})
}

/// No number of tasks is too many for the race proof.
#[test]
fn a_race_among_twelve_thousand_tasks_is_found() {
    let whole = chain(12_000);
    assert_eq!(verdict(whole.to_string().as_bytes()), []);
    for at in [5, 8_500, 11_999] {
        let mut broken = whole.clone();
        broken["tasks"][at]["waits"] = json!([]);
        let found = verdict(broken.to_string().as_bytes());
        assert!(found.contains(&Invariant::R), "task {at}: {found:?}");
    }
}
