//! An attempt: the plan of one choice for one bucket, with its estimated cost.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::machine::{MachineProfile, StepTraffic};
use symmc_ir::{Dim, Dispatch, DispatchForm, Graph, NodeId};
use symmc_passes::lower::LowerConditions;
use symmc_plan::{
    Bucket, BucketEstimate, CommunicationEstimate, Decision, ExitBarrier, ParsedProgram, ResolveError,
};
use symmc_planner::{BucketInput, PlacedPrograms};

use crate::error::{DriverError, Result};
use crate::options::CompileOptions;
use crate::pipeline::Choice;

/// A planned bucket. Its offsets are not the tightest ones, because that search takes most of the time of some plans.
#[derive(Clone)]
pub struct Attempt {
    pub choice: Choice,
    pub input: BucketInput,
    pub bucket: Bucket,
    pub program: ParsedProgram,
    pub estimate: BucketEstimate,
    /// The microseconds of a run, plus the price of memory except fixed memory.
    pub cost: f64,
    /// The bytes of the symmetric arena, except fixed memory.
    pub block_bytes: u64,
}

impl Attempt {
    /// Estimates a placed bucket. `fixed_bytes` are those of landing zones and bound inputs, which serve all buckets.
    pub fn new(
        choice: Choice,
        input: BucketInput,
        placed: PlacedPrograms,
        fixed_bytes: u64,
        options: &CompileOptions,
    ) -> Result<Attempt> {
        let PlacedPrograms { mut buckets, mut programs } = placed;
        let (Some(bucket), Some((_, program))) = (buckets.pop(), programs.pop_first()) else {
            return Err(DriverError::defect("the planner placed no bucket"));
        };
        let estimate = program.estimate(&bucket, &options.profile).map_err(DriverError::defect)?;
        let block_bytes = bucket.totals.symmetric_peak.saturating_sub(fixed_bytes);
        let bytes = bucket.totals.ordinary_peak.saturating_add(block_bytes);
        let cost = estimate.total_us + options.memory_price * bytes as f64 / f64::from(1 << 20);
        Ok(Attempt { choice, input, bucket, program, estimate, cost, block_bytes })
    }

    /// The conditions of its choice, with the overlap and the exit barriers of its schedule.
    pub fn observed_conditions(&self) -> Result<LowerConditions> {
        let times = self.collective_times().map_err(DriverError::defect)?;
        let kept = kept_exit_barriers(&self.program, &self.bucket).map_err(DriverError::defect)?;
        let mut conditions = self.choice.conditions.clone();
        // Collectives that are absent from the schedule are chosen as if nothing overlapped them.
        conditions.change_all(|conditions| conditions.hidden_eighths = 0);
        for decision in &self.bucket.decisions {
            let own_times = decision.nodes.iter().filter_map(|name| times.get(name.as_str()));
            let (us, overlapped_us) =
                own_times.fold((0.0, 0.0), |sum, own| (sum.0 + own.us, sum.1 + own.overlapped_us));
            let eighths = if us > 0.0 { (8.0 * overlapped_us / us).round().min(8.0) as u8 } else { 0 };
            let exit_kept = decision.nodes.iter().any(|n| kept.contains(n.as_str()));
            if eighths > 0 || exit_kept || conditions.by_name.contains_key(&decision.collective) {
                let own = conditions.entry(&decision.collective);
                own.hidden_eighths = eighths;
                // A barrier that was kept once is assumed to be kept again.
                own.exit_kept |= exit_kept;
            }
        }
        Ok(conditions)
    }

    /// The microseconds that the collectives of each decision add to the run, as far as nothing hides them.
    pub fn exposed_times(&self) -> Result<Vec<f64>> {
        let times = self.collective_times().map_err(DriverError::defect)?;
        let exposed = |decision: &Decision| {
            decision.nodes.iter().filter_map(|name| times.get(name.as_str())).map(|own| own.exposed_us).sum()
        };
        Ok(self.bucket.decisions.iter().map(exposed).collect())
    }

    /// The times of each collective of the planned program by its name. Each collective of a step has the times of the
    /// step.
    fn collective_times(&self) -> Result<HashMap<&str, &CommunicationEstimate>, ResolveError> {
        let runs = self.program.resolve_steps(&self.bucket).collect::<Result<Vec<_>, ResolveError>>()?;
        let mut times = HashMap::new();
        for communication in &self.estimate.communication {
            let nodes = runs.get(communication.step).into_iter().flat_map(|run| run.nodes());
            times.extend(nodes.map(|n| (self.program.graph.node_name(n), communication)));
        }
        Ok(times)
    }
}

/// The names of the nodes whose droppable exit barriers a bucket keeps.
fn kept_exit_barriers<'p>(
    program: &'p ParsedProgram,
    bucket: &Bucket,
) -> Result<BTreeSet<&'p str>, ResolveError> {
    let mut kept_nodes: BTreeSet<&str> = BTreeSet::new();
    for (run, step) in program.resolve_steps(bucket).zip(&bucket.steps) {
        if step.exit == Some(ExitBarrier::Kept) {
            kept_nodes.extend(run?.nodes().map(|n| program.graph.node_name(n)));
        }
    }
    Ok(kept_nodes)
}

/// The least time of the collectives of a lowered program, in microseconds. Their steps follow each other in
/// any schedule.
pub fn communication_us(graph: &Graph, profile: &MachineProfile) -> f64 {
    let sets: Vec<&Dispatch> =
        graph.dispatches.iter().filter(|d| d.form == DispatchForm::Collectives).collect();
    let mut total = 0u64;
    for (n, node) in graph.nodes.iter() {
        let Some(collective) = node.op.as_collective() else { continue };
        if graph.group_size(collective.group).is_none_or(|ranks| ranks <= 1) {
            continue;
        }
        let nodes = match sets.iter().find(|set| set.contains(n)) {
            // The first node of a set stands for all of them.
            Some(set) if set.first != n => continue,
            Some(set) => set.nodes().collect(),
            None => vec![n],
        };
        let exits = [None, Some(false), Some(true)];
        let times = exits.map(|exit| step_time(graph, &nodes, exit, profile));
        total = total.saturating_add(times.into_iter().min().unwrap_or(0));
    }
    total as f64 / 1000.0
}

/// The time of a step of collectives in nanoseconds, at the upper ends of the sizes.
fn step_time(graph: &Graph, nodes: &[NodeId], exit: Option<bool>, profile: &MachineProfile) -> u64 {
    let traffic = StepTraffic::default();
    let step = profile.timed_step(graph, nodes.iter().copied(), traffic, exit, |dim: &Dim| {
        u64::try_from(dim.upper_bound(&graph.symbols).max(1)).unwrap_or(u64::MAX)
    });
    step.time
}
