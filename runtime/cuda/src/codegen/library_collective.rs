//! The calls of the library for a collective that it runs.

use nccl_sys::{RedOp, red_op};
use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp};
use symmc_ir::{CollectiveVariant, DType};
use symmc_runtime::exec::ResolvedCollective;

use crate::codegen::command::GpuCommand;
use crate::device::launch::{Address, DevicePtr};
use crate::error::{CudaError, Result};
use crate::nccl::call::NcclCall;
use crate::nccl::{CallKind, Communicators};

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
            dtype: call.dtype.facts().nccl.number(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_is_reduced_as_bytes() {
        for op in [CollectiveReduceOp::Sum, CollectiveReduceOp::Max] {
            assert_eq!(reduction(op, DType::Bool), red_op::MAX);
        }
        for op in [CollectiveReduceOp::Avg, CollectiveReduceOp::Prod, CollectiveReduceOp::Min] {
            assert_eq!(reduction(op, DType::Bool), red_op::MIN);
        }
        assert_eq!(reduction(CollectiveReduceOp::Avg, DType::F32), red_op::AVG);
    }
}
