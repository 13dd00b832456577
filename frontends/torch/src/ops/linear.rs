//! PyTorch's forms of matrix products, as batched `matmul` with views around it.

use symmc_import::{Emit, EmitFormulas, RuleCall, unsupported, unsupported_if};
use symmc_ir::{Op, ValueId};

use super::{RuleRow, row, row_of_results};
use crate::call::{CallOperand, OpCall};
use crate::lower::{EmitResult, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.linear", "matmul_unrounded, add, cast", linear),
    row("aten.mm aten.bmm", "matmul", |c| product(c, "mat2")),
    row("aten.mv", "matmul, reshape", |c| product(c, "vec")),
    row("aten.dot", "matmul, reshape", |c| product(c, "tensor")),
    row("aten.vdot aten.matmul aten.linalg_matmul", "matmul, reshape", |c| product(c, "other")),
    row("aten.addmm", "matmul_unrounded, mul, add, cast", |c| add_product(c, "mat1", "mat2")),
    row("aten.addmv", "matmul_unrounded, mul, add, cast", |c| add_product(c, "mat", "vec")),
    row("aten.baddbmm", "matmul_unrounded, mul, add, cast", |c| add_product(c, "batch1", "batch2")),
    row("aten.addbmm", "matmul_unrounded, mul, add, cast", add_sum_of_products),
    row("aten.addr", "matmul_unrounded, mul, add, cast", |c| {
        let bias = c.first_tensor()?;
        let (x, y) = column_and_row(c, &["vec1", "vec2", "self"])?;
        let bias = c.cast(bias, c.dtype(x))?;
        add_scaled_product(c, bias, x, y)
    }),
    row("aten.outer", "matmul", |c| {
        let (x, y) = column_and_row(c, &["self", "vec2"])?;
        c.matmul(x, y)
    }),
    row("aten.einsum", "permute, reshape, matmul", einsum),
    row("aten._grouped_mm", "grouped_matmul", grouped),
    row("transformers.grouped_mm_fallback", "grouped_matmul", |c| {
        let [x, y, ends] = c.tensors_named(["input", "weight", "offs"])?;
        c.emit("grouped_matmul", Op::GroupedMatMul, &[x, y, ends])
    }),
    row_of_results("transformers.grouped_mm_fallback_backward", "grouped_matmul, permute", |c| {
        let [x, y, ends, gradient] = c.tensors_named(["input", "weight", "offs", "grad_output"])?;
        let x = c.transposed(x)?;
        let y = c.transposed(y)?;
        let of_x = c.emit("grouped_matmul", Op::GroupedMatMul, &[gradient, y, ends])?;
        let of_y = c.emit("grouped_matmul", Op::GroupedMatMul, &[x, gradient, ends])?;
        c.set_results([of_x, of_y])
    }),
];

fn linear(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, w] = c.tensors_named(["input", "weight"])?;
    let w = if c.rank(w) == 1 { w } else { c.transposed(w)? };
    let dtype = c.dtype(x);
    match c.opt_tensor("bias")? {
        Some(bias) => {
            let sums = c.product_sums(x, w)?;
            c.scale_and_add(sums, 1.0, Some(bias), 1.0, dtype)
        }
        None => c.numpy_matmul(x, w),
    }
}

fn product(c: &mut OpCall<'_, '_>, other: &str) -> EmitResult {
    let x = c.first_tensor()?;
    let y = c.tensor(other)?;
    let (x, y) = cast_factors(c, x, y)?;
    c.numpy_matmul(x, y)
}

/// The factors in the requested dtype of the product. The terms are then also added in that dtype.
fn cast_factors(c: &mut OpCall<'_, '_>, x: ValueId, y: ValueId) -> RuleResult<(ValueId, ValueId)> {
    match c.opt_dtype("out_dtype")? {
        Some(dtype) => Ok((c.cast(x, dtype)?, c.cast(y, dtype)?)),
        None => Ok((x, y)),
    }
}

