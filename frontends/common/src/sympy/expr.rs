//! Parsed expressions, and the limits of dims.

use symmc_ir::Dim;
use symmc_ir::dim::check_shape_complexity;

#[derive(Clone, PartialEq, Debug)]
pub enum SizeExpr<'a> {
    Int(i64),
    Float(f64),
    Symbol(&'a str),
    /// `name(args…)`. Infix operators have the name of the function that sympy prints for them.
    Call(&'a str, Vec<SizeExpr<'a>>),
}

/// The dim, if it is within the limits of [`symmc_ir::dim`].
pub(super) fn check_limits(d: Dim) -> Result<Dim, String> {
    check_shape_complexity(std::slice::from_ref(&d)).map(|()| d)
}
