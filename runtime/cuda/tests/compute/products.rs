//! Products of few rows and the element-wise steps behind them: one kernel gives the bits of the single steps.

use symmc_cuda::CudaError;
use symmc_cuda::compile::{Source, compile};
use symmc_cuda::compute::products::{Finished, find, lower};
use symmc_cuda::compute::{
    self, Attentions, GEMM_WORKSPACE, InputUse, Machine, STATUS_BYTES, Sites, Step, fuse,
};
use symmc_cuda::launch::{Kernel, Work};
use symmc_ir::random::SplitMix;
use symmc_ir::{BinaryOp, DType, Op, UnaryOp};
use symmc_plan::Lane;
use symmc_runtime::exec::{BoundStep, Home, Located, Work as StepWork};

use crate::emulate::Library;

/// More terms than the stages of a ring hold.
const K: usize = 1800;
const N: usize = 200;

/// Bytes from the start of the memory to each value, far apart.
pub(crate) const SPACING: usize = 1 << 20;

pub(crate) fn value(home: Home, place: usize, shape: [usize; 2], strides: [isize; 2]) -> Located {
    let (shape, strides) = (shape.into(), strides.into());
    Located { home, offset: place * SPACING, by_rank: 0, dtype: DType::BF16, shape, strides }
}

pub(crate) fn step(index: usize, op: Op, operands: Vec<Located>, result: Located) -> BoundStep {
    let work = StepWork::Kernel { op, operands, results: vec![result] };
    let (node, op_name) = (format!("n{index}"), "op".into());
    BoundStep { index, lane: Lane::Compute, waits: vec![], node, op_name, work }
}

/// `silu(x gate) * (x up)` for `m` rows; the first product and `silu` share a place.
pub(crate) fn gated(m: usize) -> Vec<BoundStep> {
    let row = |home, place, n: usize| value(home, place, [m, n], [n as isize, 1]);
    let weight = |place| value(Home::Input(1), place, [K, N], [1, K as isize]);
    let x = row(Home::Ordinary, 0, K);
    let (a, b, out) = (row(Home::Ordinary, 3, N), row(Home::Ordinary, 4, N), row(Home::Output(0), 5, N));
    vec![
        step(0, Op::MatMul, vec![x.clone(), weight(1)], a.clone()),
        step(1, Op::Unary(UnaryOp::Silu), vec![a.clone()], a.clone()),
        step(2, Op::MatMul, vec![x, weight(2)], b.clone()),
        step(3, Op::Binary(BinaryOp::Mul), vec![a, b], out),
    ]
}

/// The same with both weights in one, of which the halves of the columns are read.
fn halved(m: usize) -> Vec<BoundStep> {
    let row = |home, place, n: usize| value(home, place, [m, n], [n as isize, 1]);
    let (x, both) = (row(Home::Ordinary, 0, K), row(Home::Ordinary, 3, 2 * N));
    let weight = value(Home::Input(1), 1, [K, 2 * N], [1, K as isize]);
    let gate = value(Home::Ordinary, 3, [m, N], [2 * N as isize, 1]);
    let up = Located { offset: gate.offset + 2 * N, ..gate.clone() };
    let (a, out) = (row(Home::Ordinary, 4, N), row(Home::Output(0), 5, N));
    vec![
        step(0, Op::MatMul, vec![x, weight], both),
        step(1, Op::Unary(UnaryOp::Silu), vec![gate], a.clone()),
        step(2, Op::Binary(BinaryOp::Mul), vec![a, up], out),
    ]
}

/// Where NVRTC is, it takes the code.
fn compiles(source: &Source) {
    match compile(source, [9, 0]) {
        Ok(code) => assert!(!code.is_empty()),
        Err(CudaError::Missing { library, .. }) => println!("skipped: no {library}"),
        Err(error) => panic!("{error}"),
    }
}

/// Memory with random values for the steps, and what kernels are lowered for.
struct World {
    memory: Vec<u128>,
    machine: Machine,
}

impl World {
    fn new() -> World {
        let own = 6 * SPACING;
        let mut memory = vec![0u128; (own + GEMM_WORKSPACE + STATUS_BYTES) / 16 + 16];
        let base = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(256);
        // A block has 56 lines of one matrix, or 28 of each of two.
        let machine = Machine {
            multiprocessors: 4,
            status: base + own as u64,
            workspace: base + (own + STATUS_BYTES) as u64,
            workspace_bytes: GEMM_WORKSPACE,
            shared: 225 << 10,
            groups: false,
            inputs: InputUse::Read,
            attention: Attentions::Kernels,
        };
        World { memory, machine }
    }

    fn base(&self) -> u64 {
        self.machine.status - 6 * SPACING as u64
    }

