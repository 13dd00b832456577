//! What lowering steps takes and adds to.

use symmc_ir::Op;
use symmc_ir::text::op_name;
use symmc_runtime::exec::{Located, MemorySpace};

use super::assertions::{Assertion, Assertions, Fault, Indexed};
use super::machine::{InputUse, Machine};
use super::text;
use crate::codegen::compile::Source;
use crate::device::launch::DevicePtr;
use crate::error::{CudaError, Result};

/// An operation to be lowered: that of a step, or one of those of a dispatch.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The number of the step in the list.
    pub index: usize,
    /// The op; the dims of its attributes are numbers.
    pub op: &'a Op,
    pub operands: &'a [Located],
    pub results: &'a [Located],
}

/// What lowering steps of one program needs and adds to.
pub struct Lowering<'a> {
    at: &'a dyn Fn(&Located) -> DevicePtr,
    pub source: Source,
    /// Where data can be out of range.
    pub assertions: Assertions,
    pub(super) step: usize,
    pub machine: Machine,
}

impl<'a> Lowering<'a> {
    /// Nothing is lowered yet; `at` gives addresses.
    pub fn new(at: &'a dyn Fn(&Located) -> DevicePtr, machine: &Machine) -> Lowering<'a> {
        Lowering { at, source: Source::new(), assertions: Assertions::new(), step: 0, machine: *machine }
    }

    /// Puts what all kernels rest on before them.
    pub(super) fn preludes(&mut self) {
        self.source.prelude(text::PTX);
        self.source.prelude(text::BASE);
    }

    pub(super) fn at(&self, value: &Located) -> DevicePtr {
        (self.at)(value)
    }

    /// Whether nothing writes a value while the program runs.
    pub(super) fn is_steady(&self, value: &Located) -> bool {
        self.machine.inputs == InputUse::Read && matches!(value.space, MemorySpace::Input(_))
    }

    pub(super) fn assertion(&mut self, fault: Fault) -> u32 {
        self.assertions.add(Assertion { step: self.step, fault })
    }

    pub(super) fn index_assertion(&mut self, axis: usize, extent: usize) -> u32 {
        self.assertion(Fault::Index(Indexed { axis, extent }))
    }

    pub(super) fn divisor_assertion(&mut self) -> u32 {
        self.assertion(Fault::Divisor)
    }

    /// The workspace, if it has this many bytes.
    pub(super) fn room(&self, what: &str, bytes: usize) -> Result<DevicePtr> {
        let found = self.machine.workspace_bytes;
        if bytes <= found {
            return Ok(self.machine.workspace.into());
        }
        Err(CudaError::Unsupported(format!("{what} needs {bytes} bytes of workspace, found {found}")))
    }
}

pub(super) fn no_kernel(op: &Op) -> CudaError {
    CudaError::Unsupported(format!("there is no GPU kernel for {}", op_name(op)))
}

pub(super) fn misfit(what: &str, expected: impl std::fmt::Debug, found: impl std::fmt::Debug) -> CudaError {
    CudaError::Unsupported(format!("{what}: expected {expected:?}, found {found:?}"))
}

/// Checks that the slices that [`lower`] takes apart are long enough.
pub(super) fn arity(op: &Op, operands: usize, results: usize) -> Result<()> {
    symmc_ir::infer::fits(op, operands, results).map_err(|expected| {
        misfit(op_name(op), expected, format!("{operands} operands and {results} results"))
    })
}
