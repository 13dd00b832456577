//! Every program with recorded tensors, its inputs and caches in memory of the session and of the caller.
//!
//! Programs of one rank run beside each other on both GPUs, those of two as threads, and those of two and four as processes
//! ([`crate::processes`]): where two ranks have one GPU, their kernels wait for each other, and only contexts of their own
//! are sure to take turns. NCCL refuses two ranks on one GPU, so plans of four ranks leave it out.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use symmc::unstable::ir::InputKind;
use symmc::unstable::ir::interp::{RunCount, Tolerance, compare, output_histories};
use symmc::{
    ArgumentBinding, CheckedPlan, CollectiveVariant, CompileConfig, GpuConfig, Group, MachineProfile,
    OpenOptions, Program, Session, SessionConfig, Tensor, TensorFile, Workload,
};
use symmc_tests::files_in;

use crate::common::{GPU_COUNT, WAIT_TIMEOUT, on_ranks};

/// Where inputs lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputMemory {
    /// Where the session has them.
    Placed,
    /// In buffers of the caller.
    Bound,
}

/// A program with the values of a run.
pub struct RecordedProgram {
    pub stem: String,
    pub program: Program,
    work: Workload,
}

impl RecordedProgram {
    /// The program of a file of tensors under the folder of programs.
    pub fn open(stem: &str) -> Result<RecordedProgram> {
        let folder = Path::new("tests/programs");
        let tensors = Arc::new(TensorFile::open(&folder.join(format!("{stem}.safetensors")))?);
        let files = files_in(folder, stem, tensors.ranks());
        let mesh = [("3", vec![vec![0, 1], vec![2, 3]]), ("1", vec![vec![0, 2], vec![1, 3]])];
        let groups = mesh.into_iter().filter(|_| stem == "mesh_2x2");
        let options = OpenOptions::default().with_tensors(tensors.clone()).with_groups(groups);
        let program = Program::open_files(&files, &options)?;
        let work = Workload::recorded(&program, &tensors)?;
        ensure!(work.expected.is_some(), "{stem}: no recorded outputs");
        Ok(RecordedProgram { stem: stem.to_string(), program, work })
    }

    pub fn ranks(&self) -> u32 {
        self.program.graph.ranks.unwrap_or(1)
    }

    pub fn plan(&self, bind: ArgumentBinding) -> Result<CheckedPlan> {
        let profile =
            MachineProfile::builtin(MachineProfile::nearest_builtin(self.ranks())).context("no profile")?;
        let works_alone =
            |variant: &CollectiveVariant| !variant.is_library() || *variant == CollectiveVariant::Plain;
        let variants = CollectiveVariant::ALL.iter().copied().filter(works_alone).collect();
        let shared = (self.ranks() > GPU_COUNT).then_some(variants);
        let config = CompileConfig::default().with_profile(profile).with_bind(bind).with_variants(shared);
        Ok(symmc::compile(&self.program, &config)?)
    }

    /// Runs one rank on a GPU, and compares its outputs.
    pub fn check(&self, plan: &CheckedPlan, group: &Group, gpu: u32, memory: InputMemory) -> Result<()> {
        let config = SessionConfig::default().with_timeout(WAIT_TIMEOUT).with_gpu(GpuConfig::new(gpu));
        let mut session = Session::open(plan, group, &config)?;
        let rank = group.rank() as usize;
        let outputs = self.run(&mut session, rank, memory)?;
        let expected = self.work.expected.as_ref().and_then(|expected| expected.get(rank));
        let histories = output_histories(&self.program.graph, RunCount::One);
        let expected = expected.context("no outputs of this rank")?;
        for ((actual, expected), history) in outputs.iter().zip(expected).zip(&histories) {
            let Some(expected) = expected else { continue };
            let comparison = compare(actual, expected, Tolerance::for_history(history, expected));
            ensure!(comparison.agrees(), "{}, rank {rank}, {memory:?}: {comparison}", self.stem);
        }
        Ok(session.close()?)
    }

