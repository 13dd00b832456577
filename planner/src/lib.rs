//! From a lowered graph to a plan.
//!
//! The crate orders the nodes, decides where each value lies, packs both arenas and writes the [`plan`];
//! [`check`] proves a plan safe from the graph and the plan alone and shares no code with the rest.

pub mod pack;
pub mod plan;
mod plan_io;

pub use plan::Plan;
pub use plan_io::PlanReadError;
