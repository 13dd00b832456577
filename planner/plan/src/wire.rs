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
//! - Every value is a *base* (see `symmc_ir::layout`) with a [`Place`], or a view of one. Bases are
//!   stored
//!   contiguously.
//! - Output `k` is a base at [`Memory::Output`]`(k)`, and no two outputs are the same value.
//! - Every node but the views is exactly one [`Step`].
//! - The nodes stand in the order of the steps.
//!
//! An input that an output replaces may lie at [`Memory::Output`] of that output: the two are then one memory, whose
//! content the caller gives before the run and finds replaced after it. Nothing reads the input once a step has
//! written there.
//!
//! # Values that share bytes
//! Several values may have one place, or one may lie within another, in these cases. An operand that keeps its bytes, of
//! an all-gather or a `concat`, may be read later; the others are read for the last time by the node that writes the
//! result.
//! - The result of `unary`, `binary`, `binary_scalar`, `select`, `cast` or `copy` lies on an operand of the
//!   same shape and element size that is stored contiguously. Every operand of the node that has bytes in
//!   common with the result has exactly the result's. A `copy` then moves nothing.
//! - The result of `softmax`, `rms_norm`, `layer_norm`, `cumsum`, `rotary_embedding`, `scatter_elements`, `index_add` or
//!   `index_put` lies on its first operand likewise; no other operand has bytes in common with it. The scatters then move
//!   nothing but what they store.
//! - The operand of an all-gather lies at its rank's piece of the result (`by_rank`), and the result of an
//!   all-reduce or a broadcast on its operand, where the contract of the variant says `in_place`.
//! - An operand of `concat` lies at its own piece of the result, when the pieces are contiguous there. The
//!   node then moves nothing for it.
//!
//! # Lifetimes
//! A buffer's lifetime counts steps in the order of the list: `first` is the first step that writes it.
//! `last` is the last step before which, and during which, no other value may be written there: it covers
//! all steps that touch the buffer, steps that run while a collective that touches it may still be in
//! flight, and the cross-rank rules. What it leaves open is the order between lanes: where bytes pass from
//! one lane to the other, `waits` make the later writer follow the earlier accesses.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use thiserror::Error;

mod json;
mod read;

pub use json::{PlanReadError, sha256};

/// The version of the artifact that this crate reads and writes.
pub const VERSION: u32 = 1;

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
    /// The program as it was imported.
    pub source: Source,
    /// The name of the machine profile that the choices were made with.
    pub machine: String,
    /// The number of ranks.
    pub ranks: u32,
    /// The text of each planned program; a bucket names one by its index.
    pub programs: Vec<String>,
    /// The sizes of the two arenas, the same on every rank and for every bucket.
    pub arenas: Arenas,
    /// Memory of the symmetric arena that has one place in all buckets.
    pub fixed: Vec<Fixed>,
    /// One schedule for each range of the symbols; their ranges are disjoint.
    pub buckets: Vec<Bucket>,
}

impl Plan {
    /// The index of the bucket that serves these values of the symbols, by name.
    ///
    /// # Errors
    /// None serves them.
    pub fn serving(&self, sizes: &IndexMap<String, i64>) -> Result<usize, Unserved> {
        let serves = |b: &Bucket| {
            b.symbols.iter().all(|(s, &[low, high])| sizes.get(s).is_some_and(|v| (low..=high).contains(v)))
        };
        self.buckets.iter().position(serves).ok_or_else(|| {
            let sizes = sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
            Unserved { sizes, served: self.buckets.iter().map(Bucket::range).collect() }
        })
    }
}

/// Sizes that no bucket of a plan serves.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("no bucket of the plan serves {}; its buckets serve {}", list(sizes), list(served))]
pub struct Unserved {
    /// The value of each symbol: `tokens=65`.
    pub sizes: Vec<String>,
    /// What each bucket serves, as [`Bucket::range`] says it.
    pub served: Vec<String>,
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "nothing".into() } else { items.join("; ") }
}

/// The program as it was imported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The name of the program.
    pub name: String,
    /// SHA-256 of `text`, in hexadecimal.
    pub hash: String,
    /// The program in text form.
    pub text: String,
}

/// The sizes of the arenas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arenas {
    /// Bytes of the ordinary arena, private to each rank.
    pub ordinary: u64,
    /// Bytes of the symmetric arena, which peers reach.
    pub symmetric: u64,
}

