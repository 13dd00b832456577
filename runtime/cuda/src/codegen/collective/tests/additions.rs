//! Two-shot all-reduces with a residual on host threads.

use symmc_ir::tensor::{read_f64, write_f64};

use super::emulate::{EmulatedWorld, EmulationLibrary, WorldConfig, bytes_at};
use super::*;

/// The destination of the sum.
#[derive(Clone, Copy, PartialEq, Debug)]
enum SumPlacement {
    Apart,
    OnOperand,
    OnResult,
    OnResidual,
}

/// An all-reduce and its addition.
#[derive(Clone, Copy, Debug)]
struct AdditionShape {
    dtype: DType,
    op: CollectiveReduceOp,
    /// The bytes of a slice.
    slice: usize,
    /// Whether the result is in place of the operand.
    in_place: bool,
    sum: SumPlacement,
    /// Whether rank 1 runs the all-reduce without the addition.
    mixed: bool,
}

const fn shape(dtype: DType, slice: usize, in_place: bool, sum: SumPlacement) -> AdditionShape {
    AdditionShape { dtype, op: CollectiveReduceOp::Sum, slice, in_place, sum, mixed: false }
}

/// The chunks of all blocks together have 384 to 1536 bytes (2 ranks). Some shapes have one chunk, a part of
/// one, two, or several with a partial last one.
const SHAPES: [AdditionShape; 11] = [
    shape(DType::BF16, 3216, false, SumPlacement::Apart),
    shape(DType::F32, 2000, false, SumPlacement::OnOperand),
    shape(DType::F16, 768, false, SumPlacement::OnResult),
    shape(DType::BF16, 1552, false, SumPlacement::OnResidual),
    shape(DType::F32, 16, false, SumPlacement::Apart),
    shape(DType::F32, 3200, true, SumPlacement::Apart),
    shape(DType::BF16, 1536, true, SumPlacement::OnResult),
    shape(DType::F16, 400, true, SumPlacement::OnResidual),
    shape(DType::BF16, 16, true, SumPlacement::OnOperand),
    AdditionShape { op: CollectiveReduceOp::Avg, ..shape(DType::F32, 752, true, SumPlacement::OnResult) },
    AdditionShape { mixed: true, ..shape(DType::BF16, 2320, true, SumPlacement::Apart) },
];

/// The distance between two values of a rank in bytes.
const ROOM: usize = 24 << 10;

/// Element `i` of the operand of `rank` in a round. The sum, and the residual too, exceed the precision of
/// 16-bit floats.
fn operand(rank: usize, round: usize, i: usize) -> f64 {
    let large = if rank == 1 { 2048.0 } else { 0.0 };
    large + ((i * 7 + rank * 13 + round * 5) % 11) as f64 - 4.0
}

/// The residual of a rank. It may differ between ranks.
fn residual(rank: usize, round: usize, i: usize) -> f64 {
    ((i * 5 + round + rank) % 7) as f64 - 3.0
}

/// Rounds a number to a dtype.
fn rounded(dtype: DType, x: f64) -> f64 {
    let mut out = [0; 8];
    write_f64(dtype, &mut out, 0, f64::from(x as f32));
    read_f64(dtype, &out, 0)
}

/// A case on one rank: the addresses of its operand, result, residual and sum, and its kernel.
struct RankAddition {
    shape: AdditionShape,
    elements: usize,
    at: [Address; 4],
    /// Whether this rank adds the residual.
    adds: bool,
    kernel: KernelLaunch,
}

impl RankAddition {
    fn new(shape: AdditionShape, peers: &PeerContext, source: &mut KernelSource) -> RankAddition {
        let AdditionShape { dtype, op, slice, in_place, sum, mixed } = shape;
        let n = peers.arenas.len();
        let elements = n * slice / dtype.size();
        let mut call = collective(Kind::AllReduce(op), CollectiveVariant::TwoShot, n as u32, dtype, elements);
        call.operand.offset = 0;
        call.result.offset = if in_place { 0 } else { ROOM };
        let base = peers.arenas[peers.rank as usize];
        let [operand, apart, residual, other] = [0, 1, 2, 3].map(|i| base + (i * ROOM) as Address);
        let result = if in_place { operand } else { apart };
        let sum_at = match sum {
            SumPlacement::Apart => other,
            SumPlacement::OnOperand => operand,
            SumPlacement::OnResult => result,
            SumPlacement::OnResidual => residual,
        };
        let adds = !(mixed && peers.rank == 1);
        let work = if adds {
            let addition = Addition { residual: residual.into(), sum: sum_at.into() };
            lower_addition(3, &call, [operand, result].map(DevicePtr::from), &addition, peers, source)
        } else {
            lower(3, &call, &ends_at(operand, result), peers, source)
                .map(|all| all.and_then(|mut all| all.pop()))
        };
        let Ok(Some(GpuCommand::Kernel(kernel))) = work else { panic!("expected a kernel, found {work:?}") };
        assert!(kernel.entry.contains("pushed"), "{shape:?}: {}", kernel.entry);
        RankAddition { shape, elements, at: [operand, result, residual, sum_at], adds, kernel }
    }

