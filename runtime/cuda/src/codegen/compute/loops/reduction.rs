//! Reductions within a loop nest: what they accumulate, and the norms and softmaxes that are composed of them.

use symmc_ir::{DType, Op, ReductionKind};

use super::super::lowering::no_kernel;
use super::super::rows::reduction_name;
use super::super::text::{computed_type, float_literal, stored_type};
use super::body::{LoopBody, LoopValue};
use crate::error::Result;

/// A reduction of a value, which sets a number.
pub(super) struct Reduction {
    pub op: ReductionOp,
    pub operand: LoopValue,
    pub result: LoopValue,
    accumulator: Accumulator,
    /// The type of the result.
    pub kind: &'static str,
}

#[derive(Clone, Copy)]
struct Accumulator {
    kind: &'static str,
    /// The type in which the reduction is computed again if it leaves the range of the first one.
    wider: Option<&'static str>,
}

impl Accumulator {
    /// An accumulator that stays in its range, or whose result is replaced otherwise.
    fn of_kind(kind: &'static str) -> Accumulator {
        Accumulator { kind, wider: None }
    }

    /// The accumulator of a reduction of elements of a dtype.
    fn for_elements(op: ReductionKind, dtype: DType) -> Accumulator {
        // A product may leave the range of float in either direction while its final value is within the range, and a
        // sum may exceed it.
        match computed_type(dtype) {
            "float" if op == ReductionKind::Prod => Accumulator::of_kind("double"),
            "float" if reduction_name(op) == "Sum" => Accumulator { kind: "float", wider: Some("double") },
            kind => Accumulator::of_kind(kind),
        }
    }
}

pub(super) enum ReductionOp {
    Elements(ReductionKind),
    /// The factor of a norm: 1 by the root of the mean of the squares of the differences from `center`, the mean. Each
    /// element is first multiplied by the value `unit`, which is 1 unless the mean of the squares is not a normal number
    /// of the type. The center is then computed again, of the multiplied elements.
    NormFactor {
        eps: String,
        unit: LoopValue,
        center: Option<LoopValue>,
    },
}

/// A pass over the elements of reductions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    First,
    /// For results that the first pass could not compute in the type of its accumulator.
    Again,
}

impl Reduction {
    /// The values that it sets.
    pub fn results(&self) -> impl Iterator<Item = LoopValue> {
        let unit = match self.op {
            ReductionOp::NormFactor { unit, .. } => Some(unit),
            ReductionOp::Elements(_) => None,
        };
        [self.result].into_iter().chain(unit)
    }

    /// The values that it reads.
    pub fn operands(&self) -> impl Iterator<Item = LoopValue> {
        let center = match self.op {
            ReductionOp::NormFactor { center, .. } => center,
            ReductionOp::Elements(_) => None,
        };
        [self.operand].into_iter().chain(center)
    }

    pub fn name(&self) -> &'static str {
        match self.op {
            ReductionOp::Elements(op) => reduction_name(op),
            ReductionOp::NormFactor { .. } => "Sum",
        }
    }

    pub fn accumulator_of(&self, pass: Pass) -> &'static str {
        self.accumulator.wider.filter(|_| pass == Pass::Again).unwrap_or(self.accumulator.kind)
    }

    /// Combines the operand into an accumulator.
    pub fn join(&self, accumulator: &str) -> String {
        let x = format!("get(v{})", self.operand.0);
        match &self.op {
            ReductionOp::Elements(_) => format!("join_onto<{}>({accumulator}, {x});", self.name()),
            ReductionOp::NormFactor { unit, center, .. } => {
                let scaled = scaled(&x, *unit, *center);
                format!("{accumulator} += ({scaled}) * ({scaled});")
            }
        }
    }

    /// The center of a norm, and the statement that adds an element in the unit of the norm to a sum.
    pub fn recentered(&self, sum: &str) -> Option<(LoopValue, String)> {
        match self.op {
            ReductionOp::NormFactor { unit, center: Some(center), .. } => {
                let scaled = scaled(&format!("get(v{})", self.operand.0), unit, None);
                Some((center, format!("{sum} += {scaled};")))
            }
            _ => None,
        }
    }

    /// The condition under which a second pass is needed; `None` if it never is.
    pub fn repeat_condition(&self, accumulator: &str) -> Option<String> {
        match &self.op {
            ReductionOp::NormFactor { unit, .. } => Some(format!("v{} != 1", unit.0)),
            ReductionOp::Elements(_) => {
                self.accumulator.wider.map(|_| format!("{accumulator} - {accumulator} != 0"))
            }
        }
    }

    /// The result of a reduction of elements, from an accumulator over `n` of them.
    pub fn reduced_elements(&self, accumulator: &str, n: usize, pass: Pass) -> String {
        let mean = matches!(self.op, ReductionOp::Elements(ReductionKind::Mean));
        let divided = if mean { format!(" / ({}){n}", self.accumulator_of(pass)) } else { String::new() };
        format!("Put<{}>::of({accumulator}{divided})", self.kind)
    }

    /// Sets the results from an accumulator over `n` elements.
    pub fn set_results(&self, accumulator: &str, n: usize, pass: Pass) -> String {
        let (result, kind) = (self.result.0, self.kind);
        match (&self.op, pass) {
            (ReductionOp::Elements(_), pass) => {
                format!("v{result} = {};", self.reduced_elements(accumulator, n, pass))
            }
            (ReductionOp::NormFactor { eps, unit: LoopValue(unit), .. }, Pass::First) => format!(
                "{accumulator} = {accumulator} / ({kind}){n} + {eps}; v{unit} = unit_for({accumulator}); \
                 v{result} = 1 / u_sqrt({accumulator});"
            ),
            (ReductionOp::NormFactor { eps, unit: LoopValue(unit), .. }, Pass::Again) => {
                format!("v{result} = 1 / u_sqrt({accumulator} / ({kind}){n} + eps_for({eps}, v{unit}));")
            }
        }
    }
}

