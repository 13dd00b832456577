// Products of few rows: all of the right matrix is read once, so its bytes are the time.
//
// `L` gives the type T, the extents M, N, K, the steps between rows of a and c and between lines of b, and the
// width V of an access to b. Sums are f32: each thread its own terms, then the threads in a fixed order.

namespace sc {

SC_FN float warp_sum(float x, int from, int to) {
    for (int m = from; m < to; m <<= 1) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

// Lines of b along k. A block computes COLUMNS columns; its threads share k.
template <class L, int COLUMNS, int WARPS> SC_FN void skinny_lines(const void *pa, const void *pb, void *pc) {
    typedef typename L::T T;
    const int V = L::V, M = L::M;
    __shared__ float parts[WARPS][M * COLUMNS];
    const T *a = (const T *)pa, *b = (const T *)pb;
    const i64 column0 = (i64)blockIdx.x * COLUMNS;
    float acc[M][COLUMNS];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) acc[m][c] = 0;
#pragma unroll 2
    for (i64 k = (i64)threadIdx.x * V; k < L::K; k += WARPS * 32 * V) {
        Few<T, V> w[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            i64 column = column0 + c < L::N ? column0 + c : L::N - 1;
            read<T, V>(w[c], b + column * L::b_step + k);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            Few<T, V> x;
            read<T, V>(x, a + m * L::a_step + k);
#pragma unroll
            for (int v = 0; v < V; v++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) acc[m][c] += get(x.e[v]) * get(w[c].e[v]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float sum = warp_sum(acc[m][c], 1, 32);
            if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][m * COLUMNS + c] = sum;
        }
    __syncthreads();
    for (int e = threadIdx.x; e < M * COLUMNS; e += WARPS * 32) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += parts[w][e];
        i64 column = column0 + e % COLUMNS;
        if (column < L::N) ((T *)pc)[e / COLUMNS * L::c_step + column] = Put<T>::of(sum);
    }
}

// Lines of b along n. A block computes 32 columns; its warps, and the groups of lanes within a warp that span
// these columns, share k.
template <class L, int WARPS> SC_FN void skinny_columns(const void *pa, const void *pb, void *pc) {
    typedef typename L::T T;
    const int V = L::V, M = L::M, LANES = 32 / V, GROUPS = 32 / LANES;
    __shared__ float parts[WARPS][M * 32];
    const T *a = (const T *)pa, *b = (const T *)pb;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 column0 = (i64)blockIdx.x * 32, column = column0 + lane % LANES * V;
    float acc[M][V];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int v = 0; v < V; v++) acc[m][v] = 0;
    if (column < L::N) {
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
        if (column0 + e % 32 < L::N) ((T *)pc)[e / 32 * L::c_step + column0 + e % 32] = Put<T>::of(sum);
    }
}

} // namespace sc
