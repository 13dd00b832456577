//! Collectives, the variants that run them, and the contract of each variant.
//!
//! A collective is a functional value: it names its group and gives a new tensor. A [`CollectiveVariant`] is a way
//! to run it; its [`Contract`] states what the run touches on peers and what it promises about time. The
//! contracts are the only source of that knowledge: placement, liveness, the check and every backend
//! read this table.

use serde::{Deserialize, Serialize};

use crate::ids::GroupId;
use crate::named_enum;

/// Communication between the ranks of a group.
///
/// With `n` ranks in each cell of the group, `x` is the operand:
/// - all-reduce: the result has the type of `x`; element `i` is the reduction of `x[i]` over the ranks in
///   ascending order.
/// - all-gather: `x [d, …]` gives `[n*d, …]`, the operands one after another by rank.
/// - reduce-scatter: `x [n*d, …]` gives `[d, …]`, this rank's piece of the reduction.
/// - all-to-all: `x [n*d, …]` gives `[n*d, …]`: piece `p` of `x` goes to rank `p`, which stores it as its
///   piece of this rank's number.
/// - broadcast: the operand of rank `root`.
/// - permute: for each pair `(from, to)` the result on `to` is the operand of `from`; a rank that nobody
///   sends to has zeros.
///
/// Ranks are positions within the group's cell.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Collective {
    pub kind: CollectiveKind,
    pub group: GroupId,
    /// How, once that is chosen.
    pub variant: Option<CollectiveVariant>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CollectiveKind {
    AllReduce(CollectiveReduceOp),
    AllGather,
    ReduceScatter(CollectiveReduceOp),
    AllToAll(AllToAllSplits),
    Broadcast { root: u32 },
    Permute { pairs: Vec<(u32, u32)> },
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
        }
    }

    pub fn facts(&self) -> CollectiveFacts {
        self.collective_name().facts()
    }

    /// How it combines the operands of different ranks; `None` for collectives that only move elements.
    pub fn reduce_op(&self) -> Option<CollectiveReduceOp> {
        match self {
            CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => Some(*op),
            CollectiveKind::AllGather
            | CollectiveKind::AllToAll(_)
            | CollectiveKind::Broadcast { .. }
            | CollectiveKind::Permute { .. } => None,
        }
    }

    /// Whether a second operand says on the device how many rows go to each rank; a second result then says how many came.
    pub fn has_device_splits(&self) -> bool {
        *self == CollectiveKind::AllToAll(AllToAllSplits::Device)
    }

    /// The rank of a cell whose operand is the result of rank `number`, if one rank sends it all of its operand.
    pub fn sender_to(&self, number: u32) -> Option<u32> {
        match self {
            CollectiveKind::Broadcast { root } => Some(*root),
            CollectiveKind::Permute { pairs } => {
                pairs.iter().find(|(_, to)| *to == number).map(|(from, _)| *from)
            }
            _ => None,
        }
    }

    /// The sizes of operand and result among `n` ranks, where `whole` is that of the result of an all-gather and of the
    /// operand of others.
    pub fn operand_and_result_sizes(&self, whole: u64, n: u64) -> (u64, u64) {
        let piece = whole / n.max(1);
        match self.facts() {
            CollectiveFacts { operand_pieces: false, result_pieces: true, .. } => (piece, whole),
            CollectiveFacts { operand_pieces: true, result_pieces: false, .. } => (whole, piece),
            _ => (whole, whole),
        }
    }

    /// The name in the text form, without attributes.
    pub fn name(&self) -> &'static str {
        self.collective_name().name()
    }

    /// One of each kind that contracts tell apart, among `n` ranks: reductions sum, the root is rank 0, each rank sends to
    /// the next.
    pub fn sample_kinds(n: u32) -> [CollectiveKind; 7] {
        [
            CollectiveKind::AllReduce(CollectiveReduceOp::Sum),
            CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum),
            CollectiveKind::AllToAll(AllToAllSplits::Even),
            CollectiveKind::AllToAll(AllToAllSplits::Device),
            CollectiveKind::Broadcast { root: 0 },
            CollectiveKind::Permute { pairs: (0..n).map(|rank| (rank, (rank + 1) % n)).collect() },
        ]
    }

    /// The pairs `(from, to)` of different ranks of which `from` sends its operand to `to`, in a cell of `n`
    /// ranks: those of a permute without ranks that send to themselves, and for a broadcast the root with
    /// every other rank. `None` for collectives that take from every rank. No rank receives twice.
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
    /// How an all-to-all divides the leading axis.
    AllToAllSplits {
        Even = "even",
        /// By a second operand: `[n]` i64 rows for each rank, known only on the device. The results are the
        /// rows received, packed in order of rank at the front of `x`'s type (the rest is zero), and `[n]` i64
        /// rows received from each rank.
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
    }
}

