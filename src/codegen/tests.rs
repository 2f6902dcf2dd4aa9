//! What codegen refuses, and that tables and arena hold what the program says.

use amk_schedule_ir::op::Opaque;
use amk_schedule_ir::*;
use minijinja::ErrorKind;

use super::arena::{Arena, COUNTER_STRIDE, buffer_bytes};
use super::variants::{F, Plan, WORDS};
use super::{CodegenError, RenderOptions, source, tables};
use crate::lower::{EdgeKind, Edges, Knobs, Mode, Shape, Sizes, lower_for};
use crate::target::{Target, resolve};

fn target() -> Target {
    resolve("sm_90a").unwrap().target
}

fn sizes(hidden: u64, head_dim: u64, inner: u64, vocab: u64) -> Sizes {
    let (layers, heads, kv_heads) = (3, 6, 2);
    let scale = (head_dim as f32).sqrt().recip();
    let (max_positions, eps) = (600, 1e-5);
    Sizes { hidden, layers, heads, kv_heads, head_dim, inner, vocab, max_positions, eps, scale }
}

fn lowered(knobs: &Knobs, position: u64, mode: Mode) -> Program {
    let shape = Shape::llama("test", sizes(84, 20, 130, 509), false, DType::Bf16);
    // Few SMs, so that each has several runs.
    let knobs = Knobs { grid: Some(12), ..knobs.clone() };
    lower_for(&shape, &target(), &knobs, position, mode).unwrap().program
}

fn plain() -> Program {
    lowered(&Knobs::default(), 0, Mode::Bf16)
}

/// Everything a program can ask of the tables: counters, packets, splits, both modes, several tokens.
fn programs() -> Vec<Program> {
    let mixed = Edges { hidden: EdgeKind::Counter, partial: EdgeKind::Counter, ..Edges::default() };
    let counters = Edges {
        hidden: EdgeKind::Counter,
        qkv: EdgeKind::Counter,
        attention: EdgeKind::Counter,
        act: EdgeKind::Counter,
        partial: EdgeKind::Counter,
    };
    vec![
        plain(),
        lowered(&Knobs { edges: mixed, splits: Some(3), ..Knobs::default() }, 300, Mode::Bf16),
        lowered(&Knobs { edges: counters, tokens: 4, ..Knobs::default() }, 0, Mode::F32),
        lowered(&Knobs { slot_bytes: Some(1024), ..Knobs::default() }, 0, Mode::F32),
    ]
}

fn refusal(program: &Program) -> String {
    let error = source::render(program, &target(), RenderOptions::default()).unwrap_err();
    error.to_string()
}

/// The first instruction for which `wanted` holds.
fn find(p: &Program, wanted: impl Fn(&Op) -> bool) -> usize {
    p.instructions.iter().position(|i| wanted(&i.op)).unwrap()
}

fn is_product(op: &Op) -> bool {
    matches!(op, Op::LinearResidual(_))
}

#[test]
fn opaque_ops_are_refused_by_name() {
    let mut p = plain();
    let at = find(&p, is_product);
    p.instructions[at].op = Op::Opaque(Opaque { tag: 1 });
    p.instructions[at].run = None;
    // Its run is nobody's now, so the next one is out of order as well; the op comes first.
    let message = refusal(&p);
    assert!(message.starts_with(&format!("instr {at}: an opaque op")), "{message}");
}

#[test]
fn kv_runs_are_refused_by_name() {
    // In the stream, before anything consumes it.
    let mut p = plain();
    let cache = p.buffers.iter().find(|b| b.kind == BufferKind::Kv).unwrap().id;
    let region = Region(vec![Span::at(0, 1), Span::at(0, 1), Span::at(0, 20)]);
    let run = &mut p.sms[5].stream[2];
    run.source = RunSource::Kv { buffer: cache, region, rows: 16, gate: 1 };
    // The matrix product that consumes it is the first to notice.
    let message = refusal(&p);
    assert!(message.contains("a matrix product without a weight run"), "{message}");
    let plan = Plan::new(&plain()).unwrap();
    let message = tables::pack(&p, &plan).unwrap_err().to_string();
    assert!(message.contains("run 2 of sm 5: keys and values in the weight stream"), "{message}");
    // Consumed by attention.
    let mut p = plain();
    let at = find(&p, |op| matches!(op, Op::Attention(_)));
    let sm = p.sms.iter().position(|s| s.queue.contains(&InstrId(at as u32))).unwrap();
    let place = p.sms[sm].queue.iter().position(|i| i.index() == at).unwrap();
    let before = &p.sms[sm].queue[..place];
    let runs = before.iter().filter(|i| p.instructions[i.index()].run.is_some()).count();
    p.instructions[at].run = Some(RunId(runs as u32));
    let message = refusal(&p);
    assert!(message.starts_with(&format!("instr {at}: keys and values")), "{message}");
}

