//! The estimated time of a bucket: the plan's own steps, lanes and waits, with the times of a machine profile.

use indexmap::IndexMap;
use symmc_ir::machine::timeline::{TimedStep, Timeline, simulate_timeline};
use symmc_ir::machine::{MachineProfile, StepTraffic, TrafficModel};
use symmc_ir::{Dim, Node, NodeId, Op, SymbolTable};

use crate::{Bucket, ExitBarrier, Lane, ParsedProgram, ResolveError, Step, StepNodes};

/// The estimated time of one run of a bucket, in microseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct BucketEstimate {
    /// From the start of the first step to the end of the last.
    pub total_us: f64,
    /// The time of all computation without communication.
    pub compute_us: f64,
    /// The rest: communication that nothing overlaps, and the slowdown of computation by communication.
    pub exposed_us: f64,
    /// The number of steps that are not estimated, because they have opaque ops. Their time is not part of the others.
    pub unestimated_steps: usize,
    /// All steps that communicate, in order.
    pub communication: Vec<CommunicationEstimate>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct CommunicationEstimate {
    pub step: usize,
    /// The node of its collective or custom op.
    pub node: NodeId,
    /// The time of the step alone, in microseconds.
    pub us: f64,
    /// The increase of the run's time because of the step, in microseconds.
    pub exposed_us: f64,
    /// The time in which computation runs concurrently with the step, in microseconds.
    pub overlapped_us: f64,
    /// Whether the time of one of its collectives is modelled instead of measured
    /// ([`MachineProfile::is_modelled`]).
    pub is_modelled: bool,
}

/// Whether the exit barrier of a step is kept; `None` if it cannot be dropped.
fn exit_is_kept(step: &Step) -> Option<bool> {
    step.exit.map(|exit| exit == ExitBarrier::Kept)
}

impl ParsedProgram {
    /// The estimated time of one run of `bucket` of a checked plan, at the upper bounds of its symbols. Fails
    /// if the bucket has other symbols or names a step that does not exist.
    pub fn estimate(
        &self,
        bucket: &Bucket,
        profile: &MachineProfile,
    ) -> Result<BucketEstimate, ResolveError> {
        self.estimate_within(bucket, profile, &self.resolve_symbols(bucket)?)
    }

    /// The estimated time of one run of `bucket` at these sizes, by the names of the symbols. Symbols without a
    /// size are at their upper bounds.
    pub fn estimate_at(
        &self,
        bucket: &Bucket,
        profile: &MachineProfile,
        sizes: &IndexMap<String, i64>,
    ) -> Result<BucketEstimate, ResolveError> {
        let mut symbols = self.resolve_symbols(bucket)?;
        for symbol in symbols.values_mut() {
            if let Some(&size) = sizes.get(&symbol.name) {
                (symbol.min, symbol.max) = (size, size);
            }
        }
        self.estimate_within(bucket, profile, &symbols)
    }

    /// The estimated time at the upper bounds of these symbols.
    fn estimate_within(
        &self,
        bucket: &Bucket,
        profile: &MachineProfile,
        symbols: &SymbolTable,
    ) -> Result<BucketEstimate, ResolveError> {
        let runs = self.resolve_steps(bucket).collect::<Result<Vec<StepNodes>, ResolveError>>()?;
        let timed = self.timed_steps(bucket, &runs, profile, symbols);
        let Timeline { exposed, overlapped, total, .. } =
            simulate_timeline(&timed, profile.lane_crossing_ns(), |step, wait| {
                bucket.steps[step].waits.iter().for_each(|&w| wait(w))
            });
        let mut compute = 0;
        let mut communication = Vec::new();
        for (step, timed) in timed.iter().enumerate() {
            let Some(node) = self.communication_node(runs[step]) else {
                compute += timed.time;
                continue;
            };
            // Nothing else runs concurrently with a collective in the compute lane.
            let exposed = if timed.communicates { exposed[step] } else { timed.time };
            communication.push(CommunicationEstimate {
                step,
                node,
                us: microseconds(timed.time),
                exposed_us: microseconds(exposed),
                overlapped_us: microseconds(overlapped[step]),
                is_modelled: self.is_modelled(runs[step], &bucket.steps[step], profile),
            });
        }
        let total_us = microseconds(total);
        let compute_us = microseconds(compute);
        Ok(BucketEstimate {
            total_us,
            compute_us,
            exposed_us: microseconds(total.saturating_sub(compute)),
            unestimated_steps: runs.iter().filter(|run| self.has_opaque(**run)).count(),
            communication,
        })
    }

