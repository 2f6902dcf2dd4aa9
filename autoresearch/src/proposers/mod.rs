//! Proposers that are built in. Each is deterministic: its candidates are a function of the seed and of the trials it was
//! told, so that a resumed campaign goes on as if it had never ended.
//!
//! `moves` draws points, `guess` says what a model of cost thinks of them once measurements have corrected it. `random` names
//! any points, `mutate` neighbours of the best, `bandit` neighbours by what paid off before, `guided` what the model thinks
//! best of many, `sweep` one knob after another, `mix` takes turns.

mod bandit;
mod guess;
mod guided;
mod mix;
pub mod moves;
mod mutate;
mod random;
mod sweep;

pub use bandit::Bandit;
pub use guess::{Cost, Guess};
pub use guided::Guided;
pub use mix::Mix;
pub use mutate::Mutate;
pub use random::Random;
pub use sweep::Sweep;

use crate::seams::Proposer;

/// Names of the built-in proposers.
pub const NAMES: [&str; 6] = ["mix", "random", "mutate", "bandit", "guided", "sweep"];

/// A built-in proposer by name; `None` for any other name. `cost` is what `guided`, `sweep` and `mix` rank by.
pub fn by_name<'a>(name: &str, cost: Cost<'a>) -> Option<Box<dyn Proposer + 'a>> {
    Some(match name {
        "random" => Box::new(Random),
        "mutate" => Box::new(Mutate),
        "bandit" => Box::new(Bandit::default()),
        "guided" => Box::new(Guided::new(cost)),
        "sweep" => Box::new(Sweep::new(cost)),
        "mix" => Box::new(Mix::new(cost)),
        _ => return None,
    })
}
