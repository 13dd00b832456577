//! Collectives without a GPU: what is launched, whether it compiles, and what it computes on host threads.

mod additions;
mod emulate;
mod norms;
mod row_exchange;
mod rows;
mod several;
mod splits;

use std::collections::BTreeSet;

use symmc_ir::DType;
use symmc_ir::collective::{
    AllToAllSplits, CollectiveKind as Kind, CollectiveReduceOp, CollectiveVariant, LL_BYTES, LL128_LINE,
    ProtocolThresholds, landing_zone_bytes,
};
use symmc_plan::ExitBarrier;
use symmc_runtime::exec::{MemorySpace, ResolvedCollective, ResolvedRegion};

use super::blocks::LlProtocol;
use super::kernel_call::DEVICE_SOURCE;
use super::params::LandingParams;
use super::*;
use crate::codegen::addresses::SplitPointers;
use crate::codegen::compile::compile;
use crate::device::driver::LinkAtomicity;
use crate::device::launch::{Address, DevicePtr, KernelLaunch, KernelParam};

const ARENA: usize = 64 << 20;

/// A collective of `elements` elements among `n` ranks, with operand and result at these offsets.
fn collective(
    kind: Kind,
    variant: CollectiveVariant,
    n: u32,
    dtype: DType,
    elements: usize,
) -> ResolvedCollective {
    ResolvedCollective {
        kind,
        variant,
        exit: Some(ExitBarrier::Kept),
        cell: (0..n).collect(),
        group: 1,
        dtype,
        elements,
        row_elements: 1,
        operand: ResolvedRegion::uniform(MemorySpace::Symmetric, 0),
        result: ResolvedRegion::uniform(MemorySpace::Symmetric, ARENA / 2),
        landing: Some([ARENA / 4, ARENA * 3 / 4]),
        blocks: None,
        splits: None,
        rows: None,
    }
}

/// The kinds and variants that have kernels.
fn kinds_and_variants(n: u32) -> Vec<(Kind, CollectiveVariant)> {
    let mut out = vec![
        (Kind::AllGather, CollectiveVariant::Ll),
        (Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Ll),
        (Kind::AllGather, CollectiveVariant::Pull),
        (Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Pull),
        (Kind::AllGather, CollectiveVariant::Push),
        (Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Push),
        (Kind::Broadcast { root: n - 1 }, CollectiveVariant::Put),
        (Kind::Permute { pairs: (0..n).map(|r| (r, (r + 1) % n)).collect() }, CollectiveVariant::Put),
    ];
    for &op in CollectiveReduceOp::ALL {
        out.push((Kind::AllReduce(op), CollectiveVariant::OneShot));
        out.push((Kind::AllReduce(op), CollectiveVariant::TwoShot));
        out.push((Kind::AllReduce(op), CollectiveVariant::Ll));
        out.push((Kind::ReduceScatter(op), CollectiveVariant::Pull));
        out.push((Kind::ReduceScatter(op), CollectiveVariant::Ll));
    }
    out
}

fn peers(rank: u32, n: u32) -> PeerContext {
    let arenas = (0..n).map(|r| Address::from(r + 1) << 32).collect();
    let links = LinkAtomicity::Atomic;
    PeerContext {
        rank,
        arenas,
        arena: ARENA,
        local: 1 << 20,
        status: 1 << 16,
        links,
        ..PeerContext::default()
    }
}

fn kernel(call: &ResolvedCollective, peers: &PeerContext, source: &mut KernelSource) -> KernelLaunch {
    let [operand, result] = [&call.operand, &call.result]
        .map(|region| peers.arenas[peers.rank as usize] + region.offset_on_rank(peers.rank) as Address);
    let works = lower(7, call, &ends_at(operand, result), peers, source).expect("it fits");
    match works.expect("it has a kernel").as_slice() {
        [GpuCommand::Kernel(kernel)] => kernel.clone(),
        other => panic!("expected one kernel, found {other:?}"),
    }
}

