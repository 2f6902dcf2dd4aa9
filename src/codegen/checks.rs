//! Limits of the templates that depend on several numbers of a program at once.

use amk_schedule_ir::{Area, Program};

use super::error::CodegenError;

/// Where the control area holds the sums of squares: two sets of one float32 per position and consumer
/// warp (`square_sums` in `templates/ops/linear.cu.j2`).
pub(super) const SQUARES_AT: u64 = 64;
/// Where it holds the place and number of the SM's instructions (`Queue` in `templates/megakernel.cu.j2`), 16 bytes.
#[cfg(test)]
const QUEUE_AT: u64 = 16;
/// Where it holds one 64-bit argmax key per consumer warp (`templates/ops/norm_lm_head.cu.j2`); the sums
/// must end before.
pub(super) const KEYS_AT: u64 = 2048;

/// Refuses programs whose epochs go round more than once in a launch, or whose control area is too small
/// for what the templates keep in it.
pub(super) fn check(program: &Program) -> Result<(), CodegenError> {
    epochs(program)?;
    control(program)
}

/// `packet_tag` takes the number of tags off an epoch once: `base < tags`, so what a launch adds to it
/// may be `tags` at most.
fn epochs(program: &Program) -> Result<(), CodegenError> {
    let (steps, e) = (program.max_steps, program.epochs);
    match steps.checked_mul(u64::from(e.per_step)).is_some_and(|n| n <= e.tags) {
        true => Ok(()),
        false => Err(CodegenError::EpochWrap { steps, per_step: e.per_step, tags: e.tags }),
    }
}

fn control(program: &Program) -> Result<(), CodegenError> {
    let warps = u64::from(program.resources.consumer_warps);
    let squares = SQUARES_AT + 2 * 4 * u64::from(program.tokens) * warps;
    let area = program.resources.shared.iter().find(|s| s.area == Area::Control);
    let bytes = area.map_or(0, |s| s.bytes);
    let refuse = |what, end, room| {
        let (tokens, warps) = (program.tokens, program.resources.consumer_warps);
        Err(CodegenError::ControlArea { what, tokens, warps, end, room })
    };
    if squares > KEYS_AT {
        return refuse("sums of squares", squares, KEYS_AT);
    }
    let keys = KEYS_AT + 8 * warps;
    match keys > bytes {
        true => refuse("argmax keys", keys, bytes),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{KEYS_AT, QUEUE_AT, SQUARES_AT};

    /// Offsets in the control area that the templates name.
    #[test]
    fn the_templates_use_these_offsets_and_no_others() {
        let mut found = std::collections::BTreeSet::new();
        for (_, text) in crate::codegen::templates() {
            for (at, name) in text.match_indices("CONTROL_AT + ") {
                let digits = text[at + name.len()..].split(|c: char| !c.is_ascii_digit());
                found.insert(digits.into_iter().next().unwrap().parse::<u64>().unwrap());
            }
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [QUEUE_AT, SQUARES_AT, KEYS_AT]);
    }
}
