//! Profiles in which one time is an outlier, as noise of a measurement leaves it.

use symmc_ir::machine::{CollectiveCurve, MachineProfile};
use symmc_ir::{CollectiveKind, CollectiveVariant};

const BYTES: [u64; 5] = [1, 5000, 1 << 20, 1 << 30, 1 << 50];
const RANKS: [u32; 4] = [2, 3, 4, 8];

/// Checks every estimate of the kinds that are measured by the curve with this index.
fn check_estimates(profile: &MachineProfile, index: usize) {
    let curve = &profile.curves[index];
    let kinds = CollectiveKind::sample_kinds(8);
    let measured = kinds.iter().filter(|kind| kind.measured_as() == curve.collective);
    let variant = curve.variant;
    for kind in measured {
        for (bytes, ranks) in BYTES.into_iter().flat_map(|bytes| RANKS.map(|ranks| (bytes, ranks))) {
            for exit in [Some(true), Some(false)] {
                let single = profile.estimate_collective(kind, variant, exit, bytes, ranks);
                let joined = [(kind, bytes), (&CollectiveKind::AllGather, 1 << 20), (kind, 1)];
                let several = profile.estimate_collectives(&joined, variant, exit, ranks);
                let added = profile.estimate_added_us(&[(kind, bytes)], variant, exit, ranks, 0.3);
                for us in [single, several, added].into_iter().flatten() {
                    assert!(us.is_finite() && us > 0.0, "{curve} {kind:?} {bytes} {ranks}: {us}");
                }
            }
        }
    }
}

/// The first, the middle and the last time of each curve of each profile, by factors in both directions.
#[test]
fn one_outlier_leaves_estimates_positive() {
    for name in MachineProfile::builtin_names() {
        let mut profile = MachineProfile::builtin(name).expect("a profile");
        for index in 0..profile.curves.len() {
            let last_point = profile.curves[index].points.len() - 1;
            for point in [0, last_point / 2, last_point] {
                let measured = profile.curves[index].points[point].1;
                for factor in [1.3, 2.0, 30.0] {
                    for us in [measured * factor, measured / factor] {
                        profile.curves.edit(|curves| curves[index].points[point].1 = us);
                        check_estimates(&profile, index);
                    }
                }
                profile.curves.edit(|curves| curves[index].points[point].1 = measured);
            }
        }
    }
}

/// A start-up that takes longer than the transfer of several kinds together.
#[test]
fn joint_estimates_of_falling_curves_are_positive() {
    let mut profile = MachineProfile::builtin("h200x4").expect("a profile");
    profile.curves.edit(|curves| {
        for CollectiveCurve { points, .. } in curves {
            let count = points.len();
            points.iter_mut().enumerate().for_each(|(i, point)| point.1 = (count - i) as f64);
        }
    });
    let kinds = CollectiveKind::sample_kinds(4);
    let collectives: Vec<_> = kinds.iter().map(|kind| (kind, 1 << 20)).collect();
    for &variant in CollectiveVariant::ALL {
        for pair in collectives.windows(2) {
            for us in RANKS.map(|ranks| profile.estimate_collectives(pair, variant, None, ranks)) {
                assert!(us.is_none_or(|us| us.is_finite() && us > 0.0), "{variant} {pair:?}: {us:?}");
            }
        }
    }
}
