//! Converts ops that write their operands to functional ones.
//!
//! PyTorch's export may leave ops such as `add_`, `copy_` and `mm.out` in a program. The schema of an op says
//! what it writes ([`crate::effects`]). The rule of its functional counterpart gives the new contents.
//! Without a rule an opaque op gives them: its results are those of the op, followed by the new contents.
//! From then on, every name of a written tensor is bound to the new contents, and every other view of the
//! memory is taken again from them. A written view is written back into its base, which becomes a new base.
//! Writing an input makes an output that mutates the input.
//!
//! Unsupported, and rejected by name: views that do not show which elements of the base they are
//! (expansions), and shared memory that the program does not show and that is read later.

use std::collections::HashSet;

use symmc_import::{Emit, RuleCall, invalid, unsupported};
use symmc_ir::entity::Entity;
use symmc_ir::{InputKind, NodeId, Op, TensorType, ValueDef, ValueId};

use crate::aliasing::find_base;
use crate::call::OpCall;
use crate::definition::OpDefinition;
use crate::effects::{self, OpWrites};
use crate::expand;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::operand_dtypes;
use crate::ops;
use crate::scope::{NameBinding, tensor_names};

/// Advice for an op that writes and cannot be lowered.
pub(crate) const ADVICE: &str = "`run_decompositions()` removes writes to operands";

fn fail_unsupported_write<T>(why: &str) -> RuleResult<T> {
    invalid!("{why}; {ADVICE}")
}

pub(crate) fn lower_in_place(c: &mut OpCall<'_, '_>, writes: &OpWrites) -> RuleResult {
    let rule = match &writes.functional {
        Some(target) => ops::find_rule(target),
        None => ops::find_writing(&c.node.target),
    };
    lower_in_place_by_rule(c, writes, |c| match rule {
        Some(rule) => {
            operand_dtypes::check_operand_dtypes(c, writes.functional.as_deref().unwrap_or_default())?;
            rule.apply(c)
        }
        None => unsupported!("this operator is not supported"),
    })
}

/// Lowers a call of an op that writes by its definitions.
pub(crate) fn lower_in_place_by_definition(
    c: &mut OpCall<'_, '_>,
    writes: &OpWrites,
    definitions: &[OpDefinition],
) -> RuleResult {
    let own_results = count_own_results(c, writes);
    lower_in_place_by_rule(c, writes, |c| expand::lower_by_definition(c, definitions, own_results))
}

/// Lowers a call of an op that writes. `rule` gives the new contents.
pub(crate) fn lower_in_place_by_rule<'c, 'p>(
    c: &mut OpCall<'c, 'p>,
    writes: &OpWrites,
    rule: impl FnOnce(&mut OpCall<'c, 'p>) -> RuleResult,
) -> RuleResult {
    let written = tensor_slots(c, &writes.arguments);
    c.wants_all = true;
    let new = match rule(c) {
        Ok(()) => {
            c.check_all_read()?;
            c.take_results()
        }
        Err(RuleFailure::Opaque(why)) => emit_opaque_write(c, writes, &written, &why)?,
        Err(other) => return Err(other),
    };
    let own_count = count_own_results(c, writes);
    for (i, name) in written.iter().enumerate() {
        let Some(name) = name else { continue };
        match new.get(own_count + i).copied().flatten() {
            Some(new) => assign_contents(c, name, new)?,
            None => invalidate_contents(c, name)?,
        }
    }
    if own_count > 0 {
        for (i, value) in new.into_iter().take(own_count).enumerate() {
            if let Some(value) = value {
                c.set_result(i, value);
            }
        }
        return Ok(());
    }
    let returned = tensor_slots(c, writes.returned.as_ref().unwrap_or(&writes.arguments));
    for (i, name) in returned.into_iter().take(c.result_names().len()).enumerate() {
        let Some(name) = name else { continue };
        let value = c.lowering.scope.value(name).map_err(RuleFailure::Invalid)?;
        c.set_result(i, value);
    }
    Ok(())
}

/// The number of results that the program names and that are not written arguments.
fn count_own_results(c: &OpCall<'_, '_>, writes: &OpWrites) -> usize {
    if writes.own_results > 0 { c.result_names().len() } else { 0 }
}

/// The names of the tensors in these arguments. An argument that the call leaves out has a slot without a name.
fn tensor_slots<'p>(c: &OpCall<'_, 'p>, arguments: &[String]) -> Vec<Option<&'p str>> {
    let mut slots = Vec::with_capacity(arguments.len());
    for argument in arguments {
        match c.get(argument) {
            Some(argument) => slots.extend(tensor_names(argument).into_iter().map(Some)),
            None => slots.push(None),
        }
    }
    slots
}

