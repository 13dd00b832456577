//! Random numbers, tensors and layouts; the same for the same seed.

use symmc_ir::{DType, Tensor};

use super::Placed;

/// A small generator of random numbers (SplitMix64, Steele et al., 2014).
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
    /// In `-1..1`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// A tensor of numbers that occur: some halves, so that equal elements and whole numbers are among them.
pub(super) fn tensor(r: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    let element = |r: &mut Random| match dtype {
        DType::Bool => r.below(2) as f64,
        DType::U8 => r.below(256) as f64,
        DType::I32 | DType::I64 => r.below(21) as f64 - 10.0,
        _ if r.chance(4) => (r.unit() * 6.0).round() / 2.0,
        _ => r.unit() * 3.0,
    };
    let elements: Vec<f64> = (0..n).map(|_| element(r)).collect();
    of(Tensor::from_f64(dtype, shape, &elements))
}

/// Indices in range.
pub(super) fn indices(r: &mut Random, shape: &[usize], extent: usize) -> Tensor {
    let n = shape.iter().product();
    let dtype = r.pick(&[DType::I64, DType::I32]);
    let elements: Vec<i64> = (0..n).map(|_| r.below(extent) as i64).collect();
    of(Tensor::from_i64(dtype, shape, &elements))
}

/// A tensor that was made with as many elements as its shape says.
pub(super) fn of(tensor: Option<Tensor>) -> Tensor {
    tensor.expect("as many elements as the shape says")
}

/// Row-major, from the first byte on.
pub(super) fn dense(tensor: Tensor) -> Placed {
    let mut strides = vec![1isize; tensor.shape().len()];
    for axis in (1..strides.len()).rev() {
        strides[axis - 1] = strides[axis] * tensor.shape()[axis] as isize;
    }
    Placed { tensor, strides, offset: 0 }
}

/// Axes in some order in memory, gaps between them and elements before them; often plain.
pub(super) fn scattered(tensor: Tensor, r: &mut Random) -> Placed {
    if r.chance(3) {
        return dense(tensor);
    }
    let shape = tensor.shape().to_vec();
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if r.chance(2) {
        for i in (1..order.len()).rev() {
            order.swap(i, r.below(i + 1));
        }
    }
    let mut strides = vec![0; shape.len()];
    let mut stride = if r.chance(3) { 1 + r.below(3) } else { 1 };
    for &axis in order.iter().rev() {
        strides[axis] = stride as isize;
        let gap = if r.chance(3) { r.below(3) } else { 0 };
        stride *= shape[axis] + gap;
    }
    let offset = r.below(5);
    Placed { tensor, strides, offset }
}