#[test]
fn grids_match_across_ranks_and_are_small_when_possible() {
    for n in [2, 3, 8] {
        for (kind, variant) in kinds_and_variants(n) {
            let mut threads_before = 0;
            for elements in [24, 24 * 7, 24 * 1000, 24 * 5000] {
                let call = collective(kind.clone(), variant, n, DType::BF16, elements);
                let mut source = KernelSource::new();
                let shapes: BTreeSet<[u32; 2]> = (0..n)
                    .map(|r| kernel(&call, &peers(r, n), &mut source))
                    .map(|k| [k.grid[0], k.block[0]])
                    .collect();
                assert_eq!(shapes.len(), 1, "{} {variant} on {n} ranks: {shapes:?}", kind.name());
                let [blocks, threads] = shapes.into_iter().next().unwrap_or_default();
                // Messages by LL128 have fewer and larger units.
                assert!((1..=MAX_BLOCKS as u32).contains(&blocks));
                assert!(blocks * threads >= threads_before || variant == CollectiveVariant::Ll);
                assert!((MAX_RANKS as u32..=640).contains(&threads));
                threads_before = blocks * threads;
            }
            assert!(threads_before > 512, "{} {variant}: {threads_before} threads", kind.name());
        }
    }
}

#[test]
fn a_plan_that_says_how_many_blocks_is_followed() {
    for (kind, variant) in kinds_and_variants(2) {
        for blocks in [1, 5, 128] {
            let call = ResolvedCollective {
                blocks: Some(blocks),
                ..collective(kind.clone(), variant, 2, DType::BF16, 1 << 22)
            };
            let grid = kernel(&call, &peers(0, 2), &mut KernelSource::new()).grid;
            assert_eq!(grid, [blocks, 1, 1], "{} {variant}", kind.name());
        }
    }
}

/// The pointers of a collective with its operand and result at these addresses.
fn ends_at(operand: Address, result: Address) -> CollectivePointers {
    CollectivePointers::new(operand.into(), result.into())
}

#[test]
fn copies_lie_between_two_rendezvous() {
    // Rank 1 begins with rank 2, and ends with itself.
    let gather = collective(Kind::AllGather, CollectiveVariant::Copies, 3, DType::F32, 100);
    let result = gather.result.offset;
    let expected = [2, 0, 1].map(|rank| copy(on_rank(rank, result + 400), 64, 400));
    assert_eq!(copied(&copies_of_operand(&gather, 64)), expected);
    let in_place = copies_of_operand(&gather, on_rank(1, result + 400));
    assert_eq!(copied(&in_place).len(), 2, "its own piece is in its place");
    let exchange =
        collective(Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::Copies, 3, DType::U8, 30);
    let expected = [2, 0, 1].map(|rank| copy(on_rank(rank, result + 10), 64 + 10 * rank, 10));
    assert_eq!(copied(&copies_of_operand(&exchange, 64)), expected);
    // Ranks synchronize even if there is nothing to move.
    let nothing = collective(Kind::AllGather, CollectiveVariant::Copies, 3, DType::F32, 0);
    assert!(matches!(copies_of_operand(&nothing, 64)[..], [GpuCommand::Kernel(_)]));
}

/// The commands of rank 1 of three for an operand at this address.
fn copies_of_operand(call: &ResolvedCollective, operand: Address) -> Vec<GpuCommand> {
    let result = peers(1, 3).arenas[1] + call.result.offset as Address;
    let works = lower(7, call, &ends_at(operand, result), &peers(1, 3), &mut KernelSource::new());
    works.expect("it fits").expect("it is ours")
}

fn on_rank(rank: u64, offset: usize) -> Address {
    ((rank + 1) << 32) + offset as Address
}

fn copy(to: Address, from: Address, bytes: usize) -> GpuCommand {
    GpuCommand::Copy { to: to.into(), from: from.into(), bytes }
}

