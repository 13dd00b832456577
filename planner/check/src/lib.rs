//! The check: a proof that a plan is safe, from the plan alone.
//!
//! [`check`] reads the programs that the plan carries, and shares no code with what made it. It is a race
//! detector over the plan, with the contracts of `symmc_ir::collective` as its only knowledge of variants.
//!
//! # State
//! A rank has an ordinary arena, a symmetric arena, and memory that its caller gives for inputs and outputs.
//! At every point of a run each base value (`symmc_ir::layout`) of the planned program is unwritten,
//! *intact*, or lost. It is intact from the completion of its step until a step writes bytes that it
//! occupies, unless that step leaves them as they are (a concatenation over its pieces, an all-gather over
//! this rank's shard). Inputs are intact from the start of the run.
//!
//! # Points and their order
//! `→` (happens before) is the least transitive order over the points of all ranks and runs with
//! - the start of a run → each of its steps; the completion of each step of a run → the start of the next run
//!   of the same rank;
//! - completion of a step → arrival of every later step in its lane, and of every step that waits for it;
//! - within a step on one rank: arrival → pre → meeting → post → last touch → exit → completion;
//! - between ranks `p`, `q` of one cell of the group of a collective: arrival on `p` → meeting on `q`, if the
//!   contract says that the group meets; last touch on `p` → completion on `q`, if the exit barrier runs;
//! - if it says that pairs meet, for each pair `(p, q)` of the collective with a *touch* of its own: arrival on
//!   `p` and on `q` → touch → completion on `p` and on `q`. Such a step has no meeting.
//!
//! # Transfer
//! A step touches whole base values: a view is read through its base.
//! - The rank itself reads the operands from arrival to completion, and writes the results from arrival, or
//!   from the meeting if the contract says so, to completion.
//! - Peers read the operand and write the result, as the contract says, from their meeting (with `entry`) or
//!   their arrival to their last touch. Where pairs meet, only the sender of a pair does, at the touch. As that
//!   comes after the receiver's arrival and before its completion, the rank's own write stands in for it.
//! - Packets write the landing zone whose turn it is from the sender's arrival; the receiver has read it at
//!   completion. A packet and its own receipt are ordered by the flag.
//! - The caller writes bound arguments, bound inputs whose size the source gives by symbols, and those that an output
//!   replaces, at the start of each run; other bound inputs before the first. It reads the outputs at the end.
//!
//! # What is proven
//! For every number of runs, every sequence of buckets and of bindings within their ranges (two runs of a bucket have
//! sizes that have nothing to do with each other), every rank, and every timing of the ranks:
//! 1. Two accesses to overlapping bytes of one rank's memory, one of them a write, are ordered by `→`. Exempt
//!    are a packet and its receipt, and the accesses of one step, where the rules of `inplace` hold instead.
//! 2. A step finds its operands intact, the caller finds the outputs intact, and the next run finds bound
//!    parameters intact. With 1, the order of the list decides what is intact.
//! 3. Collectives of one group run in one order on all ranks.
//! 4. Every touch stays within its memory; starts are aligned; what peers reach lies in the symmetric arena;
//!    landing zones are there and large enough; every node is a step exactly once, after its operands.
//! 5. No rank waits for ever while all ranks proceed: the list is one order that every wait, lane and
//!    collective follows on all ranks.
//!
//! Buffers, lifetimes, reach and totals are compared with what the steps do. Lifetimes are not what safety
//! rests on: 1 is proven from accesses alone.
//!
//! # How
//! Sizes and positions are dims. A value's *span* holds all bytes that it can occupy on any rank under any
//! binding; values whose spans meet share bytes unless the dims prove them apart (`place`): under one binding within
//! a run (`overlap`), under any two for two runs of a bucket, and not at all for two buckets. The order is
//! decided with vector clocks (`clock`) and the last accesses of each byte (`memory`), in one pass over
//! the list per bucket and a short one per sequence of buckets that differ in what they leave to others (`left`,
//! `time`). Time is near linear in the number of steps.
//!
//! # What is not proven
//! That the planned programs compute what the source computes (only their signatures are compared here; numbers are
//! compared where an interpreter is at hand), that ranks touch disjoint elements within a step, that a
//! variant's implementation keeps its contract, that kernels write what they should, that estimates are right,
//! and that a slice stays within its operand for sizes for which the verifier cannot tell: whoever runs a plan
//! knows the sizes and refuses those.

