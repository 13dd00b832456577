//! Rotary embeddings of queries and keys in one kernel give the bits of separate steps.

use symmc_cuda::codegen::command::GpuCommand;
use symmc_cuda::codegen::compute::{
    self, BoundOperation, GEMM_WORKSPACE, InputUse, KernelLowering, KernelTarget, STATUS_BYTES, rotary,
};
use symmc_cuda::device::launch::{DevicePtr, KernelLaunch};
use symmc_ir::{DType, Op};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};
use symmc_support::random::SplitMix;

use crate::emulate::EmulatedLibrary;
use crate::products::{DispatchPart, VALUE_SPACING, kernels, part, steps};

/// The number of tokens, and of elements of a head.
const L: usize = 19;
const E: usize = 32;

/// A value by heads; with `by_token`, tokens are the outer axis in memory.
fn heads(space: MemorySpace, place: usize, h: usize, by_token: bool) -> LocatedTensor {
    let strides = if by_token { [E, h * E, 1] } else { [L * E, E, 1] };
    LocatedTensor {
        space,
        offset: place * VALUE_SPACING,
        by_rank: 0,
        dtype: DType::BF16,
        shape: [h, L, E].into(),
        strides: strides.map(|s| s as isize).into(),
    }
}

fn angles(place: usize) -> LocatedTensor {
    let shape = [L, E / 2].into();
    LocatedTensor {
        shape,
        strides: [E as isize / 2, 1].into(),
        ..heads(MemorySpace::Ordinary, place, 1, false)
    }
}

fn turn(x: LocatedTensor, result: LocatedTensor, interleaved: bool) -> DispatchPart {
    let op = Op::RotaryEmbedding { width: E, interleaved };
    part(op, vec![x, angles(0), angles(1)], result)
}

/// Queries with more heads to another place, and keys in place.
fn queries_and_keys() -> Vec<DispatchPart> {
    let keys = heads(MemorySpace::Ordinary, 4, 2, false);
    vec![
        turn(heads(MemorySpace::Ordinary, 2, 6, true), heads(MemorySpace::Ordinary, 3, 6, false), false),
        turn(keys.clone(), keys, true),
    ]
}

#[test]
fn one_kernel_gives_the_bits_of_two() {
    let bytes = 5 * VALUE_SPACING;
    let mut memory = vec![0u128; (bytes + GEMM_WORKSPACE + STATUS_BYTES) / 16 + 16];
    let base = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(256);
    let machine = KernelTarget {
        status: base + bytes as u64,
        workspace: base + (bytes + STATUS_BYTES) as u64,
        inputs: InputUse::Written,
        ..crate::machine(GEMM_WORKSPACE, 225 << 10)
    };
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let list = queries_and_keys();
    let steps = steps(&list);
    let mut l = KernelLowering::new(&address_of, &machine);
    let joint = rotary::lower_together(&steps, &mut l).expect("they fit");
    let mut lower = |step: &BoundOperation<'_>| compute::lower(step, &mut l).expect("it has a form");
    let two: Vec<GpuCommand> = steps.iter().flat_map(&mut lower).collect();
    let (one, two) = (kernels(joint), kernels(two));
    assert_eq!([one.len(), two.len()], [1, 2]);
    let Some(library) = EmulatedLibrary::build("rotary", &l.source.text(), l.source.names()) else { return };
    let words = |place: usize, n: usize| {
        let address = std::ptr::with_exposed_provenance::<u16>(base as usize + place * VALUE_SPACING);
        // SAFETY: that many elements exist there, and nothing writes them during this time.
        unsafe { std::slice::from_raw_parts(address, n).to_vec() }
    };
    let mut run = |kernels: &[KernelLaunch]| {
        let mut random = SplitMix(4);
        // Numbers near one, of both signs.
        memory.iter_mut().take(bytes / 16 + 16).for_each(|word| {
            *word = (0..8).fold(0, |w, i| w | u128::from((random.next() & 0x80ff) | 0x3f00) << (16 * i));
        });
        // SAFETY: all addresses are within the memory; nothing else accesses it during this time.
        kernels.iter().for_each(|k| unsafe { library.run(k) });
        [words(3, 6 * L * E), words(4, 2 * L * E)]
    };
    let (together, alone) = (run(&one), run(&two));
    assert!(together == alone);
    assert_ne!(together[0], together[0].iter().map(|_| 0).collect::<Vec<u16>>());
}
