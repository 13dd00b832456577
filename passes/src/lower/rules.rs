//! The rules of the e-graph, as data.
//!
//! Rules that run a collective by a variant follow from the variants' contracts ([`variant_rules`]). All
//! other rules change more ([`rewriting_rules`]). A rule equates its left side with its right side wherever
//! the left side occurs and its condition holds. A condition may also bind variables that only the right
//! side has, such as the shape of a reshape. If the two sides of a rule differ in a bit, the rule names the
//! numerics class that allows it, and is only used for plans of that class.
//!
//! # Types and ranges
//! bf16 has the range of f32, so a sum of f32 that is carried as bf16 becomes infinite only if it nearly did
//! before. f16 and f64 have other ranges: no rule of the classes `reassociate` and `narrow` changes a sum of
//! these. Maxima and minima stay within the range of their operands, so they can be carried in any type to
//! which they are rounded anyway.

use egg::{Rewrite, Subst};
use symmc_ir::{
    AllToAllSplits, CollectiveKind, CollectiveReduceOp, CollectiveVariant, DType, Numerics, NumericsClass,
};

use super::language::{self, Lang, LangAttribute, LangEGraph, RegionAnalysis};
pub use super::patterns::{PatternRule, RuleCondition};
use super::patterns::{bound_class, bound_group_ranks, bound_type, compile_rule, leading_divides};
use super::{mesh, sums};

/// A rule that equates a collective with itself run by a variant.
pub struct VariantRule {
    pub name: String,
    from: String,
    to: String,
}

/// One rule for each variant and each kind of collective that the variant has a contract for.
pub fn variant_rules() -> Vec<VariantRule> {
    let mut out = Vec::new();
    for kind in CollectiveKind::sample_kinds(1) {
        let able = CollectiveVariant::ALL.iter().filter(|variant| variant.contract(&kind).is_some());
        let (fewest, greatest) = kind.operand_counts();
        for &variant in able {
            out.extend((fewest..=greatest).map(|operands| variant_rule(&kind, variant, operands)));
        }
    }
    out
}

pub(super) fn variant_rule_name(
    kind: &CollectiveKind,
    variant: CollectiveVariant,
    operands: usize,
) -> String {
    let listed = match kind {
        CollectiveKind::AllToAll(AllToAllSplits::Device) => "all_to_all_sizes",
        CollectiveKind::CombineRows if operands > kind.operand_counts().0 => "combine_weighted_rows",
        CollectiveKind::ReduceRows if operands > kind.operand_counts().0 => "reduce_weighted_rows",
        CollectiveKind::Permute { .. } => "permute",
        _ => kind.name(),
    };
    format!("{listed}_{variant}")
}

/// The names of operands in rules.
const OPERAND_NAMES: [&str; 3] = ["?x", "?y", "?z"];

fn variant_rule(kind: &CollectiveKind, variant: CollectiveVariant, operands: usize) -> VariantRule {
    let name = kind.name();
    let attributes = if language::attribute_count(kind.collective_name()) > 1 { "?own " } else { "" };
    let count = operands;
    let operands = OPERAND_NAMES[..count].join(" ");
    VariantRule {
        name: variant_rule_name(kind, variant, count),
        from: format!("({name} {attributes}?g {operands})"),
        to: format!("({name}.{variant} {attributes}?g {operands})"),
    }
}

/// The two rules that move a cast across a collective that only moves elements, to the side with fewer
/// bytes.
macro_rules! cast_across {
    ($kind:literal, $attributes:literal) => {
        [
            PatternRule {
                name: concat!("narrow_before_", $kind),
                equation: concat!("cast(", $kind, "(x)) = ", $kind, "(cast(x)) to a type of fewer bytes"),
                from: concat!("(cast ?t (", $kind, " ", $attributes, " ?x))"),
                to: concat!("(", $kind, " ", $attributes, " (cast ?t ?x))"),
                when: RuleCondition::Holds(narrows),
                class: None,
            },
            PatternRule {
                name: concat!("widen_after_", $kind),
                equation: concat!($kind, "(cast(x)) = cast(", $kind, "(x)) to a type of more bytes"),
                from: concat!("(", $kind, " ", $attributes, " (cast ?t ?x))"),
                to: concat!("(cast ?t (", $kind, " ", $attributes, " ?x))"),
                when: RuleCondition::Holds(widens),
                class: None,
            },
        ]
    };
}