/// What is known of a collective by its name, for passes, planner and backends that do not care which one it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectiveFacts {
    pub reduces: bool,
    /// Whether the leading axis of the operand has a piece for each rank of a cell.
    pub operand_pieces: bool,
    /// Whether the leading axis of the result has a piece of each rank of a cell.
    pub result_pieces: bool,
    pub result_distribution: ResultDistribution,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultDistribution {
    Replicated,
    Sharded,
    /// To each the operand of the rank that sends to it.
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
        }
    }
}

impl CollectiveFacts {
    /// Whether each element of the result is made of those at its position in the operands.
    pub fn preserves_positions(self) -> bool {
        !self.operand_pieces && !self.result_pieces
    }

    /// Whether the size that estimates are for is that of the result, not that of the operand.
    pub fn is_sized_by_result(self) -> bool {
        self.result_pieces && !self.operand_pieces
    }
}

named_enum! {
    /// How all-reduce and reduce-scatter combine elements: floats accumulate in f32 (f64 for f64) in
    /// ascending order of rank and round once.
    CollectiveReduceOp { Sum = "sum", Avg = "avg", Max = "max", Min = "min", Prod = "prod" }
}

named_enum! {
    CollectiveVariant {
        /// The library's own: staged through its buffers, ordinary operands.
        Plain = "plain",
        /// All-reduce: every rank reads all operands of its peers and reduces everything.
        OneShot = "one_shot",
        /// All-reduce, reduce-scatter, all-gather, all-to-all: the LL (low latency) protocol of NCCL, data with its
        /// flag in one store, into the peers' landing zones; large messages on GPUs go by its LL128.
        Ll = "ll",
        /// All-reduce: every rank reduces one slice and writes it to all results.
        TwoShot = "two_shot",
        /// All-gather, reduce-scatter, all-to-all: every rank reads what it needs from its peers' operands.
        Pull = "pull",
        /// All-gather, all-to-all: every rank writes into its peers' results.
        Push = "push",
        /// All-gather, all-to-all: as push, by copies without a kernel between two rendezvous, which leaves the
        /// multiprocessors to what runs beside it.
        Copies = "copies",
        /// All-gather, all-to-all: as pull, by copies without a kernel behind a rendezvous. The result may lie in any memory,
        /// such as where the caller wants it.
        PullCopies = "pull_copies",
        /// Broadcast, permute: the sender writes into the receiver's result, then sets a flag there. It waits
        /// for the receiver's word that the result is free, and reads its own operand wherever that lies;
        /// NCCL's put would want that in a window too.
        Put = "put",
        /// All-reduce and reduce-scatter that sum, all-gather, all-to-all: the library's own on operands and
        /// results in a window that is registered with it, where its kernels reach the peers' directly.
        NcclWindow = "nccl_window",
        /// All-gather, all-to-all: the same, with copy engines instead of multiprocessors.
        CopyEngine = "copy_engine",
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerAccess {
    /// Nothing in the arenas, or only what the library keeps within the peer's own step: after the peer has
    /// arrived, and before it completes. There the peer's own accesses stand in for it.
    Nothing,
    ReadOperand,
    /// Writes into the peers' result; where pairs meet, into that of the receiver alone.
    WriteResult,
    ReadOperandWriteResult,
    /// Writes into the peers' landing zone of this epoch; the peer reads it there.
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

/// Whose arrival the completion of a variant tells of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyncScope {
    Nobody,
    /// For each pair of the collective ([`CollectiveKind::send_pairs`]) a rendezvous of its two ranks: the sender
    /// touches the receiver after both have arrived, and neither completes before that touch is over. Ranks
    /// that form no pair learn nothing of each other, and a rank without a pair waits for nobody.
    Pairs,
    /// Every peer's: it completes on no rank before every peer has arrived.
    Group,
}

/// Whether a variant ends with a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExitBarrierPolicy {
    /// Never: completion says nothing about peers that still touch this rank.
    Never,
    /// As the plan says: with it, no rank completes before all peers stopped touching it.
    Droppable,
    Always,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitBarrier {
    Kept,
    /// It does not: lifetimes stand in for it.
    Dropped,
}

/// The promises of a variant (DESIGN of cross-rank liveness in ARCHITECTURE.md).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Contract {
    /// Touches no peer before every peer has arrived; then [`meets`](Self::sync_scope) is the group.
    pub entry_barrier: bool,
    pub sync_scope: SyncScope,
    /// Completes on no rank before all peers have stopped touching this rank.
    pub exit_barrier: ExitBarrierPolicy,
    /// Where the group meets: a rank writes its own result only after that. Without it, from its arrival on.
    pub result_after_rendezvous: bool,
    pub peer_access: PeerAccess,
    pub symmetric_operand: bool,
    pub symmetric_result: bool,
    /// The result may lie on the operand's bytes. For all-gather that is this rank's piece of the result,
    /// for reduce-scatter this rank's piece of the operand.
    pub in_place: bool,
    /// All ranks of a cell get the same bits of what the collective gives to all of them, which matters where floats are summed.
    /// Facts about programs rest on it ([`crate::replication`]), so variants without it cannot be added without a change there.
    ///
    /// Kernels of symmc, on hosts and on GPUs, add the ranks of a cell in ascending order, whichever rank computes an element:
    /// with `one_shot`, and with `ll` in one round, every rank computes all elements in this order; with `two_shot`, and with `ll` in two
    /// rounds, one rank computes an element and sends it to all. NCCL chooses other orders, but one for an element: rings, trees
    /// and switches (NVLS) reduce it in one place and pass on the result, and so do its kernels for windows (`RSxLD_AGxST`,
    /// `RSxLDMC_AGxSTMC`), except `AGxLL_R`, with which every rank adds all operands, from rank 0 on.
    pub same_bits: bool,
}

impl CollectiveVariant {
    /// The variant that programs, profiles and plans of older versions call `name`.
    pub fn from_legacy_name(name: &str) -> Option<CollectiveVariant> {
        (name == "packets").then_some(CollectiveVariant::Ll)
    }

    /// The names that there are, for who says another; one of an older version is told by its new name.
    pub fn describe_expected_names(found: &str) -> String {
        match CollectiveVariant::from_legacy_name(found) {
            Some(variant) => format!("`{variant}`, as it is called now"),
            None => format!("one of {}", CollectiveVariant::names()),
        }
    }

    /// Whether the library of the machine runs it, not a kernel of symmc.
    pub fn is_library(self) -> bool {
        matches!(
            self,
            CollectiveVariant::Plain | CollectiveVariant::NcclWindow | CollectiveVariant::CopyEngine
        )
    }

    /// Whether the library finds operands and results of peers in a window, where this rank's own are: each starts at the
    /// same byte on all ranks of a cell. Only the operand of an all-gather, which its own rank alone reads, may lie at
    /// its rank's piece of what the group gathers.
    pub fn uses_nccl_window(self) -> bool {
        matches!(self, CollectiveVariant::NcclWindow | CollectiveVariant::CopyEngine)
    }

    /// The contract under which this variant runs a collective of this kind; `None` if it cannot run it.
    pub fn contract(self, kind: &CollectiveKind) -> Option<Contract> {
        use CollectiveKind as K;
        // The others say in what they differ from this.
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
        // NCCL promises a rank that its operand and result are its own again when the call has completed on
        // that rank, and that nobody touches them before it has arrived. No more holds of every algorithm
        // that it may choose: some write a peer's piece as soon as that peer has come, and the own one at once.
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
            // Sends and receives are of one group of calls: which comes first is up to the library.
            in_place: !matches!(kind, K::AllToAll(_) | K::Permute { .. }),
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
            (CollectiveVariant::Pull, K::ReduceScatter(_)) => pull,
            // The exit also tells that nobody reads a rank's sizes any more.
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
                let touch = PeerAccess::ReadOperandWriteResult;
                Contract { peer_access: touch, symmetric_operand: true, in_place: true, ..push }
            }
            (CollectiveVariant::Push | CollectiveVariant::Copies, K::AllGather) => {
                Contract { in_place: true, ..push }
            }
            (CollectiveVariant::Push | CollectiveVariant::Copies, K::AllToAll(AllToAllSplits::Even)) => push,
            (CollectiveVariant::Put, K::Broadcast { .. } | K::Permute { .. }) => Contract {
                entry_barrier: false,
                sync_scope: SyncScope::Pairs,
                exit_barrier: ExitBarrierPolicy::Never,
                result_after_rendezvous: false,
                // The root reads its operand alone; a rank of a permute may read while it is written to.
                in_place: matches!(kind, K::Broadcast { .. }),
                ..push
            },
            _ => return None,
        })
    }

    /// The bytes of symmetric memory that this variant asks for: operand, result and both landing zones. `bytes` is the
    /// size that estimates are for: of the result of an all-gather, of the operand of the others.
    pub fn symmetric_bytes(self, kind: &CollectiveKind, bytes: u64, n: u64) -> u64 {
        let Some(contract) = self.contract(kind) else { return 0 };
        let (operand, result) = kind.operand_and_result_sizes(bytes, n);
        let of = |symmetric: bool, bytes: u64| if symmetric { bytes } else { 0 };
        of(contract.symmetric_operand, operand)
            .saturating_add(of(contract.symmetric_result, result))
            .saturating_add(self.landing_bytes(kind, operand, n).saturating_mul(2))
    }

    /// The size in bytes of one landing zone on a group of `n` ranks for an operand of `bytes` bytes
    /// ([`landing_zone_bytes`]).
    pub fn landing_bytes(self, kind: &CollectiveKind, bytes: u64, n: u64) -> u64 {
        if self != CollectiveVariant::Ll {
            return 0;
        }
        let message = if kind.facts().operand_pieces { bytes.div_ceil(n.max(1)) } else { bytes };
        landing_zone_bytes(message, n, LL_BYTES)
    }
}

