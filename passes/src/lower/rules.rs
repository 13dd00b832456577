//! The rules of the e-graph, as data.
//!
//! Each variant runs what it has a contract for: these rules follow from the contracts ([`variant_rules`]). The others
//! change more ([`rewriting_rules`]). A rule equates its left side with its right side wherever the left side occurs and its condition holds. A
//! condition may also bind variables that only the right side has, such as the shape of a reshape. A rule whose two sides
//! differ in a bit names the numerics class that allows it, and is only used for plans of that class.
//!
//! # Types and ranges
//! bf16 has the range of f32, so a sum of f32 that is carried as bf16 ends infinite only where it nearly did before. f16 and
//! f64 have other ranges: no rule of the classes `reassociate` and `narrow` takes a sum of these. Maxima and minima stay
//! within the range of their operands, so they can be carried in any type to which they are rounded anyway.

use egg::{Applier, Id, Pattern, PatternAst, Rewrite, SearchMatches, Subst, Symbol, Var};
use symmc_ir::{CollectiveKind, DType, Dim, Numerics, NumericsClass, ReduceOp, Splits, Type, Variant};

use super::language::{self, Attr, Facts, Graph, Lang};
use super::sums::{self, SumRule};

pub struct Rule {
    /// The name under which plans list it.
    pub name: &'static str,
    /// What equals what, for people.
    pub equation: &'static str,
    /// The pattern to look for.
    pub from: &'static str,
    pub to: &'static str,
    pub when: When,
    /// The class that a plan needs for it; none if the two sides have equal bits.
    pub class: Option<NumericsClass>,
}

#[derive(Clone, Copy)]
pub enum When {
    Always,
    /// The right side names a variant that may run the collective and has an estimate: that of a [`VariantRule`].
    VariantRuns,
    /// This holds; it may bind variables.
    Holds(fn(&mut Graph, &mut Subst) -> Option<()>),
}

/// A rule that a collective equals itself run by a variant.
pub struct VariantRule {
    pub name: String,
    from: String,
    to: String,
}

/// A rule for each variant to run each kind of collective that it has a contract for.
pub fn variant_rules() -> Vec<VariantRule> {
    let mut out = Vec::new();
    for kind in CollectiveKind::samples(1) {
        let able = Variant::ALL.iter().filter(|variant| variant.contract(&kind).is_some());
        out.extend(able.map(|variant| variant_rule(&kind, *variant)));
    }
    out
}

pub(super) fn variant_rule_name(kind: &CollectiveKind, variant: Variant) -> String {
    let listed = match kind {
        CollectiveKind::AllToAll(Splits::Device) => "all_to_all_sizes",
        CollectiveKind::Permute { .. } => "permute",
        _ => kind.name(),
    };
    format!("{listed}_{variant}")
}

fn variant_rule(kind: &CollectiveKind, variant: Variant) -> VariantRule {
    let name = kind.name();
    let own = if language::attribute_count(kind.named()) > 1 { "?own " } else { "" };
    let operands = if kind.has_sizes() { "?x ?sizes" } else { "?x" };
    VariantRule {
        name: variant_rule_name(kind, variant),
        from: format!("({name} {own}?g {operands})"),
        to: format!("({name}.{variant} {own}?g {operands})"),
    }
}

/// The two rules that take a cast across a collective that only moves elements, to the side where they have fewer bytes.
macro_rules! cast_across {
    ($kind:literal, $attributes:literal) => {
        [
            Rule {
                name: concat!("narrow_before_", $kind),
                equation: concat!("cast(", $kind, "(x)) = ", $kind, "(cast(x)) to a type of fewer bytes"),
                from: concat!("(cast ?t (", $kind, " ", $attributes, " ?x))"),
                to: concat!("(", $kind, " ", $attributes, " (cast ?t ?x))"),
                when: When::Holds(narrows),
                class: None,
            },
            Rule {
                name: concat!("widen_after_", $kind),
                equation: concat!($kind, "(cast(x)) = cast(", $kind, "(x)) to a type of more bytes"),
                from: concat!("(", $kind, " ", $attributes, " (cast ?t ?x))"),
                to: concat!("(cast ?t (", $kind, " ", $attributes, " ?x))"),
                when: When::Holds(widens),
                class: None,
            },
        ]
    };
}

