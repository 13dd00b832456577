// The device's side of programmatic dependent launch (PDL). Every kernel calls this before it touches what another
// kernel writes or reads, on every thread that does. The next kernel may be launched once every block of this one has
// called it or ended, and its blocks take their places as they become free; it returns when the kernel in front has
// ended and what that one wrote can be read.
static __device__ __forceinline__ void symmc_enter() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
