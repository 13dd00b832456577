//! The wire form of a plan.
//!
//! A plan is versioned JSON. It contains the text of the imported program and of each planned program, so that
//! no other description is needed. Unknown versions and fields are rejected, with their names. Offsets within
//! buffers are dims in text form (docs/symm.md), in bytes. All other numbers are bytes or indices.
//!
//! # Planned programs
//! - Its inputs and outputs are those of the imported program, in the same order.
//! - Every collective has its variant. Every copy is a `copy` node.
//! - Every value is a *base* (`symmc_ir::layout`) with a [`ValuePlacement`], a view of a base, or internal to a
//!   dispatch (`symmc_ir::dispatch`). Bases are stored contiguously.
//! - Output `k` is a base at [`MemoryRef::Output`]`(k)`, and no two outputs are the same value.
//! - Every node that is not a view is exactly one [`Step`], or belongs to a dispatch that is one. Such a step
//!   names the first node of its dispatch. (The planner writes nodes in the order of the steps; nothing relies
//!   on that.)
//!
//! An input that an output replaces may lie at [`MemoryRef::Output`] of that output. The two then share one
//! memory. The caller writes its content before the run, and the run replaces it. No step reads the input after
//! a step has written there.
//!
//! # Values that share bytes
//! docs/plan-spec.md defines the rules for plans. In short, several values may have one place, or one value may
//! lie within another, in the cases below. Results of dispatches follow the rules of their forms. An operand of
//! an all-gather or a `concat` keeps its bytes and may be read later. Any other operand that shares bytes with
//! the result is read for the last time by the node that writes the result.
//! - The result of `unary`, `binary`, `binary_scalar`, `select`, `cast` or `copy` lies on an operand of the
//!   same shape and element size that is stored contiguously. Every operand of the node that overlaps the
//!   result has exactly the result's bytes. A `copy` then moves nothing.
//! - The result of `softmax`, `rms_norm`, `layer_norm`, `cumsum`, `rotary_embedding`, `scatter_elements`,
//!   `index_add` or `index_put` lies on its first operand in the same way, and no other operand overlaps it.
//!   The scatters then move only the elements that they store.
//! - The operand of an all-gather lies at its rank's piece of the result (`by_rank`). The result of a
//!   reduce-scatter lies at its rank's piece of the operand. The result of an all-reduce or a broadcast lies on
//!   its operand. Each of these requires `in_place` in the contract of the variant.
//! - An operand of `concat` lies at its own piece of the result, if the pieces are contiguous there. The node
//!   then moves nothing for it.
//!
//! # Lifetimes
//! A buffer's lifetime counts steps in the order of the list. `first` is the first step that writes the buffer.
//! `last` is the last step up to and including which no other value may be written there. It covers all steps
//! that access the buffer, steps that run while a collective that accesses it may still be in flight, and the
//! cross-rank rules. It does not cover the order between lanes: if bytes pass from one lane to the other,
//! `waits` make the later writer follow the earlier accesses.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use symmc_ir::numerics::Numerics;
use thiserror::Error;

mod decision;
mod entries;
mod unique_keys;

pub use decision::{AppliedRule, CollectiveReplacement, Decision, DecisionAlternative};
pub use entries::{
    ArenaKind, BucketTotals, Buffer, CopyReason, ForcedCopy, Lane, MemoryRef, PeerReach, PerRankOffset, Step,
    ValuePlacement,
};
pub use symmc_ir::collective::ExitBarrier;

/// The version of the artifact that this crate reads and writes.
pub const VERSION: u32 = 3;

/// The alignment of buffers and fixed memory, in bytes.
pub const ALIGN: u64 = 64;

/// The alignment of memory that peers access, in bytes.
pub const PEER_ALIGN: i64 = 16;

/// The sizes of the arenas are multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// The maximum size of a value or an arena, in bytes.
pub const MAX_SIZE: u64 = 1 << 52;

