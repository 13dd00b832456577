// Skinny GEMM of up to 64 rows by warp-group MMA (WGMMA, compute capability 9.0), limited by one read of the
// right matrices.
//
// `L` is as for `gemv`, with COLUMNS, STAGES and `wgmma`. Blocks run in clusters of two, with split-K: both
// have the same COLUMNS columns of each b, its lines, and all rows of a. Each block takes half of K, and thus
// reads half of the data. One thread, the producer, loads boxes of lines and rows by TMA, whose barriers
// count the bytes. It prefetches the first lines before the kernel enters and rows are available. One group
// of four warps, the consumers, multiplies. In the end each block sends the other one, through distributed
// shared memory, its sums of every second eight rows, and finishes the rest with all threads.
//
// The bits of a sum depend only on K.

namespace sc {

// Per stage: whether its boxes have arrived, and how many warps have read it; and whether the other block's
// sums have arrived.
template <int STAGES> struct WgmmaBarriers { u64 full[STAGES], empty[STAGES], sums; };

template <class L> struct Wgmma {
    typedef typename L::T T;
    static const int M = L::M, P = L::P, COLUMNS = L::COLUMNS, TILE_N = P * COLUMNS, STAGES = L::STAGES;
    // A box: 128 bytes of each line.
    static const int TILE_K = 64, STEPS = (int)((L::K + TILE_K - 1) / TILE_K);
    // A stage. The instructions process 64 rows: with fewer, the data after them produces sums of rows that
    // do not exist.
    static const int ROWS = (M + 7) / 8 * 8, BYTES = 128 * (ROWS + TILE_N), STAGE = ROWS + TILE_N < 64 ? 128 * 64 : BYTES;
    static const int WORKERS = 128, THREADS = 384;
    // The sums that a block finishes: 16 bytes per worker for every 16 lines.
    static const int SUMS = (TILE_N + 15) / 16 * 16 * WORKERS;
    // The number of rows that a block finishes.
    static const int HELD = (M + 15) / 16 * 8;

    u8 *stages;
    float *own, *other;
    WgmmaBarriers<STAGES> *barriers;
    Part part;
    int block, first, steps;
};

// Loads all boxes; called by one thread.
template <class L> SC_FN void tma_producer(const Wgmma<L> &x, const TensorMap &a, const TensorMap *const *b) {
    typedef Wgmma<L> X;
    const auto lines = [&](int step, int slot) {
        mbarrier_expect_tx(&x.barriers->full[slot], X::BYTES);
#pragma unroll
        for (int p = 0; p < X::P; p++) {
            u8 *to = x.stages + slot * X::STAGE + (X::ROWS + p * X::COLUMNS) * 128;
            tma_load(to, *b[x.part.product + p], (x.first + step) * X::TILE_K, (int)x.part.column0, &x.barriers->full[slot]);
        }
    };
    const auto rows = [&](int step, int slot) {
        tma_load(x.stages + slot * X::STAGE, a, (x.first + step) * X::TILE_K, 0, &x.barriers->full[slot]);
    };
    const int ahead = x.steps < X::STAGES ? x.steps : X::STAGES;
    if (!L::STEADY) L::enter();
    for (int step = 0; step < ahead; step++) lines(step, step);
    if (L::STEADY) L::enter();
    for (int step = 0; step < ahead; step++) rows(step, step);
    for (int step = ahead; step < x.steps; step++) {
        const int slot = step % X::STAGES;
        mbarrier_wait(&x.barriers->empty[slot], step / X::STAGES + 1 & 1);
        lines(step, slot);
        rows(step, slot);
    }
}

// Accumulates the products of this block's part of K. With g = lane / 4 and t = lane % 4, a thread has the
// sums of columns 2t and 2t + 1 of each eight lines, for rows g and g + 8 of the 16 of its warp.
template <class L> SC_FN void wgmma_tile(const Wgmma<L> &x, float (&acc)[Wgmma<L>::TILE_N / 8][4]) {
    typedef Wgmma<L> X;
    const bool tells = threadIdx.x % 32 == 0;
    const u64 stage0 = wgmma_descriptor(x.stages);
    int slot = 0, before = 0;
    u32 phase = 0;
    for (int step = 0; step < x.steps; step++) {
        mbarrier_wait(&x.barriers->full[slot], phase);
        const u64 rows = stage0 + slot * (X::STAGE / 16), lines = rows + X::ROWS * 128 / 16;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < X::TILE_K / 16; k++) L::wgmma(acc, rows + 2 * k, lines + 2 * k, step > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && tells) mbarrier_arrive(&x.barriers->empty[before]);
        before = slot;
        if (++slot == X::STAGES) slot = 0, phase ^= 1;
    }
    wgmma_wait<0>();
    // No sum is read from its register before that.
#pragma unroll
    for (int e = 0; e < X::TILE_N / 8; e++) fence_operand(acc[e]);
}

