//! Rules of the e-graph that are written as patterns, and the values that they bind.

use egg::{Applier, Id, Pattern, PatternAst, Rewrite, SearchMatches, Subst, Symbol, Var};
use symmc_ir::{Dim, NumericsClass, TensorType};

use super::language::{self, Lang, LangAttribute, LangEGraph, RegionAnalysis};

pub struct PatternRule {
    /// The name of the rule in plans.
    pub name: &'static str,
    /// The equation, for readers.
    pub equation: &'static str,
    /// The pattern to look for.
    pub from: &'static str,
    pub to: &'static str,
    pub when: RuleCondition,
    /// The numerics class that a plan needs for the rule; `None` if the two sides have equal bits.
    pub class: Option<NumericsClass>,
}

#[derive(Clone, Copy)]
pub enum RuleCondition {
    Always,
    /// The right side names a variant that may run the collective and has an estimate, as in a
    /// rule of a variant.
    VariantRuns,
    /// This function returns `Some`; it may bind variables.
    Holds(fn(&mut LangEGraph, &mut Subst) -> Option<()>),
}

pub(super) fn compile_rule(
    name: &str,
    from: &str,
    to: &str,
    when: RuleCondition,
) -> Result<Rewrite<Lang, RegionAnalysis>, String> {
    let from: Pattern<Lang> = from.parse().map_err(|e| format!("rule {name}: {e}"))?;
    let target: Pattern<Lang> = to.parse().map_err(|e| format!("rule {name}: {e}"))?;
    let applier = CheckedApplier { to: target.ast, when };
    Rewrite::new(name, from, applier).map_err(|e| format!("rule {name}: {e}"))
}

/// The right side of a rule, applied if the condition holds.
struct CheckedApplier {
    to: PatternAst<Lang>,
    when: RuleCondition,
}

impl Applier<Lang, RegionAnalysis> for CheckedApplier {
    fn apply_matches(
        &self,
        graph: &mut LangEGraph,
        matches: &[SearchMatches<Lang>],
        rule: Symbol,
    ) -> Vec<Id> {
        let mut changed = Vec::new();
        for matching in matches {
            let Some(from) = matching.ast.as_ref() else { continue };
            for subst in &matching.substs {
                changed.extend(self.apply_one(graph, matching.eclass, subst, Some(from), rule));
            }
        }
        changed
    }

    fn apply_one(
        &self,
        graph: &mut LangEGraph,
        _: Id,
        subst: &Subst,
        from: Option<&PatternAst<Lang>>,
        rule: Symbol,
    ) -> Vec<Id> {
        let mut subst = subst.clone();
        let holds = match self.when {
            RuleCondition::Always => Some(()),
            RuleCondition::VariantRuns => self.variant_runs(graph, &subst),
            RuleCondition::Holds(condition) => condition(graph, &mut subst),
        };
        match (holds, from) {
            (Some(()), Some(from)) => {
                let (id, changed) = graph.union_instantiations(from, &self.to, &subst, rule);
                if changed { vec![id] } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }
}

impl CheckedApplier {
    fn variant_runs(&self, graph: &LangEGraph, subst: &Subst) -> Option<()> {
        let egg::ENodeOrVar::ENode(node) = self.to.as_ref().last()? else { return None };
        let Lang::Collective(name, variant, children) = node else { return None };
        let resolved = children.iter().map(|&c| match &self.to[c] {
            egg::ENodeOrVar::Var(v) => subst.get(*v).copied(),
            egg::ENodeOrVar::ENode(_) => None,
        });
        let node = Lang::Collective(*name, *variant, resolved.collect::<Option<Vec<Id>>>()?);
        let (collective, operands) = language::as_collective(graph, &node)?;
        let context = &graph.analysis.context;
        let bytes = context.bytes(language::class_value(graph, *operands.first()?)?.ty()?);
        context.estimate_us(
            &collective.kind,
            collective.group,
            collective.variant?,
            bytes.into(),
            0.0,
            Default::default(),
        )?;
        Some(())
    }
}

pub(super) fn bound_class(subst: &Subst, name: &str) -> Option<Id> {
    subst.get(name.parse::<Var>().ok()?).copied()
}

pub(super) fn bound_type(graph: &LangEGraph, subst: &Subst, name: &str) -> Option<TensorType> {
    language::class_value(graph, bound_class(subst, name)?)?.ty().cloned()
}

pub(super) fn bound_group_ranks(graph: &LangEGraph, subst: &Subst, name: &str) -> Option<Dim> {
    let LangAttribute::Group(group) = language::class_attribute(graph, bound_class(subst, name)?)? else {
        return None;
    };
    Some(Dim::from(i64::from(graph.analysis.context.ranks(*group))))
}

pub(super) fn leading_divides(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    let n = bound_group_ranks(graph, subst, "?g")?;
    bound_type(graph, subst, "?x")?.shape.first()?.exact_div(&n).map(|_| ())
}
