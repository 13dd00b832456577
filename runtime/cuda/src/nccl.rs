//! The vendor's own collectives: the plain variant, with operands in ordinary memory.
//!
//! One communicator for each group that a program uses this way, made by all ranks of the run in the same
//! order: every rank offers an id, and the first rank of each cell's counts.

use std::ffi::c_void;

use indexmap::IndexMap;
use nccl_sys::{Comm, Config, DataType, Nccl, RedOp, UniqueId, data_type, red_op};
use symmc_ir::collective::{CollectiveKind, ReduceOp, Splits};
use symmc_ir::{DType, Variant};
use symmc_runtime::exec::{BoundCollective, BoundStep, Work as StepWork};

use crate::arena::Exchange;
use crate::driver::Stream;
use crate::error::CudaError;
use crate::launch::{Address, Work};

/// A call of the library, with everything fixed but the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NcclCall {
    comm: Comm,
    kind: CallKind,
    send: Address,
    receive: Address,
    /// Elements of the smaller side.
    count: usize,
    dtype: DataType,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum CallKind {
    AllReduce(RedOp),
    AllGather,
    ReduceScatter(RedOp),
    Broadcast {
        root: i32,
    },
    /// Pieces to and from these numbers of the cell, with their distance from the start in bytes.
    Exchange {
        sends: Vec<(i32, usize)>,
        receives: Vec<(i32, usize)>,
    },
}

/// The communicators of one rank, by group.
#[derive(Debug, Default)]
pub struct Communicators {
    library: Option<&'static Nccl>,
    of_group: IndexMap<usize, Comm>,
}

