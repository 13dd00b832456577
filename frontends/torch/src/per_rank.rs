//! A number, or a list of numbers, that differs between the programs of ranks.

use symmc_ir::{DType, Dim, Tensor, TensorType};

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PerRankArgument {
    /// The name of the input that holds it.
    pub name: String,
    pub numbers: PerRankNumbers,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum PerRankNumbers {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    /// A size of each rank that depends on symbols, as the program writes it.
    Expressions(Vec<String>),
    /// A list of each rank. Sizes that depend on symbols are `None`.
    Lists(Vec<Vec<Option<i64>>>),
}

impl PerRankNumbers {
    pub fn describe(&self) -> String {
        match self {
            PerRankNumbers::Ints(v) => format!("a different integer on each rank, {v:?}"),
            PerRankNumbers::Floats(v) => format!("a different number on each rank, {v:?}"),
            PerRankNumbers::Expressions(v) => format!("a different size on each rank, {}", v.join(", ")),
            PerRankNumbers::Lists(v) => {
                let lists: Vec<String> = v.iter().map(|list| describe_list(list)).collect();
                format!("different integers on each rank, {}", lists.join(", "))
            }
        }
    }

    /// Whether an input of the program holds the numbers. Lists must be completely known.
    pub fn is_input(&self) -> bool {
        match self {
            PerRankNumbers::Lists(v) => v.iter().flatten().all(Option::is_some),
            PerRankNumbers::Ints(_) | PerRankNumbers::Floats(_) | PerRankNumbers::Expressions(_) => true,
        }
    }

    pub fn input_type(&self) -> TensorType {
        match self {
            // For sizes, the input holds the number of the rank.
            PerRankNumbers::Ints(_) | PerRankNumbers::Expressions(_) => TensorType::new(DType::I64, vec![]),
            PerRankNumbers::Floats(_) => TensorType::new(DType::F64, vec![]),
            PerRankNumbers::Lists(v) => {
                TensorType::new(DType::I64, vec![Dim::from(v.first().map_or(0, Vec::len) as i64)])
            }
        }
    }

    pub fn tensor_of_rank(&self, rank: usize) -> Option<Tensor> {
        match self {
            PerRankNumbers::Ints(v) => Tensor::new(DType::I64, [], v.get(rank)?.to_le_bytes().to_vec()),
            PerRankNumbers::Floats(v) => Tensor::new(DType::F64, [], v.get(rank)?.to_le_bytes().to_vec()),
            PerRankNumbers::Expressions(v) => {
                let number = i64::try_from(rank).ok().filter(|_| rank < v.len())?;
                Tensor::new(DType::I64, [], number.to_le_bytes().to_vec())
            }
            PerRankNumbers::Lists(v) => {
                let list = v.get(rank)?.iter().copied().collect::<Option<Vec<i64>>>()?;
                let bytes = list.iter().flat_map(|i| i.to_le_bytes()).collect();
                Tensor::new(DType::I64, [list.len()], bytes)
            }
        }
    }
}

fn describe_list(list: &[Option<i64>]) -> String {
    let numbers = list.iter().map(|n| n.map_or("?".to_string(), |n| n.to_string()));
    format!("[{}]", numbers.collect::<Vec<_>>().join(", "))
}
