//! The memory planner: turns a lowered graph into a plan.
//!
//! [`plan()`] orders the steps, places each value, packs both arenas and writes a [`Plan`](symmc_plan::Plan).
//! The planner does not prove that the plan is safe. The crate `symmc-check` does, from the plan alone.
//!
//! # Stages
//! - `prepare` inserts the copies that placement forces.
//! - `order` makes candidate orders, and `schedule` chooses one.
//! - `liveness` decides when memory may be overwritten, with regard to peers. `barriers` and `joins` trade exit
//!   barriers and overlap for memory.
//! - `memory_classes` merges values that share memory.
//! - `fixed_memory` lays out landing zones and bound inputs, and [`symmc_pack`] finds the offsets of buffers.
//! - `waits` orders the two lanes, and `lanes` moves collectives that overlap nothing to the compute lane.
//! - `bucket` and `pipeline` write the plan.

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
pub use pipeline::{BucketInput, PlacedPrograms, PlanConfig, Planner, ProgramSchedules, plan};
pub use schedule::PlanningEffort;
