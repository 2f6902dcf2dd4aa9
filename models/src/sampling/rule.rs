//! The rule by which a token is drawn: one function of logits, context, position and settings, the same on the CPU, in
//! the reference VM and in the kernel (`templates/ops/sample.cu.j2`).
//!
//! Everything that decides is float32 addition, multiplication, division and comparison, each rounded by itself, or
//! integer arithmetic, whose sums do not depend on their order. So equal logits give equal tokens wherever the rule runs.
//!
//! The order of steps is that of HuggingFace's `generate`: repetition penalty, temperature, top-k, top-p, min-p.
//!
//! 1. The *score* of an id is its logit, divided by the penalty if the context holds the id and the logit is not negative,
//!    multiplied by it if the logit is negative. Ids are ranked by score, the lower id first among equals. With
//!    temperature 0 the first of them is taken.
//! 2. Its *weight* is `exp((score - best) / temperature)`, 1 for every score that equals the best; its *mass* is the
//!    weight in units of `2^-38`, rounded down, and one unit more, so that everybody has some.
//! 3. Top-k keeps the first k. Top-p keeps the fewest of these, first ones first, whose mass reaches the fraction of
//!    the mass of all of these. Min-p keeps those of which `(score - best) / temperature` is at least `ln min_p`.
//! 4. The ids left race: id `i` finishes after `e_i / weight`, where `e_i` is exponentially distributed, and the first to
//!    finish is taken, the lower id on ties. It is id `i` with a probability proportional to its weight.
//!    `e_i` comes from word `i mod 4` of Philox4x32-10 at the counter (position, low word first; `i / 4`; 0), keyed
//!    with the seed. The position is that of the token drawn, from 0.

use super::philox::philox;

/// Settings as words; see [`Settings::words`].
pub const SETTINGS_WORDS: usize = 7;
/// Units of mass in a weight of 1.
const MASS: f32 = (1u64 << 38) as f32;

/// The settings of a draw, as the rule takes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Scores are divided by it; 0 takes the best.
    pub temperature: f32,
    /// Repetition penalty; 1 is none.
    pub penalty: f32,
    /// Only so many of the best; 0: all.
    pub top_k: u32,
    /// Fraction of the mass kept, in units of `2^-32`; 0: all.
    pub top_p: u32,
    /// Least `(score - best) / temperature` kept; minus infinity: all.
    pub min_p: f32,
    pub seed: u64,
}

impl Default for Settings {
    /// The best token, always.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            penalty: 1.0,
            top_k: 0,
            top_p: 0,
            min_p: f32::NEG_INFINITY,
            seed: 0,
        }
    }
}

/// An id that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub id: u32,
    /// `(score - best) / temperature`, at most 0.
    pub below: f32,
    /// `exp(below)`.
    pub weight: f32,
}

impl Settings {
    /// The words a kernel reads: temperature, penalty, top-k, top-p, min-p, seed with its low word first.
    pub fn words(&self) -> [u32; SETTINGS_WORDS] {
        [
            self.temperature.to_bits(),
            self.penalty.to_bits(),
            self.top_k,
            self.top_p,
            self.min_p.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
        ]
    }

    /// The penalised logits after `context`.
    pub fn scores(&self, logits: &[f32], context: &[u32]) -> Vec<f32> {
        let mut scores = logits.to_vec();
        if self.penalty != 1.0 {
            for &id in context {
                let id = id as usize;
                // From the logit, so that an id there twice is penalised once.
                if let (Some(score), Some(&l)) = (scores.get_mut(id), logits.get(id)) {
                    *score = if l < 0.0 { l * self.penalty } else { l / self.penalty };
                }
            }
        }
        scores
    }

