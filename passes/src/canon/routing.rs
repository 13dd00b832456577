//! Recognises the routing of tokens to experts: the sort of the ids of experts, with what programs compute from
//! it, becomes one `route`.
//!
//! | in the program | of the route |
//! |---|---|
//! | the positions of the sort | the slots of rows |
//! | its values | the ids of these slots |
//! | the inverse permutation | the rows of slots |
//! | a histogram of the ids, or of the values | the counts |
//! | a cumulative sum of such a histogram | the ends |
//!
//! The ids must be known to be small and not negative. An id that stands for no expert, as the number of experts
//! does in programs with expert parallelism, becomes a section of its own at the end, so every slot has a row.
//! Results are equal integers. The pass looks at all readers of the ids, so it is not a rule of the rewriter.

use std::collections::HashMap;

use symmc_ir::positions::{ElementForm, PositionCache, PositionFacts};
use symmc_ir::{
    BinaryOp, DType, Dim, EntityMap, Graph, NodeId, Op, ReductionKind, Route, RouteLayout, RouteScope,
    Scalar, TensorType, ValueDef, ValueId,
};

use crate::rewrite::{
    CandidateNode, Rewrite, RewriteRule, Rewriter, ValueMap, compact, copy_inputs, copy_node, copy_outputs,
};

/// Rules about rows that belong to no expert: products do not read them, and give zeros for them.
pub const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "operand_without_expert",
        equation: "grouped_matmul(select(c, y, x), w, ends) = grouped_matmul(x, w, ends) where c holds after the last end; \
                   the same for both operands of a product whose groups divide K",
        apply: operand_without_expert,
    },
    RewriteRule {
        name: "product_without_expert",
        equation: "select(c, 0, grouped_matmul(x, w, ends)) = grouped_matmul(x, w, ends) where c holds after the last end",
        apply: product_without_expert,
    },
];

fn operand_without_expert(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::GroupedMatMul, &[x, w, ends]) = (&node.op, &node.inputs[..]) else { return None };
    let [read, weights] = if cx.ty(w).rank() == 3 {
        [unmasked_rows(cx, x, ends)?, w]
    } else {
        let weights = unmasked_rows(cx, w, ends);
        let read = unmasked_columns(cx, x, ends);
        if weights.is_none() && read.is_none() {
            return None;
        }
        [read.unwrap_or(x), weights.unwrap_or(w)]
    };
    Some(Rewrite::Node(Op::GroupedMatMul, vec![read, weights, ends]))
}

/// The operand of a selection that changes only rows after those of the last group.
fn unmasked_rows(cx: &Rewriter, rows: ValueId, ends: ValueId) -> Option<ValueId> {
    let (Op::Select, &[mask, _, read]) = cx.def(rows)? else { return None };
    let fits = cx.ty(rows).rank() == 2 && cx.ty(read) == cx.ty(rows);
    (fits && holds_after_last_end(cx, mask, ends)).then_some(read)
}

/// As [`unmasked_rows`], for the transpose.
fn unmasked_columns(cx: &mut Rewriter, columns: ValueId, ends: ValueId) -> Option<ValueId> {
    let (Op::Permute { perm }, &[rows]) = cx.def(columns)? else { return None };
    if perm[..] != [1, 0] {
        return None;
    }
    let read = unmasked_rows(cx, rows, ends)?;
    let ty = cx.ty(columns).clone();
    Some(cx.emit("columns", Op::Permute { perm: vec![1, 0] }, &[read], ty))
}

fn product_without_expert(cx: &mut Rewriter, node: &CandidateNode) -> Option<Rewrite> {
    let (Op::Select, &[mask, filler, product]) = (&node.op, &node.inputs[..]) else { return None };
    let (Op::GroupedMatMul, &[_, w, ends]) = cx.def(product)? else { return None };
    // Minus zero is another number than the zero of a product.
    let is_zero = cx.known_full(filler).is_some_and(|s| s.as_f64().to_bits() == 0);
    let fits = cx.ty(w).rank() == 3 && *cx.ty(product) == node.ty;
    (fits && is_zero && holds_after_last_end(cx, mask, ends)).then_some(Rewrite::Value(product))
}

/// Whether a mask of rows holds for exactly those that no expert of a route has: their ids are not below the
/// number of `ends`.
fn holds_after_last_end(cx: &Rewriter, mask: ValueId, ends: ValueId) -> bool {
    masked_route(cx, mask).is_some_and(|masked| ended_route(cx, ends) == Some(masked))
}

