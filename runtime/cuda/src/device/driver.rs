//! Objects of the CUDA driver as Rust values: contexts, memory, pinned memory, streams, events, modules,
//! graphs.
//!
//! Each value releases its object when it is dropped. A failure to release is not reported: the context is
//! then broken, and the call that broke it has reported an error. All values belong to the primary context of
//! one [`Device`]. This context is current on every thread that called [`Device::enter`]. Code on a thread of
//! the application keeps a [`CallersContext`] to restore the application's context.
//!
//! Deliberately not here: memory that peers map ([`crate::arena`]).

mod device;
mod graph;
mod memory;
mod module;
mod stream;

pub use self::device::{
    CallersContext, Device, LinkAtomicity, MemoryHolder, RelaxedCaptureMode, count_gpus, cuda_version,
};
pub use self::graph::{CaptureFrontier, CapturedGraph, ExecutableGraph, GraphCopy, GraphNode};
pub use self::memory::{DeviceBuffer, PinnedBuffer};
pub use self::module::{Function, Module};
pub use self::stream::{BorrowedStream, Event, Stream};
