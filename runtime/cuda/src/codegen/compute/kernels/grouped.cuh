// Grouped GEMM: products of groups of rows with one matrix per group, or of two matrices whose K is divided
// into groups. The number of rows or terms of a group is data: each block looks up its tile and group, or the
// terms of its group. Rows after the last group form one more group, whose K is 0.
//
// `L` gives R rows, or terms, N columns, K and G groups, and M rows if groups divide K; the types T of
// elements, A of sums and I of ends; `a_at`, `c_at` and, within a group, `b_at`; the distances `e_step` of
// ends, `b_group` of matrices and `c_group` of results.

namespace sc {

// Rows from `first` to before `end`, of a group; `group` is G if they are of no group.
struct GroupedRows { i64 first, end, group; };

// Reads the ends of groups, 32 at a time, with the lanes of a warp.
template <class L> struct Ends {
    // The end of the group before these.
    i64 start = 0;
    bool sound = true;

    // The rows of this lane's group, among those from `g0` on; the rows after the last group end with all
    // rows. The first block reports the first end that is less than the previous one or beyond the rows; such
    // groups are empty, or end with the rows.
    __device__ __forceinline__ GroupedRows next(const void *pe, i64 g0, void *status, u32 assertion) {
        const int lane = threadIdx.x % 32;
        const i64 g = g0 + lane;
        const i64 given = g < L::G ? get(((const typename L::I *)pe)[g * L::e_step]) : L::R;
        i64 end = given < start ? start : given > L::R ? L::R : given;
        for (int by = 1; by < 32; by *= 2) {
            const i64 other = __shfl_up_sync(0xffffffffu, end, by);
            if (lane >= by && other > end) end = other;
        }
        i64 first = __shfl_up_sync(0xffffffffu, end, 1);
        if (lane == 0) first = start;
        const bool bad = given < first || given > L::R;
        const u32 all_bad = __ballot_sync(0xffffffffu, bad);
        if (sound && bad && blockIdx.x == 0 && (all_bad & ((1u << lane) - 1)) == 0) report(status, assertion, given);
        sound = sound && all_bad == 0;
        start = __shfl_sync(0xffffffffu, end, 31);
        return {first, end, g};
    }
};

// The tile with this number: each group has one for every ROWS of its rows. Beyond the last tile there are no
// rows.
template <class L, int ROWS> SC_FN GroupedRows tile_of(const void *pe, i64 tile, void *status, u32 assertion) {
    __shared__ GroupedRows own;
    if (threadIdx.x == 0) own.first = 0, own.end = 0, own.group = L::G;
    __syncthreads();
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        Ends<L> ends;
        // The number of tiles of the groups before these.
        i64 before = 0;
        for (i64 g0 = 0; g0 <= L::G; g0 += 32) {
            const GroupedRows rows = ends.next(pe, g0, status, assertion);
            const i64 tiles = (rows.end - rows.first + ROWS - 1) / ROWS;
            i64 sum = tiles;
            for (int by = 1; by < 32; by *= 2) {
                const i64 other = __shfl_up_sync(0xffffffffu, sum, by);
                if (lane >= by) sum += other;
            }
            const i64 at = tile - (before + sum - tiles);
            const bool hit = at >= 0 && at < tiles;
            if (hit) {
                own.first = rows.first + at * ROWS, own.group = rows.group;
                own.end = own.first + ROWS < rows.end ? own.first + ROWS : rows.end;
            }
            // The first block continues, for the report.
            if (__ballot_sync(0xffffffffu, hit) != 0 && blockIdx.x != 0) break;
            before += __shfl_sync(0xffffffffu, sum, 31);
        }
    }
    __syncthreads();
    return own;
}

// All terms of a group, if groups divide K.
template <class L> SC_FN GroupedRows terms_of(const void *pe, i64 group, void *status, u32 assertion) {
    __shared__ GroupedRows own;
    if (threadIdx.x < 32) {
        Ends<L> ends;
        for (i64 g0 = 0; g0 < L::G && (g0 <= group || blockIdx.x == 0); g0 += 32) {
            const GroupedRows terms = ends.next(pe, g0, status, assertion);
            if (terms.group == group) own = terms;
        }
    }
    __syncthreads();
    return own;
}

// The tile of a block, if groups divide K: groups have equal numbers of tiles, in `TILES` columns.
struct TileOfTerms { i64 group, row, column; };
template <class L, int TILES, int ROWS> SC_FN TileOfTerms tile_of_terms() {
    const i64 rows = L::M > 0 ? (L::M + ROWS - 1) / ROWS : 1, rest = blockIdx.x / TILES;
    return {rest / rows, rest % rows * ROWS, blockIdx.x % TILES};
}

