//! Repeats measurements that stick out, because something else delayed them.
//!
//! Two rules hold for the times of one case by size: they do not fall with the size, and they do not grow faster than the
//! size. If two neighbours break a rule clearly, either may be wrong, so both sizes are measured twice again. The middle of
//! the three times counts, so a real step in the times stays. A single program has no neighbours. It is repeated if the
//! median of its replays is far above their minimum.

use std::collections::{BTreeSet, HashMap};

use symmc_cuda::bench::{BenchConfig, MeasuredCollective, Measurements};

use crate::error::Error;

/// The factor by which two times may break a rule, or a median may exceed its minimum.
const MAX_EXCESS: f64 = 1.25;

/// Measures collectives, and again the sizes with times that stick out.
pub fn measure_steadily(
    config: &BenchConfig,
    measure: &dyn Fn(&BenchConfig) -> Result<Vec<Measurements>, Error>,
) -> Result<Vec<Measurements>, Error> {
    let first = measure(config)?;
    let sizes = sizes_that_stick_out(&first);
    if sizes.is_empty() {
        return Ok(first);
    }
    let repeat_config = config.clone().with_bytes(sizes.into_iter().collect::<Vec<_>>()).with_norms([]);
    let repeated = [measure(&repeat_config)?, measure(&repeat_config)?];
    Ok(middle_of_rounds(first, &repeated))
}

/// The time of a program, in microseconds. `measure` returns the minimum, median and maximum of its replays.
pub fn measure_program_steadily(measure: &dyn Fn() -> Result<[f64; 3], Error>) -> Result<f64, Error> {
    let [least, first, _] = measure()?;
    if first <= least * MAX_EXCESS {
        return Ok(first);
    }
    let mut times = [first, measure()?[1], measure()?[1]];
    times.sort_by(f64::total_cmp);
    Ok(times[1])
}

/// What is measured at several sizes.
#[derive(PartialEq, Eq, Hash)]
struct Series<'m> {
    collective: &'m str,
    variant: &'m str,
    exit: Option<bool>,
    blocks: Option<u32>,
}

