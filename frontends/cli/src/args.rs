//! Command-line arguments and help. The examples in the help are real commands on programs of this repository.
//!
//! clap parses what the structs declare. clap has no groups of commands, so `symmc --help` gets its list of commands from
//! [`COMMAND_GROUPS`].

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{
    Arg, ArgAction, Args as ClapArgs, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    ValueEnum,
};

use crate::gpu;
use crate::messages;

mod doctor;
mod pages;
mod program;
mod run;
mod values;

use doctor::DOCTOR_EXAMPLES;
pub use doctor::{DoctorArgs, DoctorFormat};
use pages::{COMPLETIONS_EXAMPLES, MAN_EXAMPLES};
pub use pages::{CompletionsArgs, ManArgs};
pub use program::{CompileArgs, ProgramArgs};
pub use run::{CompareMode, ExecutionArg, LaunchArg, ProductsArg, RunArgs};
use run::{RUN_EXAMPLES, RUN_PROGRAM, RUN_PROGRAM_LONG};
use values::{parse_byte_count, parse_collective_size, parse_dtype, parse_name, parse_rows, parse_setting};

/// A compiler and memory planner for tensor programs with collectives
///
/// symmc chooses how each collective of a program runs and where every value lives, with the buffers of communication in
/// symmetric memory. It proves the plan safe on every rank, and runs it.
#[derive(Parser, Debug)]
#[command(name = "symmc", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub command: CliCommand,
}

const EXAMPLES: &str = "\
Examples:
  symmc plan model.pt2                                   how collectives run, where values live, and why
  symmc run model.pt2 --tensors model.safetensors        run one process per rank, and compare
  symmc plan model.pt2 --machine h200x8 --bucket tokens=1,64,8192 -o model.plan.json
  symmc check model.plan.json                            prove a plan safe
  symmc print model.pt2 > model.symm                     the program as text, which every command reads
  symmc doctor                                           what this machine supports, and what is missing

`symmc COMMAND --help` describes a command with all its options. With SYMMC_LOG=debug in the environment, symmc writes what each
rank does to standard error (docs/debugging.md).

Exit codes: 0 success; 1 a comparison or check failed, or a rank died; 2 bad input.";

/// The commands by their use, as `symmc --help` lists them.
const COMMAND_GROUPS: [(&str, &[&str]); 4] = [
    ("Plan and run programs", &["plan", "check", "run", "print"]),
    ("Measure", &["bench", "tune"]),
    ("This machine and this build", &["doctor", "ops"]),
    ("Other", &["pack", "completions", "man", "help"]),
];

/// The help of `help`, which clap adds when it parses.
const HELP_ABOUT: &str = "Print this help, or the help of a command";

/// The command with its help: commands in groups, and options under headings with `--help` last.
pub fn symmc_command() -> Command {
    let command = Args::command();
    let groups = format_command_groups(&command);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    );
    place_help_last(command).help_template(template)
}

/// The list of commands for the template of the help.
fn format_command_groups(command: &Command) -> String {
    let mut out = String::new();
    let width = COMMAND_GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    for (heading, names) in COMMAND_GROUPS {
        let _ = writeln!(out, "{heading}:");
        for name in names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                None => HELP_ABOUT.to_string(),
            };
            let _ = writeln!(out, "  {name:width$}  {about}");
        }
        out.push('\n');
    }
    out
}

/// Gives `--help` of every command whose options have headings a heading of its own. Without one it would be in front of them.
fn place_help_last(command: Command) -> Command {
    let has_headings = command.get_arguments().any(|arg| arg.get_help_heading().is_some());
    let command = command.mut_subcommands(place_help_last);
    if !has_headings {
        return command;
    }
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    command.disable_help_flag(true).arg(help.help("Print help (-h prints a summary)").help_heading("Other"))
}

