//! The kernels of custom ops by name, each with its signature.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use symmc_ir::{Graph, NodeId, Op};

use super::call::CustomCall;
use symmc_control::ValueMismatch;

use super::error::CustomError;
use super::signature::KernelSignature;
use crate::error::{Result, RunError};

type KernelFn = dyn Fn(&mut CustomCall<'_>) -> Result<(), CustomError> + Send + Sync;

#[derive(Clone)]
pub(crate) struct KernelEntry {
    pub signature: KernelSignature,
    kernel: Arc<KernelFn>,
}

/// Kernels of custom ops by name.
#[derive(Clone, Default)]
pub struct CustomKernelRegistry {
    entries: BTreeMap<String, KernelEntry>,
}

impl CustomKernelRegistry {
    pub const fn new() -> Self {
        CustomKernelRegistry { entries: BTreeMap::new() }
    }

    /// Registers the kernel of the custom op `name`, replacing an earlier one. The kernel writes the results,
    /// or returns the reason why it cannot.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        signature: KernelSignature,
        kernel: impl Fn(&mut CustomCall<'_>) -> Result<(), CustomError> + Send + Sync + 'static,
    ) -> &mut Self {
        self.entries.insert(name.into(), KernelEntry { signature, kernel: Arc::new(kernel) });
        self
    }

    /// Checks that every op of a program has a kernel. Fails with the first op without one, or with one of
    /// another signature.
    pub fn expect_kernels(&self, graph: &Graph) -> Result<()> {
        graph.nodes.keys().try_for_each(|node| self.find_kernel(graph, node, None).map(|_| ()))
    }

    /// The kernel of a node; `None` for a node that needs none. Errors name the rank `rank`, if there is one.
    pub(crate) fn find_kernel(
        &self,
        graph: &Graph,
        node: NodeId,
        rank: Option<u32>,
    ) -> Result<Option<KernelEntry>> {
        let data = &graph.nodes[node];
        let kernel = match &data.op {
            Op::Opaque { .. } => Err(ValueMismatch::Opaque),
            Op::Custom(id) => match self.entries.get(&graph.customs[*id].name) {
                None => Err(ValueMismatch::NoKernel),
                Some(entry) => match entry.signature.check_node(graph, data, *id) {
                    Ok(()) => Ok(Some(entry.clone())),
                    Err(what) => Err(ValueMismatch::Signature(what)),
                },
            },
            _ => Ok(None),
        };
        let node = graph.node_name(node).to_string();
        let op = op_display_name(graph, &data.op);
        kernel.map_err(|why| RunError::CannotRun { rank, node, op, why })
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = (&String, &KernelEntry)> {
        self.entries.iter()
    }
}

impl fmt::Debug for CustomKernelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signatures = self.entries.iter().map(|(name, entry)| (name, &entry.signature));
        f.debug_map().entries(signatures).finish()
    }
}

/// The display name of an op, with the name of a custom or opaque one.
pub(crate) fn op_display_name(graph: &Graph, op: &Op) -> String {
    let name = symmc_ir::text::op_name(op);
    match op {
        Op::Custom(id) => format!("{name} {:?}", graph.customs[*id].name),
        Op::Opaque { name: of, .. } => format!("{name} {of:?}"),
        _ => name.to_string(),
    }
}

/// Calls a kernel. Returns its failure as text, also if it panics.
pub(crate) fn invoke_kernel(entry: &KernelEntry, call: &mut CustomCall<'_>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| (entry.kernel)(call))) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(format!("the kernel panicked: {}", panic_message(&*panic))),
    }
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
