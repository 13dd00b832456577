// Stable sorting by (key, position). A key is an unsigned integer with the order of the elements, NaN last
// and both zeros equal. Positions make all pairs different, so any correct sort is the stable one.
//
// Rows of up to 4096 elements are sorted in shared memory. Longer ones are sorted in tiles, which are merged
// in memory; each pass merges two runs of `width` into one.

namespace sc {

SC_FN u32 order_bits(u32 b) { return b & 0x80000000u ? ~b : b | 0x80000000u; }
SC_FN u64 order_bits(u64 b) { return b >> 63 ? ~b : b | 0x8000000000000000ull; }
SC_FN u32 key_of(float x) { return x != x ? 0xffffffffu : order_bits(__float_as_uint(x == 0 ? 0.0f : x)); }
SC_FN u64 key_of(double x) {
    return x != x ? 0xffffffffffffffffull : order_bits((u64)__double_as_longlong(x == 0 ? 0.0 : x));
}
SC_FN u64 key_of(i64 x) { return (u64)x ^ 0x8000000000000000ull; }
template <class T> struct Key { typedef u32 K; };
template <> struct Key<i64> { typedef u64 K; };
template <> struct Key<double> { typedef u64 K; };
// The bit that orders the numbers of a type of integers of up to 32 bits: they are the lower half of the key.
template <class T> struct OrderBit { static const u32 BIT = 0x80000000u; };
template <> struct OrderBit<u32> { static const u32 BIT = 0; };
// The key of an element of type T.
template <class T> SC_FN u32 fit_key(u32 k) { return k; }
template <class T> SC_FN typename Key<T>::K fit_key(u64 k) {
    typedef typename Key<T>::K K;
    return sizeof(K) == 8 ? (K)k : (K)((u32)k ^ OrderBit<T>::BIT);
}

template <class L> SC_FN typename Key<typename L::T>::K row_key(const typename L::T *row, i64 i) {
    typename Key<typename L::T>::K k = fit_key<typename L::T>(key_of(get(row[i * L::x_step])));
    return L::DESCENDING ? ~k : k;
}

template <class K> SC_FN bool less(K k, u32 i, K l, u32 j) { return k < l || (k == l && i < j); }

// Sorts P pairs in shared memory.
template <int P, int THREADS, class K> SC_FN void sort_shared(K *keys, u32 *places) {
    for (int size = 2; size <= P; size <<= 1)
        for (int step = size >> 1; step > 0; step >>= 1) {
            __syncthreads();
            for (int t = threadIdx.x; t < P / 2; t += THREADS) {
                int i = 2 * t - (t & (step - 1)), j = i + step;
                bool up = (i & size) == 0;
                if (less(keys[j], places[j], keys[i], places[i]) == up) {
                    K k = keys[i];
                    keys[i] = keys[j], keys[j] = k;
                    u32 p = places[i];
                    places[i] = places[j], places[j] = p;
                }
            }
        }
    __syncthreads();
}

// Loads P elements from `first` on and sorts them; padding beyond the row comes last.
template <class L, int P, int THREADS, class K>
SC_FN void sort_tile(const typename L::T *row, i64 first, K *keys, u32 *places) {
    for (int t = threadIdx.x; t < P; t += THREADS) {
        bool in = first + t < L::N;
        keys[t] = in ? row_key<L>(row, first + t) : (K)~(K)0;
        places[t] = in ? (u32)(first + t) : 0xffffffffu;
    }
    sort_shared<P, THREADS>(keys, places);
}

template <class L> SC_FN void emit(const typename L::T *row, void *pv, void *pp, i64 line, i64 i, u32 place) {
    ((typename L::T *)pv)[L::v_line(line) + i * L::v_step] = row[place * L::x_step];
    ((i64 *)pp)[L::p_line(line) + i * L::p_step] = place;
}

template <class L, int P, int THREADS> SC_FN void sort_rows(const void *px, void *pv, void *pp) {
    typedef typename Key<typename L::T>::K K;
    __shared__ K keys[P];
    __shared__ u32 places[P];
    const typename L::T *row = (const typename L::T *)px + L::x_line(blockIdx.x);
    sort_tile<L, P, THREADS>(row, 0, keys, places);
    for (i64 i = threadIdx.x; i < L::COUNT; i += THREADS) emit<L>(row, pv, pp, blockIdx.x, i, places[i]);
}

// Sorts tiles of P elements to `keys` and `places` in memory.
template <class L, int P, int THREADS> SC_FN void sort_tiles(const void *px, void *pk, void *pi) {
    typedef typename Key<typename L::T>::K K;
    __shared__ K keys[P];
    __shared__ u32 places[P];
    const i64 tiles = (L::N + P - 1) / P, line = blockIdx.x / tiles, first = blockIdx.x % tiles * P;
    const typename L::T *row = (const typename L::T *)px + L::x_line(line);
    sort_tile<L, P, THREADS>(row, first, keys, places);
    for (int t = threadIdx.x; t < P; t += THREADS)
        if (first + t < L::N) {
            ((K *)pk)[line * L::N + first + t] = keys[t];
            ((u32 *)pi)[line * L::N + first + t] = places[t];
        }
}

// One pass: each pair moves to its index in its own run plus the number of smaller pairs in the other run.
template <class L> SC_FN void merge_runs(const void *pk, const void *pi, void *qk, void *qi, u64 width) {
    typedef typename Key<typename L::T>::K K;
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= L::N * L::LINES) return;
    const i64 line = at / L::N, i = at % L::N;
    const K *keys = (const K *)pk + line * L::N;
    const u32 *places = (const u32 *)pi + line * L::N;
    const i64 run = i / (i64)width, start = (run ^ 1) * (i64)width;
    i64 low = start < L::N ? start : L::N, high = low + (i64)width < L::N ? low + (i64)width : L::N;
    const i64 base = low;
    const K k = keys[i];
    const u32 place = places[i];
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (less(keys[middle], places[middle], k, place)) low = middle + 1;
        else high = middle;
    }
    const i64 to = line * L::N + (run & ~1ll) * (i64)width + (i - run * (i64)width) + (low - base);
    ((K *)qk)[to] = k;
    ((u32 *)qi)[to] = place;
}

template <class L> SC_FN void emit_rows(const void *px, const void *pi, void *pv, void *pp) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= L::COUNT * L::LINES) return;
    const i64 line = at / L::COUNT, i = at % L::COUNT;
    const typename L::T *row = (const typename L::T *)px + L::x_line(line);
    emit<L>(row, pv, pp, line, i, ((const u32 *)pi)[line * L::N + i]);
}

} // namespace sc
