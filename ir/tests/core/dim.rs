//! Dims against a direct evaluation of the expressions that they were built from.

use proptest::prelude::*;
use symmc_ir::entity::Entity;
use symmc_ir::text::parse_dim;
use symmc_ir::{Dim, Symbol, SymbolBindings, SymbolId, SymbolTable};

/// An expression before it is brought into normal form.
#[derive(Clone, Debug)]
enum RawExpr {
    Const(i64),
    Symbol(usize),
    Apply(DimFunction, Box<RawExpr>, Box<RawExpr>),
}

#[derive(Clone, Copy, Debug)]
enum DimFunction {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Max,
    Min,
}

impl RawExpr {
    fn dim(&self) -> Dim {
        match self {
            RawExpr::Const(c) => Dim::from(*c),
            RawExpr::Symbol(s) => Dim::from(SymbolId::new(*s)),
            RawExpr::Apply(f, a, b) => {
                let (a, b) = (a.dim(), b.dim());
                match f {
                    DimFunction::Add => a + b,
                    DimFunction::Sub => a - b,
                    DimFunction::Mul => a * b,
                    DimFunction::Div => a.floor_div(&b),
                    DimFunction::Mod => a.modulo(&b),
                    DimFunction::Max => a.max_with(&b),
                    DimFunction::Min => a.min_with(&b),
                }
            }
        }
    }

    fn eval(&self, symbols: &[i64]) -> Option<i128> {
        Some(match self {
            RawExpr::Const(c) => i128::from(*c),
            RawExpr::Symbol(s) => i128::from(symbols[*s]),
            RawExpr::Apply(f, a, b) => {
                let (a, b) = (a.eval(symbols)?, b.eval(symbols)?);
                match f {
                    DimFunction::Add => a + b,
                    DimFunction::Sub => a - b,
                    DimFunction::Mul => a * b,
                    DimFunction::Div => floor_div(a, b)?,
                    DimFunction::Mod => a - b * floor_div(a, b)?,
                    DimFunction::Max => a.max(b),
                    DimFunction::Min => a.min(b),
                }
            }
        })
    }
}

fn floor_div(a: i128, b: i128) -> Option<i128> {
    let q = a.checked_div(b)?;
    Some(if q * b != a && (a < 0) != (b < 0) { q - 1 } else { q })
}

const RANGES: [(i64, i64); 3] = [(0, 3), (1, 4), (5, 5)];

fn symbols() -> SymbolTable {
    let symbol =
        |(i, &(min, max)): (usize, &(i64, i64))| Symbol { name: format!("s{i}"), min, max, alias: None };
    RANGES.iter().enumerate().map(symbol).collect()
}

fn all_bindings() -> Vec<Vec<i64>> {
    let mut out = vec![vec![]];
    for (min, max) in RANGES {
        out = out.iter().flat_map(|b| (min..=max).map(move |v| [b.as_slice(), &[v]].concat())).collect();
    }
    out
}

fn bind(values: &[i64]) -> SymbolBindings {
    let mut out = SymbolBindings::new();
    values.iter().enumerate().for_each(|(i, &v)| out.set(SymbolId::new(i), v));
    out
}

