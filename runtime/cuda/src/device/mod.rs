//! The GPU: driver objects, memory, launches, and the inventory of this machine.

pub mod arena;
pub(crate) mod cache;
pub mod driver;
pub mod gpus;
pub mod launch;
pub mod libraries;
pub mod pointer;
pub(crate) mod staging;
pub mod streams;
