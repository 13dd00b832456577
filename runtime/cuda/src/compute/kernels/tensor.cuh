// Attention of many queries in bf16 and f16 by matrix instructions.
//
// As `attend`, with 64 rows for a block, 16 for a warp, and keys in tiles of 64 (FlashAttention-2, Dao, 2023).
// Scores and sums are f32; the weights are rounded to the type of the values before they multiply them.
// Fragments lie in registers as `mma.m16n8k16` has them: with g = lane / 4 and t = lane % 4, an accumulator
// holds columns 2t and 2t + 1 of rows g and g + 8.

namespace sc {

template <class T> SC_FN u32 pack(float low, float high) {
    return (u32)Put<T>::of(low).v | (u32)Put<T>::of(high).v << 16;
}

// Copies 64 rows of WIDTH elements to shared memory, zeros from row n on.
template <class T, int WIDTH, int PITCH> SC_FN void copy_tile(u16 *to, const T *from, i64 row_step, int n) {
    const int PER_ROW = WIDTH / 8;
#pragma unroll 4
    for (int e = threadIdx.x; e < 64 * PER_ROW; e += 128) {
        const int row = e / PER_ROW, column = e % PER_ROW * 8;
        uint4 x;
        x.x = 0, x.y = 0, x.z = 0, x.w = 0;
        if (row < n) x = *(const uint4 *)(from + row * row_step + column);
        *(uint4 *)(to + row * PITCH + column) = x;
    }
}

template <class L, int SPLITS, bool CAUSAL, int MASK>
SC_FN void attend_tensor(const void *pq, const void *pk, const void *pv, const void *pm, void *pr, void *partial) {
    typedef typename L::T T;
    const int E = L::E, F = L::F, EP = E + 8, FP = F + 8, RECORD = F + 2;
    const float LOG2E = 1.44269504088896340736f;
    u16 *ks = (u16 *)dynamic_shared(), *vs = ks + 64 * EP;
    const u32 tiles = (L::ROWS + 63) / 64;
    u32 b = blockIdx.x;
    const u32 split = b % SPLITS;
    b /= SPLITS;
    const u32 tile = tiles - 1 - b % tiles, head = b / tiles;
    const i64 row0 = (i64)tile * 64;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const T *q = (const T *)pq + L::q_head(head), *k = (const T *)pk + L::k_head(head), *v = (const T *)pv + L::v_head(head);
    const i64 rows[2] = {row0 + warp * 16 + g, row0 + warp * 16 + g + 8};
    u32 qa[E / 16][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const T *from = q + (rows[h] < L::ROWS ? L::q_row(rows[h]) : 0);
#pragma unroll
        for (int e = 0; e < E / 16; e++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const i64 column = e * 16 + half * 8 + 2 * t;
                u32 low = from[column * L::q_step].v, high = from[(column + 1) * L::q_step].v;
                qa[e][half * 2 + h] = rows[h] < L::ROWS ? low | high << 16 : 0;
            }
    }
    i64 first = (i64)split * L::CHUNK, end = first + L::CHUNK < L::S ? first + L::CHUNK : L::S;
    // The query of the first row of the block, where all rows are of one query head, bounds what all see.
    const i64 top_row = row0 + 64 < L::ROWS ? row0 + 63 : L::ROWS - 1;
    const bool one_head = row0 / L::Q == top_row / L::Q;
    const i64 all_see = one_head ? row0 % L::Q : 0;
    if (CAUSAL) {
        i64 seen = one_head ? top_row % L::Q + 1 : L::Q;
        if (seen < end) end = seen;
    }
    float max[2], sum[2], acc[F / 8][4];
#pragma unroll
    for (int h = 0; h < 2; h++) max[h] = minus_infinity(0.0f), sum[h] = 0;
#pragma unroll
    for (int f = 0; f < F / 8; f++)
#pragma unroll
        for (int c = 0; c < 4; c++) acc[f][c] = 0;
    for (i64 start = first; start < end; start += 64) {
        const int n = end - start < 64 ? (int)(end - start) : 64;
        __syncthreads();
        copy_tile<T, E, EP>(ks, k + start * L::k_row_step, L::k_row_step, n);
        copy_tile<T, F, FP>(vs, v + start * L::v_row_step, L::v_row_step, n);
        __syncthreads();
        float s[8][4];
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) s[j][c] = 0;
#pragma unroll
            for (int e = 0; e < E / 16; e++) {
                const u16 *from = ks + (j * 8 + g) * EP + e * 16 + 2 * t;
                multiply(T(), s[j], qa[e], *(const u32 *)from, *(const u32 *)(from + 8));
            }
        }
        const bool whole = MASK == 0 && n == 64 && (!CAUSAL || start + 63 <= all_see);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float x = s[j][c] * (L::scale() * LOG2E);
                if (!whole) {
                    const int column = j * 8 + 2 * t + (c & 1);
                    const i64 key = start + column, row = rows[c / 2];
                    bool seen = column < n && row < L::ROWS && (!CAUSAL || key <= row % L::Q);
                    if (MASK != 0 && seen) {
                        auto m = get(((const typename L::M *)pm)[L::m_head(head) + L::m_row(row) + key * L::m_step]);
                        if (MASK == 1) seen = m != 0;
                        if (MASK == 2) x = x + (float)m * LOG2E;
                    }
                    if (!seen) x = minus_infinity(0.0f);
                }
                s[j][c] = x;
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = max[h];
#pragma unroll
            for (int j = 0; j < 8; j++) top = b_max(b_max(top, s[j][2 * h]), s[j][2 * h + 1]);
            top = b_max(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = b_max(top, __shfl_xor_sync(0xffffffffu, top, 2));
            // Where nothing is seen yet all weights are e^-inf, which is 0.
            const float base = top == minus_infinity(0.0f) ? 0.0f : top;
            const float shrink = exp2f(max[h] - base);
            max[h] = top;
            float total = 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int c = 2 * h; c < 2 * h + 2; c++) {
                    s[j][c] = exp2f(s[j][c] - base);
                    total += s[j][c];
                }
            sum[h] = sum[h] * shrink + total;
#pragma unroll
            for (int f = 0; f < F / 8; f++) acc[f][2 * h] *= shrink, acc[f][2 * h + 1] *= shrink;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 p[4] = {pack<T>(s[2 * j][0], s[2 * j][1]), pack<T>(s[2 * j][2], s[2 * j][3]),
                              pack<T>(s[2 * j + 1][0], s[2 * j + 1][1]), pack<T>(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
            for (int f = 0; f < F / 16; f++) {
                u32 y[4];
                load_transposed(y, vs + (j * 16 + lane % 16) * FP + f * 16 + lane / 16 * 8);
                multiply(T(), acc[2 * f], p, y[0], y[1]);
                multiply(T(), acc[2 * f + 1], p, y[2], y[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        const i64 row = rows[h];
        if (row >= L::ROWS) continue;
        if (SPLITS == 1) {
            const float scale = sum[h] == 0 ? 0.0f : 1 / sum[h];
            T *to = (T *)pr + L::r_head(head) + L::r_row(row);
#pragma unroll
            for (int f = 0; f < F / 8; f++)
#pragma unroll
                for (int c = 0; c < 2; c++) to[(f * 8 + 2 * t + c) * L::r_step] = Put<T>::of(acc[f][2 * h + c] * scale);
        } else {
            float *to = (float *)partial + (((i64)head * L::ROWS + row) * SPLITS + split) * RECORD;
#pragma unroll
            for (int f = 0; f < F / 8; f++)
#pragma unroll
                for (int c = 0; c < 2; c++) to[f * 8 + 2 * t + c] = acc[f][2 * h + c];
            if (t == 0) to[F] = max[h] / LOG2E, to[F + 1] = sum[h];
        }
    }
}

} // namespace sc
