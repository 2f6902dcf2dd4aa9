//! Hand-written programs: what is right runs clean in every interleaving, and each fault is reported
//! as what it is, naming what is involved.

use std::sync::Arc;

use amk::vm::{BlockedOn, FaultKind, Options, Outcome, Policy, Vm, VmFault, refute};
use amk_schedule_ir::{Program, text};

const SEEDS: u64 = 12;

fn program(body: &str, per_step: u32, tags: u64) -> String {
    format!(
        "amk-schedule 1\nname \"t\"\ntarget sm_90a\nbucket 0..=63\ntokens 1\nsteps 16\n\
         epochs per_step {per_step} tags {tags}\n\
         resources warps 4 slots 2 slot_bytes 4096 registers 64 barriers 1\n{body}"
    )
}

fn run(source: &str, options: Options, steps: u64) -> Result<Outcome, Vec<VmFault>> {
    let program = Arc::new(text::parse(source).unwrap());
    Vm::new(program, None, options).map_err(|f| vec![f])?.run(0, steps)
}

/// Every policy with several seeds, coarse and fine.
fn settings() -> impl Iterator<Item = Options> {
    Policy::ALL.into_iter().flat_map(|policy| {
        (0..SEEDS).map(move |seed| Options {
            seed,
            policy,
            fine: Some(seed % 2 == 0),
            ..Options::default()
        })
    })
}

fn clean(source: &str, steps: u64) {
    for options in settings() {
        let outcome = run(source, options.clone(), steps);
        let outcome = outcome.unwrap_or_else(|f| panic!("{options:?}: {}", f[0]));
        assert_eq!(outcome.steps.len() as u64, steps);
    }
}

/// The faults of every run, each of which has one of `kinds`.
fn faulty(source: &str, steps: u64, kinds: &[FaultKind]) -> Vec<VmFault> {
    let mut all = Vec::new();
    for options in settings() {
        let faults = match run(source, options.clone(), steps) {
            Ok(_) => panic!("no fault with {options:?}"),
            Err(faults) => faults,
        };
        assert!(faults.iter().any(|f| kinds.contains(&f.kind())), "{options:?}: {faults:?}");
        all.extend(faults);
    }
    all
}

fn messages(faults: &[VmFault]) -> String {
    faults.iter().map(|f| f.to_string() + "\n").collect()
}

const RAW: &str = r#"buffer 0 "x" activation plain f32 [1, 16]
buffer 1 "y" activation plain f32 [1, 16]
counter 0 "x done" init 0 per_step 2
boundary plain
sm 0
  queue 0 3
sm 1
  queue 1 4
sm 2
  queue 2 5
instr 0 opaque{tag=1}
  writes 0[0..1, 0..8]
  signal 0+1
instr 1 opaque{tag=2}
  writes 0[0..1, 8..16]
  signal 0+1
instr 2 opaque{tag=3}
  reads 0[0..1, 0..16]
  writes 1[0..1, 0..16]
  wait 0>=2
instr 3 boundary{}
instr 4 boundary{}
instr 5 boundary{}
"#;

#[test]
fn counters_order_and_boundaries_allow_reuse() {
    clean(&program(RAW, 1, 9), 5);
}

#[test]
fn a_dropped_wait_is_a_race() {
    let faults = faulty(&program(&RAW.replace("  wait 0>=2\n", ""), 1, 9), 3, &[FaultKind::Race]);
    let text = messages(&faults);
    assert!(text.contains("buffer 0 `x`") && text.contains("instr 2"), "{text}");
    // Where the reader came first it also found nothing.
    assert!(faults.iter().any(|f| f.kind() == FaultKind::Unwritten), "{text}");
}

#[test]
fn a_threshold_one_short_races_in_some_interleaving() {
    let short = program(&RAW.replace("wait 0>=2", "wait 0>=1"), 1, 9);
    let races = settings().filter(|o| {
        let faults = run(&short, o.clone(), 3).err().unwrap_or_default();
        faults.iter().any(|f| f.kind() == FaultKind::Race)
    });
    assert!(races.count() > Policy::ALL.len() * SEEDS as usize / 2);
}

