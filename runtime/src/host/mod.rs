//! The host backend: ranks are processes (or, in tests, threads) that communicate through shared memory.
//!
//! From the bottom up: [`memory`] maps segments, `control` holds the words through which ranks signal each
//! other, `wait` bounds every wait, `reduce` and `packets` move elements, [`comm`] runs collectives.
//!
//! Nothing here has a name in a file system, so nothing is left behind, however a run ends.

pub mod comm;
pub mod memory;

mod chaos;
mod control;
mod direct;
mod landing;
mod packets;
mod reduce;
mod splits;
mod staged;
mod wait;

pub use comm::{Comm, CommConfig, World};
pub use control::{Control, Progress};
pub use wait::Spin;
