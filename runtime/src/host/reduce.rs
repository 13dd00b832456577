//! Reduction of elements over ranks.
//!
//! All variants reduce through this file, so they agree bit for bit. Operands combine in ascending order of
//! rank, floats accumulate in f32 (f64 for f64) and round once at the end, integers wrap, the average of
//! integers divides their exact i64 sum and truncates. The maximum and minimum of two floats are NaN if one
//! of them is. On bool, sum and max are "or", the others "and".
//!
//! A reduction works in blocks on an accumulator that stays in the L1 cache. The loops are written to
//! vectorise. On x86-64 they are also compiled for AVX2 and F16C, and selected at run time by the features of
//! the processor.

use std::mem::MaybeUninit;

use symmc_ir::collective::CollectiveReduceOp;
use symmc_ir::float8::{F8E4M3, F8E5M2, F8E8M0};
use symmc_ir::types::DType;

use super::copy::{StoreMode, copy_bytes};

/// Elements of one block.
pub const BLOCK_ELEMENTS: usize = 1024;

/// Room for a block of any dtype or accumulating type. Its contents are uninitialised until they are written.
#[repr(C, align(64))]
pub struct AccumulatorBlock([MaybeUninit<u64>; BLOCK_ELEMENTS]);

impl AccumulatorBlock {
    #[inline]
    pub fn new() -> Self {
        AccumulatorBlock([MaybeUninit::uninit(); BLOCK_ELEMENTS])
    }

    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

type Start = unsafe fn(&mut AccumulatorBlock, *const u8, *const u8, usize);
type Combine = unsafe fn(&mut AccumulatorBlock, *const u8, usize);
type Finish = unsafe fn(&mut AccumulatorBlock, usize, &[*mut u8], usize, StoreMode);

/// The loops for one dtype and operation.
#[derive(Clone, Copy)]
pub struct Reducer {
    size: usize,
    start: Start,
    combine: Combine,
    finish: Finish,
}

impl Reducer {
    pub fn new(dtype: DType, op: CollectiveReduceOp) -> Reducer {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            return x86::avx2_reducer(dtype, op);
        }
        portable_reducer(dtype, op)
    }

    /// Begins a block of at most [`BLOCK_ELEMENTS`] elements with those of the two lowest ranks.
    ///
    /// # Safety
    /// Both sources hold `elements` elements that nothing writes meanwhile; they need no alignment.
    #[inline]
    pub unsafe fn start(&self, acc: &mut AccumulatorBlock, a: *const u8, b: *const u8, elements: usize) {
        debug_assert!(elements <= BLOCK_ELEMENTS);
        // SAFETY: by the caller.
        unsafe { (self.start)(acc, a, b, elements) }
    }

    /// Adds the elements of the next rank to the block.
    ///
    /// # Safety
    /// As for [`start`](Self::start).
    #[inline]
    pub unsafe fn combine(&self, acc: &mut AccumulatorBlock, x: *const u8, elements: usize) {
        debug_assert!(elements <= BLOCK_ELEMENTS);
        // SAFETY: by the caller.
        unsafe { (self.combine)(acc, x, elements) }
    }

    /// Rounds the block of `ranks` operands and stores it at each of `outs`.
    ///
    /// # Safety
    /// Each of `outs` has room for `elements` elements that nothing else touches meanwhile.
    #[inline]
    pub unsafe fn finish(
        &self,
        acc: &mut AccumulatorBlock,
        ranks: usize,
        outs: &[*mut u8],
        elements: usize,
        stores: StoreMode,
    ) {
        debug_assert!(elements <= BLOCK_ELEMENTS);
        // SAFETY: by the caller.
        unsafe { (self.finish)(acc, ranks, outs, elements, stores) }
    }

