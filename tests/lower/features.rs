//! What a model does beyond the plain block is lowered or refused by name, and the docs say which.

use std::path::Path;

use amk::lower::{FEATURES, Knobs, LowerError, Mode, Shape, lower_for};
use amk_models::{Checkpoint, Feature};

use crate::common::{check, target};

#[test]
fn features_without_an_op_are_refused_by_name() {
    for entry in std::fs::read_dir("tests/checkpoints").unwrap() {
        let path = entry.unwrap().path();
        if !path.join("config.json").is_file() {
            continue;
        }
        let checkpoint = Checkpoint::from_folder(&path).unwrap();
        let features = checkpoint.config().features();
        let expected: Vec<Feature> =
            features.into_iter().filter(|f| !FEATURES.contains(f)).collect();
        let shape = Shape::of(&checkpoint);
        let lowered = lower_for(&shape, &target(12), &Knobs::default(), 0, Mode::F32);
        match lowered {
            Ok(lowered) => {
                assert!(expected.is_empty(), "{}: {expected:?} lowered", path.display());
                check(&lowered, &target(12), Mode::F32);
            }
            Err(LowerError::Features { features }) => assert_eq!(features, expected),
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }
}

/// A feature that no op had would be named with its field, and where to go on.
#[test]
fn a_feature_without_an_op_is_named() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let shape =
        Shape { unsupported: vec![Feature::RopeLong, Feature::LogitCap], ..Shape::of(&checkpoint) };
    let lowered = lower_for(&shape, &target(12), &Knobs::default(), 0, Mode::F32);
    assert_eq!(
        lowered.unwrap_err().to_string(),
        "the model has longrope scaling (\"rope_type\"); soft cap of logits (\"final_logit_softcapping\"), which \
         schedules cannot express yet; the CPU reference runs it (`--device cpu`)"
    );
}

#[test]
fn the_docs_mark_what_is_lowered() {
    let page = std::fs::read_to_string(Path::new("docs/families.md")).unwrap();
    for feature in Feature::ALL {
        let marked = page.contains(&format!("| {} * |", feature.describe()));
        assert_eq!(marked, FEATURES.contains(feature), "{feature:?}");
    }
}
