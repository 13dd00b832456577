//! Executes the steps of a checked plan on one rank.
//!
//! An [`Executor`] holds a plan for one rank. [`Executor::resolve_bindings`] picks the bucket that covers the
//! bindings, and resolves every operand to a place in memory and every extent to a number
//! ([`ResolvedProgram`], once for each binding). A session walks the steps of the resolved program: kernels
//! run here, collectives go to a [`Communicator`].
//!
//! ```text
//! Plan ──► PreparedBucket (graph, layouts, placements) ──bind──► ResolvedProgram (numbers) ──► run (addresses)
//! ```
//!
//! The plan has been checked. The conditions of memory safety are checked again where it is cheap: every view
//! lies within its base, every base within its buffer, every buffer within its arena, and the caller's memory
//! is as large as the program requires.
//!
//! Deliberately absent: communication between ranks, processes, and the choice of a plan.

mod bucket;
mod communicator;
mod config;
mod custom;
mod executor;
mod memory;
mod placement;
mod relocation;
mod resolve;
mod resolved;
mod run;
mod slabs;
mod step;

pub use crate::custom::CustomKernelRegistry;
pub use bucket::{CustomKernel, MemorySpace, PreparedBucket, unread_plan_error};
pub use communicator::Communicator;
pub use config::{ExecConfig, Lanes, RunReport, Timing};
pub use executor::{Executor, expect_kernels};
pub use memory::{ByteSpan, InputData, InputSource, RankMemory};
pub use placement::ProgramPlacement;
pub use relocation::RelocatedRange;
pub use resolved::{
    ExecutableStep, LocatedTensor, PeerRegion, ResolvedCollective, ResolvedDispatch, ResolvedInput,
    ResolvedMember, ResolvedOutput, ResolvedPeers, ResolvedProgram, ResolvedRegion, StepWork,
};
