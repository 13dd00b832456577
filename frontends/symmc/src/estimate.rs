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

/// The estimated time of a run of each bucket of the same program with the same buckets, planned with plain collectives alone,
/// in microseconds.
///
/// # Errors
/// As [`compile`].
pub fn estimate_plain(program: &Program, plan: &CheckedPlan, config: &Config) -> Result<Vec<f64>, Error> {
    let plain = compile(program, &config.clone().with_variants(Some(Vec::new())))?;
    let estimates = estimate(&plain, &config.profile)?;
    // Where the chosen variants divide a range and plain ones do not, a bucket has the time of the one that has its upper ends.
    let of = |bucket: &Bucket| {
        let holds = |b: &Bucket| {
            bucket.symbols.iter().all(|(name, range)| {
                b.symbols.get(name).is_some_and(|r| r[0] <= range[1] && range[1] <= r[1])
            })
        };
        let found = plain.buckets.iter().position(holds);
        found.map_or(f64::NAN, |b| estimates[b].total_us)
    };
    Ok(plan.buckets.iter().map(of).collect())
}
