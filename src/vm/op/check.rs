//! Is every instruction what its op computes? Asked before numbers are computed, since the maths
//! takes its operands by place.

use amk_schedule_ir::{Access, Instruction, Op, OpContext, Operand, Program, RunSource, WeightUse};

use crate::vm::fault::VmFault;

/// The first instruction that is not what its op computes, if there is one.
pub(crate) fn check(program: &Program) -> Result<(), VmFault> {
    let cx = OpContext { tokens: u64::from(program.tokens) };
    for sm in &program.sms {
        for id in &sm.queue {
            let Some(instr) = program.instruction(*id) else { continue };
            let wrong =
                |what: String| VmFault::Maths { op: instr.op.name(), instruction: Some(*id), what };
            if matches!(instr.op, Op::Opaque(_)) {
                return Err(wrong("its maths is not known; run the program without data".into()));
            }
            instr.op.check().map_err(wrong)?;
            let footprint = instr.op.footprint(cx);
            operands(program, "read", &instr.reads, &footprint.reads).map_err(wrong)?;
            operands(program, "write", &instr.writes, &footprint.writes).map_err(wrong)?;
            let run = instr.run.and_then(|r| sm.stream.get(r.index()));
            weights(program, instr, run.map(|r| &r.source), footprint.weight).map_err(wrong)?;
        }
    }
    Ok(())
}

fn operands(
    program: &Program,
    what: &str,
    declared: &[Access],
    wanted: &[Operand],
) -> Result<(), String> {
    if declared.len() != wanted.len() {
        return Err(format!("it has {} {what}s, not {}", declared.len(), wanted.len()));
    }
    for (access, operand) in declared.iter().zip(wanted) {
        let role = operand.role;
        let Some(buffer) = program.buffer(access.buffer) else {
            return Err(format!("{what} `{role}` names a buffer that does not exist"));
        };
        let fits = operand.shape.len() == buffer.shape.len()
            && operand.shape.iter().zip(&buffer.shape).all(|(w, n)| w.is_none_or(|w| w == *n))
            && operand.dtypes.contains(&buffer.dtype)
            && operand.kinds.contains(&buffer.kind);
        if !fits {
            return Err(format!(
                "`{}` has the wrong kind, type or shape for {what} `{role}`",
                buffer.name
            ));
        }
        if access.region != operand.region {
            return Err(format!(
                "{what} `{role}` is another part of `{}` than the op takes",
                buffer.name
            ));
        }
    }
    Ok(())
}

fn weights(
    program: &Program,
    instr: &Instruction,
    run: Option<&RunSource>,
    wanted: Option<WeightUse>,
) -> Result<(), String> {
    match (run, wanted) {
        (None, None) => Ok(()),
        (Some(RunSource::Weight { buffer, lo, hi, .. }), Some(w)) => {
            let shape = program.buffer(*buffer).map(|b| b.shape.as_slice());
            if shape != Some(&w.shape[..]) || (*lo, *hi) != (w.lo, w.hi) {
                return Err("its run is not the weight rows the op takes".into());
            }
            Ok(())
        }
        (Some(RunSource::Kv { .. }), None) if matches!(instr.op, Op::Attention(_)) => Ok(()),
        _ => Err("it consumes a run of another kind than its op takes, or none".into()),
    }
}
