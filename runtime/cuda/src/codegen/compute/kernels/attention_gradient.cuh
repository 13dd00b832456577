// The gradients of scaled dot-product attention without the matrix of scores.
//
// A block of four warps takes 32 rows, or 32 keys, of one head of keys, and iterates over the other side in
// tiles of 32. Weights are recomputed from the log-sum-exp of each row (FlashAttention-2, Dao, 2023): lane j
// of a warp scores key j for 8 rows. Weights and the gradients of products of queries and keys pass through
// shared memory to the warps. Each warp sums 8 rows, or keys, of a gradient in registers, always in the same
// order.
//
// The layout `L` is that of `attend`, with the offsets of the gradient of the result (g), of the log-sum-exp
// (sums) and of the gradients of queries, keys and values (dq, dk, dv).

namespace sc {

template <class L> struct Back {
    typedef typename L::T T;
    typedef typename Computed<T>::C C;
    static const int E = L::E, F = L::F, TILE = 32, EP = E + 1, FP = F + 1, PITCH = TILE + 1;
    static const int EC = (E + 31) / 32, FC = (F + 31) / 32;
    C *qs, *gs, *ks, *vs, *weights, *scores, *sums, *means;
    __device__ __forceinline__ Back() {
        qs = (C *)dynamic_shared();
        gs = qs + TILE * E;
        ks = gs + TILE * F;
        vs = ks + TILE * EP;
        weights = vs + TILE * FP;
        scores = weights + TILE * PITCH;
        sums = scores + TILE * PITCH;
        means = sums + TILE;
    }
};

// Loads queries and gradients of 32 rows, with zeros beyond the last row, and the log-sum-exp of each.
template <class L> SC_FN void back_load_rows(const Back<L> &b, const void *pg, const void *psums, const void *pq, u32 head, i64 row0) {
    typedef Back<L> B;
    typedef typename B::T T;
    typedef typename B::C C;
    const T *q = (const T *)pq + L::q_head(head), *g = (const T *)pg + L::g_head(head);
    for (int e = threadIdx.x; e < 32 * B::E; e += 128) {
        const i64 row = row0 + e / B::E;
        b.qs[e] = row < L::ROWS ? get(q[L::q_row(row) + (e % B::E) * L::q_step]) : (C)0;
    }
    for (int f = threadIdx.x; f < 32 * B::F; f += 128) {
        const i64 row = row0 + f / B::F;
        b.gs[f] = row < L::ROWS ? get(g[L::g_row(row) + (f % B::F) * L::g_step]) : (C)0;
    }
    if (threadIdx.x < 32) {
        const i64 row = row0 + threadIdx.x;
        b.sums[threadIdx.x] = row < L::ROWS ? ((const C *)psums)[L::sums_head(head) + L::sums_row(row)] : minus_infinity((C)0);
    }
}

template <class L> SC_FN void back_load_keys(const Back<L> &b, const void *pk, const void *pv, u32 head, i64 key0) {
    typedef Back<L> B;
    typedef typename B::T T;
    const T *k = (const T *)pk + L::k_head(head), *v = (const T *)pv + L::v_head(head);
    const int n = L::S - key0 < 32 ? (int)(L::S - key0) : 32;
    load_tile<L, L::KW>(b.ks, B::EP, k + key0 * L::k_row_step, L::k_row_step, L::k_step, n, B::E, 128);
    load_tile<L, L::VW>(b.vs, B::FP, v + key0 * L::v_row_step, L::v_row_step, L::v_step, n, B::F, 128);
}

// The visible keys of 32 rows: lane i holds the span of row i.
template <class L> SC_FN Seen<i64> back_spans(Span<i64> &own, const void *const *given, u32 head, i64 row0) {
    Seen<i64> seen = seen_by_none<L, i64>();
    own = span_of<L>(seen, given, head, row0 + threadIdx.x % 32);
    join_lanes(seen);
    return seen;
}

// Computes the weights of the 32 keys for the 32 rows, and the gradients of the products of queries and keys.
template <class L, int MASK> SC_FN void back_weigh(const Back<L> &b, const void *pm, const Span<i64> &own, u32 head, i64 row0, i64 key0) {
    typedef Back<L> B;
    typedef typename B::C C;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8;
    C s[8], d[8];
#pragma unroll
    for (int r = 0; r < 8; r++) s[r] = 0, d[r] = 0;
#pragma unroll 4
    for (int e = 0; e < B::E; e++) {
        const C y = b.ks[lane * B::EP + e];
#pragma unroll
        for (int r = 0; r < 8; r++) s[r] += b.qs[(first + r) * B::E + e] * y;
    }
#pragma unroll 4
    for (int f = 0; f < B::F; f++) {
        const C y = b.vs[lane * B::FP + f];
#pragma unroll
        for (int r = 0; r < 8; r++) d[r] += b.gs[(first + r) * B::F + f] * y;
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const i64 row = row0 + first + r, key = key0 + lane;
        const i64 from = __shfl_sync(0xffffffffu, own.from, first + r), below = __shfl_sync(0xffffffffu, own.below, first + r);
        const C sum = b.sums[first + r];
        bool seen = row < L::ROWS && key < L::S && key >= from && key < below && sum != minus_infinity((C)0);
        C x = s[r] * (C)L::scale();
        if (MASK != 0 && seen) {
            auto m = get(((const typename L::M *)pm)[L::m_head(head) + L::m_row(row) + key * L::m_step]);
            if (MASK == 1) seen = m != 0;
            if (MASK == 2) x = x + (C)m;
        }
        const C weight = seen ? u_exp(x - sum) : (C)0;
        b.weights[(first + r) * B::PITCH + lane] = weight;
        b.scores[(first + r) * B::PITCH + lane] = seen ? weight * (d[r] - b.means[first + r]) * (C)L::scale() : (C)0;
    }
}

// The gradient of the queries of 32 rows, and for each row the sum of the gradient times the result.
template <class L, int MASK>
SC_FN void attend_back_rows(const void *pg, const void *pr, const void *psums, const void *pq, const void *pk, const void *pv, const void *pm,
                            void *pmeans, void *px, void *, const void *const *given) {
    typedef Back<L> B;
    typedef typename B::T T;
    typedef typename B::C C;
    const B b;
    const u32 tiles = (L::ROWS + 31) / 32;
    // Later rows see more keys: they start first.
    const u32 tile = tiles - 1 - blockIdx.x % tiles, head = blockIdx.x / tiles;
    const i64 row0 = (i64)tile * 32;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8;
    back_load_rows<L>(b, pg, psums, pq, head, row0);
    __syncthreads();
    for (int r = 0; r < 8; r++) {
        const i64 row = row0 + first + r;
        C mean = 0;
        const T *from = (const T *)pr + L::r_head(head) + L::r_row(row < L::ROWS ? row : row0);
        for (int f = lane; f < B::F; f += 32) mean += b.gs[(first + r) * B::F + f] * get(from[f * L::r_step]);
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) mean += __shfl_xor_sync(0xffffffffu, mean, d);
        if (lane == 0) b.means[first + r] = mean;
        if (lane == 0 && row < L::ROWS) ((C *)pmeans)[(i64)head * L::ROWS + row] = mean;
    }
    Span<i64> own;
    const Seen<i64> seen = back_spans<L>(own, given, head, row0);
    const i64 end = seen.below < L::S ? seen.below : L::S, start = seen.from > 0 ? seen.from / 32 * 32 : 0;
    C acc[8][B::EC];
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < B::EC; c++) acc[r][c] = 0;
    for (i64 key0 = start; key0 < end; key0 += 32) {
        __syncthreads();
        back_load_keys<L>(b, pk, pv, head, key0);
        __syncthreads();
        back_weigh<L, MASK>(b, pm, own, head, row0, key0);
        __syncthreads();
#pragma unroll 4
        for (int j = 0; j < 32; j++) {
            C y[B::EC];
#pragma unroll
            for (int c = 0; c < B::EC; c++) y[c] = c * 32 + lane < B::E ? b.ks[j * B::EP + c * 32 + lane] : (C)0;
#pragma unroll
            for (int r = 0; r < 8; r++) {
                const C x = b.scores[(first + r) * B::PITCH + j];
#pragma unroll
                for (int c = 0; c < B::EC; c++) acc[r][c] += x * y[c];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const i64 row = row0 + first + r;
        if (row >= L::ROWS) continue;
        T *to = (T *)px + L::dq_head(head) + L::dq_row(row);
#pragma unroll
        for (int c = 0; c < B::EC; c++)
            if (c * 32 + lane < B::E) to[(c * 32 + lane) * L::dq_step] = Put<T>::of(acc[r][c]);
    }
}

// The gradients of 32 keys and their values.
template <class L, int MASK>
SC_FN void attend_back_keys(const void *pg, const void *, const void *psums, const void *pq, const void *pk, const void *pv, const void *pm,
                            void *pmeans, void *px, void *py, const void *const *given) {
    typedef Back<L> B;
    typedef typename B::T T;
    typedef typename B::C C;
    const B b;
    const u32 tiles = (L::S + 31) / 32;
    // Earlier keys are seen by more rows: they start first.
    const u32 tile = blockIdx.x % tiles, head = blockIdx.x / tiles;
    const i64 key0 = (i64)tile * 32;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8;
    back_load_keys<L>(b, pk, pv, head, key0);
    C of_k[8][B::EC], of_v[8][B::FC];
#pragma unroll
    for (int r = 0; r < 8; r++) {
#pragma unroll
        for (int c = 0; c < B::EC; c++) of_k[r][c] = 0;
#pragma unroll
        for (int c = 0; c < B::FC; c++) of_v[r][c] = 0;
    }
    for (i64 row0 = 0; row0 < L::ROWS; row0 += 32) {
        Span<i64> own;
        const Seen<i64> seen = back_spans<L>(own, given, head, row0);
        // The condition is the same in all warps.
        if (seen.below <= key0 || seen.from >= key0 + 32) continue;
        __syncthreads();
        back_load_rows<L>(b, pg, psums, pq, head, row0);
        if (threadIdx.x < 32) b.means[threadIdx.x] = row0 + threadIdx.x < L::ROWS ? ((const C *)pmeans)[(i64)head * L::ROWS + row0 + threadIdx.x] : (C)0;
        __syncthreads();
        back_weigh<L, MASK>(b, pm, own, head, row0, key0);
        __syncthreads();
#pragma unroll 2
        for (int i = 0; i < 32; i++) {
            C q[B::EC], g[B::FC];
#pragma unroll
            for (int c = 0; c < B::EC; c++) q[c] = c * 32 + lane < B::E ? b.qs[i * B::E + c * 32 + lane] : (C)0;
#pragma unroll
            for (int c = 0; c < B::FC; c++) g[c] = c * 32 + lane < B::F ? b.gs[i * B::F + c * 32 + lane] : (C)0;
#pragma unroll
            for (int r = 0; r < 8; r++) {
                const C x = b.scores[i * B::PITCH + first + r], weight = b.weights[i * B::PITCH + first + r];
#pragma unroll
                for (int c = 0; c < B::EC; c++) of_k[r][c] += x * q[c];
#pragma unroll
                for (int c = 0; c < B::FC; c++) of_v[r][c] += weight * g[c];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const i64 key = key0 + first + r;
        if (key >= L::S) continue;
        T *k = (T *)px + L::dk_head(head) + L::dk_row(key), *v = (T *)py + L::dv_head(head) + L::dv_row(key);
#pragma unroll
        for (int c = 0; c < B::EC; c++)
            if (c * 32 + lane < B::E) k[(c * 32 + lane) * L::dk_step] = Put<T>::of(of_k[r][c]);
#pragma unroll
        for (int c = 0; c < B::FC; c++)
            if (c * 32 + lane < B::F) v[(c * 32 + lane) * L::dv_step] = Put<T>::of(of_v[r][c]);
    }
}

} // namespace sc
