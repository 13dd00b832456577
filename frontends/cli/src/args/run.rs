//! The arguments of `symmc run`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
#[cfg(feature = "cuda")]
use symmc::{AlgorithmSelection, ArenaSource, CudaConfig};
use symmc::{LauncherChoice, RankDraw, RunDevice};

use super::program::{CompileArgs, ProgramArgs};
use super::values::{parse_seconds, parse_setting, parse_tolerance};

pub const RUN_PROGRAM: &str = "The program (.pt2, .symm, or the archives or .onnx models of its ranks, rank 0 first), or a plan (.json)";

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
    #[command(flatten)]
    pub compile: CompileArgs,
    /// Run this plan of the program instead of planning it
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Weights, inputs and expected outputs of every rank (safetensors)
    #[arg(long, value_name = "FILE")]
    pub tensors: Option<PathBuf>,
    /// The value of a symbol; arguments that do not fit it are drawn
    #[arg(long = "set", value_name = "SYMBOL=N", value_parser = parse_setting)]
    pub set: Vec<(String, i64)>,
    /// Draw the arguments from this seed
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Which drawn arguments differ by rank
    #[arg(long, value_enum, default_value_t = DrawArg::Operands)]
    pub draw: DrawArg,
    /// What to compare the results with; by default what --tensors records
    #[arg(long, value_enum)]
    pub compare: Option<CompareMode>,
    /// The absolute part of what a float may differ by: |found - expected| <= atol + rtol * |expected| for every
    /// element. Integers and booleans are exact, NaN equals NaN only, and infinities themselves [default: rtol of a
    /// typical element, the median of the expected output's magnitudes]
    #[arg(long, value_name = "X", value_parser = parse_tolerance)]
    pub atol: Option<f64>,
    /// The part that is a fraction of the expected element [default: 1e-9 for f64, 3e-5 for f32, 5e-3 for f16 and
    /// 4e-2 for bf16]
    #[arg(long, value_name = "X", value_parser = parse_tolerance)]
    pub rtol: Option<f64>,
    /// Delay ranks at random before and after every touch of a peer
    #[arg(long, value_name = "SEED")]
    pub chaos: Option<u64>,
    /// How often to run the plan
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// No wait of a rank takes longer, also for the others to join
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = parse_seconds)]
    pub timeout: f64,
    /// Print how long the runs took, to standard error: the least and the median of --repeat on the slowest rank, and all
    /// with starting the ranks
    #[arg(long)]
    pub timing: bool,
    /// Write the outputs of all ranks to a file (safetensors), named as --tensors reads them: rank{r}.out.{i}; the new
    /// value of an input that the program changes has the input's name. Under another launcher each rank writes its own,
    /// FILE.safetensors as FILE.rank{r}.safetensors
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the elements of small outputs (up to 64), and extremes and mean of others
    #[arg(long)]
    pub print: bool,
    /// What runs it
    #[arg(long, value_enum, default_value_t = BackendArg::Host)]
    pub backend: BackendArg,
    /// Who starts the ranks: with torchrun, mpi or slurm this process is one of them
    #[arg(long, value_enum, default_value_t = LaunchArg::Auto)]
    pub launch: LaunchArg,
    /// With --backend cuda, the GPU of each rank [default: rank r takes GPU r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub gpus: Vec<u32>,
    /// With --backend cuda, who allocates the symmetric arena [default: vmm]
    #[arg(long, value_enum)]
    pub arena: Option<ArenaArg>,
    /// With --backend cuda, how algorithms of matrix products and attention are chosen [default: measured]
    #[arg(long, value_enum)]
    pub products: Option<ProductsArg>,
    /// With --backend cuda, write the device times of the last run's steps, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub profile_trace: Option<PathBuf>,
}

impl RunArgs {
    /// What runs a plan on GPUs.
    #[cfg(feature = "cuda")]
    pub fn device(&self) -> RunDevice {
        let arena = match self.arena {
            Some(ArenaArg::Nccl) => ArenaSource::Nccl,
            Some(ArenaArg::Vmm) | None => ArenaSource::Vmm,
        };
        let gpus = CudaConfig::default().with_gpus(self.gpus.clone()).with_arena(arena);
        let products = self.products.map(AlgorithmSelection::from).unwrap_or_default();
        RunDevice::Gpus(gpus.with_products(products))
    }

    /// None is left that would ask.
    #[cfg(not(feature = "cuda"))]
    pub fn device(&self) -> RunDevice {
        RunDevice::Host
    }
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawArg {
    /// Operands of collectives, also after moves and element-wise ops, so that the comparison finds a collective that reads
    /// the wrong peer; all others, such as tokens and positions, are the same on every rank
    Operands,
    /// None
    Shared,
    /// All
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
    /// The launcher that the environment shows, or else this process
    Auto,
    /// This process, whatever the environment says
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
    /// The driver; ranks pass it to each other as file descriptors
    Vmm,
    /// NCCL, with a window over all ranks
    Nccl,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendArg {
    /// One process per rank over shared memory
    Host,
    /// One process per rank, each with a GPU
    Cuda,
    /// One thread per rank in this process
    Threads,
    /// The reference interpreter, without a plan
    Interpreter,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProductsArg {
    /// The fastest of several, timed once for each shape and kept in the user's cache
    Measured,
    /// The first that cuBLASLt names; attention by symmc's kernels, not cuDNN's
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

/// What results are compared with.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareMode {
    /// The reference interpreter on the imported program
    Interpreter,
    /// The outputs that --tensors records
    Recorded,
    /// Nothing
    None,
}
