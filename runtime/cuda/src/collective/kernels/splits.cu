// All-to-all with sizes on the device: each rank says how many rows go to each, and gets the rows of all, packed.
//
// First every block writes this rank's sizes into a table of each rank, behind which it meets the blocks of its number:
// all ranks then know all sizes, and decide alike whether they fit. A table is written again when the group's next such
// collective begins, which no peer does before all blocks have met once more: what a block needs of its table it has
// read before that.

namespace symmc_peer {

/// Writes this rank's sizes into the tables of all, and meets. Gives the table, or 0 if a peer did not come.
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

/// Whether `N` sizes that lie `apart` from each other are rows of a tensor of `capacity` rows. A negative size is none.
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

/// Reports the sizes of a rank, unless somebody reported something before.
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

/// Whether the rows of all ranks fit. What does not is reported by the first block.
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

/// The rows of this rank in bytes, by how far a peer's number is behind its own.
template <u32 N>
struct Parts {
    /// What goes to each, and where in this rank's operand it begins.
    u64 out[N], source[N];
    /// What comes from each, where in its operand it begins, and where in this rank's result.
    u64 in[N], origin[N], target[N];
    /// What comes from all.
    u64 filled;
    /// The most that goes from a rank to another one.
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

/// Places that a thread goes through, so many bytes from each other.
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

/// How the threads of all blocks share a message: unit by unit.
template <class W>
struct Shares {
    /// This thread's first unit, and the distance to its next, in bytes.
    u64 first, apart;

    __device__ __forceinline__ Shares() {
        first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * sizeof(W);
        apart = (u64)gridDim.x * blockDim.x * sizeof(W);
    }

    /// How many of the units from `skipped` units on are before `bytes`.
    __device__ __forceinline__ u64 count(u64 bytes, u64 skipped) const {
        const u64 at = first + skipped * apart;
        return at < bytes ? (bytes - at + apart - 1) / apart : 0;
    }

    /// From its unit after `skipped` others on.
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

/// What no peer has a part in: this rank's rows for itself, zeros where no row comes, and the sizes.
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

/// Through staging, so that peers touch neither operand nor result: block by block and round by round, rows go into the
/// peers' staging areas, the blocks meet, and each takes what came for it. A round's part is written again two rounds
/// later, which is behind the rendezvous that every peer comes to when it has taken that part.
template <class W, u32 N>
__device__ __forceinline__ void splits_staged(const SplitsParams& call) {
    Words words = begin(call);
    const u64* table = exchange_sizes<N>(call, ++words.barriers);
    if (table == nullptr) return;
    if (!all_fit<N>(call, table)) {
        // So that no peer writes its table while this rank reads it.
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
        // Where this thread's units of a sender are staged at a number.
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

/// By reading the peers' operands. The exit tells that no peer reads this rank's operand or its table any more.
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
