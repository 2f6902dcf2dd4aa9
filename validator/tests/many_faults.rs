//! Programs of moderate size with very many faults are refused soon: what is beyond the list is not looked for.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use amk_schedule_ir::text::parse;
use amk_validator::{Fault, Invariant, MAX_FAULTS, check};

mod common;

/// A program to be written.
struct Source {
    epochs: &'static str,
    buffers: Vec<String>,
    /// By SM, the runs of its stream and what its instructions do.
    sms: Vec<(Vec<String>, Vec<String>)>,
}

impl Source {
    fn new(epochs: &'static str, buffers: &[&str], sms: usize) -> Source {
        let buffer = |(i, b): (usize, &&str)| format!("buffer {i} \"b{i}\" {b}");
        Source {
            epochs,
            buffers: buffers.iter().enumerate().map(buffer).collect(),
            sms: vec![Default::default(); sms],
        }
    }

    fn add(&mut self, sm: usize, instruction: String) {
        self.sms[sm].1.push(instruction);
    }

    fn text(&self) -> String {
        let mut text = format!(
            "amk-schedule 1\nname \"many\"\ntarget sm_90a\nbucket 0..=63\ntokens 1\nsteps 8\nepochs {}\n\
             resources warps 4 slots 2 slot_bytes 1024 registers 64 barriers 1\n\
             shared ring 0+2048\nshared mbarrier 2048+32\nshared local 2080+200000\n{}\nboundary plain\n",
            self.epochs,
            self.buffers.join("\n")
        );
        let mut id = 0;
        let mut list = String::new();
        for (s, (runs, instructions)) in self.sms.iter().enumerate() {
            writeln!(text, "sm {s}").unwrap();
            runs.iter().for_each(|run| writeln!(text, "  {run}").unwrap());
            text += "  queue";
            for x in instructions.iter().map(|x| Some(x.as_str())).chain([None]) {
                write!(text, " {id}").unwrap();
                match x {
                    Some(x) => writeln!(list, "instr {id} opaque{{tag=1}}\n  {x}").unwrap(),
                    None => writeln!(list, "instr {id} boundary{{}}").unwrap(),
                }
                id += 1;
            }
            text += "\n";
        }
        text + &list
    }
}

const MANY: &str = "per_step 1 tags 4294967295";
const PHASES: &str = "per_step 2 tags 4294967295";

/// `n` writers of one packet word, in regions that all differ, and as many in one.
fn writers(n: usize, epochs: &'static str) -> Source {
    let mut s = Source::new(epochs, &["activation packet f32 [65536]"], 2);
    for i in 0..n {
        s.add(i % 2, format!("writes 0[0..{}]", i + 1));
        s.add((i + 1) % 2, "writes 0[0..65536]".into());
    }
    s
}

/// Two SMs touch the same local elements.
fn local(n: usize) -> Source {
    let mut s = Source::new(MANY, &["activation local f32 [65536]"], 2);
    (0..n).for_each(|i| s.add(i % 2, format!("writes 0[0..{}]", i + 1)));
    s
}

/// Plain writes of two SMs, with nothing to order them.
fn races(n: usize) -> Source {
    let mut s = Source::new(MANY, &["activation plain f32 [65536]"], 2);
    (0..n).for_each(|i| s.add(i % 2, format!("writes 0[0..{}]", i + 1)));
    s
}

/// An output written again and again by one SM.
fn outputs(n: usize) -> Source {
    let mut s = Source::new(MANY, &["output plain f32 [65536]"], 1);
    (0..n).for_each(|i| s.add(0, format!("writes 0[0..{}]", 65536 - i)));
    s
}

/// One region read before all of it is written, after each of many writes.
fn unwritten(n: usize) -> Source {
    let mut s = Source::new(MANY, &["activation plain f32 [65536]"], 1);
    for i in 0..n {
        s.add(0, format!("writes 0[{i}..{}]", i + 1));
        s.add(0, "reads 0[0..65536]".into());
    }
    s
}

/// The same by two SMs: every read races too.
fn unwritten_races(n: usize) -> Source {
    let mut s = Source::new(MANY, &["activation plain f32 [65536]"], 2);
    for i in 0..n {
        s.add(0, format!("writes 0[{i}..{}]", i + 1));
        s.add(1, "reads 0[0..65536]".into());
        s.add(0, "reads 0[0..65536]".into());
    }
    s
}

/// Words read in phase 0 and rewritten in phase 1 by others, who do not wait.
fn rewritten(n: usize) -> Source {
    let mut s = Source::new(PHASES, &["activation packet f32 [65536]"], 3);
    s.add(0, "writes 0[0..65536]".into());
    for i in 0..n {
        s.add(1, format!("reads 0[0..{}]", 65536 - i));
        s.add(2, format!("writes 0[{i}..{}]@1", i + 1));
    }
    s
}

