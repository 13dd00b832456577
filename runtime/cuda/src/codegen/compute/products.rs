//! Skinny GEMMs with the element-wise steps that are the only readers of their results as the epilogue, in
//! one kernel.
//!
//! The products of one left matrix are computed side by side. The epilogue then uses the sums of a position;
//! each value is rounded to its dtype as if it had been stored. If the epilogue reads several column ranges
//! of a product side by side, such as the halves of one weight, the product counts as several. The bits are
//! those of separate steps with the same sums. Products that the library or split-K would compute as separate
//! steps may be summed in another order here.

use smallvec::SmallVec;
use symmc_ir::{BinaryOp, Op};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use super::gemm::Gemm;
use super::loops::{LoopBuilder, reads_same_elements};
use super::lowering::{BoundOperation, KernelLowering};
use super::matmul;
use super::skinny::{self, MAX_ADJACENT_PRODUCTS};
use super::space::is_contiguous;
use super::text::stored_type;

use crate::codegen::command::GpuCommand;
use crate::error::Result;

/// The alignment in bytes of a bias that the library adds.
const ALIGNMENT: u64 = 16;

/// Columns of a product that are read element by element.
struct ProductColumns {
    /// The columns of the right matrix.
    right: LocatedTensor,
    /// The destination, if they were stored.
    result: LocatedTensor,
}

/// The column ranges of a product that `readers` read at the positions of `shape`, each once, in ascending
/// order: all columns, or as many as `shape` has.
fn read_columns<'a>(
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    readers: impl Iterator<Item = &'a LocatedTensor>,
    shape: &[usize],
) -> SmallVec<[ProductColumns; MAX_ADJACENT_PRODUCTS]> {
    let Some(right) = operands.get(1) else { return SmallVec::new() };
    let mut firsts: SmallVec<[Option<usize>; MAX_ADJACENT_PRODUCTS]> = SmallVec::new();
    for x in readers {
        let first = match first_column(result, x, shape) {
            _ if reads_same_elements(result, x, shape) => None,
            Some(first) if right.shape.len() == 2 => Some(first),
            _ => continue,
        };
        if !firsts.contains(&first) {
            firsts.push(first);
        }
    }
    firsts.sort_unstable();
    let mut cuts = SmallVec::new();
    for first in firsts {
        let mut cut = ProductColumns { right: right.clone(), result: result.clone() };
        if let Some(first) = first {
            let size = result.dtype.size();
            let stored_size = right.dtype.size();
            let columns = shape.last().copied().unwrap_or(1);
            cut.right.shape[1] = columns;
            cut.result.shape.iter_mut().last().into_iter().for_each(|n| *n = columns);
            cut.right.offset =
                right.offset.wrapping_add_signed(first as isize * right.strides[1] * stored_size as isize);
            cut.result.offset += first * size;
        }
        cuts.push(cut);
    }
    cuts
}

/// The first column of a row-major matrix that `x` reads at the positions of `shape`. Leading axes are rows.
fn first_column(matrix: &LocatedTensor, x: &LocatedTensor, shape: &[usize]) -> Option<usize> {
    let (&columns, rows) = matrix.shape.split_last()?;
    let (&n, m) = shape.split_last()?;
    let bytes = x.offset.checked_sub(matrix.offset)?;
    let first = bytes / matrix.dtype.size();
    let fits = (x.space, x.dtype, x.by_rank, &x.strides)
        == (matrix.space, matrix.dtype, matrix.by_rank, &matrix.strides)
        && *x.shape == *shape
        && is_contiguous(matrix)
        && rows == m
        && bytes.is_multiple_of(matrix.dtype.size())
        && first + n <= columns;
    fits.then_some(first)
}

