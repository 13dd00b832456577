//! The estimated time of a bucket: the plan's own steps, lanes and waits, in the time of a machine profile.

use std::collections::BTreeMap;

use symmc_ir::machine::Profile;
use symmc_ir::machine::timeline::{TimedStep, Timeline, simulate};
use symmc_ir::{Dim, NodeId, ValueId};

use crate::{Bucket, ExitBarrier, Lane, ReadProgram, Run, Symbols, Unresolved};

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

/// The estimate of a step that communicates.
#[derive(Clone, PartialEq, Debug)]
pub struct CommunicationEstimate {
    /// The index of the step in the bucket.
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
    /// The estimated time of a run of `bucket`, of a checked plan, at the upper ends of its ranges.
    ///
    /// # Errors
    /// The bucket has other symbols or names a step that does not exist.
    pub fn estimate(&self, bucket: &Bucket, profile: &Profile) -> Result<Estimate, Unresolved> {
        let symbols = self.symbols(bucket)?;
        let runs = self.runs(bucket).collect::<Result<Vec<Run>, Unresolved>>()?;
        let timed: Vec<_> = runs
            .iter()
            .zip(&bucket.steps)
            .map(|(run, step)| {
                let exit = step.exit.map(|e| e == ExitBarrier::Kept);
                let size = |d: &Dim| size(d, &symbols);
                let timed =
                    profile.timed_step(&self.graph, run.nodes(), self.moved(*run, &symbols), exit, size);
                TimedStep { communicates: step.lane == Lane::Comm, ..timed }
            })
            .collect();
        let Timeline { exposed, overlapped, total, .. } = simulate(&timed, profile.crossing(), |at, wait| {
            bucket.steps[at].waits.iter().for_each(|&w| wait(w))
        });
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let compute: u64 = timed.iter().filter(|t| !t.communicates).map(|t| t.time).sum();
        let communication = (0..timed.len()).filter(|&s| timed[s].communicates);
        let communication = communication.map(|step| CommunicationEstimate {
            step,
            node: self.communicating(runs[step]),
            us: us(timed[step].time),
            exposed_us: us(exposed[step]),
            overlapped_us: us(overlapped[step]),
        });
        let communication = communication.collect();
        let (total_us, compute_us) = (us(total), us(compute));
        Ok(Estimate { total_us, compute_us, exposed_us: us(total.saturating_sub(compute)), communication })
    }

    /// The bytes that a step reads and writes; of a base that it reads through views, those of the largest view.
    fn moved(&self, run: Run, symbols: &Symbols) -> u64 {
        let bytes = |v: ValueId| size(&self.graph.ty(v).bytes(), symbols);
        let mut read: BTreeMap<ValueId, u64> = BTreeMap::new();
        for (_, _, value) in run.operands(self) {
            let base = self.base(value);
            let most = read.entry(base).or_default();
            *most = (*most).max(bytes(value).min(bytes(base)));
        }
        read.into_values().chain(run.results(self).into_iter().map(bytes)).fold(0, u64::saturating_add)
    }

    /// The node of a step that communicates.
    fn communicating(&self, run: Run) -> NodeId {
        run.nodes().find(|&n| self.graph.nodes[n].op.as_collective().is_some()).unwrap_or(run.first)
    }
}

/// A dim at the upper ends of the ranges.
fn size(dim: &Dim, symbols: &Symbols) -> u64 {
    u64::try_from(dim.upper(symbols).max(1)).unwrap_or(u64::MAX)
}
