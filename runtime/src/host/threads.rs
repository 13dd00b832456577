//! Ranks as threads of this process, with the same shared memory, variants and limits as processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use symmc_ir::Tensor;

use super::comm::{Comm, World};
use super::coordinator::cause;
use super::engine::{Engines, RankRun};
use super::job::{Job, Needs};
use super::walk::{LocalMemory, arena_size};
use crate::custom::{Registry, panic_text};
use crate::error::RunError;

/// Runs a job on one thread for each rank, with these kernels for custom ops; the outputs of each rank.
///
/// # Errors
/// The inputs do not fit the plan, an op has no kernel, or a rank failed.
pub fn run_threads(job: &Job, registry: &Registry) -> Result<Vec<Vec<Tensor>>, RunError> {
    let ranks = expect_ranks(job)?;
    let needs = Needs::of(job.plan, &job.bindings, job.inputs, 0)?;
    let arena = arena_size(job.plan.arenas.symmetric)?;
    let world = World::create(ranks, needs.groups, arena, job.config.first)?;
    let start = Start { all: Barrier::new(ranks as usize), failed: AtomicBool::new(false) };
    let results: Vec<Result<Vec<Tensor>, RunError>> = std::thread::scope(|scope| {
        let spawn = |rank| {
            let (world, needs, start) = (world.clone(), &needs, &start);
            scope.spawn(move || {
                let passed = AtomicBool::new(false);
                let run = || run_rank((job, registry), rank, world.clone(), needs, || start.ready(&passed));
                let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                    let text = panic_text(&*panic);
                    Err(RunError::system(format!("rank {rank}"), format!("panicked: {text}")))
                });
                if let Err(error) = &result {
                    world.control.abort(rank, &error.to_string());
                    start.give_up(&passed);
                }
                result
            })
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        let died = |_| Err(RunError::system("a rank's thread", "panicked"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(died)).collect()
    });
    if results.iter().any(Result::is_err) {
        let errors = results.into_iter().filter_map(Result::err).collect();
        return Err(cause(errors));
    }
    Ok(results.into_iter().flatten().collect())
}

/// The start of all ranks: none begins before all have loaded, or one has failed to.
struct Start {
    all: Barrier,
    failed: AtomicBool,
}

impl Start {
    fn ready(&self, passed: &AtomicBool) -> Result<(), RunError> {
        passed.store(true, Ordering::Relaxed);
        self.all.wait();
        match self.failed.load(Ordering::SeqCst) {
            true => Err(RunError::Aborted { rank: 0, reason: "a rank failed to start".into() }),
            false => Ok(()),
        }
    }

    /// Lets the others pass, where this rank never came to the start.
    fn give_up(&self, passed: &AtomicBool) {
        if !passed.swap(true, Ordering::Relaxed) {
            self.failed.store(true, Ordering::SeqCst);
            self.all.wait();
        }
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
    let memory = LocalMemory::new(job.plan.arenas.ordinary, inputs, &needs.mutated, &needs.outputs)?;
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
