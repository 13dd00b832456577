//! The nodes of dispatches: which values are internal to a dispatch, and whether the nodes satisfy the rules of
//! its form.

use super::heads::find_rotated_product;
use super::space::{LoopSpace, loop_space};
use crate::collective::{Collective, CollectiveKind, Contract, SyncScope};
use crate::dim::Dim;
use crate::dispatch_form::{Dispatch, DispatchForm};
use crate::entity::{Entity, EntityMap};
use crate::graph::{Graph, Node, ValueDef};
use crate::ids::{NodeId, ValueId};
use crate::layout::{Layout, view_layout};
use crate::op::{BinaryOp, Op};
use crate::text::op_name;

impl Graph {
    pub fn dispatch_by_node(&self) -> EntityMap<NodeId, Option<usize>> {
        let mut out = EntityMap::filled(None, self.nodes.len());
        for (d, dispatch) in self.dispatches.iter().enumerate() {
            dispatch.nodes().filter(|n| n.index() < self.nodes.len()).for_each(|n| out[n] = Some(d));
        }
        out
    }

    /// The bases that have no memory because only nodes of one dispatch use them. `base` gives the base of each
    /// value.
    pub fn dispatch_internal_values(&self, base: impl Fn(ValueId) -> ValueId) -> EntityMap<ValueId, bool> {
        let mut out = EntityMap::filled(false, self.values.len());
        if self.dispatches.is_empty() {
            return out;
        }
        let dispatch_of = self.dispatch_by_node();
        for dispatch in &self.dispatches {
            for node in dispatch.nodes().map(|n| &self.nodes[n]) {
                let internal = dispatch.form.keeps_result_internal(&node.op);
                node.outputs.iter().for_each(|&v| out[v] = internal && base(v) == v);
            }
        }
        for (id, node) in self.nodes.iter() {
            for b in node.inputs.iter().map(|&v| base(v)) {
                let defining_dispatch = match self.values[b].def {
                    ValueDef::Node(n, _) => dispatch_of[n],
                    ValueDef::Input(_) => None,
                };
                if dispatch_of[id] != defining_dispatch {
                    out[b] = false;
                }
            }
        }
        self.outputs.iter().for_each(|o| out[base(o.value)] = false);
        out
    }
}

/// The properties that all products of one [`DispatchForm::Batch`] share: the left operand and the number of
/// axes of the right operand. `None` if the node is no matrix product.
pub fn batch_key(graph: &Graph, node: NodeId) -> Option<(ValueId, usize)> {
    let node = &graph.nodes[node];
    match (&node.op, &node.inputs[..]) {
        (Op::MatMul { .. }, &[left, right]) => Some((left, graph.ty(right).rank())),
        _ => None,
    }
}

/// Whether the op is an all-gather by a variant where each rank writes its own result, after the rendezvous of
/// the group.
fn is_gathered_by_readers(op: &Op) -> bool {
    let Some(collective) = op.as_collective().filter(|c| c.kind == CollectiveKind::AllGather) else {
        return false;
    };
    let contract = collective.variant.and_then(|v| v.contract(&collective.kind));
    contract
        .is_some_and(|c| c.result_after_rendezvous && !c.peer_access.writes_result() && !c.symmetric_result)
}

