//! The kernels as they are, compiled for the host: one thread for each thread of a kernel, real atomics, ranks
//! in one process. Skipped where there is no C++ compiler.
//!
//! Each rank runs through all cases again and again without meeting the others but through the collectives
//! themselves, so ranks run ahead of each other as far as the contracts let them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use symmc_cases::HostLibrary;
use symmc_ir::tensor::{read_f64, write_f64};

use super::super::control;
use super::*;

/// Bytes of an emulated arena.
const SIZE: usize = 64 << 10;
/// Bytes of a landing zone, which stand first in the arena.
const ZONE: usize = 8 << 10;
/// Grids small enough for threads of a host, and so small that threads get several units of work.
const GRID: Blocks = Blocks { threads: 8, most_threads: 8, blocks: 3 };

/// Forms of which small messages take each.
const FORMS: Forms = Forms { words: 200, saved: 600, pushed: 960 };

/// The memory of one rank.
struct Rank {
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

/// The bytes at an address within the memory of a rank.
///
/// # Safety
/// They exist, and nobody else touches them as long as the slice lives.
unsafe fn bytes_at<'a>(at: Address, len: usize) -> &'a mut [u8] {
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(at as usize), len) }
}

/// Ranks in one process.
struct World {
    ranks: Vec<Rank>,
    peers: Vec<Peers>,
}

impl World {
    /// `n` ranks whose counters begin at `first`.
    fn new(n: u32, first: (u64, u32), limit_ns: u64, chaos: Option<u64>) -> World {
        let mut ranks: Vec<Rank> = (0..n)
            .map(|_| Rank {
                arena: zeros(SIZE + control_bytes(2)),
                local: zeros(local_bytes(2)),
                status: zeros(STATUS_BYTES),
            })
            .collect();
        for rank in &mut ranks {
            let (flags, group) = ((SIZE + control::flags_at(1)) / 16, control::words_at(1) / 16);
            rank.arena[flags..][..MAX_BLOCKS * MAX_RANKS / 2]
                .fill(u128::from(first.0) << 64 | u128::from(first.0));
            let used = (ZONE / 16) as u128;
            rank.local[group..][..MAX_BLOCKS]
                .fill(used << 96 | u128::from(first.1) << 64 | u128::from(first.0));
            // Packets with a flag that comes again after the flags wrapped around.
            if first.1 == u32::MAX {
                rank.arena[..2 * ZONE / 16].fill(0x0000_0004_dead_beef_0000_0004_dead_beef);
            }
        }
        let arenas: Vec<Address> = ranks.iter().map(|r| address(&r.arena)).collect();
        let blocks = BlockCounts {
            packets: GRID,
            lines: GRID,
            one_shot: GRID,
            two_shot: GRID,
            pushed: GRID,
            reduce_scatter: GRID,
            pull: GRID,
            push: GRID,
            put: GRID,
            norm: GRID,
        };
        let peers = ranks.iter().zip(0..).map(|(r, rank)| Peers {
            rank,
            arenas: arenas.clone(),
            arena: SIZE,
            local: address(&r.local),
            status: address(&r.status),
            limit_ns,
            chaos,
            blocks: blocks.clone(),
            forms: FORMS,
            links: Links::Whole,
        });
        let peers = peers.collect();
        World { ranks, peers }
    }
}

/// A collective and where it lies.
struct Case {
    call: BoundCollective,
    /// Elements of the result.
    results: usize,
}

