// What CUDA C without headers has no words for: machine instructions. Tests put the host's own words in place
// of this file.

namespace sc {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define SC_FN static __device__ __forceinline__

SC_FN float f16_to_float(u16 x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
    return r;
}
SC_FN u16 float_to_f16(float x) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
SC_FN u16 float_to_bf16(float x) {
    u16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
// Two floats as neighbours.
SC_FN u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
SC_FN u32 pack_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// 2^x to 2 units in the last place; what is too small for a float of full precision is 0.
SC_FN float power_of_two(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Stores two words at once.
SC_FN void store_pair(void *to, u64 low, u64 high) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}

// c += a b for a [16, 16], b [16, 8] and c [16, 8], spread over a warp.
SC_FN void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
SC_FN void multiply_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 by 8, transposed; lane 8i + j names row j of matrix i in shared memory.
SC_FN void load_transposed(u32 (&out)[4], const u16 *row) {
    asm volatile("{ .reg .u64 a; cvta.to.shared.u64 a, %4; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [a]; }"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "l"(row)
                 : "memory");
}

// Starts to copy 16 bytes to shared memory, or zeros; both are aligned to 16.
SC_FN u32 in_shared(const void *at) { return (u32)__cvta_generic_to_shared(at); }
SC_FN void copy_async(void *to, const void *from, bool in) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(to)), "l"(from), "r"(in ? 16 : 0)
                 : "memory");
}

// Ends a group of copies of this thread.
SC_FN void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups of this thread have come but the last COUNT.
template <int COUNT> SC_FN void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory"); }

// Barriers in shared memory.
SC_FN void barrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(in_shared(barrier)), "r"(arrivals) : "memory");
}
SC_FN void barrier_arrive(u64 *barrier) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(in_shared(barrier)) : "memory");
}
// Waits for the end of the phase of this parity.
SC_FN void barrier_wait(u64 *barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile(
#if __CUDA_ARCH__ >= 900
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
            : "=r"(done)
            : "r"(in_shared(barrier)), "r"(parity)
            : "memory");
}

// Four matrices of 8 by 8; lane 8i + j names row j of matrix i in shared memory.
SC_FN void load_matrices(u32 (&out)[4], const u16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(in_shared(row))
                 : "memory");
}

// The blocks of a cluster; no cluster is launched where there are none.
SC_FN u32 cluster_block() {
    u32 r = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
    return r;
}
// Waits for all threads of the cluster; what they wrote to shared memory before can be read.
SC_FN void cluster_meet() {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// What lies in this place in the shared memory of a block of the cluster.
SC_FN float in_cluster(const float *at, u32 block) {
#if __CUDA_ARCH__ >= 900
    u32 there;
    float r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(in_shared(at)), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(r) : "r"(there) : "memory");
    return r;
#else
    return *at;
#endif
}

// The shared memory that a launch asks for. Its banks give 128 bytes at once: copies of 128 bytes take longer where they
// cross a multiple of that.
SC_FN double *dynamic_shared() {
    extern __shared__ __align__(128) double shared[];
    return shared;
}

} // namespace sc
