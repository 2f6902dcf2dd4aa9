//! The tables the kernel interprets: per SM a head, then instructions, runs, waits and signals, all
//! little-endian. They hold offsets only, so their hash does not depend on a device.

use amk_schedule_ir::*;

use super::error::CodegenError;
use super::variants::Plan;

/// Packed tables of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    pub bytes: Vec<u8>,
    /// Bytes of all packed weight streams.
    pub weight_bytes: u64,
    /// Start of each SM's packed stream.
    pub weight_at: Vec<u64>,
}

impl Tables {
    /// blake3 of the tables, to be compared with what a device holds after upload.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(&self.bytes).as_bytes()
    }
}

/// Bytes of the table head and of one SM head, run and edge.
const HEAD: usize = 16;
const SM_HEAD: usize = 32;
const RUN: usize = 32;
const EDGE: usize = 16;

pub(super) fn pack(program: &Program, plan: &Plan) -> Result<Tables, CodegenError> {
    let (mut heads, mut code, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut waits, mut signals) = (Vec::<u8>::new(), Vec::<u8>::new());
    let mut weight_at = Vec::new();
    let mut stream = 0u64;
    let narrow = |v: usize| {
        u32::try_from(v).map_err(|_| CodegenError::Program("a table is too long".to_owned()))
    };
    for sm in &program.sms {
        put(&mut heads, &[narrow(code.len() / 128)?, narrow(sm.queue.len())?]);
        put(&mut heads, &[narrow(runs.len() / RUN)?, narrow(sm.stream.len())?]);
        heads.extend_from_slice(&stream.to_le_bytes());
        heads.extend_from_slice(&0u64.to_le_bytes());
        weight_at.push(stream);
        for run in &sm.stream {
            let buffer = program.buffer(run.source.buffer());
            let RunSource::Weight { lo, hi, tiles, blocks, .. } = &run.source else {
                return Err(CodegenError::Program(format!(
                    "{} of {}: keys and values in the weight stream are not supported by the templates",
                    run.id, sm.id
                )));
            };
            let total = buffer.and_then(weight_blocks).unwrap_or(0);
            let count = (hi - lo).div_ceil(TILE_ROWS);
            put(&mut runs, &[*tiles, *blocks, total as u32, count as u32, run.window, 0, 0, 0]);
            stream += count * total * BLOCK_BYTES;
        }
        for id in &sm.queue {
            let (Some(i), Some(record)) = (program.instruction(*id), plan.records.get(id.index()))
            else {
                return Err(CodegenError::Program(format!("{id} does not exist")));
            };
            let mut record = record.clone();
            let wait_at = narrow(waits.len() / EDGE)?;
            for w in &i.waits {
                edge(&mut waits, program, w.counter, w.threshold)?;
            }
            let signal_at = narrow(signals.len() / EDGE)?;
            for s in &i.signals {
                edge(&mut signals, program, s.counter, s.amount)?;
            }
            record.edges((wait_at, i.waits.len() as u32), (signal_at, i.signals.len() as u32));
            put(&mut code, &record.0);
        }
    }
    // Instructions are read 128 bytes at a time.
    let pad = (128 - (HEAD + heads.len()) % 128) % 128;
    heads.resize(heads.len() + pad, 0);
    let code_at = HEAD + heads.len();
    let run_at = code_at + code.len();
    let wait_at = run_at + runs.len();
    let signal_at = wait_at + waits.len();
    let mut bytes = Vec::with_capacity(signal_at + signals.len());
    put(&mut bytes, &[narrow(code_at)?, narrow(run_at)?, narrow(wait_at)?, narrow(signal_at)?]);
    for part in [heads, code, runs, waits, signals] {
        bytes.extend_from_slice(&part);
    }
    debug_assert_eq!(SM_HEAD * program.sms.len() + HEAD + pad, code_at);
    Ok(Tables { bytes, weight_bytes: stream, weight_at })
}

fn put(out: &mut Vec<u8>, words: &[u32]) {
    for w in words {
        out.extend_from_slice(&w.to_le_bytes());
    }
}

fn edge(out: &mut Vec<u8>, p: &Program, id: CounterId, amount: u64) -> Result<(), CodegenError> {
    let per_step = p.counters.get(id.index()).map_or(0, |c| c.per_step);
    let fit = |v: u64| {
        u32::try_from(v).map_err(|_| CodegenError::Program(format!("{id}: {v} is over 32 bits")))
    };
    put(out, &[id.0, fit(amount)?, fit(per_step)?, 0]);
    Ok(())
}