/// The route whose rows a mask marks if their ids are not below a number, and that number.
fn masked_route(cx: &Rewriter, mask: ValueId) -> Option<(NodeId, i64)> {
    let unit = Dim::from(1);
    let (rows, other_extents) = cx.shape(mask).split_first()?;
    let (Op::Reshape, &[marked]) = cx.def(mask)? else { return None };
    let is_column =
        other_extents.iter().all(|n| *n == unit) && cx.shape(marked) == std::slice::from_ref(rows);
    let (op, &[sorted]) = cx.def(marked).filter(|_| is_column)? else { return None };
    let experts = match op {
        Op::BinaryScalar { op: BinaryOp::Ge, scalar: Scalar::Int(s), scalar_left: false } => *s,
        Op::BinaryScalar { op: BinaryOp::Gt, scalar: Scalar::Int(s), scalar_left: false } => {
            s.checked_add(1)?
        }
        _ => return None,
    };
    let (Op::Take { axis: 0 }, &[ids, slots]) = cx.def(sorted)? else { return None };
    let ValueDef::Node(route, 2) = cx.graph().values[slots].def else { return None };
    let node = &cx.graph().nodes[route];
    let Op::Route(Route { align: 1, layout: RouteLayout::Expert, scope: RouteScope::Local, .. }) = node.op
    else {
        return None;
    };
    // Ids that may be negative have no row.
    let symbols = cx.symbols();
    let has_rows = cx.facts().range(ids).is_some_and(|r| r.is_at_least(0, symbols));
    let routed = node.inputs[0];
    let same_ids = ids == routed || matches!(cx.def(ids), Some((Op::Reshape, &[x])) if x == routed);
    (same_ids && has_rows && cx.shape(slots) == cx.shape(ids)).then_some((route, experts))
}

/// The route of whose first sections these are the ends, and the number of these sections.
fn ended_route(cx: &Rewriter, ends: ValueId) -> Option<(NodeId, i64)> {
    let count = cx.shape(ends).first()?.as_const()?;
    let mut value = ends;
    while let Some((Op::Cast | Op::Slice { axis: 0, step: 1, .. }, &[x])) = cx.def(value) {
        if let Some((Op::Slice { start, .. }, _)) = cx.def(value) {
            (start.as_const() == Some(0)).then_some(())?;
        }
        value = x;
    }
    match cx.graph().values[value].def {
        ValueDef::Node(route, 4) if matches!(cx.graph().nodes[route].op, Op::Route(_)) => {
            Some((route, count))
        }
        _ => None,
    }
}

/// The most experts of a route that this pass makes.
const MAX_EXPERTS: i64 = 1024;

/// Returns the graph with routes in place of sorts of the ids of experts, or `None` if there are none.
pub fn recognise_routes(graph: &Graph) -> Option<Graph> {
    if !graph.nodes.values().any(|node| matches!(node.op, Op::Sort { axis: 0, descending: false })) {
        return None;
    }
    let cache = PositionCache::of_graph(graph);
    let found_routes = RouteSearch { facts: cache.facts(graph) }.find();
    if found_routes.routes.is_empty() { None } else { found_routes.replace(graph) }
}

/// What a node of the program is to a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RoutePart {
    Sort,
    Inverse,
    Counts,
    Ends,
}

struct FoundRoute {
    /// The sorted vector.
    ids: ValueId,
    experts: i64,
}

#[derive(Default)]
struct FoundRoutes {
    routes: Vec<FoundRoute>,
    /// The nodes that are parts of a route, each with the number of the route.
    parts: HashMap<NodeId, (usize, RoutePart)>,
}

struct RouteSearch<'a> {
    facts: PositionFacts<'a>,
}

impl<'a> RouteSearch<'a> {
    fn find(&self) -> FoundRoutes {
        let graph = self.facts.graph;
        let mut out = FoundRoutes::default();
        // The routes of the permutations, of the values that are counted, and of the counts so far.
        let mut by_ids: HashMap<ValueId, usize> = HashMap::new();
        let mut permutations: HashMap<ValueId, usize> = HashMap::new();
        let mut counts: HashMap<ValueId, usize> = HashMap::new();
        for (id, node) in graph.nodes.iter() {
            if let (Op::Sort { axis: 0, descending: false }, &[ids]) = (&node.op, &node.inputs[..])
                && let Some(experts) = self.expert_count(ids)
            {
                let route = *by_ids.entry(ids).or_insert_with(|| {
                    out.routes.push(FoundRoute { ids, experts });
                    out.routes.len() - 1
                });
                permutations.insert(node.outputs[1], route);
                out.parts.insert(id, (route, RoutePart::Sort));
            }
        }
        let sorted: HashMap<ValueId, usize> =
            out.parts.iter().map(|(&sort, &(route, _))| (graph.nodes[sort].outputs[0], route)).collect();
        for (id, node) in graph.nodes.iter() {
            let route_part = if let Some(&route) = self.inverted(node).and_then(|p| permutations.get(&p)) {
                Some((route, RoutePart::Inverse))
            } else if let Some((counted, bins)) = self.histogram(node) {
                let route = by_ids.get(&counted).or_else(|| sorted.get(&counted)).copied();
                let route = route.filter(|&r| bins <= out.routes[r].experts);
                if let Some(route) = route {
                    counts.insert(node.outputs[0], route);
                }
                route.map(|r| (r, RoutePart::Counts))
            } else {
                self.summed(node).and_then(|v| counts.get(&v)).map(|&route| (route, RoutePart::Ends))
            };
            if let Some(route_part) = route_part {
                out.parts.insert(id, route_part);
            }
        }
        out
    }

