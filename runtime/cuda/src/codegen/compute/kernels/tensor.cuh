// Attention of many rows in bf16 and f16 by tensor cores.
//
// Like `attend`, with 64 rows per block, or 128 if MT is 2: MT times 16 per warp. Queries are in shared
// memory; keys and values pass through it in tiles of 64, and the next tile is loaded while one is processed
// (FlashAttention-2, Dao, 2023). Scores and sums are f32; the weights are rounded to the type of the values
// before the multiplication. The layout of fragments is that of `mma.m16n8k16`: with g = lane / 4 and t =
// lane % 4, an accumulator holds columns 2t and 2t + 1 of rows g and g + 8.

namespace sc {

// The rows of one warp. Rows g and g + 8 of each of its 16 have a maximum, in base two, and a sum of weights.
template <class L, int MT> struct Rows {
    static const int E = L::E, F = L::F, EP = E + 8, FP = F + 8, BQ = 64 * MT;
    int first;
    __device__ int row(int m, int h) const { return first + m * 16 + h * 8; }
    float max[MT][2], sum[MT][2], acc[MT][F / 8][4];
};

// The rows and the head of a block; blocks that see the most keys come first. If all blocks are resident at
// once, the second half follows in reverse order, so that each multiprocessor has one block with many keys
// and one with few.
template <class L, int BQ> SC_FN void place(u32 b, u32 &head, int &row0) {
    const u32 tiles = (L::ROWS + BQ - 1) / BQ, all = L::HEADS * tiles;
    if (L::GROWS && all > L::PROCESSORS && all <= 2 * L::PROCESSORS && b >= L::PROCESSORS) b = L::PROCESSORS + all - 1 - b;
    head = b % L::HEADS;
    const u32 turn = tiles - 1 - b / L::HEADS;
    if (L::GROWS && L::Q % BQ == 0) {
        const u32 group = L::ROWS / L::Q;
        row0 = turn % group * (int)L::Q + turn / group * BQ;
    } else {
        row0 = turn * BQ;
    }
}

// Starts to copy 64 rows of WIDTH elements to shared memory, with zeros from row n on, which are not read
// from memory.
template <class T, int WIDTH, int PITCH> SC_FN void copy_tile(u16 *to, const T *from, i64 row_step, int n) {
    const int PER_ROW = WIDTH / 8;
    if (128 % PER_ROW == 0) {
        const int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW * 8;
        from += row * row_step + column, to += row * PITCH + column;
#pragma unroll
        for (int r = 0; r < 64; r += 128 / PER_ROW) cp_async(to + r * PITCH, from + r * row_step, row + r < n);
    } else {
        for (int e = threadIdx.x; e < 64 * PER_ROW; e += 128) {
            const int row = e / PER_ROW, column = e % PER_ROW * 8;
            cp_async(to + row * PITCH + column, from + row * row_step + column, row < n);
        }
    }
}

template <class L, int MT> SC_FN void copy_queries(u16 *to, const typename L::T *q, int row0) {
    typedef Rows<L, MT> R;
    const int PER_ROW = L::E / 8;
    for (int e = threadIdx.x; e < R::BQ * PER_ROW; e += 128) {
        const int r = e / PER_ROW, column = e % PER_ROW * 8;
        const bool in = row0 + r < L::ROWS;
        const typename L::T *from = q + (in ? L::q_row(row0 + r) : 0) + column * L::q_step;
        u16 *at = to + r * R::EP + column;
        if (L::QW == 8) {
            cp_async(at, from, in);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) at[j] = in ? from[j * L::q_step].v : 0;
        }
    }
}

