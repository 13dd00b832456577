// Skinny GEMM of up to 64 rows by tensor cores, limited by one read of the right matrix.
//
// `L` is as for `gemv`, with TILE_N, STAGES and SPLIT. A block has TILE_N columns of b, its lines, in equal
// parts from each product, and all rows of a. With split-K, clusters of SPLIT blocks have the same lines:
// each block takes a share of the stages, and the others read its sums through distributed shared memory.
// Warps are specialized. Four producers load a part of K of the lines to a stage, and two load that of the
// rows, so that lines can be prefetched before the kernel enters and rows are available. The eight consumers
// divide rows, lines and the part of K of a stage (sliced-K) among themselves, such that their sums stay in
// registers. Sums of slices of K are added in order: the bits of a sum depend only on the number of rows, on
// K and on the number of blocks of a cluster.
//
// Pieces of 16 bytes are swizzled: they are permuted by their line number, so that the eight rows of a matrix
// use different banks. Longer lines would have the same effect, but copies to them would cross the lines of
// the shared memory.

namespace sc {

// Per stage: the number of warps whose copies have arrived, and the number of readers that have left.
template <int STAGES> struct MmaBarriers { u64 full[STAGES], empty[STAGES]; };

template <class L> struct Mma {
    typedef typename L::T T;
    static const int M = L::M, P = L::P, TILE_N = L::TILE_N, STAGES = L::STAGES, SPLIT = L::SPLIT;
    static const int ROWS = M <= 16 ? 16 : M <= 32 ? 32 : 64, COLUMNS = TILE_N / P, EIGHTS = TILE_N / 8;
    // The division among consumers: rows, lines, and then K.
    static const int WARPS = 8, ROW_PARTS = ROWS / 32 > 1 ? 2 : 1, LINE_PARTS = ROWS > 16 ? 2 : 1;
    static const int SHARES = WARPS / ROW_PARTS / LINE_PARTS;
    // A warp has sums of WIDTH times eight lines and HEIGHT times 16 rows.
    static const int HEIGHT = ROWS / 16 / ROW_PARTS, WIDTH = (EIGHTS + LINE_PARTS - 1) / LINE_PARTS;
    // The terms of a stage, in pieces of eight.
    static const int TILE_K = 128, PIECES = TILE_K / 8, ALL_STEPS = (int)((L::K + TILE_K - 1) / TILE_K);
    static const int STAGE = (TILE_N + ROWS) * TILE_K;
    // The number of stages that are refilled later, so that their readers have time.
    static const int LATE = 2, AHEAD = STAGES - LATE;
    // The consumers, the producers of lines, the producers of rows.
    static const int LINE_THREADS = 128, ROW_THREADS = 64;
    static const int THREADS = WARPS * 32 + LINE_THREADS + ROW_THREADS;
    // The number of lines of a stage of which a thread copies a piece.
    static const int COPIES = TILE_N * PIECES / LINE_THREADS;
    // The distance between rows of the sums: rows that a warp stores at once use different banks.
    static const int SUMS = TILE_N + (TILE_N % 16 ? 0 : 8);
    typedef float Sums[HEIGHT][WIDTH][4];

    const T *a, *b[P];
    u16 *stages;
    MmaBarriers<STAGES> *barriers;
    Part part;
    // The steps of this block.
    int first, steps;

    // The location of eight elements of a line of a stage.
    SC_FN int at(int line, int term) { return line * TILE_K + ((term / 8) ^ (line % 8)) * 8; }
    // The line of copy `copy` of a thread.
    SC_FN int line(int copy, int thread) { return copy * (LINE_THREADS / PIECES) + thread / PIECES; }
    __device__ __forceinline__ u16 *stage(int step) const { return stages + step % STAGES * STAGE; }
};

// Copies the lines of a step, with zeros beyond them. With pairs of columns, `pairs` gives the addresses of
// those that the thread copies pieces of.
template <class L> SC_FN void load_lines(const Mma<L> &tile, const typename L::T *const *pairs, int step, int thread) {
    typedef Mma<L> X;
    const int term = thread % X::PIECES * 8;
    u16 *to = tile.stage(step);
    const i64 k = (i64)(tile.first + step) * X::TILE_K + term;
#pragma unroll
    for (int i = 0; i < X::COPIES; i++) {
        const int line = X::line(i, thread);
        if (L::PAIRED) {
            const bool in = pairs[i] && k < L::K;
            cp_async(to + X::at(line, term), in ? pairs[i] + k : tile.a, in);
            continue;
        }
        const i64 column = tile.part.column0 + line % X::COLUMNS;
        const bool in = column < tile.part.columns && k < L::K;
        const typename L::T *b = line < X::COLUMNS ? tile.b[0] : tile.b[X::P - 1];
        cp_async(to + X::at(line, term), b + (in ? column * L::b_step + k : 0), in);
    }
}

// Copies the rows of a step, with zeros beyond them.
template <class L> SC_FN void load_rows(const Mma<L> &tile, int step, int thread) {
    typedef Mma<L> X;
    const int term = thread % X::PIECES * 8;
    u16 *to = tile.stage(step) + X::TILE_N * X::TILE_K;
    const i64 k = (i64)(tile.first + step) * X::TILE_K + term;
#pragma unroll
    for (int i = 0; i < X::ROWS * X::PIECES / X::ROW_THREADS; i++) {
        const int row = i * (X::ROW_THREADS / X::PIECES) + thread / X::PIECES;
        const bool in = row < X::M && k < L::K;
        cp_async(to + X::at(row, term), tile.a + (in ? row * L::a_step + k : 0), in);
    }
}

// The loop of producers: fills the stages, refills each after it was read, and signals arrived copies.
template <class L, bool TILE_N> SC_FN void produce(const Mma<L> &tile, int thread) {
    typedef Mma<L> X;
    const typename L::T *pairs[X::COPIES];
    if (TILE_N && L::PAIRED) {
#pragma unroll
        for (int i = 0; i < X::COPIES; i++) {
            const int line = X::line(i, thread);
            const i64 at = line_of<L>(tile.part, tile.part.column0 + line % X::COLUMNS, line / X::COLUMNS);
            pairs[i] = at < tile.part.columns ? tile.b[0] + at * L::b_step : nullptr;
        }
    }
    const auto fill = [&](int step) {
        if (step < tile.steps) {
            if (TILE_N) load_lines(tile, pairs, step, thread);
            else load_rows(tile, step, thread);
        }
        cp_async_commit();
    };
    const bool prefetched = L::STEADY && TILE_N;
    if (!prefetched) L::enter();
    for (int step = 0; step < X::AHEAD; step++) fill(step);
    if (prefetched) L::enter();
    for (int step = 0; step < tile.steps; step++) {
        const int next = step + X::AHEAD;
        if (next >= X::STAGES && next < tile.steps)
            mbarrier_wait(&tile.barriers->empty[next % X::STAGES], next / X::STAGES + 1 & 1);
        fill(next);
        cp_async_wait<X::AHEAD>();
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(&tile.barriers->full[step % X::STAGES]);
    }
}

// Accumulates the products of a warp's part.
template <class L> SC_FN void mma_tile(const Mma<L> &tile, typename Mma<L>::Sums &acc) {
    typedef Mma<L> X;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row0 = warp / X::SHARES % X::ROW_PARTS * X::HEIGHT * 16;
    const int line0 = warp / X::SHARES / X::ROW_PARTS * X::WIDTH * 8;
    // The matrix row that this lane addresses, in lines and in rows.
    const int line = line0 + lane % 8 + lane / 16 * 8, row = row0 + lane % 16;
    for (int step = 0; step < tile.steps; step++) {
        const int slot = step % X::STAGES;
        mbarrier_wait(&tile.barriers->full[slot], step / X::STAGES & 1);
        const u16 *lines = tile.stage(step), *rows = lines + X::TILE_N * X::TILE_K;
#pragma unroll
        for (int part = 0; part < X::TILE_K / 16 / X::SHARES; part++) {
            const int term = (warp % X::SHARES * (X::TILE_K / 16 / X::SHARES) + part) * 16;
            u32 a[X::HEIGHT][4];
#pragma unroll
            for (int h = 0; h < X::HEIGHT; h++) ldmatrix(a[h], rows + X::at(row + h * 16, term + lane / 16 * 8));
#pragma unroll
            for (int e = 0; e < X::WIDTH; e += 2) {
                // If the number is odd, the last eight lines are loaded with the data after them.
                u32 b[4];
                ldmatrix(b, lines + X::at(line + e * 8, term + lane / 8 % 2 * 8));
#pragma unroll
                for (int h = 0; h < X::HEIGHT; h++) {
                    mma(typename L::T(), acc[h][e], a[h], b[0], b[1]);
                    if (e + 1 < X::WIDTH) mma(typename L::T(), acc[h][e + 1], a[h], b[2], b[3]);
                }
            }
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&tile.barriers->empty[slot]);
    }
}

// Stores the sums of a warp: by share, row and line.
template <class L> SC_FN void store_sums(float *sums, const typename Mma<L>::Sums &acc) {
    typedef Mma<L> X;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row0 = warp / X::SHARES % X::ROW_PARTS * X::HEIGHT * 16 + lane / 4;
    const int line0 = warp / X::SHARES / X::ROW_PARTS * X::WIDTH * 8 + lane % 4 * 2;
    sums += (warp % X::SHARES * X::ROWS + row0) * X::SUMS + line0;
#pragma unroll
    for (int h = 0; h < X::HEIGHT; h++)
#pragma unroll
        for (int e = 0; e < X::WIDTH; e++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                // If the lines do not divide evenly, the last warps have fewer.
                if (X::EIGHTS % X::LINE_PARTS == 0 || line0 + e * 8 < X::TILE_N)
                    sums[(h * 16 + c / 2 * 8) * X::SUMS + e * 8 + c % 2] = acc[h][e][c];
            }
}

// The sum at a place, over all shares.
template <class L> SC_FN float sum_of(const float *at) {
    typedef Mma<L> X;
    float sum = *at;
#pragma unroll
    for (int i = 1; i < X::SHARES; i++) sum += at[i * X::ROWS * X::SUMS];
    return sum;
}

// The sum at a place, over all blocks of the cluster.
template <class L> SC_FN float sum_of_blocks(const float *at) {
    typedef Mma<L> X;
    float sum = 0;
#pragma unroll
    for (int block = 0; block < X::SPLIT; block++) sum += ld_shared(mapa(at, block));
    return sum;
}

template <class L, class F> SC_FN void skinny_mma(const void *pa, const void *const *pb, F epilogue) {
    typedef Mma<L> X;
    X tile;
    const int block = X::SPLIT > 1 ? (int)cluster_rank() : 0;
    tile.part = L::part(blockIdx.x / X::SPLIT);
    tile.first = X::ALL_STEPS * block / X::SPLIT, tile.steps = X::ALL_STEPS * (block + 1) / X::SPLIT - tile.first;
    tile.a = (const typename L::T *)pa;
#pragma unroll
    for (int p = 0; p < X::P; p++) tile.b[p] = (const typename L::T *)pb[tile.part.product + (L::PAIRED ? 0 : p)];
    tile.stages = (u16 *)dynamic_shared();
    tile.barriers = (MmaBarriers<X::STAGES> *)(tile.stages + X::STAGES * X::STAGE);
    if (threadIdx.x < X::STAGES) {
        mbarrier_init(&tile.barriers->full[threadIdx.x], (X::LINE_THREADS + X::ROW_THREADS) / 32);
        mbarrier_init(&tile.barriers->empty[threadIdx.x], X::WARPS);
    }
    __syncthreads();
    // All copies have arrived and been read, so the sums reuse their memory.
    float *sums = (float *)tile.stages;
    if (threadIdx.x >= X::WARPS * 32) {
        const int thread = threadIdx.x - X::WARPS * 32;
        if (thread < X::LINE_THREADS) produce<L, true>(tile, thread);
        else produce<L, false>(tile, thread - X::LINE_THREADS);
        __syncthreads();
    } else {
        typename X::Sums acc;
#pragma unroll
        for (int h = 0; h < X::HEIGHT; h++)
#pragma unroll
            for (int e = 0; e < X::WIDTH; e++)
#pragma unroll
                for (int c = 0; c < 4; c++) acc[h][e][c] = 0;
        L::enter();
        mma_tile<L>(tile, acc);
        __syncthreads();
        store_sums<L>(sums, acc);
    }
    __syncthreads();
    const int places = X::M * X::COLUMNS;
    const auto at = [&](int e, int p) { return e / X::COLUMNS * X::SUMS + p * X::COLUMNS + e % X::COLUMNS; };
    if (X::SPLIT > 1) {
        for (int e = threadIdx.x; e < places; e += X::THREADS)
#pragma unroll
            for (int p = 0; p < X::P; p++) sums[at(e, p)] = sum_of<L>(sums + at(e, p));
        cluster_sync();
    }
    for (int e = block * X::THREADS + threadIdx.x; e < places; e += X::SPLIT * X::THREADS) {
        const i64 column = tile.part.column0 + e % X::COLUMNS;
        if (line_of<L>(tile.part, column, 0) >= tile.part.columns) continue;
        float sum[X::P];
#pragma unroll
        for (int p = 0; p < X::P; p++) sum[p] = X::SPLIT > 1 ? sum_of_blocks<L>(sums + at(e, p)) : sum_of<L>(sums + at(e, p));
        epilogue(tile.part.product, e / X::COLUMNS, column, sum);
    }
    // The other blocks may still read from here.
    if (X::SPLIT > 1) cluster_sync();
}

} // namespace sc
