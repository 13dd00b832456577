//! Discrete Fourier transforms, as products with matrices of roots of one.
//!
//! A transform of `n` numbers takes `n²` products, so that long ones are left to others. The roots are computed in f64 and
//! taken from a table by `jk mod n`: they are as exact as the products' dtype lets them be.

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, UnaryOp, ValueId};

use super::super::{Row, row_of_results};
use super::parts::{declared, done, of_first, parts};
use crate::call::Call;
use crate::lower::{Emitted, Lowered, Stop};

pub(in crate::ops) const ROWS: &[Row] = &[
    row_of_results("aten._fft_c2c", "cos, sin, matmul", |c| {
        let (axes, scale) = (signal_axes(c)?, scaling(c)?);
        let forward = c.bool_or("forward", true)?;
        let mut signal = Signal::of_first(c)?;
        for axis in axes {
            signal.turn(c, axis, forward, scale)?;
        }
        signal.done(c)
    }),
    row_of_results("aten._fft_r2c", "cos, sin, matmul", |c| {
        let (axes, scale) = (signal_axes(c)?, scaling(c)?);
        let onesided = c.bool_or("onesided", false)?;
        let signal = Signal::of_first(c)?;
        from_real(c, signal, &axes, scale, onesided)
    }),
    row_of_results("aten._fft_c2r", "cos, sin, matmul", |c| {
        let (axes, scale) = (signal_axes(c)?, scaling(c)?);
        let n = c.dim("last_dim_size")?;
        let signal = Signal::of_first(c)?;
        to_real(c, signal, &axes, scale, &n)
    }),
    row_of_results("aten.fft_fft.default", "cos, sin, matmul", |c| whole(c, true)),
    row_of_results("aten.fft_ifft.default", "cos, sin, matmul", |c| whole(c, false)),
    row_of_results("aten.fft_fft2.default", "cos, sin, matmul", |c| whole(c, true)),
    row_of_results("aten.fft_ifft2.default", "cos, sin, matmul", |c| whole(c, false)),
    row_of_results("aten.fft_fftn.default", "cos, sin, matmul", |c| whole(c, true)),
    row_of_results("aten.fft_ifftn.default", "cos, sin, matmul", |c| whole(c, false)),
    row_of_results("aten.fft_rfft.default", "cos, sin, matmul", half),
    row_of_results("aten.fft_rfft2.default", "cos, sin, matmul", half),
    row_of_results("aten.fft_rfftn.default", "cos, sin, matmul", half),
    row_of_results("aten.fft_irfft.default", "cos, sin, matmul", from_half),
    row_of_results("aten.fft_irfft2.default", "cos, sin, matmul", from_half),
    row_of_results("aten.fft_irfftn.default", "cos, sin, matmul", from_half),
];

const MOST: i64 = 4096;

/// What each axis is divided by.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    One,
    Root,
    Extent,
}

/// Numbers that are transformed: their real parts, and their imaginary parts where these are not all 0.
struct Signal {
    real: ValueId,
    imaginary: Option<ValueId>,
}

impl Signal {
    fn of_first(c: &mut Call<'_, '_>) -> Lowered<Signal> {
        let dtype = declared(c)?.dtype;
        let x = c.first()?;
        let x = c.cast(x, dtype)?;
        if !of_first(c) {
            return Ok(Signal { real: x, imaginary: None });
        }
        let (real, imaginary) = parts(c, x)?;
        Ok(Signal { real, imaginary: Some(imaginary) })
    }

    fn each(&mut self, mut change: impl FnMut(ValueId) -> Emitted) -> Lowered {
        self.real = change(self.real)?;
        self.imaginary = self.imaginary.map(change).transpose()?;
        Ok(())
    }

