//! Kernels that callers register for custom ops.

use std::collections::BTreeMap;
use std::fmt;

use crate::tensor::Tensor;
use crate::types::DType;

/// A call of the kernel of a custom op: one cell of the op's group, or one rank for an op without a group.
pub struct CustomKernelCall<'a> {
    /// The name of the op, `namespace::op`.
    pub name: &'a str,
    /// The ranks of the cell, in order of their position within it.
    pub ranks: &'a [u32],
    /// The operands of each rank of the cell.
    pub operands: &'a [Vec<Tensor>],
    /// The dtype and shape of each result, equal on all ranks.
    pub results: &'a [(DType, Vec<usize>)],
}

type CustomKernelFn = dyn Fn(&CustomKernelCall<'_>) -> Result<Vec<Vec<Tensor>>, String> + Send + Sync;

#[derive(Default)]
pub struct ReferenceKernelRegistry {
    kernels: BTreeMap<String, Box<CustomKernelFn>>,
}

impl ReferenceKernelRegistry {
    pub fn new() -> Self {
        ReferenceKernelRegistry::default()
    }

    /// Registers the kernel of the custom op `name`, replacing an earlier one. The kernel returns the results
    /// of each rank of the cell, or an error message.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        kernel: impl Fn(&CustomKernelCall<'_>) -> Result<Vec<Vec<Tensor>>, String> + Send + Sync + 'static,
    ) -> &mut Self {
        self.kernels.insert(name.into(), Box::new(kernel));
        self
    }

    pub(super) fn get(&self, name: &str) -> Option<&CustomKernelFn> {
        self.kernels.get(name).map(|k| &**k)
    }
}

impl fmt::Debug for ReferenceKernelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kernels.keys()).finish()
    }
}