#[test]
fn a_threshold_out_of_reach_is_stuck_in_the_second_step() {
    // The first step gives two signals; the second waits for three more than its base.
    let source = program(&RAW.replace("per_step 2", "per_step 3"), 1, 9);
    for fault in faulty(&source, 3, &[FaultKind::Stuck]) {
        let VmFault::Stuck { blocked } = fault else { panic!("{fault}") };
        assert_eq!(blocked[0].step, 1);
        let want = BlockedOn::Counter { name: "x done".into(), value: 4, target: 5 };
        assert_eq!(blocked[0].on, want);
        assert!(blocked[1..].iter().all(|b| matches!(b.on, BlockedOn::Boundary { .. })));
    }
}

#[test]
fn a_cycle_of_waits_is_stuck_naming_both() {
    let source = program(
        r#"counter 0 "a" init 0 per_step 1
counter 1 "b" init 0 per_step 1
boundary plain
sm 0
  queue 0 1 4
sm 1
  queue 2 3 5
instr 0 opaque{tag=1}
  wait 1>=1
instr 1 opaque{tag=2}
  signal 0+1
instr 2 opaque{tag=3}
  wait 0>=1
instr 3 opaque{tag=4}
  signal 1+1
instr 4 boundary{}
instr 5 boundary{}
"#,
        1,
        9,
    );
    let text = messages(&faulty(&source, 1, &[FaultKind::Stuck]));
    assert!(text.contains("counter `a` to reach 1; it is 0"), "{text}");
    assert!(text.contains("counter `b` to reach 1; it is 0"), "{text}");
}

#[test]
fn unordered_writers_race() {
    let source = program(&RAW.replace("0[0..1, 8..16]", "0[0..1, 7..16]"), 1, 9);
    let faults = faulty(&source, 2, &[FaultKind::Race]);
    let element = "buffer 0 `x` element [0, 7]:";
    assert!(faults.iter().all(|f| f.to_string().contains(element)), "{}", messages(&faults));
}

const STREAM: &str = r#"buffer 0 "w" weight plain bf16 [64, 32]
boundary plain
sm 0
  run 0 weight 0 rows 0..24 tiles 1 blocks 1 window 2
  run 1 weight 0 rows 24..48 tiles 1 blocks 1 window 1
  queue 0 1 2
instr 0 opaque{tag=1}
  run 0
instr 1 opaque{tag=2}
  run 1
instr 2 boundary{}
"#;

#[test]
fn a_stream_runs_through_its_ring() {
    clean(&program(STREAM, 1, 9), 7);
}

#[test]
fn a_ring_drained_in_another_order_is_stuck() {
    let source = program(&STREAM.replace("queue 0 1 2", "queue 1 0 2"), 1, 9);
    let text = messages(&faulty(&source, 1, &[FaultKind::Stuck]));
    assert!(text.contains("for chunk 3, which its producer has not issued"), "{text}");
    assert!(text.contains("the ring slot of chunk 2, which chunk 0 still holds"), "{text}");
}

#[test]
fn a_closed_window_is_stuck() {
    let source = program(&STREAM.replace("window 1", "window 0"), 1, 9);
    let text = messages(&faulty(&source, 1, &[FaultKind::Stuck]));
    assert!(text.contains("the window of 0 chunks to let chunk 3 through"), "{text}");
}

#[test]
fn a_run_nobody_consumes_is_reported() {
    let one = STREAM.replace("rows 24..48", "rows 24..32").replace("tag=2}\n  run 1\n", "tag=2}\n");
    faulty(&program(&one, 1, 9), 1, &[FaultKind::Unconsumed]);
    faulty(&program(&one, 1, 9), 4, &[FaultKind::Stuck]);
}

const PACKETS: &str = r#"buffer 0 "h" activation packet bf16 [1, 16]
boundary plain
sm 0
  queue 0 3
sm 1
  queue 1 4
sm 2
  queue 2 5
instr 0 opaque{tag=1}
  writes 0[0..1, 0..8]
instr 1 opaque{tag=2}
  writes 0[0..1, 8..16]
instr 2 opaque{tag=3}
  reads 0[0..1, 0..16]
instr 3 boundary{}
instr 4 boundary{}
instr 5 boundary{}
"#;

