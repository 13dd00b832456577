//! Runs plans on GPUs: one process per GPU, one symmetric arena each, one CUDA graph per binding.
//!
//! ```text
//! Bound (numbers) ──compute, collective──► Command (launches with addresses) ──capture──► CUDA graph
//! ```
//!
//! From the bottom up: [`pointer`] is an address or a place in an input or output, [`launch`] is a kernel with its
//! parameters, [`driver`] owns what the CUDA driver gives (contexts, memory, streams, modules, graphs), [`arena`] is symmetric memory, [`compile`] turns CUDA C into loaded modules,
//! [`command`] is what a step becomes on a device, [`compute`], [`collective`] and [`nccl`] translate steps into that
//! ([`setting`] is what they are lowered with, [`lowered`] what comes of it), [`program`] records them, and
//! [`embedded`] is one rank of a plan, which stays as long as its caller wants, on memory, streams and communicators of
//! its own or of its caller ([`adopt`]). [`config`] says how jobs and measurements ([`bench`]) run there.
//!
//! [`gpus`] and [`libraries`] say what this machine has of all that.
//!
//! CUDA is found at run time. Without it everything here builds, and using it is an error that says what is
//! missing. No panic of a loader reaches a caller: every library is asked for before it is used.

pub mod addresses;
pub mod adopt;
mod agreement;
pub mod arena;
pub mod bench;
mod cache;
pub mod collective;
pub mod command;
pub mod compile;
pub mod compute;
pub mod config;
pub mod cudnn;
mod dispatch;
pub mod driver;
pub mod embedded;
pub mod error;
pub mod exchange;
pub mod gpus;
mod largest;
pub mod launch;
pub mod libraries;
pub mod lowered;
pub mod nccl;
mod order;
pub mod pointer;
pub mod program;
pub mod refusal;
mod report;
mod resources;
pub mod scratch;
pub mod setting;
mod staging;
pub mod streams;
mod wait;

pub use compute::search::Products;
pub use config::CudaConfig;
pub use embedded::{CudaSession, Gpu, Progress};
pub use error::CudaError;
