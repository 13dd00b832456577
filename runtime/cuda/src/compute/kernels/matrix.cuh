// Matrix instructions by the type of the elements.

namespace sc {

SC_FN void multiply(bf16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_bf16(c, a, b0, b1); }
SC_FN void multiply(f16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_f16(c, a, b0, b1); }

// Two elements side by side.
SC_FN u32 pack(bf16, float low, float high) { return pack_bf16(low, high); }
SC_FN u32 pack(f16, float low, float high) { return pack_f16(low, high); }

} // namespace sc
