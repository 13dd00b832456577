//! The rules of the e-graph, as data.
//!
//! A rule equates its left side with its right side wherever the left side occurs and its condition holds. A
//! condition may also bind variables that only the right side has, such as the shape of a reshape. Rules
//! whose two sides round differently are marked and only used on request.

use egg::{Applier, Id, Pattern, PatternAst, Rewrite, SearchMatches, Subst, Symbol, Var};
use symmc_ir::{DType, Dim, Type};

use super::language::{self, Attr, Facts, Graph, Lang};

/// See the [module](self).
pub struct Rule {
    /// The name under which plans list it.
    pub name: &'static str,
    /// What equals what, for people.
    pub equation: &'static str,
    /// The pattern to look for.
    pub from: &'static str,
    /// What it equals.
    pub to: &'static str,
    /// When.
    pub when: When,
    /// Whether the two sides round differently.
    pub rounds: bool,
}

/// The condition of a rule.
#[derive(Clone, Copy)]
pub enum When {
    /// Always.
    Always,
    /// The right side names a variant that may run the collective and has an estimate.
    VariantRuns,
    /// This holds; it may bind variables.
    Holds(fn(&mut Graph, &mut Subst) -> Option<()>),
}

/// A rule that runs a collective by a variant.
const fn way(name: &'static str, equation: &'static str, from: &'static str, to: &'static str) -> Rule {
    Rule { name, equation, from, to, when: When::VariantRuns, rounds: false }
}

