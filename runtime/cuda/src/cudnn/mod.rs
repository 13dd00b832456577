//! Fused attention by cuDNN.
//!
//! ```text
//! CudnnAttention (data) ──AttentionPlanner──► AttentionPlan (once per shape) ──addresses──► PreparedAttention
//! ```
//!
//! A [`PreparedAttention`] only enqueues work, so that it can be recorded into a graph.
//!
//! Deliberately not here: the choice of the library (`compute::attention_choice`), and the correction of
//! values that are not finite and hidden, which the library does not exclude from sums
//! (`compute::library_attention`).

pub mod attention;
mod builder;
mod descriptor;
mod gradient;
mod graph;
mod library;

pub use self::attention::{AttentionBias, AttentionGradient, AttentionTensor, CudnnAttention, VisibleBand};
pub use self::graph::{AttentionPlanner, PreparedAttention};
pub use self::library::{PATH_VARIABLE, version};
pub(crate) use self::library::{expected, library};
