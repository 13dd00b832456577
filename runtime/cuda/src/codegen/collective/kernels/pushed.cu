// Two-shot all-reduce of large tensors with stores to peers only, which links carry faster than loads.
//
// Slices and results have equal sizes on all ranks. The result is in place of the operand or does not overlap
// it. Slice `q` of this rank's operand is stored to rank `q`, into the slice with this rank's index in its
// result. When all parts have come, rank `q` reduces them into its own slice and sends this to all ranks,
// where it overwrites the parts. Blocks process chunk after chunk, with several chunks in flight:
//
//   send chunk 0; signal
//   for each chunk c: send chunk c + 1; wait until all signalled c; reduce chunk c; send reduced chunk c - 1; signal
//
// The signal `c + 1` announces three facts. Chunk `c + 1` has been stored. Chunk `c` is reduced, so its place
// on the sender may be overwritten. Chunk `c - 1` of the sender's slice has been stored with its final value.
// Element-wise steps after the reduction can therefore run chunk by chunk, while other chunks are in flight.
//
// In place, data to be sent must be loaded before peers store there: a chunk is loaded two rounds ahead into
// registers. The signal `c` then also announces that chunk `c + 2` was loaded, and the first rendezvous
// announces two chunks. The PTX memory model guarantees that such a load has its value at the signal, even if
// nothing has used the value yet: the load happens before the block's barrier, and the barrier before the
// release.

namespace symmc_peer {

/// Signals all peers that this block has reached `target`.
template <u32 N>
__device__ __forceinline__ void tell(const GroupParams& call, u64 target) {
    Depart::sync();
    const u32 peer = threadIdx.x;
    if (peer >= N || peer == call.me) return;
    touch(call, target, 16 + peer);
    Depart::set(flag(call, peer, call.me), target);
}

/// Waits until this block of every peer has signalled `target`.
template <u32 N>
__device__ __forceinline__ bool told(const GroupParams& call, u64 target) {
    const u32 peer = threadIdx.x;
    bool met = true;
    if (peer < N && peer != call.me) {
        met = await(call, peer, target);
        touch(call, target, 24 + peer);
    }
    return __syncthreads_and(met);
}

/// A chunk of every slice, which a block processes at a time.
struct Chunk {
    u64 at, end;

    template <u32 TIMES>
    __device__ __forceinline__ static Chunk of(const PushedParams& call, u64 number) {
        const u64 size = (u64)blockDim.x * 16 * TIMES;
        const u64 from = (number * gridDim.x + blockIdx.x) * size, to = from + size;
        return Chunk{from < call.slice ? from + threadIdx.x * 16 : call.slice, to < call.slice ? to : call.slice};
    }
};

/// This thread's pieces of a chunk of the slices for the peers.
template <u32 N, u32 TIMES>
struct Taken {
    Wide wide[N - 1][TIMES];

    __device__ __forceinline__ void take(const PushedParams& call, const Chunk& chunk) {
        const u64 apart = (u64)blockDim.x * 16;
#pragma unroll
        for (u32 k = 0; k + 1 < N; k++) {
#pragma unroll
            for (u32 t = 0; t < TIMES; t++) {
                if (chunk.at + t * apart < chunk.end) wide[k][t] = load_wide(call.from[k] + chunk.at + t * apart);
            }
        }
    }

    __device__ __forceinline__ void send(const PushedParams& call, const Chunk& chunk) const {
        const u64 apart = (u64)blockDim.x * 16;
#pragma unroll
        for (u32 k = 0; k + 1 < N; k++) {
#pragma unroll
            for (u32 t = 0; t < TIMES; t++) {
                if (chunk.at + t * apart < chunk.end) store_wide(call.to[k] + chunk.at + t * apart, wide[k][t]);
            }
        }
    }
};

/// Sends a chunk that this rank reduced to all peers.
template <u32 N, u32 TIMES>
__device__ __forceinline__ void send_reduced(const PushedParams& call, const Chunk& chunk) {
    Wide wide[TIMES];
    const u64 apart = (u64)blockDim.x * 16;
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        if (chunk.at + t * apart < chunk.end) wide[t] = load_wide(call.to[N - 1] + chunk.at + t * apart);
    }
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
#pragma unroll
        for (u32 k = 0; k + 1 < N; k++) {
            if (chunk.at + t * apart < chunk.end) store_wide(call.to[k] + chunk.at + t * apart, wide[t]);
        }
    }
}