    /// Reduces `elements` elements of at least two sources, in ascending order of rank, into each of `outs`.
    ///
    /// # Safety
    /// Each source holds as many elements and each of `outs` has room for as many. Nothing else writes the
    /// sources or touches `outs` meanwhile. One of `outs` may be one of the sources; otherwise they do not
    /// overlap.
    pub unsafe fn reduce(&self, sources: &[*const u8], outs: &[*mut u8], elements: usize, stores: StoreMode) {
        let mut acc = AccumulatorBlock::new();
        let mut moved: [*mut u8; 16] = [std::ptr::null_mut(); 16];
        let mut start = 0;
        while start < elements {
            let n = BLOCK_ELEMENTS.min(elements - start);
            let byte = start * self.size;
            // SAFETY: `at + n` is at most `elements`; a block is read from all sources before any is written.
            unsafe {
                self.start(&mut acc, sources[0].add(byte), sources[1].add(byte), n);
                for source in &sources[2..] {
                    self.combine(&mut acc, source.add(byte), n);
                }
                for outs in outs.chunks(moved.len()) {
                    for (to, out) in moved.iter_mut().zip(outs) {
                        *to = out.add(byte);
                    }
                    self.finish(&mut acc, sources.len(), &moved[..outs.len()], n, stores);
                }
            }
            start += n;
        }
    }
}

/// An element in its stored form, and the type in which it accumulates.
trait ReduceElement: Copy {
    type Acc: Copy;
    /// Whether an accumulated element has the form of a stored one.
    const AS_STORED: bool = false;
    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
}

/// How accumulated elements combine.
trait ReduceOperation<A> {
    /// Whether [`finish`](Self::finish) does anything.
    const HAS_FINISH: bool = false;
    fn combine(a: A, b: A) -> A;
    /// The last operation, after the last of `n` operands.
    #[inline(always)]
    fn finish(a: A, _n: usize) -> A {
        a
    }
}

#[inline(always)]
unsafe fn start<E: ReduceElement, O: ReduceOperation<E::Acc>>(
    acc: &mut AccumulatorBlock,
    a: *const u8,
    b: *const u8,
    n: usize,
) {
    let a = a.cast::<E>();
    let b = b.cast::<E>();
    let acc = acc.as_mut_ptr().cast::<E::Acc>();
    for i in 0..n {
        // SAFETY: `i` is below `n`, which the caller bounds by the block and the sources.
        unsafe {
            acc.add(i)
                .write(O::combine(a.add(i).read_unaligned().widen(), b.add(i).read_unaligned().widen()));
        }
    }
}

#[inline(always)]
unsafe fn combine<E: ReduceElement, O: ReduceOperation<E::Acc>>(
    acc: &mut AccumulatorBlock,
    x: *const u8,
    n: usize,
) {
    let x = x.cast::<E>();
    let acc = acc.as_mut_ptr().cast::<E::Acc>();
    for i in 0..n {
        // SAFETY: as in `start`, which wrote the accumulator's first `n` elements.
        unsafe { acc.add(i).write(O::combine(acc.add(i).read(), x.add(i).read_unaligned().widen())) };
    }
}

#[inline(always)]
unsafe fn finish<E: ReduceElement, O: ReduceOperation<E::Acc>>(
    acc: &mut AccumulatorBlock,
    ranks: usize,
    outs: &[*mut u8],
    n: usize,
    stores: StoreMode,
) {
    let mut rounded = AccumulatorBlock::new();
    let from = if E::AS_STORED && !O::HAS_FINISH {
        acc.as_mut_ptr()
    } else {
        let from = acc.as_mut_ptr().cast::<E::Acc>();
        let destination = rounded.as_mut_ptr().cast::<E>();
        for i in 0..n {
            // SAFETY: `start` wrote the accumulator's first `n` elements; there is room for as many.
            unsafe { destination.add(i).write(E::narrow(O::finish(from.add(i).read(), ranks))) };
        }
        destination.cast()
    };
    for out in outs {
        // SAFETY: the caller provides room for `n` elements, of which `from` holds as many.
        unsafe { copy_bytes(*out, from, n * size_of::<E>(), stores) };
    }
}

