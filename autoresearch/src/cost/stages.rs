//! Stamps gathered by stage.

use std::collections::BTreeMap;

use amk_schedule_ir::{BufferId, Program};
use serde::Serialize;

use super::simulate::Stamp;

/// A stage of a step: the instructions of one op that write the same buffer last. Medians are over the SMs that take
/// part, microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageTimes {
    pub op: &'static str,
    /// Name of the buffer.
    pub label: String,
    pub instructions: usize,
    /// First instruction reached, last one ended.
    pub start_us: f64,
    pub end_us: f64,
    /// From reaching the instruction to having its input.
    pub input_us: f64,
    /// From there to the last product.
    pub products_us: f64,
    /// From there to having published.
    pub publish_us: f64,
}

/// The stages of a simulated step, in the order in which the program lists them.
pub fn stage_times(program: &Program, stamps: &[Stamp]) -> Vec<StageTimes> {
    let mut order: BTreeMap<(&'static str, Option<BufferId>), (u32, Vec<&Stamp>)> = BTreeMap::new();
    for stamp in stamps {
        let Some(i) = program.instructions.get(stamp.instruction as usize) else { continue };
        let key = (i.op.name(), i.writes.last().map(|a| a.buffer));
        let (first, of) = order.entry(key).or_insert((u32::MAX, Vec::new()));
        *first = (*first).min(stamp.instruction);
        of.push(stamp);
    }
    let mut found: Vec<_> = order.into_iter().collect();
    found.sort_by_key(|(_, (first, _))| *first);
    let stage =
        |((op, made), (_, stamps)): ((&'static str, Option<BufferId>), (u32, Vec<&Stamp>))| {
            let each = |f: fn(&Stamp) -> f64| median(stamps.iter().map(|s| f(s)).collect());
            StageTimes {
                op,
                label: made
                    .and_then(|b| program.buffer(b))
                    .map_or(op, |b| b.name.as_str())
                    .to_owned(),
                instructions: stamps.len(),
                start_us: stamps.iter().map(|s| s.begin).fold(f64::INFINITY, f64::min),
                end_us: stamps.iter().map(|s| s.end).fold(0.0, f64::max),
                input_us: each(|s| s.ready - s.begin),
                products_us: each(|s| s.products - s.ready),
                publish_us: each(|s| s.end - s.products),
            }
        };
    found.into_iter().map(stage).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
