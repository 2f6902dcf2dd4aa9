//! Taking turns.

use super::guess::{Cost, Guesses};
use super::sweep::Turns;
use super::{Bandit, Guided, Mutate, Random};
use crate::candidate::Candidate;
use crate::journal::Trial;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};

/// Asks one proposer after another, batch by batch: first the model of cost and sweeps over single knobs in turn, later the
/// bandit, local and random search too. Whoever has nothing more to say is passed over, and so is what cannot be
/// scheduled, does what was judged, or is predicted to be far slower than the incumbent.
pub struct Mix<'a> {
    guesses: Guesses<'a>,
    turns: Turns,
    bandit: Bandit,
    mutate: Mutate,
    random: Random,
}

/// Who may have a turn.
#[derive(Clone, Copy)]
enum Who {
    Guided,
    Sweep,
    Bandit,
    Mutate,
    Random,
}

/// The order of turns at the beginning of a campaign.
const FIRST: [Who; 6] = [Who::Guided, Who::Sweep, Who::Guided, Who::Sweep, Who::Guided, Who::Sweep];
/// The order of turns from then on.
const TURNS: [Who; 8] = [
    Who::Guided,
    Who::Sweep,
    Who::Bandit,
    Who::Guided,
    Who::Sweep,
    Who::Mutate,
    Who::Sweep,
    Who::Random,
];
/// Candidates whose corrected time is more than so many times the incumbent's are not named.
const FAR: f64 = 1.3;
/// Candidates drawn for each one that is named, so that enough are left.
const SPARE: usize = 2;

impl<'a> Mix<'a> {
    /// `cost` is what points are ranked by.
    pub fn new(cost: Cost<'a>) -> Mix<'a> {
        Mix {
            guesses: Guesses::new(cost),
            turns: Turns::default(),
            bandit: Bandit::default(),
            mutate: Mutate,
            random: Random,
        }
    }

    /// What a proposer without a model names, without what the model thinks useless.
    fn sifted(
        guesses: &mut Guesses<'_>,
        blind: &mut dyn Proposer,
        ask: &Ask<'_>,
    ) -> Result<Vec<Candidate>, NoProposal> {
        let wide = Ask { count: ask.count * SPARE, ..*ask };
        let Proposal::Candidates(drawn) = blind.propose(&wide)? else { return Ok(Vec::new()) };
        let limit = guesses.us(&ask.history.incumbent).map_or(f64::INFINITY, |us| FAR * us);
        let ranked = guesses.rank(drawn, ask.history).into_iter().filter(|r| r.us <= limit);
        Ok(ranked.map(|r| r.candidate).take(ask.count).collect())
    }

    fn turn(&mut self, who: Who, ask: &Ask<'_>) -> Result<Vec<Candidate>, NoProposal> {
        let Mix { guesses, turns, bandit, mutate, random } = self;
        match who {
            Who::Guided => Ok(Guided::search(guesses, ask)),
            Who::Sweep => Ok(turns.search(guesses, ask)),
            Who::Bandit => Mix::sifted(guesses, bandit, ask),
            Who::Mutate => Mix::sifted(guesses, mutate, ask),
            Who::Random => Mix::sifted(guesses, random, ask),
        }
    }
}

impl Proposer for Mix<'_> {
    fn name(&self) -> &str {
        "mix"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        // Whose turn it is follows from how many trials there are, or from the seed, and so from the journal.
        let batch = ask.history.len() / ask.count.max(1) as u64;
        let turns = match FIRST.get(batch as usize) {
            Some(first) => std::iter::once(*first).chain(TURNS).collect::<Vec<_>>(),
            None => {
                let first = (ask.seed % TURNS.len() as u64) as usize;
                TURNS.iter().cycle().skip(first).take(TURNS.len()).copied().collect()
            }
        };
        for who in turns {
            let found = self.turn(who, ask)?;
            if !found.is_empty() {
                return Ok(Proposal::Candidates(found));
            }
        }
        // What the model thinks useless is better than nothing.
        self.random.propose(ask)
    }

    fn told(&mut self, trial: &Trial) {
        self.guesses.told(trial);
        self.turns.told(trial);
        self.bandit.told(trial);
    }
}
