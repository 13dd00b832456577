//! Jobs on threads of this process, with the same shared memory, variants, timeouts and supervision as on
//! processes.

use std::thread;

use symmc_control::{Group, explaining_error};
use symmc_support::parallel;

use super::rank::{Job, JobResult, RankJob, expect_all_inputs, expect_rank_count, run_rank};
use super::run::OpenSession;
use crate::error::{Result, RunError};

/// Runs a job on one thread for each rank. Fails if the inputs do not fit the plan, an op has no kernel, or a rank
/// failed.
pub fn run_threads(job: &Job<'_>, open: &OpenSession<'_>) -> Result<JobResult> {
    let ranks = expect_rank_count(job)?;
    expect_all_inputs(job)?;
    let places =
        Group::threads(ranks).iter().map(Group::next_session_membership).collect::<Result<Vec<_>, _>>()?;
    let results: Vec<_> = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(places.len());
        for membership in &places {
            let started = parallel::spawn_scoped(scope, move || {
                run_rank(membership, &rank_job(job, membership.rank), open)
            });
            threads.push(started.map_err(|e| {
                let action = format!("starting the thread of rank {}", membership.rank);
                membership.decline(RunError::from_system_call(action, "clone", e))
            }));
        }
        let results = threads.into_iter().map(|started| {
            let ended = started?.join();
            ended.unwrap_or_else(|_| Err(RunError::system("a rank's thread", "panicked")))
        });
        results.collect()
    });
    if results.iter().any(Result::is_err) {
        let errors: Vec<(u32, RunError)> =
            (0..).zip(results).filter_map(|(rank, result)| Some((rank, result.err()?))).collect();
        return Err(explaining_thread_error(errors));
    }
    let (outputs, times) = results.into_iter().flatten().unzip();
    Ok(JobResult { outputs, times })
}

/// The error that explains the others. Threads do not die: if a peer reports the death of a rank, that rank
/// has ended with an error, which explains more.
fn explaining_thread_error(errors: Vec<(u32, RunError)>) -> RunError {
    let only_deaths = errors.iter().all(|(_, error)| is_death(error));
    let explaining = errors.into_iter().filter(|(_, error)| only_deaths || !is_death(error));
    explaining_error(explaining.map(|(rank, error)| error.reported_by(rank)).collect())
}

fn is_death(error: &RunError) -> bool {
    matches!(error.cause(), RunError::Died { .. } | RunError::DiedOutside { .. })
}

fn rank_job<'a>(job: &'a Job<'_>, rank: u32) -> RankJob<'a> {
    RankJob {
        plan: job.plan,
        bindings: job.bindings.clone(),
        inputs: job.inputs.get(rank as usize).map_or(&[][..], |inputs| inputs),
        repeats: job.repeats,
        trace: job.trace.clone(),
        settings: &[],
        config: job.config.clone(),
    }
}
