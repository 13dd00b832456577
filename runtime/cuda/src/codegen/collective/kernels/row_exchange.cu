// Exchanges of rows that tables select: dispatch-rows and combine-rows. Tables are operands of this rank. An
// entry that is out of range is reported, and skipped.
//
// Rows are divided into pieces. A team of 32 threads moves a piece; the threads of a team do not synchronize.
// Teams with neighbouring numbers are in different blocks, so few items of work are spread over all blocks.
//
// In both variants, blocks write the result only after all peers have arrived.

namespace symmc_peer {

/// The number of units of a row that each thread of a team loads before it stores the first: of dispatched
/// rows, and of each of the rows that are added.
constexpr u32 MOVED_UNITS = 4, ADDED_UNITS = 1;
/// The number of rows of which a team clears a piece, where they are gaps.
constexpr u32 GAP_ROWS = 8;

/// The index in the cell of the rank `by` after this one, cyclically.
template <u32 N>
__device__ __forceinline__ u32 rank_after(u32 me, u32 by) {
    const u32 p = me + by;
    return p < N ? p : p - N;
}

/// The threads that move a piece: 32, or all threads of a smaller block.
struct Team {
    u32 lane, size;
    /// The number of this team, and the number of teams of all blocks.
    u32 number, count;

    __device__ __forceinline__ Team() {
        size = blockDim.x < 32 ? blockDim.x : 32;
        lane = threadIdx.x % size;
        number = threadIdx.x / size * gridDim.x + blockIdx.x;
        count = blockDim.x / size * gridDim.x;
    }
};

/// The items of a team: pieces of rows. The pieces of a row have consecutive numbers; a team takes every
/// `count`-th item.
struct Items {
    /// The current row and piece.
    u64 row;
    u32 piece;
    u64 rows;
    u32 pieces, row_step, piece_step;

    __device__ __forceinline__ Items(const Team& team, u64 all_rows, u32 of_row) {
        rows = all_rows;
        pieces = of_row;
        row = team.number / of_row;
        piece = team.number % of_row;
        row_step = team.count / of_row;
        piece_step = team.count % of_row;
    }

    __device__ __forceinline__ bool more() const { return row < rows; }

    __device__ __forceinline__ void next() {
        row += row_step;
        piece += piece_step;
        if (piece >= pieces) {
            piece -= pieces;
            row++;
        }
    }
};

/// The bytes of a row that a thread handles: units at `first`, `first + apart`, … before `end`.
struct Stretch {
    u64 first, apart, end;
};

/// The units of this thread in a piece of a row, `units` for each thread, each of `size` bytes.
__device__ __forceinline__ Stretch stretch(const Team& team, u32 piece, u32 units, u32 size, u64 row) {
    const u64 apart = (u64)team.size * size;
    return Stretch{piece * units * apart + team.lane * size, apart, row};
}

/// The number of pieces of a row of `row` bytes.
__device__ __forceinline__ u32 pieces_of(const Team& team, u32 units, u32 size, u64 row) {
    const u64 piece = (u64)team.size * units * size;
    return (u32)((row + piece - 1) / piece);
}

/// Reports a table entry that is out of range, unless there is an earlier report.
__device__ __noinline__ void report_entry(const RowExchangeParams& call, i64 entry, u64 position) {
    Shared* shared = (Shared*)call.shared;
    Status* status = (Status*)call.status;
    if (!claim(&shared->reported)) return;
    status->step = call.step;
    status->peer = call.ranks[call.me];
    status->group = call.group;
    status->awaited = (u64)entry;
    status->sizes[0] = position;
    __threadfence_system();
    mark(&status->code, ENTRY);
}

/// Reports the first of the entries of the row table from `position` on that `wrong` has a bit for.
__device__ __noinline__ void report_first(const RowExchangeParams& call, u64 position, u32 wrong) {
    while ((wrong & 1) == 0) {
        wrong >>= 1;
        position++;
    }
    report_entry(call, ((const i64*)call.row_table)[position], position);
}

/// Entries of a token in a table; -1 beyond its last slot.
template <u32 K>
struct Entries {
    i64 of[K];

