//! Floats of sizes that are rounded to integers, such as `TruncToInt(Mul(Float('0.5'), ToFloat(s0)))`, as dims.
//!
//! PyTorch computes them in f64. They are dims where that cannot round to another integer than exact arithmetic does: of sums
//! and products with short binary fractions, of one division by an integer at the end, and of numbers alone.

use symmc_ir::Dim;

use super::expr::{Expr, limited};

/// What gives the dim of an expression of integers.
type Whole<'r> = &'r dyn Fn(&Expr<'_>) -> Result<Dim, String>;

/// The largest numerator and denominator of a factor: with them, products with sizes are exact in f64.
const SHORT: i64 = 1 << 12;
/// The largest denominator of a product.
const FINE: i64 = 1 << 24;
/// The largest number that is rounded.
const LARGE: f64 = (1u64 << 53) as f64;

/// What a function that rounds gives of an expression.
pub(super) fn to_dim(name: &str, e: &Expr<'_>, whole: Whole<'_>) -> Result<Dim, String> {
    if let Some(x) = real(e, whole) {
        let n = match name {
            "FloorToInt" => x.floor(),
            "CeilToInt" => x.ceil(),
            "TruncToInt" => x.trunc(),
            _ => x.round_ties_even(),
        };
        let fits = n.abs() < LARGE;
        return fits.then(|| Dim::from(n as i64)).ok_or_else(|| format!("`{name}` of {x}"));
    }
    let Quotient { of, by, .. } = quotient(e, whole)?;
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

struct Quotient {
    of: Dim,
    by: i64,
    /// Whether f64 has another number for it, on the same side of all integers.
    is_near: bool,
}

impl Quotient {
    fn new(of: Dim, by: i64, is_near: bool) -> Result<Quotient, String> {
        if by > FINE {
            return Err(format!("a fraction with the denominator {by}"));
        }
        Ok(Quotient { of: limited(of)?, by, is_near })
    }

    /// The same, where nothing was rounded yet.
    fn exact(self) -> Result<Quotient, String> {
        if self.is_near { Err("a quotient that is computed with".into()) } else { Ok(self) }
    }
}

fn quotient(e: &Expr<'_>, whole: Whole<'_>) -> Result<Quotient, String> {
    let (name, args) = match e {
        Expr::Float(x) => return short(*x),
        Expr::Call(name, args) => (*name, args),
        other => return Quotient::new(whole(other)?, 1, false),
    };
    let exact = |e: &Expr<'_>| quotient(e, whole).and_then(Quotient::exact);
    let folded = |first: i64, f: &dyn Fn(Quotient, Quotient) -> Result<Quotient, String>| {
        let first = Quotient { of: Dim::from(first), by: 1, is_near: false };
        args.iter().try_fold(first, |a, e| f(a, exact(e)?))
    };
    match (name, args.as_slice()) {
        ("ToFloat" | "Identity", [a]) => quotient(a, whole),
        ("Mul", _) => folded(1, &|a, b| Quotient::new(a.of * b.of, a.by * b.by, false)),
        ("Add", _) => folded(0, &|a, b| {
            Quotient::new(a.of * Dim::from(b.by) + b.of * Dim::from(a.by), a.by * b.by, false)
        }),
        ("IntTrueDiv" | "FloatTrueDiv", [a, b]) => {
            let (a, b) = (exact(a)?, exact(b)?);
            let by = b.of.as_const().filter(|&n| n != 0 && (-FINE..=FINE).contains(&n));
            let by = by.ok_or("a division by no number, or by 0")?;
            let of = a.of * Dim::from(b.by) * Dim::from(by.signum());
            Quotient::new(of, a.by * by.abs(), !by.unsigned_abs().is_power_of_two())
        }
        _ => Quotient::new(whole(e)?, 1, false),
    }
}

/// A float that is a short binary fraction.
fn short(x: f64) -> Result<Quotient, String> {
    let limit = SHORT as f64;
    let mut by = 1;
    while by < SHORT && (x * by as f64).fract() != 0.0 {
        by *= 2;
    }
    let of = x * by as f64;
    if of.fract() != 0.0 || of.abs() > limit {
        return Err(format!("{x:?} is no short binary fraction"));
    }
    Quotient::new(Dim::from(of as i64), by, false)
}

/// The value of an expression of numbers alone, as f64 has it.
fn real(e: &Expr<'_>, whole: Whole<'_>) -> Option<f64> {
    if let Ok(dim) = whole(e) {
        return dim.as_const().map(|n| n as f64);
    }
    let (name, args) = match e {
        Expr::Float(x) => return Some(*x),
        Expr::Call(name, args) => (*name, args),
        _ => return None,
    };
    let args = args.iter().map(|a| real(a, whole)).collect::<Option<Vec<_>>>()?;
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
