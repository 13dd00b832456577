//! Runs the unmodified kernels on the host: one host thread per kernel thread, real atomics, all ranks in one
//! process. Skipped without a C++ compiler.
//!
//! Each rank repeats all cases and synchronizes with the others only through the collectives themselves.
//! Ranks therefore run ahead of each other as far as the contracts allow.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use symmc_cases::HostLibrary;
use symmc_ir::tensor::{read_f64, write_f64};

use super::super::control;
use super::*;

/// The bytes of an emulated arena.
const ARENA_BYTES: usize = 96 << 10;
/// The bytes of a landing zone. The zones are first in the arena.
const ZONE_BYTES: usize = 8 << 10;
/// Grids that are small enough for host threads, and small enough that threads get several units of work.
const EMULATED_GRID: GridLimits = GridLimits { threads: 8, most_threads: 8, blocks: 3 };

/// With these thresholds, small messages cover every form.
const PROTOCOL_THRESHOLDS: ProtocolThresholds =
    ProtocolThresholds { ll_bytes: 200, min_saved_bytes: 600, min_pushed_bytes: 960 };

/// The settings of the ranks of a world.
#[derive(Clone, Copy)]
pub(super) struct WorldConfig {
    /// The initial values of counters and of LL flags.
    pub first: (u64, u32),
    pub limit_ns: u64,
    pub chaos: Option<u64>,
    /// The bytes of a landing zone.
    pub zone: usize,
    pub grid: GridLimits,
    pub thresholds: ProtocolThresholds,
}

impl Default for WorldConfig {
    fn default() -> Self {
        WorldConfig {
            first: (0, 0),
            limit_ns: 20_000_000_000,
            chaos: None,
            zone: ZONE_BYTES,
            grid: EMULATED_GRID,
            thresholds: PROTOCOL_THRESHOLDS,
        }
    }
}

/// A control region with parts of the staging area so small that messages of a few rows take several rounds.
fn control_of(n: u32) -> ControlRegion {
    ControlRegion { groups: 2, max_exchange_ranks: n as usize, staging_bytes: 256 }
}

/// The memory of one rank.
struct RankMemory {
    arena: Vec<u128>,
    local: Vec<u128>,
    status: Vec<u128>,
}

fn zeros(bytes: usize) -> Vec<u128> {
    vec![0; bytes.div_ceil(16)]
}

fn address(memory: &[u128]) -> Address {
    memory.as_ptr().expose_provenance() as Address
}

/// The bytes at an address in the memory of a rank.
///
/// # Safety
/// They exist, and nothing else accesses them as long as the slice lives.
pub(super) unsafe fn bytes_at<'a>(at: Address, len: usize) -> &'a mut [u8] {
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(at as usize), len) }
}

/// Ranks in one process.
pub(super) struct EmulatedWorld {
    ranks: Vec<RankMemory>,
    pub peers: Vec<PeerContext>,
}

impl EmulatedWorld {
    /// Creates `n` ranks.
    pub fn new(n: u32, given: &WorldConfig) -> EmulatedWorld {
        let &WorldConfig { first, limit_ns, chaos, zone, grid, thresholds } = given;
        let size = ARENA_BYTES.max(2 * zone);
        let mut ranks: Vec<RankMemory> = (0..n)
            .map(|_| RankMemory {
                arena: zeros(size.next_multiple_of(control::PAGE_BYTES) + control_of(n).bytes()),
                local: zeros(local_bytes(2)),
                status: zeros(STATUS_BYTES),
            })
            .collect();
        for rank in &mut ranks {
            let flags = (size.next_multiple_of(control::PAGE_BYTES) + control::flags_at(1)) / 16;
            let group = control::words_at(1) / 16;
            rank.arena[flags..][..MAX_BLOCKS * MAX_RANKS / 2]
                .fill(u128::from(first.0) << 64 | u128::from(first.0));
            let used = (zone / 16) as u128;
            rank.local[group..][..MAX_BLOCKS]
                .fill(used << 96 | u128::from(first.1) << 64 | u128::from(first.0));
            // Lines with a flag that is used again after the flags wrapped around.
            if first.1 == u32::MAX {
                for (i, lines) in rank.arena[..2 * zone / 16].chunks_mut(8).enumerate() {
                    let old = if i % 2 == 0 { 2 } else { 4 };
                    lines.fill((old << 96 | old << 32) | 0xdead_beef_0000_0000_dead_beef);
                }
            }
        }
        let arenas: Vec<Address> = ranks.iter().map(|r| address(&r.arena)).collect();
        let blocks = VariantGrids {
            ll: grid,
            ll128: grid,
            one_shot: grid,
            two_shot: grid,
            pushed: grid,
            reduce_scatter: grid,
            pull: grid,
            push: grid,
            put: grid,
            norm: grid,
        };
        let peers = ranks.iter().zip(0..).map(|(r, rank)| PeerContext {
            program: 0,
            rank,
            arenas: arenas.clone(),
            arena: size,
            control: control_of(n),
            local: address(&r.local),
            status: address(&r.status),
            limit_ns,
            chaos,
            blocks: blocks.clone(),
            thresholds,
            links: LinkAtomicity::Atomic,
        });
        let peers = peers.collect();
        EmulatedWorld { ranks, peers }
    }