    /// Cuts an axis off, or fills it up with zeros.
    fn resize(&mut self, c: &mut Call<'_, '_>, axis: usize, n: &Dim) -> Lowered {
        let own = c.extent(self.real, axis);
        if own == *n {
            return Ok(());
        }
        let missing = n.clone() - own;
        match c.bounds(&missing) {
            (_, high) if high <= 0 => self.each(|x| c.slice(x, axis, 0.into(), n.clone(), 1)),
            (low, _) if low >= 0 => self.each(|x| {
                let mut shape = c.shape(x);
                if let Some(extent) = shape.get_mut(axis) {
                    *extent = missing.clone();
                }
                let zeros = c.full(Scalar::Int(0), c.dtype(x), shape)?;
                c.concat(&[x, zeros], axis)
            }),
            _ => Err(Stop::Opaque("its signal is cut in some runs and filled up in others".into())),
        }
    }

    fn turn(&mut self, c: &mut Call<'_, '_>, axis: usize, forward: bool, scale: Scale) -> Lowered {
        let n = c.extent(self.real, axis);
        let (cos, sin) = roots(c, &n, [&n, &n], scale, c.dtype(self.real))?;
        let cos_real = along(c, self.real, axis, cos)?;
        let sin_real = along(c, self.real, axis, sin)?;
        // Forward the angles are negative: (a + bi)(C - iS) = aC + bS + (bC - aS)i.
        let (add, sub) =
            if forward { (BinaryOp::Add, BinaryOp::Sub) } else { (BinaryOp::Sub, BinaryOp::Add) };
        (self.real, self.imaginary) = match self.imaginary {
            Some(b) => {
                let (cos_b, sin_b) = (along(c, b, axis, cos)?, along(c, b, axis, sin)?);
                (c.binary(add, cos_real, sin_b)?, Some(c.binary(sub, cos_b, sin_real)?))
            }
            None if forward => (cos_real, Some(c.unary(UnaryOp::Neg, sin_real)?)),
            None => (cos_real, Some(sin_real)),
        };
        Ok(())
    }

    fn done(self, c: &mut Call<'_, '_>) -> Lowered {
        let imaginary = match self.imaginary {
            Some(b) => b,
            None => c.full(Scalar::Int(0), c.dtype(self.real), c.shape(self.real))?,
        };
        done(c, self.real, imaginary)
    }
}

/// The axes that `dim` lists, of the first operand, each once.
fn signal_axes(c: &Call<'_, '_>) -> Lowered<Vec<usize>> {
    let x = c.first()?;
    let rank = c.rank(x) - usize::from(of_first(c));
    let listed = c.opt_ints("dim")?;
    let axes = match listed {
        Some(list) => list.into_iter().map(|a| c.axis_of(a, rank)).collect::<Lowered<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|w| w[0] == w[1]) || sorted.last().is_some_and(|&a| a >= rank) {
        return Err(Stop::Broken(format!("expected distinct axes of {rank}, found {axes:?}")));
    }
    Ok(axes)
}

fn scaling(c: &Call<'_, '_>) -> Lowered<Scale> {
    match c.int("normalization")? {
        0 => Ok(Scale::One),
        1 => Ok(Scale::Root),
        2 => Ok(Scale::Extent),
        other => Err(Stop::Broken(format!("expected 0, 1 or 2 as `normalization`, found {other}"))),
    }
}

fn norm(c: &Call<'_, '_>, forward: bool) -> Lowered<Scale> {
    match c.opt_string("norm")? {
        None | Some("backward") => Ok(if forward { Scale::One } else { Scale::Extent }),
        Some("ortho") => Ok(Scale::Root),
        Some("forward") => Ok(if forward { Scale::Extent } else { Scale::One }),
        Some(other) => {
            Err(Stop::Broken(format!("expected backward, ortho or forward as `norm`, found {other}")))
        }
    }
}

