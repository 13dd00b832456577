//! Collectives, the variants that run them, and the contract of each variant.
//!
//! A collective is a functional value: it names its group and yields a new tensor. A [`CollectiveVariant`] is
//! an implementation of a collective. Its [`Contract`] states which memory of peers the implementation
//! accesses, and what its completion guarantees.
//!
//! The contracts are the only source of these facts. Placement, liveness, the plan check and every backend read
//! this table.

use serde::{Deserialize, Serialize};

use crate::dim::Dim;
use crate::ids::GroupId;
use crate::named_enum;
use crate::types::TensorType;

/// Communication between the ranks of a group.
///
/// With `n` ranks in each cell of the group, and `x` the operand:
/// - all-reduce: the result has the type of `x`. Element `i` is the reduction of `x[i]` over the ranks in
///   ascending order.
/// - all-gather: `x [d, …]` gives `[n*d, …]`, the operands concatenated in order of rank.
/// - reduce-scatter: `x [n*d, …]` gives `[d, …]`, this rank's piece of the reduction.
/// - all-to-all: `x [n*d, …]` gives `[n*d, …]`. Piece `p` of rank `r`'s operand becomes piece `r` of
///   rank `p`'s result.
/// - broadcast: the operand of rank `root`.
/// - permute: for each pair `(from, to)` the result on `to` is the operand of `from`. The result of a rank
///   that is no `to` is zero.
/// - dispatch-rows, combine-rows and reduce-rows: rows of the operands of all ranks, selected by positions that
///   are data.
///
/// Ranks are positions within the cell of the group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Collective {
    pub kind: CollectiveKind,
    pub group: GroupId,
    /// The implementation; `None` until one is chosen.
    pub variant: Option<CollectiveVariant>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CollectiveKind {
    AllReduce(CollectiveReduceOp),
    AllGather,
    ReduceScatter(CollectiveReduceOp),
    AllToAll(AllToAllSplits),
    Broadcast {
        root: u32,
    },
    Permute {
        pairs: Vec<(u32, u32)>,
    },
    /// Sends each token to the ranks of its experts. `x` is `[t, d]`. Further operands are results of
    /// [`Op::Route`](crate::op::Op::Route) (see [`crate::route`]): the `slots [c]` of this rank's rows and
    /// `all_rows [n*t, k]`, both i64. The result is `[c, d]`: row `r` is the token of the global slot
    /// `slots[r]`, or zero if that is negative. Both operands describe one relation, and implementations may
    /// use either. If they differ, rows of the result are unspecified.
    DispatchRows,
    /// Returns the results of the experts to the ranks of their tokens. `x` is `[c, d]`, floats. Further
    /// operands are the global `rows [t, k]` of this rank's slots, i64, and optionally floats `weights
    /// [t, k]`. The result is `[t, d]`: the sum over the slots of a token of the row of the slot times its
    /// weight. Slots with a negative row are left out. Rows of one rank are added first, in ascending order of
    /// slot, and then the sums of the ranks in ascending order. All of this is in f32 (f64 for f64), and the
    /// last sum is rounded.
    CombineRows,
    /// Returns the results of the experts as sums. Each rank adds its own rows of a token, and the rank of the
    /// token adds the sums of all ranks. `x` is `[c, d]`, floats. Further operands are the global `all_rows
    /// [n*t, k]` of the slots of all ranks, i64, and optionally floats `all_weights [n*t, k]`. The first
    /// result is that of [`CombineRows`](Self::CombineRows) for this rank's part of them, in the same bits.
    /// The second result is the sums of the other ranks, `[(n-1)*t, d]` in f32 (f64 for f64), beginning with
    /// the next rank, cyclically.
    ReduceRows,
}

impl CollectiveKind {
    pub fn collective_name(&self) -> CollectiveName {
        match self {
            CollectiveKind::AllReduce(_) => CollectiveName::AllReduce,
            CollectiveKind::AllGather => CollectiveName::AllGather,
            CollectiveKind::ReduceScatter(_) => CollectiveName::ReduceScatter,
            CollectiveKind::AllToAll(_) => CollectiveName::AllToAll,
            CollectiveKind::Broadcast { .. } => CollectiveName::Broadcast,
            CollectiveKind::Permute { .. } => CollectiveName::PermuteRanks,
            CollectiveKind::DispatchRows => CollectiveName::DispatchRows,
            CollectiveKind::CombineRows => CollectiveName::CombineRows,
            CollectiveKind::ReduceRows => CollectiveName::ReduceRows,
        }
    }

