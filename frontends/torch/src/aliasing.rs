//! Whether the result of an op has separate memory in PyTorch.
//!
//! Most results do. Some ops always return a view of their operand. `reshape` and similar ops return a view
//! if the strides of the operand allow it; the program declares the strides. If the difference matters, the
//! result is copied, so that its memory is separate.

use std::collections::HashSet;

use symmc_import::{Emit, RuleCall, has_word};
use symmc_ir::{Dim, NodeId, Op, ValueDef, ValueId};

use crate::call::OpCall;
use crate::effects;
use crate::lower::{EmitResult, RuleResult};
use crate::schema::{Argument, SymInt};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResultAliasing {
    /// The result is in the memory of the operand.
    Shared,
    /// The result has separate memory.
    Separate,
    /// The program does not determine it.
    Unknown,
}

/// The namespaces of PyTorch's own ops. Ops of other namespaces return new tensors, whatever their names.
const OWN_NAMESPACES: [&str; 5] =
    ["aten", "prims", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd"];

/// The ops of these namespaces whose result is their operand or a view of it.
const ALIASING_OPS: &str = "_reshape_alias adjoint alias as_strided broadcast_to chunk detach diagonal dropout expand expand_as \
     feature_dropout lift lift_fresh mT moveaxis movedim narrow numpy_T permute positive select slice \
     split split_with_sizes squeeze swapaxes swapdims t tensor_split to transpose type_as unbind unflatten \
     unfold unsafe_chunk unsafe_split unsqueeze view view_as wait_tensor _unsafe_view device_put \
     broadcast_tensors meshgrid real unsafe_split_with_sizes view_of wait_tensors _wrap_tensor_autograd \
     imag view_as_complex view_as_real";

/// The ops whose result is a view if the strides of the operand allow it.
const RESHAPING_OPS: [&str; 4] = ["flatten", "ravel", "reshape", "reshape_as"];

fn result_aliasing(c: &OpCall<'_, '_>) -> ResultAliasing {
    let target = effects::bare_target(&c.node.target);
    let (namespace, op) = target.split_once('.').unwrap_or(("", target));
    if !OWN_NAMESPACES.contains(&namespace) {
        return ResultAliasing::Separate;
    }
    let op = op.split_once('.').map_or(op, |(op, _)| op);
    if RESHAPING_OPS.contains(&op) {
        return reshape_aliasing(c).unwrap_or(ResultAliasing::Unknown);
    }
    match op {
        "contiguous" => contiguous_aliasing(c).unwrap_or(ResultAliasing::Unknown),
        "to" if matches!(c.get("copy"), Some(Argument::Bool(true))) => ResultAliasing::Separate,
        _ if has_word(ALIASING_OPS, op) => ResultAliasing::Shared,
        _ => ResultAliasing::Separate,
    }
}

/// In a program with ops that write: copies the results of a call that have separate memory in PyTorch.
pub(crate) fn separate_results(c: &mut OpCall<'_, '_>) -> RuleResult {
    if c.lowering.in_place {
        for i in 0..c.result_slot_count() {
            if let Some(value) = c.result(i) {
                let value = ensure_separate(c, value)?;
                c.set_result(i, value);
            }
        }
    }
    Ok(())
}

/// In a program with ops that write: copies the results of a call of a custom op that are in the memory of a
/// value that existed before, of a constant, or of another result. PyTorch's custom ops return new tensors.
pub(crate) fn separate_custom_results(c: &mut OpCall<'_, '_>) -> RuleResult {
    if !c.lowering.in_place {
        return Ok(());
    }
    let mut bases = HashSet::new();
    for i in 0..c.result_slot_count() {
        let Some(value) = c.result(i) else { continue };
        let (base, _) = find_base(c, value);
        let is_input = matches!(c.lowering.builder.graph().values[base].def, ValueDef::Input(_));
        if c.existed_before(base) || is_input || !bases.insert(base) {
            let copy = c.emit("copy", Op::Copy, &[value])?;
            c.set_result(i, copy);
        }
    }
    Ok(())
}

/// In a program with ops that write: copies the result of an op if PyTorch gives it separate memory and the
/// rule left it in the memory of an operand.
pub(crate) fn ensure_separate(c: &mut OpCall<'_, '_>, value: ValueId) -> EmitResult {
    let (base, _) = find_base(c, value);
    if !c.existed_before(base) {
        return Ok(value);
    }
    let aliasing = result_aliasing(c);
    if aliasing == ResultAliasing::Shared {
        return Ok(value);
    }
    let copy = c.emit("copy", Op::Copy, &[value])?;
    if aliasing == ResultAliasing::Unknown {
        c.lowering.possible_aliases.push((copy, base));
    }
    Ok(copy)
}

/// Records that in PyTorch the result of a view op shares memory with `operand`, although the graph does not
/// show it.
pub(crate) fn note_alias(c: &mut OpCall<'_, '_>, value: ValueId, operand: ValueId) {
    if c.lowering.in_place && effects::returns_views(&c.node.target) {
        c.lowering.possible_aliases.push((value, operand));
    }
}

/// The base of a value, and the view nodes that lead from it to the value.
pub(crate) fn find_base(c: &OpCall<'_, '_>, value: ValueId) -> (ValueId, Vec<NodeId>) {
    let graph = c.lowering.builder.graph();
    let mut base = value;
    let mut chain = Vec::new();
    while let ValueDef::Node(node, _) = graph.values[base].def {
        if !graph.nodes[node].op.is_view() && !c.lowering.rank_slice_nodes.contains(&node) {
            break;
        }
        chain.push(node);
        base = graph.nodes[node].inputs[0];
    }
    chain.reverse();
    (base, chain)
}

fn operand_layout<'p>(c: &OpCall<'_, 'p>) -> Option<(Vec<Dim>, Vec<Dim>)> {
    let Some(Argument::Tensor(name)) = c.argument_at(0) else { return None };
    let meta = c.lowering.scope.graph.tensor_values.get(&**name)?;
    let sizes = resolve_extents(c, &meta.sizes)?;
    let strides = resolve_extents(c, &meta.strides)?;
    (sizes.len() == strides.len()).then_some((sizes, strides))
}

