// The device operations of collectives beyond CUDA C: memory operations that reach peers, clocks,
// conversions. A test replaces this file by one for host threads, so the other kernel files contain no
// assembly.

namespace symmc_peer {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

/// 16 bytes that move in one instruction.
struct alignas(16) Wide {
    u64 low, high;
};

__device__ __forceinline__ u64 load_acquire(const u64* at) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ void store_release(u64* at, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// A release that only threads of this device observe.
__device__ __forceinline__ void store_release_here(u64* at, u64 value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed(u64* at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ u32 look(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ void mark(u32* at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/// Whether the caller is the first to claim the word.
__device__ __forceinline__ bool claim(u32* at) {
    return atomicCAS(at, 0u, 1u) == 0u;
}

/// Two words of LL, 8 bytes each, in one instruction. Each word is a single access; the pair need not be.
__device__ __forceinline__ void store_ll(u64 at, Wide value) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(value.low), "l"(value.high)
                 : "memory");
}

__device__ __forceinline__ Wide load_ll(u64 at) {
    Wide value;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(at)
                 : "memory");
    return value;
}

/// The threads of the caller's line of LL128, in its warp.
__device__ __forceinline__ u32 ll128_threads() {
    return 0xffu << (threadIdx.x & 24);
}

#ifdef SYMMC_SPLIT_LL128
/// As below, if links may split a line: the flag is stored after the rest, and read before it.
__device__ __forceinline__ void store_ll128(u64 at, Wide value) {
    const bool last = threadIdx.x % 8 == 7;
    if (!last) store_ll(at, value);
    __syncwarp(ll128_threads());
    if (!last) return;
    __threadfence_system();
    store_ll(at, value);
}

__device__ __forceinline__ Wide load_ll128(u64 at) {
    const bool last = threadIdx.x % 8 == 7;
    Wide value{0, 0};
    if (last) {
        // The flag first, then the adjacent word.
        const u64 flag = load_ll(at).high;
        __threadfence_system();
        value = Wide{load_ll(at).low, flag};
    }
    __syncwarp(ll128_threads());
    return last ? value : load_ll(at);
}
#else
/// 16 bytes of a line of 128 that eight neighbouring threads store in this one instruction. The line leaves
/// the multiprocessor as one request, travels through NVLink as one packet, and is written to the peer's L2
/// cache at once. A reader that sees its flag therefore sees the rest. The architecture does not guarantee
/// this, but the devices behave so, and NCCL's LL128 relies on it too.
__device__ __forceinline__ void store_ll128(u64 at, Wide value) {
    store_ll(at, value);
}

/// This thread's 16 bytes of a line that eight neighbouring threads load in this one instruction.
__device__ __forceinline__ Wide load_ll128(u64 at) {
    return load_ll(at);
}
#endif

/// The flag of a line, after each of its threads has loaded its 16 bytes.
__device__ __forceinline__ u32 ll128_flag(const Wide& value) {
    return __shfl_sync(ll128_threads(), (u32)(value.high >> 32), 7, 8);
}

/// Whether `holds` is true for all threads of the caller's line.
__device__ __forceinline__ bool ll128_all(bool holds) {
    return __all_sync(ll128_threads(), holds);
}

/// Loads 8 bytes that are used once.
__device__ __forceinline__ u64 load_word(u64 at) {
    u64 value;
    asm volatile("ld.global.L1::no_allocate.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

/// Loads 16 bytes that are used once.
__device__ __forceinline__ Wide load_wide(u64 at) {
    Wide value;
    asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(at)
                 : "memory");
    return value;
}

__device__ __forceinline__ void store_wide(u64 at, Wide value) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(value.low), "l"(value.high) : "memory");
}

__device__ __forceinline__ u64 nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__device__ __forceinline__ void sleep_ns(u32 time) {
    __nanosleep(time);
}

/// Pauses between two reads of a word that another thread changes.
__device__ __forceinline__ void pause() {}

__device__ __forceinline__ float of_bits(u32 bits) {
    return __uint_as_float(bits);
}

__device__ __forceinline__ float of_half(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ u16 to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ u16 to_bfloat(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Sums and products that are rounded one by one, never contracted.
__device__ __forceinline__ float plus_rounded(float x, float y) { return __fadd_rn(x, y); }
__device__ __forceinline__ double plus_rounded(double x, double y) { return __dadd_rn(x, y); }
__device__ __forceinline__ float times_rounded(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ double times_rounded(double x, double y) { return __dmul_rn(x, y); }

/// Two elements in one word, the first in the lower half.
__device__ __forceinline__ u32 to_halves(float first, float second) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
}

__device__ __forceinline__ u32 to_bfloats(float first, float second) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
}

/// The sum over the threads of a block of whole warps, returned to all of them. Consecutive calls alternate
/// the parity.
__device__ __forceinline__ float block_sum(float x, u32 parity) {
    __shared__ float parts[2][32];
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    if (threadIdx.x % 32 == 0) parts[parity][threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) sum += parts[parity][warp];
    return sum;
}

}  // namespace symmc_peer