/// Emits an opaque op for one that writes. Its results are those of the op and the new contents, which have the
/// slots of `written`.
fn emit_opaque_write(
    c: &mut OpCall<'_, '_>,
    writes: &OpWrites,
    written: &[Option<&str>],
    why: &str,
) -> RuleResult<Vec<Option<ValueId>>> {
    if effects::draws_random_numbers(c.node) {
        return Err(RuleFailure::Invalid(effects::DRAWS_ERROR.into()));
    }
    let own_count = count_own_results(c, writes);
    let mut types = Vec::new();
    for i in 0..own_count {
        types.push(c.declared_result_type(i)?);
    }
    for name in written.iter().flatten() {
        let old = c.lowering.scope.value(name).map_err(RuleFailure::Invalid)?;
        types.push(c.ty(old).clone());
    }
    let mut values = c.lowering.emit_opaque(c.node, why, types)?.into_iter();
    let mut slots: Vec<Option<ValueId>> = values.by_ref().take(own_count).map(Some).collect();
    slots.extend(written.iter().map(|name| name.and_then(|_| values.next())));
    Ok(slots)
}

/// Makes `new` the contents of a name and of everything that shares memory with it.
fn assign_contents(c: &mut OpCall<'_, '_>, name: &str, new: ValueId) -> RuleResult {
    let old = c.lowering.scope.value(name).map_err(RuleFailure::Invalid)?;
    if new == old {
        return Ok(());
    }
    let new = c.cast(new, c.dtype(old))?;
    let (base, _) = find_base(c, new);
    let new = if c.existed_before(base) { c.emit("copy", Op::Copy, &[new])? } else { new };
    if c.ty(new).shape != c.ty(old).shape {
        let expected = c.lowering.display_type(c.ty(old));
        let actual = c.lowering.display_type(c.ty(new));
        return fail_unsupported_write(&format!(
            "expected {expected} to be written to `{name}`, found {actual}"
        ));
    }
    write_shared_memory(c, name, old, new)
}

/// Marks the contents of a name, and of everything that shares memory with it, as undefined.
fn invalidate_contents(c: &mut OpCall<'_, '_>, name: &str) -> RuleResult {
    let old = c.lowering.scope.value(name).map_err(RuleFailure::Invalid)?;
    let (base, _) = find_base(c, old);
    if c.existed_before(base) && base.index() < c.lowering.scope.first_value {
        return fail_unsupported_write(&format!("it writes `{name}`, which belongs to the enclosing graph"));
    }
    let why = format!("memory whose contents are undefined after node `{}`", c.node.name());
    let names: Vec<_> = c.lowering.scope.tensors();
    for (other, value) in names {
        if find_base(c, value).0 == base {
            c.lowering.scope.rebind(other, NameBinding::Unavailable(why.clone()));
        }
    }
    Ok(())
}

/// Updates the values of everything that shares memory with `old`, after `new` was written to it.
fn write_shared_memory(c: &mut OpCall<'_, '_>, name: &str, old: ValueId, new: ValueId) -> RuleResult {
    let (base, chain) = find_base(c, old);
    if base.index() < c.lowering.scope.first_value {
        return fail_unsupported_write(&format!("it writes `{name}`, which belongs to the enclosing graph"));
    }
    if let Some(other) = find_alias_reader(c, base) {
        return fail_unsupported_write(&format!("it writes `{name}`, which may share memory with {other}"));
    }
    let new_base = write_into_base(c, name, &chain, new)?;
    let mut views: Vec<ValueId> = Vec::new();
    for (other, value) in c.lowering.scope.tensors() {
        let alive = value == old || c.lowering.scope.is_read_later(other);
        if value != base && alive && !views.contains(&value) && find_base(c, value).0 == base {
            views.push(value);
        }
    }
    for view in views {
        let (_, chain) = find_base(c, view);
        let new_view = replay_view(c, &chain, new_base)?;
        c.lowering.scope.replace(view, new_view);
    }
    c.lowering.scope.replace(base, new_base);
    record_input_write(c, name, base, new_base)
}

/// The bases of memory that may be shared with a base, including the base itself.
fn possibly_aliased_bases(c: &OpCall<'_, '_>, base: ValueId) -> HashSet<ValueId> {
    let mut bases = HashSet::from([base]);
    let pairs: Vec<(ValueId, ValueId)> =
        c.lowering.possible_aliases.iter().map(|&(a, b)| (find_base(c, a).0, find_base(c, b).0)).collect();
    loop {
        let before = bases.len();
        for (a, b) in &pairs {
            if bases.contains(a) || bases.contains(b) {
                bases.extend([*a, *b]);
            }
        }
        if bases.len() == before {
            return bases;
        }
    }
}

