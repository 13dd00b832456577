//! The executor on planned programs: results against the interpreter ([`results`]), and what it refuses
//! ([`refusals`]).

mod by_rank;
mod refusals;
mod results;
mod shards;
mod support;
