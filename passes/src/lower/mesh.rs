//! The rules of the e-graph about collectives on different groups, such as the rows and columns of a mesh.
//!
//! Their conditions depend on the cells of the groups ([`LowerContext::cells`](super::context::LowerContext)).

use egg::Subst;
use symmc_ir::{CollectiveReduceOp, DType, GroupId, NumericsClass};

use super::language::{self, LangAttribute, LangEGraph};
use super::patterns::{PatternRule, RuleCondition, bound_class, bound_type, leading_divides};

pub(super) const RULES: &[PatternRule] = &[
    PatternRule {
        name: "all_reduce_over_mesh",
        equation: "all_reduce(all_reduce(x)) = all_reduce(x) on the group whose cells have the ranks of both, for sums and means",
        from: "(all_reduce ?op ?outer (all_reduce ?op ?inner ?x))",
        to: "(all_reduce ?op ?both ?x)",
        when: RuleCondition::Holds(groups_are_a_mesh),
        class: Some(NumericsClass::Reassociate),
    },
    PatternRule {
        name: "scatter_before_all_reduce",
        equation: "reduce_scatter(all_reduce(x)) = all_reduce(reduce_scatter(x)) on the rows and columns of a mesh, for sums and \
                   means",
        from: "(reduce_scatter ?op ?g (all_reduce ?op ?other ?x))",
        to: "(all_reduce ?op ?other (reduce_scatter ?op ?g ?x))",
        when: RuleCondition::Holds(sums_commute),
        class: Some(NumericsClass::Reassociate),
    },
    PatternRule {
        name: "scatter_integers_before_all_reduce",
        equation: "reduce_scatter(all_reduce(x)) = all_reduce(reduce_scatter(x)) on the rows and columns of a mesh, for integers",
        from: "(reduce_scatter ?op ?g (all_reduce ?op ?other ?x))",
        to: "(all_reduce ?op ?other (reduce_scatter ?op ?g ?x))",
        when: RuleCondition::Holds(integers_commute),
        class: None,
    },
    PatternRule {
        name: "send_sum_in_pieces",
        equation: "permute_ranks(all_reduce(x)) = all_gather(permute_ranks(reduce_scatter(x))) if all ranks of a cell of the sum \
                   receive from the ranks of one cell, in order",
        from: "(permute_ranks ?pairs ?other (all_reduce ?op ?g ?x))",
        to: "(all_gather ?g (permute_ranks ?pairs ?other (reduce_scatter ?op ?g ?x)))",
        when: RuleCondition::Holds(cells_send_to_cells),
        class: None,
    },
];

fn bound_group(graph: &LangEGraph, subst: &Subst, name: &str) -> Option<GroupId> {
    match language::class_attribute(graph, bound_class(subst, name)?)? {
        LangAttribute::Group(group) => Some(*group),
        _ => None,
    }
}

fn bound_reduction(graph: &LangEGraph, subst: &Subst) -> Option<CollectiveReduceOp> {
    match language::class_attribute(graph, bound_class(subst, "?op")?)? {
        LangAttribute::Reduce(op) => Some(*op),
        _ => None,
    }
}

/// Whether `?x` is added or averaged in a type in which the order of additions hardly changes the range. Sums of f16
/// over some of the ranks may be infinite while the sum over all is finite, and averages of integers are truncated.
fn adds_in_any_order(graph: &LangEGraph, subst: &Subst) -> Option<()> {
    let dtype = bound_type(graph, subst, "?x")?.dtype;
    let adds = match bound_reduction(graph, subst)? {
        CollectiveReduceOp::Sum => true,
        CollectiveReduceOp::Avg => dtype.is_float(),
        CollectiveReduceOp::Max | CollectiveReduceOp::Min | CollectiveReduceOp::Prod => false,
    };
    (adds && dtype != DType::F16).then_some(())
}

