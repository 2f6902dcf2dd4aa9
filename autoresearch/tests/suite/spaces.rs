//! Spaces and points.

use amk_autoresearch::*;

use crate::common::space;

#[test]
fn every_value_of_a_domain_is_at_its_own_index() {
    for knob in space().knobs {
        let n = knob.domain.len();
        assert!(n > 1, "{}", knob.name);
        for i in 0..n {
            let value = knob.domain.at(i).unwrap();
            assert!(knob.domain.has(&value), "{} {value}", knob.name);
            assert_eq!(knob.domain.index(&value), Some(i), "{} {value}", knob.name);
        }
        assert_eq!(knob.domain.at(n), None);
        assert!(knob.domain.has(&knob.default), "{}", knob.name);
    }
    let odd = Domain::Range { low: 500, high: 2100, step: 512, auto: true };
    let all: Vec<Value> = (0..odd.len()).map(|i| odd.at(i).unwrap()).collect();
    assert_eq!(all, [Value::Auto, 512.into(), 1024.into(), 1536.into(), 2048.into()]);
}

#[test]
fn a_point_is_completed_or_every_fault_is_named() {
    let space = space();
    let whole = space.complete(&Point::default()).unwrap();
    assert_eq!(whole, space.default_point());
    let named = space.complete(&Point::default().with("warps", 4)).unwrap();
    assert_eq!(named.id(), whole.id(), "a default named is a default");
    let bad = Point::default().with("warps", 0).with("no", 1).with("slots", 513);
    assert_eq!(space.complete(&bad).unwrap_err().len(), 3);
    let text: Point = serde_json::from_str(r#"{"window": null, "edges.a": "counter"}"#).unwrap();
    assert!(space.complete(&text).is_ok());
}

#[test]
fn the_schema_says_what_complete_takes() {
    let schema = space().schema();
    let properties = schema["properties"].as_object().unwrap();
    assert_eq!(properties.len(), space().knobs.len());
    assert_eq!(properties["edges.a"]["enum"][1], "counter");
    assert_eq!(properties["window"]["type"][1], "null");
    assert_eq!(properties["slots"]["multipleOf"], 512);
    assert_eq!(schema["additionalProperties"], false);
}

/// A candidate with claims beside its knobs is none.
#[test]
fn claims_are_no_part_of_a_candidate() {
    let text = r#"{"knobs": {}, "us": 1.0, "decision": "kept"}"#;
    assert!(serde_json::from_str::<Candidate>(text).unwrap_err().to_string().contains("us"));
    let text = r#"{"knobs": {"warps": 1.5}}"#;
    assert!(serde_json::from_str::<Candidate>(text).is_err());
}
