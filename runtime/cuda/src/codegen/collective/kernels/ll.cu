// Collectives by LL, NCCL's low latency protocol: words of eight bytes, four of data and a flag, are stored
// to landing zones of the peers. One instruction stores two of them, which hold eight bytes of the message.
// Larger messages use LL128 (ll128.cu).

namespace symmc_peer {

/// The flag of the epoch whose zones were cleared before it, which is also that of the second epoch of all.
constexpr u32 CLEARED = 2;

/// The flag after `flag`. Zones alternate with its parity, also when it wraps around. Cleared zones hold 0.
__device__ __forceinline__ u32 following(u32 flag) {
    return flag == 0xffffffffu ? CLEARED : flag + 1;
}

/// Removes all flags from this rank's zones while no peer writes there. In this epoch's zone, each block
/// clears the 16-byte units that the same blocks of the peers will write, in each of `slots` slots: every
/// `gridDim.x`-th run of `run` units. The rest is divided among all blocks.
template <u32 N>
__device__ __noinline__ bool clear(const LandingParams& call, u64 barriers, u32 used, u64 units, u32 slots, u32 run) {
    if (!meet<Arrive, N>(call, barriers + 1)) return false;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    const u64 now = call.before, behind = now + units * slots;
    // The flag wraps around to 2, so this epoch uses the first zone.
    for (u64 at = (u64)blockIdx.x * run; at < units; at += (u64)gridDim.x * run) {
        for (u64 i = at + threadIdx.x; i < at + run && i < units; i += blockDim.x) {
            for (u32 p = 0; p < slots; p++) store_ll(call.zone + (now + p * units + i) * 16, Wide{0, 0});
        }
    }
    for (u64 i = first; i < used; i += step) {
        if (i < now || i >= behind) store_ll(call.zone + i * 16, Wide{0, 0});
        store_ll(call.zone + call.other + i * 16, Wide{0, 0});
    }
    return meet<Depart, N>(call, barriers + 2);
}

/// The epoch of a collective by LL or LL128: its number among those of the group, as a flag.
struct Epoch {
    u32 flag;
    /// The distance from the first landing zone to that of this epoch.
    u64 zone;
};

/// Begins an epoch: returns its flag and its zone. `units` 16-byte units arrive in each of `slots`; runs of
/// `run` units are distributed among the blocks.
template <u32 N>
__device__ __forceinline__ bool begin_epoch(const LandingParams& call, Words& words, Epoch& epoch, u64 units, u32 slots,
                                          u32 run) {
    words = begin(call);
    if (words.ll == 0xffffffffu) {
        if (!clear<N>(call, words.barriers, words.used, units, slots, run)) return false;
        words.barriers += 2;
    }
    words.ll = epoch.flag = following(words.ll);
    epoch.zone = epoch.flag & 1 ? call.other : 0;
    const u32 used = (u32)(call.before + units * slots);
    words.used = words.used < used ? used : words.used;
    return true;
}

/// Word `i` (eight bytes of data) of the message at `from`; data beyond `bytes` is zero. `S` is the element
/// type. With `VECTOR`, `from` is a multiple of 8.
template <class S, bool VECTOR>
__device__ __forceinline__ u64 message(u64 from, u64 i, u64 bytes) {
    if (VECTOR && i * 8 + 8 <= bytes) return ((const u64*)from)[i];
    Run<Plain<S>, 1> run;
    run.words[0] = 0;
#pragma unroll
    for (u32 k = 0; k < 8 / sizeof(S); k++) {
        if (i * 8 + k * sizeof(S) < bytes) run.items[k] = ((const S*)from)[i * (8 / sizeof(S)) + k];
    }
    return run.words[0];
}

/// Stores a word that [`message`] returned.
template <class S, bool VECTOR>
__device__ __forceinline__ void deliver(u64 to, u64 i, u64 bytes, u64 word) {
    if (VECTOR && i * 8 + 8 <= bytes) {
        ((u64*)to)[i] = word;
        return;
    }
    Run<Plain<S>, 1> run;
    run.words[0] = word;
#pragma unroll
    for (u32 k = 0; k < 8 / sizeof(S); k++) {
        if (i * 8 + k * sizeof(S) < bytes) ((S*)to)[i * (8 / sizeof(S)) + k] = run.items[k];
    }
}

__device__ __forceinline__ Wide packed(u64 word, u32 flag) {
    const u64 high = (u64)flag << 32;
    return Wide{(word & 0xffffffffull) | high, word >> 32 | high};
}

__device__ __forceinline__ bool arrived(const Wide& wide, u32 flag) {
    return (u32)(wide.low >> 32) == flag && (u32)(wide.high >> 32) == flag;
}

__device__ __forceinline__ u64 unpacked(const Wide& wide) {
    return (wide.low & 0xffffffffull) | wide.high << 32;
}

/// The protocol LL. A unit of a message is one of its words.
struct Ll {
    static constexpr u32 WORDS = 1;
    /// The number of units of this many words.
    template <class I>
    static __device__ __forceinline__ I units(I words) { return words; }
    /// For a row of `row` words: the first word of unit `j`, and its number of words.
    static __device__ __forceinline__ u32 first(u32 j) { return j; }
    static __device__ __forceinline__ u32 count(u32, u32) { return 1; }

