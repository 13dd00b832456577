// Collectives on peer pointers. mod.rs says why their flags hold; it also makes the small functions that
// instantiate what stands here. Operations that reach peers are in device.cu.
//
// All kernels are written for any number of blocks and threads, as long as a block has a thread for each
// rank and all ranks launch equal grids.

namespace symmc_peer {

constexpr u32 MAX_RANKS = 8;
constexpr u32 MAX_BLOCKS = 64;

/// What this rank remembers of a group, once for each block; all copies are equal between kernels.
struct Words {
    /// Barriers passed.
    u64 epoch;
    /// The flag of the last collective with packets.
    u32 packets;
    /// The units of 16 bytes that packets ever used of a landing zone.
    u32 used;
};

/// Private words of this rank that all groups share.
struct Shared {
    /// Not 0 once a wait ended early: nothing waits any more.
    u32 stop;
    /// Not 0 once somebody reported.
    u32 reported;
};

/// Pinned host memory.
struct Status {
    /// Set by the host: the run is over.
    u32 abort;
    u32 code;
    u32 step;
    u32 peer;
    u64 epoch;
    u32 group;
    u32 block;
};

/// The parameters of every kernel here; each says what it uses of the addresses. Those of peers are as this
/// rank maps them.
struct Call {
    /// Where each rank's flags of the group lie, `[MAX_BLOCKS][MAX_RANKS]`.
    u64 flags[MAX_RANKS];
    u64 from[MAX_RANKS];
    u64 to[MAX_RANKS];
    u64 out[MAX_RANKS];
    /// Where in this rank's first landing zone each rank's packets come.
    u64 slots[MAX_RANKS];
    /// The rank that each number of the cell is, for reports.
    u32 ranks[MAX_RANKS];
    /// `Words[MAX_BLOCKS]`.
    u64 words;
    u64 shared;
    u64 status;
    u64 limit;
    u64 seed;
    /// Elements, or bytes where kernels only move.
    u64 count;
    /// From the first landing zone to the second, in bytes.
    u64 other;
    /// This rank's first landing zone.
    u64 zone;
    u32 me;
    u32 step;
    u32 group;
    /// Of put: how many ranks are written to, and which.
    u32 receivers;
    u32 receiver[MAX_RANKS];
    /// Of put: the number of the rank that writes here, or `MAX_RANKS`.
    u32 sender;
    /// Of put: whether the result is zero, as nobody sends anything.
    u32 zero;
};

// ---------------------------------------------------------------- waits

#ifdef SYMMC_CHAOS
/// Before and after a touch of a peer: a delay from the seed, most often none.
__device__ __forceinline__ void touch(const Call& call, u64 turn, u32 place) {
    u64 x = call.seed ^ turn * 0x9e3779b97f4a7c15ull ^ (u64)(call.step * 64 + place) << 32 ^
            (u64)(blockIdx.x * 64 + threadIdx.x / 32);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const u32 kind = (u32)x & 15, time = (u32)(x >> 32);
    if (kind == 0) sleep_ns(time % 200000);
    if (kind > 0 && kind < 6) sleep_ns(time % 5000);
}
#else
__device__ __forceinline__ void touch(const Call&, u64, u32) {}
#endif

/// A look at the clock and at what ends waits early. Gives when the wait began, or 0 if it is over.
__device__ __noinline__ u64 consider(const Call& call, u32 peer, u64 epoch, u32 looks, u64 start) {
    Shared* shared = (Shared*)call.shared;
    Status* status = (Status*)call.status;
    if (look(&shared->stop) != 0) return 0;
    const u64 now = nanoseconds();
    if (start == 0) start = now;
    if ((looks & 4095) == 0 && look(&status->abort) != 0) {
        mark(&shared->stop, 1);
        return 0;
    }
    if (now - start < call.limit) return start;
    if (claim(&shared->reported)) {
        status->step = call.step;
        status->peer = call.ranks[peer];
        status->epoch = epoch;
        status->group = call.group;
        status->block = blockIdx.x;
        __threadfence_system();
        mark(&status->code, 1);
    }
    mark(&shared->stop, 1);
    return 0;
}

/// A wait that may end early.
struct Watch {
    u32 looks = 0;
    u64 start = 0;