    __device__ __forceinline__ void load(const RowExchangeParams& call, u64 table, u64 token, u64 slot) {
        const i64* at = (const i64*)table + token * call.slots + slot;
#pragma unroll
        for (u32 j = 0; j < K; j++) of[j] = slot + j < call.slots ? at[j] : -1;
    }
};

// ---------------------------------------------------------------- dispatch-rows

/// Clears this thread's units of the rows of an item of `gaps` that have no slot.
template <class W>
__device__ __forceinline__ void clear_gaps(const RowExchangeParams& call, const Team& team, const Items& gaps, i64 slots) {
    const u64 first = gaps.row * GAP_ROWS;
    i64 slot[GAP_ROWS];
#pragma unroll
    for (u32 i = 0; i < GAP_ROWS; i++) {
        slot[i] = first + i < call.capacity ? ((const i64*)call.row_slots)[first + i] : 0;
    }
    const Stretch at = stretch(team, gaps.piece, MOVED_UNITS, sizeof(W), call.row);
#pragma unroll
    for (u32 i = 0; i < GAP_ROWS; i++) {
        const u64 row = first + i;
        if (row >= call.capacity || (slot[i] >= 0 && slot[i] < slots)) continue;
        if (slot[i] >= 0 && gaps.piece == 0 && team.lane == 0) report_entry(call, slot[i], row);
        const u64 to = call.to + row * call.row;
#pragma unroll
        for (u32 t = 0; t < MOVED_UNITS; t++) {
            const u64 offset = at.first + t * at.apart;
            if (offset < at.end) store_unit<W>(to + offset, W{});
        }
    }
}

/// The token of an item: the items of all ranks take turns, beginning with the next rank's.
struct SourceToken {
    u32 rank;
    u64 token;
};

template <u32 N>
__device__ __forceinline__ SourceToken source_token(const RowExchangeParams& call, u64 row) {
    return SourceToken{rank_after<N>(call.me, (u32)(row % N + 1) % N), row / N};
}

/// The pulling variant. Each token that has rows here is loaded once, and stored to all of its rows.
template <class W, u32 N, u32 K, bool EXIT>
__device__ __forceinline__ void dispatch_pull(const RowExchangeParams& call) {
    Words words = begin(call);
    const Team team;
    const u32 pieces = pieces_of(team, MOVED_UNITS, sizeof(W), call.row);
    const i64 slots = (i64)(N * call.tokens * call.slots);
    const u64 first_row = call.me * call.capacity;
    Items gaps(team, (call.capacity + GAP_ROWS - 1) / GAP_ROWS, pieces);
    Items items(team, N * call.tokens, pieces);
    Entries<K> next{};
    const auto load_next = [&] {
        if (!items.more()) return;
        const SourceToken source = source_token<N>(call, items.row);
        next.load(call, call.row_table, source.rank * call.tokens + source.token, 0);
    };
    load_next();
    if (!meet<Arrive, N>(call, words.barriers + 1)) return;
    while (items.more()) {
        const SourceToken source = source_token<N>(call, items.row);
        const Stretch at = stretch(team, items.piece, MOVED_UNITS, sizeof(W), call.row);
        Entries<K> rows = next;
        items.next();
        load_next();
        const u64 from = call.from[source.rank] + source.token * call.row;
        W units[MOVED_UNITS];
        bool loaded = false;
        for (u64 slot = 0; slot < call.slots; slot += K) {
            if (slot > 0) rows.load(call, call.row_table, source.rank * call.tokens + source.token, slot);
            bool any = false;
#pragma unroll
            for (u32 j = 0; j < K; j++) {
                any = any || (rows.of[j] >= 0 && (u64)rows.of[j] - first_row < call.capacity);
            }
            if (!any) continue;
            if (!loaded) {
#pragma unroll
                for (u32 t = 0; t < MOVED_UNITS; t++) {
                    const u64 offset = at.first + t * at.apart;
                    if (offset < at.end) units[t] = load_unit<W>(from + offset);
                }
                loaded = true;
                // Gaps are cleared while the token is on its way.
                if (gaps.more()) {
                    clear_gaps<W>(call, team, gaps, slots);
                    gaps.next();
                }
            }
#pragma unroll
            for (u32 j = 0; j < K; j++) {
                const u64 row = (u64)rows.of[j] - first_row;
                if (rows.of[j] < 0 || row >= call.capacity) continue;
#pragma unroll
                for (u32 t = 0; t < MOVED_UNITS; t++) {
                    const u64 offset = at.first + t * at.apart;
                    if (offset < at.end) store_unit<W>(call.to + row * call.row + offset, units[t]);
                }
            }
        }
    }
    for (; gaps.more(); gaps.next()) clear_gaps<W>(call, team, gaps, slots);
    words.barriers += 1 + EXIT;
    if constexpr (EXIT) meet<Depart, N>(call, words.barriers);
    leave(call, words);
}

/// Whether a token has a row on the rank whose first row is `first_row`.
__device__ __forceinline__ bool has_row(const RowExchangeParams& call, const i64* rows, u64 first_row) {
    for (u64 j = 0; j < call.slots; j++) {
        if (rows[j] >= 0 && (u64)rows[j] - first_row < call.capacity) return true;
    }
    return false;
}

/// Copies bytes of a token from `from` to its rows here, from byte `start` of each row, with all threads of
/// the block.
template <class W>
__device__ __forceinline__ void store_rows(const RowExchangeParams& call, const i64* rows, u64 from, u64 start, u64 bytes) {
    const u64 first_row = call.me * call.capacity;
    for (u64 j = 0; j < call.slots; j++) {
        const u64 row = (u64)rows[j] - first_row;
        if (rows[j] < 0 || row >= call.capacity) continue;
        for (u64 at = threadIdx.x * sizeof(W); at < bytes; at += blockDim.x * sizeof(W)) {
            store_unit<W>(call.to + row * call.row + start + at, load_unit<W>(from + at));
        }
    }
}

/// The address of a block's part of the staging area of the rank `owner` for data of the rank `sender`.
/// Rounds alternate between two parts: a part is written again after a barrier that its owner passes only when
/// it has read the part.
template <u32 N>
__device__ __forceinline__ u64 staged_part(const RowExchangeParams& call, u32 owner, u32 sender, u64 round) {
    return call.staging[owner] + ((round % 2 * N + sender) * gridDim.x + blockIdx.x) * call.slot;
}

/// The part of a row that a block handles in a round. All ranks have equally many rounds.
struct Round {
    u64 token, start, bytes;
    bool any;