    /// The collective whose measured times are used for estimates. Exchanges of rows take about the time of an
    /// all-to-all of the same size.
    pub fn measured_as(&self) -> CollectiveName {
        match self {
            kind if kind.exchanges_rows() => CollectiveName::AllToAll,
            kind => kind.collective_name(),
        }
    }

    pub fn facts(&self) -> CollectiveFacts {
        self.collective_name().facts()
    }

    /// The reduction that combines the operands of the ranks; `None` for collectives that only move elements.
    pub fn reduce_op(&self) -> Option<CollectiveReduceOp> {
        match self {
            CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => Some(*op),
            CollectiveKind::AllGather
            | CollectiveKind::AllToAll(_)
            | CollectiveKind::Broadcast { .. }
            | CollectiveKind::Permute { .. }
            | CollectiveKind::DispatchRows
            | CollectiveKind::CombineRows
            | CollectiveKind::ReduceRows => None,
        }
    }

    /// Whether a second operand holds the number of rows for each rank. It is known only on the device. A
    /// second result then holds the number of rows received from each rank.
    pub fn has_device_splits(&self) -> bool {
        *self == CollectiveKind::AllToAll(AllToAllSplits::Device)
    }

    /// Whether further operands, which are known only on the device, decide which elements move where.
    pub fn moves_by_data(&self) -> bool {
        self.has_device_splits() || self.exchanges_rows()
    }

    /// Whether tables select the rows that move.
    pub fn exchanges_rows(&self) -> bool {
        matches!(
            self,
            CollectiveKind::DispatchRows | CollectiveKind::CombineRows | CollectiveKind::ReduceRows
        )
    }

    /// The minimum and the maximum number of operands.
    pub fn operand_counts(&self) -> (usize, usize) {
        match self {
            CollectiveKind::AllToAll(AllToAllSplits::Device) => (2, 2),
            CollectiveKind::DispatchRows => (3, 3),
            CollectiveKind::CombineRows | CollectiveKind::ReduceRows => (2, 3),
            _ => (1, 1),
        }
    }

    /// The number of operands, counted from the first, that peers read with variants that read the operands of
    /// peers. All others are read only by the rank that has them.
    pub fn shared_operands(&self) -> usize {
        if self.has_device_splits() { 2 } else { 1 }
    }

    /// The positions of the results, of `count`, that peers write with variants that write the results of
    /// peers. All others are written only by the rank that has them.
    pub fn shared_results(&self, count: usize) -> std::ops::Range<usize> {
        if *self == CollectiveKind::ReduceRows { 1..count } else { 0..count }
    }

    /// The rank of a cell whose whole operand is the result of rank `number`; `None` if no single rank sends
    /// it.
    pub fn sender_to(&self, number: u32) -> Option<u32> {
        match self {
            CollectiveKind::Broadcast { root } => Some(*root),
            CollectiveKind::Permute { pairs } => {
                pairs.iter().find(|(_, to)| *to == number).map(|(from, _)| *from)
            }
            _ => None,
        }
    }

    /// The sizes of operand and result among `n` ranks. `whole` is the size of the result for an all-gather,
    /// and of the operand for all other collectives.
    pub fn operand_and_result_sizes(&self, whole: u64, n: u64) -> (u64, u64) {
        let piece = whole / n.max(1);
        match self.facts() {
            CollectiveFacts { operand_pieces: false, result_pieces: true, .. } => (piece, whole),
            CollectiveFacts { operand_pieces: true, result_pieces: false, .. } => (whole, piece),
            _ => (whole, whole),
        }
    }

