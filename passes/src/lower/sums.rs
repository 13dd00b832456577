//! Sums of all-reduces and of reduce-scatters: if several terms of a sum are such collectives of one kind among one
//! group, one collective of the sum of their operands suffices.
//!
//! Nested additions form a tree whose leaves are terms: `(h + all_reduce(x)) + all_reduce(y)` has the terms
//! `h`, `all_reduce(x)` and `all_reduce(y)`. [`joined_additions`] finds the trees in a program. In the
//! e-graph, a tree becomes one [`Lang::Sum`] of all terms, and the collectives of one kind among them become one
//! ([`RULES`]), independent of the nesting.

use std::collections::{BTreeMap, BTreeSet};

use egg::{Applier, EGraph, Id, PatternAst, Rewrite, SearchMatches, Searcher, Subst, Symbol, Var};
use symmc_ir::{
    BinaryOp, CollectiveName, CollectiveReduceOp, DType, EntityMap, GroupId, NodeId, NumericsClass, Op,
    ValueId,
};

use super::language::{self, Lang, LangAttribute, LangEGraph, RegionAnalysis};

/// A rule about sums of any number of terms, which a pattern cannot express.
pub struct SumRule {
    pub name: &'static str,
    pub equation: &'static str,
    pub class: NumericsClass,
    /// Returns the class of the right side for a class that contains the left side.
    apply: fn(&mut LangEGraph, Id) -> Option<Id>,
}

pub const RULES: [SumRule; 3] = [
    SumRule {
        name: "sum_of_terms",
        equation: "(x + y) + z = x + (y + z) = the sum of x, y and z",
        class: NumericsClass::Reassociate,
        apply: sum_of_terms,
    },
    SumRule {
        name: "sum_of_all_reduces",
        equation: "the sum of all_reduce(x), all_reduce(y) and other terms = the sum of all_reduce(x + y) and the other terms",
        class: NumericsClass::Reassociate,
        apply: |graph, class| sum_of_collectives(graph, class, CollectiveName::AllReduce),
    },
    SumRule {
        name: "sum_of_reduce_scatters",
        equation: "the sum of reduce_scatter(x), reduce_scatter(y) and other terms = the sum of reduce_scatter(x + y) and the other \
                   terms",
        class: NumericsClass::Reassociate,
        apply: |graph, class| sum_of_collectives(graph, class, CollectiveName::ReduceScatter),
    },
];

impl SumRule {
    pub(super) fn compiled(&self) -> Result<Rewrite<Lang, RegionAnalysis>, String> {
        Rewrite::new(self.name, SumClassSearcher, UniteApplier { apply: self.apply })
    }
}

struct SumClassSearcher;

impl Searcher<Lang, RegionAnalysis> for SumClassSearcher {
    fn search_eclass_with_limit(
        &self,
        graph: &LangEGraph,
        class: Id,
        limit: usize,
    ) -> Option<SearchMatches<'_, Lang>> {
        let is_sum = graph[class].nodes.iter().any(|node| matches!(node, Lang::Add(_) | Lang::Sum(_)));
        (is_sum && limit > 0).then(|| SearchMatches {
            eclass: class,
            substs: vec![Subst::default()],
            ast: None,
        })
    }

    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

/// Unites a class with the class that a rule returns for it.
struct UniteApplier {
    apply: fn(&mut LangEGraph, Id) -> Option<Id>,
}

impl Applier<Lang, RegionAnalysis> for UniteApplier {
    fn apply_one(
        &self,
        graph: &mut EGraph<Lang, RegionAnalysis>,
        class: Id,
        _: &Subst,
        _: Option<&PatternAst<Lang>>,
        rule: Symbol,
    ) -> Vec<Id> {
        match (self.apply)(graph, class) {
            Some(equal) if graph.union_trusted(class, equal, rule) => vec![equal],
            _ => Vec::new(),
        }
    }
}

/// The terms of a class: those of its longest sum, or the class itself.
fn terms_of_class(graph: &LangEGraph, class: Id) -> Vec<Id> {
    let sums = graph[class].nodes.iter().filter_map(|node| match node {
        Lang::Sum(terms) => Some(terms),
        _ => None,
    });
    sums.max_by_key(|terms| terms.len()).map_or_else(|| vec![class], |terms| terms.clone())
}

fn sum_of_terms(graph: &mut LangEGraph, class: Id) -> Option<Id> {
    let [x, y] = graph[class].nodes.iter().find_map(|node| match node {
        Lang::Add(operands) => Some(*operands),
        _ => None,
    })?;
    let mut terms = terms_of_class(graph, x);
    terms.extend(terms_of_class(graph, y));
    (terms.len() > terms_of_class(graph, class).len()).then(|| graph.add(Lang::Sum(terms)))
}