/// The kernel of products and element-wise steps; `None` if their layouts do not allow one.
pub fn lower(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<Vec<GpuCommand>>> {
    let maps: SmallVec<[BoundOperation<'_>; 8]> =
        steps.iter().filter(|s| !s.op.is_matmul()).copied().collect();
    let Some(shape) = maps.last().and_then(|step| step.results.first()).map(|r| &r.shape) else {
        return Ok(None);
    };
    if shape.contains(&0) {
        return Ok(Some(Vec::new()));
    }
    let by_library = product_with_bias(steps, l)?;
    if let Some(gemm) = by_library
        && !skinny::is_profitable(&gemm, l)
    {
        return Ok(Some(vec![GpuCommand::Gemm(gemm)]));
    }
    let mut nest = LoopBuilder::new(shape, None);
    let mut gemms = SmallVec::<[_; MAX_ADJACENT_PRODUCTS]>::new();
    let mut steady = true;
    let products = steps.iter().filter(|s| s.op.is_matmul()).map(|step| {
        let readers = maps.iter().flat_map(|s| s.operands);
        read_columns(step.operands, &step.results[0], readers, shape)
    });
    let products: SmallVec<[_; MAX_ADJACENT_PRODUCTS]> = products.collect();
    let mut products = products.iter();
    for step in steps {
        match step.op {
            Op::MatMul { .. } => {
                super::lowering::arity(step.op, step.operands.len(), step.results.len())?;
                for ProductColumns { right, result } in products.next().into_iter().flatten() {
                    let Some(gemm) = matmul::single_library_product(&step.operands[0], right, result, l)?
                    else {
                        return Ok(None);
                    };
                    let kind = stored_type(result.dtype);
                    let sum = nest.body.compute(kind, format!("Put<{kind}>::of(sum[{}])", gemms.len()), []);
                    nest.define(result, sum);
                    steady &= l.is_never_written(right);
                    gemms.push(gemm);
                }
            }
            _ if nest.add(step, l)? => {}
            _ => return Ok(None),
        }
    }
    nest.store_results(l);
    let Some(first) = gemms.first() else { return Ok(None) };
    let kernel = nest
        .body
        .epilogue([first.m, first.n])
        .and_then(|epilogue| skinny::side_by_side_kernel(&gemms, steady, epilogue, l));
    Ok(kernel.or(by_library.map(GpuCommand::Gemm)).map(|work| vec![work]))
}

/// The library product with a bias that the steps are: unrounded sums, the addition of one row of the operands'
/// dtype, and the cast to this dtype. `None` if they are anything else.
fn product_with_bias(steps: &[BoundOperation<'_>], l: &KernelLowering<'_>) -> Result<Option<Gemm>> {
    let find =
        |accepts: &dyn Fn(&BoundOperation<'_>) -> bool| steps.iter().copied().find(|step| accepts(step));
    let reads = |step: &BoundOperation<'_>, producer: &BoundOperation<'_>| {
        step.operands
            .iter()
            .any(|x| producer.results.iter().any(|r| (r.space, r.offset) == (x.space, x.offset)))
    };
    let Some(product) = find(&|step| *step.op == Op::MATMUL_UNROUNDED) else { return Ok(None) };
    let Some(sum) = find(&|step| *step.op == Op::Binary(BinaryOp::Add) && reads(step, &product)) else {
        return Ok(None);
    };
    let is_cast = |step: &BoundOperation<'_>| *step.op == Op::Cast;
    let Some(rounded) = find(&|step| is_cast(step) && reads(step, &sum)) else { return Ok(None) };
    let Some(widened) = find(&|step| is_cast(step) && reads(&sum, step)) else { return Ok(None) };
    let ([x, y], [bias], [result]) = (product.operands, widened.operands, rounded.results) else {
        return Ok(None);
    };
    let is_row = |columns: usize| {
        let leading = bias.shape.len().saturating_sub(1);
        bias.shape[..leading].iter().all(|&n| n == 1)
            && bias.shape[leading..] == [columns]
            && (columns == 1 || bias.strides[leading] == 1)
    };
    let bias_address = l.address_of(bias);
    let are_inner = steps
        .iter()
        .flat_map(|step| step.results)
        .all(|r| r.space == MemorySpace::Inner || std::ptr::eq(r, result));
    let fits = steps.len() == 4
        && are_inner
        && bias.dtype == x.dtype
        && result.dtype == x.dtype
        && result.shape.last().is_some_and(|&columns| is_row(columns))
        && bias_address.is_multiple_of(ALIGNMENT);
    if !fits {
        return Ok(None);
    }
    let gemm = matmul::single_library_product(x, y, result, l)?;
    let gemm = gemm.filter(|gemm| gemm.batch == 1 && gemm.stored == gemm.dtype);
    Ok(gemm.map(|gemm| Gemm { bias: Some(bias_address), ..gemm }))
}
