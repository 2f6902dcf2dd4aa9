//! The MODEL argument: a folder, a hub id, or nothing for the embedded model.

use amk_models::{Checkpoint, CheckpointError};

use super::Failure;
use crate::output::Output;

/// Loads a checkpoint. Weights are mapped, so this is quick for a folder of any size.
pub fn open(model: Option<&str>, out: &Output) -> Result<Checkpoint, Failure> {
    let checkpoint = Checkpoint::open(model, out.shows_progress()).map_err(|e| named(model, &e))?;
    for setting in &checkpoint.generation().not_applied {
        tracing::info!("generation_config.json: {setting} is not applied, decoding is greedy");
    }
    Ok(checkpoint)
}

/// The failure of a model given as an argument. Most messages name the file; this says whose file it is.
pub fn named(model: Option<&str>, error: &CheckpointError) -> Failure {
    let mut failure = failure(error);
    if let Some(model) = model.filter(|m| !failure.message.contains(*m)) {
        failure.message = format!("{model}: {}", failure.message);
    }
    failure
}

/// The exit code follows from whose fault it is.
pub fn failure(error: &CheckpointError) -> Failure {
    match error.is_environment() {
        true => Failure::environment(error),
        false => Failure::input(error),
    }
}
