//! All-reduce with residual and norm on host threads: rows that one block sends, and rows that several blocks
//! share.

use symmc_ir::tensor::{read_f64, write_f64};

use super::emulate::{EmulatedWorld, EmulationLibrary, WorldConfig};
use super::*;

const NORM_EPS: f64 = 1e-3;

/// Rows that are reduced, added to a residual and optionally normalised.
#[derive(Clone, Copy, Debug)]
struct NormShape {
    dtype: DType,
    rows: usize,
    hidden: usize,
    normalised: bool,
    /// Whether the reduction itself is stored.
    kept: bool,
    /// The value in place of the operand.
    on_operand: OnOperand,
    /// All values are multiples of this.
    unit: f64,
    /// The offset of all values from a multiple of 16 bytes, in elements.
    shift: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum OnOperand {
    Nothing,
    Reduction,
    Sum,
    Norm,
}

const fn shape(dtype: DType, rows: usize, hidden: usize) -> NormShape {
    NormShape {
        dtype,
        rows,
        hidden,
        normalised: true,
        kept: false,
        on_operand: OnOperand::Nothing,
        unit: 1.0,
        shift: 0,
    }
}

const fn in_place(dtype: DType, rows: usize, hidden: usize) -> NormShape {
    NormShape { on_operand: OnOperand::Sum, ..shape(dtype, rows, hidden) }
}

const fn shifted(shift: usize, shape: NormShape) -> NormShape {
    NormShape { shift, ..shape }
}

const fn norm_in_place(dtype: DType, rows: usize, hidden: usize) -> NormShape {
    NormShape { on_operand: OnOperand::Norm, ..shape(dtype, rows, hidden) }
}

const fn reduction_in_place(dtype: DType, rows: usize, hidden: usize) -> NormShape {
    NormShape { on_operand: OnOperand::Reduction, kept: true, ..shape(dtype, rows, hidden) }
}

/// Element `i` of the operand of `rank` in a round. All sums are exact in every float dtype.
fn operand(rank: usize, round: usize, i: usize) -> f64 {
    ((i * 7 + rank * 13 + round * 5) % 11) as f64 * 0.25 - 1.0
}

fn residual(round: usize, i: usize) -> f64 {
    ((i * 5 + round) % 7) as f64 * 0.5 - 1.5
}

fn weight(j: usize) -> f64 {
    0.5 + (j % 4) as f64
}

impl NormShape {
    /// The term that is added to the mean of the squares.
    fn eps(self) -> f64 {
        if self.unit == 1.0 { NORM_EPS } else { 0.0 }
    }
}

/// The values of one rank as bytes of the dtype, and its kernel.
struct RankNorm {
    shape: NormShape,
    operand: Vec<u8>,
    residual: Vec<u8>,
    reduced: Vec<u8>,
    weight: Vec<u8>,
    added: Vec<u8>,
    normed: Vec<u8>,
    kernel: Option<KernelLaunch>,
}

fn fill(dtype: DType, to: &mut [u8], f: impl Fn(usize) -> f64) {
    (0..to.len() / dtype.size()).for_each(|i| write_f64(dtype, to, i, f(i)));
}

impl RankNorm {
    fn new(shape: NormShape, peers: &PeerContext, zone: usize, source: &mut KernelSource) -> RankNorm {
        let NormShape { dtype, rows, hidden, .. } = shape;
        let n = peers.arenas.len() as u32;
        let shift = shape.shift * dtype.size();
        let values = |elements: usize| vec![0u8; elements * dtype.size() + shift];
        let elements = rows * hidden;
        let [operand, residual, reduced, added, normed] = [(); 5].map(|()| values(elements));
        let mut out = RankNorm {
            shape,
            operand,
            residual,
            reduced,
            weight: values(hidden),
            added,
            normed,
            kernel: None,
        };
        fill(dtype, &mut out.weight[shift..], weight);
        let mut call =
            collective(Kind::AllReduce(CollectiveReduceOp::Sum), CollectiveVariant::Ll, n, dtype, elements);
        call.landing = Some([0, zone]);
        let address =
            |data: &mut Vec<u8>| DevicePtr::from((data.as_mut_ptr().expose_provenance() + shift) as Address);
        let operand = address(&mut out.operand);
        let result = |which, data| if shape.on_operand == which { operand } else { address(data) };
        let norm = AllReduceNorm {
            operand,
            residual: address(&mut out.residual),
            weight: Some(address(&mut out.weight)),
            reduced: shape.kept.then(|| result(OnOperand::Reduction, &mut out.reduced)),
            added: result(OnOperand::Sum, &mut out.added),
            normed: shape.normalised.then(|| result(OnOperand::Norm, &mut out.normed)),
            hidden,
            eps: shape.eps(),
            round_first: dtype == DType::BF16,
        };
        match lower_norm(3, &call, &norm, peers, source) {
            Ok(Some(GpuCommand::Kernel(kernel))) => out.kernel = Some(kernel),
            other => panic!("expected a kernel, found {other:?}"),
        }
        out
    }

