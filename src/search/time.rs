//! Rounds of a candidate and the incumbent, on whatever can time them.
//!
//! A round is four samples, candidate, incumbent, incumbent, candidate, and the other way about in the next: what drifts
//! steadily within a round cancels in its means, and neither is always the one that runs first. A plain read of the same
//! bytes is sampled before the rounds, after them and now and then between, so that the floor is of the same minutes.

use amk_autoresearch::judge::sequential;
use amk_autoresearch::{Decision, Job, Sample};

/// Rounds between two plain reads.
const READ_EVERY: usize = 8;
/// Rounds thrown away at the beginning.
const WARMUP: usize = 2;

/// Who is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Candidate,
    Incumbent,
}

/// Something that times: a device, or in tests something that plays one.
pub trait Stopwatch {
    type Error;

    /// One sample: microseconds per token.
    ///
    /// # Errors
    /// The device fails.
    fn sample(&mut self, who: Who) -> Result<f64, Self::Error>;

    /// One sample of a plain read of a token's bytes, the fastest way there is: microseconds.
    ///
    /// # Errors
    /// The device fails.
    fn read(&mut self) -> Result<f64, Self::Error>;
}

/// What was timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub samples: Vec<Sample>,
    /// The fastest plain read.
    pub read_us: f64,
}

/// Times until the sequential test decides, or the rounds run out.
///
/// # Errors
/// The device fails.
pub fn rounds<S: Stopwatch>(watch: &mut S, job: &Job) -> Result<Timed, S::Error> {
    let mut read_us = watch.read()?;
    let mut samples: Vec<Sample> = Vec::new();
    for round in 0..WARMUP + job.max_rounds as usize {
        let (a, b) = match round % 2 {
            0 => (Who::Candidate, Who::Incumbent),
            _ => (Who::Incumbent, Who::Candidate),
        };
        let (first, second) = (watch.sample(a)?, watch.sample(b)?);
        let (third, fourth) = (watch.sample(b)?, watch.sample(a)?);
        if round < WARMUP {
            continue;
        }
        let (outer, inner) = (f64::midpoint(first, fourth), f64::midpoint(second, third));
        samples.push(match a {
            Who::Candidate => Sample { candidate_us: outer, incumbent_us: inner },
            Who::Incumbent => Sample { candidate_us: inner, incumbent_us: outer },
        });
        if samples.len().is_multiple_of(READ_EVERY) {
            read_us = read_us.min(watch.read()?);
        }
        if samples.len() >= job.min_rounds as usize
            && sequential::decide(&samples, job.threshold, job.alpha) != Decision::Undecided
        {
            break;
        }
    }
    read_us = read_us.min(watch.read()?);
    Ok(Timed { samples, read_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use amk_autoresearch::Point;
    use amk_autoresearch::rng::Rng;

    /// Plays a device whose clock sinks with every sample.
    struct Sinking {
        candidate: f64,
        incumbent: f64,
        noise: f64,
        drift: f64,
        count: u32,
        log: Vec<Who>,
        rng: Rng,
        fails_at: u32,
    }

    impl Sinking {
        fn new(candidate: f64, incumbent: f64) -> Sinking {
            let (noise, drift) = (0.002, 0.01);
            let rng = Rng::new(3);
            Sinking {
                candidate,
                incumbent,
                noise,
                drift,
                count: 0,
                log: Vec::new(),
                rng,
                fails_at: 0,
            }
        }
    }

    impl Stopwatch for Sinking {
        type Error = &'static str;
        fn sample(&mut self, who: Who) -> Result<f64, &'static str> {
            self.count += 1;
            if self.count == self.fails_at {
                return Err("lost");
            }
            self.log.push(who);
            let us = if who == Who::Candidate { self.candidate } else { self.incumbent };
            let clock = 1.0 + self.drift * f64::from(self.count);
            Ok(us * clock * (1.0 + self.noise * self.rng.normal()))
        }
        fn read(&mut self) -> Result<f64, &'static str> {
            Ok(80.0 + f64::from(self.count % 7))
        }
    }

    fn job() -> Job {
        Job {
            candidate: Point::default(),
            incumbent: Point::default(),
            min_rounds: 12,
            max_rounds: 60,
            threshold: 0.003,
            alpha: 0.01,
        }
    }

    #[test]
    fn a_sinking_clock_favours_nobody() {
        let mut same = Sinking::new(100.0, 100.0);
        let timed = rounds(&mut same, &job()).unwrap();
        assert_ne!(sequential::decide(&timed.samples, 0.003, 0.01), Decision::Kept);
        // Without its noise both are the same to rounding, though the clock sank to a third.
        let mut exact = Sinking { noise: 0.0, ..Sinking::new(100.0, 100.0) };
        let timed = rounds(&mut exact, &job()).unwrap();
        assert!(timed.samples.iter().all(|s| (s.speedup() - 1.0).abs() < 1e-9));
        assert_eq!(timed.read_us, 80.0);
    }

    #[test]
    fn the_order_turns_and_the_test_ends_the_rounds() {
        let mut watch = Sinking::new(97.0, 100.0);
        let timed = rounds(&mut watch, &job()).unwrap();
        assert_eq!(sequential::decide(&timed.samples, 0.003, 0.01), Decision::Kept);
        assert!((12..60).contains(&timed.samples.len()), "{}", timed.samples.len());
        let [c, i] = [Who::Candidate, Who::Incumbent];
        assert_eq!(watch.log[..8], [c, i, i, c, i, c, c, i]);
        let mut slower = Sinking::new(103.0, 100.0);
        let timed = rounds(&mut slower, &job()).unwrap();
        assert_eq!(sequential::decide(&timed.samples, 0.003, 0.01), Decision::NotFaster);
    }

    #[test]
    fn a_device_that_fails_ends_it() {
        let mut watch = Sinking { fails_at: 30, ..Sinking::new(97.0, 100.0) };
        assert_eq!(rounds(&mut watch, &job()), Err("lost"));
    }
}
