// Two-shot all-reduce of large tensors by stores to peers alone, which links carry faster than loads.
//
// Slices and results are equal in size on all ranks, and the result lies apart from the operand or on it. Slice `q` of
// this rank's operand goes to rank `q`, into the slice of this rank's number in the result there; when all have come,
// rank `q` reduces them into its own slice and sends that to all, over what they had got from it before. Blocks do this
// chunk after chunk, several chunks on their way at a time:
//
//   send chunk 0; tell
//   for each chunk c: send chunk c + 1; until all told c; reduce chunk c; send reduced chunk c - 1; tell
//
// Telling `c + 1` says that chunk `c + 1` is there; that chunk `c` is reduced, so that what lies in its place here may be
// overwritten; and that chunk `c - 1` of the teller's slice is here as it stays. What follows the reduction element by
// element is done chunk after chunk then, while others are on their way.
//
// In place, what is to be sent must be taken before peers store there: a chunk is loaded two rounds ahead and waits in
// registers. Telling `c` then also says that chunk `c + 2` was taken, and the first rendezvous that two were. That a load
// has its value when others are told, though nothing used it yet, is what the model of memory of PTX promises: it comes
// before the barrier of the block, and that before the release.

namespace symmc_peer {

/// Tells all peers that this block has come to `target`.
template <u32 N>
__device__ __forceinline__ void tell(const PushedParams& call, u64 target) {
    Depart::sync();
    const u32 peer = threadIdx.x;
    if (peer >= N || peer == call.me) return;
    touch(call, target, 16 + peer);
    Depart::set(flag(call, peer, call.me), target);
}

/// Waits until this block of every peer has told `target`.
template <u32 N>
__device__ __forceinline__ bool told(const PushedParams& call, u64 target) {
    const u32 peer = threadIdx.x;
    bool met = true;
    if (peer < N && peer != call.me) {
        met = await(call, peer, target);
        touch(call, target, 24 + peer);
    }
    return __syncthreads_and(met);
}

/// A chunk of every slice that a block works on at a time.
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

/// Reduces a chunk of this rank's slice: its own part, and what has come from the peers.
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

/// Adds to a chunk of every slice of the result, with the roundings of two steps.
template <class T, u32 N, u32 TIMES>
__device__ __forceinline__ void add_chunk(const PushedParams& call, const Addition& addition, const Chunk& chunk) {
    // Slices at a time: more would not find registers.
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

/// `from` is this rank's operand, by slice: those of the peers beginning with the next rank, then its own. `to` is the
/// slice of this rank's number in the results of the same ranks, its own last. `slots` are the slices of this rank's
/// result. `slice` is the bytes of a slice, a multiple of 16. `then` is done with each chunk of the result.
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
    // Round `c` sends chunk `c`, reduces chunk `c - 1` and sends on chunk `c - 2`; chunk `c - 3` is here.
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
