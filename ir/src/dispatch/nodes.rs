//! The nodes of a dispatch in their program: which values only they know, and whether they are one of its form.

use super::form::{Dispatch, DispatchForm};
use super::heads::find_rotated_product;
use crate::collective::{Collective, CollectiveKind, Contract, SyncScope};
use crate::dim::Dim;
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

    /// Which bases have no memory, because only nodes of one dispatch know them. `base` gives the base of each value.
    pub fn dispatch_internal_values(&self, base: impl Fn(ValueId) -> ValueId) -> EntityMap<ValueId, bool> {
        let mut out = EntityMap::filled(false, self.values.len());
        if self.dispatches.is_empty() {
            return out;
        }
        let of = self.dispatch_by_node();
        let defined = |v: ValueId| match self.values[v].def {
            ValueDef::Node(n, _) => of[n],
            ValueDef::Input(_) => None,
        };
        for dispatch in &self.dispatches {
            for node in dispatch.nodes().map(|n| &self.nodes[n]) {
                let inner = dispatch.form.keeps_result_internal(&node.op);
                node.outputs.iter().for_each(|&v| out[v] = inner && base(v) == v);
            }
        }
        for (id, node) in self.nodes.iter() {
            for b in node.inputs.iter().map(|&v| base(v)).filter(|&b| of[id] != defined(b)) {
                out[b] = false;
            }
        }
        self.outputs.iter().for_each(|o| out[base(o.value)] = false);
        out
    }
}

/// What the products of one [`DispatchForm::Batch`] have alike: the left operand and the rank of the right one. None of what is no
/// product.
pub fn batch_key(graph: &Graph, node: NodeId) -> Option<(ValueId, usize)> {
    let node = &graph.nodes[node];
    match (&node.op, &node.inputs[..]) {
        (Op::MatMul, &[left, right]) => Some((left, graph.ty(right).rank())),
        _ => None,
    }
}

/// Whether a node is an all-gather of which each rank writes its own result, after the group has met.
fn is_gathered_by_readers(op: &Op) -> bool {
    let Some(collective) = op.as_collective().filter(|c| c.kind == CollectiveKind::AllGather) else {
        return false;
    };
    let contract = collective.variant.and_then(|v| v.contract(&collective.kind));
    contract
        .is_some_and(|c| c.result_after_rendezvous && !c.peer_access.writes_result() && !c.symmetric_result)
}

/// Checks that the nodes of a dispatch are one of its form. `users` are the nodes that use each value.
pub(crate) fn check_dispatch(
    graph: &Graph,
    dispatch: &Dispatch,
    users: &EntityMap<ValueId, Vec<NodeId>>,
) -> Result<(), (NodeId, String)> {
    let nodes = DispatchChecker { graph, dispatch, users };
    if let Some(first) = dispatch.nodes().next().filter(|&n| graph.nodes[n].op.is_view()) {
        return Err(nodes.mismatch_error(first, "a step in front"));
    }
    match dispatch.form {
        DispatchForm::Map => nodes.check_map(),
        DispatchForm::Product => nodes.check_product(),
        DispatchForm::Batch => nodes.check_batch(),
        DispatchForm::Reduction => nodes.check_reduction(),
        DispatchForm::Gather => nodes.check_gather(),
        DispatchForm::Norm => nodes.check_norm(),
        DispatchForm::Rows => nodes.check_rows(),
        DispatchForm::Rotary => nodes.check_independent(
            |op| matches!(op, Op::RotaryEmbedding { .. }),
            "rotary embeddings that do not need each other",
        ),
        DispatchForm::Scatter => nodes.check_independent(
            |op| matches!(op, Op::IndexPut { .. }),
            "indexed stores that do not need each other",
        ),
        DispatchForm::Collectives => nodes.check_collectives(),
    }
}

/// The part of the contract of a collective that all collectives of a [`DispatchForm::Collectives`] share. None if it can be in no such dispatch.
pub fn shared_contract(collective: &Collective) -> Option<Contract> {
    let contract = collective.variant?.contract(&collective.kind)?;
    let meets = contract.entry_barrier && contract.sync_scope == SyncScope::Group;
    meets.then_some(Contract { in_place: false, ..contract })
}

type CheckResult = Result<(), (NodeId, String)>;

struct DispatchChecker<'a> {
    graph: &'a Graph,
    dispatch: &'a Dispatch,
    users: &'a EntityMap<ValueId, Vec<NodeId>>,
}

