// Attention of few rows in bf16 and f16, as in decoding (flash-decoding: keys may be split among blocks).
// Keys and values are loaded from memory directly to the registers of MMA instructions, each once, so memory
// bandwidth is the limit.
//
// A block takes 16 rows of a head and a part of its keys; its warps take 16 keys in turn, and merge their
// sums at the end. The layout of fragments is that of tensor.cuh. A sum has no required order of its terms,
// so lanes read adjacent elements, 16 bytes at once. Lane (g, t) reads chunks t, t + 4, … of 8 elements of
// key g, and chunks g, g + 8, … of the values of keys 2t, 2t + 1, 2t + 8 and 2t + 9. Queries and results
// follow these orders.

namespace sc {

SC_FN u32 word(const uint4 &x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }
SC_FN uint4 nothing() {
    uint4 x;
    x.x = 0, x.y = 0, x.z = 0, x.w = 0;
    return x;
}

template <class L> struct Keys {
    static const int CHUNKS = L::E / 32;
    uint4 x[2][CHUNKS];
    // Loads the keys of the 16 from `start` on that are before `end`; the others are zeros.
    __device__ void load(const typename L::T *k, i64 start, i64 end, int g, int t) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const i64 key = start + j * 8 + g;
            const typename L::T *from = k + key * L::k_row_step + t * 8;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) x[j][c] = key < end ? *(const uint4 *)(from + c * 32) : nothing();
        }
    }
};

template <class L> struct Values {
    static const int CHUNKS = L::F / 64;
    uint4 x[4][CHUNKS];
    __device__ void load(const typename L::T *v, i64 start, i64 end, int g, int t) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const i64 key = start + j / 2 * 8 + 2 * t + j % 2;
            const typename L::T *from = v + key * L::v_row_step + g * 8;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) x[j][c] = key < end ? *(const uint4 *)(from + c * 64) : nothing();
        }
    }
};

// Loads the queries of rows `row` as left matrices, with zeros beyond the last row.
template <class L> SC_FN void load_queries(u32 (&qa)[L::E / 16][4], const typename L::T *q, const i64 (&rows)[2], int t) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool in = rows[h] < L::ROWS;
        const typename L::T *from = q + (in ? L::q_row(rows[h]) : 0);
#pragma unroll
        for (int c = 0; c < L::E / 32; c++) {
            u32 words[4];
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const i64 at = (t + 4 * c) * 8 + 2 * w;
                const u32 low = from[at * L::q_step].v, high = from[(at + 1) * L::q_step].v;
                words[w] = in ? low | high << 16 : 0;
            }
            qa[2 * c][h] = words[0], qa[2 * c][2 + h] = words[1];
            qa[2 * c + 1][h] = words[2], qa[2 * c + 1][2 + h] = words[3];
        }
    }
}

// The state of a warp: the maximum, the sum of the weights and the weighted values of rows g and g + 8.
template <class L> struct Weighted {
    float max[2], sum[2], acc[L::F / 8][4];
};

// Accumulates 16 keys, whose scores `s` are in base two. `hides`: some row does not see some of them.
template <class L> SC_FN void take(Weighted<L> &y, float (&s)[2][4], const Values<L> &v, bool hides) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = y.max[h];
#pragma unroll
        for (int j = 0; j < 2; j++) top = fmaxf(fmaxf(top, s[j][2 * h]), s[j][2 * h + 1]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        // If no key is visible yet, all weights are e^-inf, which is 0.
        const float base = top == minus_infinity(0.0f) ? 0.0f : top;
        const float shrink = power_of_two(y.max[h] - base);
        y.max[h] = top;
        float total = 0;
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int c = 2 * h; c < 2 * h + 2; c++) total += s[j][c] = power_of_two(s[j][c] - base);
        y.sum[h] = y.sum[h] * shrink + total;
#pragma unroll
        for (int f = 0; f < L::F / 8; f++) y.acc[f][2 * h] *= shrink, y.acc[f][2 * h + 1] *= shrink;
    }
    typedef typename L::T T;
    if (hides) {
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[j][c] = kept(T(), s[j][c]);
    }
    const u32 p[4] = {pack(T(), s[0][0], s[0][1]), pack(T(), s[0][2], s[0][3]), pack(T(), s[1][0], s[1][1]), pack(T(), s[1][2], s[1][3])};
#pragma unroll
    for (int c = 0; c < L::F / 64; c++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const u32 x[4] = {word(v.x[0][c], w), word(v.x[1][c], w), word(v.x[2][c], w), word(v.x[3][c], w)};
            const u32 low[2] = {(x[0] & 0xffff) | x[1] << 16, (x[2] & 0xffff) | x[3] << 16};
            const u32 high[2] = {x[0] >> 16 | (x[1] & 0xffff0000u), x[2] >> 16 | (x[3] & 0xffff0000u)};
            if (hides) {
                mma_seen(T(), y.acc[c * 8 + 2 * w], p, low[0], low[1]);
                mma_seen(T(), y.acc[c * 8 + 2 * w + 1], p, high[0], high[1]);
            } else {
                mma(T(), y.acc[c * 8 + 2 * w], p, low[0], low[1]);
                mma(T(), y.acc[c * 8 + 2 * w + 1], p, high[0], high[1]);
            }
        }
}

