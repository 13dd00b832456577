// Scaled dot-product attention without the matrix of scores.
//
// A block takes BQ rows of one head of k and v: a row is a query of one of the query heads that share it.
// Keys pass through shared memory in tiles of 32; lane j of a warp scores key j. The running maximum and sum
// of a row rescale its earlier accumulation (online softmax). With split-KV (flash-decoding), each split
// takes a part of the keys and stores maximum, sum and accumulated values, which `combine` merges.
//
// A layout `L` gives the types T and M (mask), the extents HEADS (of k and v, over the batch), ROWS (of one
// of them), Q (queries of one query head), S (keys), E and F, the strides of keys and values, the access
// widths KW and VW, and the offsets of heads and rows. If it is BOUNDED, `span` defines the visible keys of a
// row; keys that no row of a block sees are skipped.

namespace sc {

SC_FN float minus_infinity(float) { return __uint_as_float(0xff800000u); }
SC_FN double minus_infinity(double) { return __longlong_as_double((i64)0xfff0000000000000ull); }

// x + y, saturated to the range of i64.
SC_FN i64 saturate(i64 x, i64 y) {
    const i64 sum = (i64)((u64)x + (u64)y), most = 0x7fffffffffffffffll;
    if (x >= 0 && y >= 0 && sum < 0) return most;
    return x < 0 && y < 0 && sum >= 0 ? -most - 1 : sum;
}
// The start of the chunk of position p.
SC_FN i64 chunk_of(i64 p, i64 chunk) {
    const i64 rest = p % chunk;
    return saturate(p, rest < 0 ? -rest - chunk : -rest);
}

// The visible keys of a row: from `from` on, before `below`.
template <class I> struct Span { I from, below; };
// The visible keys of several rows: none outside of [from, below), and all of [all_from, all_below) in every
// row.
template <class I> struct Seen { I from, below, all_from, all_below; };

template <class L, class I> SC_FN Seen<I> seen_by_none() {
    Seen<I> y;
    y.from = L::S, y.below = 0, y.all_from = 0, y.all_below = L::S;
    return y;
}
template <class L, class I> SC_FN Span<I> whole_span() {
    Span<I> x;
    x.from = 0, x.below = L::S;
    return x;
}
// Returns the span of a row, and joins it to `y`.
template <class L, class I> SC_FN Span<I> span_of(Seen<I> &y, const void *const *given, u32 head, i64 row) {
    if (row >= L::ROWS) return whole_span<L, I>();
    Span<I> x;
    i64 from, below;
    L::span(given, head, row, from, below);
    x.from = (I)from, x.below = (I)below;
    if (x.from < x.below) {
        if (x.from < y.from) y.from = x.from;
        if (x.below > y.below) y.below = x.below;
    }
    if (x.from > y.all_from) y.all_from = x.from;
    if (x.below < y.all_below) y.all_below = x.below;
    return x;
}
// The visible keys of `count` rows from `row` on, if limits grow with the row. For rows of one query head,
// the first and the last determine them; rows of several heads include the last row of one head and the first
// of the next.
template <class L, class I> SC_FN Seen<I> seen_by_rows(u32 head, i64 row, int count) {
    const bool none = row >= L::ROWS;
    if (none) row = L::ROWS - 1;
    const i64 last = (row + count < L::ROWS ? row + count : L::ROWS) - 1;
    const bool one = row / L::Q == last / L::Q;
    i64 from, below, last_from, last_below;
    L::span(0, head, one ? row % L::Q : 0, from, below);
    L::span(0, head, one ? last % L::Q : L::Q - 1, last_from, last_below);
    Seen<I> y;
    y.from = (I)from, y.below = none ? 0 : (I)last_below, y.all_from = (I)last_from, y.all_below = (I)below;
    return y;
}
// Joins the visible keys of the rows of all lanes.
template <class I> SC_FN void join_lanes(Seen<I> &y) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        const I from = __shfl_xor_sync(0xffffffffu, y.from, d), below = __shfl_xor_sync(0xffffffffu, y.below, d);
        const I all_from = __shfl_xor_sync(0xffffffffu, y.all_from, d), all_below = __shfl_xor_sync(0xffffffffu, y.all_below, d);
        if (from < y.from) y.from = from;
        if (below > y.below) y.below = below;
        if (all_from > y.all_from) y.all_from = all_from;
        if (all_below < y.all_below) y.all_below = all_below;
    }
}

