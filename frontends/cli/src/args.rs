//! Command-line arguments. Examples in the help are real commands on programs of this repository.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::gpu;
use crate::messages;

mod doctor;
mod program;
mod run;
mod values;

use doctor::DOCTOR_EXAMPLES;
pub use doctor::{DoctorArgs, DoctorFormat};
pub use program::{CompileArgs, ProgramArgs};
pub use run::{BackendArg, CompareMode, LaunchArg, ProductsArg, RunArgs};
use run::{RUN_EXAMPLES, RUN_PROGRAM};
use values::{parse_bytes, parse_dtype, parse_name, parse_rows, parse_setting};

/// Places communication buffers of tensor programs in symmetric memory, proves the layout safe on every
/// rank, and runs it.
#[derive(Parser, Debug)]
#[command(name = "symmc", version, about, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: CliCommand,
}

const EXAMPLES: &str = "\
Examples:
  symmc plan model.pt2                                   what runs how, what lives where, and why
  symmc run model.pt2 --tensors model.safetensors        run on one process per rank and compare
  symmc plan model.pt2 --machine h200x8 --bucket tokens=1,64,8192 -o model.plan.json
  symmc check model.plan.json                            prove a plan safe
  symmc print model.pt2 > model.symm                     the program as text, which every command reads
  symmc doctor                                           what this machine can do, and what it lacks

SYMMC_LOG=debug has symmc write what each rank does to standard error (docs/debugging.md).

Exit codes: 0 success; 1 a comparison or check failed, or a rank died; 2 bad input.";

impl Args {
    /// Parses arguments, the first of which is the name of the command. Libraries are searched only for `--version`.
    /// Gives the exit code with which the command ends if help was requested and is printed, or the arguments are
    /// invalid.
    pub fn parse_arguments(arguments: Vec<OsString>) -> Result<Args, ExitCode> {
        let mut command = Args::command();
        if arguments.get(1).is_some_and(|first| first == "--version") {
            let text = format!("{}{}", env!("CARGO_PKG_VERSION"), gpu::libraries());
            command = command.long_version(&*text.leak());
        }
        let parsed = command.try_get_matches_from(arguments).and_then(|found| Args::from_arg_matches(&found));
        parsed.map_err(|error| {
            if error.use_stderr() {
                messages::usage_error(&error);
                return ExitCode::from(2);
            }
            match error.print().and_then(|()| std::io::stdout().flush()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    messages::error(&format!("writing to standard output: {error}"));
                    ExitCode::from(2)
                }
            }
        })
    }
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum CliCommand {
    /// Plan a program and say what was chosen, where every operand lives, and why
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanArgs),
    /// Prove a plan safe: no read of a lost value, no race, for any timing of the ranks and any sizes; compare it with its source
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Run a program or a plan, one process per rank, and compare the results
    #[command(after_help = RUN_EXAMPLES, mut_arg("program", |a| a.help(RUN_PROGRAM)))]
    Run(RunArgs),
    /// Print a program as text
    #[command(after_help = PRINT_EXAMPLES)]
    Print(PrintArgs),
    /// Pack the buffers of a table: an offset for each, with a low peak
    #[command(after_help = PACK_EXAMPLES)]
    Pack(PackArgs),
    /// Measure this machine's GPUs into a profile that --machine reads
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(TuneArgs),
    /// Measure what this machine's GPUs do
    #[command(subcommand)]
    Bench(BenchCommand),
    /// List the operators that each frontend supports
    Ops(OpsArgs),
    /// Say what this machine can do and what it lacks: GPUs, which reach which, libraries, limits
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// One rank of a run that another symmc started
    #[command(hide = true)]
    Rank(RankArgs),
}

const PLAN_EXAMPLES: &str = "\
Examples:
  symmc plan model.pt2
  symmc plan llama70b.pt2 --ranks 8 --machine h200x8 --bucket tokens=2,64,512,8192
  symmc plan model.pt2 --dim batch=1..64 --dim tokens=1..4096 --bucket batch=1,64 --bucket tokens=512,4096
  symmc plan model.pt2 --dim s43=s72                     two extents that the exporter did not know to be equal
  symmc plan model.pt2 -o model.plan.json
  symmc plan model.pt2 --format json
  symmc plan model.pt2 --explain %all_reduce
  symmc plan model.pt2 --orders                          the memory of each order beside program order
  symmc plan model_rank0.onnx model_rank1.onnx           the files of all ranks, rank 0 first";

