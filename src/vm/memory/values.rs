//! Element values of one buffer (`Maths` mode only), rounded on store to the type they have.

use amk_schedule_ir::DType;
use half::{bf16, f16};

use crate::vm::plan::Interval;

/// Values of elements on their way between memory and an op.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Real numbers: bf16, f16 and f32 elements.
    Real(Vec<f32>),
    /// Token ids: u32 elements.
    Ids(Vec<u32>),
    /// (value, token id) pairs, see [`crate::vm::op::key`].
    Keys(Vec<u64>),
}

/// The elements of a buffer.
pub(crate) enum Array {
    Real { round: fn(f32) -> f32, data: Vec<f32> },
    Ids(Vec<u32>),
    Keys(Vec<u64>),
}

impl Array {
    /// Elements of a type. They hold no value anybody may read: the record of writes says so.
    pub fn new(dtype: DType, elements: usize) -> Array {
        let round: fn(f32) -> f32 = match dtype {
            DType::U32 => return Array::Ids(vec![0; elements]),
            DType::Key => return Array::Keys(vec![0; elements]),
            DType::Bf16 => |x| bf16::from_f32(x).to_f32(),
            DType::F16 => |x| f16::from_f32(x).to_f32(),
            DType::F32 => |x| x,
        };
        Array::Real { round, data: vec![0.0; elements] }
    }

    /// The elements of a list of intervals, one after another.
    pub fn gather(&self, list: &[Interval]) -> Values {
        fn copy<T: Copy>(data: &[T], list: &[Interval]) -> Vec<T> {
            let n = list.iter().map(|(lo, hi)| (hi - lo) as usize).sum();
            let mut out = Vec::with_capacity(n);
            for &(lo, hi) in list {
                out.extend_from_slice(data.get(lo as usize..hi as usize).unwrap_or(&[]));
            }
            out
        }
        match self {
            Array::Real { data, .. } => Values::Real(copy(data, list)),
            Array::Ids(data) => Values::Ids(copy(data, list)),
            Array::Keys(data) => Values::Keys(copy(data, list)),
        }
    }

    /// Stores `values[from..]` in the elements `[lo, hi)`; `false` if type or length do not fit.
    #[must_use]
    pub fn store(&mut self, (lo, hi): Interval, values: &Values, from: usize) -> bool {
        let (lo, hi) = (lo as usize, hi as usize);
        let range = from..from + (hi - lo);
        match (self, values) {
            (Array::Real { round, data }, Values::Real(v)) => {
                let (Some(to), Some(v)) = (data.get_mut(lo..hi), v.get(range)) else {
                    return false;
                };
                to.iter_mut().zip(v).for_each(|(a, b)| *a = round(*b));
                true
            }
            (Array::Ids(data), Values::Ids(v)) => put(data.get_mut(lo..hi), v.get(range)),
            (Array::Keys(data), Values::Keys(v)) => put(data.get_mut(lo..hi), v.get(range)),
            _ => false,
        }
    }
}

fn put<T: Copy>(to: Option<&mut [T]>, from: Option<&[T]>) -> bool {
    match (to, from) {
        (Some(to), Some(from)) => {
            to.copy_from_slice(from);
            true
        }
        _ => false,
    }
}

impl Values {
    /// Position of the first value that is not a number.
    pub fn first_nan(&self) -> Option<usize> {
        match self {
            Values::Real(v) => v.iter().position(|x| x.is_nan()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_elements_round_on_store() {
        let mut a = Array::new(DType::Bf16, 4);
        assert!(a.store((1, 3), &Values::Real(vec![9.0, 1.0 + 1.0 / 256.0, 3.0]), 1));
        assert_eq!(a.gather(&[(1, 3)]), Values::Real(vec![1.0, 3.0]));
        assert!(!a.store((0, 4), &Values::Real(vec![1.0; 3]), 0), "too few values");
        assert!(!a.store((0, 1), &Values::Ids(vec![1]), 0), "wrong type");
    }
}
