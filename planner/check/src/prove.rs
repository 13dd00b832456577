//! The proof of a plan, in three stages: its texts; then places, buffers and steps of each bucket; then time.
//!
//! A stage runs only if the stages before it found nothing that would make it meaningless: texts must be right
//! before buckets are resolved, and everything must be right before runs are simulated.

use std::collections::HashSet;

use symmc_ir::{Graph, SymbolTable};
use symmc_plan::{Bucket, Plan};
use symmc_support::parallel;

use super::context::CheckContext;
use super::error::CheckError;
use super::findings::Findings;
use super::overlap::ValueOverlaps;
use super::program::{self, PlanPrograms, PlannedProgram};
use super::report::CheckReport;
use super::step::{self, BucketSchedule};
use super::{buffer, location, time};

/// Proves a plan safe (see the [crate](super)).
pub fn check(plan: &Plan) -> Result<CheckReport, Vec<CheckError>> {
    prove(plan).map(|proof| proof.report)
}

/// [`check`] that also returns the parsed programs, so that callers need not parse them again.
///
/// Fails with the first [`MAX_STORED_FINDINGS`](crate::MAX_STORED_FINDINGS) findings and, as
/// [`CheckError::More`], the number of all others. Findings about texts hide all other findings. Races and lost values are only searched for if there is no
/// other finding.
pub fn prove(plan: &Plan) -> Result<PlanProof, Vec<CheckError>> {
    prove_plan(plan).map_err(Findings::into_errors)
}

fn prove_plan(plan: &Plan) -> Result<PlanProof, Findings> {
    let programs = program::read(plan)?;
    let mut errors = Findings::default();
    let mut report = CheckReport { buckets: plan.buckets.len(), ..CheckReport::default() };
    program::check_plan_level(plan, &programs, &mut errors);
    let mut schedules = Vec::new();
    let mut derived_errors = Findings::default();
    for bucket in resolve_buckets(plan, &programs) {
        schedules.extend(bucket.schedule);
        errors.append(bucket.errors);
        derived_errors.append(bucket.derived_errors);
    }
    check_range_overlaps(plan, &mut errors);
    errors.append(derived_errors);
    for schedule in &schedules {
        report.steps += schedule.steps.len();
        report.values += schedule.locations.values().flatten().count();
    }
    if errors.is_empty() {
        errors.extend(time::check(&programs, &schedules, plan.ranks, &mut report));
    }
    drop(schedules);
    if !errors.is_empty() {
        return Err(errors);
    }
    let PlanPrograms { source, planned, .. } = programs;
    Ok(PlanProof { report, source, programs: planned.into_iter().map(PlannedProgram::into_read).collect() })
}

#[derive(Clone, Debug)]
pub struct PlanProof {
    pub report: CheckReport,
    /// The imported program.
    pub source: Graph,
    pub programs: Vec<symmc_plan::ParsedProgram>,
}

struct ResolvedBucket<'a> {
    schedule: Option<BucketSchedule<'a>>,
    /// Findings about the places and steps.
    errors: Findings,
    /// Findings about uses of buffers, totals, decisions and copies.
    derived_errors: Findings,
}

fn resolve_buckets<'a>(plan: &'a Plan, programs: &'a PlanPrograms) -> Vec<ResolvedBucket<'a>> {
    let steps = plan.buckets.iter().map(|b| b.steps.len()).sum();
    let sources: HashSet<&str> = programs.source.values.values().map(|v| v.name.as_str()).collect();
    parallel::map(plan.buckets.iter().enumerate().collect(), steps, |(i, bucket)| {
        let mut errors = Findings::default();
        let mut derived_errors = Findings::default();
        let schedule = resolve_schedule(plan, programs, i, bucket, &mut errors);
        if let Some(schedule) = &schedule {
            if schedule.steps.len() == schedule.bucket.steps.len() {
                buffer::check_buffer_uses(schedule, &mut derived_errors);
            }
            buffer::check_totals(plan, schedule, &mut derived_errors);
            buffer::check_decisions(schedule, &sources, &mut derived_errors);
            buffer::check_copies(schedule, &mut derived_errors);
        }
        ResolvedBucket { schedule, errors, derived_errors }
    })
}

