//! Floats of sizes that are rounded to integers, such as `TruncToInt(Mul(Float('0.5'), ToFloat(s0)))`, as dims.
//!
//! PyTorch computes them in f64. They are dims where that cannot round to another integer than exact arithmetic does: of sums
//! and products with short binary fractions, of one division by an integer at the end, and of numbers alone.

use symmc_ir::Dim;

use super::expr::{SizeExpr, check_limits};

/// What gives the dim of an expression of integers.
type ResolveInteger<'r> = &'r dyn Fn(&SizeExpr<'_>) -> Result<Dim, String>;

/// The largest numerator and denominator of a factor: with them, products with sizes are exact in f64.
const SHORT: i64 = 1 << 12;
/// The largest denominator of a product.
const FINE: i64 = 1 << 24;
/// The largest number that is rounded.
const LARGE: f64 = (1u64 << 53) as f64;

/// What a function that rounds gives of an expression.
pub(super) fn rounded_to_dim(name: &str, e: &SizeExpr<'_>, whole: ResolveInteger<'_>) -> Result<Dim, String> {
    if let Some(x) = evaluate_real(e, whole) {
        let n = match name {
            "FloorToInt" => x.floor(),
            "CeilToInt" => x.ceil(),
            "TruncToInt" => x.trunc(),
            _ => x.round_ties_even(),
        };
        let fits = n.abs() < LARGE;
        return fits.then(|| Dim::from(n as i64)).ok_or_else(|| format!("`{name}` of {x}"));
    }
    let SizeQuotient { numerator: of, denominator: by, .. } = to_quotient(e, whole)?;
    let by = Dim::from(by);
    let zero = || Dim::from(0);
    let (down, up) = (of.floor_div(&by), zero() - (zero() - of).floor_div(&by));
    match name {
        "FloorToInt" => Ok(down),
        "CeilToInt" => Ok(up),
        "TruncToInt" => Ok(down.max_with(&zero()) + up.min_with(&zero())),
        _ => Err(format!("`{name}` of a size is no supported integer function")),
    }
}

struct SizeQuotient {
    numerator: Dim,
    denominator: i64,
    /// Whether f64 has another number for it, on the same side of all integers.
    is_inexact: bool,
}

impl SizeQuotient {
    fn new(of: Dim, by: i64, is_near: bool) -> Result<SizeQuotient, String> {
        if by > FINE {
            return Err(format!("a fraction with the denominator {by}"));
        }
        Ok(SizeQuotient { numerator: check_limits(of)?, denominator: by, is_inexact: is_near })
    }

    /// The same, where nothing was rounded yet.
    fn require_exact(self) -> Result<SizeQuotient, String> {
        if self.is_inexact { Err("a quotient that is computed with".into()) } else { Ok(self) }
    }
}

fn to_quotient(e: &SizeExpr<'_>, whole: ResolveInteger<'_>) -> Result<SizeQuotient, String> {
    let (name, args) = match e {
        SizeExpr::Float(x) => return short_binary_fraction(*x),
        SizeExpr::Call(name, args) => (*name, args),
        other => return SizeQuotient::new(whole(other)?, 1, false),
    };
    let exact = |e: &SizeExpr<'_>| to_quotient(e, whole).and_then(SizeQuotient::require_exact);
    let folded = |first: i64, f: &dyn Fn(SizeQuotient, SizeQuotient) -> Result<SizeQuotient, String>| {
        let first = SizeQuotient { numerator: Dim::from(first), denominator: 1, is_inexact: false };
        args.iter().try_fold(first, |a, e| f(a, exact(e)?))
    };
    match (name, args.as_slice()) {
        ("ToFloat" | "Identity", [a]) => to_quotient(a, whole),
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
            let (a, b) = (exact(a)?, exact(b)?);
            let by = b.numerator.as_const().filter(|&n| n != 0 && (-FINE..=FINE).contains(&n));
            let by = by.ok_or("a division by no number, or by 0")?;
            let of = a.numerator * Dim::from(b.denominator) * Dim::from(by.signum());
            SizeQuotient::new(of, a.denominator * by.abs(), !by.unsigned_abs().is_power_of_two())
        }
        _ => SizeQuotient::new(whole(e)?, 1, false),
    }
}

/// A float that is a short binary fraction.
fn short_binary_fraction(x: f64) -> Result<SizeQuotient, String> {
    let limit = SHORT as f64;
    let mut by = 1;
    while by < SHORT && (x * by as f64).fract() != 0.0 {
        by *= 2;
    }
    let of = x * by as f64;
    if of.fract() != 0.0 || of.abs() > limit {
        return Err(format!("{x:?} is no short binary fraction"));
    }
    SizeQuotient::new(Dim::from(of as i64), by, false)
}

/// The value of an expression of numbers alone, as f64 has it.
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
