//! What steps become on a GPU: kernels, calls of libraries and compiled code.

pub mod addresses;
pub(crate) mod agreement;
pub mod collective;
pub mod command;
pub mod compile;
pub mod compute;
pub(crate) mod dispatch;
pub(crate) mod largest;
pub mod lowered;
pub mod refusal;
pub mod scratch;
pub mod setting;