    /// The bytes for which the time of a collective of these types is estimated; `None` if a type is missing.
    ///
    /// These are the bytes of the operand or of the result, except for exchanges of rows. Their capacity is
    /// what a rank may receive at most. A dispatch moves each token to a rank once, and a combination returns
    /// one row for each slot. Rows are divided evenly between the ranks in this estimate.
    pub fn estimated_bytes(&self, operands: &[&TensorType], results: &[&TensorType]) -> Option<Dim> {
        let row_bytes = |ty: &TensorType| Some(ty.shape.get(1)?.clone() * Dim::from(ty.dtype.size() as i64));
        match self {
            CollectiveKind::DispatchRows => {
                let (rows, all_rows) = (results.first()?, operands.get(2)?);
                Some(rows.shape.first()?.min_with(all_rows.shape.first()?) * row_bytes(rows)?)
            }
            CollectiveKind::CombineRows => Some(operands.get(1)?.numel() * row_bytes(operands.first()?)?),
            // As an all-to-all, which also has the piece that a rank keeps.
            CollectiveKind::ReduceRows => {
                Some(operands.get(1)?.shape.first()?.clone() * row_bytes(results.get(1)?)?)
            }
            _ => self.sized_type(operands, results).map(|ty| ty.bytes()),
        }
    }

    /// The type whose size is the size of the collective: that of the first result that peers may write, or of
    /// the first operand.
    pub fn sized_type<'t>(
        &self,
        operands: &[&'t TensorType],
        results: &[&'t TensorType],
    ) -> Option<&'t TensorType> {
        let sized = if self.facts().is_sized_by_result() { results } else { operands };
        sized.get(self.shared_results(sized.len()).start).copied()
    }

    /// The name in the text form, without attributes.
    pub fn name(&self) -> &'static str {
        self.collective_name().name()
    }

    /// One sample of each kind that contracts distinguish, among `n` ranks: reductions sum, the root is rank 0,
    /// and each rank sends to the next.
    pub fn sample_kinds(n: u32) -> [CollectiveKind; 10] {
        [
            CollectiveKind::AllReduce(CollectiveReduceOp::Sum),
            CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum),
            CollectiveKind::AllToAll(AllToAllSplits::Even),
            CollectiveKind::AllToAll(AllToAllSplits::Device),
            CollectiveKind::Broadcast { root: 0 },
            CollectiveKind::Permute { pairs: (0..n).map(|rank| (rank, (rank + 1) % n)).collect() },
            CollectiveKind::DispatchRows,
            CollectiveKind::CombineRows,
            CollectiveKind::ReduceRows,
        ]
    }

    /// The pairs `(from, to)` of different ranks in a cell of `n` ranks where `from` sends its operand to `to`.
    /// For a permute these are its pairs without the ranks that send to themselves. For a broadcast the root is
    /// paired with every other rank. `None` for collectives that receive from every rank. No rank receives
    /// twice.
    pub fn send_pairs(&self, n: u32) -> Option<Vec<(u32, u32)>> {
        match self {
            CollectiveKind::Permute { pairs } => {
                Some(pairs.iter().copied().filter(|(from, to)| from != to).collect())
            }
            CollectiveKind::Broadcast { root } => {
                Some((0..n).filter(|to| to != root).map(|to| (*root, to)).collect())
            }
            _ => None,
        }
    }
}

named_enum! {
    /// How an all-to-all divides the leading axis of its operand.
    AllToAllSplits {
        Even = "even",
        /// By a second operand `[n]` i64, the number of rows for each rank, which is known only on the device.
        /// The first result has the type of `x`: the received rows, packed in order of rank at the front, and
        /// zeros after them. The second result `[n]` i64 is the number of rows received from each rank.
        Device = "device",
    }
}

named_enum! {
    /// The collectives by their names in the text form and in profiles.
    CollectiveName {
        AllReduce = "all_reduce",
        AllGather = "all_gather",
        ReduceScatter = "reduce_scatter",
        AllToAll = "all_to_all",
        Broadcast = "broadcast",
        PermuteRanks = "permute_ranks",
        DispatchRows = "dispatch_rows",
        CombineRows = "combine_rows",
        ReduceRows = "reduce_rows",
    }
}

/// Properties that follow from the name of a collective, for passes, planner and backends that treat all
/// collectives in the same way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectiveFacts {
    pub reduces: bool,
    /// Whether the leading axis of the operand has one piece for each rank of a cell.
    pub operand_pieces: bool,
    /// Whether the leading axis of the result has one piece from each rank of a cell.
    pub result_pieces: bool,
    pub result_distribution: ResultDistribution,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultDistribution {
    Replicated,
    Sharded,
    /// Each rank has the operand of the rank that sends to it.
    FromSender,
}

