//! Requirements on the sizes of a run: an expression of the symbols is at most another, or equal to it.
//!
//! Programs state such conditions by slices that add up to an axis, by equal splits, and by assertions. A
//! condition that holds for all sizes needs nothing, and a condition that holds for none is an error. Any
//! other becomes a node that no output needs: the first `count` elements of an iota of `limit` elements. Its
//! bounds check ([`symmc_ir::BoundsChecks`]) fails at the sizes that violate the condition, on every backend
//! and before any step. Passes remove the node from the planned program, but the checks are those of the
//! source program.

use symmc_ir::dim::check_shape_complexity;
use symmc_ir::text::with_symbol_names;
use symmc_ir::{DType, Dim, GraphBuilder, Op, SymbolTable, TensorType};

/// The largest magnitude of a side of a requirement. The sum of two is within the limit of an extent.
const MAX_SIDE: i64 = symmc_ir::verify::MAX_EXTENT / 2;

/// Whether an expression is small enough to be a side of a requirement.
pub fn is_within_limits(side: &Dim, symbols: &SymbolTable) -> bool {
    let (low, high) = side.bounds(symbols);
    low >= -MAX_SIDE && high <= MAX_SIDE
}

/// Requires `count <= limit` for the sizes of each run. `label` names the requirement in messages. Fails if
/// no size satisfies the requirement, or a side exceeds the limits of [`symmc_ir::dim`].
pub fn require_at_most(
    builder: &mut GraphBuilder,
    label: &str,
    count: &Dim,
    limit: &Dim,
) -> Result<(), String> {
    let symbols = &builder.graph().symbols;
    let (low, high) = (limit.clone() - count.clone()).bounds(symbols);
    if low >= 0 {
        return Ok(());
    }
    if high < 0 {
        return Err(limit_message("at most", count, limit, symbols));
    }
    if !is_within_limits(count, symbols) || !is_within_limits(limit, symbols) {
        let expectation = format!("sizes up to {MAX_SIDE}, and at most");
        return Err(limit_message(&expectation, count, limit, symbols));
    }
    // Extents cannot be negative, so both sides are raised by the same number.
    let lowest = count.bounds(symbols).0.min(limit.bounds(symbols).0).min(0);
    let count = vec![count.clone() - Dim::from(lowest)];
    let limit = vec![limit.clone() - Dim::from(lowest)];
    check_shape_complexity(&count).and_then(|()| check_shape_complexity(&limit))?;
    let iota = Op::Iota { start: 0, step: 1 };
    let positions = builder.op_as(&format!("{label}.limit"), iota, &[], TensorType::new(DType::I64, limit));
    let positions = positions.map_err(|e| e.to_string())?;
    let first = Op::Slice { axis: 0, start: 0.into(), step: 1 };
    let first = builder.op_as(label, first, &[positions], TensorType::new(DType::I64, count));
    first.map(|_| ()).map_err(|e| e.to_string())
}

fn limit_message(what: &str, count: &Dim, limit: &Dim, symbols: &SymbolTable) -> String {
    with_symbol_names(&format!("expected {what} {limit:?}, found {count:?}"), symbols)
}

/// Requires two expressions to be equal for the sizes of each run.
pub fn require_equal(
    builder: &mut GraphBuilder,
    label: &str,
    found: &Dim,
    expected: &Dim,
) -> Result<(), String> {
    require_at_most(builder, label, found, expected)?;
    require_at_most(builder, label, expected, found)
}
