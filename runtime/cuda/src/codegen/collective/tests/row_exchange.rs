//! Exchanges of rows that tables select, on host threads.

use symmc_ir::tensor::{read_f64, write_f64};
use symmc_runtime::call::{RowTableKind, RowTables};
use symmc_support::random::SplitMix;

use super::super::control::InvalidRowEntry;
use super::emulate::{EmulatedWorld, EmulationLibrary, WorldConfig, bytes_at};
use super::*;

/// An exchange of `tokens` tokens of each rank, of `width` elements and `slots` slots.
#[derive(Clone, Copy, Debug)]
struct ExchangeShape {
    kind: ExchangeKind,
    variant: CollectiveVariant,
    exit: ExitBarrier,
    dtype: DType,
    width: usize,
    tokens: usize,
    slots: usize,
    capacity: usize,
    /// The offset of the operand and the result from aligned addresses, in elements.
    shift: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum ExchangeKind {
    Dispatch,
    /// With weights of this dtype, if any.
    Combine(Option<DType>),
    /// The same sums, made where the rows are.
    Reduce(Option<DType>),
}

const fn dispatch(dtype: DType, width: usize, tokens: usize, slots: usize, capacity: usize) -> ExchangeShape {
    ExchangeShape {
        kind: ExchangeKind::Dispatch,
        variant: CollectiveVariant::Pull,
        exit: ExitBarrier::Kept,
        dtype,
        width,
        tokens,
        slots,
        capacity,
        shift: 0,
    }
}

const fn combine(weights: Option<DType>, shape: ExchangeShape) -> ExchangeShape {
    ExchangeShape { kind: ExchangeKind::Combine(weights), ..shape }
}

const fn reduce(weights: Option<DType>, shape: ExchangeShape) -> ExchangeShape {
    ExchangeShape { kind: ExchangeKind::Reduce(weights), ..shape }
}

/// Every unit; rows of several pieces and of a part of one; fewer and more slots than are handled at a time; no
/// tokens, no rows, and no slots.
const TEST_SHAPES: [ExchangeShape; 29] = [
    dispatch(DType::BF16, 72, 6, 3, 40),
    dispatch(DType::F32, 300, 3, 2, 13),
    dispatch(DType::U8, 7, 9, 2, 50),
    dispatch(DType::U8, 48, 5, 9, 40),
    dispatch(DType::I64, 3, 4, 8, 33),
    dispatch(DType::F16, 5, 2, 1, 3),
    ExchangeShape { shift: 1, ..dispatch(DType::BF16, 16, 7, 4, 30) },
    dispatch(DType::F64, 2, 0, 4, 5),
    ExchangeShape { exit: ExitBarrier::Dropped, ..dispatch(DType::I32, 8, 11, 2, 50) },
    combine(Some(DType::F32), dispatch(DType::BF16, 72, 6, 3, 40)),
    combine(Some(DType::BF16), dispatch(DType::F32, 300, 3, 2, 13)),
    combine(None, dispatch(DType::F16, 7, 9, 2, 50)),
    combine(Some(DType::F64), dispatch(DType::F64, 9, 5, 9, 40)),
    combine(Some(DType::F64), dispatch(DType::BF16, 24, 4, 8, 33)),
    ExchangeShape { shift: 1, ..combine(Some(DType::F32), dispatch(DType::BF16, 16, 7, 4, 30)) },
    combine(None, dispatch(DType::F64, 2, 4, 3, 0)),
    ExchangeShape { exit: ExitBarrier::Dropped, ..combine(None, dispatch(DType::F32, 8, 11, 2, 50)) },
    combine(Some(DType::F16), dispatch(DType::F16, 40, 0, 2, 8)),
    reduce(Some(DType::F32), dispatch(DType::BF16, 72, 6, 3, 40)),
    reduce(Some(DType::BF16), dispatch(DType::F32, 300, 3, 2, 13)),
    reduce(None, dispatch(DType::F16, 7, 9, 2, 50)),
    reduce(Some(DType::F64), dispatch(DType::F64, 10, 5, 9, 40)),
    reduce(Some(DType::F64), dispatch(DType::BF16, 24, 40, 8, 200)),
    ExchangeShape { shift: 1, ..reduce(Some(DType::F32), dispatch(DType::BF16, 16, 7, 4, 30)) },
    reduce(None, dispatch(DType::F64, 2, 4, 3, 0)),
    reduce(None, dispatch(DType::F32, 8, 11, 2, 50)),
    reduce(Some(DType::F16), dispatch(DType::F16, 40, 0, 2, 8)),
    combine(None, dispatch(DType::BF16, 16, 3, 0, 4)),
    reduce(Some(DType::F32), dispatch(DType::BF16, 16, 3, 0, 4)),
];

/// The offsets of a rank's operands, result, row table, row slots, weights and sums in its arena. Consecutive cases
/// take turns with the operands: one that peers may still read is not written before the next barrier.
const OPERAND_OFFSETS: [usize; 2] = [0, 18 << 10];
const RESULT_OFFSET: usize = 36 << 10;
const ROW_TABLE: usize = 54 << 10;
const ROW_SLOTS: usize = 65 << 10;
const WEIGHTS_OFFSET: usize = 67 << 10;
const SUMS_OFFSET: usize = 78 << 10;

impl ExchangeShape {
    fn row_bytes(&self) -> usize {
        self.width * self.dtype.size()
    }

