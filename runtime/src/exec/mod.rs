//! Executes the steps of a checked plan on one rank.
//!
//! An [`Executor`] holds a plan for one rank. [`Executor::run`] picks the bucket that serves the bindings,
//! resolves every operand to an address and every extent to a number ([`Bound`], once for each binding),
//! and walks the steps: kernels run here, collectives go to a [`Communicator`].
//!
//! ```text
//! Plan ──► Program (one bucket: graph, layouts, places) ──bind──► Bound (numbers) ──► run (addresses)
//! ```
//!
//! The plan has been checked; what memory safety needs is checked again where it is cheap: every view lies
//! within its base, every base within its buffer, every buffer within its arena, and the caller's memory is
//! as large as the program says.
//!
//! Not here: how ranks reach each other, processes, and the choice of a plan.

mod bind;
mod memory;
mod moved;
mod peers;
mod program;
mod run;

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::{Bindings, Graph, text};
use symmc_plan::Plan;

use crate::call::{CollectiveCall, PeerCall, PeerMemory};
pub use crate::custom::Registry;
use crate::error::RunError;
use crate::kernels::{Needs, Scratch};

pub(crate) use bind::offset_on;
pub use bind::{
    Bound, BoundCollective, BoundDispatch, BoundInput, BoundOutput, BoundRegion, BoundStep, Located, Member,
    Work,
};
pub use memory::{RankMemory, Span};
pub use moved::Moved;
pub use peers::{BoundPeers, PeerRegion};
pub use program::{CustomKernel, Home, Program};

/// How many bindings an executor keeps resolved.
const KEPT: usize = 64;

/// How steps are walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExecConfig {
    /// Which threads run them.
    pub lanes: Lanes,
    /// What is measured.
    pub timing: Timing,
}

/// Which threads run the steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lanes {
    /// The caller's thread runs all steps in the order of the plan.
    #[default]
    Inline,
    /// One thread for each lane; only lanes and waits order the steps, as far as the plan allows.
    Threads,
}

/// What is measured while steps run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Timing {
    /// Nothing.
    #[default]
    Off,
    /// The time of each step.
    Steps,
}

/// What a run reports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunReport {
    /// The index of the bucket that served the run.
    pub bucket: usize,
    /// Nanoseconds of each step, waits for other lanes not included, if they were measured.
    pub step_ns: Option<Vec<u64>>,
}

/// Moves data between ranks, for one rank.
pub trait Communicator: Sync {
    /// Notes that this rank begins a step.
    fn begin(&self, step: usize) {
        let _ = step;
    }

    /// Runs one collective to its completion on this rank.
    ///
    /// # Errors
    /// A peer failed, hung or left, or the call does not fit the communicator.
    ///
    /// # Safety
    /// `Private` regions point to memory of this rank as large as the call says. Nobody else touches the
    /// call's memory in ways that the contract of its variant does not order.
    unsafe fn collective(&self, call: &CollectiveCall<'_>) -> Result<(), RunError>;

    /// Runs `kernel`, that of a custom op, between an entry and an exit barrier of its cell.
    ///
    /// # Errors
    /// As [`collective`](Self::collective), the error of the kernel, or this communicator cannot.
    ///
    /// # Safety
    /// Nobody touches what the kernel touches in ways that the two barriers do not order.
    unsafe fn custom(
        &self,
        call: &PeerCall<'_>,
        kernel: &mut dyn FnMut(&dyn PeerMemory) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let _ = kernel;
        let PeerCall { name, op, .. } = call;
        Err(RunError::Invalid(format!("%{name} ({op}): it touches peers, which this backend cannot")))
    }

    /// Tells the peers, and another thread of this rank that is inside
    /// [`collective`](Self::collective), that this rank ends with `error`.
    fn abort(&self, error: &RunError) {
        let _ = error;
    }
}

/// A plan on one rank, ready to run again and again.
#[derive(Debug)]
pub struct Executor {
    plan: Arc<Plan>,
    rank: u32,
    registry: Registry,
    config: ExecConfig,
    /// The imported program.
    source: Graph,
    /// Each bucket's program, once it is needed.
    programs: Vec<Option<Program>>,
    /// Resolved bindings, oldest first.
    bound: Vec<(Bindings, Arc<Bound>)>,
    scratch: [Scratch; 2],
}

impl Executor {
    /// A plan on rank `rank`. The plan must have been checked.
    ///
    /// # Errors
    /// The text of the imported program does not parse, or the plan has no such rank.
    pub fn new(
        plan: Arc<Plan>,
        rank: u32,
        registry: &Registry,
        config: ExecConfig,
    ) -> Result<Self, RunError> {
        if rank >= plan.ranks {
            return Err(RunError::Invalid(format!(
                "the plan is for {} ranks, this is rank {rank}",
                plan.ranks
            )));
        }
        let source = text::parse(&plan.source.text)
            .map_err(|e| RunError::Invalid(format!("the imported program of the plan: {e}")))?;
        let programs = plan.buckets.iter().map(|_| None).collect();
        let (bound, registry) = (Vec::new(), registry.clone());
        Ok(Executor { plan, rank, registry, config, source, programs, bound, scratch: Default::default() })
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
            empty => empty.insert(Program::new(&self.plan, bucket, self.rank, &self.registry)?),
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
