//! Attacks the validator: programs that are safe, programs that are broken, and a second opinion on both.
//!
//! Three sources. `smith/` writes random programs that are valid by construction, `lowerings.rs` lowers
//! real and made-up model shapes with random knobs: both must be accepted. `mutators/` breaks them, one
//! to three ways at a time; what the validator still accepts is judged by the oracle and by executions of
//! the reference VM (`judge.rs`), and whatever these call unsafe is a false accept. Of the mutants that
//! are rejected a sample is judged too, so that each mutator is seen to break something.
//!
//! Programs come in groups of one base and its mutants. A group is made from the seed and its number
//! alone, so a run gives the same counts whatever the number of threads. `tally.rs` counts, `shrink.rs`
//! makes disagreements small, `report.rs` is the result.

pub mod judge;
pub mod lowerings;
pub mod mutators;

mod draw;
mod edit;
mod report;
mod shrink;
mod smith;
mod tally;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amk_schedule_ir::{Program, Target, text};
use amk_validator::check;
use rayon::prelude::*;

use crate::vm::rng::Rng;
use draw::Draw;
use judge::{Opinion, Runs, judge};
use lowerings::{Models, Want, lowering};
pub use report::{DisagreementReport, MutatorReport, Report};
use tally::{Disagreed, Disagreement, Source, Tally, letters, sentence};

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Programs to judge.
    pub count: u64,
    pub seed: u64,
    pub models: Models,
    /// Stop after this time; the count then depends on the machine.
    pub limit: Option<Duration>,
    pub threads: usize,
    /// Executions an accepted program has to survive.
    pub runs: Runs,
    /// Of the rejected mutants one of this many is judged by the oracle.
    pub sample: usize,
    /// The commit the figures belong to.
    pub commit: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            count: 10_000,
            seed: 0,
            models: Models::default(),
            limit: None,
            threads: 1,
            runs: Runs { small: 7, large: 3, huge: 1 },
            sample: 8,
            commit: None,
        }
    }
}

/// How large the programs of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Small,
    Large,
    Huge,
}

/// One base and its mutants.
#[derive(Clone, Copy, Debug)]
struct Group {
    size: Size,
    number: usize,
    programs: usize,
}

/// Programs of one group.
const SMALL_GROUP: u64 = 24;
const LARGE_GROUP: u64 = 40;
const HUGE_GROUP: u64 = 48;

/// The groups of a run, the slow ones first: 0.21% of the programs are huge and 10.2% large.
fn groups(count: u64) -> Vec<Group> {
    let huge = count * 21 / 10_000;
    let large = count * 102 / 1000;
    let small = count - huge - large;
    let mut out = Vec::new();
    for (size, mut left, most) in [
        (Size::Huge, huge, HUGE_GROUP),
        (Size::Large, large, LARGE_GROUP),
        (Size::Small, small, SMALL_GROUP),
    ] {
        while left > 0 {
            let programs = left.min(most);
            out.push(Group { size, number: out.len(), programs: programs as usize });
            left -= programs;
        }
    }
    out
}

/// Runs; `progress` is told how many programs have been judged since it was told last.
///
/// # Errors
/// The threads cannot be started.
pub fn run(
    options: &Options,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Report, rayon::ThreadPoolBuildError> {
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let parts = crate::target::records().iter().map(|r| r.target.clone()).collect::<Vec<_>>();
    let over = AtomicBool::new(false);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads.max(1)).build()?;
    let one = |group: &Group| {
        let late = || options.limit.is_some_and(|limit| start.elapsed() >= limit);
        if over.load(Ordering::Relaxed) || late() {
            over.store(true, Ordering::Relaxed);
            return Tally::new(mutators::all().len());
        }
        let tally = Fuzzer { options, parts: &parts }.group(*group);
        progress(tally.programs);
        tally
    };
    let none = || Tally::new(mutators::all().len());
    let list = groups(options.count);
    let tally = pool.install(|| list.par_iter().with_max_len(1).map(one).reduce(none, Tally::add));
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds());
    let fuzzer = Fuzzer { options, parts: &parts };
    let disagreements = tally.disagreed.iter().map(|d| fuzzer.shrunk(d)).collect();
    let cpu = cpu.zip(cpu_before).map(|(after, before)| after - before);
    Ok(Report::new(&tally, options, seconds, cpu, disagreements))
}

/// Processor time of this process so far, seconds, where the system says: clock ticks of 10 ms.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name, which may hold blanks: user time is the 12th field, system time the 13th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

struct Fuzzer<'a> {
    options: &'a Options,
    parts: &'a [Target],
}

