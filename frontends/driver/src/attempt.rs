//! A candidate plan: its inputs, the estimated cost of its buckets, and the computation that overlaps with
//! collectives.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::machine::{MachineProfile, StepTraffic};
use symmc_ir::{Dim, Dispatch, DispatchForm, Graph, NodeId};
use symmc_passes::{CoalescedSet, Overlap};
use symmc_plan::{Bucket, ExitBarrier, ParsedProgram, Plan, ResolveError, StepNodes};
use symmc_planner::BucketInput;
use symmc_support::parallel;

pub struct PlanAttempt {
    pub inputs: Vec<BucketInput>,
    /// For each bucket, the sets of collectives that are joined; none for missing buckets.
    pub joined: Vec<JoinedSets>,
    /// For each bucket, the overlap and the exit barriers that the choice of variants assumed; the default
    /// for missing buckets.
    pub chosen_with: Vec<ObservedSchedule>,
    pub plan: Plan,
    /// Whether the tightest offsets were searched for.
    pub is_packed: bool,
    pub times_us: Vec<f64>,
    /// `times_us` plus the price of memory, except fixed memory.
    pub costs: Vec<f64>,
    /// For each bucket, the overlap and the exit barriers of its schedule.
    pub observed: Vec<ObservedSchedule>,
}

#[derive(Clone, PartialEq, Eq, Default)]
pub struct JoinedSets {
    /// The sets that become one collective.
    pub packed: Vec<CoalescedSet>,
    /// The sets that run as one step.
    pub together: Vec<CoalescedSet>,
}

/// Facts about a planned bucket that were unknown when its variants were chosen.
#[derive(Clone, Default)]
pub struct ObservedSchedule {
    pub overlap: Overlap,
    /// The collectives of the source whose droppable exit barriers are kept.
    pub exits_kept: BTreeSet<String>,
}

impl PlanAttempt {
    /// Estimates a plan of these inputs. `memory_price` is in microseconds per MiB.
    pub fn new(
        inputs: Vec<BucketInput>,
        plan: Plan,
        profile: &MachineProfile,
        memory_price: f64,
    ) -> Result<PlanAttempt, String> {
        let nodes = inputs.iter().map(|b| b.graph.nodes.len()).sum();
        let programs = parallel::map(plan.programs.iter().collect(), nodes, |text: &String| {
            ParsedProgram::parse(text).map_err(|e| e.to_string())
        });
        let programs = programs.into_iter().collect::<Result<Vec<ParsedProgram>, String>>()?;
        // Fixed memory serves all buckets: the part that one bucket adds must not increase the cost of the
        // others.
        let fixed = plan.fixed.iter().map(|f| f.offset.saturating_add(f.size)).max().unwrap_or(0);
        let mut times_us = Vec::new();
        let mut costs = Vec::new();
        let mut observed = Vec::new();
        for bucket in &plan.buckets {
            let program = programs.get(bucket.program).ok_or("a bucket names no program of the plan")?;
            let estimate = program.estimate(bucket, profile).map_err(|e| e.to_string())?;
            let symmetric = bucket.totals.symmetric_peak.saturating_sub(fixed);
            let bytes = bucket.totals.ordinary_peak.saturating_add(symmetric);
            times_us.push(estimate.total_us);
            costs.push(estimate.total_us + memory_price * bytes as f64 / f64::from(1 << 20));
            let runs: Vec<StepNodes> = program
                .resolve_steps(bucket)
                .collect::<Result<_, ResolveError>>()
                .map_err(|e| e.to_string())?;
            let mut overlapped_us: HashMap<&str, f64> = HashMap::new();
            for communication in &estimate.communication {
                // Each collective of a step overlaps with all computation that the step overlaps with.
                let nodes = runs.get(communication.step).into_iter().flat_map(|run| run.nodes());
                overlapped_us
                    .extend(nodes.map(|n| (program.graph.node_name(n), communication.overlapped_us)));
            }
            observed.push(ObservedSchedule {
                overlap: scheduled_overlap(bucket, &overlapped_us),
                exits_kept: kept_exit_barriers(program, bucket).map_err(|e| e.to_string())?,
            });
        }
        Ok(PlanAttempt {
            inputs,
            joined: Vec::new(),
            chosen_with: Vec::new(),
            plan,
            is_packed: true,
            times_us,
            costs,
            observed,
        })
    }

    pub fn total_us(&self) -> f64 {
        self.times_us.iter().sum()
    }
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

fn scheduled_overlap(bucket: &Bucket, overlapped_us: &HashMap<&str, f64>) -> Overlap {
    let mut scheduled = HashMap::with_capacity(bucket.decisions.len());
    for decision in &bucket.decisions {
        let nodes_us = decision.nodes.iter().map(|name| overlapped_us.get(name.as_str()).unwrap_or(&0.0));
        scheduled.insert(decision.collective.clone(), nodes_us.sum());
    }
    Overlap::Scheduled(scheduled)
}

/// The collectives of the source whose droppable exit barriers the bucket keeps.
fn kept_exit_barriers(program: &ParsedProgram, bucket: &Bucket) -> Result<BTreeSet<String>, ResolveError> {
    let mut kept_nodes: BTreeSet<&str> = BTreeSet::new();
    for (run, step) in program.resolve_steps(bucket).zip(&bucket.steps) {
        if step.exit == Some(ExitBarrier::Kept) {
            kept_nodes.extend(run?.nodes().map(|n| program.graph.node_name(n)));
        }
    }
    let decisions =
        bucket.decisions.iter().filter(|d| d.nodes.iter().any(|n| kept_nodes.contains(n.as_str())));
    Ok(decisions.map(|d| d.collective.clone()).collect())
}