    __device__ __forceinline__ Round(const RowExchangeParams& call, u64 number) {
        const u64 room = call.room, parts = (call.row + room - 1) / room, item = number * gridDim.x + blockIdx.x;
        token = item / parts;
        start = item % parts * room;
        bytes = call.row - start < room ? call.row - start : room;
        any = token < call.tokens;
    }
};

__device__ __forceinline__ u64 count_rounds(const RowExchangeParams& call) {
    const u64 parts = (call.row + call.room - 1) / call.room;
    return (call.tokens * parts + gridDim.x - 1) / gridDim.x;
}

/// The variant through staging: every rank stores its tokens to the staging areas of the ranks that have rows
/// of them.
template <class W, u32 N>
__device__ __forceinline__ void dispatch_staged(const RowExchangeParams& call) {
    Words words = begin(call);
    if (!meet<Arrive, N>(call, ++words.barriers)) return;
    const i64* table = (const i64*)call.row_table;
    const u64 rounds = count_rounds(call);
    for (u64 number = 0; number < rounds; number++) {
        const Round round(call, number);
        const i64* own = table + (call.me * call.tokens + round.token) * call.slots;
        const u64 from = call.from[call.me] + round.token * call.row + round.start;
        for (u32 i = 1; i < N && round.any; i++) {
            const u32 p = rank_after<N>(call.me, i);
            if (!has_row(call, own, p * call.capacity)) continue;
            const u64 to = staged_part<N>(call, p, call.me, number);
            for (u64 at = threadIdx.x * sizeof(W); at < round.bytes; at += blockDim.x * sizeof(W)) {
                store_unit<W>(to + at, load_unit<W>(from + at));
            }
        }
        if (round.any) store_rows<W>(call, own, from, round.start, round.bytes);
        words.barriers++;
        if (!meet<Depart, N>(call, words.barriers)) return;
        for (u32 i = 1; i < N && round.any; i++) {
            const u32 p = rank_after<N>(call.me, i);
            const i64* rows = table + (p * call.tokens + round.token) * call.slots;
            store_rows<W>(call, rows, staged_part<N>(call, call.me, p, number), round.start, round.bytes);
        }
    }
    const Team team;
    Items gaps(team, (call.capacity + GAP_ROWS - 1) / GAP_ROWS, pieces_of(team, MOVED_UNITS, sizeof(W), call.row));
    for (; gaps.more(); gaps.next()) clear_gaps<W>(call, team, gaps, (i64)(N * call.tokens * call.slots));
    leave(call, words);
}

// ---------------------------------------------------------------- combine-rows

/// The weights of a combination: elements `X`, or 1.
template <class X>
struct Weights {
    template <class A>
    static __device__ __forceinline__ A load(u64 table, u64 slot) {
        return (A)X::widen(((const typename X::Stored*)table)[slot]);
    }
};
struct Ones {};
template <>
struct Weights<Ones> {
    template <class A>
    static __device__ __forceinline__ A load(u64, u64) { return 1; }
};

/// What a thread loads at once: `WORDS` words of 8 bytes of elements, or one element if that is 0.
template <class T, u32 WORDS>
struct Summand {
    Run<T, WORDS> run;
    static constexpr u32 COUNT = Run<T, WORDS>::COUNT;
    static constexpr u32 BYTES = 8 * WORDS;
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 w = 0; w < WORDS; w++) run.words[w] = 0;
    }
    __device__ __forceinline__ void load(u64 at) {
        if constexpr (WORDS == 2) {
            run = load_run<T>(at);
        } else {
            run.words[0] = load_word(at);
        }
    }
    __device__ __forceinline__ void keep(u64 at) const {
        if constexpr (WORDS == 2) {
            store_wide(at, wide_of(run));
        } else {
            *(u64*)at = run.words[0];
        }
    }
    __device__ __forceinline__ void widen(typename T::Acc* out) const { run.widen(out); }
    static __device__ __forceinline__ void store(u64 at, const typename T::Acc* x) {
        Summand out;
        out.run.narrow(x);
        out.keep(at);
    }
};
template <class T>
struct Summand<T, 0> {
    typename T::Stored item;
    static constexpr u32 COUNT = 1;
    static constexpr u32 BYTES = sizeof(typename T::Stored);
    __device__ __forceinline__ void clear() { item = 0; }
    __device__ __forceinline__ void load(u64 at) { item = *(const typename T::Stored*)at; }
    __device__ __forceinline__ void keep(u64 at) const { *(typename T::Stored*)at = item; }
    __device__ __forceinline__ void widen(typename T::Acc* out) const { *out = T::widen(item); }
    static __device__ __forceinline__ void store(u64 at, const typename T::Acc* x) {
        *(typename T::Stored*)at = T::narrow(*x);
    }
};

