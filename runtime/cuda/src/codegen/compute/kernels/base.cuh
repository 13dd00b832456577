// Element types, conversions, element-wise functions and reports of invalid data: the basis of all kernels.
//
// A stored element is read in its computed type (`get`): float for f32 and narrower floats, double for f64, i64
// for integers and bool. It is written with one rounding to nearest even (`Put`); integers wrap. No CUDA header
// is included. Arithmetic uses `_rn` intrinsics if contraction of two ops into one would skip the rounding
// between them.

namespace sc {

struct bf16 { u16 v; };
struct f16 { u16 v; };
struct boolean { u8 v; };
struct f8e4m3 { u8 v; };
struct f8e5m2 { u8 v; };
struct f8e8m0 { u8 v; };

SC_FN float get(bf16 x) { return __uint_as_float((u32)x.v << 16); }
SC_FN float get(f16 x) { return f16_to_float(x.v); }
SC_FN float get(float x) { return x; }
SC_FN double get(double x) { return x; }
SC_FN i64 get(signed char x) { return x; }
SC_FN i64 get(short x) { return x; }
SC_FN i64 get(int x) { return x; }
SC_FN i64 get(u16 x) { return x; }
SC_FN i64 get(u32 x) { return x; }
SC_FN i64 get(i64 x) { return x; }
SC_FN i64 get(u8 x) { return x; }
SC_FN i64 get(boolean x) { return x.v != 0; }

// Floats of 8 bits, as in `ir/src/float8.rs`. The products are exact, and make subnormal numbers normal.
SC_FN float get(f8e4m3 x) {
    const u32 magnitude = x.v & 0x7fu;
    const u32 finite = __float_as_uint(__uint_as_float(magnitude << 20) * __uint_as_float((127u + 120) << 23));
    return __uint_as_float((x.v & 0x80u) << 24 | (magnitude == 0x7f ? 0x7fc00000u : finite));
}
SC_FN float get(f8e5m2 x) {
    const u32 magnitude = x.v & 0x7fu;
    const u32 finite = __float_as_uint(__uint_as_float(magnitude << 21) * __uint_as_float((127u + 112) << 23));
    const u32 special = magnitude == 0x7c ? 0x7f800000u : 0x7fc00000u;
    return __uint_as_float((x.v & 0x80u) << 24 | (magnitude < 0x7c ? finite : special));
}
SC_FN float get(f8e8m0 x) {
    return __uint_as_float(x.v == 0 ? 1u << 22 : x.v == 0xff ? 0x7fc00000u : (u32)x.v << 23);
}

// The magnitude of a float, as bits, rounded to nearest even with MANTISSA bits of mantissa and this bias of
// exponents. It is below the overflow.
template <u32 MANTISSA, u32 BIAS> SC_FN u32 round_magnitude(u32 magnitude) {
    constexpr u32 DROPPED = 23 - MANTISSA, SHIFT = (127 + DROPPED + 1 - BIAS) << 23;
    const u32 rebiased = magnitude - ((127 - BIAS) << 23);
    const u32 normal = (rebiased + (1u << (DROPPED - 1)) - 1 + (rebiased >> DROPPED & 1)) >> DROPPED;
    const float sum = __fadd_rn(__uint_as_float(magnitude), __uint_as_float(SHIFT));
    return magnitude < (127 - BIAS + 1) << 23 ? __float_as_uint(sum) - SHIFT : normal;
}

// The type in which an element is computed.
template <class T> struct Computed { typedef i64 C; };
template <> struct Computed<bf16> { typedef float C; };
template <> struct Computed<f16> { typedef float C; };
template <> struct Computed<f8e4m3> { typedef float C; };
template <> struct Computed<f8e5m2> { typedef float C; };
template <> struct Computed<f8e8m0> { typedef float C; };
template <> struct Computed<float> { typedef float C; };
template <> struct Computed<double> { typedef double C; };

// x as float. An inexact value becomes its neighbour with an odd last bit, so that a second rounding to a
// narrower type gives the same result as one rounding of x (Boldo and Melquiond, 2008).
SC_FN float to_odd(double x) {
    float near = __double2float_rn(x);
    double back = near;
    u32 bits = __float_as_uint(near);
    if (back == x || x != x || (bits & 1)) return near;
    return __uint_as_float(fabs(back) > fabs(x) ? bits - 1 : bits + 1);
}

// Rounds towards zero; saturates to the range of i64; NaN becomes 0.
SC_FN i64 to_int(float x) { return x != x ? 0 : __float2ll_rz(x); }
SC_FN i64 to_int(double x) { return x != x ? 0 : __double2ll_rz(x); }
SC_FN i64 to_int(i64 x) { return x; }

template <class T> struct Put;
template <> struct Put<bf16> {
    SC_FN bf16 of(float x) {
        bf16 r;
        r.v = float_to_bf16(x);
        return r;
    }
    SC_FN bf16 of(double x) { return of(to_odd(x)); }
    SC_FN bf16 of(i64 x) { return of((double)x); }
};
template <> struct Put<f16> {
    SC_FN f16 of(float x) {
        f16 r;
        r.v = float_to_f16(x);
        return r;
    }
    SC_FN f16 of(double x) { return of(to_odd(x)); }
    SC_FN f16 of(i64 x) { return of((double)x); }
};
template <> struct Put<float> {
    SC_FN float of(float x) { return x; }
    SC_FN float of(double x) { return __double2float_rn(x); }
    SC_FN float of(i64 x) { return __ll2float_rn(x); }
};
template <> struct Put<double> {
    SC_FN double of(float x) { return x; }
    SC_FN double of(double x) { return x; }
    SC_FN double of(i64 x) { return __ll2double_rn(x); }
};
template <> struct Put<f8e4m3> {
    SC_FN f8e4m3 of(float x) {
        const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu, largest = 0x43e00000u;
        const u32 rounded = round_magnitude<3, 7>(magnitude < largest ? magnitude : largest);
        f8e4m3 r;
        r.v = (u8)((bits >> 24 & 0x80) | (magnitude > 0x7f800000u ? 0x7f : rounded));
        return r;
    }
    SC_FN f8e4m3 of(double x) { return of(to_odd(x)); }
    SC_FN f8e4m3 of(i64 x) { return of((double)x); }
};
template <> struct Put<f8e5m2> {
    SC_FN f8e5m2 of(float x) {
        const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu, overflow = 0x47800000u;
        const u32 rounded = round_magnitude<2, 15>(magnitude < overflow ? magnitude : overflow);
        f8e5m2 r;
        r.v = (u8)((bits >> 24 & 0x80) | (magnitude > 0x7f800000u ? 0x7f : rounded));
        return r;
    }
    SC_FN f8e5m2 of(double x) { return of(to_odd(x)); }
    SC_FN f8e5m2 of(i64 x) { return of((double)x); }
};
template <> struct Put<f8e8m0> {
    SC_FN f8e8m0 of(float x) {
        const u32 magnitude = __float_as_uint(x) & 0x7fffffffu, exponent = magnitude >> 23;
        const u32 rounds_up = (magnitude & 0x7fffff) + (exponent > 0) > 0x400000;
        f8e8m0 r;
        r.v = (u8)(exponent == 0xff ? 0xff : exponent + rounds_up);
        return r;
    }
    SC_FN f8e8m0 of(double x) { return of(to_odd(x)); }
    SC_FN f8e8m0 of(i64 x) { return of((double)x); }
};
#define SC_INTEGER(T)                                                                                       \
    template <> struct Put<T> {                                                                             \
        template <class C> SC_FN T of(C x) { return (T)to_int(x); }                                         \
    };
SC_INTEGER(signed char)
SC_INTEGER(short)
SC_INTEGER(int)
SC_INTEGER(i64)
SC_INTEGER(u8)
SC_INTEGER(u16)
SC_INTEGER(u32)
#undef SC_INTEGER
template <> struct Put<boolean> {
    template <class C> SC_FN boolean of(C x) {
        boolean r;
        r.v = x != 0;
        return r;
    }
};

// An element with the given bits.
template <class T> SC_FN T raw(u64 bits) {
    union { u64 bits; T x; } u;
    u.bits = bits;
    return u.x;
}

// The bits of an element as an element of another type.
template <class T, class U> SC_FN T bits_as(U x) {
    union Bits {
        U x;
        T y;
        __device__ Bits(U x) : x(x) {}
    } bits(x);
    return bits.y;
}

// V adjacent elements, moved in one access.
template <int BYTES> struct Wide;
template <> struct Wide<1> { typedef u8 W; };
template <> struct Wide<2> { typedef u16 W; };
template <> struct Wide<4> { typedef u32 W; };
template <> struct Wide<8> { typedef uint2 W; };
template <> struct Wide<16> { typedef uint4 W; };

template <class T, int V> union Few {
    typename Wide<sizeof(T) * V>::W w;
    T e[V];
    __device__ Few() {}
};
template <class T, int V> SC_FN void read(Few<T, V> &out, const T *p) {
    out.w = *(const typename Wide<sizeof(T) * V>::W *)p;
}
template <class T, int V> SC_FN void write(T *p, const Few<T, V> &x) {
    *(typename Wide<sizeof(T) * V>::W *)p = x.w;
}

// Reports invalid data. The number of the assertion identifies the problem on the host. The first report is
// kept, except that concurrent reports may overwrite each other; the two words are stored together.
SC_FN void report(void *status, u32 assertion, i64 index, u32 detail = 0) {
    if (((volatile u64 *)status)[1] != 0) return;
    store_pair(status, (u64)index, (u64)detail << 32 | assertion);
}

// The lanes of the warp that take part with the same value below VALUES. All lanes call this together.
template <int VALUES> SC_FN u32 lanes_with(u32 value, bool takes_part) {
    u32 same = __ballot_sync(0xffffffffu, takes_part);
    for (u32 bit = 1; bit < VALUES; bit *= 2) {
        const u32 set = __ballot_sync(0xffffffffu, (value & bit) != 0);
        same &= (value & bit) != 0 ? set : ~set;
    }
    return same;
}

// The position of an index on an axis, or -1.
SC_FN i64 position(i64 index, i64 extent) {
    return index < 0 || index >= extent ? -1 : index;
}

// x / y to two units in the last place for finite x; 0 if y is beyond 2^126. A division by `/` branches, and
// takes ten times as long.
SC_FN float quotient(float x, float y) { return __fdividef(x, y); }
SC_FN double quotient(double x, double y) { return x / y; }

#define SC_REAL(F, S)                                                                                       \
    SC_FN F u_neg(F x) { return -x; }                                                                       \
    SC_FN F u_abs(F x) { return fabs##S(x); }                                                               \
    SC_FN F u_sign(F x) { return (F)((x > 0) - (x < 0)); }                                                  \
    SC_FN F u_exp(F x) { return exp##S(x); }                                                                \
    SC_FN F u_log(F x) { return log##S(x); }                                                                \
    SC_FN F u_sqrt(F x) { return sqrt##S(x); }                                                              \
    SC_FN F u_rsqrt(F x) { return 1 / sqrt##S(x); }                                                         \
    SC_FN F u_reciprocal(F x) { return 1 / x; }                                                             \
    SC_FN F u_sin(F x) { return sin##S(x); }                                                                \
    SC_FN F u_cos(F x) { return cos##S(x); }                                                                \
    SC_FN F u_tanh(F x) { return tanh##S(x); }                                                              \
    SC_FN F u_erf(F x) { return erf##S(x); }                                                                \
    SC_FN F u_floor(F x) { return floor##S(x); }                                                            \
    SC_FN F u_ceil(F x) { return ceil##S(x); }                                                              \
    SC_FN F u_round(F x) { return rint##S(x); }                                                             \
    SC_FN F u_trunc(F x) { return trunc##S(x); }                                                            \
    SC_FN F u_relu(F x) { return x < 0 ? 0 : x; }                                                           \
    SC_FN F u_sigmoid(F x) { return quotient((F)1, 1 + exp##S(-x)); }                                       \
    SC_FN F u_silu(F x) { return quotient(x, 1 + exp##S(-x)); }                                             \
    SC_FN F u_gelu(F x) { return (F)0.5 * x * erfc##S(x * (F)-0.70710678118654752440); }                    \
    SC_FN F u_gelu_tanh(F x) {                                                                              \
        F u = (F)0.79788456080286535588 * (x + (F)0.044715 * x * x * x);                                    \
        return quotient(x, 1 + exp##S(-2 * u));                                                             \
    }                                                                                                       \
    SC_FN i64 u_is_nan(F x) { return x != x; }                                                              \
    SC_FN i64 u_is_finite(F x) { return x - x == 0; }                                                       \
    SC_FN F b_rem(F x, F y) {                                                                               \
        F r = fmod##S(x, y);                                                                                \
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;                                                    \
    }                                                                                                       \
    SC_FN F b_pow(F x, F y) { return y == 2 ? x * x : pow##S(x, y); }                                       \
    SC_FN F b_atan2(F x, F y) { return atan2##S(x, y); }                                                    \
    /* The first of equals; NaN if one is. */                                                               \
    SC_FN F b_max(F x, F y) { return x >= y || x != x ? x : y; }                                            \
    SC_FN F b_min(F x, F y) { return x <= y || x != x ? x : y; }

SC_REAL(float, f)
SC_REAL(double, )

// In double for float too: the difference and the quotient would be rounded in float.
SC_FN double b_floor_div(double x, double y) {
    if (y == 0) return x / y;
    double r = fmod(x, y);
    double q = (x - r) / y;
    if (r != 0 && (y < 0) != (r < 0)) q -= 1;
    if (q == 0) return copysign(0.0, x / y);
    double f = floor(q);
    return q - f > 0.5 ? f + 1 : f;
}
SC_FN float b_floor_div(float x, float y) {
    return __double2float_rn(b_floor_div((double)x, (double)y));
}

SC_FN float b_add(float x, float y) { return __fadd_rn(x, y); }
SC_FN float b_sub(float x, float y) { return __fadd_rn(x, -y); }
SC_FN float b_mul(float x, float y) { return __fmul_rn(x, y); }
SC_FN float b_div(float x, float y) { return __fdiv_rn(x, y); }
SC_FN double b_add(double x, double y) { return __dadd_rn(x, y); }
SC_FN double b_sub(double x, double y) { return __dadd_rn(x, -y); }
SC_FN double b_mul(double x, double y) { return __dmul_rn(x, y); }
SC_FN double b_div(double x, double y) { return __ddiv_rn(x, y); }

SC_FN i64 u_neg(i64 x) { return (i64)(0 - (u64)x); }
SC_FN i64 u_abs(i64 x) { return x < 0 ? u_neg(x) : x; }
SC_FN i64 u_sign(i64 x) { return (x > 0) - (x < 0); }
SC_FN i64 u_relu(i64 x) { return x > 0 ? x : 0; }
SC_FN i64 u_not(i64 x) { return ~x; }
SC_FN i64 u_not_bool(i64 x) { return x == 0; }
SC_FN i64 b_add(i64 x, i64 y) { return (i64)((u64)x + (u64)y); }
SC_FN i64 b_sub(i64 x, i64 y) { return (i64)((u64)x - (u64)y); }
SC_FN i64 b_mul(i64 x, i64 y) { return (i64)((u64)x * (u64)y); }
SC_FN i64 b_max(i64 x, i64 y) { return x > y ? x : y; }
SC_FN i64 b_min(i64 x, i64 y) { return x < y ? x : y; }
SC_FN i64 b_and(i64 x, i64 y) { return x & y; }
SC_FN i64 b_or(i64 x, i64 y) { return x | y; }
SC_FN i64 b_xor(i64 x, i64 y) { return x ^ y; }
// A negative count, and one of the width or more, moves all bits out. Storing cuts those of narrower types.
SC_FN i64 b_shl(i64 x, i64 y) { return y < 0 || y > 63 ? 0 : (i64)((u64)x << y); }
SC_FN i64 b_shr(i64 x, i64 y) { return x >> (y < 0 || y > 63 ? 63 : y); }
// Division by -1 is negation, which wraps; the division instruction would trap on some machines. Division by
// zero gives 0, and sets `bad`.
SC_FN i64 b_floor_div(i64 x, i64 y, bool &bad) {
    if (y == 0) { bad = true; return 0; }
    if (y == -1) return u_neg(x);
    i64 q = x / y, r = x % y;
    return r != 0 && (r < 0) != (y < 0) ? q - 1 : q;
}
SC_FN i64 b_rem(i64 x, i64 y, bool &bad) {
    if (y == 0) { bad = true; return 0; }
    if (y == -1) return 0;
    i64 r = x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
SC_FN i64 b_pow(i64 x, i64 e) {
    if (e < 0) return x == 1 ? 1 : x == -1 ? 1 - 2 * (e & 1) : 0;
    u64 power = 1, base = (u64)x;
    for (u64 left = (u64)e; left; left >>= 1) {
        if (left & 1) power *= base;
        base *= base;
    }
    return (i64)power;
}
template <class C> SC_FN i64 b_eq(C x, C y) { return x == y; }
template <class C> SC_FN i64 b_ne(C x, C y) { return x != y; }
template <class C> SC_FN i64 b_lt(C x, C y) { return x < y; }
template <class C> SC_FN i64 b_le(C x, C y) { return x <= y; }
template <class C> SC_FN i64 b_gt(C x, C y) { return x > y; }
template <class C> SC_FN i64 b_ge(C x, C y) { return x >= y; }

} // namespace sc
