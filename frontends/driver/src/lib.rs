//! The compiler driver: from a graph to a checked plan.
//!
//! [`compile()`] brings a program into canonical form, divides the ranges of its symbols into buckets,
//! chooses variants, plans, checks the plan, and lowers it if the
//! [backend](symmc_ir::machine::Backend) of the machine needs that. It runs the passes and the planner
//! several times: it chooses variants again with the facts that a schedule shows, and with less symmetric
//! memory if there is a limit.
//!
//! Deliberately not here: files, the names of symbols and inputs that users write, and running plans.

mod attempt;
mod backends;
mod buckets;
mod compile;
mod divide;
mod error;
mod estimate;
mod limit;
mod options;
mod pipeline;
mod proposals;
mod ranges;
mod search;

#[cfg(feature = "cuda")]
pub use backends::expect_supported_by_gpus;
pub use compile::{CompileReport, canonicalize_graph, compile, lower_graph};
pub use error::DriverError;
pub use estimate::{estimate, estimate_at, estimate_plain};
pub use options::CompileOptions;
pub use search::TriedProposal;