/// All rules.
pub const RULES: &[Rule] = &[
    way(
        "all_reduce_plain",
        "all_reduce(x) = the library's all-reduce of x",
        "(all_reduce ?op ?g ?x)",
        "(all_reduce.plain ?op ?g ?x)",
    ),
    way(
        "all_reduce_one_shot",
        "all_reduce(x) = every rank reads x of all ranks and reduces it",
        "(all_reduce ?op ?g ?x)",
        "(all_reduce.one_shot ?op ?g ?x)",
    ),
    way(
        "all_reduce_packets",
        "all_reduce(x) = every rank stores x with flags into all landing zones and reduces what lands",
        "(all_reduce ?op ?g ?x)",
        "(all_reduce.packets ?op ?g ?x)",
    ),
    way(
        "all_reduce_two_shot",
        "all_reduce(x) = every rank reduces one slice and writes it into all results",
        "(all_reduce ?op ?g ?x)",
        "(all_reduce.two_shot ?op ?g ?x)",
    ),
    way(
        "all_reduce_nccl_window",
        "all_reduce(x) = the library's all-reduce of x, with x and the result in its window",
        "(all_reduce ?op ?g ?x)",
        "(all_reduce.nccl_window ?op ?g ?x)",
    ),
    way(
        "all_gather_plain",
        "all_gather(x) = the library's all-gather of x",
        "(all_gather ?g ?x)",
        "(all_gather.plain ?g ?x)",
    ),
    way(
        "all_gather_push",
        "all_gather(x) = every rank writes x into all results",
        "(all_gather ?g ?x)",
        "(all_gather.push ?g ?x)",
    ),
    way(
        "all_gather_copies",
        "all_gather(x) = every rank copies x into all results",
        "(all_gather ?g ?x)",
        "(all_gather.copies ?g ?x)",
    ),
    way(
        "all_gather_pull",
        "all_gather(x) = every rank reads x of all ranks",
        "(all_gather ?g ?x)",
        "(all_gather.pull ?g ?x)",
    ),
    way(
        "all_gather_packets",
        "all_gather(x) = every rank stores x with flags into all landing zones",
        "(all_gather ?g ?x)",
        "(all_gather.packets ?g ?x)",
    ),
    way(
        "all_gather_nccl_window",
        "all_gather(x) = the library's all-gather of x, with x and the result in its window",
        "(all_gather ?g ?x)",
        "(all_gather.nccl_window ?g ?x)",
    ),
    way(
        "all_gather_copy_engine",
        "all_gather(x) = the same by copy engines",
        "(all_gather ?g ?x)",
        "(all_gather.copy_engine ?g ?x)",
    ),
    way(
        "reduce_scatter_plain",
        "reduce_scatter(x) = the library's reduce-scatter of x",
        "(reduce_scatter ?op ?g ?x)",
        "(reduce_scatter.plain ?op ?g ?x)",
    ),
    way(
        "reduce_scatter_pull",
        "reduce_scatter(x) = every rank reads its piece of x of all ranks and reduces it",
        "(reduce_scatter ?op ?g ?x)",
        "(reduce_scatter.pull ?op ?g ?x)",
    ),
    way(
        "reduce_scatter_nccl_window",
        "reduce_scatter(x) = the library's reduce-scatter of x, with x and the result in its window",
        "(reduce_scatter ?op ?g ?x)",
        "(reduce_scatter.nccl_window ?op ?g ?x)",
    ),
    way(
        "all_to_all_plain",
        "all_to_all(x) = the library's all-to-all of x",
        "(all_to_all ?s ?g ?x)",
        "(all_to_all.plain ?s ?g ?x)",
    ),
    way(
        "all_to_all_sizes_plain",
        "all_to_all(x, sizes) = the library's all-to-all of x with sizes known on the device",
        "(all_to_all ?s ?g ?x ?n)",
        "(all_to_all.plain ?s ?g ?x ?n)",
    ),
    way(
        "all_to_all_sizes_pull",
        "all_to_all(x, sizes) = every rank reads its rows of x of all ranks, with sizes known on the device",
        "(all_to_all ?s ?g ?x ?n)",
        "(all_to_all.pull ?s ?g ?x ?n)",
    ),
    way(
        "all_to_all_push",
        "all_to_all(x) = every rank writes its pieces into all results",
        "(all_to_all ?s ?g ?x)",
        "(all_to_all.push ?s ?g ?x)",
    ),
    way(
        "all_to_all_copies",
        "all_to_all(x) = every rank copies its pieces into all results",
        "(all_to_all ?s ?g ?x)",
        "(all_to_all.copies ?s ?g ?x)",
    ),
    way(
        "all_to_all_pull",
        "all_to_all(x) = every rank reads its piece of x of all ranks",
        "(all_to_all ?s ?g ?x)",
        "(all_to_all.pull ?s ?g ?x)",
    ),
    way(
        "all_to_all_packets",
        "all_to_all(x) = every rank stores its pieces with flags into all landing zones",
        "(all_to_all ?s ?g ?x)",
        "(all_to_all.packets ?s ?g ?x)",
    ),
    way(
        "all_to_all_nccl_window",
        "all_to_all(x) = the library's all-to-all of x, with x and the result in its window",
        "(all_to_all ?s ?g ?x)",
        "(all_to_all.nccl_window ?s ?g ?x)",
    ),
    way(
        "all_to_all_copy_engine",
        "all_to_all(x) = the same by copy engines",
        "(all_to_all ?s ?g ?x)",
        "(all_to_all.copy_engine ?s ?g ?x)",
    ),
    way(
        "broadcast_plain",
        "broadcast(x) = the library's broadcast of x",
        "(broadcast ?r ?g ?x)",
        "(broadcast.plain ?r ?g ?x)",
    ),
    way(
        "broadcast_put",
        "broadcast(x) = the root writes x into all results and sets a flag there",
        "(broadcast ?r ?g ?x)",
        "(broadcast.put ?r ?g ?x)",
    ),
    way(
        "permute_plain",
        "permute_ranks(x) = the library's sends and receives of x",
        "(permute_ranks ?p ?g ?x)",
        "(permute_ranks.plain ?p ?g ?x)",
    ),
    way(
        "permute_put",
        "permute_ranks(x) = every sender writes x into its receiver's result and sets a flag there",
        "(permute_ranks ?p ?g ?x)",
        "(permute_ranks.put ?p ?g ?x)",
    ),
    Rule {
        name: "all_reduce_in_pieces",
        equation: "all_reduce(x) = all_gather(reduce_scatter(x)) where the ranks divide the leading axis",
        from: "(all_reduce ?op ?g ?x)",
        to: "(all_gather ?g (reduce_scatter ?op ?g ?x))",
        when: When::Holds(leading_divides),
        rounds: false,
    },
    Rule {
        name: "all_reduce_in_flat_pieces",
        equation: "all_reduce(x) = reshape(all_gather(reduce_scatter(reshape(x)))) where the ranks divide the \
                   elements, but not the leading axis",
        from: "(all_reduce ?op ?g ?x)",
        to: "(reshape ?shape (all_gather ?g (reduce_scatter ?op ?g (reshape ?flat ?x))))",
        when: When::Holds(elements_divide),
        rounds: false,
    },
    Rule {
        name: "all_gather_of_reduce_scatter",
        equation: "all_gather(reduce_scatter(x)) = all_reduce(x)",
        from: "(all_gather ?g (reduce_scatter ?op ?g ?x))",
        to: "(all_reduce ?op ?g ?x)",
        when: When::Always,
        rounds: false,
    },
    Rule {
        name: "sum_of_all_reduces",
        equation: "all_reduce(x) + all_reduce(y) = all_reduce(x + y)",
        from: "(add (all_reduce sum ?g ?x) (all_reduce sum ?g ?y))",
        to: "(all_reduce sum ?g (add ?x ?y))",
        when: When::Always,
        rounds: true,
    },
    Rule {
        name: "narrow_before_all_reduce",
        equation: "cast(all_reduce(x)) = all_reduce(cast(x)) to a narrower type",
        from: "(cast ?t (all_reduce ?op ?g ?x))",
        to: "(all_reduce ?op ?g (cast ?t ?x))",
        when: When::Holds(narrows),
        rounds: true,
    },
    Rule {
        name: "widen_after_all_reduce",
        equation: "all_reduce(cast(x)) = cast(all_reduce(x)) from a narrower type",
        from: "(all_reduce ?op ?g (cast ?t ?x))",
        to: "(cast ?t (all_reduce ?op ?g ?x))",
        when: When::Holds(widens),
        rounds: true,
    },
];

