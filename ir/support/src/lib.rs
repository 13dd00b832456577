//! Machinery below all crates of symmc that knows nothing of programs: threads for independent work, bytes that lie in
//! mapped files, and random numbers from a seed.

mod backing;
pub mod parallel;
pub mod random;

pub use backing::{Backing, BackingSlice, MappedFile};