fn copied(works: &[GpuCommand]) -> Vec<GpuCommand> {
    match works {
        [GpuCommand::Kernel(first), copies @ .., GpuCommand::Kernel(last)] => {
            assert_eq!((first.grid, &first.entry), ([1, 1, 1], &last.entry));
            copies.to_vec()
        }
        other => panic!("expected two rendezvous, found {other:?}"),
    }
}

#[test]
fn copies_from_peers_lie_behind_a_rendezvous() {
    let gather = collective(Kind::AllGather, CollectiveVariant::PullCopies, 3, DType::F32, 100);
    let operand = gather.operand.offset;
    for exit in [ExitBarrier::Kept, ExitBarrier::Dropped] {
        let works = copies_to_result(&ResolvedCollective { exit: Some(exit), ..gather.clone() }, 64);
        let (copies, rest) = works[1..].split_at(3);
        // Rank 1 begins with rank 2, and ends with itself.
        assert_eq!(copies, [2, 0, 1].map(|rank| copy(64 + 400 * rank, on_rank(rank, operand), 400)));
        assert!(matches!(works[0], GpuCommand::Kernel(_)));
        assert_eq!(rest.len(), usize::from(exit == ExitBarrier::Kept));
    }
    let dropped = ResolvedCollective { exit: Some(ExitBarrier::Dropped), ..gather };
    let in_place = copies_to_result(&dropped, on_rank(1, operand) - 400);
    assert_eq!(in_place.len(), 3, "its own piece is in its place");
    let exchange =
        collective(Kind::AllToAll(AllToAllSplits::Even), CollectiveVariant::PullCopies, 3, DType::U8, 30);
    let exchange = ResolvedCollective { exit: Some(ExitBarrier::Dropped), ..exchange };
    let operand = exchange.operand.offset;
    let expected = [2, 0, 1].map(|rank| copy(64 + 10 * rank, on_rank(rank, operand + 10), 10));
    assert_eq!(copies_to_result(&exchange, 64)[1..], expected);
}

/// The commands of rank 1 of three for a result at this address.
fn copies_to_result(call: &ResolvedCollective, result: Address) -> Vec<GpuCommand> {
    let operand = peers(1, 3).arenas[1] + call.operand.offset as Address;
    let works = lower(7, call, &ends_at(operand, result), &peers(1, 3), &mut KernelSource::new());
    works.expect("it fits").expect("it is ours")
}

#[test]
fn grids_grow_by_blocks_then_threads() {
    let blocks = GridLimits { threads: 64, most_threads: 256, blocks: 4 };
    assert_eq!(blocks.grid(0), [1, 64]);
    assert_eq!(blocks.grid(65), [2, 64]);
    assert_eq!(blocks.grid(256), [4, 64]);
    assert_eq!(blocks.grid(300), [4, 96]);
    assert_eq!(blocks.grid(1 << 40), [4, 256]);
    let wild = GridLimits { threads: 0, most_threads: 4096, blocks: 4096 };
    assert_eq!(wild.grid(1), [1, MAX_RANKS as u32]);
    assert_eq!(wild.grid(1 << 40), [MAX_BLOCKS as u32, 640]);
}

#[test]
fn messages_stay_within_the_zone_that_the_contract_gives() {
    for n in 2..=MAX_RANKS {
        let large = LL_BYTES as usize / n;
        for message in (1..400).chain([1 << 12, (1 << 12) + 1, large, large + 1, large + 121, large * 32 + 8])
        {
            let sum = Kind::AllReduce(CollectiveReduceOp::Sum);
            for (kind, bytes) in [
                (Kind::AllGather, message),
                (Kind::AllToAll(AllToAllSplits::Even), message * n),
                (Kind::ReduceScatter(CollectiveReduceOp::Sum), message * n),
                (sum, message),
            ] {
                let room = CollectiveVariant::Ll.landing_bytes(&kind, bytes as u64, n as u64) as usize;
                assert_eq!(room as u64, landing_zone_bytes(message as u64, n as u64, LL_BYTES));
                let call = collective(kind, CollectiveVariant::Ll, n as u32, DType::U8, bytes);
                // A message that does not fit its zone is an error.
                let kernel = kernel(&call, &peers(0, n as u32), &mut KernelSource::new());
                assert!(kernel.entry.contains("ll"), "{n} ranks, {message} bytes");
            }
        }
    }
}

