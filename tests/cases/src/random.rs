//! Random tensors; the same for the same seed.

use symmc_ir::{DType, Tensor};
use symmc_support::random::SplitMix;

/// A tensor of numbers that occur: some halves, so that equal elements and whole numbers are among them.
pub(crate) fn tensor(r: &mut SplitMix, dtype: DType, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    let element = |r: &mut SplitMix| match dtype {
        DType::Bool => r.below(2) as f64,
        DType::U8 => r.below(256) as f64,
        DType::I32 | DType::I64 => r.below(21) as f64 - 10.0,
        _ if r.one_in(4) => (r.symmetric_unit() * 6.0).round() / 2.0,
        _ => r.symmetric_unit() * 3.0,
    };
    let elements: Vec<f64> = (0..n).map(|_| element(r)).collect();
    of(Tensor::from_f64(dtype, shape, &elements))
}

/// Indices in range.
pub(crate) fn indices(r: &mut SplitMix, shape: &[usize], extent: usize) -> Tensor {
    let n = shape.iter().product();
    let dtype = r.pick(&[DType::I64, DType::I32]);
    let elements: Vec<i64> = (0..n).map(|_| r.below(extent) as i64).collect();
    of(Tensor::from_i64(dtype, shape, &elements))
}

/// A tensor that was made with as many elements as its shape says.
pub(crate) fn of(tensor: Option<Tensor>) -> Tensor {
    tensor.expect("as many elements as the shape says")
}