// The maximum and the sum of a row before any key. With a SINK, the first split starts with one additional
// score, whose value is zero.
template <class L, class C> SC_FN void begin_row(C &max, C &sum, const void *const *given, u32 head, i64 row, bool first) {
    max = minus_infinity((C)0), sum = 0;
    if (!L::SINK || !first || row >= L::ROWS) return;
    max = (C)L::sink(given, head, row);
    sum = max == minus_infinity((C)0) ? 0 : 1;
}

// The log-sum-exp of a row with this maximum and this sum of weights.
template <class C> SC_FN C log_sum_exp(C max, C sum) { return sum == 0 ? minus_infinity((C)0) : max + u_log(sum); }

// Scores are capped before a mask adds to them.
template <class L, class C> SC_FN C capped(C x) { return L::CAPPED ? (C)L::cap() * u_tanh(x / (C)L::cap()) : x; }

// Whether `says` is true for any thread of the block.
SC_FN bool any_thread(bool says) { return __syncthreads_or(says) != 0; }

// Whether the library that computed these rows may have let in hidden values. A value that is not finite
// spreads to all rows that an instruction multiplies with it, and a row that sees nothing is 0 / 0. All
// elements of every STEPth row are checked, and some of each other row. All loads are in flight at once.
template <class L, int BQ, int STEP> SC_FN bool is_damaged(const void *pr, u32 head, i64 row0) {
    typedef typename L::T T;
    const int W = 16 / sizeof(T), PIECES = L::F < W ? 1 : L::F / W;
    const int EVERY = L::Q % STEP == 0 && BQ % STEP == 0 ? STEP : 1, WHOLE = BQ / EVERY * PIECES;
    const int MOST = WHOLE + (EVERY == 1 ? 0 : BQ);
    bool odd = false;
#pragma unroll 8
    for (int i = 0; i < (MOST + 127) / 128; i++) {
        const int e = i * 128 + threadIdx.x, piece = e < WHOLE ? e % PIECES : 0;
        const i64 row = row0 + (e < WHOLE ? e / PIECES * EVERY : e - WHOLE);
        const bool in = e < MOST && row < L::ROWS;
        Few<T, W> few;
        read<T, W>(few, (const T *)pr + L::r_head(head) + L::r_row(in ? row : row0) + piece * W);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const auto x = get(few.e[j]);
            odd = odd | (in & !(x - x == 0));
        }
    }
    return any_thread(odd);
}

// Stores zeros in the rows that see nothing.
template <class L, int BQ, int MASK>
SC_FN void clear_blind(const void *pm, void *pr, const void *const *given, u32 head, i64 row0) {
    typedef typename L::T T;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < BQ && row0 + r < L::ROWS; r += 4) {
        const i64 row = row0 + r;
        i64 from = 0, below = L::S;
        if (L::BOUNDED) L::span(given, head, row, from, below);
        bool sees = MASK != 1 && from < below;
        const typename L::M *m = (const typename L::M *)pm + (MASK == 1 ? L::m_head(head) + L::m_row(row) : 0);
        for (i64 key = from; MASK == 1 && !sees && key < below; key += 32)
            sees = __ballot_sync(0xffffffffu, key + lane < below && get(m[(key + lane) * L::m_step]) != 0) != 0;
        T *to = (T *)pr + L::r_head(head) + L::r_row(row);
        for (int f = lane; !sees && f < L::F; f += 32) to[f * L::r_step] = Put<T>::of((typename Computed<T>::C)0);
        if (!sees && lane == 0) L::put_sum(given, head, row, minus_infinity((typename Computed<T>::C)0));
    }
    __syncthreads();
}

