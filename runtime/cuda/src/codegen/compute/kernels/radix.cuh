// Stable sorting of 32-bit keys with their positions: digits of 8 bits, the least significant one first. Each digit
// takes three kernels: tiles count its values, the counts become starts, and tiles move their pairs. Pairs with
// equal digits keep their order, so the result is unique.

namespace sc {

enum { RADIX_TILE = 2048, RADIX_VALUES = 256, RADIX_WARPS = RADIX_VALUES / 32, SCAN_THREADS = 1024 };

SC_FN u32 radix_digit(u32 key, u64 shift) { return key >> shift & (RADIX_VALUES - 1); }

// One block of RADIX_VALUES threads for each tile: the number of keys with each digit, by digit and tile.
template <i64 N, i64 TILES> SC_FN void radix_count(const void *pk, void *pc, u64 shift) {
    __shared__ u32 counts[RADIX_VALUES];
    const u32 *keys = (const u32 *)pk;
    const i64 first = (i64)blockIdx.x * RADIX_TILE;
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (i64 i = first + threadIdx.x; i < first + RADIX_TILE && i < N; i += RADIX_VALUES)
        atomicAdd(counts + radix_digit(keys[i], shift), 1u);
    __syncthreads();
    ((u32 *)pc)[threadIdx.x * TILES + blockIdx.x] = counts[threadIdx.x];
}

// One block of SCAN_THREADS threads: each count becomes the sum of those before it.
template <i64 COUNTS> SC_FN void radix_starts(void *pc) {
    __shared__ u32 ends[SCAN_THREADS / 32];
    const i64 each = (COUNTS + SCAN_THREADS - 1) / SCAN_THREADS;
    const i64 first = threadIdx.x * each, end = first + each < COUNTS ? first + each : COUNTS;
    u32 *counts = (u32 *)pc;
    u32 own = 0;
    for (i64 i = first; i < end; i++) own += counts[i];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = own;
    for (int by = 1; by < 32; by *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == 31) ends[warp] = sum;
    __syncthreads();
    u32 start = sum - own;
    for (int w = 0; w < warp; w++) start += ends[w];
    for (i64 i = first; i < end; i++) {
        const u32 count = counts[i];
        counts[i] = start;
        start += count;
    }
}

// One block of RADIX_VALUES threads for each tile: moves its pairs to the starts of their digits. If there are
// no positions yet, each key has its own index.
template <i64 N, i64 TILES>
SC_FN void radix_move(const void *pk, const void *pp, void *qk, void *qp, const void *pc, u64 shift) {
    // The place of the next pair with each digit, and the number of such pairs in each warp.
    __shared__ u32 next[RADIX_VALUES];
    __shared__ u32 in_warp[RADIX_WARPS][RADIX_VALUES];
    const u32 *keys = (const u32 *)pk, *positions = (const u32 *)pp;
    const i64 begin = (i64)blockIdx.x * RADIX_TILE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next[threadIdx.x] = ((const u32 *)pc)[threadIdx.x * TILES + blockIdx.x];
    for (i64 first = begin; first < begin + RADIX_TILE && first < N; first += RADIX_VALUES) {
        for (int w = 0; w < RADIX_WARPS; w++) in_warp[w][threadIdx.x] = 0;
        __syncthreads();
        const i64 i = first + threadIdx.x;
        const u32 key = i < N ? keys[i] : 0, digit = radix_digit(key, shift);
        const u32 same = lanes_with<RADIX_VALUES>(digit, i < N);
        const u32 earlier = (u32)__popc(same & ((1u << lane) - 1));
        if (i < N && earlier == 0) in_warp[warp][digit] = (u32)__popc(same);
        __syncthreads();
        if (i < N) {
            u32 to = next[digit] + earlier;
            for (int w = 0; w < warp; w++) to += in_warp[w][digit];
            ((u32 *)qk)[to] = key;
            ((u32 *)qp)[to] = positions ? positions[i] : (u32)i;
        }
        __syncthreads();
        u32 moved = 0;
        for (int w = 0; w < RADIX_WARPS; w++) moved += in_warp[w][threadIdx.x];
        next[threadIdx.x] += moved;
    }
}

} // namespace sc