/// Sums of a thread's units of a row.
template <class T, u32 WORDS, u32 UNITS>
struct Sums {
    typedef typename T::Acc Acc;
    static constexpr u32 COUNT = Summand<T, WORDS>::COUNT;
    Acc of[UNITS][COUNT];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 t = 0; t < UNITS; t++) {
#pragma unroll
            for (u32 k = 0; k < COUNT; k++) of[t][k] = 0;
        }
    }

    __device__ __forceinline__ void add(const Sums& other) {
#pragma unroll
        for (u32 t = 0; t < UNITS; t++) {
#pragma unroll
            for (u32 k = 0; k < COUNT; k++) of[t][k] = plus_rounded(of[t][k], other.of[t][k]);
        }
    }

    /// Rounds the sums and stores them in a row at `to`.
    __device__ __forceinline__ void store(u64 to, const Stretch& at) const {
#pragma unroll
        for (u32 t = 0; t < UNITS; t++) {
            const u64 offset = at.first + t * at.apart;
            if (offset < at.end) Summand<T, WORDS>::store(to + offset, of[t]);
        }
    }
};

/// Slots whose rows are not loaded have this rank.
constexpr u32 ABSENT = 15;

/// The rows of all ranks.
template <u32 N>
struct AllRows {
    u64 capacity;

