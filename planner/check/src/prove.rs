//! The proof of a plan: its texts, then places, buffers and steps of each bucket, then time.

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

/// [`check`] that gives the programs it read as well, so that nobody has to read them again.
///
/// Fails with what the plan breaks: the first [`MOST`](crate::MOST) findings and, as [`CheckError::More`], the number
/// of the others. Rules about texts come first; places, buffers and steps are looked at when the texts are right, and
/// time when everything else is.
pub fn prove(plan: &Plan) -> Result<PlanProof, Vec<CheckError>> {
    prove_plan(plan).map_err(Findings::into_errors)
}

fn prove_plan(plan: &Plan) -> Result<PlanProof, Findings> {
    let programs = program::read(plan)?;
    let mut errors = Findings::default();
    let mut report = CheckReport { buckets: plan.buckets.len(), ..CheckReport::default() };
    program::check_plan_level(plan, &programs, &mut errors);
    let (mut schedules, mut uses) = (Vec::new(), Findings::default());
    for (schedule, misplaced, misused) in resolve_buckets(plan, &programs) {
        schedules.extend(schedule);
        errors.append(misplaced);
        uses.append(misused);
    }
    check_range_overlaps(plan, &mut errors);
    errors.append(uses);
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
    /// The imported program as it read it.
    pub source: Graph,
    /// The planned programs as it read them.
    pub programs: Vec<symmc_plan::ParsedProgram>,
}

/// Each bucket resolved, what is wrong with its places and steps, and what is wrong with the rest of it.
fn resolve_buckets<'a>(
    plan: &'a Plan,
    programs: &'a PlanPrograms,
) -> Vec<(Option<BucketSchedule<'a>>, Findings, Findings)> {
    let steps = plan.buckets.iter().map(|b| b.steps.len()).sum();
    let sources: HashSet<&str> = programs.source.values.values().map(|v| v.name.as_str()).collect();
    parallel::map(plan.buckets.iter().enumerate().collect(), steps, |(i, bucket)| {
        let (mut misplaced, mut misused) = (Findings::default(), Findings::default());
        let schedule = resolve_schedule(plan, programs, i, bucket, &mut misplaced);
        if let Some(schedule) = &schedule {
            if schedule.steps.len() == schedule.bucket.steps.len() {
                buffer::check_buffer_uses(schedule, &mut misused);
            }
            buffer::check_totals(plan, schedule, &mut misused);
            buffer::check_decisions(schedule, &sources, &mut misused);
            buffer::check_copies(schedule, &mut misused);
        }
        (schedule, misplaced, misused)
    })
}

/// Resolves a bucket; `None` if it does not say which program it schedules, or for which sizes.
fn resolve_schedule<'a>(
    plan: &Plan,
    programs: &'a PlanPrograms,
    index: usize,
    bucket: &'a Bucket,
    errors: &mut Findings,
) -> Option<BucketSchedule<'a>> {
    let Some(program) = programs.planned.get(bucket.program) else {
        let (expected, found) = (programs.planned.len(), bucket.program);
        errors.push(CheckError::BucketProgram { bucket: index, expected, found });
        return None;
    };
    let symbols = resolve_symbols(programs, program, index, bucket, errors)?;
    buffer::check_declared_buffers((plan, &programs.fixed), (index, bucket), errors);
    let locations = location::resolve_locations((plan, programs), (index, bucket), program, &symbols, errors);
    let overlaps = ValueOverlaps::new(&locations, &symbols);
    let (of_bucket, overlap) = (&symbols, &overlaps);
    let ctx = CheckContext {
        plan,
        programs,
        index,
        bucket,
        program,
        symbols: of_bucket,
        locations: &locations,
        overlaps: overlap,
    };
    let steps = step::resolve_steps(&ctx, errors);
    let bound = step::bound_inputs(&programs.source, program, &locations);
    Some(BucketSchedule { index, bucket, program, symbols, locations, overlaps, steps, bound })
}

/// The symbols of a program with the ranges of a bucket, which must be those of the program or narrower.
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
            let (symbol, expected, found) = (symbol.name.clone(), [min, max], [ranged.min, ranged.max]);
            errors.push(CheckError::BucketRange { bucket: index, symbol, expected, found });
            return None;
        }
    }
    Some(symbols)
}

/// Each size must have at most one bucket. A bucket that serves sizes of others is reported once, with one of them: where
/// many are equal, their pairs are too many to look at.
fn check_range_overlaps(plan: &Plan, errors: &mut Findings) {
    let symbols = plan.buckets.first().map(|b| b.symbols.keys().collect::<Vec<_>>()).unwrap_or_default();
    // A bucket without the symbols of the others is reported for that.
    let ranges = |(i, b): (usize, &Bucket)| {
        let of = symbols.iter().map(|&s| b.symbols.get(s).copied());
        Some((i, of.collect::<Option<Vec<[i64; 2]>>>()?)).filter(|_| b.symbols.len() == symbols.len())
    };
    let mut ranges: Vec<(usize, Vec<[i64; 2]>)> =
        plan.buckets.iter().enumerate().filter_map(ranges).collect();
    let Some(axis) = (0..symbols.len()).min_by_key(|&axis| count_overlapping_pairs(&ranges, axis)) else {
        let pairs = (1..plan.buckets.len()).map(|second| CheckError::BucketsOverlap { first: 0, second });
        return errors.extend(pairs);
    };
    ranges.sort_by_key(|(i, r)| (r[axis][0], *i));
    let mut found = Vec::new();
    for (k, (a, x)) in ranges.iter().enumerate() {
        let mut behind = ranges[k + 1..].iter().take_while(|(_, y)| y[axis][0] <= x[axis][1]);
        let meets = behind.find(|(_, y)| x.iter().zip(y).all(|(x, y)| x[0] <= y[1] && y[0] <= x[1]));
        found.extend(meets.map(|(b, _)| (a.max(b), a.min(b))));
    }
    found.sort_unstable();
    errors.extend(found.into_iter().map(|(&second, &first)| CheckError::BucketsOverlap { first, second }));
}

/// How many pairs of ranges meet along one symbol.
fn count_overlapping_pairs(ranges: &[(usize, Vec<[i64; 2]>)], axis: usize) -> u64 {
    let mut starts: Vec<i64> = ranges.iter().map(|(_, r)| r[axis][0]).collect();
    starts.sort_unstable();
    let up_to = |end: i64| starts.partition_point(|&start| start <= end) as u64;
    let before = |first: i64| starts.partition_point(|&start| start < first) as u64;
    ranges.iter().map(|(_, r)| up_to(r[axis][1]).saturating_sub(before(r[axis][0]))).sum()
}