/// Reduces a chunk of this rank's slice: its own part, and the parts from the peers.
template <class T, class O, u32 N, u32 TIMES>
__device__ __forceinline__ void reduce_chunk(const PushedParams& call, const Chunk& chunk) {
    Run<T, 2> runs[TIMES][N];
    const u64 apart = (u64)blockDim.x * 16;
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        const u64 at = chunk.at + t * apart;
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            if (at < chunk.end) runs[t][p] = load_run<T>((p == call.me ? call.from[N - 1] : call.slots[p]) + at);
        }
    }
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        const u64 at = chunk.at + t * apart;
        if (at >= chunk.end) continue;
        const Run<T, 2> out = reduce_runs<T, O, N, 2>(runs[t]);
        store_wide(call.to[N - 1] + at, wide_of(out));
    }
}

/// Adds the residual to a chunk of every slice of the result, with the roundings of two steps.
template <class T, u32 N, u32 TIMES>
__device__ __forceinline__ void add_chunk(const PushedParams& call, const Addition& addition, const Chunk& chunk) {
    // The number of slices at a time: more would exceed the registers.
    constexpr u32 SOME = 4;
    const u64 apart = (u64)blockDim.x * 16;
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        const u64 at = chunk.at + t * apart;
        if (at >= chunk.end) continue;
#pragma unroll
        for (u32 first = 0; first < N; first += SOME) {
            Run<T, 2> x[SOME], y[SOME];
#pragma unroll
            for (u32 i = 0; i < SOME && first + i < N; i++) {
                x[i] = load_run<T>(call.slots[first + i] + at);
                y[i] = load_run<T>(addition.residual + (first + i) * call.slice + at);
            }
#pragma unroll
            for (u32 i = 0; i < SOME && first + i < N; i++) {
                store_wide(addition.sum + (first + i) * call.slice + at, wide_of(add_runs(x[i], y[i])));
            }
        }
    }
}

/// `from` is this rank's operand, by slice: the peers' slices beginning with the next rank, then its own.
/// `to` is the slice with this rank's index in the results of the same ranks, its own last. `slots` are the
/// slices of this rank's result. `slice` is the size of a slice in bytes, a multiple of 16. `then` runs on
/// each chunk of the result.
template <class T, class O, u32 N, u32 TIMES, bool IN_PLACE, class F>
__device__ __forceinline__ void pushed(const PushedParams& call, F then) {
    Words words = begin(call);
    const u64 size = (u64)gridDim.x * blockDim.x * 16 * TIMES;
    const u64 chunks = (call.slice + size - 1) / size;
    const u64 second = words.barriers + 2;
    const auto chunk = [&](u64 number) { return Chunk::of<TIMES>(call, number); };
    Taken<N, TIMES> even, odd;
    if constexpr (IN_PLACE) {
        even.take(call, chunk(0));
        odd.take(call, chunk(1));
    }
    const u64 first = words.barriers + 1;
    if (!(IN_PLACE ? meet<Depart, N>(call, first) : meet<Arrive, N>(call, first))) return;
    // Round `c` sends chunk `c`, reduces chunk `c - 1` and sends the reduced chunk `c - 2`; chunk `c - 3` is
    // complete here.
    const auto round = [&](u64 c, Taken<N, TIMES>& taken) {
        if constexpr (!IN_PLACE) taken.take(call, chunk(c));
        taken.send(call, chunk(c));
        if constexpr (IN_PLACE) taken.take(call, chunk(c + 2));
        if (c > 0) {
            if (!told<N>(call, second + c - 1)) return false;
            reduce_chunk<T, O, N, TIMES>(call, chunk(c - 1));
        }
        if (c > 1) send_reduced<N, TIMES>(call, chunk(c - 2));
        if (c <= chunks) tell<N>(call, second + c);
        if (c > 2) then(chunk(c - 3));
        return true;
    };
    for (u64 c = 0; c <= chunks + 1; c += 2) {
        if (!round(c, even)) return;
        if (c <= chunks && !round(c + 1, odd)) return;
    }
    words.barriers += chunks + 3;
    meet<Depart, N>(call, words.barriers);
    leave(call, words);
    then(chunk(chunks - 1));
}

template <class T, class O, u32 N, u32 TIMES, bool IN_PLACE>
__device__ __forceinline__ void pushed_reduce(const PushedParams& call) {
    pushed<T, O, N, TIMES, IN_PLACE>(call, [](const Chunk&) {});
}

template <class T, class O, u32 N, u32 TIMES, bool IN_PLACE>
__device__ __forceinline__ void pushed_add(const PushedParams& call, const Addition& addition) {
    const auto then = [&](const Chunk& chunk) { add_chunk<T, N, TIMES>(call, addition, chunk); };
    pushed<T, O, N, TIMES, IN_PLACE>(call, then);
}

}  // namespace symmc_peer
