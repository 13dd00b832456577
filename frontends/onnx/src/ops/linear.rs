//! Matrix products.

use symmc_import::{Emit, EmitFormulas, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, UnaryOp, ValueId};

use super::{RuleRow, row};
use crate::call::OpCall;
use crate::lower::EmitResult;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("MatMul", 13, "matmul", |c| {
        let [x, y] = c.first_tensors()?;
        c.numpy_matmul(x, y)
    }),
    row("Gemm", 13, "permute, matmul_unrounded, mul, add, cast", gemm),
    row("com.microsoft::FusedGemm", 1, "permute, matmul_unrounded, mul, add, an activation", |c| {
        let y = gemm(c)?;
        let alpha = c.opt_float("activation_alpha")?;
        let Some(activation) = c.opt_string("activation")?.filter(|name| !name.is_empty()) else {
            return Ok(y);
        };
        match (activation, alpha) {
            ("Relu", None) => c.unary(UnaryOp::Relu, y),
            ("Sigmoid", None) => c.unary(UnaryOp::Sigmoid, y),
            ("Tanh", None) => c.unary(UnaryOp::Tanh, y),
            ("LeakyRelu", alpha) => {
                let alpha = alpha.unwrap_or(0.01);
                c.formula([y], |[y]| y.ge(0.0).select(y, y * alpha))
            }
            (other, _) => unsupported!("the activation `{other}` is not supported"),
        }
    }),
    row("Einsum", 28, "permute, reshape, matmul", |c| {
        let equation = c.opt_string("equation")?.unwrap_or("");
        let tensors = c.tensors()?;
        symmc_import::einsum::einsum(c, equation, &tensors)
    }),
    row("com.microsoft::FusedMatMul", 1, "permute, matmul_unrounded, mul, cast", fused),
    row("com.microsoft::TransposeMatMul", 1, "permute, matmul_unrounded, mul, cast", fused),
    row("com.microsoft::MatMulNBits", 1, "and, shr, sub, mul, permute, matmul", packed_product),
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
    let mut operands = c.first_tensors::<2>()?;
    for (x, [batch, last]) in operands.iter_mut().zip([["transBatchA", "transA"], ["transBatchB", "transB"]])
    {
        if c.flag(batch)? {
            *x = rows_after_batch(c, *x)?;
        }
        if c.flag(last)? {
            *x = c.transposed(*x)?;
        }
    }
    let [x, y] = operands;
    let alpha = c.float_or("alpha", 1.0)?;
    let dtype = c.dtype(x);
    let sums = c.product_sums(x, y)?;
    c.scale_and_add(sums, alpha, None, 0.0, dtype)
}

/// Moves the first axis behind the batch, which follows it.
fn rows_after_batch(c: &mut OpCall<'_, '_>, x: ValueId) -> EmitResult {
    let rank = c.rank(x);
    invalid_if!(rank < 3, "expected a batch of matrices, found {rank} axes");
    c.permute(x, (1..rank - 1).chain([0, rank - 1]).collect())
}

/// A product with weights of a few bits. Operands: the left matrix, packed weights, scales, zero points, the block of each
/// row, a bias. The weights of a column are blocks of packed bytes, each with a scale and a zero point.
fn packed_product(c: &mut OpCall<'_, '_>) -> EmitResult {
    // Kernels may compute less precisely.
    c.ignore(&["accuracy_level"]);
    let [x, packed, scales] = c.first_tensors()?;
    let (rows, columns) = (c.int("K")?, c.int("N")?);
    let bits = c.int_or("bits", 4)?;
    let block = c.int("block_size")?;
    unsupported_if!(!matches!(bits, 2 | 4 | 8), "weights of {bits} bits are not supported, 2, 4 and 8 are");
    invalid_if!(
        rows < 1 || columns < 1 || block < 1 || block * bits % 8 != 0 || c.dtype(packed) != DType::U8,
        "expected bytes with {rows} by {columns} weights in blocks of {block}, found {}",
        c.dtype(packed)
    );
    let dtype = c.dtype(x);
    let blocks = rows.div_euclid(block) + i64::from(rows % block != 0);
    let columns_and = |extents: &[i64]| -> Vec<Dim> {
        std::iter::once(columns).chain(extents.iter().copied()).map(Dim::from).collect()
    };
    let weights = unpack_bits(c, packed, bits)?;
    let weights = c.reshape(weights, columns_and(&[blocks, block]))?;
    let scales = c.reshape(scales, columns_and(&[blocks, 1]))?;
    let scales = c.cast(scales, dtype)?;
    let zeros = match c.opt_tensor(3)? {
        None => c.full(Scalar::Int(1 << (bits - 1)), dtype, vec![])?,
        Some(zeros) if c.dtype(zeros) == DType::U8 => {
            let zeros = unpack_bits(c, zeros, bits)?;
            let count = c.ty(zeros).numel().exact_div(&columns.into());
            let Some(count) = count else { return invalid!("expected zero points of {columns} columns") };
            let zeros = c.reshape(zeros, vec![columns.into(), count])?;
            let zeros = c.slice(zeros, 1, 0.into(), blocks.into(), 1)?;
            let zeros = c.cast(zeros, dtype)?;
            c.unsqueeze(zeros, 2)?
        }
        Some(zeros) => {
            let zeros = c.reshape(zeros, columns_and(&[blocks, 1]))?;
            c.cast(zeros, dtype)?
        }
    };
    let weights = c.cast(weights, dtype)?;
    let weights = match c.opt_tensor(4)? {
        None => c.formula([weights, zeros, scales], |[weights, zeros, scales]| (weights - zeros) * scales)?,
        Some(group) => {
            let of_rows = |c: &mut OpCall<'_, '_>, numbers: ValueId| {
                let numbers = c.expand(numbers, columns_and(&[blocks, 1]))?;
                let numbers = c.drop_axis(numbers, 2)?;
                c.emit("take", Op::Take { axis: 1 }, &[numbers, group])
            };
            let zeros = of_rows(c, zeros)?;
            let scales = of_rows(c, scales)?;
            let weights = c.reshape(weights, columns_and(&[blocks * block]))?;
            let weights = c.slice(weights, 1, 0.into(), rows.into(), 1)?;
            c.formula([weights, zeros, scales], |[weights, zeros, scales]| (weights - zeros) * scales)?
        }
    };
    let flat = c.ty(weights).numel().exact_div(&columns.into()).unwrap_or(rows.into());
    let weights = c.reshape(weights, vec![columns.into(), flat])?;
    let weights = c.slice(weights, 1, 0.into(), rows.into(), 1)?;
    let weights = c.transposed(weights)?;
    let y = c.numpy_matmul(x, weights)?;
    match c.opt_tensor(5)? {
        Some(bias) => c.binary(BinaryOp::Add, y, bias),
        None => Ok(y),
    }
}

/// The numbers of a few bits in bytes, the lowest first, on the last axis.
fn unpack_bits(c: &mut OpCall<'_, '_>, packed: ValueId, bits: i64) -> EmitResult {
    if bits == 8 {
        return Ok(packed);
    }
    let axis = c.rank(packed);
    let mut parts = Vec::new();
    for shift in (0..8).step_by(bits as usize) {
        let part = c.formula([packed], |[packed]| {
            let moved = packed.binary(BinaryOp::Shr, shift);
            moved.binary(BinaryOp::And, (1i64 << bits) - 1)
        })?;
        parts.push(c.unsqueeze(part, axis)?);
    }
    c.concat(&parts, axis)
}
