//! The cost model that carries a curve from one number of ranks to another.
//!
//! A time is a start-up, which the barriers and flags cost and which hardly depends on the number of
//! ranks within one machine, plus a transfer in proportion to the bytes that the busiest link of a rank
//! carries ([`traffic`]). With `m` the curve's number of ranks, `first` the time of its first point and
//! `t` its time at these bytes, `n` ranks take `first + (t - first) * traffic(n) / traffic(m)`.

use super::curve::Curve;

/// The bytes through one rank's link for each byte of the collective, on groups of `ranks` ranks.
///
/// All-reduces that read or write everything (`one_shot`, `packets`) carry `n - 1`, those in two phases
/// `2(n-1)/n`; all-gather, reduce-scatter and all-to-all carry `(n-1)/n` of their larger side; broadcast
/// and permute carry each byte once, but a root that puts sends each byte to all others.
pub fn traffic(collective: &str, variant: &str, ranks: u32) -> f64 {
    let n = f64::from(ranks.max(1));
    match (collective, variant) {
        ("all_reduce", "one_shot" | "packets") => n - 1.0,
        ("all_reduce", _) => 2.0 * (n - 1.0) / n,
        ("broadcast", "put") => n - 1.0,
        ("broadcast" | "permute_ranks", _) => 1.0,
        _ => (n - 1.0) / n,
    }
}

/// The time in microseconds that `curve` gives for `bytes` on groups of `ranks` ranks.
pub(super) fn scaled(curve: &Curve, bytes: u64, ranks: u32) -> f64 {
    let time = curve.at(bytes);
    if ranks == curve.ranks {
        return time;
    }
    let first = curve.points.first().map_or(0.0, |p| p.1);
    let factor = traffic(&curve.collective, &curve.variant, ranks)
        / traffic(&curve.collective, &curve.variant, curve.ranks);
    first + (time - first) * factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Source;

    #[test]
    fn the_transfer_scales_and_the_start_up_stays() {
        let curve = |collective: &str, variant: &str| Curve {
            collective: collective.into(),
            variant: variant.into(),
            exit: None,
            ranks: 4,
            source: Source::Measured,
            note: String::new(),
            points: vec![(1000, 3.0), (2000, 6.0)],
            spread: vec![],
        };
        assert_eq!(scaled(&curve("all_reduce", "one_shot"), 2000, 8), 3.0 + 3.0 * 7.0 / 3.0);
        assert_eq!(scaled(&curve("all_reduce", "two_shot"), 2000, 2), 3.0 + 3.0 * (1.0 / 1.5));
        assert_eq!(scaled(&curve("all_gather", "push"), 2000, 1), 3.0);
        assert_eq!(scaled(&curve("all_gather", "push"), 1, 8), 3.0);
        assert_eq!(scaled(&curve("broadcast", "plain"), 2000, 8), 6.0);
        assert_eq!(scaled(&curve("broadcast", "put"), 2000, 7), 9.0);
        assert_eq!(scaled(&curve("permute_ranks", "put"), 2000, 8), 6.0);
    }
}
