//! Op variants alone on the device, before a campaign may use them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use amk_autoresearch::{Job, Point, Refusal, Stage, Value, Verdict};

use super::child::{Program, ask};
use super::request::{POSITION, Reply, Request, Task};
use crate::codegen::{OP_VARIANTS, OpVariant, op_variants};

/// The variants that fail on the device behind `program`, with the reason: each runs in the embedded model, which is
/// otherwise as by default, and must pass the self-test there, as an image of any candidate must. Only what the variant is to
/// blame for counts, not a process that crashed for another reason.
pub fn failing(
    program: &Program,
    base: &Request,
    limit: Duration,
    stop: &AtomicBool,
) -> Vec<(&'static OpVariant, String)> {
    let usual = |v: &OpVariant| op_variants(v.op).next().is_some_and(|first| first.name == v.name);
    let failed = |v: &'static OpVariant| {
        let candidate = Point::default().with(&format!("variants.{}", v.op), Value::word(v.name));
        let job = Job {
            candidate,
            incumbent: Point::default(),
            min_rounds: 1,
            max_rounds: 1,
            threshold: 0.0,
            alpha: 0.5,
        };
        let request = Request {
            model: None,
            shape_only: None,
            position: POSITION,
            balance: Vec::new(),
            task: Task::Measure { job },
            ..base.clone()
        };
        let refusal = match ask(program, &request, Stage::SelfTest, limit, stop) {
            Ok(Reply::Refused { refusal }) | Err(refusal) => refusal,
            Ok(_) => return None,
        };
        let blamed = matches!(
            &refusal,
            Refusal::Rejected {
                stage: Stage::Lower
                    | Stage::Validate
                    | Stage::Render
                    | Stage::Compile
                    | Stage::Spills
                    | Stage::SelfTest,
                ..
            }
        );
        blamed.then(|| (v, Verdict::from(refusal).reason()))
    };
    OP_VARIANTS.iter().filter(|v| !usual(v)).filter_map(failed).collect()
}
