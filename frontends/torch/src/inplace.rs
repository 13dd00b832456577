//! In-place ops, as their functional counterparts.
//!
//! PyTorch's export may leave ops such as `add_` and `copy_` in a program. The functional rule of the op
//! gives the new value; every name of the written tensor stands for it from then on. A tensor that is a
//! view is written back into its base, which becomes a new base. Writing an input makes an output that
//! mutates it.
//!
//! Not covered, and refused by name: a base whose other views are read later, and views that do not show
//! which elements of the base they are (expansions, reshapes that regroup elements).

use symmc_ir::entity::Entity;
use symmc_ir::{Def, Dim, Emit, InputKind, NodeId, Op, Type, ValueId};

use crate::call::Call;
use crate::lower::{Lowered, Stop};
use crate::ops::Rule;
use crate::schema::{Argument, Graph};
use crate::scope::tensor_names;

/// Whether a target names an op that writes an operand (`aten.add_.Tensor`, `aten.add.out`).
pub(crate) fn is_in_place(target: &str) -> bool {
    let mut parts = target.rsplit('.');
    let overload = parts.next().unwrap_or(target);
    let op = parts.next().unwrap_or(target);
    (op.ends_with('_') && !op.ends_with("__")) || overload == "out" || overload.ends_with("_out")
}

/// Whether a graph, or one that it wraps, has in-place ops.
pub(crate) fn occurs_in(graph: &Graph<'_>) -> bool {
    graph.nodes.iter().any(|n| {
        let inner = n.inputs.iter().any(|i| matches!(&i.arg, Argument::Graph(g) if occurs_in(g)));
        inner || is_in_place(&n.target)
    })
}

/// The ops of `aten` and its like whose result is their operand, or a view of it.
const ALIASING: [&str; 46] = [
    "_reshape_alias",
    "adjoint",
    "alias",
    "broadcast_to",
    "chunk",
    "contiguous",
    "detach",
    "dropout",
    "expand",
    "expand_as",
    "feature_dropout",
    "flatten",
    "lift",
    "lift_fresh",
    "mT",
    "moveaxis",
    "movedim",
    "narrow",
    "numpy_T",
    "permute",
    "positive",
    "ravel",
    "reshape",
    "reshape_as",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "swapdims",
    "t",
    "tensor_split",
    "to",
    "transpose",
    "type_as",
    "unbind",
    "unflatten",
    "unsafe_chunk",
    "unsafe_split",
    "unsqueeze",
    "view",
    "view_as",
    "wait_tensor",
    "_unsafe_view",
    "device_put",
];

/// In a program with in-place ops: the result of an op that PyTorch gives memory of its own, as a copy if
/// its rule left it in the memory of an operand.
pub(crate) fn separate(c: &mut Call<'_, '_>, value: ValueId) -> Lowered<ValueId> {
    let (base, chain) = base_of(c, value);
    if !c.is_older(base) {
        return Ok(value);
    }
    let op = c.node.target.split('.').rev().nth(1).unwrap_or("");
    let aliases = ALIASING.contains(&op) && (op != "contiguous" || chain.is_empty());
    if aliases { Ok(value) } else { c.emit("copy", Op::Copy, &[value]) }
}

/// Lowers a call of an in-place op by the rule of its functional counterpart.
pub(crate) fn lower(c: &mut Call<'_, '_>, rule: Rule) -> Lowered {
    let written = c.at(0).map(tensor_names).unwrap_or_default();
    let old = written.iter().map(|n| c.lowering.scope.value(n)).collect::<Result<Vec<_>, _>>();
    let old = old.map_err(Stop::Broken)?;
    rule(c)?;
    for (i, (name, old)) in written.into_iter().zip(old).enumerate() {
        let Some(new) = c.result(i) else {
            return Err(Stop::Broken(format!("expected a result for `{name}`, found none")));
        };
        if new == old {
            continue;
        }
        let new = c.cast(new, c.dtype(old))?;
        let new = separate(c, new)?;
        if c.ty(new).shape != c.ty(old).shape {
            let (expected, found) = (c.shape(old), c.shape(new));
            return Err(Stop::Broken(format!("expected {expected:?} to be written, found {found:?}")));
        }
        let new = write(c, name, old, new)?;
        c.set(i, new);
    }
    Ok(())
}

