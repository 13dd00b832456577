// Grouped GEMM by warp-group MMA (WGMMA, compute capability 9.0).
//
// `L` is as in grouped.cuh, with extents of 32 bits; COLUMNS and STAGES; whether groups DIVIDE_K; whether the
// terms of a line are adjacent in a and in b (A_K_MAJOR, B_K_MAJOR), otherwise its lines are; the columns of a
// BAND of tiles; whether eight columns of the result are stored at once (C_WIDE), and whether 16 rows are
// stored by TMA (C_BOXES); `enter`; and `wgmma`.
//
// Blocks are persistent: each computes every gridDim.x-th tile. One thread, the producer, loads the boxes of
// stages by TMA. Two groups of four warps, the consumers, compute tiles alternately, such that one multiplies
// while the other one stores. A box of a may have rows of the next group, and a stage rows of earlier steps:
// these rows are not stored.

namespace sc {

// Per stage: whether its boxes have arrived, and how many warps have read it; and for each consumer, whether
// the terms after the end of a group are zero, and whether it is its turn: the other one waits for no stage of
// its tile any more.
template <int STAGES> struct GroupedBarriers { u64 full[STAGES], empty[STAGES], cleared[2], turn[2]; };

// The next stage that a consumer waits for, and the parities of its phase and of those of the other barriers.
template <int STAGES> struct GroupedCursor {
    int slot;
    u32 phase, cleared, turn;
    __device__ __forceinline__ void advance(int steps) {
        // An end that is less than the one before has no steps.
        if (steps > 0) slot += steps;
        phase ^= slot / STAGES & 1;
        slot %= STAGES;
    }
};

// The rows from `row` to before `end`, the columns from `column` on, and the terms from `term` to before
// `end_term`.
struct GroupedSpan { int group, row, end, column, term, end_term; };

template <class L> struct GroupedWgmma {
    typedef typename L::T T;
    static const int ROWS = 128, COLUMNS = L::COLUMNS, STAGES = L::STAGES, TILE_K = 64, G = (int)L::G;
    static const int WORKERS = 256, THREADS = 384, WARPS = THREADS / 32;
    // The bytes of 64 terms of 64 rows or columns. Boxes have that size, except those of all columns of b.
    static const int BOX = 64 * 128;
    static const int STAGE = (ROWS + COLUMNS) * 128;
    // The shared memory from which a warp stores 16 rows, in boxes of 64 columns.
    static const int C_BOX = 16 * 128, C_BYTES = L::C_BOXES ? COLUMNS / 64 * C_BOX : 0;
    static const int COLUMN_TILES = (int)((L::N + COLUMNS - 1) / COLUMNS), BAND = L::BAND < COLUMN_TILES ? L::BAND : COLUMN_TILES;
    static const int ROW_TILES = (int)((L::M + ROWS - 1) / ROWS);
    // The adjacent groups that a thread counts the tiles of.
    static const int COUNTED = (G + THREADS) / THREADS;

    u8 *stages, *results;
    GroupedBarriers<STAGES> *barriers;
    // The ends of groups, the last of which is that of the rows after them; and the tiles of rows up to there.
    int *ends, *tiles_to;
    int tiles;

    __device__ __forceinline__ int start_of(int g) const { return g > 0 ? ends[g - 1] : 0; }

    // Reads the ends. An end that is less than the one before makes its group empty.
    __device__ __forceinline__ void read_groups(const void *pe, int *warp_sums) {
        for (int g = threadIdx.x; g <= G; g += THREADS) {
            const i64 given = g < G ? get(((const typename L::I *)pe)[g * L::e_step]) : L::R;
            ends[g] = (int)(given < 0 ? 0 : given > L::R ? L::R : given);
        }
        __syncthreads();
        if (L::DIVIDE_K) {
            tiles = G * ROW_TILES * COLUMN_TILES;
            return;
        }
        int count[COUNTED], sum = 0;
#pragma unroll
        for (int i = 0; i < COUNTED; i++) {
            const int g = threadIdx.x * COUNTED + i, rows = g <= G ? ends[g] - start_of(g) : 0;
            count[i] = sum += rows > 0 ? (rows + ROWS - 1) / ROWS : 0;
        }
        int before = sum;
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, before, by);
            if ((int)threadIdx.x % 32 >= by) before += other;
        }
        if (threadIdx.x % 32 == 31) warp_sums[threadIdx.x / 32] = before;
        before -= sum;
        __syncthreads();
        for (int w = 0; w < (int)threadIdx.x / 32; w++) before += warp_sums[w];
#pragma unroll
        for (int i = 0; i < COUNTED; i++)
            if ((int)threadIdx.x * COUNTED + i <= G) tiles_to[threadIdx.x * COUNTED + i] = before + count[i];
        __syncthreads();
        tiles = tiles_to[G] * COLUMN_TILES;
    }

    // The tile with this number. Tiles of a group are in bands of columns, so that tiles that run concurrently
    // share rows and columns.
    __device__ __forceinline__ GroupedSpan tile(int number) const {
        GroupedSpan at;
        int rows = ROW_TILES, rest = number;
        if (L::DIVIDE_K) {
            at.group = number / (ROW_TILES * COLUMN_TILES);
            rest -= at.group * (ROW_TILES * COLUMN_TILES);
        } else {
            const int row = number / COLUMN_TILES;
            int low = 0, high = G;
            while (low < high) {
                const int middle = (low + high) / 2;
                if (tiles_to[middle] <= row) low = middle + 1;
                else high = middle;
            }
            const int before = low > 0 ? tiles_to[low - 1] : 0;
            at.group = low, rows = tiles_to[low] - before;
            rest -= before * COLUMN_TILES;
        }
        const int band = rest / (BAND * rows), within = rest - band * BAND * rows;
        const int width = COLUMN_TILES - band * BAND < BAND ? COLUMN_TILES - band * BAND : BAND;
        at.row = within / width * ROWS, at.column = (band * BAND + within % width) * COLUMNS;
        if (L::DIVIDE_K) {
            at.end = (int)L::M, at.term = start_of(at.group), at.end_term = ends[at.group];
        } else {
            at.row += start_of(at.group), at.end = ends[at.group];
            at.term = 0, at.end_term = at.group < G ? (int)L::K : 0;
        }
        return at;
    }

    __device__ __forceinline__ void produce(const TensorMap &a, const TensorMap &b) const {
        int slot = 0;
        u32 phase = 1;
        for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
            const GroupedSpan at = tile(number);
            const int boxes = at.end - at.row > 64 ? 2 : 1;
            const u32 bytes = boxes * BOX + COLUMNS * 128;
            for (int term = at.term; term < at.end_term; term += TILE_K) {
                u64 *full = &barriers->full[slot];
                mbarrier_wait(&barriers->empty[slot], phase);
                mbarrier_expect_tx(full, bytes);
                u8 *to = stages + slot * STAGE, *lines = to + ROWS * 128;
                if (L::B_K_MAJOR) {
                    tma_load_plane(lines, b, term, at.column, L::DIVIDE_K ? 0 : at.group, full);
                } else {
#pragma unroll
                    for (int i = 0; i < COLUMNS / 64; i++)
                        tma_load_plane(lines + i * BOX, b, at.column + i * 64, term, L::DIVIDE_K ? 0 : at.group, full);
                }
                for (int i = 0; i < boxes; i++) {
                    if (L::A_K_MAJOR) tma_load(to + i * BOX, a, term, at.row + i * 64, full);
                    else tma_load(to + i * BOX, a, at.row + i * 64, term, full);
                }
                if (++slot == STAGES) slot = 0, phase ^= 1;
            }
        }
    }

    // Clears the terms of a stage that are of the next group, for all warps of this consumer.
    __device__ __forceinline__ void clear_terms(int slot, int terms, u32 parity) const {
        uint4 zero;
        zero.x = zero.y = zero.z = zero.w = 0;
        const int pieces = (TILE_K - terms) * 8;
        for (int i = threadIdx.x % 128; i < (ROWS + COLUMNS) / 64 * pieces; i += 128)
            *(uint4 *)(stages + slot * STAGE + i / pieces * BOX + terms * 128 + i % pieces * 16) = zero;
        fence_proxy_async();
        __syncwarp();
        u64 *cleared = &barriers->cleared[threadIdx.x / 128];
        if (threadIdx.x % 32 == 0) mbarrier_arrive(cleared);
        mbarrier_wait(cleared, parity);
    }

    // Computes a tile of up to HALVES times 64 rows.
    template <int HALVES>
    __device__ __forceinline__ void compute(const GroupedSpan &at, GroupedCursor<STAGES> &cursor, T *c, const TensorMap *c_map) const {
        const bool tells = threadIdx.x % 32 == 0;
        const int part = threadIdx.x / 128;
        const u8 *lines = stages + ROWS * 128;
        const u64 rows0 = L::A_K_MAJOR ? wgmma_descriptor(stages) : wgmma_descriptor_across(stages, BOX);
        const u64 lines0 = L::B_K_MAJOR ? wgmma_descriptor(lines) : wgmma_descriptor_across(lines, BOX);
        float acc[HALVES][COLUMNS / 8][4];
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int e = 0; e < COLUMNS / 8; e++)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[half][e][i] = 0;
        mbarrier_wait(&barriers->turn[part], cursor.turn);
        cursor.turn ^= 1;
        int before = -1;
        for (int term = at.term; term < at.end_term; term += TILE_K) {
            mbarrier_wait(&barriers->full[cursor.slot], cursor.phase);
            if (L::DIVIDE_K && at.end_term - term < TILE_K) {
                clear_terms(cursor.slot, at.end_term - term, cursor.cleared);
                cursor.cleared ^= 1;
            }
            const u64 rows = rows0 + cursor.slot * (STAGE / 16), lines = lines0 + cursor.slot * (STAGE / 16);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < TILE_K / 16; k++)
