//! The sizes at which it is judged whether fewer bytes are worth more collectives.

use symmc_ir::{Graph, TensorType};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JudgedSizes {
    /// The upper ends of all symbols.
    Largest,
    /// The lower ends, so that what is worth it there is worth it at all sizes.
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
