// All-to-all with sizes on the device: each rank declares how many rows go to each rank, and gets the rows of
// all, packed.
//
// First, every block writes this rank's sizes to a table of each rank, and then synchronizes with the blocks
// of its number. All ranks then know all sizes, and decide in the same way whether they fit. A table is
// written again when the group's next such collective begins. No peer begins it before all blocks have
// synchronized once more, so a block reads its table before that.

namespace symmc_peer {

/// Writes this rank's sizes to the tables of all ranks, and synchronizes. Returns the table, or 0 if a peer
/// did not come.
template <u32 N>
__device__ __forceinline__ const u64* exchange_sizes(const SplitsParams& call, u64 barrier) {
    const u64 block = (u64)blockIdx.x * MAX_RANKS * MAX_RANKS;
    for (u32 i = threadIdx.x; i < N * N; i += blockDim.x) {
        u64* table = (u64*)call.sizes[i / N] + block;
        table[call.me * MAX_RANKS + i % N] = ((const u64*)call.sent)[i % N];
    }
    if (!meet<Depart, N>(call, barrier)) return nullptr;
    return (const u64*)call.sizes[call.me] + block;
}

/// Whether `N` sizes that are `apart` from each other fit a tensor of `capacity` rows. Negative sizes do not.
template <u32 N>
__device__ __forceinline__ bool fit(const u64* sizes, u32 apart, u64 capacity) {
    u64 left = capacity;
#pragma unroll
    for (u32 p = 0; p < N; p++) {
        if (sizes[p * apart] > left) return false;
        left -= sizes[p * apart];
    }
    return true;
}

/// Reports the sizes of a rank, unless there is an earlier report.
template <u32 N>
__device__ __noinline__ void report_sizes(const SplitsParams& call, u32 rank, u32 code, const u64* sizes, u32 apart) {
    Shared* shared = (Shared*)call.shared;
    Status* status = (Status*)call.status;
    if (!claim(&shared->reported)) return;
    status->step = call.step;
    status->peer = call.ranks[rank];
    status->group = call.group;
    for (u32 p = 0; p < N; p++) status->sizes[p] = sizes[p * apart];
    __threadfence_system();
    mark(&status->code, code);
}

/// Whether the rows of all ranks fit. The first block reports invalid sizes.
template <u32 N>
__device__ __forceinline__ bool all_fit(const SplitsParams& call, const u64* table) {
    for (u32 p = 0; p < N; p++) {
        const bool sends = fit<N>(table + p * MAX_RANKS, 1, call.capacity);
        if (sends && fit<N>(table + p, MAX_RANKS, call.capacity)) continue;
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            if (!sends) report_sizes<N>(call, p, SENT, table + p * MAX_RANKS, 1);
            if (sends) report_sizes<N>(call, p, RECEIVED, table + p, MAX_RANKS);
        }
        return false;
    }
    return true;
}

/// The rows of this rank in bytes, by the cyclic distance of a peer's index from this rank's.
template <u32 N>
struct Parts {
    /// The bytes to each peer, and their offset in this rank's operand.
    u64 out[N], source[N];
    /// The bytes from each peer, their offset in its operand, and their offset in this rank's result.
    u64 in[N], origin[N], target[N];
    /// The bytes from all ranks.
    u64 filled;
    /// The largest number of bytes from one rank to another.
    u64 longest;
};

__device__ __forceinline__ u32 behind(const SplitsParams& call, u32 by, u32 n) {
    const u32 p = call.me + by;
    return p < n ? p : p - n;
}

template <u32 N>
__device__ __forceinline__ Parts<N> parts_of(const SplitsParams& call, const u64* table) {
    Parts<N> parts;
    parts.filled = parts.longest = 0;
    const u32 me = call.me;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        const u32 p = behind(call, i, N);
        parts.out[i] = table[me * MAX_RANKS + p] * call.row;
        parts.in[i] = table[p * MAX_RANKS + me] * call.row;
        parts.source[i] = parts.origin[i] = parts.target[i] = 0;
        for (u32 q = 0; q < p; q++) parts.source[i] += table[me * MAX_RANKS + q] * call.row;
        for (u32 q = 0; q < p; q++) parts.target[i] += table[q * MAX_RANKS + me] * call.row;
        for (u32 q = 0; q < me; q++) parts.origin[i] += table[p * MAX_RANKS + q] * call.row;
        parts.filled += parts.in[i];
    }
    for (u32 p = 0; p < N; p++) {
        for (u32 q = 0; q < N; q++) {
            const u64 bytes = table[p * MAX_RANKS + q] * call.row;
            if (p != q && bytes > parts.longest) parts.longest = bytes;
        }
    }
    return parts;
}

/// Addresses that a thread steps through, `apart` bytes from each other.
struct Walk {
    u64 at, apart;
};

/// Moves `count` units; several are loaded before the first is stored.
template <class W>
__device__ __forceinline__ void carry(Walk to, Walk from, u64 count) {
    constexpr u32 MANY = 4;
    u64 i = 0;
    for (; i + MANY <= count; i += MANY) {
        W units[MANY];
#pragma unroll
        for (u32 t = 0; t < MANY; t++) units[t] = load_unit<W>(from.at + (i + t) * from.apart);
#pragma unroll
        for (u32 t = 0; t < MANY; t++) store_unit<W>(to.at + (i + t) * to.apart, units[t]);
    }
    for (; i < count; i++) store_unit<W>(to.at + i * to.apart, load_unit<W>(from.at + i * from.apart));
}

