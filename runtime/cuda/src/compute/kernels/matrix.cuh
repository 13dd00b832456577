// Matrix instructions by the type of the elements.

namespace sc {

SC_FN void multiply(bf16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_bf16(c, a, b0, b1); }
SC_FN void multiply(f16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_f16(c, a, b0, b1); }

} // namespace sc
