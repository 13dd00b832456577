//! From a program in canonical form, the ranges of a bucket and a choice to a plan.
//!
//! The search ([`crate::search`]) uses this pipeline for every attempt.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use symmc_ir::collective::Collective;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{Graph, InputKind};
use symmc_passes::lower::{ChosenForms, LowerConditions, PreparedLowering};
use symmc_passes::{CanonicalForms, CoalesceConfig, CoalescedSet, LowerConfig, PassError, SolutionCache};
use symmc_plan::Decision;
use symmc_planner::{BucketInput, CollectiveChoice, PlanConfig};

use crate::divide::{BucketRequest, SymbolRanges};
use crate::options::CompileOptions;

/// The inputs of all attempts.
#[derive(Clone, Copy)]
pub struct Pipeline<'a> {
    pub source: &'a Graph,
    pub options: &'a CompileOptions,
    pub canonical: &'a Graph,
    /// The canonical form that can be faster in buckets of small sizes, if there is one.
    pub for_small_sizes: Option<&'a Graph>,
    /// The cache of solutions of regions that all lowerings share.
    pub solutions: &'a SolutionCache,
    /// Whether the search tries more than the first attempt.
    pub is_searched: bool,
}

/// How the collectives of a bucket are to run.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Choice {
    /// Whether the program has the canonical form for small sizes.
    pub for_small_sizes: bool,
    pub conditions: LowerConditions,
    /// The sets of collectives that become one collective each.
    pub packed: Vec<CoalescedSet>,
    /// The sets of collectives that run as one step each.
    pub together: Vec<CoalescedSet>,
}

/// The programs of a bucket from which its lowerings start: in the default canonical form, and in that for small sizes.
pub struct BucketPrograms<'a> {
    pub ranges: SymbolRanges,
    default_form: BucketProgram<'a>,
    small_sizes: Option<BucketProgram<'a>>,
    /// The prepared programs, by their form (whether for small sizes) and their packed sets. Most choices of a search
    /// change neither.
    prepared: RefCell<HashMap<(bool, Vec<CoalescedSet>), Rc<PreparedLowering>>>,
}

/// A canonical form in the form that is faster at the sizes of the bucket.
type BucketProgram<'a> = (Cow<'a, Graph>, ChosenForms);

impl<'a> BucketPrograms<'a> {
    pub fn new(pipeline: &Pipeline<'a>, ranges: &SymbolRanges) -> Result<BucketPrograms<'a>, PassError> {
        let program = |canonical| program_of_bucket(canonical, pipeline.options, ranges);
        Ok(BucketPrograms {
            ranges: ranges.clone(),
            default_form: program(pipeline.canonical)?,
            small_sizes: pipeline.for_small_sizes.map(program).transpose()?,
            prepared: RefCell::default(),
        })
    }

    fn program(&self, for_small_sizes: bool) -> &BucketProgram<'a> {
        self.small_sizes.as_ref().filter(|_| for_small_sizes).unwrap_or(&self.default_form)
    }

    pub fn graph(&self, for_small_sizes: bool) -> &Graph {
        &self.program(for_small_sizes).0
    }
}

impl<'a> Pipeline<'a> {
    /// The pipeline for all buckets of a program.
    pub fn new(source: &'a Graph, options: &'a CompileOptions, forms: &'a CanonicalForms) -> Pipeline<'a> {
        Pipeline {
            source,
            options,
            canonical: &forms.default_form,
            for_small_sizes: forms.for_small_sizes.as_ref(),
            solutions: &options.solutions,
            is_searched: true,
        }
    }

    /// The program of a bucket with a variant for each collective.
    pub fn lower(&self, programs: &BucketPrograms<'_>, choice: &Choice) -> Result<BucketInput, PassError> {
        let prepared = self.prepared(programs, choice)?;
        let (graph, mut decisions, _) = prepared.lower(&choice.conditions, &choice.together)?;
        programs.program(choice.for_small_sizes).1.explain(&mut decisions);
        let collectives = collectives_by_name(&graph);
        let bytes = bytes_of_steps(&graph, &decisions);
        let profile = &self.options.profile;
        let decisions = decisions
            .into_iter()
            .map(|decision| with_kernel_blocks(decision, &graph, &collectives, &bytes, profile))
            .collect();
        Ok(BucketInput { graph, decisions })
    }

    /// The program of a choice, ready to be lowered under its conditions.
    fn prepared(
        &self,
        programs: &BucketPrograms<'_>,
        choice: &Choice,
    ) -> Result<Rc<PreparedLowering>, PassError> {
        let key = (choice.for_small_sizes, choice.packed.clone());
        if let Some(known) = programs.prepared.borrow().get(&key) {
            return Ok(known.clone());
        }
        let program = programs.graph(choice.for_small_sizes);
        let config = LowerConfig {
            coalesced: choice.packed.clone(),
            solutions: self.solutions.clone(),
            ..lower_config(program, self.options, &programs.ranges)
        };
        let new = Rc::new(PreparedLowering::new(program, &config)?);
        programs.prepared.borrow_mut().insert(key, new.clone());
        Ok(new)
    }

    /// The sets of collectives of a bucket that are faster if joined.
    pub fn joinable(
        &self,
        programs: &BucketPrograms<'_>,
        for_small_sizes: bool,
        config: &CoalesceConfig,
    ) -> Result<Vec<CoalescedSet>, PassError> {
        if !self.options.coalesce {
            return Ok(Vec::new());
        }
        let program = programs.graph(for_small_sizes);
        symmc_passes::find_coalescible(
            program,
            &lower_config(program, self.options, &programs.ranges),
            config,
        )
    }

    /// The planner's options for these buckets. `among_others` says whether the plan has further buckets.
    pub fn plan_config(&self, buckets: &[BucketRequest], among_others: bool) -> PlanConfig {
        let own_orders = buckets.iter().enumerate().filter(|(_, b)| b.own_order);
        PlanConfig {
            machine: self.options.profile.name.clone(),
            bind: self.options.bound.clone(),
            profile: Some(self.options.profile.clone()),
            order: self.options.order,
            slack: self.options.slack,
            slack_base: SLACK_BASE_BYTES,
            memory_price: self.options.memory_price,
            numerics: self.options.numerics,
            own_orders: own_orders.map(|(b, _)| b).collect(),
            among_others,
            ..PlanConfig::default()
        }
    }
}

/// The bytes of which `slack` is a fraction, for programs whose leanest order takes less. Small programs are not short of
/// memory; the price of memory says what overlap is worth.
const SLACK_BASE_BYTES: u64 = 256 << 20;

/// The options of the first lowering of a bucket.
pub fn lower_config(canonical: &Graph, options: &CompileOptions, symbols: &SymbolRanges) -> LowerConfig {
    // The planner places parameters and constants where collectives need them.
    let stored_inputs =
        canonical.inputs.iter().filter(|(_, i)| i.kind != InputKind::Argument).map(|(id, _)| id);
    LowerConfig {
        symbols: symbols.clone(),
        bound: stored_inputs.chain(options.bound.iter().copied()).collect(),
        variants: options.variants.clone(),
        numerics: options.numerics,
        ..LowerConfig::new(options.profile.clone())
    }
}

/// The program of a bucket, in the form that is faster at its sizes. All choices of variants start from it.
pub fn program_of_bucket<'g>(
    canonical: &'g Graph,
    options: &CompileOptions,
    symbols: &SymbolRanges,
) -> Result<BucketProgram<'g>, PassError> {
    symmc_passes::lower::choose_forms(canonical, &lower_config(canonical, options, symbols))
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