impl Communicators {
    /// Makes those that these steps need, together with the other ranks. The library is only looked for if
    /// there are any.
    ///
    /// # Errors
    /// There is no library, or it cannot make a communicator.
    pub fn new<'b>(
        steps: impl IntoIterator<Item = &'b BoundStep>,
        exchange: &dyn Exchange,
    ) -> Result<Communicators, CudaError> {
        let mut cells: IndexMap<usize, &[u32]> = IndexMap::new();
        for step in steps {
            if let StepWork::Collective(call) = &step.work
                && call.variant == Variant::Plain
                && call.cell.len() > 1
            {
                cells.insert(call.group, &call.cell);
            }
        }
        cells.sort_unstable_keys();
        let mut out = Communicators::default();
        if cells.is_empty() {
            return Ok(out);
        }
        let nccl = Nccl::load().map_err(|e| CudaError::Unsupported(e.to_string()))?;
        out.library = Some(nccl);
        for (&group, &cell) in &cells {
            let id = nccl.unique_id().map_err(failed)?;
            let ids = exchange.all_gather(&id.to_bytes())?;
            let first = cell.first().map_or(0, |&r| r as usize);
            let id = ids.get(first).and_then(|id| <[u8; UniqueId::BYTES]>::try_from(&id[..]).ok());
            let number = cell.iter().position(|&r| r == exchange.rank());
            let (Some(id), Some(number)) = (id, number) else {
                return Err(CudaError::Unsupported(format!("rank {} is not in its group", exchange.rank())));
            };
            let config = Config::default();
            let comm = nccl
                .comm_init_rank(cell.len() as u32, UniqueId::from_bytes(id), number as u32, &config)
                .map_err(failed)?;
            out.of_group.insert(group, comm);
        }
        Ok(out)
    }

    /// The version of the library, if it is used.
    pub fn version(&self) -> Option<nccl_sys::Version> {
        self.library.map(Nccl::version)
    }

    /// Ends all communicators at once, whatever runs on them. For a run that failed.
    pub fn abort(&mut self) {
        let Some(library) = self.library else { return };
        for (_, comm) in self.of_group.drain(..) {
            // SAFETY: the communicator exists and is not used after this.
            let _ = unsafe { (library.functions().comm_abort)(comm) };
        }
    }

    /// The calls of a plain collective whose operand and result lie at these addresses.
    ///
    /// # Errors
    /// The library has no such collective.
    pub fn lower(
        &self,
        call: &BoundCollective,
        number: usize,
        operand: Address,
        result: Address,
    ) -> Result<Vec<Work>, CudaError> {
        let n = call.cell.len();
        let comm = self.of_group.get(&call.group).copied();
        let comm = comm.ok_or_else(|| CudaError::Unsupported("a group without a communicator".into()))?;
        let size = call.dtype.size();
        let make = |kind, count| NcclCall {
            comm,
            kind,
            send: operand,
            receive: result,
            count,
            dtype: dtype_of(call.dtype),
        };
        let reduction = |op| reduction(op, call.dtype);
        let (elements, me) = (call.elements, number as i32);
        let mut work = Vec::new();
        let made = match &call.kind {
            CollectiveKind::AllReduce(op) => make(CallKind::AllReduce(reduction(*op)?), elements),
            CollectiveKind::AllGather => make(CallKind::AllGather, elements),
            CollectiveKind::ReduceScatter(op) => make(CallKind::ReduceScatter(reduction(*op)?), elements / n),
            CollectiveKind::Broadcast { root } => make(CallKind::Broadcast { root: *root as i32 }, elements),
            CollectiveKind::AllToAll(Splits::Even) => {
                let piece = elements / n;
                let all: Vec<_> = (0..n).map(|p| (p as i32, p * piece * size)).collect();
                make(CallKind::Exchange { sends: all.clone(), receives: all }, piece)
            }
            CollectiveKind::Permute { pairs } => {
                let pairs = || pairs.iter().map(|&(from, to)| (from as i32, to as i32));
                let sends = pairs().filter(|p| p.0 == me).map(|p| (p.1, 0)).collect();
                let receives: Vec<_> = pairs().filter(|p| p.1 == me).map(|p| (p.0, 0)).collect();
                if receives.is_empty() {
                    work.push(Work::Zero { at: result, bytes: elements * size });
                }
                make(CallKind::Exchange { sends, receives }, elements)
            }
            CollectiveKind::AllToAll(Splits::Device) => {
                let text = "all_to_all with sizes on the device has no form on this backend";
                return Err(CudaError::Unsupported(text.into()));
            }
        };
        if made.count > 0 {
            work.push(Work::Nccl(made));
        }
        Ok(work)
    }

    /// Puts a call on a stream.
    ///
    /// # Safety
    /// The memory of the call exists, and all ranks of its group make the same calls in the same order.
    pub unsafe fn run(&self, call: &NcclCall, stream: &Stream) -> Result<(), CudaError> {
        let Some(nccl) = self.library else { return Ok(()) };
        let (f, stream) = (nccl.functions(), stream.handle().cast::<c_void>());
        let (send, receive) = (call.send as usize as *const c_void, call.receive as usize as *mut c_void);
        let (n, dtype, comm) = (call.count, call.dtype, call.comm);
        let check = |name, code| nccl.check(name, code).map_err(failed);
        match &call.kind {
            CallKind::AllReduce(op) => {
                // SAFETY: by the caller.
                check("ncclAllReduce", unsafe { (f.all_reduce)(send, receive, n, dtype, *op, comm, stream) })
            }
            CallKind::AllGather => {
                // SAFETY: by the caller.
                check("ncclAllGather", unsafe { (f.all_gather)(send, receive, n, dtype, comm, stream) })
            }
            CallKind::ReduceScatter(op) => {
                // SAFETY: by the caller.
                let code = unsafe { (f.reduce_scatter)(send, receive, n, dtype, *op, comm, stream) };
                check("ncclReduceScatter", code)
            }
            CallKind::Broadcast { root } => {
                // SAFETY: by the caller.
                let code = unsafe { (f.broadcast)(send, receive, n, dtype, *root, comm, stream) };
                check("ncclBroadcast", code)
            }
            CallKind::Exchange { sends, receives } => {
                // SAFETY: the group is ended below, whatever happens between.
                check("ncclGroupStart", unsafe { (f.group_start)() })?;
                let mut first = Ok(());
                for &(peer, at) in sends {
                    // SAFETY: by the caller; pieces lie within the operand.
                    let code = unsafe { (f.send)(send.wrapping_byte_add(at), n, dtype, peer, comm, stream) };
                    first = first.and(check("ncclSend", code));
                }
                for &(peer, at) in receives {
                    // SAFETY: by the caller; pieces lie within the result.
                    let code =
                        unsafe { (f.recv)(receive.wrapping_byte_add(at), n, dtype, peer, comm, stream) };
                    first = first.and(check("ncclRecv", code));
                }
                // SAFETY: ends the group begun above.
                first.and(check("ncclGroupEnd", unsafe { (f.group_end)() }))
            }
        }
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        let Some(library) = self.library else { return };
        for (_, comm) in self.of_group.drain(..) {
            // SAFETY: the communicator exists; its work has ended, or the process ends.
            let _ = unsafe { (library.functions().comm_destroy)(comm) };
        }
    }
}

fn failed(error: nccl_sys::Error) -> CudaError {
    CudaError::Library { call: error.call.into(), detail: error.to_string() }
}

fn dtype_of(dtype: DType) -> DataType {
    match dtype {
        DType::F32 => data_type::F32,
        DType::F64 => data_type::F64,
        DType::F16 => data_type::F16,
        DType::BF16 => data_type::BF16,
        DType::I32 => data_type::I32,
        DType::I64 => data_type::I64,
        DType::U8 | DType::Bool => data_type::U8,
    }
}

fn reduction(op: ReduceOp, dtype: DType) -> Result<RedOp, CudaError> {
    if dtype == DType::Bool && !matches!(op, ReduceOp::Max | ReduceOp::Min) {
        return Err(CudaError::Unsupported(format!("{op} of bool over ranks has no form on this backend")));
    }
    Ok(match op {
        ReduceOp::Sum => red_op::SUM,
        ReduceOp::Avg => red_op::AVG,
        ReduceOp::Max => red_op::MAX,
        ReduceOp::Min => red_op::MIN,
        ReduceOp::Prod => red_op::PROD,
    })
}
