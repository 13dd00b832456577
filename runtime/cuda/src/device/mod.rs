//! The GPU: what the driver gives, memory, launches, and what this machine has.

pub mod arena;
pub(crate) mod cache;
pub mod driver;
pub mod gpus;
pub mod launch;
pub mod libraries;
pub mod pointer;
pub(crate) mod staging;
pub mod streams;
