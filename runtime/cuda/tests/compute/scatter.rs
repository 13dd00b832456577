//! Stores to several caches in one kernel give the bits of separate steps.

use symmc_cuda::codegen::command::GpuCommand;
use symmc_cuda::codegen::compute::{
    self, BoundOperation, GEMM_WORKSPACE, InputUse, KernelLowering, KernelTarget, STATUS_BYTES, scatter,
};
use symmc_cuda::device::launch::{DevicePtr, PortBases};
use symmc_ir::{DType, Op};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use crate::emulate::EmulatedLibrary;
use crate::products::{DispatchPart, VALUE_SPACING, part, steps};

/// The numbers of heads, of positions of a cache, of tokens, and of elements of a head.
const H: usize = 3;
const POSITIONS: usize = 40;
const L: usize = 7;
const E: usize = 72;

/// Rows of consecutive heads.
fn rows(place: usize, heads: usize, l: usize) -> LocatedTensor {
    let strides = [l * E, E, 1].map(|s| s as isize).into();
    let shape = [heads, l, E].into();
    LocatedTensor {
        space: MemorySpace::Ordinary,
        offset: place * VALUE_SPACING,
        by_rank: 0,
        dtype: DType::BF16,
        shape,
        strides,
    }
}

fn positions() -> LocatedTensor {
    LocatedTensor { dtype: DType::I64, shape: [L].into(), strides: [1].into(), ..rows(0, 1, 1) }
}

fn store(
    cache: LocatedTensor,
    source: LocatedTensor,
    result: LocatedTensor,
    accumulate: bool,
) -> DispatchPart {
    part(Op::IndexPut { axis: 1, accumulate }, vec![cache, source, positions()], result)
}

/// Keys in place of their cache, values of other heads in another place, and an accumulating store.
fn cache_stores() -> Vec<DispatchPart> {
    vec![
        store(rows(1, H, POSITIONS), rows(2, H, L), rows(1, H, POSITIONS), false),
        store(rows(3, 2, POSITIONS), rows(4, 2, L), rows(5, 2, POSITIONS), false),
        store(rows(6, H, POSITIONS), rows(2, H, L), rows(6, H, POSITIONS), true),
    ]
}

#[test]
fn one_kernel_stores_the_bits_of_three() {
    let bytes = 7 * VALUE_SPACING;
    let mut memory = vec![0u128; (bytes + GEMM_WORKSPACE + STATUS_BYTES) / 16 + 16];
    let base = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(256);
    let machine = KernelTarget {
        status: base + bytes as u64,
        workspace: base + (bytes + STATUS_BYTES) as u64,
        inputs: InputUse::Written,
        ..crate::machine(GEMM_WORKSPACE, 225 << 10)
    };
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let list = cache_stores();
    let steps = steps(&list);
    let mut l = KernelLowering::new(&address_of, &machine);
    let joint = scatter::lower_together(&steps, &mut l).expect("they fit");
    let mut lower = |step: &BoundOperation<'_>| compute::lower(step, &mut l).expect("it has a form");
    let three: Vec<_> = steps.iter().flat_map(&mut lower).collect();
    // The store of values is preceded by a copy of their cache.
    assert_eq!([joint.len(), three.len()], [2, 4]);
    let Some(library) = EmulatedLibrary::build("scatter", &l.source.text(), l.source.names()) else { return };
    let words = |place: usize, n: usize| -> &mut [u16] {
        let address = std::ptr::with_exposed_provenance_mut::<u16>(base as usize + place * VALUE_SPACING);
        // SAFETY: that many elements exist there, and nothing else accesses them during this time.
        unsafe { std::slice::from_raw_parts_mut(address, n) }
    };
    let mut run = |commands: &[GpuCommand]| {
        let mut random = symmc_support::random::SplitMix(4);
        memory.fill(0);
        // Numbers near one, of both signs, and positions, some of them repeated, also counted from the end.
        for place in 1..7 {
            words(place, H * POSITIONS * E)
                .iter_mut()
                .for_each(|w| *w = (random.next() as u16 & 0x80ff) | 0x3f00);
        }
        for (j, position) in [3i64, 39, 3, 0, -2, 38, 7].into_iter().enumerate() {
            words(0, 4 * L)[4 * j..][..4].copy_from_slice(&[0, 16, 32, 48].map(|s| (position >> s) as u16));
        }
        for command in commands {
            match command {
                // SAFETY: all addresses are within the memory; nothing else accesses it during this time.
                GpuCommand::Kernel(kernel) => unsafe { library.run(kernel) },
                &GpuCommand::Copy { to, from, bytes } => {
                    let pointer = |at: DevicePtr| {
                        std::ptr::with_exposed_provenance_mut::<u8>(at.resolve(PortBases::NONE) as usize)
                    };
                    // SAFETY: as above.
                    unsafe { std::ptr::copy(pointer(from), pointer(to), bytes) }
                }
                other => panic!("expected a kernel or a copy, found {other:?}"),
            }
        }
        [(1, H), (5, 2), (6, H)].map(|(place, h)| words(place, h * POSITIONS * E).to_vec())
    };
    let (together, alone) = (run(&joint), run(&three));
    assert!(together == alone);
    // The last one of several stores to one position wins.
    let stored = |found: &[u16], position: usize, j: usize| {
        let sources = words(2, H * L * E);
        (0..H).all(|h| found[(h * POSITIONS + position) * E..][..E] == sources[(h * L + j) * E..][..E])
    };
    for (position, j) in [(3, 2), (39, 1), (0, 3), (38, 5), (7, 6)] {
        assert!(stored(&together[0], position, j), "position {position}");
    }
}