/// `beta * self + alpha * (x @ y)`, rounded once.
fn add_product(c: &mut OpCall<'_, '_>, x: &str, y: &str) -> EmitResult {
    let bias = c.first_tensor()?;
    let x = c.tensor(x)?;
    let y = c.tensor(y)?;
    let (x, y) = cast_factors(c, x, y)?;
    add_scaled_product(c, bias, x, y)
}

/// `beta * self + alpha * sum(batch1[i] @ batch2[i])`: one product, whose inner axis has the rows of all batches.
fn add_sum_of_products(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [bias, x, y] = c.tensors_named(["self", "batch1", "batch2"])?;
    let (of_x, of_y) = (c.shape(x), c.shape(y));
    let ([batches, rows, inner], [_, _, columns]) = (&of_x[..], &of_y[..]) else {
        return unsupported!("the factors are not batches of matrices");
    };
    let joined = batches.clone() * inner.clone();
    let [x, y] = c.formulas([x, y], |[x, y]| {
        let x = x.permute(&[1, 0, 2]).reshape(vec![rows.clone(), joined.clone()]);
        [x, y.reshape(vec![joined, columns.clone()])]
    })?;
    add_scaled_product(c, bias, x, y)
}

/// Two vectors as a matrix of one column and one of one row. Their dtype is the common one of these operands, of
/// which the vectors are the first two.
fn column_and_row(c: &mut OpCall<'_, '_>, names: &[&str]) -> RuleResult<(ValueId, ValueId)> {
    let operands =
        names.iter().map(|name| Ok(CallOperand::Tensor(c.tensor(name)?))).collect::<RuleResult<Vec<_>>>()?;
    let dtype = c.common_dtype(&operands.iter().collect::<Vec<_>>());
    let x = c.as_tensor(&operands[0], dtype)?;
    let y = c.as_tensor(&operands[1], dtype)?;
    Ok((c.unsqueeze(x, 1)?, c.unsqueeze(y, 0)?))
}

/// `beta * bias + alpha * (x @ y)`, rounded once.
fn add_scaled_product(c: &mut OpCall<'_, '_>, bias: ValueId, x: ValueId, y: ValueId) -> EmitResult {
    let beta = c.float_or("beta", 1.0)?;
    let alpha = c.float_or("alpha", 1.0)?;
    let dtype = c.dtype(x);
    let sums = c.product_sums(x, y)?;
    c.scale_and_add(sums, alpha, Some(bias), beta, dtype)
}

fn einsum(c: &mut OpCall<'_, '_>) -> EmitResult {
    // The order of the products does not change the result.
    c.ignore(&["path"]);
    let equation = c.opt_string("equation")?.unwrap_or("");
    let tensors = c.tensors("tensors")?;
    symmc_import::einsum::einsum(c, equation, &tensors)
}

/// Grouped matrix products. The groups divide the rows of the left operand or the columns of the right one.
/// If both operands are matrices, the groups divide K. Without groups both operands are batches.
fn grouped(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, y] = c.tensors_named(["self", "mat2"])?;
    let ends = c.opt_tensor("offs")?;
    unsupported_if!(c.opt_tensor("bias")?.is_some(), "a bias per group is not supported");
    let (x, y) = cast_factors(c, x, y)?;
    match (c.rank(x), c.rank(y), ends) {
        (2, 2 | 3, Some(ends)) => c.emit("grouped_matmul", Op::GroupedMatMul, &[x, y, ends]),
        (3, 2, Some(ends)) => {
            let rows = c.transposed(y)?;
            let matrices = c.transposed(x)?;
            let z = c.emit("grouped_matmul", Op::GroupedMatMul, &[rows, matrices, ends])?;
            c.transposed(z)
        }
        (3, 3, None) => c.matmul(x, y),
        _ => unsupported!("a grouped product of {} and {} axes is not supported", c.rank(x), c.rank(y)),
    }
}