impl<'a> DispatchChecker<'a> {
    fn iter_nodes(&self) -> impl Iterator<Item = (NodeId, &'a Node)> + use<'a> {
        let graph = self.graph;
        self.dispatch.nodes().map(|n| (n, &graph.nodes[n]))
    }

    fn mismatch_error(&self, at: NodeId, expected: &str) -> (NodeId, String) {
        let (form, found) = (self.dispatch.form, op_name(&self.graph.nodes[at].op));
        (at, format!("expected {expected} of a dispatch of the form {form}, found {found}"))
    }

    fn internal_def(&self, value: ValueId) -> Option<NodeId> {
        self.graph.defining_node(value).filter(|&n| self.dispatch.contains(n))
    }

    fn check_map(&self) -> CheckResult {
        match self.iter_nodes().find(|(_, n)| !n.op.fits_map()) {
            Some((id, _)) => Err(self.mismatch_error(id, "an element-wise node")),
            None => self.check_same_shape(),
        }
    }

    /// The element-wise nodes have one shape, and read values of the dispatch at the same positions.
    fn check_same_shape(&self) -> CheckResult {
        let mut expected = None;
        for (id, node) in self.iter_nodes().filter(|(_, n)| n.op.fits_map()) {
            let shape = |v: &ValueId| &self.graph.ty(*v).shape;
            let inside = node.inputs.iter().filter(|v| self.internal_def(**v).is_some());
            for found in inside.chain(node.outputs.first()).map(shape) {
                let expected = *expected.get_or_insert(found);
                if expected != found {
                    return Err((
                        id,
                        format!("expected the shape {expected:?} of its dispatch, found {found:?}"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_product(&self) -> CheckResult {
        let mut left = None;
        for (id, node) in self.iter_nodes() {
            match (&node.op, &node.inputs[..]) {
                (Op::MatMul, &[x, y]) => {
                    if *left.get_or_insert(x) != x || self.internal_def(x).or(self.internal_def(y)).is_some()
                    {
                        return Err(
                            self.mismatch_error(id, "products of one left operand that others define")
                        );
                    }
                    self.check_read_internally(id)?;
                }
                (Op::Slice { axis, step: 1, .. }, &[x]) if axis + 1 == self.graph.ty(x).rank() => {
                    if self.internal_def(x).is_none_or(|n| self.graph.nodes[n].op != Op::MatMul) {
                        return Err(self.mismatch_error(id, "columns of a product"));
                    }
                    self.check_read_internally(id)?;
                }
                (op, _) if op.fits_map() => {}
                _ => {
                    return Err(self.mismatch_error(id, "a product, columns of one, or an element-wise node"));
                }
            }
        }
        match left {
            Some(_) => self.check_same_shape(),
            None => Err(self.mismatch_error(self.dispatch.first, "a product")),
        }
    }

    fn check_batch(&self) -> CheckResult {
        let (mut alike, mut views) = (None, Vec::new());
        for (id, node) in self.iter_nodes() {
            let inside = |k: usize| node.inputs.iter().skip(k).any(|&v| self.internal_def(v).is_some());
            match &node.op {
                Op::Reshape | Op::Permute { .. } => views.push(id),
                Op::RotaryEmbedding { .. } => {
                    let of = find_rotated_product(self.graph, self.users, id)
                        .filter(|of| self.dispatch.contains(of.product));
                    let of = of.filter(|_| !inside(1));
                    let of = of.ok_or_else(|| {
                        self.mismatch_error(id, "rotary embeddings of whole products that nothing else reads")
                    })?;
                    views.retain(|view| !of.views.contains(view));
                }
                _ => {
                    let of = batch_key(self.graph, id).ok_or_else(|| self.mismatch_error(id, "a product"))?;
                    if *alike.get_or_insert(of) != of || inside(0) {
                        return Err(self.mismatch_error(id, "products of one left operand"));
                    }
                }
            }
        }
        match views.first() {
            Some(&view) => Err(self.mismatch_error(view, "views that rotary embeddings turn")),
            None => Ok(()),
        }
    }

    /// Only nodes of the dispatch read the products of a node.
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

    /// What a value is before it was given another shape by nodes of the dispatch.
    fn strip_reshapes(&self, value: ValueId) -> ValueId {
        let node = self.internal_def(value).map(|n| &self.graph.nodes[n]);
        match node.map(|n| (&n.op, &n.inputs[..])) {
            Some((Op::Reshape, &[x])) => self.strip_reshapes(x),
            _ => value,
        }
    }

    fn check_reduction(&self) -> CheckResult {
        let (mut reduced, mut sum, mut normed) = (None, None, None);
        for (id, node) in self.iter_nodes() {
            let inside = |k: usize| node.inputs.get(k).filter(|v| self.internal_def(**v).is_some());
            let fits = match &node.op {
                Op::Collective(c) => {
                    let reduces = matches!(c.kind, CollectiveKind::AllReduce(_));
                    reduces && reduced.replace(node.outputs[0]).is_none()
                }
                Op::Reshape => inside(0).is_some(),
                Op::Binary(BinaryOp::Add) => {
                    let of = [inside(0), inside(1)].map(|v| v.map(|&v| self.strip_reshapes(v)));
                    let one = matches!(of, [Some(v), None] | [None, Some(v)] if Some(v) == reduced);
                    let shape = |v: &ValueId| &self.graph.ty(*v).shape;
                    let same = node.inputs.iter().all(|v| shape(v) == shape(&node.outputs[0]));
                    one && same && sum.replace(node.outputs[0]).is_none()
                }
                Op::RmsNorm { axes: 1, .. } => {
                    let of = inside(0).map(|&v| self.strip_reshapes(v));
                    of.is_some() && of == sum && inside(1).is_none() && normed.replace(id).is_none()
                }
                _ => false,
            };
            if !fits {
                return Err(self
                    .mismatch_error(id, "an all-reduce, the sum with a residual and the norm of its rows"));
            }
        }
        match sum {
            Some(_) => Ok(()),
            None => Err(self.mismatch_error(self.dispatch.last, "the sum with a residual")),
        }
    }

    fn check_gather(&self) -> CheckResult {
        let (first, last) = (self.dispatch.first, self.dispatch.last);
        if !is_gathered_by_readers(&self.graph.nodes[first].op) {
            return Err(self.mismatch_error(first, "an all-gather whose results peers do not write"));
        }
        let mut of = self.graph.nodes[first].outputs[0];
        let ty = self.graph.ty(of);
        let mut layout = Layout { base: of, offset: Dim::from(0), strides: ty.contiguous_strides() };
        self.check_read_internally(first)?;
        for (id, node) in self.iter_nodes().skip(1) {
            let follows = node.inputs[..] == [of];
            let view = match &node.op {
                op @ (Op::Reshape | Op::Permute { .. }) => {
                    view_layout(op, &layout, self.graph.ty(of), self.graph.ty(node.outputs[0]))
                }
                _ => None,
            };
            match view {
                Some(view) if follows && id != last => (layout, of) = (view, node.outputs[0]),
                None if follows && id == last && matches!(node.op, Op::Reshape | Op::Copy) => return Ok(()),
                _ => {
                    return Err(self.mismatch_error(
                        id,
                        "views of a gathered value that change the order of its axes, and a copy",
                    ));
                }
            }
            self.check_read_internally(id)?;
        }
        Err(self.mismatch_error(last, "a copy of the gathered value"))
    }

    fn check_norm(&self) -> CheckResult {
        let last = self.dispatch.last;
        let node = &self.graph.nodes[last];
        let shape = |v: &ValueId| &self.graph.ty(*v).shape;
        let mut inside = node.inputs.iter().map(|&v| self.internal_def(v));
        let fits = matches!(node.op, Op::RmsNorm { axes: 1, .. } | Op::LayerNorm { axes: 1, .. })
            && inside.next().flatten().is_some()
            && inside.all(|n| n.is_none());
        if !fits {
            return Err(
                self.mismatch_error(last, "the norm over the last axis of what a node gives, at the end")
            );
        }
        match self.iter_nodes().find(|(id, n)| *id != last && !n.op.fits_map()) {
            Some((id, _)) => return Err(self.mismatch_error(id, "an element-wise node")),
            None => self.check_same_shape()?,
        }
        let given = self.iter_nodes().next().map(|(_, n)| shape(&n.outputs[0]));
        match given == Some(shape(&node.outputs[0])) {
            true => Ok(()),
            false => Err(self.mismatch_error(last, "a norm of the shape of the other nodes")),
        }
    }

    /// Reductions over the last axis of values of one shape, and element-wise nodes of that shape or with one element for each row.
    fn check_rows(&self) -> CheckResult {
        let shape = |v: &ValueId| &self.graph.ty(*v).shape[..];
        let reduces = |node: &Node| matches!(node.op, Op::Reduce { .. });
        let first = self.iter_nodes().find(|(_, n)| reduces(n)).and_then(|(_, n)| n.inputs.first());
        let Some((row, (_, leading))) = first.map(shape).and_then(|row| Some((row, row.split_last()?)))
        else {
            return Err(
                self.mismatch_error(self.dispatch.first, "a reduction over the last axis among the nodes")
            );
        };
        let one = Dim::from(1);
        let is_one = |of: &[Dim]| of.split_last() == Some((&one, leading));
        let is_along = |of: &[Dim]| {
            let (last, others) = of.split_last().unzip();
            last == row.last() && others.is_some_and(|others| others.iter().all(|n| *n == one))
        };
        for (id, node) in self.iter_nodes() {
            let inside = || node.inputs.iter().filter(|v| self.internal_def(**v).is_some()).map(shape);
            let own = node.outputs.first().map(shape);
            let fits = match &node.op {
                Op::Reduce { axes, keep, .. } => {
                    *keep && axes[..] == [leading.len()] && node.inputs.first().map(shape) == Some(row)
                }
                op if op.fits_map() && own == Some(row) => {
                    inside().all(|of| of == row || is_one(of) || is_along(of))
                }
                op if op.fits_map() && own.is_some_and(is_along) => {
                    inside().all(is_along) && self.is_read_internally(id)
                }
                op => op.fits_map() && own.is_some_and(is_one) && inside().all(is_one),
            };
            if !fits {
                let expected = "a reduction of rows over the last axis, which it keeps, or an element-wise node over the same rows";
                return Err(self.mismatch_error(id, expected));
            }
        }
        Ok(())
    }

    /// Collectives of one group and variant, none of which reads what another gives.
    fn check_collectives(&self) -> CheckResult {
        let mut common: Option<(&Collective, Contract)> = None;
        for (id, node) in self.iter_nodes() {
            let own = match (&node.op, &node.inputs[..], &node.outputs[..]) {
                (Op::Collective(c), &[x], &[_]) if self.internal_def(x).is_none() => {
                    shared_contract(c).map(|contract| (c, contract))
                }
                _ => None,
            };
            let fits = own.is_some_and(|(c, contract)| {
                let (first, shared) = common.get_or_insert((c, contract));
                (first.group, first.variant, *shared) == (c.group, c.variant, contract)
            });
            if !fits {
                let expected = "collectives of one group and one variant with an entry barrier, which do not need each other,";
                return Err(self.mismatch_error(id, expected));
            }
        }
        Ok(())
    }

    /// All nodes are of one kind, and none reads what another gives.
    fn check_independent(&self, is: fn(&Op) -> bool, expected: &str) -> CheckResult {
        let fits = |node: &Node| is(&node.op) && node.inputs.iter().all(|&v| self.internal_def(v).is_none());
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

    const PROGRAM: &str = "program \"d\" ranks 2\n\narg %x: f32[4, 8]\narg %s: f32[8]\ndispatch map {\n\
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
    fn what_only_nodes_of_a_dispatch_read_is_inner() {
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
        let of = |nodes: &[&str]| {
            let graph = text::parse(&collectives(&nodes.concat())).unwrap_or_else(|e| panic!("{e}"));
            verify(&graph)
                .map_err(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        };
        let pushed = gather.replace("pull", "push");
        for fits in [[gather, exchange], [gather, scatter], [&pushed, push]] {
            assert_eq!(of(&fits), Ok(()), "{fits:?}");
        }
        let by = |variant: &str| [gather, push].map(|n| n.replace("pull", variant).replace("push", variant));
        for variant in ["plain", "ll", "nccl_window", "copy_engine"] {
            let [a, b] = by(variant);
            assert!(of(&[&a, &b]).is_err(), "{variant}");
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
            let found = of(&[gather, second]).expect_err(why);
            assert!(found.contains("dispatch of the form collectives, found"), "{why}: {found}");
        }
    }

    #[test]
    fn texts_that_are_no_dispatch_are_refused_by_name() {
        for (from, to, message) in [
            (
                "dispatch map",
                "dispatch heap",
                "expected a form (map, product, batch, reduction, gather, norm, rows, rotary, scatter, collectives), found `heap`",
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
                "form map, found softmax",
            ),
            ("%b: bf16[4, 8] = cast %a", "%b: bf16[8] = cast %s", "the shape"),
        ] {
            let text = PROGRAM.replace(from, to).replace("%d: bf16[8, 4] = permute %b perm=[1, 0]\n", "");
            let graph = text::parse(&text.replace("return %d\n", "")).unwrap_or_else(|e| panic!("{e}"));
            let found = verify(&graph).expect_err(to);
            assert!(found.iter().any(|v| v.to_string().contains(message)), "{found:?}");
        }
    }
}
