//! Tiles to packed blocks and back.

use amk_schedule_ir::{BLOCK_BYTES, BLOCK_K, TILE_ROWS};
use half::bf16;

const ROWS: usize = TILE_ROWS as usize;
const K: usize = BLOCK_K as usize;

/// The bf16 terms of a value: each is the rounding of what the ones before leave.
pub fn terms_of(value: f32, terms: usize) -> impl Iterator<Item = bf16> {
    let mut left = value;
    (0..terms).map(move |_| {
        let term = bf16::from_f32(left);
        left -= term.to_f32();
        term
    })
}

/// Appends the packed blocks of one tile: `values` are up to 8 rows of `width` elements.
pub fn pack_tile(values: &[f32], width: usize, terms: usize, out: &mut Vec<u8>) {
    let k_blocks = width.div_ceil(K);
    let start = out.len();
    out.resize(start + terms * k_blocks * BLOCK_BYTES as usize, 0);
    let tile = &mut out[start..];
    for (row, line) in values.chunks_exact(width.max(1)).take(ROWS).enumerate() {
        for (k, &value) in line.iter().enumerate() {
            let (block, column) = (k / K, k % K);
            let lane = row * 4 + column / 8;
            for (term, part) in terms_of(value, terms).enumerate() {
                let at =
                    (term * k_blocks + block) * BLOCK_BYTES as usize + lane * 16 + column % 8 * 2;
                tile[at..at + 2].copy_from_slice(&part.to_le_bytes());
            }
        }
    }
}

/// The rows a packed tile stands for, terms added up in float32.
pub fn unpack_tile(tile: &[u8], rows: usize, width: usize, terms: usize) -> Vec<f32> {
    let k_blocks = width.div_ceil(K);
    let mut out = vec![0.0; rows * width];
    for row in 0..rows.min(ROWS) {
        for k in 0..width {
            let lane = row * 4 + k % K / 8;
            out[row * width + k] = (0..terms)
                .map(|term| {
                    let at =
                        (term * k_blocks + k / K) * BLOCK_BYTES as usize + lane * 16 + k % 8 * 2;
                    tile.get(at..at + 2).map_or(0.0, |b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
                })
                .sum();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rows: usize, width: usize, round: impl Fn(f32) -> f32) -> Vec<f32> {
        let value = |i: usize| ((i as f32 * 0.618_034).fract() - 0.5) * (1.0 + (i % 7) as f32);
        (0..rows * width).map(|i| round(value(i))).collect()
    }

    #[test]
    fn every_type_comes_back_exactly() {
        for (rows, width) in [(8, 64), (3, 60), (8, 96), (1, 2), (5, 33)] {
            let f32s = sample(rows, width, |v| v);
            let f16s = sample(rows, width, |v| half::f16::from_f32(v).to_f32());
            let bf16s = sample(rows, width, |v| bf16::from_f32(v).to_f32());
            for (values, terms) in [(&bf16s, 1), (&f16s, 2), (&f32s, 3)] {
                let mut tile = Vec::new();
                pack_tile(values, width, terms, &mut tile);
                assert_eq!(tile.len(), terms * width.div_ceil(32) * 512);
                assert_eq!(&unpack_tile(&tile, rows, width, terms), values);
            }
        }
    }

    /// The product as the kernel forms it: per warp lane and block, two fragments against the same
    /// eight activations.
    #[test]
    fn fragments_multiply_like_a_matrix() {
        let (rows, width) = (8, 96);
        let weights = sample(rows, width, |v| bf16::from_f32(v).to_f32());
        let input: Vec<f32> = (0..width).map(|k| (k as f32 * 0.3).sin()).collect();
        let mut tile = Vec::new();
        pack_tile(&weights, width, 1, &mut tile);
        let mut sums = vec![0.0f64; rows];
        for block in 0..width / 32 {
            for lane in 0..32 {
                for j in 0..8 {
                    let at = block * 512 + lane * 16 + j * 2;
                    let w = bf16::from_le_bytes([tile[at], tile[at + 1]]).to_f32();
                    sums[lane / 4] += f64::from(w * input[block * 32 + lane % 4 * 8 + j]);
                }
            }
        }
        for (row, sum) in sums.iter().enumerate() {
            let plain: f64 =
                (0..width).map(|k| f64::from(weights[row * width + k] * input[k])).sum();
            assert!((sum - plain).abs() < 1e-5, "row {row}: {sum} and {plain}");
        }
    }
}
