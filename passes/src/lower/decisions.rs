//! Decisions: how each collective of a region runs, with the alternatives that were considered.

use std::collections::BTreeSet;

use egg::{Id, Language};
use symmc_ir::Op;
use symmc_plan::{AppliedRule, Decision, DecisionAlternative};

use super::context::round_us;
use super::extract::{self, Cost, CostModel, Extraction};
use super::imported_region::ImportedRegion;
use super::language::{self, Lang, LangEGraph};
use super::region::RegionForm;
use super::region_plan::{RegionPlan, StepSource};

pub struct RegionDecision {
    pub node: usize,
    /// The node of the region whose value the steps compute: `node` itself, or a sum of several collectives.
    pub root: usize,
    /// The steps that run the collective; empty if others make it unnecessary. Each step belongs to one
    /// decision.
    pub steps: Vec<usize>,
    pub chosen: String,
    pub bytes: u64,
    /// The name and cost of every alternative, cheapest first.
    pub alternatives: Vec<(String, Cost)>,
    /// The names of the rules that lead to the chosen alternative. Each has the time of the collective that
    /// it introduced, in microseconds, if that can run.
    pub rules: Vec<(String, Option<f64>)>,
}

/// The chosen alternative of a collective whose value is no longer needed.
pub const ABSORBED_ALTERNATIVE: &str = "absorbed";
/// The alternative that every collective has.
pub const PLAIN_ALTERNATIVE: &str = "plain";
/// The most nodes between a collective and the parts that replace it.
const MAX_DEPTH: usize = 16;

/// An alternative without copies and savings.
pub fn alternative_without_copies(name: &str, us: f64) -> DecisionAlternative {
    DecisionAlternative { name: name.into(), us: round_us(us), copy_us: 0.0, saved_us: 0.0 }
}

/// The decision about a collective that others replace. `us` is the time that they take for it, and `plain_us` its
/// time by plain.
pub fn absorbed_decision(
    collective: &str,
    bytes: u64,
    us: f64,
    plain_us: Option<f64>,
    rule: AppliedRule,
) -> Decision {
    let plain = plain_us.map(|us| alternative_without_copies(PLAIN_ALTERNATIVE, us));
    let mut alternatives = vec![alternative_without_copies(ABSORBED_ALTERNATIVE, us)];
    alternatives.extend(plain);
    alternatives.sort_by(|a, b| a.us.total_cmp(&b.us));
    Decision {
        collective: collective.into(),
        nodes: Vec::new(),
        chosen: ABSORBED_ALTERNATIVE.into(),
        bytes,
        alternatives,
        rules: vec![rule],
    }
}

/// Builds the decisions of one region.
pub struct DecisionBuilder<'a> {
    pub graph: &'a LangEGraph,
    pub imported: &'a ImportedRegion,
    pub uses: &'a CostModel,
    pub taken: &'a Extraction,
    pub best: &'a Extraction,
    /// The region as imported, with every collective run by plain.
    pub plain: &'a Extraction,
}