/// Checks that the nodes of a dispatch satisfy the rules of its form. `users` are the nodes that use each
/// value.
pub(crate) fn check_dispatch(
    graph: &Graph,
    dispatch: &Dispatch,
    users: &EntityMap<ValueId, Vec<NodeId>>,
) -> Result<(), (NodeId, String)> {
    let checker = DispatchChecker { graph, dispatch, users };
    if let Some(first) = dispatch.nodes().next().filter(|&n| graph.nodes[n].op.is_view()) {
        return Err(checker.mismatch_error(first, "a node that is not a view at the front"));
    }
    match dispatch.form {
        DispatchForm::Loop => checker.check_loop(),
        DispatchForm::Product => checker.check_product(),
        DispatchForm::Batch => checker.check_batch(),
        DispatchForm::Reduction => checker.check_reduction(),
        DispatchForm::Gather => checker.check_gather(),
        DispatchForm::Selection => checker.check_selection(),
        DispatchForm::Rotary => checker.check_independent(
            |op| matches!(op, Op::RotaryEmbedding { .. }),
            "independent rotary embeddings",
        ),
        DispatchForm::Scatter => checker.check_independent(
            |op| matches!(op, Op::IndexPut { .. }),
            "independent stores at indices (index_put)",
        ),
        DispatchForm::Collectives => checker.check_collectives(),
    }
}

/// The part of a collective's contract that all collectives of a [`DispatchForm::Collectives`] have in common.
/// `None` if the collective cannot be in such a dispatch.
pub fn shared_contract(collective: &Collective) -> Option<Contract> {
    let contract = collective.variant?.contract(&collective.kind)?;
    let has_rendezvous = contract.entry_barrier && contract.sync_scope == SyncScope::Group;
    has_rendezvous.then_some(Contract { in_place: false, ..contract })
}

type CheckResult = Result<(), (NodeId, String)>;

struct DispatchChecker<'a> {
    graph: &'a Graph,
    dispatch: &'a Dispatch,
    users: &'a EntityMap<ValueId, Vec<NodeId>>,
}

impl<'a> DispatchChecker<'a> {
    fn iter_nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &'a Node)> + use<'a> {
        let graph = self.graph;
        self.dispatch.nodes().map(|n| (n, &graph.nodes[n]))
    }

    fn mismatch_error(&self, id: NodeId, expected: &str) -> (NodeId, String) {
        let form = self.dispatch.form;
        let op = op_name(&self.graph.nodes[id].op);
        (id, format!("expected {expected} in a dispatch of form {form}, found {op}"))
    }

    /// The node of the dispatch that defines a value; `None` if another step or an input defines it.
    fn internal_def(&self, value: ValueId) -> Option<NodeId> {
        self.graph.defining_node(value).filter(|&n| self.dispatch.contains(n))
    }

    fn check_loop(&self) -> CheckResult {
        let first_mismatch = |expected| Err(self.mismatch_error(self.dispatch.first, expected));
        let Some(space) = loop_space(self.graph, self.dispatch.nodes()) else {
            return first_mismatch("an element-wise node, or a reduction of one axis");
        };
        if !space.has_terms(&self.graph.symbols) {
            return first_mismatch("reductions of at least one element for all sizes");
        }
        self.iter_nodes().try_for_each(|(id, node)| self.check_loop_node(&space, id, node))
    }

