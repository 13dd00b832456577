// Collectives by NCCL's LL128: lines of 128 bytes, 120 of data and a flag, that eight neighbouring threads
// store in one instruction. device.cu explains why a line arrives as a whole, and the alternative for links
// that do not guarantee it.
//
// A unit is the 16 bytes of one thread: unit `i` is unit `i % 8` of line `i / 8` and holds two words of data.
// The last unit of a line holds one word, and the flag in its upper half. Grids have whole warps, so the
// threads of a line stay together.

namespace symmc_peer {

/// The number of 8-byte data words in a line.
constexpr u32 LINE = 15;

/// The first word of unit `i`.
__device__ __forceinline__ u64 word_of(u64 i) {
    return i / 8 * LINE + i % 8 * 2;
}

/// Whether unit `i` is the last of its line.
__device__ __forceinline__ bool ends_line(u64 i) {
    return i % 8 == 7;
}

/// The data of unit `i` of the message at `from`, which has `bytes` bytes. `S` and `VECTOR` are as for
/// [`message`].
template <class S, bool VECTOR>
__device__ __forceinline__ Wide ll128_message(u64 from, u64 i, u64 bytes) {
    const u64 word = word_of(i);
    const u64 low = message<S, VECTOR>(from, word, bytes);
    return Wide{low, ends_line(i) ? 0 : message<S, VECTOR>(from, word + 1, bytes)};
}

/// Stores the data of unit `i`.
template <class S, bool VECTOR>
__device__ __forceinline__ void ll128_deliver(u64 to, u64 i, u64 bytes, const Wide& data) {
    const u64 word = word_of(i);
    deliver<S, VECTOR>(to, word, bytes, data.low);
    if (!ends_line(i)) deliver<S, VECTOR>(to, word + 1, bytes, data.high);
}

/// Unit `i` with the flag, if it is the last of its line.
__device__ __forceinline__ Wide flagged(Wide data, u64 i, u32 flag) {
    if (ends_line(i)) data.high = (u64)flag << 32;
    return data;
}

/// Receives unit `i` of every peer from `slots`; `wide` is by rank, and `wide[me]` is not changed. All
/// threads of a line return the same value.
template <u32 N>
__device__ __forceinline__ bool ll128_receive(const LandingParams& call, const u64 (&slots)[N], u64 i, u32 flag,
                                             Wide (&wide)[N]) {
    SpinWait wait;
    for (;;) {
        u32 missing = N;
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            if (p != call.me) wide[p] = load_ll128(slots[p] + i * 16);
        }
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            if (p != call.me && ll128_flag(wide[p]) != flag) missing = p;
        }
        if (missing == N) return true;
        if (!ll128_all(wait.again(call, missing, flag))) return false;
    }
}

/// The peers' slots in this epoch's zone, `beyond` bytes after their start.
template <u32 N>
__device__ __forceinline__ void ll128_slots(const LandingParams& call, const Epoch& epoch, u64 beyond, u64 (&slots)[N]) {
#pragma unroll
    for (u32 p = 0; p < N; p++) slots[p] = call.slots[p] + epoch.zone + beyond;
}

/// Reduces a unit: the words of all ranks.
template <class T, class O, u32 N>
__device__ __forceinline__ Wide ll128_reduce(const Wide* wide) {
    Run<T, 2> runs[N];
#pragma unroll
    for (u32 p = 0; p < N; p++) runs[p] = run_of<T>(wide[p]);
    return wide_of(reduce_runs<T, O, N, 2>(runs));
}

/// The protocol LL128, with each row at the start of a line.
struct Ll128 {
    static constexpr u32 WORDS = 2;
    /// The number of units of this many words.
    template <class I>
    static __device__ __forceinline__ I units(I words) { return (words + LINE - 1) / LINE * 8; }
    /// For a row of `row` words: the first word of unit `j`, and its number of words.
    static __device__ __forceinline__ u32 first(u32 j) { return j / 8 * LINE + j % 8 * 2; }
    static __device__ __forceinline__ u32 count(u32 j, u32 row) {
        const u32 left = first(j) < row ? row - first(j) : 0;
        return ends_line(j) || left == 1 ? (left == 0 ? 0 : 1) : left == 0 ? 0 : 2;
    }

    template <class S, bool VECTOR>
    static __device__ __forceinline__ Run<Plain<S>, 2> load(u64 from, u64 i, u64 bytes) {
        return run_of<Plain<S>>(ll128_message<S, VECTOR>(from, i, bytes));
    }
    template <class S, bool VECTOR>
    static __device__ __forceinline__ void store(u64 to, u64 i, u64 bytes, const u64 (&words)[2]) {
        ll128_deliver<S, VECTOR>(to, i, bytes, Wide{words[0], words[1]});
    }
    static __device__ __forceinline__ void send(u64 to, u64 i, const u64 (&words)[2], u32 flag) {
        store_ll128(to, flagged(Wide{words[0], words[1]}, i, flag));
    }
    template <class T, u32 N>
    static __device__ __forceinline__ bool receive(const LandingParams& call, const Epoch& epoch, u64 i, const u64 (&own)[2],
                                                   Run<T, 2> (&runs)[N]) {
        Wide wide[N];
        u64 slots[N];
        ll128_slots<N>(call, epoch, 0, slots);
#pragma unroll
        for (u32 p = 0; p < N; p++) wide[p] = Wide{own[0], own[1]};
        const bool come = ll128_receive<N>(call, slots, i, epoch.flag, wide);
#pragma unroll
        for (u32 p = 0; p < N; p++) runs[p] = run_of<T>(wide[p]);
        return come;
    }
};

