//! Views that keep all elements: reshapes, permutations, expansions. In a functional program a view and its
//! copy are the same value.

use symmc_import::emit::extent_product;
use symmc_import::{Emit, RuleCall, invalid, invalid_if};
use symmc_ir::Dim;

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.view.default aten._unsafe_view aten.view_copy.default", "reshape", |c| reshape(c, "size")),
    row("aten._reshape_alias", "reshape", |c| {
        c.ignore(&["stride"]);
        reshape(c, "size")
    }),
    row("aten.reshape", "reshape", |c| reshape(c, "shape")),
    row("aten.view_as aten.reshape_as", "reshape", reshape_as),
    row("aten.flatten aten.ravel", "reshape", flatten),
    row("aten.unflatten", "reshape", unflatten),
    row("aten.squeeze aten.squeeze_copy", "reshape", squeeze),
    row("aten.unsqueeze aten.unsqueeze_copy", "reshape", unsqueeze),
    row("aten.permute aten.permute_copy", "permute", permute),
    row("aten.transpose aten.transpose_copy aten.swapdims", "permute", |c| transpose(c, "dim0", "dim1")),
    row("aten.swapaxes", "permute", |c| transpose(c, "axis0", "axis1")),
    row("aten.t aten.t_copy aten.numpy_T", "permute", reversed),
    row("aten.mT aten.adjoint", "permute", transposed),
    row("aten.movedim aten.moveaxis", "permute", move_axes),
    row("aten.expand aten.expand_copy aten.broadcast_to", "expand", expand),
    row("aten.expand_as", "expand", expand_as),
    row_of_results("aten.broadcast_tensors", "expand", |c| {
        let tensors = c.tensors("tensors")?;
        let shapes: Vec<Vec<Dim>> = tensors.iter().map(|&p| c.shape(p)).collect();
        let shapes: Vec<&[Dim]> = shapes.iter().map(Vec::as_slice).collect();
        let shape = symmc_ir::infer::broadcast_shapes(&shapes).map_err(RuleFailure::Invalid)?;
        for (i, p) in tensors.into_iter().enumerate() {
            let y = c.expand(p, shape.clone())?;
            c.set_result(i, y);
        }
        Ok(())
    }),
    row_of_results("aten.meshgrid", "reshape, expand", mesh_grid),
];

fn reshape(c: &mut OpCall<'_, '_>, name: &str) -> EmitResult {
    let x = c.first_tensor()?;
    let numel = c.ty(x).numel();
    let shape = c.resolve_open_extent(c.dims(name)?, &numel)?;
    c.reshape(x, shape)
}

fn reshape_as(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, template] = c.tensors_named(["self", "other"])?;
    c.reshape(x, c.shape(template))
}

fn flatten(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let shape = c.shape(x);
    let first = c.axis_or("start_dim", 0, shape.len())?;
    let last_axis = c.axis_or("end_dim", -1, shape.len())?;
    if shape.is_empty() {
        return c.reshape(x, vec![1.into()]);
    }
    invalid_if!(first > last_axis, "expected start_dim before end_dim, found {first} and {last_axis}");
    let mut flat = shape[..first].to_vec();
    flat.push(extent_product(&shape[first..=last_axis]));
    flat.extend_from_slice(&shape[last_axis + 1..]);
    c.reshape(x, flat)
}

fn unflatten(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let mut shape = c.shape(x);
    let axis = c.axis("dim", shape.len())?;
    let sizes = c.resolve_open_extent(c.dims("sizes")?, &c.extent(x, axis))?;
    shape.splice(axis..shape.len().min(axis + 1), sizes);
    c.reshape(x, shape)
}

