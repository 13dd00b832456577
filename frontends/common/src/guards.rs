//! Which operands of a node may be errors in a branch that is not taken, and what replaces them.

use symmc_ir::op::RejectedData;
use symmc_ir::{Graph, InputKind, Op, ValueDef, ValueId};

/// The values of operands that never fail.
pub(crate) const SAFE_INDEX: i64 = 0;
pub(crate) const SAFE_DIVISOR: i64 = 1;

/// The operands of a node that may be errors while its branch is not taken, each with the number that replaces it.
pub(crate) fn fallible_operands(graph: &Graph, op: &Op, inputs: &[ValueId]) -> Vec<(usize, i64)> {
    match op.facts().rejected_data {
        RejectedData::Positions => {
            let indices = op.index_operands(inputs.len()).into_iter();
            let is_open = |(operand, axis): &(usize, usize)| {
                !is_constant(graph, inputs[*operand]) && !may_be_empty(graph, inputs[0], *axis)
            };
            indices.filter(is_open).map(|(operand, _)| (operand, SAFE_INDEX)).collect()
        }
        RejectedData::ZeroDivisor { scalar: None } => match inputs.last() {
            Some(&divisor) if !graph.ty(divisor).dtype.is_float() => vec![(inputs.len() - 1, SAFE_DIVISOR)],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

pub(crate) fn is_constant(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.values[value].def, ValueDef::Input(i) if graph.inputs[i].kind == InputKind::Constant)
}

pub(crate) fn may_be_empty(graph: &Graph, value: ValueId, axis: usize) -> bool {
    graph.ty(value).shape.get(axis).is_none_or(|extent| extent.bounds(&graph.symbols).0 < 1)
}
