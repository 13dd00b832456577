//! The arguments of commands that read a program, and of those that compile it.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use symmc::{CollectiveVariant, MachineProfile, Numerics, OrderStrategy, SymbolConstraint};

use super::values::{
    parse_bucket, parse_byte_count, parse_dim, parse_group, parse_name, parse_tolerance, parse_variant,
};

/// The most ranks that `--ranks` accepts.
const MAX_RANKS: i64 = symmc::unstable::ir::verify::MAX_RANKS as i64;

/// The files of a program, and what the files leave open: the number of ranks, groups, ranges of symbols.
#[derive(ClapArgs, Debug, Clone)]
#[command(next_help_heading = "Program")]
pub struct ProgramArgs {
    /// The program
    ///
    /// A .pt2 archive of torch.export, an .onnx model or .symm text. A program with a file for each rank takes the .pt2
    /// archives or .onnx models of all ranks, rank 0 first.
    #[arg(required = true, value_name = "PROGRAM", help_heading = None::<&'static str>)]
    pub program: Vec<PathBuf>,
    /// The number of ranks, if the program does not fix it
    ///
    /// A tensor file also fixes the number of ranks: the one that --tensors names, or one with the name of the program
    /// and the extension .safetensors.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
    pub ranks: Option<u32>,
    /// The ranks of a process group, such as '1=0,1;2,3'
    ///
    /// A group consists of cells, separated by ';'. The ranks of a cell communicate with each other. A group of a .pt2
    /// archive is known to be all ranks if it has PyTorch's name for them (0) or states their number. All other groups
    /// must be given.
    #[arg(long = "group", value_name = "NAME=CELLS", value_parser = parse_group)]
    pub groups: Vec<(String, Vec<Vec<u32>>)>,
    /// The schema of a custom op in a .pt2 archive, or the file of its definition
    ///
    /// A schema says what the op writes: 'mylib::f(Tensor x, Tensor(a!) out) -> ()'. A definition is a program in the text
    /// form whose name is the schema. It replaces the calls of the op.
    #[arg(long = "op", value_name = "SCHEMA|FILE")]
    pub ops: Vec<String>,
    /// The range of a symbol (tokens=1..4096), or its value (tokens=8)
    ///
    /// A symbol may also be given by other symbols: equal to one (b=a), a sum (total=past+1), a multiple (rows=2*pairs),
    /// or a sum with a new symbol for the remainder (rows=tokens+rest).
    #[arg(long = "dim", value_name = "SYMBOL=A..B|EXPR", value_delimiter = ';', value_parser = parse_dim)]
    pub dims: Vec<(String, SymbolConstraint)>,
}

