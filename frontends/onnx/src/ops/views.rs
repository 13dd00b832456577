//! Views that keep all elements, and ops that return extents.

use symmc_import::emit::extent_product;
use symmc_import::{Emit, invalid};
use symmc_ir::{Dim, infer};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::known_values::SymbolicInts;
use crate::lower::{EmitResult, RuleFailure, RuleResult};

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("Reshape", 25, "reshape", reshape),
    row("Flatten", 25, "reshape", |c| {
        let x = c.tensor(0)?;
        let shape = c.shape(x);
        // The axis may be equal to the number of axes.
        let axis = c.axis_or("axis", 1, shape.len() + 1);
        let axis = match c.int_or("axis", 1)? {
            a if a < 0 => c.resolve_axis(a, shape.len())?,
            _ => axis?,
        };
        c.reshape(x, vec![extent_product(&shape[..axis]), extent_product(&shape[axis..])])
    }),
    row("Squeeze", 25, "reshape", |c| {
        let x = c.tensor(0)?;
        let shape = c.shape(x);
        let axes = c.axes(1, shape.len())?;
        if let Some(a) = axes.iter().flatten().find(|&&a| c.dim_bounds(&shape[a]).0 > 1) {
            return invalid!("expected an extent of 1 at axis {a}, found {}", c.display_dim(&shape[*a]));
        }
        let is_open = |d: &Dim| d.as_const().is_none() && c.dim_bounds(d).0 <= 1 && c.dim_bounds(d).1 >= 1;
        if let (None, Some(extent)) = (&axes, shape.iter().find(|d| is_open(d))) {
            let extent = c.display_dim(extent);
            return invalid!("expected an extent that is 1 for all sizes or for none, found {extent}");
        }
        let kept_axes = shape.into_iter().enumerate().filter(|(a, extent)| match &axes {
            Some(axes) => !axes.contains(a),
            None => extent.as_const() != Some(1),
        });
        c.reshape(x, kept_axes.map(|(_, extent)| extent).collect())
    }),
    row("Unsqueeze", 25, "reshape", |c| {
        let x = c.tensor(0)?;
        let mut shape = c.shape(x);
        let axis_count = match c.opt_ints(1, "axes")? {
            Some(axes) => axes.dims.len(),
            None => c.opt_attribute_ints("axes")?.map_or(0, <[i64]>::len),
        };
        for axis in c.axes(1, shape.len() + axis_count)?.unwrap_or_default() {
            shape.insert(axis.min(shape.len()), Dim::from(1));
        }
        c.reshape(x, shape)
    }),
    row("Transpose", 25, "permute", |c| {
        let x = c.tensor(0)?;
        let rank = c.rank(x);
        let perm = match c.opt_attribute_ints("perm")? {
            Some(perm) => perm.iter().map(|&a| c.resolve_axis(a, rank)).collect::<RuleResult<Vec<_>>>()?,
            None => (0..rank).rev().collect(),
        };
        c.permute(x, perm)
    }),
    row("Expand", 13, "expand", |c| {
        let x = c.tensor(0)?;
        let shape = c.ints(1, "the shape")?.dims;
        let extents = c.shape(x);
        let shape = infer::broadcast_shapes(&[&extents, &shape]).map_err(RuleFailure::Invalid)?;
        c.expand(x, shape)
    }),
    row_of_results("Shape", 25, "(extents)", |c| {
        let shape = c.operand_type(0)?.shape;
        let n = shape.len() as i64;
        let start = c.int_or("start", 0)?;
        let start = if start < 0 { start.saturating_add(n) } else { start }.clamp(0, n) as usize;
        let end = c.int_or("end", n)?;
        let end = if end < 0 { end.saturating_add(n) } else { end }.clamp(0, n) as usize;
        let dims = shape.get(start..end).unwrap_or_default().to_vec();
        set_extents(c, SymbolicInts::vector(dims))
    }),
    row_of_results("Size", 25, "(an extent)", |c| {
        let numel = c.operand_type(0)?.numel();
        set_extents(c, SymbolicInts::scalar(numel))
    }),
];

/// Sets these extents as the only result.
fn set_extents(c: &mut OpCall<'_, '_>, ints: SymbolicInts) -> RuleResult {
    match ints.into_known() {
        Some(value) => c.set_known(0, value),
        None => return invalid!("the extents exceed the limits of the IR"),
    }
    Ok(())
}

fn reshape(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.tensor(0)?;
    let extents = c.shape(x);
    let mut shape = match (c.operand_name(1), c.opt_attribute_ints("shape")?) {
        (None, Some(shape)) => shape.iter().map(|&d| Dim::from(d)).collect(),
        _ => match c.ints(1, "the shape") {
            Ok(ints) => ints.dims,
            Err(stop) => match c.declared_result_type(0)? {
                Some(ty) => ty.shape,
                None => return Err(stop),
            },
        },
    };
    if !c.flag("allowzero")? {
        for (axis, d) in shape.iter_mut().enumerate().filter(|(_, d)| d.as_const() == Some(0)) {
            *d = extents.get(axis).cloned().ok_or_else(|| {
                RuleFailure::Invalid(format!(
                    "expected an extent to copy for axis {axis}, found {} axes",
                    extents.len()
                ))
            })?;
        }
    }
    let numel = c.ty(x).numel();
    let shape = c.resolve_open_extent(shape, &numel)?;
    c.reshape(x, shape)
}
