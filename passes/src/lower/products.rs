//! Moves products with a matrix that all ranks hold across collectives, where that is faster.
//!
//! ```text
//! all_reduce(x) @ w  =  all_reduce(x @ w)
//! all_gather(x) @ w  =  all_gather(x @ w)
//! ```
//!
//! The left sides communicate rows of K elements, the right sides rows of N elements. A product of gathered rows also
//! computes those of all ranks. The first equation sums in another order, in the class `reassociate`; the second keeps
//! all bits except for the order of summation that a product chooses by size.
//!
//! The choice depends on the profile and the sizes, and not on limits of memory or on schedules. It is made once for
//! each bucket, before the e-graphs, which hold no products. A matrix is the same on all ranks if the program proves
//! it ([`Replication`]), for example because it is gathered. Arguments and parameters may differ.

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::{
    Collective, CollectiveKind, CollectiveReduceOp, CollectiveVariant, DType, EntityMap, Graph, InputKind,
    Node, NodeId, NumericsClass, Op, OpCost, Replication, TensorType, ValueId, infer,
};
use symmc_plan::{AppliedRule, Decision};

use super::computation::node_computation_us;
use super::conditions::CollectiveConditions;
use super::context::{LowerContext, round_us};
use super::decisions::absorbed_decision;
use crate::rewrite::{UniqueNames, ValueMap, compact, copy_inputs, copy_node, copy_outputs};

/// The names of the rules in plans.
pub const PRODUCT_BEFORE_COLLECTIVE: &str = "product_before_collective";
pub const PRODUCT_AFTER_COLLECTIVE: &str = "product_after_collective";

/// The most times that a program is searched again, because a product may move across several collectives.
const MAX_REPEATS: usize = 8;
/// The least part of the time that a move saves. Estimates are not more precise.
const MIN_SAVED_SHARE: f64 = 0.03;

/// A collective that products moved across.
#[derive(Clone, PartialEq, Debug)]
pub struct MovedProduct {
    /// The name of the result of the collective before the move.
    pub replaced: String,
    /// Its bytes, for which its time was estimated.
    pub bytes: u64,
    /// The names of the results of the collectives that take its place.
    pub collectives: Vec<String>,
    pub rule: &'static str,
    /// The estimate of the collectives and the products after the move, in microseconds.
    pub us: f64,
    /// The same before the move, with the collective run by plain.
    pub plain_us: f64,
}

impl MovedProduct {
    /// Adds the reason to the decisions about the new collectives, and a decision about the one that they replace.
    pub fn explain(&self, decisions: &mut Vec<Decision>) {
        let reason = AppliedRule { name: self.rule.into(), us: Some(self.us) };
        for decision in decisions.iter_mut().filter(|d| self.collectives.contains(&d.collective)) {
            decision.rules.insert(0, reason.clone());
        }
        if self.collectives.contains(&self.replaced) {
            return;
        }
        let plain_us = Some(self.plain_us);
        decisions.push(absorbed_decision(&self.replaced, self.bytes, self.us, plain_us, reason));
    }
}

/// Whether a program has any collective and product next to each other.
pub fn may_move(graph: &Graph) -> bool {
    let reads = |node: &Node, is_read: fn(&Op) -> bool| {
        node.inputs.iter().any(|&v| graph.definition(v).is_some_and(|(op, _)| is_read(op)))
    };
    graph.nodes.values().any(|node| match &node.op {
        Op::MatMul { .. } => reads(node, |op| op.as_collective().is_some()),
        Op::Collective(_) => reads(node, Op::is_matmul),
        _ => false,
    })
}

/// Returns the program with products moved where that is faster at the upper ends of the bucket. `None` if none
/// moves.
pub fn move_products(graph: &Graph, context: &LowerContext) -> Option<(Graph, Vec<MovedProduct>)> {
    let mut moved: Vec<MovedProduct> = Vec::new();
    let mut out: Option<Graph> = None;
    for _ in 0..MAX_REPEATS {
        let current = out.as_ref().unwrap_or(graph);
        let search = ProductSearch {
            graph: current,
            context,
            replication: Replication::of_graph(current),
            users: current.users(),
            returned: current.outputs.iter().map(|output| output.value).collect(),
        };
        let moves = search.find_moves();
        if moves.is_empty() {
            break;
        }
        moved.extend(moves.values().map(|found| found.moved.clone()));
        out = Some(apply_moves(current, &moves)?);
    }
    out.map(|graph| (graph, moved))
}

