// The state of a kernel's group, and the waits of blocks for peers. mod.rs explains the guarantees of the
// flags; its module also generates the small functions that instantiate the kernels. Operations that reach
// peers are in device.cu.
//
// All kernels support any number of blocks and threads, if a block has a thread for each rank and all ranks
// launch equal grids.

namespace symmc_peer {

/// The counters of a group on this rank, one copy per block; all copies are equal between kernels.
struct Words {
    /// The number of the last barrier.
    u64 barriers;
    /// The flag of the last collective by LL or LL128.
    u32 ll;
    /// The largest number of 16-byte units of a landing zone that these have used.
    u32 used;
};

/// Private words of this rank that all groups share.
struct Shared {
    /// Nonzero after a wait ended early: no kernel waits any more.
    u32 stop;
    /// Nonzero after a report.
    u32 reported;
};

/// Pinned host memory.
struct Status {
    /// Set by the host: the run is aborted.
    u32 abort;
    u32 code;
    u32 step;
    u32 peer;
    u64 awaited;
    u32 group;
    u32 block;
    u64 sizes[MAX_RANKS];
};

/// The values of `code`: a wait reached its limit, a rank sends or receives rows that do not fit, or an entry
/// of a table of rows is out of range.
constexpr u32 MISSED = 1, SENT = 2, RECEIVED = 3, ENTRY = 4;

// ---------------------------------------------------------------- waits

#ifdef SYMMC_CHAOS
/// Before and after an access to a peer: a delay from the seed, usually none. `count` is the counter of
/// barriers or of LL.
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

/// Checks the clock and the conditions that end waits early. Returns the start of the wait, or 0 if it must
/// end.
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

    /// Whether to keep polling for the signal of `peer`.
    __device__ __forceinline__ bool again(const GroupParams& call, u32 peer, u64 awaited) {
        pause();
        looks++;
        if ((looks & 255) != 0) return true;
        start = consider(call, peer, awaited, looks, start);
        return start != 0;
    }
};

/// The flag in `owner`'s memory that the rank with index `sets` sets for a block.
__device__ __forceinline__ u64* flag_of(const GroupParams& call, u32 owner, u32 sets, u32 block) {
    return (u64*)call.flags[owner] + (block * MAX_RANKS + sets);
}

/// The same flag for this block.
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

/// The same for this block.
__device__ __forceinline__ bool await(const GroupParams& call, u32 peer, u64 target) {
    return await_of(call, peer, blockIdx.x, target);
}

/// The group's counters at the start of a kernel.
__device__ __forceinline__ Words begin(const GroupParams& call) {
    return ((const Words*)call.words)[blockIdx.x];
}

/// Stores the counters for the group's next kernel, which may have another grid: block `b` of `g` also writes
/// the copies of blocks `b + g`, `b + 2g`, … that this grid lacks. All threads of the block have read theirs.
/// The stores come after the last flag, which would otherwise wait for them.
__device__ __forceinline__ void leave(const GroupParams& call, const Words& next) {
    Words* words = (Words*)call.words;
    const u32 step = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x + threadIdx.x * gridDim.x; i < MAX_BLOCKS; i += step) words[i] = next;
}

/// The order before the first access: peers need not see writes of this kernel, only those of earlier
/// kernels.
struct Arrive {
    static __device__ __forceinline__ void sync() {}
    static __device__ __forceinline__ void set(u64* at, u64 value) { store_relaxed(at, value); }
};

/// The order after accesses: all reads and writes of the block's threads come before the flag.
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
