//! Curves: measured or modelled times by size, and their interpolation.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::collective::{CollectiveName, CollectiveVariant, ExitBarrier};

/// The time of one variant of one collective by its size, on groups of one number of ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "written::CurveFields", into = "written::CurveFields")]
pub struct CollectiveCurve {
    pub collective: CollectiveName,
    pub variant: CollectiveVariant,
    /// For a variant with a droppable exit barrier: whether it was kept or dropped.
    pub exit: Option<ExitBarrier>,
    /// The number of ranks in the group, at least 2.
    pub ranks: u32,
    pub provenance: Provenance,
    /// The method of measurement or the origin of the model, for people.
    pub note: String,
    /// Bytes and microseconds, in ascending order of bytes.
    pub points: Vec<(u64, f64)>,
    /// For each point the distance between the smallest and the largest of its measurements, as a fraction of
    /// the time, if known.
    pub spread: Vec<f64>,
    /// For each point the maximum number of blocks of the kernel that the time applies to, if the variant is a
    /// kernel and the number is known. All ranks launch the same number.
    pub blocks: Vec<u32>,
}

/// The time of a copy within the memory of one rank by its size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyCurve {
    #[serde(rename = "source")]
    pub provenance: Provenance,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Bytes and microseconds, in ascending order of bytes.
    pub points: Vec<(u64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// Measured on the machine.
    Measured,
    /// Computed by a formula from other numbers.
    Modelled,
}

impl CollectiveCurve {
    /// The key: a profile has at most one curve for each.
    pub(super) fn key(&self) -> (CollectiveName, CollectiveVariant, Option<ExitBarrier>, u32) {
        (self.collective, self.variant, self.exit, self.ranks)
    }

    /// The time in microseconds for `bytes`, on this curve's number of ranks.
    pub fn time_at(&self, bytes: u64) -> f64 {
        interpolate_time(&self.points, bytes)
    }

    /// The maximum number of blocks of the kernel for `bytes`: that of the last point that is not larger, or of
    /// the first point.
    pub fn blocks_at(&self, bytes: u64) -> Option<u32> {
        let above = self.points.partition_point(|p| p.0 <= bytes);
        self.blocks.get(above.saturating_sub(1)).copied()
    }
}

impl fmt::Display for CollectiveCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe_curve(self.collective.name(), self.variant.name(), self.exit, self.ranks))
    }
}

fn describe_curve(collective: &str, variant: &str, exit: Option<ExitBarrier>, ranks: u32) -> String {
    let exit = match exit {
        Some(ExitBarrier::Kept) => " with exit barrier",
        Some(ExitBarrier::Dropped) => " without exit barrier",
        None => "",
    };
    format!("{collective} {variant}{exit} on {ranks} ranks")
}

mod written {
    use serde::{Deserialize, Serialize};

    use super::{CollectiveName, CollectiveVariant, ExitBarrier, Provenance, describe_curve};

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct CurveFields {
        collective: String,
        variant: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<ExitBarrier>,
        ranks: u32,
        #[serde(rename = "source")]
        provenance: Provenance,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
        points: Vec<(u64, f64)>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        spread: Vec<f64>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocks: Vec<u32>,
    }

    impl From<super::CollectiveCurve> for CurveFields {
        fn from(curve: super::CollectiveCurve) -> CurveFields {
            let super::CollectiveCurve {
                collective,
                variant,
                exit,
                ranks,
                provenance,
                note,
                points,
                spread,
                blocks,
            } = curve;
            let collective = collective.name().to_string();
            let variant = variant.name().to_string();
            CurveFields { collective, variant, exit, ranks, provenance, note, points, spread, blocks }
        }
    }

    impl TryFrom<CurveFields> for super::CollectiveCurve {
        type Error = String;