    template <class S, bool VECTOR>
    static __device__ __forceinline__ Run<Plain<S>, 1> load(u64 from, u64 i, u64 bytes) {
        Run<Plain<S>, 1> unit;
        unit.words[0] = message<S, VECTOR>(from, i, bytes);
        return unit;
    }
    template <class S, bool VECTOR>
    static __device__ __forceinline__ void store(u64 to, u64 i, u64 bytes, const u64 (&words)[1]) {
        deliver<S, VECTOR>(to, i, bytes, words[0]);
    }
    static __device__ __forceinline__ void send(u64 to, u64, const u64 (&words)[1], u32 flag) {
        store_ll(to, packed(words[0], flag));
    }
    /// Receives unit `i` of every peer; `runs` are by rank and include this rank's own.
    template <class T, u32 N>
    static __device__ __forceinline__ bool receive(const LandingParams& call, const Epoch& epoch, u64 i, const u64 (&own)[1],
                                                   Run<T, 1> (&runs)[N]) {
        const u64 at = epoch.zone + i * 16;
        SpinWait wait;
        for (;;) {
            Wide wide[N];
            u32 missing = N;
#pragma unroll
            for (u32 p = 0; p < N; p++) {
                wide[p] = p == call.me ? packed(own[0], epoch.flag) : load_ll(call.slots[p] + at);
            }
#pragma unroll
            for (u32 p = 0; p < N; p++) {
                runs[p].words[0] = unpacked(wide[p]);
                if (!arrived(wide[p], epoch.flag)) missing = p;
            }
            if (missing == N) return true;
            if (!wait.again(call, missing, epoch.flag)) return false;
        }
    }
};

/// The number of units of a message of `count` bytes in a protocol, [`Ll`] or `Ll128`.
template <class P>
__device__ __forceinline__ u64 message_units(const LandingParams& call) {
    return P::units((call.count + 7) / 8);
}

/// Begins a collective by `ll` and sends `count` bytes to each peer. `from` holds the messages to the ranks
/// of `to`, followed by this rank's own; with `SAME` all of them are `from[0]`. `to` holds this rank's slots
/// in the first zones of the peers, beginning with the next rank; `slots` holds the peers' slots in this
/// rank's zone, by rank.
template <class P, class S, u32 N, bool SAME, bool VECTOR>
__device__ __forceinline__ bool ll_send(const LandingParams& call, Epoch& epoch) {
    const u64 units = message_units<P>(call);
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    // This load overlaps the load of the group's words.
    Run<Plain<S>, P::WORDS> unit;
    if (first < units) unit = P::template load<S, VECTOR>(call.from[0], first, call.count);
    Words words;
    if (!begin_epoch<N>(call, words, epoch, units, N - 1, blockDim.x)) return false;
    touch(call, epoch.flag, 0);
    for (u64 i = first; i < units; i += step) {
#pragma unroll
        for (u32 p = 0; p + 1 < N; p++) {
            const bool known = p == 0 ? i == first : SAME;
            if (!known) unit = P::template load<S, VECTOR>(call.from[p], i, call.count);
            P::send(call.to[p] + epoch.zone + i * 16, i, unit.words, epoch.flag);
        }
    }
    touch(call, epoch.flag, 1);
    __syncthreads();
    leave(call, words);
    return true;
}

/// All-reduce and reduce-scatter by `ll`: reduces the messages of all ranks to this one into `out[0]`.
/// Addresses are as for [`ll_send`].
template <class P, class T, class O, u32 N, bool SAME, bool VECTOR>
__device__ __forceinline__ void ll_reduce(const LandingParams& call) {
    typedef typename T::Stored Stored;
    Epoch epoch;
    if (!ll_send<P, Stored, N, SAME, VECTOR>(call, epoch)) return;
    const u64 units = message_units<P>(call), step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < units; i += step) {
        const auto own = P::template load<Stored, VECTOR>(call.from[SAME ? 0 : N - 1], i, call.count);
        Run<T, P::WORDS> runs[N];
        if (!P::template receive<T, N>(call, epoch, i, own.words, runs)) return;
        const auto out = reduce_runs<T, O, N, P::WORDS>(runs);
        P::template store<Stored, VECTOR>(call.out[0], i, call.count, out.words);
    }
}

/// Stores unit `i` of a message that consists of rows of `slice` bytes, a multiple of 8. Row `r` is stored at
/// `to + r * N * slice`.
template <class P, class S, u32 N, bool VECTOR>
__device__ __forceinline__ void store_rows(const LandingParams& call, u64 to, u64 i, const u64 (&words)[P::WORDS]) {
    const u32 row = (u32)(call.slice / 8), all = (u32)(call.count / 8);
#pragma unroll
    for (u32 k = 0; k < P::WORDS; k++) {
        if (k >= P::count((u32)i, all)) break;
        const u32 word = P::first((u32)i) + k, before = word / row;
        deliver<S, VECTOR>(to + (u64)before * N * call.slice, word - before * row, call.slice, words[k]);
    }
}

/// All-gather and all-to-all by `ll` of `count` bytes to each rank. Addresses are as for [`ll_send`]; `out`
/// holds the destination of each rank's message, by rank. With `ROWS` a message consists of rows of `slice`
/// bytes, each stored before the next row of all other ranks.
template <class P, class S, u32 N, bool SAME, bool VECTOR, bool ROWS>
__device__ __forceinline__ void ll_move(const LandingParams& call) {
    Epoch epoch;
    if (!ll_send<P, S, N, SAME, VECTOR>(call, epoch)) return;
    const u64 units = message_units<P>(call), step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < units; i += step) {
        const auto own = P::template load<S, VECTOR>(call.from[SAME ? 0 : N - 1], i, call.count);
        Run<Plain<S>, P::WORDS> runs[N];
        // No part of the result is written before every peer has arrived.
        if (!P::template receive<Plain<S>, N>(call, epoch, i, own.words, runs)) return;
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            if constexpr (ROWS) {
                store_rows<P, S, N, VECTOR>(call, call.out[p], i, runs[p].words);
            } else {
                P::template store<S, VECTOR>(call.out[p], i, call.count, runs[p].words);
            }
        }
    }
}

}  // namespace symmc_peer
