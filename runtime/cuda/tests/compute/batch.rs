//! Products of one left matrix: few rows as one kernel, two products of the same extents as a batch of the
//! library.

use symmc_cuda::codegen::command::GpuCommand;
use symmc_cuda::codegen::compute::gemm::Gemm;
use symmc_cuda::codegen::compute::{GEMM_WORKSPACE, KernelLowering, KernelTarget, batch, rotary};
use symmc_cuda::device::launch::DevicePtr;
use symmc_ir::Op;
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use crate::emulate::EmulatedLibrary;
use crate::machine;
use crate::products::{
    DispatchPart, RandomMemory, VALUE_SPACING, compiles, kernels, near, part, steps, value,
};

/// The number of rows is too large for our kernels.
const M: usize = 300;

/// The lowered form of two products, given the places of their right matrices and results.
fn lower_two_products(
    left: LocatedTensor,
    right: [LocatedTensor; 2],
    results: [LocatedTensor; 2],
) -> Vec<Gemm> {
    let products: Vec<DispatchPart> = right
        .into_iter()
        .zip(results)
        .map(|(right, result)| part(Op::MATMUL, vec![left.clone(), right], result))
        .collect();
    let address_of = |v: &LocatedTensor| DevicePtr::from(0x100_0000 + v.offset as u64);
    let memory = |v: &LocatedTensor| match v.space {
        MemorySpace::Symmetric => None,
        MemorySpace::Input(i) => Some(i),
        _ => Some(usize::MAX),
    };
    let mut l = KernelLowering::new(&address_of, &machine(GEMM_WORKSPACE, 225 << 10));
    let works = batch::lower(&steps(&products), &memory, &mut l);
    let product = |work| if let GpuCommand::Gemm(gemm) = work { gemm } else { panic!("{work:?}") };
    works.expect("it fits").expect("products").into_iter().map(product).collect()
}

fn square(space: MemorySpace, place: usize) -> LocatedTensor {
    value(space, place, [M, M], [M as isize, 1])
}

#[test]
fn products_sharing_a_left_matrix_batch_with_own_strides() {
    let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(|place| square(MemorySpace::Ordinary, place));
    let lower = |right, results| lower_two_products(five.clone(), right, results);
    let gemms = lower([one.clone(), two.clone()], [three.clone(), four.clone()]);
    let [Gemm { batch: 2, a, b, c, .. }] = gemms[..] else { panic!("{gemms:?}") };
    let distance = VALUE_SPACING as isize / 2;
    assert_eq!([a.batch, b.batch, c.batch], [0, distance, distance]);
    assert_eq!(
        (b.at, c.at),
        [VALUE_SPACING, 3 * VALUE_SPACING].map(|offset| DevicePtr::from(0x100_0000 + offset as u64)).into()
    );
    // If both pairs are in the opposite order, the result is the same. If only the results are, it is not.
    assert_eq!(lower([two.clone(), one.clone()], [four.clone(), three.clone()]), gemms);
    assert_eq!(lower([one, two], [four, three]).len(), 2);
}

#[test]
fn products_that_lie_elsewhere_on_each_rank_stay_apart() {
    let ordinary = |place| square(MemorySpace::Ordinary, place);
    let count = |left, right, results| lower_two_products(left, right, results).len();
    let outputs = [ordinary(3), ordinary(4)];
    let weights = [ordinary(1), ordinary(2)];
    assert_eq!(count(square(MemorySpace::Symmetric, 0), weights.clone(), outputs.clone()), 1);
    assert_eq!(count(ordinary(0), [ordinary(1), square(MemorySpace::Symmetric, 2)], outputs.clone()), 2);
    assert_eq!(count(ordinary(0), weights, [ordinary(3), square(MemorySpace::Symmetric, 4)]), 2);
    // Two inputs may be in another order on another rank; two parts of one input are not.
    let input = |i, place| square(MemorySpace::Input(i), place);
    assert_eq!(count(ordinary(0), [input(0, 1), input(1, 2)], outputs.clone()), 2);
    assert_eq!(count(ordinary(0), [input(1, 1), input(1, 2)], outputs), 1);
}

/// Products of one left matrix with `m` rows and these numbers of columns.
fn of_widths(m: usize, k: usize, widths: &[usize]) -> Vec<DispatchPart> {
    let row = |space, place, n: usize| value(space, place, [m, n], [n as isize, 1]);
    let product = |(p, &n): (usize, &usize)| {
        // The weights are contiguous, and so are the results.
        let mut right = value(MemorySpace::Input(1), 1, [k, n], [1, k as isize]);
        right.offset += widths[..p].iter().sum::<usize>() * k * 2;
        let result = row(MemorySpace::Ordinary, 3 + p, n);
        part(Op::MATMUL, vec![row(MemorySpace::Ordinary, 0, k), right], result)
    };
    widths.iter().enumerate().map(product).collect()
}