impl<'m> Series<'m> {
    fn of(case: &'m MeasuredCollective) -> Series<'m> {
        let MeasuredCollective { collective, variant, exit, blocks, .. } = case;
        Series { collective, variant, exit: *exit, blocks: *blocks }
    }
}

/// The median of the slowest rank, for the case or copy that `times` selects of each rank.
fn slowest<'m>(
    measured: &'m [Measurements],
    times: impl Fn(&'m Measurements) -> Option<[f64; 3]>,
) -> Option<f64> {
    measured.iter().filter_map(times).map(|[_, median, _]| median).max_by(f64::total_cmp)
}

fn sizes_that_stick_out(measured: &[Measurements]) -> BTreeSet<usize> {
    let Some(first) = measured.first() else { return BTreeSet::new() };
    let copy = |i: usize| slowest(measured, |m| m.copies.get(i).map(|copy| copy.1));
    let copies = first.copies.iter().enumerate().filter_map(|(i, &(bytes, _))| Some((bytes, copy(i)?)));
    let mut curves: Vec<Vec<(usize, f64)>> = vec![copies.collect()];
    let mut series: HashMap<Series<'_>, Vec<(usize, f64)>> = HashMap::new();
    for (i, case) in first.collectives.iter().enumerate() {
        let us = slowest(measured, |m| m.collectives.get(i).and_then(|case| case.us));
        series.entry(Series::of(case)).or_default().extend(us.map(|us| (case.bytes, us)));
    }
    curves.extend(series.into_values());
    let mut out = BTreeSet::new();
    for points in &mut curves {
        points.sort_by_key(|&(bytes, _)| bytes);
        for pair in points.windows(2) {
            let [(small, small_us), (large, large_us)] = [pair[0], pair[1]];
            let falls = small_us > large_us * MAX_EXCESS;
            let outgrows = large_us * small as f64 > small_us * large as f64 * MAX_EXCESS;
            if falls || outgrows {
                out.extend([small, large]);
            }
        }
    }
    out
}

/// The first measurements, in which each case that was repeated has the middle of its times. A case that failed once has
/// failed.
fn middle_of_rounds(mut first: Vec<Measurements>, repeated: &[Vec<Measurements>; 2]) -> Vec<Measurements> {
    let cases = first.first().map_or(0, |m| m.collectives.len());
    for i in 0..cases {
        let case = first[0].collectives[i].clone();
        let is_same =
            |other: &MeasuredCollective| other.bytes == case.bytes && Series::of(other) == Series::of(&case);
        let position_in = |round: &Vec<Measurements>| round.first()?.collectives.iter().position(is_same);
        let [Some(second), Some(third)] = repeated.each_ref().map(position_in) else { continue };
        let rounds = [(&first, i), (&repeated[0], second), (&repeated[1], third)];
        let failure = rounds.iter().position(|(round, position)| {
            round.iter().any(|m| m.collectives.get(*position).is_none_or(|case| case.failed.is_some()))
        });
        let times = rounds
            .map(|(round, position)| slowest(round, |m| m.collectives.get(position).and_then(|c| c.us)));
        let (round, position) = rounds[failure.unwrap_or_else(|| index_of_middle(times))];
        let chosen: Vec<_> = round.iter().map(|m| m.collectives.get(position).cloned()).collect();
        for (m, case) in first.iter_mut().zip(chosen) {
            if let (Some(slot), Some(case)) = (m.collectives.get_mut(i), case) {
                *slot = case;
            }
        }
    }
    let copies = first.first().map_or(0, |m| m.copies.len());
    for i in 0..copies {
        let bytes = first[0].copies[i].0;
        let of_round = |round: &Vec<Measurements>| {
            slowest(round, |m| m.copies.iter().find(|copy| copy.0 == bytes).map(|copy| copy.1))
        };
        let times = [of_round(&first), of_round(&repeated[0]), of_round(&repeated[1])];
        let Some(round) = index_of_middle(times).checked_sub(1) else { continue };
        for (m, again) in first.iter_mut().zip(&repeated[round]) {
            if let Some(copy) = again.copies.iter().find(|copy| copy.0 == bytes) {
                m.copies[i] = *copy;
            }
        }
    }
    first
}

/// The index of the time between the two others; 0 if one is missing.
fn index_of_middle(times: [Option<f64>; 3]) -> usize {
    let mut order = [0, 1, 2];
    if times.iter().any(Option::is_none) {
        return 0;
    }
    order.sort_by(|&a, &b| times[a].unwrap_or(0.0).total_cmp(&times[b].unwrap_or(0.0)));
    order[1]
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A start-up and a bandwidth, different for each variant.
    fn true_us(variant: &str, bytes: usize) -> f64 {
        variant.len() as f64 + bytes as f64 / 1e5
    }

    /// The measurements of two ranks, in which `noise` changes times by variant (or `copy`) and bytes.
    fn measure(config: &BenchConfig, noise: &dyn Fn(&str, usize) -> f64) -> Vec<Measurements> {
        let time = |variant: &str, bytes: usize| {
            let us = true_us(variant, bytes) * noise(variant, bytes);
            [us * 0.9, us, us * 1.5]
        };
        let rank = |_| {
            let case = |variant: &str, bytes: usize| MeasuredCollective {
                collective: "all_reduce".into(),
                variant: variant.into(),
                exit: None,
                bytes,
                blocks: None,
                us: Some(time(variant, bytes)),
                failed: None,
            };
            let of_size = |&bytes: &usize| ["plain", "one_shot"].map(|variant| case(variant, bytes));
            Measurements {
                machine: String::new(),
                multiprocessors: 132,
                copies: config.bytes.iter().map(|&bytes| (bytes, time("copy", bytes))).collect(),
                collectives: config.bytes.iter().flat_map(of_size).collect(),
                norms: vec![],
            }
        };
        [0, 1].map(rank).into()
    }

    fn sizes() -> BenchConfig {
        BenchConfig::default().with_bytes((10..=28).map(|k| 1 << k).collect::<Vec<_>>())
    }

    /// One time of the first round is an outlier, at every size and by every factor that its neighbours show.
    #[test]
    fn outliers_of_one_round_are_replaced() {
        let config = sizes();
        let quiet = measure(&config, &|_, _| 1.0);
        for outlier in ["copy", "plain", "one_shot"] {
            for &size in &config.bytes {
                for factor in [2.6, 30.0, 0.1] {
                    let rounds = RefCell::new(Vec::new());
                    let measured = measure_steadily(&config, &|config| {
                        rounds.borrow_mut().push(config.bytes.clone());
                        let is_first = rounds.borrow().len() == 1;
                        let is_outlier =
                            |variant: &str, bytes| is_first && variant == outlier && bytes == size;
                        Ok(measure(config, &|variant, bytes| {
                            if is_outlier(variant, bytes) { factor } else { 1.0 }
                        }))
                    });
                    assert_eq!(measured.expect("measurements"), quiet, "{outlier} {size} {factor}");
                    let rounds = rounds.into_inner();
                    assert_eq!(rounds.len(), 3, "{outlier} {size} {factor}");
                    assert!(rounds[1].contains(&size) && rounds[1].len() <= 3, "{:?}", rounds[1]);
                }
            }
        }
    }

    #[test]
    fn steady_times_are_measured_once_and_steps_stay() {
        let config = sizes();
        let rounds = Cell::new(0);
        let step = |_: &str, bytes: usize| if bytes > 1 << 20 { 4.0 } else { 1.0 };
        for (noise, expected) in [(None, 1), (Some(&step), 3)] {
            rounds.set(0);
            let with_noise = |config: &BenchConfig| match noise {
                Some(step) => measure(config, step),
                None => measure(config, &|_, bytes| if bytes % 3 == 1 { 1.1 } else { 1.0 }),
            };
            let measured = measure_steadily(&config, &|config| {
                rounds.set(rounds.get() + 1);
                Ok(with_noise(config))
            });
            assert_eq!(measured.expect("measurements"), with_noise(&config));
            assert_eq!(rounds.get(), expected);
        }
    }

    /// A wrong result of any round is reported.
    #[test]
    fn failures_of_repeated_cases_stay() {
        let rounds = Cell::new(0);
        let measured = measure_steadily(&sizes(), &|config| {
            rounds.set(rounds.get() + 1);
            let mut measurements =
                measure(config, &|_, bytes| if bytes == 4096 && rounds.get() == 1 { 9.0 } else { 1.0 });
            if rounds.get() == 3 {
                measurements[1].collectives[0].failed = Some("wrong".into());
            }
            Ok(measurements)
        });
        let measured = measured.expect("measurements");
        let failed: Vec<_> = measured[1].collectives.iter().filter(|case| case.failed.is_some()).collect();
        assert!(matches!(failed[..], [case] if case.bytes <= 4096), "{failed:?}");
    }

    #[test]
    fn programs_are_repeated_if_their_replays_differ() {
        for (rounds, expected, count) in [
            (&[[4.0, 4.5, 90.0]][..], 4.5, 1),
            (&[[4.0, 9.0, 90.0], [4.0, 4.5, 5.0], [4.0, 4.2, 5.0]], 4.5, 3),
            (&[[4.0, 9.0, 90.0], [8.0, 9.5, 9.9], [4.0, 4.2, 5.0]], 9.0, 3),
        ] {
            let turn = Cell::new(0);
            let us = measure_program_steadily(&|| {
                turn.set(turn.get() + 1);
                Ok(rounds[turn.get() - 1])
            });
            assert_eq!((us.expect("a time"), turn.get()), (expected, count));
        }
    }
}