fn resolve_extents<'p>(c: &OpCall<'_, 'p>, extents: &'p [SymInt<'p>]) -> Option<Vec<Dim>> {
    extents.iter().map(|extent| c.lowering.symbols.resolve_extent(extent).ok()).collect()
}

/// The declared offset of the first operand in its storage, in elements.
pub(crate) fn storage_begin(c: &OpCall<'_, '_>) -> Option<Dim> {
    let Some(Argument::Tensor(name)) = c.argument_at(0) else { return None };
    let meta = c.lowering.scope.graph.tensor_values.get(&**name)?;
    meta.storage_offset
        .as_ref()
        .map_or(Some(Dim::from(0)), |offset| c.lowering.symbols.resolve_extent(offset).ok())
}

/// The axes of the first operand from the outermost in memory to the innermost. `None` if its elements are
/// not contiguous.
pub(crate) fn memory_order(c: &OpCall<'_, '_>) -> Option<Vec<usize>> {
    let (sizes, strides) = operand_layout(c)?;
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    if is_row_major(&sizes, &strides) != Some(true) {
        let constant_strides = strides.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()?;
        order.sort_by_key(|&a| std::cmp::Reverse(constant_strides.get(a).copied()));
    }
    let sorted_sizes: Vec<Dim> = order.iter().filter_map(|&a| sizes.get(a).cloned()).collect();
    let sorted_strides: Vec<Dim> = order.iter().filter_map(|&a| strides.get(a).cloned()).collect();
    (is_row_major(&sorted_sizes, &sorted_strides) == Some(true)).then_some(order)
}

