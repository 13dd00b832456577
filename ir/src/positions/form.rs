//! The forms of elements.

use super::condition::{IndexExpr, MaskCondition};
use super::integer_range::IntegerRange;
use super::linear::{AxisView, LinearExpr};
use crate::dim::Dim;
use crate::types::{DType, Scalar};

/// The elements of a value as a function of their positions.
#[derive(Clone, PartialEq, Debug)]
pub enum ElementForm {
    /// All elements are this scalar, which is as the dtype stores it, and not NaN.
    Full(Scalar),
    /// Integers. A number that is the same at all positions is `Full`.
    Number(IndexExpr),
    /// Bools.
    Condition(MaskCondition),
    /// The first number if the condition holds, else the second.
    Select(MaskCondition, [Scalar; 2]),
}

impl ElementForm {
    pub fn linear(linear: LinearExpr) -> ElementForm {
        match linear.as_number() {
            Some(number) => ElementForm::Full(Scalar::Int(number)),
            None => ElementForm::Number(IndexExpr::Linear(linear)),
        }
    }

    pub fn number(number: IndexExpr) -> ElementForm {
        match number {
            IndexExpr::Linear(linear) => ElementForm::linear(linear),
            number => ElementForm::Number(number),
        }
    }

    pub fn condition(condition: MaskCondition) -> ElementForm {
        match condition.is_constant() {
            Some(holds) => ElementForm::Full(Scalar::Bool(holds)),
            None => ElementForm::Condition(condition),
        }
    }

    pub fn as_full(&self) -> Option<Scalar> {
        match self {
            ElementForm::Full(s) => Some(*s),
            ElementForm::Number(_) | ElementForm::Condition(_) | ElementForm::Select(..) => None,
        }
    }

    /// Integers that are a sum of positions alone, over this many axes. Broadcasting adds axes in front.
    pub fn to_linear(&self, rank: usize) -> Option<LinearExpr> {
        match self {
            ElementForm::Full(Scalar::Int(number)) => Some(LinearExpr::constant(*number, rank)),
            ElementForm::Number(IndexExpr::Linear(x)) if x.terms.is_empty() => {
                let mut steps = vec![0; rank.checked_sub(x.steps.len())?];
                steps.extend(&x.steps);
                Some(LinearExpr { steps, ..x.clone() })
            }
            _ => None,
        }
    }

    /// The start of a series of integers, and its step along each axis; at least one is not 0.
    pub fn as_series(&self) -> Option<(i64, &[i64])> {
        match self {
            ElementForm::Number(IndexExpr::Linear(x)) if x.terms.is_empty() => {
                Some((x.constant.as_const()?, &x.steps))
            }
            _ => None,
        }
    }

    /// The start and the step of a series of integers along one axis.
    pub fn as_series_along_axis(&self) -> Option<(i64, usize, i64)> {
        let (start, steps) = self.as_series()?;
        let mut moving = steps.iter().enumerate().filter(|(_, step)| **step != 0);
        let (axis, &step) = moving.next()?;
        moving.next().is_none().then_some((start, axis, step))
    }

    /// Whether a vector has the elements 0, 1, 2, …
    pub fn counts_up(&self) -> bool {
        self.as_series().is_some_and(|(start, steps)| start == 0 && *steps == [1])
    }

    /// The least and the greatest element of integers with this shape, if it has elements.
    pub fn ends(&self, shape: &[Dim]) -> Option<IntegerRange> {
        self.to_linear(shape.len())?.ends(shape)
    }

    /// The form at the positions of a view.
    pub fn through_view(&self, view: &AxisView) -> Option<ElementForm> {
        Some(match self {
            ElementForm::Full(s) => ElementForm::Full(*s),
            ElementForm::Number(n) => ElementForm::number(n.through_view(view)?),
            ElementForm::Condition(c) => ElementForm::Condition(c.through_view(view)?),
            ElementForm::Select(c, numbers) => ElementForm::Select(c.through_view(view)?, *numbers),
        })
    }
}

/// A choice between two numbers of a dtype; a condition if they are bools.
pub fn choice_form(c: MaskCondition, numbers: [Scalar; 2], dtype: DType) -> ElementForm {
    let bools = numbers.map(|s| s.as_f64() != 0.0);
    match (dtype, bools) {
        (DType::Bool, [true, false]) => ElementForm::condition(c),
        (DType::Bool, [false, true]) => ElementForm::condition(c.negate()),
        (DType::Bool, [same, _]) => ElementForm::Full(Scalar::Bool(same)),
        _ => ElementForm::Select(c, numbers),
    }
}
