// Writes entries of a table of pointers: the first node of a graph whose kernels read them.
extern "C" __global__ void __launch_bounds__(512) symmc_upload(const __grid_constant__ symmc::PointerUpload upload) {
    symmc_enter();
    if (threadIdx.x < upload.count) ((symmc::u64 *)upload.to)[threadIdx.x] = upload.of[threadIdx.x];
}