#[test]
fn runs_out_of_order_are_refused_by_name() {
    let mut p = plain();
    let with_runs: Vec<usize> = p.sms[7]
        .queue
        .iter()
        .map(|i| i.index())
        .filter(|i| p.instructions[*i].run.is_some())
        .collect();
    let (a, b) = (with_runs[1], with_runs[2]);
    p.instructions[a].run = Some(RunId(2));
    p.instructions[b].run = Some(RunId(1));
    let message = refusal(&p);
    assert!(message.starts_with(&format!("instr {a}: its run is consumed out of")), "{message}");
    // One that is left out is out of order too.
    let mut p = plain();
    p.instructions[a].run = Some(RunId(5));
    assert!(refusal(&p).starts_with(&format!("instr {a}: its run is consumed out of")));
}

#[test]
fn other_programs_the_templates_cannot_run_are_refused_by_name() {
    type Break = fn(&mut Program);
    let cases: &[(&str, Break)] = &[
        ("instr 4294967295 does not exist", |p| p.sms[0].queue[0] = InstrId(u32::MAX)),
        ("a matrix product without a weight run", |p| {
            let at = find(p, is_product);
            p.instructions[at].run = None;
        }),
        ("its input type differs", |p| {
            let at = find(p, is_product);
            let input = p.instructions[at].reads[0].buffer;
            p.buffers[input.index()].dtype = DType::F32;
        }),
        ("its residual rows differ", |p| {
            let at = find(p, is_product);
            let Op::LinearResidual(op) = &mut p.instructions[at].op else { unreachable!() };
            op.rows.hi += 8;
        }),
        ("head shapes that differ between layers", |p| {
            let at = p.instructions.iter().rposition(|i| matches!(i.op, Op::Attention(_))).unwrap();
            let Op::Attention(op) = &mut p.instructions[at].op else { unreachable!() };
            op.head_dim = 64;
        }),
        ("an operand is missing", |p| {
            let at = find(p, is_product);
            p.instructions[at].reads.clear();
        }),
        ("does not fit a 32-bit instruction field", |p| {
            let at = find(p, |op| matches!(op, Op::Attention(_)));
            let Op::Attention(op) = &mut p.instructions[at].op else { unreachable!() };
            op.capacity = 1 << 40;
        }),
        ("positions per step", |p| p.tokens = 17),
        ("decodes nothing", |p| p.boundary.reads.clear()),
        ("decodes nothing", |p| {
            p.buffers
                .iter_mut()
                .filter(|b| b.kind == BufferKind::Tokens)
                .for_each(|b| b.kind = BufferKind::Output);
        }),
    ];
    for (want, broken) in cases {
        let mut p = plain();
        broken(&mut p);
        let message = refusal(&p);
        assert!(message.contains(want), "{want}: {message}");
    }
}

#[test]
fn launches_that_use_a_tag_twice_are_refused() {
    let render = |p: &Program| source::render(p, &target(), RenderOptions::default());
    // As many epochs as there are tags: the last step's end just before the first one's come again.
    let mut p = plain();
    (p.epochs.per_step, p.max_steps) = (3, 1 << 8);
    p.epochs.tags = 3 << 8;
    render(&p).unwrap();
    for (tags, steps) in [((3 << 8) - 1, 1 << 8), (3 << 8, (1 << 8) + 1), (3 << 8, u64::MAX)] {
        (p.epochs.tags, p.max_steps) = (tags, steps);
        let error = render(&p).unwrap_err();
        assert!(
            matches!(error, CodegenError::EpochWrap { steps: s, per_step: 3, tags: t } if (s, t) == (steps, tags)),
            "{error}"
        );
        // The tables are refused as well, not the text alone.
        assert!(matches!(Plan::new(&p), Err(CodegenError::EpochWrap { .. })));
    }
}

