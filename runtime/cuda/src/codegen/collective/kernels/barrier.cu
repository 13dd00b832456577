// Collectives with barriers: kernels that read the peers' operands or write their results after all ranks
// have arrived.

namespace symmc_peer {

/// Reduces one element of all ranks into all outputs.
template <class T, class O, u32 N, u32 OUTS, class C>
__device__ __forceinline__ void reduce_one(const C& call, u64 i) {
    typedef typename T::Stored Stored;
    typename T::Acc acc = T::widen(((const Stored*)call.from[0])[i]);
#pragma unroll
    for (u32 p = 1; p < N; p++) acc = O::of(acc, T::widen(((const Stored*)call.from[p])[i]));
    const Stored out = T::narrow(O::template finish<N>(acc));
#pragma unroll
    for (u32 p = 0; p < OUTS; p++) ((Stored*)call.to[p])[i] = out;
}

/// Reduces 16 bytes at each of `TIMES` places, `apart` bytes from each other, of all ranks into all outputs.
/// All loads are issued first.
template <class T, class O, u32 N, u32 OUTS, u32 TIMES, class C>
__device__ __forceinline__ void reduce_wide(const C& call, u64 at, u64 apart) {
    Run<T, 2> runs[TIMES][N];
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
#pragma unroll
        for (u32 p = 0; p < N; p++) runs[t][p] = load_run<T>(call.from[p] + at + t * apart);
    }
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        const Run<T, 2> out = reduce_runs<T, O, N, 2>(runs[t]);
#pragma unroll
        for (u32 p = 0; p < OUTS; p++) {
            store_wide(call.to[p] + at + t * apart, wide_of(out));
        }
    }
}

/// Reduces `count` elements at `from[rank]` into each of `to`, as thread `first` of `step`. `VECTOR`: all
/// addresses are multiples of 16.
template <class T, class O, u32 N, u32 OUTS, bool VECTOR, class C>
__device__ __forceinline__ void reduce_elements(const C& call, u64 first, u64 step) {
    u64 done = 0;
    if constexpr (VECTOR) {
        constexpr u32 COUNT = Run<T, 2>::COUNT;
        const u64 bytes = call.count / COUNT * 16;
        done = call.count / COUNT * COUNT;
        u64 at = first * 16;
        // Large tensors are limited by the number of accesses in flight.
        constexpr u32 MANY = N <= 4 ? 16 / N : 2;
        for (; at + step * (MANY - 1) * 16 < bytes; at += step * MANY * 16) {
            reduce_wide<T, O, N, OUTS, MANY>(call, at, step * 16);
        }
        if constexpr (N <= 4) {
            for (; at + step * 16 < bytes; at += step * 32) reduce_wide<T, O, N, OUTS, 2>(call, at, step * 16);
        }
        for (; at < bytes; at += step * 16) reduce_wide<T, O, N, OUTS, 1>(call, at, 0);
    }
    for (u64 i = done + first; i < call.count; i += step) reduce_one<T, O, N, OUTS>(call, i);
}

/// One-shot and two-shot all-reduce, pull reduce-scatter.
template <class T, class O, u32 N, u32 OUTS, bool EXIT, bool VECTOR>
__device__ __forceinline__ void reduce(const BarrierParams& call) {
    Words words = begin(call);
    if (!meet<Arrive, N>(call, words.barriers + 1)) return;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    reduce_elements<T, O, N, OUTS, VECTOR>(call, first, (u64)gridDim.x * blockDim.x);
    words.barriers += 1 + EXIT;
    if constexpr (EXIT) meet<Depart, N>(call, words.barriers);
    leave(call, words);
}

/// A unit of 1, 2, 4, 8 or 16 bytes.
template <class U>
__device__ __forceinline__ U load_unit(u64 at) {
    if constexpr (sizeof(U) == 16) {
        return load_wide(at);
    } else {
        return *(const U*)at;
    }
}

template <class U>
__device__ __forceinline__ void store_unit(u64 at, U unit) {
    if constexpr (sizeof(U) == 16) {
        store_wide(at, unit);
    } else {
        *(U*)at = unit;
    }
}

/// Moves 16 bytes at each of `TIMES` places, `apart` bytes from each other. All loads are issued first.
template <u32 N, bool SAME, u32 TIMES, class C>
__device__ __forceinline__ void move_wide(const C& call, const bool (&moves)[N], u64 at, u64 apart) {
    Wide wide[TIMES][N];
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            if (SAME && p > 0) {
                wide[t][p] = wide[t][0];
            } else {
                wide[t][p] = load_wide(call.from[p] + at + t * apart);
            }
        }
    }
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            if (moves[p]) store_wide(call.to[p] + at + t * apart, wide[t][p]);
        }
    }
}

/// Moves `count` bytes from each `from` to the `to` of the same index, as thread `first` of `step`. `SAME`:
/// all `from` are equal. Addresses and count are multiples of the size of `U`.
template <class U, u32 N, bool SAME, class C>
__device__ __forceinline__ void move_bytes(const C& call, u64 first, u64 step) {
    u64 done = 0;
    // A part that is already in place is not moved.
    bool moves[N];
#pragma unroll
    for (u32 p = 0; p < N; p++) moves[p] = call.from[p] != call.to[p];
    if constexpr (sizeof(U) == 16) {
        done = call.count / 16 * 16;
        u64 at = first * 16;
        if constexpr (N <= 4) {
            for (; at + step * 16 < done; at += step * 32) move_wide<N, SAME, 2>(call, moves, at, step * 16);
        }
        for (; at < done; at += step * 16) move_wide<N, SAME, 1>(call, moves, at, 0);
    }
    typedef typename U::Unit Unit;
    for (u64 at = done + first * sizeof(Unit); at < call.count; at += step * sizeof(Unit)) {
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            if (moves[p]) *(Unit*)(call.to[p] + at) = *(const Unit*)(call.from[p] + at);
        }
    }
}

