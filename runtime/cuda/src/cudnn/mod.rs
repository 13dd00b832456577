//! Fused attention by cuDNN.
//!
//! ```text
//! Attention (data) ──Planner──► Plan (a graph of the library's, made once for a shape) ──at──► Prepared (addresses)
//! ```
//!
//! A [`PreparedAttention`] attention only enqueues, so that it can be recorded into a graph of launches.
//!
//! Deliberately not here: when the library is taken (`compute::choice`), and what it does not promise: that
//! values which are not finite and not seen add nothing (`compute::fused` amends that).

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