// The kernel for any strides and types.
template <class L, int TILES>
SC_FN void grouped_product(const void *pa, const void *pb, const void *pe, void *pc, void *status, u32 assertion) {
    typedef typename L::T T;
    const GroupedRows rows = tile_of<L, 64>(pe, blockIdx.x / TILES, status, assertion);
    if (rows.first >= rows.end) return;
    const bool none = rows.group >= L::G;
    const T *b = (const T *)pb + (none ? 0 : rows.group * L::b_group);
    product_tile<L>((const T *)pa, b, (T *)pc, rows.first, rows.end, blockIdx.x % TILES * 64, none ? 0 : L::K);
}

template <class L, int TILES>
SC_FN void grouped_terms(const void *pa, const void *pb, const void *pe, void *pc, void *status, u32 assertion) {
    typedef typename L::T T;
    const TileOfTerms at = tile_of_terms<L, TILES, 64>();
    if (at.group >= L::G) return;
    const GroupedRows own = terms_of<L>(pe, at.group, status, assertion);
    const T *a = (const T *)pa + L::a_at(0, own.first), *b = (const T *)pb + L::b_at(own.first, 0);
    product_tile<L>(a, b, (T *)pc + at.group * L::c_group, at.row, L::M, at.column * 64, own.end - own.first);
}