/// The bytes up to which the messages of all ranks of a cell together go by LL: words of 8 bytes, 4 of them data and 4 a
/// flag. Larger ones go by LL128: lines of 128 bytes, 120 of them data, in a part of the landing zone that LL never
/// uses. The host has one protocol of the same idea for all sizes, lines of 64 bytes with 60 of data, which takes no
/// more room.
pub const LL_BYTES: u64 = 128 << 10;

/// Sizes in bytes from which on a variant takes another form on GPUs. They follow from the call alone and are equal on all
/// ranks. Plans are made and run by the default; others are for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProtocolThresholds {
    /// What the messages of all ranks of a cell together may have to go by LL and not by LL128. Landing zones are laid
    /// out by it: it is [`LL_BYTES`] wherever a plan runs.
    pub ll_bytes: u64,
    /// What an all-reduce by LL128 must save on the links of a rank to go in two rounds, a reduce-scatter and an
    /// all-gather: one round sends the operand to each peer, two send a slice to and from each.
    pub min_saved_bytes: u64,
    /// The smallest operand of a two-shot all-reduce between two ranks that stores to its peer and loads nothing from
    /// it; among more ranks it is smaller by as much as there are more. Then it adds a residual along the way.
    pub min_pushed_bytes: u64,
}

impl Default for ProtocolThresholds {
    fn default() -> Self {
        ProtocolThresholds { ll_bytes: LL_BYTES, min_saved_bytes: 512 << 10, min_pushed_bytes: 32 << 20 }
    }
}

