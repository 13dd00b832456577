//! Lowers steps to GPU commands: kernels, library calls and compiled code.

pub mod addresses;
pub(crate) mod agreement;
pub mod collective;
pub mod command;
pub mod compile;
pub mod compute;
pub(crate) mod dispatch;
pub(crate) mod largest_sizes;
pub mod lowered;
pub mod lowering_context;
pub mod unsupported;
pub mod workspace;
