//! Kernels that callers register for custom ops.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::kernels::{View, ViewMut};

/// What the kernel of a custom op is called with, on one rank.
pub struct CustomCall<'a, 'm> {
    /// The name of the op, `namespace::op`.
    pub name: &'a str,
    /// This rank.
    pub rank: u32,
    /// The operands.
    pub operands: &'a [View<'m>],
    /// The results.
    pub results: &'a mut [ViewMut<'m>],
}

/// A kernel of a custom op: writes the results, or says why it cannot.
pub(super) type Kernel = dyn Fn(&mut CustomCall<'_, '_>) -> Result<(), String> + Send + Sync;

/// Kernels of custom ops by name.
#[derive(Clone, Default)]
pub struct Registry {
    kernels: BTreeMap<String, Arc<Kernel>>,
}

impl Registry {
    /// No kernel.
    pub fn new() -> Self {
        Registry::default()
    }

    /// Registers the kernel of the custom op `name`, replacing an earlier one.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        kernel: impl Fn(&mut CustomCall<'_, '_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> &mut Self {
        self.kernels.insert(name.into(), Arc::new(kernel));
        self
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.kernels.get(name)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kernels.keys()).finish()
    }
}
