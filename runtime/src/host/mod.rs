//! The host backend: ranks are processes, or threads of one, that communicate through shared memory.
//!
//! - [`launch_ranks`] starts one process for each rank; each of them calls [`rank_main`].
//! - [`JoinedRank::join`] joins as the rank that another launcher gave this process ([`Membership::find`]), or that a thread of a
//!   [`Group`] is.
//! - [`HostSession`] runs plans on a rank that has joined the others.
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
mod config;
mod control;
mod coordinator;
mod copy;
mod culprit;
mod descriptors;
mod direct;
pub mod facts;
mod futex;
mod gather;
mod group;
mod join;
mod joined;
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
mod purpose;
mod put;
mod queue;
mod rank;
mod reduce;
mod rendezvous;
mod running;
mod session;
mod spawn;
mod splits;
mod stage;
mod staged;
mod steps;
mod terms;
mod trace;
mod wait;

pub use crate::error::RunError;
pub use bounded::{Bounded, exit_at_once};
pub use channel::{Arrival, Channel, accept, same_user};
pub use comm::{Comm, CommConfig, World};
pub use config::{HostConfig, LaneThreads};
pub use control::{Control, Progress};
pub(crate) use coordinator::cause;
pub use coordinator::{Subject, Watched};
pub use descriptors::collect_descriptors;
pub use group::{Bootstrap, Group, secret};
pub use join::Purpose;
pub use joined::{JoinedRank, Leaving, Recorded};
pub use launch::{LaunchConfig, launch_ranks};
pub use launchers::{Found, Launch};
pub use membership::Membership;
pub use memory::{Access, Segment};
pub(crate) use purpose::{locate_steps, subject};
pub use rank::{LaunchedRank, rank_main};
pub use session::{HostSession, expect_kernels};
pub use spawn::RankCommand;
pub use steps::{LocateStep, StepName};
pub use terms::{Content, Term, TermValue};
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
