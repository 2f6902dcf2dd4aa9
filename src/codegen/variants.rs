//! What a kernel for a program must contain, and how each instruction is written into the table.
//!
//! An instruction becomes a call of its op's template function with compile-time arguments (element
//! types, packet or plain edges) and a record of run-time fields. Distinct calls are the cases of the
//! kernel's dispatch.

use std::collections::BTreeMap;

use amk_schedule_ir::*;

use super::arena::{Arena, pitch};
use super::error::CodegenError;

/// Words of one instruction record.
pub const WORDS: usize = 32;

/// Fields of an instruction record, in the order of the template's `Field`.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum F {
    Op,
    Flags,
    Waits,
    WaitCount,
    Signals,
    SignalCount,
    Lo,
    Hi,
    /// In attention, which has none, an address.
    Tiles,
    K = 10,
    InPitch,
    OutPitch,
    InPhase,
    OutPhase,
    Const,
    A0,
    A1 = 18,
    A2 = 20,
    A3 = 22,
    A4 = 24,
    X0 = 26,
    X1,
    X2,
    X3,
    A5 = 30,
}

/// A record being filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record(pub [u32; WORDS]);

impl Record {
    fn set(&mut self, field: F, value: u64) -> Result<(), CodegenError> {
        self.0[field as usize] = u32::try_from(value).map_err(|_| {
            CodegenError::Program(format!("{value} does not fit a 32-bit instruction field"))
        })?;
        Ok(())
    }

    fn address(&mut self, field: F, value: u64) {
        self.0[field as usize] = value as u32;
        self.0[field as usize + 1] = (value >> 32) as u32;
    }

    /// The slice of the wait or signal table the instruction uses.
    pub fn edges(&mut self, waits: (u32, u32), signals: (u32, u32)) {
        self.0[F::Waits as usize] = waits.0;
        self.0[F::WaitCount as usize] = waits.1;
        self.0[F::Signals as usize] = signals.0;
        self.0[F::SignalCount as usize] = signals.1;
    }
}

/// Shape of the program's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    pub head_dim: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub kv: DType,
    pub group_max: u64,
    /// Components of a head that are rotated.
    pub rotary: u64,
    /// Epsilon of the norm of each head, if they have one.
    pub head_norm: Option<Scalar>,
    /// Is that norm one over all heads together?
    pub wide_norm: bool,
    /// Soft cap of the scores.
    pub cap: Option<Scalar>,
    /// Has any layer a window?
    pub windows: bool,
}

/// Forms of ops that a program has all in one way, since the templates know them by its text alone; none where it
/// has no such op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Products of the residual without a norm.
    pub plain: Option<bool>,
    /// Projections that others add to the residual.
    pub raw: Option<bool>,
    /// Logits with a soft cap.
    pub logit_cap: Option<bool>,
    /// What gates go through.
    pub activation: Option<op::Activation>,
}

/// Keeps the form of an instruction, refusing another than those before it had.
fn keep<T: Copy + PartialEq>(
    known: &mut Option<T>,
    form: T,
    id: InstrId,
    what: &str,
) -> Result<(), CodegenError> {
    match *known.get_or_insert(form) == form {
        true => Ok(()),
        false => Err(unsupported(id, format!("{what} that differ between instructions"))),
    }
}

/// Everything codegen derives from a program before writing text or tables.
#[derive(Debug)]
pub struct Plan {
    pub arena: Arena,
    /// Dispatch cases: the call of each variant.
    pub calls: Vec<String>,
    /// Fewest weight chunks of an instruction, by case; 0 for those without.
    pub chunks: Vec<u64>,
    /// Names of the ops used.
    pub ops: Vec<&'static str>,
    /// One record per instruction, by id; edges not filled in.
    pub records: Vec<Record>,
    pub attention: Option<AttentionShape>,
    pub forms: Forms,
    /// Element type of the inputs of matrix products.
    pub activation: DType,
    /// Widest input of a matrix product, elements.
    pub widest: u64,
    /// The argmax key buffer and the token buffer.
    pub best: Option<BufferId>,
    pub tokens: Option<BufferId>,
}

/// Working state of [`Plan::new`].
struct Planner<'a> {
    program: &'a Program,
    plan: Plan,
    cases: BTreeMap<String, u32>,
    /// Offset in elements of each SM-private buffer and its rows, by (sm, buffer).
    local: BTreeMap<(u32, u32), (u64, Rows)>,
}

