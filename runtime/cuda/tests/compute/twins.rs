//! Two products of one left matrix as a batch of the library.

use symmc_cuda::compile::Source;
use symmc_cuda::compute::fuse::compute_step;
use symmc_cuda::compute::gemm::Gemm;
use symmc_cuda::compute::{self, GEMM_WORKSPACE, Sites, twins};
use symmc_cuda::launch::Work;
use symmc_ir::Op;
use symmc_plan::Lane;
use symmc_runtime::exec::{BoundStep, Home, Located, Work as StepWork};

use crate::machine;
use crate::products::{SPACING, gated, step, value};

/// Rows that no kernel of ours takes.
const M: usize = 300;

/// What each place does, with the activation done where the last step is.
fn joined(list: &[BoundStep]) -> Vec<Vec<Work>> {
    let (mut source, mut sites) = (Source::new(), Sites::new());
    let machine = machine(GEMM_WORKSPACE, 225 << 10);
    let at = |v: &Located| 0x100_0000 + v.offset as u64;
    let done: Vec<usize> = (0..list.len()).map(|s| if s == 1 { list.len() - 1 } else { s }).collect();
    let lower = |(place, step): (usize, &BoundStep)| match compute_step(step) {
        Some(step) if done[place] == place => {
            compute::lower(&step, &at, &machine, &mut source, &mut sites).expect("it has a form")
        }
        _ => vec![],
    };
    let mut lowered: Vec<Vec<Work>> = list.iter().enumerate().map(lower).collect();
    let memory = |v: &Located| match v.home {
        Home::Symmetric => None,
        Home::Input(i) => Some(i),
        _ => Some(usize::MAX),
    };
    twins::join(list, &done, &memory, &mut lowered);
    lowered
}

fn batches(lowered: &[Vec<Work>]) -> Vec<usize> {
    let product = |w: &Work| if let Work::Gemm(g) = w { Some(g.batch) } else { None };
    lowered.iter().flatten().filter_map(product).collect()
}

#[test]
fn products_of_one_left_matrix_are_a_batch_at_their_own_distances() {
    let list = gated(M);
    let lowered = joined(&list);
    let [Work::Gemm(Gemm { batch: 2, a, b, c, .. })] = lowered[2][..] else { panic!("{lowered:?}") };
    assert!(lowered[0].is_empty() && lowered[1].is_empty());
    let distance = SPACING as isize / 2;
    assert_eq!([a.batch, b.batch, c.batch], [0, distance, distance]);
    assert_eq!((b.at, c.at), (0x100_0000 + SPACING as u64, 0x100_0000 + 3 * SPACING as u64));
    // The first result behind the second one, but not its weight.
    let mut turned = list;
    let swap = |v: &mut Located| {
        let place = v.offset / SPACING;
        v.offset = if place == 3 {
            4
        } else if place == 4 {
            3
        } else {
            place
        } * SPACING;
    };
    for step in &mut turned {
        if let StepWork::Kernel { operands, results, .. } = &mut step.work {
            operands.iter_mut().chain(results).for_each(swap);
        }
    }
    assert_eq!(batches(&joined(&turned)), [1, 1]);
}

#[test]
fn a_product_is_not_done_later_than_somebody_needs_it_or_than_its_operands_last() {
    let row = |place: usize, n: usize| value(Home::Ordinary, place, [M, n], [n as isize, 1]);
    let with = |between: BoundStep| {
        let mut list = gated(M);
        list.insert(2, between);
        batches(&joined(&list))
    };
    assert_eq!(with(step(9, Op::Copy, vec![row(6, 8)], row(7, 8))), [2]);
    // Its result is read, and its place written; the left matrix is written.
    assert_eq!(with(step(9, Op::Copy, vec![row(3, 8)], row(7, 8))), [1, 1]);
    assert_eq!(with(step(9, Op::Copy, vec![row(6, 8)], row(3, 8))), [1, 1]);
    assert_eq!(with(step(9, Op::Copy, vec![row(6, 8)], row(0, 8))), [1, 1]);
    // Another lane waits for a step behind the first product, and so for both.
    let mut awaited = gated(M);
    awaited.insert(2, step(9, Op::Copy, vec![row(6, 8)], row(7, 8)));
    awaited.push(BoundStep {
        lane: Lane::Comm,
        waits: vec![2],
        ..step(5, Op::Copy, vec![row(7, 8)], row(6, 8))
    });
    assert_eq!(batches(&joined(&awaited)), [1, 1]);
    // Other left matrices, other extents.
    let mut apart = gated(M);
    if let StepWork::Kernel { operands, .. } = &mut apart[2].work {
        operands[0].offset = 6 * SPACING;
    }
    assert_eq!(batches(&joined(&apart)), [1, 1]);
}

#[test]
fn products_of_which_one_needs_the_other_or_that_lie_elsewhere_on_each_rank_stay_apart() {
    let square = |home, place| value(home, place, [M, M], [M as isize, 1]);
    let ordinary = |place| square(Home::Ordinary, place);
    let of = |left: Located, weights: [Located; 2], results: [Located; 2]| {
        let product = |index, [weight, result]: [Located; 2]| {
            step(index, Op::MatMul, vec![left.clone(), weight], result)
        };
        let ([w1, w2], [r1, r2]) = (weights, results);
        batches(&joined(&[product(0, [w1, r1]), product(1, [w2, r2])]))
    };
    let two = |weights, results| of(ordinary(0), weights, results);
    let apart = [ordinary(3), ordinary(4)];
    assert_eq!(of(square(Home::Symmetric, 0), [ordinary(1), ordinary(2)], apart.clone()), [2]);
    assert_eq!(two([ordinary(1), ordinary(2)], apart.clone()), [2]);
    // The second multiplies what the first gives.
    assert_eq!(two([ordinary(1), ordinary(3)], apart.clone()), [1, 1]);
    // The result of the second takes the place of what the first multiplies: its weight, its rows.
    assert_eq!(two([ordinary(3), ordinary(4)], [ordinary(2), ordinary(3)]), [1, 1]);
    assert_eq!(two([ordinary(4), ordinary(5)], [ordinary(3), ordinary(0)]), [1, 1]);
    assert_eq!(two([ordinary(1), square(Home::Symmetric, 2)], apart), [1, 1]);
    let shared = [ordinary(3), square(Home::Symmetric, 4)];
    assert_eq!(two([ordinary(1), ordinary(2)], shared), [1, 1]);
    // Two inputs lie in another order on another rank, two parts of one do not.
    let (apart, input) = ([ordinary(3), ordinary(4)], |i, place| square(Home::Input(i), place));
    assert_eq!(two([input(0, 1), input(1, 2)], apart.clone()), [1, 1]);
    assert_eq!(two([input(1, 1), input(1, 2)], apart), [2]);
}
