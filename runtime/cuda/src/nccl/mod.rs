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

use nccl_sys::{RedOp, ResultCode, red_op, result_code};
use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp};
use symmc_ir::{CollectiveVariant, DType};
use symmc_runtime::exec::ResolvedCollective;

pub use self::borrowed::BorrowedCommunicator;
use self::call::CallKind;
use self::call::NcclCall;
pub use self::call::is_run_by_library;
pub(crate) use self::comms::skips_pdl_wait;
pub use self::comms::{CommunicatorContext, Communicators, PDL_WITHOUT_WAIT, has};
pub use self::memory::WindowMemory;
pub use self::teardown::CommunicatorTeardown;
use crate::codegen::command::GpuCommand;
use crate::device::driver::Stream;
use crate::device::launch::{Address, DevicePtr, PortBases};
use crate::error::{CudaError, Result};

/// A store before a collective of the library.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// The address where the start of the collective is reported, if progress is enabled. Our own kernels
    /// report where they wait; the library's do not.
    pub told: Option<Address>,
    /// A word that is never read.
    pub unread: Address,
    pub word: u32,
}

impl Communicators {
    /// The command before a collective of this variant. If the library launches kernels by PDL that do not
    /// wait for the previous kernel, the previous command must not be a kernel.
    fn front(&self, variant: CollectiveVariant, front: Front) -> Option<GpuCommand> {
        let address = front.told.or_else(|| self.skips_pdl_wait(variant).then_some(front.unread))?;
        Some(GpuCommand::Store { at: address.into(), word: front.word })
    }

    /// The library calls of a collective with its operand and result at these addresses, after the `front`
    /// store.
    pub fn lower(
        &self,
        call: &ResolvedCollective,
        number: usize,
        [operand, result]: [DevicePtr; 2],
        front: Front,
    ) -> Result<Vec<GpuCommand>> {
        let n = call.cell.len();
        let comm = self.get(call.group, call.variant)?;
        let size = call.dtype.size();
        let make_call = |kind, count| NcclCall {
            comm,
            kind,
            send: operand,
            receive: result,
            count,
            dtype: call.dtype.facts().nccl,
        };
        let elements = call.elements;
        let me = number as i32;
        let mut work: Vec<GpuCommand> = self.front(call.variant, front).into_iter().collect();
        let nccl_call = match &call.kind {
            CollectiveKind::AllReduce(op) => {
                make_call(CallKind::AllReduce(reduction(*op, call.dtype)), elements)
            }
            CollectiveKind::AllGather => make_call(CallKind::AllGather, elements),
            CollectiveKind::ReduceScatter(op) => {
                make_call(CallKind::ReduceScatter(reduction(*op, call.dtype)), elements / n)
            }
            CollectiveKind::Broadcast { root } => {
                make_call(CallKind::Broadcast { root: *root as i32 }, elements)
            }
            // The plain variant uses sends and receives, which every version has.
            CollectiveKind::AllToAll(AllToAllSplits::Even) if call.variant != CollectiveVariant::Plain => {
                make_call(CallKind::AllToAll, elements / n)
            }
            CollectiveKind::AllToAll(AllToAllSplits::Even) => {
                let piece = elements / n;
                let slices: Vec<_> = (0..n).map(|p| (p as i32, p * piece * size)).collect();
                make_call(CallKind::Exchange { sends: slices.clone(), receives: slices }, piece)
            }
            CollectiveKind::Permute { pairs } => {
                let mut sends = Vec::new();
                let mut receives = Vec::new();
                for &(from, to) in pairs {
                    if from as i32 == me {
                        sends.push((to as i32, 0));
                    }
                    if to as i32 == me {
                        receives.push((from as i32, 0));
                    }
                }
                if receives.is_empty() {
                    work.push(GpuCommand::Zero { at: result, bytes: elements * size });
                }
                make_call(CallKind::Exchange { sends, receives }, elements)
            }
            kind @ (CollectiveKind::AllToAll(AllToAllSplits::Device)
            | CollectiveKind::DispatchRows
            | CollectiveKind::CombineRows
            | CollectiveKind::ReduceRows) => {
                let text = format!("{} is a kernel here, not a call of the library", kind.name());
                return Err(CudaError::Unsupported(text));
            }
        };
        if nccl_call.count > 0 {
            work.push(GpuCommand::Nccl(nccl_call));
        }
        Ok(work)
    }

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

/// A bool is a byte of 0 or 1: the sum of bools is true if any is true, their product and mean if all are.
fn reduction(op: CollectiveReduceOp, dtype: DType) -> RedOp {
    match (dtype, op) {
        (DType::Bool, CollectiveReduceOp::Sum) => red_op::MAX,
        (DType::Bool, CollectiveReduceOp::Avg | CollectiveReduceOp::Prod) => red_op::MIN,
        (_, CollectiveReduceOp::Sum) => red_op::SUM,
        (_, CollectiveReduceOp::Avg) => red_op::AVG,
        (_, CollectiveReduceOp::Max) => red_op::MAX,
        (_, CollectiveReduceOp::Min) => red_op::MIN,
        (_, CollectiveReduceOp::Prod) => red_op::PROD,
    }
}
