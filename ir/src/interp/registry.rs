//! Kernels that callers register for custom ops.

use std::collections::BTreeMap;
use std::fmt;

use crate::tensor::Tensor;
use crate::types::DType;

/// What the kernel of a custom op is called with: one cell of the op's group, or one rank for an op
/// without a group.
pub struct CustomKernelCall<'a> {
    /// The name of the op, `namespace::op`.
    pub name: &'a str,
    /// The ranks of the cell, in order of their number within it.
    pub ranks: &'a [u32],
    /// For each rank of the cell its operands.
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

    /// Registers the kernel of the custom op `name`, replacing an earlier one. The kernel gives for each
    /// rank of the cell its results, or a sentence that says why it cannot.
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
