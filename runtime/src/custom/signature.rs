//! The signature that a kernel of a custom op is written for.

use symmc_ir::{CustomId, DType, Graph, Node};

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
            Some(_) => sorted_positions(positions),
            None => Vec::new(),
        };
        let touched = |what, expected: &[usize], found: Vec<usize>| {
            if expected == found {
                return Ok(());
            }
            Err(format!("{what}: expected positions {expected:?}, found {found:?}"))
        };
        touched("operands that peers read", &self.reads, declared(&op.symmetric_operands))?;
        touched("results that peers write", &self.writes, declared(&op.symmetric_results))
    }
}

fn sorted_positions(positions: &[usize]) -> Vec<usize> {
    let mut out = positions.to_vec();
    out.sort_unstable();
    out.dedup();
    out
}
