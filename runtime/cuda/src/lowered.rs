//! What the steps of a rank become, before anything is compiled or loaded: launches with addresses, and the code that they
//! name. Nothing here touches a device.

use std::sync::Arc;

use symmc_runtime::RunError;
use symmc_runtime::exec::{Bound, BoundStep, Home, Work as StepWork};

use crate::collective::{self, Peers};
use crate::compile::Source;
use crate::compute::{self, Attentions, GEMM_WORKSPACE, Machine, Sites};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::{Address, Work};
use crate::nccl::{Communicators, Front};
use crate::order::{self, Turn};
use crate::{agreement, dispatch, refusal, scratch};

/// What steps are lowered with.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Where everything lies.
    pub homes: &'a Homes,
    /// The peers' memory.
    pub peers: &'a Peers,
    /// What compute steps are lowered for.
    pub machine: &'a Machine,
    /// The communicators of the library's own collectives.
    pub nccl: &'a Communicators,
    /// A word that holds one more than the step of the library's last collective that began, if anybody asks.
    pub progress: Option<Address>,
    /// How far the memories of inputs and outputs are apart.
    pub distances: Distances,
}

/// How far the memories of inputs and outputs, and the ordinary arena, are apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distances {
    /// Those of inputs and outputs are as far from each other as on every other rank: they are one allocation, laid out alike.
    Alike,
    /// Each is where it is.
    Unknown,
}

impl Distances {
    /// A number for the memory of a value that is laid out alike on all ranks.
    pub fn memory(self, home: Home) -> Option<usize> {
        match (self, home) {
            (_, Home::Symmetric | Home::Inner) => None,
            (_, Home::Ordinary) => Some(0),
            (Distances::Alike, Home::Input(_) | Home::Output(_)) => Some(1),
            (Distances::Unknown, Home::Input(i)) => Some(1 + 2 * i),
            (Distances::Unknown, Home::Output(k)) => Some(2 + 2 * k),
        }
    }
}

/// The steps of a rank as launches.
#[derive(Debug)]
pub struct Lowered {
    /// How each step is ordered.
    pub(crate) turns: Vec<Turn>,
    /// What is done in the place of each step.
    pub(crate) work: Vec<Vec<Work>>,
    pub(crate) source: Source,
    /// Where data can be out of range.
    pub(crate) sites: Sites,
}

impl Lowered {
    /// Lowers the steps of a rank.
    ///
    /// # Errors
    /// A step has no form on a GPU.
    pub fn new(rank: u32, list: &[BoundStep], setting: &Setting<'_>) -> Result<Lowered, CudaError> {
        let (mut source, mut sites) = (Source::new(), Sites::new());
        let turns = order::turns(list);
        let work = list.iter().map(|step| lower(rank, step, setting, &mut source, &mut sites));
        let work = work.collect::<Result<_, CudaError>>()?;
        Ok(Lowered { turns, work, source, sites })
    }

    /// Lowers the steps of a program on a machine that has no GPU, as for one like those of the built-in profiles. The
    /// symmetric arena of rank `r` is at `homes.symmetric` and `r` × 2^36 bytes.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn dry(
        bound: &Arc<Bound>,
        ranks: u32,
        homes: &Homes,
        attention: Attentions,
    ) -> Result<Lowered, CudaError> {
        let machine = Machine { attention, ..refusal::MACHINE };
        let workspace_bytes = scratch::of_steps(bound.steps.iter(), &machine).max(GEMM_WORKSPACE);
        let machine = Machine { workspace_bytes, ..machine };
        let peers = refusal::peers(bound, ranks, homes.symmetric);
        let nccl = Communicators::of_nobody(&bound.steps);
        let setting = Setting {
            homes,
            peers: &peers,
            machine: &machine,
            nccl: &nccl,
            progress: None,
            distances: Distances::Unknown,
        };
        Lowered::new(bound.rank(), &bound.steps, &setting)
    }

    /// What all ranks must have alike, for the steps that it was lowered from.
    pub fn alike(&self, list: &[BoundStep]) -> Vec<u8> {
        agreement::words(list, &self.work)
    }

    /// What is done in the place of each step.
    pub fn work(&self) -> &[Vec<Work>] {
        &self.work
    }

    /// The code that launches name.
    pub fn code(&self) -> String {
        self.source.text()
    }
}

/// What a step becomes.
fn lower(
    rank: u32,
    step: &BoundStep,
    setting: &Setting<'_>,
    source: &mut Source,
    sites: &mut Sites,
) -> Result<Vec<Work>, CudaError> {
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
            let at = |value: &_| setting.homes.at(value);
            let step = compute::Step { index: step.index, op, operands, results };
            compute::lower(&step, &at, setting.machine, source, sites).map_err(failed)
        }
        StepWork::Collective(call) => {
            let number = call.cell.iter().position(|&r| r == rank).unwrap_or(0);
            let ends = setting.homes.ends(call);
            match collective::lower(step.index, call, &ends, setting.peers, source).map_err(failed)? {
                Some(work) => Ok(work),
                None => {
                    let word = step.index as u32 + 1;
                    let front =
                        Front { told: setting.progress, unread: collective::unread(setting.peers), word };
                    setting.nccl.lower(call, number, [ends.operand, ends.result], front).map_err(failed)
                }
            }
        }
        StepWork::Dispatch(all) => dispatch::lower(step.index, all, setting, source, sites).map_err(failed),
        StepWork::Custom { name, .. } => {
            Err(failed(CudaError::Unsupported(format!("the custom op {name} has no kernel for GPUs"))))
        }
    }
}
