//! The cost model that scales a curve from one number of ranks to another.
//!
//! A time is a start-up plus a transfer. The start-up is the cost of barriers and flags, which hardly depends
//! on the number of ranks within one machine. The transfer is proportional to the bytes that the busiest link
//! of a rank carries ([`link_traffic`]). Let `m` be the curve's number of ranks, `first` the time of its first
//! point and `t` its time at these bytes. Then `n` ranks take `first + (t - first) * traffic(n) / traffic(m)`.
//! Where noise made `t` less than `first`, all of `t` is start-up.

use super::curve::CollectiveCurve;
use crate::collective::{CollectiveName, CollectiveVariant, ResultDistribution};

/// The [transfer share](super::MachineProfile::transfer_share) of a machine whose profile has no contention of
/// copies: an assumption.
pub const ASSUMED_TRANSFER_SHARE: f64 = 1.0 / 3.0;
const LIBRARY_BLOCKS: u64 = 32;
/// The maximum number of ranks of a cell in which kernels on GPUs communicate. Larger cells use the library.
pub const MAX_GPU_CELL_RANKS: u32 = 8;

/// The share of its time that a collective takes from concurrent compute on a GPU with `multiprocessors`
/// multiprocessors. Copies and copy engines occupy none of these, and take the `transfer_share` of all
/// variants. A kernel has one block for every 4 KiB that it moves for a peer (1 KiB by `ll`), up to
/// `max_blocks` blocks. If a profile does not state it, it is 128 (64 by `ll`), which is how GPUs run them.
pub fn occupied_compute_share(
    collective: CollectiveName,
    variant: CollectiveVariant,
    bytes: u64,
    ranks: u32,
    max_blocks: Option<u32>,
    multiprocessors: u32,
    transfer_share: f64,
) -> f64 {
    let facts = collective.facts();
    let in_one_round =
        !facts.reduces || matches!(variant, CollectiveVariant::OneShot | CollectiveVariant::Ll);
    let moves_whole_tensor = facts.preserves_positions() && in_one_round;
    let moved = if moves_whole_tensor { bytes } else { bytes / u64::from(ranks.max(1)) };
    let blocks = match variant {
        CollectiveVariant::Copies | CollectiveVariant::PullCopies | CollectiveVariant::CopyEngine => 0,
        CollectiveVariant::Plain | CollectiveVariant::NcclWindow => LIBRARY_BLOCKS,
        CollectiveVariant::Ll => moved.div_ceil(1 << 10).min(max_blocks.map_or(64, u64::from)),
        _ => moved.div_ceil(4 << 10).min(max_blocks.map_or(128, u64::from)),
    };
    (blocks as f64 / f64::from(multiprocessors.max(1)) + transfer_share).min(1.0)
}

/// The rate of a collective next to computation that fills the GPU, as a fraction of full speed. A kernel gets
/// multiprocessors only as blocks of the computation end: a reduce-scatter of 0.36 ms took 1.7 ms next to
/// products on H100s. Copies need none. The barriers around them do, and so do the kernels that start the
/// library's copy engines. On two H100, 16 MiB by `copies` and `pull_copies` ran at 0.47 to 0.64 next to
/// products, and by copy engines at 0.26 to 0.35.
pub fn concurrent_rate(variant: CollectiveVariant) -> f64 {
    match variant {
        CollectiveVariant::Copies | CollectiveVariant::PullCopies => 0.5,
        _ => 0.2,
    }
}

/// The bytes through one rank's link for each byte of the collective, on groups of `ranks` ranks.
///
/// All-reduces that read or write everything (`one_shot`, `ll`) carry `n - 1`, and all-reduces in two phases
/// `2(n-1)/n`. All-gather, reduce-scatter and all-to-all carry `(n-1)/n` of their larger side. Broadcast and
/// permute carry each byte once, except that the root of a broadcast by `put` sends each byte to all other
/// ranks.
pub fn link_traffic(collective: CollectiveName, variant: CollectiveVariant, ranks: u32) -> f64 {
    let n = f64::from(ranks.max(1));
    let facts = collective.facts();
    match variant {
        _ if !facts.preserves_positions() => (n - 1.0) / n,
        CollectiveVariant::OneShot | CollectiveVariant::Ll if facts.reduces => n - 1.0,
        _ if facts.reduces => 2.0 * (n - 1.0) / n,
        CollectiveVariant::Put if facts.result_distribution == ResultDistribution::Replicated => n - 1.0,
        _ => 1.0,
    }
}