/// Stands in a call for the fewest chunks of its instructions, which are known once all were seen.
const LEAST: &str = ", LEAST";

impl Plan {
    /// The call of a case as it stands in the text.
    pub fn text_of(&self, case: usize) -> String {
        let least = self.chunks.get(case).copied().unwrap_or(0);
        let call = self.calls.get(case).map_or("", String::as_str);
        call.replace(LEAST, &format!(", {least}"))
    }

    /// Plans a program, refusing what the templates cannot run.
    pub fn new(program: &Program) -> Result<Plan, CodegenError> {
        let plan = Plan {
            arena: Arena::new(program),
            calls: Vec::new(),
            chunks: Vec::new(),
            ops: Vec::new(),
            records: vec![Record([0; WORDS]); program.instructions.len()],
            attention: None,
            forms: Forms::default(),
            activation: DType::Bf16,
            widest: 0,
            best: program.boundary.reads.first().map(|a| a.buffer),
            tokens: program.buffers.iter().find(|b| b.kind == BufferKind::Tokens).map(|b| b.id),
        };
        let mut planner = Planner { program, plan, cases: BTreeMap::new(), local: BTreeMap::new() };
        let mut activation = None;
        for sm in &program.sms {
            let mut next_run = 0;
            for &id in &sm.queue {
                let Some(instruction) = program.instruction(id) else {
                    return Err(CodegenError::Program(format!("{id} does not exist")));
                };
                if let Some(run) = instruction.run {
                    if run.0 != next_run {
                        return Err(unsupported(id, "its run is consumed out of stream order"));
                    }
                    next_run += 1;
                }
                let input = planner.instruction(sm, instruction)?;
                if let Some(input) = input {
                    if *activation.get_or_insert(input) != input {
                        return Err(unsupported(id, "its input type differs from other products"));
                    }
                }
            }
        }
        planner.plan.activation = activation.unwrap_or(DType::Bf16);
        let rows = u64::from(program.tokens) * planner.plan.activation.terms();
        if rows > u64::from(limits::MAX_TOKENS) {
            return Err(CodegenError::Program(format!(
                "{} positions per step with {} bf16 terms each are {rows} rows, more than {}",
                program.tokens,
                planner.plan.activation.terms(),
                limits::MAX_TOKENS
            )));
        }
        super::checks::check(program)?;
        Ok(planner.plan)
    }
}

fn unsupported(instruction: InstrId, what: impl Into<String>) -> CodegenError {
    CodegenError::Unsupported { instruction, what: what.into() }
}

/// Flags of attention; its window lies above them in their word.
const ATTENTION_FLAGS: u32 = 3;

/// A factor's bits; 0 where there is none.
fn bits(factor: Option<Scalar>) -> u32 {
    factor.map_or(0, |f| f.0.to_bits())
}

fn dtype_name(d: DType) -> &'static str {
    match d {
        DType::F16 => "F16",
        DType::F32 => "F32",
        _ => "BF16",
    }
}

