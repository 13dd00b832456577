//! Tests of the planner's plans and of the check's proofs, in one binary, because each binary takes seconds to
//! link.

mod check_cost;
mod common;
mod dispatch;
mod experts;
mod in_place;
mod parts;
mod plan;
mod plan_file;
mod plan_random;
mod programs;
mod property;
mod rows;
mod training;
mod windows;
