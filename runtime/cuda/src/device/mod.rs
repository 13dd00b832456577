//! The GPU: what the driver gives, memory, launches, and what this machine has.
//!
//! [`mod@pointer`] is an address or a place in an input or output, [`launch`] a kernel with its parameters, [`driver`] owns
//! contexts, memory, streams, modules and graphs, [`arena`] is symmetric memory, [`streams`] has one stream for each lane.
//! [`gpus`] and [`libraries`] say what this machine has.

pub mod arena;
pub(crate) mod cache;
pub mod driver;
pub mod gpus;
pub mod launch;
pub mod libraries;
pub mod pointer;
pub(crate) mod staging;
pub mod streams;
