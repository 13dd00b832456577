//! The GPU: driver objects, memory and launches.

pub(crate) mod cache;
pub mod driver;
pub mod launch;
pub mod pointer;
pub(crate) mod staging;
pub mod streams;
