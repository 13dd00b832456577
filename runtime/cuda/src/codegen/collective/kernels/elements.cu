// Elements: the stored and the accumulated form of each dtype, the reductions, and runs of elements in words.

namespace symmc_peer {

/// A dtype: its stored type and its accumulator type.
template <class T>
struct Plain {
    typedef T Stored;
    typedef T Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Acc x) { return x; }
};
struct F32 : Plain<float> {};
struct F64 : Plain<double> {};
struct I8 : Plain<i8> {};
struct I16 : Plain<i16> {};
struct I32 : Plain<i32> {};
struct I64 : Plain<i64> {};
struct U8 : Plain<u8> {};
struct U16 : Plain<u16> {};
struct U32 : Plain<u32> {};

/// Integers whose average needs an exact sum.
template <class T>
struct WideInteger {
    typedef T Stored;
    typedef i64 Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Acc x) { return (Stored)x; }
};
struct WideI8 : WideInteger<i8> {};
struct WideI16 : WideInteger<i16> {};
struct WideI32 : WideInteger<i32> {};
struct WideU8 : WideInteger<u8> {};
struct WideU16 : WideInteger<u16> {};
struct WideU32 : WideInteger<u32> {};

struct F16 {
    typedef u16 Stored;
    typedef float Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return of_half(x); }
    static __device__ __forceinline__ Stored narrow(Acc x) { return to_half(x); }
    static __device__ __forceinline__ u32 narrow(Acc x, Acc y) { return to_halves(x, y); }
};
struct BF16 {
    typedef u16 Stored;
    typedef float Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return of_bits((u32)x << 16); }
    static __device__ __forceinline__ Stored narrow(Acc x) { return to_bfloat(x); }
    static __device__ __forceinline__ u32 narrow(Acc x, Acc y) { return to_bfloats(x, y); }
};

// Integers wrap; the maximum and the minimum of two floats are NaN if one of them is.
struct Sum {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) { return (A)((u64)a + (u64)b); }
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
    static __device__ __forceinline__ double of(double a, double b) { return a + b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Avg : Sum {
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a / (A)N; }
};
struct Prod {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) { return (A)((u64)a * (u64)b); }
    static __device__ __forceinline__ float of(float a, float b) { return a * b; }
    static __device__ __forceinline__ double of(double a, double b) { return a * b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Max {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) { return a != a || a >= b ? a : b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Min {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) { return a != a || a <= b ? a : b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Or {
    static __device__ __forceinline__ u8 of(u8 a, u8 b) { return a | b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct And {
    static __device__ __forceinline__ u8 of(u8 a, u8 b) { return a & b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};

/// `W` words of 8 bytes, as elements.
template <class T, u32 W>
struct Run {
    typedef typename T::Stored Stored;
    typedef typename T::Acc Acc;
    static constexpr u32 COUNT = 8 * W / sizeof(Stored);
    union {
        u64 words[W];
        u32 halves[2 * W];
        Stored items[COUNT];
    };

    __device__ __forceinline__ void widen(Acc* out) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) out[k] = T::widen(items[k]);
    }
    __device__ __forceinline__ void narrow(const Acc* x) {
        if constexpr (sizeof(Stored) == 2 && sizeof(Acc) == 4) {
#pragma unroll
            for (u32 k = 0; k < COUNT / 2; k++) halves[k] = T::narrow(x[2 * k], x[2 * k + 1]);
        } else {
#pragma unroll
            for (u32 k = 0; k < COUNT; k++) items[k] = T::narrow(x[k]);
        }
    }
};

/// Reduces one run of each rank in ascending order of rank.
template <class T, class O, u32 N, u32 W>
__device__ __forceinline__ Run<T, W> reduce_runs(const Run<T, W>* runs) {
    typedef typename T::Acc Acc;
    constexpr u32 COUNT = Run<T, W>::COUNT;
    Acc acc[COUNT], next[COUNT];
    runs[0].widen(acc);
#pragma unroll
    for (u32 p = 1; p < N; p++) {
        runs[p].widen(next);
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) acc[k] = O::of(acc[k], next[k]);
    }
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) acc[k] = O::template finish<N>(acc[k]);
    Run<T, W> out;
    out.narrow(acc);
    return out;
}

/// The sum of two runs, rounded once.
template <class T, u32 W>
__device__ __forceinline__ Run<T, W> add_runs(const Run<T, W>& x, const Run<T, W>& y) {
    constexpr u32 COUNT = Run<T, W>::COUNT;
    typename T::Acc sum[COUNT], other[COUNT];
    x.widen(sum);
    y.widen(other);
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) sum[k] += other[k];
    Run<T, W> out;
    out.narrow(sum);
    return out;
}

template <class T>
__device__ __forceinline__ Run<T, 2> run_of(const Wide& wide) {
    Run<T, 2> run;
    run.words[0] = wide.low;
    run.words[1] = wide.high;
    return run;
}

template <class T>
__device__ __forceinline__ Wide wide_of(const Run<T, 2>& run) {
    return Wide{run.words[0], run.words[1]};
}

template <class T>
__device__ __forceinline__ Run<T, 2> load_run(u64 at) {
    return run_of<T>(load_wide(at));
}

}  // namespace symmc_peer
