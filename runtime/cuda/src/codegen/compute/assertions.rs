//! Device-side assertions: places in a program where data can be out of range.
//!
//! A kernel that meets such data writes the number of an [`Assertion`] to the status word and goes on: unlike CUDA's
//! own, it leaves the context as it is. [`Assertions::failure`] turns the number into the error of the host's kernels.

use symmc_runtime::kernels::KernelError;

/// A device-side assertion: a place in the program where data can be out of range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assertion {
    pub step: usize,
    pub fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Index(Indexed),
    /// End a group before the one in front of it, or beyond so many rows.
    GroupEnd {
        rows: usize,
    },
    Divisor,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Indexed {
    pub axis: usize,
    pub extent: usize,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Assertions {
    list: Vec<Assertion>,
}

impl Assertions {
    pub fn new() -> Assertions {
        Assertions::default()
    }

    pub(super) fn add(&mut self, assertion: Assertion) -> u32 {
        // 0 in the status word means that nothing was reported.
        self.list.push(assertion);
        self.list.len() as u32
    }

    pub fn failure(&self, status: [u64; 2]) -> Option<(usize, KernelError)> {
        let assertion = self.list.get((status[1] as usize).checked_sub(1)?)?;
        let found = status[0] as i64;
        let error = match assertion.fault {
            Fault::Index(Indexed { axis, extent }) => KernelError::Index { index: found, axis, extent },
            Fault::GroupEnd { rows } => KernelError::GroupEnd { end: found, rows },
            Fault::Divisor => KernelError::ZeroDivisor,
        };
        Some((assertion.step, error))
    }
}