impl Planner<'_> {
    fn buffer(&self, access: Option<&Access>) -> Result<&Buffer, CodegenError> {
        access
            .and_then(|a| self.program.buffer(a.buffer))
            .ok_or_else(|| CodegenError::Program("an operand is missing".to_owned()))
    }

    fn case(&mut self, op: &'static str, call: String) -> u32 {
        if !self.plan.ops.contains(&op) {
            self.plan.ops.push(op);
        }
        let next = self.cases.len() as u32;
        *self.cases.entry(call.clone()).or_insert_with(|| {
            self.plan.calls.push(call);
            self.plan.chunks.push(0);
            next
        })
    }

    /// Offset of the rows an SM keeps of a private buffer; all its instructions use the same rows.
    fn local(
        &mut self,
        sm: &Sm,
        id: InstrId,
        buffer: BufferId,
        rows: Rows,
    ) -> Result<u64, CodegenError> {
        let used: u64 = self
            .local
            .range((sm.id.0, 0)..=(sm.id.0, u32::MAX))
            .map(|(_, (_, r))| (r.hi - r.lo) * u64::from(self.program.tokens))
            .sum();
        let entry = self.local.entry((sm.id.0, buffer.0)).or_insert((used, rows));
        if entry.1 != rows {
            return Err(unsupported(id, "its residual rows differ from others of its SM"));
        }
        Ok(entry.0)
    }

    /// Fills the record of one instruction; gives the input type of a matrix product.
    fn instruction(&mut self, sm: &Sm, i: &Instruction) -> Result<Option<DType>, CodegenError> {
        let mut r = Record([0; WORDS]);
        let read = |n: usize| i.reads.get(n);
        let write = |n: usize| i.writes.get(n);
        let offset = |plan: &Plan, a: Option<&Access>| a.map_or(0, |a| plan.arena.offset(a.buffer));
        let sync = |b: &Buffer| if b.sync == BufferSync::Packet { "PACKET" } else { "PLAIN" };
        let phase = |a: Option<&Access>| u64::from(a.map_or(0, |a| a.phase));
        let mut input = None;
        let (op, call) = match &i.op {
            Op::Embed(op) => {
                let table = self.buffer(read(1))?;
                let factor = op.factor.is_some();
                let call = format!("op_embed<{}, {factor}>(cx)", dtype_name(table.dtype));
                r.0[F::X1 as usize] = bits(op.factor);
                r.set(F::Lo, op.rows.lo)?;
                r.set(F::Hi, op.rows.hi)?;
                r.set(F::K, op.hidden)?;
                r.address(F::A1, offset(&self.plan, read(1)));
                let resid = self.buffer(write(0))?.id;
                r.set(F::X0, self.local(sm, i.id, resid, op.rows)?)?;
                ("embed", call)
            }
            Op::NormQkv(op) => {
                let embedding = op.source == Source::Embedding;
                let at = usize::from(embedding);
                keep(&mut self.plan.forms.plain, op.plain, i.id, "norms before products")?;
                let (x, out) = (self.buffer(read(at))?, self.buffer(write(0))?);
                // The operand after the input.
                let next = at + 1 + usize::from(!op.plain);
                let norm = if op.plain { DType::F32 } else { self.buffer(read(at + 1))?.dtype };
                let call = format!(
                    "op_norm_qkv<{embedding}, {}, {}, {}, {}, {}, {}, {}>(cx, ring)",
                    sync(x),
                    dtype_name(x.dtype),
                    dtype_name(norm),
                    sync(out),
                    op.bias,
                    op.factor.is_some(),
                    self.geometry(sm, i, op.hidden)?
                );
                r.address(F::A4, offset(&self.plan, read(next).filter(|_| op.bias)));
                r.0[F::X1 as usize] = bits(op.factor);
                if !embedding {
                    input = Some(x.dtype);
                }
                r.set(F::InPitch, pitch(x))?;
                r.set(F::OutPitch, pitch(out))?;
                r.address(F::A0, offset(&self.plan, read(at)));
                r.address(F::A1, offset(&self.plan, read(at + 1).filter(|_| !op.plain)));
                self.linear(sm, i, &mut r, op.hidden, op.rows, Some(op.eps))?;
                ("norm_qkv", call)
            }
            Op::NormGateUp(op) => {
                keep(&mut self.plan.forms.plain, op.plain, i.id, "norms before products")?;
                keep(&mut self.plan.forms.activation, op.activation, i.id, "activations")?;
                let (x, out) = (self.buffer(read(0))?, self.buffer(write(0))?);
                let next = 1 + usize::from(!op.plain);
                let norm = if op.plain { DType::F32 } else { self.buffer(read(1))?.dtype };
                let call = format!(
                    "op_norm_gate_up<{}, {}, {}, {}, {}, {}, {}>(cx, ring)",
                    sync(x),
                    dtype_name(x.dtype),
                    dtype_name(norm),
                    sync(out),
                    dtype_name(out.dtype),
                    op.bias,
                    self.geometry(sm, i, op.hidden)?
                );
                r.address(F::A4, offset(&self.plan, read(next).filter(|_| op.bias)));
                input = Some(x.dtype);
                r.set(F::InPitch, pitch(x))?;
                r.set(F::OutPitch, pitch(out))?;
                r.address(F::A0, offset(&self.plan, read(0)));
                r.address(F::A1, offset(&self.plan, read(1).filter(|_| !op.plain)));
                self.linear(sm, i, &mut r, op.hidden, op.rows, Some(op.eps))?;
                ("norm_gate_up", call)
            }
            Op::LinearResidual(op) => {
                keep(&mut self.plan.forms.raw, op.raw, i.id, "norms of outputs")?;
                // Without the residual among the operands.
                let (published, bias) = if op.raw { (0, 1) } else { (1, 2) };
                let (x, out) = (self.buffer(read(0))?, self.buffer(write(published))?);
                let call = format!(
                    "op_linear_residual<{}, {}, {}, {}, {}, {}, {}>(cx, ring)",
                    sync(x),
                    dtype_name(x.dtype),
                    sync(out),
                    dtype_name(out.dtype),
                    op.bias,
                    op.factor.is_some(),
                    self.geometry(sm, i, op.inner)?
                );
                r.address(F::A4, offset(&self.plan, read(bias).filter(|_| op.bias)));
                r.0[F::X1 as usize] = bits(op.factor);
                input = Some(x.dtype);
                r.set(F::InPitch, pitch(x))?;
                r.set(F::OutPitch, pitch(out))?;
                r.address(F::A0, offset(&self.plan, read(0)));
                self.linear(sm, i, &mut r, op.inner, op.rows, None)?;
                r.address(F::A2, offset(&self.plan, write(published)));
                r.set(F::OutPhase, phase(write(published)))?;
                if !op.raw {
                    let resid = self.buffer(write(0))?.id;
                    r.set(F::X0, self.local(sm, i.id, resid, op.rows)?)?;
                }
                ("linear_residual", call)
            }
            Op::NormResidual(op) => {
                let (x, out) = (self.buffer(read(0))?, self.buffer(write(1))?);
                // Two bf16 share a word, and its two lanes must belong to one position.
                if out.dtype == DType::Bf16 && !(op.rows.lo | op.rows.hi).is_multiple_of(2) {
                    return Err(unsupported(i.id, "an odd number of residual rows"));
                }
                let call = format!(
                    "op_norm_residual<{}, {}, {}, {}>(cx)",
                    sync(x),
                    sync(out),
                    dtype_name(out.dtype),
                    op.factor.is_some()
                );
                r.set(F::Lo, op.rows.lo)?;
                r.set(F::Hi, op.rows.hi)?;
                r.set(F::K, op.hidden)?;
                r.set(F::InPitch, pitch(x))?;
                r.set(F::OutPitch, pitch(out))?;
                r.set(F::InPhase, phase(read(0)))?;
                r.set(F::OutPhase, phase(write(1)))?;
                r.0[F::Const as usize] = op.eps.0.to_bits();
                r.0[F::X1 as usize] = bits(op.factor);
                r.address(F::A0, offset(&self.plan, read(0)));
                r.address(F::A1, offset(&self.plan, read(1)));
                r.address(F::A2, offset(&self.plan, write(1)));
                let resid = self.buffer(write(0))?.id;
                r.set(F::X0, self.local(sm, i.id, resid, op.rows)?)?;
                ("norm_residual", call)
            }
            Op::NormLmHead(op) => {
                keep(&mut self.plan.forms.logit_cap, op.cap.is_some(), i.id, "caps of logits")?;
                let (x, norm) = (self.buffer(read(0))?, self.buffer(read(1))?);
                let call = format!(
                    "op_norm_lm_head<{}, {}, {}, {}, {}>(cx, ring)",
                    sync(x),
                    dtype_name(x.dtype),
                    dtype_name(norm.dtype),
                    op.factor.is_some(),
                    self.geometry(sm, i, op.hidden)?
                );
                r.0[F::X1 as usize] = bits(op.factor);
                input = Some(x.dtype);
                r.set(F::InPitch, pitch(x))?;
                r.address(F::A0, offset(&self.plan, read(0)));
                r.address(F::A1, offset(&self.plan, read(1)));
                self.linear(sm, i, &mut r, op.hidden, op.rows, Some(op.eps))?;
                r.address(F::A3, offset(&self.plan, write(1)));
                r.set(F::X2, op.slot)?;
                r.0[F::X3 as usize] = bits(op.cap);
                ("norm_lm_head", call)
            }
            Op::Attention(op) => self.attention(i, op, &mut r)?,
            Op::AttentionMerge(op) => {
                let (x, out) = (self.buffer(read(0))?, self.buffer(write(0))?);
                let call = format!(
                    "op_attention_merge<{}, {}, {}>(cx)",
                    sync(x),
                    sync(out),
                    dtype_name(out.dtype)
                );
                r.set(F::Lo, op.q.lo)?;
                r.set(F::Hi, op.q.hi)?;
                r.set(F::X2, op.splits)?;
                r.set(F::OutPitch, pitch(out))?;
                r.address(F::A0, offset(&self.plan, read(0)));
                r.address(F::A2, offset(&self.plan, write(0)));
                r.set(F::InPhase, phase(read(0)))?;
                r.set(F::OutPhase, phase(write(0)))?;
                ("attention_merge", call)
            }
            Op::Boundary(_) => {
                let argmax = self.program.boundary.op == BoundaryOp::Argmax;
                ("boundary", format!("op_boundary<{argmax}>(cx)"))
            }
            Op::Sample(op) => {
                r.set(F::K, op.vocab)?;
                for (field, access) in
                    [(F::A0, read(0)), (F::A1, read(1)), (F::A4, read(2)), (F::A2, write(0))]
                {
                    r.address(field, offset(&self.plan, access));
                }
                r.address(F::A3, offset(&self.plan, write(1)));
                let packets =
                    i.reads.iter().chain(&i.writes).filter_map(|a| self.program.buffer(a.buffer));
                if packets.into_iter().any(|b| b.sync != BufferSync::Plain) {
                    return Err(unsupported(i.id, "a draw takes and gives plain memory alone"));
                }
                ("sample", "op_sample(cx)".to_owned())
            }
            Op::Opaque(_) => {
                return Err(unsupported(i.id, "an opaque op has no kernel"));
            }
        };
        let case = self.case(op, call);
        self.count_chunks(sm, i, case);
        r.set(F::Op, u64::from(case))?;
        if let Some(record) = self.plan.records.get_mut(i.id.index()) {
            *record = r;
        }
        Ok(input)
    }

    /// Tiles and packed blocks of a chunk of the instruction's weights, and the blocks of a whole tile.
    fn chunks(&self, sm: &Sm, i: &Instruction) -> Result<(u32, u32, u64), CodegenError> {
        let run = i.run.and_then(|run| sm.stream.get(run.index()));
        let Some(Run { source: RunSource::Weight { buffer, tiles, blocks, .. }, .. }) = run else {
            return Err(unsupported(i.id, "a matrix product without a weight run"));
        };
        let total = self.program.buffer(*buffer).and_then(weight_blocks).unwrap_or(0);
        Ok((*tiles, *blocks, total))
    }

    /// Keeps the fewest chunks of a case's weights.
    fn count_chunks(&mut self, sm: &Sm, i: &Instruction, case: u32) {
        let run = i.run.and_then(|run| sm.stream.get(run.index()));
        let Some(source @ RunSource::Weight { buffer, .. }) = run.map(|run| &run.source) else {
            return;
        };
        let chunks = self.program.buffer(*buffer).and_then(|b| source.chunks(b)).unwrap_or(0);
        if let Some(known) = self.plan.chunks.get_mut(case as usize) {
            *known = if *known == 0 { chunks } else { chunks.min(*known) };
        }
    }

    /// The template's `Geometry` of a product over `width` elements, but for the chunks that every
    /// instruction has; [`Plan::text_of`] adds them.
    fn geometry(&self, sm: &Sm, i: &Instruction, width: u64) -> Result<String, CodegenError> {
        let (_, blocks, total) = self.chunks(sm, i)?;
        Ok(format!("Geometry<{width}, {blocks}, {total}{LEAST}>"))
    }

    /// Fields every matrix product has: rows, input width, chunk geometry, output.
    fn linear(
        &mut self,
        sm: &Sm,
        i: &Instruction,
        r: &mut Record,
        width: u64,
        rows: Rows,
        eps: Option<Scalar>,
    ) -> Result<(), CodegenError> {
        let (tiles, _, _) = self.chunks(sm, i)?;
        r.set(F::Tiles, u64::from(tiles))?;
        r.set(F::Lo, rows.lo)?;
        r.set(F::Hi, rows.hi)?;
        r.set(F::K, width)?;
        r.0[F::Const as usize] = eps.map_or(0, |e| e.0.to_bits());
        r.set(F::InPhase, u64::from(i.reads.first().map_or(0, |a| a.phase)))?;
        r.set(F::OutPhase, u64::from(i.writes.first().map_or(0, |a| a.phase)))?;
        if let Some(out) = i.writes.first() {
            r.address(F::A2, self.plan.arena.offset(out.buffer));
        }
        self.plan.widest = self.plan.widest.max(width);
        Ok(())
    }

    fn attention(
        &mut self,
        i: &Instruction,
        op: &op::Attention,
        r: &mut Record,
    ) -> Result<(&'static str, String), CodegenError> {
        if i.run.is_some() {
            return Err(unsupported(i.id, "keys and values in the weight stream"));
        }
        let (rope, past) = (op.fresh_reads(), op.reads_before_past());
        let x = self.buffer(i.reads.first())?;
        let keys = self.buffer(i.reads.get(past))?;
        let out_access = i.writes.last();
        let out = self.buffer(out_access)?;
        let shape = AttentionShape {
            head_dim: op.head_dim,
            heads: op.heads,
            kv_heads: op.kv_heads,
            kv: keys.dtype,
            group_max: op.q.hi - op.q.lo,
            rotary: op.rotary(),
            head_norm: op.head_norm,
            wide_norm: op.wide_norm,
            cap: op.cap,
            windows: op.window.is_some(),
        };
        let sync = |b: &Buffer| if b.sync == BufferSync::Packet { "PACKET" } else { "PLAIN" };
        let call = format!(
            "op_attention<{}, {}, {}, {}>(cx)",
            sync(x),
            sync(out),
            dtype_name(out.dtype),
            op.splits > 1
        );
        let known = self.plan.attention.get_or_insert(shape);
        known.group_max = known.group_max.max(shape.group_max);
        // Heads that are not rotated are rotated by nothing.
        known.rotary = known.rotary.max(shape.rotary);
        known.windows |= shape.windows;
        let (group_max, rotary, windows) = (known.group_max, known.rotary, known.windows);
        let like = shape.rotary == 0 || shape.rotary == rotary;
        if !like || *known != (AttentionShape { group_max, rotary, windows, ..shape }) {
            return Err(unsupported(i.id, "head shapes that differ between layers"));
        }
        let x = self.buffer(i.reads.first())?;
        let out = self.buffer(out_access)?;
        let at = |n: usize| i.reads.get(n).map_or(0, |a| self.plan.arena.offset(a.buffer));
        r.set(F::Lo, op.q.lo)?;
        r.set(F::Hi, op.q.hi)?;
        let flags = [op.is_last(), op.append, op.unrotated];
        let flags = flags.iter().rev().fold(0, |bits, &f| bits << 1 | u64::from(f));
        // A window lies above the flags; 0 is none.
        r.set(F::Flags, flags | op.window.unwrap_or(0) << ATTENTION_FLAGS)?;
        r.set(F::X0, op.kv_head)?;
        r.set(F::X1, op.split)?;
        r.set(F::X2, op.splits)?;
        r.set(F::X3, op.capacity)?;
        r.set(F::InPitch, pitch(x))?;
        r.set(F::OutPitch, pitch(out))?;
        r.0[F::Const as usize] = op.scale.0.to_bits();
        r.set(F::InPhase, u64::from(i.reads.first().map_or(0, |a| a.phase)))?;
        r.set(F::OutPhase, u64::from(out_access.map_or(0, |a| a.phase)))?;
        r.address(F::A0, at(0));
        r.address(F::A1, if op.unrotated { 0 } else { at(rope) });
        if let Some(eps) = op.head_norm {
            // Weights of all heads begin at those of the unit's own.
            let own = |head: u64| if op.wide_norm { head * op.head_dim * 4 } else { 0 };
            r.address(F::A5, at(past - 2) + own(op.q.lo));
            r.address(F::Tiles, at(past - 1) + own(op.kv_head));
            r.0[F::K as usize] = eps.0.to_bits();
        }
        r.address(F::A2, at(past));
        r.address(F::A3, at(past + 1));
        r.address(F::A4, out_access.map_or(0, |a| self.plan.arena.offset(a.buffer)));
        Ok(("attention", call))
    }
}