/// The rules that move casts across collectives that only move elements, two for each kind of collective.
pub const MOVEMENT_RULES: [[PatternRule; 2]; 4] = [
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
fn pattern_rules() -> impl Iterator<Item = &'static PatternRule> {
    RULES.iter().chain(mesh::RULES).chain(MOVEMENT_RULES.as_flattened())
}

/// The rules that change more than the variant and the place of a cast.
const RULES: &[PatternRule] = &[
    PatternRule {
        name: "all_reduce_in_pieces",
        equation: "all_reduce(x) = all_gather(reduce_scatter(x)) where the ranks divide the leading axis",
        from: "(all_reduce ?op ?g ?x)",
        to: "(all_gather ?g (reduce_scatter ?op ?g ?x))",
        when: RuleCondition::Holds(leading_divides),
        class: None,
    },
    PatternRule {
        name: "all_reduce_in_flat_pieces",
        equation: "all_reduce(x) = reshape(all_gather(reduce_scatter(reshape(x)))) where the ranks divide the \
                   elements, but not the leading axis",
        from: "(all_reduce ?op ?g ?x)",
        to: "(reshape ?shape (all_gather ?g (reduce_scatter ?op ?g (reshape ?flat ?x))))",
        when: RuleCondition::Holds(elements_divide),
        class: None,
    },
    PatternRule {
        name: "cast_of_widened",
        equation: "cast(cast(x)) = cast(x) where the inner cast loses nothing",
        from: "(cast ?t (cast ?wide ?x))",
        to: "(cast ?t ?x)",
        when: RuleCondition::Holds(inner_cast_loses_nothing),
        class: None,
    },
    PatternRule {
        name: "cast_back",
        equation: "cast(cast(x)) = x where the inner cast loses nothing and the outer one leads back to the type of x",
        from: "(cast ?t (cast ?wide ?x))",
        to: "?x",
        when: RuleCondition::Holds(casts_lead_back),
        class: None,
    },
    PatternRule {
        name: "all_gather_of_reduce_scatter",
        equation: "all_gather(reduce_scatter(x)) = all_reduce(x)",
        from: "(all_gather ?g (reduce_scatter ?op ?g ?x))",
        to: "(all_reduce ?op ?g ?x)",
        when: RuleCondition::Always,
        class: None,
    },
    PatternRule {
        name: "reduce_scatter_by_exchange",
        equation: "reduce_scatter(x) = the sum, or average, of the pieces of all_to_all(x), of floats among few ranks",
        from: "(reduce_scatter ?op ?g ?x)",
        to: "(sum_pieces ?op ?g ?t (all_to_all even ?g ?x))",
        when: RuleCondition::Holds(pieces_are_summed),
        class: None,
    },
    PatternRule {
        name: "reduce_scatter_of_widened_by_exchange",
        equation: "reduce_scatter(cast(x)) = the sum, or average, of the cast pieces of all_to_all(x), from a narrower float type",
        from: "(reduce_scatter ?op ?g (cast ?t ?x))",
        to: "(sum_pieces ?op ?g ?t (all_to_all even ?g ?x))",
        when: RuleCondition::Holds(widened_pieces_are_summed),
        class: None,
    },
    PatternRule {
        name: "narrow_before_all_reduce",
        equation: "cast(all_reduce(x)) = all_reduce(cast(x)) from f32 to bf16",
        from: "(cast ?t (all_reduce ?op ?g ?x))",
        to: "(all_reduce ?op ?g (cast ?t ?x))",
        when: RuleCondition::Holds(narrows_to_bf16),
        class: Some(NumericsClass::Narrow),
    },
    PatternRule {
        name: "narrow_before_all_reduce_f16",
        equation: "cast(all_reduce(x)) = all_reduce(cast(x)) from f32 to f16",
        from: "(cast ?t (all_reduce ?op ?g ?x))",
        to: "(all_reduce ?op ?g (cast ?t ?x))",
        when: RuleCondition::Holds(narrows_to_f16),
        class: Some(NumericsClass::NarrowF16),
    },
    // Rounding is monotone, but two small numbers of different sign can both round to zero, and then another
    // zero may be chosen.
    PatternRule {
        name: "narrow_before_extremum",
        equation: "cast(all_reduce(x)) = all_reduce(cast(x)) to a narrower float type where the all-reduce takes the maximum \
                   or minimum",
        from: "(cast ?t (all_reduce ?op ?g ?x))",
        to: "(all_reduce ?op ?g (cast ?t ?x))",
        when: RuleCondition::Holds(narrows_extremum),
        class: Some(NumericsClass::Narrow),
    },
    PatternRule {
        name: "widen_after_all_reduce",
        equation: "all_reduce(cast(x)) = cast(all_reduce(x)) from bf16 to f32",
        from: "(all_reduce ?op ?g (cast ?t ?x))",
        to: "(cast ?t (all_reduce ?op ?g ?x))",
        when: RuleCondition::Holds(widens_bf16),
        class: Some(NumericsClass::Narrow),
    },
    PatternRule {
        name: "widen_after_all_reduce_f16",
        equation: "all_reduce(cast(x)) = cast(all_reduce(x)) from f16 to f32",
        from: "(all_reduce ?op ?g (cast ?t ?x))",
        to: "(cast ?t (all_reduce ?op ?g ?x))",
        when: RuleCondition::Holds(widens_f16),
        class: Some(NumericsClass::NarrowF16),
    },
    PatternRule {
        name: "widen_after_extremum",
        equation: "all_reduce(cast(x)) = cast(all_reduce(x)) to a wider float type where the all-reduce takes the maximum or \
                   minimum",
        from: "(all_reduce ?op ?g (cast ?t ?x))",
        to: "(cast ?t (all_reduce ?op ?g ?x))",
        when: RuleCondition::Holds(widens_extremum),
        class: None,
    },
];