    /// The rank that has a global row, or `ABSENT`.
    __device__ __forceinline__ u32 rank_of(u64 row) const {
        u32 rank = row < N * capacity ? 0 : ABSENT;
#pragma unroll
        for (u32 p = 1; p < N; p++) rank += row >= p * capacity && row < N * capacity;
        return rank;
    }
};

/// The rows of one rank, the first of which is `first`.
struct RowsOfRank {
    u32 rank;
    u64 first, capacity;

    __device__ __forceinline__ u32 rank_of(u64 row) const { return row - first < capacity ? rank : ABSENT; }
};

/// A thread's units of the rows of some slots, with the weights of the slots.
template <class T, class X, u32 N, u32 K, u32 WORDS, u32 UNITS>
struct LoadedRows {
    Summand<T, WORDS> units[K][UNITS];
    typename T::Acc weights[K];
    /// Four bits for each slot: the rank that has its row, or `ABSENT`.
    u32 ranks;
    /// A bit for each slot whose entry is out of range.
    u32 wrong;
    static_assert(K <= 8 && N < ABSENT, "four bits for each slot");

    /// Loads those of the slots from `slot` on whose rows are `wanted`. `locate(slot, row)` returns the address of
    /// a global row, or the address from which offsets in the row lead to it. All others are cleared: registers
    /// that are written on some paths only would be occupied around the loop of the items.
    ///
    /// The entries of all slots are examined before the first row is loaded. Otherwise the second slot would
    /// wait for the row of the first.
    template <class Wanted, class Locate>
    __device__ __forceinline__ void load(const RowExchangeParams& call, const Entries<K>& rows, u64 token, u64 slot, const Wanted& wanted, const Stretch& at, const Locate& locate) {
        ranks = 0;
        wrong = 0;
#pragma unroll
        for (u32 j = 0; j < K; j++) {
            ranks |= wanted.rank_of((u64)rows.of[j]) << 4 * j;
            if (rows.of[j] >= (i64)(N * call.capacity)) wrong |= 1u << j;
        }
#pragma unroll
        for (u32 j = 0; j < K; j++) {
            weights[j] = 0;
#pragma unroll
            for (u32 t = 0; t < UNITS; t++) units[j][t].clear();
            if ((ranks >> 4 * j & 15) == ABSENT) continue;
            const u64 address = locate(slot + j, (u64)rows.of[j]) + at.first;
            weights[j] = Weights<X>::template load<typename T::Acc>(call.weights, token * call.slots + slot + j);
#pragma unroll
            for (u32 t = 0; t < UNITS; t++) {
                if (at.first + t * at.apart < at.end) units[j][t].load(address + t * at.apart);
            }
        }
    }

    /// Adds those of a rank, in order of slot.
    __device__ __forceinline__ void add(u32 rank, Sums<T, WORDS, UNITS>& sums) const {
#pragma unroll
        for (u32 j = 0; j < K; j++) {
            if ((ranks >> 4 * j & 15) != rank) continue;
#pragma unroll
            for (u32 t = 0; t < UNITS; t++) {
                typename T::Acc items[Summand<T, WORDS>::COUNT];
                units[j][t].widen(items);
#pragma unroll
                for (u32 k = 0; k < Summand<T, WORDS>::COUNT; k++) {
                    sums.of[t][k] = plus_rounded(sums.of[t][k], times_rounded(items[k], weights[j]));
                }
            }
        }
    }