    /// Checks a node of a loop over this space: its op, and the shapes of its result and of the operands that the
    /// loop computes.
    fn check_loop_node(&self, space: &LoopSpace<'_>, id: NodeId, node: &Node) -> CheckResult {
        let outer = space.reduces_outer_axis();
        let shape = |v: &ValueId| &self.graph.ty(*v).shape[..];
        let is_full = |v: &ValueId| shape(v) == space.shape;
        let is_reduced = |v: &ValueId| space.is_reduced_shape(shape(v));
        let is_broadcast = |v: &ValueId| {
            let is_mapped = self.internal_def(*v).is_some_and(|n| self.graph.nodes[n].op.fits_map());
            !outer && is_mapped && space.is_broadcast_shape(shape(v))
        };
        let internal_operands = |from: usize| {
            let operands = node.inputs.iter().skip(from);
            operands.filter(|v| self.internal_def(**v).is_some())
        };
        let (Some(result), operand) = (node.outputs.first(), node.inputs.first()) else { return Ok(()) };
        let is_alone = || self.is_read_internally(id);
        if space.reduced_axis.is_some() && node.op.divides_integers(self.graph.ty(*result).dtype) {
            return Err(self.mismatch_error(id, "no division of integers in a loop that reduces"));
        }
        let fits = match &node.op {
            Op::Reduce { axes, keep, .. } => {
                space.has_allowed_axis()
                    && space.reduced_axis.is_some_and(|axis| axes[..] == [axis])
                    && operand.is_some_and(is_full)
                    && is_reduced(result)
                    && (*keep || outer)
            }
            Op::RmsNorm { axes: 1, .. } | Op::LayerNorm { axes: 1, .. } => {
                space.reduces_rows() && is_full(result) && internal_operands(1).all(is_broadcast)
            }
            Op::Take { axis: 0 } => {
                !space.reduces_rows()
                    && is_full(result)
                    && is_alone()
                    && internal_operands(0).next().is_none()
            }
            op if op.fits_map() => {
                let over_space = is_full(result)
                    && (!outer || is_alone())
                    && internal_operands(0).all(|v| is_full(v) || is_broadcast(v) || !outer && is_reduced(v));
                over_space
                    || is_reduced(result) && internal_operands(0).all(|v| is_reduced(v) || is_broadcast(v))
                    || is_broadcast(result) && is_alone() && internal_operands(0).all(is_broadcast)
            }
            _ => {
                let expected =
                    "an element-wise node, a reduction or a norm over one axis, or rows that are taken";
                return Err(self.mismatch_error(id, expected));
            }
        };
        if fits { Ok(()) } else { Err(self.loop_shape_error(space, id, node)) }
    }

    fn loop_shape_error(&self, space: &LoopSpace<'_>, id: NodeId, node: &Node) -> (NodeId, String) {
        let internal_operands = node.inputs.iter().filter(|v| self.internal_def(**v).is_some());
        let shapes: Vec<_> =
            internal_operands.chain(&node.outputs).map(|v| &self.graph.ty(*v).shape).collect();
        let reduced = match space.reduced_axis {
            Some(axis) => format!(", which is reduced over axis {axis}"),
            None => String::new(),
        };
        let op = op_name(&node.op);
        let expected = format!(
            "expected {op} over the shape {:?} of the loop{reduced}, or of a shape that is broadcast to it and \
             nothing else reads, in a dispatch of form {}",
            space.shape, self.dispatch.form
        );
        (id, format!("{expected}, found the shapes {shapes:?}"))
    }

    fn check_product(&self) -> CheckResult {
        let mut left_operand = None;
        for (id, node) in self.iter_nodes() {
            match (&node.op, &node.inputs[..]) {
                (Op::MatMul { .. }, &[x, y]) => {
                    if *left_operand.get_or_insert(x) != x
                        || self.internal_def(x).or(self.internal_def(y)).is_some()
                    {
                        return Err(self.mismatch_error(
                            id,
                            "products of one left operand, without operands from the dispatch",
                        ));
                    }
                    self.check_read_internally(id)?;
                }
                (Op::Slice { axis, step: 1, .. }, &[x]) if axis + 1 == self.graph.ty(x).rank() => {
                    if self.internal_def(x).is_none_or(|n| !self.graph.nodes[n].op.is_matmul()) {
                        return Err(self.mismatch_error(id, "columns of a product"));
                    }
                    self.check_read_internally(id)?;
                }
                (op, _) if op.fits_map() && !op.divides_integers(self.graph.ty(node.outputs[0]).dtype) => {}
                _ => {
                    return Err(self.mismatch_error(id, "a product, columns of one, or an element-wise node"));
                }
            }
        }
        if left_operand.is_none() {
            return Err(self.mismatch_error(self.dispatch.first, "a product"));
        }
        let Some(space) = loop_space(self.graph, self.dispatch.nodes()) else { return Ok(()) };
        let mut epilogue = self.iter_nodes().filter(|(_, node)| node.op.fits_map());
        epilogue.try_for_each(|(id, node)| self.check_loop_node(&space, id, node))
    }