/// The rules for the e-graph that plans of these classes may use.
pub(super) fn compile_rules(numerics: Numerics) -> Result<Vec<Rewrite<Lang, RegionAnalysis>>, String> {
    let mut rules = Vec::new();
    for rule in variant_rules() {
        rules.push(compile_rule(&rule.name, &rule.from, &rule.to, RuleCondition::VariantRuns)?);
    }
    for rule in pattern_rules().filter(|rule| rule.class.is_none_or(|class| numerics.allows(class))) {
        rules.push(compile_rule(rule.name, rule.from, rule.to, rule.when)?);
    }
    for rule in sums::RULES.iter().filter(|rule| numerics.allows(rule.class)) {
        rules.push(rule.compiled()?);
    }
    Ok(rules)
}

/// The most pieces that a rank sums after an exchange.
const MAX_SUMMED_PIECES: u32 = 8;

fn pieces_are_summed(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    let LangAttribute::Group(group) = language::class_attribute(graph, bound_class(subst, "?g")?)? else {
        return None;
    };
    let LangAttribute::Reduce(op) = language::class_attribute(graph, bound_class(subst, "?op")?)? else {
        return None;
    };
    let ranks = graph.analysis.context.ranks(*group);
    let sums = matches!(op, CollectiveReduceOp::Sum | CollectiveReduceOp::Avg)
        && (2..=MAX_SUMMED_PIECES).contains(&ranks);
    let dtype = bound_type(graph, subst, "?x")?.dtype;
    if !sums || !dtype.is_float() {
        return None;
    }
    if bound_class(subst, "?t").is_none() {
        let operand_dtype = graph.add(Lang::Attr(LangAttribute::DType(dtype)));
        subst.insert("?t".parse().ok()?, operand_dtype);
    }
    Some(())
}

fn widened_pieces_are_summed(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    let target = language::class_attribute(graph, bound_class(subst, "?t")?)?;
    let is_float = matches!(target, LangAttribute::DType(to) if to.is_float());
    widens(graph, subst).filter(|()| is_float)?;
    pieces_are_summed(graph, subst)
}