const CHECK_EXAMPLES: &str = "\
Examples:
  symmc plan model.pt2 -o model.plan.json && symmc check model.plan.json

Safety is proven, for every sequence of runs and sizes. That the planned programs compute the same as the source is compared,
not proven: node by node, and on drawn values where nodes differ, at both ends of each bucket and where conditions on sizes
change. The last lines say whether the plan is equal to its source, equal by comparison of named parts, not compared (with the
reasons), or different.

Exit codes: 0 safe, and no difference found; 1 unsafe or different, with up to 100 findings, or not compared, or not
at all sizes that matter, under --require-compared; 2 not a plan.";

const PRINT_EXAMPLES: &str = "\
Examples:
  symmc print model.pt2 > model.symm
  symmc print model.pt2 --stage lowered --machine h200x8
  symmc print model.pt2 --stage planned --bucket tokens=1,64
  symmc print model.pt2 --format dot | dot -Tsvg > model.svg

With several buckets, lowered and planned print one program for each, under a comment that names it.";

const PACK_EXAMPLES: &str = "\
Examples:
  symmc pack tests/packing/minimalloc/A.1048576.csv --capacity 1048576
  symmc pack buffers.csv -o offsets.csv

The table has the columns id, lower, upper (exclusive) and size, or id, start, end (inclusive) and size; alignment
and offset are honoured, others read over.

Exit codes: 0 packed; 1 the capacity is not met; 2 not a table of buffers.";

#[derive(ClapArgs, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The tensors that it will run on (safetensors): they tell the number of ranks, and which constants differ by rank
    #[arg(long, value_name = "FILE")]
    pub tensors: Option<PathBuf>,
    /// Write the plan to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = PlanFormat::Text)]
    pub format: PlanFormat,
    /// Tell where a value lives, until when, who may touch it, and how its collective was chosen
    #[arg(long, value_name = "%VALUE", value_parser = parse_name, conflicts_with = "format")]
    pub explain: Option<String>,
    /// Plan in every order, and compare their memory
    #[arg(long, conflicts_with_all = ["format", "explain", "order", "output", "timing"])]
    pub orders: bool,
    /// Print how long each stage took
    #[arg(long)]
    pub timing: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanFormat {
    /// For people
    Text,
    /// For people, as a page with the memory over the steps
    Html,
    /// The plan itself
    Json,
    /// Estimated times, memory and collectives in numbers, as JSON
    Summary,
}

#[derive(ClapArgs, Debug)]
pub struct CheckArgs {
    /// The plan
    pub plan: PathBuf,
    /// Fail (exit code 1) if any part of the plan was not compared with its source, or not up to the largest sizes and where
    /// conditions on sizes change
    #[arg(long)]
    pub require_compared: bool,
}

#[derive(ClapArgs, Debug)]
pub struct PrintArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The tensors that it will run on (safetensors): they tell the number of ranks, and which constants differ by rank
    #[arg(long, value_name = "FILE")]
    pub tensors: Option<PathBuf>,
    /// symm: text that every command reads; dot: the dependence graph for Graphviz
    #[arg(long, value_enum, default_value_t = PrintFormat::Symm)]
    pub format: PrintFormat,
    /// Which stage to print
    #[arg(long, value_enum, default_value_t = PrintStage::Imported)]
    pub stage: PrintStage,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintFormat {
    /// The text form
    Symm,
    /// Graphviz
    Dot,
}

/// The stages of a program on its way to the plan.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintStage {
    /// As it was read
    Imported,
    /// After canonicalisation and recognition
    Canonical,
    /// With a variant for each collective, for each bucket
    Lowered,
    /// With copies and in the order of its steps, for each bucket
    Planned,
}

#[derive(ClapArgs, Debug)]
pub struct PackArgs {
    /// The table of buffers (CSV)
    pub file: PathBuf,
    /// The peak that is good enough; a higher one fails
    #[arg(long, value_name = "BYTES")]
    pub capacity: Option<u64>,
    /// Write the table with an offset for each buffer to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = PackFormat::Text)]
    pub format: PackFormat,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(ClapArgs, Debug)]
pub struct OpsArgs {
    /// Only operators whose name contains this
    pub filter: Option<String>,

