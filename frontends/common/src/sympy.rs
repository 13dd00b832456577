//! Sympy expressions: the `srepr` form that PyTorch writes (`Mul(Integer(4), Symbol('s0', …))`) and the infix
//! form of older minor versions (`4*s0`, `(s0//2)`).
//!
//! Only integer expressions over symbols become dims. Floats may occur inside a function that rounds to an
//! integer, if the rounding of floats cannot change the result (`rounding`). Within `floor` and `ceiling`, `/`
//! is exact division by a constant. Everything else (rationals, functions without an integer counterpart) is
//! rejected by name.

use indexmap::IndexSet;
use symmc_ir::Dim;

mod expr;
mod rounding;

pub use expr::SizeExpr;
use expr::check_limits;

/// The deepest nesting that is accepted. It bounds the parser's stack.
const MAX_DEPTH: usize = 100;

pub fn parse(text: &str) -> Result<SizeExpr<'_>, String> {
    let mut p = SizeExprParser { text, at: 0 };
    let e = p.sum(0)?;
    p.skip_space();
    if p.at < text.len() {
        return Err(format!("unexpected `{}`", &text[p.at..]));
    }
    Ok(e)
}

pub fn symbols_in<'a>(e: &SizeExpr<'a>) -> IndexSet<&'a str> {
    match e {
        SizeExpr::Int(_) | SizeExpr::Float(_) => IndexSet::new(),
        SizeExpr::Symbol(s) => IndexSet::from([*s]),
        SizeExpr::Call(_, args) => args.iter().flat_map(symbols_in).collect(),
    }
}

/// The expression as a dim. `resolve` gives the dim of a symbol. Expressions that exceed the limits of
/// [`symmc_ir::dim`] are rejected.
pub fn to_dim(e: &SizeExpr<'_>, resolve: &dyn Fn(&str) -> Result<Dim, String>) -> Result<Dim, String> {
    let (name, args) = match e {
        SizeExpr::Int(i) => return Ok(Dim::from(*i)),
        SizeExpr::Float(x) => return Err(format!("{x:?} is not an integer")),
        SizeExpr::Symbol(s) => return resolve(s),
        SizeExpr::Call(name, args) => (*name, args),
    };
    if let ("FloorToInt" | "CeilToInt" | "TruncToInt" | "RoundToInt", [a]) = (name, args.as_slice()) {
        return rounding::rounded_to_dim(name, a, &|e| to_dim(e, resolve)).and_then(check_limits);
    }
    if let ("floor" | "ceiling", [a]) = (name, args.as_slice()) {
        return rounding::exactly_rounded_to_dim(name, a, &|e| to_dim(e, resolve)).and_then(check_limits);
    }
    if matches!(name, "Pow" | "PowByNatural") {
        return match args.as_slice() {
            [base, SizeExpr::Int(e @ 0..=8)] => {
                let base = to_dim(base, resolve)?;
                (0..*e).try_fold(Dim::from(1), |p, _| check_limits(p * base.clone()))
            }
            _ => Err("a power needs a constant exponent from 0 to 8".into()),
        };
    }
    let args = args.iter().map(|a| to_dim(a, resolve)).collect::<Result<Vec<_>, _>>()?;
    let fold = |f: &dyn Fn(Dim, Dim) -> Dim| {
        let mut operands = args.iter().cloned();
        let first = operands.next().ok_or_else(|| format!("`{name}` has no operands"))?;
        operands.try_fold(first, |a, b| check_limits(f(a, b)))
    };
    let dim = match (name, args.as_slice()) {
        ("Add", _) => fold(&|a, b| a + b),
        ("Mul", _) => fold(&|a, b| a * b),
        ("Max", _) => fold(&|a, b| a.max_with(&b)),
        ("Min", _) => fold(&|a, b| a.min_with(&b)),
        ("FloorDiv" | "CleanDiv", [a, b]) => Ok(a.floor_div(b)),
        ("CeilDiv", [a, b]) => Ok((a.clone() + b.clone() - Dim::from(1)).floor_div(b)),
        ("Mod" | "PythonMod", [a, b]) => Ok(a.modulo(b)),
        ("ModularIndexing", [a, b, c]) => Ok(a.floor_div(b).modulo(c)),
        ("Identity", [a]) => Ok(a.clone()),
        _ => Err(format!("`{name}` with {} operands is not a supported integer function", args.len())),
    };
    dim.and_then(check_limits)
}

