//! Utilities below all crates of symmc, independent of programs: threads for independent work, bytes in mapped
//! files, and random numbers from a seed.

mod backing;
pub mod parallel;
pub mod random;

pub use backing::{Backing, BackingSlice, MappedFile};
