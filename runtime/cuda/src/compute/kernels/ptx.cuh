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

// The shared memory that a launch asks for.
SC_FN double *dynamic_shared() {
    extern __shared__ double shared[];
    return shared;
}

} // namespace sc
