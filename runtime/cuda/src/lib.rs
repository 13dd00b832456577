//! Runs plans on GPUs: one rank per GPU, one symmetric arena per rank, one CUDA graph per recorded run.
//!
//! ```text
//! Bound (numbers) ──codegen──► Command (launches, symbolic pointers) ──program──► CUDA graph ──session──► runs
//! ```
//!
//! CUDA is found at run time. Without CUDA this crate still builds, and its functions return an error that
//! names the missing library. No loader panic reaches a caller: each library is probed before it is used.

pub mod arena;
pub mod bench;
pub mod codegen;
pub mod cudnn;
pub mod device;
pub mod error;
pub mod exchange;
pub mod nccl;
pub mod program;
pub mod report;
pub mod session;

pub use codegen::compute::AlgorithmSelection;
pub use error::CudaError;
pub use session::{CudaSession, GpuAssignment, GpuConfig, ProgressReporting};