/// A plan for all ranks and all buckets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    pub source: SourceProgram,
    /// The name of the machine profile that the planner used.
    pub machine: String,
    pub ranks: u32,
    /// The numerics classes that the planned programs use, or may use: `["reassociate", "narrow"]`. Absent if
    /// the plan is exact, as in all plans that predate the classes. Safety does not depend on it. It says how
    /// far results may differ from those of the source ([`Numerics`]).
    #[serde(default, skip_serializing_if = "Numerics::is_exact")]
    pub numerics: Numerics,
    /// The text of each planned program. A bucket refers to one by its index.
    pub programs: Vec<String>,
    /// The collectives of the source that were replaced before the choice of variants. For people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replacements: Vec<CollectiveReplacement>,
    /// The sizes of the two arenas, the same on every rank and for every bucket.
    pub arenas: ArenaSizes,
    /// Memory of the symmetric arena that has the same place in all buckets.
    pub fixed: Vec<FixedRegion>,
    /// One schedule for each range of the symbols; their ranges are disjoint.
    pub buckets: Vec<Bucket>,
}

impl Plan {
    /// The index of the bucket that serves these sizes: the value of each symbol, by name.
    pub fn find_bucket(&self, sizes: &IndexMap<String, i64>) -> Result<usize, UnservedSizes> {
        let bucket = self.buckets.iter().position(|b| {
            b.symbols.iter().all(|(s, &[low, high])| sizes.get(s).is_some_and(|v| (low..=high).contains(v)))
        });
        bucket.ok_or_else(|| {
            let sizes = sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
            UnservedSizes { sizes, served: self.buckets.iter().map(Bucket::describe_range).collect() }
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "no bucket of the plan serves {}; its buckets serve {}",
    join_or_nothing(sizes),
    join_or_nothing(served)
)]
pub struct UnservedSizes {
    /// The value of each symbol: `tokens=65`.
    pub sizes: Vec<String>,
    /// The sizes that each bucket serves, as [`Bucket::describe_range`] shows them.
    pub served: Vec<String>,
}

fn join_or_nothing(items: &[String]) -> String {
    if items.is_empty() { "nothing".into() } else { items.join("; ") }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceProgram {
    pub name: String,
    /// SHA-256 of `text`, in hexadecimal.
    pub hash: String,
    pub text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArenaSizes {
    /// Bytes of the ordinary arena, private to each rank.
    pub ordinary: u64,
    /// Bytes of the symmetric arena, which peers access.
    pub symmetric: u64,
}

/// Memory of the symmetric arena that has the same place in all buckets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedRegion {
    pub role: FixedRole,
    pub offset: u64,
    pub size: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FixedRole {
    /// Landing zone `zone` (0 or 1) for all `ll` collectives of a group. The zones alternate by epoch.
    Landing {
        group: String,
        /// 0 or 1.
        zone: u32,
    },
    /// An input that the caller writes here: a parameter once, an argument before each run.
    Bound { input: usize },
}

/// The schedule for one range of the symbols.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The inclusive range of each symbol; sizes and lifetimes hold for all of it.
    #[serde(deserialize_with = "unique_keys::deserialize_unique_keys")]
    pub symbols: IndexMap<String, [i64; 2]>,
    /// The index of the planned program.
    pub program: usize,
    /// Memory of this bucket. Two buffers may overlap if their lifetimes do not.
    pub buffers: Vec<Buffer>,
    /// The place of each base value, by name.
    #[serde(deserialize_with = "unique_keys::deserialize_unique_keys")]
    pub places: IndexMap<String, ValuePlacement>,
    /// The steps, in an order that is consistent with their lanes and waits.
    pub steps: Vec<Step>,
    /// The choices for the collectives, in order of the steps.
    pub decisions: Vec<Decision>,
    /// The copies that placement forced, in order of the steps. A `copy` whose result lies on its operand moves
    /// nothing and is not listed.
    pub copies: Vec<ForcedCopy>,
    pub totals: BucketTotals,
}

impl Bucket {
    /// The sizes that the bucket serves, for people: `batch=1, tokens=2..=8`.
    pub fn describe_range(&self) -> String {
        let symbols = self.symbols.iter().map(|(name, &[low, high])| {
            if low == high { format!("{name}={low}") } else { format!("{name}={low}..={high}") }
        });
        let symbols: Vec<String> = symbols.collect();
        if symbols.is_empty() { "all sizes fixed".into() } else { symbols.join(", ") }
    }
}
