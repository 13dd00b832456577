//! Recognition of masks: bounds of attention from bools that are functions of positions.
//!
//! The form of a mask comes from [`symmc_ir::positions`]: a condition is a conjunction of comparisons of sums of
//! positions, each with a witness in the program.
//!
//! - [`additive`] splits masks that are added to scores.
//! - [`bounds`] splits a condition into bounds of attention and a remaining mask.
//! - [`operands`] emits the values that bounds and masks read.
//! - [`row_visibility`] computes which rows see a column at all.
//!
//! Everything follows from arithmetic on the forms. Anything else is a leaf: an element of a value of the
//! program.

pub mod additive;
pub mod bounds;
pub mod operands;
pub mod row_visibility;
