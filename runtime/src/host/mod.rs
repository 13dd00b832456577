//! The host as a device: collectives through shared memory, and sessions.
//!
//! [`HostSession`] runs plans on a rank that has joined the others (`symmc-control`). From the bottom up: `reduce` and `ll` move
//! elements, [`Comm`] runs collectives (`direct`, `put`, `landing`, `staged` and `splits` are its variants), `queue` has the runs of a
//! session.

mod announce;
mod chaos;
mod collective;
mod comm;
mod config;
mod copy;
mod direct;
mod landing;
mod ll;
mod purpose;
mod put;
mod queue;
mod reduce;
mod rendezvous;
mod running;
mod session;
mod session_rank;
mod splits;
mod stage;
mod staged;

pub use comm::{Comm, CommConfig};
pub use config::{HostConfig, LaneThreads};
pub use purpose::{locate_steps, plan_purpose, plan_subject};
pub use session::{HostSession, expect_kernels};
pub use session_rank::SessionRank;
