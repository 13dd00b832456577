// All-reduce by LL or LL128 with the steps that often follow it: a residual is added and each row is
// normalised.

namespace symmc_peer {

/// A range of units of a row; `last` is exclusive.
struct Range {
    u32 first, last;
};

/// The layout of units of rows in memory, for a protocol and elements `S`. With `VECTOR`, rows begin at
/// multiples of 8.
template <class P, class S, bool VECTOR>
struct InRow : P {
    /// This thread's units of a range of the row that begins at `row` and has `width` words, with zeros
    /// beyond its end.
    template <u32 PER, class Piece>
    static __device__ __forceinline__ void load(u64 row, u32 width, const Range& range, Piece (&pieces)[PER]) {
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = range.first + threadIdx.x + k * blockDim.x;
            if (j >= range.last) continue;
#pragma unroll
            for (u32 w = 0; w < P::WORDS; w++) {
                const u32 i = P::first(j) + w;
                if (w >= P::count(j, width)) pieces[k].words[w] = 0;
                else pieces[k].words[w] = VECTOR ? ((const u64*)row)[i] : message<S, false>(row, i, (u64)width * 8);
            }
        }
    }
    /// Stores unit `j`, which has `count` words.
    static __device__ __forceinline__ void store(u64 row, u32 width, u32 j, u32 count, const u64 (&words)[P::WORDS]) {
#pragma unroll
        for (u32 w = 0; w < P::WORDS; w++) {
            const u32 i = P::first(j) + w;
            if (w >= count) continue;
            if (VECTOR) ((u64*)row)[i] = words[w];
            else deliver<S, false>(row, i, (u64)width * 8, words[w]);
        }
    }
};

/// Sends this block's ranges of rows to all peers; false if the wait for peers ended early. A range is the
/// whole row. In a grid with several blocks per row it is a share: block `b` sends a share of row `b % rows`.
/// In place, a block `b < rows` waits for the readers of its row, whose flags become `readers`, before it
/// writes.
template <class T, u32 N, class Protocol, u32 PER>
__device__ __forceinline__ bool send_rows(const LandingParams& call, const Norm& norm, Epoch& epoch, u32 rows, u64& readers) {
    typedef Run<T, Protocol::WORDS> Piece;
    const u32 width = norm.row, units = Protocol::units(width), thread = threadIdx.x, threads = blockDim.x;
    const u32 first = blockIdx.x % rows, part = blockIdx.x / rows;
    const bool shared = gridDim.x > rows, ordered = shared && norm.in_place;
    Range range{part * norm.share, part * norm.share + norm.share};
    if (range.last > units) range.last = units;
    const auto load = [&](u32 row, Piece(&own)[PER]) {
        Protocol::template load<PER>(call.from[0] + row * (u64)width * 8, width, range, own);
    };
    // This load overlaps the load of the group's words.
    Piece own[PER];
    load(first, own);
    Words words;
    if (!begin_epoch<N>(call, words, epoch, (u64)rows * units, N - 1, units)) return false;
    if (shared) words.barriers++;
    if (shared && epoch.flag == CLEARED) {
        // Each block cleared the places of its own row, and the other blocks of this rank did not wait for
        // it.
        range = Range{0, part == 0 ? units : 0};
        load(first, own);
    }
    if (ordered) {
        touch(call, epoch.flag, 2);
        __syncthreads();
        if (part > 0 && thread == threads - 1) store_release_here(flag(call, call.me, call.me), words.barriers);
    }
    touch(call, epoch.flag, 0);
    for (u32 row = first; row < rows; row += gridDim.x) {
        if (row != first) load(row, own);
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = range.first + thread + k * threads;
            if (j >= range.last) continue;
#pragma unroll
            for (u32 p = 0; p + 1 < N; p++) {
                Protocol::send(call.to[p] + epoch.zone + ((u64)row * units + j) * 16, j, own[k].words, epoch.flag);
            }
        }
    }
    touch(call, epoch.flag, 1);
    __syncthreads();
    leave(call, words);
    readers = words.barriers;
    return true;
}

/// Waits until the other blocks of this rank that send shares of this block's row have read it. Threads of
/// the block know this after the next block barrier.
__device__ __forceinline__ void await_readers(const LandingParams& call, u32 rows, u64 readers) {
    for (u32 b = blockIdx.x + (threadIdx.x + 1) * rows; b < gridDim.x; b += blockDim.x * rows) {
        await_of(call, call.me, b, readers);
    }
}

/// The factor of a row's elements before they are squared, if `mean`, the mean of the squares, is not a
/// number of full precision: the squares of floats far from 1 are not. It is a power of two, so nothing is
/// rounded.
__device__ __forceinline__ float unit_for(float mean) {
    if (mean >= of_bits(0x00800000u) && mean <= of_bits(0x7f7fffffu)) return 1.0f;
    return mean < 1.0f ? of_bits(0x71800000u) : of_bits(0x17800000u);
}

