// Several collectives of one group between one pair of barriers.

namespace symmc_peer {

/// The index of this thread relative to thread `start`, cyclically among `threads`.
__device__ __forceinline__ u64 turned(u64 thread, u64 start, u64 threads) {
    return thread >= start ? thread - start : thread + threads - start;
}

/// All-gathers and all-to-alls: the collectives from `FIRST` to `END`.
template <class U, u32 N, bool SAME, u32 FIRST, u32 END>
struct Moves {
    static __device__ __forceinline__ void run(const Turns& turns, u64 thread, u64 threads) {
        for (u32 k = FIRST; k < END; k++) {
            const Turn& turn = turns.of[k];
            move_bytes<U, N, SAME>(turn.part, turned(thread, turn.start, threads), threads);
        }
    }
};

/// All-reduces and reduce-scatters: the collectives from `FIRST` to `END`.
template <class T, class O, u32 N, bool VECTOR, u32 FIRST, u32 END>
struct Reduces {
    static __device__ __forceinline__ void run(const Turns& turns, u64 thread, u64 threads) {
        for (u32 k = FIRST; k < END; k++) {
            const Turn& turn = turns.of[k];
            reduce_elements<T, O, N, 1, VECTOR>(turn.part, turned(thread, turn.start, threads), threads);
        }
    }
};

/// Collectives by one_shot, pull or push, all of one variant.
template <u32 N, bool EXIT, class... All>
__device__ __forceinline__ void several(const GroupParams& call, const Turns& turns) {
    Words words = begin(call);
    if (!meet<Arrive, N>(call, words.barriers + 1)) return;
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 threads = (u64)gridDim.x * blockDim.x;
    (All::run(turns, thread, threads), ...);
    words.barriers += 1 + EXIT;
    if constexpr (EXIT) meet<Depart, N>(call, words.barriers);
    leave(call, words);
}

}  // namespace symmc_peer