    /// Whether to look again for what `peer` is to send.
    __device__ __forceinline__ bool again(const Call& call, u32 peer, u64 epoch) {
        pause();
        looks++;
        if ((looks & 255) != 0) return true;
        start = consider(call, peer, epoch, looks, start);
        return start != 0;
    }
};

/// The flag in `owner`'s memory that the rank of number `sets` sets for this block.
__device__ __forceinline__ u64* flag(const Call& call, u32 owner, u32 sets) {
    return (u64*)call.flags[owner] + (blockIdx.x * MAX_RANKS + sets);
}

/// Waits until `peer` has set its flag here to `target`.
__device__ __forceinline__ bool await(const Call& call, u32 peer, u64 target) {
    const u64* at = flag(call, call.me, peer);
    Watch watch;
    while ((i64)(load_acquire(at) - target) < 0) {
        if (!watch.again(call, peer, target)) return false;
    }
    return true;
}

/// What the group's words say at the start of a kernel.
__device__ __forceinline__ Words begin(const Call& call) {
    return ((const Words*)call.words)[blockIdx.x];
}

/// Leaves the words for the group's next kernel, which may have another grid: block `b` of `g` also writes
/// those of the blocks `b + g`, `b + 2g`, … that this grid lacks. All threads of the block have read theirs.
__device__ __forceinline__ void leave(const Call& call, const Words& next) {
    Words* words = (Words*)call.words;
    const u32 step = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x + threadIdx.x * gridDim.x; i < MAX_BLOCKS; i += step) words[i] = next;
}

/// Before the first touch: no write of this kernel has to be seen by peers, only those of earlier kernels.
struct Arrive {
    static __device__ __forceinline__ void sync() {}
    static __device__ __forceinline__ void set(u64* at, u64 value) { store_relaxed(at, value); }
};

/// After touches: what the threads of this block read and wrote comes before the flag.
struct Depart {
    static __device__ __forceinline__ void sync() { __syncthreads(); }
    static __device__ __forceinline__ void set(u64* at, u64 value) { store_release(at, value); }
};

/// A barrier of this block with the blocks of its number on all peers.
template <class How, u32 N>
__device__ __forceinline__ bool meet(const Call& call, u64 target) {
    How::sync();
    bool met = true;
    const u32 peer = threadIdx.x;
    if (peer < N && peer != call.me) {
        touch(call, target, peer);
        How::set(flag(call, peer, call.me), target);
        met = await(call, peer, target);
        touch(call, target, 8 + peer);
    }
    return __syncthreads_and(met);
}

// ---------------------------------------------------------------- elements

/// A dtype: as it is stored, and as it accumulates.
template <class T>
struct Plain {
    typedef T Stored;
    typedef T Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Acc x) { return x; }
};
struct F32 : Plain<float> {};
struct F64 : Plain<double> {};
struct I32 : Plain<i32> {};
struct I64 : Plain<i64> {};
struct U8 : Plain<u8> {};

/// Integers whose average needs an exact sum.
struct WideU8 {
    typedef u8 Stored;
    typedef i64 Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Acc x) { return (Stored)x; }
};
struct WideI32 {
    typedef i32 Stored;
    typedef i64 Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return x; }
    static __device__ __forceinline__ Stored narrow(Acc x) { return (Stored)x; }
};

struct F16 {
    typedef u16 Stored;
    typedef float Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return of_half(x); }
    static __device__ __forceinline__ Stored narrow(Acc x) { return to_half(x); }
    static __device__ __forceinline__ u32 narrow(Acc x, Acc y) { return to_halves(x, y); }
};
struct BF16 {
    typedef u16 Stored;
    typedef float Acc;
    static __device__ __forceinline__ Acc widen(Stored x) { return of_bits((u32)x << 16); }
    static __device__ __forceinline__ Stored narrow(Acc x) { return to_bfloat(x); }
    static __device__ __forceinline__ u32 narrow(Acc x, Acc y) { return to_bfloats(x, y); }
};