#[test]
fn ll_and_ll128_use_disjoint_parts_of_a_zone() {
    for n in 2..=MAX_RANKS as u32 {
        let limit = LL_BYTES as usize / n as usize;
        let small = protocol_and_zone_part(n, limit);
        let large = protocol_and_zone_part(n, limit + 1);
        assert_eq!((small.0, large.0), (LlProtocol::Ll, LlProtocol::Ll128));
        assert!(small.1 == 0 && small.2 <= large.1, "{n} ranks: {small:?} {large:?}");
        // Lines that are not aligned to their size do not arrive as a whole.
        assert!(large.1.is_multiple_of(LL128_LINE), "{n} ranks: {large:?}");
    }
    let mut call = collective(
        Kind::AllReduce(CollectiveReduceOp::Sum),
        CollectiveVariant::Ll,
        2,
        DType::U8,
        LL_BYTES as usize,
    );
    call.landing = Some([64, ARENA / 2]);
    let error =
        lower(7, &call, &ends_at(0, 0), &peers(0, 2), &mut KernelSource::new()).expect_err("it does not fit");
    assert!(error.to_string().contains("at a multiple of 128"), "{error}");
}

/// The protocol of an all-reduce, and the first byte and the end of its part of a landing zone.
fn protocol_and_zone_part(n: u32, elements: usize) -> (LlProtocol, Address, Address) {
    let call =
        collective(Kind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::Ll, n, DType::U8, elements);
    let peers = peers(0, n);
    let running = RankCollective::new(0, &call, [DevicePtr::NULL; 2], &peers).expect("it fits");
    let protocol = running.protocol(elements);
    let units = ll::units(protocol, elements);
    let call = running.ll(elements, protocol, units, 1).expect("it fits");
    let first = call.slots.into_iter().filter(|&a| a != 0).min().expect("a slot") - call.zone;
    assert_eq!(first, call.before * 16);
    (protocol, first, first + (Address::from(n - 1) * units as Address * 16))
}

/// The kernel of a two-shot all-reduce of this many elements.
fn two_shot_kernel(elements: usize, change: impl Fn(&mut ResolvedCollective)) -> String {
    let mut call = collective(
        Kind::AllReduce(CollectiveReduceOp::Sum),
        CollectiveVariant::TwoShot,
        2,
        DType::BF16,
        elements,
    );
    change(&mut call);
    let mut peers = peers(0, 2);
    peers.thresholds.min_pushed_bytes = 1 << 20;
    kernel(&call, &peers, &mut KernelSource::new()).entry
}

#[test]
fn large_two_shots_store_alone() {
    assert!(pushed(1 << 20, &|_| {}));
    assert!(!pushed(1 << 10, &|_| {}), "a small one");
    assert!(!pushed((1 << 20) + 8, &|_| {}), "slices that are no multiples of 16 bytes");
    assert!(pushed(1 << 20, &|c| c.result = c.operand.clone()), "in place");
    assert!(!pushed(1 << 20, &|c| c.result.offset = c.operand.offset + 4096), "overlapping");
    assert!(!pushed(1 << 20, &|c| c.operand.offset += 2), "not aligned");
}

fn pushed(elements: usize, change: &dyn Fn(&mut ResolvedCollective)) -> bool {
    two_shot_kernel(elements, change).contains("pushed")
}

