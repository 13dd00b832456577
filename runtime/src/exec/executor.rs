//! A plan on one rank, ready to be bound to sizes: selects the bucket, and caches the resolved programs.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::{BoundsChecks, Graph, OutOfBounds, SymbolBindings};
use symmc_plan::{ParsedPlan, Plan};

use super::bucket::{PreparedBucket, unread_plan_error};
use super::config::ExecConfig;
use super::resolved::ResolvedProgram;
use crate::custom::CustomKernelRegistry;
use crate::error::{Result, RunError};
use crate::kernels::ScratchNeeds;

/// The number of bindings that an executor keeps resolved.
const KEPT: usize = 64;

/// A plan on one rank, ready to be bound to sizes.
#[derive(Debug)]
pub struct Executor {
    plan: ParsedPlan,
    rank: u32,
    registry: CustomKernelRegistry,
    config: ExecConfig,
    /// The conditions on the sizes of a run under which the imported program stays within its axes.
    bounds: BoundsChecks,
    programs: Vec<Option<PreparedBucket>>,
    /// Resolved bindings, oldest first.
    bound: Vec<(SymbolBindings, Arc<ResolvedProgram>)>,
}

impl Executor {
    pub fn new(
        plan: &ParsedPlan,
        rank: u32,
        registry: &CustomKernelRegistry,
        config: ExecConfig,
    ) -> Result<Self> {
        if rank >= plan.ranks {
            let ranks = plan.ranks;
            return Err(RunError::Invalid(format!("the plan is for {ranks} ranks, this is rank {rank}")));
        }
        let programs = plan.buckets.iter().map(|_| None).collect();
        let bounds = BoundsChecks::derive(plan.source_program());
        let plan = plan.clone();
        let registry = registry.clone();
        Ok(Executor { plan, rank, registry, config, bounds, programs, bound: Vec::new() })
    }

    /// Every bucket that can run, resolved with its symbols at their upper ends if the bucket covers these.
    pub fn largest_buckets(&mut self) -> Vec<(&PreparedBucket, Option<ResolvedProgram>)> {
        for bucket in 0..self.programs.len() {
            // A bucket that cannot run is refused when it is selected for a run.
            let _ = self.prepared_bucket(bucket);
        }
        self.programs.iter().flatten().map(|program| (program, self.resolve_at_largest(program))).collect()
    }

    fn resolve_at_largest(&self, program: &PreparedBucket) -> Option<ResolvedProgram> {
        let symbols = &self.plan.buckets.get(program.bucket)?.symbols;
        let largest = symbols.iter().map(|(name, range)| (name.clone(), range[1])).collect();
        program.resolve_for_size(&largest).ok()
    }

    /// The scratch memory of host kernels in each lane, in addition to operands and results, at the largest
    /// sizes.
    pub fn scratch_needs(&mut self) -> [ScratchNeeds; 2] {
        let lanes = self.config.lanes;
        let mut needs = <[ScratchNeeds; 2]>::default();
        for bound in self.largest_buckets().into_iter().filter_map(|(_, bound)| bound) {
            bound.add_scratch_needs(lanes, &mut needs);
        }
        needs
    }

    pub fn plan(&self) -> &ParsedPlan {
        &self.plan
    }

    /// The imported program.
    pub fn source_graph(&self) -> &Graph {
        self.plan.source_program()
    }

    /// The values of the symbols as text: `n=4, m=7`.
    pub fn describe_sizes(&self, bindings: &SymbolBindings) -> String {
        let sizes = self.symbol_values(bindings);
        let texts: Vec<String> = sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        texts.join(", ")
    }

    fn prepared_bucket(&mut self, bucket: usize) -> Result<&PreparedBucket> {
        Ok(match &mut self.programs[bucket] {
            Some(program) => program,
            empty => empty.insert(PreparedBucket::new(&self.plan, bucket, self.rank, &self.registry)?),
        })
    }

    fn symbol_values(&self, bindings: &SymbolBindings) -> IndexMap<String, i64> {
        let symbols = self.source_graph().symbols.iter();
        let named = symbols.filter_map(|(id, symbol)| Some((symbol.name.clone(), bindings.get(id)?)));
        named.collect()
    }

    /// The program, resolved for these values of the imported program's symbols. Fails if no bucket covers
    /// them, the imported program reads outside of an axis, the bucket cannot run (it contains an op without
    /// a kernel), or a value does not fit its memory.
    pub fn resolve_bindings(&mut self, bindings: &SymbolBindings) -> Result<Arc<ResolvedProgram>> {
        if let Some((_, bound)) = self.bound.iter().find(|(sizes, _)| sizes == bindings) {
            return Ok(bound.clone());
        }
        let named = self.symbol_values(bindings);
        let bucket = select_bucket(&self.plan, &named)?;
        self.bounds.evaluate(self.plan.source_program(), bindings).map_err(bounds_error)?;
        let bound = Arc::new(self.prepared_bucket(bucket)?.resolve_bindings(&named)?);
        if self.bound.len() == KEPT {
            self.bound.remove(0);
        }
        self.bound.push((bindings.clone(), bound.clone()));
        Ok(bound)
    }
}

/// The bucket whose ranges contain these values.
fn select_bucket(plan: &Plan, named: &IndexMap<String, i64>) -> Result<usize> {
    plan.find_bucket(named).map_err(|e| RunError::Invalid(e.to_string()))
}

/// The error of a run whose sizes lead outside of an axis.
fn bounds_error(found: OutOfBounds) -> RunError {
    let OutOfBounds { node, op, message: detail } = found;
    RunError::Bounds { node, op: op.to_string(), detail }
}

/// Checks that the host runs every node of a plan. This is checked when a plan is made for the host; no rank
/// refuses a plan that passes.
pub fn expect_kernels(plan: &ParsedPlan, kernels: &CustomKernelRegistry) -> Result<()> {
    plan.programs().try_for_each(|program| kernels.expect_kernels(&program.map_err(unread_plan_error)?.graph))
}
