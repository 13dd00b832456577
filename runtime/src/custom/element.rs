//! The types as which kernels of custom ops read and write elements.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

pub use half::{bf16, f16};
use symmc_ir::DType;

mod sealed {
    pub trait Sealed {}
}

/// A stored element: plain bytes, any bit pattern is valid. Bool is `u8`: 0 or 1.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    const NAME: &'static str;

    /// Whether elements of this dtype are stored as this type.
    fn holds(dtype: DType) -> bool;

    /// Stores an element that other ranks may store to at the same time.
    ///
    /// # Safety
    /// `to` is valid for writes and aligned, and concurrent accesses from elsewhere go through this function.
    #[doc(hidden)]
    unsafe fn store(self, to: *mut Self);
}

macro_rules! elements {
    ($($t:ty: $($dtype:ident)|+, $atomic:ty, |$x:ident| $bits:expr;)*) => { $(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const NAME: &'static str = stringify!($t);
            fn holds(dtype: DType) -> bool {
                matches!(dtype, $(DType::$dtype)|+)
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut Self) {
                let $x = self;
                // SAFETY: by the caller; the atomic has the size and alignment of the element.
                unsafe { <$atomic>::from_ptr(to.cast()) }.store($bits, Ordering::Relaxed);
            }
        }
    )* };
}

elements! {
    u8: Bool | U8, AtomicU8, |x| x;
    i32: I32, AtomicU32, |x| x as u32;
    i64: I64, AtomicU64, |x| x as u64;
    f16: F16, AtomicU16, |x| x.to_bits();
    bf16: BF16, AtomicU16, |x| x.to_bits();
    f32: F32, AtomicU32, |x| x.to_bits();
    f64: F64, AtomicU64, |x| x.to_bits();
}
