//! Scans: each element of an axis combined with all before it, in a number of passes that grows with the logarithm of the
//! extent (W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986).

use symmc_ir::{DType, Dim, ValueId};

use crate::emit::Emit;
use crate::failure::RuleResult;
use crate::formula::{EmitFormulas, Term};
use crate::unsupported_if;

/// The largest extent of an axis of a scan. Each doubling is one more pass over the operand.
const MAX_SCANNED: i64 = 1 << 24;

/// Combines each element of an axis with all before it, by an associative function. Each pass combines an element with the
/// result of the elements before it, twice as many as in the previous pass. The elements before the first are `unit`, or, without
/// one, the first element, which an idempotent function needs.
pub fn scan<C: Emit>(
    c: &mut C,
    x: ValueId,
    axis: usize,
    unit: impl Into<Option<f64>>,
    combine: impl for<'f> Fn(Term<'f, C::Error>, Term<'f, C::Error>) -> Term<'f, C::Error>,
) -> RuleResult<ValueId, C::Error> {
    let unit = unit.into();
    let n = c.extent(x, axis);
    let max_elements = c.dim_bounds(&n).1;
    unsupported_if!(
        max_elements > MAX_SCANNED,
        "the axis may have {max_elements} elements, more than {MAX_SCANNED}"
    );
    let mut y = x;
    let mut distance = 1;
    while distance < max_elements {
        y = combine_earlier(c, y, axis, distance, unit, &combine)?;
        distance *= 2;
    }
    Ok(y)
}

/// The elements of an axis moved to one position later, with `unit` as the first element.
pub fn moved_by_one<C: Emit>(c: &mut C, x: ValueId, axis: usize, unit: f64) -> RuleResult<ValueId, C::Error> {
    combine_earlier(c, x, axis, 1, Some(unit), &|before, _| before)
}

/// Combines each element of an axis with the element that is `distance` before it.
fn combine_earlier<C: Emit>(
    c: &mut C,
    x: ValueId,
    axis: usize,
    distance: i64,
    unit: Option<f64>,
    combine: &impl for<'f> Fn(Term<'f, C::Error>, Term<'f, C::Error>) -> Term<'f, C::Error>,
) -> RuleResult<ValueId, C::Error> {
    let n = c.extent(x, axis);
    let mut column = vec![Dim::from(1); c.rank(x) - axis];
    column[0] = n.clone();
    let from = c.iota(n, -distance, 1, DType::I64)?;
    c.formula([x, from], |[x, from]| {
        let before = x.take(axis, from.max(0));
        let before = match unit {
            Some(unit) => from.ge(0).reshape(column).select(before, x.constant(unit)),
            None => before,
        };
        combine(before, x)
    })
}
