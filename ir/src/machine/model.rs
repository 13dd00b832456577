//! The cost model that carries a curve from one number of ranks to another.
//!
//! A time is a start-up, which the barriers and flags cost and which hardly depends on the number of
//! ranks within one machine, plus a transfer in proportion to the bytes that the busiest link of a rank
//! carries ([`traffic`]). With `m` the curve's number of ranks, `first` the time of its first point and
//! `t` its time at these bytes, `n` ranks take `first + (t - first) * traffic(n) / traffic(m)`.

use super::curve::Curve;
use crate::collective::{CollectiveName, Gives, Variant};

/// What moving bytes at the speed of links and memory takes from compute beside it, whoever moves them: on two H200
/// copies of 213 µs add 77 to 119 to a product of 1334 to 1391.
const MOVING: f64 = 1.0 / 3.0;
const LIBRARY_BLOCKS: u64 = 32;
/// The most ranks of a cell that kernels on GPUs communicate in; more are left to the library.
pub const GPU_CELL: u32 = 8;

/// The part of its time that a collective takes from compute beside it on a GPU of so many multiprocessors. Copies and
/// copy engines take none of these; a kernel has a block on one for every 4 KiB that it moves for a peer (1 KiB by
/// `ll`), up to `most`, or 128 (64) where a profile names none, which is how GPUs run them.
pub fn taken(
    collective: CollectiveName,
    variant: Variant,
    bytes: u64,
    ranks: u32,
    most: Option<u32>,
    multiprocessors: u32,
) -> f64 {
    let facts = collective.facts();
    let in_one_round = !facts.reduces || matches!(variant, Variant::OneShot | Variant::Ll);
    let whole = facts.keeps_positions() && in_one_round;
    let moved = if whole { bytes } else { bytes / u64::from(ranks.max(1)) };
    let most = |own: u64| most.map_or(own, u64::from);
    let blocks = match variant {
        Variant::Copies | Variant::PullCopies | Variant::CopyEngine => 0,
        Variant::Plain | Variant::NcclWindow => LIBRARY_BLOCKS,
        Variant::Ll => moved.div_ceil(1 << 10).min(most(64)),
        _ => moved.div_ceil(4 << 10).min(most(128)),
    };
    (blocks as f64 / f64::from(multiprocessors.max(1)) + MOVING).min(1.0)
}

/// At which rate of full speed a collective runs beside computation that fills the GPU. A kernel gets multiprocessors only as
/// blocks of the computation end: a reduce-scatter of 0.36 ms took 1.7 ms beside products on H100s. Copies need none, but the
/// barriers around them do, and so do the kernels with which the library's copy engines are started. On two H100, 16 MiB by `copies` and
/// `pull_copies` ran at 0.47 to 0.64 beside products, by copy engines at 0.26 to 0.35.
pub fn rate_beside(variant: Variant) -> f64 {
    match variant {
        Variant::Copies | Variant::PullCopies => 0.5,
        _ => 0.2,
    }
}

/// The bytes through one rank's link for each byte of the collective, on groups of `ranks` ranks.
///
/// All-reduces that read or write everything (`one_shot`, `ll`) carry `n - 1`, those in two phases
/// `2(n-1)/n`; all-gather, reduce-scatter and all-to-all carry `(n-1)/n` of their larger side; broadcast
/// and permute carry each byte once, but a root that puts sends each byte to all others.
pub fn traffic(collective: CollectiveName, variant: Variant, ranks: u32) -> f64 {
    let n = f64::from(ranks.max(1));
    let facts = collective.facts();
    match variant {
        _ if !facts.keeps_positions() => (n - 1.0) / n,
        Variant::OneShot | Variant::Ll if facts.reduces => n - 1.0,
        _ if facts.reduces => 2.0 * (n - 1.0) / n,
        Variant::Put if facts.gives == Gives::Same => n - 1.0,
        _ => 1.0,
    }
}

/// The time in microseconds that `curve` gives for `bytes` on groups of `ranks` ranks.
pub(super) fn scaled(curve: &Curve, bytes: u64, ranks: u32) -> f64 {
    let time = curve.at(bytes);
    if ranks == curve.ranks {
        return time;
    }
    let first = curve.points.first().map_or(0.0, |p| p.1);
    let factor = traffic(curve.collective, curve.variant, ranks)
        / traffic(curve.collective, curve.variant, curve.ranks);
    first + (time - first) * factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Provenance;

    #[test]
    fn the_transfer_scales_and_the_start_up_stays() {
        let curve = |collective: CollectiveName, variant: Variant| Curve {
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
            scaled(&curve(CollectiveName::AllReduce, Variant::OneShot), 2000, 8),
            3.0 + 3.0 * 7.0 / 3.0
        );
        assert_eq!(
            scaled(&curve(CollectiveName::AllReduce, Variant::TwoShot), 2000, 2),
            3.0 + 3.0 * (1.0 / 1.5)
        );
        assert_eq!(scaled(&curve(CollectiveName::AllGather, Variant::Push), 2000, 1), 3.0);
        assert_eq!(scaled(&curve(CollectiveName::AllGather, Variant::Push), 1, 8), 3.0);
        assert_eq!(scaled(&curve(CollectiveName::Broadcast, Variant::Plain), 2000, 8), 6.0);
        assert_eq!(scaled(&curve(CollectiveName::Broadcast, Variant::Put), 2000, 7), 9.0);
        assert_eq!(scaled(&curve(CollectiveName::PermuteRanks, Variant::Put), 2000, 8), 6.0);
    }

    #[test]
    fn kernels_take_their_blocks_and_all_take_what_moving_takes() {
        let taken = |variant, bytes| taken(CollectiveName::AllGather, variant, bytes, 2, None, 128);
        assert_eq!(taken(Variant::Copies, 1 << 30), MOVING);
        assert_eq!(taken(Variant::Push, 32 << 13), 0.25 + MOVING);
        assert_eq!(taken(Variant::Push, 1 << 30), 1.0);
        assert_eq!(
            super::taken(CollectiveName::AllGather, Variant::Push, 1 << 30, 2, Some(16), 128),
            0.125 + MOVING
        );
        assert_eq!(taken(Variant::Plain, 1 << 30), 0.25 + MOVING);
        assert_eq!(
            super::taken(CollectiveName::AllReduce, Variant::Ll, 1 << 14, 2, None, 128),
            0.125 + MOVING
        );
    }
}
