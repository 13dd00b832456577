//! Runs plans on GPUs: one rank for each GPU, one symmetric arena each, one CUDA graph for each recorded run.
//!
//! ```text
//! Bound (numbers) ──codegen──► Command (launches, symbolic pointers) ──program──► CUDA graph ──session──► runs
//! ```
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

pub use codegen::compute::gemm_search::AlgorithmSelection;
pub use config::CudaConfig;
pub use error::CudaError;
pub use session::{CudaSession, GpuConfig, ProgressReporting};