#[test]
fn control_areas_too_small_for_what_is_kept_in_them_are_refused() {
    let control = |p: &Program| match Plan::new(p) {
        Err(CodegenError::ControlArea { what, end, room, .. }) => Some((what, end, room)),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    };
    let with = |tokens, warps| {
        let mut p = plain();
        (p.tokens, p.resources.consumer_warps) = (tokens, warps);
        p
    };
    // 64 + 8 * 248 bytes reach the keys exactly.
    for (tokens, warps) in [(1, 31), (8, 31), (16, 15)] {
        assert_eq!(control(&with(tokens, warps)), None, "{tokens} x {warps}");
    }
    for (tokens, warps) in [(16, 31), (16, 16), (9, 31)] {
        let end = 64 + 8 * u64::from(tokens * warps);
        let want = Some(("sums of squares", end, 2048));
        assert_eq!(control(&with(tokens, warps)), want, "{tokens} x {warps}");
    }
    let mut p = with(1, 8);
    let set = |p: &mut Program, bytes| {
        let area = p.resources.shared.iter_mut().find(|s| s.area == Area::Control);
        area.unwrap().bytes = bytes;
    };
    set(&mut p, 2048 + 64);
    assert_eq!(control(&p), None);
    set(&mut p, 2048 + 63);
    assert_eq!(control(&p), Some(("argmax keys", 2112, 2111)));
    p.resources.shared.retain(|s| s.area != Area::Control);
    let error = source::render(&p, &target(), RenderOptions::default()).unwrap_err();
    assert!(matches!(error, CodegenError::ControlArea { room: 0, .. }), "{error}");
    assert!(error.to_string().contains("control area"), "{error}");
}

#[test]
fn targets_that_do_not_fit_are_refused_by_name() {
    let p = plain();
    let other = resolve("sm_80").unwrap().target;
    let error = source::render(&p, &other, RenderOptions::default()).unwrap_err();
    assert!(matches!(error, CodegenError::Target { .. }), "{error}");
    assert!(error.to_string().contains("sm_90a") && error.to_string().contains("sm_80"));
    let mut bare = target();
    (bare.features.bulk_copy, bare.features.cp_async) = (false, false);
    let error = source::render(&p, &bare, RenderOptions::default()).unwrap_err();
    assert!(error.to_string().contains("neither bulk copies nor cp.async"), "{error}");
}

#[test]
fn an_undefined_name_in_a_template_is_an_error() {
    let env = source::environment().unwrap();
    let missing = env.render_str("{{ res.no_such_thing }}", minijinja::context! { res => 1 });
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::UndefinedError);
    let branch = env.render_str("{% if nothing %}a{% endif %}", ());
    assert_eq!(branch.unwrap_err().kind(), ErrorKind::UndefinedError);
    // Every template asks for something, so that none renders out of nothing but plain text.
    let kernel = env.get_template("megakernel.cu.j2").unwrap();
    let error = kernel.render(minijinja::context! { program => 1 }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UndefinedError);
}

#[test]
fn a_name_cannot_break_out_of_its_comment() {
    let mut p = plain();
    p.name = "a\n#include <b>\r\\\u{2028}{{ c }}".to_owned();
    let text = source::render(&p, &target(), RenderOptions::default()).unwrap().text;
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("// a #include <b>") && first.contains("{{ c }}"), "{first}");
    assert!(text.lines().nth(1).unwrap().starts_with("// Instructions are data"));
}

/// A table read back as the kernel reads it.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }

    fn words<const N: usize>(&self, at: usize) -> [u32; N] {
        std::array::from_fn(|n| self.word(at + 4 * n))
    }
}

/// One instruction record.
struct Entry([u32; WORDS]);

impl Entry {
    fn field(&self, f: F) -> u64 {
        u64::from(self.0[f as usize])
    }

    fn address(&self, f: F) -> u64 {
        let low = f as usize;
        u64::from(self.0[low]) | u64::from(self.0[low + 1]) << 32
    }
}

