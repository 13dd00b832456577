//! Cases of every op, which the backends' tests share: random ones by theme ([`THEMES`]), and a fixed list with
//! expected results ([`corpus`]), and every op on values at the edges of its dtypes ([`special`], held by [`alike`]).
//!
//! The expected results are the interpreter's, those of large cases the CPU kernels'. How tensors lie in memory
//! is part of a case; how a backend gets them there is its own. [`HostLibrary`] runs a device's kernels without one.
//! [`programs`] are random ones, of many ops and ranks.
//! Frontends compare their ops with other implementations by [`every_line`] and [`near`].

mod compare;
mod large;
mod layout;
mod library;
mod lines;
mod ops;
pub mod programs;
mod random;
mod small;
mod special;

use symmc_ir::{Op, Tensor};
use symmc_runtime::kernels::KernelError;

pub use self::compare::{agree, alike};
pub use self::layout::{Layout, Placed};
pub use self::library::HostLibrary;
pub use self::lines::{every_line, near};
pub use self::ops::{Draft, THEMES, Theme};
pub use self::special::special;

/// One op with operands and what it must give.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is.
    pub name: String,
    /// The op.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Placed>,
    /// Its results, or the error that its data cause.
    pub expected: Result<Vec<Placed>, KernelError>,
    /// The size of values that results are sums of; none where each number is held relative to itself ([`alike`]).
    pub scale: Option<f64>,
}

impl Case {
    /// Holds a result against the expected one.
    ///
    /// # Errors
    /// A sentence that says where they differ.
    pub fn agrees(&self, found: &Tensor, expected: &Tensor) -> Result<(), String> {
        match self.scale {
            Some(scale) => agree(found, expected, scale),
            None => alike(&self.op, found, expected),
        }
    }

    /// Its results, without contents if it must fail.
    pub fn rooms(&self) -> Vec<Placed> {
        self.expected.clone().unwrap_or_else(|_| {
            let operands: Vec<Tensor> = self.operands.iter().map(|p| p.tensor.clone()).collect();
            let types = Draft::new(self.op.clone(), operands).types();
            let zeros = |(dtype, shape): (_, Vec<usize>)| Tensor::zeros(dtype, shape);
            types.into_iter().map(|t| Placed::dense(random::of(zeros(t)))).collect()
        })
    }
}

/// All cases with expected results; equal ones each time.
pub fn corpus() -> Vec<Case> {
    let mut out = small::list();
    out.extend(large::list());
    out
}