    fn definition(&self, value: ValueId) -> Option<(&'a Op, &'a [ValueId])> {
        let ValueDef::Node(node, 0) = self.facts.graph.values[value].def else { return None };
        let node = &self.facts.graph.nodes[node];
        Some((&node.op, &node.inputs))
    }

    /// The number of experts whose ids a vector may have.
    fn expert_count(&self, ids: ValueId) -> Option<i64> {
        let ty = self.facts.graph.ty(ids);
        let fits = ty.rank() == 1 && matches!(ty.dtype, DType::I32 | DType::I64);
        let [least, greatest] = self.facts.range(ids).filter(|_| fits)?.bounds(&self.facts.graph.symbols);
        (least >= 0 && greatest < MAX_EXPERTS).then_some(greatest + 1)
    }

    /// Whether a vector has the elements 0, 1, 2, …
    fn counts_up(&self, value: ValueId) -> bool {
        self.facts.exact(value).is_some_and(ElementForm::counts_up)
    }

    /// The permutation of which a node gives the inverse.
    fn inverted(&self, node: &symmc_ir::Node) -> Option<ValueId> {
        let shape = |v: ValueId| &self.facts.graph.ty(v).shape;
        let (p, positions) = match (&node.op, &node.inputs[..]) {
            (Op::IndexPut { axis: 0, accumulate: false }, &[_, positions, p])
            | (Op::ScatterElements { axis: 0, combine: None }, &[_, p, positions]) => (p, positions),
            _ => return None,
        };
        let is_whole = shape(node.outputs[0]) == shape(p) && shape(positions) == shape(p);
        let is_wide = self.facts.graph.ty(node.outputs[0]).dtype == DType::I64;
        (is_whole && is_wide && self.counts_up(positions)).then_some(p)
    }

    /// The vector whose elements a node counts, and the number of bins.
    fn histogram(&self, node: &symmc_ir::Node) -> Option<(ValueId, i64)> {
        let (Op::Reduce { op: ReductionKind::Sum, axes, keep: false }, &[matches]) =
            (&node.op, &node.inputs[..])
        else {
            return None;
        };
        let (Op::Binary(BinaryOp::Eq), &[a, b]) = self.definition(matches)? else { return None };
        let shape = &self.facts.graph.ty(matches).shape;
        let (rows, bins) = if self.counts_up(b) { (a, b) } else { (b, a) };
        let counted = match self.definition(rows) {
            Some((Op::Reshape, &[x])) => x,
            _ => rows,
        };
        let fits = axes[..] == [0]
            && shape.len() == 2
            && self.counts_up(bins)
            && self.facts.graph.ty(bins).shape[..] == shape[1..]
            && self.facts.graph.ty(rows).shape[..] == [shape[0].clone(), Dim::from(1)]
            && self.facts.graph.ty(counted).rank() == 1
            && !self.facts.graph.ty(node.outputs[0]).dtype.is_float();
        Some((counted, shape[1].as_const()?)).filter(|_| fits)
    }

    /// The counts of which a node gives the cumulative sum.
    fn summed(&self, node: &symmc_ir::Node) -> Option<ValueId> {
        let (Op::CumSum { axis: 0 }, &[x]) = (&node.op, &node.inputs[..]) else { return None };
        let dtype = self.facts.graph.ty(node.outputs[0]).dtype;
        // Sums that wrap would be other numbers.
        let is_exact =
            |v: ValueId| self.facts.range(v).is_some_and(|r| r.fits_type(dtype, &self.facts.graph.symbols));
        match self.definition(x) {
            Some((Op::Cast, &[counts])) => {
                let fits = self
                    .facts
                    .range(counts)
                    .is_some_and(|r| r.fits_type(self.facts.graph.ty(x).dtype, &self.facts.graph.symbols));
                (fits && !dtype.is_float() && is_exact(node.outputs[0])).then_some(counts)
            }
            _ => (!dtype.is_float() && is_exact(node.outputs[0])).then_some(x),
        }
    }
}