#pragma unroll
                for (int half = 0; half < HALVES; half++)
                    L::wgmma(acc[half], rows + half * (BOX / 16) + k * (L::A_K_MAJOR ? 2 : 128), lines + k * (L::B_K_MAJOR ? 2 : 128), 1);
            wgmma_commit();
            wgmma_wait<1>();
            if (before >= 0 && tells) mbarrier_arrive(&barriers->empty[before]);
            before = cursor.slot;
            cursor.advance(1);
        }
        if (tells) mbarrier_arrive(&barriers->turn[part ^ 1]);
        wgmma_wait<0>();
        if (before >= 0 && tells) mbarrier_arrive(&barriers->empty[before]);
        // No sum is read from its register before that.
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int e = 0; e < COLUMNS / 8; e++) fence_operand(acc[half][e]);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const int row = at.row + half * 64 + threadIdx.x % 128 / 32 * 16;
            if (L::C_BOXES && row + 16 <= at.end) store_boxes(*c_map, at, row, acc[half]);
            else if (row < at.end) store(c + (L::DIVIDE_K ? at.group * L::c_group : 0), at, row, acc[half]);
        }
    }

    __device__ __forceinline__ void consume(T *c, const TensorMap *c_map) const {
        int turn = threadIdx.x / 128;
        // The first consumer begins.
        GroupedCursor<STAGES> cursor = {0, 0, 0, turn == 0};
        for (int number = blockIdx.x; number < tiles; number += gridDim.x, turn ^= 1) {
            const GroupedSpan at = tile(number);
            if (turn != 0) cursor.advance((at.end_term - at.term + TILE_K - 1) / TILE_K);
            else if (at.end - at.row > 64) compute<2>(at, cursor, c, c_map);
            else compute<1>(at, cursor, c, c_map);
        }
        if (L::C_BOXES && threadIdx.x % 32 == 0) tma_store_wait();
    }

    // Stores 16 rows by TMA, while the warp continues with the next tile.
    __device__ __forceinline__ void store_boxes(const TensorMap &c, const GroupedSpan &at, int row, const float (&acc)[COLUMNS / 8][4]) const {
        const int lane = threadIdx.x % 32, line = lane % 8;
        u8 *to = results + threadIdx.x / 32 * C_BYTES;
        // The boxes of the last tile have been read.
        if (lane == 0) tma_store_wait_read();
        __syncwarp();
#pragma unroll
        for (int e = 0; e < COLUMNS / 8; e += 4)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u32 x[4];
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] = pack(T(), acc[e + i][2 * h], acc[e + i][2 * h + 1]);
                stmatrix((u16 *)(to + e / 8 * C_BOX + (h * 8 + line) * 128 + ((e % 8 + lane / 8) ^ line) * 16), x);
            }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
            for (int i = 0; i < COLUMNS / 64; i++)
                tma_store_plane(c, to + i * C_BOX, at.column + i * 64, row, L::DIVIDE_K ? at.group : 0);
            tma_store_commit();
        }
    }

    // With g = lane / 4 and t = lane % 4, a thread has the sums of columns 2t and 2t + 1 of every eight, for rows
    // g and g + 8 of the 16 of its warp.
    __device__ __forceinline__ void store(T *c, const GroupedSpan &at, int row, const float (&acc)[COLUMNS / 8][4]) const {
        const int lane = threadIdx.x % 32, t = lane % 4;
        const int column = at.column;
        row += lane / 4;
        if (L::C_WIDE) {
            // The four threads of a row exchange their sums, so that each has all eight columns.
            T *to = c + L::c_at(row, column + t * 8);
#pragma unroll
            for (int e = 0; e < COLUMNS / 8; e += 4)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    u32 x[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) x[i] = pack(T(), acc[e + i][2 * h], acc[e + i][2 * h + 1]);
#pragma unroll
                    for (int i = 0; i < 4; i += 2) {
                        const u32 other = __shfl_xor_sync(0xffffffffu, t & 1 ? x[i] : x[i + 1], 1);
                        if (t & 1) x[i] = other;
                        else x[i + 1] = other;
                    }
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const u32 other = __shfl_xor_sync(0xffffffffu, t & 2 ? x[i] : x[i + 2], 2);
                        if (t & 2) x[i] = other;
                        else x[i + 2] = other;
                    }
                    uint4 eight;
                    eight.x = x[0], eight.y = x[1], eight.z = x[2], eight.w = x[3];
                    if (row + h * 8 < at.end && column + (e + t) * 8 < L::N) *(uint4 *)(to + L::c_at(h * 8, e * 8)) = eight;
                }
            return;
        }
