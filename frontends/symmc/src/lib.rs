//! The stable Rust API of symmc.
//!
//! ```no_run
//! use symmc::{Backend, Config, OpenOptions, Program, RunConfig, TensorFile, Workload};
//!
//! # fn main() -> Result<(), symmc::Error> {
//! let program = Program::open("model.pt2".as_ref(), &OpenOptions { ranks: Some(4), ..OpenOptions::default() })?;
//! let plan = symmc::compile(&program, &Config::default())?;
//! println!("{}", plan.report());
//! let tensors = TensorFile::open("model.safetensors".as_ref())?;
//! let work = Workload::recorded(&program, &tensors)?;
//! let backend = Backend::Threads;
//! let outputs = symmc::run(&plan, &work, &backend, &RunConfig::default())?;
//! # let _ = outputs; Ok(()) }
//! ```
//!
//! A [`Program`] is opened from a `.pt2`, `.onnx` or `.symm` file ([`Program::open_files`] takes the ONNX models of all ranks), [`compile`] makes a [`Plan`] of it and proves
//! that safe, and [`run`] executes the [`CheckedPlan`] on a [`Backend`]. [`checked`] proves a plan from a file safe. A [`Workload`] is what a run needs
//! besides: the values of the symbols and the inputs of every rank. Kernels of [`mod@custom`] ops are registered
//! and given with the [`RunConfig`]. Errors say whether the input was bad
//! ([`Error::is_bad_input`]) or a run failed.

mod against_source;
pub mod bench;
mod compile;
mod content;
pub mod custom;
mod error;
mod memory;
mod outputs;
mod program;
mod recorded;
mod run;
mod tensors;
mod weights;
mod workload;

pub use against_source::{SourceComparison, compare_with_source};
pub use compile::{
    Bind, BucketSpec, Config, canonical, check, checked, compile, compile_timed, lowered, read_plan,
    refuse_for_gpus,
};
pub use custom::{Registry, Signature, check_kernels, rank_main};
pub use error::Error;
pub use outputs::{check_output, write_outputs};
pub use program::{OpenOptions, Program};
pub use run::{Backend, RunConfig, accepts, engines, run, run_joined, run_joined_timed, run_timed};
pub use tensors::TensorFile;
pub use weights::Weights;
pub use workload::{Draw, Expected, Workload, bindings};

pub use symmc_cuda as cuda;
pub use symmc_ir as ir;
pub use symmc_ir::machine::Profile;
pub use symmc_ir::{Bindings, Graph, Tensor};
/// The ONNX ops that are imported as more than opaque ones, and what they become.
pub use symmc_onnx::supported_ops as supported_onnx_ops;
pub use symmc_planner::check::Report;
pub use symmc_planner::pack;
pub use symmc_planner::plan::{self, Plan};
pub use symmc_planner::{CheckedPlan, Order};
pub use symmc_runtime::host;
pub use symmc_torch::supported_ops;
