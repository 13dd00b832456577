//! Reports of the GPUs and libraries that this process finds, for people.

pub mod gpus;
pub mod libraries;
