//! All-gathers that interleave the rows of all ranks, on host threads.

use symmc_ir::tensor::{read_f64, write_f64};

use super::super::call::RankCollective;
use super::super::{barrier, ll};
use super::emulate::{EmulatedWorld, EmulationLibrary, WorldConfig, bytes_at};
use super::*;

/// The operand of each rank.
#[derive(Clone, Copy, Debug)]
struct RowsShape {
    variant: CollectiveVariant,
    dtype: DType,
    rows: usize,
    /// The elements of a row.
    row: usize,
    /// Elements before the operand and the result.
    shift: usize,
    exit: ExitBarrier,
}

const fn shape(variant: CollectiveVariant, dtype: DType, rows: usize, row: usize, shift: usize) -> RowsShape {
    RowsShape { variant, dtype, rows, row, shift, exit: ExitBarrier::Kept }
}

/// By LL in one piece, by LL128 with rows that end within a line, and by pull in units of 16, 4 and 1 bytes.
const TEST_SHAPES: [RowsShape; 13] = [
    shape(CollectiveVariant::Ll, DType::BF16, 3, 8, 0),
    shape(CollectiveVariant::Ll, DType::F32, 5, 4, 1),
    shape(CollectiveVariant::Ll, DType::U8, 1, 16, 3),
    shape(CollectiveVariant::Ll, DType::BF16, 37, 8, 0),
    shape(CollectiveVariant::Ll, DType::I64, 21, 2, 0),
    shape(CollectiveVariant::Ll, DType::F16, 6, 60, 0),
    shape(CollectiveVariant::Ll, DType::F32, 9, 12, 1),
    shape(CollectiveVariant::Pull, DType::BF16, 3, 8, 0),
    shape(CollectiveVariant::Pull, DType::F32, 50, 12, 0),
    RowsShape { exit: ExitBarrier::Dropped, ..shape(CollectiveVariant::Pull, DType::BF16, 101, 8, 0) },
    shape(CollectiveVariant::Pull, DType::F32, 7, 12, 1),
    shape(CollectiveVariant::Pull, DType::F32, 11, 3, 0),
    shape(CollectiveVariant::Pull, DType::U8, 13, 5, 1),
];

/// The bytes of the landing zones, and of each value of a case.
const ZONE_BYTES: usize = 16 << 10;
const VALUE_BYTES: usize = 3 << 10;

/// Element `i` of the operand of a rank in a round.
fn element(rank: usize, round: usize, i: usize) -> f64 {
    ((i * 7 + rank * 31 + round * 5) % 101) as f64
}

/// One case on one rank.
struct RankRows {
    shape: RowsShape,
    at: [Address; 2],
    kernel: KernelLaunch,
}

impl RankRows {
    fn new(number: usize, shape: RowsShape, peers: &PeerContext, source: &mut KernelSource) -> RankRows {
        let RowsShape { variant, dtype, rows, row, shift, exit } = shape;
        let n = peers.arenas.len();
        let mut call = collective(Kind::AllGather, variant, n as u32, dtype, rows * row);
        (call.exit, call.landing) = (Some(exit), Some([0, ZONE_BYTES / 2]));
        let skipped = shift * dtype.size();
        call.operand.offset = ZONE_BYTES + number * VALUE_BYTES + skipped;
        let base = peers.arenas[peers.rank as usize];
        // Values that peers do not access may be anywhere.
        let results = ZONE_BYTES + TEST_SHAPES.len() * VALUE_BYTES;
        let addresses = [call.operand.offset, results + skipped].map(|offset| base + offset as Address);
        let running = RankCollective::new(3, &call, addresses.map(DevicePtr::from), peers).expect("it fits");
        let bytes = row * dtype.size();
        let prepared = match variant {
            CollectiveVariant::Pull => barrier::pull_rows(&running, bytes, exit),
            _ => ll::gather_rows(&running, bytes),
        };
        RankRows { shape, at: addresses, kernel: prepared.expect("it fits").launch(peers, source) }
    }

    /// Runs this rank's kernel on the values of a round and compares the results.
    fn run(&self, library: &EmulationLibrary, me: usize, n: usize, round: usize) {
        let RowsShape { dtype, rows, row, .. } = self.shape;
        let elements = rows * row;
        // SAFETY: each is a value of this rank's arena. Peers do not write it, and read it only in the
        // kernel.
        let value = |at, elements: usize| unsafe { bytes_at(at, elements * dtype.size()) };
        (0..elements).for_each(|i| write_f64(dtype, value(self.at[0], elements), i, element(me, round, i)));
        library.run(&self.kernel);
        for i in 0..elements * n {
            let token = i / (row * n);
            let rank = i / row % n;
            let actual = read_f64(dtype, value(self.at[1], elements * n), i);
            assert_eq!(
                actual,
                element(rank, round, token * row + i % row),
                "{:?} {n} {me} {round} {i}",
                self.shape
            );
        }
    }
}

/// Runs all cases, round after round, on all ranks of each world. Ranks synchronize only in the kernels.
fn run(worlds: &[(u32, WorldConfig)], rounds: usize, name: &str) {
    let emulated: Vec<EmulatedWorld> =
        worlds.iter().map(|(n, given)| EmulatedWorld::new(*n, given)).collect();
    let mut source = KernelSource::new();
    let mut layers: Vec<Vec<Vec<RankRows>>> = Vec::new();
    for world in &emulated {
        let mut ranks = Vec::new();
        for peers in &world.peers {
            let shapes = TEST_SHAPES.iter().enumerate();
            ranks.push(shapes.map(|(i, &shape)| RankRows::new(i, shape, peers, &mut source)).collect());
        }
        layers.push(ranks);
    }
    let Some(library) = EmulationLibrary::new(&source, name) else { return };
    for ranks in &layers {
        std::thread::scope(|scope| {
            for (me, layers) in ranks.iter().enumerate() {
                let library = &library;
                let n = ranks.len();
                scope.spawn(move || {
                    (0..rounds).for_each(|round| layers.iter().for_each(|l| l.run(library, me, n, round)));
                });
            }
        });
    }
}

#[test]
fn rows_of_all_ranks_follow_each_other() {
    let config = WorldConfig::default();
    run(&[2, 3, 4, 7].map(|n| (n, config)), 2, "rows");
    let disturbed = (0..4).map(|seed| (2 + seed as u32 % 3, WorldConfig { chaos: Some(seed), ..config }));
    run(&disturbed.collect::<Vec<_>>(), 1, "rows-chaos");
}

#[test]
fn units_are_as_wide_as_addresses_and_rows_allow() {
    assert!(body(48, 0).contains("Sixteens"));
    assert!(body(48, 4).contains("Fours") && body(20, 0).contains("Fours"));
    assert!(body(48, 1).contains("Bytes") && body(18, 0).contains("Bytes"));
}

fn body(row: usize, shift: usize) -> String {
    let call = collective(Kind::AllGather, CollectiveVariant::Pull, 2, DType::U8, row * 6);
    let peers = peers(0, 2);
    let addresses = [(1 << 32), (1 << 20) + shift as Address];
    let running = RankCollective::new(3, &call, addresses.map(DevicePtr::from), &peers).expect("it fits");
    barrier::pull_rows(&running, row, ExitBarrier::Kept).expect("it fits").body
}