/// The rules that take casts across collectives that only move elements, two for each kind of collective.
pub const MOVEMENT_RULES: [[Rule; 2]; 4] = [
    cast_across!("all_gather", "?g"),
    cast_across!("all_to_all", "even ?g"),
    cast_across!("permute_ranks", "?own ?g"),
    cast_across!("broadcast", "?own ?g"),
];

/// The name and the equation of each rule that changes more than the variant.
pub fn rewriting_rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    let with_patterns = pattern_rules().map(|rule| (rule.name, rule.equation));
    with_patterns.chain(sums::RULES.iter().map(|rule| (rule.name, rule.equation)))
}

/// The rules with patterns that change more than the variant.
fn pattern_rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().chain(MOVEMENT_RULES.as_flattened())
}

/// The rules that change more than the variant and the place of a cast.
const RULES: &[Rule] = &[
    Rule {
        name: "all_reduce_in_pieces",
        equation: "all_reduce(x) = all_gather(reduce_scatter(x)) where the ranks divide the leading axis",
        from: "(all_reduce ?op ?g ?x)",
        to: "(all_gather ?g (reduce_scatter ?op ?g ?x))",
        when: When::Holds(leading_divides),
        class: None,
    },
    Rule {
        name: "all_reduce_in_flat_pieces",
        equation: "all_reduce(x) = reshape(all_gather(reduce_scatter(reshape(x)))) where the ranks divide the \
                   elements, but not the leading axis",
        from: "(all_reduce ?op ?g ?x)",
        to: "(reshape ?shape (all_gather ?g (reduce_scatter ?op ?g (reshape ?flat ?x))))",
        when: When::Holds(elements_divide),
        class: None,
    },
    Rule {
        name: "cast_of_widened",
        equation: "cast(cast(x)) = cast(x) where the inner cast loses nothing",
        from: "(cast ?t (cast ?wide ?x))",
        to: "(cast ?t ?x)",
        when: When::Holds(inner_cast_loses_nothing),
        class: None,
    },
    Rule {
        name: "cast_back",
        equation: "cast(cast(x)) = x where the inner cast loses nothing and the outer one leads back to the type of x",
        from: "(cast ?t (cast ?wide ?x))",
        to: "?x",
        when: When::Holds(casts_lead_back),
        class: None,
    },
    Rule {
        name: "all_gather_of_reduce_scatter",
        equation: "all_gather(reduce_scatter(x)) = all_reduce(x)",
        from: "(all_gather ?g (reduce_scatter ?op ?g ?x))",
        to: "(all_reduce ?op ?g ?x)",
        when: When::Always,
        class: None,
    },
    Rule {
        name: "reduce_scatter_by_exchange",
        equation: "reduce_scatter(x) = the sum, or average, of the pieces of all_to_all(x), of floats among few ranks",
        from: "(reduce_scatter ?op ?g ?x)",
        to: "(sum_pieces ?op ?g ?t (all_to_all even ?g ?x))",
        when: When::Holds(pieces_are_summed),
        class: None,
    },
    Rule {
        name: "reduce_scatter_of_widened_by_exchange",
        equation: "reduce_scatter(cast(x)) = the sum, or average, of the cast pieces of all_to_all(x), from a narrower float type",
        from: "(reduce_scatter ?op ?g (cast ?t ?x))",
        to: "(sum_pieces ?op ?g ?t (all_to_all even ?g ?x))",
        when: When::Holds(widened_pieces_are_summed),
        class: None,
    },
    Rule {
        name: "narrow_before_all_reduce",
        equation: "cast(all_reduce(x)) = all_reduce(cast(x)) from f32 to bf16",
        from: "(cast ?t (all_reduce ?op ?g ?x))",
        to: "(all_reduce ?op ?g (cast ?t ?x))",
        when: When::Holds(narrows_to_bf16),
        class: Some(NumericsClass::Narrow),
    },
    Rule {
        name: "narrow_before_all_reduce_f16",
        equation: "cast(all_reduce(x)) = all_reduce(cast(x)) from f32 to f16",
        from: "(cast ?t (all_reduce ?op ?g ?x))",
        to: "(all_reduce ?op ?g (cast ?t ?x))",
        when: When::Holds(narrows_to_f16),
        class: Some(NumericsClass::NarrowF16),
    },
    Rule {
        name: "all_reduce_over_mesh",
        equation: "all_reduce(all_reduce(x)) = all_reduce(x) on the group whose cells have the ranks of both, for sums and means",
        from: "(all_reduce ?op ?outer (all_reduce ?op ?inner ?x))",
        to: "(all_reduce ?op ?both ?x)",
        when: When::Holds(groups_are_a_mesh),
        class: Some(NumericsClass::Reassociate),
    },
    // Rounding is monotone, but two small numbers of different sign can become zeros of which another is taken.
    Rule {
        name: "narrow_before_extremum",
        equation: "cast(all_reduce(x)) = all_reduce(cast(x)) to a narrower float type where the all-reduce takes the maximum \
                   or minimum",
        from: "(cast ?t (all_reduce ?op ?g ?x))",
        to: "(all_reduce ?op ?g (cast ?t ?x))",
        when: When::Holds(narrows_extremum),
        class: Some(NumericsClass::Narrow),
    },
    Rule {
        name: "widen_after_all_reduce",
        equation: "all_reduce(cast(x)) = cast(all_reduce(x)) from bf16 to f32",
        from: "(all_reduce ?op ?g (cast ?t ?x))",
        to: "(cast ?t (all_reduce ?op ?g ?x))",
        when: When::Holds(widens_bf16),
        class: Some(NumericsClass::Narrow),
    },
    Rule {
        name: "widen_after_all_reduce_f16",
        equation: "all_reduce(cast(x)) = cast(all_reduce(x)) from f16 to f32",
        from: "(all_reduce ?op ?g (cast ?t ?x))",
        to: "(cast ?t (all_reduce ?op ?g ?x))",
        when: When::Holds(widens_f16),
        class: Some(NumericsClass::NarrowF16),
    },
    Rule {
        name: "widen_after_extremum",
        equation: "all_reduce(cast(x)) = cast(all_reduce(x)) to a wider float type where the all-reduce takes the maximum or \
                   minimum",
        from: "(all_reduce ?op ?g (cast ?t ?x))",
        to: "(cast ?t (all_reduce ?op ?g ?x))",
        when: When::Holds(widens_extremum),
        class: None,
    },
];

