//! Skinny GEMMs with an epilogue: one kernel gives the bits of separate steps.

use symmc_cuda::CudaError;
use symmc_cuda::codegen::command::GpuCommand;
use symmc_cuda::codegen::compile::{KernelSource, compile};
use symmc_cuda::codegen::compute::products::lower;
use symmc_cuda::codegen::compute::{
    self, AlgorithmSelection, BoundOperation, GEMM_WORKSPACE, InputUse, KernelLowering, KernelTarget,
    STATUS_BYTES,
};
use symmc_cuda::device::launch::{DevicePtr, KernelLaunch};
use symmc_ir::{BinaryOp, DType, Op, UnaryOp};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};
use symmc_support::random::SplitMix;

use crate::emulate::EmulatedLibrary;

/// More terms than the stages of a ring hold.
const K: usize = 1800;
const N: usize = 200;

/// The distance in bytes between the starts of two values.
pub(crate) const VALUE_SPACING: usize = 1 << 20;

pub(crate) fn value(
    space: MemorySpace,
    place: usize,
    shape: [usize; 2],
    strides: [isize; 2],
) -> LocatedTensor {
    let (shape, strides) = (shape.into(), strides.into());
    LocatedTensor { space, offset: place * VALUE_SPACING, by_rank: 0, dtype: DType::BF16, shape, strides }
}

/// A step of a dispatch.
pub(crate) struct DispatchPart {
    pub op: Op,
    pub operands: Vec<LocatedTensor>,
    pub results: [LocatedTensor; 1],
}

pub(crate) fn part(op: Op, operands: Vec<LocatedTensor>, result: LocatedTensor) -> DispatchPart {
    DispatchPart { op, operands, results: [result] }
}

pub(crate) fn steps(parts: &[DispatchPart]) -> Vec<BoundOperation<'_>> {
    fn step(part: &DispatchPart) -> BoundOperation<'_> {
        BoundOperation { index: 0, op: &part.op, operands: &part.operands, results: &part.results }
    }
    parts.iter().map(step).collect()
}

/// The same steps, with all results except the last one internal to the dispatch.
pub(crate) fn inside(mut parts: Vec<DispatchPart>) -> Vec<DispatchPart> {
    let last_part = parts.len() - 1;
    let own: Vec<MemorySpace> = parts[..last_part].iter().map(|p| p.results[0].space).collect();
    let places: Vec<usize> = parts[..last_part].iter().map(|p| p.results[0].offset / VALUE_SPACING).collect();
    let inner = |v: &mut LocatedTensor| {
        let is_internal = own
            .iter()
            .zip(&places)
            .any(|(space, place)| (*space, *place) == (v.space, v.offset / VALUE_SPACING));
        v.space = if is_internal { MemorySpace::Inner } else { v.space };
    };
    parts.iter_mut().flat_map(|p| p.operands.iter_mut().chain(&mut p.results)).for_each(inner);
    parts
}

/// `silu(x gate) * (x up)` for `m` rows.
pub(crate) fn gated(m: usize) -> Vec<DispatchPart> {
    let row = |space, place, n: usize| value(space, place, [m, n], [n as isize, 1]);
    let weight = |place| value(MemorySpace::Input(1), place, [K, N], [1, K as isize]);
    let x = row(MemorySpace::Ordinary, 0, K);
    let (a, b, out) = (
        row(MemorySpace::Ordinary, 3, N),
        row(MemorySpace::Ordinary, 4, N),
        row(MemorySpace::Output(0), 5, N),
    );
    let turned = row(MemorySpace::Ordinary, 6, N);
    vec![
        part(Op::MATMUL, vec![x.clone(), weight(1)], a.clone()),
        part(Op::Unary(UnaryOp::Silu), vec![a], turned.clone()),
        part(Op::MATMUL, vec![x, weight(2)], b.clone()),
        part(Op::Binary(BinaryOp::Mul), vec![turned, b], out),
    ]
}

/// The same with both weights in one matrix, whose column halves are read separately.
fn halved(m: usize) -> Vec<DispatchPart> {
    let row = |space, place, n: usize| value(space, place, [m, n], [n as isize, 1]);
    let (x, both) = (row(MemorySpace::Ordinary, 0, K), row(MemorySpace::Ordinary, 3, 2 * N));
    let weight = value(MemorySpace::Input(1), 1, [K, 2 * N], [1, K as isize]);
    let gate = value(MemorySpace::Ordinary, 3, [m, N], [2 * N as isize, 1]);
    let up = LocatedTensor { offset: gate.offset + 2 * N, ..gate.clone() };
    let (a, out) = (row(MemorySpace::Ordinary, 4, N), row(MemorySpace::Output(0), 5, N));
    vec![
        part(Op::MATMUL, vec![x, weight], both),
        part(Op::Unary(UnaryOp::Silu), vec![gate], a.clone()),
        part(Op::Binary(BinaryOp::Mul), vec![a, up], out),
    ]
}

