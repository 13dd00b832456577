//! Calls of ops that write, in the form that `run_decompositions()` gives them: `auto_functionalized` and its second
//! version take the op, its other arguments, and the memory that it writes (the *bases*), of which each written
//! argument is a view; their results are those of the op and then the new bases.

use symmc_import::Emit;
use symmc_ir::ValueId;

use crate::call::Call;
use crate::effects::{self, Writes};
use crate::lower::{Emitted, Lowered, Stop};
use crate::operands;
use crate::ops::{self, pieces};
use crate::sharing::separate;

/// How a written argument lies in its base.
enum View {
    Whole,
    Slice { axis: i64, start: symmc_ir::Dim, end: symmc_ir::Dim },
}

/// A written argument: its name, its base's number, and how it lies there.
struct Written<'p> {
    name: &'p str,
    base: usize,
    view: View,
}

/// Lowers a call; one of an op without a rule is opaque.
pub(crate) fn lower(c: &mut Call<'_, '_>, op: &str) -> Lowered {
    let Some(writes) = effects::of_table(op) else { return Err(Stop::Opaque("no rule for it".into())) };
    let rule = match &writes.functional {
        Some(target) => ops::find(target),
        None => ops::find_writing(op),
    };
    let Some(rule) = rule else { return Err(Stop::Opaque("no rule for it".into())) };
    let bases = c.tensors("_all_bases")?;
    let written = written(c)?;
    let mut given = Vec::with_capacity(written.len());
    for w in &written {
        let Some(&base) = bases.get(w.base) else {
            return Err(Stop::Broken(format!(
                "expected a base for `{}`, found {} bases",
                w.name,
                bases.len()
            )));
        };
        given.push((w.name, part(c, base, w)?));
    }
    c.give(1, given);
    c.wants_all = true;
    operands::check(c, writes.functional.as_deref().unwrap_or_default())?;
    rule.apply(c)?;
    c.all_read()?;
    let new = c.take_results();
    results(c, writes, &new, bases, &written)
}

/// The results of the call from the new contents of what the op writes.
fn results(
    c: &mut Call<'_, '_>,
    writes: &Writes,
    new: &[Option<ValueId>],
    mut bases: Vec<ValueId>,
    written: &[Written<'_>],
) -> Lowered {
    let contents = |name: &str| {
        let at = writes.arguments.iter().position(|a| a == name)?;
        new.get(writes.own + at).copied().flatten()
    };
    let own = c.result_names().len().saturating_sub(bases.len());
    let returned = writes.returned.as_ref().unwrap_or(&writes.arguments);
    for i in 0..own {
        let value = match returned.get(i) {
            Some(name) if writes.own == 0 => contents(name),
            _ => new.get(i).copied().flatten(),
        };
        if let Some(value) = value {
            c.set(i, value);
        }
    }
    let mut known = vec![true; bases.len()];
    for w in written {
        match (contents(w.name), bases.get_mut(w.base), known.get_mut(w.base)) {
            (Some(value), Some(base), _) => *base = put(c, *base, w, value)?,
            (None, _, Some(known)) => *known = false,
            _ => {}
        }
    }
    for (i, base) in bases.into_iter().enumerate() {
        if known.get(i) == Some(&true) {
            let value = separate(c, base)?;
            c.set(own + i, value);
        }
    }
    Ok(())
}

/// The written arguments that have bases.
fn written<'p>(c: &Call<'_, 'p>) -> Lowered<Vec<Written<'p>>> {
    let mut all = Vec::new();
    for input in &c.node.inputs {
        let name: &'p str = &input.name;
        if let Some(list) = name.strip_prefix('_').and_then(|n| n.strip_suffix("_length")) {
            return Err(Stop::Opaque(format!("it writes the list `{list}`")));
        }
        let Some(argument) = name.strip_prefix('_').and_then(|n| n.strip_suffix("_base_index")) else {
            continue;
        };
        let Some(base) = c.opt_int(name)? else { continue };
        let base =
            usize::try_from(base).map_err(|_| Stop::Broken(format!("expected a base, found {base}")))?;
        let of = |what: &str| format!("_{argument}_{what}");
        let view = if c.get(&of("storage_offset")).is_some() {
            return Err(Stop::Opaque(format!("`{argument}` is a view that strides describe")));
        } else if c.get(&of("slice_dim")).is_some() {
            let axis = c.int(&of("slice_dim"))?;
            View::Slice { axis, start: c.dim(&of("slice_start"))?, end: c.dim(&of("slice_end"))? }
        } else {
            View::Whole
        };
        all.push(Written { name: argument, base, view });
    }
    Ok(all)
}

fn part(c: &mut Call<'_, '_>, base: ValueId, w: &Written<'_>) -> Emitted {
    match &w.view {
        View::Whole => Ok(base),
        View::Slice { axis, start, end } => {
            let axis = c.axis_of(*axis, c.rank(base))?;
            let (start, len) = c.slice_range(&c.extent(base, axis), start.clone(), Some(end.clone()), 1);
            c.slice(base, axis, start, len, 1)
        }
    }
}

fn put(c: &mut Call<'_, '_>, base: ValueId, w: &Written<'_>, value: ValueId) -> Emitted {
    let value = c.cast(value, c.dtype(base))?;
    match &w.view {
        View::Whole => Ok(value),
        View::Slice { axis, start, end } => {
            let axis = c.axis_of(*axis, c.rank(base))?;
            let (start, _) = c.slice_range(&c.extent(base, axis), start.clone(), Some(end.clone()), 1);
            pieces::replace(c, base, value, axis, start)
        }
    }
}
