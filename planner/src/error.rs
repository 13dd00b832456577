//! What the planner refuses.

use thiserror::Error;

use symmc_pack::PackError;

/// A program that cannot be planned.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum PlanError {
    /// The number of ranks is open.
    #[error("{program}: the number of ranks is open; a plan needs it")]
    OpenRanks {
        /// The name of the program.
        program: String,
    },
    /// There is nothing to plan.
    #[error("a plan needs at least one bucket")]
    NoBucket,
    /// A lowered program does not stand for the imported one.
    #[error("bucket {bucket}: the lowered program has {found} {what}, the imported one {expected}")]
    Mismatch {
        /// The index of the bucket.
        bucket: usize,
        /// `inputs`, `outputs`, `symbols`, `groups` or `ranks`.
        what: &'static str,
        /// What the imported program has.
        expected: usize,
        /// What the lowered program has.
        found: usize,
    },
    /// Two buckets serve the same values of the symbols.
    #[error("buckets {first} and {second} overlap: both serve {example}")]
    Overlap {
        /// The index of one.
        first: usize,
        /// The index of the other.
        second: usize,
        /// Values that both serve.
        example: String,
    },
    /// A collective has no variant.
    #[error("%{node}: {op} has no variant; lower the program first")]
    NoVariant {
        /// The node.
        node: String,
        /// The collective.
        op: &'static str,
    },
    /// A variant cannot run a collective.
    #[error("%{node}: the variant {variant} cannot run {op}")]
    WrongVariant {
        /// The node.
        node: String,
        /// The collective.
        op: &'static str,
        /// The variant.
        variant: &'static str,
    },
    /// A contract that the planner has no rule for.
    #[error(
        "%{node}: {op} via {variant} writes the results of peers that have not arrived; no rule plans that"
    )]
    EntrylessPush {
        /// The node.
        node: String,
        /// The collective.
        op: &'static str,
        /// The variant.
        variant: &'static str,
    },
    /// A value has no size that memory can hold.
    #[error(
        "%{value}: its size at the upper bound of its symbols is {bytes} bytes; at most 2^52 can be planned"
    )]
    TooLarge {
        /// The value.
        value: String,
        /// The upper bound of its size, possibly saturated.
        bytes: i64,
    },
    /// A landing zone has no size that memory can hold.
    #[error(
        "%{node}: a landing zone for {bytes} bytes from each of {ranks} ranks is too large; at most 2^52 fit"
    )]
    LandingTooLarge {
        /// The collective that needs it.
        node: String,
        /// The upper bound of the size of its operand.
        bytes: u64,
        /// The ranks of its group.
        ranks: u64,
    },
    /// Landing zones and bound inputs together are too large.
    #[error("landing zones and bound inputs take {bytes} bytes; at most 2^52 can be planned")]
    FixedTooLarge {
        /// The sum of their sizes.
        bytes: u64,
    },
    /// An arena has no size that memory can hold.
    #[error("the {arena} arena takes {bytes} bytes; at most 2^52 can be planned")]
    ArenaTooLarge {
        /// `ordinary` or `symmetric`.
        arena: &'static str,
        /// What the bucket that needs most of it takes.
        bytes: u64,
    },
    /// Memory could not be packed.
    #[error("packing the {arena} arena: {error}")]
    Pack {
        /// `ordinary` or `symmetric`.
        arena: &'static str,
        /// Why.
        #[source]
        error: PackError,
    },
}