macro_rules! plain_element {
    ($($t:ty),*) => { $(
        impl ReduceElement for $t {
            type Acc = $t;
            const AS_STORED: bool = true;
            #[inline(always)]
            fn widen(self) -> $t { self }
            #[inline(always)]
            fn narrow(acc: $t) -> $t { acc }
        }
    )* };
}
plain_element!(u8, u16, u32, i8, i16, i32, i64, f32, f64);

/// f16, converted by software.
#[derive(Clone, Copy)]
struct F16(u16);
impl ReduceElement for F16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        half::f16::from_bits(self.0).to_f32()
    }
    #[inline(always)]
    fn narrow(acc: f32) -> Self {
        F16(half::f16::from_f32(acc).to_bits())
    }
}

/// bf16: the upper half of an f32.
#[derive(Clone, Copy)]
struct BF16(u16);
impl ReduceElement for BF16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    #[inline(always)]
    fn narrow(acc: f32) -> Self {
        let bits = acc.to_bits();
        let nan = (bits >> 16) | 0x40;
        let even = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        BF16(if acc.is_nan() { nan } else { even } as u16)
    }
}

macro_rules! float8_element {
    ($($t:ty),*) => { $(
        impl ReduceElement for $t {
            type Acc = f32;
            #[inline(always)]
            fn widen(self) -> f32 { self.to_f32() }
            #[inline(always)]
            fn narrow(acc: f32) -> Self { <$t>::from_f32(acc) }
        }
    )* };
}
float8_element!(F8E4M3, F8E5M2, F8E8M0);

/// An integer whose average needs an exact sum.
#[derive(Clone, Copy)]
struct Wide<T>(T);
macro_rules! wide_element {
    ($($t:ty),*) => { $(
        impl ReduceElement for Wide<$t> {
            type Acc = i64;
            #[inline(always)]
            fn widen(self) -> i64 { self.0 as i64 }
            #[inline(always)]
            fn narrow(acc: i64) -> Self { Wide(acc as $t) }
        }
    )* };
}
wide_element!(u8, u16, u32, i8, i16, i32);

struct Sum;
struct Prod;
struct Avg;
struct Max;
struct Min;
struct Or;
struct And;

/// Declares operations: `name: types => how two elements combine`.
macro_rules! operations {
    ($($op:ident: $($t:ty),* => |$a:ident, $b:ident| $e:expr;)*) => { $($(
        impl ReduceOperation<$t> for $op {
            #[inline(always)]
            fn combine($a: $t, $b: $t) -> $t { $e }
        }
    )*)* };
}
operations! {
    Sum: f32, f64 => |a, b| a + b;
    Sum: u8, u16, u32, i8, i16, i32, i64 => |a, b| a.wrapping_add(b);
    Prod: f32, f64 => |a, b| a * b;
    Prod: u8, u16, u32, i8, i16, i32, i64 => |a, b| a.wrapping_mul(b);
    Max: f32, f64 => |a, b| if a.is_nan() || a >= b { a } else { b };
    Max: u8, u16, u32, i8, i16, i32, i64 => |a, b| a.max(b);
    Min: f32, f64 => |a, b| if a.is_nan() || a <= b { a } else { b };
    Min: u8, u16, u32, i8, i16, i32, i64 => |a, b| a.min(b);
    Or: u8 => |a, b| a | b;
    And: u8 => |a, b| a & b;
}

/// The average is the sum, divided at the end.
macro_rules! averages {
    ($($t:ty),*) => { $(
        impl ReduceOperation<$t> for Avg {
            const HAS_FINISH: bool = true;
            #[inline(always)]
            fn combine(a: $t, b: $t) -> $t { Sum::combine(a, b) }
            #[inline(always)]
            fn finish(a: $t, n: usize) -> $t { a / n as $t }
        }
    )* };
}
averages!(f32, f64, i64);

