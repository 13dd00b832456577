//! What runs a rank's plan: the seam behind which processors of other kinds stand.
//!
//! A rank process gets its job, agrees with the others on it, and hands it to an engine. The [`HostEngine`]
//! walks the steps on this machine's CPU. Another engine is named by the job ([`Engine::name`]) and given by
//! the program that the rank process runs; it uses the host's [`Comm`] to meet its peers, to tell how far it
//! came, and to learn that the run has ended.

use symmc_ir::Bindings;
use symmc_plan::ReadPlan;

use super::comm::Comm;
use super::job::{EngineChoice, HostConfig};
use crate::custom::Registry;
use crate::error::RunError;
use crate::exec::{Executor, RankMemory};

/// What one rank runs.
#[derive(Clone, Copy, Debug)]
pub struct RankRun<'a> {
    /// The plan, checked and the same on all ranks.
    pub plan: &'a ReadPlan,
    /// The values of the imported program's symbols.
    pub bindings: &'a Bindings,
    /// How often the plan runs, at least once.
    pub repeats: u32,
    /// How it runs.
    pub config: &'a HostConfig,
    /// The rank's means to reach its peers.
    pub comm: &'a Comm,
}

impl RankRun<'_> {
    /// Every rank's bytes, by rank. All ranks call this at the same point with equally many; not while the
    /// plan runs on the host.
    ///
    /// # Errors
    /// A peer failed, or did not come within the limit.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
        self.comm.exchange(mine)
    }
}

/// Runs plans on one rank.
pub trait Engine: Sync {
    /// The name by which jobs choose it.
    fn name(&self) -> &'static str;

    /// Whether it runs every node of a plan, told `options` by the job. Asked when the plan is made for this engine, on a
    /// machine that may have no such device; what passes here is refused by no rank. Without a body of its own it runs all.
    ///
    /// # Errors
    /// The first node that it does not run, and why ([`RunError::CannotRun`]).
    fn accepts(&self, options: &str, plan: &ReadPlan) -> Result<(), RunError> {
        let _ = (options, plan);
        Ok(())
    }

    /// Loads the rank's memory, calls `ready`, which returns once all ranks are, and runs the plan as often as
    /// wanted. The outputs are those of the last run. `options` is what the job tells the engine.
    ///
    /// # Errors
    /// The plan cannot run here, or the run failed.
    ///
    /// # Safety
    /// As [`Executor::run`] for `memory`.
    unsafe fn run(
        &self,
        options: &str,
        run: &RankRun<'_>,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError>;
}

/// The engines of a rank process.
#[derive(Clone, Copy)]
pub struct Engines<'a> {
    /// The kernels of custom ops on the host.
    pub kernels: &'a Registry,
    /// Engines besides the host's.
    pub others: &'a [&'a dyn Engine],
}

/// Kernels of no custom op.
static NO_KERNELS: Registry = Registry::new();

impl Default for Engines<'_> {
    fn default() -> Self {
        Engines { kernels: &NO_KERNELS, others: &[] }
    }
}

impl<'a> Engines<'a> {
    /// The host's alone, with these kernels for custom ops.
    pub fn host(kernels: &'a Registry) -> Self {
        Engines { kernels, others: &[] }
    }

    /// Whether the engine that is chosen runs every node of a plan.
    ///
    /// # Errors
    /// There is no such engine, or as [`Engine::accepts`].
    pub fn accepts(&self, choice: &EngineChoice, plan: &ReadPlan) -> Result<(), RunError> {
        match choice {
            EngineChoice::Host => HostEngine { kernels: self.kernels }.accepts("", plan),
            EngineChoice::Named { name, options } => self.named(name)?.accepts(options, plan),
        }
    }

    fn named(&self, name: &str) -> Result<&'a dyn Engine, RunError> {
        let known = self.others.iter().copied().find(|e| e.name() == name);
        known.ok_or_else(|| {
            RunError::Invalid(format!("this program has no engine called {name}: it was built without"))
        })
    }

    /// Runs a rank on the engine that its job chooses.
    ///
    /// # Errors
    /// There is no such engine, or as [`Engine::run`].
    ///
    /// # Safety
    /// As [`Engine::run`].
    pub(super) unsafe fn run(
        &self,
        run: &RankRun<'_>,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        match &run.config.engine {
            // SAFETY: the caller's promise.
            EngineChoice::Host => unsafe { HostEngine { kernels: self.kernels }.run("", run, memory, ready) },
            EngineChoice::Named { name, options } => {
                // SAFETY: the caller's promise.
                unsafe { self.named(name)?.run(options, run, memory, ready) }
            }
        }
    }
}

/// The CPU of this machine.
#[derive(Clone, Copy, Debug)]
pub struct HostEngine<'a> {
    /// The kernels of custom ops.
    pub kernels: &'a Registry,
}

impl Engine for HostEngine<'_> {
    fn name(&self) -> &'static str {
        "host"
    }

    fn accepts(&self, _options: &str, plan: &ReadPlan) -> Result<(), RunError> {
        plan.programs().try_for_each(|program| self.kernels.check(&program?.graph))
    }

    unsafe fn run(
        &self,
        _options: &str,
        run: &RankRun<'_>,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let RankRun { plan, bindings, repeats, config, comm } = *run;
        let mut executor = Executor::new(plan, comm.rank(), self.kernels, config.exec())?;
        let bucket = executor.bucket(bindings)?;
        // SAFETY: the caller's promise.
        unsafe { executor.load(bindings, memory)? };
        ready()?;
        for run in 0..u64::from(repeats.max(1)) {
            comm.begin_run(run, bucket);
            // SAFETY: the caller's promise.
            unsafe { executor.run(bindings, memory, comm)? };
        }
        comm.end_runs();
        Ok(())
    }
}
