//! The reasons of decisions: the rules by which the chosen steps equal the program.
//!
//! If a collective runs unchanged by a variant, the variant's rule is its reason. Other reasons come from a
//! second e-graph that keeps explanations, because explanations take most of the time of a region.

use egg::{FlatTerm, Id, Language, RecExpr};

use super::decisions::{ABSORBED_ALTERNATIVE, RegionDecision};
use super::extract::{self, CostModel, Extraction};
use super::imported_region::ImportedRegion;
use super::language::{self, Lang, LangEGraph};
use super::rules;

pub struct DecisionExplainer<'a> {
    pub graph: &'a LangEGraph,
    pub imported: &'a ImportedRegion,
    pub taken: &'a Extraction,
}

impl DecisionExplainer<'_> {
    /// Sets the reason of each collective that runs unchanged by a variant. Returns the positions of the
    /// other decisions.
    pub fn name_variants(&self, decisions: &mut [RegionDecision]) -> Vec<usize> {
        let mut open = Vec::new();
        for (i, decision) in
            decisions.iter_mut().enumerate().filter(|(_, d)| d.chosen != ABSORBED_ALTERNATIVE)
        {
            match self.variant_rule(decision) {
                Some(rule) => {
                    let us = decision.alternatives.iter().find(|(name, _)| *name == decision.chosen);
                    decision.rules = vec![(rule, us.map(|(_, cost)| cost.us))];
                }
                None => open.push(i),
            }
        }
        open
    }

    /// The rule of the variant of a collective that runs as the program has it.
    fn variant_rule(&self, decision: &RegionDecision) -> Option<String> {
        let imported = &self.imported.nodes[decision.node];
        if decision.root != decision.node {
            return None;
        }
        let class = self.graph.find(imported.class);
        let (Lang::Collective(name, ..), Some(chosen)) = (&imported.node, self.taken.get(&class)) else {
            return None;
        };
        let operands = imported.node.children().iter().map(|&child| self.graph.find(child));
        let same_operands = chosen.children().iter().map(|&child| self.graph.find(child)).eq(operands);
        match chosen {
            Lang::Collective(taken_name, Some(_), _) if taken_name == name && same_operands => {
                let (collective, collective_operands) = language::as_collective(self.graph, chosen)?;
                let operand_count = collective_operands.len();
                Some(rules::variant_rule_name(&collective.kind, collective.variant?, operand_count))
            }
            _ => None,
        }
    }

    /// The rules that lead from a collective of the program, or a sum of several, to the steps that run it,
    /// in order. Each has the time of the collective that it introduced. `graph` is the e-graph of the
    /// region with explanations.
    pub fn explain(
        &self,
        decision: &RegionDecision,
        graph: &mut LangEGraph,
        uses: &CostModel,
    ) -> Vec<(String, Option<f64>)> {
        let from = &self.imported.nodes[decision.root];
        let Some(to) = self.imported.expression(self.graph, self.graph.find(from.class), self.taken) else {
            return Vec::new();
        };
        rules_between(graph, &from.expression, &to, uses)
    }
}

/// The rules that lead from one expression to an equal one, in order, with the time of the collective that
/// each introduced.
fn rules_between(
    graph: &mut LangEGraph,
    from: &RecExpr<Lang>,
    to: &RecExpr<Lang>,
    uses: &CostModel,
) -> Vec<(String, Option<f64>)> {
    if graph.lookup_expr(from).is_none() || graph.lookup_expr(from) != graph.lookup_expr(to) {
        return Vec::new();
    }
    let mut rules = Vec::new();
    for term in graph.explain_equivalence(from, to).make_flat_explanation() {
        collect_rules(graph, term, uses, &mut rules);
    }
    rules
}

fn collect_rules(
    graph: &LangEGraph,
    term: &FlatTerm<Lang>,
    uses: &CostModel,
    out: &mut Vec<(String, Option<f64>)>,
) {
    for rule in [term.forward_rule, term.backward_rule].into_iter().flatten() {
        out.push((rule.to_string(), term_us(graph, term, uses)));
    }
    term.children.iter().for_each(|child| collect_rules(graph, child, uses, out));
}

/// The estimate of the collective at the top of a term; `None` if there is no collective, or no variant runs
/// it yet.
fn term_us(graph: &LangEGraph, term: &FlatTerm<Lang>, uses: &CostModel) -> Option<f64> {
    let Lang::Collective(..) = term.node else { return None };
    let (class, node) = term_node(graph, term)?;
    extract::node_cost(graph, class, &node, uses).map(|cost| cost.us)
}

/// The node at the top of a term, with classes as its children, and its class.
fn term_node(graph: &LangEGraph, term: &FlatTerm<Lang>) -> Option<(Id, Lang)> {
    let below = term.children.iter().map(|child| term_node(graph, child).map(|(class, _)| class));
    let mut below = below.collect::<Option<Vec<Id>>>()?.into_iter();
    let node = term.node.clone().map_children(|id| below.next().unwrap_or(id));
    Some((graph.lookup(node.clone())?, node))
}
