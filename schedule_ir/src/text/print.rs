//! Program to canonical text.

use std::fmt::Write;

use super::hidden::push_visible;
use crate::id::BufferId;
use crate::op::Op;
use crate::program::*;
use crate::region::{Bound, Region};

/// Canonical text of a program.
pub fn print(p: &Program) -> String {
    let mut out = String::with_capacity(256 * (p.instructions.len() + 16));
    // Writing to a String cannot fail.
    let _ = write_program(&mut out, p);
    out
}

fn write_program(o: &mut String, p: &Program) -> std::fmt::Result {
    writeln!(o, "amk-schedule {}", p.version)?;
    writeln!(o, "name {}", quote(&p.name))?;
    writeln!(o, "target {}", quote_bare(&p.sm_arch))?;
    writeln!(o, "bucket {}..={}", p.bucket.first, p.bucket.last)?;
    writeln!(o, "tokens {}", p.tokens)?;
    writeln!(o, "steps {}", p.max_steps)?;
    writeln!(o, "epochs per_step {} tags {}", p.epochs.per_step, p.epochs.tags)?;
    for (k, v) in &p.meta {
        writeln!(o, "meta {} {}", quote(k), quote(v))?;
    }
    let r = &p.resources;
    writeln!(
        o,
        "resources warps {} slots {} slot_bytes {} registers {} barriers {}",
        r.consumer_warps, r.ring_slots, r.slot_bytes, r.registers, r.barriers
    )?;
    for s in &r.shared {
        writeln!(o, "shared {} {}+{}", area_name(s.area), s.offset, s.bytes)?;
    }
    for b in &p.buffers {
        write!(
            o,
            "buffer {} {} {} {} {} ",
            b.id.0,
            quote(&b.name),
            kind_name(b.kind),
            sync_name(b.sync),
            dtype_name(b.dtype)
        )?;
        write_list(o, b.shape.iter().map(u64::to_string))?;
        if b.sequence != 0 {
            write!(o, " sequence {}", b.sequence)?;
        }
        o.push('\n');
    }
    for c in &p.counters {
        writeln!(
            o,
            "counter {} {} init {} per_step {}",
            c.id.0,
            quote(&c.name),
            c.init,
            c.per_step
        )?;
    }
    let op = match p.boundary.op {
        BoundaryOp::Plain => "plain",
        BoundaryOp::Argmax => "argmax",
    };
    write!(o, "boundary {op}")?;
    write_accesses(o, " reads", &p.boundary.reads)?;
    write_accesses(o, " writes", &p.boundary.writes)?;
    o.push('\n');
    for sm in &p.sms {
        writeln!(o, "sm {}", sm.id.0)?;
        for run in &sm.stream {
            write!(o, "  run {} ", run.id.0)?;
            match &run.source {
                RunSource::Weight { buffer, lo, hi, tiles, blocks } => {
                    write!(o, "weight {} rows {lo}..{hi} tiles {tiles} blocks {blocks}", buffer.0)?;
                }
                RunSource::Kv { buffer, region, rows, gate } => {
                    write!(o, "kv {} ", buffer.0)?;
                    write_region(o, region)?;
                    write!(o, " rows {rows} gate {gate}")?;
                }
            }
            writeln!(o, " window {}", run.window)?;
        }
        o.push_str("  queue");
        for id in &sm.queue {
            write!(o, " {}", id.0)?;
        }
        o.push('\n');
    }
    for i in &p.instructions {
        writeln!(o, "instr {} {}", i.id.0, print_op(&i.op))?;
        for (keyword, accesses) in [("  reads", &i.reads), ("  writes", &i.writes)] {
            if !accesses.is_empty() {
                write_accesses(o, keyword, accesses)?;
                o.push('\n');
            }
        }
        for w in &i.waits {
            writeln!(o, "  wait {}>={}", w.counter.0, w.threshold)?;
        }
        for s in &i.signals {
            writeln!(o, "  signal {}+{}", s.counter.0, s.amount)?;
        }
        if let Some(run) = i.run {
            writeln!(o, "  run {}", run.0)?;
        }
    }
    Ok(())
}

/// An op with its parameters, as in an `instr` line.
pub fn print_op(op: &Op) -> String {
    let params: Vec<String> = op.params().iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{}{{{}}}", op.name(), params.join(", "))
}

/// An access, as in a `reads` line.
pub fn print_access(access: &Access) -> String {
    let mut out = String::new();
    let _ = write_access(&mut out, access);
    out
}

/// A bound, as in a region.
pub fn print_bound(b: Bound) -> String {
    match b {
        Bound::At(x) => x.to_string(),
        Bound::Pos(0) => "pos".to_owned(),
        Bound::Pos(o) => format!("pos{o:+}"),
        Bound::Clip(x) => format!("min({x},pos)"),
        Bound::Split { part, parts } => format!("split({part}/{parts})"),
    }
}

fn write_accesses(o: &mut String, keyword: &str, list: &[Access]) -> std::fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    o.push_str(keyword);
    for a in list {
        o.push(' ');
        write_access(o, a)?;
    }
    Ok(())
}

fn write_access(o: &mut String, a: &Access) -> std::fmt::Result {
    let BufferId(id) = a.buffer;
    write!(o, "{id}")?;
    write_region(o, &a.region)?;
    if a.phase != 0 {
        write!(o, "@{}", a.phase)?;
    }
    Ok(())
}

fn write_region(o: &mut String, r: &Region) -> std::fmt::Result {
    write_list(o, r.0.iter().map(|s| format!("{}..{}", print_bound(s.lo), print_bound(s.hi))))
}

fn write_list(o: &mut String, items: impl Iterator<Item = String>) -> std::fmt::Result {
    o.push('[');
    for (i, item) in items.enumerate() {
        if i > 0 {
            o.push_str(", ");
        }
        o.push_str(&item);
    }
    o.push(']');
    Ok(())
}

/// A quoted string; quotes, backslashes and hidden characters are escaped.
fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c => push_visible(&mut out, c),
        }
    }
    out.push('"');
    out
}

/// Bare where that reads back, quoted elsewhere.
fn quote_bare(s: &str) -> String {
    let plain = s.starts_with(|c: char| c.is_ascii_alphabetic())
        && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if plain { s.to_owned() } else { quote(s) }
}

macro_rules! names {
    ($(#[$doc:meta])* $print:ident, $parse:ident, $ty:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        $(#[$doc])*
        pub(super) fn $print(value: $ty) -> &'static str {
            match value { $($ty::$variant => $name),* }
        }
        pub(super) fn $parse(name: &str) -> Option<$ty> {
            match name { $($name => Some($ty::$variant),)* _ => None }
        }
    };
}

names!(kind_name, parse_kind, BufferKind {
    Weight = "weight", Constant = "constant", Kv = "kv", Activation = "activation",
    Tokens = "tokens", Output = "output",
});
names!(sync_name, parse_sync, BufferSync {
    Plain = "plain", Packet = "packet", Local = "local",
});
names!(dtype_name, parse_dtype, DType {
    Bf16 = "bf16", F16 = "f16", F32 = "f32", U32 = "u32", Key = "key",
});
names!(area_name, parse_area, Area {
    Ring = "ring", Mbarrier = "mbarrier", Input = "input", Partial = "partial",
    Scratch = "scratch", Local = "local", Control = "control",
});
