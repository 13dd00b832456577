//! The estimated time of a bucket: the plan's own steps, lanes and waits, in the time of a machine profile.

use indexmap::IndexMap;
use symmc_ir::machine::timeline::{TimedStep, Timeline, simulate};
use symmc_ir::machine::{Memory, Moved, Profile};
use symmc_ir::{Dim, Node, NodeId, Op, Symbols, ValueId};

use crate::{Bucket, ExitBarrier, Lane, ReadProgram, Run, Unresolved};

/// The estimated time of one run of a bucket, in microseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Estimate {
    /// From the start of the first step to the end of the last.
    pub total_us: f64,
    /// What all computation takes alone.
    pub compute_us: f64,
    /// The rest: communication that nothing hides, and what communication slows computation down by.
    pub exposed_us: f64,
    /// Each step that communicates, in order.
    pub communication: Vec<CommunicationEstimate>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct CommunicationEstimate {
    pub step: usize,
    /// The node of its collective or custom op.
    pub node: NodeId,
    /// Its time alone, in microseconds.
    pub us: f64,
    /// How much longer the run takes because of it, in microseconds.
    pub exposed_us: f64,
    /// How long computation runs beside it, in microseconds.
    pub overlapped_us: f64,
}

impl ReadProgram {
    /// The estimated time of a run of `bucket`, of a checked plan, at the upper ends of its ranges. Fails if the bucket
    /// has other symbols or names a step that does not exist.
    pub fn estimate(&self, bucket: &Bucket, profile: &Profile) -> Result<Estimate, Unresolved> {
        self.estimate_within(bucket, profile, &self.symbols(bucket)?)
    }

    /// The estimated time of a run of `bucket` at these sizes, by the names of the symbols; symbols that are not among them
    /// have the upper ends of their ranges.
    pub fn estimate_at(
        &self,
        bucket: &Bucket,
        profile: &Profile,
        sizes: &IndexMap<String, i64>,
    ) -> Result<Estimate, Unresolved> {
        let mut symbols = self.symbols(bucket)?;
        for symbol in symbols.values_mut() {
            if let Some(&size) = sizes.get(&symbol.name) {
                (symbol.min, symbol.max) = (size, size);
            }
        }
        self.estimate_within(bucket, profile, &symbols)
    }

    /// The estimated time at the upper ends of these ranges.
    fn estimate_within(
        &self,
        bucket: &Bucket,
        profile: &Profile,
        symbols: &Symbols,
    ) -> Result<Estimate, Unresolved> {
        let runs = self.runs(bucket).collect::<Result<Vec<Run>, Unresolved>>()?;
        let timed: Vec<_> = runs
            .iter()
            .zip(&bucket.steps)
            .map(|(run, step)| {
                let exit = step.exit.map(|e| e == ExitBarrier::Kept);
                let size = |d: &Dim| size(d, symbols);
                let timed = profile.timed_step(
                    &self.graph,
                    run.nodes(),
                    self.moved(*run, bucket, symbols),
                    exit,
                    size,
                );
                TimedStep { communicates: step.lane == Lane::Comm, ..timed }
            })
            .collect();
        let Timeline { exposed, overlapped, total, .. } = simulate(&timed, profile.crossing(), |at, wait| {
            bucket.steps[at].waits.iter().for_each(|&w| wait(w))
        });
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let mut compute = 0;
        let mut communication = Vec::new();
        for (step, timed) in timed.iter().enumerate() {
            let Some(node) = self.communicating(runs[step]) else {
                compute += timed.time;
                continue;
            };
            // On the compute lane nothing else runs meanwhile.
            let exposed = if timed.communicates { exposed[step] } else { timed.time };
            communication.push(CommunicationEstimate {
                step,
                node,
                us: us(timed.time),
                exposed_us: us(exposed),
                overlapped_us: us(overlapped[step]),
            });
        }
        let (total_us, compute_us) = (us(total), us(compute));
        Ok(Estimate { total_us, compute_us, exposed_us: us(total.saturating_sub(compute)), communication })
    }

    fn moved(&self, run: Run, bucket: &Bucket, symbols: &Symbols) -> Moved {
        let memory = Memory {
            base: |v| self.base(v),
            bytes: |v| size(&self.graph.ty(v).bytes(), symbols),
            in_place: |n: NodeId, k: usize| self.is_in_place(n, k, bucket, symbols).unwrap_or(false),
        };
        let reads = run.operands(self).map(|(n, k, _)| (n, k));
        memory.moved_by_step(&self.graph, run.nodes(), reads, run.results(self).into_iter())
    }

    /// Whether the operand `k` of a node lies where the result has its elements: all of the result, or a piece of a concatenation.
    fn is_in_place(&self, node: NodeId, k: usize, bucket: &Bucket, symbols: &Symbols) -> Option<bool> {
        let graph = &self.graph;
        let Node { op, inputs, outputs } = &graph.nodes[node];
        let (&operand, &result) = (inputs.get(k)?, outputs.first()?);
        let place = |v: ValueId| bucket.places.get(graph.name_of(v));
        let (of, to) = (place(self.base(operand))?, place(result)?);
        let Op::Concat { axis } = *op else {
            return Some((of.memory, &of.offset) == (to.memory, &to.offset));
        };
        let outer = graph.ty(result).shape.iter().take(axis);
        let layout = self.layout(operand);
        let contiguous = layout.is_contiguous(graph.ty(operand)) && outer.into_iter().all(is_one);
        if !contiguous || (of.memory, &of.by_rank) != (to.memory, &to.by_rank) {
            return Some(false);
        }
        let start = |place| self.place("", place, symbols).ok().map(|p| p.offset);
        let before = inputs.iter().take(k).fold(Dim::from(0), |sum, &v| sum + graph.ty(v).bytes());
        let inner = layout.offset.clone() * Dim::from(graph.ty(operand).dtype.size() as i64);
        Some(start(of)? + inner == start(to)? + before)
    }

    /// The first node of a step that communicates, if one does.
    fn communicating(&self, run: Run) -> Option<NodeId> {
        run.nodes().find(|&n| match self.graph.nodes[n].op {
            Op::Collective(_) => true,
            Op::Custom(op) => self.graph.customs.get(op).is_some_and(|custom| custom.group.is_some()),
            _ => false,
        })
    }
}

fn is_one(dim: &Dim) -> bool {
    dim.as_const() == Some(1)
}

/// A dim at the upper ends of the ranges.
fn size(dim: &Dim, symbols: &Symbols) -> u64 {
    u64::try_from(dim.upper(symbols).max(1)).unwrap_or(u64::MAX)
}