// Whether these rows, which the library computed, must be recomputed. Rows that see nothing are set to zero.
template <class L, int BQ, int STEP, int MASK>
SC_FN bool to_amend(const void *pm, void *pr, const void *const *given, u32 head, i64 row0) {
    if (!is_damaged<L, BQ, STEP>(pr, head, row0)) return false;
    clear_blind<L, BQ, MASK>(pm, pr, given, head, row0);
    return is_damaged<L, BQ, STEP>(pr, head, row0);
}

template <class L> struct Attention {
    typedef typename L::T T;
    typedef typename Computed<T>::C C;
    static const int E = L::E, F = L::F, KEYS = 32;
    static const bool FOUR = E % 4 == 0 && sizeof(C) == 4;
    // Rows of keys are padded so that the lanes of a warp reach different banks.
    static const int PITCH = FOUR ? E + 4 : E + 1;
    static const int COLUMNS = (F + 31) / 32;
    static const int RECORD = F + 2;
};

template <class L, int W, class C>
SC_FN void load_tile(C *to, int pitch, const typename L::T *from, i64 row_step, i64 step, int n, int width, int threads) {
    const int per_row = width / W;
    for (int e = threadIdx.x; e < 32 * per_row; e += threads) {
        int row = e / per_row, column = e % per_row * W;
        if (row < n) {
            Few<typename L::T, W> few;
            read<typename L::T, W>(few, from + row * row_step + column * step);
#pragma unroll
            for (int j = 0; j < W; j++) to[row * pitch + column + j] = get(few.e[j]);
        } else {
#pragma unroll
            for (int j = 0; j < W; j++) to[row * pitch + column + j] = 0;
        }
    }
}

