//! Proposers that are built in. Each is deterministic: its candidates are a function of the seed and of the trials it was
//! told, so that a resumed campaign goes on as if it had never ended.
//!
//! `moves` draws points, `random` names any, `mutate` neighbours of the best, `bandit` neighbours by what paid off before,
//! `guided` what a model of cost thinks best of many, `mix` takes turns.

mod bandit;
mod guided;
mod mix;
pub mod moves;
mod mutate;
mod random;

pub use bandit::Bandit;
pub use guided::{Cost, Guided};
pub use mix::Mix;
pub use mutate::Mutate;
pub use random::Random;

use crate::seams::Proposer;

/// Names of the built-in proposers.
pub const NAMES: [&str; 5] = ["mix", "random", "mutate", "bandit", "guided"];

/// A built-in proposer by name; `None` for any other name. `cost` is what `guided` and `mix` rank by.
pub fn by_name<'a>(name: &str, cost: Cost<'a>) -> Option<Box<dyn Proposer + 'a>> {
    Some(match name {
        "random" => Box::new(Random),
        "mutate" => Box::new(Mutate),
        "bandit" => Box::new(Bandit::default()),
        "guided" => Box::new(Guided::new(cost)),
        "mix" => Box::new(Mix::new(cost)),
        _ => return None,
    })
}
