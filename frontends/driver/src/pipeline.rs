//! From a program in canonical form and the ranges of its buckets to a plan, for one choice of variants.
//!
//! The searches for a choice ([`crate::variants`], [`crate::limit`]) use this pipeline for every attempt.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use symmc_ir::collective::Collective;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{Graph, InputKind};
use symmc_passes::lower::ChosenForms;
use symmc_passes::{CanonicalForms, CoalesceConfig, CoalescedSet, LowerConfig, PassError, SolutionCache};
use symmc_plan::{Decision, Plan};
use symmc_planner::{BucketInput, CollectiveChoice, PlanConfig, PlanError};
use symmc_support::parallel;

use crate::attempt::{JoinedSets, ObservedSchedule, PlanAttempt};
use crate::divide::{BucketRequest, SymbolRanges};
use crate::error::{DriverError, Result};
use crate::options::CompileOptions;

#[derive(Clone, Copy)]
pub struct Pipeline<'a> {
    pub source: &'a Graph,
    pub options: &'a CompileOptions,
    pub canonical: &'a Graph,
    /// The canonical form that can be faster in buckets of small sizes, if there is one.
    pub for_small_sizes: Option<&'a Graph>,
    /// Whether the buckets are only some of a plan's buckets.
    pub among_others: bool,
    pub coalesces: bool,
    /// The cache of solutions of regions that all lowerings share.
    pub solutions: &'a SolutionCache,
}

impl<'a> Pipeline<'a> {
    /// The pipeline for all buckets of a program. Collectives are coalesced if the options allow it.
    pub fn new(source: &'a Graph, options: &'a CompileOptions, forms: &'a CanonicalForms) -> Pipeline<'a> {
        Pipeline {
            source,
            options,
            canonical: &forms.default_form,
            for_small_sizes: forms.for_small_sizes.as_ref(),
            among_others: false,
            coalesces: options.coalesce,
            solutions: &options.solutions,
        }
    }

    /// The pipeline for the canonical form that can be faster at small sizes, if there is one.
    pub fn small_sizes(&self) -> Option<Pipeline<'a>> {
        let canonical = self.for_small_sizes?;
        Some(Pipeline { canonical, for_small_sizes: None, ..*self })
    }

    pub fn lower(&self, buckets: &[BucketRequest], choice: &VariantChoice) -> Result<LoweredBuckets> {
        let nodes = buckets.len() * self.canonical.nodes.len();
        let buckets = buckets.iter().map(|b| &b.ranges).enumerate().collect();
        let lowered: Result<Vec<(BucketInput, bool)>, PassError> =
            parallel::map(buckets, nodes, |(b, symbols)| {
                let choice = BucketVariantChoice { number: b, symbols, choice };
                let lowering = lower_config(self.canonical, self.options, choice);
                let lowering = LowerConfig { solutions: self.solutions.clone(), ..lowering };
                let (program, forms) = program_of_bucket(self.canonical, self.options, symbols)?;
                let (graph, mut decisions, report) = symmc_passes::lower(&program, &lowering)?;
                forms.explain(&mut decisions);
                let collectives = collectives_by_name(&graph);
                let bytes = bytes_of_steps(&graph, &decisions);
                let profile = &self.options.profile;
                let decisions = decisions
                    .into_iter()
                    .map(|decision| with_kernel_blocks(decision, &graph, &collectives, &bytes, profile))
                    .collect();
                Ok((BucketInput { graph, decisions }, report.overlapped > 0))
            })
            .into_iter()
            .collect();
        let (inputs, overlapped) = lowered?.into_iter().unzip();
        Ok(LoweredBuckets { inputs, overlapped })
    }

    /// For each bucket, the sets of collectives that are faster if joined, except those that rewriting uses.
    pub fn joinable(
        &self,
        buckets: &[BucketRequest],
        rewritten: &[BTreeSet<String>],
        config: CoalesceConfig,
    ) -> Result<Vec<Vec<CoalescedSet>>> {
        if !self.coalesces {
            return Ok(vec![Vec::new(); buckets.len()]);
        }
        let sets = buckets.iter().enumerate().map(|(b, bucket)| {
            let choice = VariantChoice::default();
            let choice = BucketVariantChoice { number: b, symbols: &bucket.ranges, choice: &choice };
            let lowering = lower_config(self.canonical, self.options, choice);
            let excluded = rewritten.get(b).cloned().unwrap_or_default();
            let (program, _) = program_of_bucket(self.canonical, self.options, &bucket.ranges)?;
            symmc_passes::find_coalescible(
                &program,
                &lowering,
                &CoalesceConfig { kept: excluded, ..config.clone() },
            )
        });
        Ok(sets.collect::<Result<_, PassError>>()?)
    }

    pub fn attempt_plan(&self, inputs: Vec<BucketInput>, plan: Plan) -> Result<PlanAttempt> {
        PlanAttempt::new(inputs, plan, &self.options.profile, self.options.memory_price)
            .map_err(DriverError::Defect)
    }

    pub fn plan_inputs(&self, buckets: &[BucketRequest], inputs: &[BucketInput]) -> Result<Plan, PlanError> {
        symmc_planner::plan(self.source, inputs, &self.plan_config(buckets))
    }