#[test]
fn packets_deliver_themselves() {
    clean(&program(PACKETS, 1, 1 << 32), 6);
}

#[test]
fn a_half_written_region_is_stuck_at_its_first_missing_word() {
    let source = program(&PACKETS.replace("writes 0[0..1, 8..16]", "writes 0[0..1, 8..14]"), 1, 99);
    for fault in faulty(&source, 2, &[FaultKind::Stuck]) {
        let VmFault::Stuck { blocked } = fault else { panic!("{fault}") };
        let BlockedOn::Packet { place, expected, seen } = &blocked[0].on else { panic!() };
        assert_eq!((&place.first[..], *expected, *seen), (&[0, 14][..], 1, 0));
    }
}

#[test]
fn half_a_word_is_no_packet() {
    let source = program(&PACKETS.replace("0..8]", "0..7]"), 1, 99);
    faulty(&source, 1, &[FaultKind::Malformed]);
}

#[test]
fn the_wrong_phase_is_stuck_with_both_tags() {
    let wrong = PACKETS.replace("reads 0[0..1, 0..16]", "reads 0[0..1, 0..16]@1");
    let text = messages(&faulty(&program(&wrong, 2, 99), 1, &[FaultKind::Stuck]));
    assert!(text.contains("tag 2 in buffer 0 `h` element [0, 0]"), "{text}");
}

#[test]
fn packets_carry_no_order_for_others() {
    // The writer of a packet has written plain memory before it; seeing the packet orders nothing.
    let source = program(
        r#"buffer 0 "flag" activation packet f32 [1, 2]
buffer 1 "x" activation plain f32 [1, 4]
boundary plain
sm 0
  queue 0 1 3
sm 1
  queue 2 4
instr 0 opaque{tag=1}
  writes 1[0..1, 0..4]
instr 1 opaque{tag=2}
  writes 0[0..1, 0..2]
instr 2 opaque{tag=3}
  reads 0[0..1, 0..2] 1[0..1, 0..4]
instr 3 boundary{}
instr 4 boundary{}
"#,
        1,
        99,
    );
    let text = messages(&faulty(&source, 2, &[FaultKind::Race]));
    assert!(text.contains("race on buffer 1 `x`"), "{text}");
}

/// Two phases of one packet buffer; `ORDER` may let the second wait for the first's readers.
const PHASES: &str = r#"buffer 0 "h" activation packet f32 [1, 8]
counter 0 "read" init 0 per_step 1
boundary plain
sm 0
  queue 0 1 4
sm 1
  queue 2 3 5
instr 0 opaque{tag=1}
  writes 0[0..1, 0..8]
instr 1 opaque{tag=2}
  writes 0[0..1, 0..8]@1
  wait 0>=1
instr 2 opaque{tag=3}
  reads 0[0..1, 0..8]
  signal 0+1
instr 3 opaque{tag=4}
  reads 0[0..1, 0..8]@1
instr 4 boundary{}
instr 5 boundary{}
"#;

#[test]
fn a_packet_buffer_is_reused_after_its_readers() {
    clean(&program(PHASES, 2, 99), 5);
}

#[test]
fn a_packet_rewritten_too_early_is_a_race_or_a_missed_epoch() {
    let source = program(&PHASES.replace("  wait 0>=1\n", ""), 2, 99);
    let faults = faulty(&source, 2, &[FaultKind::Race, FaultKind::MissedEpoch]);
    for kind in [FaultKind::Race, FaultKind::MissedEpoch] {
        assert!(faults.iter().any(|f| f.kind() == kind), "{kind:?}");
    }
}

#[test]
fn tags_that_repeat_deliver_old_values() {
    // One tag: the reader of step 1 may take the words of step 0.
    let source = program(PACKETS, 1, 1);
    let wrong = settings().filter(|o| {
        let faults = run(&source, o.clone(), 4).err().unwrap_or_default();
        faults.iter().any(|f| f.kind() == FaultKind::WrongEpoch)
    });
    assert!(wrong.count() > 20);
    clean(&program(PACKETS, 1, 2), 4);
}

