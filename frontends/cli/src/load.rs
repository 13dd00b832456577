//! Opens the programs, plans, tensors and machines that the command line names.
//!
//! Remedies in these messages name options of the command; the library's own errors do not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use symmc::unstable::import::ranges::SymbolConstraints;
use symmc::unstable::ir::machine::Backend;
use symmc::{
    ArgumentBinding, BucketSpec, CheckedPlan, CollectiveVariant, CompileConfig, MachineProfile, OpenOptions,
    Plan, Program, TensorFile,
};

use crate::args::{CompileArgs, ProgramArgs};
use crate::gpu;
use crate::messages;
use crate::units::format_count;

/// The number of assumed sizes that a note lists.
const SHOWN_ASSUMPTIONS: usize = 16;

/// Opens a program that may run on `tensors`, with constraints of its symbols. Its number of ranks may be open.
pub fn open_program(
    args: &ProgramArgs,
    given: SymbolConstraints,
    tensors: Option<&Arc<TensorFile>>,
) -> Result<Program> {
    if let Some(plan) = args.program.iter().find(|path| is_plan(path)) {
        bail!("{}: expected a program (.pt2, .onnx or .symm), found a plan", plan.display());
    }
    for (i, (name, _)) in args.groups.iter().enumerate() {
        if args.groups[..i].iter().any(|(other, _)| other == name) {
            bail!("the members of group {name} are given twice");
        }
    }
    let (schemas, files): (Vec<&String>, Vec<&String>) = args.ops.iter().partition(|op| op.contains("->"));
    let definitions = files.iter().map(|file| read_definition(file)).collect::<Result<Vec<_>>>()?;
    let options = OpenOptions::default()
        .with_ranks(args.ranks)
        .with_groups(args.groups.iter().cloned())
        .with_schemas(schemas)
        .with_definitions(definitions)
        .with_tensors(tensors.cloned())
        .with_extents(given.constraints)
        .with_bounds(given.fallback_bounds)
        .with_recorded_shapes(given.recorded_shapes)
        .with_run_sizes(given.run_sizes);
    let mut program = Program::open_files(&args.program, &options)?;
    program.files.extend(files.into_iter().map(PathBuf::from));
    for note in &program.notes {
        messages::note(note);
    }
    if !program.assumed_sizes.is_empty() {
        let shown = program.assumed_sizes.iter().take(SHOWN_ASSUMPTIONS);
        let assumed = shown.map(|(symbol, constraint)| format!(" --dim {symbol}={constraint}"));
        let more = match program.assumed_sizes.len().saturating_sub(SHOWN_ASSUMPTIONS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        messages::note(&format!(
            "the program leaves sizes open; this is assumed, and the same options state other sizes:{}{more}",
            assumed.collect::<String>()
        ));
    }
    Ok(program)
}

/// Reads the definition of a custom op.
fn read_definition(file: &str) -> Result<String> {
    std::fs::read_to_string(file).or_else(|e| {
        bail!(
            "--op {file}: expected a schema (`name(arguments) -> results`) or the file of a definition: {e}"
        )
    })
}

pub fn open_tensors(path: Option<&Path>) -> Result<Option<Arc<TensorFile>>> {
    Ok(path.map(TensorFile::open).transpose()?.map(Arc::new))
}

/// The constraints of symbols that the options give. Buckets and sizes are upper bounds of symbols that have no other.
pub fn provided_extents(
    args: &ProgramArgs,
    compile: &CompileArgs,
    set: &[(String, i64)],
) -> SymbolConstraints {
    let largest =
        compile.buckets.iter().filter_map(|(name, upper)| Some((name.clone(), *upper.iter().max()?)));
    let bounds = largest.chain(set.iter().cloned()).collect();
    SymbolConstraints {
        constraints: args.dims.clone(),
        fallback_bounds: bounds,
        run_sizes: set.to_vec(),
        ..SymbolConstraints::default()
    }
}

/// Fixes the number of ranks of a program. A note says where it comes from if the command line does not give it.
pub fn infer_ranks(program: &mut Program) -> Result<()> {
    if let Some(file) = program.infer_ranks()? {
        let ranks = program.graph.ranks.unwrap_or_default();
        messages::note(&format!(
            "{}: the tensors of {} are for that many",
            format_count(ranks, "rank"),
            file.display()
        ));
    }
    if program.graph.ranks.is_none() {
        let path = program.path.display();
        bail!("{path}: the program does not fix the number of ranks; give it with --ranks N");
    }
    Ok(())
}

/// The configuration for ranks on this machine's CPU, unless `--machine` names another machine.
pub fn host_config(args: &CompileArgs, ranks: u32) -> Result<CompileConfig> {
    config_for_machine(args, "host", ranks)
}

/// The configuration for `ranks` GPUs, unless `--machine` names a machine. `gpus` is the GPU of each rank, or empty.
/// Variants that the library on this machine lacks are only chosen if `--variants` names them.
pub fn gpu_config(args: &CompileArgs, ranks: u32, gpus: &[u32]) -> Result<CompileConfig> {
    let nearest = MachineProfile::nearest_builtin(ranks);
    if args.machine.is_none() {
        messages::note(&format!(
            "planning for {nearest}; choose another machine with --machine, or measure this one with symmc tune"
        ));
    }
    let mut config = config_for_machine(args, nearest, ranks)?;
    if config.variants.is_none() {
        let ranks_share_gpus = gpus.iter().enumerate().any(|(i, gpu)| gpus[..i].contains(gpu));
        let is_available = |v: &CollectiveVariant| {
            *v == CollectiveVariant::Plain || gpu::has(*v) && !(ranks_share_gpus && v.is_library())
        };
        config.variants = Some(CollectiveVariant::ALL.iter().copied().filter(is_available).collect());
    }
    Ok(config)
}

/// The profile of a machine, by its name or its file.
pub fn machine_profile(name: &str) -> Result<MachineProfile> {
    if MachineProfile::builtin(name).is_none() && !Path::new(name).exists() {
        let names = MachineProfile::builtin_names().join(", ");
        bail!(
            "there is no machine {name}; expected one of {names}, or the file of a profile; \
             `symmc tune --ranks N -o FILE` measures the GPUs of a machine and writes its profile"
        );
    }
    Ok(symmc::machine_profile(name)?)
}

/// The number of GPUs of the machine that a profile describes; `None` for a host. The profile of a machine has curves
/// for all its GPUs.
fn gpu_count(profile: &MachineProfile) -> Option<u32> {
    match profile.backend {
        Backend::Cuda => profile.curves.iter().map(|curve| curve.ranks).max(),
        Backend::Host => None,
    }
}

/// Notes that a machine has another number of GPUs than the program has ranks.
fn note_gpu_count(profile: &MachineProfile, ranks: u32) {
    let Some(gpus) = gpu_count(profile).filter(|&gpus| gpus != ranks) else { return };
    let name = &profile.name;
    // A machine of the same GPUs, such as h100x8 for h100x4.
    let family = name.rsplit_once('x').map_or("", |(family, _)| family);
    let sibling = format!("{family}x{ranks}");
    let better = match MachineProfile::builtin(&sibling) {
        Some(_) => format!("; --machine {sibling} is for {ranks} GPUs"),
        None => String::new(),
    };
    let ranks = format_count(ranks, "rank");
    messages::note(&format!(
        "{ranks} on {name}, a machine of {}: estimates are scaled to {ranks}{better}",
        format_count(gpus, "GPU")
    ));
}

fn config_for_machine(args: &CompileArgs, default_machine: &str, ranks: u32) -> Result<CompileConfig> {
    let profile = machine_profile(args.machine.as_deref().unwrap_or(default_machine))?;
    if args.machine.is_some() {
        note_gpu_count(&profile, ranks);
    }
    let buckets = args.buckets.iter().map(|(symbol, upper)| BucketSpec::new(symbol, upper.as_slice()));
    let bind = match args.bind.as_slice() {
        [] => ArgumentBinding::None,
        [all] if all == "all" => ArgumentBinding::All,
        names if names.iter().any(|n| n == "all") => {
            bail!("--bind all binds every argument; expected no other --bind")
        }
        names => ArgumentBinding::Named(names.to_vec()),
    };
    let variants = (!args.variants.is_empty()).then(|| args.variants.clone());
    let mut config = CompileConfig::default().with_profile(profile).with_buckets(buckets).with_bind(bind);
    if let Some(order) = args.order {
        config = config.with_order(order.into());
    }
    if let Some(percent) = args.slack {
        config = config.with_slack(percent / 100.0);
    }
    if let Some(price) = args.memory_price {
        config = config.with_memory_price(price);
    }
    if let Some(numerics) = args.numerics {
        config = config.with_numerics(numerics);
    }
    Ok(config.with_variants(variants).with_symm_limit(args.symm_limit).with_coalesce(!args.no_coalesce))
}

/// The byte order mark that some editors write before UTF-8 text.
const BOM: char = '\u{feff}';

/// Whether a file is a plan. Plans are JSON; programs are zip archives, protobuf or text that does not start with `{`.
/// Pipes are not looked into, because their bytes can only be read once.
pub fn is_plan(path: &Path) -> bool {
    use std::io::Read;
    if !path.is_file() {
        return false;
    }
    let mut head = [0; 64];
    let read = std::fs::File::open(path).and_then(|mut f| f.read(&mut head)).unwrap_or(0);
    let head = &head[..read];
    let head = head.strip_prefix(BOM.to_string().as_bytes()).unwrap_or(head);
    head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
}

/// Whether the command line names a plan instead of a program. It is an error to name a plan and another file.
pub fn is_plan_argument(args: &ProgramArgs) -> Result<bool> {
    let is_plan_file = is_plan(args.first_path());
    match args.program.get(1) {
        Some(other) if is_plan_file => {
            bail!("{}: expected one file, because the first is a plan; found another", other.display())
        }
        _ => Ok(is_plan_file),
    }
}

/// Refuses options that only apply to programs, for a command line that names a plan.
pub fn refuse_program_options(path: &Path, given: impl IntoIterator<Item = &'static str>) -> Result<()> {
    match given.into_iter().next() {
        Some(option) => bail!("{}: this is a plan; {option} is for programs", path.display()),
        None => Ok(()),
    }
}

/// Reads the plan that a command line names, proves it safe, and checks that it is for `--ranks`, if that is given.
pub fn open_plan(args: &ProgramArgs) -> Result<CheckedPlan> {
    let path = args.first_path();
    let plan = read_plan(path)?;
    if let Some(ranks) = args.ranks.filter(|&ranks| ranks != plan.ranks) {
        bail!(
            "{}: the plan is for {}, found --ranks {ranks}",
            path.display(),
            format_count(plan.ranks, "rank")
        );
    }
    Ok(symmc::into_checked_plan(plan)?)
}

pub fn read_plan(path: &Path) -> Result<Plan> {
    if path.is_file() && !is_plan(path) {
        bail!("{}: expected a plan (JSON), as `symmc plan PROGRAM -o FILE` writes it", path.display());
    }
    Ok(symmc::read_plan(path)?)
}
