// The device's side of programmatic dependent launch (PDL). Every kernel calls this before it accesses memory
// that another kernel writes or reads, on every thread that does so. The next kernel may be launched once
// every block of this one has called it or ended; its blocks are scheduled as resources become free. The
// function returns when the previous kernel has ended and its writes are visible.
static __device__ __forceinline__ void symmc_enter() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