impl Args {
    /// Parses arguments; the first is the name of the command. Only `--version` looks for libraries.
    ///
    /// The error is the exit code of a command that ends here: it printed help or its version, or the arguments are
    /// invalid.
    pub fn parse_arguments(arguments: Vec<OsString>) -> Result<Args, ExitCode> {
        let mut command = symmc_command();
        if arguments.get(1).is_some_and(|first| first == "--version") {
            let text = format!("{}{}", env!("CARGO_PKG_VERSION"), gpu::libraries());
            command = command.long_version(&*text.leak());
        }
        let parsed =
            command.try_get_matches_from(arguments).and_then(|matches| Args::from_arg_matches(&matches));
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

#[derive(Subcommand, Debug)]
pub enum CliCommand {
    /// Plan a program, or read a plan, and report how collectives run and where values live
    #[command(
        after_help = PLAN_EXAMPLES,
        mut_arg("program", |a| a.help(RUN_PROGRAM).long_help(RUN_PROGRAM_LONG))
    )]
    Plan(PlanArgs),
    /// Prove a plan safe, and compare it with its source
    ///
    /// The proof covers any timing of the ranks and all sizes: no read of a lost value, and no race.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Run a program or a plan, one process per rank, and compare the results
    #[command(
        after_help = RUN_EXAMPLES,
        mut_arg("program", |a| a.help(RUN_PROGRAM).long_help(RUN_PROGRAM_LONG))
    )]
    Run(RunArgs),
    /// Print a program as text
    #[command(after_help = PRINT_EXAMPLES)]
    Print(PrintArgs),
    /// Compute offsets with a low peak for a table of buffers
    #[command(after_help = PACK_EXAMPLES)]
    Pack(PackArgs),
    /// Measure this machine's GPUs, and write a profile for --machine
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(TuneArgs),
    /// Measure collectives or a program
    #[command(subcommand)]
    Bench(BenchCommand),
    /// List the operators that the importers support
    Ops(OpsArgs),
    /// Report what this machine supports and what is missing: GPUs, their connections, libraries, limits
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print the completion script of a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print a manual page
    #[command(after_help = MAN_EXAMPLES)]
    Man(ManArgs),
    /// Run as one rank of a run that another symmc process started
    #[command(hide = true)]
    Rank(RankArgs),
}

const PLAN_EXAMPLES: &str = "\
Examples:
  symmc plan model.pt2
  symmc plan llama70b.pt2 --ranks 8 --machine h200x8 --bucket tokens=2,64,512,8192
  symmc plan model.pt2 --dim batch=1..64 --dim tokens=1..4096 --bucket batch=1,64 --bucket tokens=512,4096
  symmc plan model.pt2 --dim s43=s72                     two extents are equal, which the exporter did not know
  symmc plan model.pt2 -o model.plan.json && symmc plan model.plan.json
  symmc plan model.pt2 --format json
  symmc plan model.pt2 --explain %all_reduce,e.weight    two values; a weight by its name in the model
  symmc plan model.pt2 --orders                          compare the memory of all orders
  symmc plan model_rank0.onnx model_rank1.onnx           the files of all ranks, rank 0 first

The report of a saved plan needs the profile of its machine for estimated times. If the profile is not built in, name its file with
--machine. Other options of planning have no effect on a saved plan and are errors.";

const CHECK_EXAMPLES: &str = "\
Examples:
  symmc plan model.pt2 -o model.plan.json && symmc check model.plan.json

The plan is proven safe for every sequence of runs and sizes. It is compared with the source node by node. Parts that differ
are proven equal where that is possible. The others run on random values, at both ends of each bucket and where conditions on
sizes change, which is not a proof. The last lines say whether the plan is equal to its source, equal by proof or by
comparison of named parts, not compared (with the reasons), or different.

Exit codes: 0 the plan is safe and no difference was found; 1 the plan is unsafe or different (with up to 100 findings), or
--require-compared is given and a part or a size that matters was not compared; 2 the file is not a plan.";

const PRINT_EXAMPLES: &str = "\
Examples:
  symmc print model.pt2 > model.symm
  symmc print model.pt2 --stage lowered --machine h200x8
  symmc print model.pt2 --stage planned --bucket tokens=1,64
  symmc print model.pt2 --format dot | dot -Tsvg > model.svg

If there are several buckets, the stages lowered and planned print one program per bucket, each after a comment that names it.";

const PACK_EXAMPLES: &str = "\
Examples:
  symmc pack tests/packing/minimalloc/A.1048576.csv --capacity 1MiB
  symmc pack buffers.csv -o offsets.csv

The table has the columns id, lower, upper (exclusive) and size, or id, start, end (inclusive) and size. The columns alignment
and offset are optional. All other columns are ignored.

Exit codes: 0 the buffers are packed; 1 the peak is above the capacity; 2 the file is not a table of buffers.";

