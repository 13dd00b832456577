//! The host backend: ranks are processes, or threads of one, that communicate through shared memory.
//!
//! - [`launch`] starts one process for each rank of a [`Job`]; each of them calls [`rank_main`].
//! - [`run_rank`] runs the rank that another launcher gave this process ([`Membership::find`]).
//! - [`run_threads`] runs all ranks as threads.
//!
//! From the bottom up: `memory` maps segments, `control` holds the words through which ranks signal each
//! other, `wait` bounds every wait, `reduce` and `ll` move elements, [`Comm`] runs collectives
//! (`direct`, `put`, `landing`, `staged` and `splits` are its variants). `joining` is the protocol by which a run opens;
//! `channel`, `opening`, `link`, `gather` and `coordinator` carry it out, watch the run and end it.
//!
//! Nothing here has a name in a file system, so nothing is left behind, however a run ends.

mod ancestor;
mod announce;
mod bounded;
mod channel;
mod chaos;
mod collective;
mod comm;
mod control;
mod coordinator;
mod copy;
mod culprit;
mod descriptors;
mod direct;
mod engine;
pub mod facts;
mod futex;
mod gather;
mod group;
mod inputs;
mod job;
mod join;
mod joining;
mod landing;
mod launch;
mod launchers;
mod link;
mod ll;
mod membership;
mod memory;
mod opening;
mod pulse;
mod put;
mod rank;
mod rank_memory;
mod reduce;
mod rendezvous;
mod running;
mod seat;
mod session;
mod spawn;
mod splits;
mod stage;
mod staged;
mod terms;
mod threads;
mod times;
mod trace;
mod wait;

pub use crate::error::RunError;
pub use bounded::{Bounded, exit_at_once};
pub use channel::{Arrival, Channel, accept, same_user};
pub use comm::{Comm, CommConfig, World};
pub use control::{Control, Progress};
pub use descriptors::collect_descriptors;
pub use engine::{Engine, Engines, HostEngine, RankRun};
pub use group::{Bootstrap, Group, secret};
pub use job::{EngineChoice, HostConfig, Job, LaneThreads, Ran, RankCommand};
pub use join::{RankJob, Recorded, run_rank, run_rank_timed};
pub use launch::{launch, launch_timed};
pub use launchers::{Found, Launch};
pub use membership::Membership;
pub use memory::{Access, Segment, Zeros};
pub use rank::rank_main;
pub use seat::{Leaving, Seat};
pub use session::HostSession;
pub use terms::{Content, Term, TermValue};
pub use threads::{run_threads, run_threads_timed};
pub use times::RunTimes;
pub use trace::enter_rank_span;
pub use wait::{Spin, Yields};

/// Gives `SIGPIPE` its default effect back, which the Rust runtime suppresses: a command whose reader goes
/// away ends quietly. Control sockets never raise it.
pub fn restore_default_sigpipe() {
    // SAFETY: sets the disposition of one signal to the default; no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Takes its effect from `SIGXFSZ`, which ends processes that make a file larger than the system lets them (`ulimit -f`): they
/// get an error instead. Processes that are started later have it so, too.
pub fn ignore_sigxfsz() {
    // SAFETY: sets the disposition of one signal; no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The bytes to which the stack of the first thread may grow; none without a limit.
pub fn stack_limit() -> Option<u64> {
    facts::limit(facts::Limited::Stack)
}
