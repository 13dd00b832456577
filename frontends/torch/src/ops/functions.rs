//! Functions of numbers that are compositions of others.

use std::f64::consts::{LN_2, PI};

use symmc_import::{Emit, EmitFormulas};
use symmc_ir::{BinaryOp, DType, Scalar, UnaryOp, ValueId};

use super::elementwise::{float_formula, operands, through_f64};
use super::{RuleRow, row};
use crate::call::{CallOperand, OpCall};
use crate::dtype;
use crate::lower::{EmitResult, RuleResult, Term};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.asinh aten.arcsinh", "log1p, sqrt, in f64", |c| through_f64(c, |x| x.inverse_sinh())),
    row("aten.acosh aten.arccosh", "log1p, sqrt, in f64", |c| through_f64(c, |x| x.inverse_cosh())),
    row("aten.atanh aten.arctanh", "log1p, in f64", |c| through_f64(c, |x| x.inverse_tanh())),
    row("aten.frac", "x - trunc(x)", |c| float_formula(c, |x| x - x.unary(UnaryOp::Trunc))),
    row("aten.deg2rad", "mul", |c| float_formula(c, |x| x * (PI / 180.0))),
    row("aten.rad2deg", "mul", |c| float_formula(c, |x| x * (180.0 / PI))),
    row("aten.logit aten.special_logit", "log(x / (1 - x)), in f64", |c| {
        let eps = c.opt_scalar("eps")?.map(Scalar::as_f64);
        through_f64(c, |x| {
            // The lower bound counts where it is above the upper one.
            let x = eps.map_or(x, |eps| x.lt(eps).select(eps, x.min(1.0 - eps)));
            (x / (1.0 - x)).log()
        })
    }),
    row("aten.sinc aten.special_sinc", "sin(pi x) / (pi x)", |c| {
        float_formula(c, |x| {
            let angle = x * PI;
            x.eq(0.0).select(1.0, angle.sin() / angle)
        })
    }),
    row("aten.special_entr", "-x * log(x), in f64", |c| {
        through_f64(c, |x| {
            let entropy = -(x * x.log());
            let at_most_0 = x.eq(0.0).select(0.0, x.constant(f64::NEG_INFINITY));
            let is_defined = x.gt(0.0) | x.is_nan();
            is_defined.select(entropy, at_most_0)
        })
    }),
    row("aten.isposinf", "eq", |c| float_formula(c, |x| x.eq(f64::INFINITY))),
    row("aten.isneginf", "eq", |c| float_formula(c, |x| x.eq(f64::NEG_INFINITY))),
    row("aten.signbit", "lt of the reciprocal of 0", |c| {
        let x = c.first_tensor()?;
        c.formula([x], |[x]| if x.dtype().is_float() { x.has_sign() } else { x.cast(DType::I64).lt(0) })
    }),
    row("aten.copysign", "select of the sign", |c| {
        let operands = float_operands(c)?;
        c.formula(operands, |[x, y]| {
            let magnitude = x.abs();
            y.has_sign().select(-magnitude, magnitude)
        })
    }),
    row("aten.hypot", "sqrt of squares, in f64", |c| {
        pair_through_f64(c, |x, y| {
            let (x, y) = (x.abs(), y.abs());
            let most = x.max(y);
            let scaled = ((x / most).square() + (y / most).square()).sqrt() * most;
            let is_plain = most.gt(0.0) & most.ne(f64::INFINITY);
            let other = (x.is_infinite() | y.is_infinite()).select(f64::INFINITY, most);
            is_plain.select(scaled, other)
        })
    }),
    row("aten.ldexp", "pow, mul", |c| {
        let operands = float_operands(c)?;
        c.formula(operands, |[x, exponent]| x * exponent.power_of(2.0))
    }),
    row("aten.xlogy aten.special_xlogy", "x * log(y), in f64", |c| pair_through_f64(c, times_log)),
    row("aten.special_xlog1py", "x * log1p(y), in f64", |c| {
        pair_through_f64(c, |x, y| times_logarithm(x, y, y.log1p()))
    }),
    row("aten.logaddexp", "max + log1p(exp(-difference)), in f64", |c| {
        pair_through_f64(c, |x, y| log_sum(x, y, 1.0))
    }),
    row("aten.logaddexp2", "max + log1p(2 ^ -difference), in f64", |c| {
        pair_through_f64(c, |x, y| log_sum(x, y, LN_2))
    }),
    row("aten.heaviside", "select", |c| {
        let [x, values] = c.tensors_named(["self", "values"])?;
        c.formula([x, values], |[x, values]| {
            let step = x.gt(0).cast(x.dtype());
            x.eq(0).select(values, step)
        })
    }),
    row("aten.fmax", "max, select", |c| without_nan(c, |x, y| x.max(y))),
    row("aten.fmin", "min, select", |c| without_nan(c, |x, y| x.min(y))),
    row("aten.float_power", "pow in f64", |c| {
        let (base, exponent) = (c.operand("self")?, c.operand("exponent")?);
        c.emit_binary(BinaryOp::Pow, &base, &exponent, DType::F64)
    }),
];

