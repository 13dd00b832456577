//! Passes of symmc: from a graph to an equal graph.
//!
//! [`canonicalize`] brings a program into the one form that later stages expect and recognises composite
//! ops. [`lower()`] chooses how each collective runs. Every pass is a function from graph to graph with a
//! config and a report. It keeps the inputs and outputs, in number and order. The verifier runs before the
//! first pass and, in debug builds, after each.
//!
//! Deliberately not here: order, placement and memory, which the planner decides.

pub mod canon;
pub mod error;
pub mod lower;
pub mod rewrite;

pub use canon::{CanonicalForms, canonical_forms, canonicalize};
pub use error::PassError;
pub use lower::{
    CoalesceConfig, CoalesceReach, CoalescedSet, JoinMode, LowerConfig, SolutionCache, find_coalescible,
    lower,
};
pub use rewrite::{CollectiveChange, ReplacedCollective, RewriteReport, collective_changes};