fn sum_of_collectives(graph: &mut LangEGraph, class: Id, name: CollectiveName) -> Option<Id> {
    let terms = terms_of_class(graph, class);
    let ty = language::class_value(graph, class)?.ty()?.clone();
    // Partial sums can be larger than the whole sum and may exceed the range of f16.
    if terms.len() < 2 || ty.dtype == DType::F16 {
        return None;
    }
    let mut summed: Vec<Option<(GroupId, Id)>> = Vec::with_capacity(terms.len());
    for &term in &terms {
        // The pieces of a reduce-scatter do not broadcast.
        let may_join = name == CollectiveName::AllReduce || language::class_value(graph, term)?.ty()? == &ty;
        summed.push(if may_join { summed_by_collective(graph, term, name) } else { None });
    }
    let group = summed.iter().flatten().map(|(group, _)| *group).find(|group| {
        let members = summed.iter().flatten().filter(|(g, _)| g == group);
        members.count() > 1
    })?;
    let mut new_terms = Vec::new();
    let mut operands = Vec::new();
    for (&term, summed) in terms.iter().zip(&summed) {
        match summed {
            Some((term_group, x)) if *term_group == group => operands.push(*x),
            _ => new_terms.push(term),
        }
    }
    let attributes = [LangAttribute::Reduce(CollectiveReduceOp::Sum), LangAttribute::Group(group)]
        .map(|a| graph.add(Lang::Attr(a)));
    let operand = graph.add(Lang::Sum(operands));
    let children = attributes.into_iter().chain([operand]).collect();
    let joined = graph.add(Lang::Collective(name, None, children));
    if new_terms.is_empty() {
        return Some(joined);
    }
    new_terms.push(joined);
    Some(graph.add(Lang::Sum(new_terms)))
}

/// The group and the operand of the collective of this name that sums and gives a class.
fn summed_by_collective(graph: &LangEGraph, class: Id, name: CollectiveName) -> Option<(GroupId, Id)> {
    graph[class].nodes.iter().find_map(|node| {
        let (collective, operands) = language::as_collective(graph, node)?;
        let sums = collective.variant.is_none()
            && collective.kind.collective_name() == name
            && collective.kind.reduce_op() == Some(CollectiveReduceOp::Sum);
        sums.then_some((collective.group, *operands.first()?))
    })
}

/// The additions of trees with several sums of one kind among one group as terms. Each comes with those operands
/// that are additions of the tree or such collectives and have no other readers.
pub fn joined_additions(graph: &symmc_ir::Graph) -> BTreeMap<NodeId, Vec<NodeId>> {
    let mut readers: EntityMap<ValueId, u32> = EntityMap::filled(0, graph.values.len());
    let read = graph.nodes.values().flat_map(|node| node.inputs.iter().copied());
    read.chain(graph.outputs.iter().map(|output| output.value)).for_each(|v| readers[v] += 1);
    let trees = AdditionTrees { graph, readers };
    let mut out = BTreeMap::new();
    let mut inner: BTreeSet<NodeId> = BTreeSet::new();
    for id in graph.nodes.keys().rev() {
        if !trees.is_add(id) || inner.contains(&id) {
            continue;
        }
        let mut additions = BTreeMap::new();
        let mut reduced = Vec::new();
        trees.collect_additions(id, &mut additions, &mut reduced);
        inner.extend(additions.keys());
        let mut groups = BTreeSet::new();
        if reduced.iter().any(|sum| !groups.insert(*sum)) {
            out.extend(additions);
        }
    }
    out
}

struct AdditionTrees<'a> {
    graph: &'a symmc_ir::Graph,
    /// The number of times that each value is read or returned.
    readers: EntityMap<ValueId, u32>,
}

impl AdditionTrees<'_> {
    fn is_add(&self, node: NodeId) -> bool {
        self.graph.nodes[node].op == Op::Binary(BinaryOp::Add)
    }

    /// Collects the additions below one, with the operands that belong to the tree, and the collectives among its
    /// terms that sum.
    fn collect_additions(
        &self,
        root: NodeId,
        additions: &mut BTreeMap<NodeId, Vec<NodeId>>,
        reduced: &mut Vec<(CollectiveName, GroupId)>,
    ) {
        let mut open = vec![root];
        while let Some(add) = open.pop() {
            let node = &self.graph.nodes[add];
            let ty = self.graph.ty(node.outputs[0]);
            let mut inside = Vec::new();
            for &operand in &node.inputs {
                let Some(def) = self.graph.defining_node(operand) else { continue };
                if self.readers[operand] != 1 || self.graph.ty(operand) != ty {
                    continue;
                }
                match self.graph.nodes[def].op.as_collective() {
                    Some(c) if c.kind.reduce_op() == Some(CollectiveReduceOp::Sum) => {
                        reduced.push((c.kind.collective_name(), c.group))
                    }
                    None if self.is_add(def) => open.push(def),
                    _ => continue,
                }
                inside.push(def);
            }
            additions.insert(add, inside);
        }
    }
}