#[derive(ClapArgs, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The tensors that the program will run on, as a safetensors file
    ///
    /// They fix the number of ranks, and show which constants differ by rank.
    #[arg(long, value_name = "FILE", help_heading = "Program")]
    pub tensors: Option<PathBuf>,
    /// Write the plan to a file (JSON)
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = PlanFormat::Text, help_heading = "Output")]
    pub format: PlanFormat,
    /// Explain values, such as %all_reduce or e.weight: where each lives, until when, and why
    ///
    /// The text also says which steps and peers access a value, and how its collective was chosen. A weight or an input
    /// may have its name in the model. Several names are separated by commas.
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        value_parser = parse_name,
        conflicts_with = "format",
        help_heading = "Output"
    )]
    pub explain: Vec<String>,
    /// Plan in every order, and compare the memory of the plans
    #[arg(
        long,
        conflicts_with_all = ["format", "explain", "order", "output", "timing"],
        help_heading = "Output"
    )]
    pub orders: bool,
    /// Print how long each stage of planning took, to standard error
    #[arg(long, help_heading = "Output")]
    pub timing: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanFormat {
    /// A report as text
    Text,
    /// A report as an HTML page that draws the memory over the steps
    Html,
    /// The plan itself, as JSON
    Json,
    /// Estimated times, memory and collectives, as JSON
    Summary,
}

#[derive(ClapArgs, Debug)]
pub struct CheckArgs {
    /// The plan, as `symmc plan -o FILE` writes it
    pub plan: PathBuf,
    /// Fail with exit code 1 unless every part of the plan was compared with its source at all sizes that matter
    ///
    /// These are the largest sizes, and the sizes where conditions on sizes change.
    #[arg(long)]
    pub require_compared: bool,
}

#[derive(ClapArgs, Debug)]
pub struct PrintArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The tensors that the program will run on, as a safetensors file
    ///
    /// They fix the number of ranks, and show which constants differ by rank.
    #[arg(long, value_name = "FILE", help_heading = "Program")]
    pub tensors: Option<PathBuf>,
    /// The form of the output
    #[arg(long, value_enum, default_value_t = PrintFormat::Symm, help_heading = "Output")]
    pub format: PrintFormat,
    /// Which stage of compilation to print
    #[arg(long, value_enum, default_value_t = PrintStage::Imported, help_heading = "Output")]
    pub stage: PrintStage,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintFormat {
    /// The text form, which every command reads
    Symm,
    /// The dependence graph, for Graphviz
    Dot,
}

/// The stages of compilation, in order.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintStage {
    /// The program as it was read
    Imported,
    /// After canonicalisation, with decomposed ops recognised
    Canonical,
    /// One program per bucket, with a variant for each collective
    Lowered,
    /// One program per bucket, with copies, and with nodes in the order of the steps
    Planned,
}

#[derive(ClapArgs, Debug)]
pub struct PackArgs {
    /// The table of buffers (CSV)
    pub file: PathBuf,
    /// The largest peak that is accepted, such as 64MiB; a higher peak fails with exit code 1
    #[arg(long, value_name = "BYTES", value_parser = parse_byte_count)]
    pub capacity: Option<u64>,
    /// Write the table with the offset of each buffer to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The form of the output
    #[arg(long, value_enum, default_value_t = PackFormat::Text)]
    pub format: PackFormat,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackFormat {
    /// A report as text
    Text,
    /// The same numbers as JSON
    Json,
}

#[derive(ClapArgs, Debug)]
pub struct OpsArgs {
    /// List only operators whose name contains this text
    pub filter: Option<String>,

