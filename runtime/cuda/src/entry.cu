// The order of kernels in a stream. The next kernel may be launched once every block of this one has called
// `symmc_next` or ended; its blocks take their places as they become free. `symmc_wait` returns when the kernel in
// front has ended and what it wrote can be read. Every kernel calls it before it touches what another one writes or
// reads, on every thread that does.
static __device__ __forceinline__ void symmc_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void symmc_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void symmc_enter() {
    symmc_next();
    symmc_wait();
}