/// The conditions `first <= second` that together are equivalent to a relation between dims. `None` if the
/// expression is not a conjunction of such conditions.
pub fn relation_conditions(
    e: &SizeExpr<'_>,
    resolve: &dyn Fn(&str) -> Result<Dim, String>,
) -> Option<Vec<(Dim, Dim)>> {
    let SizeExpr::Call(name, args) = e else { return None };
    let unit = Dim::from(1);
    match (*name, args.as_slice()) {
        ("And", _) => {
            let conditions =
                args.iter().map(|a| relation_conditions(a, resolve)).collect::<Option<Vec<_>>>()?;
            Some(conditions.into_iter().flatten().collect())
        }
        ("Not", [SizeExpr::Call(relation, sides)]) => {
            let opposite = match *relation {
                "GreaterThan" | "Ge" => "Lt",
                "StrictGreaterThan" | "Gt" => "Le",
                "LessThan" | "Le" => "Gt",
                "StrictLessThan" | "Lt" => "Ge",
                "Unequality" | "Ne" => "Eq",
                _ => return None,
            };
            relation_conditions(&SizeExpr::Call(opposite, sides.clone()), resolve)
        }
        (relation, [a, b]) => {
            let a = to_dim(a, resolve).ok()?;
            let b = to_dim(b, resolve).ok()?;
            match relation {
                "GreaterThan" | "Ge" => Some(vec![(b, a)]),
                "StrictGreaterThan" | "Gt" => Some(vec![(b + unit, a)]),
                "LessThan" | "Le" => Some(vec![(a, b)]),
                "StrictLessThan" | "Lt" => Some(vec![(a + unit, b)]),
                "Equality" | "Eq" => Some(vec![(a.clone(), b.clone()), (b, a)]),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The truth of a relation between dims, given the bounds of the difference of two dims. `None` if the bounds
/// do not decide it or the expression is not a relation.
pub fn decide_relation(
    e: &SizeExpr<'_>,
    resolve: &dyn Fn(&str) -> Result<Dim, String>,
    bounds: &dyn Fn(&Dim) -> (i64, i64),
) -> Option<bool> {
    let SizeExpr::Call(name, args) = e else { return None };
    match (*name, args.as_slice()) {
        ("Not", [a]) => decide_relation(a, resolve, bounds).map(|b| !b),
        ("And", _) => {
            let decisions: Vec<_> = args.iter().map(|a| decide_relation(a, resolve, bounds)).collect();
            if decisions.contains(&Some(false)) {
                Some(false)
            } else if decisions.contains(&None) {
                None
            } else {
                Some(true)
            }
        }
        ("Or", _) => {
            let decisions: Vec<_> = args.iter().map(|a| decide_relation(a, resolve, bounds)).collect();
            if decisions.contains(&Some(true)) {
                Some(true)
            } else if decisions.contains(&None) {
                None
            } else {
                Some(false)
            }
        }
        (relation, [a, b]) => {
            let difference = to_dim(a, resolve).ok()? - to_dim(b, resolve).ok()?;
            let (low, high) = bounds(&difference);
            let (yes, no) = match relation {
                "GreaterThan" | "Ge" => (low >= 0, high < 0),
                "StrictGreaterThan" | "Gt" => (low > 0, high <= 0),
                "LessThan" | "Le" => (high <= 0, low > 0),
                "StrictLessThan" | "Lt" => (high < 0, low >= 0),
                "Equality" | "Eq" => (low == 0 && high == 0, low > 0 || high < 0),
                "Unequality" | "Ne" => (low > 0 || high < 0, low == 0 && high == 0),
                _ => return None,
            };
            if yes {
                Some(true)
            } else if no {
                Some(false)
            } else {
                None
            }
        }
        _ => None,
    }
}

struct SizeExprParser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> SizeExprParser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat_token(&mut self, token: &str) -> bool {
        self.skip_space();
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.at += token.len();
        }
        is_next
    }

    fn expect_token(&mut self, token: &str) -> Result<(), String> {
        if self.eat_token(token) { Ok(()) } else { Err(format!("expected `{token}` at `{}`", self.rest())) }
    }

    fn while_char(&mut self, holds: impl Fn(char) -> bool) -> &'a str {
        let remaining = self.rest();
        let end = remaining.find(|c| !holds(c)).unwrap_or(remaining.len());
        self.at += end;
        &remaining[..end]
    }

    fn sum(&mut self, depth: usize) -> Result<SizeExpr<'a>, String> {
        if depth > MAX_DEPTH {
            return Err("the expression is nested too deeply".into());
        }
        let mut e = self.product(depth)?;
        loop {
            if self.eat_token("+") {
                e = SizeExpr::Call("Add", vec![e, self.product(depth)?]);
            } else if self.eat_token("-") {
                let right = self.product(depth)?;
                e = SizeExpr::Call("Add", vec![e, SizeExpr::Call("Mul", vec![SizeExpr::Int(-1), right])]);
            } else {
                return Ok(e);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Result<SizeExpr<'a>, String> {
        let mut e = self.power(depth)?;
        loop {
            let name = if self.eat_token("//") {
                "FloorDiv"
            } else if self.eat_token("/") {
                "IntTrueDiv"
            } else if self.eat_token("*") {
                "Mul"
            } else if self.eat_token("%") {
                "Mod"
            } else {
                return Ok(e);
            };
            e = SizeExpr::Call(name, vec![e, self.power(depth)?]);
        }
    }

    fn power(&mut self, depth: usize) -> Result<SizeExpr<'a>, String> {
        if depth > MAX_DEPTH {
            return Err("the expression is nested too deeply".into());
        }
        // A power binds tighter than the sign before it.
        if self.eat_token("-") {
            return Ok(match self.power(depth + 1)? {
                SizeExpr::Int(i) => SizeExpr::Int(i.saturating_neg()),
                e => SizeExpr::Call("Mul", vec![SizeExpr::Int(-1), e]),
            });
        }
        let base = self.primary(depth)?;
        if self.eat_token("**") {
            return Ok(SizeExpr::Call("Pow", vec![base, self.power(depth + 1)?]));
        }
        Ok(base)
    }

    fn primary(&mut self, depth: usize) -> Result<SizeExpr<'a>, String> {
        if self.eat_token("(") {
            let e = self.sum(depth + 1)?;
            self.expect_token(")")?;
            return Ok(e);
        }
        self.skip_space();
        let digits = self.while_char(|c| c.is_ascii_digit());
        if !digits.is_empty() {
            if let Some(float) = self.fraction(digits) {
                return Ok(SizeExpr::Float(float));
            }
            return digits.parse().map(SizeExpr::Int).map_err(|_| format!("`{digits}` is too large"));
        }
        let name = self.while_char(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() {
            return Err(format!("expected an expression at `{}`", self.rest()));
        }
        if !self.eat_token("(") {
            return Ok(SizeExpr::Symbol(name));
        }
        match name {
            "Symbol" | "Dummy" => {
                let symbol = self.quoted()?;
                self.skip_assumptions()?;
                Ok(SizeExpr::Symbol(symbol))
            }
            "Integer" => {
                let e = self.power(depth + 1)?;
                self.expect_token(")")?;
                match e {
                    SizeExpr::Int(_) => Ok(e),
                    _ => Err("the operand of `Integer` is not an integer".into()),
                }
            }
            "Float" => {
                let digits = self.quoted()?;
                let float = digits.parse().map_err(|_| format!("`Float` of {digits:?}"))?;
                self.skip_assumptions()?;
                Ok(SizeExpr::Float(float))
            }
            "Rational" => Err(format!("`{name}` is not an integer")),
            _ => self.call(name, depth),
        }
    }

    /// The number whose whole part was already read, if a fraction follows.
    fn fraction(&mut self, whole: &'a str) -> Option<f64> {
        let from = self.at - whole.len();
        let after_point = self.rest().strip_prefix('.')?;
        let digits = after_point.len() - after_point.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let end = self.at + 1 + digits;
        let float = self.text[from..end].parse().ok()?;
        self.at = end;
        Some(float)
    }

    fn call(&mut self, name: &'a str, depth: usize) -> Result<SizeExpr<'a>, String> {
        let mut args = Vec::new();
        while !self.eat_token(")") {
            if !args.is_empty() {
                self.expect_token(",")?;
                // Keyword arguments (`evaluate=False`) end the operands.
                self.skip_space();
                let word = self.rest().trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
                if word.starts_with('=') && !word.starts_with("==") {
                    self.skip_to_closing()?;
                    break;
                }
            }
            args.push(self.sum(depth + 1)?);
        }
        Ok(SizeExpr::Call(name, args))
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        self.skip_space();
        let quote = self.rest().chars().next().filter(|c| matches!(c, '\'' | '"'));
        let quote = quote.ok_or_else(|| format!("expected a quoted name at `{}`", self.rest()))?;
        self.at += 1;
        let name = self.while_char(|c| c != quote);
        self.at += 1;
        if self.at > self.text.len() || name.is_empty() {
            return Err("a quoted name is empty or has no closing quote".into());
        }
        Ok(name)
    }

    /// Skips `, positive=True, …)`.
    fn skip_assumptions(&mut self) -> Result<(), String> {
        if self.eat_token(")") {
            return Ok(());
        }
        self.expect_token(",")?;
        self.skip_to_closing()
    }

    fn skip_to_closing(&mut self) -> Result<(), String> {
        self.while_char(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '=' | ',' | ' '));
        self.expect_token(")")
    }
}

#[cfg(test)]
mod tests {
    use symmc_ir::entity::Entity;
    use symmc_ir::{Symbol, SymbolBindings, SymbolId, SymbolTable};

    use super::*;

    fn dim(text: &str) -> Result<String, String> {
        let ids = ["s0", "s1"];
        let resolve = |name: &str| {
            ids.iter()
                .position(|n| *n == name)
                .map(|i| Dim::from(SymbolId::new(i)))
                .ok_or_else(|| format!("no symbol {name}"))
        };
        to_dim(&parse(text)?, &resolve).map(|d| format!("{d:?}"))
    }

    #[test]
    fn srepr_and_infix_read_alike() {
        let s = "Symbol('s0', positive=True, integer=True)";
        for (srepr, infix, expected) in [
            (format!("Mul(Integer(4), {s})"), "4*s0", "4*sym0"),
            (format!("Add(Integer(-1), {s})"), "s0 - 1", "sym0 - 1"),
            (format!("FloorDiv({s}, Integer(3))"), "(s0//3)", "div(sym0, 3)"),
            (format!("Mod({s}, Integer(3))"), "Mod(s0, 3)", "mod(sym0, 3)"),
            (format!("Pow({s}, Integer(2))"), "s0**2", "sym0*sym0"),
            (format!("Mul(Integer(-1), Pow({s}, Integer(2)))"), "-s0**2", "-sym0*sym0"),
            (format!("Mul(Integer(2), Max(Integer(1), {s}))"), "2*Max(1, s0)", "2*max(1, sym0)"),
            (format!("Min(Integer(8), {s}, evaluate=False)"), "Min(8, s0)", "min(8, sym0)"),
            (format!("CleanDiv(Mul(Integer(6), {s}), Integer(3))"), "2*s0", "2*sym0"),
            ("Integer(-7)".to_string(), "-7", "-7"),
        ] {
            assert_eq!(dim(&srepr).as_deref(), Ok(expected), "{srepr}");
            assert_eq!(dim(infix).as_deref(), Ok(expected), "{infix}");
        }
    }

    #[test]
    fn what_is_no_integer_is_refused_by_name() {
        assert!(dim("Mul(Rational(1, 2), Symbol('s0'))").unwrap_err().contains("Rational"));
        assert!(dim("Pow(Symbol('s0'), Integer(-1))").unwrap_err().contains("exponent"));
        assert!(dim("ToFloat(Symbol('s0'))").unwrap_err().contains("ToFloat"));
        assert!(
            dim("Mul(Float('0.5', precision=53), Symbol('s0'))")
                .unwrap_err()
                .contains("0.5 is not an integer")
        );
        assert!(dim("0.5*s0").unwrap_err().contains("0.5 is not an integer"));
        assert!(dim("Symbol('u0')").unwrap_err().contains("u0"));
        for broken in ["", "Mul(", "Symbol('s0", "Integer(x)", "s0 s1", &"(".repeat(500)] {
            assert!(dim(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn relations_are_decided_by_bounds() {
        let resolve = |_: &str| Ok(Dim::from(SymbolId::new(0)));
        let truth = |text: &str, low, high| {
            let add = move |d: &Dim| {
                let mut bindings = symmc_ir::SymbolBindings::new();
                bindings.set(SymbolId::new(0), low);
                let a = d.eval(&bindings).unwrap();
                bindings.set(SymbolId::new(0), high);
                (a, d.eval(&bindings).unwrap())
            };
            decide_relation(&parse(text).unwrap(), &resolve, &add)
        };
        let ge = "GreaterThan(Symbol('s0'), Integer(2))";
        assert_eq!(truth(ge, 2, 9), Some(true));
        assert_eq!(truth(ge, 0, 1), Some(false));
        assert_eq!(truth(ge, 0, 9), None);
        assert_eq!(truth(&format!("Not({ge})"), 2, 9), Some(false));
    }

    fn of(text: &str, size: Option<i64>) -> Result<Dim, String> {
        let resolve = |_: &str| Ok(size.map_or_else(|| Dim::from(SymbolId::new(0)), Dim::from));
        to_dim(&parse(text)?, &resolve)
    }

    #[test]
    fn sizes_that_are_scaled_and_rounded_are_dims() {
        type Scaled = fn(f64) -> f64;
        let cases: [(&str, Scaled); 8] = [
            ("CeilToInt(FloatTrueDiv(ToFloat(-s0) - ToFloat(s0), -1.0))", |s| 2.0 * s),
            ("TruncToInt(Mul(Float('0.5', precision=53), ToFloat(Symbol('s0', integer=True))))", |s| {
                (0.5 * s).trunc()
            }),
            ("TruncToInt(1.5*ToFloat(s0))", |s| (1.5 * s).trunc()),
            ("FloorToInt(IntTrueDiv(s0, 3))", |s| (s / 3.0).floor()),
            ("CeilToInt(IntTrueDiv(s0 + 1, 3))", |s| ((s + 1.0) / 3.0).ceil()),
            ("TruncToInt(FloatTrueDiv(ToFloat(s0 - 9), 4.0))", |s| ((s - 9.0) / 4.0).trunc()),
            ("CeilToInt(0.25*ToFloat(s0) + 0.5)", |s| (0.25 * s + 0.5).ceil()),
            ("2*FloorToInt(0.75*ToFloat(s0))", |s| 2.0 * (0.75 * s).floor()),
        ];
        let symbol = Symbol { name: "s0".into(), min: 0, max: 40, alias: None };
        let symbols: SymbolTable = [symbol].into_iter().collect();
        for (text, expected) in cases {
            let dim = of(text, None).expect(text);
            for size in 0..=40 {
                let mut bindings = SymbolBindings::new();
                bindings.set(SymbolId::new(0), size);
                for dim in [&dim, &dim.simplify_within(&symbols)] {
                    assert_eq!(dim.eval(&bindings), Some(expected(size as f64) as i64), "{text} at {size}");
                }
                assert_eq!(
                    of(text, Some(size)).expect(text).as_const(),
                    dim.eval(&bindings),
                    "{text} at {size}"
                );
            }
        }
    }

    #[test]
    fn fractions_within_floor_and_ceiling_are_exact() {
        type Rounded = fn(i64) -> i64;
        let cases: [(&str, Rounded); 6] = [
            ("floor(s0/2 - 1/2) + 1", |s| (s - 1).div_euclid(2) + 1),
            ("floor(floor(s0/2 - 1/2)/2 + 1/2)", |s| ((s - 1).div_euclid(2) + 1).div_euclid(2)),
            ("floor(s0/3 + s0/6 - 1/3)", |s| (3 * s - 2).div_euclid(6)),
            ("2*ceiling(2*s0/3)", |s| 2 * -(-2 * s).div_euclid(3)),
            ("ceiling(-s0/4)", |s| -s.div_euclid(4)),
            ("floor(0.5*s0)", |s| s.div_euclid(2)),
        ];
        for (text, expected) in cases {
            let dim = of(text, None).expect(text);
            for size in 0..=40 {
                let mut bindings = SymbolBindings::new();
                bindings.set(SymbolId::new(0), size);
                assert_eq!(dim.eval(&bindings), Some(expected(size)), "{text} at {size}");
                assert_eq!(of(text, Some(size)), Ok(Dim::from(expected(size))), "{text} at {size}");
            }
        }
        for text in ["s0/2", "floor(s0/s0)", "floor(s0/0)", "floor(sqrt(s0))"] {
            assert!(of(text, None).is_err(), "{text}");
        }
    }

    #[test]
    fn what_f64_rounds_is_known_of_numbers_alone() {
        for text in [
            "TruncToInt(1.7*ToFloat(s0))",
            "RoundToInt(0.5*ToFloat(s0))",
            "FloorToInt(3*IntTrueDiv(s0, 3))",
            "FloorToInt(IntTrueDiv(1, s0))",
            "FloorToInt(FloatPow(ToFloat(s0), 0.5))",
        ] {
            let error = of(text, None).expect_err(text);
            assert!(!error.is_empty());
            assert!(of(text, Some(10)).is_ok(), "{text}: {:?}", of(text, Some(10)));
        }
        assert_eq!(of("TruncToInt(1.7*ToFloat(s0))", Some(10)), Ok(Dim::from(17)));
        assert_eq!(of("RoundToInt(0.5*ToFloat(s0))", Some(5)), Ok(Dim::from(2)));
        assert!(of("TruncToInt(1.7*ToFloat(s0))", Some(i64::MAX)).is_err());
    }
}
