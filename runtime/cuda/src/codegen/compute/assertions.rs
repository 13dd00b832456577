//! Device-side assertions: places in a program where data can be out of range.
//!
//! A kernel that finds such data writes the number of a [`DeviceAssertion`] to the status word and continues.
//! Unlike CUDA's own assertions, this leaves the context intact. [`DeviceAssertions::failed_assertion`]
//! converts the number to the error that the host's kernels return.

use std::sync::Arc;

use symmc_runtime::kernels::KernelError;

/// A device-side assertion: a place in the program where data can be out of range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceAssertion {
    pub step: usize,
    pub fault: AssertedFault,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AssertedFault {
    Index(IndexedAxis),
    /// The end of a group that is less than the previous end, or greater than this number of rows.
    GroupEnd {
        rows: usize,
    },
    Divisor,
    /// An id that is neither that of one of so many experts nor -1. The detail of the report is the place in
    /// this cell of the rank that passed it.
    ExpertId {
        experts: usize,
        cell: Arc<[u32]>,
    },
    /// A rank receives more rows than this. The report holds the rank above `REPORTED_ROW_BITS` bits of the
    /// number of rows.
    Capacity {
        capacity: usize,
    },
    /// As `Capacity`, for an expert.
    ExpertCapacity {
        capacity: usize,
    },
}

/// As `kernels/route.cuh` declares it.
const REPORTED_ROW_BITS: u32 = 40;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexedAxis {
    pub axis: usize,
    pub extent: usize,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeviceAssertions {
    assertions: Vec<DeviceAssertion>,
}

impl DeviceAssertions {
    pub fn new() -> DeviceAssertions {
        DeviceAssertions::default()
    }

    pub(super) fn add(&mut self, assertion: DeviceAssertion) -> u32 {
        // 0 in the status word means that nothing was reported.
        self.assertions.push(assertion);
        self.assertions.len() as u32
    }

    pub fn failed_assertion(&self, status: [u64; 2]) -> Option<(usize, KernelError)> {
        // The number of the assertion is the low half of its word, a detail the high half.
        let [number, detail] = [status[1] as u32, (status[1] >> 32) as u32].map(|half| half as usize);
        let assertion = self.assertions.get(number.checked_sub(1)?)?;
        let value = status[0] as i64;
        let error = match assertion.fault {
            AssertedFault::Index(IndexedAxis { axis, extent }) => {
                KernelError::Index { index: value, axis, extent }
            }
            AssertedFault::GroupEnd { rows } => KernelError::GroupEnd { end: value, rows },
            AssertedFault::Divisor => KernelError::ZeroDivisor,
            AssertedFault::ExpertId { experts, ref cell } => {
                KernelError::ExpertId { rank: cell.get(detail).copied(), id: value, experts }
            }
            AssertedFault::Capacity { capacity } => {
                let [rank, rows] = reported_rows(status[0]);
                KernelError::Capacity { rank, rows, capacity }
            }
            AssertedFault::ExpertCapacity { capacity } => {
                let [expert, rows] = reported_rows(status[0]);
                KernelError::ExpertCapacity { expert, rows, capacity }
            }
        };
        Some((assertion.step, error))
    }
}

/// The rank or the expert of a report, and its number of rows.
fn reported_rows(word: u64) -> [usize; 2] {
    [word >> REPORTED_ROW_BITS, word & ((1 << REPORTED_ROW_BITS) - 1)].map(|n| n as usize)
}