/// A product of a value that is communicated before or after it.
struct CommunicatedProduct {
    product: NodeId,
    /// The position of the operand that is communicated, and of the matrix that all ranks hold.
    operand: usize,
}

/// The products that move across a collective, all to its other side.
struct ProductMove {
    collective: NodeId,
    products: Vec<CommunicatedProduct>,
    moved: MovedProduct,
}

struct ProductSearch<'a> {
    graph: &'a Graph,
    context: &'a LowerContext,
    replication: EntityMap<ValueId, Replication>,
    users: EntityMap<ValueId, Vec<NodeId>>,
    returned: BTreeSet<ValueId>,
}

impl ProductSearch<'_> {
    /// The moves that pay, by the node of their collective. No node is in two of them.
    fn find_moves(&self) -> BTreeMap<NodeId, ProductMove> {
        let mut used = vec![false; self.graph.nodes.len()];
        let mut out = BTreeMap::new();
        for n in self.graph.nodes.keys() {
            let found = self.move_forward(n).or_else(|| self.move_back(n));
            let Some(found) = found else { continue };
            let index = symmc_ir::entity::Entity::index;
            let mut nodes: Vec<usize> = found.products.iter().map(|p| index(p.product)).collect();
            nodes.push(index(n));
            if nodes.iter().all(|&node| !used[node]) {
                nodes.into_iter().for_each(|node| used[node] = true);
                out.insert(n, found);
            }
        }
        out
    }

    /// The collective of a node with its operand, if products may move across it.
    fn crossed_collective(&self, n: NodeId) -> Option<(&Collective, ValueId)> {
        let node = &self.graph.nodes[n];
        let (Op::Collective(c), &[x]) = (&node.op, &node.inputs[..]) else { return None };
        let ty = self.graph.ty(x);
        let may_cross = match c.kind {
            // Sums of f16 over some of the ranks, or of products, may be infinite while the sum over all is finite.
            // Averages of integers are truncated.
            CollectiveKind::AllReduce(op @ (CollectiveReduceOp::Sum | CollectiveReduceOp::Avg)) => {
                self.context.numerics.allows(NumericsClass::Reassociate)
                    && ty.dtype != DType::F16
                    && (op == CollectiveReduceOp::Sum || ty.dtype.is_float())
            }
            CollectiveKind::AllGather => true,
            _ => false,
        };
        (may_cross && ty.rank() >= 2 && self.context.ranks(c.group) > 1).then_some((c, x))
    }

    /// The product of `v` that a node is, if it can move across this collective of `v` or of the product.
    fn product_across(&self, n: NodeId, v: ValueId, c: &Collective) -> Option<CommunicatedProduct> {
        let node = &self.graph.nodes[n];
        let is_product = node.op == Op::MATMUL && node.op.facts().cost == OpCost::Product;
        let operand = node.inputs.iter().position(|&input| input == v).filter(|_| is_product)?;
        let matrix = *node.inputs.get(1 - operand).filter(|&&matrix| matrix != v)?;
        let cells = self.graph.cells(c.group)?;
        let is_same = self.replication[matrix].is_uniform_within_cells(&cells);
        let keeps_pieces = c.kind.facts().preserves_positions() || {
            let axes = self.graph.node_axes(node);
            let is_divided = axes.operand_axis(1 - operand, 0).is_some();
            axes.result_axis(operand, 0) == Some(0) && !is_divided
        };
        (is_same && keeps_pieces).then_some(CommunicatedProduct { product: n, operand })
    }

    /// Moves all products that read the result of a collective before it.
    fn move_forward(&self, n: NodeId) -> Option<ProductMove> {
        let (c, x) = self.crossed_collective(n)?;
        let result = *self.graph.nodes[n].outputs.first()?;
        if self.returned.contains(&result) {
            return None;
        }
        let products = self.users[result].iter().map(|&reader| self.product_across(reader, result, c));
        let products: Vec<CommunicatedProduct> = products.collect::<Option<_>>()?;
        let mut before = self.collective_us(c, self.graph.ty(x), self.graph.ty(result))?;
        let mut after = 0.0;
        for product in &products {
            let node = &self.graph.nodes[product.product];
            let whole = self.graph.ty(*node.outputs.first()?);
            let own = self.type_with_operand(node, product.operand, self.graph.ty(x))?;
            before += node_computation_us(self.graph, product.product, self.context);
            after += self.product_us(node, product.operand, self.graph.ty(x), &own);
            after += self.collective_us(c, &own, whole)?;
        }
        let names = products.iter().map(|p| self.graph.node_name(p.product).to_string()).collect();
        self.if_faster(n, products, PRODUCT_BEFORE_COLLECTIVE, names, [before, after])
    }

    /// Moves a product that only this collective reads after it.
    fn move_back(&self, n: NodeId) -> Option<ProductMove> {
        let (c, own) = self.crossed_collective(n)?;
        let is_read_once = self.users[own].len() == 1 && !self.returned.contains(&own);
        let product = self.graph.defining_node(own).filter(|_| is_read_once)?;
        let node = &self.graph.nodes[product];
        let found = node.inputs.iter().find_map(|&x| self.product_across(product, x, c))?;
        let x = self.graph.ty(node.inputs[found.operand]);
        let operands = [x];
        let op = Op::Collective(Collective { variant: None, ..c.clone() });
        let whole = infer::infer_types(&op, &operands, self.graph.group_size(c.group)).ok()??;
        let whole = whole.first()?;
        let result = self.graph.ty(*self.graph.nodes[n].outputs.first()?);
        if self.type_with_operand(node, found.operand, whole).as_ref() != Some(result) {
            return None;
        }
        let before = node_computation_us(self.graph, product, self.context)
            + self.collective_us(c, self.graph.ty(own), result)?;
        let after = self.collective_us(c, x, whole)? + self.product_us(node, found.operand, whole, result);
        let name = format!("{}.operand", self.graph.node_name(n));
        self.if_faster(n, vec![found], PRODUCT_AFTER_COLLECTIVE, vec![name], [before, after])
    }

    /// The move, if the time after it is less than the time before it.
    fn if_faster(
        &self,
        n: NodeId,
        products: Vec<CommunicatedProduct>,
        rule: &'static str,
        collectives: Vec<String>,
        [before, after]: [f64; 2],
    ) -> Option<ProductMove> {
        if after >= before * (1.0 - MIN_SAVED_SHARE) {
            return None;
        }
        let node = &self.graph.nodes[n];
        let c = node.op.as_collective()?;
        let (operand, result) = (self.graph.ty(*node.inputs.first()?), self.graph.ty(*node.outputs.first()?));
        let plain = Some(CollectiveVariant::Plain);
        let plain_us =
            before - self.collective_us(c, operand, result)? + self.variants_us(c, operand, result, plain)?;
        let moved = MovedProduct {
            replaced: self.graph.node_name(n).to_string(),
            bytes: self.context.collective_sizes(&c.kind, &[operand], &[result]).moved,
            collectives,
            rule,
            us: round_us(after),
            plain_us: round_us(plain_us),
        };
        Some(ProductMove { collective: n, products, moved })
    }

    /// The type of a product with another type of one operand.
    fn type_with_operand(&self, node: &Node, operand: usize, ty: &TensorType) -> Option<TensorType> {
        let mut types: Vec<&TensorType> = node.inputs.iter().map(|&v| self.graph.ty(v)).collect();
        types[operand] = ty;
        infer::infer_types(&node.op, &types, None).ok()??.into_iter().next()
    }

    /// The time of a product with another type of one operand.
    fn product_us(&self, node: &Node, operand: usize, ty: &TensorType, result: &TensorType) -> f64 {
        let mut priced = self.graph.without_nodes();
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (i, &v) in node.inputs.iter().enumerate() {
            let ty = if i == operand { ty } else { self.graph.ty(v) };
            inputs.push(priced.add_input(InputKind::Argument, format!("x{i}"), "", ty.clone(), None));
        }
        let product = priced.add_node(node.op.clone(), inputs, vec![("y".into(), result.clone())]);
        node_computation_us(&priced, product, self.context)
    }

    /// The time of a collective by its fastest permitted variant.
    fn collective_us(&self, c: &Collective, operand: &TensorType, result: &TensorType) -> Option<f64> {
        self.variants_us(c, operand, result, None)
    }

    /// The time of a collective by one variant, or by its fastest permitted one.
    fn variants_us(
        &self,
        c: &Collective,
        operand: &TensorType,
        result: &TensorType,
        only: Option<CollectiveVariant>,
    ) -> Option<f64> {
        let sizes = self.context.collective_sizes(&c.kind, &[operand], &[result]);
        let variants = self.context.profile.supported_variants(&c.kind).into_iter();
        let variants = variants.filter(|variant| only.is_none_or(|only| only == *variant));
        let estimates = variants.filter_map(|variant| {
            self.context.estimate_us(&c.kind, c.group, variant, sizes, 0.0, CollectiveConditions::default())
        });
        estimates.min_by(f64::total_cmp)
    }
}