mod buffer;
mod checked;
mod clock;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod inplace;
mod left;
mod memory;
mod overlap;
mod place;
mod program;
mod ranks;
mod step;
mod time;

use std::collections::HashSet;

use symmc_ir::{Graph, parallel};
use symmc_plan::{Bucket, Plan, Symbols};

pub use checked::CheckedPlan;
pub use error::{Access, At, CheckError, Moment, ProgramId, Side, Who};

use overlap::Overlaps;
use program::{Program, Programs};
use step::{Context, Schedule};

/// What a proof looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The number of buckets.
    pub buckets: usize,
    /// The number of steps of all buckets.
    pub steps: usize,
    /// The number of base values with a place, over all buckets.
    pub values: usize,
    /// The number of ranks that were simulated; symmetry covers the others.
    pub simulated: usize,
    /// The number of ranks whose memory was examined.
    pub examined: usize,
    /// The number of accesses to memory.
    pub accesses: u64,
    /// The number of pairs of accesses to shared bytes that were compared.
    pub compared: u64,
    /// The number of clocks that meetings joined.
    pub joins: u64,
    /// The number of runs followed after another.
    pub sequences: usize,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let buckets = if self.buckets == 1 { "bucket" } else { "buckets" };
        write!(
            f,
            "{} {buckets}, {} steps, {} values; {} accesses, {} conflicting pairs ordered, {} pairs of runs",
            self.buckets, self.steps, self.values, self.accesses, self.compared, self.sequences
        )
    }
}

/// What a proof leaves behind.
#[derive(Clone, Debug)]
pub struct Proof {
    /// What it looked at.
    pub report: Report,
    /// The imported program as it read it.
    pub source: Graph,
    /// The planned programs as it read them.
    pub programs: Vec<symmc_plan::Program>,
}

/// Proves a plan safe (see the [module](self)).
///
/// # Errors
/// As [`prove`].
pub fn check(plan: &Plan) -> Result<Report, Vec<CheckError>> {
    prove(plan).map(|proof| proof.report)
}

/// [`check`] that gives the programs it read as well, so that nobody has to read them again.
///
/// # Errors
/// What the plan breaks. Rules about texts come first; places, buffers and steps are looked at when the texts
/// are right, and time when everything else is.
pub fn prove(plan: &Plan) -> Result<Proof, Vec<CheckError>> {
    let programs = program::read(plan)?;
    let mut errors = Vec::new();
    let mut report = Report { buckets: plan.buckets.len(), ..Report::default() };
    program::whole(plan, &mut errors);
    program::fixed(plan, &programs, &mut errors);
    let (mut schedules, mut uses) = (Vec::new(), Vec::new());
    for (schedule, misplaced, misused) in of_buckets(plan, &programs) {
        schedules.extend(schedule);
        errors.extend(misplaced);
        uses.extend(misused);
    }
    ranges_overlap(plan, &mut errors);
    errors.extend(uses);
    for schedule in &schedules {
        report.steps += schedule.steps.len();
        report.values += schedule.homes.values().flatten().count();
    }
    if errors.is_empty() {
        errors = time::check(&programs, &schedules, plan.ranks, &mut report);
    }
    drop(schedules);
    if !errors.is_empty() {
        return Err(errors);
    }
    let Programs { source, planned, .. } = programs;
    Ok(Proof { report, source, programs: planned.into_iter().map(Program::into_read).collect() })
}

