//! Convolutions, as one product: the pieces of the operand under each element of the kernel, side by side, by the kernel
//! as a matrix. A kernel of so many elements that the pieces would be many is left opaque.

use symmc_ir::{BinaryOp, Dim, Emit, Op, Scalar, Type, ValueId};

use super::{Row, row};
use crate::call::Call;
use crate::lower::{Lowered, Stop};

pub(super) const ROWS: &[Row] = &[
    row("aten.conv1d.default", "pad, slice, concat, matmul, add", |c| convolution(c, 1)),
    row("aten.conv2d.default", "pad, slice, concat, matmul, add", |c| convolution(c, 2)),
    row("aten.conv3d.default", "pad, slice, concat, matmul, add", |c| convolution(c, 3)),
];

/// The elements of a kernel at most, each of which is a slice.
const MOST: i64 = 64;

/// An integer for each of `n` axes: one stands for all.
fn each(c: &Call<'_, '_>, name: &str, n: usize, default: i64, least: i64) -> Lowered<Vec<i64>> {
    let given = c.opt_ints(name)?.filter(|v| !v.is_empty()).unwrap_or_else(|| vec![default]);
    let all = if given.len() == 1 { vec![given[0]; n] } else { given };
    if all.len() != n || all.iter().any(|&v| v < least || v > i64::from(i32::MAX)) {
        let message = format!("expected {n} integers of at least {least} as `{name}`, found {all:?}");
        return Err(Stop::Broken(message));
    }
    Ok(all)
}

fn convolution(c: &mut Call<'_, '_>, n: usize) -> Lowered {
    let (x, w) = (c.tensor("input")?, c.tensor("weight")?);
    let bias = c.opt_tensor("bias")?;
    let (stride, padding) = (each(c, "stride", n, 1, 1)?, each(c, "padding", n, 0, 0)?);
    let (dilation, groups) = (each(c, "dilation", n, 1, 1)?, c.int_or("groups", 1)?);
    if c.rank(w) != n + 2 || !(c.rank(x) == n + 2 || c.rank(x) == n + 1) {
        let (found, kernel) = (c.rank(x), c.rank(w));
        return Err(Stop::Broken(format!("expected {} axes, found {found} and a kernel of {kernel}", n + 2)));
    }
    let single = c.rank(x) == n + 1;
    let x = if single { c.unsqueeze(x, 0)? } else { x };
    let of_kernel = c.shape(w).iter().map(Dim::as_const).collect::<Option<Vec<i64>>>();
    let Some(of_kernel) = of_kernel else {
        return Err(Stop::Opaque("its kernel has a symbolic extent".into()));
    };
    let [outputs, inputs, kernel @ ..] = of_kernel.as_slice() else {
        return Err(Stop::Broken(format!("expected a kernel of {} axes", n + 2)));
    };
    let (outputs, inputs) = (*outputs, *inputs);
    let channels = inputs.checked_mul(groups).map(Dim::from);
    if groups < 1 || outputs % groups != 0 || channels != Some(c.extent(x, 1)) {
        let found = c.extent(x, 1);
        return Err(Stop::Broken(format!(
            "expected {inputs} channels in each of {groups} groups, found {found:?}"
        )));
    }
    let elements = kernel.iter().try_fold(1i64, |a, &k| a.checked_mul(k)).unwrap_or(i64::MAX);
    if !(1..=MOST).contains(&elements) {
        return Err(Stop::Opaque(format!("its kernel has {elements} elements, more than {MOST}")));
    }
    let x = padded(c, x, &padding)?;
    let columns = columns(c, x, kernel, &stride, &dilation)?;
    let area = c.shape(columns).split_off(3);
    let places = area.iter().cloned().fold(Dim::from(1), |a, b| a * b);
    // `[batch, groups, elements * inputs, places]` by `[groups, outputs / groups, elements * inputs]`.
    let batch = c.extent(columns, 0);
    let terms = Dim::from(elements * inputs);
    let columns = by_group(c, columns, groups, inputs, elements, places)?;
    let order = std::iter::once(0).chain(2..n + 2).chain([1]).collect();
    let w = c.permute(w, order)?;
    let w = c.reshape(w, vec![groups.into(), (outputs / groups).into(), terms])?;
    let y = c.product(w, columns)?;
    let mut shape = vec![batch, outputs.into()];
    shape.extend(area);
    let y = c.reshape(y, shape)?;
    let y = match bias {
        Some(b) => {
            let mut column = vec![Dim::from(1); n + 1];
            column[0] = outputs.into();
            let b = c.reshape(b, column)?;
            c.binary(BinaryOp::Add, y, b)?
        }
        None => y,
    };
    let y = if single { c.drop_axis(y, 0)? } else { y };
    c.done(y)
}

