// What a kernel knows of its group, and how blocks wait for peers. mod.rs says why their flags hold; it also makes
// the small functions that instantiate the kernels. Operations that reach peers are in device.cu.
//
// All kernels are written for any number of blocks and threads, as long as a block has a thread for each rank and
// all ranks launch equal grids.

namespace symmc_peer {

/// What this rank remembers of a group, once for each block; all copies are equal between kernels.
struct Words {
    /// Barriers passed: the number of the last one.
    u64 barriers;
    /// The flag of the last collective by LL or LL128.
    u32 ll;
    /// The units of 16 bytes that these ever used of a landing zone.
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
    u64 awaited;
    u32 group;
    u32 block;
    u64 sizes[MAX_RANKS];
};

/// What `code` says: a wait reached its limit, or a rank sends or receives rows that do not fit.
constexpr u32 MISSED = 1, SENT = 2, RECEIVED = 3;

// ---------------------------------------------------------------- waits

#ifdef SYMMC_CHAOS
/// Before and after a touch of a peer: a delay from the seed, most often none. `count` is that of barriers or of LL.
__device__ __forceinline__ void touch(const GroupParams& call, u64 count, u32 place) {
    u64 x = call.seed ^ count * 0x9e3779b97f4a7c15ull ^ (u64)(call.step * 64 + place) << 32 ^
            (u64)(blockIdx.x * 64 + threadIdx.x / 32);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const u32 kind = (u32)x & 15, time = (u32)(x >> 32);
    if (kind == 0) sleep_ns(time % 200000);
    if (kind > 0 && kind < 6) sleep_ns(time % 5000);
}
#else
__device__ __forceinline__ void touch(const GroupParams&, u64, u32) {}
#endif

/// A look at the clock and at what ends waits early. Gives when the wait began, or 0 if it is over.
__device__ __noinline__ u64 consider(const GroupParams& call, u32 peer, u64 awaited, u32 looks, u64 start) {
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
        status->awaited = awaited;
        status->group = call.group;
        status->block = blockIdx.x;
        __threadfence_system();
        mark(&status->code, MISSED);
    }
    mark(&shared->stop, 1);
    return 0;
}

/// A wait that may end early.
struct SpinWait {
    u32 looks = 0;
    u64 start = 0;

    /// Whether to look again for what `peer` is to send.
    __device__ __forceinline__ bool again(const GroupParams& call, u32 peer, u64 awaited) {
        pause();
        looks++;
        if ((looks & 255) != 0) return true;
        start = consider(call, peer, awaited, looks, start);
        return start != 0;
    }
};

/// The flag in `owner`'s memory that the rank of number `sets` sets for a block.
__device__ __forceinline__ u64* flag_of(const GroupParams& call, u32 owner, u32 sets, u32 block) {
    return (u64*)call.flags[owner] + (block * MAX_RANKS + sets);
}

/// That for this block.
__device__ __forceinline__ u64* flag(const GroupParams& call, u32 owner, u32 sets) {
    return flag_of(call, owner, sets, blockIdx.x);
}

/// Waits until `peer` has set its flag here for a block to `target`.
__device__ __forceinline__ bool await_of(const GroupParams& call, u32 peer, u32 block, u64 target) {
    const u64* at = flag_of(call, call.me, peer, block);
    SpinWait wait;
    while ((i64)(load_acquire(at) - target) < 0) {
        if (!wait.again(call, peer, target)) return false;
    }
    return true;
}

/// That for this block.
__device__ __forceinline__ bool await(const GroupParams& call, u32 peer, u64 target) {
    return await_of(call, peer, blockIdx.x, target);
}

/// What the group's words say at the start of a kernel.
__device__ __forceinline__ Words begin(const GroupParams& call) {
    return ((const Words*)call.words)[blockIdx.x];
}

/// Leaves the words for the group's next kernel, which may have another grid: block `b` of `g` also writes
/// those of the blocks `b + g`, `b + 2g`, … that this grid lacks. All threads of the block have read theirs. It comes
/// behind the last flag, which would else wait for these stores.
__device__ __forceinline__ void leave(const GroupParams& call, const Words& next) {
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
__device__ __forceinline__ bool meet(const GroupParams& call, u64 target) {
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

}  // namespace symmc_peer