impl CollectiveName {
    pub fn facts(self) -> CollectiveFacts {
        let row = |reduces, operand_pieces, result_pieces, gives| CollectiveFacts {
            reduces,
            operand_pieces,
            result_pieces,
            result_distribution: gives,
        };
        match self {
            CollectiveName::AllReduce => row(true, false, false, ResultDistribution::Replicated),
            CollectiveName::AllGather => row(false, false, true, ResultDistribution::Replicated),
            CollectiveName::ReduceScatter => row(true, true, false, ResultDistribution::Sharded),
            CollectiveName::AllToAll => row(false, true, true, ResultDistribution::Sharded),
            CollectiveName::Broadcast => row(false, false, false, ResultDistribution::Replicated),
            CollectiveName::PermuteRanks => row(false, false, false, ResultDistribution::FromSender),
            CollectiveName::DispatchRows => row(false, false, true, ResultDistribution::Sharded),
            CollectiveName::CombineRows => row(true, true, false, ResultDistribution::Sharded),
            CollectiveName::ReduceRows => row(true, false, true, ResultDistribution::Sharded),
        }
    }
}

impl CollectiveFacts {
    /// Whether each element of the result depends only on elements at the same position of the operands.
    pub fn preserves_positions(self) -> bool {
        !self.operand_pieces && !self.result_pieces
    }

    /// Whether estimates use the size of the result instead of the size of the operand.
    pub fn is_sized_by_result(self) -> bool {
        self.result_pieces && !self.operand_pieces
    }
}

named_enum! {
    /// How all-reduce and reduce-scatter combine elements. Floats accumulate in f32 (f64 for f64) in ascending
    /// order of rank, and are rounded once.
    CollectiveReduceOp { Sum = "sum", Avg = "avg", Max = "max", Min = "min", Prod = "prod" }
}

named_enum! {
    CollectiveVariant {
        /// The communication library's own implementation: ordinary operands, staged through the library's
        /// buffers.
        Plain = "plain",
        /// All-reduce: every rank reads all operands of its peers and reduces everything.
        OneShot = "one_shot",
        /// All-reduce, reduce-scatter, all-gather, all-to-all: the LL (low latency) protocol of NCCL. One store
        /// writes data together with its flag into the peers' landing zones. On GPUs large messages use LL128.
        Ll = "ll",
        /// All-reduce: every rank reduces one slice and writes it to all results.
        TwoShot = "two_shot",
        /// All-gather, reduce-scatter, all-to-all, dispatch-rows, combine-rows: every rank reads what it needs
        /// from its peers' operands.
        Pull = "pull",
        /// All-gather, all-to-all, reduce-rows: every rank writes into its peers' results.
        Push = "push",
        /// All-gather, all-to-all: as push, but with copies instead of a kernel, between two rendezvous. The
        /// multiprocessors stay free for concurrent kernels.
        Copies = "copies",
        /// All-gather, all-to-all: as pull, but with copies instead of a kernel, after a rendezvous. The result
        /// may lie in any memory, such as the caller's.
        PullCopies = "pull_copies",
        /// Broadcast, permute: the sender writes into the receiver's result, then sets a flag there. Before
        /// that it waits until the receiver signals that the result is free. Its operand may lie in any memory;
        /// NCCL's put would require a window for it too.
        Put = "put",
        /// All-reduce and reduce-scatter that sum, all-gather, all-to-all: the library's own implementation on
        /// operands and results in a registered window, where its kernels access the peers' memory directly.
        NcclWindow = "nccl_window",
        /// All-gather, all-to-all: as `nccl_window`, with copy engines instead of multiprocessors.
        CopyEngine = "copy_engine",
    }
}

/// The memory of a peer that a variant accesses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerAccess {
    /// Nothing in the arenas, or only accesses that the library keeps within the peer's own step, between the
    /// peer's arrival and its completion. The peer's own accesses cover those in the memory model.
    Nothing,
    ReadOperand,
    /// Writes into the peers' results. With [`SyncScope::Pairs`] only into the receiver's result.
    WriteResult,
    ReadOperandWriteResult,
    /// Writes into the peers' landing zone of the current epoch. The peer reads the data there.
    WriteLanding,
}

impl PeerAccess {
    pub fn reads_operand(self) -> bool {
        matches!(self, PeerAccess::ReadOperand | PeerAccess::ReadOperandWriteResult)
    }
    pub fn writes_result(self) -> bool {
        matches!(self, PeerAccess::WriteResult | PeerAccess::ReadOperandWriteResult)
    }
}