/// Removes axes of extent 1: all of them, or the given ones.
fn squeeze(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let shape = c.shape(x);
    let axes = match c.opt_ints("dim")? {
        Some(list) => {
            list.into_iter().map(|a| c.resolve_axis(a, shape.len())).collect::<RuleResult<Vec<_>>>()?
        }
        None => (0..shape.len()).collect(),
    };
    let kept_axes =
        shape.into_iter().enumerate().filter(|(a, extent)| !axes.contains(a) || extent.as_const() != Some(1));
    c.reshape(x, kept_axes.map(|(_, extent)| extent).collect())
}

fn unsqueeze(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let axis = c.axis("dim", c.rank(x) + 1)?;
    c.unsqueeze(x, axis)
}

fn permute(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let dims = c.opt_ints("dims")?.unwrap_or_default();
    let perm = dims.into_iter().map(|a| c.resolve_axis(a, c.rank(x))).collect::<RuleResult<Vec<_>>>()?;
    c.permute(x, perm)
}

fn transpose(c: &mut OpCall<'_, '_>, first: &str, second: &str) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let a = c.axis(first, rank)?;
    let b = c.axis(second, rank)?;
    let mut perm: Vec<usize> = (0..rank).collect();
    if rank > 0 {
        perm.swap(a, b);
    }
    c.permute(x, perm)
}

fn reversed(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let perm = (0..c.rank(x)).rev().collect();
    c.permute(x, perm)
}

fn transposed(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    c.transposed(x)
}

fn move_axes(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let rank = c.rank(x);
    let from = resolve_axes(c, "source", rank)?;
    let destinations = resolve_axes(c, "destination", rank)?;
    let mut slots = vec![None; rank];
    for (&s, &d) in from.iter().zip(&destinations) {
        if let Some(slot) = slots.get_mut(d) {
            *slot = Some(s);
        }
    }
    let mut other_axes = (0..rank).filter(|a| !from.contains(a));
    let perm: Option<Vec<usize>> = slots.into_iter().map(|s| s.or_else(|| other_axes.next())).collect();
    let perm = perm.ok_or_else(|| {
        RuleFailure::Invalid(format!("expected distinct axes, found {from:?} to {destinations:?}"))
    })?;
    c.permute(x, perm)
}

fn resolve_axes(c: &OpCall<'_, '_>, name: &str, rank: usize) -> RuleResult<Vec<usize>> {
    c.opt_ints(name)?.unwrap_or_default().into_iter().map(|a| c.resolve_axis(a, rank)).collect()
}

/// An extent of -1 keeps the extent of `x`.
fn expand(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.ignore(&["implicit"]);
    let x = c.first_tensor()?;
    let mut shape = c.dims("size")?;
    let extents = c.shape(x);
    let Some(new) = shape.len().checked_sub(extents.len()) else {
        return invalid!("expected at least {} axes, found {}", extents.len(), shape.len());
    };
    for (d, o) in shape[new..].iter_mut().zip(extents) {
        if d.as_const() == Some(-1) {
            *d = o;
        }
    }
    c.expand(x, shape)
}

fn expand_as(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [x, template] = c.tensors_named(["self", "other"])?;
    c.expand(x, c.shape(template))
}

/// Vectors as the coordinates of a grid. Vector `i` varies along axis `i`; with `xy` indexing the first two
/// axes are swapped.
fn mesh_grid(c: &mut OpCall<'_, '_>) -> RuleResult {
    let tensors = c.tensors("tensors")?;
    let swapped = c.opt_string("indexing")? == Some("xy") && tensors.len() >= 2;
    let mut axes: Vec<usize> = (0..tensors.len()).collect();
    if swapped {
        axes.swap(0, 1);
    }
    let mut shape = vec![Dim::from(1); tensors.len()];
    for (&axis, &p) in axes.iter().zip(&tensors) {
        shape[axis] = c.ty(p).numel();
    }
    for (i, p) in tensors.into_iter().enumerate() {
        let mut line = vec![Dim::from(1); shape.len()];
        line[axes[i]] = c.ty(p).numel();
        let y = c.reshape(p, line)?;
        let y = c.expand(y, shape.clone())?;
        c.set_result(i, y);
    }
    Ok(())
}