    fn check_batch(&self) -> CheckResult {
        let mut common_key = None;
        let mut unrotated_views = Vec::new();
        for (id, node) in self.iter_nodes() {
            let reads_internal_from =
                |k: usize| node.inputs.iter().skip(k).any(|&v| self.internal_def(v).is_some());
            match &node.op {
                Op::Reshape | Op::Permute { .. } => unrotated_views.push(id),
                Op::RotaryEmbedding { .. } => {
                    let rotated = find_rotated_product(self.graph, self.users, id)
                        .filter(|rotated| self.dispatch.contains(rotated.product))
                        .filter(|_| !reads_internal_from(1));
                    let Some(rotated) = rotated else {
                        let expected = "rotary embeddings of whole products that nothing else reads";
                        return Err(self.mismatch_error(id, expected));
                    };
                    unrotated_views.retain(|view| !rotated.views.contains(view));
                }
                _ => {
                    let key =
                        batch_key(self.graph, id).ok_or_else(|| self.mismatch_error(id, "a product"))?;
                    if *common_key.get_or_insert(key) != key || reads_internal_from(0) {
                        return Err(self.mismatch_error(id, "products of one left operand"));
                    }
                }
            }
        }
        match unrotated_views.first() {
            Some(&view) => Err(self.mismatch_error(view, "only views that rotary embeddings read")),
            None => Ok(()),
        }
    }

    /// Checks that only nodes of the dispatch read the results of a node.
    fn check_read_internally(&self, id: NodeId) -> CheckResult {
        if self.is_read_internally(id) {
            Ok(())
        } else {
            Err(self.mismatch_error(id, "a node whose result nothing else reads"))
        }
    }

    fn is_read_internally(&self, id: NodeId) -> bool {
        self.graph.nodes[id].outputs.iter().all(|&v| {
            let returned = self.graph.outputs.iter().any(|o| o.value == v);
            !returned && self.users[v].iter().all(|&n| self.dispatch.contains(n))
        })
    }

    /// The value before nodes of the dispatch reshaped it.
    fn strip_reshapes(&self, value: ValueId) -> ValueId {
        let node = self.internal_def(value).map(|n| &self.graph.nodes[n]);
        match node.map(|n| (&n.op, &n.inputs[..])) {
            Some((Op::Reshape, &[x])) => self.strip_reshapes(x),
            _ => value,
        }
    }

    fn check_reduction(&self) -> CheckResult {
        let mut reduced = None;
        let mut sum = None;
        let mut normed = None;
        for (id, node) in self.iter_nodes() {
            let internal_operand = |k: usize| node.inputs.get(k).filter(|v| self.internal_def(**v).is_some());
            let fits = match &node.op {
                Op::Collective(c) => {
                    let is_all_reduce = matches!(c.kind, CollectiveKind::AllReduce(_));
                    is_all_reduce && reduced.replace(node.outputs[0]).is_none()
                }
                Op::Reshape => internal_operand(0).is_some(),
                Op::Binary(BinaryOp::Add) => {
                    let sources = [internal_operand(0), internal_operand(1)]
                        .map(|v| v.map(|&v| self.strip_reshapes(v)));
                    let adds_to_reduced =
                        matches!(sources, [Some(v), None] | [None, Some(v)] if Some(v) == reduced);
                    let shape = &self.graph.ty(node.outputs[0]).shape;
                    let same_shape = node.inputs.iter().all(|&v| self.graph.ty(v).shape == *shape);
                    adds_to_reduced && same_shape && sum.replace(node.outputs[0]).is_none()
                }
                Op::RmsNorm { axes: 1, .. } => {
                    let source = internal_operand(0).map(|&v| self.strip_reshapes(v));
                    source.is_some()
                        && source == sum
                        && internal_operand(1).is_none()
                        && normed.replace(id).is_none()
                }
                _ => false,
            };
            if !fits {
                let expected = "an all-reduce, the sum with a residual and the norm of its rows";
                return Err(self.mismatch_error(id, expected));
            }
        }
        match sum {
            Some(_) => Ok(()),
            None => Err(self.mismatch_error(self.dispatch.last, "the sum with a residual")),
        }
    }

