//! Float expressions of sizes that are rounded to integers, such as `TruncToInt(Mul(Float('0.5'),
//! ToFloat(s0)))`, as dims.
//!
//! PyTorch computes them in f64. They become dims only if f64 cannot round to another integer than exact
//! arithmetic. That holds for sums and products with short binary fractions, for one division by an integer
//! at the end, and for expressions of constants.
//!
//! The operands of `floor` and `ceiling` are exact fractions, as in sympy's own arithmetic.

use symmc_ir::Dim;

use super::expr::{SizeExpr, check_limits};

/// A function that gives the dim of an integer expression.
type ResolveInteger<'r> = &'r dyn Fn(&SizeExpr<'_>) -> Result<Dim, String>;

/// The largest numerator and denominator of a factor. Products of such factors with sizes are exact in f64.
const MAX_FACTOR_TERM: i64 = 1 << 12;
/// The largest denominator of a product.
const MAX_PRODUCT_DENOMINATOR: i64 = 1 << 24;
/// The limit of rounded numbers, exclusive.
const EXACT_LIMIT: f64 = (1u64 << 53) as f64;

/// The value of the rounding function `name` of an expression.
pub(super) fn rounded_to_dim(name: &str, e: &SizeExpr<'_>, whole: ResolveInteger<'_>) -> Result<Dim, String> {
    if let Some(x) = evaluate_real(e, whole) {
        let n = match name {
            "FloorToInt" => x.floor(),
            "CeilToInt" => x.ceil(),
            "TruncToInt" => x.trunc(),
            _ => x.round_ties_even(),
        };
        if n.abs() >= EXACT_LIMIT {
            return Err(format!("`{name}` of {x} is not below 2^53"));
        }
        return Ok(Dim::from(n as i64));
    }
    let (down, up) = to_quotient(e, whole, Division::Rounded)?.neighbours();
    let zero = Dim::from(0);
    match name {
        "FloorToInt" => Ok(down),
        "CeilToInt" => Ok(up),
        "TruncToInt" => Ok(down.max_with(&zero) + up.min_with(&zero)),
        _ => Err(format!("`{name}` of a size is not a supported integer function")),
    }
}

/// `floor` or `ceiling` of an exact fraction.
pub(super) fn exactly_rounded_to_dim(
    name: &str,
    e: &SizeExpr<'_>,
    whole: ResolveInteger<'_>,
) -> Result<Dim, String> {
    let (down, up) = to_quotient(e, whole, Division::Exact)?.neighbours();
    Ok(if name == "floor" { down } else { up })
}

/// How an expression divides.
#[derive(Clone, Copy, PartialEq)]
enum Division {
    /// In f64.
    Rounded,
    /// As fractions.
    Exact,
}

struct SizeQuotient {
    numerator: Dim,
    denominator: i64,
    /// Whether f64 rounds the quotient to another number, between the same two integers.
    is_inexact: bool,
}

impl SizeQuotient {
    fn new(numerator: Dim, denominator: i64, is_inexact: bool) -> Result<SizeQuotient, String> {
        if denominator > MAX_PRODUCT_DENOMINATOR {
            return Err(format!(
                "the denominator {denominator} of a fraction exceeds {MAX_PRODUCT_DENOMINATOR}"
            ));
        }
        Ok(SizeQuotient { numerator: check_limits(numerator)?, denominator, is_inexact })
    }

    /// The largest integer that is not above the quotient, and the smallest that is not below.
    fn neighbours(self) -> (Dim, Dim) {
        let denominator = Dim::from(self.denominator);
        let zero = Dim::from(0);
        let down = self.numerator.floor_div(&denominator);
        let up = zero.clone() - (zero - self.numerator).floor_div(&denominator);
        (down, up)
    }

    /// The quotient itself, if nothing was rounded yet.
    fn require_exact(self) -> Result<SizeQuotient, String> {
        if self.is_inexact { Err("arithmetic with a quotient that f64 rounds".into()) } else { Ok(self) }
    }
}

fn to_quotient(
    e: &SizeExpr<'_>,
    whole: ResolveInteger<'_>,
    division: Division,
) -> Result<SizeQuotient, String> {
    let (name, args) = match e {
        SizeExpr::Float(x) => return short_binary_fraction(*x),
        SizeExpr::Call(name, args) => (*name, args),
        other => return SizeQuotient::new(whole(other)?, 1, false),
    };
    let exact = |e: &SizeExpr<'_>| to_quotient(e, whole, division).and_then(SizeQuotient::require_exact);
    let folded = |first: i64, f: &dyn Fn(SizeQuotient, SizeQuotient) -> Result<SizeQuotient, String>| {
        let first = SizeQuotient { numerator: Dim::from(first), denominator: 1, is_inexact: false };
        args.iter().try_fold(first, |a, e| f(a, exact(e)?))
    };
    match (name, args.as_slice()) {
        ("ToFloat" | "Identity", [a]) => to_quotient(a, whole, division),
        ("Mul", _) => folded(1, &|a, b| {
            SizeQuotient::new(a.numerator * b.numerator, a.denominator * b.denominator, false)
        }),
        ("Add", _) => folded(0, &|a, b| {
            SizeQuotient::new(
                a.numerator * Dim::from(b.denominator) + b.numerator * Dim::from(a.denominator),
                a.denominator * b.denominator,
                false,
            )
        }),
        ("IntTrueDiv" | "FloatTrueDiv", [a, b]) => {
            let dividend = exact(a)?;
            let divisor = exact(b)?;
            let by = divisor
                .numerator
                .as_const()
                .filter(|&n| n != 0 && (-MAX_PRODUCT_DENOMINATOR..=MAX_PRODUCT_DENOMINATOR).contains(&n));
            let by = by.ok_or_else(|| {
                format!("the divisor is not a non-zero constant of at most {MAX_PRODUCT_DENOMINATOR}")
            })?;
            let numerator = dividend.numerator * Dim::from(divisor.denominator) * Dim::from(by.signum());
            let is_inexact = division == Division::Rounded && !by.unsigned_abs().is_power_of_two();
            SizeQuotient::new(numerator, dividend.denominator * by.abs(), is_inexact)
        }
        _ => SizeQuotient::new(whole(e)?, 1, false),
    }
}

/// A float as a fraction whose denominator is a small power of two.
fn short_binary_fraction(x: f64) -> Result<SizeQuotient, String> {
    let limit = MAX_FACTOR_TERM as f64;
    let mut denominator = 1;
    while denominator < MAX_FACTOR_TERM && (x * denominator as f64).fract() != 0.0 {
        denominator *= 2;
    }
    let numerator = x * denominator as f64;
    if numerator.fract() != 0.0 || numerator.abs() > limit {
        return Err(format!("{x:?} is not a short binary fraction"));
    }
    SizeQuotient::new(Dim::from(numerator as i64), denominator, false)
}

/// The value in f64 of an expression of constants.
fn evaluate_real(e: &SizeExpr<'_>, whole: ResolveInteger<'_>) -> Option<f64> {
    if let Ok(dim) = whole(e) {
        return dim.as_const().map(|n| n as f64);
    }
    let (name, args) = match e {
        SizeExpr::Float(x) => return Some(*x),
        SizeExpr::Call(name, args) => (*name, args),
        _ => return None,
    };
    let args = args.iter().map(|a| evaluate_real(a, whole)).collect::<Option<Vec<_>>>()?;
    match (name, args.as_slice()) {
        ("ToFloat" | "Identity", [x]) => Some(*x),
        ("Mul", [first, rest @ ..]) => Some(rest.iter().fold(*first, |a, b| a * b)),
        ("Add", [first, rest @ ..]) => Some(rest.iter().fold(*first, |a, b| a + b)),
        ("IntTrueDiv" | "FloatTrueDiv", [x, y]) if *y != 0.0 => Some(x / y),
        ("Pow" | "FloatPow", [x, y]) => Some(x.powf(*y)),
        ("OpaqueUnaryFn_sqrt" | "sqrt", [x]) => Some(x.sqrt()),
        _ => None,
    }
}
