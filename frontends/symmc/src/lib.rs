//! The stable Rust API of symmc: it compiles programs with communication into plans, proves the plans safe, and runs them.
//!
//! ```no_run
//! use symmc::{Execution, CompileConfig, OpenOptions, Program, RunConfig, TensorFile, Workload};
//!
//! # fn main() -> Result<(), symmc::Error> {
//! let program = Program::open("model.pt2".as_ref(), &OpenOptions::default().with_ranks(4))?;
//! let plan = symmc::compile(&program, &CompileConfig::default().with_slack(0.1))?;
//! println!("{}", plan.report());
//! let tensors = TensorFile::open("model.safetensors".as_ref())?;
//! let work = Workload::recorded(&program, &tensors)?;
//! let outputs = symmc::run(&plan, &work, &Execution::Threads, &RunConfig::default().with_repeats(2))?;
//! # let _ = outputs; Ok(()) }
//! ```
//!
//! # From a file to outputs
//! 1. [`Program::open`] reads a `.pt2`, `.onnx` or `.symm` file. [`Program::open_files`] reads the files of all ranks, and
//!    [`Program::from_text`] parses text.
//! 2. [`compile`] makes a [`CheckedPlan`]: a [`Plan`] that was proved safe. [`into_checked_plan`] proves a plan that was read
//!    from a file ([`read_plan`]).
//! 3. A [`Workload`] holds the other things that a run needs: the values of the symbols and the inputs of every rank.
//! 4. [`run`] executes the plan in the way that an [`Execution`] states. [`run_joined`] executes one rank of it, in a process that another launcher
//!    started. Kernels of [`mod@custom`] ops are registered in the [`RunConfig`].
//!
//! # Sessions
//! A [`Session`] is one rank of a plan that stays open. Engines open it once, share the memory of weights, caches, inputs and
//! outputs with it, set sizes, and start runs. The ranks of a [`Group`] open it together, on the host or each on a GPU
//! (`SessionConfig::with_gpu`).
//!
//! # Configurations
//! [`OpenOptions`], [`CompileConfig`], [`DrawConfig`], [`RunConfig`] and [`SessionConfig`] gain fields in later versions. Begin
//! with their `default()` and change fields by the `with_…` methods, each of which is named after its field.
//!
//! ```
//! use symmc::{ArgumentBinding, BucketSpec, CompileConfig, ErrorKind, Program};
//!
//! let program = Program::from_text(
//!     "program \"sum\" ranks 2\nsymbol n in 1..=64\ngroup @all world\narg %x: f32[n, 8]\n\
//!      %y: f32[n, 8] = all_reduce %x op=sum group=@all\nreturn %y\n",
//! )?;
//! let config = CompileConfig::default().with_buckets([BucketSpec::new("n", [8, 64])]).with_bind(ArgumentBinding::All);
//! let plan = symmc::compile(&program, &config)?;
//! assert_eq!(plan.buckets.len(), 2);
//!
//! let error = symmc::compile(&program, &config.with_buckets([BucketSpec::new("m", [8])])).expect_err("no symbol m");
//! assert_eq!((error.kind(), error.is_bad_input()), (ErrorKind::Input, true));
//! # Ok::<(), symmc::Error>(())
//! ```
//!
//! # Errors
//! All functions return one [`Error`]. Its [kind](Error::kind) says what went wrong, and so whether a different request can
//! succeed ([`ErrorKind::is_bad_input`]). As far as they are known, the error also gives the file, the rank, the step, the
//! node and the op. Its source is the error of the inner crate that caused it.
//!
//! # Diagnosing a machine
//! [`doctor()`] reports what this machine supports and what it lacks, with a remedy for each problem ([`mod@doctor`]).
//!
//! # Features
//! | feature | adds |
//! |---|---|
//! | `cuda` | GPUs: `GpuConfig`, `check_gpu_support`, `bench`. CUDA itself is loaded when it is used |
//! | `torch` | `.pt2` archives of PyTorch |
//! | `onnx` | ONNX models |
//!
//! All are on by default. Without them the crate still plans `.symm` programs for every machine and runs them on host ranks.
//! A request that needs a disabled feature fails with [`ErrorKind::Unsupported`] and names the feature.
//!
//! # Stability
//! All items that this page lists are stable. Types that come from an inner crate are stable as names, to be held and passed
//! on. The inner crates themselves are in [`mod@unstable`] and change with any version.