/// The rules for the e-graph that plans of these classes may use.
pub(super) fn compiled(numerics: Numerics) -> Result<Vec<Rewrite<Lang, Facts>>, String> {
    let rewrite = |name: &str, from: &str, to: &str, when| {
        let error = |e: String| format!("rule {name}: {e}");
        let from: Pattern<Lang> = from.parse().map_err(|e| error(format!("{e}")))?;
        let to: Pattern<Lang> = to.parse().map_err(|e| error(format!("{e}")))?;
        Rewrite::new(name, from, Checked { to: to.ast, when }).map_err(error)
    };
    let rules =
        variant_rules().into_iter().map(|rule| rewrite(&rule.name, &rule.from, &rule.to, When::VariantRuns));
    let usable = pattern_rules().filter(|r| r.class.is_none_or(|class| numerics.allows(class)));
    let sums = sums::RULES.iter().filter(|rule| numerics.allows(rule.class)).map(SumRule::compiled);
    rules.chain(usable.map(|rule| rewrite(rule.name, rule.from, rule.to, rule.when))).chain(sums).collect()
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
        context.estimate(kind, collective.group, collective.variant?, bytes, 0.0, Default::default())?;
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

/// Whether some group has the ranks of both. Sums of f16 over a part of the ranks may be infinite where the sum over all is not.
fn groups_are_a_mesh(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    let Attr::Reduce(op) = language::attr(graph, bound(subst, "?op")?)? else { return None };
    let Attr::Group(inner) = language::attr(graph, bound(subst, "?inner")?)? else { return None };
    let Attr::Group(outer) = language::attr(graph, bound(subst, "?outer")?)? else { return None };
    let adds = matches!(op, ReduceOp::Sum | ReduceOp::Avg);
    if !adds || type_of(graph, subst, "?x")?.dtype == DType::F16 {
        return None;
    }
    let both = *graph.analysis.context.groups_of_both.get(&(*inner, *outer))?;
    let both = graph.add(Lang::Attr(Attr::Group(both)));
    subst.insert("?both".parse().ok()?, both);
    Some(())
}

/// The most pieces that a rank sums where an exchange brings them.
const MOST_PIECES: u32 = 8;

fn pieces_are_summed(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    let Attr::Group(group) = language::attr(graph, bound(subst, "?g")?)? else { return None };
    let Attr::Reduce(op) = language::attr(graph, bound(subst, "?op")?)? else { return None };
    let ranks = graph.analysis.context.ranks(*group);
    let sums = matches!(op, ReduceOp::Sum | ReduceOp::Avg) && (2..=MOST_PIECES).contains(&ranks);
    let dtype = type_of(graph, subst, "?x")?.dtype;
    if !sums || !dtype.is_float() {
        return None;
    }
    if bound(subst, "?t").is_none() {
        let own = graph.add(Lang::Attr(Attr::DType(dtype)));
        subst.insert("?t".parse().ok()?, own);
    }
    Some(())
}

fn widened_pieces_are_summed(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    let is_float = matches!(language::attr(graph, bound(subst, "?t")?)?, Attr::DType(to) if to.is_float());
    widens(graph, subst).filter(|()| is_float)?;
    pieces_are_summed(graph, subst)
}

fn element_bytes(graph: &Graph, subst: &Subst) -> Option<[usize; 2]> {
    let Attr::DType(to) = language::attr(graph, bound(subst, "?t")?)? else { return None };
    Some([type_of(graph, subst, "?x")?.dtype.size(), to.size()])
}

fn narrows(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    element_bytes(graph, subst).filter(|[from, to]| to < from).map(|_| ())
}

fn widens(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    element_bytes(graph, subst).filter(|[from, to]| to > from).map(|_| ())
}

/// The type of `?x` and that of the outer cast, if the inner one loses nothing.
fn types_of_casts(graph: &Graph, subst: &Subst) -> Option<[DType; 2]> {
    let Attr::DType(outer) = language::attr(graph, bound(subst, "?t")?)? else { return None };
    let Attr::DType(wide) = language::attr(graph, bound(subst, "?wide")?)? else { return None };
    let own = type_of(graph, subst, "?x")?.dtype;
    wide.represents(own).then_some([own, *outer])
}

fn inner_cast_loses_nothing(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    types_of_casts(graph, subst).filter(|[own, outer]| own != outer).map(|_| ())
}

fn casts_lead_back(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    types_of_casts(graph, subst).filter(|[own, outer]| own == outer).map(|_| ())
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

struct CastNearAllReduce {
    from: DType,
    to: DType,
    op: ReduceOp,
}

impl CastNearAllReduce {
    fn bound(graph: &Graph, subst: &Subst) -> Option<CastNearAllReduce> {
        let Attr::DType(to) = language::attr(graph, bound(subst, "?t")?)? else { return None };
        let Attr::Reduce(op) = language::attr(graph, bound(subst, "?op")?)? else { return None };
        let from = type_of(graph, subst, "?x")?.dtype;
        Some(CastNearAllReduce { from, to: *to, op: *op })
    }

    fn is_of_floats(&self) -> bool {
        self.from.is_float() && self.to.is_float()
    }

    fn takes_extremum(&self) -> bool {
        matches!(self.op, ReduceOp::Max | ReduceOp::Min)
    }

    /// Whether it is an accumulation next to a cast between these types.
    fn accumulates(&self, from: DType, to: DType) -> Option<()> {
        ((self.from, self.to) == (from, to) && !self.takes_extremum()).then_some(())
    }
}

fn narrows_to_bf16(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::bound(graph, subst)?.accumulates(DType::F32, DType::BF16)
}

fn narrows_to_f16(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::bound(graph, subst)?.accumulates(DType::F32, DType::F16)
}

fn widens_bf16(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::bound(graph, subst)?.accumulates(DType::BF16, DType::F32)
}

fn widens_f16(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::bound(graph, subst)?.accumulates(DType::F16, DType::F32)
}

fn narrows_extremum(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    let cast = CastNearAllReduce::bound(graph, subst)?;
    (cast.takes_extremum() && cast.is_of_floats() && cast.to.size() < cast.from.size()).then_some(())
}

fn widens_extremum(graph: &mut Graph, subst: &mut Subst) -> Option<()> {
    let cast = CastNearAllReduce::bound(graph, subst)?;
    (cast.takes_extremum() && cast.is_of_floats() && cast.to.size() > cast.from.size()).then_some(())
}