/// The same with every rewrite before every read.
fn rewritten_first(n: usize) -> Source {
    let mut s = Source::new(PHASES, &["activation packet f32 [65536]"], 3);
    s.add(2, "writes 0[0..65536]".into());
    for i in 0..n {
        s.add(1, format!("reads 0[0..{}]", 65536 - i));
        s.add(2, format!("writes 0[{i}..{}]@1", i + 1));
    }
    s
}

/// Two phases that share a tag, for many readers of many tiles.
fn epochs(n: usize) -> Source {
    let mut s = Source::new("per_step 2 tags 2", &["activation packet f32 [65536]"], 2);
    for i in 0..n {
        s.add(0, format!("writes 0[{i}..{}]@1", i + 1));
        s.add(1, format!("reads 0[0..{}]@1", n - i));
    }
    s
}

/// Runs of one chunk consumed last to first.
fn ring(n: usize) -> Source {
    let mut s = Source::new(MANY, &["weight plain bf16 [64, 32]"], 1);
    for i in 0..n {
        s.sms[0].0.push(format!("run {i} weight 0 rows 0..8 tiles 1 blocks 1 window 1"));
        s.add(0, format!("run {}", n - 1 - i));
    }
    s
}

/// SMs that read packets which instructions behind would write.
fn stuck(n: usize, sms: usize) -> Source {
    let mut s = Source::new(MANY, &["activation packet f32 [65536]"], sms);
    for sm in 0..sms {
        s.add(sm, format!("reads 0[0..{}]", 65536 - sm));
    }
    (0..n).for_each(|i| s.add(i % sms, format!("writes 0[{i}..{}]", i + 1)));
    s
}

/// One race whose order would lean on packets of very many writers and readers.
fn leaning(n: usize) -> Source {
    let mut s = Source::new(MANY, &["activation packet f32 [8]", "activation plain f32 [8]"], 2);
    s.add(0, "writes 1[0..8]".into());
    for _ in 0..n {
        s.add(0, "writes 0[0..8]".into());
        s.add(1, "reads 0[0..8]".into());
    }
    s.add(1, "reads 1[0..8]".into());
    s
}

/// Writers of one region that meets very many others which are read.
fn delivered(n: usize) -> Source {
    let mut s = Source::new(MANY, &["activation packet f32 [65536]"], 2);
    for i in 0..n {
        s.add(0, "writes 0[0..65536]".into());
        s.add(1, format!("reads 0[{i}..{}]", i + 1));
    }
    s
}

#[test]
fn very_many_faults_are_refused_soon() {
    use Invariant::{B, C, D, E, R};
    // A fault for every pair would take minutes; debug builds are given smaller programs. `few` is of fewer pairs than
    // are listed, so that nothing is missed for their number.
    let (n, few) = if cfg!(debug_assertions) { (2_000, 1_500) } else { (20_000, 5_000) };
    let cases: [(&str, Source, Vec<Invariant>, usize); 15] = [
        ("writers", writers(n, MANY), vec![R], MAX_FAULTS),
        ("writers in two phases", writers(n, PHASES), vec![R], MAX_FAULTS),
        ("local", local(n), vec![B], MAX_FAULTS),
        ("races", races(few), vec![R], MAX_FAULTS),
        ("outputs", outputs(n), vec![C], MAX_FAULTS),
        ("unwritten", unwritten(n), vec![C], MAX_FAULTS),
        ("unwritten races", unwritten_races(few), vec![C, R], MAX_FAULTS),
        ("rewritten", rewritten(few), vec![D], MAX_FAULTS),
        ("rewritten first", rewritten_first(few), vec![D], MAX_FAULTS),
        ("epochs", epochs(few), vec![E], MAX_FAULTS),
        ("ring", ring(3 * n), vec![D], MAX_FAULTS),
        ("stuck", stuck(n, 2), vec![D], 1),
        ("stuck at many places", stuck(n, 128), vec![D], 1),
        ("leaning", leaning(n), vec![R], 2),
        ("delivered", delivered(n), vec![R], 1),
    ];
    for (name, source, kinds, least) in cases {
        let program = parse(&source.text()).unwrap();
        let start = Instant::now();
        let report = check(&program, &common::target());
        let took = start.elapsed();
        eprintln!("{name}: {took:?}, {} faults", report.faults.len());
        // Where more regions meet than are listed, C says so besides.
        let plain = |f: &&Fault| !f.message.starts_with("too many regions");
        let found: BTreeSet<Invariant> =
            report.faults.iter().filter(plain).map(|f| f.invariant).collect();
        assert_eq!(found, kinds.into_iter().collect(), "{name}: {:?}", report.faults.first());
        assert!(!report.ok && report.faults.len() >= least, "{name}: {}", report.faults.len());
        assert!(took < Duration::from_secs(10), "{name}: {took:?}");
    }
}