/// Both operands in their common float dtype.
fn float_operands(c: &mut OpCall<'_, '_>) -> RuleResult<[ValueId; 2]> {
    let (a, b) = operands(c)?;
    let common = c.common_dtype(&[&a, &b]);
    let dtype = if common.is_float() { common } else { dtype::DEFAULT_FLOAT };
    Ok([c.as_tensor(&a, dtype)?, c.as_tensor(&b, dtype)?])
}

/// A formula of both operands in f64, in their common float dtype.
fn pair_through_f64(
    c: &mut OpCall<'_, '_>,
    f: impl for<'f> FnOnce(Term<'f>, Term<'f>) -> Term<'f>,
) -> EmitResult {
    let operands = float_operands(c)?;
    c.formula(operands, |[x, y]| f(x.cast(DType::F64), y.cast(DType::F64)).cast(x.dtype()))
}

/// `x * log(y)`, which is 0 where `x` is 0, unless `y` is NaN.
pub(super) fn times_log<'f>(x: Term<'f>, y: Term<'f>) -> Term<'f> {
    times_logarithm(x, y, y.log())
}

fn times_logarithm<'f>(x: Term<'f>, y: Term<'f>, logarithm: Term<'f>) -> Term<'f> {
    let product = x * logarithm;
    let product = x.eq(0.0).select(0.0, product);
    y.is_nan().select(y, product)
}

/// `log(base ^ x + base ^ y)` to the base whose natural logarithm is given.
pub(super) fn log_sum<'f>(x: Term<'f>, y: Term<'f>, log_base: f64) -> Term<'f> {
    let most = x.max(y);
    let difference = (x - y).abs() * -log_base;
    let sum = most + difference.exp().log1p() / log_base;
    // Equal infinities have no difference.
    (x.eq(y) & x.is_infinite()).select(x, sum)
}

/// A function of both operands, or the one that is not NaN.
fn without_nan(c: &mut OpCall<'_, '_>, f: impl for<'f> FnOnce(Term<'f>, Term<'f>) -> Term<'f>) -> EmitResult {
    let (a, b) = operands(c)?;
    let dtype = c.common_dtype(&[&a, &b]);
    let operands = [c.as_tensor(&a, dtype)?, c.as_tensor(&b, dtype)?];
    c.formula(operands, |[x, y]| {
        if !dtype.is_float() {
            return f(x, y);
        }
        let both = f(x, y);
        let not_y = y.is_nan().select(x, both);
        x.is_nan().select(y, not_y)
    })
}

/// The operand of this name in the dtype of a tensor, if there is one.
pub(super) fn optional_operand(
    c: &mut OpCall<'_, '_>,
    name: &str,
    dtype: DType,
) -> RuleResult<Option<ValueId>> {
    match c.opt_operand(name)? {
        Some(CallOperand::Tensor(x)) => c.cast(x, dtype).map(Some),
        Some(number) => c.as_tensor(&number, dtype).map(Some),
        None => Ok(None),
    }
}