#[test]
fn slots_of_a_zone_have_one_sender_each() {
    let n = 4;
    let call = collective(Kind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::Ll, n, DType::F32, 10);
    let mut calls: Vec<LandingParams> = Vec::new();
    for rank in 0..n {
        let peers = peers(rank, n);
        let running = RankCollective::new(0, &call, [DevicePtr::NULL; 2], &peers);
        let params = running.and_then(|running| running.ll(40, LlProtocol::Ll, 5, 1));
        calls.push(params.unwrap_or_else(|e| panic!("rank {rank}: {e}")));
    }
    let sent: BTreeSet<Address> = calls.iter().flat_map(|c| c.to).filter(|&a| a != 0).collect();
    assert_eq!(sent.len(), (n * (n - 1)) as usize);
    let received: BTreeSet<Address> = calls.iter().flat_map(|c| c.slots).filter(|&a| a != 0).collect();
    assert_eq!(sent, received);
    for (me, call) in calls.iter().enumerate() {
        assert_eq!(call.slots[me], 0);
        for (i, &to) in call.to[..3].iter().enumerate() {
            let receiver = (me + 1 + i) % n as usize;
            assert_eq!(to, calls[receiver].slots[me]);
        }
    }
}

#[test]
fn invalid_collectives_are_errors_with_the_step() {
    let mut source = KernelSource::new();
    let mut call = collective(
        Kind::AllReduce(CollectiveReduceOp::Sum),
        CollectiveVariant::OneShot,
        2,
        DType::F32,
        ARENA,
    );
    let error = fails(&call, &peers(0, 2), &mut source);
    assert!(error.contains("step 7 (all_reduce as one_shot)") && error.contains("operand"), "{error}");
    call.elements = 4;
    call.operand.space = MemorySpace::Ordinary;
    assert!(fails(&call, &peers(0, 2), &mut source).contains("Ordinary"));
    let call = collective(Kind::AllGather, CollectiveVariant::Push, 9, DType::F32, 4);
    assert!(fails(&call, &peers(0, 9), &mut source).contains("at most 8 ranks"));
    assert!(fails(&call, &peers(0, 4), &mut source).contains("of the 4 ranks"));
    let mut call = collective(Kind::AllGather, CollectiveVariant::Ll, 2, DType::F32, 4);
    call.landing = None;
    assert!(fails(&call, &peers(0, 2), &mut source).contains("landing zones"));
    let call =
        collective(Kind::ReduceScatter(CollectiveReduceOp::Sum), CollectiveVariant::Pull, 2, DType::F32, 5);
    assert!(fails(&call, &peers(0, 2), &mut source).contains("multiple of 2"));
}

fn fails(call: &ResolvedCollective, peers: &PeerContext, source: &mut KernelSource) -> String {
    lower(7, call, &ends_at(0, 0), peers, source).expect_err("it does not fit").to_string()
}

#[test]
fn plain_is_left_to_nccl_except_on_one_rank() {
    let mut source = KernelSource::new();
    let sum = Kind::AllReduce(CollectiveReduceOp::Sum);
    let call = collective(sum.clone(), CollectiveVariant::Plain, 2, DType::F32, 4);
    assert_eq!(lower(0, &call, &ends_at(0, 0), &peers(0, 2), &mut source), Ok(None));
    let call = collective(sum, CollectiveVariant::Plain, 1, DType::F32, 4);
    let copy = vec![GpuCommand::Copy { to: 512.into(), from: 256.into(), bytes: 16 }];
    assert_eq!(lower(0, &call, &ends_at(256, 512), &peers(0, 1), &mut source), Ok(Some(copy)));
    assert_eq!(lower(0, &call, &ends_at(256, 256), &peers(0, 1), &mut source), Ok(Some(vec![])));
    let call = collective(Kind::Permute { pairs: vec![] }, CollectiveVariant::Put, 1, DType::F32, 4);
    let zero = vec![GpuCommand::Zero { at: 512.into(), bytes: 16 }];
    assert_eq!(lower(0, &call, &ends_at(256, 512), &peers(0, 1), &mut source), Ok(Some(zero)));
    assert!(source.is_empty());
}