/// Chooses among the loops named by `$start`, `$combine`, `$finish` with `$half` for f16.
macro_rules! choose {
    ($dtype:expr, $op:expr, $half:ty, $start:ident, $combine:ident, $finish:ident) => {{
        macro_rules! of {
            ($e:ty, $o:ty) => {
                Reducer {
                    size: size_of::<$e>(),
                    start: $start::<$e, $o>,
                    combine: $combine::<$e, $o>,
                    finish: $finish::<$e, $o>,
                }
            };
        }
        macro_rules! all {
            ($e:ty, $average:ty) => {
                match $op {
                    CollectiveReduceOp::Sum => of!($e, Sum),
                    CollectiveReduceOp::Prod => of!($e, Prod),
                    CollectiveReduceOp::Max => of!($e, Max),
                    CollectiveReduceOp::Min => of!($e, Min),
                    CollectiveReduceOp::Avg => of!($average, Avg),
                }
            };
        }
        match $dtype {
            DType::F32 => all!(f32, f32),
            DType::F64 => all!(f64, f64),
            DType::F16 => all!($half, $half),
            DType::BF16 => all!(BF16, BF16),
            DType::I64 => all!(i64, i64),
            DType::I32 => all!(i32, Wide<i32>),
            DType::I16 => all!(i16, Wide<i16>),
            DType::I8 => all!(i8, Wide<i8>),
            DType::U32 => all!(u32, Wide<u32>),
            DType::U16 => all!(u16, Wide<u16>),
            DType::U8 => all!(u8, Wide<u8>),
            DType::F8E4M3 => all!(F8E4M3, F8E4M3),
            DType::F8E5M2 => all!(F8E5M2, F8E5M2),
            DType::F8E8M0 => all!(F8E8M0, F8E8M0),
            DType::Bool => match $op {
                CollectiveReduceOp::Sum | CollectiveReduceOp::Max => of!(u8, Or),
                CollectiveReduceOp::Prod | CollectiveReduceOp::Min | CollectiveReduceOp::Avg => of!(u8, And),
            },
        }
    }};
}

fn portable_reducer(dtype: DType, op: CollectiveReduceOp) -> Reducer {
    choose!(dtype, op, F16, start, combine, finish)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;

    /// f16, converted by the processor.
    #[derive(Clone, Copy)]
    struct F16C(u16);
    impl ReduceElement for F16C {
        type Acc = f32;
        #[inline(always)]
        fn widen(self) -> f32 {
            // SAFETY: `reducer` is only used where the processor has F16C.
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(self.0)))) }
        }
        #[inline(always)]
        fn narrow(acc: f32) -> Self {
            // SAFETY: as above.
            unsafe { F16C(_mm_cvtsi128_si32(_mm_cvtps_ph::<0>(_mm_set_ss(acc))) as u16) }
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    unsafe fn start_avx2<E: ReduceElement, O: ReduceOperation<E::Acc>>(
        acc: &mut AccumulatorBlock,
        a: *const u8,
        b: *const u8,
        n: usize,
    ) {
        // SAFETY: by the caller.
        unsafe { start::<E, O>(acc, a, b, n) }
    }

    #[target_feature(enable = "avx2,f16c")]
    unsafe fn combine_avx2<E: ReduceElement, O: ReduceOperation<E::Acc>>(
        acc: &mut AccumulatorBlock,
        x: *const u8,
        n: usize,
    ) {
        // SAFETY: by the caller.
        unsafe { combine::<E, O>(acc, x, n) }
    }

    #[target_feature(enable = "avx2,f16c")]
    unsafe fn finish_avx2<E: ReduceElement, O: ReduceOperation<E::Acc>>(
        acc: &mut AccumulatorBlock,
        ranks: usize,
        outs: &[*mut u8],
        n: usize,
        stores: StoreMode,
    ) {
        // SAFETY: by the caller.
        unsafe { finish::<E, O>(acc, ranks, outs, n, stores) }
    }

    /// The loops for a processor with AVX2 and F16C.
    pub fn avx2_reducer(dtype: DType, op: CollectiveReduceOp) -> Reducer {
        choose!(dtype, op, F16C, start_avx2, combine_avx2, finish_avx2)
    }
}

#[cfg(test)]
mod tests {
    use symmc_ir::tensor::{read_f64, write_f64};

