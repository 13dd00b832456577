//! Chooses how the results of experts return: row by row (`combine_rows`), or as the sums that each rank makes of
//! its own rows (`reduce_rows`).
//!
//! ```text
//! combine_rows(x, rows, weights)  =  reduce_rows(x, all_rows, all_gather(weights))
//! ```
//!
//! Both sides have the same bits. The right side moves one row of sums for each token and other rank, instead of
//! one row for each slot, so it is faster if tokens have many slots and few ranks share the experts. It needs the
//! weights and the rows of all ranks. A `route` of the same ids on all ranks has these rows already. If the program
//! does not prove that the ids are the same, as for arguments, each rank's own rows are gathered.
//!
//! The choice is made before the e-graphs, which hold no `route`, and for which a region may not get more
//! collectives than it had. It depends on the profile, the sizes and the permitted variants, and not on limits of
//! memory or on schedules. All lowerings of a bucket therefore have the same nodes.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::machine::OperationCounts;
use symmc_ir::{
    Collective, CollectiveKind, CollectiveVariant, EntityMap, Graph, GroupId, InputId, Node, NodeId, Op,
    Replication, RouteLayout, RouteScope, TensorType, ValueDef, ValueId, infer,
};
use symmc_plan::{AppliedRule, Decision, DecisionAlternative};

use super::conditions::CollectiveConditions;
use super::context::{LowerContext, round_us};
use super::decisions::alternative_without_copies;
use super::region;
use crate::error::PassError;
use crate::rewrite::{UniqueNames, ValueMap, copy_inputs, copy_node, copy_outputs};

/// The name of the rule in plans.
pub const COMBINE_AS_SUMS: &str = "combine_rows_as_sums";

/// The estimates of both forms of a `combine_rows`.
#[derive(Clone, PartialEq, Debug)]
pub struct ReturnedSums {
    /// The name of the result of both.
    pub collective: String,
    /// The estimate of the `reduce_rows` and the gathers that can replace it, in microseconds.
    pub us: f64,
    /// The `combine_rows` by its fastest variant.
    pub combined: DecisionAlternative,
}

impl ReturnedSums {
    /// Whether the results return as sums.
    pub fn are_faster(&self) -> bool {
        self.us < self.combined.us
    }

    /// Makes the decision about the result one between both forms, for comparisons of sizes whose forms differ.
    pub fn compare_forms(&self, decision: &mut Decision) {
        let sums = alternative_without_copies(COMBINE_AS_SUMS, self.us);
        let chosen = if self.are_faster() { &sums } else { &self.combined };
        decision.chosen = chosen.name.clone();
        decision.alternatives = vec![sums, self.combined.clone()];
    }

    /// Adds the reason to the decision about the `reduce_rows`, if it is one.
    pub fn explain(&self, decision: &mut Decision) {
        if !self.are_faster() {
            return;
        }
        decision.rules.insert(0, AppliedRule { name: COMBINE_AS_SUMS.into(), us: Some(self.us) });
        decision.alternatives.push(self.combined.clone());
        decision.alternatives.sort_by(|a, b| a.us.total_cmp(&b.us));
    }
}

/// Whether a program has any `combine_rows`.
pub fn has_combinations(graph: &Graph) -> bool {
    let is_combination =
        |node: &Node| node.op.as_collective().is_some_and(|c| c.kind == CollectiveKind::CombineRows);
    graph.nodes.values().any(is_combination)
}

/// Returns the program with those `combine_rows` replaced that are slower at the upper ends of the bucket, and the
/// estimates of all `combine_rows` that could be replaced. The caller writes the inputs `bound` into the symmetric
/// arena. Fails if a replacement does not fit the program.
pub fn choose<'g>(
    graph: &'g Graph,
    context: &LowerContext,
    bound: &BTreeSet<InputId>,
) -> Result<(Cow<'g, Graph>, Vec<ReturnedSums>), PassError> {
    let outputs = graph.outputs.iter().map(|o| o.value).collect();
    let chooser = RowSumChooser { graph, context, bound, outputs, replication: OnceCell::new() };
    let mut chosen: BTreeMap<NodeId, SumsForm> =
        graph.nodes.keys().filter_map(|n| Some((n, chooser.compared_form(n)?))).collect();
    let sums = chosen.values().map(|form| form.returned.clone()).collect();
    chosen.retain(|_, form| form.returned.are_faster());
    if chosen.is_empty() {
        return Ok((Cow::Borrowed(graph), sums));
    }
    let replaced = replace(graph, &chosen)
        .ok_or_else(|| PassError::Internal("sums of rows do not fit their program".into()))?;
    Ok((Cow::Owned(replaced), sums))
}

