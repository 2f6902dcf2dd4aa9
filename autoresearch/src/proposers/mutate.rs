//! Neighbours of the best.

use super::moves::{fresh, neighbour, parent};
use crate::journal::Trial;
use crate::rng::Rng;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};

/// Local search: moves a knob or a few of the incumbent, sometimes of another good point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mutate;

impl Proposer for Mutate {
    fn name(&self) -> &str {
        "mutate"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let mut rng = Rng::new(ask.seed);
        let found = fresh(ask, "mutate", &mut rng, &mut |rng| {
            let from = parent(ask.history, rng);
            (neighbour(ask.space, from, rng), Some(from.id()))
        });
        Ok(match found.is_empty() {
            true => Proposal::Done("every neighbour that was drawn has been tried".to_owned()),
            false => Proposal::Candidates(found),
        })
    }

    fn told(&mut self, _: &Trial) {}
}