// Merges the states of the warps and stores the rows, or this split's part of each.
template <class L, int SPLITS>
SC_FN void store_rows(const Weighted<L> &y, const i64 (&rows)[2], i64 row0, u32 head, u32 split, void *pr, void *partial) {
    typedef typename L::T T;
    const int F = L::F, RECORD = F + 2, ROWS = L::ROWS < 16 ? (int)L::ROWS : 16;
    const float LOG2E = 1.44269504088896340736f;
    float *parts = (float *)dynamic_shared();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = y.sum[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (g + 8 * h >= ROWS) continue;
        float *to = parts + (warp * ROWS + g + 8 * h) * RECORD;
#pragma unroll
        for (int f = 0; f < F / 8; f++)
#pragma unroll
            for (int c = 0; c < 2; c++) to[f / 8 * 64 + 16 * t + 8 * c + f % 8] = y.acc[f][2 * h + c];
        if (t == 0) to[F] = y.max[h], to[F + 1] = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * F; e += 128) {
        const int r = e / F, f = e % F;
        const i64 row = row0 + r;
        if (row >= L::ROWS) break;
        float max = minus_infinity(0.0f), sum = 0, acc = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) max = fmaxf(max, parts[(w * ROWS + r) * RECORD + F]);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const float *from = parts + (w * ROWS + r) * RECORD;
            const float weight = max == minus_infinity(0.0f) ? 0.0f : power_of_two(from[F] - max);
            sum += from[F + 1] * weight;
            acc += from[f] * weight;
        }
        if (SPLITS == 1) {
            const i64 at = L::r_head(head) + L::r_row(row) + f * L::r_step;
            ((T *)pr)[at] = Put<T>::of(sum == 0 ? 0.0f : acc / sum);
        } else {
            float *to = (float *)partial + (((i64)head * L::ROWS + row) * SPLITS + split) * RECORD;
            to[f] = acc;
            if (f == 0) to[F] = max / LOG2E, to[F + 1] = sum;
        }
    }
}

// STEADY: nothing writes the keys and values while the program runs, and the visible keys do not depend on
// data, so the first ones are prefetched.
template <class L, int SPLITS, bool STEADY, int MASK>
SC_FN void attend_decode(const void *pq, const void *pk, const void *pv, const void *pm, void *pr, void *partial, const void *const *given) {
    typedef typename L::T T;
    const float LOG2E = 1.44269504088896340736f;
    const u32 tiles = (L::ROWS + 15) / 16;
    u32 b = blockIdx.x;
    const u32 split = b % SPLITS;
    b /= SPLITS;
    const u32 tile = b % tiles, head = b / tiles;
    const i64 row0 = (i64)tile * 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const T *k = (const T *)pk + L::k_head(head), *v = (const T *)pv + L::v_head(head);
    const i64 rows[2] = {row0 + g, row0 + g + 8};
    i64 first = (i64)split * L::CHUNK;
    i64 end = first + L::CHUNK < L::S ? first + L::CHUNK : L::S;
    if (!STEADY) L::enter();
    // Lane i holds the span of row i of the 16.
    Span<int> own = whole_span<L, int>(), spans[2];
    if (L::BOUNDED) {
        Seen<int> seen = seen_by_none<L, int>();
        if (lane < 16) own = span_of<L>(seen, given, head, row0 + lane);
        join_lanes(seen);
        if (seen.below < end) end = seen.below;
        if (seen.from > first) first += (seen.from - first) / 64 * 64;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        spans[h].from = L::BOUNDED ? __shfl_sync(0xffffffffu, own.from, g + 8 * h) : own.from;
        spans[h].below = L::BOUNDED ? __shfl_sync(0xffffffffu, own.below, g + 8 * h) : own.below;
    }
    i64 start = first + warp * 16;
    Keys<L> keys;
    Values<L> values;
    keys.load(k, start, end, g, t);
    values.load(v, start, end, g, t);
    if (STEADY) L::enter();
    u32 qa[L::E / 16][4];
    load_queries<L>(qa, (const T *)pq + L::q_head(head), rows, t);
    Weighted<L> y;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        // One thread per row holds the sum.
        begin_row<L>(y.max[h], y.sum[h], given, head, rows[h], split == 0 && warp == 0);
        y.max[h] *= LOG2E;
        if (t != 0) y.sum[h] = 0;
    }
#pragma unroll
    for (int f = 0; f < L::F / 8; f++)
#pragma unroll
        for (int c = 0; c < 4; c++) y.acc[f][c] = 0;
    for (; start < end; start += 64) {
        float s[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) s[j][c] = 0;
#pragma unroll
            for (int e = 0; e < L::E / 16; e++)
                mma(T(), s[j], qa[e], word(keys.x[j][e / 2], e % 2 * 2), word(keys.x[j][e / 2], e % 2 * 2 + 1));
        }
        keys.load(k, start + 64, end, g, t);
        bool hides = false;
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const i64 key = start + j * 8 + 2 * t + (c & 1), row = rows[c / 2];
                float x = L::CAPPED ? capped<L>(s[j][c] * L::scale()) * LOG2E : s[j][c] * (L::scale() * LOG2E);
                const bool in = key < end && row < L::ROWS;
                bool seen = in && (!L::BOUNDED || key >= spans[c / 2].from && key < spans[c / 2].below);
                if (MASK != 0 && seen) {
                    auto m = get(((const typename L::M *)pm)[L::m_head(head) + L::m_row(row) + key * L::m_step]);
                    if (MASK == 1) seen = m != 0;
                    if (MASK == 2) x = x + (float)m * LOG2E;
                }
                s[j][c] = seen ? x : minus_infinity(0.0f);
                hides = hides || in && !seen;
            }
        take<L>(y, s, values, (L::BOUNDED || MASK == 1) && __ballot_sync(0xffffffffu, hides) != 0);
        values.load(v, start + 64, end, g, t);
    }
    store_rows<L, SPLITS>(y, rows, row0, head, split, pr, partial);
}

} // namespace sc