    /// Reports the first entry that is out of range.
    __device__ __forceinline__ void check(const RowExchangeParams& call, u64 token, u64 slot, const Stretch& at) const {
        if (wrong != 0 && at.first == 0) report_first(call, token * call.slots + slot, wrong);
    }
};

/// Adds the rows of the `K` slots of a token from `slot` on that are on a rank. `locate` is that of
/// `LoadedRows::load`.
template <class T, class X, u32 N, u32 K, u32 WORDS, u32 UNITS, class Locate>
__device__ __forceinline__ void add_slots(const RowExchangeParams& call, u64 token, u64 slot, const RowsOfRank& of, const Stretch& at, const Locate& locate, Sums<T, WORDS, UNITS>& sums) {
    Entries<K> rows;
    rows.load(call, call.row_table, token, slot);
    LoadedRows<T, X, N, K, WORDS, UNITS> loaded;
    loaded.load(call, rows, token, slot, of, at, locate);
    loaded.add(of.rank, sums);
    loaded.check(call, token, slot, at);
}

/// Makes `sums` the sums of the rows of a token that are on a rank, in order of slot: `K` slots first, and then
/// a few at a time, because the code for each is long.
template <class T, class X, u32 N, u32 K, u32 WORDS, u32 UNITS, class Locate>
__device__ __forceinline__ void sum_rank(const RowExchangeParams& call, u64 token, u32 rank, const Stretch& at, const Locate& locate, Sums<T, WORDS, UNITS>& sums) {
    constexpr u32 FEW = K < 2 ? K : 2;
    const RowsOfRank of{rank, rank * call.capacity, call.capacity};
    sums.clear();
    add_slots<T, X, N, K>(call, token, 0, of, at, locate, sums);
#pragma unroll 1
    for (u64 slot = K; slot < call.slots; slot += FEW) {
        add_slots<T, X, N, FEW>(call, token, slot, of, at, locate, sums);
    }
}

/// Stores the sums of a token at this thread's units of a row: the rows of each rank in order of slot, and then
/// the sums of the ranks. `first` has the first entries of the token; when their rows are on the way, `proceed`
/// may replace it. All rows are loaded before the first is added, unless there may be more than `K` slots (`MANY`).
template <class T, class X, u32 N, u32 K, bool MANY, bool VECTOR, u32 UNITS, class Locate, class Proceed>
__device__ __forceinline__ void add_rows(const RowExchangeParams& call, const Entries<K>& first, u64 token, const Stretch& at, const Locate& locate, const Proceed& proceed) {
    constexpr u32 WORDS = VECTOR ? 2 : 0;
    Sums<T, WORDS, UNITS> total, sums;
    total.clear();
    if constexpr (MANY) {
        constexpr u32 SOME = K < 4 ? K : 4;
        proceed();
#pragma unroll 1
        for (u32 p = 0; p < N; p++) {
            sum_rank<T, X, N, SOME>(call, token, p, at, locate, sums);
            total.add(sums);
        }
    } else {
        LoadedRows<T, X, N, K, WORDS, UNITS> loaded;
        loaded.load(call, first, token, 0, AllRows<N>{call.capacity}, at, locate);
        proceed();
#pragma unroll
        for (u32 p = 0; p < N; p++) {
            sums.clear();
            loaded.add(p, sums);
            total.add(sums);
        }
        loaded.check(call, token, 0, at);
    }
    total.store(call.to + token * call.row, at);
}

