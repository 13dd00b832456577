//! The passes, in one binary, because each takes seconds to link.

mod canon;
mod coalesce;
mod common;
mod errors;
mod folding;
mod lower;
mod masks;
mod pieces;
mod products;
mod programs;
mod random;
mod replicated;
mod rotary;
mod row_sums;
mod shards;
mod stored_factors;
