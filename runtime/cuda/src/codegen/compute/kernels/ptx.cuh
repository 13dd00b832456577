// Machine instructions that CUDA C without headers cannot express. Tests replace this file by host functions.

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
// Packs two floats as adjacent elements.
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
// 2^x to 2 units in the last place; a result below the normal range of float is 0.
// x * y + z of pairs, rounded once.
SC_FN u32 fma_bf16x2(u32 x, u32 y, u32 z) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    return r;
}
SC_FN u32 fma_f16x2(u32 x, u32 y, u32 z) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    return r;
}

SC_FN float power_of_two(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Stores two words in one access.
SC_FN void store_pair(void *to, u64 low, u64 high) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}

// c += a b for a [16, 16], b [16, 8] and c [16, 8], distributed over a warp.
SC_FN void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
SC_FN void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four matrices of 8 by 8, transposed; lane 8i + j addresses row j of matrix i in shared memory.
SC_FN void ldmatrix_trans(u32 (&out)[4], const u16 *row) {
    asm volatile("{ .reg .u64 a; cvta.to.shared.u64 a, %4; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [a]; }"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "l"(row)
                 : "memory");
}

// Starts to copy 16 bytes to shared memory, or zeros; both addresses are aligned to 16.
SC_FN u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }
SC_FN void cp_async(void *to, const void *from, bool in) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(in ? 16 : 0)
                 : "memory");
}

// Commits the copies of this thread as a group.
SC_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups of this thread have arrived, except the last COUNT.
template <int COUNT> SC_FN void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory"); }

// Barriers in shared memory (mbarrier).
SC_FN void mbarrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
SC_FN void mbarrier_arrive(u64 *barrier) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}
// Waits for the end of the phase with this parity.
SC_FN void mbarrier_wait(u64 *barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile(
#if __CUDA_ARCH__ >= 900
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}

// Loads four matrices of 8 by 8; lane 8i + j addresses row j of matrix i in shared memory.
SC_FN void ldmatrix(u32 (&out)[4], const u16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The dynamic shared memory of the launch. Its banks deliver 128 bytes at once: copies of 128 bytes take
// longer if they cross a multiple of that.
SC_FN double *dynamic_shared() {
    extern __shared__ __align__(128) double shared[];
    return shared;
}
// The shared memory from the next multiple of 1024 on.
SC_FN u8 *aligned_shared() {
    u8 *shared = (u8 *)dynamic_shared();
    return shared + (0 - shared_address(shared) & 1023);
}

// The rest needs compute capability 9.0, including its architecture-specific instructions.

// A matrix in memory, as encoded for the TMA (tensor memory accelerator).
struct alignas(64) TensorMap { u64 words[16]; };
// Starts to load by TMA the box of the map's size at this column of this row, with zeros outside the matrix.
// Its rows have 128 bytes; their 16-byte pieces are swizzled, that is, permuted by the row number. The
// destination is a multiple of 1024. `barrier` counts its bytes.
SC_FN void tma_load(void *to, const TensorMap &map, int term, int row, u64 *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(&map), "r"(term), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}
// As `tma_load`, from one plane of several matrices.
SC_FN void tma_load_plane(void *to, const TensorMap &map, int term, int row, int plane, u64 *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(&map), "r"(term), "r"(row), "r"(plane), "r"(shared_address(barrier))
                 : "memory");
}
// Starts to store by TMA the box of the map's size to this place of a plane, of which the part outside the matrix is
// left out. The thread that commits stores waits until their boxes, swizzled as loaded ones, have been read,
// or until they are complete.
SC_FN void tma_store_plane(const TensorMap &map, const void *from, int term, int row, int plane) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(shared_address(from)), "r"(term),
                 "r"(row), "r"(plane)
                 : "memory");
}
SC_FN void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
SC_FN void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
SC_FN void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Stores four matrices of 8 by 8; lane 8i + j addresses row j of matrix i in shared memory.
SC_FN void stmatrix(u16 *row, const u32 (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
// Makes this thread's writes to shared memory visible to WGMMA and to the TMA.
SC_FN void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Changes the number of registers of each thread of four warps.
template <int COUNT> SC_FN void registers_lower() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> SC_FN void registers_raise() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
// Arrives, and makes the phase also wait for this many bytes.
SC_FN void mbarrier_expect_tx(u64 *barrier, u32 bytes) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Makes new barriers visible to the TMA, and to the other blocks of the cluster after it has synchronized.
SC_FN void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory"); }
// As `mbarrier_wait`, for data that another block of the cluster sends.
SC_FN void mbarrier_wait_cluster(u64 *barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

SC_FN u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
// Arrives at the cluster barrier (first), and waits until all threads of the cluster have arrived
// (second). Of their earlier writes, only those covered by `fence_mbarrier_init` are then visible.
SC_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
SC_FN void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// Both, after which all earlier writes of the cluster are visible to all of its threads.
SC_FN void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address of the same place in the shared memory of another block of the cluster.
SC_FN u32 mapa(const void *at, u32 block) {
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared_address(at)), "r"(block));
    return r;
}
// Loads from a place in any block of the cluster.
SC_FN float ld_shared(u32 at) {
    float r;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(r) : "r"(at) : "memory");
    return r;
}
// Sends 16 bytes to a place in another block, whose barrier counts them.
SC_FN void st_async(u32 to, float4 x, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
                 : "memory");
}

// The matrix descriptor of a box for WGMMA: its address in units of 16 bytes, lines of 128 bytes with
// swizzled pieces, eight lines in 1024 bytes. An advance of 16 elements is two units.
SC_FN u64 wgmma_descriptor(const void *at) { return (u64)(shared_address(at) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
// The same for boxes of 64 terms whose rows, or columns, are adjacent: 64 of these are 128 bytes with swizzled
// pieces, and boxes of the next 64 are `step` bytes apart. An advance of 16 terms is 128 units.
SC_FN u64 wgmma_descriptor_across(const void *at, u32 step) {
    return (u64)(shared_address(at) >> 4 & 0x3fff) | (u64)(step >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
// WGMMA synchronization: registers are ready; all instructions since then form a batch; all but COUNT batches
// have ended.
SC_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SC_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int COUNT> SC_FN void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory"); }
SC_FN void fence_operand(float (&x)[4]) { asm volatile("" : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])::"memory"); }
// Declares the instruction for this many lines: c += rows lines for 64 rows and a K of 16; if `more` is 0, c
// = rows lines.
#define SC_WGMMA(T, TILE_N, TEXT, ...)                                                                                \
    SC_FN void wgmma(float (&c)[TILE_N / 8][4], u64 rows, u64 lines, int more) {                                       \
        asm volatile(TEXT : __VA_ARGS__ : "l"(rows), "l"(lines), "r"(more));                                                 \
    }

} // namespace sc