fn expr() -> impl Strategy<Value = RawExpr> {
    let leaf = prop_oneof![(-6i64..=6).prop_map(RawExpr::Const), (0usize..3).prop_map(RawExpr::Symbol)];
    leaf.prop_recursive(4, 16, 2, |inner| {
        let function = prop_oneof![
            3 => Just(DimFunction::Add),
            2 => Just(DimFunction::Sub),
            3 => Just(DimFunction::Mul),
            2 => Just(DimFunction::Div),
            2 => Just(DimFunction::Mod),
            1 => Just(DimFunction::Max),
            1 => Just(DimFunction::Min),
        ];
        (function, inner.clone(), inner).prop_map(|(f, a, b)| RawExpr::Apply(f, a.into(), b.into()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn evaluates_as_written_and_within_its_bounds(expr in expr()) {
        let (dim, symbols) = (expr.dim(), symbols());
        let (low, high) = dim.bounds(&symbols);
        for values in all_bindings() {
            if let Some(expected) = expr.eval(&values) {
                let actual = dim.eval(&bind(&values));
                prop_assert_eq!(actual.map(i128::from), Some(expected), "{:?} at {:?}", dim, values);
                prop_assert!(i128::from(low) <= expected && expected <= i128::from(high), "{dim:?}: {low}..{high}");
            }
        }
    }

    #[test]
    fn operations_that_bounds_decide_are_removed(expr in expr()) {
        let (dim, symbols) = (expr.dim(), symbols());
        let within = dim.simplify_within(&symbols);
        prop_assert!(within.depth() <= dim.depth(), "{dim:?}: {within:?}");
        for values in all_bindings() {
            if let Some(expected) = dim.eval(&bind(&values)) {
                prop_assert_eq!(within.eval(&bind(&values)), Some(expected), "{:?}: {:?} at {:?}", dim, within, values);
            }
        }
    }

    #[test]
    fn polynomial_laws_hold_as_equality(a in expr(), b in expr(), c in expr()) {
        let (a, b, c) = (a.dim(), b.dim(), c.dim());
        prop_assume!(a.atom_count() * b.atom_count() * c.atom_count() < 1000);
        prop_assert_eq!(a.clone() + b.clone(), b.clone() + a.clone());
        prop_assert_eq!(a.clone() * b.clone(), b.clone() * a.clone());
        prop_assert_eq!(a.clone() * (b.clone() + c.clone()), a.clone() * b.clone() + a.clone() * c.clone());
        prop_assert_eq!((a.clone() * b.clone()) * c.clone(), a.clone() * (b.clone() * c.clone()));
        prop_assert_eq!(a.clone() - a.clone(), Dim::from(0));
        prop_assert_eq!(a.max_with(&b), b.max_with(&a));
        prop_assert_eq!(a.min_with(&b), b.min_with(&a));
    }

    #[test]
    fn exact_division_is_exact(a in expr(), b in expr()) {
        let (a, b) = (a.dim(), b.dim());
        if let Some(quotient) = a.exact_div(&b) {
            prop_assert_eq!(quotient * b.clone(), a.clone());
        }
        if b.term_count() == 1 && b.as_const() != Some(0) {
            prop_assert_eq!((a.clone() * b.clone()).exact_div(&b), Some(a));
        }
    }

    #[test]
    fn prints_as_it_parses(expr in expr()) {
        let (dim, symbols) = (expr.dim(), symbols());
        let text = dim.display(&symbols).to_string();
        prop_assert_eq!(parse_dim(&text, &symbols), Ok(dim));
    }

    #[test]
    fn substitution_commutes_with_evaluation(expr in expr(), by in expr()) {
        let (dim, by) = (expr.dim(), by.dim());
        let substituted = dim.substitute(&|s| if s.index() == 0 { by.clone() } else { Dim::from(s) });
        for mut values in all_bindings() {
            let actual = substituted.eval(&bind(&values));
            let Some(value) = by.eval(&bind(&values)) else { continue };
            values[0] = value;
            if let (Some(expected), Some(actual)) = (dim.eval(&bind(&values)), actual) {
                prop_assert_eq!(actual, expected);
            }
        }
    }
}

fn s(index: usize) -> Dim {
    Dim::from(SymbolId::new(index))
}

fn c(value: i64) -> Dim {
    Dim::from(value)
}

#[test]
fn normal_form() {
    let symbols = symbols();
    let shown = |dim: Dim| dim.display(&symbols).to_string();
    assert_eq!(shown(s(1) * c(4) + c(1) - s(1)), "3*s1 + 1");
    assert_eq!(shown(s(1) * s(0) - s(0) * s(1)), "0");
    assert_eq!(shown((s(0) + c(1)) * (s(0) - c(1))), "s0*s0 - 1");
    assert_eq!(shown(c(-1) * s(0)), "-s0");
    assert_eq!(shown(c(0) - s(0) * c(2) - c(3)), "-2*s0 - 3");
    assert_eq!(shown((s(0) * c(4)).floor_div(&c(2))), "2*s0");
    assert_eq!(shown((s(0) * c(4) + c(1)).floor_div(&c(2))), "2*s0");
    assert_eq!(shown((s(0) * c(3) + c(5)).floor_div(&c(2))), "div(3*s0 + 1, 2) + 2");
    assert_eq!(shown((s(0) * s(1)).floor_div(&s(1))), "s0");
    assert_eq!(shown((s(0) * s(1)).modulo(&s(0))), "0");
    assert_eq!(shown(s(0).floor_div(&c(0))), "div(s0, 0)");
    assert_eq!(shown((s(0) + c(1)).max_with(&s(0))), "s0 + 1");
    assert_eq!(shown((s(0) + c(1)).min_with(&s(0))), "s0");
    assert_eq!((s(0).max_with(&s(1))).as_symbol(), None);
    assert_eq!((s(2) * c(1)).as_symbol(), Some(SymbolId::new(2)));
    assert_eq!((s(2) * c(2)).as_symbol(), None);
}

#[test]
fn division_rounds_down_with_remainders_signed_as_the_divisor() {
    for (a, b, quotient, rest) in
        [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -3, -2, 0)]
    {
        assert_eq!(c(a).floor_div(&c(b)), c(quotient), "{a} // {b}");
        assert_eq!(c(a).modulo(&c(b)), c(rest), "{a} % {b}");
        let symbolic = (s(0) + s(1)).floor_div(&(s(1) * s(1)));
        assert_eq!(
            symbolic.eval(&bind(&[a - b, b])),
            Some(floor_div(a.into(), (b * b).into()).unwrap() as i64)
        );
    }
    assert_eq!(c(1).floor_div(&c(0)).eval(&SymbolBindings::new()), None);
    assert_eq!(s(0).modulo(&s(1)).eval(&bind(&[1, 0])), None);
}

#[test]
fn arithmetic_saturates() {
    let (min, max) = (c(i64::MIN), c(i64::MAX));
    assert_eq!(max.clone() + c(1), max);
    assert_eq!(min.clone() - c(1), min);
    assert_eq!(max.clone() * c(-2), min);
    assert_eq!(min.clone() * c(-1), max);
    assert_eq!(min.floor_div(&c(-1)), max);
    assert_eq!(min.modulo(&c(-1)), c(0));
    let big = s(0) * max.clone();
    assert_eq!(big.clone() + big.clone(), big);
    assert_eq!(big.bounds(&symbols()), (0, i64::MAX));
    assert_eq!(big.eval(&bind(&[2])), None);
    assert_eq!((s(0) * min).exact_div(&c(-1)), None);
    assert_eq!((big - c(5)).upper_bound(&symbols()), i64::MAX - 5);
}

#[test]
fn bounds() {
    let symbols = symbols();
    assert_eq!((s(0) * c(-2) + c(1)).bounds(&symbols), (-5, 1));
    assert_eq!(s(1).floor_div(&c(2)).bounds(&symbols), (0, 2));
    assert_eq!((s(0) - c(4)).floor_div(&s(1)).bounds(&symbols), (-4, -1));
    assert_eq!((s(1) + c(2)).modulo(&c(4)).bounds(&symbols), (0, 3));
    assert_eq!(s(1).modulo(&c(64)).bounds(&symbols), (1, 4));
    assert_eq!(s(0).max_with(&s(1)).bounds(&symbols), (1, 4));
    assert_eq!(s(0).min_with(&s(2)).bounds(&symbols), (0, 3));
    assert_eq!(s(0).floor_div(&s(0)).bounds(&symbols), (1, 1));
    assert_eq!(s(1).floor_div(&s(0)).bounds(&symbols), (i64::MIN, i64::MAX));
    let rounded_up = (s(1) + c(3)).floor_div(&c(4)) * c(4);
    assert_eq!((rounded_up.clone() - s(1)).bounds(&symbols), (0, 3));
    assert_eq!((s(1) - rounded_up.clone() * c(2)).bounds(&symbols), (-7, -4));
    assert_eq!(rounded_up.bounds(&symbols), (4, 4));
    assert_eq!(((s(1) - c(1)) * (s(0) + c(1))).bounds(&symbols), (0, 12));
    assert_eq!(((s(1) - c(1)) * (s(1) - c(1))).bounds(&symbols), (0, 9));
    assert_eq!(((s(1) - c(1)) * (s(0) + c(1)) * c(-2) + c(1)).bounds(&symbols), (-23, 1));
    assert!(s(0).provably_le(&s(2), &symbols));
    assert!(!s(1).provably_le(&s(0), &symbols));
}

#[test]
fn divisibility() {
    assert!((s(0) * c(8) + c(4)).is_divisible_by(4));
    assert!(!(s(0) * c(8) + c(2)).is_divisible_by(4));
    assert!(!s(0).is_divisible_by(0));
    assert_eq!((s(0) * s(1) * c(6)).exact_div(&(s(1) * c(3))), Some(s(0) * c(2)));
    assert_eq!((s(0) * s(1) + c(1)).exact_div(&s(1)), None);
    assert_eq!(c(0).exact_div(&c(0)), None);
}

#[test]
fn symbols_of_a_dim_ascend_once() {
    let dim = s(2).floor_div(&(s(0) + c(3))) * s(2) + s(0);
    assert_eq!(dim.symbols(), [0, 2].map(SymbolId::new));
}

#[test]
fn bounds_of_nested_sums_of_divisions_are_found() {
    // Every level contains divisions that may be written as remainders, next to the previous level.
    let divisions = (2..5).fold(c(0), |sum, k| sum + (s(1) + c(1)).floor_div(&c(k)) * c(k));
    let dim = (0..30).fold(s(0), |dim, _| dim.max_with(&s(2)) + divisions.clone());
    assert!(symmc_ir::dim::check_shape_complexity(std::slice::from_ref(&dim)).is_ok());
    let (low, high) = dim.bounds(&symbols());
    assert!(low > 0 && low <= high, "{low} to {high}");
}

#[test]
fn quotients_of_multiples_are_exact() {
    let (n, four) = (s(1), c(4));
    let padded = n.clone() + (c(0) - n.clone()).modulo(&four);
    assert_eq!(padded.floor_div(&four) * four.clone(), padded);
    assert_eq!((padded.clone() * s(2) * c(8)).floor_div(&c(32)) * c(32), padded * s(2) * c(8));
    let behind = (four.clone() - n.modulo(&four)).modulo(&four);
    let padded = n.clone() + behind;
    let quotient = padded.floor_div(&four);
    assert_eq!(quotient.clone() + quotient.clone() + quotient.clone() + quotient.clone(), padded);
    assert_eq!(padded.floor_div(&quotient), four);
    assert_eq!((padded.clone() * s(2)).floor_div(&(quotient.clone() * c(2))), c(2) * s(2));
    assert_eq!(padded.modulo(&quotient), c(0));
    assert_ne!(n.floor_div(&n.floor_div(&four)), four);
    assert_ne!(n.floor_div(&four) * four.clone(), n);
    assert_eq!((n.clone() * c(8) + c(7)).floor_div(&four), n.clone() * c(2) + c(1));
    assert_eq!((n.clone() - c(1)).floor_div(&c(2)) + c(1), (n.clone() + c(1)).floor_div(&c(2)));
    assert_eq!((n.clone() + c(9)).modulo(&four), (n.clone() + c(1)).modulo(&four));
    assert_eq!((n.clone() - n.floor_div(&c(2))).bounds(&symbols()), (1, 2));
}

#[test]
fn quotients_of_quotients_have_one_form() {
    let symbols = symbols();
    let shown = |dim: Dim| dim.display(&symbols).to_string();
    let n = s(1);
    let halved = |dim: Dim| (dim - c(1)).floor_div(&c(2)) + c(1);
    assert_eq!(shown((n.floor_div(&c(5)) + c(1)).floor_div(&c(2))), "div(s1 + 5, 10)");
    assert_eq!(shown(halved(halved(halved(n.clone())))), "div(s1 + 7, 8)");
    // Rounded up, in either way.
    let up = |dim: Dim, k| c(0) - (c(0) - dim).floor_div(&c(k));
    assert_eq!(up(up(n.clone(), 2), 4), halved(halved(halved(n.clone()))));
    assert_eq!(shown((n.clone() * c(4) + s(0) * c(2) + c(3)).floor_div(&c(6))), "div(s0 + 2*s1 + 1, 3)");
    assert_eq!(shown((s(0) - n.floor_div(&c(3))).floor_div(&c(2))), "div(3*s0 - s1 + 2, 6)");
    // Two quotients stay as they are, and so does what would become too large.
    assert_eq!(
        shown((n.floor_div(&c(2)) + s(0).floor_div(&c(3))).floor_div(&c(2))),
        "div(div(s0, 3) + div(s1, 2), 2)"
    );
    let large = 1 << 40;
    assert_eq!((n.floor_div(&c(large)) + c(1)).floor_div(&c(large)).depth(), 2);
}

#[test]
fn sizes_that_are_padded_to_a_multiple_divide() {
    let (n, rows) = (s(0), s(1));
    for padding in [(c(-1) * n.clone()).modulo(&c(256)), (c(256) - n.modulo(&c(256))).modulo(&c(256))] {
        let padded = n.clone() + padding;
        for width in [c(1), c(64), rows.clone(), rows.clone() * c(64), rows.clone() * rows.clone() * c(64)] {
            let elements = width.clone() * padded.clone();
            let chunks = elements.floor_div(&(width.clone() * c(256)));
            assert_eq!(chunks.clone() * c(256) * width.clone(), elements, "{chunks:?} chunks of {width:?}");
            assert_eq!(elements.modulo(&(width.clone() * c(256))), c(0));
            assert_eq!(elements.floor_div(&chunks), c(256) * width);
        }
    }
    assert_eq!((c(-1) * n.modulo(&c(256))).modulo(&c(256)), (c(-1) * n.clone()).modulo(&c(256)));
    // All sizes of at most one chunk have one.
    let chunks = (n.clone() + (c(-1) * n.clone()).modulo(&c(4))).floor_div(&c(4)) + c(1);
    let at_most_4 = [Symbol { name: "n".into(), min: 2, max: 4, alias: None }].into_iter().collect();
    assert_eq!(chunks.simplify_within(&at_most_4), c(2));
    let shown = |dim: Dim| dim.display(&symbols()).to_string();
    assert_eq!(shown((rows.clone() * n.clone()).floor_div(&(rows.clone() * c(8)))), "div(s0, 8)");
    assert_eq!(shown((rows.clone() * n.clone()).modulo(&(rows * c(8)))), "s1*mod(s0, 8)");
}
