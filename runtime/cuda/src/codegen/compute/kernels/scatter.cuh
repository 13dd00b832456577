// Stores at positions from data. The destination already holds the first operand.
//
// Sources with the same destination are combined in their order, so that every run gives the same bits. The
// first of them does the work for all; for a plain store, the last one does. Few sources search each other for
// equal destinations, which takes time proportional to the square of their number. Many are sorted by
// destination first (radix.cuh).

namespace sc {

enum { STORE, SUM, MEAN, PROD, MAX, MIN, ANY, ALL };

template <int HOW, class A> SC_FN A merge(A a, A b) {
    if (HOW == SUM || HOW == MEAN) return b_add(a, b);
    if (HOW == PROD) return b_mul(a, b);
    if (HOW == MAX) return b_max(a, b);
    if (HOW == MIN) return b_min(a, b);
    if (HOW == ANY) return (A)(a != 0 || b != 0);
    if (HOW == ALL) return (A)(a != 0 && b != 0);
    return b;
}
SC_FN double divide(double sum, i64 n) { return sum / n; }
SC_FN i64 divide(i64 sum, i64 n) { return sum / n - (sum % n < 0); }

// The type in which elements are combined: intermediate sums and products of floats may leave the range of
// float.
template <class C, bool ADDS> struct Joined { typedef C A; };
template <> struct Joined<float, true> { typedef double A; };

// One thread per element of the source. `L`: types T and I (index), N elements, ALONG of them along the axis,
// EXTENT of the destination there; offsets at position i with coordinate 0 along the axis.
template <class L, int HOW> SC_FN void scatter_elements(const void *pi, const void *ps, void *pd, void *status, u32 assertion) {
    typedef typename L::T T;
    typedef typename Joined<typename Computed<T>::C, HOW == SUM || HOW == MEAN || HOW == PROD>::A A;
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= L::N) return;
    // Neighbouring threads have different lines across the axis.
    const i64 line = at % L::LINES, own = at / L::LINES;
    const typename L::I *index = (const typename L::I *)pi + L::i_line(line);
    const T *src = (const T *)ps + L::s_line(line);
    const i64 given = get(index[own * L::i_step]), place = position(given, L::EXTENT);
    if (place < 0) {
        report(status, assertion, given);
        return;
    }
    if (HOW == STORE) {
        for (i64 j = own + 1; j < L::ALONG; j++)
            if (position(get(index[j * L::i_step]), L::EXTENT) == place) return;
        ((T *)pd)[L::d_line(line) + place * L::d_step] = src[own * L::s_step];
        return;
    }
    for (i64 j = 0; j < own; j++)
        if (position(get(index[j * L::i_step]), L::EXTENT) == place) return;
    T *to = (T *)pd + L::d_line(line) + place * L::d_step;
    A acc = merge<HOW>((A)get(*to), (A)get(src[own * L::s_step]));
    i64 count = 2;
    for (i64 j = own + 1; j < L::ALONG; j++)
        if (position(get(index[j * L::i_step]), L::EXTENT) == place) {
            acc = merge<HOW>(acc, (A)get(src[j * L::s_step]));
            count++;
        }
    if (HOW == MEAN) acc = divide(acc, count);
    *to = Put<T>::of(acc);
}

