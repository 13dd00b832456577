//! What is run: a plan, the values of its symbols, every rank's inputs, and how.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmc_check::CheckedPlan;
use symmc_ir::{Bindings, Graph, OutputKind, Tensor, text};
use symmc_plan::Plan;

use super::comm::CommConfig;
use super::control::Progress;
use super::times::RunTimes;
use super::wait::Spin;
use crate::custom::op_text;
use crate::error::RunError;
use crate::exec::{ExecConfig, Lanes, Timing};
use crate::session::{Arrangement, CallersPart};

/// A run of a plan on all its ranks.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a CheckedPlan,
    /// The values of the imported program's symbols.
    pub bindings: Bindings,
    /// One tensor for each rank and input of the program, constants included.
    pub inputs: &'a [Vec<Arc<Tensor>>],
    /// How often the plan runs, at least once. An input that an output mutates keeps its new value.
    pub repeats: u32,
    /// How it runs.
    pub config: HostConfig,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The outputs of each rank, of the last run.
    pub outputs: Vec<Vec<Tensor>>,
    /// The times of each rank's runs.
    pub times: Vec<RunTimes>,
}

/// Which engine runs a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum EngineChoice {
    /// The CPU.
    #[default]
    Host,
    /// The engine of this name.
    Named {
        /// Its [`Engine::name`](super::Engine::name).
        name: String,
        /// What it is told, in a form of its own.
        options: String,
    },
}

/// How a plan runs on the ranks of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostConfig {
    /// No wait takes longer. A rank that makes no progress for this long ends the run.
    pub limit: Duration,
    /// Delays ranks at random around every touch of a peer, from this seed.
    pub chaos: Option<u64>,
    /// Whether a rank runs its lanes on one thread or on one each.
    pub threads: LaneThreads,
    /// What runs it.
    pub engine: EngineChoice,
    /// Where counters and epochs of LL start. 0 but in tests of their wrap-around.
    pub first: u32,
    /// Bytes of symmetric memory for the caller of a session, beside what the plan needs.
    #[serde(default)]
    pub callers: usize,
    /// Whether other programs may be opened in a session of the host, which reserves addresses and groups for them.
    #[serde(default)]
    pub extendable: bool,
}

/// The groups that a session has room for beside those of its first program, if it may have others.
const SPARE_GROUPS: usize = 32;

/// Which threads of a rank run its lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LaneThreads {
    /// One runs all steps in the order of the plan.
    #[default]
    One,
    /// One for each lane.
    Each,
}

impl Default for HostConfig {
    fn default() -> Self {
        HostConfig {
            limit: Duration::from_secs(30),
            chaos: None,
            threads: LaneThreads::One,
            engine: EngineChoice::Host,
            first: 0,
            callers: 0,
            extendable: false,
        }
    }
}

impl HostConfig {
    /// How a communicator among `ranks` ranks works.
    pub(super) fn comm(&self, ranks: u32) -> CommConfig {
        let lanes = if self.threads == LaneThreads::Each { 2 } else { 1 };
        let spin = Spin::for_threads(ranks as usize * lanes);
        CommConfig { limit: self.limit, chaos: self.chaos, spin, first: self.first }
    }

    /// The bytes of the symmetric arena of a plan.
    pub(super) fn arena(&self, plan: &Plan) -> Result<usize, RunError> {
        match self.extendable {
            true => Ok(Arrangement::room_for(plan)),
            false => Ok(CallersPart::new(plan, self.callers)?.end()),
        }
    }

    /// The groups of a session that begins with a plan.
    pub(super) fn groups(&self, plan: &CheckedPlan) -> usize {
        groups(plan) + if self.extendable { SPARE_GROUPS } else { 0 }
    }

    /// How a rank walks its steps.
    pub(super) fn exec(&self) -> ExecConfig {
        let lanes = match self.threads {
            LaneThreads::One => Lanes::Inline,
            LaneThreads::Each => Lanes::Threads,
        };
        ExecConfig { lanes, timing: Timing::Off }
    }
}

/// The command that runs one rank: a program that calls [`rank_main`](super::rank_main) with the number that
/// follows its last argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments. The number of the control socket's descriptor is appended as one more.
    pub args: Vec<String>,
}

