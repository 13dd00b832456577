// Stands in for ptx.cuh and CUDA C: the threads of a block are contexts of one thread of the host, which run
// in turn and wait for each other at barriers and at exchanges within a warp; so are those of the blocks of a cluster.
// Clusters run one after another. Blocks of one have dynamic shared memory of their own, but no other.
// A context is begun by setcontext and left and resumed by jumps: swapcontext asks the system for the signal mask each time, which
// would take most of the time.

// A checked longjmp refuses to leave for another stack.
#undef _FORTIFY_SOURCE

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <setjmp.h>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(threads)
#define __grid_constant__
#define __shared__ static
#define volatile
inline void __threadfence() {}

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
struct Dim { unsigned x; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {

// A thread that yields goes on by itself; the others with their warp, block or cluster.
enum Waits { RUNS, YIELDS, WARP, BLOCK, CLUSTER, ENDED };
struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    Waits waits;
    // Where it waits, once it has begun.
    jmp_buf place;
    bool begun;
};
static std::vector<std::unique_ptr<Thread>> threads;
static jmp_buf scheduler;
// The thread that runs, of all of the cluster; the first block of the cluster.
static unsigned own, cluster0;
static std::function<void()> body;
// Whether somebody may wait for nothing any more.
static bool moved;

__attribute__((noinline)) void wait(Waits what) {
    threads[own]->waits = what;
    if (!_setjmp(threads[own]->place)) _longjmp(scheduler, 1);
}
// Runs a thread until it waits.
__attribute__((noinline)) void resume(Thread &t) {
    if (_setjmp(scheduler)) return;
    if (t.begun) _longjmp(t.place, 1);
    t.begun = true;
    setcontext(&t.context);
}
inline void start() {
    body();
    wait(ENDED);
}

// Lets threads go on whose warp, or whose block, has arrived as a whole.
inline void release(unsigned first, unsigned end, Waits what) {
    for (unsigned i = first; i < end; i++)
        if (threads[i]->waits != what && threads[i]->waits != ENDED) return;
    for (unsigned i = first; i < end; i++)
        if (threads[i]->waits == what) threads[i]->waits = RUNS;
}

inline void cluster(unsigned blocks, unsigned block) {
    const unsigned count = blocks * block;
    while (threads.size() < count) {
        threads.push_back(std::make_unique<Thread>());
        threads.back()->stack.resize(64 << 10);
    }
    for (unsigned i = 0; i < count; i++) {
        Thread &t = *threads[i];
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.data();
        t.context.uc_stack.ss_size = t.stack.size();
        t.context.uc_link = nullptr;
        makecontext(&t.context, start, 0);
        t.waits = RUNS;
        t.begun = false;
    }
    for (;;) {
        bool ran = false, live = false;
        moved = false;
        for (unsigned i = 0; i < count; i++)
            if (threads[i]->waits <= YIELDS) {
                const bool ready = threads[i]->waits == RUNS;
                threads[i]->waits = RUNS;
                own = i, threadIdx.x = i % block, blockIdx.x = cluster0 + i / block;
                resume(*threads[i]);
                ran = ran || ready || threads[i]->waits != YIELDS;
            }
        for (unsigned w = 0; w < count; w += 32) release(w, w + 32 < count ? w + 32 : count, WARP);
        for (unsigned b = 0; b < count; b += block) release(b, b + block, BLOCK);
        release(0, count, CLUSTER);
        for (unsigned i = 0; i < count; i++) live = live || threads[i]->waits != ENDED;
        if (!live) return;
        if (!ran && !moved) {
            fprintf(stderr, "the threads of a cluster wait for each other\n");
            abort();
        }
    }
}

template <class... P, size_t... I>
void launch(void (*kernel)(P...), const unsigned long long *const *params, unsigned grid, unsigned threads, unsigned blocks, std::index_sequence<I...>) {
    std::tuple<P...> args;
    (memcpy(&std::get<I>(args), params[I], sizeof(P)), ...);
    body = [&] { std::apply(kernel, args); };
    gridDim.x = grid, blockDim.x = threads;
    for (cluster0 = 0; cluster0 < grid; cluster0 += blocks) cluster(blocks, threads);
}
template <class... P> void launch(void (*kernel)(P...), const unsigned long long *const *params, unsigned grid, unsigned threads, unsigned blocks) {
    launch(kernel, params, grid, threads, blocks, std::make_index_sequence<sizeof...(P)>());
}

// What each thread of a cluster shows to its warp.
struct Shown { unsigned long long words[4]; };
static Shown shown[8 * 1024];
template <class A> A at_lane(A value, unsigned thread) {
    memcpy(&shown[own], &value, sizeof(A));
    wait(WARP);
    A other;
    memcpy(&other, &shown[thread], sizeof(A));
    wait(WARP);
    return other;
}
template <class To, class From> To bits(From x) {
    To y;
    memcpy(&y, &x, sizeof(To));
    return y;
}
inline long long to_int(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return 0x7fffffffffffffffll;
    return x < -9223372036854775808.0 ? -0x7fffffffffffffffll - 1 : (long long)x;
}

} // namespace emulate