    use super::*;

    #[test]
    fn wide_and_portable_loops_agree_and_are_right() {
        let n = 2 * BLOCK_ELEMENTS + 37;
        for &dtype in DType::ALL {
            for &op in CollectiveReduceOp::ALL {
                for ranks in 2..5 {
                    let operands: Vec<Vec<u8>> = (0..ranks).map(|r| operand(dtype, r, n)).collect();
                    let sources: Vec<*const u8> = operands.iter().map(|o| o.as_ptr()).collect();
                    let run = |reducer: Reducer| {
                        let mut outs = [vec![0u8; n * dtype.size()], vec![0u8; n * dtype.size()]];
                        let destinations: Vec<*mut u8> = outs.iter_mut().map(|o| o.as_mut_ptr()).collect();
                        // SAFETY: all hold `n` elements.
                        unsafe { reducer.reduce(&sources, &destinations, n, StoreMode::Cached) };
                        assert_eq!(outs[0], outs[1]);
                        outs[0].clone()
                    };
                    let out = run(Reducer::new(dtype, op));
                    assert_eq!(out, run(portable_reducer(dtype, op)), "{dtype} {op}");
                    for i in [0, 1, 500, n - 1] {
                        let x: Vec<f64> = operands.iter().map(|o| read_f64(dtype, o, i)).collect();
                        let expected = expected(dtype, op, &x);
                        assert_eq!(read_f64(dtype, &out, i), expected, "{dtype} {op} {ranks} of {x:?}");
                    }
                }
            }
        }
    }

    /// Small values, so that every step except the last is exact.
    fn operand(dtype: DType, rank: usize, n: usize) -> Vec<u8> {
        let mut out = vec![0; n * dtype.size()];
        for i in 0..n {
            let x = ((i * 7 + rank * 13) % 11) as f64;
            let x = match dtype {
                DType::Bool => f64::from(u8::from(x > 2.0)),
                dtype if dtype.integer_bounds().is_some_and(|(least, _)| least == 0) => x,
                _ => x - 4.0,
            };
            write_f64(dtype, &mut out, i, x);
        }
        out
    }

    fn expected(dtype: DType, op: CollectiveReduceOp, x: &[f64]) -> f64 {
        let n = x.len() as f64;
        let y = match op {
            CollectiveReduceOp::Sum => x.iter().sum(),
            CollectiveReduceOp::Prod => x.iter().product(),
            CollectiveReduceOp::Max => x.iter().copied().fold(f64::MIN, f64::max),
            CollectiveReduceOp::Min => x.iter().copied().fold(f64::MAX, f64::min),
            CollectiveReduceOp::Avg if dtype.is_float() => x.iter().sum::<f64>() / n,
            CollectiveReduceOp::Avg => (x.iter().sum::<f64>() / n).trunc(),
        };
        let y = match dtype {
            DType::F64 => y,
            _ => f64::from(y as f32),
        };
        let mut out = [0; 8];
        write_f64(dtype, &mut out, 0, y);
        read_f64(dtype, &out, 0)
    }

    #[test]
    fn nan_wins_wherever_it_stands() {
        for &op in &[CollectiveReduceOp::Max, CollectiveReduceOp::Min] {
            for at in 0..3 {
                let mut x = [1.0f32, -2.0, 5.0];
                x[at] = f32::NAN;
                let sources: Vec<*const u8> = x.iter().map(|x| (x as *const f32).cast()).collect();
                let mut out = 0.0f32;
                // SAFETY: one element each.
                unsafe {
                    let out = (&raw mut out).cast();
                    Reducer::new(DType::F32, op).reduce(&sources, &[out], 1, StoreMode::Cached);
                }
                assert!(out.is_nan());
            }
        }
    }

    #[test]
    fn bf16_rounds_like_half() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let x = f32::from_bits(bits);
            let (a, b) = (BF16::narrow(x).0, half::bf16::from_f32(x).to_bits());
            assert_eq!(a, b, "{x:?}");
        }
    }
}