/// Memory for one tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub dtype: symmc_ir::DType,
    pub shape: Vec<usize>,
    pub bytes: usize,
}

/// What a job needs, after its inputs were found to fit.
#[derive(Clone, Debug)]
pub(super) struct Needs {
    /// The outputs of each rank.
    pub outputs: Vec<Slot>,
    /// For each input, whether an output mutates it.
    pub mutated: Vec<bool>,
    /// The number of groups.
    pub groups: usize,
    /// The number of symbols of the imported program.
    pub symbols: usize,
}

impl Needs {
    /// Checks that `inputs` fit the plan's program for these bindings; `first` is the rank of the first list.
    pub fn of(
        plan: &CheckedPlan,
        bindings: &Bindings,
        inputs: &[Vec<Arc<Tensor>>],
        first: u32,
    ) -> Result<Needs, RunError> {
        let graph = plan.source_program();
        for (rank, inputs) in (first..).zip(inputs) {
            check_inputs(graph, bindings, inputs, rank)?;
        }
        let mut mutated = vec![false; graph.inputs.len()];
        let mut outputs = Vec::with_capacity(graph.outputs.len());
        for output in &graph.outputs {
            let name = graph.name_of(output.value);
            outputs.push(slot(graph, output.value, bindings, &format!("output %{name}"))?);
            if let OutputKind::Mutates(input) = output.kind {
                use symmc_ir::entity::Entity;
                mutated[input.index()] = true;
            }
        }
        Ok(Needs { outputs, mutated, groups: groups(plan), symbols: graph.symbols.len() })
    }
}

/// The groups of ranks that have flags of their own.
pub(super) fn groups(plan: &CheckedPlan) -> usize {
    let planned = plan.programs().map(|p| p.map_or(0, |p| p.graph.groups.len()));
    // One more for what engines tell their peers.
    planned.fold(plan.source_program().groups.len(), usize::max) + 1
}

fn slot(graph: &Graph, value: symmc_ir::ValueId, bindings: &Bindings, what: &str) -> Result<Slot, RunError> {
    let ty = graph.ty(value);
    let bytes = |shape: &[usize]| shape.iter().try_fold(ty.dtype.size(), |n, &d| n.checked_mul(d));
    let sized = ty.concrete(bindings).and_then(|shape| Some((bytes(&shape)?, shape)));
    let none = || RunError::Invalid(format!("{what} has no size under the given symbols"));
    let (bytes, shape) = sized.ok_or_else(none)?;
    Ok(Slot { dtype: ty.dtype, shape, bytes })
}

fn check_inputs(
    graph: &Graph,
    bindings: &Bindings,
    inputs: &[Arc<Tensor>],
    rank: u32,
) -> Result<(), RunError> {
    if inputs.len() != graph.inputs.len() {
        let (expected, found) = (graph.inputs.len(), inputs.len());
        return Err(RunError::Invalid(format!("rank {rank}: expected {expected} inputs, found {found}")));
    }
    for (input, tensor) in graph.inputs.values().zip(inputs) {
        let what = format!("input %{} on rank {rank}", graph.name_of(input.value));
        let slot = slot(graph, input.value, bindings, &what)?;
        if slot.dtype != tensor.dtype() || slot.shape != tensor.shape() {
            return Err(RunError::Invalid(format!(
                "{what}: expected {}{:?}, found {}{:?}",
                slot.dtype,
                slot.shape,
                tensor.dtype(),
                tensor.shape()
            )));
        }
    }
    Ok(())
}

/// The step that a rank had begun: its index, the name of its node and its op. `None` outside of a run.
pub(super) fn locate(plan: &Plan, progress: &Progress) -> Option<(usize, String, String)> {
    let step = progress.step? as usize;
    let bucket = plan.buckets.get(progress.bucket as usize)?;
    let node = bucket.steps.get(step)?.node.clone();
    let graph = plan.programs.get(bucket.program).and_then(|p| text::parse(p).ok());
    let op = graph.and_then(|graph| {
        let (_, found) = graph.nodes.iter().find(|(id, _)| graph.node_name(*id) == node)?;
        Some(match found.op.as_collective() {
            Some(collective) => collective.kind.name().to_string(),
            None => op_text(&graph, &found.op),
        })
    });
    Some((step, node, op.unwrap_or_else(|| "step".into())))
}
