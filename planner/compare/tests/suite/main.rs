//! Comparisons of plans with their sources, in one binary, because each takes seconds to link.

mod common;
mod edited;
mod limits;
mod pairs;
mod proofs;
mod values;
