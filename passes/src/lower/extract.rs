//! Costs, and the cheapest extraction from an e-graph.
//!
//! The cost of a program is the sum over its nodes, each counted once. The search is greedy: each class
//! carries the set of classes that its best node needs, so that a part that two nodes share is not paid
//! twice. Roots are extracted one after another, and nodes taken for earlier roots are free for later ones.
//!
//! This is exact for the tree-like regions that programs have. In other regions the order of the roots
//! matters: a sum of all-reduces that is extracted before its parts are known to be needed costs a
//! collective more. The caller tries both directions, and compares the result with the imported program
//! ([`CollectiveTraffic`]) and with plain everywhere. It then searches for a cheaper extraction exactly,
//! within a limit ([`super::exact_search`]).
//!
//! All orders are those of ids and nodes. Of two equal costs the first is kept, with plain before all
//! others. Equal inputs therefore give equal results on every machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::AddAssign;

use egg::{Id, Language};
use symmc_ir::machine::OperationCounts;
use symmc_ir::{CollectiveKind, CollectiveName, CollectiveVariant};

use super::conditions::CollectiveConditions;
use super::language::{self, Lang, LangEGraph};

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Microseconds, including copies.
    pub us: f64,
    /// The part of `us` that is copies.
    pub copy_us: f64,
    /// The time that `us` no longer contains because the kernel also does the work of the following node.
    pub saved_us: f64,
}

impl Cost {
    fn without_copies(us: f64) -> Cost {
        Cost { us, ..Cost::default() }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.us += other.us;
        self.copy_us += other.copy_us;
        self.saved_us += other.saved_us;
    }
}

/// The classes whose uses affect costs, and a cache of costs.
pub struct CostModel {
    /// Classes of values that the program returns.
    pub outputs: BTreeSet<Id>,
    /// Classes of collectives, with the names and variants that can be one step with the following node.
    pub fused: BTreeSet<(Id, CollectiveName, CollectiveVariant)>,
    pub conditions: CollectiveConditions,
    /// The known costs of collectives.
    costs: RefCell<HashMap<Lang, Option<Cost>>>,
}

impl CostModel {
    /// The model for these outputs and fusible collectives, in a region under these conditions.
    pub fn new(
        outputs: BTreeSet<Id>,
        fused: BTreeSet<(Id, CollectiveName, CollectiveVariant)>,
        conditions: CollectiveConditions,
    ) -> CostModel {
        CostModel { outputs, fused, conditions, costs: RefCell::default() }
    }

    /// Whether the conditions of the region permit a node of a class. A collective that no permitted variant
    /// can run may be run by any.
    pub fn permits(&self, graph: &LangEGraph, class: Id, node: &Lang) -> bool {
        let Lang::Collective(name, Some(variant), _) = node else { return true };
        let permitted = self.conditions.variants;
        permitted.contains(*variant)
            || !graph[class].nodes.iter().any(|other| {
                matches!(other, Lang::Collective(n, Some(v), _) if n == name && permitted.contains(*v))
                    && node_cost(graph, class, &canonical_node(graph, other), self).is_some()
            })
    }

    /// Adds collectives that can be one step with the following node.
    pub fn with_fused(
        mut self,
        more: impl Iterator<Item = (Id, CollectiveName, CollectiveVariant)>,
    ) -> CostModel {
        self.fused.extend(more);
        self.costs.take();
        self
    }
}

pub type Extraction = BTreeMap<Id, Lang>;

/// The most rounds of the search. A region needs about as many rounds as it is deep.
const MAX_ROUNDS: usize = 64;
/// Time differences below this count as equal, in microseconds.
pub const EQUAL_TIME_US: f64 = 1e-9;

/// The cost of a node of a class without its operands; `None` if it cannot run.
pub fn node_cost(graph: &LangEGraph, class: Id, node: &Lang, uses: &CostModel) -> Option<Cost> {
    if !matches!(node, Lang::Collective(..)) {
        return estimate_node_cost(graph, class, node, uses);
    }
    // Estimates of collectives take most of the time of a search, which needs each one many times.
    if let Some(&cost) = uses.costs.borrow().get(node) {
        return cost;
    }
    let cost = estimate_node_cost(graph, class, node, uses);
    uses.costs.borrow_mut().insert(node.clone(), cost);
    cost
}