    /// Plans only for an estimate, without the long search for offsets, which takes most of the time of some
    /// programs.
    pub fn plan_on_trial(
        &self,
        buckets: &[BucketRequest],
        inputs: &[BucketInput],
    ) -> Result<Plan, PlanError> {
        let mut config = self.plan_config(buckets);
        config.pack.exact = 0;
        symmc_planner::plan(self.source, inputs, &config)
    }

    pub fn plan_config(&self, buckets: &[BucketRequest]) -> PlanConfig {
        let own_orders = buckets.iter().enumerate().filter(|(_, b)| b.own_order);
        PlanConfig {
            machine: self.options.profile.name.clone(),
            bind: self.options.bound.clone(),
            profile: Some(self.options.profile.clone()),
            order: self.options.order,
            slack: self.options.slack,
            memory_price: self.options.memory_price,
            numerics: self.options.numerics,
            own_orders: own_orders.map(|(b, _)| b).collect(),
            among_others: self.among_others,
            ..PlanConfig::default()
        }
    }
}

/// The inputs of a choice of variants, for all buckets.
#[derive(Clone, Default)]
pub struct VariantChoice {
    pub symmetric: Option<u64>,
    pub plain: bool,
    /// For each bucket, the facts that a plan shows; the default for missing buckets.
    pub observed: Vec<ObservedSchedule>,
    /// For each bucket, the sets of collectives that are joined; none for missing buckets.
    pub joined: Vec<JoinedSets>,
}

/// The inputs of a choice of variants, for one bucket.
pub struct BucketVariantChoice<'a> {
    pub number: usize,
    pub symbols: &'a SymbolRanges,
    pub choice: &'a VariantChoice,
}

/// The buckets with a variant for each collective.
pub struct LoweredBuckets {
    pub inputs: Vec<BucketInput>,
    /// For each bucket, whether the choice depends on computation concurrent with a collective.
    pub overlapped: Vec<bool>,
}

pub fn lower_config(
    canonical: &Graph,
    options: &CompileOptions,
    bucket: BucketVariantChoice<'_>,
) -> LowerConfig {
    let BucketVariantChoice { number, symbols, choice } = bucket;
    let observed = choice.observed.get(number).cloned().unwrap_or_default();
    let JoinedSets { packed, together } = choice.joined.get(number).cloned().unwrap_or_default();
    // The planner places parameters and constants where collectives need them.
    let stored_inputs =
        canonical.inputs.iter().filter(|(_, i)| i.kind != InputKind::Argument).map(|(id, _)| id);
    LowerConfig {
        symbols: symbols.clone(),
        bound: stored_inputs.chain(options.bound.iter().copied()).collect(),
        variants: if choice.plain { Some(Vec::new()) } else { options.variants.clone() },
        symmetric: choice.symmetric,
        overlap: observed.overlap,
        exits_kept: observed.exits_kept,
        coalesced: packed,
        together,
        numerics: options.numerics,
        ..LowerConfig::new(options.profile.clone())
    }
}

/// The program of a bucket, in the form that is faster at its sizes. All choices of variants start from it.
pub fn program_of_bucket<'g>(
    canonical: &'g Graph,
    options: &CompileOptions,
    symbols: &SymbolRanges,
) -> Result<(Cow<'g, Graph>, ChosenForms), PassError> {
    let choice = BucketVariantChoice { number: 0, symbols, choice: &VariantChoice::default() };
    symmc_passes::lower::choose_forms(canonical, &lower_config(canonical, options, choice))
}

fn collectives_by_name(graph: &Graph) -> HashMap<&str, &Collective> {
    graph.nodes.iter().filter_map(|(n, node)| Some((graph.node_name(n), node.op.as_collective()?))).collect()
}

/// For each collective that runs with others, by its name, the bytes of their step.
fn bytes_of_steps(graph: &Graph, decisions: &[Decision]) -> HashMap<String, u64> {
    let bytes_alone: HashMap<&str, u64> =
        decisions.iter().map(|d| (d.collective.as_str(), d.bytes)).collect();
    let mut out = HashMap::new();
    for dispatch in &graph.dispatches {
        let mut total = 0u64;
        for n in dispatch.nodes() {
            total = total.saturating_add(bytes_alone.get(graph.node_name(n)).copied().unwrap_or(0));
        }
        out.extend(dispatch.nodes().map(|n| (graph.node_name(n).to_string(), total)));
    }
    out
}

/// Adds to a decision the most blocks of each of its kernels.
fn with_kernel_blocks(
    decision: Decision,
    graph: &Graph,
    collectives: &HashMap<&str, &Collective>,
    bytes_of_steps: &HashMap<String, u64>,
    profile: &MachineProfile,
) -> CollectiveChoice {
    let blocks = decision.nodes.iter().map(|name| {
        let c = collectives.get(name.as_str())?;
        let bytes = bytes_of_steps.get(name).copied().unwrap_or(decision.bytes);
        profile.max_blocks(&c.kind, c.variant?, bytes, graph.group_size(c.group)?)
    });
    let blocks = blocks.collect();
    CollectiveChoice { decision, blocks }
}