    fn check_gather(&self) -> CheckResult {
        let first = self.dispatch.first;
        let last_node = self.dispatch.last;
        if !is_gathered_by_readers(&self.graph.nodes[first].op) {
            return Err(self.mismatch_error(first, "an all-gather whose results peers do not write"));
        }
        let mut current = self.graph.nodes[first].outputs[0];
        let ty = self.graph.ty(current);
        let mut layout = Layout { base: current, offset: Dim::from(0), strides: ty.contiguous_strides() };
        self.check_read_internally(first)?;
        for (id, node) in self.iter_nodes().skip(1) {
            let follows = node.inputs[..] == [current];
            let view = match &node.op {
                op @ (Op::Reshape | Op::Permute { .. }) => {
                    view_layout(op, &layout, self.graph.ty(current), self.graph.ty(node.outputs[0]))
                }
                _ => None,
            };
            match view {
                Some(view) if follows && id != last_node => {
                    layout = view;
                    current = node.outputs[0];
                }
                None if follows && id == last_node && matches!(node.op, Op::Reshape | Op::Copy) => {
                    return Ok(());
                }
                _ => {
                    return Err(self.mismatch_error(
                        id,
                        "views of a gathered value that change the order of its axes, and a copy",
                    ));
                }
            }
            self.check_read_internally(id)?;
        }
        Err(self.mismatch_error(last_node, "a copy of the gathered value"))
    }

    /// Checks for nodes on rows with constant extents, one of which selects elements.
    fn check_selection(&self) -> CheckResult {
        let shape = |v: &ValueId| &self.graph.ty(*v).shape[..];
        let selects = self.iter_nodes().find(|(_, n)| matches!(n.op, Op::TopK { .. }));
        let Some(rows) = selects.and_then(|(_, n)| shape(n.inputs.first()?).first()) else {
            return Err(self.mismatch_error(self.dispatch.first, "a topk of rows among the nodes"));
        };
        let has_rows = |extents: &[Dim]| {
            extents.first() == Some(rows) && extents[1..].iter().all(|d| d.as_const().is_some())
        };
        let is_last = |axis: usize, v: &ValueId| axis > 0 && axis + 1 == shape(v).len();
        for (id, node) in self.iter_nodes() {
            let fits_op = match (&node.op, &node.inputs[..]) {
                (Op::TopK { axis, .. } | Op::Softmax { axis, .. }, [x]) => is_last(*axis, x),
                (Op::Reduce { axes, .. }, [x]) => matches!(axes[..], [axis] if is_last(axis, x)),
                (Op::GatherElements { axis } | Op::ScatterElements { axis, combine: None }, [x, ..]) => {
                    is_last(*axis, x)
                }
                (Op::Reshape | Op::Permute { .. } | Op::Slice { .. } | Op::Expand | Op::Copy, [x]) => {
                    self.internal_def(*x).is_some()
                }
                (op, _) => op.fits_map(),
            };
            let internal = node.inputs.iter().filter(|v| self.internal_def(**v).is_some());
            let fits = fits_op && internal.chain(&node.outputs).all(|v| has_rows(shape(v)));
            if !fits {
                let expected = "a node that computes rows of constant extents";
                return Err(self.mismatch_error(id, expected));
            }
        }
        Ok(())
    }

