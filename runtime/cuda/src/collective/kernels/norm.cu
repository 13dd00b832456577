// All-reduce as packets with what often follows it: a residual is added and each row is normalised.

namespace symmc_peer {

/// The addresses of [`packets_norm`] that [`Call`] has no place for; 0 for what there is not.
struct Norm {
    u64 residual;
    u64 weight;
    /// Where the reduction, its sum with the residual and the norm of that go.
    u64 reduced;
    u64 added;
    u64 normed;
    /// Packets of a row.
    u32 row;
    float eps;
};

/// Packets all-reduce, then `+ residual`, then RMS norm of each row, with the roundings of the three steps.
/// A block has whole rows; a thread has the same `PER` packets of each. All addresses are multiples of 8.
template <class T, class O, u32 N, u32 PER, bool ROUND_FIRST>
__device__ __forceinline__ void packets_norm(const Call& call, const Norm& norm) {
    constexpr u32 COUNT = Run<T, 1>::COUNT;
    const u64 packets = call.count / 8;
    const u32 thread = threadIdx.x, threads = blockDim.x;
    Words words;
    Turn turn;
    if (!take_turn<N>(call, words, turn, packets)) return;
    touch(call, turn.flag, 0);
    for (u64 row = (u64)blockIdx.x * norm.row; row < packets; row += (u64)gridDim.x * norm.row) {
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            const Wide wide = packed(((const u64*)call.from[0])[row + j], turn.flag);
#pragma unroll
            for (u32 p = 0; p + 1 < N; p++) store_packets(call.to[p] + turn.zone + (row + j) * 16, wide);
        }
    }
    touch(call, turn.flag, 1);
    __syncthreads();
    leave(call, words);
    Run<T, 1> weight[PER];
#pragma unroll
    for (u32 k = 0; k < PER; k++) {
        const u32 j = thread + k * threads;
        if (norm.weight != 0 && j < norm.row) weight[k].words[0] = ((const u64*)norm.weight)[j];
    }
    u32 parity = 0;
    for (u64 row = (u64)blockIdx.x * norm.row; row < packets; row += (u64)gridDim.x * norm.row) {
        Run<T, 1> x[PER], residual[PER];
        // What is here already is asked for before the wait.
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            x[k].words[0] = ((const u64*)call.from[0])[row + j];
            residual[k].words[0] = ((const u64*)norm.residual)[row + j];
        }
        float squares = 0;
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            Run<T, 1> runs[N];
            // A wait that ends early leaves what is meaningless: the threads of a block stay together.
            receive<T, N>(call, turn, row + j, x[k].words[0], runs);
            const Run<T, 1> reduced = reduce_runs<T, O, N, 1>(runs);
            if (norm.reduced != 0) ((u64*)norm.reduced)[row + j] = reduced.words[0];
            float sum[COUNT], other[COUNT];
            reduced.widen(sum);
            residual[k].widen(other);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) sum[e] += other[e];
            x[k].narrow(sum);
            ((u64*)norm.added)[row + j] = x[k].words[0];
            x[k].widen(sum);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) squares += sum[e] * sum[e];
        }
        const float mean = block_sum(squares, parity) / (float)(norm.row * COUNT);
        const float scale = 1.0f / sqrtf(mean + norm.eps);
        parity ^= 1;
#pragma unroll
        for (u32 k = 0; k < PER; k++) {
            const u32 j = thread + k * threads;
            if (j >= norm.row) continue;
            float y[COUNT], w[COUNT];
            x[k].widen(y);
#pragma unroll
            for (u32 e = 0; e < COUNT; e++) y[e] *= scale;
            if (norm.weight != 0) {
                if constexpr (ROUND_FIRST) {
                    x[k].narrow(y);
                    x[k].widen(y);
                }
                weight[k].widen(w);
#pragma unroll
                for (u32 e = 0; e < COUNT; e++) y[e] *= w[e];
            }
            x[k].narrow(y);
            ((u64*)norm.normed)[row + j] = x[k].words[0];
        }
    }
}

}  // namespace symmc_peer