/// The results of a route in the copy.
#[derive(Clone, Copy)]
struct RouteValues {
    rows: ValueId,
    slots: ValueId,
    counts: ValueId,
    ends: ValueId,
}

/// A copy in progress.
struct Copy<'g> {
    graph: &'g Graph,
    to: Graph,
    map: ValueMap,
}

impl Copy<'_> {
    fn add(&mut self, op: Op, inputs: Vec<ValueId>, name: &str, ty: TensorType) -> ValueId {
        if matches!(op, Op::Reshape | Op::Cast) && *self.to.ty(inputs[0]) == ty {
            return inputs[0];
        }
        let node = self.to.add_node(op, inputs, vec![(name.to_string(), ty)]);
        self.to.nodes[node].outputs[0]
    }

    /// Adds the route of a vector of ids.
    fn add_route(&mut self, route: &FoundRoute) -> Option<RouteValues> {
        let graph = self.graph;
        let name = graph.value_name(route.ids).to_string();
        let ty = graph.ty(route.ids).clone();
        // The ids with an axis for tokens and one for their slots.
        let (ids, shape) = match graph.defining_node(route.ids).map(|n| &graph.nodes[n]) {
            Some(node) if node.op == Op::Reshape && graph.ty(node.inputs[0]).rank() == 2 => {
                (self.map[node.inputs[0]]?, graph.ty(node.inputs[0]).shape.clone())
            }
            _ => {
                let shape = vec![ty.shape[0].clone(), Dim::from(1)];
                let pairs = TensorType::new(ty.dtype, shape.clone());
                (self.add(Op::Reshape, vec![self.map[route.ids]?], &format!("{name}.ids"), pairs), shape)
            }
        };
        let experts = u32::try_from(route.experts).ok()?;
        let op =
            Op::Route(Route { experts, align: 1, layout: RouteLayout::Expert, scope: RouteScope::Local });
        let by_slot = TensorType::new(DType::I64, shape);
        let by_expert = TensorType::new(DType::I64, vec![Dim::from(route.experts)]);
        let by_row = TensorType::new(DType::I64, ty.shape);
        let types = [by_slot.clone(), by_slot, by_row, by_expert.clone(), by_expert];
        let names = ["rows", "all_rows", "slots", "counts", "ends"];
        let results = names.iter().zip(types).map(|(output, ty)| (format!("{name}.{output}"), ty)).collect();
        let node = self.to.add_node(op, vec![ids], results);
        let &[rows, _, slots, counts, ends] = &self.to.nodes[node].outputs[..] else { return None };
        Some(RouteValues { rows, slots, counts, ends })
    }

    /// Adds what a node gives by a route.
    fn add_part(
        &mut self,
        id: NodeId,
        part: RoutePart,
        route: &FoundRoute,
        values: RouteValues,
    ) -> Option<()> {
        let results = self.graph.nodes[id].outputs.clone();
        let name = self.graph.value_name(results[0]).to_string();
        let ty = self.graph.ty(results[0]).clone();
        let replacement = match part {
            RoutePart::Sort => {
                self.map[results[1]] = Some(values.slots);
                self.add(Op::Take { axis: 0 }, vec![self.map[route.ids]?, values.slots], &name, ty)
            }
            RoutePart::Inverse => self.add(Op::Reshape, vec![values.rows], &name, ty),
            RoutePart::Counts | RoutePart::Ends => {
                let value = if part == RoutePart::Counts { values.counts } else { values.ends };
                let wide = TensorType::new(DType::I64, ty.shape.clone());
                let first = if wide == *self.to.ty(value) {
                    value
                } else {
                    let op = Op::Slice { axis: 0, start: Dim::from(0), step: 1 };
                    self.add(op, vec![value], &format!("{name}.experts"), wide)
                };
                self.add(Op::Cast, vec![first], &name, ty)
            }
        };
        self.map[results[0]] = Some(replacement);
        Some(())
    }
}

impl FoundRoutes {
    fn replace(&self, graph: &Graph) -> Option<Graph> {
        let (to, map) = copy_inputs(graph);
        let mut copy = Copy { graph, to, map };
        let mut added: EntityMap<ValueId, Option<RouteValues>> = EntityMap::filled(None, graph.values.len());
        for (id, node) in graph.nodes.iter() {
            if let Some(&(number, route_part)) = self.parts.get(&id) {
                let route = &self.routes[number];
                let values = match added[route.ids] {
                    Some(values) => values,
                    None => copy.add_route(route)?,
                };
                added[route.ids] = Some(values);
                copy.add_part(id, route_part, route, values)?;
                continue;
            }
            copy_node(graph, node, &mut copy.to, &mut copy.map)?;
        }
        copy.to.outputs = copy_outputs(graph, &copy.map)?;
        Some(compact(&copy.to))
    }
}
