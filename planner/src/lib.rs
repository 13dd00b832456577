//! From a lowered graph to a plan.
//!
//! The crate orders the nodes, decides where each value lies, packs both arenas and writes the [`plan`];
//! [`check`] proves a plan safe from the graph and the plan alone and shares no code with the rest.

mod bucket;
pub mod check;
mod error;
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
mod steps;
mod views;
mod waits;

pub use error::PlanError;
pub use pipeline::{BucketInput, PlanConfig, plan};
pub use plan::Plan;
pub use plan_io::PlanReadError;
