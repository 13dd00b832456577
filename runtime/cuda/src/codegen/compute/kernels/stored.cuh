// Skinny GEMM by tensor cores with right matrices of 8 bits, whose lines are along k.
//
// A block computes 8 * COLUMNS columns of P products side by side. Its warps divide k into chunks of 64: a lane reads 16
// adjacent bytes of a line. The terms of a matrix instruction may be in any order, so the lanes keep the terms that they
// have read, and read the same terms of `a`. `L` is as for `gemv`, with the type B of the elements of b.

namespace sc {

// Four numbers of 8 bits in a word, as two words of two elements each. The conversions are exact.
SC_FN void widen(bf16, signed char, u32 x, u32 (&out)[2]) {
    // 128 or 256 by the sign, less from 128 plus the other bits.
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 pair = __byte_perm(x, 0, i == 0 ? 0x4140 : 0x4342);
        out[i] = fma_bf16x2((pair & 0x007f007fu) | 0x43004300u, 0x3f803f80u, (pair & 0x00800080u) | 0xc300c300u);
    }
}
SC_FN void widen(bf16, u8, u32 x, u32 (&out)[2]) {
    widen(bf16(), (signed char)0, x ^ 0x80808080u, out);
#pragma unroll
    for (int i = 0; i < 2; i++) out[i] = fma_bf16x2(out[i], 0x3f803f80u, 0x43004300u);
}
SC_FN void widen(f16, u8, u32 x, u32 (&out)[2]) {
    // 1024 plus the bits, less 1024.
#pragma unroll
    for (int i = 0; i < 2; i++)
        out[i] = fma_f16x2(__byte_perm(x, 0, i == 0 ? 0x4140 : 0x4342) | 0x64006400u, 0x3c003c00u, 0xe400e400u);
}
SC_FN void widen(f16, signed char, u32 x, u32 (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        out[i] = fma_f16x2(__byte_perm(x ^ 0x80808080u, 0, i == 0 ? 0x4140 : 0x4342) | 0x64006400u, 0x3c003c00u, 0xe480e480u);
}
// The exponent and the mantissa move to their places, and a power of two corrects the bias. NaN is handled separately.
SC_FN void widen(bf16, f8e4m3, u32 x, u32 (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 pair = __byte_perm(x, 0, i == 0 ? 0x1404 : 0x3424);
        out[i] = fma_bf16x2((pair & 0x80008000u) | (pair >> 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
    }
}
SC_FN void widen(f16, f8e4m3, u32 x, u32 (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 pair = __byte_perm(x, 0, i == 0 ? 0x1404 : 0x3424);
        out[i] = fma_f16x2((pair & 0x80008000u) | (pair >> 1 & 0x3f803f80u), 0x5c005c00u, 0x80008000u);
    }
}

// A word that is not 0 if one of the four elements is not a number.
template <class B> SC_FN u32 not_numbers(B, u32) { return 0; }
SC_FN u32 not_numbers(f8e4m3, u32 x) { return (x & 0x7f7f7f7fu) + 0x01010101u & 0x80808080u; }

template <class L, class F> SC_FN void skinny_stored(const void *pa, const void *const *pb, F epilogue) {
    typedef typename L::T T;
    typedef typename L::B B;
    const int M = L::M, P = L::P, C = L::COLUMNS, R = (M + 15) / 16, WARPS = L::WARPS, CHUNK = 64;
    // The chunks that a warp reads at once.
    const int HELD = P * C == 1 ? 8 : P * C == 2 ? 4 : 2;
    __shared__ float parts[WARPS][P][M][8 * C];
    __shared__ u32 invalid[P][8 * C];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, t = lane % 4;
    const T *a = (const T *)pa;
    const Part part = L::part(blockIdx.x);
    uint4 w[HELD][P][C];
    const auto fetch = [&](i64 first) {
#pragma unroll
        for (int h = 0; h < HELD; h++)
#pragma unroll
            for (int p = 0; p < P; p++)
#pragma unroll
                for (int c = 0; c < C; c++) {
                    const i64 k = first + h * CHUNK + t * 16, column = part.column0 + c * 8 + line;
                    w[h][p][c].x = w[h][p][c].y = w[h][p][c].z = w[h][p][c].w = 0;
                    if (k < L::K && column < part.columns)
                        w[h][p][c] = *(const uint4 *)((const u8 *)pb[part.product + p] + column * L::b_step + k);
                }
    };
    // Each warp reads adjacent chunks.
    const i64 own = warp * HELD * CHUNK;
    if (L::STEADY) fetch(own);
    L::enter();
    if (!L::STEADY) fetch(own);
    for (int i = threadIdx.x; i < P * 8 * C; i += 32 * WARPS) (&invalid[0][0])[i] = 0;
    __syncthreads();
    float acc[P][C][R][4];
#pragma unroll
    for (int i = 0; i < P * C * R * 4; i++) (&acc[0][0][0][0])[i] = 0;
    u32 flags[P][C];
#pragma unroll
    for (int i = 0; i < P * C; i++) (&flags[0][0])[i] = 0;
    for (i64 first = own; first < L::K; first += WARPS * HELD * CHUNK) {
        if (first > own) fetch(first);
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const i64 k = first + h * CHUNK + t * 16;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                // Two rows of each tile: those of the lane, with 8 of its terms.
                uint4 x[R][2];
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int row = r * 16 + i * 8 + line;
                        x[r][i].x = x[r][i].y = x[r][i].z = x[r][i].w = 0;
                        if (r * 16 + i * 8 < M && row < M && k < L::K) x[r][i] = *(const uint4 *)(a + row * L::a_step + k + half * 8);
                    }
#pragma unroll
                for (int p = 0; p < P; p++)
#pragma unroll
                    for (int c = 0; c < C; c++)
#pragma unroll
                        for (int q = 0; q < 2; q++) {
                            const u32 word = half == 0 ? (q == 0 ? w[h][p][c].x : w[h][p][c].y) : (q == 0 ? w[h][p][c].z : w[h][p][c].w);
                            u32 b[2];
                            widen(T(), B(), word, b);
                            flags[p][c] |= not_numbers(B(), word);
#pragma unroll
                            for (int r = 0; r < R; r++) {
                                const u32 rows[4] = {
                                    q == 0 ? x[r][0].x : x[r][0].z,
                                    q == 0 ? x[r][1].x : x[r][1].z,
                                    q == 0 ? x[r][0].y : x[r][0].w,
                                    q == 0 ? x[r][1].y : x[r][1].w,
                                };
                                mma(T(), acc[p][c][r], rows, b[0], b[1]);
                            }
                        }
            }
        }
    }
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (flags[p][c] != 0) invalid[p][c * 8 + line] = 1;
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = r * 16 + i / 2 * 8 + line;
                    if (row < M) parts[warp][p][row][c * 8 + t * 2 + i % 2] = acc[p][c][r][i];
                }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < M * 8 * C; i += 32 * WARPS) {
        const int row = i / (8 * C), at = i % (8 * C);
        if (part.column0 + at >= part.columns) continue;
        float sums[P];
#pragma unroll
        for (int p = 0; p < P; p++) {
            sums[p] = 0;
            for (int from = 0; from < WARPS; from++) sums[p] += parts[from][p][row][at];
            if (invalid[p][at] != 0) sums[p] = __uint_as_float(0x7fc00000u);
        }
        epilogue(part.product, (i64)row, part.column0 + at, sums);
    }
}

} // namespace sc