// STEP: recomputes only the blocks that are `to_amend`; 0: computes all.
template <class L, int R, int SPLITS, int STEP, int MASK>
SC_FN void attend(const void *pq, const void *pk, const void *pv, const void *pm, void *pr, void *partial, const void *const *given) {
    typedef Attention<L> Q;
    typedef typename Q::T T;
    typedef typename Q::C C;
    const int BQ = 4 * R, THREADS = 128;
    C *qs = (C *)dynamic_shared(), *ks = qs + BQ * Q::E, *vs = ks + 32 * Q::PITCH;
    const u32 tiles = (L::ROWS + BQ - 1) / BQ;
    u32 b = blockIdx.x;
    const u32 split = b % SPLITS;
    b /= SPLITS;
    // Later rows see more keys: they start first.
    const u32 tile = tiles - 1 - b % tiles, head = b / tiles;
    const i64 row0 = (i64)tile * BQ;
    if (STEP != 0 && !to_amend<L, BQ, STEP == 0 ? 1 : STEP, MASK>(pm, pr, given, head, row0)) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T *q = (const T *)pq + L::q_head(head), *k = (const T *)pk + L::k_head(head), *v = (const T *)pv + L::v_head(head);
    for (int e = threadIdx.x; e < BQ * Q::E; e += THREADS) {
        i64 row = row0 + e / Q::E;
        qs[e] = row < L::ROWS ? get(q[L::q_row(row) + (e % Q::E) * L::q_step]) : (C)0;
    }
    i64 first = (i64)split * L::CHUNK, end = first + L::CHUNK < L::S ? first + L::CHUNK : L::S;
    // Lane i holds the span of row i of the block.
    Span<i64> own = whole_span<L, i64>(), spans[R];
    if (L::BOUNDED) {
        Seen<i64> seen = seen_by_none<L, i64>();
        if (lane < BQ) own = span_of<L>(seen, given, head, row0 + lane);
        join_lanes(seen);
        if (seen.below < end) end = seen.below;
        if (seen.from > first) first += (seen.from - first) / 32 * 32;
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        spans[r].from = L::BOUNDED ? __shfl_sync(0xffffffffu, own.from, warp * R + r) : own.from;
        spans[r].below = L::BOUNDED ? __shfl_sync(0xffffffffu, own.below, warp * R + r) : own.below;
    }
    C max[R], sum[R], acc[R][Q::COLUMNS];
#pragma unroll
    for (int r = 0; r < R; r++) {
        begin_row<L>(max[r], sum[r], given, head, row0 + warp * R + r, split == 0);
#pragma unroll
        for (int c = 0; c < Q::COLUMNS; c++) acc[r][c] = 0;
    }
    for (i64 t = first; t < end; t += 32) {
        const int n = end - t < 32 ? (int)(end - t) : 32;
        __syncthreads();
        load_tile<L, L::KW>(ks, Q::PITCH, k + t * L::k_row_step, L::k_row_step, L::k_step, n, Q::E, THREADS);
        load_tile<L, L::VW>(vs, Q::F, v + t * L::v_row_step, L::v_row_step, L::v_step, n, Q::F, THREADS);
        __syncthreads();
        C s[R];
#pragma unroll
        for (int r = 0; r < R; r++) s[r] = 0;
        if (Q::FOUR) {
            for (int e = 0; e < Q::E; e += 4) {
                float4 y = *(const float4 *)(ks + lane * Q::PITCH + e);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float4 x = *(const float4 *)(qs + (warp * R + r) * Q::E + e);
                    s[r] += x.x * y.x;
                    s[r] += x.y * y.y;
                    s[r] += x.z * y.z;
                    s[r] += x.w * y.w;
                }
            }
        } else {
            for (int e = 0; e < Q::E; e++) {
                C y = ks[lane * Q::PITCH + e];
#pragma unroll
                for (int r = 0; r < R; r++) s[r] += qs[(warp * R + r) * Q::E + e] * y;
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const i64 row = row0 + warp * R + r, key = t + lane;
            bool seen = lane < n && row < L::ROWS && (!L::BOUNDED || key >= spans[r].from && key < spans[r].below);
            C x = capped<L>(s[r] * (C)L::scale());
            if (MASK != 0 && seen) {
                auto m = get(((const typename L::M *)pm)[L::m_head(head) + L::m_row(row) + key * L::m_step]);
                if (MASK == 1) seen = m != 0;
                if (MASK == 2) x = x + (C)m;
            }
            if (!seen) x = minus_infinity((C)0);
            C top = x;
#pragma unroll
            for (int d = 16; d > 0; d >>= 1) top = b_max(top, __shfl_xor_sync(0xffffffffu, top, d));
            top = b_max(max[r], top);
            if (top == minus_infinity((C)0)) {
                s[r] = 0;
                continue;
            }
            C p = seen ? u_exp(x - top) : (C)0, shrink = u_exp(max[r] - top);
            max[r] = top;
            C total = p;
#pragma unroll
            for (int d = 16; d > 0; d >>= 1) total += __shfl_xor_sync(0xffffffffu, total, d);
            sum[r] = sum[r] * shrink + total;
#pragma unroll
            for (int c = 0; c < Q::COLUMNS; c++) acc[r][c] *= shrink;
            s[r] = p;
        }
#pragma unroll 4
        for (int j = 0; j < n; j++) {
            C y[Q::COLUMNS];
#pragma unroll
            for (int c = 0; c < Q::COLUMNS; c++) y[c] = c * 32 + lane < Q::F ? vs[j * Q::F + c * 32 + lane] : (C)0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                C p = __shfl_sync(0xffffffffu, s[r], j);
                // Hidden keys contribute nothing, whatever their value.
                if (p != 0)
#pragma unroll
                    for (int c = 0; c < Q::COLUMNS; c++) acc[r][c] += p * y[c];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const i64 row = row0 + warp * R + r;
        if (row >= L::ROWS) continue;
        if (SPLITS == 1) {
            C scale = sum[r] == 0 ? (C)0 : 1 / sum[r];
            T *to = (T *)pr + L::r_head(head) + L::r_row(row);
#pragma unroll
            for (int c = 0; c < Q::COLUMNS; c++)
                if (c * 32 + lane < Q::F) to[(c * 32 + lane) * L::r_step] = Put<T>::of(acc[r][c] * scale);
            if (L::SUMS && lane == 0) L::put_sum(given, head, row, log_sum_exp(max[r], sum[r]));
        } else {
            C *to = (C *)partial + (((i64)head * L::ROWS + row) * SPLITS + split) * Q::RECORD;
#pragma unroll
            for (int c = 0; c < Q::COLUMNS; c++)
                if (c * 32 + lane < Q::F) to[c * 32 + lane] = acc[r][c];
            if (lane == 0) to[Q::F] = max[r], to[Q::F + 1] = sum[r];
        }
    }
}

// One block per row merges the parts of its splits, in order.
template <class L, int SPLITS> SC_FN void combine(const void *partial, void *pr, const void *const *given) {
    typedef Attention<L> Q;
    typedef typename Q::T T;
    typedef typename Q::C C;
    const int EACH = (SPLITS + 31) / 32;
    __shared__ C weights[EACH * 32], whole;
    const i64 at = blockIdx.x;
    const int lane = threadIdx.x % 32;
    const C *from = (const C *)partial + at * SPLITS * Q::RECORD;
    if (threadIdx.x < 32) {
        C max[EACH], sum[EACH], top = minus_infinity((C)0), total = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const C *part = from + (lane + 32 * i) * Q::RECORD + Q::F;
            const bool in = lane + 32 * i < SPLITS;
            max[i] = in ? part[0] : minus_infinity((C)0), sum[i] = in ? part[1] : (C)0;
            top = b_max(top, max[i]);
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) top = b_max(top, __shfl_xor_sync(0xffffffffu, top, d));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const C weight = sum[i] == 0 ? (C)0 : u_exp(max[i] - top);
            weights[lane + 32 * i] = weight;
            total += sum[i] * weight;
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) total += __shfl_xor_sync(0xffffffffu, total, d);
        if (lane == 0) whole = total;
        if (L::SUMS && lane == 0) L::put_sum(given, at / L::ROWS, at % L::ROWS, log_sum_exp(top, total));
    }
    __syncthreads();
    const C scale = whole == 0 ? (C)0 : 1 / whole;
    T *to = (T *)pr + L::r_head(at / L::ROWS) + L::r_row(at % L::ROWS);
    for (int f = threadIdx.x; f < Q::F; f += 128) {
        C acc = 0;
#pragma unroll 16
        for (int s = 0; s < SPLITS; s++) acc += from[s * Q::RECORD + f] * weights[s];
        to[f * L::r_step] = Put<T>::of(acc * scale);
    }
}