fn estimate_node_cost(graph: &LangEGraph, class: Id, node: &Lang, uses: &CostModel) -> Option<Cost> {
    let context = &graph.analysis.context;
    match node {
        Lang::Leaf(_) | Lang::Attr(_) | Lang::Result(..) => Some(Cost::default()),
        Lang::Reshape([_, x]) if language::class_value(graph, *x)?.contiguous => Some(Cost::default()),
        Lang::Reshape(_) => Some(Cost::without_copies(copy_us(graph, class)?)),
        Lang::Cast([_, x]) | Lang::SumPieces([.., x]) => {
            let read = context.bytes(language::class_value(graph, *x)?.ty()?);
            let moved = read.saturating_add(context.bytes(language::class_value(graph, class)?.ty()?));
            Some(Cost::without_copies(context.profile.compute_us(moved, OperationCounts::default())))
        }
        // An addition reads one more operand.
        Lang::Add(_) => Some(Cost::without_copies(1.5 * copy_us(graph, class)?)),
        Lang::Sum(terms) => {
            let additions = terms.len().saturating_sub(1) as f64;
            Some(Cost::without_copies(1.5 * copy_us(graph, class)? * additions))
        }
        Lang::Collective(..) => {
            let (collective, operands) = language::as_collective(graph, node)?;
            let contract = collective.variant?.contract(&collective.kind)?;
            let &x = operands.first()?;
            let operand = language::class_value(graph, x)?;
            let result = language::class_value(graph, class)?.ty()?;
            let fixed = !operand.placeable || uses.outputs.contains(&graph.find(x));
            // Variants without a symmetric operand pay for a strided one as well.
            let packing = if operand.contiguous { 0.0 } else { copy_us(graph, x)? };
            let moves = contract.symmetric_operand && operand.contiguous && fixed;
            let moving = if moves { copy_us(graph, x)? } else { 0.0 };
            let out = contract.symmetric_result && uses.outputs.contains(&class);
            let out = if out { context.copy_us(result) } else { 0.0 };
            let sizes = language::collective_sizes(graph, &collective, operands, class)?;
            let kind = &collective.kind;
            let variant = collective.variant?;
            let copied_us = moving + out;
            let run =
                context.estimate_us(kind, collective.group, variant, sizes, copied_us, uses.conditions)?;
            let copy_us = packing + copied_us;
            let saved_us = match kind {
                _ if !uses.fused.contains(&(class, kind.collective_name(), variant)) => 0.0,
                // The reduced value is not stored and read again.
                CollectiveKind::AllReduce(_) => context.profile.copy_us(sizes.moved).min(run),
                // The gathered value is not copied.
                CollectiveKind::AllGather => context.copy_kernel_us(sizes.moved).min(run),
                _ => 0.0,
            };
            Some(Cost { us: run + copy_us - saved_us, copy_us, saved_us })
        }
    }
}

/// The time of a copy of the value of a class.
fn copy_us(graph: &LangEGraph, class: Id) -> Option<f64> {
    Some(graph.analysis.context.copy_us(language::class_value(graph, class)?.ty()?))
}

/// The cheapest extraction of some roots, and the best node of every class given that extraction.
pub fn extract_cheapest(
    graph: &LangEGraph,
    roots: &[Id],
    uses: &CostModel,
) -> Option<(Extraction, Extraction)> {
    let mut extraction = Extraction::new();
    for &root in roots {
        let best = search_best_nodes(graph, uses, &extraction);
        collect_extraction(graph, graph.find(root), &best, &mut extraction)?;
    }
    let best_nodes = best_nodes_given(graph, uses, &extraction);
    Some((extraction, best_nodes))
}

/// The best node of every class, given the extracted nodes.
pub fn best_nodes_given(graph: &LangEGraph, uses: &CostModel, taken: &Extraction) -> Extraction {
    search_best_nodes(graph, uses, taken).into_iter().map(|(id, best)| (id, best.node)).collect()
}

/// The cheapest node of a class that runs the same collective on the same operands by some variant.
pub fn cheapest_variant(graph: &LangEGraph, class: Id, node: &Lang, uses: &CostModel) -> Lang {
    let Lang::Collective(name, ..) = node else { return node.clone() };
    let canonical = canonical_node(graph, node);
    let mut nodes: Vec<Lang> = Vec::new();
    for variant in &graph[class].nodes {
        let variant = canonical_node(graph, variant);
        let is_variant = matches!(&variant, Lang::Collective(kind, Some(_), _) if kind == name);
        if is_variant && variant.children() == canonical.children() && uses.permits(graph, class, &variant) {
            nodes.push(variant);
        }
    }
    nodes.sort_by_key(|n| (!is_plain(n), n.clone()));
    let costs = nodes.into_iter().filter_map(|n| Some((node_cost(graph, class, &n, uses)?.us, n)));
    costs.min_by(|(a, _), (b, _)| a.total_cmp(b)).map_or_else(|| node.clone(), |(_, n)| n)
}

fn canonical_node(graph: &LangEGraph, node: &Lang) -> Lang {
    node.clone().map_children(|child| graph.find(child))
}

pub fn extraction_us(graph: &LangEGraph, taken: &Extraction, uses: &CostModel) -> Option<f64> {
    taken.iter().try_fold(0.0, |sum, (&class, node)| Some(sum + node_cost(graph, class, node, uses)?.us))
}

/// The number and the bytes of the collectives that run.
///
/// An all-gather counts with the collective that it completes if together they are an all-reduce in two
/// steps. This holds for an all-gather of a reduce-scatter, or of the sum of an all-to-all's pieces, without
/// other readers, and also with casts and sends between ranks in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CollectiveTraffic {
    pub collectives: usize,
    /// The bytes that they move ([`CollectiveSizes`](super::context::CollectiveSizes)).
    pub bytes: u64,
}

