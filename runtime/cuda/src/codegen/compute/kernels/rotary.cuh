// Rotary position embeddings.
//
// A layout `L` gives the types X of elements and C of cosines and sines, the type I of positions, the number
// of rows ROWS, of their elements E and of rotated elements WIDTH, whether pairs are neighbours (INTERLEAVED)
// or half of WIDTH apart, whether there is a cosine per element (EACH) or per pair, the access width V, the
// offsets of rows, and the steps between elements of a row, which are 1 if V is more. A thread rotates V
// pairs, which it reads before it writes, or moves V elements of the rest: a result may be in place of its
// operand.

namespace sc {

// x * c + y * s, with products and the sum rounded to the dtype of the cosines.
template <class T, class C> SC_FN C turned(C x, C c, C y, C s) {
    C a = get(Put<T>::of(b_mul(x, c))), b = get(Put<T>::of(b_mul(y, s)));
    return get(Put<T>::of(b_add(a, b)));
}

// Block `block` of `blocks`, of `threads` threads each.
template <class L> SC_FN void turn(const void *x, const void *c, const void *s, void *r, u32 block, u32 blocks, u32 threads) {
    typedef typename L::X X;
    typedef typename L::C T;
    typedef typename Computed<T>::C C;
    typedef typename L::I I;
    const int V = L::V;
    const I PAIRS = L::WIDTH / 2 / V, ITEMS = PAIRS + (L::E - L::WIDTH) / V;
    for (I i = (I)block * threads + threadIdx.x; i < L::ROWS * ITEMS; i += (I)blocks * threads) {
        const I row = i / ITEMS, item = i % ITEMS;
        const X *from = (const X *)x + L::x_row(row);
        X *to = (X *)r + L::r_row(row);
        if (item >= PAIRS) {
            const i64 k = L::WIDTH + (i64)(item - PAIRS) * V;
            Few<X, V> rest;
            read<X, V>(rest, from + k * L::x_step);
            write<X, V>(to + k * L::r_step, rest);
            continue;
        }
        // Two accesses load the pairs, and one or two their cosines.
        const i64 first = (i64)item * V * (L::INTERLEAVED ? 2 : 1);
        const i64 second = first + (L::INTERLEAVED ? V : L::WIDTH / 2);
        const i64 low = L::EACH ? first : (i64)item * V, high = L::EACH ? second : low;
        const T *cosines = (const T *)c + L::c_row(row), *sines = (const T *)s + L::s_row(row);
        Few<X, V> own[2], out[2];
        Few<T, V> cs[2], ss[2];
        read<X, V>(own[0], from + first * L::x_step);
        read<X, V>(own[1], from + second * L::x_step);
        read<T, V>(cs[0], cosines + low * L::c_step);
        read<T, V>(ss[0], sines + low * L::s_step);
        read<T, V>(cs[1], cosines + high * L::c_step);
        read<T, V>(ss[1], sines + high * L::s_step);
#pragma unroll
        for (int j = 0; j < V; j++) {
            // The places of the pair among 2 V elements, and the places of its cosines.
            const int p = L::INTERLEAVED ? 2 * j : j, q = L::INTERLEAVED ? 2 * j + 1 : V + j;
            const int m = L::EACH ? p : j, n = L::EACH ? q : j;
            const C a = (C)get(own[p / V].e[p % V]), b = (C)get(own[q / V].e[q % V]);
            const C left = turned<T, C>(a, get(cs[m / V].e[m % V]), -b, get(ss[m / V].e[m % V]));
            const C right = turned<T, C>(b, get(cs[n / V].e[n % V]), a, get(ss[n / V].e[n % V]));
            out[p / V].e[p % V] = Put<X>::of(left);
            out[q / V].e[q % V] = Put<X>::of(right);
        }
        write<X, V>(to + first * L::r_step, out[0]);
        write<X, V>(to + second * L::r_step, out[1]);
    }
}

// Rotates a pair of a row of a matrix whose columns are heads; its sums are rounded first. `L` gives the
// offsets of rows and heads of the operands and the result; the widths are those of heads.
template <class L> SC_FN void turn_pair(const void *c, const void *s, void *r, i64 row, i64 pair, const float *sums) {
    typedef typename L::X X;
    typedef typename L::C T;
    typedef typename Computed<T>::C C;
    const u32 PAIRS = L::WIDTH / 2, head = (u32)pair / PAIRS, j = (u32)pair % PAIRS;
    const i64 first = L::INTERLEAVED ? 2 * j : j, second = first + (L::INTERLEAVED ? 1 : PAIRS);
    const i64 low = L::EACH ? first : j, high = L::EACH ? second : j;
    const T *cosines = (const T *)c + L::c_row(row) + L::c_head(head), *sines = (const T *)s + L::s_row(row) + L::s_head(head);
    X *to = (X *)r + L::r_row(row) + L::r_head(head);
    const C a = (C)get(Put<X>::of(sums[0])), b = (C)get(Put<X>::of(sums[1]));
    to[first * L::r_step] = Put<X>::of(turned<T, C>(a, get(cosines[low * L::c_step]), -b, get(sines[low * L::s_step])));
    to[second * L::r_step] = Put<X>::of(turned<T, C>(b, get(cosines[high * L::c_step]), a, get(sines[high * L::s_step])));
}

} // namespace sc
