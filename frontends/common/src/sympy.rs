//! Sympy expressions: the `srepr` form that PyTorch writes (`Mul(Integer(4), Symbol('s0', …))`) and the
//! infix form of older minor versions (`4*s0`, `(s0//2)`).
//!
//! Only integer expressions over symbols become dims. Anything else (rationals, floats, functions without
//! an integer counterpart) is refused by name.

use indexmap::IndexSet;
use symmc_ir::Dim;
use symmc_ir::dim::check_size;

/// Deepest nesting that is read; a bound on the parser's stack.
const MAX_DEPTH: usize = 100;

/// A parsed expression.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr<'a> {
    /// A number.
    Int(i64),
    /// A symbol by its name.
    Symbol(&'a str),
    /// `name(args…)`; infix operators have the name of the function that sympy prints for them.
    Call(&'a str, Vec<Expr<'a>>),
}

/// Parses an expression.
///
/// # Errors
/// One sentence about the first place that cannot be read.
pub fn parse(text: &str) -> Result<Expr<'_>, String> {
    let mut p = Parser { text, at: 0 };
    let e = p.sum(0)?;
    p.space();
    if p.at < text.len() {
        return Err(format!("unexpected `{}`", &text[p.at..]));
    }
    Ok(e)
}

/// The symbols that occur, in order of appearance.
pub fn symbols<'a>(e: &Expr<'a>) -> IndexSet<&'a str> {
    match e {
        Expr::Int(_) => IndexSet::new(),
        Expr::Symbol(s) => IndexSet::from([*s]),
        Expr::Call(_, args) => args.iter().flat_map(symbols).collect(),
    }
}

/// The expression as a dim; `resolve` gives the dim of a symbol. What grows beyond the limits of
/// [`symmc_ir::dim`] is refused.
///
/// # Errors
/// One sentence that names the part that is no integer expression.
pub fn to_dim(e: &Expr<'_>, resolve: &dyn Fn(&str) -> Result<Dim, String>) -> Result<Dim, String> {
    let (name, args) = match e {
        Expr::Int(i) => return Ok(Dim::from(*i)),
        Expr::Symbol(s) => return resolve(s),
        Expr::Call(name, args) => (*name, args),
    };
    if matches!(name, "Pow" | "PowByNatural") {
        return match args.as_slice() {
            [base, Expr::Int(e @ 0..=8)] => {
                let base = to_dim(base, resolve)?;
                (0..*e).try_fold(Dim::from(1), |p, _| limited(p * base.clone()))
            }
            _ => Err("a power needs a constant exponent from 0 to 8".into()),
        };
    }
    let args = args.iter().map(|a| to_dim(a, resolve)).collect::<Result<Vec<_>, _>>()?;
    let fold = |f: &dyn Fn(Dim, Dim) -> Dim| {
        let mut rest = args.iter().cloned();
        let first = rest.next().ok_or_else(|| format!("`{name}` without operands"))?;
        rest.try_fold(first, |a, b| limited(f(a, b)))
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
        _ => Err(format!("`{name}` of {} operands is no supported integer function", args.len())),
    };
    dim.and_then(limited)
}

fn limited(d: Dim) -> Result<Dim, String> {
    check_size(std::slice::from_ref(&d)).map(|()| d)
}