    /// What lies at a place after these kernels, from the same start.
    fn run(&mut self, library: &Library, kernels: &[Kernel], result: &Located) -> Vec<u8> {
        let mut random = SplitMix(3);
        for half in self.memory.iter_mut() {
            // Halves of a sign, an exponent near one and a mantissa.
            *half = (0..8).fold(0, |word, i| {
                let bits = random.next() as u128;
                word | ((bits & 0x807f) | 0x3e80 | (bits >> 8 & 0x0100)) << (16 * i)
            });
        }
        let status = std::ptr::with_exposed_provenance_mut::<u8>(self.machine.status as usize);
        let at = std::ptr::with_exposed_provenance::<u8>(self.base() as usize + result.offset);
        // SAFETY: all addresses lie in the memory; nothing else touches it meanwhile.
        unsafe {
            status.write_bytes(0, STATUS_BYTES);
            kernels.iter().for_each(|k| library.run(k));
            std::slice::from_raw_parts(at, result.shape.iter().product::<usize>() * 2).to_vec()
        }
    }
}

pub(crate) fn kernels(works: Vec<Work>) -> Vec<Kernel> {
    let kernel = |work| match work {
        Work::Kernel(kernel) => kernel,
        other => panic!("{other:?}"),
    };
    works.into_iter().map(kernel).collect()
}

#[test]
fn products_and_what_follows_are_one_kernel_with_the_same_bits() {
    let mut world = World::new();
    let (base, machine) = (world.base(), world.machine);
    let at = |v: &Located| base + v.offset as u64;
    let lists = [1, 9, 30, 40].map(|m| (m, gated(m), [&[0, 2][..], &[1, 3][..]]));
    let halves = [1, 9].map(|m| (m, halved(m), [&[0][..], &[1, 2][..]]));
    for (number, (m, list, places)) in lists.into_iter().chain(halves).enumerate() {
        let [whole] = &find(&list, &fuse::groups(&list))[..] else { panic!("one kernel for {m} rows") };
        assert_eq!([&whole.products[..], &whole.group.steps[..]], places);
        let (mut source, mut sites) = (Source::new(), Sites::new());
        let one = lower(&list, whole, &at, &machine, &mut source, &mut sites).expect("it fits");
        let one = kernels(vec![one.expect("one kernel")]);
        let single = |step: &BoundStep| {
            let step: Step<'_> = fuse::compute_step(step).expect("of the closed set");
            kernels(compute::lower(&step, &at, &machine, &mut source, &mut sites).expect("it fits"))
        };
        let single: Vec<Kernel> = list.iter().flat_map(single).collect();
        assert_eq!(single.len(), list.len());
        compiles(&source);
        let Some(library) = Library::build(&format!("products-{number}"), &source.text(), source.names())
        else {
            return;
        };
        let Some(StepWork::Kernel { results, .. }) = list.last().map(|s| &s.work) else { panic!("a kernel") };
        let expected = world.run(&library, &single, &results[0]);
        assert_eq!(world.run(&library, &one, &results[0]), expected, "{m} rows");
    }
}

#[test]
fn pairs_of_blocks_add_up_the_same_sums_in_another_order() {
    let mut world = World::new();
    let (base, alone) = (world.base(), world.machine);
    let at = |v: &Located| base + v.offset as u64;
    // Pairs have 112 lines, 56 of each product.
    let pairs = Machine { multiprocessors: 8, groups: true, ..alone };
    for m in [17, 50, 64] {
        let list = gated(m);
        let [whole] = &find(&list, &fuse::groups(&list))[..] else { panic!("one kernel for {m} rows") };
        let (mut source, mut sites) = (Source::new(), Sites::new());
        let [one, two] = [alone, pairs].map(|machine| {
            let work = lower(&list, whole, &at, &machine, &mut source, &mut sites).expect("it fits");
            kernels(vec![work.expect("one kernel")])
        });
        assert_eq!([one[0].cluster, two[0].cluster], [1, 2]);
        compiles(&source);
        let name = format!("products-pairs-{m}");
        let Some(library) = Library::build(&name, &source.text(), source.names()) else { return };
        let Some(StepWork::Kernel { results, .. }) = list.last().map(|s| &s.work) else { panic!("a kernel") };
        let [expected, found] = [one, two].map(|k| world.run(&library, &k, &results[0]));
        let value = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
        for (i, (a, b)) in expected.chunks(2).zip(found.chunks(2)).enumerate() {
            let (a, b) = (value(a), value(b));
            assert!((a - b).abs() <= a.abs() / 64.0 + 1e-6, "{m} rows: element {i}: {b}, not {a}");
        }
    }
}

/// The products of each kernel that a list has.
fn products(list: &[BoundStep]) -> Vec<Vec<usize>> {
    find(list, &fuse::groups(list)).into_iter().map(|f: Finished| f.products).collect()
}