/// Whether these are the strides of row-major order. `None` if that is not known.
pub(crate) fn is_row_major(sizes: &[Dim], strides: &[Dim]) -> Option<bool> {
    let mut expected = Dim::from(1);
    for (size, stride) in sizes.iter().zip(strides).rev() {
        if size.as_const() == Some(1) {
            continue;
        }
        if *stride != expected {
            let are_constant = stride.as_const().is_some() && expected.as_const().is_some();
            return are_constant.then_some(false);
        }
        expected = expected * size.clone();
    }
    Some(true)
}

fn contiguous_aliasing(c: &OpCall<'_, '_>) -> Option<ResultAliasing> {
    let (sizes, strides) = operand_layout(c)?;
    if c.get("memory_format").is_some_and(|f| !matches!(f, Argument::Other(_))) {
        return None;
    }
    is_row_major(&sizes, &strides)
        .map(|same| if same { ResultAliasing::Shared } else { ResultAliasing::Separate })
}

fn reshape_aliasing(c: &OpCall<'_, '_>) -> Option<ResultAliasing> {
    let (sizes, strides) = operand_layout(c)?;
    if is_row_major(&sizes, &strides) == Some(true) {
        return Some(ResultAliasing::Shared);
    }
    let value = c.result(0)?;
    let sizes = constant_extents(&sizes)?;
    let strides = constant_extents(&strides)?;
    let new = constant_extents(&c.shape(value))?;
    Some(if is_viewable_as(&sizes, &strides, &new) {
        ResultAliasing::Shared
    } else {
        ResultAliasing::Separate
    })
}

fn constant_extents(extents: &[Dim]) -> Option<Vec<i64>> {
    extents.iter().map(Dim::as_const).collect()
}

/// Whether a tensor of these strides can be viewed as another shape. Each run of contiguous axes must
/// correspond to a run of the new axes.
fn is_viewable_as(sizes: &[i64], strides: &[i64], new: &[i64]) -> bool {
    if sizes.contains(&0) {
        return true;
    }
    let mut remaining = new.iter().rev().peekable();
    let mut run = 1i64;
    let axes: Vec<(i64, i64)> =
        sizes.iter().copied().zip(strides.iter().copied()).filter(|a| a.0 != 1).collect();
    for (i, (size, stride)) in axes.iter().enumerate().rev() {
        run = run.saturating_mul(*size);
        let is_contiguous_with_outer =
            i.checked_sub(1).is_some_and(|o| axes[o].1 == stride.saturating_mul(*size));
        if is_contiguous_with_outer {
            continue;
        }
        let mut covered = 1i64;
        while covered < run {
            let Some(extent) = remaining.next() else { return false };
            covered = covered.saturating_mul(*extent);
        }
        if covered != run {
            return false;
        }
        run = 1;
    }
    remaining.all(|extent| *extent == 1)
}

#[cfg(test)]
mod tests {
    use super::is_viewable_as;

    #[test]
    fn reshapes_are_views_where_runs_of_axes_stay() {
        for (sizes, strides, new, view) in [
            (vec![4, 6], vec![6, 1], vec![24], true),
            (vec![6, 4], vec![1, 6], vec![24], false),
            (vec![6, 4], vec![1, 6], vec![2, 3, 4], true),
            (vec![6, 4], vec![1, 6], vec![6, 1, 2, 2], true),
            (vec![2, 3, 4], vec![24, 8, 1], vec![6, 4], true),
            (vec![2, 3, 4], vec![24, 8, 1], vec![24], false),
            (vec![1, 5], vec![77, 1], vec![5], true),
            (vec![0, 5], vec![1, 9], vec![0], true),
            (vec![], vec![], vec![1, 1], true),
        ] {
            assert_eq!(is_viewable_as(&sizes, &strides, &new), view, "{sizes:?} {strides:?} {new:?}");
        }
    }
}
