//! The host as a device: collectives through shared memory, and sessions.
//!
//! [`HostSession`] runs plans on a rank that has joined the others (`symmc-control`). The modules from the
//! bottom up: `reduce` and `ll` move elements; [`HostCommunicator`] runs collectives (`direct`, `put`,
//! `landing`, `staged`, `splits`, `rows` and `row_sums` are its variants); `queue` holds the runs of a session.
//! A [`Board`] exchanges a few words between ranks without a plan.

mod announce;
mod board;
mod chaos;
mod collective;
mod comm;
mod config;
mod copy;
mod direct;
mod join_request;
mod landing;
mod ll;
mod put;
mod queue;
mod reduce;
mod rendezvous;
mod row_sums;
mod rows;
mod running;
mod session;
mod session_rank;
mod splits;
mod stage;
mod staged;

pub use board::{Board, Notice, Notices};
pub use comm::{CommConfig, HostCommunicator};
pub use config::{HostConfig, LaneThreads};
pub use join_request::{plan_join_request, plan_subject, step_locator};
pub use session::{HostSession, expect_kernels};
pub use session_rank::SessionRank;
