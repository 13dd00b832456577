//! Elements as functions of their positions: the one analysis of integers, masks and constants.
//!
//! Masks, positions and indices are built from `full`, `iota` and a few ops on integers. For each value,
//! [`PositionFacts`] answers three questions, for symbolic extents as well:
//! - What is the element at a position? The [form](ElementForm) is a scalar, a sum of positions
//!   ([`LinearExpr`]) or a few functions of sums ([`IndexExpr`]), a conjunction of comparisons
//!   ([`MaskCondition`]), or a choice between two numbers.
//! - Between which bounds do the elements lie? The [range](IntegerRange) follows from the form, or from the
//!   definition of the value.
//! - Which elements does a value have for given numbers? [`IntegerFunction`] and [`constant_elements`] evaluate
//!   it with the interpreter.
//!
//! A fact may say less than is true. The rules match all ops, so a new op does not compile without them.
//! Bounds of attention, which follow from conditions, are not here.

mod condition;
mod evaluate;
mod facts;
mod form;
mod integer_range;
mod linear;
mod ranges;
mod scalar;
mod stored;

pub use condition::{AtomKind, AtomWitness, ConditionAtom, IndexExpr, MaskCondition};
pub use evaluate::{IntegerFunction, constant_elements};
pub use facts::{PositionCache, PositionFacts};
pub use form::ElementForm;
pub use integer_range::{IntegerRange, MAX_LISTED_INTEGERS};
pub use linear::{AxisIndex, AxisView, ElementRef, LinearExpr, non_unit_axes};
pub use scalar::{as_stored, decide_comparison, is_stored_exactly};
pub use stored::stored_series_form;