    /// The number of rows of the operand, and of the result.
    fn rows(&self) -> [usize; 2] {
        match self.kind {
            ExchangeKind::Dispatch => [self.tokens, self.capacity],
            ExchangeKind::Combine(_) | ExchangeKind::Reduce(_) => [self.capacity, self.tokens],
        }
    }

    fn weights(&self) -> Option<DType> {
        match self.kind {
            ExchangeKind::Dispatch => None,
            ExchangeKind::Combine(weights) | ExchangeKind::Reduce(weights) => weights,
        }
    }

    /// The same exchange without staging.
    fn direct(self) -> ExchangeShape {
        let variant = match self.kind {
            ExchangeKind::Reduce(_) => CollectiveVariant::Push,
            ExchangeKind::Dispatch | ExchangeKind::Combine(_) => CollectiveVariant::Pull,
        };
        ExchangeShape { variant, ..self }
    }

    fn staged(self) -> ExchangeShape {
        ExchangeShape { variant: CollectiveVariant::Plain, ..self }
    }

    fn call(&self, number: usize, n: u32) -> ResolvedCollective {
        let region = |offset| ResolvedRegion::uniform(MemorySpace::Symmetric, offset);
        let shift = self.shift * self.dtype.size();
        let (kind, tables) = match self.kind {
            ExchangeKind::Dispatch => {
                let tables = RowTableKind::Dispatch { slots: region(ROW_SLOTS), all_rows: region(ROW_TABLE) };
                (Kind::DispatchRows, tables)
            }
            ExchangeKind::Combine(weights) => {
                let weights = weights.map(|dtype| (region(WEIGHTS_OFFSET), dtype));
                (Kind::CombineRows, RowTableKind::Combine { rows: region(ROW_TABLE), weights })
            }
            ExchangeKind::Reduce(weights) => {
                let all_weights = weights.map(|dtype| (region(WEIGHTS_OFFSET), dtype));
                let all_rows = region(ROW_TABLE);
                (Kind::ReduceRows, RowTableKind::Reduce { all_rows, all_weights, sums: region(SUMS_OFFSET) })
            }
        };
        ResolvedCollective {
            row_elements: self.width,
            operand: region(OPERAND_OFFSETS[number % 2] + shift),
            result: region(RESULT_OFFSET + shift),
            exit: Some(self.exit),
            rows: Some(RowTables { tables, tokens: self.tokens, slots: self.slots, capacity: self.capacity }),
            ..collective(kind, self.variant, n, self.dtype, self.width * self.rows()[0])
        }
    }
}

fn lowered(call: &ResolvedCollective, peers: &PeerContext, source: &mut KernelSource) -> KernelLaunch {
    match lower(7, call, &pointers(call, peers), peers, source)
        .expect("it fits")
        .expect("it is ours")
        .as_slice()
    {
        [GpuCommand::Kernel(kernel)] => kernel.clone(),
        other => panic!("expected one kernel, found {other:?}"),
    }
}

fn pointers(call: &ResolvedCollective, peers: &PeerContext) -> CollectivePointers {
    let address_of = |region: &ResolvedRegion| {
        DevicePtr::from(peers.arenas[peers.rank as usize] + region.offset as Address)
    };
    CollectivePointers {
        rows: call.rows.as_ref().map(|tables| tables.map(address_of)),
        ..CollectivePointers::new(address_of(&call.operand), address_of(&call.result))
    }
}

/// The routing of a round: the global row of each slot of all ranks, and the slots of each rank's rows.
struct RoundRouting {
    rows: Vec<i64>,
    slots: Vec<Vec<i64>>,
}

impl RoundRouting {
    /// Rows for random slots: everywhere, on one rank only, or for few slots; with gaps between them.
    fn new(shape: &ExchangeShape, n: usize, round: usize) -> RoundRouting {
        let mut random = SplitMix((round * 31 + shape.width + shape.capacity) as u64);
        let count = n * shape.tokens * shape.slots;
        let mut out = RoundRouting { rows: vec![-1; count], slots: vec![vec![-1; shape.capacity]; n] };
        let mut next = vec![0; n];
        let only = round % n;
        for slot in 0..count {
            let rank = match round % 3 {
                0 => random.below(n),
                1 => only,
                _ if random.below(4) > 0 => continue,
                _ => random.below(n),
            };
            let row = next[rank] + random.below(5) / 4;
            // Rows beyond the capacity stay without a slot, as do slots with negative ids.
            if row < shape.capacity && random.below(7) > 0 {
                next[rank] = row + 1;
                out.rows[slot] = (rank * shape.capacity + row) as i64;
                out.slots[rank][row] = slot as i64;
            }
        }
        out
    }
}

/// Element `i` of the operand of a rank.
fn element(shape: &ExchangeShape, rank: usize, round: usize, i: usize) -> f64 {
    let x = ((i * 37 + rank * 101 + round * 13 + i / 251) % 256) as f64;
    if shape.dtype.is_float() { (x - 100.0) / 7.0 } else { x }
}

fn weight(rank: usize, round: usize, slot: usize) -> f64 {
    ((slot * 29 + rank * 17 + round * 7) % 64) as f64 / 9.0 - 2.0
}

/// The value of `x` in a dtype.
fn rounded(dtype: DType, x: f64) -> f64 {
    let mut bytes = [0; 8];
    write_f64(dtype, &mut bytes, 0, x);
    read_f64(dtype, &bytes, 0)
}

/// The expected element `i` of row `row` of the result.
fn expected(
    shape: &ExchangeShape,
    routing: &RoundRouting,
    me: usize,
    round: usize,
    [row, i]: [usize; 2],
) -> f64 {
    let element_of =
        |rank: usize, row: usize| rounded(shape.dtype, element(shape, rank, round, row * shape.width + i));
    match shape.kind {
        ExchangeKind::Dispatch => usize::try_from(routing.slots[me][row]).map_or(0.0, |slot| {
            let token = slot / shape.slots;
            element_of(token / shape.tokens, token % shape.tokens)
        }),
        ExchangeKind::Combine(_) | ExchangeKind::Reduce(_) => {
            let narrow = accumulated(shape.dtype);
            let ranks = routing.slots.len();
            let sums = (0..ranks).map(|rank| sum_of_rank(shape, routing, [rank, me], round, [row, i]));
            rounded(shape.dtype, sums.fold(0.0, |total, sum| narrow(total + sum)))
        }
    }
}

fn accumulated(dtype: DType) -> fn(f64) -> f64 {
    if dtype == DType::F64 { |x| x } else { |x| f64::from(x as f32) }
}

/// Element `i` of the sum of the rows that `rank` has of token `row` of the rank `to`.
fn sum_of_rank(
    shape: &ExchangeShape,
    routing: &RoundRouting,
    [rank, to]: [usize; 2],
    round: usize,
    [row, i]: [usize; 2],
) -> f64 {
    let narrow = accumulated(shape.dtype);
    let mut sum = 0.0;
    for j in 0..shape.slots {
        let slot = row * shape.slots + j;
        let entry = routing.rows[to * shape.tokens * shape.slots + slot];
        let Ok(from) = usize::try_from(entry) else { continue };
        if from / shape.capacity != rank {
            continue;
        }
        let item = element(shape, rank, round, from % shape.capacity * shape.width + i);
        let item = rounded(shape.dtype, item);
        let weight = shape.weights().map_or(1.0, |dtype| narrow(rounded(dtype, weight(to, round, slot))));
        sum = narrow(sum + narrow(item * weight));
    }
    sum
}

/// One exchange on one rank: writes operand and tables, runs the kernel, and compares the result.
fn run_exchange(
    (number, shape): (usize, &ExchangeShape),
    kernel: &KernelLaunch,
    base: Address,
    (me, n, round): (usize, usize, usize),
    library: &EmulationLibrary,
) {
    let routing = RoundRouting::new(shape, n, round);
    let size = shape.dtype.size();
    let shift = shape.shift * size;
    let [rows, results] = shape.rows();
    // SAFETY: the places are separate within the arena; peers read only the operand, and only within a kernel.
    let memory = |offset: usize, len: usize| unsafe { bytes_at(base + offset as Address, len) };
    let operand = memory(OPERAND_OFFSETS[number % 2] + shift, rows * shape.row_bytes());
    for i in 0..rows * shape.width {
        write_f64(shape.dtype, operand, i, element(shape, me, round, i));
    }
    let result = memory(RESULT_OFFSET + shift, results * shape.row_bytes() + 16);
    result.fill(0xee);
    let own_slots = shape.tokens * shape.slots;
    let table = match shape.kind {
        ExchangeKind::Dispatch | ExchangeKind::Reduce(_) => &routing.rows[..],
        ExchangeKind::Combine(_) => &routing.rows[me * own_slots..][..own_slots],
    };
    write_table(memory(ROW_TABLE, 8 * table.len()), table);
    write_table(memory(ROW_SLOTS, 8 * shape.capacity), &routing.slots[me]);
    if let Some(dtype) = shape.weights() {
        let owners = if matches!(shape.kind, ExchangeKind::Reduce(_)) { 0..n } else { me..me + 1 };
        let weights = memory(WEIGHTS_OFFSET, owners.len() * own_slots * dtype.size());
        for (position, owner) in owners.enumerate() {
            for slot in 0..own_slots {
                write_f64(dtype, weights, position * own_slots + slot, weight(owner, round, slot));
            }
        }
    }
    let sums_dtype = shape.dtype.compute_dtype();
    let sums = memory(SUMS_OFFSET, (n - 1) * shape.tokens * shape.width * sums_dtype.size() + 16);
    sums.fill(0xee);
    library.run(kernel);
    for row in 0..results {
        for i in 0..shape.width {
            let actual = read_f64(shape.dtype, result, row * shape.width + i);
            let wanted = expected(shape, &routing, me, round, [row, i]);
            assert_eq!(actual, wanted, "{shape:?}: row {row}, element {i}, rank {me} of {n}, round {round}");
        }
    }
    if matches!(shape.kind, ExchangeKind::Reduce(_)) {
        for piece in 0..n - 1 {
            for (row, i) in (0..shape.tokens).flat_map(|row| (0..shape.width).map(move |i| (row, i))) {
                let position = (piece * shape.tokens + row) * shape.width + i;
                let rank = (me + 1 + piece) % n;
                let wanted = sum_of_rank(shape, &routing, [rank, me], round, [row, i]);
                let actual = read_f64(sums_dtype, sums, position);
                assert_eq!(actual, wanted, "{shape:?}: sum {row} of {rank} on {me} of {n}, round {round}");
            }
        }
    }
    assert!(sums[sums.len() - 16..].iter().all(|&b| b == 0xee), "{shape:?}: bytes after the sums");
    let behind = &result[results * shape.row_bytes()..];
    assert!(behind.iter().all(|&b| b == 0xee), "{shape:?}: bytes after the result on rank {me} of {n}");
}

fn write_table(to: &mut [u8], table: &[i64]) {
    to.chunks_mut(8).zip(table).for_each(|(to, entry)| to.copy_from_slice(&entry.to_le_bytes()));
}

/// All shapes by all variants.
fn shapes() -> Vec<ExchangeShape> {
    TEST_SHAPES.map(ExchangeShape::direct).into_iter().chain(TEST_SHAPES.map(ExchangeShape::staged)).collect()
}

/// Exchanges of eight ranks: sums in units of 16 bytes, in units of two words, and one by one, in pieces of
/// several units and of a part of one.
const SHAPES_OF_MANY: [ExchangeShape; 5] = [
    reduce(Some(DType::F32), dispatch(DType::BF16, 72, 6, 8, 16)),
    reduce(Some(DType::BF16), dispatch(DType::F32, 100, 3, 4, 8)),
    ExchangeShape { shift: 1, ..reduce(None, dispatch(DType::F16, 37, 4, 3, 8)) },
    dispatch(DType::BF16, 24, 4, 8, 16),
    combine(Some(DType::F32), dispatch(DType::BF16, 24, 4, 8, 16)),
];

/// Runs shapes on `n` ranks, round after round. Ranks synchronize only in the kernels.
fn run(n: u32, shapes: &[ExchangeShape], rounds: usize, given: &WorldConfig) {
    let world = EmulatedWorld::new(n, given);
    let mut source = KernelSource::new();
    let mut kernels: Vec<Vec<KernelLaunch>> = Vec::new();
    for peers in &world.peers {
        let calls = shapes.iter().enumerate().map(|(number, shape)| shape.call(number, n));
        kernels.push(calls.map(|call| lowered(&call, peers, &mut source)).collect());
    }
    let Some(library) = EmulationLibrary::new(&source, &format!("row-exchange-{n}")) else { return };
    std::thread::scope(|scope| {
        for (me, (peers, kernels)) in world.peers.iter().zip(&kernels).enumerate() {
            let library = &library;
            scope.spawn(move || {
                for round in 0..rounds {
                    for (shape, kernel) in shapes.iter().enumerate().zip(kernels) {
                        run_exchange(shape, kernel, peers.arenas[me], (me, n as usize, round), library);
                    }
                }
            });
        }
    });
    assert!((0..n as usize).all(|rank| world.row_entry(rank).is_none()));
}

#[test]
fn rows_go_where_the_tables_say() {
    for n in 1..=4 {
        let chaos = (n == 3).then_some(5);
        run(n, &shapes(), 3, &WorldConfig { chaos, ..WorldConfig::default() });
    }
}

/// Among more than four ranks, the totals of one unit are made at a time.
#[test]
fn rows_of_eight_ranks_go_where_the_tables_say() {
    let variants: Vec<ExchangeShape> =
        SHAPES_OF_MANY.into_iter().flat_map(|s| [s.direct(), s.staged()]).collect();
    run(8, &variants, 3, &WorldConfig::default());
}

/// The kernels of `n` ranks: for large rows, and for four ranks of every shape.
pub(super) fn kernels(n: u32, source: &mut KernelSource) {
    let control = ControlRegion { groups: 2, max_exchange_ranks: 8, staging_bytes: STAGING_BYTES };
    let large = dispatch(DType::BF16, 7168, 128, 8, 2048);
    let mut tested = if n == 4 { shapes() } else { vec![] };
    let weights = Some(DType::F32);
    for shape in [large, combine(weights, large), reduce(weights, large)] {
        tested.extend([shape.staged(), shape.direct()]);
    }
    for shape in tested {
        let chaos = (n == 4).then_some(1);
        lowered(&shape.call(0, n), &PeerContext { control, chaos, ..peers(0, n) }, source);
    }
}

/// An exchange of two ranks in which rank 1 has a bad entry.
struct BadEntry {
    shape: ExchangeShape,
    entry: i64,
    world: EmulatedWorld,
    kernels: Vec<KernelLaunch>,
}

impl BadEntry {
    fn new(shape: ExchangeShape, entry: i64, source: &mut KernelSource) -> BadEntry {
        let world = EmulatedWorld::new(2, &WorldConfig::default());
        let lowered = |peers| lowered(&shape.call(0, 2), peers, source);
        let kernels = world.peers.iter().map(lowered).collect();
        BadEntry { shape, entry, world, kernels }
    }