#[test]
fn products_of_different_widths_share_a_kernel() {
    let mut world = RandomMemory::new();
    let (base, whole) = (world.base(), world.machine);
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let clusters = |multiprocessors| KernelTarget { multiprocessors, wgmma: true, ..whole };
    let cases = [
        // All of K: by blocks, by warp-group MMA in pairs, and by clusters of each size.
        (1, 600, &[72, 40, 32][..], whole, 1),
        (5, 600, &[104, 40], whole, 1),
        (17, 600, &[200, 40, 72], clusters(8), 2),
        (2, 1104, &[200, 32, 40], clusters(24), 2),
        (12, 2104, &[200, 32, 40], clusters(44), 4),
        (17, 4104, &[64, 40], clusters(33), 8),
    ];
    let mut l = KernelLowering::new(&address_of, &whole);
    let mut lowered = Vec::new();
    for (m, k, widths, machine, split) in cases {
        let label = format!("{m} rows, {widths:?}");
        let list = of_widths(m, k, widths);
        l.machine = machine;
        let works = batch::lower(&steps(&list), &|_| None, &mut l);
        let together = kernels(works.expect("it fits").expect("products"));
        assert_eq!((together.len(), together[0].cluster), (1, split), "{label}");
        lowered.push((label, list, together));
    }
    compiles(&l.source);
    let Some(library) = EmulatedLibrary::build("batch", &l.source.text(), l.source.names()) else { return };
    for (what, list, together) in &lowered {
        for part in list {
            let actual = world.run(&library, together, &part.results[0]);
            near(&actual, &world.product(part), what);
        }
    }
}

/// Rotary embeddings of the products of [`of_widths`], with heads of these widths, by neighbours or by
/// halves; a width of 0 means none.
fn transpose_heads(
    list: &[DispatchPart],
    wide: &[usize],
    interleaved: bool,
    each: bool,
) -> Vec<DispatchPart> {
    let turn = |(p, (product, &e)): (usize, (&DispatchPart, &usize))| {
        let x = &product.results[0];
        let [m, n] = x.shape[..] else { panic!("rows and columns") };
        let heads = |strides: [usize; 3], of: &LocatedTensor| LocatedTensor {
            shape: [n / e.max(1), m, e].into(),
            strides: strides.map(|s| s as isize).into(),
            ..of.clone()
        };
        // The result is stored by heads, and so are some cosines.
        let angles = if each { e } else { e / 2 };
        let angles_at = |angles_at, offset| {
            let value = value(MemorySpace::Ordinary, angles_at, [m, angles], [angles as isize, 1]);
            LocatedTensor { offset: value.offset + offset, ..value }
        };
        let result = heads([m * e, e, 1], &angles_at(6, p << 16));
        let operands = vec![heads([e, n, 1], x), angles_at(2, 0), angles_at(2, 1 << 16)];
        (e > 0).then(|| part(Op::RotaryEmbedding { width: e, interleaved }, operands, result))
    };
    list.iter().zip(wide).enumerate().filter_map(turn).collect()
}

#[test]
fn products_with_transposed_heads_share_a_kernel_bitwise() {
    let mut world = RandomMemory::new();
    let (base, whole) = (world.base(), world.machine);
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let clusters = |multiprocessors| KernelTarget { multiprocessors, wgmma: true, ..whole };
    let cases = [
        (1, 600, &[96, 32, 40][..], &[32, 16, 0][..], whole, 1),
        (5, 600, &[96, 56], &[0, 8], whole, 1),
        (7, 600, &[192], &[64], whole, 1),
        (33, 600, &[192, 64, 72], &[64, 32, 0], whole, 1),
        (2, 1104, &[192, 32, 48], &[32, 32, 0], clusters(24), 2),
        (12, 2104, &[192, 32, 40], &[48, 32, 0], clusters(44), 4),
    ];
    let mut l = KernelLowering::new(&address_of, &whole);
    let mut lowered = Vec::new();
    for (m, k, widths, wide, machine, split) in cases {
        for (interleaved, each) in [(false, true), (true, false)] {
            let label = format!("{m} rows, {widths:?}, heads of {wide:?}, {interleaved}");
            let products = of_widths(m, k, widths);
            let turns = transpose_heads(&products, wide, interleaved, each);
            l.machine = machine;
            let works = batch::lower(&steps(&products), &|_| None, &mut l);
            let mut single = kernels(works.expect("it fits").expect("products"));
            single.extend(kernels(rotary::lower_together(&steps(&turns), &mut l).expect("it fits")));
            let steps_of_both: Vec<DispatchPart> = products.into_iter().chain(turns).collect();
            let lowered_together = batch::lower(&steps(&steps_of_both), &|_| None, &mut l);
            let joint = kernels(lowered_together.expect("it fits").expect("one kernel"));
            assert_eq!((joint.len(), joint[0].cluster, single[0].cluster), (1, split, split), "{label}");
            lowered.push((label, steps_of_both, single, joint));
        }
    }
    compiles(&l.source);
    let Some(library) = EmulatedLibrary::build("batch-turned", &l.source.text(), l.source.names()) else {
        return;
    };
    for (what, all, single, one) in &lowered {
        let is_final =
            |part: &&DispatchPart| all.iter().all(|other| other.operands[0].offset != part.results[0].offset);
        for result in all.iter().filter(is_final).map(|part| &part.results[0]) {
            let expected = world.run(&library, single, result);
            assert_eq!(world.run(&library, one, result), expected, "{what}, {result:?}");
        }
    }
}