        fn try_from(curve: CurveFields) -> Result<super::CollectiveCurve, String> {
            let CurveFields { collective, variant, exit, ranks, provenance, note, points, spread, blocks } =
                curve;
            let unknown = |field: &str, expected: String| {
                let curve = describe_curve(&collective, &variant, exit, ranks);
                format!("curve {curve}: unknown {field}, expected {expected}")
            };
            let collective = CollectiveName::from_name(&collective).ok_or_else(|| {
                let names: Vec<&str> = CollectiveName::ALL.iter().map(|c| c.name()).collect();
                unknown("collective", format!("one of {}", names.join(", ")))
            })?;
            let variant = CollectiveVariant::from_name(&variant)
                .ok_or_else(|| unknown("variant", format!("one of {}", CollectiveVariant::names())))?;
            Ok(super::CollectiveCurve {
                collective,
                variant,
                exit,
                ranks,
                provenance,
                note,
                points,
                spread,
                blocks,
            })
        }
    }
}

/// The time at `bytes`: constant up to the first point, linear in the bytes between points and beyond the last.
/// If the last segment does not rise, the time beyond it is proportional to the bytes.
pub(super) fn interpolate_time(points: &[(u64, f64)], bytes: u64) -> f64 {
    let above = points.partition_point(|p| p.0 < bytes);
    match (above.checked_sub(1).map(|i| points[i]), points.get(above)) {
        (None, Some(first)) => first.1,
        (Some(a), Some(b)) => interpolate_segment(a, *b, bytes),
        (Some(last), None) => match points.len().checked_sub(2).map(|i| points[i]) {
            Some(before) if before.1 < last.1 => interpolate_segment(before, last, bytes),
            _ => last.1 * bytes as f64 / last.0 as f64,
        },
        (None, None) => 0.0,
    }
}

fn interpolate_segment(a: (u64, f64), b: (u64, f64), bytes: u64) -> f64 {
    if bytes == b.0 {
        return b.1;
    }
    a.1 + (b.1 - a.1) * ((bytes - a.0) as f64 / (b.0 - a.0) as f64)
}

/// The allowed times (in microseconds) and rates of a profile. Sums, products and quotients of such numbers are finite.
pub(super) const ALLOWED_NUMBERS: RangeInclusive<f64> = 1e-6..=1e12;

/// Checks that there are points, that the bytes ascend from at least 1, and that the times are allowed.
pub(super) fn check_points(points: &[(u64, f64)]) -> Result<(), String> {
    if points.is_empty() {
        return Err("the curve has no points".into());
    }
    for (i, &(bytes, us)) in points.iter().enumerate() {
        let before = i.checked_sub(1).map_or(0, |i| points[i].0);
        if bytes <= before {
            return Err(format!("the bytes must ascend, found {bytes} after {before}"));
        }
        if !ALLOWED_NUMBERS.contains(&us) {
            let min = ALLOWED_NUMBERS.start();
            let max = ALLOWED_NUMBERS.end();
            return Err(format!("{us:e} µs at {bytes} bytes, expected {min:e} to {max:e} µs"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_constant_below_linear_between_and_extrapolated_above() {
        let points = [(1000, 5.0), (2000, 6.0), (4000, 10.0)];
        for (bytes, us) in
            [(1, 5.0), (1000, 5.0), (1500, 5.5), (2000, 6.0), (3000, 8.0), (4000, 10.0), (6000, 14.0)]
        {
            assert_eq!(interpolate_time(&points, bytes), us, "{bytes}");
        }
    }

    #[test]
    fn blocks_are_those_of_the_point_below() {
        let mut curve: CollectiveCurve = serde_json::from_str(
            r#"{"collective": "all_reduce", "variant": "one_shot", "ranks": 2, "source": "measured",
                "points": [[1000, 5.0], [2000, 6.0]], "blocks": [8, 32]}"#,
        )
        .expect("a curve");
        let blocks = [1, 1000, 1999, 2000, 1 << 40].map(|bytes| curve.blocks_at(bytes));
        assert_eq!(blocks, [8, 8, 8, 32, 32].map(Some));
        curve.blocks.clear();
        assert_eq!(curve.blocks_at(1000), None);
    }

    #[test]
    fn a_single_or_falling_last_stretch_goes_on_in_proportion() {
        assert_eq!(interpolate_time(&[(1000, 5.0)], 3000), 15.0);
        assert_eq!(interpolate_time(&[(1000, 5.0), (2000, 4.0)], 4000), 8.0);
    }
}