/// One of the two arenas of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArenaKind {
    /// Private to its rank.
    Ordinary,
    /// Reached by peers, at equal offsets on all ranks.
    Symmetric,
}

/// Memory of the symmetric arena that has one place in all buckets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// What it is for.
    pub role: Role,
    /// Where it starts in the symmetric arena.
    pub offset: u64,
    /// Its size.
    pub size: u64,
}

/// What fixed memory is for.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Role {
    /// Landing zone `zone` (0 or 1) of all packet collectives of a group, in turn by their epoch.
    Landing {
        /// The name of the group.
        group: String,
        /// 0 or 1.
        zone: u32,
    },
    /// An input whose caller writes it here: a parameter once, an argument before each run.
    Bound {
        /// The index of the input.
        input: usize,
    },
}

/// The schedule for one range of the symbols.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(from = "read::Bucket")]
pub struct Bucket {
    /// The inclusive range of each symbol; sizes and lifetimes hold for all of it.
    pub symbols: IndexMap<String, [i64; 2]>,
    /// The index of the planned program.
    pub program: usize,
    /// Memory of this bucket. Two buffers may overlap when their lifetimes do not.
    pub buffers: Vec<Buffer>,
    /// Where each base value lies, by name.
    pub places: IndexMap<String, Place>,
    /// The steps, in an order that is consistent with their lanes and waits.
    pub steps: Vec<Step>,
    /// How each collective was chosen, in order of the steps.
    pub decisions: Vec<Decision>,
    /// The copies that placement forced, in order of the steps. A `copy` whose result lies on its operand
    /// moves nothing and is not listed.
    pub copies: Vec<ForcedCopy>,
    /// Sums.
    pub totals: Totals,
}

impl Bucket {
    /// The sizes that it serves, for people: `batch=1, tokens=2..=8`.
    pub fn range(&self) -> String {
        let symbol = |(name, &[low, high]): (&String, &[i64; 2])| match low == high {
            true => format!("{name}={low}"),
            false => format!("{name}={low}..={high}"),
        };
        let symbols: Vec<String> = self.symbols.iter().map(symbol).collect();
        if symbols.is_empty() { "all sizes fixed".into() } else { symbols.join(", ") }
    }

    /// The inputs that a caller can bind to avoid copies, by index, with the bytes that this saves in each
    /// run.
    pub fn avoidable(&self) -> BTreeMap<usize, u64> {
        let mut out = BTreeMap::new();
        for c in &self.copies {
            if let Some(input) = c.bind {
                *out.entry(input).or_insert(0) += c.bytes;
            }
        }
        out
    }
}

/// A copy that placement forced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForcedCopy {
    /// The `copy` node of the planned program.
    pub node: String,
    /// The value that it copies.
    pub of: String,
    /// What it moves, at the upper bound of the bucket.
    pub bytes: u64,
    /// Why it is needed.
    pub reason: CopyReason,
    /// The index of the input that a caller can bind to avoid it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<usize>,
}

/// Why placement forced a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyReason {
    /// A collective needs an input in the symmetric arena and the input is not bound.
    SymmetricInput,
    /// A collective needs a part of an output in the symmetric arena.
    SymmetricOutput,
    /// A collective needs its operand contiguous, and aligned where peers touch it.
    Contiguous,
    /// An output is an input, a view, a value that is returned twice, or a value that lies in the symmetric
    /// arena.
    Output,
}

/// Memory in an arena.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Which arena.
    pub arena: ArenaKind,
    /// Where it starts in the arena.
    pub offset: u64,
    /// Its size at the upper bound of the bucket, rounded up to a multiple of [`ALIGN`].
    pub size: u64,
    /// The first step at which it is occupied, counting the cross-rank rules.
    pub first: usize,
    /// The last step at which it is occupied, counting the cross-rank rules. When `last < first` it is
    /// occupied from `first` through the end of the run and on to `last` of the next run.
    pub last: usize,
    /// What peers do to it.
    pub reach: Reach,
}

/// What peers do to a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Nothing.
    Local,
    /// They read it.
    Read,
    /// They write it (and may read it).
    Written,
}

