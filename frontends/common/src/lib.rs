//! The parts that importers of tensor programs share, whatever the file format.
//!
//! An importer visits the nodes of a program and looks up the rule of each op in its tables. File formats and
//! access to a node's operands belong to each importer. This crate has the emission of graph nodes, and the
//! symbols of a program with their expressions.

pub mod assumed_sizes;
pub mod branches;
pub mod compositions;
pub mod convolution;
pub mod counting;
pub mod declared;
pub mod einsum;
pub mod emit;
pub mod failure;
pub mod formula;
pub mod functions;
pub mod fuzz;
pub mod grid_sampling;
mod guards;
pub mod normalize;
pub mod padding;
pub mod pooling;
pub mod ranges;
pub mod recurrent;
pub mod requirement;
pub mod resampling;
pub mod rule;
pub mod scan;
pub mod sizes;
pub mod sympy;
pub mod windows;

pub use compositions::Compositions;
pub use emit::Emit;
pub use failure::{RuleFailure, RuleResult};
pub use formula::{EmitFormulas, Term};
pub use rule::{OpRule, RuleCall, RuleRow, RuleTables, UnsupportedOps, has_word};
