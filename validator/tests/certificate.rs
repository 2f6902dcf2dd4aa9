//! The checker accepts the certificate of everything that is accepted, refuses whatever evidence there
//! is for what is rejected, and refuses every certificate with one field changed.

use std::fs;
use std::path::Path;

use amk_schedule_ir::{Bound, InstrId, Program, text};
use amk_validator::checker::{self, Refusal};
use amk_validator::{Certificate, certify, check, validate};
use serde_json::Value;

mod common;
#[path = "common/llama.rs"]
mod llama;

use llama::{Handover, Shape, llama};

fn schedules(folder: &str) -> Vec<(String, Program)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/schedules").join(folder);
    fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|x| x == "sched"))
        .map(|p| (p.display().to_string(), text::parse(&fs::read_to_string(&p).unwrap()).unwrap()))
        .collect()
}

#[test]
fn what_is_accepted_is_certified() {
    let target = common::target();
    let shapes = [Handover::Packets, Handover::Counters].into_iter().flat_map(|handover| {
        [1, 2, 7].map(|sms| {
            let shape = Shape { handover, sms, layers: 3, ..Shape::TINY };
            (format!("{shape:?}"), llama(shape))
        })
    });
    for (name, program) in schedules("accept").into_iter().chain(shapes) {
        let valid = validate(program, &target).unwrap_or_else(|e| panic!("{name}: {e}"));
        let certificate = valid.certificate();
        checker::check(&valid, &target, &certificate).unwrap_or_else(|e| panic!("{name}: {e}"));
        let json = serde_json::to_string(&certificate).unwrap();
        assert_eq!(serde_json::from_str::<Certificate>(&json).unwrap(), certificate);
    }
}

#[test]
fn what_is_rejected_has_no_certificate() {
    let target = common::target();
    let mut by_evidence = 0;
    for (name, program) in schedules("reject") {
        let Some(certificate) = certify(&program) else { continue };
        let refusal = checker::check(&program, &target, &certificate).expect_err(&name);
        by_evidence += usize::from(!matches!(refusal, Refusal::Program(_)));
    }
    assert!(by_evidence >= 15, "only {by_evidence} were refused for their evidence");
}

/// Every place of a JSON value where something can be changed.
fn leaves(v: &Value, at: &mut Vec<String>, out: &mut Vec<String>) {
    let here = || at.iter().map(|p| format!("/{p}")).collect::<String>();
    match v {
        Value::Array(items) => {
            out.push(here());
            for (i, item) in items.iter().enumerate() {
                at.push(i.to_string());
                leaves(item, at, out);
                at.pop();
            }
        }
        Value::Object(map) => {
            for (k, item) in map {
                at.push(k.clone());
                leaves(item, at, out);
                at.pop();
            }
        }
        _ => out.push(here()),
    }
}

/// The changed values of one place.
fn changes(v: &Value) -> Vec<Value> {
    match v {
        Value::Number(n) => match n.as_u64() {
            Some(n) => [n.checked_add(1), n.checked_sub(1), Some(0), Some(1 << 40)]
                .into_iter()
                .flatten()
                .filter(|&m| m != n)
                .map(Value::from)
                .collect(),
            None => vec![Value::from(0)],
        },
        Value::String(s) => {
            let flip = |c: char| if c == '0' { '1' } else { '0' };
            let changed = s.chars().take(1).map(flip).chain(s.chars().skip(1)).collect::<String>();
            vec![Value::from(changed), Value::from("")]
        }
        Value::Array(items) if !items.is_empty() => {
            let (mut shorter, mut longer, mut turned) =
                (items.clone(), items.clone(), items.clone());
            shorter.pop();
            longer.push(items[0].clone());
            turned.reverse();
            let mut out = vec![Value::from(shorter), Value::from(longer)];
            if turned != *items {
                out.push(Value::from(turned));
            }
            out
        }
        _ => Vec::new(),
    }
}

fn refused_when_changed(program: Program) {
    let target = common::target();
    let valid = validate(program, &target).unwrap();
    let value = serde_json::to_value(valid.certificate()).unwrap();
    let mut places = Vec::new();
    leaves(&value, &mut Vec::new(), &mut places);
    assert!(places.len() > 20);
    let mut tried = 0;
    for place in places {
        for change in changes(value.pointer(&place).unwrap()) {
            let mut other = value.clone();
            *other.pointer_mut(&place).unwrap() = change;
            // What does not even read is refused as well.
            if let Ok(certificate) = serde_json::from_value::<Certificate>(other) {
                tried += 1;
                assert!(checker::check(&valid, &target, &certificate).is_err(), "{place} changed");
            }
        }
    }
    assert!(tried > 20);
}

#[test]
fn every_changed_field_is_refused() {
    for file in ["r-threshold", "d-missed-epoch", "c-append", "residual-chain", "llama-layer"] {
        let all = schedules("accept");
        let (_, program) =
            all.into_iter().find(|(name, _)| name.ends_with(&format!("/{file}.sched"))).unwrap();
        refused_when_changed(program);
    }
}

/// Changes that leave the digest right, so that the proof itself has to fail.
#[test]
fn wrong_evidence_with_a_right_digest_is_refused() {
    let target = common::target();
    let shape = Shape { handover: Handover::Counters, sms: 3, ..Shape::TINY };
    let valid = validate(llama(shape), &target).unwrap();
    let good = valid.certificate();
    type Change = (&'static str, fn(&mut Certificate));
    let changes: [Change; 9] = [
        ("order of a queue", |c| c.order.swap(0, 1)),
        ("an instruction left out", |c| c.order.truncate(c.order.len() - 1)),
        ("an instruction too early", |c| {
            let last = c.order.pop().unwrap();
            c.order.insert(0, last);
        }),
        ("an unknown instruction", |c| c.order.push(InstrId(u32::MAX))),
        ("a limit too low", |c| c.counters[0][0].without = 0),
        ("a limit too high", |c| c.counters[0].iter_mut().for_each(|l| l.without = 1 << 40)),
        ("a limit left out", |c| c.counters[0].truncate(1)),
        ("a grid left out", |c| drop(c.grids.pop())),
        ("a cut left out", |c| {
            let cuts = c.grids.iter_mut().flat_map(|g| &mut g.parts).flat_map(|p| &mut p.cuts);
            let longest = cuts.max_by_key(|c| c.len()).unwrap();
            longest.retain({
                let gone = longest[1];
                move |&c| c != gone
            });
        }),
    ];
    for (name, change) in changes {
        let mut c = good.clone();
        change(&mut c);
        if name == "order of a queue" {
            // Two instructions of one SM.
            c = good.clone();
            let queue = &valid.sms[0].queue;
            let at = |id| c.order.iter().position(|&x| x == id).unwrap();
            let (a, b) = (at(queue[0]), at(queue[1]));
            c.order.swap(a, b);
        }
        c.digest = c.sum();
        let refusal = checker::check(&valid, &target, &c).expect_err(name);
        assert!(!matches!(refusal, Refusal::Damaged { .. }), "{name}");
    }
    let mut crossed = good.clone();
    let cuts = &mut crossed.grids[0].parts[0].cuts;
    cuts.iter_mut().for_each(|c| c.push(Bound::At(0)));
    crossed.digest = crossed.sum();
    assert!(matches!(checker::check(&valid, &target, &crossed), Err(Refusal::Grid { .. })));
    let other = llama(Shape { layers: 1, ..shape });
    assert!(check(&other, &target).ok);
    assert!(matches!(checker::check(&other, &target, &good), Err(Refusal::OtherProgram { .. })));
}
