//! Solves one region: saturates its e-graph, extracts the cheapest program, and explains the decisions.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use egg::{Id, Rewrite, Runner, SimpleScheduler};
use symmc_ir::{CollectiveKind, CollectiveName, CollectiveVariant, Numerics, Op};

use super::context::LowerContext;
use super::decisions::{DecisionBuilder, RegionDecision};
use super::exact_search;
use super::explanations::DecisionExplainer;
use super::extract::{self, CollectiveTraffic, CostModel, Extraction};
use super::imported_region::ImportedRegion;
use super::language::{Lang, LangEGraph, RegionAnalysis};
use super::region::{RegionForm, RegionKey};
use super::region_plan::{RegionPlan, RegionStep, StepSource, plan_classes};
use super::rules;

pub struct RegionSolution {
    /// The steps, in dependency order.
    pub steps: Vec<RegionStep>,
    /// For each result of each node of the region, the source of its value, if it is needed.
    pub results: Vec<Vec<Option<StepSource>>>,
    /// The decision for each collective of the region.
    pub decisions: Vec<RegionDecision>,
    /// The rules that changed the e-graph, and how often.
    pub fired: Vec<(String, usize)>,
}

/// A step that is an all-reduce, and a variant for which it is one step with the addition after it.
pub type FusionCredit = (usize, CollectiveVariant);

impl RegionSolution {
    /// The steps that are all-reduces but do not stand for an all-reduce of the region.
    pub fn new_all_reduces<'a>(&'a self, form: &'a RegionForm) -> impl Iterator<Item = usize> + 'a {
        let new = self.steps.iter().enumerate().filter(|(_, step)| {
            let stands_for = step.stands_for.and_then(|node| form.nodes.get(node));
            is_all_reduce(&step.op) && !stands_for.is_some_and(|node| is_all_reduce(&node.op))
        });
        new.map(|(i, _)| i)
    }
}

fn is_all_reduce(op: &Op) -> bool {
    matches!(op.as_collective().map(|c| &c.kind), Some(CollectiveKind::AllReduce(_)))
}

/// The e-graphs of a region, each made when it is first needed.
#[derive(Default)]
pub struct RegionEGraphs {
    all: OnceLock<Option<SaturatedRegion>>,
    exact: OnceLock<Option<SaturatedRegion>>,
}

impl RegionEGraphs {
    /// The number of nodes of the e-graphs that were built.
    pub fn nodes(&self) -> usize {
        let graphs = [&self.all, &self.exact].into_iter().filter_map(|graph| graph.get()?.as_ref());
        graphs.map(|saturated| saturated.graph.total_size()).sum()
    }

    fn exact(
        &self,
        form: &RegionForm,
        context: &Arc<LowerContext>,
        rules: &CompiledRules,
    ) -> Option<&SaturatedRegion> {
        self.exact.get_or_init(|| SaturatedRegion::new(form, context, &rules.exact, false)).as_ref()
    }
}

