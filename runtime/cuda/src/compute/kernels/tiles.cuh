// Products of up to 64 rows by matrix instructions, bound by reading the right matrix once.
//
// `L` is as for `skinny_line`, and LINES, TERMS, STAGES, SPLITS. A block has LINES lines of b, an equal part of each
// product's, and all rows of a. Four warps bring TERMS terms of the lines to a stage and one those of the rows, so
// that lines can be on their way before the kernel enters and rows are known. The first eight multiply: 32 lines each,
// which share the terms of a stage. The SPLITS blocks of a tile have parts of k; the last of them to end adds up all
// in order and finishes.
//
// Lines in shared memory are 16 bytes longer than their terms, so that the eight rows of a matrix meet different
// banks.

namespace sc {

// Of a stage, how many threads' copies have come; how many of its readers have left.
template <int STAGES> struct TileBarriers { u64 full[STAGES], empty[STAGES]; };

template <class L> struct Tiles {
    typedef typename L::T T;
    static const int M = L::M, P = L::P, LINES = L::LINES, TERMS = L::TERMS, STAGES = L::STAGES, SPLITS = L::SPLITS;
    static const int COLUMNS = LINES / P, ROWS = (M + 15) / 16 * 16, PITCH = TERMS + 8;
    static const int STAGE = (LINES + ROWS) * PITCH, SUMS = LINES + 4;
    // Those that multiply, that bring lines, that bring rows.
    static const int WARPS = 8, LINE_THREADS = 128, ROW_THREADS = 32;
    static const int THREADS = WARPS * 32 + LINE_THREADS + ROW_THREADS;
    static const int GROUPS = LINES / 32, SHARES = WARPS / GROUPS;

    const T *a;
    const void *const *b;
    u16 *stages;
    TileBarriers<STAGES> *barriers;
    i64 column0;
    // The first term and the stages of this block.
    i64 k0;
    int steps;
};

// Copies the lines of a step, with zeros beyond them.
template <class L> SC_FN void bring_lines(const Tiles<L> &tile, int step, int thread) {
    typedef Tiles<L> X;
    const int slot = step % X::STAGES, UNITS = X::TERMS / 8;
    u16 *to = tile.stages + slot * X::STAGE;
    const i64 k = tile.k0 + (i64)step * X::TERMS + thread % UNITS * 8;
#pragma unroll
    for (int i = 0; i < X::LINES * UNITS / X::LINE_THREADS; i++) {
        const int line = i * (X::LINE_THREADS / UNITS) + thread / UNITS;
        const i64 column = tile.column0 + line % X::COLUMNS;
        const bool in = column < L::N && k < L::K;
        const typename L::T *b = (const typename L::T *)tile.b[line / X::COLUMNS];
        copy_async(to + line * X::PITCH + thread % UNITS * 8, b + (in ? column * L::b_step + k : 0), in);
    }
    barrier_arrive_after_copies(&tile.barriers->full[slot]);
}

// Copies the rows of a step, with zeros beyond them.
template <class L> SC_FN void bring_rows(const Tiles<L> &tile, int step, int thread) {
    typedef Tiles<L> X;
    const int slot = step % X::STAGES, UNITS = X::TERMS / 8;
    u16 *to = tile.stages + slot * X::STAGE + X::LINES * X::PITCH;
#pragma unroll 4
    for (int e = thread; e < X::ROWS * UNITS; e += X::ROW_THREADS) {
        const int row = e / UNITS, unit = e % UNITS;
        const i64 k = tile.k0 + (i64)step * X::TERMS + unit * 8;
        const bool in = row < X::M && k < L::K;
        copy_async(to + row * X::PITCH + unit * 8, tile.a + (in ? row * L::a_step + k : 0), in);
    }
    barrier_arrive_after_copies(&tile.barriers->full[slot]);
}

// What the threads do that bring: fills the stages, then each again when it was read.
template <class L> SC_FN void bring(const Tiles<L> &tile, int thread) {
    typedef Tiles<L> X;
    const bool lines = thread < X::LINE_THREADS;
    const auto fill = [&](int step) {
        if (lines) bring_lines(tile, step, thread);
        else bring_rows(tile, step, thread - X::LINE_THREADS);
    };
    const int first = tile.steps < X::STAGES ? tile.steps : X::STAGES;
    const bool early = L::STEADY && lines;
    if (!early) L::enter();
    for (int step = 0; step < first; step++) fill(step);
    if (early) L::enter();
    for (int step = first; step < tile.steps; step++) {
        barrier_wait(&tile.barriers->empty[step % X::STAGES], step / X::STAGES + 1 & 1);
        fill(step);
    }
}

// Adds up the products of this warp's lines and share of terms.
template <class L> SC_FN void multiply_tile(const Tiles<L> &tile, float (&acc)[2][Tiles<L>::ROWS / 8][4]) {
    typedef Tiles<L> X;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % X::GROUPS * 32, share = warp / X::GROUPS;
    // The row of a matrix that this lane names, of lines and of rows.
    const int line = group + lane % 16, line_term = lane / 16 * 8;
    const int row = lane % 8 + lane / 16 * 8, row_term = lane / 8 % 2 * 8;
    for (int step = 0; step < tile.steps; step++) {
        const int slot = step % X::STAGES;
        barrier_wait(&tile.barriers->full[slot], step / X::STAGES & 1);
        const u16 *lines = tile.stages + slot * X::STAGE, *rows = lines + X::LINES * X::PITCH;
#pragma unroll
        for (int i = 0; i < (X::TERMS / 16 + X::SHARES - 1) / X::SHARES; i++) {
            const int k = (i * X::SHARES + share) * 16;
            if (k >= X::TERMS) continue;
            u32 b[2][4];
#pragma unroll
            for (int h = 0; h < 2; h++) load_matrices(b[h], lines + (line + h * 16) * X::PITCH + k + line_term);
#pragma unroll
            for (int n = 0; n < X::ROWS / 16; n++) {
                u32 a[4];
                load_matrices(a, rows + (row + n * 16) * X::PITCH + k + row_term);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    multiply(typename L::T(), acc[h][2 * n], b[h], a[0], a[1]);
                    multiply(typename L::T(), acc[h][2 * n + 1], b[h], a[2], a[3]);
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&tile.barriers->empty[slot]);
    }
}

// Adds up what the warps have, in the order of their shares, by row and line.
template <class L> SC_FN void gather_sums(float *sums, float (&acc)[2][Tiles<L>::ROWS / 8][4]) {
    typedef Tiles<L> X;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % X::GROUPS * 32;
    for (int share = 0; share < X::SHARES; share++) {
        __syncthreads();
        if (warp < X::WARPS && warp / X::GROUPS == share)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int n = 0; n < X::ROWS / 8; n++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        const int row = n * 8 + lane % 4 * 2 + c % 2, line = group + h * 16 + c / 2 * 8 + lane / 4;
                        float *at = sums + row * X::SUMS + line;
                        *at = share == 0 ? acc[h][n][c] : *at + acc[h][n][c];
                    }
    }
    __syncthreads();
}

// Adds up what the blocks of a tile have; false on all but the last of them to end.
template <class L> SC_FN bool gather_splits(float *sums, float *partial, u32 *arrived) {
    typedef Tiles<L> X;
    const int FOURS = X::M * X::LINES / 4, EACH = (FOURS + X::THREADS - 1) / X::THREADS, tile = blockIdx.x / X::SPLITS;
    __shared__ bool last;
    const auto place = [](int four) { return four / (X::LINES / 4) * X::SUMS + four % (X::LINES / 4) * 4; };
    float4 *parts = (float4 *)partial + (i64)tile * X::SPLITS * FOURS;
    for (int four = threadIdx.x; four < FOURS; four += X::THREADS)
        parts[blockIdx.x % X::SPLITS * FOURS + four] = *(float4 *)(sums + place(four));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = count_up(arrived + tile) == X::SPLITS - 1;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    if (threadIdx.x == 0) arrived[tile] = 0;
    float4 all[EACH][X::SPLITS];
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int s = 0; s < X::SPLITS; s++) {
            const int four = threadIdx.x + i * X::THREADS;
            if (four < FOURS) all[i][s] = load_fresh(parts + s * FOURS + four);
        }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float4 sum = all[i][0];
#pragma unroll
        for (int s = 1; s < X::SPLITS; s++)
            sum.x += all[i][s].x, sum.y += all[i][s].y, sum.z += all[i][s].z, sum.w += all[i][s].w;
        const int four = threadIdx.x + i * X::THREADS;
        if (four < FOURS) *(float4 *)(sums + place(four)) = sum;
    }
    __syncthreads();
    return true;
}