/// The axes of the ops of `torch.fft`, with the lengths that these ask for.
fn lengths(c: &Call<'_, '_>) -> Lowered<(Vec<usize>, Option<Vec<Dim>>)> {
    let op = c.node.target.split('.').rev().nth(1).unwrap_or("");
    let x = c.first()?;
    let rank = c.rank(x) - usize::from(of_first(c));
    let asked = match c.opt_dims("s")? {
        Some(s) => Some(s),
        None => c.opt_dim("n")?.map(|n| vec![n]),
    };
    let last = |count: usize| (rank.saturating_sub(count)..rank).collect::<Vec<_>>();
    let axes = match (c.get("dim").is_some(), &asked) {
        (true, _) => signal_axes(c)?,
        (false, _) if op.ends_with("fft2") => last(2),
        (false, None) if op.ends_with("fftn") => last(rank),
        (false, Some(s)) if op.ends_with("fftn") => last(s.len()),
        (false, _) => last(1),
    };
    if axes.is_empty() || asked.as_ref().is_some_and(|s| s.len() != axes.len()) {
        return Err(Stop::Broken(format!(
            "expected a length for each of the axes {axes:?}, found {asked:?}"
        )));
    }
    // -1 keeps an extent.
    let kept = |(n, &a): (Dim, &usize)| if n.as_const() == Some(-1) { c.extent(x, a) } else { n };
    let asked = asked.map(|s| s.into_iter().zip(&axes).map(kept).collect());
    Ok((axes, asked))
}

/// A transform of complex numbers to complex numbers, of `torch.fft`.
fn whole(c: &mut Call<'_, '_>, forward: bool) -> Lowered {
    let scale = norm(c, forward)?;
    let (axes, asked) = lengths(c)?;
    let mut signal = Signal::of_first(c)?;
    for (i, axis) in axes.into_iter().enumerate() {
        if let Some(n) = asked.as_ref().and_then(|s| s.get(i)) {
            signal.resize(c, axis, n)?;
        }
        signal.turn(c, axis, forward, scale)?;
    }
    signal.done(c)
}

fn half(c: &mut Call<'_, '_>) -> Lowered {
    let scale = norm(c, true)?;
    let (axes, asked) = lengths(c)?;
    let mut signal = Signal::of_first(c)?;
    for (axis, n) in axes.iter().zip(asked.iter().flatten()) {
        signal.resize(c, *axis, n)?;
    }
    from_real(c, signal, &axes, scale, true)
}

fn from_half(c: &mut Call<'_, '_>) -> Lowered {
    let scale = norm(c, false)?;
    let (axes, asked) = lengths(c)?;
    let mut signal = Signal::of_first(c)?;
    let Some((&last, others)) = axes.split_last() else { return Ok(()) };
    let columns = c.extent(signal.real, last);
    let n = asked.as_ref().and_then(|s| s.last().cloned());
    let n = n.unwrap_or_else(|| (columns - Dim::from(1)) * Dim::from(2));
    for (axis, n) in others.iter().zip(asked.iter().flatten()) {
        signal.resize(c, *axis, n)?;
    }
    to_real(c, signal, &axes, scale, &n)
}

/// How many numbers of a transform of `n` real ones say all of it.
fn half_of(n: &Dim) -> Dim {
    n.floor_div(&2.into()) + Dim::from(1)
}

/// Transforms real numbers, the last of the axes first, of which the first half may be all that is wanted.
fn from_real(c: &mut Call<'_, '_>, signal: Signal, axes: &[usize], scale: Scale, onesided: bool) -> Lowered {
    let (x, Some((&last, others))) = (signal.real, axes.split_last()) else {
        return Err(Stop::Broken("expected an axis, found none".into()));
    };
    let n = c.extent(x, last);
    let columns = if onesided { half_of(&n) } else { n.clone() };
    let (cos, sin) = roots(c, &n, [&n, &columns], scale, c.dtype(x))?;
    let (real, imaginary) = (along(c, x, last, cos)?, along(c, x, last, sin)?);
    let mut signal = Signal { real, imaginary: Some(c.unary(UnaryOp::Neg, imaginary)?) };
    for &axis in others {
        signal.turn(c, axis, true, scale)?;
    }
    signal.done(c)
}

