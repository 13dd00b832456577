//! The reasons for which the planner rejects a program.

use thiserror::Error;

use symmc_pack::PackError;

/// A result whose error is a [`PlanError`] unless another type is given.
pub type Result<T, E = PlanError> = std::result::Result<T, E>;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum PlanError {
    #[error("{program}: the number of ranks is open, expected a fixed number")]
    OpenRanks { program: String },
    #[error("the plan has no bucket, expected at least one")]
    NoBucket,
    #[error("bucket {bucket}: the lowered program has {found} {what}, expected {expected} as in the source")]
    Mismatch {
        bucket: usize,
        /// `inputs`, `outputs`, `symbols`, `groups` or `ranks`.
        what: &'static str,
        expected: usize,
        found: usize,
    },
    #[error("buckets {first} and {second} overlap: both serve {example}")]
    Overlap {
        first: usize,
        second: usize,
        /// Symbol values that both buckets serve.
        example: String,
    },
    #[error("%{node}: {op} has no variant; lower the program first")]
    NoVariant { node: String, op: &'static str },
    #[error("%{node}: the variant {variant} does not support {op}")]
    WrongVariant { node: String, op: &'static str, variant: &'static str },
    /// The contract of the variant is one for which the planner has no rule.
    #[error(
        "%{node}: {op} via {variant} writes results of peers that may not have arrived, which the planner does not support"
    )]
    EntrylessPush { node: String, op: &'static str, variant: &'static str },
    #[error(
        "%{value}: the size at the upper bounds of the symbols is {bytes} bytes, expected at most 2^52 bytes"
    )]
    TooLarge {
        value: String,
        /// The upper bound of its size, possibly saturated.
        bytes: i64,
    },
    #[error(
        "%{node}: a landing zone for {bytes} bytes from each of {ranks} ranks is too large, expected at most 2^52 bytes"
    )]
    LandingTooLarge { node: String, bytes: u64, ranks: u64 },
    #[error("landing zones and bound inputs take {bytes} bytes, expected at most 2^52 bytes")]
    FixedTooLarge {
        /// The sum of the sizes of all landing zones and bound inputs.
        bytes: u64,
    },
    #[error("the {arena} arena takes {bytes} bytes, expected at most 2^52 bytes")]
    ArenaTooLarge {
        /// `ordinary` or `symmetric`.
        arena: &'static str,
        bytes: u64,
    },
    #[error("cannot pack the {arena} arena: {error}")]
    Pack {
        /// `ordinary` or `symmetric`.
        arena: &'static str,
        #[source]
        error: PackError,
    },
}
