//! Any point.

use super::moves::{any, fresh};
use crate::journal::Trial;
use crate::rng::Rng;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};

/// Names points at random. The yardstick for every other proposer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Proposer for Random {
    fn name(&self) -> &str {
        "random"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let mut rng = Rng::new(ask.seed);
        let found = fresh(ask, "random", &mut rng, &mut |rng| (any(ask.space, rng), None));
        Ok(match found.is_empty() {
            true => Proposal::Done("every point that was drawn has been tried".to_owned()),
            false => Proposal::Candidates(found),
        })
    }

    fn told(&mut self, _: &Trial) {}
}