/// The ranks whose arrival precedes the completion of a variant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyncScope {
    Nobody,
    /// The two ranks of each pair of the collective ([`CollectiveKind::send_pairs`]) meet. The sender accesses
    /// the receiver's memory after both have arrived, and neither completes before that access has ended. Ranks
    /// that form no pair are not synchronized, and a rank without a pair waits for no other.
    Pairs,
    /// All ranks of the cell: it completes on no rank before every peer has arrived.
    Group,
}

/// Whether a variant ends with an exit barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExitBarrierPolicy {
    /// Never: peers may still access this rank's memory after completion.
    Never,
    /// The plan decides. With the barrier, no rank completes before all peers have stopped accessing its
    /// memory.
    Droppable,
    Always,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitBarrier {
    Kept,
    /// The step does not wait; lifetimes in the plan replace the barrier.
    Dropped,
}

/// The guarantees of a variant. docs/design/liveness.md explains the cross-rank liveness that rests on them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Contract {
    /// Accesses no peer's memory before every peer has arrived. [`sync_scope`](Self::sync_scope) is then
    /// `Group`.
    pub entry_barrier: bool,
    pub sync_scope: SyncScope,
    /// Whether it completes on no rank before all peers have stopped accessing this rank's memory.
    pub exit_barrier: ExitBarrierPolicy,
    /// Whether a rank writes its own result only after the rendezvous of the group. If not, it may write from
    /// its arrival on.
    pub result_after_rendezvous: bool,
    pub peer_access: PeerAccess,
    pub symmetric_operand: bool,
    pub symmetric_result: bool,
    /// Whether the result may lie on the operand's bytes. For an all-gather the operand is then this rank's
    /// piece of the result; for a reduce-scatter the result is this rank's piece of the operand.
    pub in_place: bool,
    /// Whether all ranks of a cell get the same bits of a result that the collective gives to all of them. It
    /// matters where floats are summed. [`crate::replication`] relies on it, so a variant without it requires a
    /// change there.
    ///
    /// Kernels of symmc, on hosts and on GPUs, add the operands of a cell in ascending order of rank, whichever
    /// rank computes an element. With `one_shot`, and with `ll` in one round, every rank computes all elements
    /// in this order. With `two_shot`, and with `ll` in two rounds, one rank computes an element and sends it
    /// to all.
    ///
    /// NCCL chooses other orders, but one order per element. Rings, trees and switches (NVLS) reduce an element
    /// in one place and pass on the result. Its kernels for windows (`RSxLD_AGxST`, `RSxLDMC_AGxSTMC`) do the
    /// same. The exception is `AGxLL_R`, where every rank adds all operands, from rank 0 on.
    pub same_bits: bool,
}

impl CollectiveVariant {
    /// Whether the machine's communication library runs it instead of a kernel of symmc.
    pub fn is_library(self) -> bool {
        matches!(
            self,
            CollectiveVariant::Plain | CollectiveVariant::NcclWindow | CollectiveVariant::CopyEngine
        )
    }

    /// Whether the library locates operands and results of peers from this rank's own offsets in a window: each
    /// then starts at the same byte on all ranks of a cell. The operand of an all-gather is an exception. Only
    /// its own rank reads it, so it may lie at its rank's piece of the gathered result.
    pub fn uses_nccl_window(self) -> bool {
        matches!(self, CollectiveVariant::NcclWindow | CollectiveVariant::CopyEngine)
    }