    /// The report of a rank's kernels about sizes on the device.
    pub fn unfit(&self, rank: usize) -> Option<InvalidSplits> {
        control::unfit_at(address(&self.ranks[rank].status) as usize)
    }

    /// The report of a rank's kernels about tables of rows.
    pub fn row_entry(&self, rank: usize) -> Option<InvalidRowEntry> {
        control::row_entry_at(address(&self.ranks[rank].status) as usize)
    }
}

/// A collective and the places of its values.
pub(super) struct CollectiveCase {
    pub call: ResolvedCollective,
    /// The number of elements of the result.
    pub results: usize,
}

/// Cases for `n` ranks, each in separate memory after the landing zones.
fn cases(n: u32) -> Vec<CollectiveCase> {
    let mut out: Vec<CollectiveCase> = Vec::new();
    let mut end: usize = 2 * ZONE_BYTES;
    let sum = Kind::AllReduce(CollectiveReduceOp::Sum);
    let mut add = |kind: Kind,
                   variant: CollectiveVariant,
                   dtype: DType,
                   elements: usize,
                   shift: usize,
                   exit: ExitBarrier| {
        let n = n as usize;
        let results = results_of(&kind, elements, n);
        let mut allocate = |elements: usize| {
            let offset = end + shift * dtype.size();
            end = (offset + elements * dtype.size()).next_multiple_of(64) + 64 * n;
            ResolvedRegion::uniform(MemorySpace::Symmetric, offset)
        };
        let mut call = collective(kind, variant, n as u32, dtype, elements);
        (call.operand, call.result) = (allocate(elements), allocate(results));
        (call.exit, call.landing) = (Some(exit), Some([0, ZONE_BYTES]));
        out.push(CollectiveCase { call, results });
    };
    let exit = ExitBarrier::Kept;
    let dropped = ExitBarrier::Dropped;
    let n = n as usize;
    [1, 403].into_iter().for_each(|few| add(sum.clone(), CollectiveVariant::Ll, DType::BF16, few, 0, exit));
    add(sum.clone(), CollectiveVariant::OneShot, DType::F16, 203, 0, dropped);
    add(Kind::AllGather, CollectiveVariant::Ll, DType::I32, 37, 0, exit);
    add(Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Ll, DType::U8, 19 * n, 1, exit);
    add(Kind::ReduceScatter(CollectiveReduceOp::Sum), CollectiveVariant::Ll, DType::BF16, 13 * n, 0, exit);
    add(Kind::ReduceScatter(CollectiveReduceOp::Avg), CollectiveVariant::Ll, DType::I32, 5 * n, 1, exit);
    add(sum.clone(), CollectiveVariant::TwoShot, DType::F32, 101, 0, exit);
    add(sum.clone(), CollectiveVariant::TwoShot, DType::F64, 1, 0, exit);
    add(Kind::AllGather, CollectiveVariant::Pull, DType::BF16, 77, 0, dropped);
    add(Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Pull, DType::F32, 24 * n, 0, exit);
    add(
        Kind::ReduceScatter(CollectiveReduceOp::Avg),
        CollectiveVariant::Pull,
        DType::BF16,
        88 * n,
        0,
        dropped,
    );
    add(Kind::ReduceScatter(CollectiveReduceOp::Sum), CollectiveVariant::Pull, DType::Bool, 33 * n, 1, exit);
    add(Kind::AllGather, CollectiveVariant::Push, DType::F32, 100, 0, exit);
    add(Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Push, DType::I64, 11 * n, 0, exit);
    add(Kind::AllReduce(CollectiveReduceOp::Max), CollectiveVariant::Ll, DType::I64, 9, 0, exit);
    add(Kind::AllReduce(CollectiveReduceOp::Avg), CollectiveVariant::Ll, DType::U8, 30, 1, exit);
    add(Kind::AllReduce(CollectiveReduceOp::Min), CollectiveVariant::OneShot, DType::F32, 40, 1, dropped);
    add(Kind::AllReduce(CollectiveReduceOp::Prod), CollectiveVariant::OneShot, DType::BF16, 7, 0, exit);
    add(Kind::AllReduce(CollectiveReduceOp::Avg), CollectiveVariant::OneShot, DType::I32, 66, 0, dropped);
    add(Kind::Broadcast { root: 1 }, CollectiveVariant::Put, DType::BF16, 99, 0, exit);
    let [shift, swap] = permutes(n as u32);
    add(shift, CollectiveVariant::Put, DType::F32, 50, 0, exit);
    add(swap, CollectiveVariant::Put, DType::U8, 50, 1, exit);
    // LL128 in one round and in two; stores only, with a partial chunk.
    add(sum.clone(), CollectiveVariant::Ll, DType::F32, 47, 0, exit);
    add(Kind::AllReduce(CollectiveReduceOp::Max), CollectiveVariant::Ll, DType::F16, 901, 1, exit);
    add(Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Ll, DType::BF16, 205 * n, 0, exit);
    add(Kind::ReduceScatter(CollectiveReduceOp::Sum), CollectiveVariant::Ll, DType::F16, 207 * n, 0, exit);
    add(Kind::ReduceScatter(CollectiveReduceOp::Max), CollectiveVariant::Ll, DType::F32, 61 * n, 1, exit);
    add(sum.clone(), CollectiveVariant::TwoShot, DType::BF16, 1000 * n, 0, exit);
    add(Kind::AllReduce(CollectiveReduceOp::Avg), CollectiveVariant::TwoShot, DType::F32, 100 * n, 0, exit);
    add(sum.clone(), CollectiveVariant::Ll, DType::F32, 0, 0, exit);
    // In place: each rank's slice of the result is its operand, its slice of the operand is the result, or
    // both coincide.
    let gathers = [CollectiveVariant::Ll, CollectiveVariant::Pull, CollectiveVariant::Push].into_iter();
    gathers.for_each(|variant| add(Kind::AllGather, variant, DType::F32, 36, 0, exit));
    add(Kind::ReduceScatter(CollectiveReduceOp::Sum), CollectiveVariant::Ll, DType::F32, 36 * n, 0, exit);
    add(sum.clone(), CollectiveVariant::TwoShot, DType::BF16, 800 * n, 0, exit);
    add(sum, CollectiveVariant::TwoShot, DType::F32, 100 * n, 0, exit);
    out.iter_mut().rev().take(6).for_each(put_in_place);
    out.iter_mut().skip(2).step_by(3).take(7).for_each(put_apart);
    assert!(end <= ARENA_BYTES, "{end}");
    out
}

