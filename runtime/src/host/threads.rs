//! Ranks as threads of this process, with the same shared memory, variants and limits as processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use symmc_ir::Tensor;
use symmc_support::parallel;

use super::comm::{Comm, World};
use super::coordinator::cause;
use super::engine::{Engines, RankRun};
use super::job::{EngineChoice, Job, Needs, Ran};
use super::rank_memory::{LocalMemory, arena_size};
use crate::custom::{Registry, panic_text};
use crate::error::RunError;

/// Runs a job on one thread for each rank, with these kernels for custom ops; the outputs of each rank.
///
/// # Errors
/// The inputs do not fit the plan, an op has no kernel, or a rank failed.
pub fn run_threads(job: &Job, registry: &Registry) -> Result<Vec<Vec<Tensor>>, RunError> {
    run_threads_timed(job, registry).map(|ran| ran.outputs)
}

/// As [`run_threads`], with the times of the runs.
///
/// # Errors
/// As [`run_threads`].
pub fn run_threads_timed(job: &Job, registry: &Registry) -> Result<Ran, RunError> {
    let ranks = expect_ranks(job)?;
    let needs = Needs::of(job.plan, &job.bindings, job.inputs, 0)?;
    let arena = arena_size(job.plan.arenas.symmetric)?;
    let world = World::create(ranks, needs.groups, arena, job.config.first)?;
    let start = Start { ranks, state: Mutex::default(), changed: Condvar::new() };
    let results: Vec<Outputs> = std::thread::scope(|scope| {
        let spawn = |rank| {
            let (world, needs, start) = (world.clone(), &needs, &start);
            let ended = world.control.clone();
            let work = move || {
                let run = || run_rank((job, registry), rank, world.clone(), needs, || start.ready());
                let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                    let text = panic_text(&*panic);
                    Err(RunError::system(format!("rank {rank}"), format!("panicked: {text}")))
                });
                if let Err(error) = &result {
                    world.control.abort(rank, error);
                    start.fail();
                }
                result
            };
            thread_of(scope, rank, work).inspect_err(|error| {
                ended.abort(rank, error);
                start.fail();
            })
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        let died = |_| Err(RunError::system("a rank's thread", "panicked"));
        threads.into_iter().map(|t| t?.join().unwrap_or_else(died)).collect()
    });
    if results.iter().any(Result::is_err) {
        let errors = (0..).zip(results).filter_map(|(rank, result)| Some(result.err()?.reported_by(rank)));
        let errors = errors.collect();
        return Err(cause(errors));
    }
    let times = (0..ranks).map(|rank| world.control.times(rank)).collect();
    Ok(Ran { outputs: results.into_iter().flatten().collect(), times })
}

/// What a thread of a rank leaves behind.
type Outputs = Result<Vec<Tensor>, RunError>;

/// A thread for a rank, if the system gives one.
fn thread_of<'scope>(
    scope: &'scope Scope<'scope, '_>,
    rank: u32,
    work: impl FnOnce() -> Outputs + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Outputs>, RunError> {
    parallel::start(scope, work)
        .map_err(|e| RunError::of_call(format!("starting the thread of rank {rank}"), "clone", e))
}

/// The start of all ranks: none begins before all have loaded, or one has failed to.
struct Start {
    ranks: u32,
    state: Mutex<Loaded>,
    changed: Condvar,
}

#[derive(Default)]
struct Loaded {
    ranks: u32,
    failed: bool,
}

impl Start {
    fn state(&self) -> MutexGuard<'_, Loaded> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> Result<(), RunError> {
        let mut state = self.state();
        state.ranks += 1;
        self.changed.notify_all();
        let waiting = |s: &mut Loaded| s.ranks < self.ranks && !s.failed;
        let state = self.changed.wait_while(state, waiting).unwrap_or_else(PoisonError::into_inner);
        match state.ranks < self.ranks {
            true => Err(RunError::Aborted { rank: 0, reason: "a rank failed to start".into() }),
            false => Ok(()),
        }
    }

    /// Lets the others go on, to find that a rank failed.
    fn fail(&self) {
        self.state().failed = true;
        self.changed.notify_all();
    }
}

fn run_rank(
    (job, registry): (&Job, &Registry),
    rank: u32,
    world: World,
    needs: &Needs,
    mut ready: impl FnMut() -> Result<(), RunError>,
) -> Result<Vec<Tensor>, RunError> {
    let inputs = &job.inputs[rank as usize];
    let comm = Comm::new(world, rank, job.config.comm(job.plan.ranks))?;
    let memory = LocalMemory::new(job.plan.arenas.ordinary, inputs, needs, &EngineChoice::Host)?;
    let run = RankRun {
        plan: job.plan,
        bindings: &job.bindings,
        repeats: job.repeats,
        config: &job.config,
        comm: &comm,
    };
    // SAFETY: the memory is this rank's own and as large as the program says; the inputs live in the job.
    unsafe { Engines::host(registry).run(&run, &memory.rank(&comm), &mut ready)? };
    memory.outputs(&needs.outputs)
}

/// The number of ranks, if there are inputs for each.
pub(super) fn expect_ranks(job: &Job) -> Result<u32, RunError> {
    let (ranks, found) = (job.plan.ranks, job.inputs.len());
    match found == ranks as usize && ranks > 0 {
        true => Ok(ranks),
        false => Err(RunError::Invalid(format!("the plan is for {ranks} ranks, found inputs for {found}"))),
    }
}
