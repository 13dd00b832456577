//! A number that differs between the programs of ranks.

use symmc_ir::{DType, Tensor};

/// A number of each rank.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ByRank {
    /// What the input that holds it is called.
    pub name: String,
    pub numbers: Numbers,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Numbers {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
}

impl Numbers {
    /// What they are, for messages.
    pub fn describe(&self) -> String {
        match self {
            Numbers::Ints(v) => format!("another integer on each rank, {v:?}"),
            Numbers::Floats(v) => format!("another number on each rank, {v:?}"),
        }
    }

    /// The number of a rank as a tensor without axes.
    pub fn of(&self, rank: usize) -> Option<Tensor> {
        match self {
            Numbers::Ints(v) => Tensor::new(DType::I64, [], v.get(rank)?.to_le_bytes().to_vec()),
            Numbers::Floats(v) => Tensor::new(DType::F64, [], v.get(rank)?.to_le_bytes().to_vec()),
        }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Numbers::Ints(_) => DType::I64,
            Numbers::Floats(_) => DType::F64,
        }
    }
}