/// The sum of the squares of this thread's elements of a row, each multiplied by `unit`.
template <class Protocol, u32 PER, class Piece>
__device__ __forceinline__ float row_squares(const Piece (&pieces)[PER], u32 width, float unit) {
    constexpr u32 COUNT = Piece::COUNT, EACH = COUNT / Protocol::WORDS;
    float squares = 0;
#pragma unroll
    for (u32 k = 0; k < PER; k++) {
        const u32 j = threadIdx.x + k * blockDim.x;
        if (j >= Protocol::units(width)) continue;
        float y[COUNT];
        pieces[k].widen(y);
#pragma unroll
        for (u32 e = 0; e < COUNT; e++) {
            if (e / EACH < Protocol::count(j, width)) squares += y[e] * unit * (y[e] * unit);
        }
    }
    return squares;
}

/// All-reduce by LL or LL128, then `+ residual`, then RMS norm of each row, with the roundings of the three
/// steps. One block receives a row, and each of its threads has the same `PER` units of each message. With
/// `VECTOR` all addresses are multiples of 8.
template <class T, class O, u32 N, class P, u32 PER, bool ROUND_FIRST, bool VECTOR>
__device__ __forceinline__ void ll_norm(const LandingParams& call, const Norm& norm) {
    typedef InRow<P, typename T::Stored, VECTOR> Protocol;
    typedef Run<T, Protocol::WORDS> Piece;
    constexpr u32 COUNT = Piece::COUNT, EACH = COUNT / Protocol::WORDS;
    const u32 width = norm.row, units = Protocol::units(width), thread = threadIdx.x, threads = blockDim.x;
    const u32 rows = (u32)(call.count / 8) / width;
    const Range whole{0, units};
    const bool ordered = gridDim.x > rows && norm.in_place;
    Epoch epoch;
    u64 readers;
    if (!send_rows<T, N, Protocol, PER>(call, norm, epoch, rows, readers) || blockIdx.x >= rows) return;
    Piece weight[PER];
    if (norm.weight != 0) Protocol::template load<PER>(norm.weight, width, whole, weight);
    u32 parity = 0;
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 at = row * (u64)width * 8;
        // The local values are loaded before the wait.
        Piece x[PER], residual[PER];
        Protocol::template load<PER>(call.from[0] + at, width, whole, x);
        Protocol::template load<PER>(norm.residual + at, width, whole, residual);
        if (ordered) await_readers(call, rows, readers);
        // The threads synchronize for the sum of the squares, or here if some of them write before that.
        if (ordered && (norm.reduced != 0 || norm.normed == 0)) __syncthreads();
        float squares = 0;
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads, count = Protocol::count(j, width);
            if (j >= units) continue;
            Piece runs[N];
            // A wait that ends early leaves meaningless data, so that the threads of a block stay together.
            Protocol::template receive<T, N>(call, epoch, (u64)row * units + j, x[k].words, runs);
            const Piece reduced = reduce_runs<T, O, N, Protocol::WORDS>(runs);
            if (norm.reduced != 0) Protocol::store(norm.reduced + at, width, j, count, reduced.words);
            x[k] = add_runs(reduced, residual[k]);
            if (norm.normed == 0) Protocol::store(norm.added + at, width, j, count, x[k].words);
            float sum[COUNT];
            x[k].widen(sum);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) {
                if (e / EACH < count) squares += sum[e] * sum[e];
            }
        }
        if (norm.normed == 0) continue;
        float mean = block_sum(squares, parity) / (float)(width * EACH) + norm.eps;
        parity ^= 1;
        const float unit = unit_for(mean);
        if (unit != 1.0f) {
            const float sum = block_sum(row_squares<Protocol, PER>(x, width, unit), parity);
            mean = sum / (float)(width * EACH) + norm.eps * unit * unit;
            parity ^= 1;
        }
        const float scale = 1.0f / sqrtf(mean);
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads, count = Protocol::count(j, width);
            if (j >= units) continue;
            Protocol::store(norm.added + at, width, j, count, x[k].words);
            float y[COUNT], w[COUNT];
            x[k].widen(y);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) y[e] = y[e] * unit * scale;
            if (norm.weight != 0) {
                if constexpr (ROUND_FIRST) {
                    x[k].narrow(y);
                    x[k].widen(y);
                }
                weight[k].widen(w);
#pragma unroll
                for (u32 e = 0; e < COUNT; e++) y[e] *= w[e];
            }
            x[k].narrow(y);
            Protocol::store(norm.normed + at, width, j, count, x[k].words);
        }
    }
}

}  // namespace symmc_peer
