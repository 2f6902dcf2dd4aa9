//! Taking turns.

use super::{Bandit, Cost, Guided, Mutate, Random};
use crate::journal::Trial;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};

/// Asks one proposer after another, batch by batch, the guided one first: guided and bandit twice as often as local and
/// random search. Whoever has nothing more to say is passed over.
pub struct Mix<'a> {
    guided: Guided<'a>,
    bandit: Bandit,
    mutate: Mutate,
    random: Random,
}

/// The order of turns.
const TURNS: usize = 6;

impl<'a> Mix<'a> {
    /// `cost` is what the guided one ranks by.
    pub fn new(cost: Cost<'a>) -> Mix<'a> {
        Mix { guided: Guided::new(cost), bandit: Bandit::default(), mutate: Mutate, random: Random }
    }

    fn at(&mut self, turn: usize) -> &mut dyn Proposer {
        match turn % TURNS {
            0 | 3 => &mut self.guided,
            1 | 4 => &mut self.bandit,
            2 => &mut self.mutate,
            _ => &mut self.random,
        }
    }
}

impl Proposer for Mix<'_> {
    fn name(&self) -> &str {
        "mix"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        // Whose turn it is follows from the seed, and so from the journal.
        let first = match ask.history.len() {
            0 | 1 => 0,
            _ => (ask.seed % TURNS as u64) as usize,
        };
        let mut last = Proposal::Done("there is nothing to draw from".to_owned());
        for turn in first..first + TURNS {
            match self.at(turn).propose(ask)? {
                done @ Proposal::Done(_) => last = done,
                found => return Ok(found),
            }
        }
        Ok(last)
    }

    fn told(&mut self, trial: &Trial) {
        self.bandit.told(trial);
    }
}
