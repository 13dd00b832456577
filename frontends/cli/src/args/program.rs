//! The arguments of commands that read a program, and of those that compile it.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use symmc::{CollectiveVariant, MachineProfile, Numerics, OrderStrategy, SymbolConstraint};

use super::values::{parse_bucket, parse_dim, parse_group, parse_name, parse_tolerance, parse_variant};

/// The most ranks that `--ranks` takes, as clap wants it.
const MAX_RANKS: i64 = symmc::unstable::ir::verify::MAX_RANKS as i64;

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
    /// The range of a symbol (tokens=1..4096, or one value), or what it is by others (b=a, total=past+1), in steps of (rows=2*pairs), or with a rest (rows=tokens+rest)
    #[arg(long = "dim", value_name = "SYMBOL=A..B|EXPR", value_delimiter = ';', value_parser = parse_dim)]
    pub dims: Vec<(String, SymbolConstraint)>,
}

impl ProgramArgs {
    /// The file, or that of rank 0.
    pub fn first_path(&self) -> &Path {
        self.program.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

#[derive(ClapArgs, Debug, Clone)]
pub struct CompileArgs {
    /// The machine to choose for: a built-in profile (host, h200x2, h200x4, h200x8; host unless given,
    /// or the nearest of the others for GPUs) or a
    /// profile file
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_name)]
    pub machine: Option<String>,
    /// Divide the range of a symbol: one schedule for each upper bound, all in the same arenas. Of several symbols (by
    /// several options, or with ';') every combination is one. Symbols that are not named are divided where other variants
    /// become faster
    #[arg(long = "bucket", value_name = "SYMBOL=A,B,…", value_delimiter = ';', value_parser = parse_bucket)]
    pub buckets: Vec<(String, Vec<i64>)>,
    /// An argument that the caller writes straight into the symmetric arena (its name, or 'all')
    #[arg(long = "bind", value_name = "NAME|all", value_parser = parse_name)]
    pub bind: Vec<String>,
    /// The variants that collectives may run as, besides plain [default: all that the profile knows and, on GPUs,
    /// the library has]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_variant)]
    pub variants: Vec<CollectiveVariant>,
    /// The order of the steps [default: chosen]
    #[arg(long, value_enum)]
    pub order: Option<OrderArg>,
    /// How much more memory than the leanest order the chosen one may take at most to overlap communication with
    /// computation [default: 100]
    #[arg(long, value_name = "PERCENT", value_parser = parse_tolerance)]
    pub slack: Option<f64>,
    /// How many microseconds a run must become faster, by estimate, for each MiB of memory that overlap takes [default: 0.05]
    #[arg(long, value_name = "US", value_parser = parse_tolerance)]
    pub memory_price: Option<f64>,
    /// What the symmetric arena may take: exit barriers are kept, overlap given up, and variants chosen that need less, where
    /// it would take more
    #[arg(long, value_name = "BYTES")]
    pub symm_limit: Option<u64>,
    /// Do not coalesce collectives or run several as one step, also where that is estimated to be faster. Rewriting rules still apply
    #[arg(long)]
    pub no_coalesce: bool,
    /// The changes of rounding that rewriting collectives may make: exact for none, or one or more of reassociate (sums in
    /// another order), narrow (f32 values that were or will be rounded to bf16 are transferred and added as bf16) and
    /// narrow-f16 (the same with f16, where sums can become infinite) [default: exact]
    #[arg(long, value_name = "CLASS,…", value_parser = |text: &str| text.parse::<Numerics>())]
    pub numerics: Option<Numerics>,
}

impl CompileArgs {
    /// The options that are given, for commands that have no use for them.
    pub fn provided_options(&self) -> impl Iterator<Item = &'static str> {
        let given = [
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
        given.into_iter().filter(|(_, given)| *given).map(|(option, _)| option)
    }

    /// The profile's file, if `--machine` names a file.
    pub fn machine_file(&self) -> Option<PathBuf> {
        self.machine.as_ref().filter(|name| MachineProfile::builtin(name).is_none()).map(PathBuf::from)
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