/// An element in the unit of its norm, less the center.
fn scaled(x: &str, unit: LoopValue, center: Option<LoopValue>) -> String {
    let unit = unit.0;
    match center {
        Some(LoopValue(center)) => format!("{x} * v{unit} - v{center}"),
        None => format!("{x} * v{unit}"),
    }
}

/// The reductions of a loop nest, in the order of its values.
#[derive(Default)]
pub(super) struct ReductionList(pub Vec<Reduction>);

impl ReductionList {
    /// A reduction from one dtype to another.
    pub fn reduce(
        &mut self,
        body: &mut LoopBody,
        op: ReductionKind,
        operand: LoopValue,
        from: DType,
        to: DType,
    ) -> LoopValue {
        self.reduce_to(body, op, operand, Accumulator::for_elements(op, from), stored_type(to))
    }

    fn reduce_to(
        &mut self,
        body: &mut LoopBody,
        op: ReductionKind,
        operand: LoopValue,
        accumulator: Accumulator,
        kind: &'static str,
    ) -> LoopValue {
        let result = body.reduced(kind);
        let op = ReductionOp::Elements(op);
        self.0.push(Reduction { op, operand, result, accumulator, kind });
        result
    }

    /// A norm of the first of these values, with weight and bias if there are more.
    pub fn norm(
        &mut self,
        body: &mut LoopBody,
        op: &Op,
        values: &[LoopValue],
        dtype: DType,
    ) -> Result<LoopValue> {
        let (eps, centered, round_first) = match op {
            Op::RmsNorm { eps, round_first, .. } => (eps.0, false, *round_first),
            Op::LayerNorm { eps, .. } => (eps.0, true, false),
            _ => return Err(no_kernel(op)),
        };
        let x = values[0];
        let (kind, stored) = (computed_type(dtype), stored_type(dtype));
        let center =
            centered.then(|| self.reduce_to(body, ReductionKind::Mean, x, Accumulator::of_kind(kind), kind));
        let unit = body.reduced(kind);
        let factor = body.reduced(kind);
        let eps = format!("({kind}){}", float_literal(dtype, eps));
        let op = ReductionOp::NormFactor { eps, unit, center };
        let accumulator = Accumulator::of_kind(kind);
        self.0.push(Reduction { op, operand: x, result: factor, accumulator, kind });
        let mut normed = format!("({}) * v{}", scaled(&format!("get(v{})", x.0), unit, center), factor.0);
        if let Some(weight) = values.get(1) {
            if round_first {
                normed = format!("get(Put<{stored}>::of({normed}))");
            }
            normed = format!("{normed} * get(v{})", weight.0);
        }
        if let Some(bias) = values.get(2) {
            normed = format!("{normed} + get(v{})", bias.0);
        }
        let operands = values.iter().copied().chain([unit, factor]).chain(center);
        Ok(body.compute(stored, format!("Put<{stored}>::of({normed})"), operands))
    }

    /// The softmax of rows.
    pub fn softmax(
        &mut self,
        body: &mut LoopBody,
        log: bool,
        x: LoopValue,
        from: DType,
        to: DType,
    ) -> LoopValue {
        let (kind, stored) = (computed_type(from), stored_type(to));
        let element = format!("get(v{})", x.0);
        let max = self.reduce_to(body, ReductionKind::Max, x, Accumulator::of_kind(kind), kind);
        let shifted = format!("{element} - v{}", max.0);
        let power = body.compute(kind, format!("u_exp({shifted})"), [x, max]);
        // The logarithm of a sum near 1 depends on its difference from 1, so the sum is in double.
        let sum_kind = if log { "double" } else { kind };
        let accumulator = Accumulator::of_kind(sum_kind);
        let sum = self.reduce_to(body, ReductionKind::Sum, power, accumulator, sum_kind);
        let (expression, operands) = if log {
            let shift = body.compute(kind, format!("({kind})u_log(v{})", sum.0), [sum]);
            (format!("{shifted} - v{}", shift.0), [x, max, shift])
        } else {
            let scale = body.compute(kind, format!("1 / v{}", sum.0), [sum]);
            (format!("v{} * v{}", power.0, scale.0), [power, scale, scale])
        };
        body.compute(stored, format!("Put<{stored}>::of({expression})"), operands)
    }
}
