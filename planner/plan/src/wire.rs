//! The plan as it is written.
//!
//! A plan is versioned JSON. It carries the text of the program that was imported and of each lowered
//! program that it schedules, so that no other description is needed. Unknown versions and fields are
//! refused by name. Offsets within buffers are dims in text form (docs/symm.md), in bytes; all other
//! numbers are bytes or indices.
//!
//! # What a planned program looks like
//! - Its inputs and outputs are those of the imported program, in the same order.
//! - Every collective carries its variant. Every copy is a `copy` node.
//! - Every value is a *base* (see `symmc_ir::layout`) with a [`Place`], a view of one, or inner to a dispatch
//!   (`symmc_ir::dispatch`). Bases are stored contiguously.
//! - Output `k` is a base at [`Memory::Output`]`(k)`, and no two outputs are the same value.
//! - Every node but the views is exactly one [`Step`], or belongs to a dispatch that is one; a step names the first node of its
//!   dispatch. (The planner writes nodes in the order of the steps; nothing rests on that.)
//!
//! An input that an output replaces may lie at [`Memory::Output`] of that output: the two are then one memory, whose
//! content the caller gives before the run and finds replaced after it. Nothing reads the input once a step has
//! written there.
//!
//! # Values that share bytes
//! ARCHITECTURE.md defines what a plan must satisfy. In short, several values may have one place, or one may lie within another,
//! in these cases; results of dispatches go by the rules of their forms. An operand that keeps its bytes, of
//! an all-gather or a `concat`, may be read later; the others are read for the last time by the node that writes the
//! result.
//! - The result of `unary`, `binary`, `binary_scalar`, `select`, `cast` or `copy` lies on an operand of the
//!   same shape and element size that is stored contiguously. Every operand of the node that has bytes in
//!   common with the result has exactly the result's. A `copy` then moves nothing.
//! - The result of `softmax`, `rms_norm`, `layer_norm`, `cumsum`, `rotary_embedding`, `scatter_elements`, `index_add` or
//!   `index_put` lies on its first operand likewise; no other operand has bytes in common with it. The scatters then move
//!   nothing but what they store.
//! - The operand of an all-gather lies at its rank's piece of the result (`by_rank`), the result of a reduce-scatter at its
//!   rank's piece of the operand, and the result of an all-reduce or a broadcast on its operand, where the contract of the
//!   variant says `in_place`.
//! - An operand of `concat` lies at its own piece of the result, when the pieces are contiguous there. The
//!   node then moves nothing for it.
//!
//! # Lifetimes
//! A buffer's lifetime counts steps in the order of the list: `first` is the first step that writes it.
//! `last` is the last step before which, and during which, no other value may be written there: it covers
//! all steps that touch the buffer, steps that run while a collective that touches it may still be in
//! flight, and the cross-rank rules. What it leaves open is the order between lanes: where bytes pass from
//! one lane to the other, `waits` make the later writer follow the earlier accesses.

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
pub const VERSION: u32 = 2;

/// Buffers and fixed memory start at multiples of this many bytes.
pub const ALIGN: u64 = 64;

/// What peers touch starts at multiples of this many bytes.
pub const PEER_ALIGN: i64 = 16;

/// The sizes of the arenas are multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// The most bytes that a value, or an arena, can have.
pub const MAX_SIZE: u64 = 1 << 52;

/// A plan for all ranks and all buckets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    pub source: SourceProgram,
    /// The name of the machine profile that the choices were made with.
    pub machine: String,
    pub ranks: u32,
    /// The numerics classes that the planned programs make use of, or may: `["reassociate", "narrow"]`. Absent where the
    /// plan is exact, as in all plans from before there were classes. Nothing of safety rests on it; it says how far
    /// results may differ from those of the source ([`Numerics`]).
    #[serde(default, skip_serializing_if = "Numerics::is_exact")]
    pub numerics: Numerics,
    /// The text of each planned program; a bucket names one by its index.
    pub programs: Vec<String>,
    /// What became of the collectives of the source that were replaced before the choice of variants. For people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replacements: Vec<CollectiveReplacement>,
    /// The sizes of the two arenas, the same on every rank and for every bucket.
    pub arenas: ArenaSizes,
    /// Memory of the symmetric arena that has one place in all buckets.
    pub fixed: Vec<FixedRegion>,
    /// One schedule for each range of the symbols; their ranges are disjoint.
    pub buckets: Vec<Bucket>,
}

impl Plan {
    /// The index of the bucket that serves these values of the symbols, by name.
    pub fn find_bucket(&self, sizes: &IndexMap<String, i64>) -> Result<usize, UnservedSizes> {
        let serves = |b: &Bucket| {
            b.symbols.iter().all(|(s, &[low, high])| sizes.get(s).is_some_and(|v| (low..=high).contains(v)))
        };
        self.buckets.iter().position(serves).ok_or_else(|| {
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
    /// What each bucket serves, as [`Bucket::describe_range`] says it.
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
    /// Bytes of the symmetric arena, which peers reach.
    pub symmetric: u64,
}

/// Memory of the symmetric arena that has one place in all buckets.
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
    /// Landing zone `zone` (0 or 1) of all collectives of a group by `ll`, in turn by their epoch.
    Landing {
        group: String,
        /// 0 or 1.
        zone: u32,
    },
    /// An input whose caller writes it here: a parameter once, an argument before each run.
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
    /// Memory of this bucket. Two buffers may overlap when their lifetimes do not.
    pub buffers: Vec<Buffer>,
    /// Where each base value lies, by name.
    #[serde(deserialize_with = "unique_keys::deserialize_unique_keys")]
    pub places: IndexMap<String, ValuePlacement>,
    /// The steps, in an order that is consistent with their lanes and waits.
    pub steps: Vec<Step>,
    /// How each collective was chosen, in order of the steps.
    pub decisions: Vec<Decision>,
    /// The copies that placement forced, in order of the steps. A `copy` whose result lies on its operand
    /// moves nothing and is not listed.
    pub copies: Vec<ForcedCopy>,
    pub totals: BucketTotals,
}

impl Bucket {
    /// The sizes that it serves, for people: `batch=1, tokens=2..=8`.
    pub fn describe_range(&self) -> String {
        let symbol = |(name, &[low, high]): (&String, &[i64; 2])| match low == high {
            true => format!("{name}={low}"),
            false => format!("{name}={low}..={high}"),
        };
        let symbols: Vec<String> = self.symbols.iter().map(symbol).collect();
        if symbols.is_empty() { "all sizes fixed".into() } else { symbols.join(", ") }
    }
}