/// A value of all ranks: known already, or gathered.
#[derive(Clone, Copy)]
enum OfAllRanks {
    Known(ValueId),
    Gathered(ValueId),
}

struct SumsForm {
    group: GroupId,
    x: ValueId,
    rows: OfAllRanks,
    weights: Option<ValueId>,
    /// The types of both results.
    types: Vec<TensorType>,
    returned: ReturnedSums,
}

struct RowSumChooser<'a> {
    graph: &'a Graph,
    context: &'a LowerContext,
    bound: &'a BTreeSet<InputId>,
    outputs: BTreeSet<ValueId>,
    /// Computed when it is needed first.
    replication: OnceCell<EntityMap<ValueId, Replication>>,
}

impl RowSumChooser<'_> {
    /// The replacement of a node with both estimates, if it is a `combine_rows`.
    fn compared_form(&self, n: NodeId) -> Option<SumsForm> {
        let graph = self.graph;
        let node = &graph.nodes[n];
        let &Collective { ref kind, group, .. } = node.op.as_collective()?;
        let (&[x, rows], weights) = node.inputs.split_first_chunk()?;
        if *kind != CollectiveKind::CombineRows || graph.group_size(group)? < 2 || self.is_one_per_rank(rows)
        {
            return None;
        }
        let rows = self.rows_of_all_ranks(rows, group);
        let weights = weights.first().copied();
        let mut gathers_us = 0.0;
        let rows_ty = match rows {
            OfAllRanks::Known(rows) => graph.ty(rows).clone(),
            OfAllRanks::Gathered(own) => self.gathered(own, group, &mut gathers_us)?,
        };
        let weights_ty = match weights {
            Some(own) => Some(self.gathered(own, group, &mut gathers_us)?),
            None => None,
        };
        let operands: Vec<&TensorType> =
            [graph.ty(x), &rows_ty].into_iter().chain(weights_ty.as_ref()).collect();
        let op = reduce_rows(group);
        let types = infer::infer_types(&op, &operands, graph.group_size(group)).ok()??;
        let combined = self.fastest_combination(node, group)?;
        let us = self.sums_us(&operands, &types, group)? + gathers_us;
        let returned =
            ReturnedSums { collective: graph.node_name(n).to_string(), us: round_us(us), combined };
        Some(SumsForm { group, x, rows, weights, types, returned })
    }

    /// Whether a token has at most one row on each rank: then there is nothing to add before rows return, and a row
    /// is no larger than a sum.
    fn is_one_per_rank(&self, rows: ValueId) -> bool {
        let node = self.graph.defining_node(rows).map(|n| &self.graph.nodes[n].op);
        matches!(node, Some(Op::Route(route)) if route.layout == RouteLayout::Rank)
    }

    /// The rows of all ranks, which are gathered if they are not known.
    fn rows_of_all_ranks(&self, rows: ValueId, group: GroupId) -> OfAllRanks {
        self.known_rows(rows, group).map_or(OfAllRanks::Gathered(rows), OfAllRanks::Known)
    }

    /// The value that has these rows and those of the other ranks in order, with the same bits on all ranks of a
    /// cell. A `route` or a `shard` has one if the ranks have the same operand.
    fn known_rows(&self, rows: ValueId, group: GroupId) -> Option<ValueId> {
        let ValueDef::Node(n, 0) = self.graph.values[rows].def else { return None };
        let node = &self.graph.nodes[n];
        let operand = *node.inputs.first()?;
        let all_rows = match &node.op {
            Op::Route(route) if route.scope == RouteScope::Group(group) => *node.outputs.get(1)?,
            Op::Shard { axis: 0, group: sharded } if *sharded == group => operand,
            _ => return None,
        };
        self.is_equal_on_ranks(operand, group).then_some(all_rows)
    }

    /// Whether the ranks of each cell are proven to have the same bits of a value. Arguments may differ between ranks.
    fn is_equal_on_ranks(&self, value: ValueId, group: GroupId) -> bool {
        self.graph.cells(group).is_some_and(|cells| {
            let replications = self.replication.get_or_init(|| Replication::of_graph(self.graph));
            replications[value].is_uniform_within_cells(&cells)
        })
    }

    /// The type of a gathered value. Adds the time of the gather by its fastest variant.
    fn gathered(&self, own: ValueId, group: GroupId, us: &mut f64) -> Option<TensorType> {
        let operand = self.graph.ty(own);
        let op = all_gather(group);
        let types = infer::infer_types(&op, &[operand], self.graph.group_size(group)).ok()??;
        let result = types.into_iter().next()?;
        let times = self.times(&CollectiveKind::AllGather, group, &[operand], &[&result]);
        *us += times.into_iter().map(|(_, us)| us).min_by(f64::total_cmp)?;
        Some(result)
    }

    /// The estimates of a collective by each permitted variant.
    fn times(
        &self,
        kind: &CollectiveKind,
        group: GroupId,
        operands: &[&TensorType],
        results: &[&TensorType],
    ) -> Vec<(CollectiveVariant, f64)> {
        let sizes = self.context.collective_sizes(kind, operands, results);
        let variants = self.context.profile.supported_variants(kind);
        let estimate = |variant| {
            let around = CollectiveConditions::default();
            let us = self.context.estimate_us(kind, group, variant, sizes, 0.0, around)?;
            Some((variant, us))
        };
        variants.into_iter().filter_map(estimate).collect()
    }

    /// The fastest variant of a `combine_rows`, with a copy of its rows if peers read them and they cannot lie in
    /// symmetric memory.
    fn fastest_combination(&self, node: &Node, group: GroupId) -> Option<DecisionAlternative> {
        let graph = self.graph;
        let operands: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let result = graph.ty(*node.outputs.first()?);
        let kind = CollectiveKind::CombineRows;
        let x = *node.inputs.first()?;
        let placeable = region::is_placeable(graph, x, self.bound, &self.outputs);
        let copied_us = if placeable { 0.0 } else { self.context.copy_us(graph.ty(x)) };
        let mut best: Option<DecisionAlternative> = None;
        for (variant, us) in self.times(&kind, group, &operands, &[result]) {
            let reads = variant.contract(&kind).is_some_and(|c| c.symmetric_operand);
            let copy_us = if reads { copied_us } else { 0.0 };
            if best.as_ref().is_none_or(|best| us + copy_us < best.us) {
                best = Some(DecisionAlternative {
                    name: format!("{}.{variant}", kind.name()),
                    us: round_us(us + copy_us),
                    copy_us: round_us(copy_us),
                    saved_us: 0.0,
                });
            }
        }
        best
    }

    /// The estimate of a `reduce_rows`. Its kernel reads rows while sums are on their way, so the links or the
    /// memory of a rank bounds it.
    fn sums_us(&self, operands: &[&TensorType], types: &[TensorType], group: GroupId) -> Option<f64> {
        let context = self.context;
        let results: Vec<&TensorType> = types.iter().collect();
        let times = self.times(&CollectiveKind::ReduceRows, group, operands, &results).into_iter();
        let own = times.filter(|(variant, _)| *variant != CollectiveVariant::Plain);
        let communicated = own.map(|(_, us)| us).min_by(f64::total_cmp)?;
        let (result, sums) = (types.first()?, types.get(1)?);
        // Rows are divided evenly between the ranks, so a rank has as many rows as its tokens have slots.
        let slots = context.upper_bound(operands.get(1)?.shape.get(1)?);
        let rows = context.bytes(result).saturating_mul(slots);
        let moved = rows.saturating_add(context.bytes(sums)).saturating_add(context.bytes(result));
        Some(communicated.max(context.profile.compute_us(moved, OperationCounts::default())))
    }
}

