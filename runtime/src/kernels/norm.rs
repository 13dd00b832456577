//! Softmax, RMS norm and layer norm: one row at a time.
//!
//! Softmax is computed in f32 (f64 for f64), with sums in f64. Norms are computed in f64 and rounded once,
//! because the squares of very large or small numbers exceed the range of f32.

use super::error::{KernelError, Result};
use super::gemm::sum_mapped;
use super::math::RealNumber;
use super::scratch::{Scratch, ScratchBuffer};
use super::simd::widened;
use super::strided::{StridedReader, StridedView, StridedWriter};

/// Calls a generic function for the real type that a float dtype is computed in.
macro_rules! for_real {
    ($dtype:expr, $r:ident => $body:expr) => {
        if $dtype == symmc_ir::DType::F64 {
            type $r = f64;
            $body
        } else {
            type $r = f32;
            $body
        }
    };
}
pub(super) use for_real;

pub(super) fn softmax(
    axis: usize,
    log: bool,
    x: &StridedView,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    if axis >= x.rank() || x.shape() != result.shape() {
        return Err(KernelError::shape_mismatch("the result of softmax", &x.shape(), &result.shape()));
    }
    let x = x.axis_last(axis);
    let result = result.axis_last(axis);
    for_real!(x.dtype, R => {
        map_rows::<R>(&x, &result, x.axis_len(x.rank() - 1), scratch, |row| softmax_row(log, row));
    });
    Ok(())
}

widened! {
    /// The largest element; NaN if any element is NaN, minus infinity without elements.
    pub(super) fn row_max<R: RealNumber>(row: &[R]) -> R {
        const LANES: usize = 32;
        let mut lanes = [R::NEG_INFINITY; LANES];
        let (runs, rest) = row.as_chunks::<LANES>();
        for run in runs {
            for i in 0..LANES {
                lanes[i] = run[i].max_nan(lanes[i]);
            }
        }
        lanes.iter().chain(rest).fold(R::NEG_INFINITY, |m, &x| x.max_nan(m))
    }
}

widened! {
    /// Replaces each element by `e^(x - max)`; returns their sum.
    pub(super) fn exp_row<R: RealNumber>(row: &mut [R], max: R) -> f64 {
        row.iter_mut().for_each(|x| *x = (*x - max).exp());
        sum_mapped(row, |x| x)
    }
}

/// The sum of `e^(x - max)`.
#[inline(always)]
fn sum_exp<R: RealNumber>(row: &[R], max: R) -> f64 {
    const CHUNK_ELEMENTS: usize = 256;
    let mut weights = [R::ZERO; CHUNK_ELEMENTS];
    let mut sum = 0.0;
    for x in row.chunks(CHUNK_ELEMENTS) {
        let weights = &mut weights[..x.len()];
        weights.iter_mut().zip(x).for_each(|(weight, &x)| *weight = (x - max).exp());
        sum += sum_mapped(weights, |weight| weight);
    }
    sum
}

