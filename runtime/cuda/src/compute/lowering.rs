//! What lowering a step takes and adds to.

use symmc_ir::Op;
use symmc_ir::text::op_name;
use symmc_runtime::exec::{Located, MemorySpace};

use super::assertions::{Assertion, Assertions, Fault, Indexed};
use super::machine::{InputUse, Machine};
use super::text;
use crate::compile::Source;
use crate::error::CudaError;
use crate::launch::Address;

/// An operation to be lowered: that of a step, or one of those of a dispatch.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The number of the step in the list.
    pub index: usize,
    /// The op; the dims of its attributes are numbers.
    pub op: &'a Op,
    /// Its operands.
    pub operands: &'a [Located],
    /// Its results.
    pub results: &'a [Located],
}

/// What lowering one step needs and adds to.
pub(super) struct Lowering<'a> {
    at: &'a dyn Fn(&Located) -> Address,
    pub source: &'a mut Source,
    pub assertions: &'a mut Assertions,
    pub step: usize,
    pub machine: Machine,
}

impl<'a> Lowering<'a> {
    /// For the steps of one program; the number of the step is set for each.
    pub fn new(
        at: &'a dyn Fn(&Located) -> Address,
        machine: &Machine,
        source: &'a mut Source,
        assertions: &'a mut Assertions,
    ) -> Lowering<'a> {
        Lowering { at, source, assertions, step: 0, machine: *machine }
    }

    /// Puts what all kernels rest on before them.
    pub fn preludes(&mut self) {
        self.source.prelude(text::PTX);
        self.source.prelude(text::BASE);
    }

    pub fn at(&self, value: &Located) -> Address {
        (self.at)(value)
    }

    /// Whether nothing writes a value while the program runs.
    pub fn is_steady(&self, value: &Located) -> bool {
        self.machine.inputs == InputUse::Read && matches!(value.space, MemorySpace::Input(_))
    }

    pub fn assertion(&mut self, fault: Fault) -> u32 {
        self.assertions.add(Assertion { step: self.step, fault })
    }

    pub fn index_assertion(&mut self, axis: usize, extent: usize) -> u32 {
        self.assertion(Fault::Index(Indexed { axis, extent }))
    }

    pub fn divisor_assertion(&mut self) -> u32 {
        self.assertion(Fault::Divisor)
    }

    /// The workspace, if it has this many bytes.
    pub fn room(&self, what: &str, bytes: usize) -> Result<Address, CudaError> {
        let found = self.machine.workspace_bytes;
        if bytes <= found {
            return Ok(self.machine.workspace);
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
pub(super) fn arity(op: &Op, operands: usize, results: usize) -> Result<(), CudaError> {
    symmc_ir::infer::fits(op, operands, results).map_err(|expected| {
        misfit(op_name(op), expected, format!("{operands} operands and {results} results"))
    })
}
