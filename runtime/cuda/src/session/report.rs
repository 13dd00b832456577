//! Converts the reports of kernels in the status words to errors that name the step.

use std::time::Duration;

use symmc_runtime::call::{RowTableKind, RowTables};
use symmc_runtime::exec::{ResolvedProgram, StepWork};
use symmc_runtime::{DataFault, RunError};

use crate::codegen::collective::{self, InvalidRowEntry, InvalidSplits, MissedPeer, SplitDirection};
use crate::codegen::compute::{self, DeviceAssertions};
use crate::device::driver::PinnedBuffer;

/// The size of the status words in bytes: first those of collectives, then of compute kernels, then of
/// progress.
pub(crate) const STATUS: usize = 4096;
pub(crate) const COMPUTE_STATUS: usize = 2048;
pub(crate) const PROGRESS: usize = 3072;

/// The offset at which compute kernels of a session's program report. Programs of one session use separate
/// words, as long as there are enough.
pub(crate) fn compute_status_offset(program: usize) -> usize {
    COMPUTE_STATUS + program * compute::STATUS_BYTES % (PROGRESS - COMPUTE_STATUS)
}

/// The status words, and the program and run that wrote them.
pub(crate) struct StatusReport<'a> {
    pub status: &'a PinnedBuffer,
    pub bound: &'a ResolvedProgram,
    pub assertions: &'a DeviceAssertions,
    pub run: u64,
    /// The longest wait for a peer.
    pub limit: Duration,
}

impl StatusReport<'_> {
    /// The reported failure, if any. The streams are idle.
    pub fn failure(&self) -> Option<RunError> {
        let program = self.bound.program as u8;
        if let Some(missed) = collective::read_missed_peer(self.status) {
            return (missed.program == program).then(|| self.missed_peer_error(missed));
        }
        if let Some(unfit) =
            collective::read_invalid_splits(self.status).filter(|unfit| unfit.program == program)
        {
            return Some(self.data_error(unfit.step, DataFault::Other, self.describe_sizes(&unfit)));
        }
        if let Some(entry) =
            collective::read_invalid_row_entry(self.status).filter(|entry| entry.program == program)
        {
            return Some(self.data_error(entry.step, DataFault::Other, self.describe_row_entry(&entry)));
        }
        // SAFETY: the words lie within the pinned memory, aligned; the streams are idle.
        let words = [0, 1].map(|i| unsafe {
            self.status
                .as_ptr()
                .add(compute_status_offset(self.bound.program))
                .cast::<u64>()
                .add(i)
                .read_volatile()
        });
        let (step, error) = self.assertions.failed_assertion(words)?;
        let fault = error.data_fault().unwrap_or(DataFault::Other);
        let rank = error.source_rank().unwrap_or(self.bound.rank());
        Some(self.data_error_of(rank, step, fault, error.to_string()))
    }

    /// The error for a peer that did not arrive, in the same form as on host ranks.
    fn missed_peer_error(&self, missed: MissedPeer) -> RunError {
        let (node, op) = self.node_and_op(missed.step);
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

    /// Describes invalid sizes on the device, in the same form as on host ranks.
    fn describe_sizes(&self, unfit: &InvalidSplits) -> String {
        let call = self.bound.steps.get(unfit.step).map(|s| &s.work);
        let (ranks, capacity) = match call {
            Some(StepWork::Collective(c)) => {
                (c.cell.len(), c.elements.checked_div(c.row_elements).unwrap_or(0))
            }
            _ => (unfit.sizes.len(), 0),
        };
        let does = match unfit.direction {
            SplitDirection::Sent => "sends",
            SplitDirection::Received => "receives",
        };
        let sizes = &unfit.sizes[..ranks.min(unfit.sizes.len())];
        format!("rank {} {does} {sizes:?} rows: expected at most {capacity}", unfit.rank)
    }

    /// Describes an entry of a table of rows that is out of range, in the same form as on host ranks.
    fn describe_row_entry(&self, found: &InvalidRowEntry) -> String {
        let call = self.bound.steps.get(found.step).map(|s| &s.work);
        let (role, limit) = match call {
            Some(StepWork::Collective(c)) => {
                let limit = |of_rank: usize| c.cell.len() * of_rank;
                match &c.rows {
                    Some(RowTables { tables: RowTableKind::Dispatch { .. }, tokens, slots, .. }) => {
                        ("slot", limit(tokens * slots))
                    }
                    Some(tables) => ("row", limit(tables.capacity)),
                    None => ("row", 0),
                }
            }
            _ => ("row", 0),
        };
        let InvalidRowEntry { entry, position, .. } = found;
        format!("the {role} {entry} at position {position} is out of range: expected less than {limit}")
    }

    /// The error for data that a step rejects.
    fn data_error(&self, step: usize, fault: DataFault, detail: String) -> RunError {
        self.data_error_of(self.bound.rank(), step, fault, detail)
    }

    /// The error for data that this rank passed and a step rejects.
    fn data_error_of(&self, rank: u32, step: usize, fault: DataFault, detail: String) -> RunError {
        let (node, op) = self.node_and_op(step);
        RunError::Data { rank, step, node, op, fault, detail }
    }

    fn node_and_op(&self, step: usize) -> (String, String) {
        let step = self.bound.steps.get(step);
        step.map_or_else(Default::default, |s| (s.node.clone(), s.op_name.to_string()))
    }
}
