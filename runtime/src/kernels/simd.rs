//! Inner loops compiled twice: for every CPU, and for those with wider vectors.
//!
//! Both give the same bits: no operation is contracted or reassociated, so ranks on different machines agree.

/// Declares a function whose body is also compiled for AVX2; this version is chosen if the CPU supports it.
/// All functions that the body calls in its loops must be inlined.
macro_rules! widened {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$($r:ident: $bound:path),+>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name<$($r: $bound),+>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn plain<$($r: $bound),+>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide<$($r: $bound),+>($($arg: $ty),*) $(-> $ret)? {
                    plain::<$($r),+>($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the CPU has AVX2.
                    return unsafe { wide::<$($r),+>($($arg),*) };
                }
            }
            plain::<$($r),+>($($arg),*)
        }
    };
}
pub(super) use widened;
