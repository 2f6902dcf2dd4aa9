//! Rotary tables on the device, kept as the sequence at hand wants them.

use amk_models::ModelConfig;

use super::{Engine, EngineError, STEPS_CAP, constant_bytes};
use crate::decode::{LaunchOptions, LaunchPlan, next_launch};
use crate::lowered::{Lowered, Recipe};
use crate::rotary::{RotaryTable, SequenceRope};

/// The tables of a model whose frequencies depend on the sequence.
pub(super) struct Rotary {
    pub sequence: SequenceRope,
    tables: Vec<Place>,
}

/// A table in the engine's memory.
struct Place {
    table: RotaryTable,
    rows: u64,
    /// Bytes of a row.
    row: u64,
    at: u64,
    dtype: amk_schedule_ir::DType,
}

impl Engine {
    /// Tells the engine which of its constants are rotary tables, and by what they are made. `lowered` is its first
    /// program's. The tables must be as `RecipeData` makes them to begin with.
    pub fn rotate_by(&mut self, lowered: &Lowered, config: &ModelConfig) {
        let Some(first) = self.programs.first() else { return };
        let Some(sequence) = SequenceRope::new(config) else { return };
        let arena = first.launchable.arena();
        let place = |(i, recipe): (usize, &Option<Recipe>)| {
            let rope = match recipe {
                Some(Recipe::Rope) => &config.rope,
                Some(Recipe::LocalRope) => config.local_rope.as_ref().unwrap_or(&config.rope),
                _ => return None,
            };
            let buffer = lowered.program.buffers.get(i).filter(|_| rope.depends_on_length())?;
            let &[rows, width] = buffer.shape.as_slice() else { return None };
            Some(Place {
                table: RotaryTable::new(rope, config.head_dim),
                rows,
                row: width * buffer.dtype.bytes(),
                at: first.shift + arena.offset(buffer.id),
                dtype: buffer.dtype,
            })
        };
        let tables = lowered.recipes.iter().enumerate().filter_map(place).collect();
        self.rotary = Some(Rotary { sequence, tables });
    }

    /// Makes the tables those of a sequence of `length` positions fed in one pass.
    pub(super) fn make_tables(&mut self, length: u64) -> Result<(), EngineError> {
        let Some(rotary) = &mut self.rotary else { return Ok(()) };
        for place in &rotary.tables {
            let differ = place.table.differ(rotary.sequence.length(), length);
            let differ = differ.start.min(place.rows)..differ.end.min(place.rows);
            let at = place.at + differ.start * place.row;
            let values = place.table.rows(differ, length);
            self.arena.write(at, &constant_bytes(&values, place.dtype))?;
        }
        rotary.sequence.set_length(length);
        Ok(())
    }

    /// Feeds the positions before a launch once more where its keys must be of another kind.
    pub(super) fn renew(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
    ) -> Result<(), EngineError> {
        let Some(rotary) = &self.rotary else { return Ok(()) };
        if !rotary.sequence.renews(plan, options.pass_len()) {
            return Ok(());
        }
        let facts: Vec<_> = self.programs.iter().map(|l| l.facts).collect();
        let end = plan.position;
        // The token at the launch's first position is there already, and stays.
        let options = LaunchOptions {
            prompt_len: end + 1,
            pass: options.pass_len().max(end + plan.tokens),
            ..LaunchOptions::default()
        };
        let mut at = 0;
        while at < end {
            let again = next_launch(&facts, at, end, end, STEPS_CAP);
            let last = facts.iter().map(|f| f.bucket.last).max().unwrap_or(0);
            let again = again.ok_or(EngineError::Position { position: at, last })?;
            self.fly(&again, &options, &mut |_| true)?;
            at = again.end();
        }
        Ok(())
    }
}