    /// The ids that may be drawn; best first, the lower id first among equals, where top-k or top-p is set, else by id.
    /// With temperature 0 that is one. None if a score is NaN or there is none.
    pub fn candidates(&self, scores: &[f32]) -> Option<Vec<Candidate>> {
        let best = best_of(scores)?;
        if self.temperature == 0.0 {
            return Some(vec![Candidate { id: best.0, below: 0.0, weight: 1.0 }]);
        }
        let candidate = |(id, &score): (u32, &f32)| {
            let below = if score == best.1 { 0.0 } else { (score - best.1) / self.temperature };
            Candidate { id, below, weight: exponential(below) }
        };
        let all = (0u32..).zip(scores);
        let mut kept: Vec<Candidate> = match (self.top_k, self.top_p) {
            (0, 0) => all.map(candidate).collect(),
            _ => {
                let mut ranked: Vec<(u32, &f32)> = all.collect();
                let order = |a: &(u32, &f32), b: &(u32, &f32)| {
                    rank(*b.1).cmp(&rank(*a.1)).then(a.0.cmp(&b.0))
                };
                let k = self.top_k as usize;
                if k != 0 && k < ranked.len() {
                    ranked.select_nth_unstable_by(k - 1, order);
                    ranked.truncate(k);
                }
                ranked.sort_unstable_by(order);
                ranked.into_iter().map(candidate).collect()
            }
        };
        if self.top_p != 0 {
            let target = share(kept.iter().map(|c| mass(c.weight)).sum(), self.top_p);
            let mut sum = 0;
            let enough = kept.iter().position(|c| {
                sum += mass(c.weight);
                sum >= target
            });
            kept.truncate(enough.map_or(kept.len(), |n| n + 1));
        }
        kept.retain(|c| c.below >= self.min_p);
        Some(kept)
    }

    /// The id drawn at `position`. None if a score is NaN or there is none.
    pub fn choose(&self, scores: &[f32], position: u64) -> Option<u32> {
        let kept = self.candidates(scores)?;
        let (key, place) = (words_of(self.seed), words_of(position));
        let mut block = (u32::MAX, [0; 4]);
        let mut first: Option<(f32, u32)> = None;
        for c in &kept {
            if block.0 != c.id / 4 {
                block = (c.id / 4, philox([place[0], place[1], c.id / 4, 0], key));
            }
            let time = waiting_time(block.1[c.id as usize % 4]) / c.weight;
            if first.is_none_or(|(t, id)| time < t || time == t && c.id < id) {
                first = Some((time, c.id));
            }
        }
        first.map(|(_, id)| id)
    }
}

/// The best id and its score: the largest, the lowest id on ties. None if a score is NaN or there is none.
fn best_of(scores: &[f32]) -> Option<(u32, f32)> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &score) in (0u32..).zip(scores) {
        if score.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, b)| score > b) {
            best = Some((id, score));
        }
    }
    best
}

