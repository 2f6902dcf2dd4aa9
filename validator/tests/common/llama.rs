//! Llama-shaped programs, built straight from the ops' footprints: one residual owner per row, tiles
//! dealt to all SMs, weights through the streams. Two ways to hand values over: packets with buffers of
//! each layer's own, or plain buffers that all layers reuse behind counters that count on.

use std::collections::BTreeMap;

use amk_schedule_ir::op::*;
use amk_schedule_ir::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handover {
    Packets,
    Counters,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub inner: u64,
    pub vocab: u64,
    pub capacity: u64,
    pub splits: u64,
    pub sms: usize,
    pub tokens: u32,
    pub handover: Handover,
}

impl Shape {
    #[allow(dead_code)]
    pub const LLAMA_8B: Shape = Shape {
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        inner: 14336,
        vocab: 128_256,
        capacity: 1024,
        splits: 4,
        sms: 132,
        tokens: 1,
        handover: Handover::Packets,
    };
    #[allow(dead_code)]
    pub const TINY: Shape = Shape {
        layers: 2,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        inner: 96,
        vocab: 128,
        capacity: 64,
        splits: 2,
        sms: 3,
        tokens: 1,
        handover: Handover::Packets,
    };
}

struct Builder {
    p: Program,
    cx: OpContext,
    queues: Vec<Vec<InstrId>>,
    streams: Vec<Vec<Run>>,
    /// Counter and threshold that the next stage waits for.
    ready: Option<Wait>,
    sums: Vec<u64>,
    counting: bool,
}

/// `total` rows in units of `unit`, dealt as evenly as they go; SMs may get none.
fn deal(total: u64, unit: u64, sms: usize) -> Vec<Rows> {
    let (units, n) = (total.div_ceil(unit), sms as u64);
    (0..n)
        .map(|s| Rows {
            lo: (units * s / n * unit).min(total),
            hi: (units * (s + 1) / n * unit).min(total),
        })
        .collect()
}

impl Builder {
    fn buffer(
        &mut self,
        name: impl Into<String>,
        kind: BufferKind,
        sync: BufferSync,
        dtype: DType,
        shape: &[u64],
    ) -> BufferId {
        let id = BufferId(self.p.buffers.len() as u32);
        let shape = shape.to_vec();
        self.p.buffers.push(Buffer {
            id,
            name: name.into(),
            kind,
            sync,
            dtype,
            shape,
            sequence: 0,
        });
        id
    }

    fn counter(&mut self, name: &str) -> CounterId {
        let id = CounterId(self.sums.len() as u32);
        self.sums.push(0);
        self.p.counters.push(Counter { id, name: name.into(), init: 0, per_step: 0 });
        id
    }

    fn emit(
        &mut self,
        sm: usize,
        op: Op,
        reads: &[BufferId],
        writes: &[BufferId],
        weight: Option<BufferId>,
        signal: Option<CounterId>,
    ) {
        let f = op.footprint(self.cx);
        assert_eq!((f.reads.len(), f.writes.len()), (reads.len(), writes.len()), "{op:?}");
        let access = |ids: &[BufferId], operands: &[Operand]| -> Vec<Access> {
            ids.iter()
                .zip(operands)
                .map(|(&buffer, o)| Access { buffer, region: o.region.clone(), phase: 0 })
                .collect()
        };
        let run = f.weight.zip(weight).map(|(w, buffer)| {
            let id = RunId(self.streams[sm].len() as u32);
            let k_blocks = weight_blocks(&self.p.buffers[buffer.index()]).unwrap();
            let blocks = k_blocks.min(self.p.resources.slot_bytes / BLOCK_BYTES) as u32;
            self.streams[sm].push(Run {
                id,
                source: RunSource::Weight { buffer, lo: w.lo, hi: w.hi, tiles: 1, blocks },
                window: 3,
            });
            id
        });
        let id = InstrId(self.p.instructions.len() as u32);
        let waits = if self.counting { self.ready.into_iter().collect() } else { Vec::new() };
        let signals = match signal {
            Some(counter) if self.counting => {
                self.sums[counter.index()] += 1;
                vec![Signal { counter, amount: 1 }]
            }
            _ => Vec::new(),
        };
        self.p.instructions.push(Instruction {
            id,
            op,
            reads: access(reads, &f.reads),
            writes: access(writes, &f.writes),
            waits,
            signals,
            run,
        });
        self.queues[sm].push(id);
    }