template <class L, class F>
SC_FN void skinny_tiles(const void *pa, const void *const *pb, float *partial, u32 *arrived, F finish) {
    typedef Tiles<L> X;
    __shared__ TileBarriers<X::STAGES> barriers;
    const int ALL = (L::K + X::TERMS - 1) / X::TERMS, split = blockIdx.x % X::SPLITS;
    const int first = (int)((i64)ALL * split / X::SPLITS), end = (int)((i64)ALL * (split + 1) / X::SPLITS);
    X tile;
    tile.a = (const typename L::T *)pa, tile.b = pb, tile.stages = (u16 *)dynamic_shared(), tile.barriers = &barriers;
    tile.column0 = (i64)(blockIdx.x / X::SPLITS) * X::COLUMNS, tile.k0 = (i64)first * X::TERMS, tile.steps = end - first;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < X::STAGES; slot++)
            barrier_init(&barriers.full[slot], X::LINE_THREADS + X::ROW_THREADS), barrier_init(&barriers.empty[slot], X::WARPS);
    }
    __syncthreads();
    float acc[2][X::ROWS / 8][4];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < X::ROWS / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[h][n][c] = 0;
    if (threadIdx.x >= X::WARPS * 32) {
        bring(tile, threadIdx.x - X::WARPS * 32);
    } else {
        L::enter();
        multiply_tile(tile, acc);
    }
    // All copies have come and been read: the sums take their place.
    float *sums = (float *)tile.stages;
    gather_sums<L>(sums, acc);
    if (X::SPLITS > 1 && !gather_splits<L>(sums, partial, arrived)) return;
    for (int e = threadIdx.x; e < X::M * X::COLUMNS; e += X::THREADS) {
        const int row = e / X::COLUMNS, column = e % X::COLUMNS;
        if (tile.column0 + column >= L::N) continue;
        float sum[X::P];
#pragma unroll
        for (int p = 0; p < X::P; p++) sum[p] = sums[row * X::SUMS + p * X::COLUMNS + column];
        finish(row, tile.column0 + column, sum);
    }
}

} // namespace sc
