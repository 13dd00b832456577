//! How tensors lie in memory.

use symmc_ir::Tensor;
use symmc_support::random::SplitMix;

/// Where the elements of a tensor lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElementLayout {
    /// The distance of neighbours along each axis, in elements.
    pub strides: Vec<isize>,
    /// Elements before the first.
    pub offset: usize,
}

impl ElementLayout {
    /// Row-major, from the first element on.
    pub fn dense(shape: &[usize]) -> Self {
        let mut strides = vec![1isize; shape.len()];
        for axis in (1..strides.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis] as isize;
        }
        ElementLayout { strides, offset: 0 }
    }

    /// Axes in some order in memory, gaps between them and elements before them.
    pub fn scattered(shape: &[usize], random: &mut SplitMix) -> Self {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if random.one_in(2) {
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i + 1));
            }
        }
        let mut strides = vec![0; shape.len()];
        let mut stride = if random.one_in(3) { 1 + random.below(3) } else { 1 };
        for &axis in order.iter().rev() {
            strides[axis] = stride as isize;
            let gap = if random.one_in(3) { random.below(3) } else { 0 };
            stride *= shape[axis] + gap;
        }
        ElementLayout { strides, offset: random.below(5) }
    }

    /// Elements from the start of the memory to behind the last of a tensor of this shape; at least 1 behind the
    /// offset.
    pub fn extent(&self, shape: &[usize]) -> usize {
        let last_offsets = shape.iter().zip(&self.strides).map(|(&n, &s)| n.saturating_sub(1) * s as usize);
        self.offset + last_offsets.sum::<usize>() + 1
    }

    /// The places of all elements of a tensor of this shape in row-major order, in elements.
    pub fn places(&self, shape: &[usize]) -> Vec<usize> {
        let place_of = |mut i: usize| {
            let mut element = self.offset;
            for (&extent, &stride) in shape.iter().zip(&self.strides).rev() {
                element += i % extent * stride as usize;
                i /= extent;
            }
            element
        };
        (0..shape.iter().product()).map(place_of).collect()
    }
}

/// A tensor and how it lies in memory.
#[derive(Clone, Debug)]
pub struct PlacedTensor {
    /// Its elements.
    pub tensor: Tensor,
    /// Where they lie.
    pub layout: ElementLayout,
}

impl PlacedTensor {
    /// Row-major, from the first byte on.
    pub fn dense(tensor: Tensor) -> PlacedTensor {
        let layout = ElementLayout::dense(tensor.shape());
        PlacedTensor { tensor, layout }
    }

    /// In some layout, which is often plain.
    pub fn scattered(tensor: Tensor, random: &mut SplitMix) -> PlacedTensor {
        if random.one_in(3) {
            return PlacedTensor::dense(tensor);
        }
        let layout = ElementLayout::scattered(tensor.shape(), random);
        PlacedTensor { tensor, layout }
    }
}
