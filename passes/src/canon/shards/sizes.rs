//! The sizes at which a pass judges whether saved bytes pay for more collectives.

use symmc_ir::{Graph, TensorType};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JudgedSizes {
    /// The upper ends of all symbols.
    Largest,
    /// The lower ends of all symbols: a change that pays there pays at all sizes.
    Smallest,
}

impl JudgedSizes {
    pub fn bytes(self, graph: &Graph, ty: &TensorType) -> i64 {
        let (least, most) = ty.bytes().bounds(&graph.symbols);
        match self {
            JudgedSizes::Largest => most,
            JudgedSizes::Smallest => least,
        }
    }
}