/// `round(x w + bias)` for `m` rows.
fn biased(m: usize) -> Vec<DispatchPart> {
    let wide = |v: LocatedTensor| LocatedTensor { dtype: DType::F32, ..v };
    let row = |space, place, n: usize| value(space, place, [m, n], [n as isize, 1]);
    let x = row(MemorySpace::Ordinary, 0, K);
    let weight = value(MemorySpace::Input(1), 1, [K, N], [1, K as isize]);
    let bias = value(MemorySpace::Input(2), 2, [1, N], [N as isize, 1]);
    let widened = wide(value(MemorySpace::Ordinary, 3, [1, N], [N as isize, 1]));
    let (sums, total) = (wide(row(MemorySpace::Ordinary, 4, N)), wide(row(MemorySpace::Ordinary, 5, N)));
    vec![
        part(Op::Cast, vec![bias], widened.clone()),
        part(Op::MATMUL_UNROUNDED, vec![x, weight], sums.clone()),
        part(Op::Binary(BinaryOp::Add), vec![sums, widened], total.clone()),
        part(Op::Cast, vec![total], row(MemorySpace::Output(0), 6, N)),
    ]
}

#[test]
fn the_library_adds_the_bias_of_many_rows() {
    let world = RandomMemory::new();
    let address_of = |v: &LocatedTensor| DevicePtr::from(world.base() + v.offset as u64);
    let machine = KernelTarget { multiprocessors: 132, wgmma: true, ..world.machine };
    for (m, by_library) in [(1, false), (65, true), (200, true)] {
        let mut l = KernelLowering::new(&address_of, &machine);
        let list = inside(biased(m));
        let works = lower(&steps(&list), &mut l).expect("it fits").expect("one command");
        match &works[..] {
            [GpuCommand::Gemm(gemm)] => {
                assert!(by_library, "{m} rows");
                assert_eq!((gemm.dtype, gemm.result_dtype), (DType::BF16, DType::BF16));
                assert_eq!(gemm.bias, Some(address_of(&list[0].operands[0])));
            }
            [GpuCommand::Kernel(_)] => assert!(!by_library, "{m} rows"),
            other => panic!("{other:?}"),
        }
        // A value that another step reads is stored, which the library cannot do.
        let mut stored = inside(biased(m));
        let total = LocatedTensor { space: MemorySpace::Ordinary, ..stored[2].results[0].clone() };
        stored[2].results = [total.clone()];
        stored[3].operands = vec![total];
        let works = lower(&steps(&stored), &mut l).expect("it fits");
        let is_library = works.is_some_and(|works| matches!(works[..], [GpuCommand::Gemm(_)]));
        assert!(!is_library, "{m} rows");
    }
}

/// Compiles the code, if NVRTC is available.
pub(crate) fn compiles(source: &KernelSource) {
    match compile(source, [9, 0]) {
        Ok(code) => assert!(!code.is_empty()),
        Err(CudaError::Missing { library, .. }) => symmc_cases::skip_test(&format!("no {library}")),
        Err(error) => panic!("{error}"),
    }
}

/// Memory with random values for the steps, and the target that kernels are lowered for.
pub(crate) struct RandomMemory {
    memory: Vec<u128>,
    pub machine: KernelTarget,
}

impl RandomMemory {
    pub fn new() -> RandomMemory {
        let own = 7 * VALUE_SPACING;
        let mut memory = vec![0u128; (own + GEMM_WORKSPACE + STATUS_BYTES) / 16 + 16];
        let base = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(256);
        // A block has 56 lines of one matrix, or 28 of each of two.
        let machine = KernelTarget {
            multiprocessors: 4,
            bandwidth: 4917,
            status: base + own as u64,
            workspace: base + (own + STATUS_BYTES) as u64,
            workspace_bytes: GEMM_WORKSPACE,
            shared: 225 << 10,
            wgmma: false,
            inputs: InputUse::Read,
            attention: AlgorithmSelection::Heuristic,
        };
        RandomMemory { memory, machine }
    }

    pub fn base(&self) -> u64 {
        self.machine.status - 7 * VALUE_SPACING as u64
    }

