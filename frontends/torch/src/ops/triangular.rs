//! Systems of triangular equations, solved with the inverse of the matrix. The inverse is built from those of
//! the blocks on the diagonal, whose extent doubles in each step.

use symmc_import::{Emit, EmitFormulas, invalid_if, unsupported, unsupported_if};
use symmc_ir::{Dim, Op, Scalar, TensorType, ValueId};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] =
    &[row("aten.linalg_solve_triangular", "reshape, slice, matmul, concat", solve)];

const MOST: i64 = 1024;

fn solve(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [a, b] = c.tensors_named(["self", "B"])?;
    let upper = c.bool_or("upper", false)?;
    let is_left = c.bool_or("left", true)?;
    let unit = c.bool_or("unitriangular", false)?;
    let rank = c.rank(a);
    invalid_if!(
        rank < 2 || c.rank(b) < 2 || c.extent(a, rank - 2) != c.extent(a, rank - 1),
        "expected square matrices and right-hand sides, found {a:?} and {b:?}",
        a = c.shape(a),
        b = c.shape(b)
    );
    let Some(n) = c.extent(a, rank - 1).as_const().filter(|n| *n <= MOST) else {
        let n = c.extent(a, rank - 1);
        return unsupported!("matrices of {n:?} rows are not supported (at most {MOST})");
    };
    unsupported_if!(!c.dtype(a).is_float(), "matrices of {} are not supported", c.dtype(a));
    let lower = if upper { c.transposed(a)? } else { a };
    let inverse = invert_lower_triangular(c, lower, n, unit)?;
    let inverse = if upper { c.transposed(inverse)? } else { inverse };
    let y = if is_left { c.matmul(inverse, b)? } else { c.matmul(b, inverse)? };
    Ok(y)
}

/// The inverse of lower triangular matrices of `n` rows. Elements above the diagonal are ignored.
fn invert_lower_triangular(c: &mut OpCall<'_, '_>, a: ValueId, n: i64, unit: bool) -> EmitResult {
    let shape = c.shape(a);
    let batch = shape.iter().rev().skip(2).cloned().fold(Dim::from(1), |a, b| a * b);
    let a = c.reshape(a, vec![batch.clone(), n.into(), n.into()])?;
    let extent = n.max(1).unsigned_abs().next_power_of_two().cast_signed();
    // The additional rows are those of the identity matrix. Nothing below them is part of the result.
    let low = vec![Dim::from(0); 3];
    let ty = TensorType::new(c.dtype(a), vec![batch.clone(), extent.into(), extent.into()]);
    let value = Scalar::Int(0).convert_to(ty.dtype);
    let a = if extent == n { a } else { c.emit_as("pad", Op::Pad { low, value }, &[a], ty)? };
    let mut done = invert_diagonal(c, a, n, extent, unit)?;
    let mut size = 1;
    while size < extent {
        done = c.formula([a, done], |[a, done]| double_block_size(a, done, extent, size))?;
        size *= 2;
    }
    c.formula([done], |[done]| {
        let y = done.reshape(vec![batch, extent.into(), extent.into()]);
        y.slice(1, 0, n).slice(2, 0, n).reshape(shape)
    })
}

/// The inverses of the elements on the diagonal, `[batch, extent, 1, 1]`.
fn invert_diagonal(c: &mut OpCall<'_, '_>, a: ValueId, n: i64, extent: i64, unit: bool) -> EmitResult {
    if unit {
        return diagonal_ones(c, a, extent);
    }
    let some = c.formula([a], |[a]| blocks(a, extent, 1).slice(1, 0, n).reciprocal())?;
    if n == extent {
        return Ok(some);
    }
    let ones = diagonal_ones(c, a, extent - n)?;
    c.concat(&[some, ones], 1)
}

fn diagonal_ones(c: &mut OpCall<'_, '_>, a: ValueId, count: i64) -> EmitResult {
    let batch = c.extent(a, 0);
    c.full(Scalar::Int(1), c.dtype(a), vec![batch, count.into(), 1.into(), 1.into()])
}

/// The blocks of `size` rows on the diagonal, `[batch, number, size, size]`.
fn blocks(a: Term<'_>, extent: i64, size: i64) -> Term<'_> {
    let batch = a.extent(0);
    let count = extent / size;
    a.reshape(vec![batch.clone(), count.into(), size.into(), count.into(), size.into()])
        .permute(&[0, 2, 4, 1, 3])
        .reshape(vec![batch, size.into(), size.into(), (count * count).into()])
        .strided_slice(3, 0, count, count + 1)
        .permute(&[0, 3, 1, 2])
}

/// The inverses of blocks of twice the extent. The inverse of `[[a, 0], [b, d]]` is `[[a', 0], [-d' b a',
/// d']]`.
fn double_block_size<'f>(a: Term<'f>, done: Term<'f>, extent: i64, size: i64) -> Term<'f> {
    let count = extent / (2 * size);
    let below = blocks(a, extent, 2 * size).slice(2, size, size).slice(3, 0, size);
    let even = done.strided_slice(1, 0, count, 2);
    let odd = done.strided_slice(1, 1, count, 2);
    let corner = odd.matmul(below.matmul(even)) * -1;
    let above = even.concat(even.zeros_like(), 3);
    above.concat(corner.concat(odd, 3), 2)
}
