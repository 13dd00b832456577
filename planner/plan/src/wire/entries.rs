//! The entries of a bucket's tables: buffers, places, steps, decisions, copies, sums.

use serde::{Deserialize, Serialize};
use symmc_ir::collective::ExitBarrier;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    pub arena: ArenaKind,
    pub offset: u64,
    /// Its size at the upper bound of the bucket, rounded up to a multiple of [`ALIGN`](super::ALIGN).
    pub size: u64,
    /// The first step at which it is occupied, counting the cross-rank rules.
    pub first: usize,
    /// The last step at which it is occupied, counting the cross-rank rules. When `last < first` it is
    /// occupied from `first` through the end of the run and on to `last` of the next run.
    pub last: usize,
    pub reach: PeerReach,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArenaKind {
    /// Private to its rank.
    Ordinary,
    /// Reached by peers, at equal offsets on all ranks.
    Symmetric,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerReach {
    Local,
    Read,
    /// They write it (and may read it).
    Written,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValuePlacement {
    pub memory: MemoryRef,
    /// The position of its first byte in the memory, a dim.
    pub offset: String,
    /// When set, `stride` times this rank's number within `group` is added to the offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_rank: Option<PerRankOffset>,
    /// Why it lies there, for people.
    pub why: String,
}

/// The part of an offset that depends on the rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerRankOffset {
    pub group: String,
    /// Bytes per rank, a dim.
    pub stride: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryRef {
    Buffer(usize),
    Fixed(usize),
    /// The caller's memory of an input; only read.
    Input(usize),
    Output(usize),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The node: the name of its first result.
    pub node: String,
    pub lane: Lane,
    /// Earlier steps of other lanes that must have completed on this rank before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<usize>,
    /// For a collective whose variant has a droppable exit barrier: whether it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitBarrier>,
    /// For an exit barrier that lifetimes can stand in for: by how much the largest sum of live bytes in the symmetric
    /// arena is higher when this one is dropped than when it is kept, with all others as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_bytes: Option<u64>,
    /// The most blocks of its kernel on GPUs, if it runs a collective and the machine's profile says so. All ranks
    /// launch as many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
}

/// A sequence of steps that run one after another. Steps in different lanes run at the same time unless a
/// wait orders them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Steps that compute, and collectives that overlap no computation.
    Compute,
    /// Collectives that run concurrently with computation.
    Comm,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForcedCopy {
    /// The `copy` node of the planned program.
    pub node: String,
    pub of: String,
    /// What it moves, at the upper bound of the bucket.
    pub bytes: u64,
    pub reason: CopyReason,
    /// The index of the input that a caller can bind to avoid it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<usize>,
}

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

/// Sums over a bucket, in bytes unless they say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketTotals {
    /// The highest end of a buffer in the ordinary arena.
    pub ordinary_peak: u64,
    /// The largest sum of buffers of the ordinary arena that are alive together.
    pub ordinary_bound: u64,
    /// The highest end of a buffer in the symmetric arena, fixed memory included.
    pub symmetric_peak: u64,
    /// The largest sum of buffers of the symmetric arena that are alive together, fixed memory included.
    pub symmetric_bound: u64,
    /// The number of copies that placement forced: the entries of [`Bucket::copies`](super::Bucket::copies).
    pub copies: u64,
    /// What they move: the sum of their bytes.
    pub copied: u64,
    pub barriers_dropped: u64,
    /// The number of droppable exit barriers kept.
    pub barriers_kept: u64,
    /// What the dropped ones cost together: how much lower `symmetric_bound` would be were all of them kept. The
    /// planner says so; it is no sum of the plan, and the check does not ask for it.
    #[serde(default)]
    pub barrier_bytes: u64,
    /// What GPUs use beside the arenas, at the largest sizes: a workspace of one step at a time. Whoever compiles for
    /// GPUs says so; it is no sum of the plan, and the check does not ask for it.
    #[serde(default)]
    pub workspace: u64,
}
