//! Brings the ranks of a run together, watches them, and ends them: rendezvous, supervision, channels, agreement, launchers.
//!
//! - [`launch_ranks`] starts one process for each rank; each of them calls [`rank_main`].
//! - [`JoinedRank::join`] joins as the rank that another launcher gave this process ([`Membership::find`]), or that a thread of a
//!   [`Group`] is.
//!
//! From the bottom up: `memory` maps segments, `control` holds the words through which ranks signal each other, `domain` is all
//! memory that they share, and `wait` bounds every wait. `joining` is the protocol by which a run opens; `channel`, `opening`, `link`,
//! `gather` and `coordinator` carry it out, watch the run and end it. Every failure is a [`RunError`].
//!
//! What ranks run is not known here: callers give a [`Subject`] that ranks compare, and name steps for errors ([`LocateStep`]).
//! Nothing here has a name in a file system, so nothing is left behind, however a run ends.

mod ancestor;
mod bounded;
mod channel;
mod control;
mod coordinator;
pub mod culprit;
mod descriptors;
mod domain;
mod environment;
pub mod error;
pub mod facts;
mod gather;
mod group;
mod heartbeat;
mod join;
mod joined;
mod joining;
mod launch;
mod launchers;
mod link;
mod membership;
mod memory;
mod opening;
pub mod process;
mod rank;
mod spawn;
mod steps;
mod terms;
mod trace;
mod wait;

pub use bounded::{Bounded, exit_at_once};
pub use channel::{Arrival, Channel, accept, same_user};
pub use control::{ANNOUNCED, Control, Counter, Progress, Signal, reached};
pub use coordinator::{Subject, Watched, cause};
pub use descriptors::collect_descriptors;
pub use domain::{CHUNK, Domain, PER_RANK};
pub use error::{DataFault, Mismatch, RunError};
pub use group::{Bootstrap, Group, secret};
pub use join::Purpose;
pub use joined::{JoinedRank, Leaving, Recorded};
pub use launch::{LaunchConfig, launch_ranks};
pub use launchers::{Found, Launch};
pub use membership::Membership;
pub use memory::{Access, Segment};
pub use rank::{LaunchedRank, rank_main};
pub use spawn::RankCommand;
pub use steps::{LocateStep, StepName};
pub use terms::{Content, Term, TermValue};
pub use trace::enter_rank_span;
pub use wait::{Ended, Spin, Waiter, Yields};

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