    fn run(&self, session: &mut Session, rank: usize, memory: InputMemory) -> Result<Vec<Tensor>> {
        let source = session.plan().source_program().clone();
        for (id, symbol) in source.symbols.iter() {
            session.set(&symbol.name, self.work.bindings.get(id).context("no value")?)?;
        }
        let mut arguments = 0;
        for (input, tensor) in source.inputs.values().zip(&self.work.inputs[rank]) {
            let number = arguments;
            arguments += usize::from(input.kind == InputKind::Argument);
            if input.data.is_some() {
                continue;
            }
            let name = match input.kind {
                InputKind::Argument => format!("in.{number}"),
                _ => format!("w.{}", input.source),
            };
            let tensor = tensor.load_to_memory()?;
            if memory == InputMemory::Placed {
                session.write_tensor(&name, &tensor)?;
                continue;
            }
            let buffer = session.allocate(tensor.data().len())?;
            buffer.write(0, tensor.data())?;
            // SAFETY: nobody else uses the buffer.
            unsafe { session.bind_buffer(&name, &buffer)? };
        }
        session.enqueue()?;
        session.wait(WAIT_TIMEOUT)?;
        let mut returned = 0;
        let mut out = Vec::new();
        for output in session.outputs()? {
            out.push(match output.replaces {
                Some(input) => session.read(&input)?,
                None => {
                    returned += 1;
                    session.read(&format!("out.{}", returned - 1))?
                }
            });
        }
        Ok(out)
    }
}

/// All files of tensors for so many ranks under the folder of programs, as stems.
pub fn stems(ranks: u32) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for folder in ["", "families/"] {
        for file in std::fs::read_dir(Path::new("tests/programs").join(folder))? {
            let path = file?.path();
            if path.extension().is_some_and(|e| e == "safetensors")
                && TensorFile::open(&path)?.ranks() == ranks
            {
                let stem = path.file_stem().and_then(|stem| stem.to_str()).context("a name")?;
                out.push(format!("{folder}{stem}"));
            }
        }
    }
    ensure!(!out.is_empty(), "there are no programs of {ranks} ranks: is this the root of the repository?");
    out.sort();
    Ok(out)
}

/// Programs of one rank, beside each other.
pub fn of_one_rank() -> Result<()> {
    let stems = stems(1)?;
    let (next, failed) = (Mutex::new(stems.iter()), Mutex::new(Vec::new()));
    let lock =
        |list: &Mutex<Vec<String>>, text| list.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    let check_one = |stem: &str, gpu| {
        let recorded = RecordedProgram::open(stem)?;
        let plan = recorded.plan(ArgumentBinding::None)?;
        let group = Group::threads(1).remove(0);
        [InputMemory::Placed, InputMemory::Bound]
            .into_iter()
            .try_for_each(|m| recorded.check(&plan, &group, gpu, m))
    };
    std::thread::scope(|scope| {
        for worker in 0..4 * GPU_COUNT {
            let (next, failed, one) = (&next, &failed, &check_one);
            scope.spawn(move || {
                let stem = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(stem) = stem() {
                    if let Err(error) = one(stem, worker % GPU_COUNT) {
                        lock(failed, format!("{stem}: {error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{} programs of one rank: {} as recorded", stems.len(), stems.len() - failed.len());
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n  ")) }
}

/// Programs of two ranks, whose arguments the plan holds in symmetric memory and not.
pub fn of_two_ranks() -> Result<()> {
    for stem in stems(2)? {
        let recorded = RecordedProgram::open(&stem)?;
        for bind in [ArgumentBinding::None, ArgumentBinding::All] {
            let plan = recorded.plan(bind)?;
            for memory in [InputMemory::Placed, InputMemory::Bound] {
                on_ranks(|group, _| recorded.check(&plan, group, group.rank(), memory))?;
            }
        }
        println!("{stem}: as recorded, with memory of the session and of the caller");
    }
    Ok(())
}

/// What one process does: all programs of the group's number of ranks, of which several may have one GPU.
pub fn as_a_process(group: &Group) -> Result<()> {
    for stem in stems(group.ranks())? {
        let recorded = RecordedProgram::open(&stem)?;
        let plan = recorded.plan(ArgumentBinding::All)?;
        for memory in [InputMemory::Placed, InputMemory::Bound] {
            recorded.check(&plan, group, group.rank() % GPU_COUNT, memory)?;
        }
        println!("said: {stem}");
    }
    Ok(())
}
