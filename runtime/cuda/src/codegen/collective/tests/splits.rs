//! All-to-alls with sizes on the device, on host threads.

use symmc_support::random::SplitMix;

use super::emulate::{EmulatedWorld, EmulationLibrary, WorldConfig, bytes_at};
use super::*;

/// Rows of `row` elements, `capacity` of them on each rank.
#[derive(Clone, Copy, Debug)]
struct SplitShape {
    dtype: DType,
    row: usize,
    capacity: usize,
    variant: CollectiveVariant,
    /// The offset of the operand from an aligned address, in elements.
    shift: usize,
}

const fn shape(dtype: DType, row: usize, capacity: usize) -> SplitShape {
    SplitShape { dtype, row, capacity, variant: CollectiveVariant::Plain, shift: 0 }
}

/// Every unit; messages of no round, one round, a partial round and many rounds; grids of one and of several
/// blocks.
const TEST_SHAPES: [SplitShape; 9] = [
    shape(DType::F32, 5, 24),
    shape(DType::F32, 4, 300),
    shape(DType::BF16, 3, 40),
    shape(DType::U8, 7, 17),
    shape(DType::I64, 1, 90),
    shape(DType::F64, 2, 6),
    shape(DType::F32, 9, 0),
    SplitShape { shift: 1, ..shape(DType::BF16, 8, 60) },
    SplitShape { shift: 1, ..shape(DType::I32, 4, 33) },
];

const VALUE_BYTES: usize = 8 << 10;

/// The offsets of a rank's operand, result, sizes and received sizes in its arena.
const VALUE_OFFSETS: [usize; 4] = [0, VALUE_BYTES, 2 * VALUE_BYTES, 2 * VALUE_BYTES + 1024];

fn call(shape: &SplitShape, n: u32) -> ResolvedCollective {
    let region = |offset| ResolvedRegion::uniform(MemorySpace::Symmetric, offset);
    let kind = Kind::AllToAll(AllToAllSplits::Device);
    ResolvedCollective {
        row_elements: shape.row,
        operand: region(VALUE_OFFSETS[0] + shape.shift * shape.dtype.size()),
        result: region(VALUE_OFFSETS[1]),
        splits: Some((region(VALUE_OFFSETS[2]), region(VALUE_OFFSETS[3]))),
        rows: None,
        ..collective(kind, shape.variant, n, shape.dtype, shape.row * shape.capacity)
    }
}

fn lower_exchange(call: &ResolvedCollective, peers: &PeerContext, source: &mut KernelSource) -> KernelLaunch {
    let address_of = |region: &ResolvedRegion| {
        DevicePtr::from(peers.arenas[peers.rank as usize] + region.offset as Address)
    };
    let sizes = call
        .splits
        .as_ref()
        .map(|(sent, received)| SplitPointers { sent: address_of(sent), received: address_of(received) });
    let ends = CollectivePointers {
        sizes,
        ..CollectivePointers::new(address_of(&call.operand), address_of(&call.result))
    };
    match lower(7, call, &ends, peers, source).expect("it fits").expect("it is ours").as_slice() {
        [GpuCommand::Kernel(kernel)] => kernel.clone(),
        other => panic!("expected one kernel, found {other:?}"),
    }
}

/// The rows between all pairs of ranks in a round: as many as fit, few, or none from some ranks and to some.
fn sizes(round: usize, n: usize, capacity: usize) -> Vec<Vec<i64>> {
    let mut random = SplitMix(round as u64 * 31 + capacity as u64);
    let mut unsent = vec![capacity; n];
    let mut room = vec![capacity; n];
    let mut out = vec![vec![0; n]; n];
    for k in 0..n * n {
        let from = (k + round) % n;
        let target = (k / n + k + round) % n;
        let limit = unsent[from].min(room[target]);
        let size = match round % 3 {
            0 => random.below(limit + 1),
            1 => limit,
            _ if random.below(3) == 0 => limit.min(3),
            _ => 0,
        };
        unsent[from] -= size;
        room[target] -= size;
        out[from][target] += size as i64;
    }
    out
}

/// Byte `i` of the operand of a rank.
fn byte(rank: usize, round: usize, i: usize) -> u8 {
    (i * 7 + rank * 101 + round * 13 + i / 251) as u8
}

