//! Discrete Fourier transforms, as products with matrices of roots of unity.
//!
//! A transform of `n` numbers takes `n²` products, so long transforms are not supported. The roots are
//! computed in f64 and taken from a table by `jk mod n`. They are as exact as the dtype of the product
//! allows.

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported, unsupported_if};
use symmc_ir::{BinaryOp, DType, Dim, Scalar, UnaryOp, ValueId};

use super::super::{RuleRow, row_of_results};
use super::components::{declared_component_type, is_first_complex, set_complex_result, split_components};
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleResult};

pub(in crate::ops) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("aten._fft_c2c", "cos, sin, matmul", |c| {
        let axes = signal_axes(c)?;
        let scale = scale_argument(c)?;
        let forward = c.bool_or("forward", true)?;
        let mut signal = FourierSignal::from_first_tensor(c)?;
        for axis in axes {
            signal.transform_axis(c, axis, forward, scale)?;
        }
        signal.set_as_result(c)
    }),
    row_of_results("aten._fft_r2c", "cos, sin, matmul", |c| {
        let axes = signal_axes(c)?;
        let scale = scale_argument(c)?;
        let onesided = c.bool_or("onesided", false)?;
        let signal = FourierSignal::from_first_tensor(c)?;
        transform_real(c, signal, &axes, scale, onesided)
    }),
    row_of_results("aten._fft_c2r", "cos, sin, matmul", |c| {
        let axes = signal_axes(c)?;
        let scale = scale_argument(c)?;
        let n = c.dim("last_dim_size")?;
        let signal = FourierSignal::from_first_tensor(c)?;
        transform_to_real(c, signal, &axes, scale, &n)
    }),
    row_of_results(
        "aten.fft_fft.default aten.fft_fft2.default aten.fft_fftn.default",
        "cos, sin, matmul",
        |c| complex_fft(c, true),
    ),
    row_of_results(
        "aten.fft_ifft.default aten.fft_ifft2.default aten.fft_ifftn.default",
        "cos, sin, matmul",
        |c| complex_fft(c, false),
    ),
    row_of_results(
        "aten.fft_rfft.default aten.fft_rfft2.default aten.fft_rfftn.default",
        "cos, sin, matmul",
        real_fft,
    ),
    row_of_results(
        "aten.fft_irfft.default aten.fft_irfft2.default aten.fft_irfftn.default",
        "cos, sin, matmul",
        inverse_real_fft,
    ),
];

const MAX_TRANSFORM_LENGTH: i64 = 4096;

/// The divisor along each axis.
#[derive(Clone, Copy, PartialEq)]
enum FourierScale {
    One,
    Root,
    Extent,
}

/// The numbers to transform: the real parts, and the imaginary parts unless they are all 0.
struct FourierSignal {
    real: ValueId,
    imaginary: Option<ValueId>,
}

impl FourierSignal {
    fn from_first_tensor(c: &mut OpCall<'_, '_>) -> RuleResult<FourierSignal> {
        let dtype = declared_component_type(c)?.dtype;
        let x = c.first_tensor()?;
        let x = c.cast(x, dtype)?;
        if !is_first_complex(c) {
            return Ok(FourierSignal { real: x, imaginary: None });
        }
        let (real, imaginary) = split_components(c, x)?;
        Ok(FourierSignal { real, imaginary: Some(imaginary) })
    }

    fn map_components(&mut self, mut change: impl FnMut(ValueId) -> EmitResult) -> RuleResult {
        self.real = change(self.real)?;
        self.imaginary = self.imaginary.map(change).transpose()?;
        Ok(())
    }

    /// Truncates an axis, or pads it with zeros.
    fn resize(&mut self, c: &mut OpCall<'_, '_>, axis: usize, n: &Dim) -> RuleResult {
        let extent = c.extent(self.real, axis);
        if extent == *n {
            return Ok(());
        }
        let missing = n.clone() - extent;
        match c.dim_bounds(&missing) {
            (_, high) if high <= 0 => self.map_components(|x| c.slice(x, axis, 0.into(), n.clone(), 1)),
            (low, _) if low >= 0 => self.map_components(|x| {
                let mut shape = c.shape(x);
                if let Some(extent) = shape.get_mut(axis) {
                    *extent = missing.clone();
                }
                let zeros = c.full(Scalar::Int(0), c.dtype(x), shape)?;
                c.concat(&[x, zeros], axis)
            }),
            _ => unsupported!("the signal is truncated for some sizes and padded for others"),
        }
    }