// One block for each place that the indices select and each tile of the pieces stored there; this one has
// number `b`. `L`: types T and I, N places, BEFORE outer positions, PIECE elements of a piece;
// `place(indices, j, reports)` returns the destination of place j, or -1, which it reports if `reports` is set.
template <class L, int HOW> SC_FN void scatter_pieces(const typename L::Indices &indices, const void *ps, void *pd, i64 b) {
    typedef typename L::T T;
    typedef typename Joined<typename Computed<T>::C, HOW == SUM || HOW == MEAN || HOW == PROD>::A A;
    const int ITEMS = 4, THREADS = 256;
    __shared__ int found;
    __shared__ int count;
    __shared__ int matches[THREADS];
    __shared__ int warps[THREADS / 32];
    const i64 tiles = (L::PIECE + ITEMS * THREADS - 1) / (ITEMS * THREADS);
    const i64 own = b % L::N;
    b /= L::N;
    const i64 tile = b % tiles, before = b / tiles;
    const i64 place = L::place(indices, own, threadIdx.x == 0);
    if (place < 0) return;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    // Another block does the work of this place: the first of equal ones, for a plain store the last.
    const i64 from = HOW == STORE ? own + 1 : 0, to = HOW == STORE ? L::N : own;
    bool other = false;
    for (i64 j = from + threadIdx.x; j < to && !other; j += THREADS) other = L::place(indices, j, false) == place;
    if (other) found = 1;
    __syncthreads();
    if (found) return;
    const T *src = (const T *)ps + L::s_before(before);
    T *dst = (T *)pd + L::d_before(before) + L::d_place(place);
    const i64 e0 = tile * ITEMS * THREADS + threadIdx.x;
    if (HOW == STORE) {
        for (int i = 0; i < ITEMS; i++) {
            i64 e = e0 + i * THREADS;
            if (e < L::PIECE) dst[L::d_piece(e)] = src[L::s_at(own) + L::s_piece(e)];
        }
        return;
    }
    A acc[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        i64 e = e0 + i * THREADS;
        acc[i] = e < L::PIECE ? (A)get(dst[L::d_piece(e)]) : (A)0;
    }
    i64 joined = 1;
    for (i64 first = own; first < L::N; first += THREADS) {
        const i64 j = first + threadIdx.x;
        const bool match = j < L::N && L::place(indices, j, false) == place;
        // The matches among these places, in order.
        const u32 ballot = __ballot_sync(0xffffffffu, match);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane == 0) warps[warp] = __popc(ballot);
        __syncthreads();
        int start = 0;
        for (int w = 0; w < warp; w++) start += warps[w];
        if (match) matches[start + __popc(ballot & ((1u << lane) - 1))] = threadIdx.x;
        if (threadIdx.x == THREADS - 1) count = start + warps[warp];
        __syncthreads();
        for (int m = 0; m < count; m++) {
            const T *s = src + L::s_at(first + matches[m]);
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                i64 e = e0 + i * THREADS;
                if (e < L::PIECE) acc[i] = merge<HOW>(acc[i], (A)get(s[L::s_piece(e)]));
            }
        }
        joined += count;
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        i64 e = e0 + i * THREADS;
        if (HOW == MEAN) acc[i] = divide(acc[i], joined);
        if (e < L::PIECE) dst[L::d_piece(e)] = Put<T>::of(acc[i]);
    }
}

// The elements of a piece that a thread has, from `e0` on: neighbours if they are accessed together, and otherwise
// `by` apart.
template <class T> struct Items { T e[4]; };
template <class L, bool WIDE, class T> SC_FN void load_items(Items<T> &out, const T *p, i64 e0, i64 by, bool is_source) {
    const int TOGETHER = sizeof(T) == 8 ? 2 : 4;
#pragma unroll
    for (int i = 0; i < 4; i += WIDE ? TOGETHER : 1) {
        if (WIDE) {
            Few<T, TOGETHER> few;
            read(few, p + e0 + i);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) out.e[i + j] = few.e[j];
            continue;
        }
        const i64 e = e0 + i * by;
        if (e < L::PIECE) out.e[i] = p[is_source ? L::s_piece(e) : L::d_piece(e)];
    }
}
template <class L, bool WIDE, class T> SC_FN void store_items(T *p, const Items<T> &x, i64 e0, i64 by) {
    const int TOGETHER = sizeof(T) == 8 ? 2 : 4;
#pragma unroll
    for (int i = 0; i < 4; i += WIDE ? TOGETHER : 1) {
        if (WIDE) {
            Few<T, TOGETHER> few;
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) few.e[j] = x.e[i + j];
            write(p + e0 + i, few);
            continue;
        }
        const i64 e = e0 + i * by;
        if (e < L::PIECE) p[L::d_piece(e)] = x.e[i];
    }
}

// The destinations of all places as keys; those out of range get the largest key.
template <class L> SC_FN void place_keys(const typename L::Indices &indices, void *keys) {
    const i64 j = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= L::N) return;
    const i64 place = L::place(indices, j, true);
    ((u32 *)keys)[j] = (u32)(place < 0 ? L::PLACES : place);
}

// Whether source i of the sorted ones writes its destination: for a plain store the last of equal keys, otherwise the
// first.
template <int HOW> SC_FN bool writes_destination(const u32 *keys, i64 i, i64 n) {
    if (HOW == STORE) return i + 1 == n || keys[i + 1] != keys[i];
    return i == 0 || keys[i - 1] != keys[i];
}

