//! Matrix products.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure};

pub(super) const ROWS: &[RuleRow] = &[
    row("MatMul", 13, "matmul", |c| {
        let x = c.tensor(0)?;
        let y = c.tensor(1)?;
        c.numpy_matmul(x, y)
    }),
    row("Gemm", 13, "permute, matmul, mul, add", gemm),
    row("Einsum", 28, "permute, reshape, matmul", |c| {
        let equation = c.opt_string("equation")?.unwrap_or("");
        let tensors = c.tensors()?;
        symmc_import::einsum::einsum(c, equation, &tensors)
    }),
    row("com.microsoft::FusedMatMul", 1, "permute, matmul, mul", fused),
    row("com.microsoft::TransposeMatMul", 1, "permute, matmul, mul", fused),
];

/// `alpha * x @ y + beta * z`, with `x` and `y` transposed on request.
fn gemm(c: &mut OpCall<'_, '_>) -> EmitResult {
    let mut x = c.tensor(0)?;
    let mut y = c.tensor(1)?;
    if (c.rank(x), c.rank(y)) != (2, 2) {
        return Err(RuleFailure::Invalid(format!(
            "expected two matrices, found {} and {} axes",
            c.rank(x),
            c.rank(y)
        )));
    }
    if c.flag("transA")? {
        x = c.transposed(x)?;
    }
    if c.flag("transB")? {
        y = c.transposed(y)?;
    }
    let alpha = c.float_or("alpha", 1.0)?;
    let beta = c.float_or("beta", 1.0)?;
    let mut z = c.matmul(x, y)?;
    // Fractional factors of integers: the computation is in f64, and the final result is truncated to an
    // integer.
    let dtype = c.dtype(z);
    let whole = [alpha, beta].iter().all(|f| f.fract() == 0.0);
    let wide = if dtype.is_float() || whole { dtype } else { DType::F64 };
    z = c.cast(z, wide)?;
    if alpha != 1.0 {
        z = c.binary_float(BinaryOp::Mul, z, alpha)?;
    }
    if let Some(mut bias) = c.opt_tensor(2)?.filter(|_| beta != 0.0) {
        bias = c.cast(bias, wide)?;
        if beta != 1.0 {
            bias = c.binary_float(BinaryOp::Mul, bias, beta)?;
        }
        z = c.binary(BinaryOp::Add, z, bias)?;
    }
    c.cast(z, dtype)
}

fn fused(c: &mut OpCall<'_, '_>) -> EmitResult {
    if c.flag("transBatchA")? || c.flag("transBatchB")? {
        return Err(RuleFailure::Opaque("transposed batch axes are not supported".into()));
    }
    let mut x = c.tensor(0)?;
    let mut y = c.tensor(1)?;
    if c.flag("transA")? {
        x = c.transposed(x)?;
    }
    if c.flag("transB")? {
        y = c.transposed(y)?;
    }
    let alpha = c.float_or("alpha", 1.0)?;
    let mut z = c.numpy_matmul(x, y)?;
    if alpha != 1.0 {
        z = c.binary_float(BinaryOp::Mul, z, alpha)?;
    }
    Ok(z)
}