    /// The contract of this variant for a collective of this kind; `None` if the variant does not support it.
    pub fn contract(self, kind: &CollectiveKind) -> Option<Contract> {
        use CollectiveKind as K;
        // The other contracts are written as differences from this one.
        let push = Contract {
            entry_barrier: true,
            sync_scope: SyncScope::Group,
            exit_barrier: ExitBarrierPolicy::Always,
            result_after_rendezvous: true,
            peer_access: PeerAccess::WriteResult,
            symmetric_operand: false,
            symmetric_result: true,
            in_place: false,
            same_bits: true,
        };
        let pull = Contract {
            exit_barrier: ExitBarrierPolicy::Droppable,
            peer_access: PeerAccess::ReadOperand,
            symmetric_operand: true,
            symmetric_result: false,
            ..push
        };
        // NCCL guarantees that a rank may reuse its operand and result once the call has completed on that
        // rank, and that no peer accesses them before the rank has arrived. Its algorithms have nothing else in
        // common: some write a peer's piece as soon as that peer has arrived, and the own piece at once.
        let library = Contract {
            entry_barrier: false,
            sync_scope: match kind {
                K::Broadcast { .. } | K::Permute { .. } => SyncScope::Nobody,
                _ => SyncScope::Group,
            },
            exit_barrier: ExitBarrierPolicy::Never,
            result_after_rendezvous: false,
            peer_access: PeerAccess::Nothing,
            symmetric_operand: false,
            symmetric_result: false,
            // Sends and receives form one group of calls; their order is up to the library.
            in_place: matches!(
                kind,
                K::AllReduce(_) | K::AllGather | K::ReduceScatter(_) | K::Broadcast { .. }
            ),
            same_bits: true,
        };
        let window = Contract { symmetric_operand: true, symmetric_result: true, ..library };
        Some(match (self, kind) {
            (CollectiveVariant::Plain, _) => library,
            (
                CollectiveVariant::NcclWindow,
                K::AllReduce(CollectiveReduceOp::Sum)
                | K::ReduceScatter(CollectiveReduceOp::Sum)
                | K::AllGather
                | K::AllToAll(AllToAllSplits::Even),
            ) => window,
            (CollectiveVariant::CopyEngine, K::AllGather | K::AllToAll(AllToAllSplits::Even)) => window,
            (CollectiveVariant::OneShot, K::AllReduce(_)) => pull,
            (CollectiveVariant::Pull | CollectiveVariant::PullCopies, K::AllGather) => {
                Contract { in_place: true, ..pull }
            }
            (CollectiveVariant::Pull | CollectiveVariant::PullCopies, K::AllToAll(AllToAllSplits::Even)) => {
                pull
            }
            (CollectiveVariant::Pull, K::ReduceScatter(_) | K::DispatchRows | K::CombineRows) => pull,
            // The exit barrier also guarantees that no peer still reads this rank's sizes.
            (CollectiveVariant::Pull, K::AllToAll(AllToAllSplits::Device)) => {
                Contract { exit_barrier: ExitBarrierPolicy::Always, ..pull }
            }
            (
                CollectiveVariant::Ll,
                K::AllReduce(_) | K::ReduceScatter(_) | K::AllGather | K::AllToAll(AllToAllSplits::Even),
            ) => Contract {
                entry_barrier: false,
                exit_barrier: ExitBarrierPolicy::Never,
                peer_access: PeerAccess::WriteLanding,
                symmetric_result: false,
                in_place: !matches!(kind, K::AllToAll(_)),
                ..push
            },
            (CollectiveVariant::TwoShot, K::AllReduce(_)) => {
                let access = PeerAccess::ReadOperandWriteResult;
                Contract { peer_access: access, symmetric_operand: true, in_place: true, ..push }
            }
            (CollectiveVariant::Push | CollectiveVariant::Copies, K::AllGather) => {
                Contract { in_place: true, ..push }
            }
            (CollectiveVariant::Push | CollectiveVariant::Copies, K::AllToAll(AllToAllSplits::Even))
            | (CollectiveVariant::Push, K::ReduceRows) => push,
            (CollectiveVariant::Put, K::Broadcast { .. } | K::Permute { .. }) => Contract {
                entry_barrier: false,
                sync_scope: SyncScope::Pairs,
                exit_barrier: ExitBarrierPolicy::Never,
                result_after_rendezvous: false,
                // Only the root reads its operand. A rank of a permute may still read its operand while its
                // result is written.
                in_place: matches!(kind, K::Broadcast { .. }),
                ..push
            },
            _ => return None,
        })
    }

    /// The bytes of symmetric memory that this variant needs: operand, result and both landing zones. `bytes`
    /// is the size that estimates use: of the result for an all-gather, of the operand for the others.
    pub fn symmetric_bytes(self, kind: &CollectiveKind, bytes: u64, n: u64) -> u64 {
        let Some(contract) = self.contract(kind) else { return 0 };
        let (operand, result) = kind.operand_and_result_sizes(bytes, n);
        let operand_bytes = if contract.symmetric_operand { operand } else { 0 };
        let result_bytes = if contract.symmetric_result { result } else { 0 };
        operand_bytes
            .saturating_add(result_bytes)
            .saturating_add(self.landing_bytes(kind, operand, n).saturating_mul(2))
    }

