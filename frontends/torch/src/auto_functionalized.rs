//! Calls of ops that write, in the form that `run_decompositions()` gives them.
//!
//! `auto_functionalized` and its second version take the op, its other arguments, and the memory that it
//! writes (the *bases*). Each written argument is a view of a base. The results are those of the op, followed
//! by the new bases.

use symmc_import::{Emit, RuleCall, invalid, unsupported};
use symmc_ir::ValueId;

use crate::aliasing::ensure_separate;
use crate::call::OpCall;
use crate::effects::{self, OpWrites};
use crate::expand;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::operand_dtypes;
use crate::ops::{self, slicing};

/// The part of its base that a written argument views.
enum BaseView {
    Full,
    Slice { axis: i64, start: symmc_ir::Dim, end: symmc_ir::Dim },
}

/// A written argument: its name, the number of its base, and its view of the base.
struct WrittenArgument<'p> {
    name: &'p str,
    base: usize,
    view: BaseView,
}

/// Lowers a call. A call of an op without a rule becomes opaque.
pub(crate) fn lower_functionalized(c: &mut OpCall<'_, '_>, op: &str) -> RuleResult {
    if let Some(definitions) = c.lowering.definitions.find(op).cloned()
        && let Some(definition) = definitions.first()
    {
        let mut writes = definition.declared.writes.clone();
        if writes.own_results > 0 {
            // The schema counts a list as one result.
            writes.own_results = c.result_names().len().saturating_sub(c.tensors("_all_bases")?.len());
        }
        return lower_written_bases(c, &writes, |c| {
            expand::lower_by_definition(c, &definitions, writes.own_results)
        });
    }
    let Some(writes) = effects::find_op_writes(op) else {
        return unsupported!("this operator is not supported");
    };
    let rule = match &writes.functional {
        Some(target) => ops::find_rule(target),
        None => ops::find_writing(op),
    };
    let Some(rule) = rule else { return unsupported!("this operator is not supported") };
    lower_written_bases(c, writes, |c| {
        operand_dtypes::check_operand_dtypes(c, writes.functional.as_deref().unwrap_or_default())?;
        rule.apply(c)
    })
}

/// Lowers a call by a rule for the op that it calls, which also sets the new contents of what the op writes.
fn lower_written_bases<'c, 'p>(
    c: &mut OpCall<'c, 'p>,
    writes: &OpWrites,
    rule: impl FnOnce(&mut OpCall<'c, 'p>) -> RuleResult,
) -> RuleResult {
    let bases = c.tensors("_all_bases")?;
    let written = written_arguments(c)?;
    let mut arguments = Vec::with_capacity(written.len());
    for w in &written {
        let Some(&base) = bases.get(w.base) else {
            return invalid!("expected a base for `{}`, found {} bases", w.name, bases.len());
        };
        arguments.push((w.name, read_view(c, base, w)?));
    }
    c.override_arguments(1, arguments);
    c.wants_all = true;
    rule(c)?;
    c.check_all_read()?;
    let new = c.take_results();
    set_results(c, writes, &new, bases, &written)
}

/// Sets the results of the call from the new contents of the written arguments.
fn set_results(
    c: &mut OpCall<'_, '_>,
    writes: &OpWrites,
    new: &[Option<ValueId>],
    mut bases: Vec<ValueId>,
    written: &[WrittenArgument<'_>],
) -> RuleResult {
    let own_count = c.result_names().len().saturating_sub(bases.len());
    let returned = writes.returned.as_ref().unwrap_or(&writes.arguments);
    for i in 0..own_count {
        let value = match returned.get(i) {
            Some(name) if writes.own_results == 0 => new_contents(writes, new, name),
            _ => new.get(i).copied().flatten(),
        };
        if let Some(value) = value {
            c.set_result(i, value);
        }
    }
    let mut is_known = vec![true; bases.len()];
    for w in written {
        match (new_contents(writes, new, w.name), bases.get_mut(w.base), is_known.get_mut(w.base)) {
            (Some(value), Some(base), _) => *base = write_view(c, *base, w, value)?,
            (None, _, Some(is_known)) => *is_known = false,
            _ => {}
        }
    }
    for (i, base) in bases.into_iter().enumerate() {
        if is_known.get(i) == Some(&true) {
            let value = ensure_separate(c, base)?;
            c.set_result(own_count + i, value);
        }
    }
    Ok(())
}

/// The new contents of a written argument.
fn new_contents(writes: &OpWrites, new: &[Option<ValueId>], argument: &str) -> Option<ValueId> {
    let position = writes.arguments.iter().position(|a| a == argument)?;
    new.get(writes.own_results + position).copied().flatten()
}

/// The written arguments that have bases.
fn written_arguments<'p>(c: &OpCall<'_, 'p>) -> RuleResult<Vec<WrittenArgument<'p>>> {
    let mut written = Vec::new();
    for input in &c.node.inputs {
        let name: &'p str = &input.name;
        if let Some(list) = name.strip_prefix('_').and_then(|n| n.strip_suffix("_length")) {
            return unsupported!("writes to the list `{list}` are not supported");
        }
        let Some(argument) = name.strip_prefix('_').and_then(|n| n.strip_suffix("_base_index")) else {
            continue;
        };
        let Some(base) = c.opt_int(name)? else { continue };
        let base = usize::try_from(base)
            .map_err(|_| RuleFailure::Invalid(format!("expected a base, found {base}")))?;
        let field = |suffix: &str| format!("_{argument}_{suffix}");
        let view = if c.get(&field("storage_offset")).is_some() {
            return unsupported!("`{argument}` is a strided view, which is not supported");
        } else if c.get(&field("slice_dim")).is_some() {
            let axis = c.int(&field("slice_dim"))?;
            BaseView::Slice { axis, start: c.dim(&field("slice_start"))?, end: c.dim(&field("slice_end"))? }
        } else {
            BaseView::Full
        };
        written.push(WrittenArgument { name: argument, base, view });
    }
    Ok(written)
}

fn read_view(c: &mut OpCall<'_, '_>, base: ValueId, w: &WrittenArgument<'_>) -> EmitResult {
    match &w.view {
        BaseView::Full => Ok(base),
        BaseView::Slice { axis, start, end } => {
            let axis = c.resolve_axis(*axis, c.rank(base))?;
            let (start, len) = c.slice_range(&c.extent(base, axis), start.clone(), Some(end.clone()), 1);
            c.slice(base, axis, start, len, 1)
        }
    }
}

fn write_view(c: &mut OpCall<'_, '_>, base: ValueId, w: &WrittenArgument<'_>, value: ValueId) -> EmitResult {
    let value = c.cast(value, c.dtype(base))?;
    match &w.view {
        BaseView::Full => Ok(value),
        BaseView::Slice { axis, start, end } => {
            let axis = c.resolve_axis(*axis, c.rank(base))?;
            let (start, _) = c.slice_range(&c.extent(base, axis), start.clone(), Some(end.clone()), 1);
            slicing::replace_slice(c, base, value, axis, start)
        }
    }
}
