//! The outputs of a job, after checking that its inputs fit the program.

use std::sync::Arc;

use symmc_ir::{DType, Graph, SymbolBindings, Tensor, ValueId};
use symmc_plan::ParsedPlan;

use crate::error::{Result, RunError};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TensorSlot {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: usize,
}

impl TensorSlot {
    pub fn to_tensor(&self, data: Vec<u8>) -> Result<Tensor> {
        Tensor::new(self.dtype, self.shape.clone(), data)
            .ok_or_else(|| RunError::system("reading an output", "its size does not fit its shape"))
    }
}

/// Checks that `inputs` fit the plan's program for these bindings, where `first` is the rank of the first
/// list. Returns the outputs of each rank. Fails if an input is missing or has another type, or an output has
/// no size.
pub(super) fn expect_inputs(
    plan: &ParsedPlan,
    bindings: &SymbolBindings,
    inputs: &[&[Arc<Tensor>]],
    first: u32,
) -> Result<Vec<TensorSlot>> {
    let graph = plan.source_program();
    for (rank, inputs) in (first..).zip(inputs) {
        check_inputs(graph, bindings, inputs, rank)?;
    }
    let outputs = graph.outputs.iter().map(|output| {
        let description = format!("output %{}", graph.value_name(output.value));
        tensor_slot(graph, output.value, bindings, &description)
    });
    outputs.collect()
}

fn tensor_slot(graph: &Graph, value: ValueId, bindings: &SymbolBindings, what: &str) -> Result<TensorSlot> {
    let ty = graph.ty(value);
    let sized = ty.concrete_shape(bindings).and_then(|shape| {
        let bytes = shape.iter().try_fold(ty.dtype.size(), |n, &d| n.checked_mul(d))?;
        Some((bytes, shape))
    });
    let (bytes, shape) =
        sized.ok_or_else(|| RunError::Invalid(format!("{what} has no size under the given symbols")))?;
    Ok(TensorSlot { dtype: ty.dtype, shape, bytes })
}

fn check_inputs(graph: &Graph, bindings: &SymbolBindings, inputs: &[Arc<Tensor>], rank: u32) -> Result<()> {
    if inputs.len() != graph.inputs.len() {
        let expected = graph.inputs.len();
        let count = inputs.len();
        return Err(RunError::Invalid(format!("rank {rank}: expected {expected} inputs, found {count}")));
    }
    for (input, tensor) in graph.inputs.values().zip(inputs) {
        let description = format!("input %{} on rank {rank}", graph.value_name(input.value));
        let slot = tensor_slot(graph, input.value, bindings, &description)?;
        if slot.dtype != tensor.dtype() || slot.shape != tensor.shape() {
            return Err(RunError::Invalid(format!(
                "{description}: expected {}{:?}, found {}{:?}",
                slot.dtype,
                slot.shape,
                tensor.dtype(),
                tensor.shape()
            )));
        }
    }
    Ok(())
}
