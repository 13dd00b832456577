//! Many replays of a plan's graph on GPUs, each with one of several sets of inputs: every output has, bit for bit, what
//! the first replay with that set gave, which agrees with the interpreter.
//!
//! `check_replays [--variant NAME] REPLAYS GPU,GPU,… PROGRAM… [TENSORS]`: a rank for each GPU, as threads of one process;
//! weights and the first set of arguments from TENSORS, a `.safetensors` file, or drawn. With a variant, collectives run
//! as that or plain, and one does; nothing is told of progress then, so that NCCL's kernels stand right behind those in
//! front of them.

mod threads;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use symmc::unstable::ir::entity::Entity;
use symmc::unstable::ir::graph::{GraphInput, GraphOutput};
use symmc::unstable::ir::interp::{self, Tolerance};
use symmc::unstable::ir::{InputKind, OutputKind};
use symmc::unstable::support::random::SplitMix;
use symmc::{
    CheckedPlan, CollectiveVariant, CompileConfig, DrawConfig, GpuConfig, Graph, Group, MachineProfile,
    OpenOptions, Program, ProgressReporting, Session, SessionConfig, Tensor, TensorFile, Workload,
};
use threads::on_ranks;

/// Sets of inputs.
const INPUT_SETS: usize = 5;
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How far outputs may be from the interpreter's, of the largest magnitude: of 16-bit floats and of others.
const RELATIVE_TOLERANCES: [f64; 2] = [2e-2, 1e-3];

/// The inputs of each rank.
type Inputs = Vec<Vec<Arc<Tensor>>>;

/// What all ranks replay.
struct ReplayJob {
    plan: CheckedPlan,
    sets: Vec<Inputs>,
    /// By set, rank and output.
    expected: Vec<Vec<Vec<Tensor>>>,
    /// Which inputs differ from set to set, or are other ones after a run.
    written: Vec<bool>,
    replays: usize,
    /// The values of the program's symbols.
    symbols: Vec<(String, i64)>,
    progress: ProgressReporting,
}

/// The elements of a tensor, so many places further: a set of its own with values that fit where the first did.
fn rotated(tensor: &Tensor, by: usize) -> Arc<Tensor> {
    let mut out = tensor.clone();
    let bytes = out.data_mut();
    if !bytes.is_empty() {
        let by = by * tensor.dtype().size() % bytes.len();
        bytes.rotate_left(by);
    }
    Arc::new(out)
}

/// The sets: the arguments of the first, turned differently in each. All ranks turn alike, so that what is equal on them
/// stays so.
fn sets(graph: &Graph, first: &Inputs) -> Vec<Inputs> {
    let turn = |set: usize, inputs: &Vec<Arc<Tensor>>| {
        let each = graph.inputs.values().zip(inputs);
        let tensor_of = |(input, tensor): (&GraphInput, &Arc<Tensor>)| match input.kind {
            InputKind::Argument => rotated(tensor, set * 37),
            _ => tensor.clone(),
        };
        each.map(tensor_of).collect()
    };
    (0..INPUT_SETS).map(|set| first.iter().map(|inputs| turn(set, inputs)).collect()).collect()
}

impl ReplayJob {
    fn new(
        replays: usize,
        ranks: usize,
        files: &[PathBuf],
        variant: Option<CollectiveVariant>,
    ) -> Result<ReplayJob> {
        let options = OpenOptions::default().with_ranks(ranks as u32);
        let (tensors, programs): (Vec<PathBuf>, _) =
            files.iter().cloned().partition(|f| f.extension().is_some_and(|e| e == "safetensors"));
        let program = Program::open_files(&programs, &options)?;
        let file = tensors.first().map(|path| TensorFile::open(path)).transpose()?;
        let graph = &program.graph;
        let work = Workload::gather(graph, &program.weights, file.as_ref(), &DrawConfig::default())?;
        let name = format!("h200x{ranks}");
        let mut profile = MachineProfile::builtin(&name).with_context(|| format!("no profile {name}"))?;
        if variant.is_some() {
            // Otherwise the plain variant is chosen where it is faster.
            profile.curves.edit(|curves| {
                for curve in curves.iter_mut().filter(|c| c.variant == CollectiveVariant::Plain) {
                    curve.points.iter_mut().for_each(|(_, microseconds)| *microseconds *= 1000.0);
                }
            });
        }
        let variants = variant.map(|v| vec![v]);
        let plan = symmc::compile(
            &program,
            &CompileConfig::default().with_profile(profile).with_variants(variants),
        )?;
        if let Some(variant) = variant {
            let decisions = plan.buckets.iter().flat_map(|b| &b.decisions);
            let chosen = decisions.filter(|d| d.chosen == variant.name()).count();
            ensure!(chosen > 0, "no collective runs as {variant}");
        }
        let progress =
            if variant.is_some() { ProgressReporting::Disabled } else { ProgressReporting::Enabled };
        let sets = sets(graph, &work.inputs);
        let run = |inputs: &Inputs| interp::run(plan.source_program(), &work.bindings, inputs);
        let expected = sets.iter().map(run).collect::<Result<_, _>>()?;
        let mutated = |i: usize| {
            graph.outputs.iter().any(|o| matches!(o.kind, OutputKind::Mutates(input) if input.index() == i))
        };
        let written = graph.inputs.values().enumerate();
        let written = written.map(|(i, input)| input.kind == InputKind::Argument || mutated(i)).collect();
        let symbols = graph.symbols.iter();
        let symbols =
            symbols.filter_map(|(id, symbol)| Some((symbol.name.clone(), work.bindings.get(id)?))).collect();
        Ok(ReplayJob { plan, symbols, sets, expected, written, replays, progress })
    }