impl ProgramArgs {
    /// The file, or the file of rank 0.
    pub fn first_path(&self) -> &Path {
        self.program.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// The given options that only apply to programs, because a plan has fixed these things.
    pub fn provided_options(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--group", !self.groups.is_empty()),
            ("--op", !self.ops.is_empty()),
            ("--dim", !self.dims.is_empty()),
        ];
        options.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

#[derive(ClapArgs, Debug, Clone)]
#[command(next_help_heading = "Planning")]
pub struct CompileArgs {
    /// The machine to plan for: host, h100x2, h100x4, h100x8, h200x2, h200x4, h200x8, or a profile file
    ///
    /// `symmc tune` measures the GPUs of a machine and writes its profile file. The default is host; with --backend
    /// cuda it is the built-in profile with the nearest number of GPUs.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_name)]
    pub machine: Option<String>,
    /// Divide the range of a symbol into buckets with these upper bounds
    ///
    /// Each bucket has its own schedule; all buckets share the same memory. With several symbols (several options, or
    /// one with ';') each combination is a bucket. Symbols without this option are divided where other variants of
    /// collectives become faster. Sizes above the largest bound are not served.
    #[arg(long = "bucket", value_name = "SYMBOL=A,B,…", value_delimiter = ';', value_parser = parse_bucket)]
    pub buckets: Vec<(String, Vec<i64>)>,
    /// An argument that the caller writes directly into symmetric memory, or 'all'
    ///
    /// This avoids the copy of an argument that a collective needs in symmetric memory.
    #[arg(long = "bind", value_name = "NAME|all", value_parser = parse_name)]
    pub bind: Vec<String>,
    /// The variants that collectives may use in addition to plain
    ///
    /// [default: all variants of the machine's profile that the library on this machine supports]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_variant)]
    pub variants: Vec<CollectiveVariant>,
    /// The order of the steps [default: chosen]
    #[arg(long, value_enum)]
    pub order: Option<OrderArg>,
    /// The most memory that overlap of communication and computation may add
    ///
    /// In percent of the memory of the order that needs least, or of 256 MiB if that is more. [default: 100]
    #[arg(long, value_name = "PERCENT", value_parser = parse_tolerance, allow_negative_numbers = true)]
    pub slack: Option<f64>,
    /// The estimated time that a run must save for each MiB that overlap adds
    ///
    /// In microseconds. [default: 0.05]
    #[arg(long, value_name = "US", value_parser = parse_tolerance, allow_negative_numbers = true)]
    pub memory_price: Option<f64>,
    /// The most bytes of the symmetric arena, such as 64MiB
    ///
    /// The fastest plan that fits is taken, by estimate. To fit, exit barriers are kept, overlap is given up, and
    /// variants that need less symmetric memory are chosen.
    #[arg(long, value_name = "BYTES", value_parser = parse_byte_count)]
    pub symm_limit: Option<u64>,
    /// Do not coalesce collectives, and do not run several as one step
    ///
    /// By default both are done where the estimated time of a run falls. Rewriting rules apply with and without this
    /// option.
    #[arg(long)]
    pub no_coalesce: bool,
    /// The changes of rounding that rewritten collectives may cause [default: exact]
    ///
    /// exact: none. reassociate: sums in another order. narrow: f32 values that were or will be rounded to bf16 are
    /// transferred and added as bf16. narrow-f16: the same with f16, where sums can become infinite. Several classes are
    /// separated by commas.
    #[arg(long, value_name = "CLASS,…", value_parser = |text: &str| text.parse::<Numerics>())]
    pub numerics: Option<Numerics>,
}

impl CompileArgs {
    /// The given options, for commands that do not use them.
    pub fn provided_options(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--machine", self.machine.is_some()),
            ("--bucket", !self.buckets.is_empty()),
            ("--bind", !self.bind.is_empty()),
            ("--variants", !self.variants.is_empty()),
            ("--order", self.order.is_some()),
            ("--slack", self.slack.is_some()),
            ("--memory-price", self.memory_price.is_some()),
            ("--symm-limit", self.symm_limit.is_some()),
            ("--no-coalesce", self.no_coalesce),
            ("--numerics", self.numerics.is_some()),
        ];
        options.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// The profile file, if `--machine` names a file.
    pub fn machine_file(&self) -> Option<PathBuf> {
        self.machine.as_ref().filter(|name| MachineProfile::builtin(name).is_none()).map(PathBuf::from)
    }
}

/// How the steps are ordered. The last seven each follow one simple rule, without overlap.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderArg {
    /// The fastest order by estimate, within the limits of --slack and --memory-price
    Chosen,
    /// The order with the least memory that the search finds, without overlap
    Lean,
    /// The order of the program
    Program,
    /// Next the step that frees the most bytes, less the bytes that it adds (XLA's list scheduler)
    List,
    /// Depth first, beginning with the step that touches the fewest bytes (Inductor)
    Dfs,
    /// Depth first from the outputs; operands with more other users first (XLA's DFS scheduler)
    DfsUsers,
    /// Each step directly before its first use
    PostOrder,
    /// Next the step that raises the peak least (Inductor's least peak memory first)
    Lpmf,
    /// Next the step with the oldest operands (Inductor)
    Bfs,
}

impl From<OrderArg> for OrderStrategy {
    fn from(arg: OrderArg) -> OrderStrategy {
        match arg {
            OrderArg::Chosen => OrderStrategy::Chosen,
            OrderArg::Lean => OrderStrategy::Lean,
            OrderArg::Program => OrderStrategy::Program,
            OrderArg::List => OrderStrategy::List,
            OrderArg::Dfs => OrderStrategy::Dfs,
            OrderArg::DfsUsers => OrderStrategy::DfsUsers,
            OrderArg::PostOrder => OrderStrategy::PostOrder,
            OrderArg::Lpmf => OrderStrategy::Lpmf,
            OrderArg::Bfs => OrderStrategy::Bfs,
        }
    }
}
