//! One rank of a plan that stays on its GPU: memory, stream and communicator of its caller, sizes that change, runs behind
//! each other.
//!
//! ```text
//! sizes ──with all ranks──► Settled: algorithms, compiled code      kept by sizes, the same on all ranks
//! sizes + memory ──this rank alone──► Recording: one graph          kept by sizes and addresses
//! other memory: a recording of these sizes is changed          the parameters of the nodes that hold its addresses
//! run = launch of a recording, on any stream
//! ```
//!
//! What ranks have to agree on depends on sizes alone, so that another pointer is the business of its rank: memory that
//! is lent starts at a multiple of [`ALIGN`], and no kernel or algorithm is chosen for more than that.

mod context;
mod cuda_session;
mod device_tensors;
mod gpu;
mod lru_cache;
mod memory;
mod multi_program;
mod pending_runs;
mod program_bench;
mod progress;
mod recording;
mod recording_cache;
mod report;
pub(crate) mod resources;
mod run;
pub(crate) mod wait;

pub use context::memory_budget;
pub use cuda_session::CudaSession;
pub use gpu::{ALIGN, BorrowedHandles, GpuConfig, ProgressReporting};
pub use program_bench::{ProgramBench, measure_program};
