//! Rotary position embedding: one row at a time.
//!
//! Products and sums are rounded to the dtype of the cosines, as if they were ops of their own. All of a row is read
//! before any of it is written, so the result may lie on the first operand.

use symmc_ir::DType;

use super::error::{KernelError, Result};
use super::math::Real;
use super::norm::round_to;
use super::scratch::Scratch;
use super::strided::{Reader, Strided, Writer};

#[derive(Clone, Copy)]
pub(super) struct Rotary {
    pub width: usize,
    pub interleaved: bool,
}

impl Rotary {
    #[inline(always)]
    fn pair(self, at: usize) -> [usize; 2] {
        if self.interleaved { [2 * at, 2 * at + 1] } else { [at, at + self.width / 2] }
    }
}

/// Operands: `x`, the cosines, the sines.
pub(super) fn rotary(
    rotary: Rotary,
    [x, cos, sin]: [&Strided; 3],
    result: &Strided,
    scratch: &mut Scratch,
) -> Result<()> {
    let (Some(last), Some(numbers)) = (x.rank().checked_sub(1), cos.axes.last().map(|a| a.n)) else {
        return Err(KernelError::shape(
            "the operands of a rotary embedding",
            &[1, 1],
            &[x.rank(), cos.rank()],
        ));
    };
    let e = x.n(last);
    if x.shape() != result.shape() || cos.shape() != sin.shape() {
        return Err(KernelError::shape("the operands of a rotary embedding", &x.shape(), &cos.shape()));
    }
    if rotary.width > e || !(numbers == rotary.width || 2 * numbers == rotary.width) {
        return Err(KernelError::shape("the cosines of a rotary embedding", &[rotary.width], &cos.shape()));
    }
    let mut shape = x.shape();
    shape[last] = numbers;
    let (cos, sin) = (cos.broadcast(&shape)?, sin.broadcast(&shape)?);
    match x.dtype == DType::F64 || cos.dtype == DType::F64 {
        true => rows::<f64>(rotary, [x, &cos, &sin], result, scratch),
        false => rows::<f32>(rotary, [x, &cos, &sin], result, scratch),
    }
    Ok(())
}

fn rows<R: Real>(rotary: Rotary, [x, cos, sin]: [&Strided; 3], result: &Strided, scratch: &mut Scratch) {
    let (e, numbers) = (x.n(x.rank() - 1), cos.n(cos.rank() - 1));
    let (mut xs, mut out) = (Reader::<R>::new(x), Writer::<R>::new(result));
    let (mut cosines, mut sines) = (Reader::<R>::new(cos), Reader::<R>::new(sin));
    let mut row = scratch.take::<R>(e);
    let [mut c, mut s, mut own, mut other] = [(); 4].map(|()| scratch.take::<R>(rotary.width));
    let number = |element: usize, pair: usize| if numbers == rotary.width { element } else { pair };
    for _ in 0..x.numel().checked_div(e).unwrap_or(0) {
        xs.fill(&mut row);
        cosines.fill(&mut c[..numbers]);
        sines.fill(&mut s[..numbers]);
        for at in 0..rotary.width / 2 {
            let [i, j] = rotary.pair(at);
            let (ni, nj) = (number(i, at), number(j, at));
            (own[i], own[j]) = (row[i] * c[ni], row[j] * c[nj]);
            (other[i], other[j]) = (-row[j] * s[ni], row[i] * s[nj]);
        }
        round_to(cos.dtype, &mut own);
        round_to(cos.dtype, &mut other);
        let sums = row.iter_mut().zip(own.iter().zip(other.iter()));
        sums.for_each(|(x, (&a, &b))| *x = a + b);
        round_to(cos.dtype, &mut row[..rotary.width]);
        out.put(&row);
    }
    for buffer in [row, c, s, own, other] {
        scratch.give(buffer);
    }
}