// The scores of 64 keys.
template <class L, int MT> SC_FN void score(float (&s)[MT][8][4], const u16 *qs, const u16 *ks) {
    typedef Rows<L, MT> R;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[m][j][c] = 0;
#pragma unroll
    for (int e = 0; e < L::E / 16; e++) {
        u32 a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            ldmatrix(a[m], qs + ((warp * MT + m) * 16 + lane % 16) * R::EP + e * 16 + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 b[4];
            ldmatrix(b, ks + (j * 16 + lane / 16 * 8 + lane % 8) * R::EP + e * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(typename L::T(), s[m][2 * j], a[m], b[0], b[1]);
                mma(typename L::T(), s[m][2 * j + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Scales scores to base two, and sets hidden keys and those at `n` or beyond to minus infinity. `whole`: all
// keys are visible. Lane i holds the span of row i of the warp, unless the span depends only on the row.
template <class L, int MT, int MASK>
SC_FN void mask(float (&s)[MT][8][4], const Rows<L, MT> &y, const Span<int> &own, int start, int n, bool whole, u32 head, const void *pm) {
    const float LOG2E = 1.44269504088896340736f;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                s[m][j][c] = L::CAPPED ? capped<L>(s[m][j][c] * L::scale()) * LOG2E : s[m][j][c] * (L::scale() * LOG2E);
    if (whole) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = y.row(m, h), at = m * 16 + h * 8 + threadIdx.x % 32 / 4;
            i64 from = 0, below = L::S;
            if (L::BOUNDED && L::MONOTONE) L::span(0, head, row, from, below);
            if (L::BOUNDED && !L::MONOTONE) {
                from = __shfl_sync(0xffffffffu, own.from, at);
                below = __shfl_sync(0xffffffffu, own.below, at);
            }
            // The columns of this thread, relative to its first one.
            const int low = (int)from - start - 2 * t, all = (int)below - start;
            const int high = row < L::ROWS ? (all < n ? all : n) - 2 * t : 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int column = j * 8 + c, key = start + 2 * t + column;
                    float &x = s[m][j][2 * h + c];
                    bool seen = column >= low && column < high;
                    if (MASK != 0 && seen) {
                        auto given = get(((const typename L::M *)pm)[L::m_head(head) + L::m_row(row) + key * L::m_step]);
                        if (MASK == 1) seen = given != 0;
                        if (MASK == 2) x += (float)given * LOG2E;
                    }
                    if (!seen) x = minus_infinity(0.0f);
                }
        }
}

// Converts scores to weights, and rescales the earlier accumulation to match.
template <class L, int MT> SC_FN void weigh(Rows<L, MT> &y, float (&s)[MT][8][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = y.max[m][h];
#pragma unroll
            for (int j = 0; j < 8; j++) top = fmaxf(fmaxf(top, s[m][j][2 * h]), s[m][j][2 * h + 1]);
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            // If no key is visible yet, all weights are e^-inf, which is 0.
            const float base = top == minus_infinity(0.0f) ? 0.0f : top;
            const float shrink = power_of_two(y.max[m][h] - base);
            y.max[m][h] = top;
            float total = 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int c = 2 * h; c < 2 * h + 2; c++) {
                    s[m][j][c] = power_of_two(s[m][j][c] - base);
                    total += s[m][j][c];
                }
            y.sum[m][h] = y.sum[m][h] * shrink + total;
#pragma unroll
            for (int f = 0; f < L::F / 8; f++) y.acc[m][f][2 * h] *= shrink, y.acc[m][f][2 * h + 1] *= shrink;
        }
}

// Adds the values of 64 keys with their weights.
template <class L, int MT> SC_FN void gather(Rows<L, MT> &y, const float (&s)[MT][8][4], const u16 *vs) {
    typedef typename L::T T;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 p[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *x = &s[m][2 * j + i / 2][i % 2 * 2];
                p[m][i] = pack(T(), x[0], x[1]);
            }
#pragma unroll
        for (int f = 0; f < L::F / 16; f++) {
            u32 b[4];
            ldmatrix_trans(b, vs + (j * 16 + lane % 16) * Rows<L, MT>::FP + f * 16 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(T(), y.acc[m][2 * f], p[m], b[0], b[1]);
                mma(T(), y.acc[m][2 * f + 1], p[m], b[2], b[3]);
            }
        }
    }
}

// Like `gather`, with few registers. `hides`: some row does not see some of the keys, whose values add
// nothing to it.
template <class L> SC_FN void gather_seen(Rows<L, 1> &y, const float (&s)[1][8][4], const u16 *vs, bool hides) {
    typedef typename L::T T;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int j = 0; j < 4; j++) {
        u32 p[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &s[0][2 * j + i / 2][i % 2 * 2];
            p[i] = pack(T(), kept(T(), x[0]), kept(T(), x[1]));
        }
#pragma unroll 1
        for (int f = 0; f < L::F / 16; f++) {
            u32 b[4];
            ldmatrix_trans(b, vs + (j * 16 + lane % 16) * Rows<L, 1>::FP + f * 16 + lane / 16 * 8);
#pragma unroll 1
            for (int i = 0; i < 2; i++) {
                float(&c)[4] = y.acc[0][2 * f + i];
                const u32 b0 = i == 0 ? b[0] : b[2], b1 = i == 0 ? b[1] : b[3];
                if (hides) mma_seen(T(), c, p, b0, b1);
                else mma(T(), c, p, b0, b1);
            }
        }
    }
}

// Stores the rows, or this split's part of each.
template <class L, int MT, int SPLITS>
SC_FN void store(const Rows<L, MT> &y, u32 head, u32 split, void *pr, void *partial, const void *const *given) {
    typedef typename L::T T;
    const int F = L::F, RECORD = F + 2, t = threadIdx.x % 4;
    const float LOG2E = 1.44269504088896340736f;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = y.sum[m][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int row = y.row(m, h);
            if (row >= L::ROWS) continue;
            if (SPLITS == 1) {
                const float scale = sum == 0 ? 0.0f : 1 / sum;
                T *to = (T *)pr + L::r_head(head) + L::r_row(row);
                if (L::SUMS && t == 0) L::put_sum(given, head, row, log_sum_exp(y.max[m][h] / LOG2E, sum));
#pragma unroll
                for (int f = 0; f < F / 8; f++) {
                    const float low = y.acc[m][f][2 * h] * scale, high = y.acc[m][f][2 * h + 1] * scale;
                    const i64 at = f * 8 + 2 * t;
                    if (L::RW > 1) {
                        *(u32 *)(to + at) = pack(T(), low, high);
                    } else {
                        to[at * L::r_step] = Put<T>::of(low), to[(at + 1) * L::r_step] = Put<T>::of(high);
                    }
                }
            } else {
                float *to = (float *)partial + (((i64)head * L::ROWS + row) * SPLITS + split) * RECORD;
#pragma unroll
                for (int f = 0; f < F / 8; f++)
#pragma unroll
                    for (int c = 0; c < 2; c++) to[f * 8 + 2 * t + c] = y.acc[m][f][2 * h + c];
                if (t == 0) to[F] = y.max[m][h] / LOG2E, to[F + 1] = sum;
            }
        }
}

// Whether all sums of this thread are finite.
template <class L, int MT> SC_FN bool is_finite(const Rows<L, MT> &y) {
    float zero = 0;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int f = 0; f < L::F / 8; f++)
#pragma unroll
            for (int c = 0; c < 4; c++) zero += y.acc[m][f][c] * 0.0f;
    return zero == 0;
}