/// The program with these moves made.
fn apply_moves(graph: &Graph, moves: &BTreeMap<NodeId, ProductMove>) -> Option<Graph> {
    let (to, map) = copy_inputs(graph);
    let mut names = UniqueNames::default();
    graph.values.values().for_each(|value| names.reserve(&value.name));
    let mut copy = MovingCopy { from: graph, to, map, names };
    let mut moved_products: BTreeMap<NodeId, &ProductMove> = BTreeMap::new();
    for found in moves.values().filter(|found| found.moved.rule == PRODUCT_BEFORE_COLLECTIVE) {
        moved_products.extend(found.products.iter().map(|product| (product.product, found)));
    }
    for (n, node) in graph.nodes.iter() {
        if let Some(found) = moved_products.get(&n) {
            copy.product_before(node, found)?;
            continue;
        }
        match moves.get(&n) {
            Some(found) if found.moved.rule == PRODUCT_AFTER_COLLECTIVE => copy.product_after(node, found)?,
            // Its readers have moved before it.
            Some(_) => {}
            None => {
                copy_node(graph, node, &mut copy.to, &mut copy.map)?;
            }
        }
    }
    copy.to.outputs = copy_outputs(graph, &copy.map)?;
    Some(compact(&copy.to))
}

struct MovingCopy<'a> {
    from: &'a Graph,
    to: Graph,
    map: ValueMap,
    names: UniqueNames,
}