    fn run_rank(&self, me: usize, library: &EmulationLibrary) {
        let shape = &self.shape;
        let base = self.world.peers[me].arenas[me];
        // SAFETY: nothing else accesses the tables and the result now.
        let memory = |offset: usize, len: usize| unsafe { bytes_at(base + offset as Address, len) };
        // Other entries name nothing.
        let entry = if me == 1 { self.entry } else { -1 };
        let row = if shape.kind == ExchangeKind::Dispatch { -1 } else { entry };
        write_table(memory(ROW_TABLE, 96), &[[-1; 4], [-1, row, -1, -1], [-1; 4]].concat());
        write_table(memory(ROW_SLOTS, 64), &[-1, -1, -1, -1, -1, entry, -1, -1]);
        memory(RESULT_OFFSET, 128).fill(0xee);
        library.run(&self.kernels[me]);
        let bytes = shape.rows()[1] * 16;
        assert!(memory(RESULT_OFFSET, bytes).iter().all(|&b| b == 0), "{shape:?} on rank {me}");
    }
}

#[test]
fn out_of_range_entries_are_reported_and_skipped() {
    let small = dispatch(DType::F32, 4, 3, 2, 8);
    let mut source = KernelSource::new();
    let mut cases = Vec::new();
    for (kind, bad, limit) in [
        (ExchangeKind::Dispatch, 12, 12),
        (ExchangeKind::Dispatch, i64::MAX, 12),
        (ExchangeKind::Combine(None), 16, 16),
        (ExchangeKind::Combine(Some(DType::F32)), i64::MAX, 16),
        (ExchangeKind::Reduce(None), 16, 16),
        (ExchangeKind::Reduce(Some(DType::F32)), i64::MAX, 16),
    ] {
        assert!(bad >= limit);
        let shape = ExchangeShape { kind, ..small };
        cases.extend([shape.staged(), shape.direct()].map(|shape| BadEntry::new(shape, bad, &mut source)));
    }
    let Some(library) = EmulationLibrary::new(&source, "bad-entries") else { return };
    for case in &cases {
        std::thread::scope(|scope| {
            let library = &library;
            for me in 0..2 {
                scope.spawn(move || case.run_rank(me, library));
            }
        });
        let shape = case.shape;
        assert_eq!(case.world.row_entry(0), None, "{shape:?}");
        let expected = InvalidRowEntry { program: 0, step: 7, entry: case.entry, position: 5 };
        assert_eq!(case.world.row_entry(1), Some(expected), "{shape:?}");
    }
}

#[test]
fn invalid_row_exchanges_are_errors() {
    let fails = |shape: ExchangeShape, change: &dyn Fn(&mut ResolvedCollective)| {
        let mut call = shape.call(0, 2);
        change(&mut call);
        let control = ControlRegion { groups: 2, max_exchange_ranks: 2, staging_bytes: 256 };
        let peers = PeerContext { control, ..peers(0, 2) };
        let ends = pointers(&call, &peers);
        lower(7, &call, &ends, &peers, &mut KernelSource::new()).expect_err("it does not fit").to_string()
    };
    let shape = dispatch(DType::F32, 4, 3, 2, 8);
    let plain = ExchangeShape { variant: CollectiveVariant::Plain, ..shape };
    let without_tables = fails(shape, &|call| call.rows = None);
    assert!(without_tables.contains("step 7 (dispatch_rows as pull): expected tables"), "{without_tables}");
    let other_size = fails(shape, &|call| call.elements += 4);
    assert!(other_size.contains("expected 3 rows of 4 elements, found 16 elements"), "{other_size}");
    let ints = fails(combine(Some(DType::I64), shape), &|_| {});
    assert!(ints.contains("expected floats, found i64"), "{ints}");
    let many_slots = fails(combine(None, ExchangeShape { slots: 40, ..plain }), &|_| {});
    assert!(many_slots.contains("expected fewer slots of a token, found 40"), "{many_slots}");
    let ordinary = fails(shape, &|call| call.operand.space = MemorySpace::Ordinary);
    assert!(ordinary.contains("Ordinary"), "{ordinary}");
    let pushed = fails(ExchangeShape { variant: CollectiveVariant::Push, ..shape }, &|_| {});
    assert!(pushed.contains("GPUs have no kernel for it"), "{pushed}");
}

#[test]
fn empty_rows_only_synchronize() {
    let call = dispatch(DType::F32, 0, 3, 2, 8).call(0, 2);
    let launch = lowered(&call, &peers(0, 2), &mut KernelSource::new());
    assert_eq!(launch.grid, [1, 1, 1]);
    let single = dispatch(DType::F32, 0, 3, 2, 8).call(0, 1);
    let ends = pointers(&single, &peers(0, 1));
    assert_eq!(lower(7, &single, &ends, &peers(0, 1), &mut KernelSource::new()), Ok(Some(vec![])));
}