/// The `n` real numbers along the last of the axes whose transform has this first half.
fn to_real(c: &mut Call<'_, '_>, mut signal: Signal, axes: &[usize], scale: Scale, n: &Dim) -> Lowered {
    let Some((&last, others)) = axes.split_last() else {
        return Err(Stop::Broken("expected an axis, found none".into()));
    };
    let rows = half_of(n);
    signal.resize(c, last, &rows)?;
    for &axis in others {
        signal.turn(c, axis, false, scale)?;
    }
    let (cos, sin) = roots(c, n, [&rows, n], scale, c.dtype(signal.real))?;
    let weights = weights(c, n, &rows, c.dtype(signal.real))?;
    let (cos, sin) = (c.binary(BinaryOp::Mul, cos, weights)?, c.binary(BinaryOp::Mul, sin, weights)?);
    let mut y = along(c, signal.real, last, cos)?;
    if let Some(b) = signal.imaginary {
        let b = along(c, b, last, sin)?;
        y = c.binary(BinaryOp::Sub, y, b)?;
    }
    c.done(y)
}

/// How often each row of a first half is in the whole, as a column: the first, and that in the middle of an even number of
/// them, once; the others twice.
fn weights(c: &mut Call<'_, '_>, n: &Dim, rows: &Dim, dtype: DType) -> Emitted {
    let k = c.iota(rows.clone(), 0, 1, DType::I64)?;
    let is_first = c.with_scalar(BinaryOp::Eq, k, Scalar::Int(0))?;
    let twice = c.with_scalar(BinaryOp::Mul, k, Scalar::Int(2))?;
    let n = c.dim_tensor(n, DType::I64)?;
    let is_middle = c.binary(BinaryOp::Eq, twice, n)?;
    let once = c.binary(BinaryOp::Or, is_first, is_middle)?;
    let once = c.cast(once, dtype)?;
    let weights = c.scalar_with(BinaryOp::Sub, Scalar::Int(2), once)?;
    c.reshape(weights, vec![rows.clone(), 1.into()])
}

fn along(c: &mut Call<'_, '_>, x: ValueId, axis: usize, matrix: ValueId) -> Emitted {
    let rank = c.rank(x);
    let order: Vec<usize> = (0..rank).filter(|&a| a != axis).chain([axis]).collect();
    let back: Vec<usize> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
    let x = c.permute(x, order)?;
    let y = c.product(x, matrix)?;
    c.permute(y, back)
}

/// The cosines and sines of `2πjk/n`, by rows `j` and columns `k`.
fn roots(
    c: &mut Call<'_, '_>,
    n: &Dim,
    [rows, columns]: [&Dim; 2],
    scale: Scale,
    dtype: DType,
) -> Lowered<(ValueId, ValueId)> {
    if c.bounds(n).1 > MOST {
        return Err(Stop::Opaque(format!("a transform of {n:?} numbers, which may be more than {MOST}")));
    }
    let extent = c.dim_tensor(n, DType::F64)?;
    let table = c.iota(n.clone(), 0, 1, DType::I64)?;
    let table = c.cast(table, DType::F64)?;
    let table = c.with_float(BinaryOp::Mul, table, std::f64::consts::TAU)?;
    let angles = c.binary(BinaryOp::Div, table, extent)?;
    let divisor = match scale {
        Scale::One => None,
        Scale::Root => Some(c.unary(UnaryOp::Sqrt, extent)?),
        Scale::Extent => Some(extent),
    };
    let j = c.iota(rows.clone(), 0, 1, DType::I64)?;
    let j = c.reshape(j, vec![rows.clone(), 1.into()])?;
    let k = c.iota(columns.clone(), 0, 1, DType::I64)?;
    let jk = c.binary(BinaryOp::Mul, j, k)?;
    let modulus = c.dim_tensor(n, DType::I64)?;
    let jk = c.binary(BinaryOp::Rem, jk, modulus)?;
    let mut of = |op: UnaryOp| -> Emitted {
        let mut y = c.unary(op, angles)?;
        if let Some(divisor) = divisor {
            y = c.binary(BinaryOp::Div, y, divisor)?;
        }
        let y = c.cast(y, dtype)?;
        c.emit("take", Op::Take { axis: 0 }, &[y, jk])
    };
    Ok((of(UnaryOp::Cos)?, of(UnaryOp::Sin)?))
}