#[test]
fn leftovers_of_an_earlier_launch_look_like_new_ones_if_epochs_restart() {
    let source = program(PACKETS, 1, 99);
    let mut wrong = 0;
    for options in settings() {
        let restarted = Options { leftover_epoch: Some(99), ..options.clone() };
        let faults = run(&source, restarted, 1).err().unwrap_or_default();
        wrong += usize::from(faults.iter().any(|f| f.kind() == FaultKind::WrongEpoch));
        let continued = Options { leftover_epoch: Some(98), epoch_base: 99, ..options };
        run(&source, continued, 3).unwrap();
    }
    assert!(wrong > 20);
}

#[test]
fn a_value_lives_for_one_step() {
    // The reader comes before the writer: nothing in step 0, the last step's value in step 1.
    let source = program(
        r#"buffer 0 "x" activation plain f32 [1, 4]
boundary plain
sm 0
  queue 0 1 2
instr 0 opaque{tag=1}
  reads 0[0..1, 0..4]
instr 1 opaque{tag=2}
  writes 0[0..1, 0..4]
instr 2 boundary{}
"#,
        1,
        99,
    );
    let faults = faulty(&source, 2, &[FaultKind::Unwritten]);
    let stale = faults.iter().filter(|f| f.kind() == FaultKind::Stale).count();
    assert_eq!(stale, Policy::ALL.len() * SEEDS as usize);
    assert!(
        messages(&faults).contains("the write of instr 1 (the consumers of sm 0, step 0) left")
    );
}

#[test]
fn outputs_local_and_read_only_buffers_keep_their_rules() {
    let source = |writes: &str, other: &str| {
        program(
            &format!(
                r#"buffer 0 "out" output plain f32 [8]
buffer 1 "mine" activation local f32 [1, 8]
buffer 2 "table" constant plain f32 [8]
counter 0 "c" init 0 per_step 1
boundary plain
sm 0
  queue 0 1
sm 1
  queue 2 3
instr 0 opaque{{tag=1}}
  writes {writes}
  signal 0+1
instr 1 boundary{{}}
instr 2 opaque{{tag=2}}
  {other}
  wait 0>=1
instr 3 boundary{{}}
"#
            ),
            1,
            99,
        )
    };
    clean(&source("0[0..5] 1[0..1, 0..4]", "writes 0[5..8] 1[0..1, 4..8]"), 3);
    faulty(&source("0[0..5]", "writes 0[6..8]"), 1, &[FaultKind::MissingOutput]);
    faulty(&source("0[0..5]", "writes 0[4..8]"), 1, &[FaultKind::DoubleWrite]);
    let whole = "0[0..8] 1[0..1, 0..8]";
    faulty(&source(whole, "reads 1[0..1, 0..4]"), 1, &[FaultKind::Shared]);
    faulty(&source("0[0..8] 2[0..1]", "reads 2[0..8]"), 1, &[FaultKind::ReadOnly]);
    faulty(&source("0[0..9]", "reads 2[0..8]"), 1, &[FaultKind::OutOfBounds]);
    faulty(&source("0[0..8]", "reads 2[0..9]"), 1, &[FaultKind::OutOfBounds]);
}

/// Rows of a cache are appended by one SM and streamed by another.
const CACHE: &str = r#"buffer 0 "k" kv plain bf16 [1, 64, 8]
boundary plain
sm 0
  queue 0 1
sm 1
  run 0 kv 0 [0..1, 0..pos, 0..8] rows 32 gate 1 window 2
  queue 2 3
instr 0 opaque{tag=1}
  writes 0[0..1, pos..pos+1, 0..8]
instr 1 boundary{}
instr 2 opaque{tag=2}
  run 0
instr 3 boundary{}
"#;

#[test]
fn a_gate_lets_the_stream_see_what_was_appended() {
    clean(&program(CACHE, 1, 99), 6);
}

#[test]
fn a_gate_too_early_races_with_the_append() {
    let late = CACHE.replace("gate 1", "gate 2");
    let wide = program(&late, 1, 99).replace("slots 2", "slots 8");
    let faults = faulty(&wide, 6, &[FaultKind::Race, FaultKind::Unwritten]);
    let text = messages(&faults);
    assert!(text.contains("the stream's read (the producer of sm 1"), "{text}");
    // Reading what is appended in the same step needs more than a gate.
    let own = CACHE.replace("0..pos,", "0..pos+1,");
    faulty(&program(&own, 1, 99), 3, &[FaultKind::Race, FaultKind::Unwritten]);
}