    /// Runs this rank's kernel on the values of a round and compares the results. Returns the bytes of the
    /// norm.
    fn run(&mut self, library: &EmulationLibrary, me: usize, n: usize, round: usize) -> Vec<u8> {
        let NormShape { dtype, rows, hidden, normalised, kept, on_operand, unit, shift } = self.shape;
        let shift = shift * dtype.size();
        fill(dtype, &mut self.operand[shift..], |i| operand(me, round, i) * unit);
        fill(dtype, &mut self.residual[shift..], |i| residual(round, i) * unit);
        library.run(self.kernel.as_ref().expect("it was made"));
        let result =
            |which, apart| -> &[u8] { &(if on_operand == which { &self.operand } else { apart })[shift..] };
        let added = result(OnOperand::Sum, &self.added);
        let normed = result(OnOperand::Norm, &self.normed);
        let stored = result(OnOperand::Reduction, &self.reduced);
        let reduced = |i: usize| (0..n).map(|r| operand(r, round, i)).sum::<f64>() * unit;
        for row in 0..rows {
            let position = |j: usize| row * hidden + j;
            let x: Vec<f64> =
                (0..hidden).map(|j| reduced(position(j)) + residual(round, position(j)) * unit).collect();
            let squares = x.iter().map(|x| x * x).sum::<f64>() / hidden as f64;
            let scale = if normalised { 1.0 / (squares + self.shape.eps()).sqrt() } else { 0.0 };
            for (j, &x) in x.iter().enumerate() {
                let label = (self.shape, n, me, round, row, j);
                assert_eq!(read_f64(dtype, added, position(j)), x, "{label:?}");
                assert!(!kept || read_f64(dtype, stored, position(j)) == reduced(position(j)), "{label:?}");
                let actual = read_f64(dtype, normed, position(j));
                let expected = x * scale * weight(j);
                let tolerance = if dtype == DType::F32 { 1e-5 } else { 1e-2 };
                assert!(
                    (actual - expected).abs() <= tolerance * expected.abs(),
                    "{label:?}: {actual} for {expected}"
                );
            }
        }
        normed.to_vec()
    }
}

/// Runs all shapes, round after round, on all ranks of each world. Ranks synchronize only in the kernels.
/// Returns the bytes of all norms of each rank and world; `None` without a compiler.
fn run(
    worlds: &[(u32, WorldConfig)],
    shapes: &[NormShape],
    rounds: usize,
    name: &str,
) -> Option<Vec<Vec<Vec<u8>>>> {
    let emulated: Vec<EmulatedWorld> =
        worlds.iter().map(|(n, given)| EmulatedWorld::new(*n, given)).collect();
    let mut source = KernelSource::new();
    let mut layers: Vec<Vec<Vec<RankNorm>>> = Vec::new();
    for (world, (_, given)) in emulated.iter().zip(worlds) {
        let mut ranks = Vec::new();
        for peers in &world.peers {
            ranks.push(shapes.iter().map(|&s| RankNorm::new(s, peers, given.zone, &mut source)).collect());
        }
        layers.push(ranks);
    }
    let library = EmulationLibrary::new(&source, name)?;
    let bytes = layers.iter_mut().map(|ranks| {
        let n = ranks.len();
        std::thread::scope(|scope| {
            let library = &library;
            let running: Vec<_> = ranks
                .iter_mut()
                .enumerate()
                .map(|(me, layers)| scope.spawn(move || run_rounds(layers, library, me, n, rounds)))
                .collect();
            running.into_iter().map(|r| r.join().expect("it compares")).collect()
        })
    });
    Some(bytes.collect())
}

/// Runs the layers of a rank, round after round; returns their norms.
fn run_rounds(
    layers: &mut [RankNorm],
    library: &EmulationLibrary,
    me: usize,
    n: usize,
    rounds: usize,
) -> Vec<u8> {
    let mut norms = Vec::new();
    for round in 0..rounds {
        for layer in &mut *layers {
            norms.extend(layer.run(library, me, n, round));
        }
    }
    norms
}

#[test]
fn residual_and_norm_follow_the_reduction() {
    // First LL128, including several rows per block, then LL.
    let shapes = [
        shape(DType::F32, 3, 120),
        shape(DType::BF16, 3, 232),
        shape(DType::BF16, 7, 116),
        shape(DType::F16, 1, 8),
        shape(DType::F32, 2, 8),
        NormShape { normalised: false, ..shape(DType::BF16, 3, 8) },
        shifted(1, shape(DType::F32, 3, 120)),
        shifted(3, NormShape { kept: true, ..shape(DType::BF16, 7, 116) }),
        shifted(1, shape(DType::F16, 1, 8)),
    ];
    run(&[(3, WorldConfig::default())], &shapes, 3, "norm");
    // A block that wrongly cleared messages to other blocks of its grid would lose them: many delays, each on
    // zones that must be cleared.
    run(
        &(0..40).map(|seed| wrapped(3, seed, WorldConfig::default())).collect::<Vec<_>>(),
        &shapes,
        1,
        "norm-wrapped",
    );
}

#[test]
fn rows_whose_squares_do_not_fit_are_normalised() {
    let shapes = [shape(DType::F32, 3, 120), shape(DType::BF16, 7, 116), shape(DType::F32, 2, 8)];
    let units = [2f64.powi(66), 2f64.powi(100), 2f64.powi(-66), 2f64.powi(-110)];
    let extreme_shapes: Vec<NormShape> =
        units.into_iter().flat_map(|unit| shapes.map(|shape| NormShape { unit, ..shape })).collect();
    run(&[(3, WorldConfig::default())], &extreme_shapes, 2, "norm-edges");
}

#[test]
fn a_large_reduction_takes_the_residual_in_two_rounds() {
    let shapes = [
        shape(DType::BF16, 9, 116),
        in_place(DType::F32, 5, 116),
        NormShape { kept: true, ..shape(DType::F16, 7, 108) },
        NormShape { kept: true, ..in_place(DType::BF16, 11, 92) },
        shifted(1, NormShape { kept: true, ..in_place(DType::BF16, 11, 92) }),
    ]
    .map(|shape| NormShape { normalised: false, ..shape });
    let config = WorldConfig { zone: 32 << 10, ..WorldConfig::default() };
    for n in [3, 5, 8] {
        for shape in &shapes {
            let bytes = shape.rows * shape.hidden * shape.dtype.size();
            assert!(config.thresholds.uses_two_rounds(bytes as u64, n as u64));
        }
    }
    run(&[3, 5, 8].map(|n| (n, config)), &shapes, 3, "norm-twice");
    let disturbed =
        (0..10).flat_map(|seed| [(3, WorldConfig { chaos: Some(seed), ..config }), wrapped(4, seed, config)]);
    run(&disturbed.collect::<Vec<_>>(), &shapes, 1, "norm-twice-chaos");
}

/// A world whose flags wrap around with its first collective.
fn wrapped(n: u32, seed: u64, given: WorldConfig) -> (u32, WorldConfig) {
    let first = (u64::MAX - 9, u32::MAX);
    (n, WorldConfig { first, chaos: Some(seed), limit_ns: 5_000_000_000, ..given })
}

/// Grids in which up to four blocks share a row.
const SHARED_GRID: GridLimits = GridLimits { threads: 8, most_threads: 16, blocks: 8 };

/// Rows, some of them shared, one after another in the same zones.
const TEST_SHAPES: [NormShape; 12] = [
    in_place(DType::BF16, 1, 232),
    shape(DType::BF16, 2, 232),
    in_place(DType::F32, 3, 116),
    shape(DType::BF16, 8, 116),
    in_place(DType::F16, 2, 228),
    shape(DType::F16, 3, 116),
    NormShape { normalised: false, ..in_place(DType::BF16, 2, 116) },
    norm_in_place(DType::BF16, 2, 232),
    norm_in_place(DType::F32, 1, 116),
    reduction_in_place(DType::F16, 2, 116),
    shifted(1, norm_in_place(DType::BF16, 3, 116)),
    shape(DType::F32, 1, 120),
];

/// Messages by LL128, and by LL.
fn forms() -> [WorldConfig; 2] {
    let ll128 = WorldConfig { grid: SHARED_GRID, zone: 32 << 10, ..WorldConfig::default() };
    [ll128, WorldConfig { thresholds: ProtocolThresholds { ll_bytes: 1 << 20, ..ll128.thresholds }, ..ll128 }]
}

#[test]
fn rows_sent_by_several_blocks_have_equal_bits() {
    let single_block = GridLimits { blocks: 1, ..SHARED_GRID };
    let mut worlds: Vec<(u32, WorldConfig)> = Vec::new();
    for n in [2, 3, 5, 8] {
        for given in forms() {
            worlds.extend([(n, given), (n, WorldConfig { grid: single_block, ..given })]);
        }
    }
    let Some(norms) = run(&worlds, &TEST_SHAPES, 2, "norm-shared") else { return };
    for (world, pair) in norms.chunks(2).enumerate() {
        assert_eq!(pair[0], pair[1], "world {world}");
        assert!(pair[0].iter().all(|rank| *rank == pair[0][0]), "world {world}");
    }
}

#[test]
fn shared_rows_stand_delays_and_flags_that_wrap_around() {
    let mut worlds: Vec<(u32, WorldConfig)> = Vec::new();
    for seed in 0..10 {
        let n = 2 + seed as u32 % 3;
        worlds.extend(forms().map(|given| (n, WorldConfig { chaos: Some(seed), ..given })));
        worlds.extend(forms().map(|given| wrapped(n, seed, given)));
    }
    run(&worlds, &TEST_SHAPES, 1, "norm-shared-chaos");
}

#[test]
fn long_rows_are_shared() {
    let grid = GridLimits { threads: 128, most_threads: 288, blocks: 3 };
    let config = WorldConfig { grid, zone: 512 << 10, ..WorldConfig::default() };
    let shapes = [
        in_place(DType::BF16, 1, 8192),
        shape(DType::BF16, 1, 4096),
        shape(DType::F16, 2, 4096),
        in_place(DType::BF16, 3, 4100),
        norm_in_place(DType::BF16, 2, 4096),
        shape(DType::BF16, 8, 8192),
        shape(DType::F16, 1, 8188),
    ];
    run(&[(2, config), (3, WorldConfig { chaos: Some(3), ..config })], &shapes, 2, "norm-long");
}

#[test]
fn grids_share_rows_where_rows_are_few() {
    let norm = VariantGrids::default().norm;
    let grid = |rows, units| norm.rows(rows, units).map(|g| (g.blocks, g.pieces, g.share));
    assert_eq!(grid(1, 2048), Some(([16, 512], 4, 128)));
    assert_eq!(grid(1, 1096), Some(([9, 576], 2, 128)));
    assert_eq!(grid(8, 1096), Some(([56, 576], 2, 160)));
    assert_eq!(grid(32, 552), Some(([64, 576], 1, 288)));
    assert_eq!(grid(33, 552), Some(([33, 576], 1, 576)), "one block to a row");
    assert_eq!(grid(500, 552), Some(([128, 576], 1, 576)));
    assert_eq!(grid(1, 100), Some(([1, 128], 1, 128)));
    for (rows, units) in (1..=70).flat_map(|rows| (1..=2560).step_by(73).map(move |units| (rows, units))) {
        let Some(([blocks, threads], pieces, share)) = grid(rows, units) else { panic!("{rows} x {units}") };
        let senders = (units as u32).div_ceil(share);
        assert!(threads * pieces >= units as u32 && blocks == rows as u32 * senders, "{rows} x {units}");
        assert!(senders == 1 || (blocks <= 64 && share % 32 == 0), "{rows} x {units}");
    }
}