    /// The stage that has just been emitted signals `counter`; the next waits for all of it so far.
    fn stage_done(&mut self, counter: CounterId) {
        let threshold = self.sums.get(counter.index()).copied().unwrap_or(0);
        self.ready = Some(Wait { counter, threshold });
    }
}

/// The program.
pub fn llama(s: Shape) -> Program {
    use BufferKind::*;
    use BufferSync::*;
    use DType::*;
    let counting = s.handover == Handover::Counters;
    let (t, eps) = (u64::from(s.tokens), Scalar(1e-5));
    let p = Program {
        version: FORMAT_VERSION,
        name: format!("{s:?}"),
        sm_arch: "sm_90a".into(),
        bucket: Bucket { first: 0, last: s.capacity - t },
        tokens: s.tokens,
        max_steps: if s.tokens == 1 { 64 } else { 1 },
        epochs: Epochs { per_step: 1, tags: u64::from(u32::MAX) },
        meta: BTreeMap::new(),
        resources: Resources {
            consumer_warps: 8,
            ring_slots: 8,
            slot_bytes: 8192,
            registers: 168,
            barriers: 2,
            shared: Vec::new(),
        },
        buffers: Vec::new(),
        counters: Vec::new(),
        boundary: Boundary { op: BoundaryOp::Argmax, reads: Vec::new(), writes: Vec::new() },
        sms: Vec::new(),
        instructions: Vec::new(),
    };
    let mut b = Builder {
        p,
        cx: OpContext { tokens: t },
        queues: vec![Vec::new(); s.sms],
        streams: vec![Vec::new(); s.sms],
        ready: None,
        sums: Vec::new(),
        counting,
    };
    let qkv_width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    let tokens = b.buffer("tokens", Tokens, Plain, U32, &[s.capacity + 1]);
    let table = b.buffer("embedding", Constant, Plain, Bf16, &[s.vocab, s.hidden]);
    let rope = b.buffer("rope", Constant, Plain, F32, &[s.capacity, s.head_dim]);
    let norm = b.buffer("norm", Constant, Plain, F32, &[s.hidden]);
    let resid = b.buffer("residual", Activation, Local, F32, &[t, s.hidden]);
    let owned = deal(s.hidden, TILE_ROWS, s.sms);
    for (sm, &rows) in owned.iter().enumerate().filter(|(_, r)| r.lo < r.hi) {
        let op = Op::Embed(Embed { hidden: s.hidden, vocab: s.vocab, rows, factor: None });
        b.emit(sm, op, &[tokens, table], &[resid], None, None);
    }
    let counters: Vec<CounterId> = if counting {
        ["qkv", "attention", "merge", "h", "act", "x"].map(|n| b.counter(n)).to_vec()
    } else {
        vec![CounterId(0); 6]
    };
    let mut activations: BTreeMap<&str, BufferId> = BTreeMap::new();
    let mut hidden = None;
    for layer in 0..s.layers {
        let mut act = |b: &mut Builder, name: &'static str, dtype: DType, shape: &[u64]| {
            if counting {
                *activations
                    .entry(name)
                    .or_insert_with(|| b.buffer(name, Activation, Plain, dtype, shape))
            } else {
                b.buffer(format!("{name}.{layer}"), Activation, Packet, dtype, shape)
            }
        };
        let w = |b: &mut Builder, name: &str, rows: u64, k: u64| {
            b.buffer(format!("{name}.{layer}"), Weight, Plain, Bf16, &[rows, k])
        };
        let (w_qkv, w_o) = (
            w(&mut b, "w_qkv", qkv_width, s.hidden),
            w(&mut b, "w_o", s.hidden, s.heads * s.head_dim),
        );
        let (w_gu, w_down) =
            (w(&mut b, "w_gate_up", 2 * s.inner, s.hidden), w(&mut b, "w_down", s.hidden, s.inner));
        let cache = [s.kv_heads, s.capacity, s.head_dim];
        let keys = b.buffer(format!("k.{layer}"), Kv, Plain, Bf16, &cache);
        let values = b.buffer(format!("v.{layer}"), Kv, Plain, Bf16, &cache);
        let qkv = act(&mut b, "qkv", F32, &[t, qkv_width]);
        let attention = act(&mut b, "attention", Bf16, &[t, s.heads * s.head_dim]);
        let h = act(&mut b, "h", Bf16, &[t, s.hidden]);
        let inner = act(&mut b, "act", Bf16, &[t, s.inner]);
        let x = act(&mut b, "x", Bf16, &[t, s.hidden]);
        for (sm, rows) in deal(qkv_width, TILE_ROWS, s.sms).into_iter().enumerate() {
            if rows.lo < rows.hi {
                let (source, vocab, reads) = match hidden {
                    Some(h) => (Source::Hidden, 0, vec![h, norm]),
                    None => (Source::Embedding, s.vocab, vec![tokens, table, norm]),
                };
                let op = Op::NormQkv(NormQkv {
                    hidden: s.hidden,
                    total: qkv_width,
                    rows,
                    eps,
                    source,
                    vocab,
                    bias: false,
                    factor: None,
                    plain: false,
                });
                b.emit(sm, op, &reads, &[qkv], Some(w_qkv), Some(counters[0]));
            }
        }
        b.stage_done(counters[0]);
        let partial = (s.splits > 1)
            .then(|| act(&mut b, "partial", F32, &[s.heads, s.splits, t, s.head_dim + 2]));
        let group = s.heads / s.kv_heads;
        for unit in 0..s.kv_heads * s.splits {
            let (kv_head, split) = (unit / s.splits, unit % s.splits);
            let last = split + 1 == s.splits;
            let op = Op::Attention(Attention {
                head_dim: s.head_dim,
                heads: s.heads,
                kv_heads: s.kv_heads,
                kv_head,
                q: Rows { lo: kv_head * group, hi: (kv_head + 1) * group },
                split,
                splits: s.splits,
                append: last,
                scale: Scalar(0.125),
                capacity: s.capacity,
                max_positions: s.capacity,
                rotary: None,
                unrotated: false,
                window: None,
                head_norm: None,
                wide_norm: false,
                cap: None,
            });
            let mut reads = vec![qkv];
            if last {
                reads.extend([qkv, qkv]);
            }
            reads.extend([rope, keys, values]);
            let mut writes = if last { vec![keys, values] } else { Vec::new() };
            writes.push(partial.unwrap_or(attention));
            b.emit(unit as usize % s.sms, op, &reads, &writes, None, Some(counters[1]));
        }
        b.stage_done(counters[1]);
        if let Some(partial) = partial {
            for (sm, q) in deal(s.heads, 1, s.sms).into_iter().enumerate() {
                if q.lo < q.hi {
                    let op = Op::AttentionMerge(AttentionMerge {
                        head_dim: s.head_dim,
                        heads: s.heads,
                        q,
                        splits: s.splits,
                    });
                    b.emit(sm, op, &[partial], &[attention], None, Some(counters[2]));
                }
            }
            b.stage_done(counters[2]);
        }
        for (input, width, out, weight, counter) in [
            (attention, s.heads * s.head_dim, h, w_o, counters[3]),
            (inner, s.inner, x, w_down, counters[5]),
        ] {
            for (sm, &rows) in owned.iter().enumerate().filter(|(_, r)| r.lo < r.hi) {
                let op = Op::LinearResidual(LinearResidual {
                    inner: width,
                    hidden: s.hidden,
                    rows,
                    bias: false,
                    factor: None,
                    raw: false,
                });
                b.emit(sm, op, &[input, resid], &[resid, out], Some(weight), Some(counter));
            }
            b.stage_done(counter);
            if counter == counters[5] && out == x {
                break;
            }
            for (sm, rows) in deal(s.inner, TILE_ROWS / 2, s.sms).into_iter().enumerate() {
                if rows.lo < rows.hi {
                    let op = Op::NormGateUp(NormGateUp {
                        hidden: s.hidden,
                        inner: s.inner,
                        rows,
                        eps,
                        bias: false,
                        plain: false,
                        activation: Default::default(),
                    });
                    b.emit(sm, op, &[h, norm], &[inner], Some(w_gu), Some(counters[4]));
                }
            }
            b.stage_done(counters[4]);
        }
        hidden = Some(x);
    }
    let w_head = b.buffer("w_head", Weight, Plain, Bf16, &[s.vocab, s.hidden]);
    let logits = b.buffer("logits", Output, Plain, F32, &[s.vocab]);
    let tiles: Vec<(usize, Rows)> = deal(s.vocab, TILE_ROWS, s.sms)
        .into_iter()
        .enumerate()
        .filter(|(_, r)| r.lo < r.hi)
        .collect();
    let slots = tiles.len() as u64;
    let best = b.buffer("best", Activation, Plain, Key, &[slots]);
    for (slot, &(sm, rows)) in tiles.iter().enumerate() {
        let op = Op::NormLmHead(NormLmHead {
            hidden: s.hidden,
            vocab: s.vocab,
            rows,
            eps,
            slot: slot as u64,
            slots,
            factor: None,
            cap: None,
        });
        b.emit(sm, op, &[hidden.unwrap(), norm], &[logits, best], Some(w_head), None);
    }
    for sm in 0..s.sms {
        let id = InstrId(b.p.instructions.len() as u32);
        b.p.instructions.push(Instruction {
            id,
            op: Op::Boundary(BoundaryArrive {}),
            reads: Vec::new(),
            writes: Vec::new(),
            waits: Vec::new(),
            signals: Vec::new(),
            run: None,
        });
        b.queues[sm].push(id);
    }
    let next = i64::from(s.tokens);
    b.p.boundary.reads = vec![Access { buffer: best, region: Region::whole(&[slots]), phase: 0 }];
    b.p.boundary.writes =
        vec![Access { buffer: tokens, region: Region(vec![Span::pos(next, next + 1)]), phase: 0 }];
    for (c, sum) in b.p.counters.iter_mut().zip(&b.sums) {
        c.per_step = *sum;
    }
    b.p.sms = b
        .queues
        .into_iter()
        .zip(b.streams)
        .enumerate()
        .map(|(i, (queue, stream))| Sm { id: SmId(i as u32), queue, stream })
        .collect();
    areas(&mut b.p, &owned, b.cx);
    b.p
}

/// A shared-memory map that holds what the ops ask for.
fn areas(p: &mut Program, owned: &[Rows], cx: OpContext) {
    let mut need: BTreeMap<Area, u64> = BTreeMap::new();
    for i in &p.instructions {
        for (area, bytes) in i.op.shared(cx, &p.resources, 1) {
            let n = need.entry(area).or_default();
            *n = (*n).max(bytes);
        }
    }
    let slots = u64::from(p.resources.ring_slots);
    need.insert(Area::Ring, slots * p.resources.slot_bytes);
    need.insert(Area::Mbarrier, slots * 16);
    need.insert(
        Area::Local,
        owned.iter().map(|r| (r.hi - r.lo) * cx.tokens * 4).max().unwrap_or(0),
    );
    let mut offset = 0;
    for (area, bytes) in need {
        p.resources.shared.push(SharedArea { area, offset, bytes });
        offset = (offset + bytes).next_multiple_of(16);
    }
}