/// The truth of a relation between dims, given the bounds of the difference of two dims; `None` if the
/// bounds leave it open or the expression is no relation.
pub fn decide(
    e: &Expr<'_>,
    resolve: &dyn Fn(&str) -> Result<Dim, String>,
    bounds: &dyn Fn(&Dim) -> (i64, i64),
) -> Option<bool> {
    let Expr::Call(name, args) = e else { return None };
    match (*name, args.as_slice()) {
        ("Not", [a]) => decide(a, resolve, bounds).map(|b| !b),
        ("And", _) => {
            let all: Vec<_> = args.iter().map(|a| decide(a, resolve, bounds)).collect();
            match (all.contains(&Some(false)), all.contains(&None)) {
                (true, _) => Some(false),
                (false, open) => (!open).then_some(true),
            }
        }
        ("Or", _) => {
            let all: Vec<_> = args.iter().map(|a| decide(a, resolve, bounds)).collect();
            match (all.contains(&Some(true)), all.contains(&None)) {
                (true, _) => Some(true),
                (false, open) => (!open).then_some(false),
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

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(format!("expected `{token}` at `{}`", self.rest())) }
    }

    fn while_char(&mut self, holds: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !holds(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn sum(&mut self, depth: usize) -> Result<Expr<'a>, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deeply".into());
        }
        let mut e = self.product(depth)?;
        loop {
            if self.eat("+") {
                e = Expr::Call("Add", vec![e, self.product(depth)?]);
            } else if self.eat("-") {
                let right = self.product(depth)?;
                e = Expr::Call("Add", vec![e, Expr::Call("Mul", vec![Expr::Int(-1), right])]);
            } else {
                return Ok(e);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Result<Expr<'a>, String> {
        let mut e = self.power(depth)?;
        loop {
            let name = if self.eat("//") {
                "FloorDiv"
            } else if self.eat("*") {
                "Mul"
            } else if self.eat("%") {
                "Mod"
            } else {
                return Ok(e);
            };
            e = Expr::Call(name, vec![e, self.power(depth)?]);
        }
    }

    fn power(&mut self, depth: usize) -> Result<Expr<'a>, String> {
        let base = self.primary(depth)?;
        if self.eat("**") {
            return Ok(Expr::Call("Pow", vec![base, self.primary(depth)?]));
        }
        Ok(base)
    }

    fn primary(&mut self, depth: usize) -> Result<Expr<'a>, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deeply".into());
        }
        if self.eat("(") {
            let e = self.sum(depth + 1)?;
            self.expect(")")?;
            return Ok(e);
        }
        if self.eat("-") {
            return Ok(match self.primary(depth + 1)? {
                Expr::Int(i) => Expr::Int(i.saturating_neg()),
                e => Expr::Call("Mul", vec![Expr::Int(-1), e]),
            });
        }
        self.space();
        let digits = self.while_char(|c| c.is_ascii_digit());
        if !digits.is_empty() {
            return digits.parse().map(Expr::Int).map_err(|_| format!("`{digits}` is too large"));
        }
        let name = self.while_char(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() {
            return Err(format!("expected an expression at `{}`", self.rest()));
        }
        if !self.eat("(") {
            return Ok(Expr::Symbol(name));
        }
        match name {
            "Symbol" | "Dummy" => {
                let symbol = self.quoted()?;
                self.assumptions()?;
                Ok(Expr::Symbol(symbol))
            }
            "Integer" => {
                let e = self.primary(depth + 1)?;
                self.expect(")")?;
                match e {
                    Expr::Int(_) => Ok(e),
                    _ => Err("`Integer` of something that is no integer".into()),
                }
            }
            "Rational" | "Float" => Err(format!("`{name}` is no integer")),
            _ => self.call(name, depth),
        }
    }

    fn call(&mut self, name: &'a str, depth: usize) -> Result<Expr<'a>, String> {
        let mut args = Vec::new();
        while !self.eat(")") {
            if !args.is_empty() {
                self.expect(",")?;
                // Keyword arguments (`evaluate=False`) end the operands.
                self.space();
                let word = self.rest().trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
                if word.starts_with('=') && !word.starts_with("==") {
                    self.assumptions_from_here()?;
                    break;
                }
            }
            args.push(self.sum(depth + 1)?);
        }
        Ok(Expr::Call(name, args))
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        self.space();
        let quote = self.rest().chars().next().filter(|c| matches!(c, '\'' | '"'));
        let quote = quote.ok_or_else(|| format!("expected a quoted name at `{}`", self.rest()))?;
        self.at += 1;
        let name = self.while_char(|c| c != quote);
        self.at += 1;
        if self.at > self.text.len() || name.is_empty() {
            return Err("a quoted name does not end".into());
        }
        Ok(name)
    }

    /// Skips `, positive=True, …)`.
    fn assumptions(&mut self) -> Result<(), String> {
        if self.eat(")") {
            return Ok(());
        }
        self.expect(",")?;
        self.assumptions_from_here()
    }

    fn assumptions_from_here(&mut self) -> Result<(), String> {
        self.while_char(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '=' | ',' | ' '));
        self.expect(")")
    }
}

#[cfg(test)]
mod tests {
    use symmc_ir::SymbolId;
    use symmc_ir::entity::Entity;

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
                let mut at = symmc_ir::Bindings::new();
                at.set(SymbolId::new(0), low);
                let a = d.eval(&at).unwrap();
                at.set(SymbolId::new(0), high);
                (a, d.eval(&at).unwrap())
            };
            decide(&parse(text).unwrap(), &resolve, &add)
        };
        let ge = "GreaterThan(Symbol('s0'), Integer(2))";
        assert_eq!(truth(ge, 2, 9), Some(true));
        assert_eq!(truth(ge, 0, 1), Some(false));
        assert_eq!(truth(ge, 0, 9), None);
        assert_eq!(truth(&format!("Not({ge})"), 2, 9), Some(false));
    }
}
