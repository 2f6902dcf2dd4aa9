//! Weight streams in fragment order, written from the description in `schedule_ir` alone, so that the
//! product's packer is judged by another one.

use amk::vm::{Data, RecipeData};
use amk_schedule_ir::program::{BLOCK_K, Program, RunSource, TILE_ROWS};
use half::bf16;

/// The packed streams of all SMs, one after another.
pub fn streams(program: &Program, data: &RecipeData) -> Vec<u8> {
    let mut out = Vec::new();
    for run in program.sms.iter().flat_map(|sm| &sm.stream) {
        let RunSource::Weight { buffer, lo, hi, .. } = run.source else {
            panic!("a kv run");
        };
        let matrix = program.buffer(buffer).unwrap();
        let (rows, k) = (matrix.shape[0], matrix.shape[1]);
        let values = data.rows(buffer, 0..rows).unwrap();
        // Term `t` of an element is what is left of it after the terms before, rounded to bf16.
        let term = |row: u64, column: u64, t: u64| -> bf16 {
            if row >= hi || column >= k {
                return bf16::ZERO;
            }
            let mut left = values[(row * k + column) as usize];
            let mut part = bf16::from_f32(left);
            for _ in 0..t {
                left -= part.to_f32();
                part = bf16::from_f32(left);
            }
            part
        };
        for tile in 0..(hi - lo).div_ceil(TILE_ROWS) {
            for t in 0..matrix.dtype.terms() {
                for block in 0..k.div_ceil(BLOCK_K) {
                    for lane in 0..32 {
                        let row = lo + tile * TILE_ROWS + lane / 4;
                        for e in 0..8 {
                            let column = block * BLOCK_K + lane % 4 * 8 + e;
                            out.extend(term(row, column, t).to_le_bytes());
                        }
                    }
                }
            }
        }
    }
    out
}
