//! The estimated time of a plan, with the collectives that it chose and with plain ones.

use indexmap::IndexMap;
use symmc_check::CheckedPlan;
use symmc_ir::machine::Profile;
use symmc_ir::{Bindings, Symbol, SymbolId};
use symmc_plan::{Bucket, Estimate, ReadPlan};

use crate::compile::plan_to_estimate;
use crate::config::Config;
use crate::divide::{BucketRequest, Ranges};
use crate::error::{Error, ErrorKind};
use crate::program::Program;

/// The estimated time of a run of each bucket of a plan, at the upper ends of the bucket's ranges.
///
/// # Errors
/// A program of the plan cannot be read, which is a defect: the plan was checked.
pub fn estimate(plan: &CheckedPlan, profile: &Profile) -> Result<Vec<Estimate>, Error> {
    estimate_read(plan, profile)
}

/// [`estimate`] of a plan that need not be checked.
fn estimate_read(plan: &ReadPlan, profile: &Profile) -> Result<Vec<Estimate>, Error> {
    let defect = |message: String| Error::new(ErrorKind::Defect, message);
    let of = |bucket: &Bucket| {
        let program = plan.program(bucket.program).map_err(|e| defect(e.to_string()))?;
        program.estimate(bucket, profile).map_err(|e| defect(e.to_string()))
    };
    plan.buckets.iter().map(of).collect()
}

/// The estimated time of a run of a plan at some sizes, of the bucket that serves them.
///
/// # Errors
/// A symbol has no value, no bucket serves the sizes, or a program of the plan cannot be read, which is a defect.
pub fn estimate_at(plan: &CheckedPlan, profile: &Profile, sizes: &Bindings) -> Result<Estimate, Error> {
    let defect = |message: String| Error::new(ErrorKind::Defect, message);
    let symbols = plan.source_program().symbols.iter();
    let named = symbols.map(|(id, symbol)| {
        let value = sizes.get(id);
        let value =
            value.ok_or_else(|| Error::request(format!("the symbol {} has no value", symbol.name)))?;
        Ok((symbol.name.clone(), value))
    });
    let named: IndexMap<String, i64> = named.collect::<Result<_, Error>>()?;
    let bucket = &plan.buckets[plan.serving(&named).map_err(|e| Error::request(e.to_string()))?];
    let program = plan.program(bucket.program).map_err(|e| defect(e.to_string()))?;
    program.estimate_at(bucket, profile, &named).map_err(|e| defect(e.to_string()))
}

/// The estimated time of a run of each bucket of the same program, planned with plain collectives alone for the same buckets, in
/// microseconds; none for a bucket whose ranges are not those of the program's symbols.
///
/// # Errors
/// As [`compile`](crate::compile).
pub fn estimate_plain(
    program: &Program,
    plan: &CheckedPlan,
    config: &Config,
) -> Result<Vec<Option<f64>>, Error> {
    let symbols = &program.graph.symbols;
    let ranges = |bucket: &Bucket| {
        let range = |(id, symbol): (SymbolId, &Symbol)| {
            let &[low, high] = bucket.symbols.get(&symbol.name)?;
            Some((id, (low, high)))
        };
        symbols.iter().map(range).collect::<Option<Ranges>>()
    };
    let all: Vec<Option<Ranges>> = plan.buckets.iter().map(ranges).collect();
    let config = config.clone().with_variants(Some(Vec::new()));
    let requests: Vec<BucketRequest> = all.iter().flatten().cloned().map(BucketRequest::new).collect();
    let plain = plan_to_estimate(program, &config, &requests)?;
    let mut estimates = estimate_read(&plain, &config.profile)?.into_iter();
    Ok(all.iter().map(|ranges| ranges.as_ref().and_then(|_| Some(estimates.next()?.total_us))).collect())
}
