//! A plan on one rank, ready to run again and again: which bucket serves, and what was resolved for it.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_check::CheckedPlan;
use symmc_ir::{Bindings, Graph, text};
use symmc_plan::Plan;

use super::bound::Bound;
use super::communicator::Communicator;
use super::config::{ExecConfig, RunReport};
use super::memory::RankMemory;
use super::program::{Program, read};
use crate::custom::Registry;
use crate::error::RunError;
use crate::kernels::{Needs, Scratch};

/// How many bindings an executor keeps resolved.
const KEPT: usize = 64;

/// A plan on one rank, ready to run again and again.
#[derive(Debug)]
pub struct Executor {
    plan: Arc<Plan>,
    rank: u32,
    registry: Registry,
    config: ExecConfig,
    /// The imported program.
    source: Graph,
    /// The planned programs as they were read, each once.
    read: Read,
    /// Each bucket's program, once it is needed.
    programs: Vec<Option<Program>>,
    /// Resolved bindings, oldest first.
    bound: Vec<(Bindings, Arc<Bound>)>,
    scratch: [Scratch; 2],
}

/// The planned programs of a plan.
#[derive(Debug)]
enum Read {
    /// As the check read them.
    Checked(CheckedPlan),
    /// Those that were needed so far: the check was elsewhere.
    Needed(Vec<Option<symmc_plan::Program>>),
}

impl Read {
    fn program(&mut self, plan: &Plan, index: usize) -> Result<&symmc_plan::Program, RunError> {
        let missing = || RunError::Defect(format!("the plan cannot run: there is no program {index}"));
        match self {
            Read::Checked(checked) => checked.programs().get(index).ok_or_else(missing),
            Read::Needed(all) => match all.get_mut(index).ok_or_else(missing)? {
                Some(program) => Ok(program),
                empty => Ok(empty.insert(read(plan, index)?)),
            },
        }
    }
}

impl Executor {
    /// A plan on rank `rank`, with the programs as the check read them.
    ///
    /// # Errors
    /// The plan has no such rank.
    pub fn of_checked(
        plan: &CheckedPlan,
        rank: u32,
        registry: &Registry,
        config: ExecConfig,
    ) -> Result<Self, RunError> {
        let (source, read) = (plan.source_program().clone(), Read::Checked(plan.clone()));
        Executor::of(plan.shared(), rank, (source, read), registry, config)
    }

    /// A plan on rank `rank`. The plan must have been checked: by another process, whose reading of it is not here.
    ///
    /// # Errors
    /// The text of the imported program does not parse, or the plan has no such rank.
    pub fn new(
        plan: Arc<Plan>,
        rank: u32,
        registry: &Registry,
        config: ExecConfig,
    ) -> Result<Self, RunError> {
        let source = text::parse(&plan.source.text)
            .map_err(|e| RunError::Invalid(format!("the imported program of the plan: {e}")))?;
        let read = Read::Needed(plan.programs.iter().map(|_| None).collect());
        Executor::of(plan, rank, (source, read), registry, config)
    }

    fn of(
        plan: Arc<Plan>,
        rank: u32,
        (source, read): (Graph, Read),
        registry: &Registry,
        config: ExecConfig,
    ) -> Result<Self, RunError> {
        if rank >= plan.ranks {
            let ranks = plan.ranks;
            return Err(RunError::Invalid(format!("the plan is for {ranks} ranks, this is rank {rank}")));
        }
        let programs = plan.buckets.iter().map(|_| None).collect();
        let (bound, registry, scratch) = (Vec::new(), registry.clone(), Default::default());
        Ok(Executor { plan, rank, registry, config, source, read, programs, bound, scratch })
    }

    /// The index of the bucket that serves these values of the imported program's symbols.
    ///
    /// # Errors
    /// None serves them.
    pub fn bucket(&self, bindings: &Bindings) -> Result<usize, RunError> {
        bucket_of(&self.plan, &self.by_name(bindings))
    }

