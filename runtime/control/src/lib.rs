//! Brings the ranks of a run together, watches them, and ends them: rendezvous, supervision, channels, agreement, launchers.
//!
//! - [`launch_ranks`] starts one process for each rank; each of them calls [`rank_main`].
//! - [`JoinedRank::join`] joins as the rank that another launcher gave this process ([`crate::launchers`]), or that a thread of a
//!   [`Group`] is.
//!
//! From the bottom up: `memory` maps segments, `control` holds the words through which ranks signal each other, `domain` is all
//! memory that they share, and `wait` bounds every wait. `joining` is the protocol by which a run opens; `channel`, `opening`, `link`,
//! `gather` and `coordinator` carry it out, watch the run and end it. Every failure is a [`RunError`].
//!
//! What ranks run is not known here: callers give a [`PlanSubject`] that ranks compare, and name steps for errors ([`LocateStep`]).
//! Nothing here has a name in a file system, so nothing is left behind, however a run ends.

mod ancestor;
mod bounded_allocator;
mod channel;
mod control;
mod coordinator;
pub mod culprit;
mod descriptors;
mod domain;
mod environment;
pub mod error;
mod gather;
mod group;
mod heartbeat;
mod join;
mod join_terms;
mod joined_rank;
mod joining;
mod launch;
mod launchers;
mod link;
pub mod machine_limits;
mod membership;
mod memory;
mod opening;
pub mod process;
mod rank;
mod spawn;
mod steps;
mod trace;
mod wait;

pub use bounded_allocator::{BoundedAllocator, exit_immediately};
pub use channel::{Channel, ReceiveOutcome, accept_connection, is_same_user};
pub use control::{ANNOUNCED, ControlSegment, GroupCounter, PutSignal, RankProgress, has_reached};
pub use coordinator::{PlanSubject, RunKind, explaining_error};
pub use descriptors::collect_descriptors;
pub use domain::{CHUNK, PER_RANK, SharedRunMemory};
pub use error::{DataFault, RunError, ValueMismatch};
pub use group::{Bootstrap, Group, random_secret};
pub use join::JoinRequest;
pub use join_terms::{JoinTerm, JoinTermValue, TermContent};
pub use joined_rank::{JoinedRank, LeaveMode, ProgressRecording};
pub use launch::{LaunchConfig, launch_ranks};
pub use launchers::{DetectedLauncher, LauncherChoice};
pub use membership::Membership;
pub use memory::{MemorySegment, SegmentAccess};
pub use rank::{LaunchedRank, rank_main};
pub use spawn::RankCommand;
pub use steps::{LocateStep, StepName};
pub use trace::enter_rank_span;
pub use wait::{SpinConfig, WaitFailure, Waiter, YieldMode};

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
    machine_limits::resource_limit(machine_limits::ResourceLimit::Stack)
}
