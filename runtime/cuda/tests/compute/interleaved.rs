//! Columns of gate and value that alternate, with a bias for each group of rows, as one kernel.

use symmc_cuda::codegen::compute::{KernelLowering, loops, lower};
use symmc_cuda::device::launch::{DevicePtr, KernelLaunch};
use symmc_ir::{BinaryOp, DType, Op, UnaryOp};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use crate::emulate::EmulatedLibrary;
use crate::machine;
use crate::products::{DispatchPart, kernels, part, steps};

/// Rows and groups of rows.
const ROW_COUNT: usize = 21;
const GROUP_COUNT: usize = 5;
/// The distance of values in memory.
const VALUE_SPACING: usize = 1 << 16;

fn value(place: usize, dtype: DType, shape: &[usize], strides: &[isize]) -> LocatedTensor {
    LocatedTensor {
        space: MemorySpace::Ordinary,
        offset: place * VALUE_SPACING,
        by_rank: 0,
        dtype,
        shape: shape.into(),
        strides: strides.into(),
    }
}

/// One of `step` interleaved parts with this many columns.
fn interleaved(place: usize, rows: usize, columns: usize, step: usize, number: usize) -> LocatedTensor {
    let strides = [(columns * step) as isize, step as isize];
    let mut out = value(place, DType::BF16, &[rows, columns], &strides);
    out.offset += number * 2;
    out
}

/// `silu(gate + bias of its group) * (value + bias of its group)`, whose intermediate results begin at a place.
fn gated(columns: usize, step: usize, first: usize) -> Vec<DispatchPart> {
    let dense = |place| value(place, DType::BF16, &[ROW_COUNT, columns], &[columns as isize, 1]);
    let groups = value(2, DType::I64, &[ROW_COUNT], &[1]);
    let mut out = Vec::new();
    for number in 0..2 {
        let bias = interleaved(1, GROUP_COUNT, columns, step, number);
        let [taken, sum] = [0, 1].map(|k| dense(first + 2 * number + k));
        out.push(part(Op::Take { axis: 0 }, vec![bias, groups.clone()], taken.clone()));
        let interleaved_part = interleaved(0, ROW_COUNT, columns, step, number);
        out.push(part(Op::Binary(BinaryOp::Add), vec![interleaved_part, taken], sum));
    }
    let [gate, last] = [4, 5].map(|k| dense(first + k));
    out.push(part(Op::Unary(UnaryOp::Silu), vec![dense(first + 1)], gate.clone()));
    out.push(part(Op::Binary(BinaryOp::Mul), vec![gate, dense(first + 3)], last));
    out
}

#[test]
fn parts_that_alternate_are_read_once() {
    let mut memory = vec![0u128; 16 * VALUE_SPACING / 16];
    let base = memory.as_mut_ptr().expose_provenance() as u64;
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let machine = machine(0, 225 << 10);
    let mut l = KernelLowering::new(&address_of, &machine);
    let mut lowered = Vec::new();
    let count_windows = |l: &KernelLowering<'_>| l.source.text().matches("k++) read<bf16, ").count();
    for (columns, step, windows) in
        [(64, 2, 2), (40, 2, 2), (36, 2, 2), (33, 2, 0), (64, 3, 2), (64, 4, 2), (64, 5, 0)]
    {
        let label = format!("{columns} columns of {step} parts");
        let before = count_windows(&l);
        let (together, separate) = (gated(columns, step, 3), gated(columns, step, 9));
        let joint = kernels(loops::lower(&steps(&together), &mut l).expect("it fits").expect("one shape"));
        // The product, and the bias.
        assert_eq!(count_windows(&l) - before, windows, "{label}");
        let each: Vec<KernelLaunch> = steps(&separate)
            .iter()
            .flat_map(|step| kernels(lower(step, &mut l).expect("it has a form")))
            .collect();
        assert_eq!([joint.len(), each.len()], [1, 6], "{label}");
        lowered.push((label, columns, joint, each));
    }
    let Some(library) = EmulatedLibrary::build("interleaved", &l.source.text(), l.source.names()) else {
        return;
    };
    for (what, columns, one, each) in &lowered {
        memory.fill(0);
        let words = |slot: usize, n: usize| -> &mut [u16] {
            let start = std::ptr::with_exposed_provenance_mut::<u16>(base as usize + slot * VALUE_SPACING);
            // SAFETY: that many elements exist there, and nothing else accesses them during this time.
            unsafe { std::slice::from_raw_parts_mut(start, n) }
        };
        let mut random = symmc_support::random::SplitMix(4);
        for slot in [0, 1] {
            // Numbers near one, of both signs.
            words(slot, VALUE_SPACING / 2)
                .iter_mut()
                .for_each(|w| *w = (random.next() as u16 & 0x80ff) | 0x3f00);
        }
        (0..ROW_COUNT).for_each(|row| words(2, 4 * ROW_COUNT)[4 * row] = (row * 3 % GROUP_COUNT) as u16);
        for kernel in one.iter().chain(each) {
            // SAFETY: all addresses are within the memory; nothing else accesses it during this time.
            unsafe { library.run(kernel) };
        }
        let [actual, expected] = [8, 14].map(|slot| words(slot, ROW_COUNT * columns).to_vec());
        assert!(actual == expected && actual.iter().any(|&w| w != 0), "{what}");
    }
}
