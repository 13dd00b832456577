//! The inputs and outputs of lowering.

use symmc_ir::Op;
use symmc_ir::text::op_name;
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use super::assertions::{AssertedFault, DeviceAssertion, DeviceAssertions, IndexedAxis};
use super::machine::{InputUse, KernelTarget};
use super::text;
use crate::codegen::compile::KernelSource;
use crate::device::launch::DevicePtr;
use crate::error::{CudaError, Result};

/// An operation to be lowered: that of a step, or one of a dispatch.
#[derive(Clone, Copy, Debug)]
pub struct BoundOperation<'a> {
    /// The index of the step in the list.
    pub index: usize,
    /// The op; the dims of its attributes are numbers.
    pub op: &'a Op,
    pub operands: &'a [LocatedTensor],
    pub results: &'a [LocatedTensor],
}

/// The state of lowering the steps of one program.
pub struct KernelLowering<'a> {
    at: &'a dyn Fn(&LocatedTensor) -> DevicePtr,
    pub source: KernelSource,
    /// The places where data can be out of range.
    pub assertions: DeviceAssertions,
    pub(super) step: usize,
    pub machine: KernelTarget,
}

impl<'a> KernelLowering<'a> {
    /// An empty state; `at` returns addresses.
    pub fn new(at: &'a dyn Fn(&LocatedTensor) -> DevicePtr, machine: &KernelTarget) -> KernelLowering<'a> {
        KernelLowering {
            at,
            source: KernelSource::new(),
            assertions: DeviceAssertions::new(),
            step: 0,
            machine: *machine,
        }
    }

    /// Adds the declarations that all kernels need.
    pub(super) fn preludes(&mut self) {
        self.source.prelude(text::PTX_SOURCE);
        self.source.prelude(text::BASE_SOURCE);
    }

    pub(super) fn address_of(&self, value: &LocatedTensor) -> DevicePtr {
        (self.at)(value)
    }

    /// Whether nothing writes a value while the program runs.
    pub(super) fn is_never_written(&self, value: &LocatedTensor) -> bool {
        self.machine.inputs == InputUse::Read && matches!(value.space, MemorySpace::Input(_))
    }

    pub(super) fn assertion(&mut self, fault: AssertedFault) -> u32 {
        self.assertions.add(DeviceAssertion { step: self.step, fault })
    }

    pub(super) fn index_assertion(&mut self, axis: usize, extent: usize) -> u32 {
        self.assertion(AssertedFault::Index(IndexedAxis { axis, extent }))
    }

    pub(super) fn divisor_assertion(&mut self) -> u32 {
        self.assertion(AssertedFault::Divisor)
    }

    /// The workspace, if it has at least this many bytes.
    pub(super) fn workspace_for(&self, what: &str, bytes: usize) -> Result<DevicePtr> {
        let available = self.machine.workspace_bytes;
        if bytes <= available {
            return Ok(self.machine.workspace.into());
        }
        Err(CudaError::Unsupported(format!("{what} needs {bytes} bytes of workspace, found {available}")))
    }
}

pub(super) fn no_kernel(op: &Op) -> CudaError {
    CudaError::Unsupported(format!("there is no GPU kernel for {}", op_name(op)))
}

pub(super) fn mismatch_error(
    what: &str,
    expected: impl std::fmt::Debug,
    found: impl std::fmt::Debug,
) -> CudaError {
    CudaError::Unsupported(format!("{what}: expected {expected:?}, found {found:?}"))
}

/// Checks that the operand and result slices that [`lower`] destructures are long enough.
pub(super) fn arity(op: &Op, operands: usize, results: usize) -> Result<()> {
    symmc_ir::infer::check_operand_and_result_counts(op, operands, results).map_err(|expected| {
        mismatch_error(op_name(op), expected, format!("{operands} operands and {results} results"))
    })
}
