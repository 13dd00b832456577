//! The real and the imaginary components of complex tensors, and the names that are complex.

use symmc_import::{Emit, invalid};
use symmc_ir::{TensorType, ValueId};

use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};
use crate::schema::Argument;

/// The number of axes of a complex tensor, without the axis of components.
pub(super) fn complex_rank(c: &OpCall<'_, '_>, x: ValueId) -> usize {
    c.rank(x).saturating_sub(1)
}

/// The real part (0) or the imaginary part (1).
pub(super) fn component(c: &mut OpCall<'_, '_>, x: ValueId, which: i64) -> EmitResult {
    let axis = complex_rank(c, x);
    let selected = c.slice(x, axis, which.into(), 1.into(), 1)?;
    c.drop_axis(selected, axis)
}

pub(super) fn split_components(c: &mut OpCall<'_, '_>, x: ValueId) -> RuleResult<(ValueId, ValueId)> {
    Ok((component(c, x, 0)?, component(c, x, 1)?))
}

pub(super) fn join_components(c: &mut OpCall<'_, '_>, real: ValueId, imaginary: ValueId) -> EmitResult {
    let axis = c.rank(real);
    let components = [c.unsqueeze(real, axis)?, c.unsqueeze(imaginary, axis)?];
    c.concat(&components, axis)
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