    /// Checks for independent collectives with one group, variant and shared contract.
    fn check_collectives(&self) -> CheckResult {
        let mut common: Option<(&Collective, Contract)> = None;
        for (id, node) in self.iter_nodes() {
            let own_contract = match (&node.op, &node.inputs[..], &node.outputs[..]) {
                (Op::Collective(c), &[x], &[_]) if self.internal_def(x).is_none() => {
                    shared_contract(c).map(|contract| (c, contract))
                }
                _ => None,
            };
            let fits = own_contract.is_some_and(|(c, contract)| {
                let (first, shared) = common.get_or_insert((c, contract));
                (first.group, first.variant, *shared) == (c.group, c.variant, contract)
            });
            if !fits {
                let expected = "independent collectives of one group and one variant with an entry barrier";
                return Err(self.mismatch_error(id, expected));
            }
        }
        Ok(())
    }

    /// Checks that all nodes satisfy `accepts_op`, and that none reads a result of another node of the
    /// dispatch.
    fn check_independent(&self, accepts_op: fn(&Op) -> bool, expected: &str) -> CheckResult {
        let fits =
            |node: &Node| accepts_op(&node.op) && node.inputs.iter().all(|&v| self.internal_def(v).is_none());
        match self.iter_nodes().find(|(_, node)| !fits(node)) {
            Some((id, _)) => Err(self.mismatch_error(id, expected)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::compute_layouts;
    use crate::text;
    use crate::verify::verify;

    const PROGRAM: &str = "program \"d\" ranks 2\n\narg %x: f32[4, 8]\narg %s: f32[8]\narg %three: f32[2, 4, 8]\ndispatch loop {\n\
        %a: f32[4, 8] = neg %x\n%b: bf16[4, 8] = cast %a\n%c: f32[4, 8] = mul %a, %s\n}\n\
        %d: bf16[8, 4] = permute %b perm=[1, 0]\n\nreturn %c\nreturn %d\n";

    #[test]
    fn the_text_form_keeps_dispatches() {
        let graph = text::parse(PROGRAM).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(verify(&graph), Ok(()));
        assert_eq!(text::print(&graph), PROGRAM);
        assert_eq!(graph.dispatches.len(), 1);
        let nodes: Vec<_> = graph.dispatches[0].nodes().map(|n| graph.node_name(n)).collect();
        assert_eq!(nodes, ["a", "b", "c"]);
    }

    #[test]
    fn values_that_only_nodes_of_a_dispatch_read_are_internal() {
        let graph = text::parse(PROGRAM).unwrap_or_else(|e| panic!("{e}"));
        let layouts = compute_layouts(&graph);
        let inner = graph.dispatch_internal_values(|v| layouts[v].base);
        let names: Vec<_> = inner.iter().filter(|(_, i)| **i).map(|(v, _)| graph.value_name(v)).collect();
        assert_eq!(names, ["a"]);
    }

    /// A step of two collectives of these nodes.
    fn collectives(nodes: &str) -> String {
        format!(
            "program \"d\" ranks 4\ngroup @w world\ngroup @p [[0, 1], [2, 3]]\narg %x: f32[4, 8]\narg %y: bf16[4, 3]\narg %n: i64[4]\n\
             dispatch collectives {{\n{nodes}}}\nreturn %a\nreturn %b\n"
        )
    }

    #[test]
    fn collectives_of_one_group_and_variant_are_a_dispatch() {
        let gather = "%a: f32[16, 8] = all_gather %x group=@w via=pull\n";
        let exchange = "%b: bf16[4, 3] = all_to_all %y splits=even group=@w via=pull\n";
        let scatter = "%b: bf16[1, 3] = reduce_scatter %y op=sum group=@w via=pull\n";
        let push = "%b: bf16[16, 3] = all_gather %y group=@w via=push\n";
        let verify_nodes = |nodes: &[&str]| {
            let graph = text::parse(&collectives(&nodes.concat())).unwrap_or_else(|e| panic!("{e}"));
            verify(&graph).map_err(|violations| {
                violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
            })
        };
        let pushed = gather.replace("pull", "push");
        for fits in [[gather, exchange], [gather, scatter], [&pushed, push]] {
            assert_eq!(verify_nodes(&fits), Ok(()), "{fits:?}");
        }
        for variant in ["plain", "ll", "nccl_window", "copy_engine"] {
            let [a, b] = [gather, push].map(|n| n.replace("pull", variant).replace("push", variant));
            assert!(verify_nodes(&[&a, &b]).is_err(), "{variant}");
        }
        for (second, why) in [
            (push, "another variant"),
            ("%b: bf16[8, 3] = all_gather %y group=@p via=pull\n", "another group"),
            ("%b: f32[64, 8] = all_gather %a group=@w via=pull\n", "it needs the first"),
            (
                "%b: bf16[4, 3], %c: i64[4] = all_to_all %y, %n splits=device group=@w via=pull\n",
                "an exit that is kept",
            ),
            ("%b: bf16[4, 3] = neg %y\n", "no collective"),
        ] {
            let error = verify_nodes(&[gather, second]).expect_err(why);
            assert!(error.contains("dispatch of form collectives, found"), "{why}: {error}");
        }
    }

    #[test]
    fn nodes_of_a_map_broadcast_values_that_stay_inside() {
        let nodes = "%b: bf16[4, 8] = cast %a\n%c: f32[4, 8] = mul %a, %s\n";
        let verify_nodes = |replaced: &str, returned: &str| {
            let text =
                PROGRAM.replace(nodes, replaced).replace("%d: bf16[8, 4] = permute %b perm=[1, 0]\n", "");
            let graph = text::parse(&text.replace("return %d\n", returned)).unwrap_or_else(|e| panic!("{e}"));
            verify(&graph)
                .map_err(|violations| violations.iter().map(ToString::to_string).collect::<String>())
        };
        let chain = "%b: f32[8] = neg %s\n%e: f32[8] = abs %b\n%c: f32[4, 8] = mul %a, %e\n";
        assert_eq!(verify_nodes(chain, ""), Ok(()));
        for (broken, returned) in [
            // Another step reads it.
            (chain, "return %e\n"),
            // It is the result of the last node.
            ("%c: f32[4, 8] = mul %a, %s\n%b: f32[8] = neg %s\n", ""),
            // The other nodes have fewer elements.
            ("%b: f32[2, 4, 8] = add %three, %a\n%c: f32[4, 8] = mul %a, %s\n", ""),
        ] {
            let error = verify_nodes(broken, returned).expect_err(broken);
            assert!(error.contains("the shape"), "{error}");
        }
    }

    #[test]
    fn invalid_dispatches_are_rejected() {
        for (from, to, message) in [
            (
                "dispatch loop",
                "dispatch heap",
                "expected a form (loop, product, batch, reduction, gather, selection, rotary, scatter, collectives), found `heap`",
            ),
            (
                "%a: f32[4, 8] = neg %x\n%b: bf16[4, 8] = cast %a\n%c: f32[4, 8] = mul %a, %s\n",
                "",
                "a node of the dispatch",
            ),
            ("}\n", "", "expected `}`"),
        ] {
            let error = text::parse(&PROGRAM.replace(from, to)).expect_err(to).to_string();
            assert!(error.contains(message), "{error}");
        }
        for (from, to, message) in [
            (
                "%b: bf16[4, 8] = cast %a",
                "%b: f32[4, 8] = softmax %a axis=1 log=false",
                "form loop, found softmax",
            ),
            ("%b: bf16[4, 8] = cast %a", "%b: bf16[2, 4, 8] = cast %three", "the shape"),
        ] {
            let text = PROGRAM.replace(from, to).replace("%d: bf16[8, 4] = permute %b perm=[1, 0]\n", "");
            let graph = text::parse(&text.replace("return %d\n", "")).unwrap_or_else(|e| panic!("{e}"));
            let violations = verify(&graph).expect_err(to);
            assert!(violations.iter().any(|v| v.to_string().contains(message)), "{violations:?}");
        }
    }
}
