//! Rotary frequencies equal those of HuggingFace transformers, for every kind of scaling.

use crate::common;
use amk_models::ModelConfig;
use serde_json::Value;

/// Distance of two positive floats in units of the last place.
fn ulps(a: f32, b: f32) -> u32 {
    a.to_bits().abs_diff(b.to_bits())
}

fn float(v: &Value) -> f32 {
    f32::from_bits(v.as_i64().unwrap() as u32)
}

#[test]
fn frequencies_are_huggingfaces() {
    let text = std::fs::read_to_string(common::golden("rope.json")).unwrap();
    let table: Value = serde_json::from_str(&text).unwrap();
    let cases = table["cases"].as_array().unwrap();
    assert!(cases.len() > 100);
    let mut kinds = std::collections::BTreeSet::new();
    for case in cases {
        let config =
            ModelConfig::from_slice("config.json", case["config"].to_string().as_bytes()).unwrap();
        let rope = match case["layer_type"].as_str() {
            Some("sliding_attention") => config.local_rope.as_ref().unwrap(),
            _ => &config.rope,
        };
        kinds.insert(rope.scaling.name());
        let length = case["length"].as_u64().unwrap() as usize;
        let found = rope.table(config.head_dim, length);
        let expected_freq: Vec<f32> =
            case["inv_freq"].as_array().unwrap().iter().map(float).collect();
        assert_eq!(found.inv_freq.len(), expected_freq.len());
        // HuggingFace's float32 powers are an ulp off themselves. Two formulas magnify that: the smooth passage of
        // llama3, and powers of a base that grew with the sequence.
        let grown = rope.scaling.name() == "dynamic" && length > config.max_position_embeddings;
        let plain = amk_models::Rope { scaling: amk_models::RopeScaling::Default, ..rope.clone() };
        let plain = plain.inv_freq(config.head_dim);
        let allowed = |i: usize, found: f32| match rope.scaling {
            amk_models::RopeScaling::Llama3 { factor, .. }
                if found != plain[i] && found != plain[i] / factor as f32 =>
            {
                3
            }
            _ if grown => 2,
            _ => 1,
        };
        for (i, (a, b)) in found.inv_freq.iter().zip(&expected_freq).enumerate() {
            assert!(
                ulps(*a, *b) <= allowed(i, *a),
                "{}: frequency {i}: {a:e} and {b:e}",
                case["config"]
            );
        }
        assert!(ulps(found.scale, float(&case["scale"])) <= 1, "{}", case["config"]);
        for at in case["at"].as_array().unwrap() {
            // An angle is wrong by as many times an ulp of the frequency as the position has.
            let position = at["position"].as_u64().unwrap() as usize;
            let (cos, sin) = found.cos_sin(position);
            for (found, expected) in [(&cos, &at["cos"]), (&sin, &at["sin"])] {
                for (i, e) in expected.as_array().unwrap().iter().enumerate() {
                    let angle = position as f64 * f64::from(expected_freq[i]);
                    let allowed = 2e-5 + 2.4e-7 * angle;
                    let far = (f64::from(found[i]) - e.as_f64().unwrap()).abs();
                    assert!(far <= allowed, "{}: position {position}: {far}", case["config"]);
                }
            }
        }
    }
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        ["default", "dynamic", "linear", "llama3", "longrope", "yarn"]
    );
}