#[test]
fn a_gate_on_the_step_itself_is_stuck() {
    let text = messages(&faulty(
        &program(&CACHE.replace("gate 1", "gate 0"), 1, 99),
        2,
        &[FaultKind::Stuck],
    ));
    assert!(text.contains("the boundary that ends step 0, the gate of chunk 0"), "{text}");
}

#[test]
fn a_region_that_leaves_the_cache_is_out_of_bounds() {
    let source = program(&CACHE.replace("[1, 64, 8]", "[1, 4, 8]"), 1, 99);
    clean(&source, 4);
    faulty(&source, 5, &[FaultKind::OutOfBounds]);
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let cases = [
        ("queue 0 3", "queue 0 9", "queues instr 9"),
        ("queue 0 3", "queue 0", "or no boundary at it"),
        ("queue 0 3", "queue 3 0", "boundary before the end"),
        ("queue 1 4", "queue 0 4", "is queued twice"),
        ("wait 0>=2", "wait 7>=2", "counter that does not exist"),
        ("reads 0[0..1, 0..16]", "reads 9[0..1, 0..16]", "buffer 9, which does not exist"),
        ("reads 0[0..1, 0..16]", "reads 0[0..16]", "another rank"),
        ("[1, 16]", "[1, 0]", "no elements"),
        ("per_step 2", "per_step 2\ncounter 0 \"again\" init 0 per_step 1", "another id"),
    ];
    for (from, to, want) in cases {
        let source = program(&RAW.replacen(from, to, 1), 1, 9);
        let faults = run(&source, Options::default(), 1).unwrap_err();
        assert_eq!(faults[0].kind(), FaultKind::Malformed, "{}", faults[0]);
        assert!(faults[0].to_string().contains(want), "{} / {want}", faults[0]);
    }
    let faults = run(&program(RAW, 1, 9), Options::default(), 17).unwrap_err();
    assert_eq!(faults[0].kind(), FaultKind::Launch);
}

#[test]
fn a_run_is_its_seed_and_policy() {
    for (source, steps) in
        [(program(PHASES, 2, 99), 5), (program(&RAW.replace("  wait 0>=2\n", ""), 1, 9), 3)]
    {
        for options in settings() {
            assert_eq!(run(&source, options.clone(), steps), run(&source, options, steps));
        }
    }
}

/// The schedules of a folder of `tests/schedules` that can be read, by name.
fn fixtures(folder: &str) -> Vec<(String, Arc<Program>)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schedules");
    let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<_> = entries
        .filter_map(|path| {
            let program = text::parse(&std::fs::read_to_string(&path).ok()?).ok()?;
            Some((path.file_stem()?.to_string_lossy().into_owned(), Arc::new(program)))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn accepted_schedules_are_not_refuted() {
    let all = fixtures("accept");
    assert!(all.len() >= 40);
    for (name, program) in all {
        if let Some(r) = refute(&program, 5, 70) {
            panic!("{name} from position {} with {:?}: {}", r.pos, r.options, r.faults[0]);
        }
    }
}

/// What hangs on a signal taking effect after packets that its SM has written later: the VM performs
/// signals with their instruction. The oracle shows these.
const LATE_SIGNALS: &[&str] = &["r-overtaken"];

#[test]
fn rejected_schedules_show_their_fault() {
    // What an execution can show: coverage, deadlock, races, and a cache too small.
    let shown = |name: &str| {
        ["c-", "d-", "r-", "k-capacity"].iter().any(|p| name.starts_with(p))
            && !LATE_SIGNALS.contains(&name)
    };
    let all: Vec<_> = fixtures("reject").into_iter().filter(|(name, _)| shown(name)).collect();
    assert!(all.len() >= 20);
    for (name, program) in all {
        let found = (0..8).filter(|seed| refute(&program, 100 * seed, 21).is_some()).count();
        assert_eq!(found, 8, "{name}");
    }
}