    /// Runs this rank's kernel on the values of a round and compares the results.
    fn run(&self, library: &EmulationLibrary, me: usize, n: usize, round: usize) {
        let RankAddition { shape, elements, at, adds, .. } = *self;
        let dtype = shape.dtype;
        // SAFETY: each is a value of this rank's arena, which no peer touches outside of the kernel.
        let value = |at| unsafe { bytes_at(at, elements * dtype.size()) };
        for i in 0..elements {
            write_f64(dtype, value(at[0]), i, operand(me, round, i));
            write_f64(dtype, value(at[2]), i, residual(me, round, i));
        }
        library.run(&self.kernel);
        for i in 0..elements {
            let total: f64 = (0..n).map(|r| rounded(dtype, operand(r, round, i))).sum();
            let total = if shape.op == CollectiveReduceOp::Avg { total / n as f64 } else { total };
            let reduced = rounded(dtype, total);
            let label = (shape, n, me, round, i);
            if adds {
                let sum = rounded(dtype, reduced + residual(me, round, i));
                assert_eq!(read_f64(dtype, value(at[3]), i), sum, "{label:?}");
            }
            assert!(at[3] == at[1] || read_f64(dtype, value(at[1]), i) == reduced, "{label:?}");
        }
    }
}

/// Runs all cases, round after round, on all ranks of each world. Ranks synchronize only in the kernels.
fn run(worlds: &[(u32, WorldConfig)], rounds: usize, name: &str) {
    let emulated: Vec<EmulatedWorld> =
        worlds.iter().map(|(n, given)| EmulatedWorld::new(*n, given)).collect();
    let mut source = KernelSource::new();
    let mut layers: Vec<Vec<_>> = Vec::new();
    for world in &emulated {
        let ranks = world.peers.iter();
        layers.push(
            ranks.map(|peers| SHAPES.map(|shape| RankAddition::new(shape, peers, &mut source))).collect(),
        );
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
fn large_two_shot_adds_residuals_chunk_by_chunk() {
    let config = WorldConfig {
        thresholds: ProtocolThresholds { min_pushed_bytes: 16, ..WorldConfig::default().thresholds },
        ..WorldConfig::default()
    };
    run(&[2, 3, 4, 5, 7].map(|n| (n, config)), 2, "additions");
    let disturbed = (0..6).map(|seed| (2 + seed as u32 % 3, WorldConfig { chaos: Some(seed), ..config }));
    run(&disturbed.collect::<Vec<_>>(), 1, "additions-chaos");
}

#[test]
fn unsupported_residual_additions_are_not_lowered() {
    let mut source = KernelSource::new();
    let addition = Addition { residual: (1 << 30).into(), sum: (1 << 31).into() };
    let mut lowered = |dtype, elements, variant, addition: Addition| {
        let call = collective(Kind::AllReduce(CollectiveReduceOp::Sum), variant, 2, dtype, elements);
        let ends = [1 << 32, (1 << 32) + ARENA as Address / 2].map(DevicePtr::from);
        let work = lower_addition(1, &call, ends, &addition, &peers(0, 2), &mut source);
        work.expect("it fits").is_some()
    };
    assert!(lowered(DType::BF16, 16 << 20, CollectiveVariant::TwoShot, addition));
    assert!(!lowered(DType::BF16, 8 << 20, CollectiveVariant::TwoShot, addition), "a small one");
    assert!(!lowered(DType::BF16, 16 << 20, CollectiveVariant::OneShot, addition));
    assert!(!lowered(DType::I32, 8 << 20, CollectiveVariant::TwoShot, addition), "of integers");
    assert!(!lowered(DType::BF16, (16 << 20) + 8, CollectiveVariant::TwoShot, addition), "no whole slices");
    for (residual, sum) in [(8, 0), (0, 8)] {
        let odd = Addition { residual: ((1 << 30) + residual).into(), sum: ((1 << 31) + sum).into() };
        assert!(!lowered(DType::BF16, 16 << 20, CollectiveVariant::TwoShot, odd), "not aligned");
    }
}
