//! Tensors in arbitrary layouts, the call of a kernel on them, and comparison.

use symmc_cases::ElementLayout;
use symmc_ir::{DType, Op, Tensor};
use symmc_runtime::kernels::{
    KernelError, Scratch, TensorLayout, TensorView, TensorViewMut, compute, compute_with, may_refuse_data,
    scratch_needs,
};
use symmc_support::random::SplitMix;

/// The contents of the bytes around a placed tensor.
const CANARY: u8 = 0xa5;

/// A tensor that lies somewhere in memory under some strides.
#[derive(Clone)]
pub struct PlacedTensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub layout: ElementLayout,
    words: Vec<u64>,
}

impl PlacedTensor {
    /// Memory for a tensor in a random layout.
    pub fn room(dtype: DType, shape: &[usize], random: &mut SplitMix) -> Self {
        Self::with(dtype, shape, ElementLayout::scattered(shape, random))
    }

    fn with(dtype: DType, shape: &[usize], layout: ElementLayout) -> Self {
        let bytes = (layout.extent(shape) + 4) * dtype.size();
        let words = vec![u64::from_ne_bytes([CANARY; 8]); bytes.div_ceil(8)];
        PlacedTensor { dtype, shape: shape.to_vec(), layout, words }
    }

    /// Dense memory, filled with the tensor.
    pub fn dense(tensor: &Tensor) -> Self {
        let mut out = Self::with(tensor.dtype(), tensor.shape(), ElementLayout::dense(tensor.shape()));
        out.store(tensor);
        out
    }

    /// Dense memory in which the first axis is the fastest, filled with the tensor.
    pub fn column_major(tensor: &Tensor) -> Self {
        let shape = tensor.shape();
        let mut layout = ElementLayout::dense(shape);
        let mut stride = 1;
        for (axis, &n) in shape.iter().enumerate() {
            layout.strides[axis] = stride;
            stride *= n.max(1) as isize;
        }
        let mut out = Self::with(tensor.dtype(), shape, layout);
        out.store(tensor);
        out
    }

    /// A tensor in a random layout.
    pub fn scattered(tensor: &Tensor, random: &mut SplitMix) -> Self {
        let mut out = Self::room(tensor.dtype(), tensor.shape(), random);
        out.store(tensor);
        out
    }

    /// The byte offsets of all elements in row-major order.
    fn places(&self) -> Vec<usize> {
        self.layout.places(&self.shape).into_iter().map(|at| at * self.dtype.size()).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    pub fn store(&mut self, tensor: &Tensor) {
        let (size, mut bytes) = (self.dtype.size(), self.bytes());
        for (i, at) in self.places().into_iter().enumerate() {
            bytes[at..at + size].copy_from_slice(&tensor.data()[i * size..(i + 1) * size]);
        }
        self.words =
            bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().expect("whole words"))).collect();
    }

    pub fn tensor(&self) -> Tensor {
        let (size, bytes) = (self.dtype.size(), self.bytes());
        let data = self.places().into_iter().flat_map(|at| bytes[at..at + size].to_vec()).collect();
        Tensor::new(self.dtype, self.shape.clone(), data).expect("as long as the shape says")
    }

    /// Whether only the bytes of the elements were written.
    pub fn surroundings_are_untouched(&self) -> bool {
        let mut own = vec![false; self.words.len() * 8];
        for at in self.places() {
            own[at..at + self.dtype.size()].fill(true);
        }
        self.bytes().iter().zip(own).all(|(&b, own)| own || b == CANARY)
    }

    pub fn view(&self) -> TensorView<'_> {
        let ptr = self.words.as_ptr().cast::<u8>().wrapping_add(self.layout.offset * self.dtype.size());
        // SAFETY: `with` made room for every element; the words are aligned for every dtype.
        unsafe { TensorView::new(self.dtype, &self.shape, &self.layout.strides, ptr) }
    }

    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        let ptr = self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.layout.offset * self.dtype.size());
        // SAFETY: as above; `room` gives strides under which no two elements meet.
        unsafe { TensorViewMut::new(self.dtype, &self.shape, &self.layout.strides, ptr) }
    }

    /// The memory as operand and result at once.
    pub fn in_place(&mut self, op: &Op) -> Result<(), KernelError> {
        let ptr = self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.layout.offset * self.dtype.size());
        // SAFETY: as above; the kernel itself is the only one to write.
        let (x, y) = unsafe {
            let x = TensorView::new(self.dtype, &self.shape, &self.layout.strides, ptr);
            (x, TensorViewMut::new(self.dtype, &self.shape, &self.layout.strides, ptr))
        };
        compute(op, &[x], &mut [y])
    }
}

/// Runs a kernel on placed operands. Checks that it uses no more memory than its stated needs, and refuses
/// data only if it may.
pub fn call(op: &Op, operands: &[PlacedTensor], results: &mut [PlacedTensor]) -> Result<(), KernelError> {
    fn shaped(placed: &[PlacedTensor]) -> Vec<TensorLayout<'_>> {
        placed.iter().map(|p| (p.dtype, &p.shape[..], &p.layout.strides[..])).collect()
    }
    let needs = scratch_needs(op, &shaped(operands), &shaped(results));
    let may_refuse = may_refuse_data(op, &shaped(operands));
    let mut scratch = Scratch::with_needs(&needs);
    let operands: Vec<TensorView<'_>> = operands.iter().map(PlacedTensor::view).collect();
    let mut results: Vec<TensorViewMut<'_>> = results.iter_mut().map(PlacedTensor::view_mut).collect();
    let done = compute_with(op, &operands, &mut results, &mut scratch);
    assert!(scratch.bytes() <= needs.bytes(), "{op:?} on {operands:?}: told {needs:?}, taken {scratch:?}");
    let refused = done.as_ref().err().and_then(KernelError::data_fault);
    assert!(may_refuse || refused.is_none(), "{op:?} on {operands:?}: {refused:?}");
    done
}

/// Runs a kernel on dense operands; returns its results.
pub fn run(op: &Op, operands: &[Tensor], results: &[(DType, &[usize])]) -> Result<Vec<Tensor>, KernelError> {
    let operands: Vec<PlacedTensor> = operands.iter().map(PlacedTensor::dense).collect();
    let room = |(dtype, shape): &(DType, &[usize])| Tensor::zeros(*dtype, *shape).expect("small");
    let mut results: Vec<PlacedTensor> = results.iter().map(|r| PlacedTensor::dense(&room(r))).collect();
    call(op, &operands, &mut results)?;
    Ok(results.iter().map(PlacedTensor::tensor).collect())
}

pub fn floats(dtype: DType, shape: &[usize], elements: &[f64]) -> Tensor {
    Tensor::from_f64(dtype, shape, elements).expect("as many elements as the shape says")
}

pub fn ints(dtype: DType, shape: &[usize], elements: &[i64]) -> Tensor {
    Tensor::from_i64(dtype, shape, elements).expect("as many elements as the shape says")
}
