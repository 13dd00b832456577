//! The arguments of `symmc run`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
#[cfg(feature = "cuda")]
use symmc::{AlgorithmSelection, ArenaSource, GpuConfig};
use symmc::{Device, LauncherChoice, RankDraw};

use super::program::{CompileArgs, ProgramArgs};
use super::values::{parse_seconds, parse_setting, parse_tolerance};

pub const RUN_PROGRAM: &str = "The program, or a plan (JSON)";

pub const RUN_PROGRAM_LONG: &str = "\
The program, or a plan (JSON)

A .pt2 archive of torch.export, an .onnx model or .symm text. A program with a file for each rank takes the .pt2 archives or \
.onnx models of all ranks, rank 0 first. A plan is a file that `symmc plan -o FILE` wrote.";

pub const RUN_EXAMPLES: &str = "\
Examples:
  symmc run model.pt2 --ranks 4 --tensors model.safetensors
  symmc run model.pt2 --ranks 4 --set tokens=7 --seed 1 --compare interpreter
  symmc run model.plan.json --tensors model.safetensors
  symmc run model_rank0.onnx model_rank1.onnx --tensors model.safetensors
  symmc run model.pt2 --tensors model.safetensors --compare none --output outputs.safetensors --print
  symmc run model.pt2 --tensors model.safetensors --chaos 3 --repeat 10
  torchrun --nproc-per-node 4 --no-python symmc run model.pt2 --tensors model.safetensors";

#[derive(ClapArgs, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Run this plan of the program, without planning the program again
    #[arg(long, value_name = "FILE", help_heading = "Program")]
    pub plan: Option<PathBuf>,
    #[command(flatten)]
    pub compile: CompileArgs,
    /// A safetensors file with weights, inputs and expected outputs of all ranks
    #[arg(long, value_name = "FILE", help_heading = "Inputs")]
    pub tensors: Option<PathBuf>,
    /// The value of a symbol
    ///
    /// Recorded arguments whose shapes do not have this value are replaced by random ones.
    #[arg(long = "set", value_name = "SYMBOL=N", value_parser = parse_setting, help_heading = "Inputs")]
    pub set: Vec<(String, i64)>,
    /// Generate random arguments from this seed, also if --tensors records arguments
    #[arg(long, value_name = "SEED", help_heading = "Inputs")]
    pub seed: Option<u64>,
    /// Which random arguments differ by rank
    ///
    /// If the operands of collectives differ, the comparison finds a collective that reads the wrong peer. Other
    /// arguments, such as tokens and positions, are the same on every rank by default.
    #[arg(long, value_enum, default_value_t = DrawArg::Operands, help_heading = "Inputs")]
    pub draw: DrawArg,
    /// What to compare the outputs with
    ///
    /// [default: the outputs that --tensors records, if it records any]
    #[arg(long, value_enum, help_heading = "Comparison")]
    pub compare: Option<CompareMode>,
    /// The absolute part of the tolerance of floats
    ///
    /// For every element, |found - expected| <= atol + rtol * |expected|. Integers and booleans must be equal, a NaN is
    /// equal only to a NaN, and an infinity only to itself. [default: rtol times the median magnitude of the expected
    /// output]
    #[arg(
        long,
        value_name = "X",
        value_parser = parse_tolerance,
        allow_negative_numbers = true,
        help_heading = "Comparison"
    )]
    pub atol: Option<f64>,
    /// The relative part of the tolerance of floats
    ///
    /// [default: 1e-9 for f64, 3e-5 for f32, 5e-3 for f16, 4e-2 for bf16]
    #[arg(
        long,
        value_name = "X",
        value_parser = parse_tolerance,
        allow_negative_numbers = true,
        help_heading = "Comparison"
    )]
    pub rtol: Option<f64>,
    /// What runs the ranks
    #[arg(long, value_enum, default_value_t = ExecutionArg::Host, help_heading = "Execution")]
    pub backend: ExecutionArg,
    /// Which launcher starts the ranks
    ///
    /// With torchrun, mpi or slurm this process is one of the ranks.
    #[arg(long, value_enum, default_value_t = LaunchArg::Auto, help_heading = "Execution")]
    pub launch: LaunchArg,
    /// How often to run the plan
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Execution"
    )]
    pub repeat: u32,
    /// The longest time that a rank waits for other ranks, also when the run starts
    #[arg(
        long,
        default_value_t = 30.0,
        value_name = "SECONDS",
        value_parser = parse_seconds,
        help_heading = "Execution"
    )]
    pub timeout: f64,
    /// Delay ranks at random before and after each access to the memory of a peer
    #[arg(long, value_name = "SEED", help_heading = "Execution")]
    pub chaos: Option<u64>,
    /// The GPU of each rank, with --backend cuda [default: GPU r for rank r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', help_heading = "Execution")]
    pub gpus: Vec<u32>,
    /// What allocates the symmetric arena, with --backend cuda [default: vmm]
    #[arg(long, value_enum, help_heading = "Execution")]
    pub arena: Option<ArenaArg>,
    /// How the algorithms of matrix products and attention are chosen, with --backend cuda [default: measured]
    #[arg(long, value_enum, help_heading = "Execution")]
    pub products: Option<ProductsArg>,
    /// Write the outputs of all ranks to a safetensors file
    ///
    /// The names are those that --tensors reads: rank{r}.out.{i}. If the program changes an input, its new value has the
    /// name of the input. Under another launcher each rank writes a file of its own, FILE.rank{r}.safetensors for
    /// FILE.safetensors.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Print the outputs
    ///
    /// Outputs of up to 64 elements are printed in full, larger ones as minimum, maximum and mean.
    #[arg(long, help_heading = "Output")]
    pub print: bool,
    /// Print how long the runs took, to standard error
    ///
    /// The least and the median time of the runs of --repeat on the slowest rank, and the time of everything, with the
    /// start of the ranks.
    #[arg(long, help_heading = "Output")]
    pub timing: bool,
    /// Write the times of the last run's steps on the GPUs, for Perfetto or chrome://tracing, with --backend cuda
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub profile_trace: Option<PathBuf>,
}

