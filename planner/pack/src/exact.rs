//! Exact search: decides whether there is a packing with at most a given peak.
//!
//! Blocks are stacked over *sections*, the same units that count lifetimes. The stacked blocks form a skyline
//! over the sections. A *niche* is a stretch of the skyline with higher neighbours on both sides. A block that
//! starts at the bottom of a niche lies within it. A section of a niche therefore poses one question: which
//! block rests on the bottom there, if any? The answers exclude each other, and any niche may be asked first.
//! The search ([`search`]) asks where it has failed most often. Every packing can be pushed down until each
//! block rests on the ground or on another block, so the search misses no packing. [`skyline`] derives the
//! consequences of an answer.
//!
//! The search restarts in turns of growing length, with other ranks of the blocks and other rules to choose the
//! section. It remembers failed states and the sections where they failed. All limits are numbers of
//! placements. The search never reads a clock.
//!
//! Sizes are whole units, so that numbers stay small. If there would be too many units, sizes are rounded up,
//! each by less than a millionth of their sum.
//!
//! Deliberately absent: wrapped lifetimes and given offsets.

mod problem;
mod search;
mod skyline;

pub use problem::{ExactAnswer, ExactProblem};
pub use search::ExactSearch;
