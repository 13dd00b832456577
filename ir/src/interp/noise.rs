//! Noise on every rounding of a run, which shows how far rounding errors grow within a program.
//!
//! Some programs amplify the small differences between two correct backends: differences that cancel, state
//! that grows from run to run, and step functions near their step. A run with noise makes such differences on
//! purpose. It moves every result that an op rounds by about the usual difference between backends. If an
//! element moves far under noise, the program does not determine it more precisely. An element that does not
//! move must be correct.

use super::array::{ArrayData, WideArray};
use super::collective;
use super::error::OpError;
use crate::collective::{CollectiveKind, CollectiveReduceOp};
use crate::numerics::{Numerics, NumericsClass};
use crate::op::Op;
use crate::types::DType;
use symmc_support::random::SplitMix;

#[derive(Clone, Copy, Debug)]
pub struct RoundingNoise {
    pub seed: u64,
    /// The numerics classes of the plan that the run simulates. An f32 that ranks reduce moves as far as the
    /// types that these classes allow for it.
    pub numerics: Numerics,
}

/// The effect of an op on the errors of its elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoiseScale {
    /// Each result is rounded separately.
    Element,
    /// Results are sums, whose errors are fractions of their terms.
    Terms,
}

impl RoundingNoise {
    /// A result of a node, with noise. Equal results of several ranks get equal noise.
    pub(super) fn perturb(self, node: usize, op: &Op, array: WideArray) -> WideArray {
        let ArrayData::Float(elements) = &*array.data else { return array };
        let extent = if op.is_element_wise() { NoiseScale::Element } else { NoiseScale::Terms };
        let mut random = SplitMix(self.seed ^ (node as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let narrow = self.numerics.classes().filter_map(NumericsClass::narrow_type);
        let carried = narrow.filter(|_| op.as_collective().is_some() && array.dtype == DType::F32);
        let step = carried.map(dtype_noise).fold(dtype_noise(array.dtype), f64::max);
        let terms = if extent == NoiseScale::Terms { mean_magnitude(elements) } else { 0.0 };
        let moved = elements.iter().map(|x| {
            let by = random.symmetric_unit() * step * (x.abs() + terms);
            if x.is_finite() { x + by } else { *x }
        });
        WideArray::from_floats(array.dtype, &array.shape, moved.collect())
    }
}

fn dtype_noise(dtype: DType) -> f64 {
    dtype.facts().precision.map_or(0.0, |p| p.noise)
}

const MAX_F16: f64 = 65504.0;

impl RoundingNoise {
    /// The results of an f32 reduction whose terms or sums exceed the range of a type that the numerics classes
    /// allow for it. The plan chooses the order in which ranks add, and whether they use that type. An element
    /// may therefore become NaN, an infinity, or the sum itself, and runs with different seeds select different
    /// ones of these.
    pub(super) fn perturb_overflow(
        self,
        kind: &CollectiveKind,
        operands: &[Vec<WideArray>],
        results: Vec<Vec<WideArray>>,
    ) -> Result<Vec<Vec<WideArray>>, (usize, OpError)> {
        let Some(reduced) = kind.reduce_op() else { return Ok(results) };
        let narrows = self.numerics.classes().any(NumericsClass::narrows_range);
        let is_f32 = operands.iter().all(|x| x.first().is_some_and(|x| x.dtype == DType::F32));
        let one_sided: fn(f64, f64) -> f64 = match reduced {
            CollectiveReduceOp::Sum | CollectiveReduceOp::Avg => |x, sign| (x * sign).max(0.0),
            CollectiveReduceOp::Prod => |x, _| x.abs().max(1.0),
            CollectiveReduceOp::Max | CollectiveReduceOp::Min => return Ok(results),
        };
        if !narrows || !is_f32 {
            return Ok(results);
        }
        // An average is a sum that is divided at the end.
        let op = if reduced == CollectiveReduceOp::Avg { CollectiveReduceOp::Sum } else { reduced };
        let kind = match kind {
            CollectiveKind::ReduceScatter(_) => CollectiveKind::ReduceScatter(op),
            _ => CollectiveKind::AllReduce(op),
        };
        let exchange_parts = |sign: f64| {
            let mut one_sided_operands = Vec::with_capacity(operands.len());
            for arrays in operands {
                let parts_of_rank = arrays.iter().map(|x| match &*x.data {
                    ArrayData::Float(elements) => {
                        let elements = elements.iter().map(|&x| one_sided(x, sign)).collect();
                        WideArray::from_floats(x.dtype, &x.shape, elements)
                    }
                    ArrayData::Int(_) => x.clone(),
                });
                one_sided_operands.push(parts_of_rank.collect::<Vec<WideArray>>());
            }
            collective::exchange(&kind, &one_sided_operands)
        };
        let positive = exchange_parts(1.0)?;
        let negative = exchange_parts(-1.0)?;
        let mut out = Vec::with_capacity(results.len());
        for ((arrays, positive_sums), negative_sums) in results.into_iter().zip(&positive).zip(&negative) {
            let sums = positive_sums.iter().zip(negative_sums);
            let replaced = arrays.into_iter().zip(sums);
            out.push(replaced.map(|(x, (p, n))| self.replace_out_of_range(x, p, n)).collect());
        }
        Ok(out)
    }

    fn replace_out_of_range(self, x: WideArray, positive: &WideArray, negative: &WideArray) -> WideArray {
        let (ArrayData::Float(elements), ArrayData::Float(p), ArrayData::Float(n)) =
            (&*x.data, &*positive.data, &*negative.data)
        else {
            return x;
        };
        let out = elements.iter().zip(p).zip(n).map(|((&x, &p), &n)| {
            let up = p > MAX_F16;
            let down = n > MAX_F16;
            match (up, down, self.seed % 4) {
                (true, true, 0) => f64::NAN,
                (true, true, 1) => f64::INFINITY,
                (true, true, 2) => f64::NEG_INFINITY,
                (true, false, 0 | 1) => f64::INFINITY,
                (false, true, 0 | 2) => f64::NEG_INFINITY,
                _ => x,
            }
        });
        WideArray::from_floats(x.dtype, &x.shape, out.collect())
    }
}

fn mean_magnitude(elements: &[f64]) -> f64 {
    let finite = elements.iter().filter(|x| x.is_finite());
    finite.clone().map(|x| x.abs()).sum::<f64>() / finite.count().max(1) as f64
}
