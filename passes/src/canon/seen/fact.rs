//! What is known of the elements of a value, and where it is kept.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use symmc_ir::{DType, Scalar, ValueId};

use super::condition::{Condition, Number};

#[derive(Clone, PartialEq, Debug)]
pub enum Fact {
    Number(Number),
    Condition(Condition),
    /// A number that is the first where a condition holds, else the second.
    Select(Condition, [Scalar; 2]),
    Open,
}

#[derive(Default)]
pub struct Facts {
    pub(super) of: RefCell<HashMap<ValueId, Rc<Fact>>>,
    pub(super) depth: Cell<usize>,
}

/// One of two numbers of a dtype; a condition if they are bools.
pub(super) fn chosen(c: Condition, of: [Scalar; 2], dtype: DType) -> Fact {
    let bools = of.map(|s| s.as_f64() != 0.0);
    match (dtype, bools) {
        (DType::Bool, [true, false]) => Fact::Condition(c),
        (DType::Bool, [false, true]) => Fact::Condition(c.contrary()),
        (DType::Bool, [same, _]) => Fact::Condition(Condition::constant(same)),
        _ => Fact::Select(c, of),
    }
}