/// The rules for the e-graph, without those that change rounding unless `rounding`.
///
/// # Errors
/// The name of a rule whose patterns do not parse, which the tests exclude.
pub(super) fn compiled(rounding: bool) -> Result<Vec<Rewrite<Lang, Facts>>, String> {
    let usable = RULES.iter().filter(|r| rounding || !r.rounds);
    usable
        .map(|rule| {
            let error = |e: String| format!("rule {}: {e}", rule.name);
            let from: Pattern<Lang> = rule.from.parse().map_err(|e| error(format!("{e}")))?;
            let to: Pattern<Lang> = rule.to.parse().map_err(|e| error(format!("{e}")))?;
            let applier = Checked { to: to.ast, when: rule.when };
            Rewrite::new(rule.name, from, applier).map_err(error)
        })
        .collect()
}

/// The right side of a rule behind its condition.
struct Checked {
    to: PatternAst<Lang>,
    when: When,
}

impl Applier<Lang, Facts> for Checked {
    fn apply_matches(&self, graph: &mut Graph, matches: &[SearchMatches<Lang>], rule: Symbol) -> Vec<Id> {
        let mut changed = Vec::new();
        for found in matches {
            let Some(from) = found.ast.as_ref() else { continue };
            for subst in &found.substs {
                changed.extend(self.apply_one(graph, found.eclass, subst, Some(from), rule));
            }
        }
        changed
    }

    fn apply_one(
        &self,
        graph: &mut Graph,
        _: Id,
        subst: &Subst,
        from: Option<&PatternAst<Lang>>,
        rule: Symbol,
    ) -> Vec<Id> {
        let mut subst = subst.clone();
        let holds = match self.when {
            When::Always => Some(()),
            When::VariantRuns => self.variant_runs(graph, &subst),
            When::Holds(condition) => condition(graph, &mut subst),
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

impl Checked {
    fn variant_runs(&self, graph: &Graph, subst: &Subst) -> Option<()> {
        let egg::ENodeOrVar::ENode(node) = self.to.as_ref().last()? else { return None };
        let Lang::Collective(name, variant, children) = node else { return None };
        let resolved = children.iter().map(|&c| match &self.to[c] {
            egg::ENodeOrVar::Var(v) => subst.get(*v).copied(),
            egg::ENodeOrVar::ENode(_) => None,
        });
        let node = Lang::Collective(*name, *variant, resolved.collect::<Option<Vec<Id>>>()?);
        let (collective, operands) = language::as_collective(graph, &node)?;
        let ty = language::value(graph, *operands.first()?)?.ty()?;
        let context = &graph.analysis.context;
        let (kind, bytes) = (&collective.kind, context.bytes(ty));
        context.estimate(kind, collective.group, collective.variant?, bytes, 0.0, 0.0)?;
        Some(())
    }
}

fn bound(subst: &Subst, name: &str) -> Option<Id> {
    subst.get(name.parse::<Var>().ok()?).copied()
}

fn type_of(graph: &Graph, subst: &Subst, name: &str) -> Option<Type> {
    language::value(graph, bound(subst, name)?)?.ty().cloned()
}

fn ranks_of(graph: &Graph, subst: &Subst, name: &str) -> Option<Dim> {
    let Attr::Group(group) = language::attr(graph, bound(subst, name)?)? else { return None };
    Some(Dim::from(i64::from(graph.analysis.context.ranks(*group))))
}

fn leading_divides(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    let n = ranks_of(graph, subst, "?g")?;
    type_of(graph, subst, "?x")?.shape.first()?.exact_div(&n).map(|_| ())
}

fn elements_divide(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    let n = ranks_of(graph, subst, "?g")?;
    let x = type_of(graph, subst, "?x")?;
    if leading_divides(graph, subst).is_some() || x.rank() < 2 {
        return None;
    }
    x.numel().exact_div(&n)?;
    let flat = graph.add(Lang::Attr(Attr::Shape(vec![x.numel()])));
    let shape = graph.add(Lang::Attr(Attr::Shape(x.shape)));
    subst.insert("?flat".parse().ok()?, flat);
    subst.insert("?shape".parse().ok()?, shape);
    Some(())
}

/// The dtypes of the cast's operand and of its result, both floats.
fn cast_types(graph: &Graph, subst: &Subst) -> Option<(DType, DType)> {
    let Attr::DType(to) = language::attr(graph, bound(subst, "?t")?)? else { return None };
    let from = type_of(graph, subst, "?x")?.dtype;
    (from.is_float() && to.is_float()).then_some((from, *to))
}

fn narrows(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    cast_types(graph, subst).filter(|(from, to)| to.size() < from.size()).map(|_| ())
}

fn widens(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    cast_types(graph, subst).filter(|(from, to)| to.size() > from.size()).map(|_| ())
}
