//! The weights of generated configurations: the same bits as `tools/make_matrix.py` makes.

/// CRC-32 (IEEE 802.3), as zlib computes it.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, b| {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
        crc
    })
}

/// Uniform numbers in [0, 1): SplitMix64, output `i` of the state `key`.
fn uniform(key: u64, i: u64) -> f64 {
    let mut z = key.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 * (0.5f64).powi(53)
}

/// Near-normal numbers of unit variance, `n` of them, for a tensor of this name.
pub fn noise(seed: u64, name: &str, n: usize) -> Vec<f64> {
    let key = ((seed & 0xFFFF_FFFF) << 32) | u64::from(crc32(name.as_bytes()));
    (0..n as u64)
        .map(|i| {
            let u = |j| uniform(key, 4 * i + j);
            (((u(0) + u(1)) + u(2)) + u(3) - 2.0) * 1.7320508075688772
        })
        .collect()
}