/// The division of a message among the threads of all blocks, unit by unit.
template <class W>
struct Shares {
    /// This thread's first unit, and the distance to its next one, in bytes.
    u64 first, apart;

    __device__ __forceinline__ Shares() {
        first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * sizeof(W);
        apart = (u64)gridDim.x * blockDim.x * sizeof(W);
    }

    /// The number of units before `bytes`, after the first `skipped` units.
    __device__ __forceinline__ u64 count(u64 bytes, u64 skipped) const {
        const u64 at = first + skipped * apart;
        return at < bytes ? (bytes - at + apart - 1) / apart : 0;
    }

    /// The addresses of this thread's units after the first `skipped`.
    __device__ __forceinline__ Walk walk(u64 start, u64 skipped) const {
        return Walk{start + first + skipped * apart, apart};
    }

    __device__ __forceinline__ void move(u64 to, u64 from, u64 bytes) const {
        if (to != from) carry<W>(walk(to, 0), walk(from, 0), count(bytes, 0));
    }

    __device__ __forceinline__ void clear(u64 at, u64 bytes) const {
        const Walk to = walk(at, 0);
        const u64 units = count(bytes, 0);
        for (u64 i = 0; i < units; i++) store_unit<W>(to.at + i * to.apart, W{});
    }
};

/// The work without peers: this rank's rows for itself, zeros in rows that no rank sends, and the sizes.
template <class W, u32 N>
__device__ __forceinline__ void keep(const SplitsParams& call, const Parts<N>& parts, const u64* table) {
    const Shares<W> shares;
    const u64 result = call.to;
    shares.move(result + parts.target[0], call.from[call.me] + parts.source[0], parts.out[0]);
    shares.clear(result + parts.filled, call.row * call.capacity - parts.filled);
    if (blockIdx.x == 0 && threadIdx.x < N) {
        ((u64*)call.received)[threadIdx.x] = table[threadIdx.x * MAX_RANKS + call.me];
    }
}

/// The variant through staging, in which peers access neither operand nor result. Block by block and round by
/// round, rows are stored to the peers' staging areas, the blocks synchronize, and each takes the rows that
/// came for it. The staging part of a round is written again two rounds later. That is after a rendezvous
/// that every peer reaches only when it has taken that part.
template <class W, u32 N>
__device__ __forceinline__ void splits_staged(const SplitsParams& call) {
    Words words = begin(call);
    const u64* table = exchange_sizes<N>(call, ++words.barriers);
    if (table == nullptr) return;
    if (!all_fit<N>(call, table)) {
        // The barrier keeps peers from writing their tables while this rank reads.
        words.barriers++;
        meet<Depart, N>(call, words.barriers);
        leave(call, words);
        return;
    }
    const Parts<N> parts = parts_of<N>(call, table);
    keep<W, N>(call, parts, table);
    if constexpr (N > 1) {
        const Shares<W> shares;
        const u64 tile = (u64)blockDim.x * sizeof(W), tiles = call.slot / tile;
        // The address at rank `at` where this thread's units of `sender` are staged.
        const auto staged = [&](u32 at, u32 sender, u64 round) {
            const u64 part = (round % 2 * N + sender) * gridDim.x + blockIdx.x;
            return Walk{call.staging[at] + part * call.slot + threadIdx.x * sizeof(W), tile};
        };
        const auto units = [&](u64 bytes, u64 round) {
            const u64 left = shares.count(bytes, round * tiles);
            return left < tiles ? left : tiles;
        };
        u64 round = 0;
        do {
#pragma unroll
            for (u32 i = 1; i < N; i++) {
                const Walk from = shares.walk(call.from[call.me] + parts.source[i], round * tiles);
                carry<W>(staged(behind(call, i, N), call.me, round), from, units(parts.out[i], round));
            }
            words.barriers++;
            if (!meet<Depart, N>(call, words.barriers)) return;
#pragma unroll
            for (u32 i = 1; i < N; i++) {
                const Walk to = shares.walk(call.to + parts.target[i], round * tiles);
                carry<W>(to, staged(call.me, behind(call, i, N), round), units(parts.in[i], round));
            }
            round++;
        } while (round * tiles * shares.apart < parts.longest);
    }
    leave(call, words);
}

/// The variant that reads the peers' operands. The exit guarantees that no peer still reads this rank's
/// operand or its table.
template <class W, u32 N>
__device__ __forceinline__ void splits_pull(const SplitsParams& call) {
    Words words = begin(call);
    const u64* table = exchange_sizes<N>(call, ++words.barriers);
    if (table == nullptr) return;
    if (all_fit<N>(call, table)) {
        const Parts<N> parts = parts_of<N>(call, table);
        const Shares<W> shares;
#pragma unroll
        for (u32 i = 1; i < N; i++) {
            const u64 from = call.from[behind(call, i, N)] + parts.origin[i];
            shares.move(call.to + parts.target[i], from, parts.in[i]);
        }
        keep<W, N>(call, parts, table);
    }
    words.barriers++;
    meet<Depart, N>(call, words.barriers);
    leave(call, words);
}

}  // namespace symmc_peer
