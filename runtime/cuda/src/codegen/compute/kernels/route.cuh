// Routing of tokens to experts: a stable counting sort of the slots by bin. A bin is a section of the rows of a
// rank; the bins of a rank are adjacent.
//
// Every block reads all ids and counts the slots of all bins, so blocks need no synchronization. It then places
// the slots of its own range.

namespace sc {

// The number of bits of the row count in a report; the rank or the expert is above them.
enum { REPORTED_ROW_BITS = 40 };

// `L`: the type T of ids; SLOTS of all ranks, of which OWN are those of each rank and K those of each token; this
// rank ME of RANKS, which have LOCAL experts each; CAPACITY rows and SECTIONS of each rank; ALIGN of sections, or
// the SHARE of rows that each section has (-1 if none); BINS; THREADS, and SPAN slots of each block. Offsets of id, own row, row, slot, count and end number i.
template <class L> struct Routing {
    static const int WARPS = L::THREADS / 32, STRIDE = (L::BINS + 3) / 4 * 4;

    SC_FN i64 id(const void *ids, i64 slot) { return get(((const typename L::T *)ids)[L::id_at(slot)]); }

    // The rank of an expert, or -1.
    SC_FN int rank(i64 id) { return id < 0 || id >= (i64)L::RANKS * L::LOCAL ? -1 : (int)id / L::LOCAL; }

    // The bin of a slot with this id, or -1. All lanes of a warp call this together, for slots one after another
    // from a multiple of 32 on.
    SC_FN int bin(const void *ids, i64 slot, i64 given) {
        const int to = rank(given);
        if (!L::BY_RANK) return to < 0 ? -1 : (int)given;
        bool first = true;
        if (32 % L::K == 0) {
            // The earlier slots of the token are in the same warp.
            for (int by = 1; by < L::K; by++) {
                const int other = __shfl_up_sync(0xffffffffu, to, by);
                if ((int)(slot % L::K) >= by && other == to) first = false;
            }
        } else if (to >= 0) {
            for (i64 earlier = slot - slot % L::K; earlier < slot; earlier++)
                if (rank(id(ids, earlier)) == to) first = false;
        }
        return to < 0 || !first ? -1 : to * L::SECTIONS + (int)(slot / L::OWN);
    }
};

// Counts the slots of each bin, and those before `begin`, which is a multiple of 32. `bad` becomes the first slot
// whose id is neither an expert nor -1.
template <class L> SC_FN void count_bins(const void *ids, i64 begin, u32 *total, u32 *before, u32 *bad) {
    typedef Routing<L> R;
    const int MANY = 4;
    // Very few bins are counted by warps, because all threads would add to the same words.
    const bool by_warp = L::BINS <= 8;
    const u32 earlier_lanes = (1u << threadIdx.x % 32) - 1;
    for (int i = threadIdx.x; i < L::BINS; i += L::THREADS) total[i] = before[i] = 0;
    if (threadIdx.x == 0) *bad = (u32)L::SLOTS;
    __syncthreads();
    for (i64 chunk = 0; chunk < L::SLOTS; chunk += MANY * L::THREADS) {
        i64 given[MANY];
        for (int i = 0; i < MANY; i++) {
            const i64 slot = chunk + i * L::THREADS + threadIdx.x;
            given[i] = slot < L::SLOTS ? R::id(ids, slot) : -1;
        }
        for (int i = 0; i < MANY; i++) {
            const i64 slot = chunk + i * L::THREADS + threadIdx.x;
            if (given[i] < -1 || given[i] >= (i64)L::RANKS * L::LOCAL) atomicMin(bad, (u32)slot);
            const int bin = R::bin(ids, slot, given[i]);
            const u32 same = by_warp ? lanes_with<L::BINS>((u32)bin, bin >= 0) : 1;
            if (bin < 0 || (by_warp && (same & earlier_lanes) != 0)) continue;
            const u32 count = by_warp ? (u32)__popc(same) : 1;
            atomicAdd(total + bin, count);
            if (slot < begin) atomicAdd(before + bin, count);
        }
    }
    __syncthreads();
}

// Computes the first row of each bin and the rows of each rank, one warp for each rank. Sums beyond 2^31 become
// 2^31, which no capacity reaches. `full` becomes the first bin with more rows than its share.
template <class L> SC_FN void find_starts(const u32 *total, u32 *starts, u64 *rows, u32 *full, void *counts, void *ends) {
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) *full = (u32)L::BINS;
    __syncthreads();
    for (int rank = threadIdx.x / 32; rank < L::RANKS; rank += Routing<L>::WARPS) {
        u64 sum = 0;
        for (int first = 0; first < L::SECTIONS; first += 32) {
            const int section = first + lane, bin = rank * L::SECTIONS + section;
            const bool is = section < L::SECTIONS;
            const u64 count = is ? total[bin] : 0;
            const u64 padded = L::SHARE >= 0 ? (is ? L::SHARE : 0) : (count + L::ALIGN - 1) / L::ALIGN * L::ALIGN;
            u64 end = padded;
            for (int by = 1; by < 32; by *= 2) {
                const u64 other = __shfl_up_sync(0xffffffffu, end, by);
                if (lane >= by) end += other;
            }
            const u64 start = sum + end - padded;
            if (is) starts[bin] = (u32)(start < 0x80000000ull ? start : 0x80000000ull);
            if (is && L::SHARE >= 0 && count > (u64)L::SHARE) atomicMin(full, (u32)bin);
            if (is && rank == L::ME && blockIdx.x == 0) {
                const u64 shown = L::SHARE >= 0 ? start + count : sum + end;
                ((i64 *)counts)[L::count_at(section)] = count;
                ((i64 *)ends)[L::end_at(section)] = shown < (u64)L::CAPACITY ? shown : (u64)L::CAPACITY;
            }
            sum += __shfl_sync(0xffffffffu, end, 31);
        }
        if (lane == 0) rows[rank] = sum;
    }
    __syncthreads();
}

