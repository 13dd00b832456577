// Ops on rows: reductions, arg-reductions, cumulative sums, and parts of loops that reduce rows.
//
// A layout `L` gives the types X and R of elements, the extents ROWS and N, the access width V, and the
// offsets of a row and of element k of a row. A row is computed by a group of G threads: a single thread (if
// neighbouring rows are adjacent in memory), a warp, or the whole block. A result may be in place of its
// operand: all of a row is read before any of it is written, or each element is read by the thread that
// writes it.

namespace sc {

template <class A> SC_FN A warp_shuffle(A x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

struct Sum {
    template <class A> SC_FN A start() { return 0; }
    template <class A> SC_FN A join(A a, A b) { return a + b; }
};
struct Prod {
    template <class A> SC_FN A start() { return 1; }
    template <class A> SC_FN A join(A a, A b) { return a * b; }
};
struct Max {
    template <class A> SC_FN A start() { return lowest((A)0); }
    template <class A> SC_FN A join(A a, A b) { return b_max(a, b); }
    SC_FN float lowest(float) { return __uint_as_float(0xff800000u); }
    SC_FN double lowest(double) { return __longlong_as_double((i64)0xfff0000000000000ull); }
    SC_FN i64 lowest(i64) { return (i64)0x8000000000000000ull; }
};
struct Min {
    template <class A> SC_FN A start() { return highest((A)0); }
    template <class A> SC_FN A join(A a, A b) { return b_min(a, b); }
    SC_FN float highest(float) { return __uint_as_float(0x7f800000u); }
    SC_FN double highest(double) { return __longlong_as_double((i64)0x7ff0000000000000ull); }
    SC_FN i64 highest(i64) { return (i64)0x7fffffffffffffffull; }
};
struct Any {
    template <class A> SC_FN A start() { return 0; }
    template <class A> SC_FN A join(A a, A b) { return (A)(a != 0 || b != 0); }
};
struct All {
    template <class A> SC_FN A start() { return 1; }
    template <class A> SC_FN A join(A a, A b) { return (A)(a != 0 && b != 0); }
};

// Combines the values of all threads of a group; all threads get the result.
template <class Op, int G, class A> SC_FN A group_join(A x) {
    if (G == 1) return x;
    for (int m = (G < 32 ? G : 32) / 2; m > 0; m >>= 1) x = Op::join(x, warp_shuffle(x, m));
    if (G <= 32) return x;
    __shared__ A parts[32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int w = 1; w < G / 32; w++) x = Op::join(x, parts[w]);
    return x;
}

// The row of this thread's group.
template <int G, int THREADS> SC_FN u32 group_row() { return blockIdx.x * (THREADS / G) + threadIdx.x / G; }

// Combines x into an accumulator, in the type of the accumulator.
template <class Op, class A, class C> SC_FN void join_onto(A &a, C x) { a = Op::join(a, (A)x); }

// Whether combining may leave the range of A while the final value is within it. Double is used then.
template <class Op, class A> struct Leaves { static const bool RANGE = false; };
template <> struct Leaves<Sum, float> { static const bool RANGE = true; };

// The result of a reduction of COUNT elements.
template <class L, bool MEAN, class A> SC_FN void store_reduced(void *r, u32 row, A acc) {
    if (MEAN) acc = acc / (A)L::COUNT;
    ((typename L::R *)r)[L::r_row(row)] = Put<typename L::R>::of(acc);
}

// Combines a row for all threads of its group; A is the type of the accumulator.
template <class L, class Op, class A, int G> SC_FN A join_row(const typename L::X *from, u32 lane) {
    A acc = Op::template start<A>();
    for (i64 k = (i64)lane * L::V; k < L::N; k += (i64)G * L::V) {
        Few<typename L::X, L::V> few;
        read<typename L::X, L::V>(few, from + L::x_in(k));
#pragma unroll
        for (int j = 0; j < L::V; j++) acc = Op::join(acc, (A)get(few.e[j]));
    }
    return group_join<Op, G>(acc);
}

// Reduces each row.
template <class L, class Op, class A, bool MEAN, int G, int THREADS> SC_FN void reduce_rows(const void *x, void *r) {
    u32 row = group_row<G, THREADS>(), lane = threadIdx.x % G;
    if (row >= L::ROWS) return;
    const typename L::X *from = (const typename L::X *)x + L::x_row(row);
    A acc = join_row<L, Op, A, G>(from, lane);
    if constexpr (Leaves<Op, A>::RANGE) {
        // All threads of the group have the same value.
        if (acc - acc != 0) {
            double wide = join_row<L, Op, double, G>(from, lane);
            if (lane == 0) store_reduced<L, MEAN>(r, row, wide);
            return;
        }
    }
    if (lane == 0) store_reduced<L, MEAN>(r, row, acc);
}

// Combines one of 32 rows that are adjacent in memory, by 8 parts of each; the first part gets the result.
template <class L, class Op, class A> SC_FN A join_column(const void *x, u32 row, u32 part) {
    __shared__ A parts[8][33];
    A acc = Op::template start<A>();
    if (row < L::ROWS) {
        const typename L::X *from = (const typename L::X *)x + L::x_row(row);
        for (i64 k = part; k < L::N; k += 8) acc = Op::join(acc, (A)get(from[L::x_in(k)]));
    }
    parts[part][threadIdx.x % 32] = acc;
    __syncthreads();
    if (part == 0)
        for (int p = 1; p < 8; p++) acc = Op::join(acc, parts[p][threadIdx.x]);
    return acc;
}

// Reduces each row if neighbouring rows are adjacent in memory.
template <class L, class Op, class A, bool MEAN> SC_FN void reduce_columns(const void *x, void *r) {
    u32 row = blockIdx.x * 32 + threadIdx.x % 32, part = threadIdx.x / 32;
    bool stores = part == 0 && row < L::ROWS;
    A acc = join_column<L, Op, A>(x, row, part);
    if constexpr (Leaves<Op, A>::RANGE) {
        __shared__ int left;
        if (threadIdx.x == 0) left = 0;
        __syncthreads();
        bool again = stores && acc - acc != 0;
        if (again) left = 1;
        __syncthreads();
        if (left) {
            double wide = join_column<L, Op, double>(x, row, part);
            if (again) store_reduced<L, MEAN>(r, row, wide);
            stores = stores && !again;
        }
    }
    if (stores) store_reduced<L, MEAN>(r, row, acc);
}

// Whether x at i precedes y at j as the extreme: the first of equal values, NaN before all numbers.
template <bool LARGEST, class C> SC_FN bool before(C x, i64 i, C y, i64 j) {
    bool nx = x != x, ny = y != y;
    if (nx || ny) return nx && (!ny || i < j);
    if (x == y) return i < j;
    return LARGEST ? x > y : x < y;
}

// Whether x is more extreme than y, which comes first.
template <bool LARGEST, class C> SC_FN bool exceeds(C x, C y) {
    return (LARGEST ? x > y : x < y) || (x != x && y == y);
}

template <class L, bool LARGEST, int G, int THREADS> SC_FN void arg_rows(const void *x, void *r) {
    typedef typename L::X X;
    typedef typename Computed<X>::C C;
    static const int V = L::V;
    u32 row = group_row<G, THREADS>(), lane = threadIdx.x % G;
    if (row >= L::ROWS) return;
    const X *from = (const X *)x + L::x_row(row);
    C best = 0;
    i64 at = -1;
#pragma unroll 4
    for (i64 k = (i64)lane * V; k < L::N; k += (i64)G * V) {
        Few<X, V> few;
        read<X, V>(few, from + L::x_in(k));
#pragma unroll
        for (int j = 0; j < V; j++) {
            C c = get(few.e[j]);
            if (at < 0 || exceeds<LARGEST>(c, best)) best = c, at = k + j;
        }
    }
    if (G > 1) {
        for (int m = 16; m > 0; m >>= 1) {
            C c = warp_shuffle(best, m);
            i64 k = warp_shuffle(at, m);
            if (k >= 0 && (at < 0 || before<LARGEST>(c, k, best, at))) best = c, at = k;
        }
    }
    if (G > 32) {
        __shared__ C values[32];
        __shared__ i64 places[32];
        if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best, places[threadIdx.x / 32] = at;
        __syncthreads();
        for (int w = 0; w < G / 32; w++) {
            C c = values[w];
            i64 k = places[w];
            if (k >= 0 && (at < 0 || before<LARGEST>(c, k, best, at))) best = c, at = k;
        }
    }
    if (lane == 0) ((i64 *)r)[L::r_row(row)] = at;
}

// Cumulative sums: each warp scans 32 elements at a time and carries the sum over.
template <class L, class A, int G, int THREADS> SC_FN void cumsum_rows(const void *x, void *r) {
    u32 row = group_row<G, THREADS>(), lane = threadIdx.x % G;
    if (row >= L::ROWS) return;
    const typename L::X *from = (const typename L::X *)x + L::x_row(row);
    typename L::R *to = (typename L::R *)r + L::r_row(row);
    A carry = 0;
    if (G == 1) {
        for (i64 k = 0; k < L::N; k++) {
            carry = carry + (A)get(from[L::x_in(k)]);
            to[L::r_in(k)] = Put<typename L::R>::of(carry);
        }
        return;
    }
    for (i64 first = 0; first < L::N; first += 32) {
        i64 k = first + lane;
        A sum = k < L::N ? (A)get(from[L::x_in(k)]) : (A)0;
        for (int d = 1; d < 32; d <<= 1) {
            A other = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum = sum + other;
        }
        sum = sum + carry;
        if (k < L::N) to[L::r_in(k)] = Put<typename L::R>::of(sum);
        carry = __shfl_sync(0xffffffffu, sum, 31);
    }
}

// The factor of a row's elements before they are squared, if `mean`, the mean of the squares, is not a number
// of full precision: the squares of floats far from 1 are not. It is a power of two, so nothing is rounded.
SC_FN float unit_for(float mean) {
    if (mean >= __uint_as_float(0x00800000u) && mean <= __uint_as_float(0x7f7fffffu)) return 1;
    return mean < 1 ? __uint_as_float(0x71800000u) : __uint_as_float(0x17800000u);
}
SC_FN double unit_for(double) { return 1; }

// `eps` for elements multiplied by `unit`; a nonzero `eps` stays nonzero.
SC_FN float eps_for(float eps, float unit) {
    float scaled = eps * unit * unit, least = __uint_as_float(0x00800000u);
    return eps > 0 && scaled < least ? least : scaled;
}
SC_FN double eps_for(double eps, double) { return eps; }

} // namespace sc