    /// The text form (.symm) instead: its grammar, and every op with operands, attributes and an example
    #[arg(long)]
    pub symm: bool,
}

#[derive(ClapArgs, Debug)]
pub struct RankArgs {
    /// The control socket
    #[arg(long)]
    pub fd: i32,
}

const TUNE_EXAMPLES: &str = "\
Examples:
  symmc tune --ranks 4 -o machine.json && symmc plan model.pt2 --machine machine.json";

/// How a machine is measured.
#[derive(ClapArgs, Debug)]
pub struct TuneArgs {
    /// The number of ranks, each with a GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=8))]
    pub ranks: u32,
    /// The GPU of each rank [default: rank r takes GPU r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub gpus: Vec<u32>,
    /// The name that plans record
    #[arg(long, default_value = "tuned")]
    pub name: String,
    /// Sizes in bytes [default: powers of two from 1 KiB to 256 MiB]
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = parse_bytes)]
    pub bytes: Vec<usize>,
    /// The numbers of blocks that kernels are tried with, the best of which the profile keeps
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "8,16,32,64,128", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub blocks: Vec<u32>,
    /// How often each case is replayed, ten calls at a time
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub replays: u32,
    /// Keep the times of collectives of this profile, and measure only computation and what both take from each other
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_name, conflicts_with_all = ["bytes", "blocks"])]
    pub curves: Option<String>,
    /// Where the profile goes
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// What is measured.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Every variant of the collectives, with the vendor's own beside them
    #[command(after_help = BENCH_EXAMPLES)]
    Collectives(BenchArgs),
    /// A program or a plan, on inputs that are drawn
    #[command(after_help = BENCH_PROGRAM_EXAMPLES)]
    Program(Box<BenchProgramArgs>),
}

const BENCH_PROGRAM_EXAMPLES: &str = "\
Examples:
  symmc bench program model.pt2 --ranks 4 --machine h200x4 --set tokens=16
  symmc bench program model.plan.json
  symmc bench program model.pt2 --backend host --ranks 2";

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchBackendArg {
    /// One process per rank, each with a GPU
    Cuda,
    /// One process per rank over shared memory
    Host,
}

#[derive(ClapArgs, Debug)]
pub struct BenchProgramArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The value of a symbol; all need one [default: every bucket is measured at the upper ends of its ranges]
    #[arg(long = "set", value_name = "SYMBOL=N", value_parser = parse_setting)]
    pub set: Vec<(String, i64)>,
    /// Where the program runs
    #[arg(long, value_enum, default_value_t = BenchBackendArg::Cuda)]
    pub backend: BenchBackendArg,
    /// The GPU of each rank [default: rank r takes GPU r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub gpus: Vec<u32>,
    /// Replays of the graph that count, or runs on the host
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub replays: u32,
    /// Runs in one graph
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// How algorithms of matrix products and attention are chosen
    #[arg(long, value_enum, default_value_t = ProductsArg::Measured)]
    pub products: ProductsArg,
    /// Write the device times of one more run's steps, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub profile_trace: Option<PathBuf>,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  symmc bench collectives --ranks 4
  symmc bench collectives --ranks 2 --gpus 0,1 --bytes 4096,65536,1048576 --format json";

#[derive(ClapArgs, Debug)]
pub struct BenchArgs {
    /// The number of ranks, each with a GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=8))]
    pub ranks: u32,
    /// The GPU of each rank [default: rank r takes GPU r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub gpus: Vec<u32>,
    /// Sizes in bytes: the tensor, or the larger side of an all-gather or reduce-scatter
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = parse_bytes, default_values_t = [
        4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20,
    ])]
    pub bytes: Vec<usize>,
    /// The type of the elements
    #[arg(long, default_value = "bf16", value_parser = parse_dtype)]
    pub dtype: String,
    /// How often each case is replayed, ten calls at a time
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub replays: u32,
    /// Also all-reduces with the addition of a residual and RMS norm, of so many rows of so many elements
    #[arg(long, value_name = "ROWSxELEMENTS,…", value_delimiter = ',', value_parser = parse_rows)]
    pub norms: Vec<[usize; 2]>,
    /// The form of the answer
    #[arg(long, value_enum, default_value_t = BenchFormat::Text)]
    pub format: BenchFormat,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchFormat {
    /// Tables of medians
    Text,
    /// Least, median and most of each case
    Json,
}