/// Chooses how a region runs. Returns `None` if no variant can run some collective, which a profile with
/// plain excludes.
///
/// With credits, which refer to steps of the solution without credits, it also chooses the variants of these
/// steps for the program that the rules produced.
pub fn solve_region(
    key: &RegionKey,
    graphs: &RegionEGraphs,
    context: &Arc<LowerContext>,
    rules: &CompiledRules,
    credits: &[FusionCredit],
) -> Option<RegionSolution> {
    let form = &*key.form;
    let with_classes = if rules.all.len() == rules.exact.len() || !key.conditions.rewriting {
        None
    } else {
        graphs.all.get_or_init(|| SaturatedRegion::new(form, context, &rules.all, false)).as_ref()
    };
    let with_classes = with_classes.and_then(|region| Some((region, region.extract_cheapest(key)?)));
    let used = if with_classes.is_some() { &rules.all } else { &rules.exact };
    let (saturated, (mut extraction, best)) = match with_classes {
        Some(extracted) => extracted,
        None => {
            let exact = graphs.exact(form, context, rules)?;
            let cheapest = if key.conditions.rewriting { exact.extract_cheapest(key) } else { None };
            (exact, cheapest.or_else(|| exact.extract_by_variants(key))?)
        }
    };
    let SaturatedRegion { graph, imported, fired } = saturated;
    let uses = build_cost_model(graph, imported, key);
    let roots = imported.result_classes(graph, form, |u| u.outside);
    let credited = credited_classes(graph, credits, &plan_classes(graph, imported, &extraction, &roots)?);
    let uses = uses.with_fused(credited.iter().copied());
    for &(class, ..) in &credited {
        let node = extract::cheapest_variant(graph, class, extraction.get(&class)?, &uses);
        extraction.insert(class, node);
    }
    let unchanged = imported.plain_extraction(graph);
    let chooser =
        DecisionBuilder { graph, imported, uses: &uses, taken: &extraction, best: &best, plain: &unchanged };
    let plan = plan_classes(graph, imported, &extraction, &roots)?;
    let results = chooser.result_operands(&plan);
    let mut decisions = chooser.build_decisions(form, &plan)?;
    let steps = plan.steps;
    let ways = DecisionExplainer { graph, imported, taken: &extraction };
    let open = ways.name_variants(&mut decisions);
    if !open.is_empty() {
        let SaturatedRegion { mut graph, imported, .. } = SaturatedRegion::new(form, context, used, true)?;
        let fused = credited.iter().filter_map(|&(class, name, variant)| {
            let expression = ways.imported.expression(ways.graph, class, &extraction)?;
            Some((graph.lookup_expr(&expression)?, name, variant))
        });
        let uses = build_cost_model(&graph, &imported, key).with_fused(fused);
        for i in open {
            decisions[i].rules = ways.explain(&decisions[i], &mut graph, &uses);
        }
    }
    let fired = fired.clone();
    Some(RegionSolution { steps, results, decisions, fired })
}

/// The classes of the credited all-reduces, with their variants.
fn credited_classes(
    graph: &LangEGraph,
    credits: &[FusionCredit],
    plan: &RegionPlan,
) -> Vec<(Id, CollectiveName, CollectiveVariant)> {
    let mut credited = Vec::with_capacity(credits.len());
    for &(step, variant) in credits {
        let matching = plan.class_operands.iter().find(|(_, source)| **source == StepSource::Step(step, 0));
        if let Some((&class, _)) = matching {
            credited.push((graph.find(class), CollectiveName::AllReduce, variant));
        }
    }
    credited
}

pub struct CompiledRules {
    /// All rules that the numerics classes of the plan allow.
    pub all: Vec<Rewrite<Lang, RegionAnalysis>>,
    /// The rules whose two sides have equal bits.
    exact: Vec<Rewrite<Lang, RegionAnalysis>>,
}

impl CompiledRules {
    pub fn compiled(numerics: Numerics) -> Result<CompiledRules, String> {
        Ok(CompiledRules {
            all: rules::compile_rules(numerics)?,
            exact: rules::compile_rules(Numerics::EXACT)?,
        })
    }
}

/// The e-graph of a region after applying rules.
pub struct SaturatedRegion {
    pub graph: LangEGraph,
    pub imported: ImportedRegion,
    fired: Vec<(String, usize)>,
}

impl SaturatedRegion {
    /// Applies rules to the e-graph of a region until nothing changes or a limit is reached; `None` for an
    /// op that cannot be in a region.
    pub fn new(
        form: &RegionForm,
        context: &Arc<LowerContext>,
        rules: &[Rewrite<Lang, RegionAnalysis>],
        explained: bool,
    ) -> Option<SaturatedRegion> {
        let limits = context.limits;
        let facts = RegionAnalysis { context: context.clone(), leaves: form.leaves.clone() };
        let graph = LangEGraph::new(facts);
        let mut graph = if explained { graph.with_explanations_enabled() } else { graph };
        let imported = ImportedRegion::new(&mut graph, form)?;
        graph.rebuild();

        let no_leaves = RegionAnalysis { context: context.clone(), leaves: Vec::new() };
        let runner: Runner<Lang, RegionAnalysis> = Runner::new(no_leaves)
            .with_egraph(graph)
            .with_scheduler(SimpleScheduler)
            .with_iter_limit(limits.iterations)
            .with_node_limit(limits.nodes)
            .with_time_limit(Duration::MAX)
            .run(rules);
        let applied = runner.iterations.iter().flat_map(|i| &i.applied);
        let fired = applied.map(|(rule, &times)| (rule.to_string(), times)).collect();
        Some(SaturatedRegion { graph: runner.egraph, imported, fired })
    }

