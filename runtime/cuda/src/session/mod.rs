//! Sessions: one rank of a plan that stays loaded on its GPU. The caller can provide memory, a stream and a
//! communicator, change sizes, and enqueue one run after another.
//!
//! ```text
//! sizes ──with all ranks──► ProgramChoices: algorithms, code      kept by sizes, the same on all ranks
//! sizes + memory ──this rank alone──► Recording: one graph        kept by sizes and addresses
//! other memory: a recording of these sizes is changed             the parameters of the nodes that hold its addresses
//! run = launch of a recording, on any stream
//! ```
//!
//! Ranks have to agree only on choices that depend on sizes. Another pointer concerns only its rank, because
//! callers' memory is aligned to [`ALIGN`], and no kernel or algorithm is chosen for a larger alignment.

mod context;
mod cuda_session;
mod device_tensors;
mod gpu;
mod lru_cache;
mod memory;
mod multi_program;
mod peer_watch;
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
pub use gpu::{ALIGN, BorrowedHandles, GpuAssignment, GpuConfig, ProgressReporting};
pub use program_bench::ProgramBench;
