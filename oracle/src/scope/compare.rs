//! A judge against the oracle, over all programs of some families.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use amk_schedule_ir::{Program, text};
use rayon::prelude::*;
use serde::Serialize;

use super::{Code, Family, part, parts, program, target, weight};
use crate::{Limits, Outcome, explore, predicates};

/// What the judge says of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// With the class its reason belongs to.
    Rejected(&'static str),
}

/// Programs that the oracle calls safe and the judge rejects for one reason.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Class {
    pub programs: u64,
    /// The one with the fewest marks, in text form.
    pub smallest: String,
    #[serde(skip)]
    marks: (u32, u32),
}

/// What the comparison found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    pub programs: u64,
    /// By family.
    pub families: BTreeMap<&'static str, FamilyCounts>,
    pub accepted: u64,
    pub rejected: u64,
    /// Unsafe by the oracle and rejected, by what the oracle saw first.
    pub hazards: BTreeMap<String, u64>,
    /// Accepted by the judge, unsafe by the oracle.
    pub false_accepts: u64,
    /// The smallest of them for each hazard, in text form.
    pub false_accept_examples: BTreeMap<String, String>,
    /// Rejected by the judge, safe by the oracle.
    pub false_rejects: u64,
    #[serde(skip)]
    pub false_reject_classes: BTreeMap<&'static str, Class>,
    /// Too many states for the oracle; 0, or the comparison is not exhaustive.
    pub undecided: u64,
    #[serde(skip)]
    accept_marks: BTreeMap<String, (u32, u32)>,
}

/// Counts of one family.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FamilyCounts {
    pub programs: u64,
    pub accepted: u64,
    pub false_rejects: u64,
}

impl Summary {
    fn merge(mut self, other: Summary) -> Summary {
        self.programs += other.programs;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.false_accepts += other.false_accepts;
        self.false_rejects += other.false_rejects;
        self.undecided += other.undecided;
        for (k, n) in other.hazards {
            *self.hazards.entry(k).or_default() += n;
        }
        for (k, f) in other.families {
            let mine = self.families.entry(k).or_default();
            mine.programs += f.programs;
            mine.accepted += f.accepted;
            mine.false_rejects += f.false_rejects;
        }
        for (k, c) in other.false_reject_classes {
            let mine = self.false_reject_classes.entry(k).or_default();
            if mine.programs == 0 || c.marks < mine.marks {
                (mine.smallest, mine.marks) = (c.smallest, c.marks);
            }
            mine.programs += c.programs;
        }
        for (k, text) in other.false_accept_examples {
            let marks = other.accept_marks[&k];
            if self.accept_marks.get(&k).is_none_or(|m| marks < *m) {
                self.accept_marks.insert(k.clone(), marks);
                self.false_accept_examples.insert(k, text);
            }
        }
        self
    }

    fn note(
        &mut self,
        family: &Family,
        code: &Code,
        p: &Program,
        verdict: Verdict,
        limits: Limits,
    ) {
        let marks: u32 = code.marks.iter().map(|&m| weight(family, m)).sum();
        let size = (u32::from(code.split[0] + code.split[1]), marks);
        self.programs += 1;
        let counts = self.families.entry(family.name).or_default();
        counts.programs += 1;
        let breach = predicates(p, &target()).into_iter().next();
        let outcome = match breach {
            Some(b) => Some(b.id.to_owned()),
            None => match explore(p, limits) {
                Outcome::Safe => None,
                Outcome::Unsafe(w) => Some(format!("{:?}", w.hazard)),
                Outcome::TooBig(_) => {
                    self.undecided += 1;
                    return;
                }
            },
        };
        match (verdict, outcome) {
            (Verdict::Accepted, None) => {
                self.accepted += 1;
                counts.accepted += 1;
            }
            (Verdict::Rejected(_), Some(hazard)) => {
                self.rejected += 1;
                *self.hazards.entry(hazard).or_default() += 1;
            }
            (Verdict::Rejected(class), None) => {
                self.rejected += 1;
                self.false_rejects += 1;
                counts.false_rejects += 1;
                let class = self.false_reject_classes.entry(class).or_default();
                class.programs += 1;
                if class.programs == 1 || size < class.marks {
                    (class.smallest, class.marks) = (text::print(p), size);
                }
            }
            (Verdict::Accepted, Some(hazard)) => {
                self.accepted += 1;
                self.false_accepts += 1;
                counts.accepted += 1;
                if self.accept_marks.get(&hazard).is_none_or(|m| size < *m) {
                    self.accept_marks.insert(hazard.clone(), size);
                    self.false_accept_examples.insert(hazard, text::print(p));
                }
            }
        }
    }
}

/// Judges every program of the families, in parallel. `progress` is called now and then with the number of
/// programs judged so far.
pub fn compare(
    families: &[Family],
    limits: Limits,
    judge: impl Fn(&Program) -> Verdict + Sync,
    progress: impl Fn(u64) + Sync,
) -> Summary {
    let work: Vec<(&Family, Code)> =
        families.iter().flat_map(|f| parts(f).into_iter().map(move |c| (f, c))).collect();
    let done = AtomicU64::new(0);
    work.par_iter()
        .map(|(family, first)| {
            let mut summary = Summary::default();
            part(family, *first, &mut |code| {
                let p = program(family, &code);
                let verdict = judge(&p);
                summary.note(family, &code, &p, verdict, limits);
                if summary.programs % 1024 == 0 {
                    progress(done.fetch_add(1024, Ordering::Relaxed) + 1024);
                }
            });
            summary
        })
        .reduce(Summary::default, Summary::merge)
}