fn reduce_rows(group: GroupId) -> Op {
    Op::Collective(Collective { kind: CollectiveKind::ReduceRows, group, variant: None })
}

fn all_gather(group: GroupId) -> Op {
    Op::Collective(Collective { kind: CollectiveKind::AllGather, group, variant: None })
}

/// The program with the chosen nodes replaced. Gathers directly follow their operands.
fn replace(graph: &Graph, chosen: &BTreeMap<NodeId, SumsForm>) -> Option<Graph> {
    let (to, map) = copy_inputs(graph);
    let mut names = UniqueNames::default();
    graph.values.values().for_each(|value| names.reserve(&value.name));
    let mut gathers: BTreeMap<ValueId, Vec<GroupId>> = BTreeMap::new();
    for form in chosen.values() {
        let rows = if let OfAllRanks::Gathered(rows) = form.rows { Some(rows) } else { None };
        for own in rows.into_iter().chain(form.weights) {
            let groups = gathers.entry(own).or_default();
            if !groups.contains(&form.group) {
                groups.push(form.group);
            }
        }
    }
    let mut copy = ProgramCopy { from: graph, to, map, names, gathers, gathered: BTreeMap::new() };
    for input in graph.inputs.values() {
        copy.gather(input.value)?;
    }
    let unused = unused_pieces(graph, chosen);
    for (n, node) in graph.nodes.iter().filter(|(n, _)| !unused.contains(n)) {
        match chosen.get(&n) {
            Some(form) => copy.sums(node, form)?,
            None => copy.node(node)?,
        }
        for &result in &node.outputs {
            copy.gather(result)?;
        }
    }
    copy.to.outputs = copy_outputs(graph, &copy.map)?;
    Some(copy.to)
}