    /// The steps with their estimated times alone.
    fn timed_steps(
        &self,
        bucket: &Bucket,
        runs: &[StepNodes],
        profile: &MachineProfile,
        symbols: &SymbolTable,
    ) -> Vec<TimedStep> {
        let timed = runs.iter().zip(&bucket.steps).map(|(run, step)| {
            let moved = self.step_traffic(*run, bucket, symbols);
            let size = |dim: &Dim| upper_size(dim, symbols);
            let timed = profile.timed_step(&self.graph, run.nodes(), moved, exit_is_kept(step), size);
            TimedStep { communicates: step.lane == Lane::Comm, ..timed }
        });
        timed.collect()
    }

    fn has_opaque(&self, run: StepNodes) -> bool {
        run.nodes().any(|n| self.graph.nodes[n].op.is_opaque())
    }

    fn is_modelled(&self, run: StepNodes, step: &Step, profile: &MachineProfile) -> bool {
        run.nodes().filter_map(|n| self.graph.nodes[n].op.as_collective()).any(|c| {
            let ranks = self.graph.group_size(c.group).unwrap_or(1);
            c.variant.is_some_and(|v| profile.is_modelled(&c.kind, v, exit_is_kept(step), ranks))
        })
    }

    fn step_traffic(&self, run: StepNodes, bucket: &Bucket, symbols: &SymbolTable) -> StepTraffic {
        let memory = TrafficModel {
            base: |v| self.base(v),
            bytes: |v| upper_size(&self.graph.ty(v).bytes(), symbols),
            in_place: |n: NodeId, k: usize| self.is_in_place(n, k, bucket, symbols).unwrap_or(false),
        };
        let reads = run.operands(self).map(|(n, k, _)| (n, k));
        memory.step_traffic(&self.graph, run.nodes(), reads, run.results(self).into_iter())
    }

    /// Whether operand `k` of a node lies at the bytes of its elements in the result: all of the result, or its
    /// piece of a concatenation.
    fn is_in_place(&self, node: NodeId, k: usize, bucket: &Bucket, symbols: &SymbolTable) -> Option<bool> {
        let graph = &self.graph;
        let Node { op, inputs, outputs } = &graph.nodes[node];
        let (&operand, &result) = (inputs.get(k)?, outputs.first()?);
        let from = bucket.places.get(graph.value_name(self.base(operand)))?;
        let result_place = bucket.places.get(graph.value_name(result))?;
        let Op::Concat { axis } = *op else {
            return Some((from.memory, &from.offset) == (result_place.memory, &result_place.offset));
        };
        let outer = graph.ty(result).shape.iter().take(axis);
        let layout = self.layout(operand);
        let contiguous = layout.is_contiguous(graph.ty(operand)) && outer.into_iter().all(is_unit_extent);
        if !contiguous || (from.memory, &from.by_rank) != (result_place.memory, &result_place.by_rank) {
            return Some(false);
        }
        let before = inputs.iter().take(k).fold(Dim::from(0), |sum, &v| sum + graph.ty(v).bytes());
        let inner = layout.offset.clone() * Dim::from(graph.ty(operand).dtype.size() as i64);
        let operand_start = self.resolve_placement("", from, symbols).ok()?.offset;
        let result_start = self.resolve_placement("", result_place, symbols).ok()?.offset;
        Some(operand_start + inner == result_start + before)
    }

    /// The first node of a step that communicates, if any.
    fn communication_node(&self, run: StepNodes) -> Option<NodeId> {
        run.nodes().find(|&n| match self.graph.nodes[n].op {
            Op::Collective(_) => true,
            Op::Custom(op) => self.graph.customs.get(op).is_some_and(|custom| custom.group.is_some()),
            _ => false,
        })
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

fn is_unit_extent(dim: &Dim) -> bool {
    dim.as_const() == Some(1)
}

/// A dim at the upper bounds of the symbols, at least 1.
fn upper_size(dim: &Dim, symbols: &SymbolTable) -> u64 {
    u64::try_from(dim.upper_bound(symbols).max(1)).unwrap_or(u64::MAX)
}