/// One exchange on one rank: writes operand and sizes, runs the kernel, and compares the result.
fn run_exchange(
    shape: &SplitShape,
    kernel: &KernelLaunch,
    base: Address,
    (me, n, round): (usize, usize, usize),
    library: &EmulationLibrary,
) {
    let row = shape.row * shape.dtype.size();
    let bytes = row * shape.capacity;
    let sizes = sizes(round, n, shape.capacity);
    let operand = VALUE_OFFSETS[0] + shape.shift * shape.dtype.size();
    // SAFETY: the places are separate within the arena. No peer accesses them after the last exchange has
    // completed here, or before this one begins.
    let [operand, result, sent, received] =
        [(operand, bytes), (VALUE_OFFSETS[1], bytes), (VALUE_OFFSETS[2], 8 * n), (VALUE_OFFSETS[3], 8 * n)]
            .map(|(at, len)| unsafe { bytes_at(base + at as Address, len) });
    operand.iter_mut().enumerate().for_each(|(i, b)| *b = byte(me, round, i));
    result.fill(0xee);
    sent.chunks_mut(8).zip(&sizes[me]).for_each(|(to, size)| to.copy_from_slice(&size.to_le_bytes()));
    library.run(kernel);
    let mut expected = Vec::new();
    for (from, sizes) in sizes.iter().enumerate() {
        let before: i64 = sizes[..me].iter().sum();
        let start = before as usize * row;
        expected.extend((start..start + sizes[me] as usize * row).map(|i| byte(from, round, i)));
    }
    expected.resize(bytes, 0);
    assert!(*result == *expected, "{shape:?}: rank {me} of {n} in round {round}, {sizes:?}");
    let counts: Vec<u8> = sizes.iter().flat_map(|s| s[me].to_le_bytes()).collect();
    assert!(*received == *counts, "{shape:?}: sizes on rank {me} of {n} in round {round}");
}

#[test]
fn rows_go_where_the_sizes_say() {
    for n in 1..=4u32 {
        let chaos = (n == 3).then_some(5);
        let world = EmulatedWorld::new(n, &WorldConfig { chaos, ..WorldConfig::default() });
        let mut shapes: Vec<SplitShape> = Vec::new();
        for variant in [CollectiveVariant::Plain, CollectiveVariant::Pull] {
            shapes.extend(TEST_SHAPES.iter().map(|shape| SplitShape { variant, ..*shape }));
        }
        let mut source = KernelSource::new();
        let mut kernels: Vec<Vec<KernelLaunch>> = Vec::new();
        for peers in &world.peers {
            kernels.push(shapes.iter().map(|s| lower_exchange(&call(s, n), peers, &mut source)).collect());
        }
        let Some(library) = EmulationLibrary::new(&source, &format!("splits-{n}")) else { return };
        std::thread::scope(|scope| {
            for (me, (peers, kernels)) in world.peers.iter().zip(&kernels).enumerate() {
                let shapes = &shapes;
                let library = &library;
                scope.spawn(move || {
                    for round in 0..3 {
                        for (shape, kernel) in shapes.iter().zip(kernels) {
                            run_exchange(shape, kernel, peers.arenas[me], (me, n as usize, round), library);
                        }
                    }
                });
            }
        });
        assert!((0..n as usize).all(|rank| world.unfit(rank).is_none()));
    }
}

/// Sizes of three ranks, one of which does not fit 10 rows, and the expected report.
const UNFIT_SIZES: [([[i64; 3]; 3], u32, SplitDirection, [i64; 3]); 4] = [
    ([[1, 2, 3], [4, -1, 4], [0, 0, 0]], 1, SplitDirection::Sent, [4, -1, 4]),
    ([[1, 0, 3], [0, 0, 0], [0, 10, 1]], 2, SplitDirection::Sent, [0, 10, 1]),
    ([[0, 4, 0], [0, 3, 0], [0, 4, 0]], 1, SplitDirection::Received, [4, 3, 4]),
    ([[i64::MAX, 1, 0], [0; 3], [0; 3]], 0, SplitDirection::Sent, [i64::MAX, 1, 0]),
];

/// An exchange of three ranks whose sizes do not fit.
struct UnfitExchange {
    variant: CollectiveVariant,
    sizes: [[i64; 3]; 3],
    rank: u32,
    direction: SplitDirection,
    found: [i64; 3],
    world: EmulatedWorld,
    kernels: Vec<KernelLaunch>,
}

