//! The control plane of all devices: joining, supervision, agreement and shutdown of the ranks of a run.
//!
//! - [`launch_ranks`] starts one process for each rank; each of them calls [`rank_main`].
//! - [`JoinedRank::join`] joins a run that this crate did not launch. The rank comes from another launcher
//!   ([`LauncherChoice`] names them) or from a thread of a [`Group`].
//! - A [`JoinedRank`] meets the others through its [`RankCommunicator`]. A [`Board`] exchanges a few words
//!   between ranks without a plan.
//!
//! The modules from the bottom up: `memory` maps segments. `control` holds the words through which ranks
//! signal each other. `domain` is all memory that they share. `wait` bounds every wait. `communicator`,
//! `rendezvous`, `stage`, `exchange` and `announce` are what a rank does in this memory. `joining` is the
//! protocol by which a run opens. `channel`, `opening`, `link`, `gather` and `coordinator` carry the protocol
//! out, watch the run and end it. Every failure is a [`RunError`].
//!
//! This crate does not know the plans that ranks run: callers pass a [`PlanSubject`] that ranks compare, and
//! name steps for errors ([`LocateStep`]). Nothing here has a name in a file system, so nothing is left over,
//! however a run ends.

mod ancestor;
mod announce;
mod board;
mod bounded_allocator;
mod channel;
mod chaos;
mod communicator;
mod control;
mod coordinator;
pub mod culprit;
mod descriptors;
mod domain;
mod environment;
pub mod error;
mod exchange;
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
mod rank_config;
mod rendezvous;
mod spawn;
mod stage;
mod steps;
mod trace;
mod wait;

pub use board::{Board, Notice, Notices};
pub use bounded_allocator::{BoundedAllocator, exit_immediately};
pub use channel::{Channel, ReceiveOutcome, accept_connection, is_same_user};
pub use communicator::{GroupState, RankCommunicator};
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
pub use rank_config::RankConfig;
pub use rendezvous::{RendezvousStep, StepRendezvous};
pub use spawn::RankCommand;
pub use stage::{ChunkStage, chunk_share};
pub use steps::{LocateStep, StepName};
pub use trace::enter_rank_span;
pub use wait::{SleepState, SpinConfig, WaitFailure, Waiter, YieldMode};

/// Restores the default effect of `SIGPIPE`, which the Rust runtime suppresses: a command whose reader closes
/// the pipe ends quietly. Control sockets never raise it.
pub fn restore_default_sigpipe() {
    // SAFETY: sets the disposition of one signal to the default; no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Ignores `SIGXFSZ`, which ends a process that makes a file larger than its limit (`ulimit -f`): the process
/// gets an error instead. Processes started later inherit this.
pub fn ignore_sigxfsz() {
    // SAFETY: sets the disposition of one signal; no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The bytes to which the stack of the first thread may grow; `None` without a limit.
pub fn stack_limit() -> Option<u64> {
    machine_limits::resource_limit(machine_limits::ResourceLimit::Stack)
}
