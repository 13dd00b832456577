//! Executes the steps of a checked plan on one rank.
//!
//! An [`Executor`] holds a plan for one rank. [`Executor::bind`] picks the bucket that serves the bindings, and resolves
//! every operand to a place in memory and every extent to a number ([`Bound`], once for each binding). A session walks the
//! steps of that: kernels run here, collectives go to a [`Communicator`].
//!
//! ```text
//! Plan ──► PreparedBucket (one bucket: graph, layouts, places) ──bind──► Bound (numbers) ──► run (addresses)
//! ```
//!
//! The plan has been checked; what memory safety needs is checked again where it is cheap: every view lies
//! within its base, every base within its buffer, every buffer within its arena, and the caller's memory is
//! as large as the program says.
//!
//! Not here: how ranks reach each other, processes, and the choice of a plan.

mod bind;
mod bound;
mod bucket;
mod communicator;
mod config;
mod custom;
mod executor;
mod memory;
mod moved;
mod placement;
mod run;
mod step;

pub use crate::custom::Registry;
pub use bound::{
    Bound, BoundCollective, BoundDispatch, BoundInput, BoundOutput, BoundPeers, BoundRegion, BoundStep,
    Located, Member, PeerRegion, Work,
};
pub use bucket::{CustomKernel, MemorySpace, PreparedBucket, unread_plan};
pub use communicator::Communicator;
pub use config::{ExecConfig, Lanes, RunReport, Timing};
pub use executor::Executor;
pub use memory::{InputData, InputSource, RankMemory, Span};
pub use moved::Moved;
pub use placement::Placement;