    /// Describe the text form (.symm) instead: its grammar, and each op with operands, attributes and an example
    #[arg(long)]
    pub symm: bool,
}

#[derive(ClapArgs, Debug)]
pub struct RankArgs {
    /// The file descriptor of the control socket
    #[arg(long)]
    pub fd: i32,
}

const TUNE_EXAMPLES: &str = "\
Examples:
  symmc tune --ranks 4 -o machine.json && symmc plan model.pt2 --machine machine.json";

#[derive(ClapArgs, Debug)]
pub struct TuneArgs {
    /// The number of ranks, each with a GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=8))]
    pub ranks: u32,
    /// The GPU of each rank [default: GPU r for rank r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub gpus: Vec<u32>,
    /// The name of the machine, which plans record
    #[arg(long, default_value = "tuned")]
    pub name: String,
    /// The sizes of collectives, such as 64KiB,1MiB [default: powers of two from 1 KiB to 256 MiB]
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = parse_collective_size)]
    pub bytes: Vec<usize>,
    /// The numbers of blocks to try kernels with; the profile keeps the best
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "8,16,32,64,128", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub blocks: Vec<u32>,
    /// How often the CUDA graph of each case is replayed; a graph has ten calls
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub replays: u32,
    /// Take the times of collectives from this profile
    ///
    /// Then only computation is measured, and how much computation and collectives slow each other down.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_name, conflicts_with_all = ["bytes", "blocks"])]
    pub curves: Option<String>,
    /// The file to write the profile to
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Measure every variant of the collectives, and the vendor's library
    #[command(after_help = BENCH_EXAMPLES)]
    Collectives(BenchArgs),
    /// Measure a program or a plan on random inputs
    #[command(
        after_help = BENCH_PROGRAM_EXAMPLES,
        mut_arg("program", |a| a.help(RUN_PROGRAM).long_help(RUN_PROGRAM_LONG))
    )]
    Program(Box<BenchProgramArgs>),
}

const BENCH_PROGRAM_EXAMPLES: &str = "\
Examples:
  symmc bench program model.pt2 --ranks 4 --machine h200x4 --set tokens=16
  symmc bench program model.plan.json
  symmc bench program model.pt2 --backend host --ranks 2";

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendArg {
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
    /// The value of a symbol; if one is given, all symbols need one
    ///
    /// [default: each bucket is measured at the upper ends of its ranges]
    #[arg(long = "set", value_name = "SYMBOL=N", value_parser = parse_setting, help_heading = "Measurement")]
    pub set: Vec<(String, i64)>,
    /// What runs the ranks
    #[arg(long, value_enum, default_value_t = BackendArg::Cuda, help_heading = "Measurement")]
    pub backend: BackendArg,
    /// The GPU of each rank [default: GPU r for rank r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', help_heading = "Measurement")]
    pub gpus: Vec<u32>,
    /// How often the CUDA graph is replayed; on the host, how often the program runs
    #[arg(
        long,
        default_value_t = 20,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000),
        help_heading = "Measurement"
    )]
    pub replays: u32,
    /// How many runs one CUDA graph holds
    #[arg(
        long,
        default_value_t = 3,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100),
        help_heading = "Measurement"
    )]
    pub runs: u32,
    /// How the algorithms of matrix products and attention are chosen
    #[arg(long, value_enum, default_value_t = ProductsArg::Measured, help_heading = "Measurement")]
    pub products: ProductsArg,
    /// Write the times of the steps of one more run on the GPUs, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Measurement")]
    pub profile_trace: Option<PathBuf>,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  symmc bench collectives --ranks 4
  symmc bench collectives --ranks 2 --gpus 0,1 --bytes 4KiB,64KiB,1MiB --format json";

#[derive(ClapArgs, Debug)]
pub struct BenchArgs {
    /// The number of ranks, each with a GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=8))]
    pub ranks: u32,
    /// The GPU of each rank [default: GPU r for rank r]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub gpus: Vec<u32>,
    /// The sizes of the tensors, such as 64KiB,1MiB
    ///
    /// For an all-gather the size of the result, for a reduce-scatter that of the operand.
    #[arg(
        long,
        value_name = "BYTES,…",
        value_delimiter = ',',
        value_parser = parse_collective_size,
        default_value = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
    )]
    pub bytes: Vec<usize>,
    /// The dtype of the elements
    #[arg(long, default_value = "bf16", value_parser = parse_dtype)]
    pub dtype: String,
    /// How often the CUDA graph of each case is replayed; a graph has ten calls
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub replays: u32,
    /// Also measure all-reduces with a residual and RMS norm, of ROWS rows with ELEMENTS elements each
    #[arg(long, value_name = "ROWSxELEMENTS,…", value_delimiter = ',', value_parser = parse_rows)]
    pub norms: Vec<[usize; 2]>,
    /// The form of the output
    #[arg(long, value_enum, default_value_t = BenchFormat::Text)]
    pub format: BenchFormat,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchFormat {
    /// Tables of medians
    Text,
    /// The least, the median and the largest time of each case, as JSON
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declarations_are_consistent() {
        symmc_command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let command = symmc_command();
        let visible = command.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name);
        let mut expected: Vec<&str> = visible.chain(["help"]).collect();
        let mut listed: Vec<&str> =
            COMMAND_GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }
}