// Stores -1 as the slot of each row of this rank that has none. Blocks divide the rows.
template <class L> SC_FN void mark_gaps(const u32 *total, const u32 *starts, void *slots) {
    const u32 *first = starts + L::ME * L::SECTIONS;
    for (i64 row = (i64)blockIdx.x * L::THREADS + threadIdx.x; row < L::CAPACITY; row += (i64)gridDim.x * L::THREADS) {
        int low = 0, high = L::SECTIONS;
        // The last section that begins at or before the row.
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (first[middle] <= row) low = middle;
            else high = middle;
        }
        if (row >= (i64)first[low] + total[L::ME * L::SECTIONS + low]) ((i64 *)slots)[L::slot_at(row)] = -1;
    }
}

template <class L> SC_FN void route(const void *ids, void *own, void *all, void *slots, void *counts, void *ends, void *status, u32 bad_id, u32 too_many, u32 too_many_of_expert) {
    typedef Routing<L> R;
    __shared__ u32 bad, full;
    u64 *rows = (u64 *)dynamic_shared();
    u32 *total = (u32 *)(rows + L::RANKS), *before = total + L::BINS, *starts = before + L::BINS;
    // The slots of each bin in each warp's part of a chunk.
    u8 *in_warp = (u8 *)(starts + L::BINS);
    const i64 begin = (i64)blockIdx.x * L::SPAN;
    count_bins<L>(ids, begin, total, before, &bad);
    find_starts<L>(total, starts, rows, &full, counts, ends);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (bad < (u32)L::SLOTS) report(status, bad_id, R::id(ids, bad), (u32)(bad / L::OWN));
        if (full < (u32)L::BINS) report(status, too_many_of_expert, (i64)((u64)full << REPORTED_ROW_BITS | total[full]));
        for (int rank = 0; rank < L::RANKS; rank++)
            if (rows[rank] > (u64)L::CAPACITY) report(status, too_many, (i64)((u64)rank << REPORTED_ROW_BITS | rows[rank]));
    }
    mark_gaps<L>(total, starts, slots);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 end = begin + L::SPAN < L::SLOTS ? begin + L::SPAN : L::SLOTS;
    for (i64 chunk = begin; chunk < end; chunk += L::THREADS) {
        for (int i = threadIdx.x; i < R::WARPS * R::STRIDE / 4; i += L::THREADS) ((u32 *)in_warp)[i] = 0;
        __syncthreads();
        const i64 slot = chunk + threadIdx.x;
        const int bin = R::bin(ids, slot, slot < end ? R::id(ids, slot) : -1);
        const u32 same = lanes_with<L::BINS>((u32)bin, bin >= 0);
        const u32 lower = (u32)__popc(same & ((1u << lane) - 1));
        if (bin >= 0 && lower == 0) in_warp[warp * R::STRIDE + bin] = (u8)__popc(same);
        __syncthreads();
        i64 global = -1;
        if (bin >= 0) {
            i64 in_bin = (i64)before[bin] + lower;
            for (int w = 0; w < warp; w++) in_bin += in_warp[w * R::STRIDE + bin];
            const i64 row = starts[bin] + in_bin;
            const int rank = bin / L::SECTIONS;
            if (row < L::CAPACITY && (L::SHARE < 0 || in_bin < L::SHARE)) {
                global = (i64)rank * L::CAPACITY + row;
                if (rank == L::ME) ((i64 *)slots)[L::slot_at(row)] = slot;
            }
        }
        if (slot < end) {
            ((i64 *)all)[L::all_at(slot)] = global;
            if (slot / L::OWN == L::ME) ((i64 *)own)[L::own_at(slot - (i64)L::ME * L::OWN)] = global;
        }
        if (chunk + L::THREADS >= end) break;
        __syncthreads();
        for (int i = threadIdx.x; i < L::BINS; i += L::THREADS)
            for (int w = 0; w < R::WARPS; w++) before[i] += in_warp[w * R::STRIDE + i];
        __syncthreads();
    }
}

} // namespace sc
