//! What kernels report in the status words, as errors that name the step.

use std::time::Duration;

use symmc_runtime::exec::{Bound, Work};
use symmc_runtime::{DataFault, RunError};

use crate::codegen::collective::{self, Flow, Missed, Unfit};
use crate::codegen::compute::{self, Assertions};
use crate::device::driver::Pinned;

/// The bytes of the status words: first the collectives', then those of compute kernels, then that of progress.
pub(crate) const STATUS: usize = 4096;
pub(crate) const COMPUTE_STATUS: usize = 2048;
pub(crate) const PROGRESS: usize = 3072;

/// Where the compute kernels of a program of a session report: programs of one session have words of their own, as far as there
/// are some.
pub(crate) fn compute_status(program: usize) -> usize {
    COMPUTE_STATUS + program * compute::STATUS_BYTES % (PROGRESS - COMPUTE_STATUS)
}

/// The status words, and what ran that wrote them.
pub(crate) struct Report<'a> {
    pub status: &'a Pinned,
    pub bound: &'a Bound,
    pub assertions: &'a Assertions,
    pub run: u64,
    /// The longest wait for a peer.
    pub limit: Duration,
}

impl Report<'_> {
    /// What failed, if something did. The streams are idle.
    pub fn failure(&self) -> Option<RunError> {
        let is_own = |program: u8| program == self.bound.program as u8;
        if let Some(missed) = collective::missed(self.status) {
            return is_own(missed.program).then(|| self.missed(missed));
        }
        if let Some(unfit) = collective::unfit(self.status).filter(|unfit| is_own(unfit.program)) {
            return Some(self.unfit(unfit.step, DataFault::Other, self.sizes(&unfit)));
        }
        // SAFETY: the words lie within the pinned memory, aligned; the streams are idle.
        let word = |i: usize| unsafe {
            self.status.as_ptr().add(compute_status(self.bound.program)).cast::<u64>().add(i).read_volatile()
        };
        let (step, error) = self.assertions.failure([word(0), word(1)])?;
        Some(self.unfit(step, error.data_fault().unwrap_or(DataFault::Other), error.to_string()))
    }

    /// A peer that did not come, as the host's ranks report it.
    fn missed(&self, missed: Missed) -> RunError {
        let (node, op) = self.name_of(missed.step);
        RunError::Limit {
            rank: self.bound.rank(),
            culprit: missed.peer,
            peers: vec![missed.peer],
            step: missed.step,
            node,
            op,
            run: self.run,
            limit_ms: self.limit.as_millis() as u64,
        }
    }

    /// What is wrong with sizes on the device, as the host's ranks say it.
    fn sizes(&self, unfit: &Unfit) -> String {
        let call = self.bound.steps.get(unfit.step).map(|s| &s.work);
        let (ranks, capacity) = match call {
            Some(Work::Collective(c)) => (c.cell.len(), c.elements.checked_div(c.row).unwrap_or(0)),
            _ => (unfit.sizes.len(), 0),
        };
        let does = match unfit.way {
            Flow::Sent => "sends",
            Flow::Received => "receives",
        };
        let sizes = &unfit.sizes[..ranks.min(unfit.sizes.len())];
        format!("rank {} {does} {sizes:?} rows: expected at most {capacity}", unfit.rank)
    }

    /// Data that a step does not take.
    fn unfit(&self, step: usize, fault: DataFault, detail: String) -> RunError {
        let (node, op) = self.name_of(step);
        RunError::Data { rank: self.bound.rank(), step, node, op, fault, detail }
    }

    fn name_of(&self, step: usize) -> (String, String) {
        let step = self.bound.steps.get(step);
        step.map_or_else(Default::default, |s| (s.node.clone(), s.op_name.to_string()))
    }
}
