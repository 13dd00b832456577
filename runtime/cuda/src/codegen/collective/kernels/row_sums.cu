// Reduce-rows: each rank adds its own rows of the tokens of all ranks, and the rank of a token adds the sums.
//
// Rows are divided into pieces, as in row_exchange.cu. The block that adds a piece of a row for a peer has the
// number of the block that adds the same piece there, so a block waits only for blocks of its own number.

namespace symmc_peer {

/// The units of a thread: 16 bytes of sums each, or one sum.
template <class T, bool VECTOR>
struct SummedUnits {
    static constexpr u32 WORDS = VECTOR ? sizeof(typename T::Stored) == 2 ? 1 : 2 : 0;
    /// Of the rows of all slots, 32 bytes each are in registers.
    static constexpr u32 UNITS = WORDS == 2 ? 2 : 4;
    static constexpr u32 BYTES = Summand<T, WORDS>::BYTES;
    static constexpr u32 COUNT = Summand<T, WORDS>::COUNT;
    /// The bytes of a sum for each byte of an element.
    static constexpr u32 RATIO = sizeof(typename T::Acc) / sizeof(typename T::Stored);
};

template <class A, u32 COUNT>
__device__ __forceinline__ void store_sums(u64 at, const A (&sums)[COUNT]) {
    if constexpr (COUNT * sizeof(A) == 16) {
        union {
            Wide wide;
            A items[COUNT];
        } unit;
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) unit.items[k] = sums[k];
        store_wide(at, unit.wide);
    } else {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) ((A*)at)[k] = sums[k];
    }
}

template <class A, u32 COUNT>
__device__ __forceinline__ void load_sums(u64 at, A (&sums)[COUNT]) {
    if constexpr (COUNT * sizeof(A) == 16) {
        union {
            Wide wide;
            A items[COUNT];
        } unit;
        unit.wide = load_wide(at);
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) sums[k] = unit.items[k];
    } else {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) sums[k] = ((const A*)at)[k];
    }
}

/// The row of sums that the rank `from` makes for a token of the rank `to`, as an index in the sums of `to`.
template <u32 N>
__device__ __forceinline__ u64 sums_row(const RowExchangeParams& call, u32 to, u32 from, u64 token) {
    const u32 piece = from > to ? from - to - 1 : from + N - to - 1;
    return piece * call.tokens + token;
}

/// Adds the sums of all ranks in order, and stores them. `locate(p)` is the address of a row of sums of the
/// rank `p`, from which offsets lead to it.
template <class T, u32 N, u32 WORDS, u32 UNITS, class Locate>
__device__ __forceinline__ void store_totals(const RowExchangeParams& call, const Sums<T, WORDS, UNITS>& own, u64 token, const Stretch& at, const Locate& locate) {
    typedef Sums<T, WORDS, UNITS> S;
    constexpr u32 RATIO = sizeof(typename T::Acc) / sizeof(typename T::Stored);
    // The number of units whose sums of all peers are loaded at a time.
    constexpr u32 SOME = N <= 2 ? UNITS : N <= 4 && UNITS > 1 ? 2 : 1;
    constexpr u32 PEERS = N > 1 ? N - 1 : 1;
    S total;
    total.clear();
#pragma unroll
    for (u32 first = 0; first < UNITS; first += SOME) {
        typename T::Acc sums[SOME][PEERS][S::COUNT];
#pragma unroll
        for (u32 t = 0; t < SOME; t++) {
            const u64 offset = at.first + (first + t) * at.apart;
#pragma unroll
            for (u32 q = 0; q + 1 < N; q++) {
#pragma unroll
                for (u32 k = 0; k < S::COUNT; k++) sums[t][q][k] = 0;
                if (offset < at.end) load_sums(locate(q < call.me ? q : q + 1) + offset * RATIO, sums[t][q]);
            }
        }
#pragma unroll
        for (u32 t = 0; t < SOME; t++) {
#pragma unroll
            for (u32 p = 0; p < N; p++) {
#pragma unroll
                for (u32 k = 0; k < S::COUNT; k++) {
                    typename T::Acc x = own.of[first + t][k];
                    if (p > 0 && p > call.me) x = sums[t][p - 1][k];
                    if (p + 1 < N && p < call.me) x = sums[t][p][k];
                    total.of[first + t][k] = plus_rounded(total.of[first + t][k], x);
                }
            }
        }
    }
    total.store(call.to + token * call.row, at);
}

