//! A step of a run: the data that every step needs, and the addresses of its values.

use super::bucket::MemorySpace;
use super::communicator::Communicator;
use super::resolved::LocatedTensor;
use crate::error::{DataFault, RunError};
use crate::kernels::{KernelError, TensorView, TensorViewMut};

/// A node of a step of a run.
#[derive(Clone, Copy)]
pub(super) struct StepRun<'a> {
    pub rank: u32,
    /// The number of the step in the list.
    pub index: usize,
    pub node: &'a str,
    pub op: &'a str,
    pub comm: &'a dyn Communicator,
    pub bases: &'a SpaceBases,
    /// The memory of the dispatch, if the step is one.
    pub inner: *mut u8,
}

impl StepRun<'_> {
    pub fn step_error(&self, detail: String) -> RunError {
        let step = self.index;
        let node = self.node.to_string();
        let op = self.op.to_string();
        RunError::Step { rank: self.rank, step, node, op, detail }
    }

    /// The error of a kernel. Bad data is the fault of the rank that passed it.
    pub fn kernel_error(&self, error: &KernelError) -> RunError {
        let Some(fault) = error.data_fault() else { return self.step_error(error.to_string()) };
        let rank = error.source_rank().unwrap_or(self.rank);
        StepRun { rank, ..*self }.data_error(fault, error.to_string())
    }

    /// The error of a step that refuses its data.
    pub fn data_error(&self, fault: DataFault, detail: String) -> RunError {
        let step = self.index;
        let node = self.node.to_string();
        let op = self.op.to_string();
        RunError::Data { rank: self.rank, step, node, op, fault, detail }
    }

    /// The first element of a value of this rank.
    pub fn address(&self, value: &LocatedTensor) -> *mut u8 {
        self.bases.space_start(value.space, self.inner).wrapping_add(value.offset)
    }

    pub fn view<'v>(&self, x: &'v LocatedTensor) -> TensorView<'v> {
        // SAFETY: resolving the value has verified that it lies within its memory and is aligned there; the
        // checked plan orders this step before or after all others that touch the bytes.
        unsafe { TensorView::new(x.dtype, &x.shape, &x.strides, self.address(x)) }
    }

    pub fn view_mut<'v>(&self, y: &'v LocatedTensor) -> TensorViewMut<'v> {
        // SAFETY: as above; a result is a base, so no two of its elements share bytes.
        unsafe { TensorViewMut::new(y.dtype, &y.shape, &y.strides, self.address(y)) }
    }
}

pub(super) struct SpaceBases {
    pub ordinary: *mut u8,
    pub symmetric: *mut u8,
    pub inputs: Vec<*mut u8>,
    pub outputs: Vec<*mut u8>,
}

// SAFETY: the pointers are only used to form views of steps, whose accesses the plan orders between lanes.
unsafe impl Sync for SpaceBases {}

impl SpaceBases {
    /// The start of a memory space; `inner` is that of a dispatch.
    pub fn space_start(&self, space: MemorySpace, inner: *mut u8) -> *mut u8 {
        match space {
            MemorySpace::Ordinary => self.ordinary,
            MemorySpace::Symmetric => self.symmetric,
            MemorySpace::Input(i) => self.inputs[i],
            MemorySpace::Output(o) => self.outputs[o],
            MemorySpace::Inner => inner,
        }
    }
}
