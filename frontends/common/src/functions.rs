//! Functions of real numbers as compositions of ops, in forms that keep the precision of small results.

use symmc_ir::{BinaryOp, FloatAttribute, Scalar, UnaryOp, ValueId};

use crate::emit::Emit;
use crate::failure::RuleResult;

/// Emits functions that are not ops. Every method fails as those of [`Emit`].
pub trait EmitFunctions: Emit {
    /// `exp(x) - 1`, computed as `tanh(x / 2) * (exp(x) + 1)`, which keeps the precision of small numbers.
    fn expm1(&mut self, x: ValueId) -> RuleResult<ValueId, Self::Error> {
        let half = self.binary_float(BinaryOp::Mul, x, 0.5)?;
        let tanh = self.unary(UnaryOp::Tanh, half)?;
        let exp = self.unary(UnaryOp::Exp, x)?;
        let above = self.binary_float(BinaryOp::Add, exp, 1.0)?;
        self.binary(BinaryOp::Mul, tanh, above)
    }

    /// `log(1 + x)`. Let `d` be the part of `x` that `1 + x` has after rounding: the ratio of `log(1 + d)` and `d` is that
    /// of `log(1 + x)` and `x`, and is 1 where `d` is 0.
    fn log1p(&mut self, x: ValueId) -> RuleResult<ValueId, Self::Error> {
        let above = self.binary_float(BinaryOp::Add, x, 1.0)?;
        let rounded = self.binary_float(BinaryOp::Sub, above, 1.0)?;
        let log = self.unary(UnaryOp::Log, above)?;
        let ratio = self.binary(BinaryOp::Div, x, rounded)?;
        let scaled = self.binary(BinaryOp::Mul, log, ratio)?;
        // The ratio is 1, and not infinity by itself.
        let is_exact = self.binary(BinaryOp::Eq, rounded, x)?;
        let log = self.select(is_exact, log, scaled)?;
        let is_lost = self.binary_float(BinaryOp::Eq, rounded, 0.0)?;
        self.select(is_lost, x, log)
    }

    /// The hyperbolic sine, as `tanh(x / 2) * (1 + cosh(x))`, which keeps the precision of small numbers.
    fn sinh(&mut self, x: ValueId) -> RuleResult<ValueId, Self::Error> {
        let half = self.binary_float(BinaryOp::Mul, x, 0.5)?;
        let tanh = self.unary(UnaryOp::Tanh, half)?;
        let cosh = self.cosh(x)?;
        let above = self.binary_float(BinaryOp::Add, cosh, 1.0)?;
        self.binary(BinaryOp::Mul, tanh, above)
    }

    fn cosh(&mut self, x: ValueId) -> RuleResult<ValueId, Self::Error> {
        let opposite = self.unary(UnaryOp::Neg, x)?;
        let growing = self.unary(UnaryOp::Exp, x)?;
        let falling = self.unary(UnaryOp::Exp, opposite)?;
        let sum = self.binary(BinaryOp::Add, growing, falling)?;
        self.binary_float(BinaryOp::Mul, sum, 0.5)
    }

    /// `1 - erf(x)`. From `start` on a continued fraction of so many `terms` keeps the precision of small results
    /// (Abramowitz and Stegun 7.1.14).
    fn complementary_erf(&mut self, x: ValueId, start: f64, terms: u32) -> RuleResult<ValueId, Self::Error> {
        let erf = self.unary(UnaryOp::Erf, x)?;
        let near = self.scalar_binary(BinaryOp::Sub, Scalar::Int(1), erf)?;
        let mut tail = x;
        for k in (1..=terms).rev() {
            let term =
                self.scalar_binary(BinaryOp::Div, Scalar::Float(FloatAttribute(f64::from(k) / 2.0)), tail)?;
            tail = self.binary(BinaryOp::Add, x, term)?;
        }
        let square = self.binary(BinaryOp::Mul, x, x)?;
        let square = self.unary(UnaryOp::Neg, square)?;
        let density = self.unary(UnaryOp::Exp, square)?;
        let density = self.binary_float(BinaryOp::Mul, density, std::f64::consts::FRAC_2_SQRT_PI / 2.0)?;
        let far = self.binary(BinaryOp::Div, density, tail)?;
        let is_far = self.binary_float(BinaryOp::Ge, x, start)?;
        self.select(is_far, far, near)
    }

    /// The angle from -π/2 to π/2 that has this sine.
    fn arc_sine(&mut self, sine: ValueId) -> RuleResult<ValueId, Self::Error> {
        let (x, other) = self.triangle_legs(sine)?;
        let angle = self.binary(BinaryOp::Atan2, x, other)?;
        self.cast(angle, self.dtype(sine))
    }

    /// The angle from 0 to π that has this cosine.
    fn arc_cosine(&mut self, cosine: ValueId) -> RuleResult<ValueId, Self::Error> {
        let (x, other) = self.triangle_legs(cosine)?;
        let angle = self.binary(BinaryOp::Atan2, other, x)?;
        self.cast(angle, self.dtype(cosine))
    }

    /// The legs of a right triangle whose hypotenuse is 1: `x` in its compute dtype, and the other leg
    /// `sqrt((1 - x) * (1 + x))`. That form has no cancellation.
    fn triangle_legs(&mut self, x: ValueId) -> RuleResult<(ValueId, ValueId), Self::Error> {
        let x = self.cast(x, self.dtype(x).compute_dtype())?;
        let below = self.scalar_binary(BinaryOp::Sub, Scalar::Int(1), x)?;
        let above = self.binary_float(BinaryOp::Add, x, 1.0)?;
        let square = self.binary(BinaryOp::Mul, below, above)?;
        Ok((x, self.unary(UnaryOp::Sqrt, square)?))
    }
}

impl<E: Emit> EmitFunctions for E {}