/// The number of elements of a result, given that of the operand.
pub(super) fn results_of(kind: &Kind, elements: usize, n: usize) -> usize {
    match kind {
        Kind::AllGather => elements * n,
        Kind::ReduceScatter(_) => elements / n,
        _ => elements,
    }
}

/// Each rank sends to the next; the first two ranks to each other, and the others to themselves.
fn permutes(n: u32) -> [Kind; 2] {
    let shift = (0..n - 1).map(|r| (r, r + 1)).collect();
    let swap = [(0, 1), (1, 0)].into_iter().chain((2..n).map(|r| (r, r))).collect();
    [shift, swap].map(|pairs| Kind::Permute { pairs })
}

/// Moves operand and result to different offsets on each rank, like slices of what another group gathers.
fn put_apart(case: &mut CollectiveCase) {
    let n = case.call.cell.len();
    for region in [&mut case.call.operand, &mut case.call.result] {
        let start = region.offset;
        region.by_rank = Some((1..=n).rev().map(|number| start + 64 * number).collect());
    }
}

/// Moves the operand of an all-gather to its slice of the result, the result of a reduce-scatter to its slice
/// of the operand, and any other operand to the result.
fn put_in_place(case: &mut CollectiveCase) {
    let call = &mut case.call;
    let bytes = call.elements * call.dtype.size();
    match call.kind {
        Kind::AllGather => call.operand = piece_by_rank(&call.result, &call.cell, bytes),
        Kind::ReduceScatter(_) => {
            call.result = piece_by_rank(&call.operand, &call.cell, bytes / call.cell.len());
        }
        _ => call.operand = call.result.clone(),
    }
}

