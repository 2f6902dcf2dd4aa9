//! Who moves next. A set of entities that can move (agents, and per SM the landing of copies) and a
//! policy that picks one. Every pick is O(1), or a scan of one bit per entity.

use super::rng::Rng;

/// How the next agent is chosen among those that can move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Any, with equal chances.
    Uniform,
    /// One SM, chosen by the seed, moves only when nobody else can.
    Starve,
    /// One SM, chosen by the seed, moves whenever it can; the others in bursts as long as possible.
    RunAhead,
    /// Fixed priority, the last SM first.
    Reverse,
    /// Producers as far ahead as the ring lets them, consumers last.
    ProducerFirst,
    /// Consumers first; copies are issued and land only when no consumer can move.
    ProducerLast,
    /// Random fixed priorities that change at random moments.
    Shuffled,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 7] = [
        Policy::Uniform,
        Policy::Starve,
        Policy::RunAhead,
        Policy::Reverse,
        Policy::ProducerFirst,
        Policy::ProducerLast,
        Policy::Shuffled,
    ];
}

/// What an entity of an SM is; entity `3 * sm + role`.
pub(crate) const CONSUMER: usize = 0;
pub(crate) const PRODUCER: usize = 1;
pub(crate) const LANDING: usize = 2;

const ABSENT: u32 = u32::MAX;

/// The entities that can move.
pub(crate) struct Scheduler {
    policy: Policy,
    rng: Rng,
    /// Class of each entity; lower classes go first.
    class: Vec<u8>,
    /// Members of each class, in no order.
    members: [Vec<u32>; 3],
    /// Index of an entity in its class.
    place: Vec<u32>,
    /// Priority order (ranked policies): entity of each rank and rank of each entity.
    entity_of: Vec<u32>,
    rank_of: Vec<u32>,
    ready: Vec<u64>,
    current: u32,
}

impl Scheduler {
    /// Nobody can move yet.
    pub fn new(policy: Policy, seed: u64, sms: usize) -> Scheduler {
        let n = 3 * sms;
        let mut rng = Rng::new(seed, 1);
        let chosen = rng.below(sms);
        let class = (0..n)
            .map(|e| match (policy, e % 3) {
                (Policy::Starve, _) => u8::from(e / 3 == chosen),
                (Policy::RunAhead, _) => u8::from(e / 3 != chosen),
                (Policy::ProducerFirst, PRODUCER) => 0,
                (Policy::ProducerFirst, LANDING) => 1,
                (Policy::ProducerFirst, _) => 2,
                (Policy::ProducerLast, CONSUMER) => 0,
                (Policy::ProducerLast, PRODUCER) => 1,
                (Policy::ProducerLast, _) => 2,
                _ => 0,
            })
            .collect();
        let mut entity_of: Vec<u32> = (0..n as u32).rev().collect();
        if policy == Policy::Shuffled {
            rng.shuffle(&mut entity_of);
        }
        let mut rank_of = vec![0; n];
        for (rank, &e) in entity_of.iter().enumerate() {
            rank_of[e as usize] = rank as u32;
        }
        Scheduler {
            policy,
            rng,
            class,
            members: Default::default(),
            place: vec![ABSENT; n],
            entity_of,
            rank_of,
            ready: vec![0; n.div_ceil(64)],
            current: 0,
        }
    }

    /// The entity can move (again).
    pub fn add(&mut self, entity: usize) {
        if self.place[entity] != ABSENT {
            return;
        }
        let list = &mut self.members[usize::from(self.class[entity])];
        self.place[entity] = list.len() as u32;
        list.push(entity as u32);
        let rank = self.rank_of[entity] as usize;
        self.ready[rank / 64] |= 1 << (rank % 64);
    }

    /// The entity cannot move.
    pub fn remove(&mut self, entity: usize) {
        let at = self.place[entity];
        if at == ABSENT {
            return;
        }
        let list = &mut self.members[usize::from(self.class[entity])];
        list.swap_remove(at as usize);
        if let Some(&moved) = list.get(at as usize) {
            self.place[moved as usize] = at;
        }
        self.place[entity] = ABSENT;
        let rank = self.rank_of[entity] as usize;
        self.ready[rank / 64] &= !(1 << (rank % 64));
    }

    /// The entity that moves now; `None` if nobody can.
    pub fn pick(&mut self) -> Option<usize> {
        let picked = match self.policy {
            Policy::Reverse => self.first_ready()?,
            Policy::Shuffled => {
                if self.rng.below(97) == 0 {
                    let (a, b) = (self.rng.below(self.place.len()), self.current as usize);
                    self.swap_ranks(a, b);
                }
                self.first_ready()?
            }
            Policy::RunAhead if self.members[0].is_empty() => {
                match self.place[self.current as usize] {
                    ABSENT => self.random_of_class()?,
                    _ => self.current as usize,
                }
            }
            _ => self.random_of_class()?,
        };
        self.current = picked as u32;
        Some(picked)
    }

    fn random_of_class(&mut self) -> Option<usize> {
        let list = self.members.iter().find(|m| !m.is_empty())?;
        Some(list[self.rng.below(list.len())] as usize)
    }

    fn first_ready(&self) -> Option<usize> {
        let (word, bits) = self.ready.iter().enumerate().find(|(_, w)| **w != 0)?;
        Some(self.entity_of[word * 64 + bits.trailing_zeros() as usize] as usize)
    }

    fn swap_ranks(&mut self, a: usize, b: usize) {
        let (present_a, present_b) = (self.place[a] != ABSENT, self.place[b] != ABSENT);
        self.remove(a);
        self.remove(b);
        self.rank_of.swap(a, b);
        self.entity_of[self.rank_of[a] as usize] = a as u32;
        self.entity_of[self.rank_of[b] as usize] = b as u32;
        if present_a {
            self.add(a);
        }
        if present_b {
            self.add(b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_picks_each_ready_entity_and_none_else() {
        for policy in Policy::ALL {
            let mut s = Scheduler::new(policy, 7, 5);
            for e in [0, 4, 8, 9, 14] {
                s.add(e);
            }
            s.remove(8);
            let mut seen = Vec::new();
            while let Some(e) = s.pick() {
                s.remove(e);
                seen.push(e);
            }
            seen.sort_unstable();
            assert_eq!(seen, [0, 4, 9, 14], "{policy:?}");
        }
    }

    #[test]
    fn a_starved_sm_moves_last() {
        let mut s = Scheduler::new(Policy::Starve, 3, 8);
        (0..24).for_each(|e| s.add(e));
        let mut order = Vec::new();
        while let Some(e) = s.pick() {
            s.remove(e);
            order.push(e / 3);
        }
        let last = order[23];
        assert_eq!(order.iter().position(|&sm| sm == last), Some(21));
    }
}