fn padded(c: &mut Call<'_, '_>, x: ValueId, padding: &[i64]) -> Lowered<ValueId> {
    if padding.iter().all(|&p| p == 0) {
        return Ok(x);
    }
    let dtype = c.dtype(x);
    let mut shape = c.shape(x);
    let mut low = vec![Dim::from(0); shape.len()];
    for (i, &p) in padding.iter().enumerate() {
        if let (Some(extent), Some(low)) = (shape.get_mut(i + 2), low.get_mut(i + 2)) {
            *extent = extent.clone() + Dim::from(2 * p);
            *low = p.into();
        }
    }
    let value = Scalar::Int(0).converted(dtype);
    c.emit_as("pad", Op::Pad { low, value }, &[x], Type::new(dtype, shape))
}

/// For each element of the kernel what lies under it, wherever the kernel stands: `[batch, elements, channels, ...]`.
fn columns(
    c: &mut Call<'_, '_>,
    x: ValueId,
    kernel: &[i64],
    stride: &[i64],
    dilation: &[i64],
) -> Lowered<ValueId> {
    let mut extents = Vec::new();
    for (i, ((&k, &s), &d)) in kernel.iter().zip(stride).zip(dilation).enumerate() {
        let left = c.extent(x, i + 2) - Dim::from((k - 1).saturating_mul(d) + 1);
        if c.bounds(&left).0 < 0 {
            let (n, reach) = (c.extent(x, i + 2), (k - 1).saturating_mul(d) + 1);
            return Err(Stop::Opaque(format!(
                "{n:?} elements of an axis may be fewer than the {reach} of the kernel"
            )));
        }
        extents.push((left.floor_div(&s.into())) + Dim::from(1));
    }
    let count: i64 = kernel.iter().product();
    let mut pieces = Vec::new();
    for element in 0..count {
        let (mut piece, mut rest) = (x, element);
        for (i, &k) in kernel.iter().enumerate().rev() {
            let (s, d) = (stride.get(i).copied().unwrap_or(1), dilation.get(i).copied().unwrap_or(1));
            let len = extents.get(i).cloned().unwrap_or(1.into());
            piece = c.slice(piece, i + 2, ((rest % k) * d).into(), len, s)?;
            rest /= k;
        }
        pieces.push(c.unsqueeze(piece, 1)?);
    }
    c.concat(&pieces, 1)
}

/// `[batch, elements, groups * inputs, ...]` as `[batch, groups, elements * inputs, places]`.
fn by_group(
    c: &mut Call<'_, '_>,
    x: ValueId,
    groups: i64,
    inputs: i64,
    elements: i64,
    places: Dim,
) -> Lowered<ValueId> {
    let batch = c.extent(x, 0);
    let shape = vec![batch.clone(), elements.into(), groups.into(), inputs.into(), places.clone()];
    let x = c.reshape(x, shape)?;
    let x = c.permute(x, vec![0, 2, 1, 3, 4])?;
    c.reshape(x, vec![batch, groups.into(), (elements * inputs).into(), places])
}
