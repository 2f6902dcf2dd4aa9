//! Measuring: rounds of interleaved samples, the plain read that bounds them, baselines in a child process, and the
//! records that are written.
//!
//! `stats` has the statistics, `ceiling` the plain read kernels, `baseline` drives `benches/baseline.py`, `system`
//! asks nvidia-smi, `record` is the JSON. This file interleaves: every contender is sampled once a round, in an order that
//! turns from round to round, so that drift of clocks and temperature reaches all of them alike.

pub mod baseline;
pub mod ceiling;
pub mod record;
pub mod stats;
pub mod system;

use crate::engine::EngineError;

/// Why a measurement ended.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Compile(#[from] crate::image::BuildError),
    #[error("the baseline: {0}")]
    Baseline(#[from] baseline::BaselineError),
}

/// Something that can be timed.
pub trait Contender {
    /// What the samples are called.
    fn name(&self) -> &str;

    /// One sample: microseconds per token.
    ///
    /// # Errors
    /// The contender fails; the measurement ends.
    fn sample(&mut self) -> Result<f64, BenchError>;
}

/// The samples of one contender, one a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    pub name: String,
    pub us: Vec<f64>,
}

/// Samples every contender once a round; `warmup` rounds before are thrown away. The order turns by one each round.
///
/// # Errors
/// A contender failed.
pub fn interleave(
    contenders: &mut [&mut dyn Contender],
    rounds: usize,
    warmup: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Samples>, BenchError> {
    let mut out: Vec<Samples> = contenders
        .iter()
        .map(|c| Samples { name: c.name().to_owned(), us: Vec::with_capacity(rounds) })
        .collect();
    let n = contenders.len().max(1);
    for round in 0..warmup + rounds {
        for k in 0..contenders.len() {
            let i = (k + round) % n;
            let us = contenders[i].sample()?;
            if round >= warmup {
                out[i].us.push(us);
            }
        }
        progress(round + 1);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Counting {
        name: &'static str,
        log: Rc<RefCell<Vec<&'static str>>>,
        count: usize,
        fails_at: usize,
    }

    impl Contender for Counting {
        fn name(&self) -> &str {
            self.name
        }
        fn sample(&mut self) -> Result<f64, BenchError> {
            self.count += 1;
            self.log.borrow_mut().push(self.name);
            match self.count == self.fails_at {
                true => Err(EngineError::Mismatch("over".into()).into()),
                false => Ok(self.count as f64),
            }
        }
    }

    #[test]
    fn every_round_has_every_contender_and_the_order_turns() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let make = |name, fails_at| Counting { name, log: log.clone(), count: 0, fails_at };
        let (mut a, mut b, mut c) = (make("a", 0), make("b", 0), make("c", 0));
        let mut seen = 0;
        let out =
            interleave(&mut [&mut a, &mut b, &mut c], 3, 1, &mut |round| seen = round).unwrap();
        assert_eq!(seen, 4);
        let said = log.borrow().concat();
        assert_eq!(said, "abcbcacababc");
        assert_eq!(out[1], Samples { name: "b".into(), us: vec![2.0, 3.0, 4.0] });
    }

    #[test]
    fn a_contender_that_fails_ends_the_measurement() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut a = Counting { name: "a", log, count: 0, fails_at: 2 };
        assert!(interleave(&mut [&mut a], 3, 0, &mut |_| {}).is_err());
    }
}
