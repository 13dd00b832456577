//! Functions of real numbers as formulas, in forms that keep the precision of small results.

use symmc_ir::{BinaryOp, FloatAttribute, ReductionKind, Scalar};

use crate::formula::Term;

/// From here on, `1 + x * x` is `x * x` in f32, and `x * x` does not overflow before.
const LARGE: f64 = (1u64 << 28) as f64;

impl<E> Term<'_, E> {
    /// `exp(x) - 1`, computed as `tanh(x / 2) * (exp(x) + 1)`, which keeps the precision of small numbers.
    pub fn expm1(self) -> Self {
        (self * 0.5).tanh() * (self.exp() + 1.0)
    }

    /// `log(1 + x)`. Let `d` be the part of `x` that `1 + x` has after rounding: the ratio of `log(1 + d)` and `d` is that
    /// of `log(1 + x)` and `x`, and is 1 where `d` is 0.
    pub fn log1p(self) -> Self {
        let above = self + 1.0;
        let rounded = above - 1.0;
        let log = above.log();
        let scaled = log * (self / rounded);
        // The ratio is 1, and not infinity by itself.
        let log = rounded.eq(self).select(log, scaled);
        rounded.eq(0.0).select(self, log)
    }

    /// `log(1 + exp(beta * x)) / beta`, and `x` where `beta * x` exceeds the threshold.
    pub fn softplus(self, beta: f64, threshold: f64) -> Self {
        let z = self * beta;
        let is_linear = z.gt(threshold);
        is_linear.select(self, z.exp().log1p() * (1.0 / beta))
    }

    /// The hyperbolic sine, as `tanh(x / 2) * (1 + cosh(x))`, which keeps the precision of small numbers.
    pub fn sinh(self) -> Self {
        (self * 0.5).tanh() * (self.cosh() + 1.0)
    }

    pub fn cosh(self) -> Self {
        let opposite = -self;
        (self.exp() + opposite.exp()) * 0.5
    }

    /// The norm of an order over `axes`: the number of elements that are not 0 for the order 0, the largest and the smallest
    /// magnitude for those at infinity.
    pub fn norm(self, order: f64, axes: &[usize], keep: bool) -> Self {
        let wide = self.dtype().compute_dtype();
        let power = |exponent: f64| Scalar::Float(FloatAttribute(exponent));
        match order {
            f64::INFINITY => self.abs().reduce(ReductionKind::Max, axes, keep),
            f64::NEG_INFINITY => self.abs().reduce(ReductionKind::Min, axes, keep),
            0.0 => self.ne(0.0).cast(wide).sum(axes, keep).cast(self.dtype()),
            1.0 => self.abs().sum(axes, keep),
            2.0 => self.square().sum(axes, keep).sqrt(),
            _ => {
                let powers = self.cast(wide).abs().binary(BinaryOp::Pow, power(order));
                powers.sum(axes, keep).binary(BinaryOp::Pow, power(1.0 / order)).cast(self.dtype())
            }
        }
    }

    /// Whether floats have a sign: zeros have one as well, which their reciprocals show.
    pub fn has_sign(self) -> Self {
        self.lt(0.0) | self.reciprocal().lt(0.0)
    }

    /// The inverse of the hyperbolic sine. The square of a large number would overflow: there it is `log(2x)`.
    pub fn inverse_sinh(self) -> Self {
        let size = self.abs();
        let square = size.square();
        let small = (size + square / ((square + 1.0).sqrt() + 1.0)).log1p();
        let large = size.log() + std::f64::consts::LN_2;
        size.gt(LARGE).select(large, small) * self.sign()
    }

    /// The inverse of the hyperbolic cosine. Each of the roots is NaN below the domain; the product of their operands is
    /// positive there.
    pub fn inverse_cosh(self) -> Self {
        let above = self - 1.0;
        let small = (above + above.sqrt() * (self + 1.0).sqrt()).log1p();
        self.gt(LARGE).select(self.log() + std::f64::consts::LN_2, small)
    }

    /// The inverse of the hyperbolic tangent.
    pub fn inverse_tanh(self) -> Self {
        let size = self.abs();
        (size * 2.0 / (1.0 - size)).log1p() * 0.5 * self.sign()
    }

    pub fn tan(self) -> Self {
        self.sin() / self.cos()
    }

    /// `1 - erf(x)`. From `start` on a continued fraction of so many `terms` keeps the precision of small results
    /// (Abramowitz and Stegun 7.1.14).
    pub fn complementary_erf(self, start: f64, terms: u32) -> Self {
        let near = 1.0 - self.erf();
        let tail = (1..=terms).rev().fold(self, |tail, k| self + f64::from(k) / 2.0 / tail);
        let density = (-self.square()).exp() * (std::f64::consts::FRAC_2_SQRT_PI / 2.0);
        let far = density / tail;
        self.ge(start).select(far, near)
    }

    /// The inverse of `erf`: Winitzki's estimate, which is off by at most 2 in 1000, improved by Newton steps.
    pub fn inverse_erf(self) -> Self {
        const A: f64 = 0.147;
        let log = (1.0 - self.square()).log();
        let half = log * 0.5 + 2.0 / (std::f64::consts::PI * A);
        let inner = (half.square() - log / A).sqrt();
        // Rounding may give values slightly below zero.
        let estimate = (inner - half).max(0.0).sqrt() * self.sign();
        let newton_step = |x: Self, _| {
            let error = x.erf() - self;
            x - error * x.square().exp() * (std::f64::consts::PI.sqrt() / 2.0)
        };
        let x = (0..4).fold(estimate, newton_step);
        let is_at_end = self.abs().eq(1.0);
        is_at_end.select(self * f64::INFINITY, x)
    }

    /// The angle from -π/2 to π/2 that has this sine.
    pub fn arc_sine(self) -> Self {
        let (x, other) = self.triangle_legs();
        x.atan2(other).cast(self.dtype())
    }

    /// The angle from 0 to π that has this cosine.
    pub fn arc_cosine(self) -> Self {
        let (x, other) = self.triangle_legs();
        other.atan2(x).cast(self.dtype())
    }

    /// The legs of a right triangle whose hypotenuse is 1: `x` in its compute dtype, and the other leg
    /// `sqrt((1 - x) * (1 + x))`. That form has no cancellation.
    fn triangle_legs(self) -> (Self, Self) {
        let x = self.cast(self.dtype().compute_dtype());
        (x, ((1.0 - x) * (x + 1.0)).sqrt())
    }

    /// Whether the numbers are infinite.
    pub fn is_infinite(self) -> Self {
        self.abs().eq(f64::INFINITY)
    }

    /// The quotient of two integers, rounded towards zero.
    pub fn truncated_quotient(self, y: Self) -> Self {
        let floor = self.floor_div(y);
        if self.is_non_negative() && y.is_non_negative() {
            return floor;
        }
        // The floor is one less than the truncation if the quotient is negative and not exact.
        let is_negative = floor.lt(0);
        floor + self.inexact_and(y, is_negative)
    }

    /// The remainder of two integers, with the sign of `x`. (The least integer has no magnitude.)
    pub fn truncated_remainder(self, y: Self) -> Self {
        let remainder = self % y;
        let signs_differ = self.lt(0) ^ y.lt(0);
        remainder - self.inexact_and(y, signs_differ) * y
    }

    /// The remainder of two floats, with the sign of `x`.
    pub fn float_remainder(self, y: Self) -> Self {
        let remainder = self.abs() % y.abs();
        // Zeros have signs as well: those of their reciprocals.
        remainder * self.reciprocal().sign()
    }

    /// 1 if the division of two integers has a remainder and `also` holds, else 0, element by element.
    fn inexact_and(self, y: Self, also: Self) -> Self {
        ((self % y).ne(0) & also).cast(self.dtype())
    }

    /// The mean over the last `axes` axes, and `1 / sqrt(variance + eps)`. Both are in the compute dtype and
    /// keep those axes.
    pub fn mean_and_inverse_std(self, axes: usize, eps: f64) -> [Self; 2] {
        let x = self.cast(self.dtype().compute_dtype());
        let mean = x.mean(&x.last_axes(axes), true);
        [mean, (x - mean).inverse_rms(axes, eps)]
    }

    /// `1 / sqrt(mean(x²) + eps)` over the last `axes` axes, in the compute dtype. It keeps those axes.
    pub fn inverse_rms(self, axes: usize, eps: f64) -> Self {
        let x = self.cast(self.dtype().compute_dtype());
        (x.square().mean(&x.last_axes(axes), true) + eps).rsqrt()
    }

    fn last_axes(self, count: usize) -> Vec<usize> {
        (self.rank().saturating_sub(count)..self.rank()).collect()
    }

    /// `log(sum(exp(x)))` over `axes`, computed as `shift + log(sum(exp(x - shift)))`.
    pub fn log_sum_exp(self, shift: Self, axes: &[usize], keep: bool) -> Self {
        let y = (self - shift).exp().sum(axes, true).log() + shift;
        let shape = y.shape().into_iter().enumerate();
        let extents = shape.filter(|(axis, _)| keep || !axes.contains(axis)).map(|(_, extent)| extent);
        y.reshape(extents.collect())
    }

    /// `min(max(x, low), high)`.
    pub fn clamp(self, low: f64, high: f64) -> Self {
        self.max(low).min(high)
    }
}
