//! Kernels of custom ops: their registry and the arguments of their calls.
//!
//! A [`CustomKernelRegistry`] holds a [`KernelSignature`] and a kernel for each custom op by its name. The
//! same kernel runs on host ranks, where the plan places operands and results, and in the interpreter
//! ([`CustomKernelRegistry::to_interpreter_registry`]), where every rank has separate tensors.
//!
//! An op that touches peers runs between two barriers: every peer has arrived before the kernel starts, and
//! no peer continues before all kernels have ended. Meanwhile a kernel may read the operands of peers and
//! write the results of peers that its signature names, and nothing else. There is no barrier within a
//! kernel.
//!
//! A kernel that fails or panics ends the run on every rank. If ranks are processes, a kernel that never
//! returns does so too, after the timeout of the run.

mod call;
mod element;
mod error;
mod interpret;
mod registry;
mod signature;

pub use call::{CustomCall, PeerResult};
pub use element::{Element, bf16, f16};
pub use error::CustomError;
pub use registry::CustomKernelRegistry;
pub use signature::KernelSignature;
pub use symmc_control::ValueMismatch;

pub(crate) use call::{RankTensors, ResultMemory};
pub(crate) use registry::{KernelEntry, invoke_kernel, op_display_name, panic_message};
