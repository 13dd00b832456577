//! The vendor's collectives: with operands in ordinary memory, in a window, and by copy engines.
//!
//! A group has a separate communicator for each of the three library variants that a program uses
//! ([`Communicators`]). The plain variant's communicator has no window over its operands, so that the library
//! treats them like any memory. The policy of using no multiprocessors applies to a whole communicator.
//!
//! Deliberately not here: how the library splits a collective among its algorithms. `symmc_ir::collective`
//! has the contracts that all of them keep.

mod borrowed;
pub mod call;
mod comms;
mod memory;
mod teardown;
#[cfg(test)]
mod tests;
mod wait;

use std::ffi::c_void;

pub use self::borrowed::BorrowedCommunicator;
pub(crate) use self::call::CallKind;
use self::call::NcclCall;
pub use self::call::is_run_by_library;
pub(crate) use self::comms::skips_pdl_wait;
pub use self::comms::{CommunicatorContext, Communicators, PDL_WITHOUT_WAIT, has};
pub use self::memory::WindowMemory;
pub use self::teardown::CommunicatorTeardown;
use crate::device::driver::Stream;
use crate::device::launch::PortBases;
use crate::error::{CudaError, Result};
use nccl_sys::{ResultCode, result_code};

impl Communicators {
    /// Enqueues a call on a stream. Returns when the library has enqueued all of it. Fails if the library
    /// refuses, or a peer does not arrive while the first call connects ranks.
    ///
    /// # Safety
    /// The memory of the call exists, and all ranks of its group make the same calls in the same order.
    pub unsafe fn run(&self, call: &NcclCall, stream: &Stream, bases: PortBases<'_>) -> Result<()> {
        // SAFETY: by the caller.
        let (name, code) = unsafe { self.start(call, stream, bases)? };
        self.wait_for_call(call.comm, name, code)
    }

    /// Makes the library call; returns its name and result code.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn start(
        &self,
        call: &NcclCall,
        stream: &Stream,
        bases: PortBases<'_>,
    ) -> Result<(&'static str, ResultCode)> {
        let nccl = self.library()?;
        let f = nccl.functions();
        let stream = stream.handle().cast::<c_void>();
        let send = call.send.resolve(bases) as usize as *const c_void;
        let receive = call.receive.resolve(bases) as usize as *mut c_void;
        let n = call.count;
        let dtype = call.dtype;
        let comm = call.comm;
        Ok(match &call.kind {
            CallKind::AllReduce(op) => {
                // SAFETY: by the caller.
                ("ncclAllReduce", unsafe { (f.all_reduce)(send, receive, n, dtype, *op, comm, stream) })
            }
            CallKind::AllGather => {
                // SAFETY: by the caller.
                ("ncclAllGather", unsafe { (f.all_gather)(send, receive, n, dtype, comm, stream) })
            }
            CallKind::AllToAll => {
                let call = nccl.all_to_all().map_err(|e| CudaError::Unsupported(e.to_string()))?;
                // SAFETY: by the caller.
                ("ncclAlltoAll", unsafe { call(send, receive, n, dtype, comm, stream) })
            }
            CallKind::ReduceScatter(op) => {
                // SAFETY: by the caller.
                let code = unsafe { (f.reduce_scatter)(send, receive, n, dtype, *op, comm, stream) };
                ("ncclReduceScatter", code)
            }
            CallKind::Broadcast { root } => {
                // SAFETY: by the caller.
                let code = unsafe { (f.broadcast)(send, receive, n, dtype, *root, comm, stream) };
                ("ncclBroadcast", code)
            }
            CallKind::Exchange { sends, receives } => {
                // SAFETY: the group is ended below on every path.
                nccl.check_code("ncclGroupStart", unsafe { (f.group_start)() })?;
                let mut first = ("ncclGroupEnd", result_code::SUCCESS);
                for &(peer, at) in sends {
                    // SAFETY: by the caller; slices are within the operand.
                    let code = unsafe { (f.send)(send.wrapping_byte_add(at), n, dtype, peer, comm, stream) };
                    keep_failure(&mut first, "ncclSend", code);
                }
                for &(peer, at) in receives {
                    // SAFETY: by the caller; slices are within the result.
                    let code =
                        unsafe { (f.recv)(receive.wrapping_byte_add(at), n, dtype, peer, comm, stream) };
                    keep_failure(&mut first, "ncclRecv", code);
                }
                // SAFETY: ends the group begun above.
                let ended = unsafe { (f.group_end)() };
                if first.1 == result_code::SUCCESS { ("ncclGroupEnd", ended) } else { first }
            }
        })
    }
}

/// Replaces the result of an exchange by that of this call, if none failed before.
fn keep_failure(result: &mut (&'static str, ResultCode), name: &'static str, code: ResultCode) {
    if result.1 == result_code::SUCCESS && code != result_code::IN_PROGRESS {
        *result = (name, code);
    }
}
