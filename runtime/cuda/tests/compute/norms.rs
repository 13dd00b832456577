//! Element-wise steps and the norm of their rows in one kernel give the bits of separate steps.

use symmc_cuda::codegen::compute::{self, BoundOperation, KernelLowering, loops};
use symmc_cuda::device::launch::DevicePtr;
use symmc_ir::{BinaryOp, DType, FloatAttribute, Op, UnaryOp};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use crate::emulate::EmulatedLibrary;
use crate::products::{DispatchPart, RandomMemory, compiles, inside, kernels, part, steps, value};

/// A residual, scaled by one number per row, and its norm: `norm((x + silu(h)) * c)`.
fn residual(norm: Op, m: usize, n: usize, pitch: usize) -> Vec<DispatchPart> {
    let row = |space, place| value(space, place, [m, n], [pitch as isize, 1]);
    let of_row = |i: usize| {
        let first = value(MemorySpace::Input(1), 5, [1, n], [0, 1]);
        LocatedTensor { shape: [n].into(), strides: [1].into(), offset: first.offset + (i << 16), ..first }
    };
    let [x, h] = [0, 1].map(|place| row(MemorySpace::Ordinary, place));
    let [turned, sum, scaled] = [2, 3, 4].map(|place| row(MemorySpace::Ordinary, place));
    let scale = value(MemorySpace::Input(1), 5, [m, n], [1, 0]);
    let vectors = if let Op::LayerNorm { .. } = norm { 2 } else { 1 };
    let operands = [scaled.clone()].into_iter().chain((0..vectors).map(of_row)).collect();
    vec![
        part(Op::Unary(UnaryOp::Silu), vec![h], turned.clone()),
        part(Op::Binary(BinaryOp::Add), vec![x, turned], sum.clone()),
        part(Op::Binary(BinaryOp::Mul), vec![sum, scale], scaled),
        part(norm, operands, row(MemorySpace::Output(0), 6)),
    ]
}

/// The norm of values that are computed from bools only, whose elements are narrower than the results.
#[test]
fn norms_of_narrower_inputs_match_single_steps_bitwise() {
    let mut world = RandomMemory::new();
    let (base, machine) = (world.base(), world.machine);
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let mut l = KernelLowering::new(&address_of, &machine);
    let mut lowered = Vec::new();
    for narrow in [DType::Bool, DType::U8] {
        let row =
            |place, dtype| LocatedTensor { dtype, ..value(MemorySpace::Ordinary, place, [3, 256], [256, 1]) };
        let mask = row(0, narrow);
        let wide = row(1, DType::BF16);
        let list = || {
            vec![
                part(Op::Cast, vec![mask.clone()], wide.clone()),
                part(
                    Op::LayerNorm { axes: 1, eps: FloatAttribute(1e-5) },
                    vec![wide.clone()],
                    row(2, DType::BF16),
                ),
            ]
        };
        let single = |step: &BoundOperation<'_>| kernels(compute::lower(step, &mut l).expect("it fits"));
        let (list, fused) = (list(), inside(list()));
        let single: Vec<_> = steps(&list).iter().flat_map(single).collect();
        let joint = kernels(loops::lower(&steps(&fused), &mut l).expect("it fits").expect("one kernel"));
        lowered.push((narrow, list, single, joint));
    }
    compiles(&l.source);
    let Some(library) = EmulatedLibrary::build("norms-narrow", &l.source.text(), l.source.names()) else {
        return;
    };
    for (narrow, list, single, one) in &lowered {
        let result = &list[1].results[0];
        let expected = world.run(&library, single, result);
        assert_eq!(world.run(&library, one, result), expected, "{narrow:?}");
    }
}

#[test]
fn fused_residual_norms_match_single_steps_bitwise() {
    let mut world = RandomMemory::new();
    let (base, machine) = (world.base(), world.machine);
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let rms = |round_first| Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-5), round_first };
    let layer = || Op::LayerNorm { axes: 1, eps: FloatAttribute(1e-5) };
    // Rows of a warp and of a block, rows with gaps, and rows that are not a multiple of an access.
    let cases = [
        (rms(false), 9, 256, 256),
        (rms(true), 3, 2048, 2048),
        (layer(), 10, 130, 136),
        (layer(), 2, 4097, 4097),
    ];
    let mut l = KernelLowering::new(&address_of, &machine);
    let mut lowered = Vec::new();
    for (norm, m, n, pitch) in cases {
        for known in [false, true] {
            let list = residual(norm.clone(), m, n, pitch);
            let mut fused = inside(residual(norm.clone(), m, n, pitch));
            if known {
                // Other steps read the sum too.
                let sum = list[1].results[0].clone();
                fused[1].results = [sum.clone()];
                fused[2].operands[0] = sum;
            }
            let joint = loops::lower(&steps(&fused), &mut l);
            let joint = kernels(joint.expect("it fits").expect("one kernel"));
            assert_eq!(joint.len(), 1);
            let single = |step: &BoundOperation<'_>| kernels(compute::lower(step, &mut l).expect("it fits"));
            let single: Vec<_> = steps(&list).iter().flat_map(single).collect();
            lowered.push((format!("{norm:?} of [{m}, {n}]"), known, list, single, joint));
        }
    }
    compiles(&l.source);
    let Some(library) = EmulatedLibrary::build("norms", &l.source.text(), l.source.names()) else { return };
    for (what, known, list, single, one) in &lowered {
        let results =
            if *known { vec![&list[1].results[0], &list[3].results[0]] } else { vec![&list[3].results[0]] };
        for result in results {
            let expected = world.run(&library, single, result);
            assert_eq!(world.run(&library, one, result), expected, "{what}");
        }
    }
}
