// GEMV, and skinny GEMM of a few rows: the time is that of one read of the right matrix.
//
// `L` gives the type T, the extents M and K, the steps between rows of a and between lines of b, the access
// width V of b, the number P of products of one a that a block computes side by side, the function `part`
// that maps a tile to a part of a product, and whether b is STEADY: then it is prefetched before the kernel
// enters. If it is PAIRED, the P = 2 side-by-side lines are columns of one product, and a column is the
// number of a pair. Sums are f32: each thread sums its own part of K, then the threads are added in a fixed
// order. `epilogue(product, row, column, sums)` consumes them.

namespace sc {

// The columns of a tile: from column0 on, of its first product, which has `columns` columns. The columns of a
// pair are `half` apart.
struct Part { int product, half; i64 column0, columns; };

// The line of b of the first column of a pair whose columns are `half` apart.
SC_FN i64 first_of_pair(i64 pair, int half) { return (i64)((u32)pair / (u32)half * 2u * half + (u32)pair % (u32)half); }

// The line of b of a column of product `p` among those side by side.
template <class L> SC_FN i64 line_of(const Part &part, i64 column, int p) {
    return L::PAIRED ? first_of_pair(column, part.half) + p * part.half : column;
}

SC_FN float warp_sum(float x, int from, int to) {
    for (int m = from; m < to; m <<= 1) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

// One row, with lines of b along k. A block computes one column of each product; its threads divide k.
template <class L, class F> SC_FN void gemv(const void *pa, const void *const *pb, F epilogue) {
    typedef typename L::T T;
    const int V = L::V, P = L::P, WARPS = 4, LAP = WARPS * 32 * V, LAPS = (L::K + LAP - 1) / LAP;
    // The number of loads per line that one thread has in flight: more slow an H200 down.
    const int HELD = LAPS * P < 2 ? LAPS : 2 / P;
    __shared__ float parts[WARPS][P];
    const T *a = (const T *)pa;
    const Part part = L::part(blockIdx.x);
    const i64 column = part.column0;
    Few<T, V> w[P][HELD];
    const auto fetch = [&](int lap) {
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
            for (int h = 0; h < HELD; h++) {
                const i64 k = (i64)(lap + h) * LAP + threadIdx.x * V;
                if (k < L::K) read<T, V>(w[p][h], (const T *)pb[part.product + p] + column * L::b_step + k);
            }
    };
    if (L::STEADY) fetch(0);
    L::enter();
    if (!L::STEADY) fetch(0);
    float acc[P];
#pragma unroll
    for (int p = 0; p < P; p++) acc[p] = 0;
    for (int lap = 0; lap < LAPS; lap += HELD) {
        if (lap > 0) fetch(lap);
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const i64 k = (i64)(lap + h) * LAP + threadIdx.x * V;
            if (k >= L::K) continue;
            Few<T, V> x;
            read<T, V>(x, a + k);
#pragma unroll
            for (int p = 0; p < P; p++)
#pragma unroll
                for (int v = 0; v < V; v++) acc[p] += get(x.e[v]) * get(w[p][h].e[v]);
        }
    }
#pragma unroll
    for (int p = 0; p < P; p++) {
        const float sum = warp_sum(acc[p], 1, 32);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][p] = sum;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    float sums[P];
#pragma unroll
    for (int p = 0; p < P; p++) {
        sums[p] = 0;
        for (int w = 0; w < WARPS; w++) sums[p] += parts[w][p];
    }
    epilogue(part.product, 0, column, sums);
}

// Lines of b along n. A block computes 32 columns; its warps, and the groups of lanes within a warp that
// cover these columns, divide k.
template <class L, class F> SC_FN void skinny_columns(const void *pa, const void *const *pb, F epilogue) {
    typedef typename L::T T;
    const int V = L::V, M = L::M, WARPS = 16, LANES = 32 / V, GROUPS = 32 / LANES;
    __shared__ float parts[WARPS][M * 32];
    L::enter();
    const Part part = L::part(blockIdx.x);
    const T *a = (const T *)pa, *b = (const T *)pb[part.product];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 column = part.column0 + lane % LANES * V;
    float acc[M][V];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int v = 0; v < V; v++) acc[m][v] = 0;
    if (column < part.columns) {
#pragma unroll 4
        for (i64 k = warp * GROUPS + lane / LANES; k < L::K; k += WARPS * GROUPS) {
            Few<T, V> w;
            read<T, V>(w, b + k * L::b_step + column);
#pragma unroll
            for (int m = 0; m < M; m++) {
                float x = get(a[m * L::a_step + k]);
#pragma unroll
                for (int v = 0; v < V; v++) acc[m][v] += x * get(w.e[v]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int v = 0; v < V; v++) {
            float sum = warp_sum(acc[m][v], LANES, 32);
            if (lane < LANES) parts[warp][m * 32 + lane * V + v] = sum;
        }
    __syncthreads();
    for (int e = threadIdx.x; e < M * 32; e += WARPS * 32) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += parts[w][e];
        const i64 at = part.column0 + e % 32;
        if (at < part.columns) epilogue(part.product, e / 32, at, &sum);
    }
}

} // namespace sc
