//! Expressions as they are parsed, and the limits of dims.

use symmc_ir::Dim;
use symmc_ir::dim::check_size;

/// A parsed expression.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr<'a> {
    /// A number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A symbol by its name.
    Symbol(&'a str),
    /// `name(args…)`; infix operators have the name of the function that sympy prints for them.
    Call(&'a str, Vec<Expr<'a>>),
}

/// A dim within the limits of [`symmc_ir::dim`].
pub(super) fn limited(d: Dim) -> Result<Dim, String> {
    check_size(std::slice::from_ref(&d)).map(|()| d)
}
