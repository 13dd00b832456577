//! What binds a rank to the others.

use symmc_runtime::RunError;
use symmc_runtime::host::{Comm, Leaving, Recorded, Seat};

/// The ranks that a session runs with.
pub(super) enum Ranks<'c> {
    /// Those of a group, which opened a session together.
    Group(Box<Seat>),
    /// Those of a job. Who runs it tells them of failures, and of the beginning of runs.
    Job(&'c Comm),
}

impl Ranks<'_> {
    /// What this rank communicates by.
    pub fn comm(&self) -> &Comm {
        match self {
            Ranks::Group(seat) => seat.comm(),
            Ranks::Job(comm) => comm,
        }
    }

    /// Says that this rank waits for the end of a run, in a bucket, or that it does not any more: while it waits, peers expect
    /// that it goes on.
    pub fn wait_for(&self, run: Option<(u64, u32)>) {
        if let Ranks::Group(seat) = self {
            seat.comm().control().begin_run(seat.comm().rank(), run);
        }
    }

    /// Ends the session on all ranks; the error that explains it best.
    pub fn fail(&self, error: RunError) -> RunError {
        match self {
            Ranks::Group(seat) => seat.fail(error),
            Ranks::Job(_) => error,
        }
    }

    /// Leaves them in order, after this many runs.
    pub fn leave(self, runs: u64, leaving: Leaving) {
        if let Ranks::Group(seat) = self {
            seat.leave(Recorded::Awaited, runs, leaving);
        }
    }
}