impl MovingCopy<'_> {
    fn product_before(&mut self, product: &Node, found: &ProductMove) -> Option<()> {
        let collective = &self.from.nodes[found.collective];
        let communicated = *collective.outputs.first()?;
        let operand = product.inputs.iter().position(|&v| v == communicated)?;
        let x = self.map[*collective.inputs.first()?]?;
        let result = *product.outputs.first()?;
        let name = self.from.value_name(result);
        let own_name = self.names.unique(&format!("{name}.own"));
        let own = self.product(product, operand, x, own_name)?;
        let whole =
            self.add(collective.op.clone(), vec![own], name.to_string(), self.from.ty(result).clone())?;
        self.map[result] = Some(whole);
        Some(())
    }

    fn product_after(&mut self, collective: &Node, found: &ProductMove) -> Option<()> {
        let &CommunicatedProduct { product, operand } = found.products.first()?;
        let product = &self.from.nodes[product];
        let x = self.map[product.inputs[operand]]?;
        let mut ty = self.to.ty(x).clone();
        let result = *collective.outputs.first()?;
        if !collective.op.as_collective()?.kind.facts().preserves_positions() {
            ty.shape[0] = self.from.ty(result).shape[0].clone();
        }
        let name = self.names.unique(found.moved.collectives.first()?);
        let whole = self.add(collective.op.clone(), vec![x], name, ty)?;
        let name = self.from.value_name(result).to_string();
        self.map[result] = Some(self.product(product, operand, whole, name)?);
        Some(())
    }

    fn product(&mut self, product: &Node, operand: usize, x: ValueId, name: String) -> Option<ValueId> {
        let mut inputs = product.inputs.iter().map(|&v| self.map[v]).collect::<Vec<_>>();
        inputs[operand] = Some(x);
        let inputs = inputs.into_iter().collect::<Option<Vec<_>>>()?;
        let types: Vec<&TensorType> = inputs.iter().map(|&v| self.to.ty(v)).collect();
        let ty = infer::infer_types(&product.op, &types, None).ok()??.into_iter().next()?;
        self.add(product.op.clone(), inputs, name, ty)
    }

    fn add(&mut self, op: Op, inputs: Vec<ValueId>, name: String, ty: TensorType) -> Option<ValueId> {
        let node = self.to.add_node(op, inputs, vec![(name, ty)]);
        self.to.nodes[node].outputs.first().copied()
    }
}
