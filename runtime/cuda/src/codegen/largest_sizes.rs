//! The steps of a plan at its largest sizes, computed without a device: every symbol is at the upper end of
//! its bucket.

use indexmap::IndexMap;
use symmc_plan::{Bucket, ParsedPlan};
use symmc_runtime::exec::{CustomKernelRegistry, PreparedBucket, ResolvedProgram};

/// For each program, the bucket with the largest sizes.
pub(crate) fn largest_buckets(plan: &ParsedPlan) -> impl Iterator<Item = usize> + use<> {
    let mut largest: IndexMap<usize, usize> = IndexMap::new();
    for (index, bucket) in plan.buckets.iter().enumerate() {
        let best = largest.entry(bucket.program).or_insert(index);
        if sum_upper_bounds(bucket) > sum_upper_bounds(&plan.buckets[*best]) {
            *best = index;
        }
    }
    largest.into_values()
}

fn sum_upper_bounds(bucket: &Bucket) -> f64 {
    bucket.symbols.values().map(|range| range[1] as f64).sum()
}

/// The steps of a bucket at its largest sizes on a rank; `None` if they cannot be bound.
pub(crate) fn bind_largest(plan: &ParsedPlan, bucket: usize, rank: u32) -> Option<ResolvedProgram> {
    let symbols = &plan.buckets.get(bucket)?.symbols;
    let program = PreparedBucket::new(plan, bucket, rank, &CustomKernelRegistry::new()).ok()?;
    let upper = symbols.iter().map(|(name, range)| (name.clone(), range[1]));
    program.resolve_for_size(&upper.collect()).ok()
}
