//! The real and the imaginary components of complex tensors, and the names that are complex.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid};
use symmc_ir::{TensorType, ValueId};

use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult, Term};
use crate::schema::Argument;

/// The number of axes of a complex tensor, without the axis of components.
pub(super) fn complex_rank(c: &OpCall<'_, '_>, x: ValueId) -> usize {
    c.rank(x).saturating_sub(1)
}

/// The real part (0) or the imaginary part (1).
pub(super) fn component(c: &mut OpCall<'_, '_>, x: ValueId, which: i64) -> EmitResult {
    c.formula([x], |[x]| component_of(x, which))
}

fn component_of(z: Term<'_>, which: i64) -> Term<'_> {
    let axis = z.rank().saturating_sub(1);
    z.slice(axis, which, 1).drop_axis(axis)
}

/// The real part and the imaginary part.
pub(super) fn components_of(z: Term<'_>) -> [Term<'_>; 2] {
    [component_of(z, 0), component_of(z, 1)]
}

pub(super) fn split_components(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<(ValueId, ValueId)> {
    Ok(c.formulas([x], |[x]| components_of(x))?.into())
}

pub(super) fn join_components(c: &mut OpCall<'_, '_>, real: ValueId, imaginary: ValueId) -> EmitResult {
    c.formula([real, imaginary], join)
}

fn join<'f>([real, imaginary]: [Term<'f>; 2]) -> Term<'f> {
    let axis = real.rank();
    real.unsqueeze(axis).concat(imaginary.unsqueeze(axis), axis)
}

/// Sets the result of a formula for its components, from those of the first operand.
pub(super) fn set_formula_result(
    c: &mut OpCall<'_, '_>,
    f: impl for<'f> FnOnce([Term<'f>; 2]) -> [Term<'f>; 2],
) -> RuleResult {
    let z = c.first_tensor()?;
    let y = c.formula([z], |[z]| join(f(components_of(z))))?;
    c.set_only_result(y)
}

pub(super) fn set_complex_result(c: &mut OpCall<'_, '_>, real: ValueId, imaginary: ValueId) -> RuleResult {
    let z = join_components(c, real, imaginary)?;
    c.set_only_result(z)
}

pub(super) fn declared_component_type(c: &OpCall<'_, '_>) -> RuleResult<TensorType> {
    match only_result_name(c) {
        Some(name) => Ok(c.lowering.component_type(name)?),
        None => invalid!("expected a result, found none"),
    }
}

fn only_result_name<'p>(c: &OpCall<'_, 'p>) -> Option<&'p str> {
    c.result_names().first().copied().flatten()
}

pub(super) fn is_complex_result(c: &OpCall<'_, '_>) -> bool {
    only_result_name(c).is_some_and(|name| c.lowering.is_complex(name))
}

pub(super) fn is_complex(c: &OpCall<'_, '_>, name: &str) -> bool {
    matches!(c.get(name), Some(Argument::Tensor(n)) if c.lowering.is_complex(n))
}

pub(super) fn is_first_complex(c: &OpCall<'_, '_>) -> bool {
    matches!(c.argument_at(0), Some(Argument::Tensor(n)) if c.lowering.is_complex(n))
}