impl Fuzzer<'_> {
    fn group(&self, group: Group) -> Tally {
        let mut tally = Tally::new(mutators::all().len());
        let mut rng = Rng::new(self.options.seed, group.number as u64 + 1);
        let (base, target, source) = self.base(&mut rng, group.size);
        let base = Arc::new(base);
        for place in 0..group.programs {
            let number = (group.number, place);
            if place == 0 {
                match source {
                    Source::Smith => tally.smith += 1,
                    Source::Lowering => tally.lowerings += 1,
                }
                self.program(&mut tally, &mut rng, number, base.clone(), &target, &[]);
            } else {
                let (mutant, made) = mutate(&mut rng, &base);
                tally.mutants += 1;
                self.program(&mut tally, &mut rng, number, Arc::new(mutant), &target, &made);
            }
        }
        tally
    }

    fn base(&self, rng: &mut Rng, size: Size) -> (Program, Target, Source) {
        let (smith_of_10, instructions, want) = match size {
            Size::Small => {
                let (lo, hi) = [(1, 8), (1, 8), (9, 60), (9, 60), (61, 400)][rng.below(5)];
                (7, rng.range(lo, hi), Want { least: 1, most: 480 })
            }
            Size::Large => {
                let most = if rng.chance(1, 10) { 2500 } else { 1000 };
                (3, rng.range(505, most), Want { least: 505, most: most as usize })
            }
            Size::Huge => (1, rng.range(20_050, 22_000), Want { least: 20_050, most: 27_000 }),
        };
        if rng.below(10) >= smith_of_10
            && let Some((p, target)) = lowering(rng, &self.options.models, want, self.parts)
        {
            return (p, target, Source::Lowering);
        }
        let (p, target) = smith::smith(rng, instructions as usize, self.parts);
        (p, target, Source::Smith)
    }

    /// Judges one program and counts.
    fn program(
        &self,
        tally: &mut Tally,
        rng: &mut Rng,
        number: (usize, usize),
        program: Arc<Program>,
        target: &Target,
        made: &[usize],
    ) {
        let n = program.instructions.len();
        let seed = rng.next();
        let sampled =
            made.len() == 1 && n < judge::HUGE && rng.chance(1, self.options.sample.max(1));
        tally.program(n);
        let disagreed = |how, evidence: String| Disagreed {
            how,
            number,
            mutators: made.iter().map(|&m| mutators::all()[m].name).collect(),
            evidence,
            program: program.clone(),
            target: target.clone(),
        };
        let Ok(report) = catch_unwind(AssertUnwindSafe(|| check(&program, target))) else {
            tally.disagreement(disagreed(Disagreement::Panic, "the validator panicked".into()));
            return;
        };
        let runs = self.options.runs.of(n);
        let mut opinion = None;
        if report.ok {
            tally.accepted_judged += 1;
            tally.mutants_accepted += u64::from(!made.is_empty());
            let said = judge(&program, target, seed, runs);
            if said == (Opinion::NotRefuted { explored: true }) {
                tally.accepted_explored += 1;
            }
            let evidence = said.evidence();
            if let Some(e) = &evidence {
                tally.disagreement(disagreed(Disagreement::FalseAccept, sentence(e)));
            }
            opinion = Some(evidence.is_some());
        } else if made.is_empty() {
            let fault = report.faults.first().map(ToString::to_string).unwrap_or_default();
            tally.disagreement(disagreed(Disagreement::FalseReject, fault));
        } else if sampled {
            tally.rejected_judged += 1;
            let found = judge(&program, target, seed, runs.min(7)).evidence().is_some();
            tally.rejected_unsafe += u64::from(found);
            let letters = letters(&report);
            if found && letters.iter().filter(|l| **l).count() == 1 {
                for (count, _) in tally.caught_only_by.iter_mut().zip(letters).filter(|x| x.1) {
                    *count += 1;
                }
            }
            opinion = Some(found);
        }
        for &m in made {
            let t = &mut tally.mutators[m];
            t.made += 1;
            t.accepted += u64::from(report.ok);
            t.rejected += u64::from(!report.ok);
            t.refuted += u64::from(report.ok && opinion == Some(true));
            if made.len() == 1 {
                t.alone += 1;
                t.rejected_alone += u64::from(!report.ok);
                t.judged += u64::from(opinion.is_some());
                t.unsafe_by_oracle += u64::from(opinion == Some(true));
                for (count, found) in t.rejected_by.iter_mut().zip(letters(&report)) {
                    *count += u64::from(found);
                }
            }
        }
    }

    /// The smallest program that shows the same disagreement.
    fn shrunk(&self, d: &Disagreed) -> DisagreementReport {
        let n = d.program.instructions.len();
        let small = match d.how {
            Disagreement::FalseAccept => {
                let still = |p: &Program| {
                    let p = Arc::new(p.clone());
                    check(&p, &d.target).ok
                        && judge(&p, &d.target, self.options.seed, 21).evidence().is_some()
                };
                Some(shrink::shrink(&d.program, budget(n), &still))
            }
            Disagreement::FalseReject => {
                let wanted = letters(&check(&d.program, &d.target));
                let still = |p: &Program| {
                    let report = check(p, &d.target);
                    !report.ok
                        && letters(&report) == wanted
                        && judge(&Arc::new(p.clone()), &d.target, self.options.seed, 21)
                            .evidence()
                            .is_none()
                };
                // Only where the oracle has nothing against the program itself.
                still(&d.program).then(|| shrink::shrink(&d.program, budget(n), &still))
            }
            Disagreement::Panic => None,
        };
        DisagreementReport {
            how: format!("{:?}", d.how),
            mutators: d.mutators.clone(),
            evidence: d.evidence.clone(),
            instructions: n,
            shrunk: small.as_ref().map(|p| p.instructions.len()),
            target: d.target.name.clone(),
            text: text::print(small.as_ref().unwrap_or(&d.program)),
            file: None,
        }
    }
}

/// Questions a shrink may ask.
fn budget(instructions: usize) -> usize {
    (2_000_000 / (instructions + 100)).clamp(100, 5000)
}

/// A program broken in one to three ways, and the mutators that did it.
fn mutate(rng: &mut Rng, base: &Program) -> (Program, Vec<usize>) {
    let mut p = base.clone();
    let wanted = [1, 1, 1, 1, 1, 2, 2, 2, 3, 3][rng.below(10)];
    let mut made = Vec::new();
    while made.len() < wanted {
        let m = rng.below(mutators::all().len());
        if mutators::all()[m].apply(&mut p, rng) && !made.contains(&m) {
            made.push(m);
        }
    }
    (p, made)
}