impl DecisionBuilder<'_> {
    /// The sources of the results of the region's nodes.
    pub fn result_operands(&self, plan: &RegionPlan) -> Vec<Vec<Option<StepSource>>> {
        let mut operands = Vec::with_capacity(self.imported.nodes.len());
        for node in &self.imported.nodes {
            let classes = node.results.iter().map(|&id| self.graph.find(id));
            operands.push(classes.map(|class| plan.class_operands.get(&class).copied()).collect());
        }
        operands
    }

    pub fn build_decisions(&self, form: &RegionForm, plan: &RegionPlan) -> Option<Vec<RegionDecision>> {
        let mut out = Vec::new();
        let mut claimed: BTreeSet<usize> = BTreeSet::new();
        for (i, node) in form.nodes.iter().enumerate() {
            let Op::Collective(collective) = &node.op else { continue };
            let class = self.graph.find(self.imported.nodes[i].class);
            let operands = self.imported.nodes[i].node.children().get(self.attributes(i)..)?;
            let sizes = language::collective_sizes(self.graph, collective, operands, class)?;
            let (name, steps) = match (plan.class_operands.get(&class), self.taken.get(&class)) {
                (Some(_), Some(chosen)) => {
                    let mut steps = Vec::new();
                    self.steps_of(class, plan, &mut steps);
                    // Steps that an earlier, equal collective already claimed count with that one.
                    steps.retain(|&step| claimed.insert(step));
                    let alternative = if steps.is_empty() {
                        ABSORBED_ALTERNATIVE.to_string()
                    } else {
                        self.alternative_of_node(i, class, chosen)?.0
                    };
                    (alternative, steps)
                }
                _ => (ABSORBED_ALTERNATIVE.to_string(), Vec::new()),
            };
            let alternatives = self.list_alternatives(i, class, &name)?;
            out.push(RegionDecision {
                node: i,
                root: i,
                steps,
                chosen: name,
                bytes: sizes.moved,
                alternatives,
                rules: Vec::new(),
            });
        }
        self.claim_shared_steps(plan, &claimed, &mut out)?;
        Some(out)
    }

    /// Assigns collectives that replace several absorbed ones, such as the collective of their sum, to the
    /// first of these. A collective that was absorbed by an equal one is chosen only if there is no other.
    fn claim_shared_steps(
        &self,
        plan: &RegionPlan,
        claimed: &BTreeSet<usize>,
        decisions: &mut [RegionDecision],
    ) -> Option<()> {
        let mut names = Vec::new();
        let mut sum = Cost::default();
        let mut steps = Vec::new();
        let mut root = None;
        for (&class, &source) in &plan.class_operands {
            let (StepSource::Step(step, 0), Some(node)) = (source, self.taken.get(&class)) else { continue };
            let Lang::Collective(name, Some(variant), _) = node else { continue };
            if !claimed.contains(&step) {
                sum += extract::node_cost(self.graph, class, node, self.uses)?;
                root = root.or_else(|| self.served_node(class));
                names.push(format!("{name}.{variant}"));
                steps.push(step);
            }
        }
        let first = decisions.iter_mut().filter(|d| d.chosen == ABSORBED_ALTERNATIVE).min_by_key(|d| {
            let class = self.graph.find(self.imported.nodes[d.node].class);
            plan.class_operands.contains_key(&class)
        });
        let Some(first) = first else { return Some(()) };
        if !steps.is_empty() {
            first.root = root.unwrap_or(first.node);
            first.steps = steps;
            first.chosen = names.join(" + ");
            first.alternatives.retain(|(name, _)| name != ABSORBED_ALTERNATIVE);
            first.alternatives.push((first.chosen.clone(), sum));
            first.alternatives.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
        }
        Some(())
    }

    /// The node of the region whose value a class is, or for which it is needed.
    fn served_node(&self, class: Id) -> Option<usize> {
        let mut open = vec![class];
        while let Some(class) = open.pop() {
            if let Some(node) = self.imported.node_of_class(self.graph, class) {
                return Some(node);
            }
            for (&reader, node) in self.taken {
                if node.children().iter().any(|&child| self.graph.find(child) == class) {
                    open.push(reader);
                }
            }
        }
        None
    }

    fn attributes(&self, node: usize) -> usize {
        match &self.imported.nodes[node].node {
            Lang::Collective(name, ..) => language::attribute_count(*name),
            _ => 0,
        }
    }

    /// Collects the collective steps that compute a class, up to other nodes of the region.
    fn steps_of(&self, class: Id, plan: &RegionPlan, out: &mut Vec<usize>) {
        let Some(node) = self.taken.get(&class) else { return };
        for child in node.children().iter().map(|&c| self.graph.find(c)) {
            if self.imported.node_of_class(self.graph, child).is_none() {
                self.steps_of(child, plan, out);
            }
        }
        if let (Lang::Collective(..), Some(StepSource::Step(step, 0))) =
            (node, plan.class_operands.get(&class))
            && !out.contains(step)
        {
            out.push(*step);
        }
    }

    fn list_alternatives(&self, node: usize, class: Id, chosen: &str) -> Option<Vec<(String, Cost)>> {
        let mut out: Vec<(String, Cost)> = Vec::new();
        if chosen == ABSORBED_ALTERNATIVE {
            out.push((ABSORBED_ALTERNATIVE.to_string(), Cost::default()));
        }
        let mut nodes: Vec<&Lang> = self.graph[class].nodes.iter().collect();
        nodes.sort_unstable();
        for n in nodes {
            self.collect_alternatives(node, class, n, &mut out);
        }
        out.retain(|(name, _)| name != PLAIN_ALTERNATIVE);
        out.push((
            PLAIN_ALTERNATIVE.to_string(),
            self.imported_cost(class, &self.imported.by_plain(self.graph, node))?,
        ));
        out.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
        let mut names = BTreeSet::new();
        out.retain(|(name, _)| names.insert(name.clone()));
        out.iter().any(|(name, _)| name == chosen).then_some(out)
    }

    /// The cost of a collective of the region as imported, with `node` run by plain. It includes collectives
    /// that only this one needs.
    fn imported_cost(&self, class: Id, node: &Lang) -> Option<Cost> {
        let mut sum = extract::node_cost(self.graph, class, node, self.uses)?;
        for child in node.children().iter().map(|&c| self.graph.find(c)) {
            if !self.taken.contains_key(&child) {
                sum += self.imported_cost(child, self.plain.get(&child)?)?;
            }
        }
        Some(sum)
    }

    /// Collects the alternatives that begin with a node of a class: one for a collective; for other nodes,
    /// one for each collective below.
    fn collect_alternatives(&self, imported: usize, class: Id, node: &Lang, out: &mut Vec<(String, Cost)>) {
        let Some((name, cost)) = self.alternative_of_node(imported, class, node) else { return };
        out.push((name, cost));
        let (Lang::Reshape([_, x]) | Lang::Cast([_, x]) | Lang::SumPieces([.., x])) = node else { return };
        let below = self.graph.find(*x);
        let Some(own) = extract::node_cost(self.graph, class, node, self.uses) else { return };
        let mut nodes: Vec<&Lang> = self.graph[below].nodes.iter().collect();
        nodes.sort_unstable();
        for n in nodes.into_iter().filter(|n| matches!(n, Lang::Collective(..))) {
            if let Some((name, mut cost)) = self.alternative_of_node(imported, below, n) {
                cost += own;
                out.push((name, cost));
            }
        }
    }

    /// The name and the cost of running a collective of the region by a node of its class, including
    /// everything that only this node needs. `None` if the node cannot run.
    fn alternative_of_node(&self, imported: usize, class: Id, node: &Lang) -> Option<(String, Cost)> {
        let mut choices = Vec::new();
        let mut sum = Cost::default();
        self.collect_costs(class, node, 0, &mut choices, &mut sum)?;
        let imported_name = match &self.imported.nodes[imported].node {
            Lang::Collective(name, ..) => name.name(),
            _ => "",
        };
        let name = match &choices[..] {
            [] => return None,
            [(kind, variant)] if *kind == imported_name => variant.to_string(),
            _ => choices.iter().map(|(n, v)| format!("{n}.{v}")).collect::<Vec<_>>().join(" + "),
        };
        Some((name, sum))
    }

    fn collect_costs(
        &self,
        class: Id,
        node: &Lang,
        depth: usize,
        choices: &mut Vec<(&'static str, &'static str)>,
        sum: &mut Cost,
    ) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        for child in node.children().iter().map(|&c| self.graph.find(c)) {
            let elsewhere =
                self.imported.node_of_class(self.graph, child).is_some() && self.taken.contains_key(&child);
            if !elsewhere {
                let below = self.taken.get(&child).or(self.best.get(&child))?;
                self.collect_costs(child, below, depth + 1, choices, sum)?;
            }
        }
        if let Lang::Collective(name, Some(variant), _) = node {
            choices.push((name.name(), variant.name()));
        }
        *sum += extract::node_cost(self.graph, class, node, self.uses)?;
        Some(())
    }
}