/// The bytes of a slice of `slice` bytes at `at` that are within the message.
__device__ __forceinline__ u64 within(const LandingParams& call, u64 at) {
    const u64 rest = at < call.count ? call.count - at : 0;
    return rest < call.slice ? rest : call.slice;
}

/// Stores the reduction to `out[0]`.
template <class T, bool VECTOR>
struct ToResult {
    struct Asked {};
    __device__ __forceinline__ Asked ask(u64, u64, u64) const { return Asked{}; }
    __device__ __forceinline__ void store(const LandingParams& call, u64 at, u64 i, u64 bytes, const Wide& data, Asked) const {
        ll128_deliver<typename T::Stored, VECTOR>(call.out[0] + at, i, bytes, data);
    }
};

/// Adds a residual to the reduction, with the roundings of two steps.
template <class T, bool VECTOR>
struct ToSum {
    typedef typename T::Stored Stored;
    typedef Wide Asked;
    const Norm& norm;
    /// The local value is loaded before the wait.
    __device__ __forceinline__ Wide ask(u64 at, u64 i, u64 bytes) const {
        return ll128_message<Stored, VECTOR>(norm.residual + at, i, bytes);
    }
    __device__ __forceinline__ void store(const LandingParams&, u64 at, u64 i, u64 bytes, const Wide& data,
                                          const Wide& residual) const {
        if (norm.reduced != 0) ll128_deliver<Stored, VECTOR>(norm.reduced + at, i, bytes, data);
        const Wide sum = wide_of(add_runs(run_of<T>(data), run_of<T>(residual)));
        ll128_deliver<Stored, VECTOR>(norm.added + at, i, bytes, sum);
    }
};

/// All-reduce in two rounds. Each rank reduces its slice of `slice` bytes, a multiple of 8, from the messages
/// of the other ranks, and then sends the result to all. `to` and `slots` are those of the first round; those
/// of the second round follow all of the first. Data beyond the operand is sent as zeros. `to` stores the
/// reduction.
template <class T, class O, u32 N, bool VECTOR, class To>
__device__ __forceinline__ void ll128_twice(const LandingParams& call, const To& to) {
    typedef typename T::Stored Stored;
    const u64 units = Ll128::units((call.slice + 7) / 8), second = units * (N - 1) * 16;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    Words words;
    Epoch epoch;
    if (!begin_epoch<N>(call, words, epoch, units, 2 * (N - 1), blockDim.x)) return;
    touch(call, epoch.flag, 0);
    for (u64 i = first; i < units; i += step) {
        Wide data[N];
#pragma unroll
        for (u32 k = 0; k + 1 < N; k++) {
            const u64 next = call.me + 1 + k, at = (next < N ? next : next - N) * call.slice;
            data[k] = ll128_message<Stored, VECTOR>(call.from[0] + at, i, within(call, at));
        }
#pragma unroll
        for (u32 k = 0; k + 1 < N; k++) store_ll128(call.to[k] + epoch.zone + i * 16, flagged(data[k], i, epoch.flag));
    }
    touch(call, epoch.flag, 1);
    __syncthreads();
    leave(call, words);
    u64 slots[N];
    ll128_slots<N>(call, epoch, 0, slots);
    const u64 at = call.me * call.slice, mine = within(call, at);
    for (u64 i = first; i < units; i += step) {
        Wide wide[N];
        const Wide own = ll128_message<Stored, VECTOR>(call.from[0] + at, i, mine);
        const auto asked = to.ask(at, i, mine);
#pragma unroll
        for (u32 p = 0; p < N; p++) wide[p] = own;
        if (!ll128_receive<N>(call, slots, i, epoch.flag, wide)) return;
        const Wide out = ll128_reduce<T, O, N>(wide);
#pragma unroll
        for (u32 k = 0; k + 1 < N; k++) {
            store_ll128(call.to[k] + epoch.zone + second + i * 16, flagged(out, i, epoch.flag));
        }
        to.store(call, at, i, mine, out, asked);
    }
    touch(call, epoch.flag, 2);
    ll128_slots<N>(call, epoch, second, slots);
    for (u64 i = first; i < units; i += step) {
        Wide wide[N];
        typename To::Asked asked[N];
#pragma unroll
        for (u32 p = 0; p < N; p++) asked[p] = to.ask(p * call.slice, i, within(call, p * call.slice));
        if (!ll128_receive<N>(call, slots, i, epoch.flag, wide)) return;
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            const u64 from = p * call.slice;
            if (p != call.me) to.store(call, from, i, within(call, from), wide[p], asked[p]);
        }
    }
}

template <class T, class O, u32 N, bool VECTOR>
__device__ __forceinline__ void ll128_reduce_twice(const LandingParams& call) {
    ll128_twice<T, O, N, VECTOR>(call, ToResult<T, VECTOR>{});
}

template <class T, class O, u32 N, bool VECTOR>
__device__ __forceinline__ void ll128_add_twice(const LandingParams& call, const Norm& norm) {
    ll128_twice<T, O, N, VECTOR>(call, ToSum<T, VECTOR>{norm});
}

}  // namespace symmc_peer
