// Matrix instructions by element type.

namespace sc {

SC_FN void mma(bf16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(c, a, b0, b1); }
SC_FN void mma(f16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_f16(c, a, b0, b1); }

// Packs two elements into a word.
SC_FN u32 pack(bf16, float low, float high) { return pack_bf16(low, high); }
SC_FN u32 pack(f16, float low, float high) { return pack_f16(low, high); }

// The bits of an element that are all set if it is infinite or not a number.
SC_FN u32 exponent_of(bf16) { return 0x7f80; }
SC_FN u32 exponent_of(f16) { return 0x7c00; }
template <class T> SC_FN bool is_finite(T, u32 pair) {
    const u32 low = exponent_of(T()), high = low << 16;
    return (pair & low) != low && (pair & high) != high;
}

struct Sums { float x[4]; };
// c + a b for weights a, except that values with weight 0 add nothing to a row, even if b is not finite
// there.
template <class T> static __device__ __noinline__ Sums multiply_apart(Sums c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 a[4] = {a0, a1, a2, a3};
    if (__ballot_sync(0xffffffffu, !is_finite(T(), b0) || !is_finite(T(), b1)) == 0) {
        mma(T(), c.x, a, b0, b1);
        return c;
    }
    const int lane = threadIdx.x % 32, t = lane % 4;
    const auto seen = [](u32 pair, u32 weights) {
        return (weights & 0x7fff ? pair & 0xffff : 0) | (weights & 0x7fff0000 ? pair & 0xffff0000u : 0);
    };
#pragma unroll 1
    for (int row = 0; row < 16; row++) {
        // Each row takes its own part of the products for its visible keys.
        const bool low = row < 8;
        const u32 w0 = __shfl_sync(0xffffffffu, low ? a0 : a1, row % 8 * 4 + t);
        const u32 w1 = __shfl_sync(0xffffffffu, low ? a2 : a3, row % 8 * 4 + t);
        float own[4] = {0, 0, 0, 0};
        mma(T(), own, a, seen(b0, w0), seen(b1, w1));
        if (lane / 4 == row % 8) {
            if (low) c.x[0] += own[0], c.x[1] += own[1];
            else c.x[2] += own[2], c.x[3] += own[3];
        }
    }
    return c;
}
template <class T> SC_FN void mma_seen(T, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Sums sums;
#pragma unroll
    for (int i = 0; i < 4; i++) sums.x[i] = c[i];
    sums = multiply_apart<T>(sums, a[0], a[1], a[2], a[3], b0, b1);
#pragma unroll
    for (int i = 0; i < 4; i++) c[i] = sums.x[i];
}

// A nonzero weight stays nonzero when it is rounded.
SC_FN float kept(bf16, float weight) { return weight; }
SC_FN float kept(f16, float weight) {
    const float least = 5.9604644775390625e-8f;
    return weight > 0 && weight < least ? least : weight;
}

} // namespace sc
