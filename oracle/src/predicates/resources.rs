//! Grid, threads, registers, barriers and shared memory against the target record.

use amk_schedule_ir::{Area, OpContext, Program, Target};

use crate::breach::Breaches;
use crate::breach::Invariant::O;

pub(super) fn check(p: &Program, t: &Target, out: &mut Breaches) {
    let r = &p.resources;
    let here = || "the resources".to_owned();
    out.demand(p.sm_arch == t.sm, O, "target", || "the program".to_owned());
    out.demand(p.sms.len() as u64 <= u64::from(t.sm_count), O, "grid", here);
    out.demand(r.consumer_warps >= 1, O, "warps", here);
    out.demand(r.threads() <= u64::from(t.threads_per_block), O, "threads", here);
    out.demand((1..=t.registers_per_thread).contains(&r.registers), O, "registers", here);
    // Registers are handed out eight to a thread.
    let registers = u128::from(r.registers.div_ceil(8)) * 8 * u128::from(r.threads());
    out.demand(registers <= u128::from(t.registers_per_sm), O, "registers", here);
    out.demand((1..=t.barriers).contains(&r.barriers), O, "barriers", here);

    let end = |a: &amk_schedule_ir::SharedArea| u128::from(a.offset) + u128::from(a.bytes);
    for (i, a) in r.shared.iter().enumerate() {
        out.demand(a.offset % 16 == 0, O, "area-alignment", here);
        for b in &r.shared[..i] {
            let apart = end(a) <= u128::from(b.offset) || end(b) <= u128::from(a.offset);
            out.demand(apart || a.bytes == 0 || b.bytes == 0, O, "area-overlap", here);
            out.demand(a.area != b.area, O, "area-twice", here);
        }
    }
    let used = r.shared.iter().filter(|a| a.bytes > 0).map(end).max().unwrap_or(0);
    out.demand(used <= u128::from(t.shared_per_block), O, "shared-block", here);
    let with_system = used + u128::from(t.reserved_shared);
    out.demand(with_system <= u128::from(t.shared_per_sm), O, "shared-sm", here);

    let size = |area: Area| -> u128 {
        r.shared.iter().filter(|a| a.area == area).map(|a| u128::from(a.bytes)).sum()
    };
    if p.sms.iter().any(|sm| !sm.stream.is_empty()) {
        let ring = u128::from(r.ring_slots) * u128::from(r.slot_bytes);
        out.demand(r.slot_bytes.is_multiple_of(16), O, "slot-alignment", here);
        out.demand(size(Area::Ring) >= ring, O, "ring-area", here);
        out.demand(size(Area::Mbarrier) >= 16 * u128::from(r.ring_slots), O, "mbarrier-area", here);
    }
    let cx = OpContext { tokens: u64::from(p.tokens) };
    for (i, x) in p.instructions.iter().enumerate() {
        if x.op.check().is_err() {
            continue;
        }
        // The staged input, if the op has one, takes as many bf16 rows as its type has terms.
        let roles = x.op.footprint(cx).reads;
        let staged = roles.iter().position(|o| ["hidden", "input", "embedding"].contains(&o.role));
        let input = staged.and_then(|k| p.buffer(x.reads.get(k)?.buffer));
        let terms = input.map_or(1, |b| b.dtype.terms());
        for (area, need) in x.op.shared(cx, r, terms) {
            out.demand(size(area) >= u128::from(need), O, "op-area", || format!("instr {i}"));
        }
    }
}