widened! {
    fn softmax_row<R: RealNumber>(log: bool, row: &mut [R]) {
        let max = row_max::<R>(row);
        if log {
            let sum = R::of(sum_exp(row, max).ln());
            row.iter_mut().for_each(|x| *x = *x - max - sum);
        } else {
            let scale = R::of(1.0 / exp_row::<R>(row, max));
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

/// Reads `x` in rows of `n`, applies `f` to each row and stores it.
fn map_rows<R: RealNumber>(
    x: &StridedView,
    result: &StridedView,
    n: usize,
    scratch: &mut Scratch,
    mut f: impl FnMut(&mut [R]),
) {
    let mut xs = StridedReader::<R>::new(x);
    let mut out = StridedWriter::<R>::new(result);
    let mut row = scratch.allocate::<R>(n);
    for _ in 0..x.numel().checked_div(n).unwrap_or(0) {
        xs.read_next(&mut row);
        f(&mut row);
        out.write_next(&row);
    }
    scratch.return_buffer(row);
}

/// Reads a weight or bias of the normalised axes as one row.
fn read_parameter<R: RealNumber>(
    v: &StridedView,
    n: usize,
    scratch: &mut Scratch,
) -> Result<ScratchBuffer<R>> {
    if v.numel() != n {
        return Err(KernelError::shape_mismatch("the weight or bias of a norm", &[n], &v.shape()));
    }
    let mut row = scratch.allocate::<R>(n);
    StridedReader::new(v).read_next(&mut row);
    Ok(row)
}

/// The number of elements of the last `axes` axes.
fn row_length(axes: usize, x: &StridedView, result: &StridedView) -> Result<usize> {
    if axes > x.rank() || x.shape() != result.shape() {
        return Err(KernelError::shape_mismatch("the result of a norm", &x.shape(), &result.shape()));
    }
    Ok(x.axes[x.rank() - axes..].iter().map(|a| a.n).product())
}

#[derive(Clone, Copy)]
pub(super) struct RmsNormParams {
    pub axes: usize,
    pub eps: f64,
    pub round_first: bool,
}

pub(super) fn rms_norm(
    rms: RmsNormParams,
    x: &StridedView,
    weight: Option<&StridedView>,
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let n = row_length(rms.axes, x, result)?;
    let round = rms.round_first && weight.is_some();
    for_real!(x.dtype, R => {
        let weight = weight.map(|w| read_parameter::<R>(w, n, scratch)).transpose()?;
        map_rows::<R>(x, result, n, scratch, |row| {
            let scale = rms_scale(row, rms.eps);
            if round {
                multiply_row(row, scale, None);
                round_to(x.dtype, row);
                multiply_row(row, 1.0, weight.as_deref());
            } else {
                multiply_row(row, scale, weight.as_deref());
            }
        });
        if let Some(w) = weight {
            scratch.return_buffer(w);
        }
    });
    Ok(())
}

widened! {
    /// The inverse of the root of the mean square of a row.
    fn rms_scale<R: RealNumber>(row: &[R], eps: f64) -> f64 {
        let mean = sum_mapped(row, |x| x.wide() * x.wide()) / row.len() as f64;
        1.0 / (mean + eps).sqrt()
    }
}

widened! {
    fn multiply_row<R: RealNumber>(row: &mut [R], scale: f64, weight: Option<&[R]>) {
        match weight {
            Some(w) => row.iter_mut().zip(w).for_each(|(x, w)| *x = R::of(x.wide() * scale * w.wide())),
            None => row.iter_mut().for_each(|x| *x = R::of(x.wide() * scale)),
        }
    }
}

/// Rounds numbers to a dtype and back.
pub(super) fn round_to<R: RealNumber>(dtype: symmc_ir::DType, row: &mut [R]) {
    use super::element::StoredElement;
    fn round_through<E: StoredElement, R: RealNumber>(row: &mut [R]) {
        row.iter_mut().for_each(|x| *x = R::from_element(x.to_element::<E>()));
    }
    match dtype {
        symmc_ir::DType::F16 => round_through::<half::f16, R>(row),
        symmc_ir::DType::BF16 => round_through::<half::bf16, R>(row),
        _ => {}
    }
}

pub(super) fn layer_norm(
    axes: usize,
    eps: f64,
    x: &StridedView,
    parameters: &[StridedView],
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let n = row_length(axes, x, result)?;
    for_real!(x.dtype, R => {
        let weight = parameters.first().map(|w| read_parameter::<R>(w, n, scratch)).transpose()?;
        let bias = parameters.get(1).map(|b| read_parameter::<R>(b, n, scratch)).transpose()?;
        map_rows::<R>(x, result, n, scratch, |row| {
            layer_norm_row::<R>(row, eps, weight.as_deref(), bias.as_deref());
        });
        for p in [weight, bias].into_iter().flatten() {
            scratch.return_buffer(p);
        }
    });
    Ok(())
}

widened! {
    fn layer_norm_row<R: RealNumber>(row: &mut [R], eps: f64, weight: Option<&[R]>, bias: Option<&[R]>) {
        let n = row.len() as f64;
        let mean = sum_mapped(row, |x| x.wide()) / n;
        let squares = sum_mapped(row, |x| (x.wide() - mean) * (x.wide() - mean));
        let scale = 1.0 / (squares / n + eps).sqrt();
        let normal = |x: R| (x.wide() - mean) * scale;
        match (weight, bias) {
            (Some(w), Some(b)) => {
                for (x, (w, b)) in row.iter_mut().zip(w.iter().zip(b)) {
                    *x = R::of(normal(*x) * w.wide() + b.wide());
                }
            }
            (Some(w), None) => row.iter_mut().zip(w).for_each(|(x, w)| *x = R::of(normal(*x) * w.wide())),
            _ => row.iter_mut().for_each(|x| *x = R::of(normal(*x))),
        }
    }
}
