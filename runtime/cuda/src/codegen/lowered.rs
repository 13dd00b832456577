//! What the steps of a rank become, before anything is compiled or loaded: launches with symbolic pointers, and the code that
//! they name. Nothing here touches a device.

use std::sync::Arc;

use symmc_runtime::RunError;
use symmc_runtime::exec::{Bound, BoundStep, Work};

use crate::codegen::addresses::AddressMap;
use crate::codegen::command::{Command, Commands};
use crate::codegen::compile::Source;
use crate::codegen::compute::{self, Assertions, Attentions, Lowering};
use crate::codegen::setting::{Dry, Setting};
use crate::codegen::{agreement, collective, dispatch};
use crate::error::{CudaError, Result};
use crate::nccl::Front;

#[derive(Debug)]
pub struct Lowered {
    /// What is done in the place of each step.
    pub(crate) work: Vec<Vec<Command>>,
    pub(crate) source: Source,
    pub(crate) assertions: Assertions,
}

impl Lowered {
    pub fn new(rank: u32, list: &[BoundStep], setting: &Setting<'_>) -> Result<Lowered> {
        let at = |value: &_| setting.addresses.at(value);
        let mut l = Lowering::new(&at, setting.machine);
        let work = list.iter().map(|step| lower_step(rank, step, setting, &mut l));
        let work = work.collect::<Result<_>>()?;
        let Lowering { source, assertions, .. } = l;
        Ok(Lowered { work, source, assertions })
    }

    /// Lowers the steps of a program on a machine that has no GPU, as for one like those of the built-in profiles. The
    /// symmetric arena of rank `r` is at `addresses.symmetric` and `r` × 2^36 bytes.
    pub fn dry(
        bound: &Arc<Bound>,
        ranks: u32,
        addresses: &AddressMap,
        attention: Attentions,
    ) -> Result<Lowered> {
        let dry = Dry::new(bound, ranks, addresses.clone(), attention);
        Lowered::new(bound.rank(), &bound.steps, &dry.setting())
    }

    /// What all ranks must have alike, for the steps that it was lowered from.
    pub fn alike(&self, list: &[BoundStep]) -> Vec<u8> {
        agreement::words(list, &self.work)
    }

    pub fn work(&self) -> &[Vec<Command>] {
        &self.work
    }

    /// The code that launches name.
    pub fn code(&self) -> String {
        self.source.text()
    }
}

pub(crate) fn lower_step(
    rank: u32,
    step: &BoundStep,
    setting: &Setting<'_>,
    l: &mut Lowering<'_>,
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
        Work::Kernel { op, operands, results } => {
            let step = compute::Operation { index: step.index, op, operands, results };
            compute::lower(&step, l).map_err(failed)
        }
        Work::Collective(call) => {
            let number = call.cell.iter().position(|&r| r == rank).unwrap_or(0);
            let ends = setting.addresses.ends(call);
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
        Work::Dispatch(all) => dispatch::lower(step.index, all, setting, l).map_err(failed),
        Work::Custom { name, .. } => {
            Err(failed(CudaError::Unsupported(format!("the custom op {name} has no kernel for GPUs"))))
        }
    }
}
