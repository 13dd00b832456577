//! The time of a collective, or of several collectives that run as one step: one start-up, and the transfers
//! one after another.
//!
//! Collectives of one kind take the time of one collective with the sum of their bytes, because the curve of a
//! kind covers its bytes. Collectives of several kinds have the longest of their start-ups. A step of several
//! collectives takes slightly longer for each further one.

use smallvec::SmallVec;

use super::timeline::{self, TimedStep};
use super::{CollectiveVariant, MachineProfile};
use crate::collective::CollectiveKind;

/// The cost of each further collective of a step besides its bytes, in microseconds: loading its addresses and
/// sizes. Four gathers of 128 KiB on two H100 took 6.6 µs less as one step than one by one.
const EXTRA_COLLECTIVE_US: f64 = 0.2;

struct KindBytes<'k> {
    kind: &'k CollectiveKind,
    bytes: u64,
}

fn sum_bytes_by_kind<'k>(collectives: &[(&'k CollectiveKind, u64)]) -> SmallVec<[KindBytes<'k>; 2]> {
    let mut out: SmallVec<[KindBytes<'k>; 2]> = SmallVec::new();
    for &(kind, bytes) in collectives {
        match out.iter_mut().find(|same| same.kind.collective_name() == kind.collective_name()) {
            Some(same) => same.bytes = same.bytes.saturating_add(bytes),
            None => out.push(KindBytes { kind, bytes }),
        }
    }
    out
}

impl MachineProfile {
    /// The estimated time in microseconds of collectives that run as one step, each given as its kind and
    /// bytes. The other parameters are those of [`estimate_collective`](Self::estimate_collective). `None` if
    /// there are no collectives, or if one of them has no estimate.
    pub fn estimate_collectives(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        variant: CollectiveVariant,
        exit: Option<bool>,
        ranks: u32,
    ) -> Option<f64> {
        if let &[(kind, bytes)] = collectives {
            return self.estimate_collective(kind, variant, exit, bytes, ranks);
        }
        let mut startup_us = 0.0f64;
        let mut transfer_us = 0.0;
        for KindBytes { kind, bytes } in sum_bytes_by_kind(collectives) {
            let whole_us = self.estimate_collective(kind, variant, exit, bytes, ranks)?;
            let own_us = self.estimate_collective(kind, variant, exit, 1, ranks)?.min(whole_us);
            transfer_us += whole_us - own_us;
            startup_us = startup_us.max(own_us);
        }
        let further = collectives.len().checked_sub(1)?;
        Some(startup_us + transfer_us + EXTRA_COLLECTIVE_US * further as f64)
    }

    /// Collectives that run as one step, as a step of a timeline: their time alone, the share that they take
    /// from concurrent computation, and their rate next to it. On a machine with an unknown number of
    /// multiprocessors, neither slows the other.
    pub fn timed_collectives(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        variant: CollectiveVariant,
        exit: Option<bool>,
        ranks: u32,
    ) -> Option<TimedStep> {
        let us = self.estimate_collectives(collectives, variant, exit, ranks)?;
        let full = f64::from(timeline::FULL_RATE);
        let rates = sum_bytes_by_kind(collectives)
            .into_iter()
            .map(|summed| self.concurrent_rate(summed.kind, variant, ranks));
        let (share, rate) = match self.occupied_compute_share_of_collectives(collectives, variant, ranks) {
            Some(share) => (share * full, rates.fold(1.0, f64::min) * full),
            None => (0.0, full),
        };
        let time = timeline::us_to_ns(us);
        let share = share as u32;
        let rate = rate as u32;
        Some(TimedStep { communicates: true, compute_share: share, rate, ..TimedStep::compute(time) })
    }

    /// The estimated microseconds that collectives, which run as one step, add to a run in which computation
    /// runs concurrently during the fraction `hidden` of their time (see the [module](super)). The other
    /// parameters are those of [`estimate_collectives`](Self::estimate_collectives).
    pub fn estimate_added_us(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        variant: CollectiveVariant,
        exit: Option<bool>,
        ranks: u32,
        hidden: f64,
    ) -> Option<f64> {
        let us = self.estimate_collectives(collectives, variant, exit, ranks)?;
        if hidden == 0.0 {
            return Some(us);
        }
        let Some(share) = self.occupied_compute_share_of_collectives(collectives, variant, ranks) else {
            return Some(us);
        };
        Some(us * (1.0 - hidden + hidden * share))
    }

    /// The share of its time that a step of collectives takes from concurrent computation.
    fn occupied_compute_share_of_collectives(
        &self,
        collectives: &[(&CollectiveKind, u64)],
        variant: CollectiveVariant,
        ranks: u32,
    ) -> Option<f64> {
        let mut max_share = 0.0;
        for summed in sum_bytes_by_kind(collectives) {
            let share = self.occupied_compute_share(summed.kind, variant, summed.bytes, ranks)?;
            max_share = f64::max(max_share, share);
        }
        Some(max_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{AllToAllSplits, CollectiveReduceOp};

    const GATHER: CollectiveKind = CollectiveKind::AllGather;
    const EXCHANGE: CollectiveKind = CollectiveKind::AllToAll(AllToAllSplits::Even);
    const SUM: CollectiveKind = CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum);

    fn profile() -> MachineProfile {
        MachineProfile::builtin("h200x4").expect("a profile")
    }

    #[test]
    fn a_step_of_one_collective_takes_its_own_time() {
        let p = profile();
        for kind in [&GATHER, &EXCHANGE, &SUM] {
            for bytes in [1, 1 << 10, 100_000, 1 << 20, 1 << 29] {
                for exit in [Some(false), Some(true)] {
                    let several = p.estimate_collectives(&[(kind, bytes)], CollectiveVariant::Pull, exit, 4);
                    let single = p
                        .estimate_collective(kind, CollectiveVariant::Pull, exit, bytes, 4)
                        .expect("a curve");
                    assert_eq!(several, Some(single), "{bytes}");
                }
            }
        }
        assert_eq!(p.estimate_collectives(&[], CollectiveVariant::Pull, None, 4), None);
    }

    #[test]
    fn several_have_one_start_up_and_all_their_bytes() {
        let p = profile();
        let us = |all: &[(&CollectiveKind, u64)]| {
            p.estimate_collectives(all, CollectiveVariant::Pull, Some(false), 4).expect("curves")
        };
        let together = us(&[(&GATHER, 128 << 10); 4]);
        assert!(
            (together - us(&[(&GATHER, 512 << 10)]) - 3.0 * EXTRA_COLLECTIVE_US).abs() < 1e-9,
            "{together}"
        );
        // Two kinds, in any order.
        let [mixed, reversed] =
            [us(&[(&EXCHANGE, 2 << 20), (&SUM, 1 << 10)]), us(&[(&SUM, 1 << 10), (&EXCHANGE, 2 << 20)])];
        assert!((mixed - reversed).abs() < 1e-9);
        let exchange = us(&[(&EXCHANGE, 2 << 20)]);
        let sum = us(&[(&SUM, 1 << 10)]);
        assert!(mixed > exchange && mixed < exchange + sum - 3.0, "{mixed} {exchange} {sum}");
        // A kind that the variant does not support.
        let reduce = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
        assert_eq!(
            p.estimate_collectives(&[(&GATHER, 4), (&reduce, 4)], CollectiveVariant::Pull, None, 4),
            None
        );
    }

    #[test]
    fn several_collectives_slow_computation_like_one_of_all_bytes() {
        let p = profile();
        let gathers = [(&GATHER, 1u64 << 20); 8];
        let several = p.timed_collectives(&gathers, CollectiveVariant::Push, None, 4).expect("curves");
        let joined =
            p.timed_collectives(&[(&GATHER, 8 << 20)], CollectiveVariant::Push, None, 4).expect("a curve");
        assert_eq!((several.compute_share, several.rate), (joined.compute_share, joined.rate));
        assert!(several.communicates && several.time > joined.time);
    }
}
