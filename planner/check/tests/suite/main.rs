//! The rules of the check, each with plans that break it. The plans are written by hand, so that the tests depend on
//! no planner.

mod rows;
mod rules;
mod sizes;
mod strangers;
mod sums;
