//! Cases of every op, which the backends' tests share: random ones by theme ([`OP_THEMES`]), and a fixed list with
//! expected results ([`corpus`]), and every op on values at the edges of its dtypes ([`special`], held by [`alike`]).
//!
//! The expected results are the interpreter's, those of large cases the CPU kernels'. How tensors lie in memory
//! is part of a case; how a backend gets them there is its own. [`HostLibrary`] runs a device's kernels without one.
//! [`KernelLibrary`] runs those that are generated. [`programs`] are random ones, of many ops and ranks, [`bounds`] such that
//! index dynamic axes, and [`distributed`] such that are as large as layers of models.
//! Frontends compare their ops with other implementations by [`every_line`] and [`near`]. Tests that a machine cannot run call
//! [`skip_test`] or [`skip_test_outside_ci`].

pub mod bounds;
mod case;
mod compare;
pub mod distributed;
pub mod idioms;
mod kernels;
mod large;
mod layout;
mod library;
mod lines;
mod ops;
pub mod programs;
mod random;
mod skip;
mod small;
mod special;
mod stores;
mod strided;

pub use self::case::OpCase;
pub use self::compare::{agree, alike};
pub use self::kernels::KernelLibrary;
pub use self::layout::{ElementLayout, PlacedTensor};
pub use self::library::HostLibrary;
pub use self::lines::{every_line, near};
pub use self::ops::{OP_THEMES, OpDraft, Theme};
pub use self::skip::{skip_test, skip_test_outside_ci};
pub use self::special::special;

/// All cases with expected results; equal ones each time.
pub fn corpus() -> Vec<OpCase> {
    let mut out = small::list();
    out.extend(large::list());
    out.extend(stores::list());
    out.extend(strided::list());
    out
}
