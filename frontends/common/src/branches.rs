//! Branches whose condition is data: both are computed, and their results are selected.
//!
//! Nodes of the branch that is not taken must not fail. While the branch is not taken, operands that could make a node fail
//! are replaced: indices by 0, and divisors by 1. Branches with other nodes that may fail, and with nodes that
//! communicate, are not supported.

use symmc_ir::op::{ExtentRule, RejectedData};
use symmc_ir::{BinaryOp, Dim, Graph, Node, Op, UnaryOp, ValueId};

use crate::emit::Emit;
use crate::failure::RuleResult;
use crate::guards::{SAFE_DIVISOR, SAFE_INDEX, is_constant, may_be_empty};
use crate::unsupported;

/// A bool that holds where the branch for this value of a condition runs, within the branch of `outer`.
pub fn emit_guard<C: Emit>(
    c: &mut C,
    condition: ValueId,
    holds: bool,
    outer: Option<ValueId>,
) -> RuleResult<ValueId, C::Error> {
    let guard = if holds { condition } else { c.unary(UnaryOp::Not, condition)? };
    match outer {
        Some(outer) => c.binary(BinaryOp::And, outer, guard),
        None => Ok(guard),
    }
}

/// Fails if a node of a branch may fail while its guard does not hold, or communicates.
pub fn check_nodes<E>(graph: &Graph, first: usize, guard: ValueId) -> RuleResult<(), E> {
    match graph.nodes.values().skip(first).find(|node| may_fail(graph, node, guard)) {
        None => Ok(()),
        Some(fallible) => unsupported!(
            "a branch has {}, which may fail or communicates",
            symmc_ir::text::op_name(&fallible.op)
        ),
    }
}

/// Whether a value is the operand of a node of the branch that [`Emit`] guards.
fn is_guarded(graph: &Graph, value: ValueId, guard: ValueId, number: i64) -> bool {
    let Some((Op::Select, &[condition, _, safe])) = graph.definition(value) else { return false };
    condition == guard
        && matches!(graph.definition(safe), Some((Op::Full(safe), _)) if safe.as_i64() == number)
}

/// Whether a node communicates, or may be an error for some operands while its guard does not hold.
fn may_fail(graph: &Graph, node: &Node, guard: ValueId) -> bool {
    if matches!(node.op, Op::Collective(_) | Op::Custom(_)) || reads_outside(graph, node) {
        return true;
    }
    match node.op.facts().rejected_data {
        RejectedData::Nothing => false,
        RejectedData::Positions => {
            let indices = node.op.index_operands(node.inputs.len());
            let is_open = |(operand, axis): &(usize, usize)| {
                let index = node.inputs[*operand];
                // The positions of constants are checked at import.
                let is_safe = is_guarded(graph, index, guard, SAFE_INDEX)
                    && !may_be_empty(graph, node.inputs[0], *axis);
                !is_constant(graph, index) && !is_safe
            };
            indices.is_empty() || indices.iter().any(is_open)
        }
        RejectedData::ZeroDivisor { scalar } => {
            let divisor = node.inputs.last().filter(|v| !graph.ty(**v).dtype.is_float());
            divisor.is_some_and(|&v| match scalar {
                Some(scalar) => scalar.as_f64() == 0.0,
                None => !is_guarded(graph, v, guard, SAFE_DIVISOR),
            })
        }
        RejectedData::NoElements { axes } => {
            node.inputs.first().is_some_and(|&v| axes.iter().any(|&axis| may_be_empty(graph, v, axis)))
        }
    }
}

/// Whether an op may read outside of its first operand at some sizes.
fn reads_outside(graph: &Graph, node: &Node) -> bool {
    let [Some(&x), Some(&y)] = [node.inputs.first(), node.outputs.first()] else { return false };
    let extent = |v: ValueId, axis: usize| graph.ty(v).shape.get(axis).cloned().unwrap_or(1.into());
    let is_negative = |d: &Dim| d.bounds(&graph.symbols).0 < 0;
    match node.op.facts().extents {
        ExtentRule::Any => false,
        ExtentRule::PositionsOfOperand { axis, start, step } => {
            let last = start.clone() + (extent(y, axis) - Dim::from(1)) * Dim::from(step);
            let after = extent(x, axis) - Dim::from(1) - last.clone();
            extent(y, axis).as_const() != Some(0)
                && (is_negative(start) || is_negative(&last) || is_negative(&after))
        }
        ExtentRule::AtMostOperand { axis } => is_negative(&(extent(x, axis) - extent(y, axis))),
        ExtentRule::IndexAtMostOperand { except } => node.inputs.get(1).is_some_and(|&index| {
            let axes = (0..graph.ty(x).rank()).filter(|axis| *axis != except);
            axes.into_iter().any(|axis| is_negative(&(extent(x, axis) - extent(index, axis))))
        }),
    }
}
