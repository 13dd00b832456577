//! Edits of one node of a planned program.

use symmc_ir::{
    ArgOp, BinaryOp, CollectiveKind, CollectiveReduceOp, Dim, FloatAttribute, Graph, NodeId, Op,
    ReductionKind, Scalar, UnaryOp, ValueId,
};
use symmc_support::random::SplitMix;

/// Edits a node. Returns the kind of the edit, or `None` if this edit does not fit the node.
pub fn edit_node(graph: &mut Graph, id: NodeId, r: &mut SplitMix) -> Option<&'static str> {
    if r.one_in(4) {
        return replace_operand(graph, id, r);
    }
    let node = &graph.nodes[id];
    let is_float = node.inputs.first().is_some_and(|&x| graph.ty(x).dtype.is_float());
    let has_equal_operands = matches!(node.inputs[..], [x, y] if x != y && graph.ty(x) == graph.ty(y));
    let bypassed = node.inputs.clone();
    if let Some(axis) = r.one_in(2).then(|| edit_axis(graph, id, r)).flatten() {
        return Some(axis);
    }
    let node = &mut graph.nodes[id];
    match &mut node.op {
        Op::Sort { .. } | Op::Concat { .. } | Op::MatMul { .. } if has_equal_operands => {
            node.inputs.swap(0, 1);
            Some("order")
        }
        Op::Binary(BinaryOp::Sub | BinaryOp::Div | BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr)
            if has_equal_operands && r.one_in(2) =>
        {
            node.inputs.swap(0, 1);
            Some("order")
        }
        Op::BinaryScalar { op: BinaryOp::Rem | BinaryOp::Min | BinaryOp::Max, .. } if r.one_in(2) => {
            bypass(graph, id, bypassed[0]).then_some("clamp dropped")
        }
        Op::BinaryScalar { op, .. } if r.one_in(3) => {
            *op = edit_binary(*op)?;
            Some(if is_float { "float operation" } else { "integer operation" })
        }
        Op::BinaryScalar { op, scalar, .. } => {
            *scalar = edit_scalar(*scalar, r);
            Some(if matches!(op, BinaryOp::Shl | BinaryOp::Shr) { "shift" } else { "scalar" })
        }
        Op::Full(scalar) => {
            *scalar = match *scalar {
                Scalar::Bool(x) => Scalar::Bool(!x),
                other => edit_scalar(other, r),
            };
            Some("constant")
        }
        Op::Pad { value, .. } => {
            *value = edit_scalar(*value, r);
            Some("constant")
        }
        Op::Binary(op) => {
            *op = edit_binary(*op)?;
            Some(if is_float { "float operation" } else { "integer operation" })
        }
        Op::Select if r.one_in(2) => {
            node.inputs.swap(1, 2);
            (graph.ty(bypassed[1]) == graph.ty(bypassed[2])).then_some("condition")
        }
        Op::Select => bypass(graph, id, bypassed[1 + r.below(2)]).then_some("guard dropped"),
        Op::Unary(op) => {
            let is_guard = matches!(op, UnaryOp::IsNan | UnaryOp::IsFinite);
            if *op == UnaryOp::Not {
                return bypass(graph, id, bypassed[0]).then_some("condition");
            }
            *op = match op {
                UnaryOp::IsNan => UnaryOp::IsFinite,
                UnaryOp::IsFinite => UnaryOp::IsNan,
                UnaryOp::Abs => UnaryOp::Relu,
                UnaryOp::Neg | UnaryOp::Relu => UnaryOp::Abs,
                UnaryOp::Gelu => UnaryOp::GeluTanh,
                UnaryOp::Floor => UnaryOp::Trunc,
                UnaryOp::Exp | UnaryOp::Sigmoid | UnaryOp::Silu => UnaryOp::Tanh,
                _ => return None,
            };
            Some(if is_guard { "guard changed" } else { "float operation" })
        }
        Op::RmsNorm { round_first, .. } if r.one_in(2) => {
            *round_first = !*round_first;
            Some("round_first")
        }
        Op::RmsNorm { eps, .. } | Op::LayerNorm { eps, .. } => {
            *eps = FloatAttribute(eps.0 * 10.0);
            Some("constant")
        }
        Op::Reduce { op, .. } => {
            *op = match *op {
                ReductionKind::Sum => ReductionKind::Max,
                ReductionKind::Max => ReductionKind::Min,
                ReductionKind::Min => ReductionKind::Max,
                ReductionKind::Any => ReductionKind::All,
                ReductionKind::All => ReductionKind::Any,
                ReductionKind::Mean => ReductionKind::Sum,
                _ => return None,
            };
            Some("reduction")
        }
        Op::ArgReduce { op, .. } => {
            *op = match op {
                ArgOp::Max => ArgOp::Min,
                ArgOp::Min => ArgOp::Max,
            };
            Some("reduction")
        }
        Op::TopK { largest, .. } => {
            *largest = !*largest;
            Some("order")
        }
        Op::Sort { descending, .. } => {
            *descending = !*descending;
            Some("order")
        }
        Op::Slice { start, .. } => {
            *start = start.clone() + Dim::from(r.pick(&[-1, 1]));
            Some("slice")
        }
        Op::Iota { start, step } => {
            let edited = if r.one_in(2) { start } else { step };
            *edited += 1;
            Some("iota")
        }
        Op::Collective(c) => {
            match &mut c.kind {
                CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => {
                    *op = match *op {
                        CollectiveReduceOp::Sum => CollectiveReduceOp::Max,
                        CollectiveReduceOp::Max => CollectiveReduceOp::Min,
                        CollectiveReduceOp::Avg => CollectiveReduceOp::Sum,
                        _ => return None,
                    };
                }
                CollectiveKind::Permute { pairs } => {
                    pairs.iter_mut().for_each(|(from, to)| std::mem::swap(from, to));
                }
                CollectiveKind::Broadcast { root } => *root ^= 1,
                _ => return None,
            }
            Some("collective")
        }
        _ => None,
    }
}