/// The pieces of the rows of all ranks that only the chosen nodes read.
fn unused_pieces(graph: &Graph, chosen: &BTreeMap<NodeId, SumsForm>) -> BTreeSet<NodeId> {
    let mut unused = BTreeSet::new();
    let known_rows = chosen.iter().filter(|(_, form)| matches!(form.rows, OfAllRanks::Known(_)));
    for (&n, _) in known_rows {
        let rows = graph.nodes[n].inputs.get(1).and_then(|&rows| graph.defining_node(rows));
        unused.extend(rows.filter(|&rows| matches!(graph.nodes[rows].op, Op::Shard { .. })));
    }
    for (_, node) in graph.nodes.iter().filter(|(n, _)| !chosen.contains_key(n)) {
        for reads in node.inputs.iter().filter_map(|&v| graph.defining_node(v)) {
            unused.remove(&reads);
        }
    }
    for form in chosen.values() {
        if let OfAllRanks::Gathered(own) = form.rows {
            graph.defining_node(own).map(|n| unused.remove(&n));
        }
    }
    for output in &graph.outputs {
        graph.defining_node(output.value).map(|n| unused.remove(&n));
    }
    unused
}

struct ProgramCopy<'a> {
    from: &'a Graph,
    to: Graph,
    map: ValueMap,
    names: UniqueNames,
    /// The groups among which values are gathered, and the gathered values.
    gathers: BTreeMap<ValueId, Vec<GroupId>>,
    gathered: BTreeMap<(ValueId, GroupId), ValueId>,
}

impl ProgramCopy<'_> {
    fn node(&mut self, node: &Node) -> Option<()> {
        copy_node(self.from, node, &mut self.to, &mut self.map).map(|_| ())
    }

    fn gather(&mut self, own: ValueId) -> Option<()> {
        for group in self.gathers.get(&own).cloned().unwrap_or_default() {
            let op = all_gather(group);
            let operand = self.from.ty(own);
            let types = infer::infer_types(&op, &[operand], self.from.group_size(group)).ok()??;
            let name = self.names.unique(&format!("{}.all_gather", self.from.value_name(own)));
            let new = self.to.add_node(op, vec![self.map[own]?], vec![(name, types.into_iter().next()?)]);
            self.gathered.insert((own, group), *self.to.nodes[new].outputs.first()?);
        }
        Some(())
    }

    fn sums(&mut self, node: &Node, form: &SumsForm) -> Option<()> {
        let gathered = |own: ValueId| self.gathered.get(&(own, form.group)).copied();
        let rows = match form.rows {
            OfAllRanks::Known(rows) => self.map[rows],
            OfAllRanks::Gathered(own) => gathered(own),
        };
        let mut inputs = vec![self.map[form.x]?, rows?];
        if let Some(own) = form.weights {
            inputs.push(gathered(own)?);
        }
        let result = *node.outputs.first()?;
        let name = self.from.value_name(result);
        let names = [name.to_string(), self.names.unique(&format!("{name}.sums"))];
        let results = names.into_iter().zip(form.types.iter().cloned()).collect();
        let new = self.to.add_node(reduce_rows(form.group), inputs, results);
        self.map[result] = self.to.nodes[new].outputs.first().copied();
        Some(())
    }
}
