// Replaces device.cu and CUDA C on the host: one host thread per kernel thread, with real atomics.

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)

struct Dim {
    unsigned x;
};
static thread_local Dim threadIdx, blockIdx, gridDim, blockDim;

/// Eight threads that store and load lines together.
struct Eight {
    std::barrier<> here{8};
    std::atomic<bool> all{true};
    std::atomic<uint32_t> flag{0};
};

struct Block {
    std::barrier<> here;
    std::atomic<bool> all;
    std::vector<float> parts;
    std::vector<Eight> eights;
};
static thread_local Block* block;

static void __syncthreads() {
    block->here.arrive_and_wait();
}
static bool __syncthreads_and(bool value) {
    if (!value) block->all = false;
    __syncthreads();
    const bool all = block->all;
    __syncthreads();
    return all;
}
static void __threadfence_system() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

namespace symmc_peer {

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(16) Wide {
    u64 low, high;
};

inline u64 load_acquire(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_release(u64* at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline void store_release_here(u64* at, u64 value) { store_release(at, value); }
// A kernel boundary orders earlier work; with host threads, the store must do so.
inline void store_relaxed(u64* at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline u32 look(const u32* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline void mark(u32* at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline bool claim(u32* at) {
    u32 none = 0;
    return __atomic_compare_exchange_n(at, &none, 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
inline void store_ll(u64 at, Wide value) {
    __atomic_store_n((u64*)at + 1, value.high, __ATOMIC_RELEASE);
    __atomic_store_n((u64*)at, value.low, __ATOMIC_RELEASE);
}
inline Wide load_ll(u64 at) {
    const u64 low = __atomic_load_n((const u64*)at, __ATOMIC_ACQUIRE);
    return Wide{low, __atomic_load_n((const u64*)at + 1, __ATOMIC_ACQUIRE)};
}
// A line becomes visible as a whole: the flag is stored after the other threads have stored, and loaded before they
// load.
inline Eight& eight() { return block->eights[threadIdx.x / 8]; }
inline void store_ll128(u64 at, Wide value) {
    const bool last = threadIdx.x % 8 == 7;
    if (!last) __atomic_store_n((u64*)at + 1, value.high, __ATOMIC_RELAXED);
    __atomic_store_n((u64*)at, value.low, __ATOMIC_RELAXED);
    eight().here.arrive_and_wait();
    if (last) __atomic_store_n((u64*)at + 1, value.high, __ATOMIC_RELEASE);
}
inline Wide load_ll128(u64 at) {
    Wide value{0, 0};
    if (threadIdx.x % 8 == 7) value.high = __atomic_load_n((const u64*)at + 1, __ATOMIC_ACQUIRE);
    eight().here.arrive_and_wait();
    if (threadIdx.x % 8 != 7) value.high = __atomic_load_n((const u64*)at + 1, __ATOMIC_RELAXED);
    value.low = __atomic_load_n((const u64*)at, __ATOMIC_RELAXED);
    return value;
}
inline u32 ll128_flag(const Wide& value) {
    if (threadIdx.x % 8 == 7) eight().flag = value.high >> 32;
    eight().here.arrive_and_wait();
    const u32 flag = eight().flag;
    eight().here.arrive_and_wait();
    return flag;
}
inline bool ll128_all(bool holds) {
    if (!holds) eight().all = false;
    eight().here.arrive_and_wait();
    const bool all = eight().all;
    eight().here.arrive_and_wait();
    return all;
}
inline u64 load_word(u64 at) { return *(const u64*)at; }
inline Wide load_wide(u64 at) { return *(const Wide*)at; }
inline void store_wide(u64 at, Wide value) { *(Wide*)at = value; }
inline u64 nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}
inline void sleep_ns(u32 time) { std::this_thread::sleep_for(std::chrono::nanoseconds(time)); }
inline void pause() { std::this_thread::yield(); }

template <class To, class From>
inline To bits_as(From x) {
    To out;
    std::memcpy(&out, &x, sizeof(To));
    return out;
}
inline float plus_rounded(float x, float y) { return x + y; }
inline double plus_rounded(double x, double y) { return x + y; }
inline float times_rounded(float x, float y) { return x * y; }
inline double times_rounded(double x, double y) { return x * y; }
inline float of_bits(u32 bits) { return bits_as<float>(bits); }
inline float of_half(u16 bits) { return (float)bits_as<_Float16>(bits); }
inline u16 to_half(float x) { return bits_as<u16>((_Float16)x); }
inline u16 to_bfloat(float x) {
    const u32 bits = bits_as<u32>(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 to_halves(float a, float b) { return to_half(a) | (u32)to_half(b) << 16; }
inline u32 to_bfloats(float a, float b) { return to_bfloat(a) | (u32)to_bfloat(b) << 16; }

inline float block_sum(float x, u32) {
    block->parts[threadIdx.x] = x;
    __syncthreads();
    float sum = 0;
    for (float part : block->parts) sum += part;
    __syncthreads();
    return sum;
}

}  // namespace symmc_peer

// ---------------------------------------------------------------- after the kernels

/// Runs a kernel with this many blocks and threads. The threads start in turn, each time with another block.
extern "C" void emulate(void (*kernel)(const void*, const void*), const void* params, const void* beside, unsigned blocks,
                        unsigned threads) {
    using namespace symmc_peer;
    std::vector<Block*> all;
    std::vector<std::thread> running;
    for (unsigned b = 0; b < blocks; b++) all.push_back(new Block{std::barrier<>(threads), true, std::vector<float>(threads), std::vector<Eight>(threads / 8)});
    static std::atomic<unsigned> runs{0};
    const unsigned first = runs++ % blocks * threads;
    for (unsigned k = 0; k < blocks * threads; k++) {
        const unsigned i = (first + k) % (blocks * threads);
        running.emplace_back([=] {
            threadIdx.x = i % threads;
            blockIdx.x = i / threads;
            gridDim.x = blocks;
            blockDim.x = threads;
            block = all[i / threads];
            kernel(params, beside);
        });
    }
    for (auto& thread : running) thread.join();
    for (Block* b : all) delete b;
}