/// The time in microseconds that `curve` gives for `bytes` on groups of `ranks` ranks.
pub(super) fn scale_to_ranks(curve: &CollectiveCurve, bytes: u64, ranks: u32) -> f64 {
    let time = curve.time_at(bytes);
    if ranks == curve.ranks {
        return time;
    }
    let startup = curve.points.first().map_or(0.0, |p| p.1).min(time);
    let factor = link_traffic(curve.collective, curve.variant, ranks)
        / link_traffic(curve.collective, curve.variant, curve.ranks);
    startup + (time - startup) * factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Provenance;

    const TRANSFER_SHARE: f64 = 0.375;

    #[test]
    fn the_transfer_scales_and_the_start_up_stays() {
        let curve = |collective: CollectiveName, variant: CollectiveVariant| CollectiveCurve {
            collective,
            variant,
            exit: None,
            ranks: 4,
            provenance: Provenance::Measured,
            note: String::new(),
            points: vec![(1000, 3.0), (2000, 6.0)],
            spread: vec![],
            blocks: vec![],
        };
        assert_eq!(
            scale_to_ranks(&curve(CollectiveName::AllReduce, CollectiveVariant::OneShot), 2000, 8),
            3.0 + 3.0 * 7.0 / 3.0
        );
        assert_eq!(
            scale_to_ranks(&curve(CollectiveName::AllReduce, CollectiveVariant::TwoShot), 2000, 2),
            3.0 + 3.0 * (1.0 / 1.5)
        );
        assert_eq!(scale_to_ranks(&curve(CollectiveName::AllGather, CollectiveVariant::Push), 2000, 1), 3.0);
        assert_eq!(scale_to_ranks(&curve(CollectiveName::AllGather, CollectiveVariant::Push), 1, 8), 3.0);
        assert_eq!(scale_to_ranks(&curve(CollectiveName::Broadcast, CollectiveVariant::Plain), 2000, 8), 6.0);
        assert_eq!(scale_to_ranks(&curve(CollectiveName::Broadcast, CollectiveVariant::Put), 2000, 7), 9.0);
        assert_eq!(
            scale_to_ranks(&curve(CollectiveName::PermuteRanks, CollectiveVariant::Put), 2000, 8),
            6.0
        );
    }

    #[test]
    fn kernels_take_blocks_and_every_variant_takes_the_transfer_share() {
        let share = |variant, bytes| {
            occupied_compute_share(CollectiveName::AllGather, variant, bytes, 2, None, 128, TRANSFER_SHARE)
        };
        assert_eq!(share(CollectiveVariant::Copies, 1 << 30), TRANSFER_SHARE);
        assert_eq!(share(CollectiveVariant::Push, 32 << 13), 0.25 + TRANSFER_SHARE);
        assert_eq!(share(CollectiveVariant::Push, 1 << 30), 1.0);
        assert_eq!(
            super::occupied_compute_share(
                CollectiveName::AllGather,
                CollectiveVariant::Push,
                1 << 30,
                2,
                Some(16),
                128,
                TRANSFER_SHARE
            ),
            0.125 + TRANSFER_SHARE
        );
        assert_eq!(share(CollectiveVariant::Plain, 1 << 30), 0.25 + TRANSFER_SHARE);
        assert_eq!(
            super::occupied_compute_share(
                CollectiveName::AllReduce,
                CollectiveVariant::Ll,
                1 << 14,
                2,
                None,
                128,
                TRANSFER_SHARE
            ),
            0.125 + TRANSFER_SHARE
        );
    }
}