    /// Runs these kernels on the same initial memory, and returns the bytes of a result.
    pub fn run(
        &mut self,
        library: &EmulatedLibrary,
        kernels: &[KernelLaunch],
        result: &LocatedTensor,
    ) -> Vec<u8> {
        let mut random = SplitMix(3);
        for half in self.memory.iter_mut() {
            // 16-bit floats with a random sign, an exponent near one and a random mantissa.
            *half = (0..8).fold(0, |word, i| {
                let bits = random.next() as u128;
                word | ((bits & 0x807f) | 0x3e80 | (bits >> 8 & 0x0100)) << (16 * i)
            });
        }
        let status = std::ptr::with_exposed_provenance_mut::<u8>(self.machine.status as usize);
        let address = std::ptr::with_exposed_provenance::<u8>(self.base() as usize + result.offset);
        // SAFETY: all addresses are within the memory; nothing else accesses it during this time.
        unsafe {
            status.write_bytes(0, STATUS_BYTES);
            kernels.iter().for_each(|k| library.run(k));
            std::slice::from_raw_parts(address, result.shape.iter().product::<usize>() * 2).to_vec()
        }
    }
}

impl RandomMemory {
    /// The expected result of a matrix product of the values in memory.
    pub fn product(&self, part: &DispatchPart) -> Vec<u8> {
        let [x, y] = &part.operands[..] else { panic!("a product has two operands") };
        let element = |v: &LocatedTensor, row: usize, column: usize| {
            let offset =
                v.offset as isize + (row as isize * v.strides[0] + column as isize * v.strides[1]) * 2;
            let address =
                std::ptr::with_exposed_provenance::<u16>((self.base() as usize).wrapping_add_signed(offset));
            // SAFETY: the address is within the memory, which is not written during this time.
            f64::from(f32::from_bits(u32::from(unsafe { address.read() }) << 16))
        };
        let ([m, k], n) = ([x.shape[0], x.shape[1]], y.shape[1]);
        let sum = |at: usize| (0..k).map(|i| element(x, at / n, i) * element(y, i, at % n)).sum::<f64>();
        (0..m * n).flat_map(|at| ((sum(at) as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec()).collect()
    }
}

pub(crate) fn kernels(works: Vec<GpuCommand>) -> Vec<KernelLaunch> {
    let kernel = |work| match work {
        GpuCommand::Kernel(kernel) => kernel,
        other => panic!("{other:?}"),
    };
    works.into_iter().map(kernel).collect()
}

#[test]
fn products_with_epilogues_match_single_steps_bitwise() {
    let mut world = RandomMemory::new();
    let (base, machine) = (world.base(), world.machine);
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    let cases = [1, 9, 30, 40].map(|m| (m, gated as fn(usize) -> Vec<DispatchPart>));
    let halves = [1, 9].map(|m| (m, halved as fn(usize) -> Vec<DispatchPart>));
    let biased = [1, 30].map(|m| (m, biased as fn(usize) -> Vec<DispatchPart>));
    let mut l = KernelLowering::new(&address_of, &machine);
    let mut lowered = Vec::new();
    for (m, of) in cases.into_iter().chain(halves).chain(biased) {
        let (list, fused) = (of(m), inside(of(m)));
        let joint = lower(&steps(&fused), &mut l).expect("it fits");
        let joint = kernels(joint.expect("one kernel"));
        let single = |step: &BoundOperation<'_>| kernels(compute::lower(step, &mut l).expect("it fits"));
        let single: Vec<KernelLaunch> = steps(&list).iter().flat_map(single).collect();
        assert_eq!(single.len(), list.len());
        lowered.push((m, list, single, joint));
    }
    compiles(&l.source);
    let Some(library) = EmulatedLibrary::build("products", &l.source.text(), l.source.names()) else {
        return;
    };
    for (m, list, single, one) in &lowered {
        let result = &list[list.len() - 1].results[0];
        let expected = world.run(&library, single, result);
        assert_eq!(world.run(&library, one, result), expected, "{m} rows");
    }
}

#[test]
fn cluster_pairs_compute_the_same_sums_reordered() {
    let mut world = RandomMemory::new();
    let (base, alone) = (world.base(), world.machine);
    let address_of = |v: &LocatedTensor| DevicePtr::from(base + v.offset as u64);
    // Pairs have 112 lines, 56 of each product.
    let pairs = KernelTarget { multiprocessors: 8, wgmma: true, ..alone };
    let mut l = KernelLowering::new(&address_of, &alone);
    let mut lowered = Vec::new();
    for m in [17, 50, 64] {
        let list = inside(gated(m));
        let [one, two] = [alone, pairs].map(|machine| {
            l.machine = machine;
            let work = lower(&steps(&list), &mut l).expect("it fits");
            kernels(work.expect("one kernel"))
        });
        assert_eq!([one[0].cluster, two[0].cluster], [1, 2]);
        lowered.push((m, list, [one, two]));
    }
    compiles(&l.source);
    let Some(library) = EmulatedLibrary::build("products-pairs", &l.source.text(), l.source.names()) else {
        return;
    };
    for (m, list, both) in &lowered {
        let result = &list[list.len() - 1].results[0];
        let [expected, found] = both.each_ref().map(|k| world.run(&library, k, result));
        near(&found, &expected, &format!("{m} rows"));
    }
}

/// Compares bf16 elements that may differ only by rounding.
pub(crate) fn near(found: &[u8], expected: &[u8], what: &str) {
    let value = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
    for (i, (a, b)) in expected.chunks(2).zip(found.chunks(2)).enumerate() {
        let (a, b) = (value(a), value(b));
        assert!((a - b).abs() <= a.abs() / 64.0 + 1e-6, "{what}: element {i}: {b}, not {a}");
    }
}

#[test]
fn epilogue_does_not_change_the_split_of_a_product() {
    let world = RandomMemory::new();
    let address_of = |v: &LocatedTensor| DevicePtr::from(world.base() + v.offset as u64);
    let machine = KernelTarget { multiprocessors: 132, wgmma: true, ..world.machine };
    let mut split = 0;
    for m in [1, 2, 8, 16, 17, 33, 64] {
        for [k, n] in [[14336, 4096], [8192, 1024], [4096, 4096], [3584, 8192], [896, 1152], [1800, 200]] {
            let row = |space, slot, n: usize| value(space, slot, [m, n], [n as isize, 1]);
            let (x, weight) =
                (row(MemorySpace::Ordinary, 0, k), value(MemorySpace::Input(1), 1, [k, n], [1, k as isize]));
            let (sum, residual) = (row(MemorySpace::Ordinary, 2, n), row(MemorySpace::Ordinary, 3, n));
            let nodes = vec![
                part(Op::MATMUL, vec![x, weight], sum.clone()),
                part(Op::Binary(BinaryOp::Add), vec![residual, sum], row(MemorySpace::Output(0), 4, n)),
            ];
            let mut l = KernelLowering::new(&address_of, &machine);
            let separate = compute::lower(&steps(&nodes)[0], &mut l).expect("it fits");
            let with = lower(&steps(&inside(nodes)), &mut l).expect("it fits").expect("one kernel");
            // A product that the library computes has another limit.
            let [GpuCommand::Kernel(separate)] = &separate[..] else { continue };
            let launch = |k: &KernelLaunch| (k.grid, k.block, k.cluster, k.shared);
            assert_eq!(launch(&kernels(with)[0]), launch(separate), "{m} rows, K {k}, {n} columns");
            split += usize::from(separate.cluster > 1);
        }
    }
    assert!(split > 4, "{split} products split K");
}

#[test]
fn products_that_wait_for_memory_do_not_split_k() {
    let world = RandomMemory::new();
    let address_of = |v: &LocatedTensor| DevicePtr::from(world.base() + v.offset as u64);
    let target = |bandwidth| KernelTarget {
        multiprocessors: 132,
        wgmma: true,
        shared: 225 << 10,
        bandwidth,
        ..world.machine
    };
    // For the bandwidth of H200, of H100, and of a machine that does not report it.
    for ([k, n], expected) in
        [([4096, 3072], [4, 1, 4]), ([7168, 4096], [2, 1, 2]), ([8192, 1280], [8, 4, 8])]
    {
        let clusters = [4917, 3352, 0].map(|bandwidth| {
            let row = |place, n: usize| value(MemorySpace::Ordinary, place, [2, n], [n as isize, 1]);
            let weight = value(MemorySpace::Input(1), 1, [k, n], [1, k as isize]);
            let product = [part(Op::MATMUL, vec![row(0, k), weight], row(2, n))];
            let machine = target(bandwidth);
            let mut l = KernelLowering::new(&address_of, &machine);
            let commands = compute::lower(&steps(&product)[0], &mut l).expect("it fits");
            kernels(commands)[0].cluster
        });
        assert_eq!(clusters, expected, "K {k}, {n} columns");
    }
}
