//! Utilities below all crates of symmc, independent of programs: threads for independent work, bytes in mapped
//! files, random numbers from a seed, and texts of bounded length.

mod backing;
pub mod parallel;
pub mod random;
mod texts;

pub use backing::{Backing, BackingSlice, MappedFile};
pub use texts::shorten_middle;
