//! Two products of one left matrix as a batch of the library.

use symmc_cuda::command::Command;
use symmc_cuda::compute::gemm::Gemm;
use symmc_cuda::compute::{GEMM_WORKSPACE, Lowering, batch};
use symmc_ir::Op;
use symmc_runtime::exec::{Located, MemorySpace};

use crate::machine;
use crate::products::{Part, SPACING, part, steps, value};

/// Rows that no kernel of ours takes.
const M: usize = 300;

/// What two products do, by the places of their right matrices and results.
fn lowered(left: Located, right: [Located; 2], results: [Located; 2]) -> Vec<Gemm> {
    let parts: Vec<Part> = right
        .into_iter()
        .zip(results)
        .map(|(right, result)| part(Op::MatMul, vec![left.clone(), right], result))
        .collect();
    let at = |v: &Located| 0x100_0000 + v.offset as u64;
    let memory = |v: &Located| match v.space {
        MemorySpace::Symmetric => None,
        MemorySpace::Input(i) => Some(i),
        _ => Some(usize::MAX),
    };
    let mut l = Lowering::new(&at, &machine(GEMM_WORKSPACE, 225 << 10));
    let works = batch::lower(&steps(&parts), &memory, &mut l);
    let product = |work| if let Command::Gemm(gemm) = work { gemm } else { panic!("{work:?}") };
    works.expect("products").into_iter().map(product).collect()
}

fn square(space: MemorySpace, place: usize) -> Located {
    value(space, place, [M, M], [M as isize, 1])
}

#[test]
fn products_of_one_left_matrix_are_a_batch_at_their_own_distances() {
    let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(|place| square(MemorySpace::Ordinary, place));
    let of = |right, results| lowered(five.clone(), right, results);
    let both = of([one.clone(), two.clone()], [three.clone(), four.clone()]);
    let [Gemm { batch: 2, a, b, c, .. }] = both[..] else { panic!("{both:?}") };
    let distance = SPACING as isize / 2;
    assert_eq!([a.batch, b.batch, c.batch], [0, distance, distance]);
    assert_eq!((b.at, c.at), (0x100_0000 + SPACING as u64, 0x100_0000 + 3 * SPACING as u64));
    // Both behind each other the other way round are the same; the results alone are not.
    assert_eq!(of([two.clone(), one.clone()], [four.clone(), three.clone()]), both);
    assert_eq!(of([one, two], [four, three]).len(), 2);
}

#[test]
fn products_that_lie_elsewhere_on_each_rank_stay_apart() {
    let ordinary = |place| square(MemorySpace::Ordinary, place);
    let count = |left, right, results| lowered(left, right, results).len();
    let apart = [ordinary(3), ordinary(4)];
    let weights = [ordinary(1), ordinary(2)];
    assert_eq!(count(square(MemorySpace::Symmetric, 0), weights.clone(), apart.clone()), 1);
    assert_eq!(count(ordinary(0), [ordinary(1), square(MemorySpace::Symmetric, 2)], apart.clone()), 2);
    assert_eq!(count(ordinary(0), weights, [ordinary(3), square(MemorySpace::Symmetric, 4)]), 2);
    // Two inputs lie in another order on another rank, two parts of one do not.
    let input = |i, place| square(MemorySpace::Input(i), place);
    assert_eq!(count(ordinary(0), [input(0, 1), input(1, 2)], apart.clone()), 2);
    assert_eq!(count(ordinary(0), [input(1, 1), input(1, 2)], apart), 1);
}
