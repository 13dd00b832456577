//! Command-line arguments. Examples in the help are real commands on programs of this repository.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use symmc::{DType, Extent, Numerics, Order, Variant};

use crate::gpu;

mod doctor;
mod run;

use doctor::DOCTOR_EXAMPLES;
pub use doctor::{DoctorArgs, DoctorFormat};
pub use run::{ArenaArg, BackendArg, Compare, LaunchArg, ProductsArg, RunArgs};
use run::{RUN_EXAMPLES, RUN_PROGRAM};

/// The most ranks that `--ranks` takes, as clap wants it.
const MAX_RANKS: i64 = symmc::unstable::ir::verify::MAX_RANKS as i64;

/// Places communication buffers of tensor programs in symmetric memory, proves the layout safe on every
/// rank, and runs it.
#[derive(Parser, Debug)]
#[command(name = "symmc", version, about, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  symmc plan model.pt2                                   what runs how, what lives where, and why
  symmc run model.pt2 --tensors model.safetensors        run on one process per rank and compare
  symmc plan model.pt2 --machine h200x8 --bucket tokens=1,64,8192 -o model.plan.json
  symmc check model.plan.json                            prove a plan safe
  symmc print model.pt2 > model.symm                     the program as text, which every command reads
  symmc doctor                                           what this machine can do, and what it lacks

Exit codes: 0 success; 1 a comparison or check failed, or a rank died; 2 bad input.";

impl Args {
    /// What these arguments say, the first of which is the name of the command. Libraries are looked for only where they are
    /// asked for.
    pub fn of(arguments: Vec<OsString>) -> Args {
        let mut command = Args::command();
        if arguments.get(1).is_some_and(|first| first == "--version") {
            let text = format!("{}{}", env!("CARGO_PKG_VERSION"), gpu::libraries());
            command = command.long_version(&*text.leak());
        }
        Args::from_arg_matches(&command.get_matches_from(arguments)).unwrap_or_else(|error| error.exit())
    }
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
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
    Bench(Bench),
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

Safety is proven, for every sequence of runs and sizes. That the planned programs compute what the source does is compared,
on drawn inputs at small sizes; what is too large for that or has no kernels here is named and not compared.

Exit codes: 0 safe, and no difference found; 1 unsafe or different, with every finding; 2 not a plan.";

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

/// What names and shapes a program.
#[derive(ClapArgs, Debug, Clone)]
pub struct ProgramArgs {
    /// The program: a .pt2 archive of torch.export, .symm text, or the archives or .onnx models of its ranks, rank 0 first
    #[arg(required = true, value_name = "PROGRAM")]
    pub program: Vec<PathBuf>,
    /// The number of ranks, where the program leaves it open; a tensor file, or one beside the program, tells it, too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
    pub ranks: Option<u32>,
    /// The members of a named process group, cells separated by ';' ('1=0,1;2,3'). A group of a .pt2 is all ranks
    /// where it has PyTorch's name for them (0) or states their number; each other one must be given
    #[arg(long = "group", value_name = "NAME=CELLS", value_parser = parse_group)]
    pub groups: Vec<(String, Vec<Vec<u32>>)>,
    /// What a custom op of a .pt2 writes: its schema, 'mylib::f(Tensor x, Tensor(a!) out) -> ()'
    #[arg(long = "op", value_name = "SCHEMA")]
    pub schemas: Vec<String>,
    /// The range of a symbol (tokens=1..4096, or one value), or what it is by others (b=a, total=past+1), or in steps of (rows=2*pairs)
    #[arg(long = "dim", value_name = "SYMBOL=A..B|EXPR", value_delimiter = ';', value_parser = parse_dim)]
    pub dims: Vec<(String, Extent)>,
}

impl ProgramArgs {
    /// The file, or that of rank 0.
    pub fn first(&self) -> &Path {
        self.program.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// What compiles a program.
#[derive(ClapArgs, Debug, Clone)]
pub struct CompileArgs {
    /// The machine to choose for: a built-in profile (host, h200x2, h200x4, h200x8; host unless given,
    /// or the nearest of the others for GPUs) or a
    /// profile file
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_name)]
    pub machine: Option<String>,
    /// Divide the range of a symbol: one schedule for each upper bound, all in the same arenas. Of several symbols (by
    /// several options, or with ';') every combination is one
    #[arg(long = "bucket", value_name = "SYMBOL=A,B,…", value_delimiter = ';', value_parser = parse_bucket)]
    pub buckets: Vec<(String, Vec<i64>)>,
    /// An argument that the caller writes straight into the symmetric arena (its name, or 'all')
    #[arg(long = "bind", value_name = "NAME|all", value_parser = parse_name)]
    pub bind: Vec<String>,
    /// The variants that collectives may run as, besides plain [default: all that the profile knows and, on GPUs,
    /// the library has]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_variant)]
    pub variants: Vec<Variant>,
    /// The order of the steps [default: chosen]
    #[arg(long, value_enum)]
    pub order: Option<OrderArg>,
    /// How much more memory than the leanest order the chosen one may take to overlap communication with
    /// computation [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = parse_tolerance)]
    pub slack: Option<f64>,
    /// What the symmetric arena may take: exit barriers are kept, overlap given up, and variants chosen that need less, where
    /// it would take more
    #[arg(long, value_name = "BYTES")]
    pub symm_limit: Option<u64>,
    /// Whether collectives are also rewritten where that rounds results in other places [default: strict]
    #[arg(long, value_enum)]
    pub numerics: Option<NumericsArg>,
}

/// Whether results may be rounded in other places.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumericsArg {
    /// Only what rounds alike is rewritten
    Strict,
    /// Sums may be added up or rounded in another order
    Relaxed,
}

