//! What steps become on a GPU.
//!
//! [`compute`], [`collective`] and `dispatch` translate steps into [`command`]s, whose operands are where [`addresses`] says;
//! [`setting`] is what they are lowered with, [`lowered`] what comes of it for a whole program. [`compile`] turns CUDA C into
//! code. [`refusal`] says which steps of a plan GPUs cannot run, [`scratch`] how much workspace they need, and `agreement` has
//! ranks compare the kernels by which they meet.

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