/// Makes `new` the value of everything that shares memory with `old`; returns what `old`'s names stand for.
fn write(c: &mut Call<'_, '_>, name: &str, old: ValueId, new: ValueId) -> Lowered<ValueId> {
    let (base, chain) = base_of(c, old);
    if base.index() < c.lowering.scope.first_value {
        return Err(Stop::Broken(format!("it writes `{name}`, which belongs to the graph around this one")));
    }
    for (other, value) in c.lowering.scope.tensors() {
        let same = value == old || value == base;
        if !same && c.lowering.scope.is_read_later(other) && base_of(c, value).0 == base {
            return Err(Stop::Broken(format!(
                "it writes `{name}`, which shares memory with `{other}`, and that is read later"
            )));
        }
    }
    let new_base = write_back(c, name, &chain, new)?;
    c.lowering.scope.replace(base, new_base);
    let view = replay(c, &chain, new_base, new)?;
    c.lowering.scope.replace(old, view);
    record_input(c, name, base, new_base)?;
    Ok(view)
}

/// The base of a value, and the view nodes that lead from it to the value.
fn base_of(c: &Call<'_, '_>, value: ValueId) -> (ValueId, Vec<NodeId>) {
    let graph = c.lowering.builder.graph();
    let (mut at, mut chain) = (value, Vec::new());
    while let Def::Node(node, _) = graph.values[at].def {
        if !graph.nodes[node].op.is_view() {
            break;
        }
        chain.push(node);
        at = graph.nodes[node].inputs[0];
    }
    chain.reverse();
    (at, chain)
}

/// The base after `new` was written into the view that `chain` describes.
fn write_back(c: &mut Call<'_, '_>, name: &str, chain: &[NodeId], new: ValueId) -> Lowered<ValueId> {
    let mut new = new;
    for &id in chain.iter().rev() {
        let node = c.lowering.builder.graph().nodes[id].clone();
        let x = node.inputs[0];
        new = match &node.op {
            Op::Permute { perm } => {
                let mut back = vec![0; perm.len()];
                for (to, &from) in perm.iter().enumerate() {
                    back[from] = to;
                }
                c.permute(new, back)?
            }
            Op::Slice { axis, start, step } => {
                let len = c.shape(new)[*axis].clone();
                let index = c.positions(start, *step, len)?;
                c.emit("index_put", Op::IndexPut { axis: *axis, accumulate: false }, &[x, new, index])?
            }
            Op::Reshape if same_but_ones(&c.shape(x), &c.shape(new)) => c.reshape(new, c.shape(x))?,
            _ => {
                return Err(Stop::Broken(format!(
                    "it writes `{name}`, a view that does not show which elements of its base it is"
                )));
            }
        };
    }
    Ok(new)
}

fn same_but_ones(a: &[Dim], b: &[Dim]) -> bool {
    let long = |d: &&Dim| d.as_const() != Some(1);
    a.iter().filter(long).eq(b.iter().filter(long))
}

/// The view that `chain` describes, of another base; `new` itself if there is no chain.
fn replay(c: &mut Call<'_, '_>, chain: &[NodeId], base: ValueId, new: ValueId) -> Lowered<ValueId> {
    if chain.is_empty() {
        return Ok(new);
    }
    let mut at = base;
    for &id in chain {
        let graph = c.lowering.builder.graph();
        let node = graph.nodes[id].clone();
        let ty: Type = graph.ty(node.outputs[0]).clone();
        at = match node.op {
            Op::Permute { perm } => c.permute(at, perm)?,
            op => c.emit_as("view", op, &[at], ty)?,
        };
    }
    Ok(at)
}

/// Notes that an input is written, if `base` is one or what one became.
fn record_input(c: &mut Call<'_, '_>, name: &str, base: ValueId, new_base: ValueId) -> Lowered {
    let lowering = &mut *c.lowering;
    let input = match lowering.builder.graph().values[base].def {
        Def::Input(id) => Some(id),
        Def::Node(..) => lowering.written.iter().find(|(_, v)| **v == base).map(|(id, _)| *id),
    };
    let Some(id) = input else { return Ok(()) };
    lowering.written.insert(id, new_base);
    let input = &mut lowering.builder.graph_mut().inputs[id];
    if input.kind == InputKind::Constant {
        input.kind = InputKind::Parameter;
        if let Some(data) = input.data.take() {
            lowering.weights.insert(input.source.clone(), data);
            lowering.buffers.push(input.source.clone());
        }
        lowering.notes.push(format!("`{name}` is written and therefore a parameter"));
    }
    Ok(())
}
