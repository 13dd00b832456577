//! A collective as a library call, with everything fixed except the stream.

use nccl_sys::{Comm, DataType, RedOp};
use symmc_runtime::exec::ResolvedCollective;

use crate::device::launch::DevicePtr;

/// Whether the library runs a collective. It has none with sizes on the device, and a single rank needs no
/// call.
pub fn is_run_by_library(call: &ResolvedCollective) -> bool {
    call.variant.is_library() && call.cell.len() > 1 && !call.kind.moves_by_data()
}

/// A library call, with everything fixed except the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NcclCall {
    pub(crate) comm: Comm,
    pub(crate) kind: CallKind,
    pub(crate) send: DevicePtr,
    pub(crate) receive: DevicePtr,
    /// The number of elements of the smaller side.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
}

impl NcclCall {
    pub(crate) fn pointers(&self) -> [DevicePtr; 2] {
        [self.send, self.receive]
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CallKind {
    AllReduce(RedOp),
    AllGather,
    AllToAll,
    ReduceScatter(RedOp),
    Broadcast {
        root: i32,
    },
    /// Slices to and from these ranks of the communicator, with their offsets in bytes.
    Exchange {
        sends: Vec<(i32, usize)>,
        receives: Vec<(i32, usize)>,
    },
}
