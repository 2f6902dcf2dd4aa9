//! The MODEL argument: a folder, a hub id, or nothing for the embedded model.

use amk_models::{Checkpoint, CheckpointError};

use super::Failure;
use crate::output::Output;

/// Loads a checkpoint. Weights are mapped, so this is quick for a folder of any size.
pub fn open(model: Option<&str>, out: &Output) -> Result<Checkpoint, Failure> {
    let checkpoint = Checkpoint::open(model, out.shows_progress()).map_err(|e| {
        let mut failure = failure(&e);
        // Most messages name the file; say whose file it is.
        if let Some(model) = model.filter(|m| !failure.message.contains(*m)) {
            failure.message = format!("{model}: {}", failure.message);
        }
        failure
    })?;
    for setting in &checkpoint.generation().not_applied {
        tracing::info!("generation_config.json: {setting} is not applied, decoding is greedy");
    }
    Ok(checkpoint)
}

/// The exit code follows from whose fault it is.
pub fn failure(error: &CheckpointError) -> Failure {
    match error.is_environment() {
        true => Failure::environment(error),
        false => Failure::input(error),
    }
}
