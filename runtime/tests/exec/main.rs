//! The executor on planned programs: results against the interpreter ([`results`]), and errors
//! ([`refusals`]).

mod by_rank;
mod refusals;
mod results;
mod shards;
mod support;
