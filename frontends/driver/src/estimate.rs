//! Estimates the time of a plan, with its chosen collectives and with plain ones.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_check::CheckedPlan;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{Graph, SymbolBindings};
use symmc_plan::{Bucket, BucketEstimate, ParsedPlan, ParsedProgram};

use crate::backends::expect_supported;
use crate::buckets::search_and_plan;
use crate::compile::canonical_forms;
use crate::divide::{BucketRequest, SymbolRanges};
use crate::error::{DriverError, Result};
use crate::options::CompileOptions;
use crate::pipeline::Pipeline;

/// The estimated time of a run of each bucket of a plan, at the upper ends of the bucket's ranges.
pub fn estimate(plan: &ParsedPlan, profile: &MachineProfile) -> Result<Vec<BucketEstimate>> {
    let mut estimates = Vec::with_capacity(plan.buckets.len());
    for bucket in &plan.buckets {
        let program = plan.program(bucket.program).map_err(DriverError::defect)?;
        estimates.push(program.estimate(bucket, profile).map_err(DriverError::defect)?);
    }
    Ok(estimates)
}

/// The estimated time of a run at some sizes, in the bucket that serves them. Fails if a symbol has no
/// value, no bucket serves the sizes, or a program of the plan cannot be read, which is a defect.
pub fn estimate_at(
    plan: &CheckedPlan,
    profile: &MachineProfile,
    sizes: &SymbolBindings,
) -> Result<BucketEstimate> {
    let mut named: IndexMap<String, i64> = IndexMap::new();
    for (id, symbol) in plan.source_program().symbols.iter() {
        let size = sizes.get(id).ok_or_else(|| {
            DriverError::Option(format!("symbol {} has no size: set the size of the symbol", symbol.name))
        })?;
        named.insert(symbol.name.clone(), size);
    }
    let bucket = &plan.buckets[plan.find_bucket(&named).map_err(|e| DriverError::Option(e.to_string()))?];
    let program = plan.program(bucket.program).map_err(DriverError::defect)?;
    program.estimate_at(bucket, profile, &named).map_err(DriverError::defect)
}

/// The estimated time of a run of each bucket if the same graph is planned with plain collectives only and without a
/// search, in microseconds. `None` for a bucket whose ranges are not those of the graph's symbols.
pub fn estimate_plain(
    graph: &Graph,
    plan: &CheckedPlan,
    options: &CompileOptions,
) -> Result<Vec<Option<f64>>> {
    let ranges: Vec<Option<SymbolRanges>> =
        plan.buckets.iter().map(|bucket| symbol_ranges(graph, bucket)).collect();
    let requests: Vec<BucketRequest> = ranges.iter().flatten().cloned().map(BucketRequest::new).collect();
    let options = CompileOptions { variants: Some(Vec::new()), coalesce: false, ..options.clone() };
    let plain = plan_to_estimate(graph, &options, requests)?;
    let mut estimates = estimate(&plain, &options.profile)?.into_iter();
    Ok(ranges.iter().map(|ranges| ranges.as_ref().and_then(|_| Some(estimates.next()?.total_us))).collect())
}

/// The ranges of a graph's symbols in a bucket.
fn symbol_ranges(graph: &Graph, bucket: &Bucket) -> Option<SymbolRanges> {
    let mut ranges = SymbolRanges::new();
    for (id, symbol) in graph.symbols.iter() {
        let &[low, high] = bucket.symbols.get(&symbol.name)?;
        ranges.insert(id, (low, high));
    }
    Some(ranges)
}

/// Plans a graph for these buckets only to estimate it: the plan is not checked, and no collectives are
/// coalesced.
fn plan_to_estimate(
    graph: &Graph,
    options: &CompileOptions,
    buckets: Vec<BucketRequest>,
) -> Result<ParsedPlan> {
    let forms = canonical_forms(graph)?;
    let pipeline = Pipeline { is_searched: false, ..Pipeline::new(graph, options, &forms) };
    let plan = search_and_plan(&pipeline, buckets)?;
    let programs: Result<Vec<ParsedProgram>, _> =
        plan.programs.iter().map(|t| ParsedProgram::parse(t)).collect();
    let plan = ParsedPlan::from_parts(Arc::new(plan), graph.clone(), programs.map_err(DriverError::defect)?);
    expect_supported(&plan, options.profile.backend)?;
    Ok(plan)
}
