//! Ops that treat the real and the imaginary components of their operands like real tensors: they move
//! elements, add them up, or fill a tensor.
//!
//! The op's own rule is applied to each component. Real operands next to complex ones have an imaginary part
//! of 0.

use std::collections::HashMap;

use symmc_import::{Emit, RuleCall, has_word, invalid, unsupported_if};
use symmc_ir::{Scalar, ValueId};

use super::components::{
    component, is_complex_result, join_components, set_complex_result, split_components,
};
use crate::call::{OpCall, OpRule};
use crate::effects;
use crate::lower::{RuleFailure, RuleResult};
use crate::schema::Argument;
use crate::scope::tensor_names;

/// Ops that move elements or add them up.
pub(super) const MOVING_OPS: &str = "aten.cat aten.chunk aten.constant_pad_nd aten.cumsum aten.diagonal aten.embedding aten.expand_as \
     aten.flatten aten.flip aten.gather aten.index.Tensor aten.index_add aten.index_put aten.index_select \
     aten.masked_fill aten.mean aten.movedim aten.permute aten.repeat aten.roll aten.select.int \
     aten.select_backward aten.select_scatter aten.slice_backward aten.slice_scatter aten.split \
     aten.split_with_sizes aten.squeeze aten.stack aten.sum aten.t aten.tril aten.triu aten.unbind \
     aten.unflatten aten.view_as aten.where.self";

/// Ops that fill a tensor with a real number.
pub(super) const FILLING_OPS: &str = "aten.empty aten.empty_like aten.fill.Scalar aten.full aten.full_like aten.new_empty aten.new_full \
     aten.new_ones aten.new_zeros aten.ones aten.ones_like aten.scalar_tensor aten.zero aten.zeros \
     aten.zeros_like";

/// Arguments that select elements. They are not complex.
const SELECTING_ARGUMENTS: [&str; 4] = ["index", "indices", "condition", "mask"];

/// Arguments that may be numbers instead of tensors.
const NUMBER_ARGUMENTS: [&str; 3] = ["self", "other", "value"];

fn is_in_table(table: &str, target: &str) -> bool {
    has_word(table, target) || target.rsplit_once('.').is_some_and(|(op, _)| has_word(table, op))
}

pub(super) fn has_component_rule(target: &str) -> bool {
    is_in_table(MOVING_OPS, target) || is_in_table(FILLING_OPS, target)
}

pub(super) fn lower_per_component(c: &mut OpCall<'_, '_>, target: &str, rule: OpRule) -> RuleResult {
    if is_in_table(FILLING_OPS, target) { fill_real(c, rule) } else { apply_per_component(c, rule) }
}

/// Applies a rule to each component of the operands.
pub(super) fn apply_per_component(c: &mut OpCall<'_, '_>, rule: OpRule) -> RuleResult {
    let number = NUMBER_ARGUMENTS
        .iter()
        .find(|name| !matches!(c.get(name), None | Some(Argument::Tensor(_) | Argument::Int(0))));
    if let Some(name) = number {
        let zero = matches!(c.get(name), Some(Argument::Float(x)) if *x == 0.0);
        unsupported_if!(!zero, "a number other than 0 as `{name}` is not supported");
    }
    let mut real = HashMap::new();
    let mut imaginary = HashMap::new();
    let mut operands = Vec::new();
    for input in c.node.inputs.iter().filter(|i| !SELECTING_ARGUMENTS.contains(&&*i.name)) {
        for name in tensor_names(&input.arg) {
            let x = c.lowering.scope.value(name).map_err(RuleFailure::Invalid)?;
            let (a, b) = if c.lowering.is_complex(name) {
                split_components(c, x)?
            } else {
                (x, c.full(Scalar::Int(0), c.dtype(x), c.shape(x))?)
            };
            real.insert(name, a);
            imaginary.insert(name, b);
            operands.push(x);
        }
    }
    let real = c.apply_to_components(real, rule)?;
    let imaginary = c.apply_to_components(imaginary, rule)?;
    for (i, pair) in real.into_iter().zip(imaginary).enumerate() {
        if let (Some(a), Some(b)) = pair {
            let z = join_components(c, a, b)?;
            c.set_result(i, z);
            note_operand_aliases(c, z, &operands);
        }
    }
    Ok(())
}

/// Records that a result that is a view in PyTorch is a separate value here.
fn note_operand_aliases(c: &mut OpCall<'_, '_>, z: ValueId, operands: &[ValueId]) {
    if c.lowering.in_place && effects::returns_views(&c.node.target) {
        c.lowering.possible_aliases.extend(operands.iter().map(|&x| (z, x)));
    }
}

/// Applies a rule that gives a real result, and adds an imaginary part of 0.
fn fill_real(c: &mut OpCall<'_, '_>, rule: OpRule) -> RuleResult {
    let mut real = HashMap::new();
    for name in c.node.inputs.iter().flat_map(|i| tensor_names(&i.arg)) {
        let x = c.lowering.scope.value(name).map_err(RuleFailure::Invalid)?;
        let x = if c.lowering.is_complex(name) { component(c, x, 0)? } else { x };
        real.insert(name, x);
    }
    let filled = c.apply_to_components(real, rule)?;
    let Some(x) = filled.into_iter().next().flatten() else {
        return invalid!("expected a result, found none");
    };
    if !is_complex_result(c) {
        return c.set_only_result(x);
    }
    let zero = c.full(Scalar::Int(0), c.dtype(x), c.shape(x))?;
    set_complex_result(c, x, zero)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops;

    #[test]
    fn all_have_rules() {
        for target in MOVING_OPS.split(' ').chain(FILLING_OPS.split(' ')) {
            assert!(
                ops::find_rule(target).or_else(|| ops::find_rule(&format!("{target}.default"))).is_some(),
                "{target}"
            );
            assert!(has_component_rule(target), "{target}");
        }
    }
}