    fn transform_axis(
        &mut self,
        c: &mut OpCall<'_, '_>,
        axis: usize,
        forward: bool,
        scale: FourierScale,
    ) -> RuleResult {
        let n = c.extent(self.real, axis);
        let (cos, sin) = root_matrices(c, &n, [&n, &n], scale, c.dtype(self.real))?;
        let cos_real = multiply_along_axis(c, self.real, axis, cos)?;
        let sin_real = multiply_along_axis(c, self.real, axis, sin)?;
        // A forward transform has negative angles: (a + bi)(C - iS) = aC + bS + (bC - aS)i.
        let (add, sub) =
            if forward { (BinaryOp::Add, BinaryOp::Sub) } else { (BinaryOp::Sub, BinaryOp::Add) };
        (self.real, self.imaginary) = match self.imaginary {
            Some(b) => {
                let cos_b = multiply_along_axis(c, b, axis, cos)?;
                let sin_b = multiply_along_axis(c, b, axis, sin)?;
                (c.binary(add, cos_real, sin_b)?, Some(c.binary(sub, cos_b, sin_real)?))
            }
            None if forward => (cos_real, Some(c.unary(UnaryOp::Neg, sin_real)?)),
            None => (cos_real, Some(sin_real)),
        };
        Ok(())
    }

    fn set_as_result(self, c: &mut OpCall<'_, '_>) -> RuleResult {
        let imaginary = match self.imaginary {
            Some(b) => b,
            None => c.full(Scalar::Int(0), c.dtype(self.real), c.shape(self.real))?,
        };
        set_complex_result(c, self.real, imaginary)
    }
}

