//! Rotary position embedding: one row at a time.
//!
//! Products and sums are rounded to the dtype of the cosines, as if they were separate ops. All of a row is
//! read before any of it is written, so the result may lie on the first operand.

use symmc_ir::DType;

use super::error::{KernelError, Result};
use super::math::RealNumber;
use super::norm::round_to;
use super::scratch::Scratch;
use super::strided::{StridedReader, StridedView, StridedWriter};

#[derive(Clone, Copy)]
pub(super) struct RotaryParams {
    pub width: usize,
    pub interleaved: bool,
}

impl RotaryParams {
    #[inline(always)]
    fn pair_positions(self, at: usize) -> [usize; 2] {
        if self.interleaved { [2 * at, 2 * at + 1] } else { [at, at + self.width / 2] }
    }
}

/// Operands: `x`, the cosines, the sines.
pub(super) fn rotary(
    rotary: RotaryParams,
    [x, cos, sin]: [&StridedView; 3],
    result: &StridedView,
    scratch: &mut Scratch,
) -> Result<()> {
    let (Some(last), Some(numbers)) = (x.rank().checked_sub(1), cos.axes.last().map(|a| a.n)) else {
        return Err(KernelError::shape_mismatch(
            "the operands of a rotary embedding",
            &[1, 1],
            &[x.rank(), cos.rank()],
        ));
    };
    let e = x.axis_len(last);
    if x.shape() != result.shape() || cos.shape() != sin.shape() {
        return Err(KernelError::shape_mismatch(
            "the operands of a rotary embedding",
            &x.shape(),
            &cos.shape(),
        ));
    }
    if rotary.width > e || !(numbers == rotary.width || 2 * numbers == rotary.width) {
        return Err(KernelError::shape_mismatch(
            "the cosines of a rotary embedding",
            &[rotary.width],
            &cos.shape(),
        ));
    }
    let mut shape = x.shape();
    shape[last] = numbers;
    let cos = cos.broadcast(&shape)?;
    let sin = sin.broadcast(&shape)?;
    if x.dtype == DType::F64 || cos.dtype == DType::F64 {
        rotate_rows::<f64>(rotary, [x, &cos, &sin], result, scratch);
    } else {
        rotate_rows::<f32>(rotary, [x, &cos, &sin], result, scratch);
    }
    Ok(())
}

fn rotate_rows<R: RealNumber>(
    rotary: RotaryParams,
    [x, cos, sin]: [&StridedView; 3],
    result: &StridedView,
    scratch: &mut Scratch,
) {
    let e = x.axis_len(x.rank() - 1);
    let numbers = cos.axis_len(cos.rank() - 1);
    let mut xs = StridedReader::<R>::new(x);
    let mut out = StridedWriter::<R>::new(result);
    let mut cosines = StridedReader::<R>::new(cos);
    let mut sines = StridedReader::<R>::new(sin);
    let mut row = scratch.allocate::<R>(e);
    let [mut c, mut s, mut direct, mut crossed] = [(); 4].map(|()| scratch.allocate::<R>(rotary.width));
    for _ in 0..x.numel().checked_div(e).unwrap_or(0) {
        xs.read_next(&mut row);
        cosines.read_next(&mut c[..numbers]);
        sines.read_next(&mut s[..numbers]);
        for pair in 0..rotary.width / 2 {
            let [i, j] = rotary.pair_positions(pair);
            let [ni, nj] = if numbers == rotary.width { [i, j] } else { [pair, pair] };
            direct[i] = row[i] * c[ni];
            direct[j] = row[j] * c[nj];
            crossed[i] = -row[j] * s[ni];
            crossed[j] = row[i] * s[nj];
        }
        round_to(cos.dtype, &mut direct);
        round_to(cos.dtype, &mut crossed);
        let sums = row.iter_mut().zip(direct.iter().zip(crossed.iter()));
        sums.for_each(|(x, (&a, &b))| *x = a + b);
        round_to(cos.dtype, &mut row[..rotary.width]);
        out.write_next(&row);
    }
    for buffer in [row, c, s, direct, crossed] {
        scratch.return_buffer(buffer);
    }
}
