//! One collective, or one custom op that touches peers, as the executor passes it to a communicator: the
//! interface between a plan's steps and the backend that runs them.
//!
//! All sizes and offsets are concrete: the bindings of the run are already applied. Ranks of a cell call with
//! equal values, except for `Private` addresses and the contents of memory.

use symmc_ir::collective::{CollectiveKind, CollectiveVariant};
use symmc_ir::types::DType;
use symmc_plan::ExitBarrier;

use crate::error::Result;

#[derive(Clone, Copy, Debug)]
pub struct CollectiveCall<'a> {
    /// The index of the step in its bucket.
    pub step: usize,
    /// The node that the step runs: the name of its first result.
    pub name: &'a str,
    pub kind: &'a CollectiveKind,
    pub variant: CollectiveVariant,
    /// Whether a droppable exit barrier is kept or dropped; `None` for variants without one. A droppable
    /// barrier with `None` is kept.
    pub exit: Option<ExitBarrier>,
    /// The ranks of this rank's cell, in the order of the group.
    pub cell: &'a [u32],
    /// The index of the group; selects its flags, epochs and staging.
    pub group: usize,
    pub dtype: DType,
    /// The number of elements of the operand on each rank.
    pub elements: usize,
    /// The number of elements of one row of the operand's leading axis. Only read with `splits` and `rows`.
    pub row: usize,
    pub operand: CallRegion<'a>,
    pub result: CallRegion<'a>,
    /// Offsets of the two landing zones in the symmetric arena, for `ll`.
    pub landing: Option<[usize; 2]>,
    /// The split sizes and the received sizes of an all-to-all with sizes on the device: `[n]` i64 each.
    pub splits: Option<(CallRegion<'a>, CallRegion<'a>)>,
    /// The tables of an exchange of rows.
    pub rows: Option<RowTables<CallRegion<'a>>>,
}

/// The operands of an exchange of rows that say which rows move where, its further results, and its sizes. `R`
/// locates a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowTables<R> {
    pub tables: RowTableKind<R>,
    /// The number of tokens of each rank.
    pub tokens: usize,
    /// The number of slots of each token.
    pub slots: usize,
    /// The number of rows that each rank receives at most.
    pub capacity: usize,
}

/// All tables are i64, except weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowTableKind<R> {
    /// The slots of this rank's rows, and the rows of all slots.
    Dispatch { slots: R, all_rows: R },
    /// The rows of this rank's slots, and their weights.
    Combine { rows: R, weights: Option<(R, DType)> },
    /// The rows of the slots of all ranks, their weights, and the sums of the other ranks, which are a result:
    /// `[(n-1)*tokens, row]` in f32 (f64 for f64).
    Reduce { all_rows: R, all_weights: Option<(R, DType)>, sums: R },
}

impl<R> RowTables<R> {
    /// The same tables, each located by another type.
    pub fn map<'r, S>(&'r self, mut locate: impl FnMut(&'r R) -> S) -> RowTables<S> {
        let tables = match &self.tables {
            RowTableKind::Dispatch { slots, all_rows } => {
                RowTableKind::Dispatch { slots: locate(slots), all_rows: locate(all_rows) }
            }
            RowTableKind::Combine { rows, weights } => RowTableKind::Combine {
                rows: locate(rows),
                weights: weights.as_ref().map(|(region, dtype)| (locate(region), *dtype)),
            },
            RowTableKind::Reduce { all_rows, all_weights, sums } => RowTableKind::Reduce {
                all_rows: locate(all_rows),
                all_weights: all_weights.as_ref().map(|(region, dtype)| (locate(region), *dtype)),
                sums: locate(sums),
            },
        };
        RowTables { tables, tokens: self.tokens, slots: self.slots, capacity: self.capacity }
    }
}

/// Contiguous memory of one operand or result.
#[derive(Clone, Copy, Debug)]
pub struct CallRegion<'a> {
    pub memory: RegionMemory,
    /// Bytes from the start of that memory to the region on this rank.
    pub offset: usize,
    /// The offset on each rank of the run, if the ranks differ: when a rank's shard lies inside a gathered
    /// tensor.
    pub by_rank: Option<&'a [usize]>,
}

impl CallRegion<'_> {
    /// Bytes from the start of the memory to the region on a rank of the run.
    pub fn offset_on_rank(&self, rank: u32) -> usize {
        rank_offset(self.offset, self.by_rank, rank)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum RegionMemory {
    /// The symmetric arena, which every rank of the run maps.
    Symmetric,
    /// Memory that only this rank can access; the address of its first byte.
    Private(*mut u8),
}

/// A custom op that touches peers, on one rank.
#[derive(Clone, Copy, Debug)]
pub struct PeerCall<'a> {
    pub step: usize,
    pub name: &'a str,
    pub op: &'a str,
    pub cell: &'a [u32],
    pub group: usize,
}

/// The symmetric arenas of a cell while a custom op touches them.
pub trait PeerMemory {
    /// The address of `bytes` bytes at `offset` in the symmetric arena of rank number `number` of the cell.
    /// Fails if they do not lie in the arena.
    fn peer_address(&self, number: usize, offset: usize, bytes: usize) -> Result<*mut u8>;

    /// Called before and after each access to a peer's memory.
    fn on_peer_access(&self) {}
}

/// The start of bytes on a rank: the same offset on all ranks, or the offset in the list, which has an entry
/// for every rank of the run.
pub(crate) fn rank_offset(offset: usize, by_rank: Option<&[usize]>, rank: u32) -> usize {
    by_rank.map_or(offset, |list| list.get(rank as usize).copied().unwrap_or(usize::MAX))
}