/// Each rank's piece of a region, of this size.
fn piece_by_rank(region: &ResolvedRegion, cell: &[u32], bytes: usize) -> ResolvedRegion {
    let starts = cell.iter().map(|rank| region.offset + *rank as usize * bytes);
    ResolvedRegion { by_rank: Some(starts.collect()), ..region.clone() }
}

/// Element `i` of the operand of `rank`, exact in every dtype.
pub(super) fn element(kind: &Kind, dtype: DType, rank: usize, i: usize, round: usize) -> f64 {
    let x = ((i * 7 + rank * 13 + round * 5) % 11) as f64;
    match (kind, dtype) {
        (Kind::AllReduce(CollectiveReduceOp::Prod), _) => 1.0 + x % 2.0,
        (_, DType::Bool) => f64::from(u8::from(x > 8.0)),
        (_, dtype) if dtype.integer_bounds().is_some_and(|(least, _)| least == 0) => x,
        _ => x - 4.0,
    }
}

/// Element `i` of the result of rank `me`.
pub(super) fn expected(case: &CollectiveCase, me: usize, i: usize, round: usize) -> f64 {
    let CollectiveCase { call, .. } = case;
    let n = call.cell.len();
    let operand = |rank: usize, i: usize| element(&call.kind, call.dtype, rank, i, round);
    let reduced = |op: CollectiveReduceOp, i: usize| {
        let x = (0..n).map(|r| operand(r, i));
        let y = match op {
            CollectiveReduceOp::Sum => x.sum(),
            CollectiveReduceOp::Avg => x.sum::<f64>() / n as f64,
            CollectiveReduceOp::Prod => x.product(),
            CollectiveReduceOp::Max => x.fold(f64::MIN, f64::max),
            CollectiveReduceOp::Min => x.fold(f64::MAX, f64::min),
        };
        let y = if call.dtype.is_float() { f64::from(y as f32) } else { y.trunc() };
        let mut out = [0; 8];
        write_f64(call.dtype, &mut out, 0, y);
        read_f64(call.dtype, &out, 0)
    };
    let piece = call.elements / n;
    match &call.kind {
        Kind::AllReduce(op) => reduced(*op, i),
        Kind::ReduceScatter(op) => reduced(*op, me * piece + i),
        Kind::AllGather => operand(i / call.elements, i % call.elements),
        Kind::AllToAll(_) => operand(i / piece, me * piece + i % piece),
        Kind::Broadcast { root } => operand(*root as usize, i),
        Kind::Permute { pairs } => {
            pairs.iter().find(|p| p.1 as usize == me).map_or(0.0, |p| operand(p.0 as usize, i))
        }
        Kind::DispatchRows | Kind::CombineRows | Kind::ReduceRows => {
            unreachable!("tests of rows compute their own results")
        }
    }
}

/// Compiled host code.
pub(super) struct EmulationLibrary(HostLibrary);

type Emulate = unsafe extern "C" fn(*const c_void, *const c_void, *const c_void, u32, u32);

impl EmulationLibrary {
    /// Compiles `source` for host threads; `None` without a compiler.
    pub fn new(source: &KernelSource, name: &str) -> Option<EmulationLibrary> {
        let (before, after) = include_str!("emulate.h")
            .split_once("// ------------------------")
            .expect("a part after the kernels");
        let text = by_reference(&source.text().replace(DEVICE_SOURCE, before)) + "//" + after;
        let name = format!("collectives-{name}");
        HostLibrary::build(&name, &text, &["-std=c++20", "-pthread"]).map(EmulationLibrary)
    }

    pub fn run(&self, kernel: &KernelLaunch) {
        // SAFETY: the library defines the symbol with this type.
        let emulate: Emulate = unsafe { std::mem::transmute(self.0.symbol("emulate")) };
        let [first, second] =
            [0, 1].map(|i| kernel.params.get(i).map_or(std::ptr::null(), |p| p.as_ptr().cast::<c_void>()));
        let [blocks, ..] = kernel.grid;
        let [threads, ..] = kernel.block;
        // SAFETY: kernels have one or two parameters, with addresses of memory that the world holds.
        unsafe { emulate(self.0.symbol(&kernel.entry), first, second, blocks, threads) };
    }
}

/// The source with kernels that take their parameters by reference, so that parameters of any type can be
/// passed.
fn by_reference(source: &str) -> String {
    let mut pieces = source.split("const __grid_constant__ ");
    let mut out = pieces.next().unwrap_or_default().to_string();
    for part in pieces {
        let (ty, rest) = part.split_once(' ').expect("a type and a name");
        out.push_str(&format!("const {ty} &{rest}"));
    }
    out
}

