// Matrix products of any strides and types: a block computes a tile of 64 by 64, each thread 4 by 4.

namespace sc {

// Computes the tile from this row (of rows before `rows`) and this column on; sums over `terms` terms of K.
template <class L>
SC_FN void product_tile(const typename L::T *a, const typename L::B *b, typename L::Out *c, i64 row0, i64 rows, i64 column0, i64 terms) {
    typedef typename L::T T;
    typedef typename L::A A;
    const int S = 64, D = 16;
    __shared__ A as[D][S + 1], bs[D][S + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    A acc[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = 0;
    for (i64 k0 = 0; k0 < terms; k0 += D) {
        for (int e = threadIdx.x; e < S * D; e += 256) {
            int k = e % D, i = e / D;
            bool in = row0 + i < rows && k0 + k < terms;
            as[k][i] = in ? (A)get(a[L::a_at(row0 + i, k0 + k)]) : (A)0;
            int j = e % S, q = e / S;
            in = column0 + j < L::N && k0 + q < terms;
            bs[q][j] = in ? (A)get(b[L::b_at(k0 + q, column0 + j)]) : (A)0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < D; k++) {
            A x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = as[k][ty + 16 * i], y[i] = bs[k][tx + 16 * i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            i64 row = row0 + ty + 16 * i, column = column0 + tx + 16 * j;
            if (row < rows && column < L::N) c[L::c_at(row, column)] = Put<typename L::Out>::of(acc[i][j]);
        }
}

template <class L, int TILES> SC_FN void product(const void *pa, const void *pb, void *pc) {
    typedef typename L::T T;
    typedef typename L::B B;
    const int S = 64;
    const i64 column_tile = blockIdx.x % TILES, rest = blockIdx.x / TILES;
    const i64 row_tiles = (L::M + S - 1) / S, batch = rest / row_tiles;
    const T *a = (const T *)pa + L::a_batch(batch);
    const B *b = (const B *)pb + L::b_batch(batch);
    product_tile<L>(a, b, (typename L::Out *)pc + L::c_batch(batch), rest % row_tiles * S, L::M, column_tile * S, L::K);
}

} // namespace sc
