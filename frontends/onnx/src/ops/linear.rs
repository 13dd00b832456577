//! Matrix products.

use symmc_import::{Emit, invalid_if, unsupported_if};
use symmc_ir::DType;

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::EmitResult;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("MatMul", 13, "matmul", |c| {
        let [x, y] = c.first_tensors()?;
        c.numpy_matmul(x, y)
    }),
    row("Gemm", 13, "permute, matmul_unrounded, mul, add, cast", gemm),
    row("Einsum", 28, "permute, reshape, matmul", |c| {
        let equation = c.opt_string("equation")?.unwrap_or("");
        let tensors = c.tensors()?;
        symmc_import::einsum::einsum(c, equation, &tensors)
    }),
    row("com.microsoft::FusedMatMul", 1, "permute, matmul_unrounded, mul, cast", fused),
    row("com.microsoft::TransposeMatMul", 1, "permute, matmul_unrounded, mul, cast", fused),
];

/// `alpha * x @ y + beta * z`, with `x` and `y` transposed on request.
fn gemm(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut x = c.tensor(0)?;
    let mut y = c.tensor(1)?;
    invalid_if!(
        (c.rank(x), c.rank(y)) != (2, 2),
        "expected two matrices, found {} and {} axes",
        c.rank(x),
        c.rank(y)
    );
    if c.flag("transA")? {
        x = c.transposed(x)?;
    }
    if c.flag("transB")? {
        y = c.transposed(y)?;
    }
    let alpha = c.float_or("alpha", 1.0)?;
    let beta = c.float_or("beta", 1.0)?;
    let dtype = c.dtype(x);
    let mut sums = c.product_sums(x, y)?;
    // Fractional factors of integers: the computation is in f64, and the final result is truncated to an
    // integer.
    if !dtype.is_float() && [alpha, beta].iter().any(|f| f.fract() != 0.0) {
        sums = c.cast(sums, DType::F64)?;
    }
    let bias = c.opt_tensor(2)?;
    c.scale_and_add(sums, alpha, bias, beta, dtype)
}

fn fused(c: &mut OpCall<'_, '_>) -> EmitResult {
    unsupported_if!(
        c.flag("transBatchA")? || c.flag("transBatchB")?,
        "transposed batch axes are not supported"
    );
    let mut x = c.tensor(0)?;
    let mut y = c.tensor(1)?;
    if c.flag("transA")? {
        x = c.transposed(x)?;
    }
    if c.flag("transB")? {
        y = c.transposed(y)?;
    }
    let alpha = c.float_or("alpha", 1.0)?;
    let dtype = c.dtype(x);
    let sums = c.product_sums(x, y)?;
    c.scale_and_add(sums, alpha, None, 0.0, dtype)
}
