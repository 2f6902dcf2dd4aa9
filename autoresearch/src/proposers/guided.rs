//! What a model of cost thinks best.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::guess::{Cost, Guesses, Ranked};
use super::moves::{any, fresh, neighbour, parent};
use crate::candidate::Candidate;
use crate::journal::Trial;
use crate::rng::Rng;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};

/// Points drawn in a round for each one that is named.
const DRAWN: usize = 6;
/// Rounds: each starts from the best of the one before. In the first batch of a campaign, when most is to be gained, more.
const ROUNDS: usize = 2;
const FIRST_ROUNDS: usize = 8;
/// Trials after which a campaign is no longer at its beginning.
const BEGINNING: u64 = 2;
/// Rounds in a row that found nothing better end the search.
const IDLE: usize = 2;
/// One in so many is named though the model does not think it best, for the model may be wrong.
const DOUBT: usize = 4;
/// Predicted times this close are alike: then fewer moves are better.
const ALIKE: f64 = 0.001;

/// Searches with the model of cost: draws points, mostly neighbours of good ones, from the best of them draws again, and
/// names those with the least predicted time. What was measured corrects the predictions. It prunes: what is kept, the
/// judge decides.
pub struct Guided<'a> {
    guesses: Guesses<'a>,
}

impl<'a> Guided<'a> {
    /// Ranks by `cost`.
    pub fn new(cost: Cost<'a>) -> Guided<'a> {
        Guided { guesses: Guesses::new(cost) }
    }

    /// See [`Proposer::propose`], with guesses that somebody else keeps.
    pub(super) fn search(guesses: &mut Guesses<'_>, ask: &Ask<'_>) -> Vec<Candidate> {
        let mut rng = Rng::new(ask.seed);
        let wide = Ask { count: ask.count * DRAWN, ..*ask };
        let rounds = if ask.history.len() < BEGINNING { FIRST_ROUNDS } else { ROUNDS };
        let mut pool: Vec<Ranked> = Vec::new();
        let mut bodies = BTreeSet::new();
        let mut idle = 0;
        for round in 0..rounds {
            let from = pool.len().min(2 * ask.count) as u64;
            let before = pool.first().map(|r| r.us);
            let drawn = fresh(&wide, "guided", &mut rng, &mut |rng| {
                if rng.chance(0.1) {
                    return (any(ask.space, rng), None);
                }
                if from > 0 && rng.chance(0.7) {
                    // Its parent is the trial that it descends from.
                    let at = rng.below(from).min(rng.below(from)) as usize;
                    if let Some(from) = pool.get(at).map(|r| &r.candidate) {
                        return (neighbour(ask.space, &from.knobs, rng), from.parent.clone());
                    }
                }
                let from = parent(ask.history, rng);
                (neighbour(ask.space, from, rng), Some(from.id()))
            });
            let found = guesses.rank(drawn, ask.history);
            pool.extend(found.into_iter().filter(|r| bodies.insert(r.body.clone())));
            pool.sort_by(|a, b| a.us.total_cmp(&b.us).then(a.moves.cmp(&b.moves)));
            let better = pool.first().map(|r| r.us) < before.or(Some(f64::INFINITY));
            idle = if better { 0 } else { idle + 1 };
            if idle >= IDLE && round + 1 >= ROUNDS {
                break;
            }
        }
        // Of those that are alike, the ones with the fewest moves.
        let least = pool.first().map_or(1.0, |r| r.us).max(f64::MIN_POSITIVE);
        pool.sort_by_cached_key(|r| (((r.us / least).ln() / ALIKE) as u64, r.moves));
        let doubted = ask.count / DOUBT;
        let mut rest = pool.into_iter().map(|r| r.candidate);
        let mut named: Vec<Candidate> = rest.by_ref().take(ask.count - doubted).collect();
        // Of the rest any.
        let mut rest: Vec<(Reverse<u64>, Candidate)> =
            rest.map(|c| (Reverse(rng.next()), c)).collect();
        rest.sort_by_key(|r| r.0);
        named.extend(rest.into_iter().map(|r| r.1).take(doubted));
        named
    }
}

impl Proposer for Guided<'_> {
    fn name(&self) -> &str {
        "guided"
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let found = Guided::search(&mut self.guesses, ask);
        Ok(match found.is_empty() {
            true => Proposal::Done("every point that was drawn has been tried".to_owned()),
            false => Proposal::Candidates(found),
        })
    }

    fn told(&mut self, trial: &Trial) {
        self.guesses.told(trial);
    }
}