/// The pulling variant.
template <class T, class X, u32 N, u32 K, bool MANY, bool VECTOR, bool EXIT>
__device__ __forceinline__ void combine_pull(const RowExchangeParams& call) {
    constexpr u32 BYTES = Summand<T, VECTOR ? 2 : 0>::BYTES;
    Words words = begin(call);
    const Team team;
    Items items(team, call.tokens, pieces_of(team, ADDED_UNITS, BYTES, call.row));
    // The address of global row 0, if rank `p` had it.
    u64 origins[N];
#pragma unroll
    for (u32 p = 0; p < N; p++) origins[p] = call.from[p] - p * call.capacity * call.row;
    const auto locate = [&](u64, u64 row) {
        u64 origin = origins[0];
#pragma unroll
        for (u32 p = 1; p < N; p++) {
            if (row >= p * call.capacity) origin = origins[p];
        }
        return origin + row * call.row;
    };
    Entries<K> next{};
    if (items.more()) next.load(call, call.row_table, items.row, 0);
    if (!meet<Arrive, N>(call, words.barriers + 1)) return;
    while (items.more()) {
        const u64 token = items.row;
        const Stretch at = stretch(team, items.piece, ADDED_UNITS, BYTES, call.row);
        const auto proceed = [&] {
            items.next();
            if (items.more()) next.load(call, call.row_table, items.row, 0);
        };
        add_rows<T, X, N, K, MANY, VECTOR, ADDED_UNITS>(call, next, token, at, locate, proceed);
    }
    words.barriers += 1 + EXIT;
    if constexpr (EXIT) meet<Depart, N>(call, words.barriers);
    leave(call, words);
}

/// The variant through staging. A block sends its peers the rows that it needs from them, in front of its
/// staged part; they answer in the parts of their own numbers. The requests of a round are sent in the round
/// before it.
template <class T, class X, u32 N, bool VECTOR>
__device__ __forceinline__ void combine_staged(const RowExchangeParams& call) {
    constexpr u32 BYTES = Summand<T, VECTOR ? 2 : 0>::BYTES;
    Words words = begin(call);
    if (!meet<Arrive, N>(call, ++words.barriers)) return;
    const i64* table = (const i64*)call.row_table;
    const u64 front = call.front, room = call.room, rounds = count_rounds(call);
    const auto request = [&](u64 number) {
        const Round round(call, number);
        if (!round.any) return;
        for (u64 i = threadIdx.x; i < (N - 1) * call.slots; i += blockDim.x) {
            const u32 p = rank_after<N>(call.me, (u32)(i / call.slots) + 1);
            const u64 j = i % call.slots;
            const i64 row = table[round.token * call.slots + j];
            const u64 there = (u64)row - p * call.capacity;
            const bool wanted = row >= 0 && there < call.capacity;
            ((i64*)staged_part<N>(call, p, call.me, number))[j] = wanted ? (i64)there : -1;
        }
    };
    request(0);
    words.barriers++;
    if (!meet<Depart, N>(call, words.barriers)) return;
    for (u64 number = 0; number < rounds; number++) {
        const Round round(call, number);
        for (u32 i = 1; i < N && round.any; i++) {
            const u32 p = rank_after<N>(call.me, i);
            const i64* wanted = (const i64*)staged_part<N>(call, call.me, p, number);
            const u64 to = staged_part<N>(call, p, call.me, number) + front;
            for (u64 j = 0; j < call.slots; j++) {
                if ((u64)wanted[j] >= call.capacity) continue;
                const u64 from = call.from[call.me] + (u64)wanted[j] * call.row + round.start;
                for (u64 at = threadIdx.x * BYTES; at < round.bytes; at += blockDim.x * BYTES) {
                    Summand<T, VECTOR ? 2 : 0> unit;
                    unit.load(from + at);
                    unit.keep(to + j * room + at);
                }
            }
        }
        request(number + 1);
        words.barriers++;
        if (!meet<Depart, N>(call, words.barriers)) return;
        if (!round.any) continue;
        const auto locate = [&](u64 j, u64 row) {
            const u32 p = (u32)(row / call.capacity);
            if (p == call.me) return call.from[p] + (row - p * call.capacity) * call.row;
            return staged_part<N>(call, call.me, p, number) + front + j * room - round.start;
        };
        Entries<1> rows;
        for (u64 at = threadIdx.x * BYTES; at < round.bytes; at += blockDim.x * BYTES) {
            rows.load(call, call.row_table, round.token, 0);
            const Stretch unit{round.start + at, 0, call.row};
            add_rows<T, X, N, 1, true, VECTOR, 1>(call, rows, round.token, unit, locate, [] {});
        }
    }
    leave(call, words);
}

}  // namespace symmc_peer