impl From<NumericsArg> for Numerics {
    fn from(arg: NumericsArg) -> Numerics {
        match arg {
            NumericsArg::Strict => Numerics::Strict,
            NumericsArg::Relaxed => Numerics::Relaxed,
        }
    }
}

impl CompileArgs {
    /// The options that are given, for commands that have no use for them.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--machine", self.machine.is_some()),
            ("--bucket", !self.buckets.is_empty()),
            ("--bind", !self.bind.is_empty()),
            ("--variants", !self.variants.is_empty()),
            ("--order", self.order.is_some()),
            ("--slack", self.slack.is_some()),
            ("--symm-limit", self.symm_limit.is_some()),
            ("--numerics", self.numerics.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(option, _)| option)
    }
}

/// How the steps are ordered; the last seven by one simple rule each, without overlap.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderArg {
    /// The fastest by estimate that needs little more memory than the leanest
    Chosen,
    /// The least memory that is found, without overlap
    Lean,
    /// As the nodes stand
    Program,
    /// Next what frees the most bytes over what it adds (XLA's list scheduler)
    List,
    /// Depth first from what touches the fewest bytes (Inductor)
    Dfs,
    /// Depth first from the ends, to what has the more further users first (XLA's DFS scheduler)
    DfsUsers,
    /// Each step directly before the first that uses it
    PostOrder,
    /// Next what raises the peak least (Inductor's least peak memory first)
    Lpmf,
    /// Next what has the oldest operands (Inductor)
    Bfs,
}

impl From<OrderArg> for Order {
    fn from(arg: OrderArg) -> Order {
        match arg {
            OrderArg::Chosen => Order::Chosen,
            OrderArg::Lean => Order::Lean,
            OrderArg::Program => Order::Program,
            OrderArg::List => Order::List,
            OrderArg::Dfs => Order::Dfs,
            OrderArg::DfsUsers => Order::DfsUsers,
            OrderArg::PostOrder => Order::PostOrder,
            OrderArg::Lpmf => Order::Lpmf,
            OrderArg::Bfs => Order::Bfs,
        }
    }
}

/// Arguments of `symmc plan`.
#[derive(ClapArgs, Debug)]
pub struct PlanArgs {
    /// The program.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// How it is compiled.
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

/// What `symmc plan` prints.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanFormat {
    /// For people
    Text,
    /// For people, as a page with the memory over the steps
    Html,
    /// The plan itself
    Json,
}

/// Arguments of `symmc check`.
#[derive(ClapArgs, Debug)]
pub struct CheckArgs {
    /// The plan
    pub plan: PathBuf,
}

/// Arguments of `symmc print`.
#[derive(ClapArgs, Debug)]
pub struct PrintArgs {
    /// The program.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// How it is compiled.
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The tensors that it will run on (safetensors): they tell the number of ranks, and which constants differ by rank
    #[arg(long, value_name = "FILE")]
    pub tensors: Option<PathBuf>,
    /// symm: text that every command reads; dot: the dependence graph for Graphviz
    #[arg(long, value_enum, default_value_t = PrintFormat::Symm)]
    pub format: PrintFormat,
    /// Which stage to print
    #[arg(long, value_enum, default_value_t = Stage::Imported)]
    pub stage: Stage,
}

/// The form of a printed program.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintFormat {
    /// The text form
    Symm,
    /// Graphviz
    Dot,
}

/// The stages of a program on its way to the plan.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// As it was read
    Imported,
    /// After canonicalisation and recognition
    Canonical,
    /// With a variant for each collective, for each bucket
    Lowered,
    /// With copies and in the order of its steps, for each bucket
    Planned,
}

/// Arguments of `symmc pack`.
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