// Integers wrap; the larger and the smaller of two floats are NaN if one is.
struct Sum {
    static __device__ __forceinline__ i32 of(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
    static __device__ __forceinline__ i64 of(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
    static __device__ __forceinline__ u8 of(u8 a, u8 b) { return (u8)(a + b); }
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
    static __device__ __forceinline__ double of(double a, double b) { return a + b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Avg : Sum {
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a / (A)N; }
};
struct Prod {
    static __device__ __forceinline__ i32 of(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
    static __device__ __forceinline__ i64 of(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
    static __device__ __forceinline__ u8 of(u8 a, u8 b) { return (u8)(a * b); }
    static __device__ __forceinline__ float of(float a, float b) { return a * b; }
    static __device__ __forceinline__ double of(double a, double b) { return a * b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Max {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) { return a != a || a >= b ? a : b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Min {
    template <class A>
    static __device__ __forceinline__ A of(A a, A b) { return a != a || a <= b ? a : b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct Or {
    static __device__ __forceinline__ u8 of(u8 a, u8 b) { return a | b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};
struct And {
    static __device__ __forceinline__ u8 of(u8 a, u8 b) { return a & b; }
    template <u32 N, class A>
    static __device__ __forceinline__ A finish(A a) { return a; }
};

/// `W` words of 8 bytes, as elements.
template <class T, u32 W>
struct Run {
    typedef typename T::Stored Stored;
    typedef typename T::Acc Acc;
    static constexpr u32 COUNT = 8 * W / sizeof(Stored);
    union {
        u64 words[W];
        u32 halves[2 * W];
        Stored items[COUNT];
    };

    __device__ __forceinline__ void widen(Acc* out) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) out[k] = T::widen(items[k]);
    }
    __device__ __forceinline__ void narrow(const Acc* x) {
        if constexpr (sizeof(Stored) == 2) {
#pragma unroll
            for (u32 k = 0; k < COUNT / 2; k++) halves[k] = T::narrow(x[2 * k], x[2 * k + 1]);
        } else {
#pragma unroll
            for (u32 k = 0; k < COUNT; k++) items[k] = T::narrow(x[k]);
        }
    }
};

/// Reduces one run of each rank in ascending order of rank.
template <class T, class O, u32 N, u32 W>
__device__ __forceinline__ Run<T, W> reduce_runs(const Run<T, W>* runs) {
    typedef typename T::Acc Acc;
    constexpr u32 COUNT = Run<T, W>::COUNT;
    Acc acc[COUNT], next[COUNT];
    runs[0].widen(acc);
#pragma unroll
    for (u32 p = 1; p < N; p++) {
        runs[p].widen(next);
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) acc[k] = O::of(acc[k], next[k]);
    }
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) acc[k] = O::template finish<N>(acc[k]);
    Run<T, W> out;
    out.narrow(acc);
    return out;
}

template <class T>
__device__ __forceinline__ Run<T, 2> load_run(u64 at) {
    const Wide wide = load_wide(at);
    Run<T, 2> run;
    run.words[0] = wide.low;
    run.words[1] = wide.high;
    return run;
}

// ---------------------------------------------------------------- behind a barrier

/// Reduces one element of all ranks into all outputs.
template <class T, class O, u32 N, u32 OUTS>
__device__ __forceinline__ void reduce_one(const Call& call, u64 i) {
    typedef typename T::Stored Stored;
    typename T::Acc acc = T::widen(((const Stored*)call.from[0])[i]);
#pragma unroll
    for (u32 p = 1; p < N; p++) acc = O::of(acc, T::widen(((const Stored*)call.from[p])[i]));
    const Stored out = T::narrow(O::template finish<N>(acc));
#pragma unroll
    for (u32 p = 0; p < OUTS; p++) ((Stored*)call.to[p])[i] = out;
}

/// Reduces 16 bytes at each of `TIMES` places, `apart` bytes from each other, of all ranks into all outputs. All
/// loads come first.
template <class T, class O, u32 N, u32 OUTS, u32 TIMES>
__device__ __forceinline__ void reduce_wide(const Call& call, u64 at, u64 apart) {
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
            store_wide(call.to[p] + at + t * apart, Wide{out.words[0], out.words[1]});
        }
    }
}

/// One-shot and two-shot all-reduce, pull reduce-scatter: reduces `count` elements at `from[rank]` into each of
/// `to`. `VECTOR`: all addresses are multiples of 16.
template <class T, class O, u32 N, u32 OUTS, bool EXIT, bool VECTOR>
__device__ __forceinline__ void reduce(const Call& call) {
    Words words = begin(call);
    if (!meet<Arrive, N>(call, words.epoch + 1)) return;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 done = 0;
    if constexpr (VECTOR) {
        constexpr u32 COUNT = Run<T, 2>::COUNT;
        const u64 bytes = call.count / COUNT * 16;
        done = call.count / COUNT * COUNT;
        u64 at = first * 16;
        // Large tensors are bound by the accesses in flight.
        if constexpr (N <= 4) {
            for (; at + step * 16 < bytes; at += step * 32) reduce_wide<T, O, N, OUTS, 2>(call, at, step * 16);
        }
        for (; at < bytes; at += step * 16) reduce_wide<T, O, N, OUTS, 1>(call, at, 0);
    }
    for (u64 i = done + first; i < call.count; i += step) reduce_one<T, O, N, OUTS>(call, i);
    words.epoch += 1 + EXIT;
    leave(call, words);
    if constexpr (EXIT) meet<Depart, N>(call, words.epoch);
}

/// Moves 16 bytes at each of `TIMES` places, `apart` bytes from each other. All loads come first.
template <u32 N, bool SAME, u32 TIMES>
__device__ __forceinline__ void move_wide(const Call& call, const bool (&moves)[N], u64 at, u64 apart) {
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

/// Pull and push all-gather and all-to-all: moves `count` bytes at each `from` to the `to` of the same index.
/// `SAME`: all `from` are one. `U` is what addresses and count are multiples of.
template <class U, u32 N, bool SAME, bool EXIT>
__device__ __forceinline__ void move(const Call& call) {
    Words words = begin(call);
    if (!meet<Arrive, N>(call, words.epoch + 1)) return;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 done = 0;
    // What lies in place already.
    bool moves[N];
#pragma unroll
    for (u32 p = 0; p < N; p++) moves[p] = call.from[p] != call.to[p];
    if constexpr (sizeof(U) == 16) {
        done = call.count / 16 * 16;
        u64 at = first * 16;
        if constexpr (N <= 4) {
            for (; at + step * 48 < done; at += step * 64) move_wide<N, SAME, 4>(call, moves, at, step * 16);
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
    words.epoch += 1 + EXIT;
    leave(call, words);
    if constexpr (EXIT) meet<Depart, N>(call, words.epoch);
}

/// Units that [`move`] and [`put`] move: bytes, words, and 16 bytes with what is left over in bytes.
struct Bytes {
    typedef u8 Unit;
    u8 unit;
};
struct Fours {
    typedef u32 Unit;
    u32 unit;
};
struct Sixteens {
    typedef u8 Unit;
    Wide unit;
};

// ---------------------------------------------------------------- pairs

/// Broadcast and permute. Epoch + 1: the receiver has arrived; epoch + 2: its result is written.
template <class U, u32 N>
__device__ __forceinline__ void put(const Call& call) {
    Words words = begin(call);
    const u64 epoch = words.epoch;
    const u32 thread = threadIdx.x;
    const u64 first = (u64)blockIdx.x * blockDim.x + thread;
    const u64 step = (u64)gridDim.x * blockDim.x;
    bool met = true;
    if (thread == 0 && call.sender < N) {
        touch(call, epoch, 0);
        store_relaxed(flag(call, call.sender, call.me), epoch + 1);
    }
    if (thread < call.receivers && call.receiver[thread] != call.me) {
        met = await(call, call.receiver[thread], epoch + 1);
        touch(call, epoch, 8 + thread);
    }
    if (!__syncthreads_and(met)) return;
    u64 done = 0;
    if constexpr (sizeof(U) == 16) {
        done = call.count / 16 * 16;
        for (u64 at = first * 16; at < done; at += step * 16) {
            if (call.zero) store_wide(call.to[0] + at, Wide{0, 0});
            if (call.receivers == 0) continue;
            const Wide wide = load_wide(call.from[0] + at);
            for (u32 p = 0; p < call.receivers; p++) store_wide(call.out[p] + at, wide);
        }
    }
    typedef typename U::Unit Unit;
    for (u64 at = done + first * sizeof(Unit); at < call.count; at += step * sizeof(Unit)) {
        if (call.zero) *(Unit*)(call.to[0] + at) = 0;
        if (call.receivers == 0) continue;
        const Unit unit = *(const Unit*)(call.from[0] + at);
        for (u32 p = 0; p < call.receivers; p++) *(Unit*)(call.out[p] + at) = unit;
    }
    words.epoch = epoch + 2;
    leave(call, words);
    __syncthreads();
    if (thread < call.receivers && call.receiver[thread] != call.me) {
        touch(call, epoch, 16 + thread);
        store_release(flag(call, call.receiver[thread], call.me), epoch + 2);
    }
    if (thread == 0 && call.sender < N) await(call, call.sender, epoch + 2);
}

// ---------------------------------------------------------------- packets

/// The flag after `flag`. Zones alternate with its parity, also where it wraps around; 0 is what cleared
/// zones hold.
__device__ __forceinline__ u32 following(u32 flag) {
    return flag == 0xffffffffu ? 2 : flag + 1;
}

/// Removes all flags from this rank's zones while no peer writes there. Each block clears in this turn's zone
/// the packets that the same blocks of the peers are about to write; the rest is divided among all.
template <u32 N>
__device__ __noinline__ bool clear(const Call& call, u64 epoch, u32 used, u64 packets) {
    if (!meet<Arrive, N>(call, epoch + 1)) return false;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    const u64 now = packets * (N - 1);
    // The flag wraps around to 2: this turn's is the first zone.
    for (u64 i = first; i < packets; i += step) {
        for (u32 p = 0; p + 1 < N; p++) store_packets(call.zone + (p * packets + i) * 16, Wide{0, 0});
    }
    for (u64 i = now + first; i < used; i += step) store_packets(call.zone + i * 16, Wide{0, 0});
    for (u64 i = first; i < used; i += step) store_packets(call.zone + call.other + i * 16, Wide{0, 0});
    return meet<Depart, N>(call, epoch + 2);
}

/// A packet collective in progress.
struct Turn {
    u32 flag;
    /// From the first landing zone to that of this turn.
    u64 zone;
};

/// Begins: the flag of this turn, and its zone.
template <u32 N>
__device__ __forceinline__ bool take_turn(const Call& call, Words& words, Turn& turn, u64 packets) {
    words = begin(call);
    if (words.packets == 0xffffffffu) {
        if (!clear<N>(call, words.epoch, words.used, packets)) return false;
        words.epoch += 2;
    }
    words.packets = turn.flag = following(words.packets);
    turn.zone = turn.flag & 1 ? call.other : 0;
    const u32 used = (u32)(packets * (N - 1));
    words.used = words.used < used ? used : words.used;
    return true;
}

/// The eight bytes of packet `i` at `from`; what lies beyond `bytes` is zero. `S` is an element; with `VECTOR`,
/// `from` is a multiple of 8.
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

/// Stores what [`message`] gave.
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

/// Receives packet `i` of every peer; `runs` are by rank and include this rank's own.
template <class T, u32 N>
__device__ __forceinline__ bool receive(const Call& call, const Turn& turn, u64 i, u64 own, Run<T, 1>* runs) {
    const u64 at = turn.zone + i * 16;
    Watch watch;
    for (;;) {
        Wide wide[N];
        u32 missing = N;
#pragma unroll
        for (u32 p = 0; p < N; p++) wide[p] = p == call.me ? packed(own, turn.flag) : load_packets(call.slots[p] + at);
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            runs[p].words[0] = unpacked(wide[p]);
            if (!arrived(wide[p], turn.flag)) missing = p;
        }
        if (missing == N) return true;
        if (!watch.again(call, missing, turn.flag)) return false;
    }
}

/// Packets all-reduce of `count` bytes from `from[0]` to `out[0]`. `to` are this rank's slots in the first zones
/// of the peers, beginning with the next rank; `slots` those of the peers in this rank's, by rank.
template <class T, class O, u32 N, bool VECTOR>
__device__ __forceinline__ void packets_reduce(const Call& call) {
    typedef typename T::Stored Stored;
    const u64 packets = (call.count + 7) / 8;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    Words words;
    Turn turn;
    if (!take_turn<N>(call, words, turn, packets)) return;
    touch(call, turn.flag, 0);
    for (u64 i = first; i < packets; i += step) {
        const Wide wide = packed(message<Stored, VECTOR>(call.from[0], i, call.count), turn.flag);
#pragma unroll
        for (u32 p = 0; p + 1 < N; p++) store_packets(call.to[p] + turn.zone + i * 16, wide);
    }
    touch(call, turn.flag, 1);
    __syncthreads();
    leave(call, words);
    for (u64 i = first; i < packets; i += step) {
        const u64 own = message<Stored, VECTOR>(call.from[0], i, call.count);
        Run<T, 1> runs[N];
        if (!receive<T, N>(call, turn, i, own, runs)) return;
        const Run<T, 1> out = reduce_runs<T, O, N, 1>(runs);
        deliver<Stored, VECTOR>(call.out[0], i, call.count, out.words[0]);
    }
}

/// Packets all-gather and all-to-all of `count` bytes to each. `from` is what goes to the ranks of `to`, and
/// after them this rank's own; with `SAME` all are one. `out` is where that of each rank goes, by rank.
template <class S, u32 N, bool SAME, bool VECTOR>
__device__ __forceinline__ void packets_move(const Call& call) {
    const u64 packets = (call.count + 7) / 8;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    Words words;
    Turn turn;
    if (!take_turn<N>(call, words, turn, packets)) return;
    touch(call, turn.flag, 0);
    for (u64 i = first; i < packets; i += step) {
        u64 word = 0;
#pragma unroll
        for (u32 p = 0; p + 1 < N; p++) {
            if (!SAME || p == 0) word = message<S, VECTOR>(call.from[p], i, call.count);
            store_packets(call.to[p] + turn.zone + i * 16, packed(word, turn.flag));
        }
    }
    touch(call, turn.flag, 1);
    __syncthreads();
    leave(call, words);
    for (u64 i = first; i < packets; i += step) {
        const u64 own = message<S, VECTOR>(call.from[N - 1], i, call.count);
        Run<Plain<S>, 1> runs[N];
        // No part of the result is written before every peer has arrived.
        if (!receive<Plain<S>, N>(call, turn, i, own, runs)) return;
#pragma unroll
        for (u32 p = 0; p < N; p++) deliver<S, VECTOR>(call.out[p], i, call.count, runs[p].words[0]);
    }
}

/// The addresses of [`packets_norm`] that [`Call`] has no place for; 0 for what there is not.
struct Norm {
    u64 residual;
    u64 weight;
    /// Where the reduction, its sum with the residual and the norm of that go.
    u64 reduced;
    u64 added;
    u64 normed;
    /// Packets of a row.
    u32 row;
    float eps;
};

/// Packets all-reduce, then `+ residual`, then RMS norm of each row, with the roundings of the three steps.
/// A block has whole rows; a thread has the same `PER` packets of each. All addresses are multiples of 8.
template <class T, class O, u32 N, u32 PER, bool ROUND_FIRST>
__device__ __forceinline__ void packets_norm(const Call& call, const Norm& norm) {
    constexpr u32 COUNT = Run<T, 1>::COUNT;
    const u64 packets = call.count / 8;
    const u32 thread = threadIdx.x, threads = blockDim.x;
    Words words;
    Turn turn;
    if (!take_turn<N>(call, words, turn, packets)) return;
    touch(call, turn.flag, 0);
    for (u64 row = (u64)blockIdx.x * norm.row; row < packets; row += (u64)gridDim.x * norm.row) {
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            const Wide wide = packed(((const u64*)call.from[0])[row + j], turn.flag);
#pragma unroll
            for (u32 p = 0; p + 1 < N; p++) store_packets(call.to[p] + turn.zone + (row + j) * 16, wide);
        }
    }
    touch(call, turn.flag, 1);
    __syncthreads();
    leave(call, words);
    Run<T, 1> weight[PER];
#pragma unroll
    for (u32 k = 0; k < PER; k++) {
        const u32 j = thread + k * threads;
        if (norm.weight != 0 && j < norm.row) weight[k].words[0] = ((const u64*)norm.weight)[j];
    }
    u32 parity = 0;
    for (u64 row = (u64)blockIdx.x * norm.row; row < packets; row += (u64)gridDim.x * norm.row) {
        Run<T, 1> x[PER], residual[PER];
        // What is here already is asked for before the wait.
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            x[k].words[0] = ((const u64*)call.from[0])[row + j];
            residual[k].words[0] = ((const u64*)norm.residual)[row + j];
        }
        float squares = 0;
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            Run<T, 1> runs[N];
            // A wait that ends early leaves what is meaningless: the threads of a block stay together.
            receive<T, N>(call, turn, row + j, x[k].words[0], runs);
            const Run<T, 1> reduced = reduce_runs<T, O, N, 1>(runs);
            if (norm.reduced != 0) ((u64*)norm.reduced)[row + j] = reduced.words[0];
            float sum[COUNT], other[COUNT];
            reduced.widen(sum);
            residual[k].widen(other);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) sum[e] += other[e];
            x[k].narrow(sum);
            ((u64*)norm.added)[row + j] = x[k].words[0];
            x[k].widen(sum);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) squares += sum[e] * sum[e];
        }
        const float mean = block_sum(squares, parity) / (float)(norm.row * COUNT);
        const float scale = 1.0f / sqrtf(mean + norm.eps);
        parity ^= 1;
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            float y[COUNT], w[COUNT];
            x[k].widen(y);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) y[e] *= scale;
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
            ((u64*)norm.normed)[row + j] = x[k].words[0];
        }
    }
}

}  // namespace symmc_peer