#[test]
fn a_product_that_somebody_else_reads_or_that_would_lose_its_operand_stays_alone() {
    let mut read = gated(1);
    let [a, copy] = [3, 6].map(|place| value(Home::Ordinary, place, [1, N], [N as isize, 1]));
    // The result of the first product is copied before the activation overwrites it.
    read.insert(1, step(1, Op::Copy, vec![a], copy));
    assert_eq!(products(&read), [[3]]);
    // Another lane waits for a step behind the first product, and so for both.
    let mut awaited = gated(1);
    let [from, to] = [6, 7].map(|place| value(Home::Ordinary, place, [1, N], [N as isize, 1]));
    awaited.insert(1, step(1, Op::Copy, vec![from.clone()], to.clone()));
    assert_eq!(products(&awaited), [[0, 3]]);
    awaited.push(BoundStep { lane: Lane::Comm, waits: vec![1], ..step(5, Op::Copy, vec![to], from) });
    assert_eq!(products(&awaited), [[3]]);
    // Somebody reads columns of both halves.
    let mut across = halved(1);
    let columns =
        Located { offset: 3 * SPACING + N, ..value(Home::Ordinary, 3, [1, N], [2 * N as isize, 1]) };
    across.push(step(3, Op::Copy, vec![columns], value(Home::Ordinary, 6, [1, N], [N as isize, 1])));
    assert_eq!(products(&across), [[0; 0]; 0]);
    // The activation goes where its product and the next one read.
    let mut lost = gated(1);
    let x = value(Home::Ordinary, 0, [1, N], [N as isize, 1]);
    if let StepWork::Kernel { results, .. } = &mut lost[1].work {
        results[0] = x.clone();
    }
    if let StepWork::Kernel { operands, .. } = &mut lost[3].work {
        operands[0] = x;
    }
    assert_eq!(products(&lost), [[2]]);
}

#[test]
fn who_reads_what_overwrote_a_product_does_not_read_the_product() {
    // All in place, then read by another product whose own result is smaller than what it overwrites.
    let mut list = gated(1);
    let [a, up, small] =
        [(3, N), (4, N), (4, 8)].map(|(place, n)| value(Home::Ordinary, place, [1, n], [n as isize, 1]));
    if let StepWork::Kernel { results, .. } = &mut list[3].work {
        results[0] = a.clone();
    }
    let down = value(Home::Input(1), 5, [N, 8], [1, N as isize]);
    list.push(step(4, Op::MatMul, vec![a, down], small.clone()));
    list.push(step(5, Op::Copy, vec![small], value(Home::Output(0), 5, [1, 8], [8, 1])));
    let [whole] = &find(&list, &fuse::groups(&list))[..] else { panic!("{:?}", products(&list)) };
    assert_eq!((&whole.products[..], &whole.group.stored[..]), (&[0, 2][..], &[false, true][..]));
    // A part of the second product that the smaller result leaves is read.
    if let StepWork::Kernel { operands, .. } = &mut list[5].work {
        operands[0] = up;
    }
    assert_eq!(products(&list), [[0]]);
    // What lies in an output at the end is the caller's.
    let mut list = gated(1);
    if let StepWork::Kernel { results, .. } = &mut list[0].work {
        results[0] = value(Home::Output(0), 3, [1, N], [N as isize, 1]);
    }
    if let StepWork::Kernel { operands, .. } = &mut list[1].work {
        operands[0] = value(Home::Output(0), 3, [1, N], [N as isize, 1]);
    }
    assert_eq!(products(&list), [[2]]);
    // Unless something else takes its place before.
    let place = value(Home::Output(0), 3, [1, N], [N as isize, 1]);
    list.push(step(4, Op::Copy, vec![value(Home::Ordinary, 6, [1, N], [N as isize, 1])], place));
    assert_eq!(products(&list), [[0, 2]]);
}

#[test]
fn what_lies_elsewhere_on_every_rank_does_not_end_a_value_on_one_of_them() {
    // A shard is written where the second product was on the first rank, and then all shards are read.
    let ranks = [0, 1].map(|number| {
        let mut list = gated(1);
        let shard = 256 * 2;
        let row = |home, place, n: usize| value(home, place, [1, n], [n as isize, 1]);
        let own = row(Home::Ordinary, 4, 256);
        let own = Located { offset: own.offset + shard * number, by_rank: shard, ..own };
        list.push(step(4, Op::Copy, vec![row(Home::Ordinary, 6, 256)], own));
        list.push(step(5, Op::Copy, vec![row(Home::Ordinary, 4, 512)], row(Home::Output(1), 0, 512)));
        products(&list)
    });
    assert_eq!(ranks, [[[0]], [[0]]]);
}
