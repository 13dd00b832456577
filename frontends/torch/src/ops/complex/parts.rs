//! The real and the imaginary parts of what is held for complex numbers, and which names stand for them.

use symmc_import::Emit;
use symmc_ir::{Type, ValueId};

use crate::call::Call;
use crate::lower::{Emitted, Lowered, Stop};
use crate::schema::Argument;

/// The number of axes of a complex tensor.
pub(super) fn axes(c: &Call<'_, '_>, x: ValueId) -> usize {
    c.rank(x).saturating_sub(1)
}

/// The real part (0) or the imaginary part (1).
pub(super) fn part(c: &mut Call<'_, '_>, x: ValueId, which: i64) -> Emitted {
    let axis = axes(c, x);
    let one = c.slice(x, axis, which.into(), 1.into(), 1)?;
    c.drop_axis(one, axis)
}

pub(super) fn parts(c: &mut Call<'_, '_>, x: ValueId) -> Lowered<(ValueId, ValueId)> {
    Ok((part(c, x, 0)?, part(c, x, 1)?))
}

pub(super) fn joined(c: &mut Call<'_, '_>, real: ValueId, imaginary: ValueId) -> Emitted {
    let axis = c.rank(real);
    let parts = [c.unsqueeze(real, axis)?, c.unsqueeze(imaginary, axis)?];
    c.concat(&parts, axis)
}

pub(super) fn done(c: &mut Call<'_, '_>, real: ValueId, imaginary: ValueId) -> Lowered {
    let z = joined(c, real, imaginary)?;
    c.done(z)
}

pub(super) fn declared(c: &Call<'_, '_>) -> Lowered<Type> {
    match result(c) {
        Some(name) => Ok(c.lowering.held(name)?),
        None => Err(Stop::Broken("expected a result, found none".into())),
    }
}

fn result<'p>(c: &Call<'_, 'p>) -> Option<&'p str> {
    c.result_names().first().copied().flatten()
}

pub(super) fn is_complex_result(c: &Call<'_, '_>) -> bool {
    result(c).is_some_and(|name| c.lowering.is_complex(name))
}

pub(super) fn is_complex(c: &Call<'_, '_>, name: &str) -> bool {
    matches!(c.get(name), Some(Argument::Tensor(n)) if c.lowering.is_complex(n))
}

/// Whether the first argument is complex.
pub(super) fn of_first(c: &Call<'_, '_>) -> bool {
    matches!(c.at(0), Some(Argument::Tensor(n)) if c.lowering.is_complex(n))
}