    /// The size in bytes of one landing zone for a group of `n` ranks and an operand of `bytes` bytes
    /// ([`landing_zone_bytes`]).
    pub fn landing_bytes(self, kind: &CollectiveKind, bytes: u64, n: u64) -> u64 {
        if self != CollectiveVariant::Ll {
            return 0;
        }
        let message = if kind.facts().operand_pieces { bytes.div_ceil(n.max(1)) } else { bytes };
        landing_zone_bytes(message, n, LL_BYTES)
    }
}

/// The largest sum of the messages of all ranks of a cell, in bytes, that uses LL: words of 8 bytes, 4 of data
/// and 4 of flag. Larger messages use LL128: lines of 128 bytes, 120 of them data, in a part of the landing
/// zone that LL never uses. The host has one similar protocol for all sizes, with lines of 64 bytes, 60 of them
/// data. It needs no more room.
pub const LL_BYTES: u64 = 128 << 10;

/// Sizes in bytes at which a variant changes its form on GPUs. They depend on the call alone and are equal on
/// all ranks. Plans are made and run with the defaults; other values are for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProtocolThresholds {
    /// The largest sum of the messages of all ranks of a cell that uses LL instead of LL128. The layout of
    /// landing zones depends on it, so it is [`LL_BYTES`] wherever a plan runs.
    pub ll_bytes: u64,
    /// The least traffic per rank that two rounds must save for an all-reduce by LL128 to use them: a
    /// reduce-scatter and an all-gather. One round sends the operand to each peer. Two rounds send one slice to
    /// and from each peer.
    pub min_saved_bytes: u64,
    /// The smallest operand for which a two-shot all-reduce between two ranks only stores to its peer and loads
    /// nothing from it. With `n` ranks the limit is `2 / n` of this value. In this form it adds a residual
    /// along the way.
    pub min_pushed_bytes: u64,
}

impl Default for ProtocolThresholds {
    fn default() -> Self {
        ProtocolThresholds { ll_bytes: LL_BYTES, min_saved_bytes: 512 << 10, min_pushed_bytes: 32 << 20 }
    }
}

impl ProtocolThresholds {
    /// Whether messages of `message` bytes to each of `n` ranks use LL instead of LL128.
    pub fn uses_ll(&self, message: u64, n: u64) -> bool {
        message <= self.ll_bytes / n.max(1)
    }

    /// Whether an all-reduce of `bytes` bytes by `ll` among `n` ranks uses two rounds.
    pub fn uses_two_rounds(&self, bytes: u64, n: u64) -> bool {
        // One round sends n - 1 operands; two rounds send 2 (n - 1) / n of one operand.
        n > 2
            && !self.uses_ll(bytes, n)
            && bytes.saturating_mul((n - 1) * (n - 2)) / n >= self.min_saved_bytes
    }

    /// Whether a two-shot all-reduce of `bytes` bytes among `n` ranks is large enough to use stores only.
    pub fn uses_stores_only(&self, bytes: u64, n: u64) -> bool {
        bytes.saturating_mul(n) >= self.min_pushed_bytes.max(1).saturating_mul(2)
    }
}

/// The size in bytes of an LL128 line. Lines are aligned to it, and so are landing zones and all their parts.
pub const LL128_LINE: u64 = 128;

/// The size in bytes of the part of a landing zone that holds messages of up to `bytes` bytes by LL. Each of
/// the `n` ranks has a slot, this rank included.
pub fn ll_zone_bytes(bytes: u64, n: u64) -> u64 {
    (n * (bytes.div_ceil(4) * 8).max(64)).next_multiple_of(LL128_LINE)
}

