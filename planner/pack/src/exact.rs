//! Exact search: is there a packing of at most this peak?
//!
//! Blocks are looked at in *sections*, as lifetimes are counted in. Stacked blocks make a
//! skyline over the sections, and a *niche* is a stretch of it with higher neighbours on both sides. What starts at
//! the bottom of a niche lies within it, so one section of a niche asks one question: which of its blocks rests on
//! the bottom there, or does none? The answers exclude each other, and any niche may be asked first; the search
//! ([`search`]) asks where it has failed most. Every packing can be pushed down until each block rests on the
//! ground or on another, so nothing is lost. What follows from an answer is worked out by [`skyline`].
//!
//! Turns of growing length start anew with other ranks of the blocks and other ways to choose the section; what has
//! failed is remembered, and so is where. All limits are numbers of placements: the search never looks at a clock.
//!
//! Sizes are whole units, so that numbers are short; of very many units, sizes are rounded up, by less than a millionth of
//! their sum each.
//!
//! Not here: wrapped lifetimes and given offsets.

mod problem;
mod search;
mod skyline;

pub use problem::{ExactAnswer, ExactProblem};
pub use search::ExactSearch;