impl ProtocolThresholds {
    /// Whether messages of so many bytes to each of `n` ranks go by LL, not by LL128.
    pub fn uses_ll(&self, message: u64, n: u64) -> bool {
        message <= self.ll_bytes / n.max(1)
    }

    /// Whether an all-reduce by `ll` of so many bytes among `n` ranks goes in two rounds.
    pub fn uses_two_rounds(&self, bytes: u64, n: u64) -> bool {
        // One round sends n - 1 operands, two send 2 (n - 1) / n of one.
        n > 2
            && !self.uses_ll(bytes, n)
            && bytes.saturating_mul((n - 1) * (n - 2)) / n >= self.min_saved_bytes
    }

    /// Whether an all-reduce in two shots of so many bytes among `n` ranks is large enough to go by stores alone.
    pub fn uses_stores_only(&self, bytes: u64, n: u64) -> bool {
        bytes.saturating_mul(n) >= self.min_pushed_bytes.max(1).saturating_mul(2)
    }
}

/// The bytes of a line of LL128, which lies at a multiple of as many: landing zones do, and all their parts.
pub const LL128_LINE: u64 = 128;

/// The part of a landing zone that holds messages of up to `bytes` bytes by LL. Every rank of the `n`, this one
/// included, has a slot.
pub fn ll_zone_bytes(bytes: u64, n: u64) -> u64 {
    (n * (bytes.div_ceil(4) * 8).max(64)).next_multiple_of(LL128_LINE)
}

