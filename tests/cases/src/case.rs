//! One op with operands and what it must give.

use symmc_ir::{DType, Op, Route, Tensor};
use symmc_runtime::kernels::KernelError;

use crate::compare::{agree, alike};
use crate::layout::PlacedTensor;
use crate::ops::OpDraft;
use crate::random;

/// One op with operands and what it must give.
#[derive(Clone, Debug)]
pub struct OpCase {
    /// What it is.
    pub name: String,
    /// The op.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<PlacedTensor>,
    /// Its results, or the error that its data cause.
    pub expected: Result<Vec<PlacedTensor>, KernelError>,
    /// The size of values that results are sums of; none where each number is held relative to itself ([`alike`]).
    pub scale: Option<f64>,
}

impl OpCase {
    /// Holds a result against the expected one.
    ///
    /// # Errors
    /// A sentence that says where they differ.
    pub fn agrees(&self, found: &Tensor, expected: &Tensor) -> Result<(), String> {
        match self.scale {
            Some(scale) => agree(found, expected, scale),
            None => alike(&self.op, found, expected),
        }
    }

    /// Its results, without contents if it must fail.
    pub fn rooms(&self) -> Vec<PlacedTensor> {
        self.expected.clone().unwrap_or_else(|error| {
            let operands: Vec<Tensor> = self.operands.iter().map(|p| p.tensor.clone()).collect();
            let types = match &self.op {
                Op::Route(route) => route_types(route, operands[0].shape(), &error),
                op => OpDraft::new(op.clone(), operands).types(),
            };
            let zeros = |(dtype, shape): (_, Vec<usize>)| Tensor::zeros(dtype, shape);
            types.into_iter().map(|t| PlacedTensor::dense(random::of(zeros(t)))).collect()
        })
    }
}

/// The types of the results of a route that must fail. The capacity is free unless the error names it.
fn route_types(route: &Route, ids: &[usize], error: &KernelError) -> Vec<(DType, Vec<usize>)> {
    let ranks = route.rank_count(None).unwrap_or(1);
    let sections = route.section_count(ranks) as usize;
    let capacity = match error {
        KernelError::Capacity { capacity, .. } => *capacity,
        KernelError::ExpertCapacity { capacity, .. } => capacity * sections,
        _ => ids[0] * ids[1] * sections.max(1),
    };
    let own = vec![ids[0] / ranks as usize, ids[1]];
    let shapes = [own, ids.to_vec(), vec![capacity], vec![sections], vec![sections]];
    shapes.map(|shape| (DType::I64, shape)).to_vec()
}
