//! What the planner refuses.

use thiserror::Error;

use symmc_pack::PackError;

/// The result of what fails with a [`PlanError`], or with another error where one is named.
pub type Result<T, E = PlanError> = std::result::Result<T, E>;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum PlanError {
    #[error("{program}: the number of ranks is open; a plan needs it")]
    OpenRanks { program: String },
    #[error("a plan needs at least one bucket")]
    NoBucket,
    #[error("bucket {bucket}: the lowered program has {found} {what}, the imported one {expected}")]
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
        /// Values that both serve.
        example: String,
    },
    #[error("%{node}: {op} has no variant; lower the program first")]
    NoVariant { node: String, op: &'static str },
    #[error("%{node}: the variant {variant} cannot run {op}")]
    WrongVariant { node: String, op: &'static str, variant: &'static str },
    /// A contract that the planner has no rule for.
    #[error(
        "%{node}: {op} via {variant} writes the results of peers that have not arrived; no rule plans that"
    )]
    EntrylessPush { node: String, op: &'static str, variant: &'static str },
    #[error(
        "%{value}: its size at the upper bound of its symbols is {bytes} bytes; at most 2^52 can be planned"
    )]
    TooLarge {
        value: String,
        /// The upper bound of its size, possibly saturated.
        bytes: i64,
    },
    #[error(
        "%{node}: a landing zone for {bytes} bytes from each of {ranks} ranks is too large; at most 2^52 fit"
    )]
    LandingTooLarge { node: String, bytes: u64, ranks: u64 },
    #[error("landing zones and bound inputs take {bytes} bytes; at most 2^52 can be planned")]
    FixedTooLarge {
        /// The sum of their sizes.
        bytes: u64,
    },
    #[error("the {arena} arena takes {bytes} bytes; at most 2^52 can be planned")]
    ArenaTooLarge {
        /// `ordinary` or `symmetric`.
        arena: &'static str,
        bytes: u64,
    },
    #[error("packing the {arena} arena: {error}")]
    Pack {
        /// `ordinary` or `symmetric`.
        arena: &'static str,
        #[source]
        error: PackError,
    },
}