// For every second eight rows, the sums at two eights of lines: those of this block, or of the other.
template <class A> SC_FN float4 sums_of(const A &acc, int e, int half) {
    const int f = e + 1 < (int)(sizeof(A) / sizeof(acc[0])) ? e + 1 : e;
    return half ? float4{acc[e][2], acc[e][3], acc[f][2], acc[f][3]} : float4{acc[e][0], acc[e][1], acc[f][0], acc[f][1]};
}

template <class L, class F> SC_FN void skinny_wgmma(const TensorMap &a, const TensorMap *const *b, F epilogue) {
    typedef Wgmma<L> X;
    X x;
    x.block = (int)cluster_rank();
    x.stages = aligned_shared();
    x.own = (float *)x.stages, x.other = (float *)(x.stages + X::STAGES * X::STAGE);
    x.barriers = (WgmmaBarriers<X::STAGES> *)((u8 *)x.other + X::SUMS);
    x.part = L::part(blockIdx.x / 2);
    x.first = X::STEPS * x.block / 2, x.steps = X::STEPS * (x.block + 1) / 2 - x.first;
    if (threadIdx.x == 0) {
        for (int s = 0; s < X::STAGES; s++) {
            mbarrier_init(&x.barriers->full[s], 1);
            mbarrier_init(&x.barriers->empty[s], X::WORKERS / 32);
        }
        mbarrier_init(&x.barriers->sums, 1);
        fence_mbarrier_init();
        mbarrier_expect_tx(&x.barriers->sums, X::SUMS);
    }
    __syncthreads();
    cluster_arrive();
    const bool works = threadIdx.x < X::WORKERS;
    float acc[X::TILE_N / 8][4];
    if (works) {
        L::enter();
        wgmma_tile<L>(x, acc);
    } else if (threadIdx.x == X::WORKERS) {
        tma_producer<L>(x, a, b);
    } else {
        L::enter();
    }
    // From here on the barriers of the other block exist.
    __syncwarp();
    cluster_wait();
    if (works) {
        const u32 to = mapa(x.other + threadIdx.x * 4, x.block ^ 1), arrived = mapa(&x.barriers->sums, x.block ^ 1);
#pragma unroll
        for (int e = 0; e < X::TILE_N / 8; e += 2) st_async(to + e * 8 * X::WORKERS, sums_of(acc, e, x.block ^ 1), arrived);
    }
    // All stages have been read, so the sums reuse their memory.
    __syncthreads();
    if (works) {
#pragma unroll
        for (int e = 0; e < X::TILE_N / 8; e += 2)
            *(float4 *)(x.own + (e / 2 * X::WORKERS + threadIdx.x) * 4) = sums_of(acc, e, x.block);
    }
    __syncthreads();
    mbarrier_wait_cluster(&x.barriers->sums, 0);
#pragma unroll 4
    for (int i = threadIdx.x; i < X::HELD * X::COLUMNS; i += X::THREADS) {
        const int held = i / X::COLUMNS, column = i % X::COLUMNS;
        const int row = held / 8 * 16 + x.block * 8 + held % 8;
        if (row < X::M && x.part.column0 + column < x.part.columns) {
            float sum[X::P];
#pragma unroll
            for (int p = 0; p < X::P; p++) {
                const int line = p * X::COLUMNS + column, worker = held * 4 + line % 8 / 2;
                const int at = (line / 16 * X::WORKERS + worker) * 4 + line / 8 % 2 * 2 + line % 2;
                sum[p] = x.own[at] + x.other[at];
            }
            epilogue(x.part.product, row, x.part.column0 + column, sum);
        }
    }
}

} // namespace sc
