//! From a lowered graph to a plan.
//!
//! [`plan()`] orders the steps, decides where each value lies, packs both arenas and writes a [`Plan`], whose
//! format is in [`mod@plan`]. [`mod@check`] proves a plan safe from the plan alone and shares no code with the rest.
//!
//! The way through: `prepare` inserts the copies that placement forces; `order` makes candidates, of which
//! `schedule` takes one; `liveness` says when memory may be written again, with regard to peers; `place` merges
//! values that share memory, `keep` keeps some from it; [`pack`] finds offsets; `waits` orders the two lanes; `bucket` and `pipeline` write
//! it all down. Each is a page of its own.

mod barriers;
mod bucket;
pub mod check;
mod checked;
mod error;
mod fixed;
mod flight;
mod keep;
mod liveness;
mod order;
pub mod pack;
mod pipeline;
mod place;
pub mod plan;
#[doc(hidden)]
pub mod plan_fuzz;
mod plan_io;
mod prepare;
mod schedule;
mod steps;
mod views;
mod waits;

pub use checked::CheckedPlan;
pub use error::PlanError;
pub use order::Order;
pub use pipeline::{BucketInput, PlanConfig, plan};
pub use plan::Plan;
pub use plan_io::PlanReadError;