/// Pull and push all-gather and all-to-all.
template <class U, u32 N, bool SAME, bool EXIT>
__device__ __forceinline__ void move(const BarrierParams& call) {
    Words words = begin(call);
    if (!meet<Arrive, N>(call, words.barriers + 1)) return;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    move_bytes<U, N, SAME>(call, first, (u64)gridDim.x * blockDim.x);
    words.barriers += 1 + EXIT;
    if constexpr (EXIT) meet<Depart, N>(call, words.barriers);
    leave(call, words);
}

/// Moves unit `i`, and the `TIMES - 1` units after it that are `apart` units from each other, of each rank.
/// All loads are issued first. A row has `row` units.
template <class U, u32 N, u32 TIMES, class I>
__device__ __forceinline__ void move_row_units(const BarrierParams& call, u64 i, u64 apart, I row) {
    U units[TIMES][N];
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
#pragma unroll
        for (u32 p = 0; p < N; p++) units[t][p] = load_unit<U>(call.from[p] + (i + t * apart) * sizeof(U));
    }
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        // The rows of the other ranks come before it.
        const u64 at = i + t * apart + (u64)((I)(i + t * apart) / row) * row * (N - 1);
#pragma unroll
        for (u32 p = 0; p < N; p++) store_unit<U>(call.to[p] + at * sizeof(U), units[t][p]);
    }
}

/// Runs `move_row_units` over all units. `I` is an integer type that can count them.
template <class U, u32 N, class I>
__device__ __forceinline__ void move_all_rows(const BarrierParams& call) {
    const u64 units = call.count / sizeof(U), step = (u64)gridDim.x * blockDim.x;
    const I row = (I)(call.row / sizeof(U));
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if constexpr (N <= 4) {
        for (; i + step < units; i += 2 * step) move_row_units<U, N, 2, I>(call, i, step, row);
    }
    for (; i < units; i += step) move_row_units<U, N, 1, I>(call, i, 0, row);
}

/// Pull all-gather along an axis other than the first: the `count` bytes at each `from` are rows of `row`
/// bytes. At the `to` of the same index, each row is followed by the rows of the other ranks. Addresses and
/// rows are multiples of the size of `U`.
template <class U, u32 N, bool EXIT>
__device__ __forceinline__ void move_rows(const BarrierParams& call) {
    typedef typename U::Whole Whole;
    Words words = begin(call);
    if (!meet<Arrive, N>(call, words.barriers + 1)) return;
    // 64-bit divisions take several times as long.
    if (call.count / sizeof(Whole) <= 0xffffffffull) {
        move_all_rows<Whole, N, u32>(call);
    } else {
        move_all_rows<Whole, N, u64>(call);
    }
    words.barriers += 1 + EXIT;
    if constexpr (EXIT) meet<Depart, N>(call, words.barriers);
    leave(call, words);
}

/// The units of [`move`] and [`put`]: bytes, words, and 16 bytes with a remainder in bytes. [`move_rows`] has
/// no remainder, because rows are multiples of the unit.
struct Bytes {
    typedef u8 Unit;
    typedef u8 Whole;
    u8 unit;
};
struct Fours {
    typedef u32 Unit;
    typedef u32 Whole;
    u32 unit;
};
struct Sixteens {
    typedef u8 Unit;
    typedef Wide Whole;
    Wide unit;
};

// ---------------------------------------------------------------- pairs

/// Broadcast and permute. The next barrier means that the receiver has arrived; the one after it, that its
/// result is written.
template <class U, u32 N>
__device__ __forceinline__ void put(const PutParams& call) {
    Words words = begin(call);
    const u64 passed = words.barriers;
    const u32 thread = threadIdx.x;
    const u64 first = (u64)blockIdx.x * blockDim.x + thread;
    const u64 step = (u64)gridDim.x * blockDim.x;
    bool met = true;
    if (thread == 0 && call.sender < N) {
        touch(call, passed, 0);
        store_relaxed(flag(call, call.sender, call.me), passed + 1);
    }
    if (thread < call.receivers && call.receiver[thread] != call.me) {
        met = await(call, call.receiver[thread], passed + 1);
        touch(call, passed, 8 + thread);
    }
    if (!__syncthreads_and(met)) return;
    u64 done = 0;
    if constexpr (sizeof(U) == 16) {
        done = call.count / 16 * 16;
        for (u64 at = first * 16; at < done; at += step * 16) {
            if (call.zero) store_wide(call.to + at, Wide{0, 0});
            if (call.receivers == 0) continue;
            const Wide wide = load_wide(call.from + at);
            for (u32 p = 0; p < call.receivers; p++) store_wide(call.out[p] + at, wide);
        }
    }
    typedef typename U::Unit Unit;
    for (u64 at = done + first * sizeof(Unit); at < call.count; at += step * sizeof(Unit)) {
        if (call.zero) *(Unit*)(call.to + at) = 0;
        if (call.receivers == 0) continue;
        const Unit unit = *(const Unit*)(call.from + at);
        for (u32 p = 0; p < call.receivers; p++) *(Unit*)(call.out[p] + at) = unit;
    }
    __syncthreads();
    if (thread < call.receivers && call.receiver[thread] != call.me) {
        touch(call, passed, 16 + thread);
        store_release(flag(call, call.receiver[thread], call.me), passed + 2);
    }
    if (thread == 0 && call.sender < N) await(call, call.sender, passed + 2);
    words.barriers = passed + 2;
    leave(call, words);
}

}  // namespace symmc_peer