/// The size in bytes of a landing zone for messages of up to `bytes` bytes among `n` ranks, where those that have
/// `ll` bytes together go by LL and larger ones, behind them, by LL128.
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

    #[test]
    fn pairs_leave_out_who_sends_to_itself() {
        let permute = CollectiveKind::Permute { pairs: vec![(2, 0), (1, 1), (0, 2)] };
        assert_eq!(permute.send_pairs(3), Some(vec![(2, 0), (0, 2)]));
        assert_eq!(CollectiveKind::Permute { pairs: vec![] }.send_pairs(3), Some(vec![]));
        assert_eq!(CollectiveKind::Broadcast { root: 1 }.send_pairs(3), Some(vec![(1, 0), (1, 2)]));
        assert_eq!(CollectiveKind::Broadcast { root: 0 }.send_pairs(1), Some(vec![]));
        assert_eq!(CollectiveKind::AllGather.send_pairs(3), None);
    }

    #[test]
    fn contracts_hold_together() {
        for kind in &CollectiveKind::sample_kinds(2) {
            for &variant in CollectiveVariant::ALL {
                let Some(c) = variant.contract(kind) else { continue };
                let what = format!("{} {variant}", kind.name());
                assert!(!c.entry_barrier || c.sync_scope == SyncScope::Group, "{what}");
                assert!(!c.result_after_rendezvous || c.sync_scope == SyncScope::Group, "{what}");
                // What peers touch before a rank's own step, or after it, the library does not keep apart.
                assert!(
                    !variant.is_library()
                        || c.peer_access == PeerAccess::Nothing && !c.result_after_rendezvous,
                    "{what}"
                );
                assert_eq!(c.sync_scope == SyncScope::Pairs, variant == CollectiveVariant::Put, "{what}");
                assert!(c.sync_scope != SyncScope::Pairs || kind.send_pairs(2).is_some(), "{what}");
                assert!(!c.peer_access.reads_operand() || c.symmetric_operand, "{what}");
                assert!(!c.peer_access.writes_result() || c.symmetric_result, "{what}");
                assert!(
                    variant != CollectiveVariant::OneShot || c.exit_barrier == ExitBarrierPolicy::Droppable,
                    "{what}"
                );
                assert!(
                    c.same_bits,
                    "{what}: `Replication` takes all collectives to give ranks the same bits"
                );
            }
        }
    }
}