impl UnfitExchange {
    fn run_rank(&self, me: usize, library: &EmulationLibrary) {
        let base = self.world.peers[me].arenas[me];
        // SAFETY: nothing else accesses the sizes.
        let sent = unsafe { bytes_at(base + VALUE_OFFSETS[2] as Address, 24) };
        let bytes = self.sizes[me].iter().flat_map(|s| s.to_le_bytes());
        sent.iter_mut().zip(bytes).for_each(|(to, b)| *to = b);
        // All ranks continue to the next collective of the group.
        (0..2).for_each(|_| library.run(&self.kernels[me]));
        // SAFETY: nothing else accesses the result.
        let result = unsafe { bytes_at(base + VALUE_OFFSETS[1] as Address, 80) };
        assert!(result.iter().all(|b| *b == 0), "{}, rank {me}: {:?}", self.variant, self.sizes);
    }
}

#[test]
fn invalid_split_sizes_are_reported_without_moving_data() {
    let mut source = KernelSource::new();
    let mut cases = Vec::new();
    for (sizes, rank, direction, found) in UNFIT_SIZES {
        for variant in [CollectiveVariant::Plain, CollectiveVariant::Pull] {
            let world = EmulatedWorld::new(3, &WorldConfig::default());
            let bad = call(&SplitShape { variant, ..shape(DType::F32, 2, 10) }, 3);
            let kernels = world.peers.iter().map(|peers| lower_exchange(&bad, peers, &mut source)).collect();
            cases.push(UnfitExchange { variant, sizes, rank, direction, found, world, kernels });
        }
    }
    let Some(library) = EmulationLibrary::new(&source, "unfit") else { return };
    for case in &cases {
        std::thread::scope(|scope| {
            let library = &library;
            for me in 0..3 {
                scope.spawn(move || case.run_rank(me, library));
            }
        });
        for me in 0..3 {
            let label = format!("{}, rank {me}: {:?}", case.variant, case.sizes);
            let report = case.world.unfit(me).expect("a report");
            assert_eq!(
                (report.step, report.rank, report.direction),
                (7, case.rank, case.direction),
                "{label}"
            );
            assert_eq!(report.sizes[..3], case.found, "{label}");
        }
    }
}

/// The kernels of `n` ranks, for every unit.
pub(super) fn kernels(n: u32, source: &mut KernelSource) {
    for variant in [CollectiveVariant::Plain, CollectiveVariant::Pull] {
        for row in [1, 2, 4, 8, 16] {
            let call = call(&SplitShape { variant, ..shape(DType::U8, row, 40) }, n);
            lower_exchange(&call, &with_control(peers(0, n)), source);
        }
    }
}

#[test]
fn the_unit_is_the_same_on_all_ranks() {
    for (offset, distance) in [(0, 0), (0, 16), (0, 8), (4, 12), (16, 4)] {
        let by_rank = Some([offset, offset + distance].into());
        let operand = ResolvedRegion { space: MemorySpace::Symmetric, offset, by_rank };
        let call = ResolvedCollective { operand, ..call(&shape(DType::F32, 4, 12), 2) };
        let [first, second] = [0, 1]
            .map(|rank| lower_exchange(&call, &with_control(peers(rank, 2)), &mut KernelSource::new()).entry);
        assert_eq!(first, second, "{offset} {distance}");
    }
}

fn with_control(peers: PeerContext) -> PeerContext {
    PeerContext {
        control: ControlRegion { groups: 2, max_exchange_ranks: 8, staging_bytes: STAGING_BYTES },
        ..peers
    }
}

#[test]
fn cell_larger_than_the_control_region_is_rejected() {
    let small = PeerContext {
        control: ControlRegion { groups: 2, max_exchange_ranks: 2, staging_bytes: STAGING_BYTES },
        ..peers(0, 3)
    };
    let call = call(&shape(DType::F32, 4, 12), 3);
    let ends = CollectivePointers {
        sizes: Some(SplitPointers { sent: 8.into(), received: 16.into() }),
        ..ends_at(0, 64)
    };
    let error = lower(7, &call, &ends, &small, &mut KernelSource::new()).expect_err("no room");
    assert!(error.to_string().contains("expected a cell of up to 2 ranks"), "{error}");
}