#[test]
fn equal_collectives_share_a_function() {
    let mut source = KernelSource::new();
    let small =
        collective(Kind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::OneShot, 2, DType::F32, 64);
    let large = ResolvedCollective {
        elements: 4096,
        group: 0,
        ..collective(Kind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::OneShot, 2, DType::F32, 64)
    };
    let small = kernel(&small, &peers(0, 2), &mut source);
    let large = kernel(&large, &peers(0, 2), &mut source);
    assert_eq!(small.entry, large.entry);
    assert_ne!(small.params, large.params);
    assert_eq!(source.names().count(), 1);
}

/// Compiles each kernel for GPUs if NVRTC is available: all dtypes for four ranks, and all numbers of ranks.
#[test]
fn every_kernel_compiles() {
    let mut source = KernelSource::new();
    for n in [2, 3, 4, 8] {
        for dtype in DType::ALL.iter().copied().filter(|&d| n == 4 || d == DType::BF16) {
            let is_complete = n == 4 && dtype == DType::BF16;
            let slow = [CollectiveReduceOp::Avg, CollectiveReduceOp::Prod, CollectiveReduceOp::Min];
            for (kind, variant) in kinds_and_variants(n) {
                let wanted = match &kind {
                    Kind::AllReduce(_) | Kind::ReduceScatter(_) if dtype.is_storage_float() => false,
                    Kind::AllReduce(op) | Kind::ReduceScatter(op) => is_complete || !slow.contains(op),
                    _ => is_complete || dtype == DType::BF16,
                };
                if !wanted {
                    continue;
                }
                for (shift, exit) in [(0, ExitBarrier::Kept), (dtype.size(), ExitBarrier::Dropped)] {
                    let mut call = collective(kind.clone(), variant, n, dtype, 24 * 64);
                    call.exit = Some(exit);
                    call.operand.offset += shift * usize::from(is_complete);
                    // Each protocol that a variant can take.
                    let sizes = [(1 << 20, 1, 1 << 20), (1, 1 << 20, 16), (1, 1, 16)];
                    let some = if is_complete { 3 } else { 1 + exit as usize };
                    for (ll, saved, pushed) in sizes.into_iter().rev().take(some) {
                        let thresholds = ProtocolThresholds {
                            ll_bytes: ll,
                            min_saved_bytes: saved,
                            min_pushed_bytes: pushed,
                        };
                        let chaos = is_complete.then_some(1);
                        kernel(&call, &PeerContext { chaos, thresholds, ..peers(0, n) }, &mut source);
                    }
                }
            }
        }
    }
    let names: BTreeSet<&str> = source.names().collect();
    assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')));
    for (dtype, hidden) in [(DType::BF16, 4096), (DType::BF16, 8192), (DType::F32, 1024), (DType::F16, 64)] {
        for n in [2, 4, 8] {
            lower_with_norm(n, dtype, hidden, &mut source);
        }
    }
    [2, 4, 8].into_iter().for_each(|n| pushed_kernels(n, &mut source));
    [1, 2, 3, 4, 8].into_iter().for_each(|n| splits::kernels(n, &mut source));
    [1, 2, 4, 8].into_iter().for_each(|n| row_exchange::kernels(n, &mut source));
    [2, 4, 8].into_iter().for_each(|n| several::kernels(n, &mut source));
    let mut small = KernelSource::new();
    lower_with_norm(4, DType::F16, 2048, &mut small);
    for (kind, variant) in kinds_and_variants(4) {
        let links = LinkAtomicity::MaySplit;
        let thresholds = ProtocolThresholds { ll_bytes: 1, ..ProtocolThresholds::default() };
        let call = collective(kind, variant, 4, DType::F16, 24 * 64);
        kernel(&call, &PeerContext { links, thresholds, ..peers(0, 4) }, &mut small);
    }
    splits::kernels(4, &mut small);
    for (source, capability) in [(&small, [8, 0]), (&source, [9, 0])] {
        match compile(source, capability) {
            Ok(code) => assert!(!code.is_empty()),
            Err(CudaError::Missing { library, .. }) => {
                return symmc_cases::skip_test(&format!("no {library}"));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Two-shots by stores only, in place or not, with and without an addition.
fn pushed_kernels(n: u32, source: &mut KernelSource) {
    let mut call = collective(
        Kind::AllReduce(CollectiveReduceOp::Sum),
        CollectiveVariant::TwoShot,
        n,
        DType::BF16,
        24 * 64,
    );
    let thresholds = ProtocolThresholds { min_pushed_bytes: 16, ..ProtocolThresholds::default() };
    let peers = PeerContext { chaos: (n == 4).then_some(1), thresholds, ..peers(0, n) };
    let addition = Addition { residual: (1 << 30).into(), sum: (1 << 31).into() };
    for in_place in [false, true] {
        if in_place {
            call.operand = call.result.clone();
        }
        let ends =
            [&call.operand, &call.result].map(|r| DevicePtr::from(peers.arenas[0] + r.offset as Address));
        let work = lower_addition(1, &call, ends, &addition, &peers, source).expect("it fits");
        let plain = lower(1, &call, &CollectivePointers::new(ends[0], ends[1]), &peers, source)
            .expect("it fits")
            .expect("ours");
        for work in work.iter().chain(&plain) {
            let GpuCommand::Kernel(kernel) = work else { panic!("expected a kernel, found {work:?}") };
            assert!(kernel.entry.contains("pushed"), "{}", kernel.entry);
        }
        assert!(source.text().contains(&format!("Sum, {n}, {}, {in_place}>", (8 / n).max(1))));
    }
}

/// All-reduce with a norm of 70 rows.
fn lower_with_norm(n: u32, dtype: DType, hidden: usize, source: &mut KernelSource) -> Option<GpuCommand> {
    let call =
        collective(Kind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::Ll, n, dtype, 70 * hidden);
    let norm = AllReduceNorm {
        operand: (1 << 12).into(),
        residual: (1 << 24).into(),
        weight: Some((1 << 25).into()),
        reduced: None,
        added: (1 << 26).into(),
        normed: Some((1 << 27).into()),
        hidden,
        eps: 1e-6,
        round_first: hidden > 4096,
    };
    lower_norm(1, &call, &norm, &peers(0, n), source).expect("it fits")
}

#[test]
fn norm_is_fused_where_a_block_holds_a_row() {
    let mut source = KernelSource::new();
    let Some(GpuCommand::Kernel(kernel)) = lower_with_norm(4, DType::BF16, 8192, &mut source) else {
        panic!("no kernel")
    };
    assert_eq!((kernel.grid, kernel.block), ([70, 1, 1], [576, 1, 1]));
    assert!(
        source.text().contains("ll_norm<BF16, Sum, 4, Ll128, 2, true, true>"),
        "two units for each thread"
    );
    assert_eq!(lower_with_norm(4, DType::BF16, 32768, &mut source), None);
    assert_eq!(lower_with_norm(4, DType::BF16, 30, &mut source), None);
    assert_eq!(lower_with_norm(4, DType::I64, 32, &mut source), None);
    let fused = lower_with_norm(8, DType::F32, 40, &mut source);
    assert!(matches!(fused, Some(GpuCommand::Kernel(k)) if k.block == [128, 1, 1]));
    assert_eq!(lower_with_norm(4, DType::BF16, 484, &mut source), None, "rows that waste their last line");
}