fn words_of(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Orders as the score does; both zeros are one.
fn rank(score: f32) -> u32 {
    let bits = if score == 0.0 { 0 } else { score.to_bits() };
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

fn mass(weight: f32) -> u64 {
    (weight * MASS) as u64 + 1
}

/// The part of a mass, rounded down, but not nothing.
fn share(mass: u64, top_p: u32) -> u64 {
    let (high, low) = (mass >> 32, mass & u64::from(u32::MAX));
    (high * u64::from(top_p) + ((low * u64::from(top_p)) >> 32)).max(1)
}

/// `exp(x)` for `x` at most 0, to about an ulp; 0 from `exp(-86)` on.
fn exponential(x: f32) -> f32 {
    if x < -86.0 {
        return 0.0;
    }
    // x = n ln 2 + r with |r| <= ln(2) / 2; ln 2 in two parts, the first exact in n of them.
    let n = (x * std::f32::consts::LOG2_E - 0.5) as i32;
    let r = (x - n as f32 * (355.0 / 512.0)) - n as f32 * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    p * f32::from_bits(((n + 127) as u32) << 23)
}

/// An exponentially distributed number from 32 random bits: `-ln(1 - v)` with `v = (bits + 1/2) / 2^32`. Small numbers, which
/// win races, keep their precision.
fn waiting_time(bits: u32) -> f32 {
    const UNIT: f32 = 1.0 / 4_294_967_296.0;
    const MOST: f32 = 1.0 - 1.0 / 16_777_216.0;
    let v = (bits as f32 + 0.5) * UNIT;
    let v = if v > MOST { MOST } else { v };
    // 1 - v = m 2^n with m in [0.75, 1.5).
    let y = (1.0 - v).to_bits() as i32;
    let n = (y - 0x3f40_0000) >> 23;
    let m = f32::from_bits((y - (n << 23)) as u32);
    // -ln m = 2 artanh(q).
    let f = if n == 0 { v } else { 1.0 - m };
    let q = f / (2.0 - f);
    let s = q * q;
    let mut p = 1.0 / 9.0;
    for c in [1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        p = p * s + c;
    }
    2.0 * q * p - n as f32 * std::f32::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_what_they_are_called() {
        for i in 0..200_000 {
            let x = -(i as f32) * 4.3e-4;
            let (found, right) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((found / right - 1.0).abs() < 3e-7, "exp({x}) = {found}, not {right}");
        }
        assert_eq!((exponential(0.0), exponential(-0.0)), (1.0, 1.0));
        assert_eq!((exponential(-86.5), exponential(f32::NEG_INFINITY)), (0.0, 0.0));
        let words = (0..100_000u32)
            .map(|i| i.wrapping_mul(42_949))
            .chain(0..1000)
            .chain(u32::MAX - 1000..=u32::MAX);
        for bits in words {
            let right = -(-(f64::from(bits) + 0.5) / 4_294_967_296.0).ln_1p();
            let found = f64::from(waiting_time(bits));
            // Near the end of the range float32 has few steps left, which only a race of one can see.
            let near = if bits > u32::MAX - (1 << 20) { 0.3 } else { 4e-7 + 1e-8 * right.exp() };
            assert!((found / right - 1.0).abs() < near, "{bits}: {found}, not {right}");
        }
    }

    #[test]
    fn words_are_in_the_order_the_kernel_reads() {
        let settings = Settings {
            temperature: 0.5,
            penalty: 2.0,
            top_k: 7,
            top_p: 9,
            min_p: -1.0,
            seed: 0x1234_5678_9abc_def0,
        };
        let bits = f32::to_bits;
        let want = [bits(0.5), bits(2.0), 7, 9, bits(-1.0), 0x9abc_def0, 0x1234_5678];
        assert_eq!(settings.words(), want);
    }

    #[test]
    fn all_infinities_share_and_nothing_else_is_left() {
        let settings = Settings { temperature: 1.0, ..Settings::default() };
        let (inf, none) = (f32::INFINITY, f32::NEG_INFINITY);
        let weights = |scores: &[f32]| -> Vec<f32> {
            settings.candidates(scores).unwrap().iter().map(|c| c.weight).collect()
        };
        assert_eq!(weights(&[1.0, inf, none, inf]), [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(weights(&[none, none]), [1.0, 1.0]);
        assert_eq!(weights(&[none, 2.0]), [0.0, 1.0]);
        for position in 0..100 {
            assert_eq!(settings.choose(&[none, 2.0, none], position), Some(1));
        }
        assert_eq!(settings.choose(&[1.0, f32::NAN], 0), None);
        assert_eq!(settings.choose(&[], 0), None);
        // A difference that overflows when divided is no difference in kind.
        let cold = Settings { temperature: 1e-38, ..settings };
        assert_eq!(cold.choose(&[1.0, 3e38, -3e38], 5), Some(1));
    }

    #[test]
    fn equals_are_kept_by_the_lower_id() {
        let settings = Settings { temperature: 1.0, top_k: 3, ..Settings::default() };
        let ids = |s: &Settings, scores: &[f32]| -> Vec<u32> {
            s.candidates(scores).unwrap().iter().map(|c| c.id).collect()
        };
        let scores = [1.0, 2.0, -0.0, 2.0, 0.0, 1.0, 1.0];
        assert_eq!(ids(&settings, &scores), [1, 3, 0]);
        assert_eq!(ids(&Settings { top_k: 6, ..settings }, &scores), [1, 3, 0, 5, 6, 2]);
        // Two of four equals have half of the mass.
        let half = Settings { top_k: 0, top_p: 1 << 31, ..settings };
        assert_eq!(ids(&half, &[5.0; 4]), [0, 1]);
        assert_eq!(ids(&Settings { top_p: 1, ..half }, &[5.0; 4]), [0]);
        assert_eq!(ids(&Settings { top_p: u32::MAX, ..half }, &[5.0; 4]), [0, 1, 2, 3]);
    }
}