impl CollectiveTraffic {
    /// The traffic of extracted nodes. The values of `roots` have readers elsewhere, too.
    pub fn of_extraction(graph: &LangEGraph, taken: &Extraction, roots: &[Id]) -> Option<CollectiveTraffic> {
        let mut users: BTreeMap<Id, Vec<&Lang>> = BTreeMap::new();
        for node in taken.values() {
            node.children().iter().for_each(|&child| users.entry(graph.find(child)).or_default().push(node));
        }
        let classes: BTreeMap<&Lang, Id> = taken.iter().map(|(&class, node)| (node, class)).collect();
        let used_elsewhere: BTreeSet<Id> = roots.iter().map(|&root| graph.find(root)).collect();
        let only_user = |class: Id| match users.get(&class).map(Vec::as_slice) {
            Some([user]) if !used_elsewhere.contains(&class) => Some(*user),
            _ => None,
        };
        let mut out = CollectiveTraffic::default();
        for (&class, node) in taken.iter().filter(|(_, node)| matches!(node, Lang::Collective(..))) {
            let (collective, operands) = language::as_collective(graph, node)?;
            let reduced = match &collective.kind {
                CollectiveKind::ReduceScatter(_) => Some(class),
                CollectiveKind::AllToAll(_) => match only_user(class) {
                    Some(sum @ Lang::SumPieces(_)) => classes.get(sum).copied(),
                    _ => None,
                },
                _ => None,
            };
            let mut user = reduced.and_then(only_user);
            while let Some(between @ (Lang::Cast(_) | Lang::Collective(CollectiveName::PermuteRanks, ..))) =
                user
            {
                user = classes.get(between).copied().and_then(only_user);
            }
            if let Some(Lang::Collective(CollectiveName::AllGather, ..)) = user {
                continue;
            }
            out.collectives += 1;
            out.bytes += language::collective_sizes(graph, &collective, operands, class)?.moved;
        }
        Some(out)
    }

    /// Whether neither the number nor the bytes of the collectives exceed those of `other`.
    pub fn is_within(&self, other: &CollectiveTraffic) -> bool {
        self.collectives <= other.collectives && self.bytes <= other.bytes
    }
}

struct BestNode {
    node: Lang,
    own: f64,
    total: f64,
    needs: BTreeSet<Id>,
}

fn search_best_nodes(graph: &LangEGraph, uses: &CostModel, taken: &Extraction) -> BTreeMap<Id, BestNode> {
    let mut classes: Vec<Id> = graph.classes().map(|c| c.id).collect();
    classes.sort_unstable();
    // The runnable nodes of each class with their costs, plain first.
    let nodes: Vec<Vec<(Lang, f64)>> = classes
        .iter()
        .map(|&id| match taken.get(&id) {
            Some(node) => vec![(node.clone(), 0.0)],
            None => {
                let mut nodes: Vec<&Lang> =
                    graph[id].nodes.iter().filter(|node| uses.permits(graph, id, node)).collect();
                nodes.sort_by_key(|n| (!is_plain(n), *n));
                nodes.iter().filter_map(|n| Some(((*n).clone(), node_cost(graph, id, n, uses)?.us))).collect()
            }
        })
        .collect();
    let mut best: BTreeMap<Id, BestNode> = BTreeMap::new();
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for (&id, nodes) in classes.iter().zip(&nodes) {
            for (node, own) in nodes {
                let Some(candidate) = assemble_best_node(graph, id, node, *own, &best) else { continue };
                if best.get(&id).is_none_or(|b| candidate.total < b.total - EQUAL_TIME_US) {
                    best.insert(id, candidate);
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    best
}

/// A node with everything that it needs; `None` while a child has no best node or needs this class.
fn assemble_best_node(
    graph: &LangEGraph,
    id: Id,
    node: &Lang,
    own: f64,
    best: &BTreeMap<Id, BestNode>,
) -> Option<BestNode> {
    let mut needs = BTreeSet::new();
    for &child in node.children() {
        needs.extend(&best.get(&graph.find(child))?.needs);
    }
    if needs.contains(&id) {
        return None;
    }
    let total = needs.iter().try_fold(own, |sum, c| Some(sum + best.get(c)?.own))?;
    needs.insert(id);
    Some(BestNode { node: node.clone(), own, total, needs })
}

/// Whether a node is a collective that is run by plain.
pub fn is_plain(node: &Lang) -> bool {
    matches!(node, Lang::Collective(_, Some(CollectiveVariant::Plain), _))
}

/// Extracts the best node of a class and of everything that it needs.
fn collect_extraction(
    graph: &LangEGraph,
    class: Id,
    best: &BTreeMap<Id, BestNode>,
    taken: &mut Extraction,
) -> Option<()> {
    if taken.contains_key(&class) {
        return Some(());
    }
    let node = best.get(&class)?.node.clone();
    for &child in node.children() {
        collect_extraction(graph, graph.find(child), best, taken)?;
    }
    taken.insert(class, node);
    Some(())
}
