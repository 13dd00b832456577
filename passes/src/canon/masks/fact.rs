//! Facts about the elements of values, and the cache that stores them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use symmc_ir::{DType, Scalar, ValueId};

use super::condition::{IndexExpr, MaskCondition};

#[derive(Clone, PartialEq, Debug)]
pub enum MaskFact {
    Number(IndexExpr),
    Condition(MaskCondition),
    /// The first number if the condition holds, else the second.
    Select(MaskCondition, [Scalar; 2]),
    Unknown,
}

#[derive(Default)]
pub struct MaskFactCache {
    pub(super) by_value: RefCell<HashMap<ValueId, Rc<MaskFact>>>,
    pub(super) depth: Cell<usize>,
}

/// A choice between two numbers of a dtype; a condition if they are bools.
pub(super) fn choice_fact(c: MaskCondition, numbers: [Scalar; 2], dtype: DType) -> MaskFact {
    let bools = numbers.map(|s| s.as_f64() != 0.0);
    match (dtype, bools) {
        (DType::Bool, [true, false]) => MaskFact::Condition(c),
        (DType::Bool, [false, true]) => MaskFact::Condition(c.negate()),
        (DType::Bool, [same, _]) => MaskFact::Condition(MaskCondition::constant(same)),
        _ => MaskFact::Select(c, numbers),
    }
}
