//! The definition of a job, and one rank of it.

use std::path::PathBuf;
use std::sync::Arc;

use symmc_check::CheckedPlan;
use symmc_control::{JoinTerm, JoinedRank, Membership, RankConfig, RunKind};
use symmc_ir::{SymbolBindings, SymbolId, Tensor, entity::Entity};
use symmc_plan::Plan;

use super::inputs::TensorInput;
use super::needs::{TensorSlot, expect_inputs};
use super::run::{OpenSession, RankWorkload, run_joined_rank};
use super::times::RunTimes;
use crate::error::{Result, RunError};
use crate::session::join::{expect_plan_ranks, plan_join_request};

#[derive(Clone, Debug)]
pub struct Job<'a> {
    pub plan: &'a CheckedPlan,
    /// The values of the imported program's symbols.
    pub bindings: SymbolBindings,
    /// One tensor for each rank and input of the program, constants included.
    pub inputs: &'a [Vec<Arc<Tensor>>],
    /// The number of runs, at least one. An input that an output mutates keeps its new value.
    pub repeats: u32,
    /// The last run goes step by step, and the times of its steps are written to this file.
    pub trace: Option<PathBuf>,
    pub config: RankConfig,
}

#[derive(Clone, Debug)]
pub struct JobResult {
    /// The outputs of each rank, of the last run.
    pub outputs: Vec<Vec<Tensor>>,
    pub times: Vec<RunTimes>,
}

/// The job of one rank, where another launcher started the ranks.
#[derive(Clone, Debug)]
pub struct RankJob<'a> {
    /// The plan; the same on all ranks.
    pub plan: &'a CheckedPlan,
    /// The values of the imported program's symbols; the same on all ranks.
    pub bindings: SymbolBindings,
    /// This rank's tensor for each input of the program, constants included.
    pub inputs: &'a [Arc<Tensor>],
    /// The number of runs, at least one; the same on all ranks.
    pub repeats: u32,
    /// The same as in a [`Job`].
    pub trace: Option<PathBuf>,
    /// Other settings that must be equal on all ranks: the seed of drawn inputs, the file of recorded ones.
    pub settings: &'a [JoinTerm],
    pub config: RankConfig,
}

/// Runs this process's rank together with the others; returns its outputs, and the times of its runs. Fails
/// if the inputs do not fit the plan, an op has no kernel, the other ranks do not join or run something else,
/// or a rank failed.
pub fn run_rank(
    membership: &Membership,
    job: &RankJob<'_>,
    open: &OpenSession<'_>,
) -> Result<(Vec<Tensor>, RunTimes)> {
    let RankJob { plan, bindings, config, .. } = job;
    let prepared = expect_plan_ranks(plan, membership, "run").and_then(|()| {
        let slots = expect_inputs(plan, bindings, &[job.inputs], membership.rank)?;
        let mut terms = job_terms(plan, bindings, job.repeats);
        terms.extend_from_slice(job.settings);
        Ok((slots, plan_join_request(plan, config, RunKind::Job, terms)?))
    });
    let (slots, purpose) = prepared.map_err(|error| membership.decline(error))?;
    let inputs: Vec<TensorInput> = job.inputs.iter().map(TensorInput::new).collect();
    let mut outputs: Vec<Vec<u8>> = slots.iter().map(|slot| vec![0; slot.bytes]).collect();
    let rank = JoinedRank::join(membership, &purpose)?.with_chaos(config.chaos);
    let runs = RankWorkload {
        plan,
        bindings,
        config,
        repeats: job.repeats,
        trace: job.trace.as_deref(),
        inputs: inputs.iter().map(TensorInput::data).collect(),
        outputs: outputs.iter_mut().map(|output| &mut output[..]).collect(),
    };
    let times = run_joined_rank(rank, runs, open)?;
    let outputs = slots.iter().zip(outputs).map(|(slot, data)| slot.to_tensor(data));
    Ok((outputs.collect::<Result<_, _>>()?, times))
}

pub(super) fn expect_rank_count(job: &Job<'_>) -> Result<u32> {
    let ranks = job.plan.ranks;
    let input_ranks = job.inputs.len();
    if input_ranks == ranks as usize && ranks > 0 {
        return Ok(ranks);
    }
    Err(RunError::Invalid(format!("the plan is for {ranks} ranks, found inputs for {input_ranks}")))
}

/// Checks that the inputs of all ranks fit the program; returns the outputs of each rank.
pub(super) fn expect_all_inputs(job: &Job<'_>) -> Result<Vec<TensorSlot>> {
    let inputs: Vec<&[Arc<Tensor>]> = job.inputs.iter().map(|inputs| &inputs[..]).collect();
    expect_inputs(job.plan, &job.bindings, &inputs, 0)
}

/// The sizes of a job and its number of runs, as terms.
pub(super) fn job_terms(plan: &Plan, bindings: &SymbolBindings, repeats: u32) -> Vec<JoinTerm> {
    let names = plan.buckets.first().into_iter().flat_map(|b| b.symbols.keys()).enumerate();
    let sizes = names.filter_map(|(i, name)| {
        Some(JoinTerm::text(name.clone(), bindings.get(SymbolId::new(i))?.to_string()))
    });
    sizes.chain([JoinTerm::text("runs", repeats.to_string())]).collect()
}