fn edit_scalar(scalar: Scalar, r: &mut SplitMix) -> Scalar {
    match scalar {
        Scalar::Int(x) => Scalar::Int(x.saturating_add(r.pick(&[-1, 1]))),
        other => Scalar::Float(FloatAttribute(other.as_f64() * 1.01 + 1e-3)),
    }
}

fn edit_binary(op: BinaryOp) -> Option<BinaryOp> {
    use BinaryOp::*;
    Some(match op {
        Add => Sub,
        Sub => Add,
        Mul => Add,
        Ge => Gt,
        Gt => Ge,
        Le => Lt,
        Lt => Le,
        Max => Min,
        Min => Max,
        Eq => Ne,
        Ne => Eq,
        And => Or,
        Or => And,
        Shl => Shr,
        Shr => Shl,
        FloorDiv => Rem,
        Rem => FloorDiv,
        _ => return None,
    })
}

/// Moves an op to another axis of the same extent.
fn edit_axis(graph: &mut Graph, id: NodeId, r: &mut SplitMix) -> Option<&'static str> {
    let shape = graph.ty(*graph.nodes[id].inputs.first()?).shape.clone();
    let edited = match &mut graph.nodes[id].op {
        Op::Softmax { axis, .. }
        | Op::CumSum { axis }
        | Op::ArgReduce { axis, .. }
        | Op::Sort { axis, .. }
        | Op::TopK { axis, .. }
        | Op::Take { axis }
        | Op::GatherElements { axis }
        | Op::Concat { axis }
        | Op::Slice { axis, .. }
        | Op::Shard { axis, .. } => axis,
        Op::Reduce { axes, .. } if axes.len() == 1 => &mut axes[0],
        Op::Permute { perm } if perm.len() > 1 => {
            let position = 1 + r.below(perm.len() - 1);
            perm.swap(0, position);
            return Some("axis");
        }
        _ => return None,
    };
    let candidates: Vec<usize> =
        (0..shape.len()).filter(|axis| axis != edited && shape[*axis] == shape[*edited]).collect();
    if candidates.is_empty() {
        return None;
    }
    *edited = r.pick(&candidates);
    Some("axis")
}

/// Replaces an operand by another value of its type.
fn replace_operand(graph: &mut Graph, id: NodeId, r: &mut SplitMix) -> Option<&'static str> {
    let node = &graph.nodes[id];
    let operand = r.below(node.inputs.len());
    let old = *node.inputs.get(operand)?;
    let is_defined = |v: ValueId| graph.defining_node(v).is_none_or(|n| n < id);
    let candidates: Vec<ValueId> =
        graph.values.keys().filter(|&v| v != old && is_defined(v) && graph.ty(v) == graph.ty(old)).collect();
    if candidates.is_empty() {
        return None;
    }
    let moves_by_data = match &node.op {
        Op::GroupedMatMul | Op::Route(_) => true,
        op => op.as_collective().is_some_and(|c| c.kind.moves_by_data()),
    };
    graph.nodes[id].inputs[operand] = r.pick(&candidates);
    Some(if moves_by_data { "operand of experts" } else { "operand" })
}

/// Lets all readers of the result of a node read this value.
fn bypass(graph: &mut Graph, id: NodeId, value: ValueId) -> bool {
    let result = graph.nodes[id].outputs[0];
    if graph.ty(result) != graph.ty(value) || graph.outputs.iter().any(|output| output.value == result) {
        return false;
    }
    for node in graph.nodes.values_mut() {
        node.inputs.iter_mut().filter(|v| **v == result).for_each(|v| *v = value);
    }
    true
}