#![warn(missing_docs)]

#[cfg(feature = "cuda")]
pub mod bench;
mod compile;
mod config;
mod content;
pub mod custom;
mod device;
pub mod doctor;
mod error;
mod estimate;
mod files;
mod machine;
#[cfg(feature = "cuda")]
mod measure_task;
mod memory;
mod outputs;
mod parameters;
mod program;
mod rank_task;
mod recorded_outputs;
#[cfg(feature = "cuda")]
mod repeat;
mod run;
mod session;
mod source_comparison;
mod tensors;
#[cfg(feature = "cuda")]
mod tune;
pub mod unstable;
mod weights;
mod workload;

// Programs and their tensors.
pub use program::{OpenOptions, Program};
pub use symmc_import::ranges::SymbolConstraint;
pub use symmc_ir::{DType, Graph, SymbolBindings, Tensor};
pub use tensors::TensorFile;
pub use weights::Weights;

// Plans, their proof and their reports.
#[cfg(feature = "cuda")]
pub use compile::check_gpu_support;
pub use compile::{
    canonicalize_program, check, compile, compile_with_report, into_checked_plan, lower_program, read_plan,
};
pub use config::{ArgumentBinding, BucketSpec, CompileConfig};
pub use estimate::{estimate, estimate_at, estimate_plain};
pub use machine::machine_profile;
pub use source_comparison::{compare_with_source, require_full_comparison};
pub use symmc_check::CheckReport;
pub use symmc_check::CheckedPlan;
pub use symmc_compare::{
    ComparedPart, EquationClass, LimitKind, PartLimit, SourceComparison, SourceDifferences, SourceStatus,
};
pub use symmc_driver::{CompileReport, TriedProposal};
pub use symmc_ir::CollectiveVariant;
pub use symmc_ir::machine::MachineProfile;
pub use symmc_ir::numerics::{Numerics, NumericsClass, NumericsError};
pub use symmc_plan::{BucketEstimate, CommunicationEstimate, Plan};
pub use symmc_planner::OrderStrategy;

// Runs.
pub use custom::{CustomKernelRegistry, KernelSignature, check_kernels, rank_main, run_rank_from_fd};
pub use device::Device;
pub use outputs::{
    check_output, check_writable, refuse_overwrite, refuse_same_output, write_file, write_outputs,
};
pub use recorded_outputs::ExpectedOutputs;
pub use run::{
    Execution, RunConfig, check_device_support, run, run_joined, run_joined_timed, run_timed, run_with_noise,
};
pub use symmc_control::{JoinTerm, LauncherChoice, Membership, RankCommand};
#[cfg(feature = "cuda")]
pub use symmc_cuda::{AlgorithmSelection, GpuAssignment, GpuConfig, ProgressReporting, arena::ArenaSource};
pub use symmc_ir::interp::SeedScope as RankDraw;
pub use symmc_runtime::job::{JobResult, RunTimes};
pub use workload::{DrawConfig, Workload, resolve_bindings};

// Sessions.
pub use session::buffer::SessionBuffer;
pub use session::slot::PortSlot;
pub use session::{
    Bootstrap, Group, MemoryUsage, PortStorage, RecordingCounts, Session, SessionConfig, SessionValue,
    ValueKind, ValueMemory,
};

// Diagnosing this machine.
pub use doctor::{Diagnosis, DoctorConfig, doctor};

// Errors.
pub use error::{Error, ErrorKind, GroupSyntax, UnknownGroup};
pub use symmc_runtime::DataFault;

/// The ONNX ops that are imported as known ops, not as opaque ones, each with its translation.
#[cfg(feature = "onnx")]
pub use symmc_onnx::supported_ops as supported_onnx_ops;
/// The PyTorch ops that are imported as known ops, not as opaque ones, each with its translation.
#[cfg(feature = "torch")]
pub use symmc_torch::supported_ops as supported_torch_ops;

/// The guide for embedders, whose Rust programs are tests.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../../docs/embedding.md")]
struct Embedding;