// As scatter_pieces, with places sorted by destination: block `b` has number `b % N` of them. `L`: also PLACES,
// the number of destinations, and WIDE, whether pieces are contiguous and start at multiples of 4 elements.
template <class L, int HOW>
SC_FN void scatter_sorted_pieces(const void *pk, const void *pp, const void *ps, void *pd, i64 b) {
    typedef typename L::T T;
    typedef typename Joined<typename Computed<T>::C, HOW == SUM || HOW == MEAN || HOW == PROD>::A A;
    const int ITEMS = 4, THREADS = 256, IN_FLIGHT = 8;
    const u32 *keys = (const u32 *)pk, *positions = (const u32 *)pp;
    const i64 tiles = (L::PIECE + ITEMS * THREADS - 1) / (ITEMS * THREADS);
    const i64 own = b % L::N;
    b /= L::N;
    const i64 tile = b % tiles, before = b / tiles;
    const u32 key = keys[own];
    if (key == (u32)L::PLACES || !writes_destination<HOW>(keys, own, L::N)) return;
    const T *src = (const T *)ps + L::s_before(before);
    T *dst = (T *)pd + L::d_before(before) + L::d_place(key);
    const i64 by = L::WIDE ? 1 : THREADS, e0 = tile * ITEMS * THREADS + threadIdx.x * (L::WIDE ? ITEMS : 1);
    if (e0 >= L::PIECE) return;
    Items<T> stored;
    A acc[ITEMS];
    if (HOW != STORE) {
        load_items<L, L::WIDE>(stored, dst, e0, by, false);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) acc[i] = (A)get(stored.e[i]);
    }
    i64 joined = 1;
    // The loads of some sources are all issued before the first is used.
    for (i64 first = own; first < L::N && keys[first] == key; first += IN_FLIGHT) {
        Items<T> sources[IN_FLIGHT];
        int count = 0;
#pragma unroll
        for (int m = 0; m < IN_FLIGHT; m++)
            if (count == m && first + m < (HOW == STORE ? own + 1 : L::N) && keys[first + m] == key) {
                load_items<L, L::WIDE>(sources[m], src + L::s_at(positions[first + m]), e0, by, true);
                count = m + 1;
            }
        if (HOW == STORE) {
            store_items<L, L::WIDE>(dst, sources[0], e0, by);
            return;
        }
#pragma unroll
        for (int m = 0; m < IN_FLIGHT; m++)
            if (m < count)
#pragma unroll
                for (int i = 0; i < ITEMS; i++) acc[i] = merge<HOW>(acc[i], (A)get(sources[m].e[i]));
        joined += count;
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (HOW == MEAN) acc[i] = divide(acc[i], joined);
        stored.e[i] = Put<T>::of(acc[i]);
    }
    store_items<L, L::WIDE>(dst, stored, e0, by);
}

// The destinations of the elements of LINES lines from `first` on as keys, those of a line after those of the lines
// before.
template <class L, i64 LINES> SC_FN void element_keys(const void *pi, void *keys, void *status, u32 assertion, i64 first) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= LINES * L::ALONG) return;
    const i64 line = at % LINES, own = at / LINES;
    const i64 given = get(((const typename L::I *)pi)[L::i_line(first + line) + own * L::i_step]);
    const i64 place = position(given, L::EXTENT);
    if (place < 0) report(status, assertion, given);
    ((u32 *)keys)[at] = (u32)(place < 0 ? LINES * L::EXTENT : line * L::EXTENT + place);
}

// As scatter_elements, for LINES lines from `first` on, with elements sorted by destination.
template <class L, int HOW, i64 LINES>
SC_FN void scatter_sorted_elements(const void *pk, const void *pp, const void *ps, void *pd, i64 first) {
    typedef typename L::T T;
    typedef typename Joined<typename Computed<T>::C, HOW == SUM || HOW == MEAN || HOW == PROD>::A A;
    const i64 n = LINES * L::ALONG, own = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (own >= n) return;
    const u32 *keys = (const u32 *)pk, *positions = (const u32 *)pp;
    const u32 key = keys[own];
    if (key == (u32)(LINES * L::EXTENT) || !writes_destination<HOW>(keys, own, n)) return;
    const i64 line = first + key / L::EXTENT, place = key % L::EXTENT;
    const T *src = (const T *)ps + L::s_line(line);
    T *to = (T *)pd + L::d_line(line) + place * L::d_step;
    if (HOW == STORE) {
        *to = src[positions[own] / LINES * L::s_step];
        return;
    }
    A acc = (A)get(*to);
    i64 count = 1;
    for (i64 j = own; j < n && keys[j] == key; j++) {
        acc = merge<HOW>(acc, (A)get(src[positions[j] / LINES * L::s_step]));
        count++;
    }
    if (HOW == MEAN) acc = divide(acc, count);
    *to = Put<T>::of(acc);
}

} // namespace sc