#[test]
fn packed_tables_say_what_the_program_says() {
    for p in programs() {
        let plan = Plan::new(&p).unwrap();
        let packed = tables::pack(&p, &plan).unwrap();
        let t = Reader { bytes: &packed.bytes };
        let [code_at, run_at, wait_at, signal_at] = t.words(0).map(|w: u32| w as usize);
        assert!(code_at.is_multiple_of(128));
        let (mut instrs, mut runs, mut waits, mut signals, mut stream) = (0, 0, 0, 0, 0);
        assert_eq!(packed.weight_at.len(), p.sms.len());
        for (n, sm) in p.sms.iter().enumerate() {
            let head: [u32; 4] = t.words(16 + 32 * n);
            let lengths = [instrs, sm.queue.len(), runs, sm.stream.len()];
            assert_eq!(head.map(|w| w as usize), lengths, "{}", sm.id);
            assert_eq!((t.long(16 + 32 * n + 16), packed.weight_at[n]), (stream, stream));
            for run in &sm.stream {
                let RunSource::Weight { buffer, lo, hi, tiles, blocks } = run.source else {
                    unreachable!()
                };
                let buffer = p.buffer(buffer).unwrap();
                let total = weight_blocks(buffer).unwrap();
                let count = (hi - lo).div_ceil(TILE_ROWS);
                let entry: [u32; 8] = t.words(run_at + 32 * runs);
                assert_eq!(entry, [tiles, blocks, total as u32, count as u32, run.window, 0, 0, 0]);
                // What the producer walks is what the IR counts.
                let parts = total.div_ceil(u64::from(blocks));
                let chunks = count.div_ceil(u64::from(tiles)) * parts;
                assert_eq!(run.source.chunks(buffer), Some(chunks));
                stream += count * total * BLOCK_BYTES;
                runs += 1;
            }
            for id in &sm.queue {
                let i = p.instruction(*id).unwrap();
                let entry = Entry(t.words(code_at + 128 * instrs));
                let edges = |at: usize, first: F, count: F| -> Vec<[u32; 4]> {
                    let first = entry.field(first) as usize;
                    (first..first + entry.field(count) as usize)
                        .map(|n| t.words(at + 16 * n))
                        .collect()
                };
                let edge = |counter: CounterId, amount: u64| {
                    let per_step = p.counters[counter.index()].per_step as u32;
                    [counter.0, amount as u32, per_step, 0]
                };
                let want: Vec<_> = i.waits.iter().map(|w| edge(w.counter, w.threshold)).collect();
                assert_eq!(edges(wait_at, F::Waits, F::WaitCount), want, "{id}");
                let want: Vec<_> = i.signals.iter().map(|s| edge(s.counter, s.amount)).collect();
                assert_eq!(edges(signal_at, F::Signals, F::SignalCount), want, "{id}");
                waits += i.waits.len();
                signals += i.signals.len();
                check_record(&p, &plan, sm, i, &entry);
                instrs += 1;
            }
        }
        assert_eq!(packed.weight_bytes, stream);
        assert_eq!(run_at, code_at + 128 * instrs);
        assert_eq!(wait_at, run_at + 32 * runs);
        assert_eq!(signal_at, wait_at + 16 * waits);
        assert_eq!(packed.bytes.len(), signal_at + 16 * signals);
        assert_eq!(packed.hash(), *blake3::hash(&packed.bytes).as_bytes());
        assert_eq!(tables::pack(&p, &plan).unwrap(), packed);
    }
}

