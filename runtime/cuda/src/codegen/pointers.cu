// Pointers to ports. A kernel gets a pointer as a word: an address, or, with bit 63 set, the address of the entry of a
// table that holds the address (pointers.rs). No kernel writes a table while another one that reads it may run.

namespace symmc {

typedef unsigned int u32;
typedef unsigned long long u64;

/// The address that a word stands for. The compiler knows that parameters of kernels point to global memory, and is told
/// so of what stands in their place.
static __device__ __forceinline__ u64 resolve(u64 word) {
    const u64 *entry = (const u64 *)(word & ~(1ull << 63));
#ifdef __CUDA_ARCH__
    return (u64)__cvta_global_to_generic((long long)word < 0 ? __ldg(entry) : word);
#else
    return (long long)word < 0 ? *entry : word;
#endif
}

/// The same for a parameter that is declared as a pointer.
template <class T> static __device__ __forceinline__ T *resolve(T *word) {
    return (T *)resolve((u64)word);
}

/// A pointer in a struct of parameters, which is resolved wherever it is read.
struct Pointer {
    u64 word;

    __device__ __forceinline__ operator u64() const { return resolve(word); }
    template <class T> __device__ __forceinline__ explicit operator T *() const { return resolve((T *)word); }
};

}  // namespace symmc