    /// All replays of one rank.
    fn rank(&self, gpu: u32, group: &Group) -> Result<()> {
        let gpu = GpuConfig::new(gpu).with_progress(self.progress);
        let config = SessionConfig::default().with_timeout(WAIT_TIMEOUT).with_gpu(gpu);
        let mut session = Session::open(&self.plan, group, &config)?;
        for (symbol, value) in &self.symbols {
            session.set(symbol, *value)?;
        }
        let number = group.rank() as usize;
        let mut first: Vec<Vec<Tensor>> = vec![];
        let mut random = SplitMix(11);
        for replay in 0..self.replays {
            let set = if replay < INPUT_SETS { replay } else { random.below(INPUT_SETS) };
            let outputs = self.replay(&mut session, number, set, replay == 0)?;
            let Some(wanted) = first.get(set) else {
                self.agrees(set, number, &outputs)?;
                first.push(outputs);
                continue;
            };
            for (output, (actual, wanted)) in outputs.iter().zip(wanted).enumerate() {
                let is_same = actual.data() == wanted.data();
                ensure!(
                    is_same,
                    "replay {replay}, set {set}, rank {number}: output {output} has other bits than before"
                );
            }
        }
        Ok(())
    }

    /// One replay with a set of inputs; gives the outputs.
    fn replay(&self, session: &mut Session, rank: usize, set: usize, all: bool) -> Result<Vec<Tensor>> {
        let graph = self.plan.source_program();
        let inputs = graph.inputs.values().zip(&self.sets[set][rank]).zip(&self.written);
        for ((input, tensor), &written) in inputs {
            if input.data.is_none() && (all || written) {
                session.write(graph.value_name(input.value), tensor.load_to_memory()?.data())?;
            }
        }
        session.run()?;
        // Sessions cut the outputs that have lengths, and do not list these.
        let listed = |output: &&GraphOutput| !matches!(output.kind, OutputKind::Length { .. });
        let outputs = graph.outputs.iter().filter(listed).enumerate();
        let read = |(k, output): (usize, &GraphOutput)| match output.kind {
            OutputKind::Mutates(input) => session.read(graph.value_name(graph.inputs[input].value)),
            OutputKind::Returned | OutputKind::Length { .. } => {
                let before = graph.outputs[..k].iter().filter(|o| o.kind == OutputKind::Returned).count();
                session.read(&format!("out.{before}"))
            }
        };
        Ok(outputs.map(read).collect::<Result<_, _>>()?)
    }

    /// Whether the outputs of a rank are those of the interpreter.
    fn agrees(&self, set: usize, rank: usize, found: &[Tensor]) -> Result<()> {
        for (output, (found, wanted)) in found.iter().zip(&self.expected[set][rank]).enumerate() {
            let tolerance = RELATIVE_TOLERANCES[usize::from(wanted.dtype().size() != 2)];
            let largest = wanted.to_f64().iter().fold(1.0_f64, |most, x| most.max(x.abs()));
            let difference = interp::compare(found, wanted, Tolerance::absolute(tolerance * largest));
            let near = difference.agrees();
            ensure!(near, "set {set}, rank {rank}, output {output}: not the interpreter's: {difference}");
        }
        Ok(())
    }
}

fn run(args: &[String]) -> Result<()> {
    let (variant, args) = match args {
        [option, name, rest @ ..] if option == "--variant" => (
            Some(CollectiveVariant::from_name(name).with_context(|| format!("there is no variant {name}"))?),
            rest,
        ),
        all => (None, all),
    };
    let [replays, gpus, files @ ..] = args else { bail!("expected REPLAYS, GPUS and files") };
    let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    let gpus = gpus.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>().context("the GPUs")?;
    let replays = replays.parse().context("the replays")?;
    let job = ReplayJob::new(replays, gpus.len(), &files, variant)?;
    let groups = Group::threads(gpus.len() as u32);
    on_ranks(gpus.len(), |rank| job.rank(gpus[rank], &groups[rank]))?;
    let (ranks, outputs) = (gpus.len(), job.expected[0][0].len());
    println!(
        "{replays} replays on {ranks} ranks, {INPUT_SETS} sets of inputs, {outputs} outputs: the same bits for each set"
    );
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.len() < 3 {
        eprintln!("usage: check_replays [--variant NAME] REPLAYS GPU,GPU,… PROGRAM… [TENSORS]");
        return ExitCode::from(2);
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}
