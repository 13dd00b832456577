// Parts of kernels whose warps compute a short row each: selections, softmax and reductions along the lines of a
// row. A line is a run of elements along the last axis. Many lines have a thread each; few have all threads of
// the warp, one line after another.

namespace sc {

// Whether a thread computes whole lines.
template <int LINES> struct Lines { static const bool APART = LINES >= 8; };

// Calls put(line, j, k) for the j-th of the COUNT first elements of each line, at k. `key` gives unsigned keys.
template <int N, int LINES, int COUNT, class X, class P> SC_FN void select_lines(u32 lane, X key, P put) {
    typedef decltype(key(0, 0)) K;
    if (Lines<LINES>::APART) {
        for (int line = lane; line < LINES; line += 32) {
            K last = 0;
            int at = -1;
            for (int j = 0; j < COUNT; j++) {
                K best = 0;
                int found = -1;
                for (int k = 0; k < N; k++) {
                    K c = key(line, k);
                    bool left = at < 0 || less(last, (u32)at, c, (u32)k);
                    if (left && (found < 0 || less(c, (u32)k, best, (u32)found))) best = c, found = k;
                }
                put(line, j, found);
                last = best, at = found;
            }
        }
        return;
    }
    for (int line = 0; line < LINES; line++) {
        K own[(N + 31) / 32], last = 0;
        u32 at = 0;
#pragma unroll
        for (int i = 0; i < (N + 31) / 32; i++) {
            int k = i * 32 + lane;
            own[i] = k < N ? key(line, k) : (K)~(K)0;
        }
        for (int j = 0; j < COUNT; j++) {
            K best = (K)~(K)0;
            u32 found = 0xffffffffu;
#pragma unroll
            for (int i = 0; i < (N + 31) / 32; i++) {
                u32 k = i * 32 + lane;
                bool left = k < N && (j == 0 || less(last, at, own[i], k));
                if (left && less(own[i], k, best, found)) best = own[i], found = k;
            }
            for (int m = 16; m > 0; m >>= 1) {
                K other = warp_shuffle(best, m);
                u32 place = warp_shuffle(found, m);
                if (less(other, place, best, found)) best = other, found = place;
            }
            if (lane == j % 32) put(line, j, (int)found);
            last = best, at = found;
        }
    }
}

// Combines f(line, k) of a line; all threads that compute the line get the result.
template <class Op, int N, int LINES, class A, class F> SC_FN A join_line(u32 lane, int line, F f) {
    const bool apart = Lines<LINES>::APART;
    A a = Op::template start<A>();
    for (int k = apart ? 0 : lane; k < N; k += apart ? 1 : 32) join_onto<Op>(a, f(line, k));
    return apart ? a : group_join<Op, 32>(a);
}

// Calls f(line) for each line, by the threads that compute it.
template <int LINES, class F> SC_FN void each_line(u32 lane, F f) {
    const bool apart = Lines<LINES>::APART;
    for (int line = apart ? lane : 0; line < LINES; line += apart ? 32 : 1) f(line);
}

// Calls put(line, a) with the combination of each line.
template <class Op, int N, int LINES, class A, class X, class P> SC_FN void reduce_lines(u32 lane, X x, P put) {
    each_line<LINES>(lane, [&](int line) {
        A a = join_line<Op, N, LINES, A>(lane, line, x);
        if (Lines<LINES>::APART || lane == 0) put(line, a);
    });
}

// Calls put(line, k, y) with the softmax of each line, or its logarithm.
template <bool LOG, int N, int LINES, class C, class X, class P> SC_FN void softmax_lines(u32 lane, X x, P put) {
    const bool apart = Lines<LINES>::APART;
    each_line<LINES>(lane, [&](int line) {
        C max = join_line<Max, N, LINES, C>(lane, line, x);
        if (LOG) {
            double sum = join_line<Sum, N, LINES, double>(lane, line, [&](int l, int k) { return (double)u_exp(x(l, k) - max); });
            C shift = (C)u_log(sum);
            for (int k = apart ? 0 : lane; k < N; k += apart ? 1 : 32) put(line, k, x(line, k) - max - shift);
        } else {
            C scale = 1 / join_line<Sum, N, LINES, C>(lane, line, [&](int l, int k) { return u_exp(x(l, k) - max); });
            for (int k = apart ? 0 : lane; k < N; k += apart ? 1 : 32) put(line, k, u_exp(x(line, k) - max) * scale);
        }
    });
}

} // namespace sc
