//! The lowered steps of a rank before anything is compiled or loaded: launches with symbolic pointers, and
//! the code of the kernels that they name. Nothing here uses a device.

use std::sync::Arc;

use symmc_runtime::RunError;
use symmc_runtime::exec::{ExecutableStep, ResolvedProgram, StepWork};

use crate::codegen::addresses::AddressMap;
use crate::codegen::command::{Commands, GpuCommand};
use crate::codegen::compile::KernelSource;
use crate::codegen::compute::{self, AlgorithmSelection, DeviceAssertions, KernelLowering};
use crate::codegen::lowering_context::{DeviceFreeContext, LoweringContext};
use crate::codegen::{Front, agreement, collective, dispatch};
use crate::error::{CudaError, Result};

#[derive(Debug)]
pub struct LoweredProgram {
    /// The commands of each step.
    pub(crate) work: Vec<Vec<GpuCommand>>,
    pub(crate) source: KernelSource,
    pub(crate) assertions: DeviceAssertions,
}

impl LoweredProgram {
    pub fn new(rank: u32, list: &[ExecutableStep], setting: &LoweringContext<'_>) -> Result<LoweredProgram> {
        let address_of = |value: &_| setting.addresses.address_of(value);
        let mut l = KernelLowering::new(&address_of, setting.machine);
        let work = list.iter().map(|step| lower_step(rank, step, setting, &mut l));
        let work = work.collect::<Result<_>>()?;
        let KernelLowering { source, assertions, .. } = l;
        Ok(LoweredProgram { work, source, assertions })
    }

    /// Lowers the steps of a program on a machine without a GPU, for a GPU like those of the built-in
    /// profiles. The symmetric arena of rank `r` is at `addresses.symmetric` plus `r` × 2^36 bytes.
    pub fn without_device(
        bound: &Arc<ResolvedProgram>,
        ranks: u32,
        addresses: &AddressMap,
        attention: AlgorithmSelection,
    ) -> Result<LoweredProgram> {
        let dry = DeviceFreeContext::new(bound, ranks, addresses.clone(), attention);
        LoweredProgram::new(bound.rank(), &bound.steps, &dry.context())
    }

    /// The digests that must be equal on all ranks, for the steps that it was lowered from.
    pub fn launch_digests(&self, list: &[ExecutableStep]) -> Vec<u8> {
        agreement::launch_digests(list, &self.work)
    }

    pub fn work(&self) -> &[Vec<GpuCommand>] {
        &self.work
    }

    /// The code of the kernels that launches name.
    pub fn code(&self) -> String {
        self.source.text()
    }
}

pub(crate) fn lower_step(
    rank: u32,
    step: &ExecutableStep,
    setting: &LoweringContext<'_>,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let failed = |error| match error {
        CudaError::Unsupported(detail) => CudaError::Run(RunError::Step {
            rank,
            step: step.index,
            node: step.node.clone(),
            op: step.op_name.clone(),
            detail,
        }),
        error => error,
    };
    match &step.work {
        StepWork::Kernel { op, operands, results } => {
            let step = compute::BoundOperation { index: step.index, op, operands, results };
            compute::lower(&step, l).map_err(failed)
        }
        StepWork::Collective(call) => {
            let number = call.cell.iter().position(|&r| r == rank).unwrap_or(0);
            let ends = setting.addresses.collective_pointers(call);
            match collective::lower(step.index, call, &ends, setting.peers, &mut l.source).map_err(failed)? {
                Some(work) => Ok(work),
                None => {
                    let word = step.index as u32 + 1;
                    let front =
                        Front { told: setting.progress, unread: collective::unread(setting.peers), word };
                    setting.nccl.lower(call, number, [ends.operand, ends.result], front).map_err(failed)
                }
            }
        }
        StepWork::Dispatch(members) => dispatch::lower(step.index, members, setting, l).map_err(failed),
        StepWork::Custom { name, .. } => {
            Err(failed(CudaError::Unsupported(format!("the custom op {name} has no kernel for GPUs"))))
        }
    }
}