/// A record against its instruction: dispatch case, rows, operands, phases, chunk geometry.
fn check_record(p: &Program, plan: &Plan, sm: &Sm, i: &Instruction, entry: &Entry) {
    let call = &plan.text_of(entry.field(F::Op) as usize);
    let name = i.op.name();
    assert!(call.starts_with(&format!("op_{name}<")), "{}: {call}", i.id);
    let at = |a: Option<&Access>| plan.arena.offsets[a.unwrap().buffer.index()].unwrap();
    let phase = |a: Option<&Access>| u64::from(a.unwrap().phase);
    let sync = |a: Option<&Access>| match p.buffer(a.unwrap().buffer).unwrap().sync {
        BufferSync::Packet => "PACKET",
        _ => "PLAIN",
    };
    let rows = |r: Rows, k: u64| {
        assert_eq!([entry.field(F::Lo), entry.field(F::Hi), entry.field(F::K)], [r.lo, r.hi, k]);
        let RunSource::Weight { buffer, lo, tiles, blocks, .. } =
            sm.stream[i.run.unwrap().index()].source
        else {
            unreachable!()
        };
        let total = weight_blocks(p.buffer(buffer).unwrap()).unwrap();
        assert_eq!(entry.field(F::Tiles), u64::from(tiles), "{}", i.id);
        let least = |call: &str| {
            call.split(&format!("Geometry<{k}, {blocks}, {total}, ")).nth(1).map(str::to_owned)
        };
        let least: u64 = least(call).and_then(|c| c.split('>').next()?.parse().ok()).unwrap();
        let chunks = sm.stream[i.run.unwrap().index()].source.chunks(p.buffer(buffer).unwrap());
        assert!((1..=chunks.unwrap()).contains(&least), "{}: {call}", i.id);
        assert!(lo % TILE_ROWS == 0);
    };
    let in_out = |read: usize, out: Option<&Access>| {
        assert_eq!(entry.address(F::A0), at(i.reads.get(read)), "{}", i.id);
        assert_eq!(entry.field(F::InPhase), phase(i.reads.first()), "{}", i.id);
        assert_eq!(entry.field(F::OutPhase), phase(out), "{}", i.id);
    };
    match &i.op {
        Op::NormQkv(op) => {
            rows(op.rows, op.hidden);
            let first = usize::from(op.source == Source::Embedding);
            in_out(first, i.writes.first());
            let norm = i.reads.get(first + 1).filter(|_| !op.plain);
            assert_eq!(entry.address(F::A1), at(norm));
            assert_eq!(entry.address(F::A2), at(i.writes.first()));
            assert_eq!(entry.0[F::Const as usize], op.eps.0.to_bits());
            let (out, bias, factor) = (sync(i.writes.first()), op.bias, op.factor.is_some());
            assert!(call.contains(&format!("{out}, {bias}, {factor}, Geometry<")), "{call}");
        }
        Op::NormGateUp(op) => {
            rows(op.rows, op.hidden);
            in_out(0, i.writes.first());
            assert_eq!(entry.address(F::A1), at(i.reads.get(1).filter(|_| !op.plain)));
            assert_eq!(entry.address(F::A2), at(i.writes.first()));
        }
        Op::LinearResidual(op) => {
            rows(op.rows, op.inner);
            let out = i.writes.last();
            in_out(0, out);
            assert_eq!(entry.address(F::A2), at(out));
            assert!(call.starts_with(&format!("op_{name}<{}", sync(i.reads.first()))), "{call}");
        }
        Op::NormResidual(op) => {
            let shape = [F::Lo, F::Hi, F::K].map(|f| entry.field(f));
            assert_eq!(shape, [op.rows.lo, op.rows.hi, op.hidden]);
            in_out(0, i.writes.get(1));
            assert_eq!(entry.address(F::A1), at(i.reads.get(1)));
            assert_eq!(entry.address(F::A2), at(i.writes.get(1)));
            assert_eq!(entry.0[F::Const as usize], op.eps.0.to_bits());
        }
        Op::NormLmHead(op) => {
            rows(op.rows, op.hidden);
            assert_eq!(entry.address(F::A0), at(i.reads.first()));
            assert_eq!(entry.address(F::A2), at(i.writes.first()));
            assert_eq!(entry.address(F::A3), at(i.writes.get(1)));
            assert_eq!(entry.field(F::X2), op.slot);
        }
        Op::Attention(op) => {
            in_out(0, i.writes.last());
            let shape = [F::Lo, F::Hi, F::X0, F::X1, F::X2, F::X3].map(|f| entry.field(f));
            let want = [op.q.lo, op.q.hi, op.kv_head, op.split, op.splits, op.capacity];
            assert_eq!(shape, want, "{}", i.id);
            let flags = u64::from(op.is_last()) | u64::from(op.append) << 1;
            assert_eq!(entry.field(F::Flags), flags);
            // Rope table, keys, values follow what is read of the step's queries, keys and values.
            let operands = [F::A1, F::A2, F::A3].map(|f| entry.address(f));
            let n = i.reads.len();
            let want = [n - 3, n - 2, n - 1].map(|r| at(i.reads.get(r)));
            assert_eq!(operands, want, "{}", i.id);
            let kinds = [BufferKind::Constant, BufferKind::Kv, BufferKind::Kv];
            for (read, kind) in i.reads[n - 3..].iter().zip(kinds) {
                assert_eq!(p.buffer(read.buffer).unwrap().kind, kind);
            }
            assert_eq!(entry.address(F::A4), at(i.writes.last()));
        }
        Op::AttentionMerge(op) => {
            in_out(0, i.writes.first());
            let shape = [F::Lo, F::Hi, F::X2].map(|f| entry.field(f));
            assert_eq!(shape, [op.q.lo, op.q.hi, op.splits]);
            assert_eq!(entry.address(F::A2), at(i.writes.first()));
        }
        Op::Embed(op) => {
            let shape = [F::Lo, F::Hi, F::K].map(|f| entry.field(f));
            assert_eq!(shape, [op.rows.lo, op.rows.hi, op.hidden]);
            assert_eq!(entry.address(F::A1), at(i.reads.get(1)));
        }
        Op::Boundary(_) => assert_eq!(call, "op_boundary<true>(cx)"),
        Op::Sample(op) => {
            assert_eq!(entry.field(F::K), op.vocab);
            let reads = [F::A0, F::A1, F::A4].map(|f| entry.address(f));
            assert_eq!(reads, [0, 1, 2].map(|n| at(i.reads.get(n))));
            let writes = [F::A2, F::A3].map(|f| entry.address(f));
            assert_eq!(writes, [0, 1].map(|n| at(i.writes.get(n))));
        }
        Op::Opaque(_) => unreachable!(),
    }
}

