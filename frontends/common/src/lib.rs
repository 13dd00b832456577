//! What the readers of tensor programs share, whatever the format.
//!
//! A reader walks over the nodes of a program and looks up the rule of each in its tables. What it reads, and what a
//! rule asks of a node, is the reader's own; what rules emit, and what symbols and their expressions are, is here.

pub mod declared;
pub mod einsum;
pub mod emit;
pub mod fuzz;
pub mod ranges;
pub mod requirement;
pub mod rule;
pub mod sizes;
pub mod sympy;

pub use emit::Emit;
pub use rule::{OpRule, OpaqueOps, RuleCall, RuleFailure, RuleResult, RuleRow, RuleTables};
