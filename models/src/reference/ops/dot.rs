//! Dot products with a fixed order of summation.
//!
//! Every product of two vectors is summed in [`LANES`] partial sums, element `i` into partial sum `i % LANES`, which
//! are then added pairwise. Multiplication and addition are separate roundings. So the result is the same on every
//! machine, in whatever width the compiler vectorises the loops; on x86-64 they are compiled a second time for AVX2.

/// Partial sums of a dot product.
const LANES: usize = 32;

/// bfloat16 to f32: its bits are the upper half.
#[inline(always)]
fn wide(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            lanes[i] += lanes[i + n];
        }
        n /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn body<T: Copy>(w: &[T], x: &[f32], widen: impl Fn(T) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (w_blocks, w_tail) = w.as_chunks::<LANES>();
    let (x_blocks, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in w_blocks.iter().zip(x_blocks) {
        for i in 0..LANES {
            lanes[i] += widen(w[i]) * x[i];
        }
    }
    for (lane, (w, x)) in lanes.iter_mut().zip(w_tail.iter().zip(x_tail)) {
        *lane += widen(*w) * x;
    }
    fold(lanes)
}

#[inline(always)]
fn f32_body(w: &[f32], x: &[f32]) -> f32 {
    body(w, x, |w| w)
}

/// `out[r] = w[r] · x` for rows of bf16 bits.
#[inline(always)]
fn rows_bf16_body(w: &[u16], x: &[f32], out: &mut [f32]) {
    for (o, row) in out.iter_mut().zip(w.chunks_exact(x.len())) {
        *o = body(row, x, wide);
    }
}

/// `out[r] = w[r] · x` for rows of f32.
#[inline(always)]
fn rows_f32_body(w: &[f32], x: &[f32], out: &mut [f32]) {
    for (o, row) in out.iter_mut().zip(w.chunks_exact(x.len())) {
        *o = body(row, x, |w| w);
    }
}

/// Two products that share a row: the same sums as two calls of `dot_f32`, with the row loaded once.
#[inline(always)]
fn pair_body(w: &[f32], x: &[f32], y: &[f32]) -> (f32, f32) {
    let (mut a, mut b) = ([0f32; LANES], [0f32; LANES]);
    let (w_blocks, w_tail) = w.as_chunks::<LANES>();
    let (x_blocks, x_tail) = x.as_chunks::<LANES>();
    let (y_blocks, y_tail) = y.as_chunks::<LANES>();
    for ((w, x), y) in w_blocks.iter().zip(x_blocks).zip(y_blocks) {
        for i in 0..LANES {
            a[i] += w[i] * x[i];
            b[i] += w[i] * y[i];
        }
    }
    for (i, ((w, x), y)) in w_tail.iter().zip(x_tail).zip(y_tail).enumerate() {
        a[i] += w * x;
        b[i] += w * y;
    }
    (fold(a), fold(b))
}

#[inline(always)]
fn widen_bf16_body(w: &[u16], out: &mut [f32]) {
    for (o, w) in out.iter_mut().zip(w) {
        *o = wide(*w);
    }
}

macro_rules! for_this_machine {
    ($(#[$doc:meta])* $name:ident, $avx2:ident, $body:ident, ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $avx2($($arg: $ty),*) $(-> $ret)? {
            $body($($arg),*)
        }

        $(#[$doc])*
        pub fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the machine has AVX2.
                return unsafe { $avx2($($arg),*) };
            }
            $body($($arg),*)
        }
    };
}

for_this_machine!(
    /// `w · x`.
    dot_f32, dot_f32_avx2, f32_body, (w: &[f32], x: &[f32]) -> f32
);
for_this_machine!(
    /// `out[r] = w[r] · x` for consecutive rows of bf16 bits.
    rows_bf16, rows_bf16_avx2, rows_bf16_body, (w: &[u16], x: &[f32], out: &mut [f32])
);
for_this_machine!(
    /// `out[r] = w[r] · x` for consecutive rows of f32.
    rows_f32, rows_f32_avx2, rows_f32_body, (w: &[f32], x: &[f32], out: &mut [f32])
);
for_this_machine!(
    /// `(w · x, w · y)`.
    pair, pair_avx2, pair_body, (w: &[f32], x: &[f32], y: &[f32]) -> (f32, f32)
);
for_this_machine!(
    /// Widens bf16 bits.
    widen_bf16, widen_bf16_avx2, widen_bf16_body, (w: &[u16], out: &mut [f32])
);

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut s = seed;
        (0..n)
            .map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    #[test]
    fn all_forms_agree_bit_for_bit_and_with_f64() {
        for n in [0, 1, 2, 20, 31, 32, 33, 60, 64, 100, 576, 1003] {
            let (w, x, y) = (noise(n, 1), noise(n, 2), noise(n, 3));
            let bits: Vec<u16> = w.iter().map(|v| half::bf16::from_f32(*v).to_bits()).collect();
            let mut wide = vec![0.0; n];
            widen_bf16(&bits, &mut wide);
            let d = dot_f32(&wide, &x);
            assert_eq!(d, f32_body(&wide, &x));
            assert_eq!(pair(&wide, &x, &y), (d, dot_f32(&wide, &y)));
            if n > 0 {
                let (mut a, mut b) = ([0.0], [0.0]);
                rows_bf16(&bits, &x, &mut a);
                rows_f32(&wide, &x, &mut b);
                assert_eq!((a[0], b[0]), (d, d));
            }
            let exact: f64 = wide.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(d) - exact).abs() < 1e-4, "{n}: {d} {exact}");
        }
    }
}