#[test]
fn record_fields_stand_where_the_template_reads_them() {
    let (_, kernel) = super::templates().iter().find(|(n, _)| *n == "megakernel.cu.j2").unwrap();
    let list = kernel.split_once("enum Field : u32 {").unwrap().1.split_once('}').unwrap().0;
    let mut next = 0;
    let mut at = std::collections::BTreeMap::new();
    for item in list.split(',').map(str::trim).filter(|i| !i.is_empty()) {
        let (name, value) = match item.split_once('=') {
            None => (item, next),
            Some((name, sum)) => {
                let (from, by) = sum.trim().split_once('+').unwrap();
                (name.trim(), at[from.trim()] + by.trim().parse::<usize>().unwrap())
            }
        };
        at.insert(name, value);
        next = value + 1;
    }
    let fields = [
        ("F_OP", F::Op),
        ("F_FLAGS", F::Flags),
        ("F_WAITS", F::Waits),
        ("F_WAIT_COUNT", F::WaitCount),
        ("F_SIGNALS", F::Signals),
        ("F_SIGNAL_COUNT", F::SignalCount),
        ("F_LO", F::Lo),
        ("F_HI", F::Hi),
        ("F_TILES", F::Tiles),
        ("F_K", F::K),
        ("F_IN_PITCH", F::InPitch),
        ("F_OUT_PITCH", F::OutPitch),
        ("F_IN_PHASE", F::InPhase),
        ("F_OUT_PHASE", F::OutPhase),
        ("F_CONST", F::Const),
        ("F_A0", F::A0),
        ("F_A1", F::A1),
        ("F_A2", F::A2),
        ("F_A3", F::A3),
        ("F_A4", F::A4),
        ("F_X0", F::X0),
        ("F_X1", F::X1),
        ("F_X2", F::X2),
        ("F_X3", F::X3),
        ("F_A5", F::A5),
    ];
    for (name, field) in fields {
        assert_eq!(at[name], field as usize, "{name}");
    }
    assert!(next <= WORDS);
}

#[test]
fn nothing_overlaps_in_the_arena() {
    for p in programs() {
        let arena = Arena::new(&p);
        let mut spans: Vec<(u64, u64, String)> = Vec::new();
        for b in &p.buffers {
            let elsewhere = b.kind == BufferKind::Weight || b.sync == BufferSync::Local;
            assert_eq!(arena.offsets[b.id.index()].is_none(), elsewhere, "{}", b.name);
            if let Some(at) = arena.offsets[b.id.index()] {
                // Reads of four elements may pass the end by less than one such read.
                spans.push((at, at + buffer_bytes(b) + 16, b.name.clone()));
                let zeroed = b.kind == BufferKind::Activation;
                assert_eq!(at >= arena.zero_from, zeroed, "{}", b.name);
                let elements: u64 = b.shape.iter().product();
                let bytes = match b.sync {
                    BufferSync::Packet => elements.div_ceil(b.dtype.per_word()) * 8,
                    _ => elements * b.dtype.bytes(),
                };
                assert!(buffer_bytes(b) >= bytes, "{}", b.name);
            }
        }
        let counters = p.counters.len() as u64 * COUNTER_STRIDE;
        for (at, bytes, name) in [
            (arena.counters, counters, "counters"),
            (arena.arrivals, 4, "arrivals"),
            (arena.token_word, 8, "token word"),
            (arena.cancel, 4, "cancel"),
            (arena.report, 32, "report"),
        ] {
            assert!(at >= arena.zero_from, "{name}");
            spans.push((at, at + bytes, name.to_owned()));
        }
        spans.sort();
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{} and {} overlap", pair[0].2, pair[1].2);
        }
        for (at, end, name) in &spans {
            assert!(at.is_multiple_of(256) && *end <= arena.bytes, "{name}");
        }
    }
}