    /// The cheapest permitted extraction that does not have more collectives than the program, nor costs more
    /// than plain everywhere if that is permitted, and the best node of every class. `None` if none was found.
    fn extract_cheapest(&self, key: &RegionKey) -> Option<(Extraction, Extraction)> {
        let uses = build_cost_model(&self.graph, &self.imported, key);
        let mut roots = self.imported.result_classes(&self.graph, &key.form, |u| u.outside);
        let plain = self.imported.plain_extraction(&self.graph);
        let allowed = CollectiveTraffic::of_extraction(&self.graph, &plain, &roots)?;
        let permits_plain = key.conditions.variants.contains(CollectiveVariant::Plain);
        let plain_us =
            if permits_plain { extract::extraction_us(&self.graph, &plain, &uses)? } else { f64::INFINITY };
        let mut least_us = plain_us;
        let mut cheapest = None;
        for _ in 0..2 {
            let (extraction, best) = extract::extract_cheapest(&self.graph, &roots, &uses)?;
            let us = extract::extraction_us(&self.graph, &extraction, &uses)?;
            let cheaper = if cheapest.is_none() { us <= least_us } else { us < least_us };
            if cheaper
                && CollectiveTraffic::of_extraction(&self.graph, &extraction, &roots)?.is_within(&allowed)
            {
                least_us = us;
                cheapest = Some((extraction, best));
            }
            roots.reverse();
        }
        let cheaper =
            exact_search::find_cheaper_extraction(&self.graph, &roots, &uses, least_us, &|extraction| {
                CollectiveTraffic::of_extraction(&self.graph, extraction, &roots)
                    .is_some_and(|traffic| traffic.is_within(&allowed))
            });
        if let Some(extraction) = cheaper {
            let best = extract::best_nodes_given(&self.graph, &uses, &extraction);
            cheapest = Some((extraction, best));
        }
        cheapest
    }

    /// The region as imported, with each collective run by its cheapest variant, and the best node of every
    /// class.
    fn extract_by_variants(&self, key: &RegionKey) -> Option<(Extraction, Extraction)> {
        let uses = build_cost_model(&self.graph, &self.imported, key);
        let roots = self.imported.result_classes(&self.graph, &key.form, |u| u.outside);
        let mut extraction = self.imported.plain_extraction(&self.graph);
        for (&class, node) in &mut extraction {
            *node = extract::cheapest_variant(&self.graph, class, node, &uses);
        }
        let (_, mut best) = extract::extract_cheapest(&self.graph, &roots, &uses)?;
        best.extend(extraction.clone());
        Some((extraction, best))
    }
}

pub fn build_cost_model(graph: &LangEGraph, imported: &ImportedRegion, key: &RegionKey) -> CostModel {
    let form = &*key.form;
    let outputs = imported.result_classes(graph, form, |u| u.output).into_iter().collect();
    let result_classes = imported.result_classes(graph, form, |_| true);
    // If results became equal, they have the readers of all of them.
    let uses_of_all = form.nodes.iter().flat_map(|node| &node.uses);
    let fusible: BTreeSet<_> = uses_of_all.flat_map(|u| u.fused.iter().copied()).collect();
    let mut fused = BTreeSet::new();
    for (name, variant) in fusible {
        for class in imported.result_classes(graph, form, |u| u.fused.contains(&(name, variant))) {
            if result_classes.iter().filter(|&&other| other == class).count() == 1 {
                fused.insert((class, name, variant));
            }
        }
    }
    CostModel::new(outputs, fused, key.conditions)
}
