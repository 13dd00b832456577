//! The kernels of custom ops by name, each with the signature that it is made for.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use symmc_ir::{CustomId, DType, Graph, Node, NodeId, Op};
use thiserror::Error;

use super::call::CustomCall;
use super::error::CustomError;
use crate::error::RunError;

/// What a kernel expects of the op that it is registered for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Signature {
    operands: Vec<DType>,
    results: Vec<DType>,
    reads: Vec<usize>,
    writes: Vec<usize>,
}

impl Signature {
    /// An op with operands and results of these dtypes that touches no peer.
    pub fn new(operands: &[DType], results: &[DType]) -> Self {
        let (operands, results) = (operands.to_vec(), results.to_vec());
        Signature { operands, results, reads: Vec::new(), writes: Vec::new() }
    }

    /// The same, and it reads the operands of peers at these positions: those that the program declares
    /// symmetric.
    pub fn reading_peers(mut self, operands: &[usize]) -> Self {
        self.reads = sorted(operands);
        self
    }

    /// The same, and it writes the results of peers at these positions: those that the program declares
    /// symmetric.
    pub fn writing_peers(mut self, results: &[usize]) -> Self {
        self.writes = sorted(results);
        self
    }

    /// Positions of the operands that it reads of peers.
    pub fn reads(&self) -> &[usize] {
        &self.reads
    }

    /// Positions of the results that it writes of peers.
    pub fn writes(&self) -> &[usize] {
        &self.writes
    }

    /// What is different from a node of a program.
    fn differs(&self, graph: &Graph, node: &Node, id: CustomId) -> Result<(), String> {
        let dtypes = |what, expected: &[DType], values: &[symmc_ir::ValueId]| {
            if expected.len() != values.len() {
                return Err(format!("expected {} {what}(s), found {}", expected.len(), values.len()));
            }
            let found = values.iter().map(|&v| graph.ty(v).dtype);
            match expected.iter().zip(found).enumerate().find(|(_, (e, f))| *e != f) {
                Some((i, (expected, found))) => {
                    Err(format!("{what} {i}: expected {expected}, found {found}"))
                }
                None => Ok(()),
            }
        };
        dtypes("operand", &self.operands, &node.inputs)?;
        dtypes("result", &self.results, &node.outputs)?;
        let op = &graph.customs[id];
        let declared = |positions: &[usize]| match op.group {
            Some(_) => sorted(positions),
            None => Vec::new(),
        };
        let touched = |what, expected: &[usize], found: Vec<usize>| match expected == found {
            true => Ok(()),
            false => Err(format!("{what}: expected positions {expected:?}, found {found:?}")),
        };
        touched("operands that peers read", &self.reads, declared(&op.symmetric_operands))?;
        touched("results that peers write", &self.writes, declared(&op.symmetric_results))
    }
}

fn sorted(positions: &[usize]) -> Vec<usize> {
    let mut out = positions.to_vec();
    out.sort_unstable();
    out.dedup();
    out
}

/// Why an op of a program cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum Mismatch {
    /// The importer does not know the op.
    #[error("it is opaque: it can be planned, not run")]
    Opaque,
    /// Nobody registered a kernel for the custom op.
    #[error("no kernel is registered for it")]
    NoKernel,
    /// The kernel is made for another signature.
    #[error("the kernel that is registered for it has another signature: {0}")]
    Signature(String),
    /// The backend has no form of the op, or not for these types or ranks.
    #[error("{0}")]
    Backend(String),
}

type Kernel = dyn Fn(&mut CustomCall<'_>) -> Result<(), CustomError> + Send + Sync;

/// A registered kernel.
#[derive(Clone)]
pub(crate) struct Entry {
    pub signature: Signature,
    kernel: Arc<Kernel>,
}

/// Kernels of custom ops by name.
#[derive(Clone, Default)]
pub struct Registry {
    entries: BTreeMap<String, Entry>,
}

impl Registry {
    /// No kernel.
    pub const fn new() -> Self {
        Registry { entries: BTreeMap::new() }
    }

    /// Registers the kernel of the custom op `name`, replacing an earlier one. The kernel writes the results, or
    /// says why it cannot.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        signature: Signature,
        kernel: impl Fn(&mut CustomCall<'_>) -> Result<(), CustomError> + Send + Sync + 'static,
    ) -> &mut Self {
        self.entries.insert(name.into(), Entry { signature, kernel: Arc::new(kernel) });
        self
    }

    /// Whether every op of a program has a kernel.
    ///
    /// # Errors
    /// The first that has none, or one of another signature.
    pub fn check(&self, graph: &Graph) -> Result<(), RunError> {
        graph.nodes.keys().try_for_each(|node| self.entry(graph, node, None).map(|_| ()))
    }

    /// The kernel of a node; `None` for a node that needs none. `rank` is this rank, if an error is to name it.
    pub(crate) fn entry(
        &self,
        graph: &Graph,
        node: NodeId,
        rank: Option<u32>,
    ) -> Result<Option<Entry>, RunError> {
        let data = &graph.nodes[node];
        let found = match &data.op {
            Op::Opaque { .. } => Err(Mismatch::Opaque),
            Op::Custom(id) => match self.entries.get(&graph.customs[*id].name) {
                None => Err(Mismatch::NoKernel),
                Some(entry) => match entry.signature.differs(graph, data, *id) {
                    Ok(()) => Ok(Some(entry.clone())),
                    Err(what) => Err(Mismatch::Signature(what)),
                },
            },
            _ => Ok(None),
        };
        let (node, op) = (graph.node_name(node).to_string(), op_text(graph, &data.op));
        found.map_err(|why| RunError::CannotRun { rank, node, op, why })
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.entries.iter()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signatures = self.entries.iter().map(|(name, entry)| (name, &entry.signature));
        f.debug_map().entries(signatures).finish()
    }
}

/// An op for people, with the name of a custom or opaque one.
pub(crate) fn op_text(graph: &Graph, op: &Op) -> String {
    let name = symmc_ir::text::op_name(op);
    match op {
        Op::Custom(id) => format!("{name} {:?}", graph.customs[*id].name),
        Op::Opaque { name: of, .. } => format!("{name} {of:?}"),
        _ => name.to_string(),
    }
}

/// Calls a kernel; its failure as a text, also if it panics.
pub(crate) fn invoke(entry: &Entry, call: &mut CustomCall<'_>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| (entry.kernel)(call))) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(format!("the kernel panicked: {}", panic_text(&*panic))),
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