/// Cases for `n` ranks, each with memory of its own behind the landing zones.
fn cases(n: u32) -> Vec<Case> {
    let mut out: Vec<Case> = Vec::new();
    let mut end = 2 * ZONE;
    let sum = Kind::AllReduce(ReduceOp::Sum);
    let mut add =
        |kind: Kind, variant: Variant, dtype: DType, elements: usize, shift: usize, exit: Barrier| {
            let n = n as usize;
            let results = match kind {
                Kind::AllGather => elements * n,
                Kind::ReduceScatter(_) => elements / n,
                _ => elements,
            };
            let mut place = |elements: usize| {
                let at = end + shift * dtype.size();
                end = (at + elements * dtype.size()).next_multiple_of(64);
                BoundRegion { home: Home::Symmetric, offset: at, by_rank: 0 }
            };
            let mut call = collective(kind, variant, n as u32, dtype, elements);
            (call.operand, call.result) = (place(elements), place(results));
            (call.exit, call.landing) = (Some(exit), Some([0, ZONE]));
            out.push(Case { call, results });
        };
    let (kept, dropped, n) = (Barrier::Kept, Barrier::Dropped, n as usize);
    add(sum.clone(), Variant::Packets, DType::BF16, 1, 0, kept);
    add(sum.clone(), Variant::Packets, DType::BF16, 403, 0, kept);
    add(sum.clone(), Variant::OneShot, DType::F16, 203, 0, dropped);
    add(Kind::AllGather, Variant::Packets, DType::I32, 37, 0, kept);
    add(Kind::AllToAll(Splits::Even), Variant::Packets, DType::U8, 19 * n, 1, kept);
    add(sum.clone(), Variant::TwoShot, DType::F32, 101, 0, kept);
    add(sum.clone(), Variant::TwoShot, DType::F64, 1, 0, kept);
    add(Kind::AllGather, Variant::Pull, DType::BF16, 77, 0, dropped);
    add(Kind::AllToAll(Splits::Even), Variant::Pull, DType::F32, 24 * n, 0, kept);
    add(Kind::ReduceScatter(ReduceOp::Avg), Variant::Pull, DType::BF16, 88 * n, 0, dropped);
    add(Kind::ReduceScatter(ReduceOp::Sum), Variant::Pull, DType::Bool, 33 * n, 1, kept);
    add(Kind::AllGather, Variant::Push, DType::F32, 100, 0, kept);
    add(Kind::AllToAll(Splits::Even), Variant::Push, DType::I64, 11 * n, 0, kept);
    add(Kind::AllReduce(ReduceOp::Max), Variant::Packets, DType::I64, 9, 0, kept);
    add(Kind::AllReduce(ReduceOp::Avg), Variant::Packets, DType::U8, 30, 1, kept);
    add(Kind::AllReduce(ReduceOp::Min), Variant::OneShot, DType::F32, 40, 1, dropped);
    add(Kind::AllReduce(ReduceOp::Prod), Variant::OneShot, DType::BF16, 7, 0, kept);
    add(Kind::AllReduce(ReduceOp::Avg), Variant::OneShot, DType::I32, 66, 0, dropped);
    add(Kind::Broadcast { root: 1 }, Variant::Put, DType::BF16, 99, 0, kept);
    let shift = (0..n as u32 - 1).map(|r| (r, r + 1)).collect();
    add(Kind::Permute { pairs: shift }, Variant::Put, DType::F32, 50, 0, kept);
    let swap = vec![(0, 1), (1, 0)].into_iter().chain((2..n as u32).map(|r| (r, r))).collect();
    add(Kind::Permute { pairs: swap }, Variant::Put, DType::U8, 50, 1, kept);
    // Lines, in one round and in two; stores alone, with a chunk that is not whole.
    add(sum.clone(), Variant::Packets, DType::F32, 47, 0, kept);
    add(Kind::AllReduce(ReduceOp::Max), Variant::Packets, DType::F16, 901, 1, kept);
    add(Kind::AllToAll(Splits::Even), Variant::Packets, DType::BF16, 205 * n, 0, kept);
    add(sum.clone(), Variant::TwoShot, DType::BF16, 1000 * n, 0, kept);
    add(Kind::AllReduce(ReduceOp::Avg), Variant::TwoShot, DType::F32, 100 * n, 0, kept);
    add(sum, Variant::Packets, DType::F32, 0, 0, kept);
    // In place: each rank's piece of the result is its operand.
    for variant in [Variant::Packets, Variant::Pull, Variant::Push] {
        add(Kind::AllGather, variant, DType::F32, 36, 0, kept);
    }
    for case in out.iter_mut().rev().take(3) {
        case.call.operand = BoundRegion { by_rank: 36 * 4, ..case.call.result };
    }
    assert!(end <= SIZE, "{end}");
    out
}

