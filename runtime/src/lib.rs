//! Runs plans: host ranks over shared memory.
//!
//! [`job`] runs plans from given inputs to outputs. [`exec`] walks the steps of a checked plan on one rank.
//! [`kernels`] are the ops on the CPU. [`custom`] holds the kernels of custom ops. [`call`] is the interface
//! through which [`host`] moves data between ranks. [`session`] is the interface of a rank of a plan between
//! runs. [`output_file`] writes files atomically.
//!
//! The crate trusts a plan only as far as memory safety does not depend on it: every region is bounds-checked
//! when it is resolved for a run.

pub mod call;
pub mod custom;
pub mod exec;
pub mod host;
pub mod job;
pub mod kernels;
pub mod output_file;
pub mod session;

pub use call::{CallRegion, CollectiveCall, PeerCall, PeerMemory, RegionMemory};
pub use custom::CustomKernelRegistry;
pub use error::{DataFault, RunError};
pub use exec::unread_plan_error;
pub use symmc_control::error;