/// A reader, after this node, of memory that may be that of `base` although the program does not show it.
fn find_alias_reader(c: &OpCall<'_, '_>, base: ValueId) -> Option<String> {
    if c.lowering.possible_aliases.is_empty() {
        return None;
    }
    let mut bases = possibly_aliased_bases(c, base);
    bases.remove(&base);
    find_reader(c, &bases)
}

/// A reader of memory after this node: a later node or output, or the caller of the program if it is an
/// input.
fn find_reader(c: &OpCall<'_, '_>, bases: &HashSet<ValueId>) -> Option<String> {
    for (name, value) in c.lowering.scope.tensors() {
        if bases.contains(&find_base(c, value).0) && c.lowering.scope.is_read_later(name) {
            return Some(format!("`{name}`, which is read later"));
        }
    }
    let graph = c.lowering.builder.graph();
    let input = bases.iter().find(|b| {
        matches!(graph.values[**b].def, ValueDef::Input(_))
            || c.lowering.written_inputs.values().any(|w| w == *b)
            || b.index() < c.lowering.scope.first_value
    });
    input.map(|i| format!("the input `{}`", graph.values[*i].name))
}

/// The first reader that would see a write of this node to an operand.
pub(crate) fn find_observer(c: &OpCall<'_, '_>, operand: ValueId) -> Option<String> {
    find_reader(c, &possibly_aliased_bases(c, find_base(c, operand).0))
}

/// The base after `new` was written into the view that `chain` describes.
fn write_into_base(c: &mut OpCall<'_, '_>, name: &str, chain: &[NodeId], new: ValueId) -> EmitResult {
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
                let index = c.emit_positions(start, *step, len)?;
                c.emit("index_put", Op::IndexPut { axis: *axis, accumulate: false }, &[x, new, index])?
            }
            Op::Reshape => c.reshape(new, c.shape(x))?,
            Op::Take { axis } => {
                let operands = [&[x, new], node.inputs.get(1..).unwrap_or_default()].concat();
                c.emit("index_put", Op::IndexPut { axis: *axis, accumulate: false }, &operands)?
            }
            _ => {
                return fail_unsupported_write(&format!(
                    "it writes `{name}`, a view whose elements of the base are not known"
                ));
            }
        };
    }
    Ok(new)
}

/// The view that `chain` describes, taken from another base.
fn replay_view(c: &mut OpCall<'_, '_>, chain: &[NodeId], base: ValueId) -> EmitResult {
    let mut value = base;
    for &id in chain {
        let graph = c.lowering.builder.graph();
        let node = graph.nodes[id].clone();
        let ty: TensorType = graph.ty(node.outputs[0]).clone();
        value = match node.op {
            Op::Permute { perm } => c.permute(value, perm)?,
            Op::Take { axis } => match node.inputs.get(1) {
                Some(&index) => {
                    let piece = c.lowering.rank_shards.iter().find(|piece| piece.node == id);
                    let positions = piece.map(|piece| piece.positions.clone());
                    c.take_rank_slice(value, axis, index, positions)?
                }
                None => {
                    return fail_unsupported_write("expected an index for the slice of a rank, found none");
                }
            },
            op => c.emit_as("view", op, &[value], ty)?,
        };
    }
    Ok(value)
}

/// Records a write to an input, if `base` is an input or its current value.
fn record_input_write(c: &mut OpCall<'_, '_>, name: &str, base: ValueId, new_base: ValueId) -> RuleResult {
    let lowering = &mut *c.lowering;
    let input = match lowering.builder.graph().values[base].def {
        ValueDef::Input(id) => Some(id),
        ValueDef::Node(..) => lowering.written_inputs.iter().find(|(_, v)| **v == base).map(|(id, _)| *id),
    };
    let Some(id) = input else { return Ok(()) };
    lowering.written_inputs.insert(id, new_base);
    let input = &mut lowering.builder.graph_mut().inputs[id];
    if input.kind == InputKind::Constant {
        input.kind = InputKind::Parameter;
        if let Some(data) = input.data.take() {
            lowering.weights.insert(input.source.clone(), data);
            lowering.buffers.push(input.source.clone());
        }
        lowering.notes.push(format!("`{name}` becomes a parameter because the program writes it"));
    }
    Ok(())
}
