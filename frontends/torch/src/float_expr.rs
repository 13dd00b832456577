//! Float expressions of the program's sizes, such as the ratio of two extents, as tensors without axes.
//!
//! PyTorch writes them as expressions in place of numbers. They are computed in f64.

use symmc_import::Emit;
use symmc_import::sympy::{self, SizeExpr};
use symmc_ir::{BinaryOp, DType, Scalar, UnaryOp};

use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

/// Emits the value of an expression, in f64.
pub(crate) fn emit_float_expr(c: &mut OpCall<'_, '_>, text: &str) -> EmitResult {
    let parsed = sympy::parse(text).map_err(|why| unsupported_expr(text, &why))?;
    emit_expr_node(c, text, &parsed)
}

fn unsupported_expr(text: &str, why: &str) -> RuleFailure {
    RuleFailure::Opaque(format!("an operand is the symbolic number {text}: {why}"))
}

fn emit_expr_node(c: &mut OpCall<'_, '_>, text: &str, e: &SizeExpr<'_>) -> EmitResult {
    if let Ok(dim) = c.lowering.symbols.resolve_parsed(e) {
        return c.emit_dim(&dim, DType::F64);
    }
    let (name, args) = match e {
        SizeExpr::Float(x) => return c.full(Scalar::Float(symmc_ir::FloatAttribute(*x)), DType::F64, vec![]),
        SizeExpr::Call(name, args) => (name, args),
        _ => return Err(unsupported_expr(text, "it depends on data")),
    };
    let values = args.iter().map(|a| emit_expr_node(c, text, a)).collect::<RuleResult<Vec<_>>>()?;
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
        _ => Err(unsupported_expr(text, &format!("`{name}` with {} operands is not supported", args.len()))),
    }
}
