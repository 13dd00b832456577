//! Opens what the command line names.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use symmc::unstable::import::ranges::SymbolConstraints;
use symmc::{
    ArgumentBinding, BucketSpec, CollectiveVariant, CompileConfig, MachineProfile, OpenOptions, Plan,
    Program, TensorFile,
};

use crate::args::{CompileArgs, ProgramArgs};
use crate::gpu;
use crate::messages;
use crate::units::format_count;

/// A program that may run on these tensors, with what is said of its symbols; its number of ranks may be open.
pub fn open_program(
    args: &ProgramArgs,
    given: SymbolConstraints,
    tensors: Option<&Arc<TensorFile>>,
) -> Result<Program> {
    if let Some(plan) = args.program.iter().find(|path| is_plan(path)) {
        bail!("{}: this is a plan; expected a program (.pt2, .onnx or .symm)", plan.display());
    }
    for (i, (name, _)) in args.groups.iter().enumerate() {
        if args.groups[..i].iter().any(|(other, _)| other == name) {
            bail!("the members of group {name} are given twice");
        }
    }
    let options = OpenOptions::default()
        .with_ranks(args.ranks)
        .with_groups(args.groups.iter().cloned())
        .with_schemas(args.schemas.iter().cloned())
        .with_tensors(tensors.cloned())
        .with_extents(given.constraints)
        .with_bounds(given.fallback_bounds)
        .with_recorded_shapes(given.recorded_shapes);
    let program = Program::open_files(&args.program, &options)?;
    for note in &program.notes {
        messages::note(note);
    }
    Ok(program)
}

pub fn open_tensors(path: Option<&Path>) -> Result<Option<Arc<TensorFile>>> {
    Ok(path.map(TensorFile::open).transpose()?.map(Arc::new))
}

/// What is said of symbols. Buckets and sizes bound those to which nothing else gives an upper bound.
pub fn provided_extents(
    args: &ProgramArgs,
    compile: &CompileArgs,
    set: &[(String, i64)],
) -> SymbolConstraints {
    let largest =
        compile.buckets.iter().filter_map(|(name, upper)| Some((name.clone(), *upper.iter().max()?)));
    let bounds = largest.chain(set.iter().cloned()).collect();
    SymbolConstraints { constraints: args.dims.clone(), fallback_bounds: bounds, recorded_shapes: Vec::new() }
}

/// Fixes the number of ranks of a program and says what decided it, if that was not the command line.
pub fn infer_ranks(program: &mut Program) -> Result<()> {
    if let Some(file) = program.infer_ranks()? {
        let ranks = program.graph.ranks.unwrap_or_default();
        messages::note(&format!("{}, as {} has tensors for", format_count(ranks, "rank"), file.display()));
    }
    if program.graph.ranks.is_none() {
        let path = program.path.display();
        bail!("{path}: nothing in the program fixes the number of ranks; say it with --ranks N");
    }
    Ok(())
}

/// How to compile for this machine's CPU, unless another machine is named.
pub fn host_config(args: &CompileArgs) -> Result<CompileConfig> {
    config_for_machine(args, "host")
}

/// How to compile for so many GPUs, unless a machine is named; `gpus` are those of the ranks, if they are named.
/// What the library of this machine lacks is not chosen unless it is asked for.
pub fn gpu_config(args: &CompileArgs, ranks: u32, gpus: &[u32]) -> Result<CompileConfig> {
    let nearest = MachineProfile::nearest_builtin(ranks);
    if args.machine.is_none() {
        messages::note(&format!(
            "chosen for {nearest}; --machine names another, and symmc tune measures this one"
        ));
    }
    let mut config = config_for_machine(args, nearest)?;
    if config.variants.is_none() {
        let shared = gpus.iter().enumerate().any(|(i, gpu)| gpus[..i].contains(gpu));
        let lacks = |v: &CollectiveVariant| {
            *v != CollectiveVariant::Plain && (shared && v.is_library() || !gpu::has(*v))
        };
        config.variants = Some(CollectiveVariant::ALL.iter().copied().filter(|v| !lacks(v)).collect());
    }
    Ok(config)
}

fn config_for_machine(args: &CompileArgs, machine: &str) -> Result<CompileConfig> {
    let profile = symmc::machine_profile(args.machine.as_deref().unwrap_or(machine))?;
    let buckets = args.buckets.iter().map(|(symbol, upper)| BucketSpec::new(symbol, upper.as_slice()));
    let bind = match args.bind.as_slice() {
        [] => ArgumentBinding::None,
        [all] if all == "all" => ArgumentBinding::All,
        names if names.iter().any(|n| n == "all") => bail!("--bind all leaves no other argument to bind"),
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

/// The mark that some editors put in front of UTF-8.
const BOM: char = '\u{feff}';

/// Whether a file is a plan: JSON, where programs are zip archives or text that starts otherwise. What a pipe gives can be
/// read once, by whoever it is meant for.
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

/// Whether the file that a command names is a plan, which is alone then.
pub fn is_plan_argument(args: &ProgramArgs) -> Result<bool> {
    let found = is_plan(args.first_path());
    match args.program.get(1) {
        Some(other) if found => bail!("{}: a plan is one file, found another", other.display()),
        _ => Ok(found),
    }
}

pub fn read_plan(path: &Path) -> Result<Plan> {
    if path.is_file() && !is_plan(path) {
        bail!("{}: expected a plan (JSON); make one with symmc plan PROGRAM -o FILE", path.display());
    }
    Ok(symmc::read_plan(path)?)
}