/// Each bucket resolved, what is wrong with its places and steps, and what is wrong with the rest of it.
fn of_buckets<'a>(
    plan: &'a Plan,
    programs: &'a Programs,
) -> Vec<(Option<Schedule<'a>>, Vec<CheckError>, Vec<CheckError>)> {
    let steps = plan.buckets.iter().map(|b| b.steps.len()).sum();
    let sources: HashSet<&str> = programs.source.values.values().map(|v| v.name.as_str()).collect();
    parallel::map(plan.buckets.iter().enumerate().collect(), steps, |(i, bucket)| {
        let (mut misplaced, mut misused) = (Vec::new(), Vec::new());
        let schedule = schedule(plan, programs, i, bucket, &mut misplaced);
        if let Some(schedule) = &schedule {
            if schedule.steps.len() == schedule.bucket.steps.len() {
                buffer::used(schedule, &mut misused);
            }
            buffer::totals(plan, schedule, &mut misused);
            buffer::decisions(schedule, &sources, &mut misused);
            buffer::copies(schedule, &mut misused);
        }
        (schedule, misplaced, misused)
    })
}

/// Resolves a bucket; `None` if it does not say which program it schedules, or for which sizes.
fn schedule<'a>(
    plan: &Plan,
    programs: &'a Programs,
    index: usize,
    bucket: &'a Bucket,
    errors: &mut Vec<CheckError>,
) -> Option<Schedule<'a>> {
    let Some(program) = programs.planned.get(bucket.program) else {
        let (expected, found) = (programs.planned.len(), bucket.program);
        errors.push(CheckError::BucketProgram { bucket: index, expected, found });
        return None;
    };
    let symbols = symbols(programs, program, index, bucket, errors)?;
    buffer::declared(plan, index, bucket, errors);
    let homes = place::homes((plan, programs), (index, bucket), program, &symbols, errors);
    let overlaps = Overlaps::new(&homes, &symbols);
    let (of_bucket, overlap) = (&symbols, &overlaps);
    let ctx = Context {
        plan,
        programs,
        index,
        bucket,
        program,
        symbols: of_bucket,
        homes: &homes,
        overlaps: overlap,
    };
    let steps = step::steps(&ctx, errors);
    let bound = step::bound_inputs(&programs.source, program, &homes);
    Some(Schedule { index, bucket, program, symbols, homes, overlaps, steps, bound })
}

/// The symbols of a program with the ranges of a bucket, which must be those of the program or narrower.
fn symbols(
    programs: &Programs,
    program: &Program,
    index: usize,
    bucket: &Bucket,
    errors: &mut Vec<CheckError>,
) -> Option<Symbols> {
    let symbols = match program.symbols(bucket) {
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

/// Each size must have at most one bucket. Buckets are compared where their ranges of one symbol meet.
fn ranges_overlap(plan: &Plan, errors: &mut Vec<CheckError>) {
    let symbols = plan.buckets.first().map(|b| b.symbols.keys().collect::<Vec<_>>()).unwrap_or_default();
    // A bucket without the symbols of the others is reported for that.
    let ranges = |(i, b): (usize, &Bucket)| {
        let of = symbols.iter().map(|&s| b.symbols.get(s).copied());
        Some((i, of.collect::<Option<Vec<[i64; 2]>>>()?)).filter(|_| b.symbols.len() == symbols.len())
    };
    let mut ranges: Vec<(usize, Vec<[i64; 2]>)> =
        plan.buckets.iter().enumerate().filter_map(ranges).collect();
    let starts = |axis: usize| ranges.iter().map(|(_, r)| r[axis][0]).collect::<HashSet<i64>>().len();
    let Some(axis) = (0..symbols.len()).max_by_key(|&axis| starts(axis)) else {
        let pairs = (1..plan.buckets.len()).map(|second| CheckError::BucketsOverlap { first: 0, second });
        return errors.extend(pairs);
    };
    ranges.sort_by_key(|(i, r)| (r[axis][0], *i));
    let mut found = Vec::new();
    for (k, (a, x)) in ranges.iter().enumerate() {
        let behind = ranges[k + 1..].iter().take_while(|(_, y)| y[axis][0] <= x[axis][1]);
        let meets = behind.filter(|(_, y)| x.iter().zip(y).all(|(x, y)| x[0] <= y[1] && y[0] <= x[1]));
        found.extend(meets.map(|(b, _)| (a.max(b), a.min(b))));
    }
    found.sort_unstable();
    errors.extend(found.into_iter().map(|(&second, &first)| CheckError::BucketsOverlap { first, second }));
}
