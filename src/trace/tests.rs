//! Stamps made by hand.

use amk_models::Checkpoint;

use super::*;
use crate::lower::{Knobs, Mode, Shape};
use crate::pipeline::lower_and_validate;
use crate::target::resolve;

fn program() -> Program {
    let checkpoint = Checkpoint::embedded().unwrap();
    let target = resolve("h200").unwrap().target;
    let knobs = Knobs { grid: Some(3), ..Knobs::default() };
    let shape = Shape::of(&checkpoint);
    lower_and_validate(&shape, &target, &knobs, 0, Mode::Bf16).unwrap().0.into_inner()
}

/// Each SM's clock has its own beginning and pace; every instruction waits 1 us, computes 2 and leaves a gap of 1.
fn stamps(program: &Program) -> (Vec<u64>, usize) {
    let words = words_per_sm(program) as usize;
    let mut out = vec![0; words * program.sms.len()];
    for (sm, entry) in program.sms.iter().enumerate() {
        // Cycles of a microsecond, and where clock and time begin.
        let (pace, clock, ns) = (1000 + 500 * sm as u64, 1_000_000 * (sm as u64 + 1), 77_000_000);
        let n = entry.queue.len() as u64;
        let base = sm * words;
        let begin = ns + 500 * sm as u64;
        let head = [clock, begin, clock + 4 * n * pace, begin + 4000 * n];
        out[base..base + HEAD].copy_from_slice(&head);
        for pc in 0..n {
            let at = base + HEAD + pc as usize * ENTRY;
            let reached = clock + 4 * pc * pace;
            out[at..at + 3].copy_from_slice(&[reached, reached + pace, reached + 3 * pace]);
        }
    }
    (out, words)
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6, "{a} is not {b}");
}

#[test]
fn clocks_become_microseconds_of_one_time() {
    let program = program();
    let (stamps, words) = stamps(&program);
    let t = Timeline::new(&program, &stamps, words).unwrap();
    assert_eq!(t.events.len(), program.sms.iter().map(|s| s.queue.len()).sum::<usize>());
    for e in &t.events {
        let begin = 0.5 * f64::from(e.sm) + 4.0 * f64::from(e.queue_index);
        near(e.begin, begin);
        near(e.ready, begin + 1.0);
        near(e.end, begin + 3.0);
    }
    let n = program.sms[2].queue.len() as f64;
    let split = t.by_sm()[2];
    near(split.waiting, n);
    near(split.computing, 2.0 * n);
    near(split.idle, t.us - 3.0 * n);
    let ops = t.by_op();
    assert_eq!(ops.values().map(|s| s.events).sum::<usize>(), t.events.len());
    near(ops["boundary"].computing, 2.0 * 3.0);
    near(t.total().computing, t.by_sm().iter().map(|s| s.computing).sum::<f64>() / 3.0);
}

#[test]
fn missing_stamps_are_told_or_left_out() {
    let program = program();
    let (mut all, words) = stamps(&program);
    let short = Timeline::new(&program, &all[..all.len() - 1], words);
    assert!(matches!(short, Err(TraceError::Length { .. })));
    // No ready stamp: all of it counts as computing.
    all[HEAD + 1] = 0;
    // Never reached.
    all[HEAD + ENTRY + 2] = 0;
    let t = Timeline::new(&program, &all, words).unwrap();
    near(t.events[0].ready, t.events[0].begin);
    assert_eq!(t.events[1].queue_index, 2);
    all[2] = all[0];
    assert_eq!(Timeline::new(&program, &all, words), Err(TraceError::Head { sm: 0 }));
    let nothing = vec![0; words * 3];
    assert_eq!(Timeline::new(&program, &nothing, words), Err(TraceError::Head { sm: 0 }));
}

#[test]
fn the_chrome_form_has_two_events_for_each() {
    let program = program();
    let (stamps, words) = stamps(&program);
    let t = Timeline::new(&program, &stamps, words).unwrap();
    let json = chrome(&t, "a step");
    let events = json["traceEvents"].as_array().unwrap();
    let of = |category: &str| events.iter().filter(|e| e["cat"] == category).collect::<Vec<_>>();
    assert_eq!(of("wait").len(), t.events.len());
    assert_eq!(of("compute").len(), t.events.len());
    for e in of("compute") {
        near(e["dur"].as_f64().unwrap(), 2.0);
        assert!(e["args"]["instruction"].is_u64());
    }
    assert_eq!(events.iter().filter(|e| e["name"] == "thread_name").count(), 3);
}

#[test]
fn the_page_shows_every_op_and_phase() {
    let program = program();
    let (stamps, words) = stamps(&program);
    let t = Timeline::new(&program, &stamps, words).unwrap();
    let page = page(&t, "a <step>").unwrap();
    assert!(page.contains("a &lt;step&gt;") && !page.contains("<script"));
    for op in t.by_op().keys() {
        for phase in ["wait", "compute"] {
            assert!(page.contains(&format!("<title>{op}, {phase}</title>")), "{op} {phase}");
        }
    }
    assert!(page.contains("class=\"idle\""));
}