/// Runs all cases on all ranks, round by round, and compares the results.
fn rounds(world: &EmulatedWorld, rounds: usize, name: &str) {
    let cases = cases(world.ranks.len() as u32);
    let mut source = KernelSource::new();
    let kernels: Vec<Vec<KernelLaunch>> = world
        .peers
        .iter()
        .map(|peers| cases.iter().map(|case| kernel(&case.call, peers, &mut source)).collect())
        .collect();
    let Some(library) = EmulationLibrary::new(&source, name) else { return };
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (me, (peers, kernels)) in world.peers.iter().zip(&kernels).enumerate() {
            let library = &library;
            let cases = &cases;
            let done = &done;
            scope.spawn(move || {
                for round in 0..rounds {
                    for (case, kernel) in cases.iter().zip(kernels) {
                        run_case(case, kernel, peers, (me, round), library);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(done.into_inner(), rounds * cases.len() * world.ranks.len());
}

/// Runs one case on one rank and compares its result.
fn run_case(
    case: &CollectiveCase,
    kernel: &KernelLaunch,
    peers: &PeerContext,
    (me, round): (usize, usize),
    library: &EmulationLibrary,
) {
    let CollectiveCase { call, results } = case;
    let size = call.dtype.size();
    let [operand, result] =
        [&call.operand, &call.result].map(|r| peers.arenas[me] + r.offset_on_rank(me as u32) as Address);
    // SAFETY: the cases are separate within the arena. No peer accesses this operand between the last case
    // that used it and this one.
    let operand = unsafe { bytes_at(operand, call.elements * size) };
    for i in 0..call.elements {
        write_f64(call.dtype, operand, i, element(&call.kind, call.dtype, me, i, round));
    }
    library.run(kernel);
    // SAFETY: as above; peers write the result before it completes.
    let result = unsafe { bytes_at(result, results * size) };
    for i in 0..*results {
        let actual = read_f64(call.dtype, result, i);
        let expected = expected(case, me, i, round);
        let label = (call.kind.name(), call.variant, call.dtype, call.elements);
        assert_eq!(actual, expected, "{label:?}: element {i} on rank {me} in round {round}");
    }
}

#[test]
fn ranks_agree_round_after_round_and_flags_wrap_around() {
    let config = WorldConfig::default();
    rounds(&EmulatedWorld::new(2, &WorldConfig { first: (0, 5), ..config }), 8, "2");
    rounds(&EmulatedWorld::new(3, &WorldConfig { first: (u64::MAX - 50, u32::MAX), ..config }), 5, "3");
    rounds(&EmulatedWorld::new(4, &WorldConfig { chaos: Some(7), ..config }), 3, "4");
}

#[test]
fn a_rank_that_does_not_come_is_reported() {
    let world = EmulatedWorld::new(3, &WorldConfig { limit_ns: 20_000_000, ..WorldConfig::default() });
    let mut source = KernelSource::new();
    let sum = Kind::AllReduce(CollectiveReduceOp::Sum);
    let calls = [
        collective(sum.clone(), CollectiveVariant::TwoShot, 3, DType::F32, 8),
        collective(sum, CollectiveVariant::Ll, 3, DType::F32, 8),
    ];
    let mut kernels: Vec<Vec<KernelLaunch>> = Vec::new();
    for rank in [0, 2] {
        let kernels_of_rank = calls.iter().map(|c| {
            let mut c = collective(c.kind.clone(), c.variant, 3, DType::F32, 8);
            (c.operand.offset, c.result.offset, c.landing) =
                (2 * ZONE_BYTES, 3 * ZONE_BYTES, Some([0, ZONE_BYTES]));
            kernel(&c, &world.peers[rank], &mut source)
        });
        kernels.push(kernels_of_rank.collect());
    }
    let Some(library) = EmulationLibrary::new(&source, "missing") else { return };
    std::thread::scope(|scope| {
        for kernels in &kernels {
            scope.spawn(|| kernels.iter().for_each(|k| library.run(k)));
        }
    });
    for rank in [0, 2] {
        let missed = control::missed_at(address(&world.ranks[rank].status) as usize);
        assert_eq!(
            missed,
            Some(MissedPeer { program: 0, step: 7, peer: 1, group: 1, block: 0, awaited: 1 }),
            "rank {rank}"
        );
    }
    assert_eq!(control::missed_at(address(&world.ranks[1].status) as usize), None);
}