// The kernel for 16-bit floats with matrix instructions: a block of four warps computes ROWS by 128. For
// rows, contiguous are the elements of one row (A_K_MAJOR), or those of one k; for matrices, the elements of
// a column (B_K_MAJOR), or those of one k.
template <class L, int ROWS, int STAGES, bool A_K_MAJOR, bool B_K_MAJOR> struct GroupedTile {
    typedef typename L::T T;
    static const int COLUMNS = 128, TILE_K = 64, THREADS = 128;
    // Warps divide the rows, and then the columns. A warp has sums of HEIGHT times 16 rows and WIDTH times
    // eight columns.
    static const int ROW_PARTS = ROWS > 16 ? 2 : 1, COLUMN_PARTS = 4 / ROW_PARTS;
    static const int HEIGHT = ROWS / 16 / ROW_PARTS, WIDTH = COLUMNS / 8 / COLUMN_PARTS;
    static const int STAGE = (ROWS + COLUMNS) * TILE_K;

    const T *a, *b;
    GroupedRows rows;
    i64 column0, terms;

    // The location of eight elements of a line: pieces of 16 bytes are permuted by the line number, so that
    // eight lines use different banks.
    template <int LENGTH> SC_FN int at(int line, int element) { return line * LENGTH + ((element / 8) ^ (line % 8)) * 8; }

    // Starts to copy the part of K of a step, with zeros beyond rows, columns and K.
    __device__ __forceinline__ void produce(u16 *stage, i64 step) const {
        const i64 k0 = step * TILE_K;
        if (k0 >= terms) return;
#pragma unroll
        for (int e = threadIdx.x; e < ROWS * TILE_K / 8; e += THREADS) {
            const int length = A_K_MAJOR ? TILE_K : ROWS, line = e / (length / 8), piece = e % (length / 8) * 8;
            const i64 term = k0 + (A_K_MAJOR ? piece : line), row = rows.first + (A_K_MAJOR ? line : piece);
            const bool in = row < rows.end && term < terms;
            cp_async(stage + at<A_K_MAJOR ? TILE_K : ROWS>(line, piece), a + (in ? L::a_at(row, term) : 0), in);
        }
        u16 *to = stage + ROWS * TILE_K;
#pragma unroll
        for (int e = threadIdx.x; e < COLUMNS * TILE_K / 8; e += THREADS) {
            const int length = B_K_MAJOR ? TILE_K : COLUMNS, line = e / (length / 8), piece = e % (length / 8) * 8;
            const i64 term = k0 + (B_K_MAJOR ? piece : line), column = column0 + (B_K_MAJOR ? line : piece);
            const bool in = term < terms && column < L::N;
            cp_async(to + at<B_K_MAJOR ? TILE_K : COLUMNS>(line, piece), b + (in ? L::b_at(term, column) : 0), in);
        }
    }

    // Accumulates the products of a stage for this warp.
    __device__ __forceinline__ void multiply_stage(const u16 *stage, float (&acc)[HEIGHT][WIDTH][4]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int row0 = warp % ROW_PARTS * HEIGHT * 16, line0 = warp / ROW_PARTS * WIDTH * 8;
        const u16 *matrix = stage + ROWS * TILE_K;
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16) {
            u32 x[HEIGHT][4];
#pragma unroll
            for (int h = 0; h < HEIGHT; h++) {
                const int row = row0 + h * 16, term = k + lane / 16 * 8;
                if (A_K_MAJOR) ldmatrix(x[h], stage + at<TILE_K>(row + lane % 16, term));
                else ldmatrix_trans(x[h], stage + at<ROWS>(term + lane % 8, row + lane / 8 % 2 * 8));
            }
#pragma unroll
            for (int e = 0; e < WIDTH; e += 2) {
                const int column = line0 + e * 8 + lane / 16 * 8, term = k + lane / 8 % 2 * 8;
                u32 y[4];
                if (B_K_MAJOR) ldmatrix(y, matrix + at<TILE_K>(column + lane % 8, term));
                else ldmatrix_trans(y, matrix + at<COLUMNS>(term + lane % 8, column));
#pragma unroll
                for (int h = 0; h < HEIGHT; h++) {
                    mma(T(), acc[h][e], x[h], y[0], y[1]);
                    mma(T(), acc[h][e + 1], x[h], y[2], y[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void store(T *c, const float (&acc)[HEIGHT][WIDTH][4]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const i64 row0 = rows.first + warp % ROW_PARTS * HEIGHT * 16 + lane / 4;
        const i64 line0 = column0 + warp / ROW_PARTS * WIDTH * 8 + lane % 4 * 2;
#pragma unroll
        for (int h = 0; h < HEIGHT; h++)
#pragma unroll
            for (int e = 0; e < WIDTH; e++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const i64 row = row0 + h * 16 + i / 2 * 8, column = line0 + e * 8 + i % 2;
                    if (row < rows.end && column < L::N) c[L::c_at(row, column)] = Put<T>::of(acc[h][e][i]);
                }
    }
};

// Fills stages and multiplies them, one after another, and stores the tile.
template <class X, int STAGES> SC_FN void tile_product(X &tile, typename X::T *c) {
    u16 *stages = (u16 *)dynamic_shared();
    float acc[X::HEIGHT][X::WIDTH][4];
#pragma unroll
    for (int h = 0; h < X::HEIGHT; h++)
#pragma unroll
        for (int e = 0; e < X::WIDTH; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[h][e][i] = 0;
    for (int step = 0; step < STAGES - 1; step++) {
        tile.produce(stages + step * X::STAGE, step);
        cp_async_commit();
    }
    const i64 steps = (tile.terms + X::TILE_K - 1) / X::TILE_K;
    for (i64 step = 0; step < steps; step++) {
        // This step's copies of all threads have arrived, and all threads have read the stage that is filled
        // next.
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        const i64 next = step + STAGES - 1;
        tile.produce(stages + next % STAGES * X::STAGE, next);
        cp_async_commit();
        tile.multiply_stage(stages + step % STAGES * X::STAGE, acc);
    }
    tile.store(c, acc);
}

template <class L, int TILES, int ROWS, int STAGES, bool B_K_MAJOR>
SC_FN void grouped_tiles(const void *pa, const void *pb, const void *pe, void *pc, void *status, u32 assertion) {
    typedef GroupedTile<L, ROWS, STAGES, true, B_K_MAJOR> X;
    typedef typename L::T T;
    X tile;
    tile.rows = tile_of<L, ROWS>(pe, blockIdx.x / TILES, status, assertion);
    if (tile.rows.first >= tile.rows.end) return;
    const bool none = tile.rows.group >= L::G;
    tile.a = (const T *)pa, tile.b = (const T *)pb + (none ? 0 : tile.rows.group * L::b_group);
    tile.column0 = blockIdx.x % TILES * X::COLUMNS, tile.terms = none ? 0 : L::K;
    tile_product<X, STAGES>(tile, (T *)pc);
}

// Groups that divide K begin at any term, so neither operand has adjacent terms of one line.
template <class L, int TILES, int ROWS, int STAGES>
SC_FN void grouped_terms_tiles(const void *pa, const void *pb, const void *pe, void *pc, void *status, u32 assertion) {
    typedef GroupedTile<L, ROWS, STAGES, false, false> X;
    typedef typename L::T T;
    const TileOfTerms at = tile_of_terms<L, TILES, ROWS>();
    if (at.group >= L::G) return;
    const GroupedRows own = terms_of<L>(pe, at.group, status, assertion);
    X tile;
    tile.rows = {at.row, at.row + ROWS < L::M ? at.row + ROWS : L::M, at.group};
    tile.a = (const T *)pa + L::a_at(0, own.first), tile.b = (const T *)pb + L::b_at(own.first, 0);
    tile.column0 = at.column * X::COLUMNS, tile.terms = own.end - own.first;
    tile_product<X, STAGES>(tile, (T *)pc + at.group * L::c_group);
}

} // namespace sc
