//! Equations between element-wise ops, as data.
//!
//! An equation replaces its left side by its right side. Tests run both sides of each equation on all dtypes that it
//! names, with zeros of both signs, infinities and NaN.

use std::sync::LazyLock;

use symmc_ir::{BinaryOp, DType, Op, UnaryOp};

/// How far the two sides of an equation agree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EquationClass {
    /// To the bit; NaN is equal to NaN.
    Bits,
    /// Up to the rounding of intermediate values in f32 or wider, which one side does not have. An intermediate value may also
    /// exceed the range of f32.
    Rounding,
    /// Up to the order in which floats are added, in plans of the numerics class `reassociate`.
    Reassociate,
}

/// The dtypes of the two sides and of their operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EquationTypes {
    Floats,
    WideFloats,
    Integers,
    Bools,
    Numbers,
    All,
}

impl EquationTypes {
    pub fn contain(self, dtype: DType) -> bool {
        let is_number = dtype != DType::Bool;
        match self {
            EquationTypes::Floats => dtype.is_float(),
            EquationTypes::WideFloats => matches!(dtype, DType::F32 | DType::F64),
            EquationTypes::Integers => is_number && !dtype.is_float(),
            EquationTypes::Bools => !is_number,
            EquationTypes::Numbers => is_number,
            EquationTypes::All => true,
        }
    }
}

pub struct Equation {
    pub name: &'static str,
    /// Calls of ops on the operands `x`, `y` and the condition `c`, and numbers.
    pub left: &'static str,
    pub right: &'static str,
    pub types: EquationTypes,
    pub class: EquationClass,
}

const fn equation(
    name: &'static str,
    left: &'static str,
    right: &'static str,
    types: EquationTypes,
    class: EquationClass,
) -> Equation {
    Equation { name, left, right, types, class }
}

use EquationClass::{Bits, Rounding};
use EquationTypes::{All, Bools, Floats, Integers, Numbers, WideFloats};

pub const EQUATIONS: &[Equation] = &[
    equation("product_with_one", "mul(x, 1)", "x", Numbers, Bits),
    equation("quotient_by_one", "div(x, 1)", "x", Floats, Bits),
    equation("first_power", "pow(x, 1)", "x", Floats, Bits),
    equation("square", "pow(x, 2)", "mul(x, x)", Numbers, Bits),
    equation("difference_from_zero", "sub(x, 0)", "x", Numbers, Bits),
    equation("sum_with_negative_zero", "add(x, -0.0)", "x", Floats, Bits),
    equation("sum_with_zero", "add(x, 0)", "x", Integers, Bits),
    equation("negation_twice", "neg(neg(x))", "x", Numbers, Bits),
    equation("complement_twice", "not(not(x))", "x", Bools, Bits),
    equation("product_of_negation", "mul(neg(x), y)", "neg(mul(x, y))", Floats, Bits),
    equation("sum_with_negation", "add(x, neg(y))", "sub(x, y)", Floats, Bits),
    equation("difference_from_negation", "sub(x, neg(y))", "add(x, y)", Floats, Bits),
    equation("cast_of_negation", "cast(neg(x))", "neg(cast(x))", Floats, Bits),
    equation("two_summands", "add(x, x)", "mul(x, 2)", Floats, Bits),
    equation("three_summands", "add(mul(x, 2), x)", "mul(x, 3)", WideFloats, Bits),
    equation("four_summands", "add(mul(x, 3), x)", "mul(x, 4)", WideFloats, Bits),
    equation("five_summands", "add(mul(x, 4), x)", "mul(x, 5)", WideFloats, Bits),
    equation("conjunction_with_true", "and(x, true)", "x", Bools, Bits),
    equation("disjunction_with_false", "or(x, false)", "x", Bools, Bits),
    equation("selection_by_true", "select(true, x, y)", "x", All, Bits),
    equation("selection_by_false", "select(false, x, y)", "y", All, Bits),
    equation("selection_of_equals", "select(c, x, x)", "x", All, Bits),
    equation("quotient_by_root", "div(x, sqrt(y))", "mul(x, rsqrt(y))", WideFloats, Rounding),
    equation("reciprocal_of_root", "reciprocal(sqrt(x))", "rsqrt(x)", WideFloats, Rounding),
    equation("one_by_root", "mul(1, rsqrt(x))", "rsqrt(x)", WideFloats, Rounding),
    equation("silu", "mul(x, sigmoid(x))", "silu(x)", WideFloats, Rounding),
    equation("silu_by_quotient", "div(x, add(exp(neg(x)), 1))", "silu(x)", WideFloats, Rounding),
];

#[derive(Clone, PartialEq, Debug)]
pub enum Pattern {
    Operand(char),
    Number(f64),
    Truth(bool),
    Apply(Op, Vec<Pattern>),
}

pub struct ParsedEquation {
    pub equation: &'static Equation,
    pub left: Pattern,
    pub right: Pattern,
}

/// The equations of [`EQUATIONS`].
pub fn parsed_equations() -> &'static [ParsedEquation] {
    static PARSED: LazyLock<Vec<ParsedEquation>> = LazyLock::new(|| {
        let parse = |equation: &'static Equation| {
            let [left, right] = [equation.left, equation.right].map(parse_pattern);
            Some(ParsedEquation { equation, left: left?, right: right? })
        };
        EQUATIONS.iter().filter_map(parse).collect()
    });
    &PARSED
}

fn parse_pattern(text: &str) -> Option<Pattern> {
    let text = text.trim();
    let Some((name, operands)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) else {
        return match text {
            "true" => Some(Pattern::Truth(true)),
            "false" => Some(Pattern::Truth(false)),
            "x" | "y" | "c" => text.chars().next().map(Pattern::Operand),
            number => number.parse().ok().map(Pattern::Number),
        };
    };
    let unary = UnaryOp::ALL.iter().find(|op| op.name() == name).map(|op| Op::Unary(*op));
    let binary = BinaryOp::ALL.iter().find(|op| op.name() == name).map(|op| Op::Binary(*op));
    let op = match name {
        "cast" => Op::Cast,
        "select" => Op::Select,
        _ => unary.or(binary)?,
    };
    Some(Pattern::Apply(op, split_operands(operands).into_iter().map(parse_pattern).collect::<Option<_>>()?))
}

/// The operands of a call, which are separated by the commas outside of brackets.
fn split_operands(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (position, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}