/// What `symmc pack` prints.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Arguments of `symmc ops`.
#[derive(ClapArgs, Debug)]
pub struct OpsArgs {
    /// Only operators whose name contains this
    pub filter: Option<String>,

    /// The text form (.symm) instead: its grammar, and every op with operands, attributes and an example
    #[arg(long)]
    pub symm: bool,
}

/// Arguments of `symmc rank`.
#[derive(ClapArgs, Debug)]
pub struct RankArgs {
    /// The control socket
    #[arg(long)]
    pub fd: i32,
}

fn parse_assignment(text: &str) -> Result<(&str, &str), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, found {text}"))?;
    if name.is_empty() { Err(format!("expected NAME=VALUE, found {text}")) } else { Ok((name, value)) }
}

fn parse_name(text: &str) -> Result<String, String> {
    if text.trim_start_matches('%').is_empty() { Err("expected a name".into()) } else { Ok(text.to_string()) }
}

fn parse_integer(text: &str) -> Result<i64, String> {
    text.trim().parse().map_err(|_| format!("expected an integer, found {text:?}"))
}

fn parse_setting(text: &str) -> Result<(String, i64), String> {
    let (name, value) = parse_assignment(text)?;
    Ok((name.to_string(), parse_integer(value)?))
}

fn parse_bucket(text: &str) -> Result<(String, Vec<i64>), String> {
    let (name, values) = parse_assignment(text)?;
    Ok((name.to_string(), values.split(',').map(parse_integer).collect::<Result<_, _>>()?))
}

fn parse_dim(text: &str) -> Result<(String, Extent), String> {
    let (name, extent) = parse_assignment(text)?;
    Ok((name.trim().to_string(), Extent::parse(extent)?))
}

fn parse_group(text: &str) -> Result<(String, Vec<Vec<u32>>), String> {
    let (name, cells) = parse_assignment(text)?;
    let rank = |r: &str| r.trim().parse().map_err(|_| format!("expected a rank, found {r:?}"));
    let cells = cells.split(';').map(|c| c.split(',').map(rank).collect()).collect::<Result<_, _>>()?;
    Ok((name.to_string(), cells))
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 => Ok(x),
        _ => Err(format!("expected a number of 0 or more, found {text:?}")),
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.001..=86_400.0).contains(&s) => Ok(s),
        _ => Err(format!("expected seconds between 0.001 and 86400, found {text:?}")),
    }
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
    /// Where the profile goes
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

fn parse_dtype(text: &str) -> Result<String, String> {
    // What is summed is compared with the sum of numbers, which bool has not.
    let numbers = || DType::ALL.into_iter().filter(|&d| d != DType::Bool);
    let names = || numbers().map(DType::name).collect::<Vec<_>>().join(", ");
    match numbers().find(|d| d.name() == text) {
        Some(dtype) => Ok(dtype.name().into()),
        None => Err(format!("no numbers of dtype {text}; expected one of {}", names())),
    }
}

/// A variant, by its name in programs.
fn parse_variant(text: &str) -> Result<Variant, String> {
    let names = || Variant::ALL.iter().map(|v| v.name()).collect::<Vec<_>>().join(", ");
    Variant::from_name(text).ok_or_else(|| format!("no variant {text}; expected one of {}", names()))
}

/// Rows and their elements: `8x4096`.
fn parse_rows(text: &str) -> Result<[usize; 2], String> {
    let parts = text.split_once('x').and_then(|(r, e)| Some([r.parse().ok()?, e.parse().ok()?]));
    let few = |[rows, elements]: &[usize; 2]| {
        (1..=1 << 16).contains(rows) && (1..=1 << 16).contains(elements) && rows * elements <= 1 << 26
    };
    parts.filter(few).ok_or_else(|| {
        format!("expected rows and elements of a row, at most 65536 of each and 2^26 in all, like 8x4096; found {text:?}")
    })
}

/// A size of a collective: at least a few elements for each rank, and what a GPU can hold several times.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes: usize = text.parse().map_err(|_| format!("expected a number of bytes, found {text:?}"))?;
    match bytes {
        64..=0x1_0000_0000 => Ok(bytes),
        _ => Err(format!("expected 64 bytes to 4 GiB, found {bytes}")),
    }
}

/// What is measured.
#[derive(Subcommand, Debug)]
pub enum Bench {
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
  symmc bench program model.plan.json --set tokens=16";

/// How a program is measured.
#[derive(ClapArgs, Debug)]
pub struct BenchProgramArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The value of a symbol; all need one
    #[arg(long = "set", value_name = "SYMBOL=N", value_parser = parse_setting)]
    pub set: Vec<(String, i64)>,
    /// The GPU of each rank [default: rank r takes GPU r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub gpus: Vec<u32>,
    /// Replays of the graph that count
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

/// How collectives are measured.
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
