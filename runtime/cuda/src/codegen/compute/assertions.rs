//! Device-side assertions: places in a program where data can be out of range.
//!
//! A kernel that finds such data writes the number of a [`DeviceAssertion`] to the status word and continues.
//! Unlike CUDA's own assertions, this leaves the context intact. [`DeviceAssertions::failed_assertion`]
//! converts the number to the error that the host's kernels return.

use symmc_runtime::kernels::KernelError;

/// A device-side assertion: a place in the program where data can be out of range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceAssertion {
    pub step: usize,
    pub fault: AssertedFault,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AssertedFault {
    Index(IndexedAxis),
    /// The end of a group that is less than the previous end, or greater than this number of rows.
    GroupEnd {
        rows: usize,
    },
    Divisor,
}

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
        let assertion = self.assertions.get((status[1] as usize).checked_sub(1)?)?;
        let found = status[0] as i64;
        let error = match assertion.fault {
            AssertedFault::Index(IndexedAxis { axis, extent }) => {
                KernelError::Index { index: found, axis, extent }
            }
            AssertedFault::GroupEnd { rows } => KernelError::GroupEnd { end: found, rows },
            AssertedFault::Divisor => KernelError::ZeroDivisor,
        };
        Some((assertion.step, error))
    }
}
