//! Runs plans on GPUs: one rank for each GPU, one symmetric arena each, one CUDA graph for each recorded run.
//!
//! ```text
//! Bound (numbers) ──codegen──► Command (launches, symbolic pointers) ──program──► CUDA graph ──session──► runs
//! ```
//!
//! From the bottom up:
//!
//! - [`device`]: what the CUDA driver gives (contexts, memory, streams, modules, graphs), symmetric memory, launches and the
//!   pointers in them, and what this machine has of GPUs and libraries.
//! - [`cudnn`], [`nccl`]: attention and collectives of the vendor's libraries.
//! - [`codegen`]: what steps become on a GPU: kernels, calls of libraries, compiled code.
//! - [`program`]: the steps of a rank with their code loaded, and how they are put on streams and recorded.
//! - [`session`]: one rank of a plan that stays, on memory, streams and communicators of its own or of its caller.
//! - [`mod@bench`]: times of collectives. [`config`] says how jobs and measurements use the GPUs.
//!
//! CUDA is found at run time. Without it everything here builds, and using it is an error that says what is
//! missing. No panic of a loader reaches a caller: every library is asked for before it is used.

pub mod bench;
pub mod codegen;
pub mod config;
pub mod cudnn;
pub mod device;
pub mod error;
pub mod exchange;
pub mod nccl;
pub mod program;
pub mod session;

pub use codegen::compute::search::Products;
pub use config::CudaConfig;
pub use error::CudaError;
pub use session::{CudaSession, Gpu, Progress};