/// The distinct axes of the first operand that `dim` lists.
fn signal_axes(c: &OpCall<'_, '_>) -> RuleResult<Vec<usize>> {
    let x = c.first_tensor()?;
    let rank = c.rank(x) - usize::from(is_first_complex(c));
    let listed = c.opt_ints("dim")?;
    let axes = match listed {
        Some(list) => list.into_iter().map(|a| c.resolve_axis(a, rank)).collect::<RuleResult<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    invalid_if!(
        sorted.windows(2).any(|w| w[0] == w[1]) || sorted.last().is_some_and(|&a| a >= rank),
        "expected distinct axes of {rank}, found {axes:?}"
    );
    Ok(axes)
}

fn scale_argument(c: &OpCall<'_, '_>) -> RuleResult<FourierScale> {
    match c.int("normalization")? {
        0 => Ok(FourierScale::One),
        1 => Ok(FourierScale::Root),
        2 => Ok(FourierScale::Extent),
        other => invalid!("expected 0, 1 or 2 as `normalization`, found {other}"),
    }
}

fn norm_scale(c: &OpCall<'_, '_>, forward: bool) -> RuleResult<FourierScale> {
    match c.opt_string("norm")? {
        None | Some("backward") => Ok(if forward { FourierScale::One } else { FourierScale::Extent }),
        Some("ortho") => Ok(FourierScale::Root),
        Some("forward") => Ok(if forward { FourierScale::Extent } else { FourierScale::One }),
        Some(other) => {
            invalid!("expected backward, ortho or forward as `norm`, found {other}")
        }
    }
}

/// The axes of an op of `torch.fft`, and the requested lengths along them.
fn axes_and_lengths(c: &OpCall<'_, '_>) -> RuleResult<(Vec<usize>, Option<Vec<Dim>>)> {
    let op = c.node.target.split('.').rev().nth(1).unwrap_or("");
    let x = c.first_tensor()?;
    let rank = c.rank(x) - usize::from(is_first_complex(c));
    let requested = match c.opt_dims("s")? {
        Some(s) => Some(s),
        None => c.opt_dim("n")?.map(|n| vec![n]),
    };
    let last_axes = |count: usize| (rank.saturating_sub(count)..rank).collect::<Vec<_>>();
    let axes = match (c.get("dim").is_some(), &requested) {
        (true, _) => signal_axes(c)?,
        (false, _) if op.ends_with("fft2") => last_axes(2),
        (false, None) if op.ends_with("fftn") => last_axes(rank),
        (false, Some(s)) if op.ends_with("fftn") => last_axes(s.len()),
        (false, _) => last_axes(1),
    };
    invalid_if!(
        axes.is_empty() || requested.as_ref().is_some_and(|s| s.len() != axes.len()),
        "expected a length for each of the axes {axes:?}, found {requested:?}"
    );
    // A length of -1 keeps the extent.
    let requested = requested.map(|lengths| {
        let lengths = lengths.into_iter().zip(&axes);
        lengths.map(|(n, &axis)| if n.as_const() == Some(-1) { c.extent(x, axis) } else { n }).collect()
    });
    Ok((axes, requested))
}

/// A complex-to-complex transform of `torch.fft`.
fn complex_fft(c: &mut OpCall<'_, '_>, forward: bool) -> RuleResult {
    let scale = norm_scale(c, forward)?;
    let (axes, lengths) = axes_and_lengths(c)?;
    let mut signal = FourierSignal::from_first_tensor(c)?;
    for (i, axis) in axes.into_iter().enumerate() {
        if let Some(n) = lengths.as_ref().and_then(|s| s.get(i)) {
            signal.resize(c, axis, n)?;
        }
        signal.transform_axis(c, axis, forward, scale)?;
    }
    signal.set_as_result(c)
}

fn real_fft(c: &mut OpCall<'_, '_>) -> RuleResult {
    let scale = norm_scale(c, true)?;
    let (axes, lengths) = axes_and_lengths(c)?;
    let mut signal = FourierSignal::from_first_tensor(c)?;
    for (axis, n) in axes.iter().zip(lengths.iter().flatten()) {
        signal.resize(c, *axis, n)?;
    }
    transform_real(c, signal, &axes, scale, true)
}

fn inverse_real_fft(c: &mut OpCall<'_, '_>) -> RuleResult {
    let scale = norm_scale(c, false)?;
    let (axes, lengths) = axes_and_lengths(c)?;
    let mut signal = FourierSignal::from_first_tensor(c)?;
    let Some((&last, others)) = axes.split_last() else { return Ok(()) };
    let columns = c.extent(signal.real, last);
    let n = lengths.as_ref().and_then(|s| s.last().cloned());
    let n = n.unwrap_or_else(|| (columns - Dim::from(1)) * Dim::from(2));
    for (axis, n) in others.iter().zip(lengths.iter().flatten()) {
        signal.resize(c, *axis, n)?;
    }
    transform_to_real(c, signal, &axes, scale, &n)
}

/// The number of elements that determine the transform of `n` real numbers.
fn half_spectrum_length(n: &Dim) -> Dim {
    n.floor_div(&2.into()) + Dim::from(1)
}

/// Transforms real numbers, first along the last of the axes. With `onesided`, only the first half along that
/// axis is computed.
fn transform_real(
    c: &mut OpCall<'_, '_>,
    signal: FourierSignal,
    axes: &[usize],
    scale: FourierScale,
    onesided: bool,
) -> RuleResult {
    let x = signal.real;
    let Some((&last, others)) = axes.split_last() else { return invalid!("expected an axis, found none") };
    let n = c.extent(x, last);
    let columns = if onesided { half_spectrum_length(&n) } else { n.clone() };
    let (cos, sin) = root_matrices(c, &n, [&n, &columns], scale, c.dtype(x))?;
    let real = multiply_along_axis(c, x, last, cos)?;
    let imaginary = multiply_along_axis(c, x, last, sin)?;
    let mut signal = FourierSignal { real, imaginary: Some(c.unary(UnaryOp::Neg, imaginary)?) };
    for &axis in others {
        signal.transform_axis(c, axis, true, scale)?;
    }
    signal.set_as_result(c)
}

/// The inverse transform to `n` real numbers along the last of the axes, from the first half of their
/// transform.
fn transform_to_real(
    c: &mut OpCall<'_, '_>,
    mut signal: FourierSignal,
    axes: &[usize],
    scale: FourierScale,
    n: &Dim,
) -> RuleResult {
    let Some((&last, others)) = axes.split_last() else { return invalid!("expected an axis, found none") };
    let rows = half_spectrum_length(n);
    signal.resize(c, last, &rows)?;
    for &axis in others {
        signal.transform_axis(c, axis, false, scale)?;
    }
    let (cos, sin) = root_matrices(c, n, [&rows, n], scale, c.dtype(signal.real))?;
    let weights = half_spectrum_weights(c, n, &rows, c.dtype(signal.real))?;
    let cos = c.binary(BinaryOp::Mul, cos, weights)?;
    let sin = c.binary(BinaryOp::Mul, sin, weights)?;
    let mut y = multiply_along_axis(c, signal.real, last, cos)?;
    if let Some(b) = signal.imaginary {
        let b = multiply_along_axis(c, b, last, sin)?;
        y = c.binary(BinaryOp::Sub, y, b)?;
    }
    c.set_only_result(y)
}

/// The number of times that each row of a first half occurs in the whole transform, as a column. The first
/// row occurs once, and so does the middle row of an even number of rows. The others occur twice.
fn half_spectrum_weights(c: &mut OpCall<'_, '_>, n: &Dim, rows: &Dim, dtype: DType) -> EmitResult {
    let k = c.iota(rows.clone(), 0, 1, DType::I64)?;
    c.formula([k], |[k]| {
        let is_first = k.eq(0);
        let twice = k * 2;
        let is_middle = twice.eq(k.map(|c, _| c.emit_dim(n, DType::I64)));
        (2.0 - (is_first | is_middle).cast(dtype)).reshape(vec![rows.clone(), 1.into()])
    })
}

fn multiply_along_axis(c: &mut OpCall<'_, '_>, x: ValueId, axis: usize, matrix: ValueId) -> EmitResult {
    let rank = c.rank(x);
    let order: Vec<usize> = (0..rank).filter(|&a| a != axis).chain([axis]).collect();
    let back: Vec<usize> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
    c.formula([x, matrix], |[x, matrix]| x.permute(&order).numpy_matmul(matrix).permute(&back))
}

/// The cosines and sines of `2πjk/n`, with rows `j` and columns `k`.
fn root_matrices(
    c: &mut OpCall<'_, '_>,
    n: &Dim,
    [rows, columns]: [&Dim; 2],
    scale: FourierScale,
    dtype: DType,
) -> RuleResult<(ValueId, ValueId)> {
    unsupported_if!(
        c.dim_bounds(n).1 > MAX_TRANSFORM_LENGTH,
        "a transform of {n:?} numbers may exceed the limit of {MAX_TRANSFORM_LENGTH}"
    );
    let extent = c.emit_dim(n, DType::F64)?;
    let table = c.iota(n.clone(), 0, 1, DType::I64)?;
    let angles = c.formula([table, extent], |[table, extent]| {
        table.cast(DType::F64) * std::f64::consts::TAU / extent
    })?;
    let divisor = match scale {
        FourierScale::One => None,
        FourierScale::Root => Some(c.unary(UnaryOp::Sqrt, extent)?),
        FourierScale::Extent => Some(extent),
    };
    let j = c.iota(rows.clone(), 0, 1, DType::I64)?;
    let j = c.reshape(j, vec![rows.clone(), 1.into()])?;
    let k = c.iota(columns.clone(), 0, 1, DType::I64)?;
    let jk = c.binary(BinaryOp::Mul, j, k)?;
    let modulus = c.emit_dim(n, DType::I64)?;
    let jk = c.binary(BinaryOp::Rem, jk, modulus)?;
    let [cos, sin] = c.formulas([angles, jk], |[angles, jk]| {
        [UnaryOp::Cos, UnaryOp::Sin].map(|op| {
            let roots = angles.unary(op);
            divisor.map_or(roots, |d| roots / roots.term(d)).cast(dtype).take(0, jk)
        })
    })?;
    Ok((cos, sin))
}