/// Resolves a bucket. `None` if its program does not exist or its ranges are invalid.
fn resolve_schedule<'a>(
    plan: &Plan,
    programs: &'a PlanPrograms,
    index: usize,
    bucket: &'a Bucket,
    errors: &mut Findings,
) -> Option<BucketSchedule<'a>> {
    let Some(program) = programs.planned.get(bucket.program) else {
        let expected = programs.planned.len();
        errors.push(CheckError::BucketProgram { bucket: index, expected, found: bucket.program });
        return None;
    };
    let symbols = resolve_symbols(programs, program, index, bucket, errors)?;
    buffer::check_declared_buffers(plan, &programs.fixed, index, bucket, errors);
    let locations = location::resolve_locations(plan, programs, index, bucket, program, &symbols, errors);
    let overlaps = ValueOverlaps::new(&locations, &symbols);
    let ctx = CheckContext {
        plan,
        programs,
        index,
        bucket,
        program,
        symbols: &symbols,
        locations: &locations,
        overlaps: &overlaps,
    };
    let steps = step::resolve_steps(&ctx, errors);
    let bound = step::bound_inputs(&programs.source, program, &locations);
    Some(BucketSchedule { index, bucket, program, symbols, locations, overlaps, steps, bound })
}

/// The symbols of a program with the ranges of a bucket. A range must lie within the symbol's ranges in the
/// program and in the source.
fn resolve_symbols(
    programs: &PlanPrograms,
    program: &PlannedProgram,
    index: usize,
    bucket: &Bucket,
    errors: &mut Findings,
) -> Option<SymbolTable> {
    let symbols = match program.resolve_symbols(bucket) {
        Ok(symbols) => symbols,
        Err(error) => {
            errors.push(CheckError::Unresolved { bucket: index, error });
            return None;
        }
    };
    for (symbol, ranged) in program.graph.symbols.values().zip(symbols.values()) {
        let source = programs.source.symbols.values().find(|s| s.name == symbol.name);
        let (min, max) =
            source.map_or((symbol.min, symbol.max), |s| (s.min.max(symbol.min), s.max.min(symbol.max)));
        if ranged.min > ranged.max || ranged.min < min || ranged.max > max {
            errors.push(CheckError::BucketRange {
                bucket: index,
                symbol: symbol.name.clone(),
                expected: [min, max],
                found: [ranged.min, ranged.max],
            });
            return None;
        }
    }
    Some(symbols)
}

/// Checks that the ranges of buckets are disjoint. A bucket that overlaps several others is reported once, with
/// one of them, because many equal buckets have too many pairs to compare.
///
/// The buckets are sorted by their starts along the symbol along which the fewest pairs overlap.
fn check_range_overlaps(plan: &Plan, errors: &mut Findings) {
    let symbols = plan.buckets.first().map(|b| b.symbols.keys().collect::<Vec<_>>()).unwrap_or_default();
    // A bucket whose symbols differ from those of the first is skipped: another rule reports it.
    let mut ranges: Vec<(usize, Vec<[i64; 2]>)> = Vec::new();
    for (i, bucket) in plan.buckets.iter().enumerate() {
        let bucket_ranges: Option<Vec<[i64; 2]>> =
            symbols.iter().map(|&s| bucket.symbols.get(s).copied()).collect();
        if let Some(bucket_ranges) = bucket_ranges.filter(|_| bucket.symbols.len() == symbols.len()) {
            ranges.push((i, bucket_ranges));
        }
    }
    let Some(axis) = (0..symbols.len()).min_by_key(|&axis| count_overlapping_pairs(&ranges, axis)) else {
        // Without symbols all buckets serve the same sizes.
        let pairs = (1..plan.buckets.len()).map(|second| CheckError::BucketsOverlap { first: 0, second });
        return errors.extend(pairs);
    };
    ranges.sort_by_key(|(i, r)| (r[axis][0], *i));
    let mut overlapping_pairs = Vec::new();
    for (k, (a, x)) in ranges.iter().enumerate() {
        let mut candidates = ranges[k + 1..].iter().take_while(|(_, y)| y[axis][0] <= x[axis][1]);
        let overlapping =
            candidates.find(|(_, y)| x.iter().zip(y).all(|(x, y)| x[0] <= y[1] && y[0] <= x[1]));
        overlapping_pairs.extend(overlapping.map(|(b, _)| (a.max(b), a.min(b))));
    }
    overlapping_pairs.sort_unstable();
    errors.extend(
        overlapping_pairs.into_iter().map(|(&second, &first)| CheckError::BucketsOverlap { first, second }),
    );
}

/// Counts, for each range, the ranges that start within it along one symbol, itself included. Each pair that
/// overlaps is counted once, or twice if both start at the same size.
fn count_overlapping_pairs(ranges: &[(usize, Vec<[i64; 2]>)], axis: usize) -> u64 {
    let mut starts: Vec<i64> = ranges.iter().map(|(_, r)| r[axis][0]).collect();
    starts.sort_unstable();
    ranges
        .iter()
        .map(|(_, r)| {
            let [low, high] = r[axis];
            let up_to_high = starts.partition_point(|&start| start <= high) as u64;
            let below_low = starts.partition_point(|&start| start < low) as u64;
            up_to_high.saturating_sub(below_low)
        })
        .sum()
}