/// Whether some group covers the ranks of both.
fn groups_are_a_mesh(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    adds_in_any_order(graph, subst)?;
    let inner = bound_group(graph, subst, "?inner")?;
    let outer = bound_group(graph, subst, "?outer")?;
    let merged = *graph.analysis.context.merged_groups.get(&(inner, outer))?;
    let merged = graph.add(language::Lang::Attr(LangAttribute::Group(merged)));
    subst.insert("?both".parse().ok()?, merged);
    Some(())
}

fn sums_commute(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    adds_in_any_order(graph, subst)?;
    groups_commute(graph, subst)
}

fn integers_commute(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    let is_exact = !bound_type(graph, subst, "?x")?.dtype.is_float()
        && bound_reduction(graph, subst)? != CollectiveReduceOp::Avg;
    groups_commute(graph, subst).filter(|()| is_exact)
}

/// Whether each rank gets the same terms from a reduction on `?g` after one on `?other` as the other way round, and
/// the ranks of each cell of `?other` have the same position in the cells of `?g`, so that they get equal pieces.
fn groups_commute(graph: &LangEGraph, subst: &Subst) -> Option<()> {
    let cells_of = &graph.analysis.context.cells;
    let rows = RankCells::new(cells_of.get(bound_group(graph, subst, "?g")?)?)?;
    let columns = RankCells::new(cells_of.get(bound_group(graph, subst, "?other")?)?)?;
    let are_equal = |rank: &u32| {
        let has_equal_pieces =
            columns.cell(*rank).iter().all(|&other| rows.position(other) == rows.position(*rank));
        has_equal_pieces && rows.terms_after(&columns, *rank) == columns.terms_after(&rows, *rank)
    };
    rows.ranks().all(|rank| are_equal(&rank)).then_some(())
}

fn cells_send_to_cells(graph: &mut LangEGraph, subst: &mut Subst) -> Option<()> {
    leading_divides(graph, subst)?;
    let LangAttribute::Pairs(pairs) = language::class_attribute(graph, bound_class(subst, "?pairs")?)? else {
        return None;
    };
    let context = &graph.analysis.context;
    let summed = RankCells::new(context.cells.get(bound_group(graph, subst, "?g")?)?)?;
    let sending = RankCells::new(context.cells.get(bound_group(graph, subst, "?other")?)?)?;
    let sender_to = |rank: u32| {
        let (from, _) = pairs.iter().find(|(_, to)| *to == sending.position(rank))?;
        sending.cell(rank).get(*from as usize).copied()
    };
    let sends_in_order = |cell: &Vec<u32>| {
        let senders: Vec<Option<u32>> = cell.iter().map(|&rank| sender_to(rank)).collect();
        match senders[0] {
            None => senders.iter().all(Option::is_none),
            Some(first) => senders.iter().copied().eq(summed.cell(first).iter().map(|&rank| Some(rank))),
        }
    };
    summed.cells.iter().all(sends_in_order).then_some(())
}

/// The cells of a group, with the place of each rank.
struct RankCells<'a> {
    cells: &'a [Vec<u32>],
    /// For each rank the number of its cell and its position within the cell.
    places: Vec<(usize, u32)>,
}

impl RankCells<'_> {
    fn new(cells: &[Vec<u32>]) -> Option<RankCells<'_>> {
        let mut places = vec![(0, 0); cells.iter().map(Vec::len).sum()];
        for (number, cell) in cells.iter().enumerate() {
            for (position, &rank) in (0..).zip(cell) {
                *places.get_mut(rank as usize)? = (number, position);
            }
        }
        Some(RankCells { cells, places })
    }

    fn ranks(&self) -> std::ops::Range<u32> {
        0..self.places.len() as u32
    }

    fn cell(&self, rank: u32) -> &[u32] {
        &self.cells[self.places[rank as usize].0]
    }

    fn position(&self, rank: u32) -> u32 {
        self.places[rank as usize].1
    }

    /// The ranks, in ascending order, whose operands a rank has in a reduction on these cells of one on `inner`.
    fn terms_after(&self, inner: &RankCells<'_>, rank: u32) -> Vec<u32> {
        let mut terms: Vec<u32> =
            self.cell(rank).iter().flat_map(|&other| inner.cell(other)).copied().collect();
        terms.sort_unstable();
        terms
    }
}
