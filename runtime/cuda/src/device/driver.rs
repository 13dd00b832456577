//! What the CUDA driver owns, as Rust values: contexts, memory, pinned memory, streams, events, modules,
//! graphs.
//!
//! Each value frees what it holds when it is dropped. A failure to free is not reported: the context is
//! broken then, and the call that broke it has said so. All values belong to the primary context of one
//! [`Device`], which is current on every thread that [`Device::enter`] was called on. Who runs on a thread of
//! somebody else keeps [`CallersContext`].
//!
//! Deliberately not here: memory that peers map ([`crate::device::arena`]).

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