impl RunArgs {
    /// The device of a run on GPUs, with the options that concern it.
    #[cfg(feature = "cuda")]
    pub fn device(&self) -> Device {
        let arena = match self.arena {
            Some(ArenaArg::Nccl) => ArenaSource::Nccl,
            Some(ArenaArg::Vmm) | None => ArenaSource::Vmm,
        };
        let gpus = GpuConfig::default().with_gpus(self.gpus.clone()).with_arena(arena);
        let products = self.products.map(AlgorithmSelection::from).unwrap_or_default();
        Device::Gpu(gpus.with_products(products))
    }

    /// Builds without GPUs refuse `--backend cuda` before they ask for its device.
    #[cfg(not(feature = "cuda"))]
    pub fn device(&self) -> Device {
        Device::Host
    }
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawArg {
    /// Operands of collectives, also through moves and element-wise ops
    Operands,
    /// No arguments
    Shared,
    /// All arguments
    PerRank,
}

impl From<DrawArg> for RankDraw {
    fn from(arg: DrawArg) -> RankDraw {
        match arg {
            DrawArg::Operands => RankDraw::CollectiveOperands,
            DrawArg::Shared => RankDraw::Shared,
            DrawArg::PerRank => RankDraw::PerRank,
        }
    }
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchArg {
    /// The launcher that the environment variables show, else this process
    Auto,
    /// This process, whatever the environment variables say
    Local,
    /// torchrun (RANK, WORLD_SIZE)
    Torchrun,
    /// mpirun or mpiexec of Open MPI, MPICH, Intel MPI or MVAPICH (OMPI_COMM_WORLD_RANK, PMI_RANK, MV2_COMM_WORLD_RANK)
    Mpi,
    /// srun (SLURM_PROCID within a step)
    Slurm,
}

impl From<LaunchArg> for LauncherChoice {
    fn from(arg: LaunchArg) -> LauncherChoice {
        match arg {
            LaunchArg::Auto => LauncherChoice::Auto,
            LaunchArg::Local => LauncherChoice::Local,
            LaunchArg::Torchrun => LauncherChoice::Torchrun,
            LaunchArg::Mpi => LauncherChoice::Mpi,
            LaunchArg::Slurm => LauncherChoice::Slurm,
        }
    }
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaArg {
    /// The driver's virtual memory management; ranks pass the memory to each other as file descriptors
    Vmm,
    /// NCCL, with a window over all ranks
    Nccl,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionArg {
    /// One process per rank over shared memory
    Host,
    /// One process per rank, each with a GPU
    Cuda,
    /// One thread per rank in this process
    Threads,
    /// The reference interpreter, which runs the program without its plan
    Interpreter,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProductsArg {
    /// The fastest of several, measured once for each shape and kept in the user's cache
    Measured,
    /// The first that cuBLASLt suggests; attention runs in symmc's kernels, not cuDNN's
    Heuristic,
}

#[cfg(feature = "cuda")]
impl From<ProductsArg> for AlgorithmSelection {
    fn from(arg: ProductsArg) -> AlgorithmSelection {
        match arg {
            ProductsArg::Measured => AlgorithmSelection::Measured,
            ProductsArg::Heuristic => AlgorithmSelection::Heuristic,
        }
    }
}

/// The expected outputs of a comparison.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareMode {
    /// The reference interpreter on the imported program
    Interpreter,
    /// The outputs that --tensors records
    Recorded,
    /// Nothing: do not compare
    None,
}