// One warp per row merges the parts of few splits, in order. A block has this many warps.
template <class L, int SPLITS, int WARPS>
SC_FN void combine_few(const void *partial, void *pr, const void *const *given, i64 rows) {
    typedef Attention<L> Q;
    typedef typename Q::T T;
    typedef typename Q::C C;
    const i64 at = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (at >= rows) return;
    const C *from = (const C *)partial + at * SPLITS * Q::RECORD;
    C weights[SPLITS], top = minus_infinity((C)0), total = 0;
#pragma unroll
    for (int s = 0; s < SPLITS; s++) top = b_max(top, from[s * Q::RECORD + Q::F]);
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        const C sum = from[s * Q::RECORD + Q::F + 1];
        weights[s] = sum == 0 ? (C)0 : u_exp(from[s * Q::RECORD + Q::F] - top);
        total += sum * weights[s];
    }
    if (L::SUMS && lane == 0) L::put_sum(given, at / L::ROWS, at % L::ROWS, log_sum_exp(top, total));
    const C scale = total == 0 ? (C)0 : 1 / total;
    T *to = (T *)pr + L::r_head(at / L::ROWS) + L::r_row(at % L::ROWS);
#pragma unroll
    for (int f = lane; f < Q::F; f += 32) {
        C acc = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) acc += from[s * Q::RECORD + f] * weights[s];
        to[f * L::r_step] = Put<T>::of(acc * scale);
    }
}

} // namespace sc