fn element_bytes(graph: &LangEGraph, subst: &Subst) -> Option<[usize; 2]> {
    let LangAttribute::DType(to) = language::class_attribute(graph, bound_class(subst, "?t")?)? else {
        return None;
    };
    Some([bound_type(graph, subst, "?x")?.dtype.size(), to.size()])
}

fn narrows(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    element_bytes(graph, subst).filter(|[from, to]| to < from).map(|_| ())
}

fn widens(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    element_bytes(graph, subst).filter(|[from, to]| to > from).map(|_| ())
}

/// The type of `?x` and that of the outer cast, if the inner one loses nothing.
fn types_of_casts(graph: &LangEGraph, subst: &Subst) -> Option<[DType; 2]> {
    let LangAttribute::DType(outer) = language::class_attribute(graph, bound_class(subst, "?t")?)? else {
        return None;
    };
    let LangAttribute::DType(wide) = language::class_attribute(graph, bound_class(subst, "?wide")?)? else {
        return None;
    };
    let inner = bound_type(graph, subst, "?x")?.dtype;
    wide.represents(inner).then_some([inner, *outer])
}

fn inner_cast_loses_nothing(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    types_of_casts(graph, subst).filter(|[inner, outer]| inner != outer).map(|_| ())
}

fn casts_lead_back(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    types_of_casts(graph, subst).filter(|[inner, outer]| inner == outer).map(|_| ())
}

fn elements_divide(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    let n = bound_group_ranks(graph, subst, "?g")?;
    let x = bound_type(graph, subst, "?x")?;
    if leading_divides(graph, subst).is_some() || x.rank() < 2 {
        return None;
    }
    x.numel().exact_div(&n)?;
    let flat = graph.add(Lang::Attr(LangAttribute::Shape(vec![x.numel()])));
    let shape = graph.add(Lang::Attr(LangAttribute::Shape(x.shape)));
    subst.insert("?flat".parse().ok()?, flat);
    subst.insert("?shape".parse().ok()?, shape);
    Some(())
}

struct CastNearAllReduce {
    from: DType,
    to: DType,
    op: CollectiveReduceOp,
}

impl CastNearAllReduce {
    fn from_subst(graph: &LangEGraph, subst: &Subst) -> Option<CastNearAllReduce> {
        let LangAttribute::DType(to) = language::class_attribute(graph, bound_class(subst, "?t")?)? else {
            return None;
        };
        let LangAttribute::Reduce(op) = language::class_attribute(graph, bound_class(subst, "?op")?)? else {
            return None;
        };
        let from = bound_type(graph, subst, "?x")?.dtype;
        Some(CastNearAllReduce { from, to: *to, op: *op })
    }

    fn is_of_floats(&self) -> bool {
        self.from.is_float() && self.to.is_float()
    }

    fn takes_extremum(&self) -> bool {
        matches!(self.op, CollectiveReduceOp::Max | CollectiveReduceOp::Min)
    }

    /// Returns `Some` if this accumulates next to a cast between these types.
    fn accumulates(&self, from: DType, to: DType) -> Option<()> {
        ((self.from, self.to) == (from, to) && !self.takes_extremum()).then_some(())
    }
}

fn narrows_to_bf16(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::from_subst(graph, subst)?.accumulates(DType::F32, DType::BF16)
}

fn narrows_to_f16(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::from_subst(graph, subst)?.accumulates(DType::F32, DType::F16)
}

fn widens_bf16(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::from_subst(graph, subst)?.accumulates(DType::BF16, DType::F32)
}

fn widens_f16(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    CastNearAllReduce::from_subst(graph, subst)?.accumulates(DType::F16, DType::F32)
}

fn narrows_extremum(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    let cast = CastNearAllReduce::from_subst(graph, subst)?;
    (cast.takes_extremum() && cast.is_of_floats() && cast.to.size() < cast.from.size()).then_some(())
}

fn widens_extremum(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    let cast = CastNearAllReduce::from_subst(graph, subst)?;
    (cast.takes_extremum() && cast.is_of_floats() && cast.to.size() > cast.from.size()).then_some(())
}
