//! What ends a run early.
//!
//! Every error names the thing that is wrong: the step and node of a kernel, the input of a bad argument,
//! the rank that failed. A run that ended with an error leaves the arenas in no particular state.

use thiserror::Error;

/// What ends a run early.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The plan does not describe a run: something that the check would have refused, or a value that the
    /// runtime cannot resolve.
    #[error("the plan cannot run: {0}")]
    Plan(String),
    /// No bucket of the plan serves these values of the symbols.
    #[error("no bucket of the plan serves {0}")]
    Symbols(String),
    /// The caller's memory of an input or output does not fit.
    #[error("{what} {name}: {message}")]
    Memory {
        /// `input` or `output`.
        what: &'static str,
        /// The name of the value.
        name: String,
        /// What was found and what was expected.
        message: String,
    },
    /// The program holds an op that has no kernel.
    #[error("%{node}: there is no kernel for {op}")]
    NoKernel {
        /// The name of the node.
        node: String,
        /// The name of the op.
        op: String,
    },
    /// A kernel refused its operands.
    #[error("rank {rank}, step {step}, %{node}: {message}")]
    Kernel {
        /// The index of the step.
        step: usize,
        /// The name of the node.
        node: String,
        /// The rank that ran it.
        rank: u32,
        /// What was found and what was expected.
        message: String,
    },
    /// Another rank ended the run.
    #[error("rank {rank} ended the run: {message}")]
    Peer {
        /// The rank that ended it.
        rank: u32,
        /// Its reason.
        message: String,
    },
    /// The run was ended from outside, or by another lane of this rank.
    #[error("the run was ended: {0}")]
    Aborted(String),
}