/// The pushing variant. In round `r`, each team stores the sums of item `r` to the peers and signals them. It also
/// adds the sums of item `r - 1`, which the peers have signalled. The links bound the first, and memory bounds the
/// second. A team has `LANES` threads.
template <class T, class X, u32 N, u32 K, bool VECTOR, u32 LANES>
__device__ __forceinline__ void reduce_push(const RowExchangeParams& call) {
    typedef SummedUnits<T, VECTOR> U;
    typedef Sums<T, U::WORDS, U::UNITS> S;
    Words words = begin(call);
    const Team team;
    const u32 pieces = pieces_of(team, U::UNITS, U::BYTES, call.row);
    const u64 rounds = (call.tokens * pieces + team.count - 1) / team.count;
    const u64 arrival = words.barriers + 1;
    words.barriers += 1 + rounds;
    const u64 origin = call.from[call.me] - call.me * call.capacity * call.row;
    const auto locate = [&](u64, u64 row) { return origin + row * call.row; };
    // Constant distances take no registers.
    constexpr u64 APART = LANES * U::BYTES;
    const auto place = [&](u32 piece) {
        return Stretch{piece * (U::UNITS * APART) + team.lane * U::BYTES, APART, call.row};
    };
    // The sums of this rank's rows for a token of the rank `p`.
    const auto sum_token = [&](u32 p, const Items& item, S& sums) {
        if (item.more()) {
            sum_rank<T, X, N, K>(call, p * call.tokens + item.row, call.me, place(item.piece), locate, sums);
        } else {
            sums.clear();
        }
    };
    bool arrived = false;
    const auto arrive = [&] {
        arrived = arrived || meet<Arrive, N>(call, arrival);
        return arrived;
    };
    Items sent(team, call.tokens, pieces), kept(team, call.tokens, pieces);
    for (u64 round = 0; round <= rounds; round++) {
#pragma unroll 1
        for (u32 by = 1; by < N && round < rounds; by++) {
            const u32 p = rank_after<N>(call.me, by);
            S sums;
            sum_token(p, sent, sums);
            // The first rows are loaded while peers arrive.
            if (!arrive()) return;
            if (!sent.more()) continue;
            const Stretch at = place(sent.piece);
            const u64 to = call.sums[p] + sums_row<N>(call, p, call.me, sent.row) * call.row * U::RATIO;
#pragma unroll
            for (u32 t = 0; t < U::UNITS; t++) {
                const u64 offset = at.first + t * at.apart;
                if (offset < at.end) store_sums(to + offset * U::RATIO, sums.of[t]);
            }
        }
        sent.next();
        if (round > 0) {
            S own;
            sum_token(call.me, kept, own);
            if (!told<N>(call, arrival + round)) return;
            const auto sums_of = [&](u32 p) {
                return call.sums[call.me] + sums_row<N>(call, call.me, p, kept.row) * call.row * U::RATIO;
            };
            if (kept.more()) store_totals<T, N>(call, own, kept.row, place(kept.piece), sums_of);
            kept.next();
        }
        if (round < rounds) tell<N>(call, arrival + 1 + round);
    }
    // Without items, ranks still meet.
    if (!arrive()) return;
    leave(call, words);
}

/// The variant through staging: every rank stores its sums to the staging areas of the ranks of the tokens.
template <class T, class X, u32 N, bool VECTOR>
__device__ __forceinline__ void reduce_staged(const RowExchangeParams& call) {
    typedef SummedUnits<T, VECTOR> U;
    typedef Sums<T, U::WORDS, 1> S;
    Words words = begin(call);
    if (!meet<Arrive, N>(call, ++words.barriers)) return;
    const u64 origin = call.from[call.me] - call.me * call.capacity * call.row;
    const auto locate = [&](u64, u64 row) { return origin + row * call.row; };
    const auto sum_token = [&](u32 p, u64 token, const Stretch& at, S& sums) {
        sum_rank<T, X, N, 1>(call, p * call.tokens + token, call.me, at, locate, sums);
    };
    const u64 rounds = count_rounds(call);
    for (u64 number = 0; number < rounds; number++) {
        const Round round(call, number);
        for (u32 by = 1; by < N && round.any; by++) {
            const u32 p = rank_after<N>(call.me, by);
            const u64 to = staged_part<N>(call, p, call.me, number);
            for (u64 at = threadIdx.x * U::BYTES; at < round.bytes; at += blockDim.x * U::BYTES) {
                S sums;
                sum_token(p, round.token, Stretch{round.start + at, 0, call.row}, sums);
                store_sums(to + at * U::RATIO, sums.of[0]);
            }
        }
        words.barriers++;
        if (!meet<Depart, N>(call, words.barriers)) return;
        if (!round.any) continue;
        for (u64 at = threadIdx.x * U::BYTES; at < round.bytes; at += blockDim.x * U::BYTES) {
            const Stretch unit{round.start + at, 0, call.row};
            for (u32 by = 1; by < N; by++) {
                const u32 p = rank_after<N>(call.me, by);
                typename T::Acc sums[U::COUNT];
                load_sums(staged_part<N>(call, call.me, p, number) + at * U::RATIO, sums);
                const u64 row = sums_row<N>(call, call.me, p, round.token);
                store_sums(call.sums[call.me] + (row * call.row + unit.first) * U::RATIO, sums);
            }
            S own;
            sum_token(call.me, round.token, unit, own);
            const auto staged = [&](u32 p) {
                return staged_part<N>(call, call.me, p, number) - round.start * U::RATIO;
            };
            store_totals<T, N>(call, own, round.token, unit, staged);
        }
    }
    leave(call, words);
}

}  // namespace symmc_peer
