//! The entries of a bucket's tables: buffers, places, steps, copies and totals.

use serde::{Deserialize, Serialize};
use symmc_ir::collective::ExitBarrier;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    pub arena: ArenaKind,
    pub offset: u64,
    /// The size at the upper bounds of the bucket, rounded up to a multiple of [`ALIGN`](super::ALIGN).
    pub size: u64,
    /// The first step at which the buffer is occupied, cross-rank rules included.
    pub first: usize,
    /// The last step at which the buffer is occupied, cross-rank rules included. If `last < first` it is
    /// occupied from `first` through the end of the run, and up to `last` of the next run.
    pub last: usize,
    pub reach: PeerReach,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArenaKind {
    /// Private to its rank.
    Ordinary,
    /// Accessible to peers, at equal offsets on all ranks.
    Symmetric,
}

/// The access of peers to a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerReach {
    Local,
    Read,
    /// Peers write it (and may read it).
    Written,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValuePlacement {
    pub memory: MemoryRef,
    /// The offset of the first byte within the memory, a dim.
    pub offset: String,
    /// If set, `stride` times this rank's position within `group` is added to the offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_rank: Option<PerRankOffset>,
    /// The reason for the place, for people.
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
    /// The caller's memory of an input; read-only.
    Input(usize),
    Output(usize),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The node, or the first node of a dispatch: the name of its first result.
    pub node: String,
    pub lane: Lane,
    /// Earlier steps of other lanes that must have completed on this rank before this step starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<usize>,
    /// For a collective whose variant has a droppable exit barrier: whether it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitBarrier>,
    /// For an exit barrier that lifetimes could replace: the increase of the largest sum of live bytes in the
    /// symmetric arena if this barrier were dropped instead of kept, with all others unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_bytes: Option<u64>,
    /// The maximum number of blocks of its kernel on GPUs, if it runs a collective and the machine profile
    /// limits it. All ranks launch the same number.
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
    /// The bytes that it moves, at the upper bounds of the bucket.
    pub bytes: u64,
    pub reason: CopyReason,
    /// The index of the input that a caller can bind to avoid the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyReason {
    /// A collective needs an input in the symmetric arena, and the input is not bound.
    SymmetricInput,
    /// A collective needs a part of an output in the symmetric arena.
    SymmetricOutput,
    /// A collective needs its operand contiguous, and aligned where peers access it.
    Contiguous,
    /// An output is an input, a view, a value that is returned twice, or a value in the symmetric arena.
    Output,
}

/// Sums over a bucket, in bytes unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketTotals {
    /// The highest end of a buffer in the ordinary arena.
    pub ordinary_peak: u64,
    /// The largest sum of buffers of the ordinary arena that are live at the same time.
    pub ordinary_bound: u64,
    /// The highest end of a buffer in the symmetric arena, fixed memory included.
    pub symmetric_peak: u64,
    /// The largest sum of buffers of the symmetric arena that are live at the same time, fixed memory included.
    pub symmetric_bound: u64,
    /// The number of copies that placement forced: the entries of [`Bucket::copies`](super::Bucket::copies).
    pub copies: u64,
    /// The bytes that these copies move.
    pub copied: u64,
    pub barriers_dropped: u64,
    /// The number of droppable exit barriers kept.
    pub barriers_kept: u64,
    /// The total cost of the dropped barriers: the reduction of `symmetric_bound` if all of them were kept. The
    /// planner computes it; it cannot be derived from the plan, and the plan check does not verify it.
    #[serde(default)]
    pub barrier_bytes: u64,
    /// The bytes that GPUs use in addition to the arenas, at the largest sizes: one workspace, used by one step
    /// at a time. The compiler for GPUs sets it; it cannot be derived from the plan, and the plan check does
    /// not verify it.
    #[serde(default)]
    pub workspace: u64,
}