// Initialises rows: one thread per row holds the sum.
template <class L, int MT> SC_FN void begin(Rows<L, MT> &y, const void *const *given, u32 head, u32 split) {
    const float LOG2E = 1.44269504088896340736f;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            begin_row<L>(y.max[m][h], y.sum[m][h], given, head, y.row(m, h), split == 0);
            y.max[m][h] *= LOG2E;
            if (threadIdx.x % 4 != 0) y.sum[m][h] = 0;
        }
#pragma unroll
        for (int f = 0; f < L::F / 8; f++)
#pragma unroll
            for (int c = 0; c < 4; c++) y.acc[m][f][c] = 0;
    }
}

// The keys that a block of BQ rows and each of its warps process.
template <class L, int MT> struct Reach {
    int first, end;
    // The visible keys of the rows of the warp, and, in lane i, of its row i.
    Seen<int> near;
    Span<int> own;
    __device__ __forceinline__ Reach(const void *const *given, u32 head, int row0, u32 split) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, S = L::S, CHUNK = L::CHUNK, BQ = 64 * MT;
        const int warp0 = row0 + warp * MT * 16;
        first = split * CHUNK, end = S - first < CHUNK ? S : first + CHUNK;
        own = whole_span<L, int>();
        near.from = near.all_from = 0, near.below = near.all_below = S;
        if (!L::BOUNDED) return;
        Seen<int> seen;
        if (L::MONOTONE) {
            seen = seen_by_rows<L, int>(head, row0, BQ);
            near = seen_by_rows<L, int>(head, warp0, MT * 16);
        } else {
            seen = near = seen_by_none<L, int>();
#pragma unroll 1
            for (int r = lane; r < BQ; r += 32) span_of<L>(seen, given, head, row0 + r);
            join_lanes(seen);
            own = span_of<L>(near, given, head, warp0 + lane % (MT * 16));
            join_lanes(near);
        }
        if (seen.below < end) end = seen.below;
        if (seen.from > first) first += (seen.from - first) / 64 * 64;
    }
    // Whether the rows of the warp see none, or all, of 64 keys.
    __device__ __forceinline__ bool outside(int start) const { return start >= near.below || start + 64 <= near.from; }
    __device__ __forceinline__ bool inside(int start) const { return start >= near.all_from && start + 64 <= near.all_below; }
};

