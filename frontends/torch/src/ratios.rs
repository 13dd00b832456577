//! Numbers that a program computes of its sizes as floats, such as the ratio of two extents, as tensors without axes.
//!
//! PyTorch writes them as expressions; they stand where numbers stand, and are computed in f64.

use symmc_import::Emit;
use symmc_import::sympy::{self, Expr};
use symmc_ir::{BinaryOp, DType, Scalar, UnaryOp};

use crate::call::Call;
use crate::lower::{Emitted, Lowered, Stop};

/// The value of an expression, in f64.
pub(crate) fn value(c: &mut Call<'_, '_>, text: &str) -> Emitted {
    let parsed = sympy::parse(text).map_err(|why| unknown(text, &why))?;
    number(c, text, &parsed)
}

fn unknown(text: &str, why: &str) -> Stop {
    Stop::Opaque(format!("an operand is the symbolic number {text}: {why}"))
}

fn number(c: &mut Call<'_, '_>, text: &str, e: &Expr<'_>) -> Emitted {
    if let Ok(dim) = c.lowering.symbols.dim_of(e) {
        return c.dim_tensor(&dim, DType::F64);
    }
    let (name, args) = match e {
        Expr::Float(x) => return c.full(Scalar::Float(symmc_ir::Float(*x)), DType::F64, vec![]),
        Expr::Call(name, args) => (name, args),
        _ => return Err(unknown(text, "it depends on data")),
    };
    let values = args.iter().map(|a| number(c, text, a)).collect::<Lowered<Vec<_>>>()?;
    match (*name, values.as_slice()) {
        ("ToFloat" | "Identity", [x]) => Ok(*x),
        ("IntTrueDiv" | "FloatTrueDiv", [x, y]) => c.binary(BinaryOp::Div, *x, *y),
        ("Pow" | "FloatPow" | "PowByNatural", [x, y]) => c.binary(BinaryOp::Pow, *x, *y),
        ("OpaqueUnaryFn_sqrt" | "sqrt", [x]) => c.unary(UnaryOp::Sqrt, *x),
        ("OpaqueUnaryFn_exp" | "exp", [x]) => c.unary(UnaryOp::Exp, *x),
        ("OpaqueUnaryFn_log" | "log", [x]) => c.unary(UnaryOp::Log, *x),
        ("Add" | "Mul" | "Max" | "Min", [first, rest @ ..]) => {
            let op = match *name {
                "Add" => BinaryOp::Add,
                "Mul" => BinaryOp::Mul,
                "Max" => BinaryOp::Max,
                _ => BinaryOp::Min,
            };
            rest.iter().try_fold(*first, |a, b| c.binary(op, a, *b))
        }
        _ => Err(unknown(text, &format!("`{name}` of {} operands", args.len()))),
    }
}
