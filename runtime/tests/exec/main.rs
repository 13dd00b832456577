//! The executor on planned programs: results against the interpreter ([`results`], [`experts`]), and errors
//! ([`refusals`]).

mod by_rank;
mod experts;
mod refusals;
mod results;
mod shards;
mod support;