/// Where a base value lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The memory.
    pub memory: Memory,
    /// The position of its first byte in the memory, a dim.
    pub offset: String,
    /// When set, `stride` times this rank's number within `group` is added to the offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_rank: Option<ByRank>,
    /// Why it lies there, for people.
    pub why: String,
}

/// The part of an offset that depends on the rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByRank {
    /// The name of the group within which the rank counts.
    pub group: String,
    /// Bytes per rank, a dim.
    pub stride: String,
}

/// Memory that a place names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// A buffer of the bucket.
    Buffer(usize),
    /// Fixed memory of the plan.
    Fixed(usize),
    /// The caller's memory of an input; only read.
    Input(usize),
    /// The caller's memory of an output.
    Output(usize),
}

/// A sequence of steps that run one after another. Steps in different lanes run at the same time unless a
/// wait orders them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Everything that computes.
    Compute,
    /// Collectives.
    Comm,
}

/// One node in the schedule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The node: the name of its first result.
    pub node: String,
    /// The lane that runs it.
    pub lane: Lane,
    /// Earlier steps of other lanes that must have completed on this rank before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<usize>,
    /// For a collective whose variant has a droppable exit barrier: whether it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Barrier>,
    /// For an exit barrier that lifetimes can stand in for: by how much the largest sum of live bytes in the symmetric
    /// arena is higher when this one is dropped than when it is kept, with all others as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_bytes: Option<u64>,
    /// The most blocks of its kernel on GPUs, if it runs a collective and the machine's profile says so. All ranks launch as
    /// many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
}

/// The fate of a droppable exit barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Barrier {
    /// It runs.
    Kept,
    /// It does not: lifetimes stand in for it.
    Dropped,
}

/// How a collective was chosen.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Decision {
    /// The collective of the imported program: the name of its result.
    pub collective: String,
    /// The nodes of the planned program that run it.
    pub nodes: Vec<String>,
    /// The name of what was chosen, as in `alternatives`.
    pub chosen: String,
    /// Bytes that the estimates are for: the tensor of an all-reduce or all-to-all, the result of an
    /// all-gather, the operand of a reduce-scatter.
    pub bytes: u64,
    /// Every way that was considered, cheapest first, the chosen one among them; plain always is.
    pub alternatives: Vec<Alternative>,
    /// The rules that led from the imported collective to the chosen form, in order.
    pub rules: Vec<AppliedRule>,
}

/// A rule on the way from an imported collective to the form that was chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppliedRule {
    /// Its name.
    pub name: String,
    /// Estimated microseconds of what it put in place, copies included; none while that is a form that does
    /// not say how it is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
}

/// A way to run a collective.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// Its name: a variant, or two joined with ` + `.
    pub name: String,
    /// Estimated microseconds that it adds to a run, copies included: less than its time where compute hides it.
    pub us: f64,
    /// The part of `us` that copies cost.
    pub copy_us: f64,
    /// How much less `us` is because the kernel also adds the residual that follows, on a machine that fuses the two.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub saved_us: f64,
}

fn is_zero(us: &f64) -> bool {
    *us == 0.0
}

/// Sums over a bucket, in bytes unless they say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// The highest end of a buffer in the ordinary arena.
    pub ordinary_peak: u64,
    /// The largest sum of buffers of the ordinary arena that are alive together.
    pub ordinary_bound: u64,
    /// The highest end of a buffer in the symmetric arena, fixed memory included.
    pub symmetric_peak: u64,
    /// The largest sum of buffers of the symmetric arena that are alive together, fixed memory included.
    pub symmetric_bound: u64,
    /// The number of copies that placement forced: the entries of [`Bucket::copies`].
    pub copies: u64,
    /// What they move: the sum of their bytes.
    pub copied: u64,
    /// The number of exit barriers dropped.
    pub barriers_dropped: u64,
    /// The number of droppable exit barriers kept.
    pub barriers_kept: u64,
    /// What the dropped ones cost together: how much lower `symmetric_bound` would be were all of them kept. The
    /// planner says so; it is no sum of the plan, and the check does not ask for it.
    #[serde(default)]
    pub barrier_bytes: u64,
    /// What GPUs use beside the arenas, at the largest sizes: a workspace of one step at a time. Whoever compiles for GPUs says
    /// so; it is no sum of the plan, and the check does not ask for it.
    #[serde(default)]
    pub workspace: u64,
}