// Recomputes rows with values that are not finite, such that hidden values contribute nothing: 64 rows at a
// time, one tile of keys after another, with few registers.
template <class L, int SPLITS, int MASK>
static __device__ __noinline__ void attend_apart(const void *pq, const void *pk, const void *pv, const void *pm, void *pr, void *partial,
                                                 const void *const *given, u32 head, int row0, int rows, u32 split) {
    typedef typename L::T T;
    typedef Rows<L, 1> R;
    u16 *qs = (u16 *)dynamic_shared(), *ks = qs + 64 * R::EP, *vs = ks + 64 * R::EP;
    const T *k = (const T *)pk + L::k_head(head), *v = (const T *)pv + L::v_head(head);
#pragma unroll 1
    for (const int end_row = row0 + rows; row0 < end_row; row0 += 64) {
        const Reach<L, 1> reach(given, head, row0, split);
        R y;
        y.first = row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        begin<L, 1>(y, given, head, split);
        // The queries from before are not read any more.
        __syncthreads();
        copy_queries<L, 1>(qs, (const T *)pq + L::q_head(head), row0);
#pragma unroll 1
        for (int start = reach.first; start < reach.end; start += 64) {
            const int n = reach.end - start < 64 ? reach.end - start : 64;
            __syncthreads();
            copy_tile<T, L::E, R::EP>(ks, k + start * L::k_row_step, L::k_row_step, n);
            copy_tile<T, L::F, R::FP>(vs, v + start * L::v_row_step, L::v_row_step, n);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads();
            if (reach.outside(start)) continue;
            float s[1][8][4];
            score<L, 1>(s, qs, ks);
            const bool inside = reach.inside(start);
            mask<L, 1, MASK>(s, y, reach.own, start, n, MASK == 0 && n == 64 && inside, head, pm);
            weigh<L, 1>(y, s);
            gather_seen<L>(y, s, vs, MASK == 1 || !inside);
        }
        store<L, 1, SPLITS>(y, head, split, pr, partial, given);
    }
}

// STEP: recomputes only the blocks that are `to_amend`; 0: computes all.
template <class L, int MT, int SPLITS, int STEP, int MASK>
SC_FN void attend_tensor(const void *pq, const void *pk, const void *pv, const void *pm, void *pr, void *partial, const void *const *given) {
    typedef typename L::T T;
    typedef Rows<L, MT> R;
    u16 *qs = (u16 *)dynamic_shared(), *ks = qs + R::BQ * R::EP, *vs = ks + 2 * 64 * R::EP;
    const u32 split = blockIdx.x % SPLITS;
    u32 head;
    int row0;
    place<L, R::BQ>(blockIdx.x / SPLITS, head, row0);
    if (STEP != 0) {
        if (to_amend<L, R::BQ, STEP == 0 ? 1 : STEP, MASK>(pm, pr, given, head, row0))
            attend_apart<L, SPLITS, MASK>(pq, pk, pv, pm, pr, partial, given, head, row0, R::BQ, split);
        return;
    }
    copy_queries<L, MT>(qs, (const T *)pq + L::q_head(head), row0);
    const T *k = (const T *)pk + L::k_head(head), *v = (const T *)pv + L::v_head(head);
    const Reach<L, MT> reach(given, head, row0, split);
    const int first = reach.first, end = reach.end;
    const auto load = [&](int start, int stage) {
        const int n = end - start < 64 ? end - start : 64;
        copy_tile<T, L::E, R::EP>(ks + stage * 64 * R::EP, k + start * L::k_row_step, L::k_row_step, n);
        copy_tile<T, L::F, R::FP>(vs + stage * 64 * R::FP, v + start * L::v_row_step, L::v_row_step, n);
    };
    if (first < end) load(first, 0);
    cp_async_commit();
    R y;
    y.first = row0 + threadIdx.x / 32 * MT * 16 + threadIdx.x % 32 / 4;
    begin<L, MT>(y, given, head, split);
    int stage = 0;
    for (int start = first; start < end; start += 64, stage ^= 1) {
        cp_async_wait<0>();
        // All copies have arrived, and no thread reads the other stage any more.
        __syncthreads();
        if (start + 64 < end) load(start + 64, stage ^ 1);
        cp_async_commit();
        if (reach.outside(start)) continue;
        const int n = end - start < 64 ? end - start : 64;
        float s[MT][8][4];
        score<L, MT>(s, qs, ks + stage * 64 * R::EP);
        mask<L, MT, MASK>(s, y, reach.own, start, n, MASK == 0 && n == 64 && reach.inside(start), head, pm);
        weigh<L, MT>(y, s);
        gather<L, MT>(y, s, vs + stage * 64 * R::FP);
    }
    // A hidden value may have leaked in: then the block starts over.
    if ((L::BOUNDED || MASK == 1) && any_thread(!is_finite<L, MT>(y))) {
        attend_apart<L, SPLITS, MASK>(pq, pk, pv, pm, pr, partial, given, head, row0, R::BQ, split);
        return;
    }
    store<L, MT, SPLITS>(y, head, split, pr, partial, given);
}

} // namespace sc
