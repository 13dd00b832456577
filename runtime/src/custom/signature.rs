//! The signature that a kernel of a custom op is written for.

use symmc_ir::{CustomId, DType, Graph, Node, ValueId};

/// The properties that a kernel expects of the op that it is registered for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelSignature {
    operands: Vec<DType>,
    results: Vec<DType>,
    reads: Vec<usize>,
    writes: Vec<usize>,
}

impl KernelSignature {
    /// An op with operands and results of these dtypes that touches no peer.
    pub fn new(operands: &[DType], results: &[DType]) -> Self {
        KernelSignature {
            operands: operands.to_vec(),
            results: results.to_vec(),
            reads: Vec::new(),
            writes: Vec::new(),
        }
    }

    /// Adds that the kernel reads the operands of peers at these positions: those that the program declares
    /// symmetric.
    pub fn reading_peers(mut self, operands: &[usize]) -> Self {
        self.reads = sorted_positions(operands);
        self
    }

    /// Adds that the kernel writes the results of peers at these positions: those that the program declares
    /// symmetric.
    pub fn writing_peers(mut self, results: &[usize]) -> Self {
        self.writes = sorted_positions(results);
        self
    }

    pub fn peer_operands(&self) -> &[usize] {
        &self.reads
    }

    pub fn peer_results(&self) -> &[usize] {
        &self.writes
    }

    pub(super) fn check_node(&self, graph: &Graph, node: &Node, id: CustomId) -> Result<(), String> {
        check_dtypes(graph, "operand", &self.operands, &node.inputs)?;
        check_dtypes(graph, "result", &self.results, &node.outputs)?;
        let op = &graph.customs[id];
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        if op.group.is_some() {
            reads = sorted_positions(&op.symmetric_operands);
            writes = sorted_positions(&op.symmetric_results);
        }
        check_positions("operands that peers read", &self.reads, &reads)?;
        check_positions("results that peers write", &self.writes, &writes)
    }
}

fn check_dtypes(graph: &Graph, what: &str, expected: &[DType], values: &[ValueId]) -> Result<(), String> {
    if expected.len() != values.len() {
        return Err(format!("expected {} {what}(s), found {}", expected.len(), values.len()));
    }
    for (i, (&expected, &value)) in expected.iter().zip(values).enumerate() {
        let dtype = graph.ty(value).dtype;
        if expected != dtype {
            return Err(format!("{what} {i}: expected {expected}, found {dtype}"));
        }
    }
    Ok(())
}

fn check_positions(what: &str, expected: &[usize], found: &[usize]) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    Err(format!("{what}: expected positions {expected:?}, found {found:?}"))
}

fn sorted_positions(positions: &[usize]) -> Vec<usize> {
    let mut out = positions.to_vec();
    out.sort_unstable();
    out.dedup();
    out
}
