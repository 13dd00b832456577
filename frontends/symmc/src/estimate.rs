//! The estimated time of a plan, with the collectives that it chose and with plain ones.

use symmc_check::CheckedPlan;
use symmc_ir::machine::Profile;
use symmc_plan::{Bucket, Estimate};

use crate::compile::{Config, compile};
use crate::error::{Error, ErrorKind};
use crate::program::Program;

/// The estimated time of a run of each bucket of a plan, at the upper ends of the bucket's ranges.
///
/// # Errors
/// A program of the plan cannot be read, which is a defect: the plan was checked.
pub fn estimate(plan: &CheckedPlan, profile: &Profile) -> Result<Vec<Estimate>, Error> {
    let defect = |message: String| Error::new(ErrorKind::Defect, message);
    let of = |bucket: &Bucket| {
        let program = plan.program(bucket.program).map_err(|e| defect(e.to_string()))?;
        program.estimate(bucket, profile).map_err(|e| defect(e.to_string()))
    };
    plan.buckets.iter().map(of).collect()
}

/// The estimated time of a run of each bucket of the same program, planned with plain collectives alone, in microseconds; none
/// where that plan has no bucket with these upper ends.
///
/// # Errors
/// As [`compile`].
pub fn estimate_plain(
    program: &Program,
    plan: &CheckedPlan,
    config: &Config,
) -> Result<Vec<Option<f64>>, Error> {
    let plain = compile(program, &config.clone().with_variants(Some(Vec::new())))?;
    let estimates = estimate(&plain, &config.profile)?;
    let ends = |bucket: &Bucket| bucket.symbols.values().map(|range| range[1]).collect::<Vec<_>>();
    let of = |bucket: &Bucket| {
        let found = plain.buckets.iter().position(|b| ends(b) == ends(bucket));
        found.map(|b| estimates[b].total_us)
    };
    Ok(plan.buckets.iter().map(of).collect())
}