inline void __syncwarp() { emulate::wait(emulate::WARP); }
inline void __syncthreads() { emulate::wait(emulate::BLOCK); }
inline int __syncthreads_or(int x) {
    emulate::shown[emulate::own].words[0] = x != 0;
    emulate::wait(emulate::BLOCK);
    const unsigned first = emulate::own / blockDim.x * blockDim.x;
    int any = 0;
    for (unsigned i = 0; i < blockDim.x; i++) any |= (int)emulate::shown[first + i].words[0];
    emulate::wait(emulate::BLOCK);
    return any;
}
template <class A> A __shfl_xor_sync(unsigned, A x, int mask) { return emulate::at_lane(x, emulate::own ^ mask); }
template <class A> A __shfl_sync(unsigned, A x, int lane) { return emulate::at_lane(x, emulate::own / 32 * 32 + lane % 32); }
template <class A> A __shfl_up_sync(unsigned, A x, unsigned by) {
    return emulate::at_lane(x, emulate::own % 32 >= by ? emulate::own - by : emulate::own);
}
inline unsigned __ballot_sync(unsigned, bool x) {
    emulate::shown[emulate::own].words[0] = x;
    emulate::wait(emulate::WARP);
    unsigned all = 0;
    for (unsigned i = 0; i < 32; i++) all |= (unsigned)emulate::shown[emulate::own / 32 * 32 + i].words[0] << i;
    emulate::wait(emulate::WARP);
    return all;
}
// Threads take turns only where they wait.
inline unsigned atomicAdd(unsigned *at, unsigned x) { return (*at += x) - x; }
inline unsigned atomicMin(unsigned *at, unsigned x) {
    const unsigned before = *at;
    if (x < before) *at = x;
    return before;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __uint_as_float(unsigned x) { return emulate::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulate::bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emulate::bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulate::bits<long long>(x); }
inline float __double2float_rn(double x) { return (float)x; }
inline long long __float2ll_rz(float x) { return emulate::to_int(x); }
inline long long __double2ll_rz(double x) { return emulate::to_int(x); }
inline float __ll2float_rn(long long x) { return (float)x; }
inline double __ll2double_rn(long long x) { return (double)x; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
// The reciprocal of what is beyond 2^126 is 0.
inline float __fdividef(float a, float b) { return fabsf(b) > 0x1p126f ? a * copysignf(0.0f, b) : a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }

namespace sc {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define SC_FN static inline

SC_FN float f16_to_float(u16 x) {
    const int exponent = x >> 10 & 31, mantissa = x & 1023;
    const float magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                            : exponent ? ldexpf(1024 + mantissa, exponent - 25) : ldexpf(mantissa, -24);
    return x >> 15 ? -magnitude : magnitude;
}
SC_FN u16 float_to_f16(float x) {
    const u16 sign = __float_as_uint(x) >> 16 & 0x8000;
    const float a = fabsf(x);
    if (x != x) return 0x7fff;
    if (a >= 65520) return sign | 0x7c00;
    if (a < ldexpf(1, -14)) return sign | (u16)rintf(ldexpf(a, 24));
    int exponent;
    const float mantissa = rintf(ldexpf(frexpf(a, &exponent), 11));
    // A mantissa that rounds up to the next power of two carries into the exponent.
    return sign | (u16)(((exponent + 13) << 10) + (int)mantissa);
}
SC_FN u16 float_to_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
SC_FN u32 pack_bf16(float low, float high) { return float_to_bf16(low) | (u32)float_to_bf16(high) << 16; }
SC_FN u32 pack_f16(float low, float high) { return float_to_f16(low) | (u32)float_to_f16(high) << 16; }
SC_FN float power_of_two(float x) { return exp2f(x); }
SC_FN void store_pair(void *to, u64 low, u64 high) {
    ((u64 *)to)[0] = low;
    ((u64 *)to)[1] = high;
}
SC_FN void cp_async(void *to, const void *from, bool in) {
    if ((u64)to % 16 || (u64)from % 16) {
        fprintf(stderr, "a copy is not aligned to 16 bytes\n");
        abort();
    }
    if (in) memcpy(to, from, 16);
    else memset(to, 0, 16);
}
// Copies are done at once.
SC_FN void cp_async_commit() {}
template <int COUNT> void cp_async_wait() {}
// Arrivals and bytes that a phase of a barrier waits for.
struct Barrier { u8 missing, arrivals, phase; int bytes; };
SC_FN void mbarrier_init(u64 *barrier, u32 arrivals) { *(Barrier *)barrier = {(u8)arrivals, (u8)arrivals, 0, 0}; }
SC_FN void barrier_count(u64 *barrier, int arrivals, int bytes) {
    Barrier *b = (Barrier *)barrier;
    emulate::moved = true;
    b->missing -= arrivals, b->bytes += bytes;
    if (b->missing == 0 && b->bytes == 0) b->missing = b->arrivals, b->phase ^= 1;
}
SC_FN void mbarrier_arrive(u64 *barrier) { barrier_count(barrier, 1, 0); }
SC_FN void mbarrier_expect_tx(u64 *barrier, u32 bytes) { barrier_count(barrier, 1, bytes); }
SC_FN void fence_mbarrier_init() {}
SC_FN void mbarrier_wait(u64 *barrier, u32 parity) {
    while (((Barrier *)barrier)->phase == parity) emulate::wait(emulate::YIELDS);
}
SC_FN void mbarrier_wait_cluster(u64 *barrier, u32 parity) { mbarrier_wait(barrier, parity); }
SC_FN void load_rows(const u16 *(&rows)[32], const u16 *row) {
    if ((u64)row % 16) {
        fprintf(stderr, "a row of a matrix is not aligned to 16 bytes\n");
        abort();
    }
    const u32 warp = emulate::own - emulate::own % 32;
    memcpy(&emulate::shown[emulate::own], &row, sizeof row);
    emulate::wait(emulate::WARP);
    for (u32 i = 0; i < 32; i++) memcpy(&rows[i], &emulate::shown[warp + i], sizeof row);
    emulate::wait(emulate::WARP);
}
SC_FN void ldmatrix(u32 (&out)[4], const u16 *row) {
    const u32 lane = emulate::own % 32;
    const u16 *rows[32];
    load_rows(rows, row);
    for (u32 m = 0; m < 4; m++) memcpy(&out[m], rows[m * 8 + lane / 4] + lane % 4 * 2, 4);
}
// Of each block of a cluster.
alignas(1024) static u8 dynamic[8][232 << 10];
SC_FN u32 cluster_rank() { return blockIdx.x - emulate::cluster0; }
SC_FN double *dynamic_shared() { return (double *)dynamic[cluster_rank()]; }
SC_FN u8 *aligned_shared() { return dynamic[cluster_rank()]; }
SC_FN void cluster_arrive() {}
SC_FN void cluster_wait() { emulate::wait(emulate::CLUSTER); }
SC_FN u32 mapa(const void *at, u32 block) { return dynamic[block] + ((const u8 *)at - dynamic[cluster_rank()]) - dynamic[0]; }
SC_FN void cluster_sync() { emulate::wait(emulate::CLUSTER); }
SC_FN float ld_shared(u32 at) {
    float x;
    memcpy(&x, dynamic[0] + at, sizeof x);
    return x;
}
SC_FN void st_async(u32 to, float4 x, u32 barrier) {
    memcpy(dynamic[0] + to, &x, sizeof x);
    barrier_count((u64 *)(dynamic[0] + barrier), 0, -(int)sizeof x);
}

// As tensor_map.rs describes a matrix.
struct TensorMap { u64 at, rows, columns, step, box_rows, planes, plane_step; };
// Where a byte of a box lies: pieces of 16 change places by the number of the row, of 128 bytes.
SC_FN u64 swizzled(u64 at) { return at ^ (at >> 7 & 7) << 4; }
SC_FN void tma_load(void *to, const TensorMap &map, int term, int row, u64 *barrier) {
    if ((u64)to % 1024 || map.at % 16 || map.step % 16) {
        fprintf(stderr, "a box, or its matrix, is not aligned\n");
        abort();
    }
    for (u64 r = 0; r < map.box_rows; r++)
        for (u64 c = 0; c < 64; c++) {
            const bool in = row + r < map.rows && term + c < map.columns;
            const u16 x = in ? ((const u16 *)(map.at + (row + r) * map.step))[term + c] : 0;
            memcpy((void *)swizzled((u64)to + r * 128 + c * 2), &x, 2);
        }
    barrier_count(barrier, 0, -(int)(map.box_rows * 128));
}
SC_FN TensorMap plane_of(const TensorMap &map, int plane) {
    if (plane < 0 || (u64)plane >= map.planes || map.plane_step % 16) {
        fprintf(stderr, "a map has no plane %d, or planes that are not aligned\n", plane);
        abort();
    }
    return {map.at + plane * map.plane_step, map.rows, map.columns, map.step, map.box_rows, 0, 0};
}
SC_FN void tma_load_plane(void *to, const TensorMap &map, int term, int row, int plane, u64 *barrier) {
    tma_load(to, plane_of(map, plane), term, row, barrier);
}
SC_FN void tma_store_plane(const TensorMap &all, const void *from, int term, int row, int plane) {
    const TensorMap map = plane_of(all, plane);
    if ((u64)from % 1024 || map.at % 16 || map.step % 16) {
        fprintf(stderr, "a box, or its matrix, is not aligned\n");
        abort();
    }
    for (u64 r = 0; r < map.box_rows && row + r < map.rows; r++)
        for (u64 c = 0; c < 64 && term + c < map.columns; c++)
            ((u16 *)(map.at + (row + r) * map.step))[term + c] = *(const u16 *)swizzled((u64)from + r * 128 + c * 2);
}
SC_FN void tma_store_commit() {}
SC_FN void tma_store_wait_read() {}
SC_FN void tma_store_wait() {}
SC_FN void fence_proxy_async() {}
template <int COUNT> void registers_lower() {}
template <int COUNT> void registers_raise() {}
SC_FN void stmatrix(u16 *row, const u32 (&x)[4]) {
    const u32 lane = emulate::own % 32;
    const u16 *rows[32];
    load_rows(rows, row);
    for (u32 m = 0; m < 4; m++) memcpy((u16 *)rows[m * 8 + lane / 4] + lane % 4 * 2, &x[m], 4);
}
// In units of 16 bytes, and from bit 44 on the step between boxes of lines, or 0 if terms are adjacent.
SC_FN u64 wgmma_descriptor(const void *at) { return (u64)at / 16; }
SC_FN u64 wgmma_descriptor_across(const void *at, u32 step) { return (u64)at / 16 | (u64)(step / 16) << 44; }
SC_FN void wgmma_fence() {}
SC_FN void wgmma_commit() {}
template <int COUNT> void wgmma_wait() {}
SC_FN void fence_operand(float (&)[4]) {}
// As `multiply` below spreads sums, over the four warps of a group.
template <class T, int TILE_N> void multiply_group(float (&c)[TILE_N / 8][4], u64 rows, u64 lines, int more) {
    const auto terms = [](u64 descriptor, u32 row, float *out) {
        const u64 at = (descriptor & ((1ull << 44) - 1)) * 16, step = (descriptor >> 44) * 16;
        for (u32 k = 0; k < 16; k++) {
            const u64 offset = step ? row / 64 * step + k * 128 + row % 64 * 2 : row * 128 + k * 2;
            out[k] = get(*(const T *)swizzled(at + offset));
        }
    };
    const u32 thread = threadIdx.x % 128, lane = thread % 32;
    float x[2][16], y[2][16];
    for (u32 h = 0; h < 2; h++) terms(rows, thread / 32 * 16 + lane / 4 + h * 8, x[h]);
    for (u32 e = 0; e < TILE_N / 8; e++) {
        for (u32 h = 0; h < 2; h++) terms(lines, e * 8 + lane % 4 * 2 + h, y[h]);
        for (u32 i = 0; i < 4; i++) {
            double sum = 0;
            for (u32 k = 0; k < 16; k++) sum += (double)x[i / 2][k] * y[i % 2][k];
            c[e][i] = (more ? c[e][i] : 0) + (float)sum;
        }
    }
}
#define SC_WGMMA(T, TILE_N, ...)                                                           \
    SC_FN void wgmma(float (&c)[TILE_N / 8][4], u64 rows, u64 lines, int more) {            \
        multiply_group<T, TILE_N>(c, rows, lines, more);                                           \
    }

SC_FN float bf16_to_float(u16 x) { return __uint_as_float((u32)x << 16); }

// With g = lane / 4 and t = lane % 4: a holds columns 2t, 2t + 1 of rows g and g + 8, then columns 8 further on; b
// rows 2t, 2t + 1, and 8 further on, of column g; c columns 2t, 2t + 1 of rows g and g + 8.
template <float (*VALUE)(u16)> void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    struct Fragments { u32 a[4], b[2]; } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const u32 lane = emulate::own % 32, warp = emulate::own - lane;
    Fragments all[32];
    memcpy(&emulate::shown[emulate::own], &mine, sizeof mine);
    emulate::wait(emulate::WARP);
    for (u32 i = 0; i < 32; i++) memcpy(&all[i], &emulate::shown[warp + i], sizeof mine);
    emulate::wait(emulate::WARP);
    const auto half = [](u32 word, u32 high) { return VALUE((u16)(high ? word >> 16 : word)); };
    for (u32 e = 0; e < 4; e++) {
        const u32 row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        double sum = 0;
        for (u32 k = 0; k < 16; k++) {
            const u32 x = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
            const u32 y = all[column * 4 + k % 8 / 2].b[k / 8];
            sum += (double)half(x, k % 2) * half(y, k % 2);
        }
        c[e] += (float)sum;
    }
}
SC_FN u32 __byte_perm(u32 x, u32 y, u32 selector) {
    const u64 bytes = (u64)y << 32 | x;
    u32 r = 0;
    for (int i = 0; i < 4; i++) r |= (u32)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
SC_FN u32 fma_bf16x2(u32 x, u32 y, u32 z) {
    const auto f = [&](int s) { return bf16_to_float(x >> s) * bf16_to_float(y >> s) + bf16_to_float(z >> s); };
    return pack_bf16(f(0), f(16));
}
SC_FN u32 fma_f16x2(u32 x, u32 y, u32 z) {
    const auto f = [&](int s) { return f16_to_float(x >> s) * f16_to_float(y >> s) + f16_to_float(z >> s); };
    return pack_f16(f(0), f(16));
}
SC_FN void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply<bf16_to_float>(c, a, b0, b1); }
SC_FN void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply<f16_to_float>(c, a, b0, b1); }

SC_FN void ldmatrix_trans(u32 (&out)[4], const u16 *row) {
    const u32 lane = emulate::own % 32;
    const u16 *rows[32];
    load_rows(rows, row);
    for (u32 m = 0; m < 4; m++)
        out[m] = rows[m * 8 + lane % 4 * 2][lane / 4] | (u32)rows[m * 8 + lane % 4 * 2 + 1][lane / 4] << 16;
}

} // namespace sc
