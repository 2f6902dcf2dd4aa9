//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw ("Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011): four random words are a function of a key and a counter, so that any of them can be had anywhere,
//! in any order, without a state.

/// Multipliers of a round.
const MULTIPLY: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What each round adds to the key.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The four words of a counter under a key.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..ROUNDS {
        if round > 0 {
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLY[0]) * u64::from(c[0]);
        let b = u64::from(MULTIPLY[1]) * u64::from(c[2]);
        let (high, low) = (|x: u64| (x >> 32) as u32, |x: u64| x as u32);
        c = [high(b) ^ c[1] ^ k[0], low(b), high(a) ^ c[3] ^ k[1], low(a)];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known answers published with the generator.
    #[test]
    fn gives_the_known_answers() {
        let all = u32::MAX;
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([all; 4], [all; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(pi, [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