/// The size in bytes of a landing zone for messages of up to `bytes` bytes among `n` ranks. Messages with a sum
/// of up to `ll` bytes use LL; larger messages use LL128, in a part after that of LL.
pub fn landing_zone_bytes(bytes: u64, n: u64, ll: u64) -> u64 {
    match bytes {
        0 => 0,
        _ if bytes <= ll / n.max(1) => ll_zone_bytes(bytes, n),
        _ => ll_zone_bytes(ll / n.max(1), n) + n * bytes.div_ceil(120) * LL128_LINE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    #[test]
    fn samples_have_every_name_and_a_sender_where_one_rank_sends() {
        let kinds = CollectiveKind::sample_kinds(2);
        for name in CollectiveName::ALL {
            assert!(kinds.iter().any(|kind| kind.collective_name() == *name), "{name}");
        }
        for kind in kinds {
            let is_sent = kind.facts().preserves_positions() && !kind.facts().reduces;
            assert_eq!(kind.sender_to(1).is_some(), is_sent, "{kind:?}");
            assert_eq!(kind.send_pairs(2).is_some(), is_sent, "{kind:?}");
        }
    }

    #[test]
    fn pairs_exclude_ranks_that_send_to_themselves() {
        let permute = CollectiveKind::Permute { pairs: vec![(2, 0), (1, 1), (0, 2)] };
        assert_eq!(permute.send_pairs(3), Some(vec![(2, 0), (0, 2)]));
        assert_eq!(CollectiveKind::Permute { pairs: vec![] }.send_pairs(3), Some(vec![]));
        assert_eq!(CollectiveKind::Broadcast { root: 1 }.send_pairs(3), Some(vec![(1, 0), (1, 2)]));
        assert_eq!(CollectiveKind::Broadcast { root: 0 }.send_pairs(1), Some(vec![]));
        assert_eq!(CollectiveKind::AllGather.send_pairs(3), None);
    }

    #[test]
    fn estimates_count_rows_that_move_and_memory_counts_all() {
        let ty = |dtype, shape: [i64; 2]| TensorType::new(dtype, shape.map(Dim::from).to_vec());
        let [tokens, all_tokens] = [8, 16].map(|rows| ty(DType::BF16, [rows, 4]));
        let [own, all] = [8, 16].map(|rows| ty(DType::I64, [rows, 2]));
        let sums = ty(DType::F32, [8, 4]);
        let slots = TensorType::new(DType::I64, vec![Dim::from(1000)]);
        let bytes = |kind: CollectiveKind, operands: &[&TensorType], results: &[&TensorType]| {
            let total = kind.sized_type(operands, results).map(|ty| ty.bytes());
            [kind.estimated_bytes(operands, results), total].map(|dim| dim.and_then(|dim| dim.as_const()))
        };
        // Two ranks with eight tokens each, two slots each; rows have eight bytes.
        for capacity in [12, 1000] {
            let rows = ty(DType::BF16, [capacity, 4]);
            let dispatch = bytes(CollectiveKind::DispatchRows, &[&tokens, &slots, &all], &[&rows]);
            assert_eq!(dispatch, [Some(8 * capacity.min(16)), Some(8 * capacity)]);
            let combine = bytes(CollectiveKind::CombineRows, &[&rows, &own], &[&tokens]);
            assert_eq!(combine, [Some(8 * 16), Some(8 * capacity)]);
            let reduce = bytes(CollectiveKind::ReduceRows, &[&rows, &all], &[&tokens, &sums]);
            assert_eq!(reduce, [Some(16 * 16), Some(16 * 8)]);
        }
        let gathered = bytes(CollectiveKind::AllGather, &[&tokens], &[&all_tokens]);
        assert_eq!(gathered, [Some(8 * 16); 2]);
    }

    #[test]
    fn contracts_hold_together() {
        for kind in &CollectiveKind::sample_kinds(2) {
            for &variant in CollectiveVariant::ALL {
                let Some(c) = variant.contract(kind) else { continue };
                let label = format!("{} {variant}", kind.name());
                assert!(!c.entry_barrier || c.sync_scope == SyncScope::Group, "{label}");
                assert!(!c.result_after_rendezvous || c.sync_scope == SyncScope::Group, "{label}");
                // The library does not separate peers' accesses before and after a rank's own step.
                assert!(
                    !variant.is_library()
                        || c.peer_access == PeerAccess::Nothing && !c.result_after_rendezvous,
                    "{label}"
                );
                assert_eq!(c.sync_scope == SyncScope::Pairs, variant == CollectiveVariant::Put, "{label}");
                assert!(c.sync_scope != SyncScope::Pairs || kind.send_pairs(2).is_some(), "{label}");
                assert!(!c.peer_access.reads_operand() || c.symmetric_operand, "{label}");
                assert!(!c.peer_access.writes_result() || c.symmetric_result, "{label}");
                assert!(
                    variant != CollectiveVariant::OneShot || c.exit_barrier == ExitBarrierPolicy::Droppable,
                    "{label}"
                );
                assert!(
                    c.same_bits,
                    "{label}: `Replication` relies on collectives that give all ranks the same bits"
                );
            }
        }
    }
}
