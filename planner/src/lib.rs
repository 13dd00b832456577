//! From a lowered graph to a plan.
//!
//! [`plan()`] orders the steps, decides where each value lies, packs both arenas and writes a
//! [`Plan`](symmc_plan::Plan). Whether that is safe is not said here: the crate `symmc-check` proves it from the plan alone.
//!
//! The way through: `prepare` inserts the copies that placement forces; `order` makes candidates, of which
//! `schedule` takes one; `liveness` says when memory may be written again, with regard to peers; `place` merges
//! values that share memory, `keep` keeps some from it; [`symmc_pack`] finds offsets; `waits` orders the two lanes;
//! `lanes` moves collectives that overlap nothing to the compute lane; `bucket` and `pipeline` write it all down. Each is a page of its own.

mod barriers;
mod bucket;
mod error;
mod fixed_memory;
mod joins;
mod lanes;
mod liveness;
mod memory_classes;
mod order;
mod pipeline;
mod prepare;
mod schedule;
mod scheduled;
mod steps;
mod views;
mod waits;

pub use bucket::CollectiveChoice;
pub use error::PlanError;
pub use liveness::NextRun;
pub use order::OrderStrategy;
pub use pipeline::{BucketInput, PlanConfig, Planner, ProgramSchedules, plan};