/// Element `i` of the operand of `rank`, exact in every dtype.
fn element(kind: &Kind, dtype: DType, rank: usize, i: usize, round: usize) -> f64 {
    let x = ((i * 7 + rank * 13 + round * 5) % 11) as f64;
    match (kind, dtype) {
        (Kind::AllReduce(ReduceOp::Prod), _) => 1.0 + x % 2.0,
        (_, DType::Bool) => f64::from(u8::from(x > 8.0)),
        (_, DType::U8) => x,
        _ => x - 4.0,
    }
}

/// Element `i` of the result of rank `me`.
fn expected(case: &Case, me: usize, i: usize, round: usize) -> f64 {
    let Case { call, .. } = case;
    let n = call.cell.len();
    let of = |rank: usize, i: usize| element(&call.kind, call.dtype, rank, i, round);
    let reduced = |op: ReduceOp, i: usize| {
        let x = (0..n).map(|r| of(r, i));
        let y = match op {
            ReduceOp::Sum => x.sum(),
            ReduceOp::Avg => x.sum::<f64>() / n as f64,
            ReduceOp::Prod => x.product(),
            ReduceOp::Max => x.fold(f64::MIN, f64::max),
            ReduceOp::Min => x.fold(f64::MAX, f64::min),
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
        Kind::AllGather => of(i / call.elements, i % call.elements),
        Kind::AllToAll(_) => of(i / piece, me * piece + i % piece),
        Kind::Broadcast { root } => of(*root as usize, i),
        Kind::Permute { pairs } => {
            pairs.iter().find(|p| p.1 as usize == me).map_or(0.0, |p| of(p.0 as usize, i))
        }
    }
}

/// Machine code of the host.
struct Library(HostLibrary);

type Emulate = unsafe extern "C" fn(*const c_void, *const Call, *const c_void, u32, u32);

impl Library {
    /// Compiles what `source` holds for threads of the host; `None` without a compiler.
    fn new(source: &Source, name: &str) -> Option<Library> {
        let (before, after) = include_str!("emulate.h")
            .split_once("// ------------------------")
            .expect("a part after the kernels");
        let text = source.text().replace(DEVICE, before) + "//" + after;
        let name = format!("collectives-{name}");
        HostLibrary::build(&name, &text, &["-std=c++20", "-pthread"]).map(Library)
    }

    fn run(&self, kernel: &Kernel) {
        // SAFETY: the library defines it so.
        let emulate: Emulate = unsafe { std::mem::transmute(self.0.symbol("emulate")) };
        let param = |i: usize| kernel.params.get(i).map_or(std::ptr::null(), |p| p.as_ptr().cast::<c_void>());
        let ([blocks, ..], [threads, ..]) = (kernel.grid, kernel.block);
        // SAFETY: the parameters are a call and what stands beside it; their addresses are of memory that the
        // world holds.
        unsafe { emulate(self.0.symbol(&kernel.entry), param(0).cast(), param(1), blocks, threads) };
    }
}

/// Runs all cases on all ranks, round by round, and compares.
fn rounds(world: &World, rounds: usize, name: &str) {
    let cases = cases(world.ranks.len() as u32);
    let mut source = Source::new();
    let kernels: Vec<Vec<Kernel>> = world
        .peers
        .iter()
        .map(|peers| cases.iter().map(|case| kernel(&case.call, peers, &mut source)).collect())
        .collect();
    let Some(library) = Library::new(&source, name) else { return };
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (me, (peers, kernels)) in world.peers.iter().zip(&kernels).enumerate() {
            let (library, cases, done) = (&library, &cases, &done);
            scope.spawn(move || {
                for round in 0..rounds {
                    for (case, kernel) in cases.iter().zip(kernels) {
                        one(case, kernel, peers, (me, round), library);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(done.into_inner(), rounds * cases.len() * world.ranks.len());
}

/// Runs one case on one rank and compares its result.
fn one(case: &Case, kernel: &Kernel, peers: &Peers, (me, round): (usize, usize), library: &Library) {
    let Case { call, results } = case;
    let size = call.dtype.size();
    let at = |r: &BoundRegion| peers.arenas[me] + (r.offset + r.by_rank * me) as Address;
    // SAFETY: the cases lie apart within the arena; no peer touches this operand between the last case that
    // used it and this one.
    let operand = unsafe { bytes_at(at(&call.operand), call.elements * size) };
    for i in 0..call.elements {
        write_f64(call.dtype, operand, i, element(&call.kind, call.dtype, me, i, round));
    }
    library.run(kernel);
    let result = peers.arenas[me] + call.result.offset as Address;
    // SAFETY: as above; peers write the result before it completes.
    let result = unsafe { bytes_at(result, results * size) };
    for i in 0..*results {
        let (found, expected) = (read_f64(call.dtype, result, i), expected(case, me, i, round));
        let what = (call.kind.name(), call.variant, call.dtype, call.elements);
        assert_eq!(found, expected, "{what:?}: element {i} on rank {me} in round {round}");
    }
}

#[test]
fn ranks_agree_round_after_round_and_flags_wrap_around() {
    let limit = 20_000_000_000;
    rounds(&World::new(2, (0, 5), limit, None), 8, "2");
    rounds(&World::new(3, (u64::MAX - 50, u32::MAX), limit, None), 5, "3");
    rounds(&World::new(4, (0, 0), limit, Some(7)), 3, "4");
}

#[test]
fn a_rank_that_does_not_come_is_reported() {
    let world = World::new(3, (0, 0), 20_000_000, None);
    let mut source = Source::new();
    let sum = Kind::AllReduce(ReduceOp::Sum);
    let calls = [
        collective(sum.clone(), Variant::TwoShot, 3, DType::F32, 8),
        collective(sum, Variant::Packets, 3, DType::F32, 8),
    ];
    let run = |rank: usize, source: &mut Source| {
        calls
            .iter()
            .map(|c| {
                let mut c = collective(c.kind.clone(), c.variant, 3, DType::F32, 8);
                (c.operand.offset, c.result.offset, c.landing) = (2 * ZONE, 3 * ZONE, Some([0, ZONE]));
                kernel(&c, &world.peers[rank], source)
            })
            .collect::<Vec<Kernel>>()
    };
    let kernels = [run(0, &mut source), run(2, &mut source)];
    let Some(library) = Library::new(&source, "missing") else { return };
    std::thread::scope(|scope| {
        for kernels in &kernels {
            scope.spawn(|| kernels.iter().for_each(|k| library.run(k)));
        }
    });
    for rank in [0, 2] {
        let missed = control::missed_at(address(&world.ranks[rank].status) as usize);
        assert_eq!(missed, Some(Missed { step: 7, peer: 1, group: 1, block: 0, epoch: 1 }), "rank {rank}");
    }
    assert_eq!(control::missed_at(address(&world.ranks[1].status) as usize), None);
}

/// All-reduce, residual and norm of `rows` rows of `hidden` elements on one rank, in bytes of the dtype.
struct Layer {
    operand: Vec<u8>,
    residual: Vec<u8>,
    weight: Vec<u8>,
    added: Vec<u8>,
    normed: Vec<u8>,
}

fn layer(dtype: DType, rank: usize, rows: usize, hidden: usize) -> Layer {
    let fill = |elements: usize, f: &dyn Fn(usize) -> f64| {
        let mut out = vec![0u8; elements * dtype.size()];
        (0..elements).for_each(|i| write_f64(dtype, &mut out, i, f(i)));
        out
    };
    let elements = rows * hidden;
    Layer {
        operand: fill(elements, &|i| ((i * 7 + rank * 13) % 11) as f64 * 0.25 - 1.0),
        residual: fill(elements, &|i| ((i * 5) % 7) as f64 * 0.5 - 1.5),
        weight: fill(hidden, &|i| 0.5 + (i % 4) as f64),
        added: fill(elements, &|_| 0.0),
        normed: fill(elements, &|_| 0.0),
    }
}

/// Compares one rank's results; `layers` are of all ranks. Without `eps` nothing is normalised.
fn compare_norm(dtype: DType, layers: &[Layer], me: usize, hidden: usize, eps: Option<f64>) {
    let rows = layers[0].operand.len() / dtype.size() / hidden;
    let of = |data: &[u8], i: usize| read_f64(dtype, data, i);
    let added = |i: usize| layers.iter().map(|l| of(&l.operand, i)).sum::<f64>() + of(&layers[0].residual, i);
    for row in 0..rows {
        let x: Vec<f64> = (0..hidden).map(|j| added(row * hidden + j)).collect();
        let squares = x.iter().map(|x| x * x).sum::<f64>() / hidden as f64;
        let scale = eps.map_or(0.0, |eps| 1.0 / (squares + eps).sqrt());
        for (j, &x) in x.iter().enumerate() {
            let i = row * hidden + j;
            assert_eq!(of(&layers[me].added, i), x, "{dtype} {hidden}: row {row}, element {j}");
            let (found, expected) = (of(&layers[me].normed, i), x * scale * of(&layers[me].weight, j));
            let tolerance = if dtype == DType::F32 { 1e-5 } else { 1e-2 };
            let close = (found - expected).abs() <= tolerance * expected.abs();
            assert!(close, "{dtype} {hidden}: row {row}, element {j}: {found} for {expected}");
        }
    }
}

#[test]
fn residual_and_norm_follow_the_reduction() {
    norms_of(&[World::new(3, (0, 0), 20_000_000_000, None)], 3, "norm");
    // Blocks that clear what others of their grid are sent lose it: many delays, each on zones to be cleared.
    let wrapped = |seed| World::new(3, (u64::MAX - 9, u32::MAX), 5_000_000_000, Some(seed));
    norms_of(&(0..40).map(wrapped).collect::<Vec<World>>(), 1, "norm-wrapped");
}

/// Runs all-reduces with a norm on three ranks, in each of these worlds, and compares.
fn norms_of(worlds: &[World], rounds: usize, name: &str) {
    // As lines, also several rows to a block, then as words.
    let lines = [(DType::F32, 3, 120, true), (DType::BF16, 3, 232, true), (DType::BF16, 7, 116, true)];
    let words = [(DType::F16, 1, 8, true), (DType::F32, 2, 8, true), (DType::BF16, 3, 8, false)];
    let shapes: Vec<_> = lines.into_iter().chain(words).collect();
    let mut source = Source::new();
    let all: Vec<Vec<Normed>> = worlds.iter().map(|w| normed(w, &shapes, &mut source)).collect();
    let Some(library) = Library::new(&source, name) else { return };
    for all in &all {
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let library = &library;
                scope.spawn(move || {
                    (0..rounds).for_each(|_| all.iter().for_each(|(_, k)| library.run(&k[rank])));
                });
            }
        });
        for ((layers, _), &(dtype, _, hidden, normalised)) in all.iter().zip(&shapes) {
            let eps = normalised.then_some(NORM_EPS);
            (0..3).for_each(|me| compare_norm(dtype, layers, me, hidden, eps));
        }
    }
}

const NORM_EPS: f64 = 1e-3;

/// Of one shape, the memory and the kernel of each rank.
type Normed = (Vec<Layer>, Vec<Kernel>);

/// Rows are normalised where the shape says so.
fn normed(world: &World, shapes: &[(DType, usize, usize, bool)], source: &mut Source) -> Vec<Normed> {
    let mut all = Vec::new();
    for &(dtype, rows, hidden, normalised) in shapes {
        let mut layers: Vec<Layer> = (0..3).map(|r| layer(dtype, r, rows, hidden)).collect();
        let mut call = collective(Kind::AllReduce(ReduceOp::Sum), Variant::Packets, 3, dtype, rows * hidden);
        call.landing = Some([0, ZONE]);
        let kernels = layers.iter_mut().zip(&world.peers).map(|(l, peers)| {
            let address = |data: &mut Vec<u8>| data.as_mut_ptr().expose_provenance() as Address;
            let norm = FusedNorm {
                operand: address(&mut l.operand),
                residual: address(&mut l.residual),
                weight: Some(address(&mut l.weight)),
                reduced: None,
                added: address(&mut l.added),
                normed: normalised.then(|| address(&mut l.normed)),
                hidden,
                eps: NORM_EPS,
                round_first: dtype == DType::BF16,
            };
            match lower_norm(3, &call, &norm, peers, source) {
                Ok(Some(Work::Kernel(kernel))) => kernel,
                other => panic!("expected a kernel, found {other:?}"),
            }
        });
        let kernels = kernels.collect();
        all.push((layers, kernels));
    }
    all
}
