//! Checks of types that several typing rules share.

use crate::dim::Dim;
use crate::types::TensorType;

pub(crate) fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

pub fn broadcast_shapes(shapes: &[&[Dim]]) -> Result<Vec<Dim>, String> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = vec![Dim::from(1); rank];
    for shape in shapes {
        for (d, o) in shape.iter().rev().zip(out.iter_mut().rev()) {
            if o.as_const() == Some(1) {
                *o = d.clone();
            } else if d.as_const() != Some(1) && d != o {
                return Err(format!("the extents {o:?} and {d:?} do not broadcast"));
            }
        }
    }
    Ok(out)
}

pub(crate) fn check_float(x: &TensorType) -> Result<(), String> {
    ensure(x.dtype.is_float(), || format!("it needs a floating-point operand, found {}", x.dtype))
}

pub(crate) fn check_operand_type(
    what: &str,
    found: &TensorType,
    expected: &TensorType,
) -> Result<(), String> {
    ensure(found == expected, || {
        let TensorType { dtype, shape } = expected;
        format!("the {what} must be {dtype}{shape:?}, found {}{:?}", found.dtype, found.shape)
    })
}

pub(crate) fn check_same_dtype(operands: &[&TensorType]) -> Result<(), String> {
    for y in operands.iter().skip(1) {
        ensure(y.dtype == operands[0].dtype, || {
            format!("the dtypes differ: {} and {}", operands[0].dtype, y.dtype)
        })?;
    }
    Ok(())
}

pub(crate) fn check_same_rank(x: &TensorType, y: &TensorType) -> Result<(), String> {
    ensure(x.rank() == y.rank(), || format!("expected {} axes, found {}", x.rank(), y.rank()))
}