#pragma unroll
        for (int e = 0; e < COLUMNS / 8; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int y = row + i / 2 * 8, x = column + e * 8 + t * 2 + i % 2;
                if (y < at.end && x < L::N) c[L::c_at(y, x)] = Put<T>::of(acc[e][i]);
            }
    }
};

// Reports the first end that is less than the previous one or beyond the rows.
template <class L> SC_FN void check_ends(const void *pe, void *status, u32 assertion) {
    Ends<L> ends;
    for (i64 g0 = 0; g0 < L::G; g0 += 32) ends.next(pe, g0, status, assertion);
}

template <class L>
SC_FN void grouped_wgmma(const TensorMap &a, const TensorMap &b, const TensorMap *c_map, const void *pe, void *pc, void *status, u32 assertion) {
    typedef GroupedWgmma<L> X;
    X x;
    x.stages = aligned_shared();
    x.results = x.stages + X::STAGES * X::STAGE;
    x.barriers = (GroupedBarriers<X::STAGES> *)(x.results + X::WORKERS / 32 * X::C_BYTES);
    int *warp_sums = (int *)(x.barriers + 1);
    x.ends = warp_sums + X::WARPS, x.tiles_to = x.ends + X::G + 1;
    if (threadIdx.x == 0) {
        for (int s = 0; s < X::STAGES; s++) {
            mbarrier_init(&x.barriers->full[s], 1);
            mbarrier_init(&x.barriers->empty[s], 4);
        }
        for (int i = 0; i < 2; i++) {
            mbarrier_init(&x.barriers->cleared[i], 4);
            mbarrier_init(&x.barriers->turn[i], 4);
        }
        fence_mbarrier_init();
    }
    L::enter();
    x.read_groups(pe, warp_sums);
    if (threadIdx.x >= X::WORKERS) {
        registers_lower<24>();
        if (threadIdx.x == X::WORKERS) x.produce(a, b);
        else if (blockIdx.x == 0 && threadIdx.x / 32 == X::WORKERS / 32 + 1) check_ends<L>(pe, status, assertion);
    } else {
        registers_raise<240>();
        x.consume((typename X::T *)pc, c_map);
    }
}

} // namespace sc
