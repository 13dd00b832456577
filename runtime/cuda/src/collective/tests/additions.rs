//! Two-shot all-reduces with a residual on threads of the host.

use symmc_ir::tensor::{read_f64, write_f64};

use super::emulate::{Given, Library, World, bytes_at};
use super::*;

/// Where the sum goes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sum {
    Apart,
    OnOperand,
    OnResult,
    OnResidual,
}

/// A dtype, whether the result lies on the operand, and where the sum goes.
const CASES: [(DType, bool, Sum); 7] = [
    (DType::BF16, false, Sum::Apart),
    (DType::F32, false, Sum::OnOperand),
    (DType::F16, false, Sum::OnResult),
    (DType::BF16, false, Sum::OnResidual),
    (DType::F32, true, Sum::Apart),
    (DType::BF16, true, Sum::OnResult),
    (DType::F16, true, Sum::OnResidual),
];

/// Bytes between two values of a rank.
const ROOM: usize = 16 << 10;

/// Element `i` of the operand of `rank` in a round; all sums are exact in every dtype of floats.
fn operand(rank: usize, round: usize, i: usize) -> f64 {
    ((i * 7 + rank * 13 + round * 5) % 11) as f64 * 0.25 - 1.0
}

/// Ranks need not have one residual.
fn residual(rank: usize, round: usize, i: usize) -> f64 {
    ((i * 5 + round + rank) % 7) as f64 * 0.5 - 1.5
}

/// One case on one rank: where its operand, result, residual and sum are, and its kernel.
struct Layer {
    dtype: DType,
    elements: usize,
    kept: bool,
    at: [Address; 4],
    kernel: Kernel,
}

impl Layer {
    fn new((dtype, in_place, sum): (DType, bool, Sum), peers: &Peers, source: &mut Source) -> Layer {
        let n = peers.arenas.len();
        // Several chunks for each block, of which the last is not whole.
        let elements = (3200 / n).next_multiple_of(16 / dtype.size()) * n;
        let mut call =
            collective(Kind::AllReduce(ReduceOp::Sum), Variant::TwoShot, n as u32, dtype, elements);
        call.operand.offset = 0;
        call.result.offset = if in_place { 0 } else { ROOM };
        let base = peers.arenas[peers.rank as usize];
        let [operand, apart, residual, other] = [0, 1, 2, 3].map(|i| base + (i * ROOM) as Address);
        let result = if in_place { operand } else { apart };
        let sum_at = match sum {
            Sum::Apart => other,
            Sum::OnOperand => operand,
            Sum::OnResult => result,
            Sum::OnResidual => residual,
        };
        let addition = Addition { residual, sum: sum_at };
        let work = lower_addition(3, &call, [operand, result], &addition, peers, source);
        let Ok(Some(Work::Kernel(kernel))) = work else { panic!("expected a kernel, found {work:?}") };
        let at = [operand, result, residual, sum_at];
        Layer { dtype, elements, kept: sum != Sum::OnResult, at, kernel }
    }

    /// Runs this rank's kernel on the values of a round and compares.
    fn run(&self, library: &Library, me: usize, n: usize, round: usize) {
        let Layer { dtype, elements, at, .. } = *self;
        // SAFETY: each is a value of this rank's arena, which no peer touches outside of the kernel.
        let value = |at| unsafe { bytes_at(at, elements * dtype.size()) };
        for i in 0..elements {
            write_f64(dtype, value(at[0]), i, operand(me, round, i));
            write_f64(dtype, value(at[2]), i, residual(me, round, i));
        }
        library.run(&self.kernel);
        for i in 0..elements {
            let reduced = (0..n).map(|r| operand(r, round, i)).sum::<f64>();
            let what = (dtype, n, me, round, i);
            assert_eq!(read_f64(dtype, value(at[3]), i), reduced + residual(me, round, i), "{what:?}");
            assert!(!self.kept || read_f64(dtype, value(at[1]), i) == reduced, "{what:?}");
        }
    }
}

/// Runs all cases round after round on all ranks of each world, which meet nowhere else.
fn run(worlds: &[(u32, Given)], rounds: usize, name: &str) {
    let made: Vec<World> = worlds.iter().map(|(n, given)| World::new(*n, given)).collect();
    let mut source = Source::new();
    let mut of = |peers| CASES.map(|case| Layer::new(case, peers, &mut source));
    let layers: Vec<Vec<_>> = made.iter().map(|w| w.peers.iter().map(&mut of).collect()).collect();
    let Some(library) = Library::new(&source, name) else { return };
    for ranks in &layers {
        std::thread::scope(|scope| {
            for (me, layers) in ranks.iter().enumerate() {
                let (library, n) = (&library, ranks.len());
                scope.spawn(move || {
                    (0..rounds).for_each(|round| layers.iter().for_each(|l| l.run(library, me, n, round)));
                });
            }
        });
    }
}

#[test]
fn a_large_two_shot_adds_the_residual_chunk_by_chunk() {
    run(&[2, 3, 4, 5, 8].map(|n| (n, Given::default())), 2, "additions");
    let chaos = |seed| (2 + seed as u32 % 3, Given { chaos: Some(seed), ..Given::default() });
    run(&(0..10).map(chaos).collect::<Vec<_>>(), 1, "additions-chaos");
}

#[test]
fn what_does_not_store_alone_takes_no_addition() {
    let mut source = Source::new();
    let addition = Addition { residual: 1 << 30, sum: 1 << 31 };
    let mut lowered = |n: u32, dtype, elements, variant, addition: Addition| {
        let call = collective(Kind::AllReduce(ReduceOp::Sum), variant, n, dtype, elements);
        let own = [1 << 32, (1 << 32) + ARENA as Address / 2];
        let work = lower_addition(1, &call, own, &addition, &peers(0, n), &mut source);
        work.expect("it fits").is_some()
    };
    assert!(lowered(2, DType::BF16, 16 << 20, Variant::TwoShot, addition));
    assert!(!lowered(2, DType::BF16, 8 << 20, Variant::TwoShot, addition), "a small one");
    assert!(!lowered(2, DType::BF16, 16 << 20, Variant::OneShot, addition));
    assert!(!lowered(2, DType::I32, 8 << 20, Variant::TwoShot, addition), "of integers");
    assert!(!lowered(2, DType::BF16, (16 << 20) + 8, Variant::TwoShot, addition), "no whole slices");
    let odd = Addition { residual: (1 << 30) + 8, ..addition };
    assert!(!lowered(2, DType::BF16, 16 << 20, Variant::TwoShot, odd), "not aligned");
}
