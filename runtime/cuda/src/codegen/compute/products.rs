//! Skinny GEMMs with the element-wise steps that alone read their results as the epilogue, in one kernel.
//!
//! The products of one left matrix stand side by side, then comes the epilogue on the sums of a position, each value
//! rounded to its dtype as if it had been stored. A product of which they read columns side by side, as halves of one
//! weight are, counts as several. So the bits are those of single steps with the same sums; products that the library
//! or split-K would do by themselves may be added up in another order here.

use smallvec::SmallVec;
use symmc_ir::Op;
use symmc_runtime::exec::Located;

use super::lowering::{Lowering, Operation};
use super::map::{Map, Val};
use super::skinny::{self, MOST_PRODUCTS};
use super::space::is_run;
use super::text::stored;
use super::{fuse, matmul};
use crate::codegen::command::Command;
use crate::error::Result;

/// Columns of a product that are read element by element.
struct Cut {
    /// Those of the right matrix.
    right: Located,
    /// Where they would be stored.
    result: Located,
}

/// The columns of a product that `readers` read at the positions of `shape`, each once, in ascending order: all of
/// them, or as many as `shape` has.
fn cuts<'a>(
    operands: &[Located],
    result: &Located,
    readers: impl Iterator<Item = &'a Located>,
    shape: &[usize],
) -> SmallVec<[Cut; MOST_PRODUCTS]> {
    let Some(right) = operands.get(1) else { return SmallVec::new() };
    let mut firsts: SmallVec<[Option<usize>; MOST_PRODUCTS]> = SmallVec::new();
    for x in readers {
        let first = match first_column(result, x, shape) {
            _ if fuse::same_places(result, x, shape) => None,
            Some(first) if right.shape.len() == 2 => Some(first),
            _ => continue,
        };
        if !firsts.contains(&first) {
            firsts.push(first);
        }
    }
    firsts.sort_unstable();
    let cut = |first: Option<usize>| {
        let mut cut = Cut { right: right.clone(), result: result.clone() };
        if let Some(first) = first {
            let size = result.dtype.size();
            let columns = shape.last().copied().unwrap_or(1);
            cut.right.shape[1] = columns;
            cut.result.shape.iter_mut().last().into_iter().for_each(|n| *n = columns);
            cut.right.offset =
                right.offset.wrapping_add_signed(first as isize * right.strides[1] * size as isize);
            cut.result.offset += first * size;
        }
        cut
    };
    firsts.into_iter().map(cut).collect()
}

/// The first of the columns of a matrix, stored row by row, that `x` is at the positions of `shape`. Leading axes are rows.
fn first_column(matrix: &Located, x: &Located, shape: &[usize]) -> Option<usize> {
    let ((&columns, rows), (&n, m)) = (matrix.shape.split_last()?, shape.split_last()?);
    let bytes = x.offset.checked_sub(matrix.offset)?;
    let first = bytes / matrix.dtype.size();
    let fits = (x.space, x.dtype, x.by_rank, &x.strides)
        == (matrix.space, matrix.dtype, matrix.by_rank, &matrix.strides)
        && *x.shape == *shape
        && is_run(matrix)
        && rows == m
        && bytes.is_multiple_of(matrix.dtype.size())
        && first + n <= columns;
    fits.then_some(first)
}

/// The kernel of products and element-wise steps; `None` where their layouts do not allow one.
pub fn lower(steps: &[Operation<'_>], l: &mut Lowering<'_>) -> Result<Option<Vec<Command>>> {
    let maps: SmallVec<[Operation<'_>; 8]> = steps.iter().filter(|s| *s.op != Op::MatMul).copied().collect();
    let Some(shape) = maps.first().and_then(|step| step.results.first()).map(|r| &r.shape) else {
        return Ok(None);
    };
    if !fuse::fit(&maps, shape) {
        return Ok(None);
    }
    if shape.contains(&0) {
        return Ok(Some(Vec::new()));
    }
    let mut map = Map::over(shape);
    let mut known: Vec<(&Located, Val)> = Vec::with_capacity(steps.len());
    let mut gemms = SmallVec::<[_; MOST_PRODUCTS]>::new();
    let mut steady = true;
    let cut = |step: &Operation<'_>| {
        let readers = maps.iter().flat_map(|s| s.operands);
        cuts(step.operands, &step.results[0], readers, shape)
    };
    let products: SmallVec<[_; MOST_PRODUCTS]> =
        steps.iter().filter(|s| *s.op == Op::MatMul).map(cut).collect();
    let mut products = products.iter();
    for step in steps {
        match step.op {
            Op::MatMul => {
                super::lowering::arity(step.op, step.operands.len(), step.results.len())?;
                for Cut { right, result } in products.next().into_iter().flatten() {
                    let Some(gemm) = matmul::one(&step.operands[0], right, result, l)? else {
                        return Ok(None);
                    };
                    let kind = stored(result.dtype);
                    known.push((result, map.compute(kind, format!("Put<{kind}>::of(sum[{}])", gemms.len()))));
                    steady &= l.is_steady(right);
                    gemms.push(gemm);
                }
            }
            _ => fuse::evaluate(&mut map, step, &mut known, shape, l)?,
        }
    }
    fuse::store(&mut map, &known, shape, l);
    let Some(first) = gemms.first() else { return Ok(None) };
    match map.epilogue([first.m, first.n]) {
        Some(epilogue) => Ok(skinny::joined(&gemms, steady, epilogue, l).map(|work| vec![work])),
        None => Ok(None),
    }
}
