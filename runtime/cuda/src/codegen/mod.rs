//! Lowers steps to GPU commands: kernels, library calls and compiled code.

pub mod addresses;
pub(crate) mod agreement;
pub mod collective;
pub mod compile;
pub mod compute;
pub(crate) mod dispatch;
mod fused_tail;
mod gathered_rows;
pub(crate) mod largest_sizes;
mod library_collective;
pub mod lowered;
pub mod lowering_context;
pub mod unsupported;
pub mod workspace;

pub use compute::command;
pub use library_collective::Front;
