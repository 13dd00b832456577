//! Strided typed views over raw memory: the operands and results of kernels.
//!
//! A view is dtype, shape, strides in elements and a pointer to its first element. Views are raw: operands
//! and results of one kernel may share bytes, and other ranks may read an operand at the same time, so no
//! kernel ever forms a reference to a whole operand. The creator of a view guarantees that its elements exist
//! ([`TensorView::new`]); kernels check everything else.

use std::marker::PhantomData;
use std::ops::Deref;

use smallvec::SmallVec;
use symmc_ir::DType;

#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    shape: &'a [usize],
    strides: &'a [isize],
    ptr: *const u8,
    memory: PhantomData<&'a [u8]>,
}

/// A result of a kernel: a view that is written.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    view: TensorView<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Deref for TensorViewMut<'a> {
    type Target = TensorView<'a>;
    fn deref(&self) -> &TensorView<'a> {
        &self.view
    }
}

impl<'a> TensorView<'a> {
    /// A view of the elements that start at `ptr`; strides count elements, one for each axis.
    ///
    /// # Safety
    /// For `'a`, every element that shape and strides reach from `ptr` must lie in one allocation, be aligned
    /// to the size of the dtype and hold initialised bytes. Nothing except the kernel itself may write it
    /// while the kernel reads it.
    pub unsafe fn new(dtype: DType, shape: &'a [usize], strides: &'a [isize], ptr: *const u8) -> Self {
        debug_assert_eq!(shape.len(), strides.len());
        debug_assert!(is_aligned(dtype, shape, ptr), "{dtype} view at {ptr:?}");
        TensorView { dtype, shape, strides, ptr, memory: PhantomData }
    }
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }
    /// The distance between neighbours along each axis, in elements.
    pub fn strides(&self) -> &'a [isize] {
        self.strides
    }
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }
}

impl<'a> TensorViewMut<'a> {
    /// A view of the elements that start at `ptr`; strides count elements, one for each axis.
    ///
    /// # Safety
    /// As [`TensorView::new`]; nothing else may touch the elements while a kernel runs, and no two index
    /// tuples may reach the same element.
    pub unsafe fn new(dtype: DType, shape: &'a [usize], strides: &'a [isize], ptr: *mut u8) -> Self {
        // SAFETY: by the caller.
        TensorViewMut { view: unsafe { TensorView::new(dtype, shape, strides, ptr) }, memory: PhantomData }
    }
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view.ptr.cast_mut()
    }
}

fn is_aligned(dtype: DType, shape: &[usize], ptr: *const u8) -> bool {
    shape.contains(&0) || ptr.addr().is_multiple_of(dtype.size())
}

/// Row-major strides in elements.
pub fn contiguous_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1) as isize;
    }
    strides
}

/// Whether the elements are one run in row-major order.
pub(crate) fn is_dense(shape: &[usize], strides: &[isize]) -> bool {
    let mut expected = 1;
    let mut axes: SmallVec<[(usize, isize); 6]> =
        shape.iter().copied().zip(strides.iter().copied()).collect();
    axes.retain(|a| a.0 != 1);
    shape.contains(&0)
        || axes.iter().rev().all(|&(n, stride)| {
            let fits = stride == expected;
            expected *= n as isize;
            fits
        })
}