    /// Every bucket that can run, with its symbols at their upper ends where it serves these.
    pub fn largest(&mut self) -> Vec<(&Program, Option<Bound>)> {
        for bucket in 0..self.programs.len() {
            // One that cannot run is refused when it is to.
            let _ = self.program(bucket);
        }
        let at_most = |program: &Program| {
            let symbols = &self.plan.buckets.get(program.bucket)?.symbols;
            program.bind(&symbols.iter().map(|(name, range)| (name.clone(), range[1])).collect()).ok()
        };
        self.programs.iter().flatten().map(|program| (program, at_most(program))).collect()
    }

    /// What kernels of the host need beside operands and results in each lane, at the largest sizes.
    pub fn needs(&mut self) -> [Needs; 2] {
        let (lanes, mut needs) = (self.config.lanes, <[Needs; 2]>::default());
        for bound in self.largest().into_iter().filter_map(|(_, bound)| bound) {
            bound.add_needs(lanes, &mut needs);
        }
        needs
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The imported program.
    pub fn source(&self) -> &Graph {
        &self.source
    }

    /// The values of the symbols in words: `n=4, m=7`.
    pub fn sizes(&self, bindings: &Bindings) -> String {
        let text = |(name, value): (&String, &i64)| format!("{name}={value}");
        self.by_name(bindings).iter().map(text).collect::<Vec<_>>().join(", ")
    }

    fn program(&mut self, bucket: usize) -> Result<&Program, RunError> {
        Ok(match &mut self.programs[bucket] {
            Some(program) => program,
            empty => {
                // An executor has a place for each bucket of its plan.
                let read = self.read.program(&self.plan, self.plan.buckets[bucket].program)?;
                empty.insert(Program::of(&self.plan, read, bucket, self.rank, &self.registry)?)
            }
        })
    }

    /// The values of the symbols by name.
    fn by_name(&self, bindings: &Bindings) -> IndexMap<String, i64> {
        let symbols = self.source.symbols.iter();
        let named = symbols.filter_map(|(id, symbol)| Some((symbol.name.clone(), bindings.get(id)?)));
        named.collect()
    }

    /// Everything resolved for these values of the imported program's symbols.
    ///
    /// # Errors
    /// No bucket serves them, the bucket cannot run (it holds an op without a kernel), or its memory does
    /// not hold its values.
    pub fn bind(&mut self, bindings: &Bindings) -> Result<Arc<Bound>, RunError> {
        if let Some((_, bound)) = self.bound.iter().find(|(known, _)| known == bindings) {
            return Ok(bound.clone());
        }
        let named = self.by_name(bindings);
        let bucket = bucket_of(&self.plan, &named)?;
        let bound = Arc::new(self.program(bucket)?.bind(&named)?);
        if self.bound.len() == KEPT {
            self.bound.remove(0);
        }
        self.bound.push((bindings.clone(), bound.clone()));
        Ok(bound)
    }

    /// Writes parameters and constants that the plan holds in fixed memory there. Called once, before the
    /// first run.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), or the caller's memory does not fit.
    ///
    /// # Safety
    /// As [`Bound::run`].
    pub unsafe fn load(&mut self, bindings: &Bindings, memory: &RankMemory) -> Result<(), RunError> {
        let bound = self.bind(bindings)?;
        // SAFETY: the caller's promise.
        unsafe { bound.load(memory) }
    }

    /// Runs the plan once.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); the caller's memory does not fit; a kernel or a collective failed, which
    /// [`Communicator::abort`] has been told.
    ///
    /// # Safety
    /// As [`Bound::run`].
    pub unsafe fn run(
        &mut self,
        bindings: &Bindings,
        memory: &RankMemory,
        comm: &dyn Communicator,
    ) -> Result<RunReport, RunError> {
        let bound = self.bind(bindings)?;
        // SAFETY: the caller's promise.
        unsafe { bound.run(memory, comm, &self.config, &mut self.scratch) }
    }
}

/// The bucket whose ranges hold these values.
fn bucket_of(plan: &Plan, named: &IndexMap<String, i64>) -> Result<usize, RunError> {
    plan.serving(named).map_err(|e| RunError::Invalid(e.to_string()))
}
