//! Runs sequences of collectives on thread ranks and compares with results computed the simple way.

use std::time::Duration;

use symmc_control::{RankCommunicator, SharedRunMemory};
use symmc_ir::collective::{
    AllToAllSplits, CollectiveKind, CollectiveReduceOp, CollectiveVariant, ExitBarrierPolicy,
};
use symmc_ir::tensor::{read_f64, read_i64, write_f64, write_i64};
use symmc_ir::types::DType;
use symmc_plan::ExitBarrier;
use symmc_runtime::call::{CallRegion, CollectiveCall, RegionMemory};
use symmc_runtime::exec::Communicator;

/// One collective.
#[derive(Clone, Debug)]
pub struct CollectiveCase {
    pub kind: CollectiveKind,
    pub variant: CollectiveVariant,
    pub exit: Option<ExitBarrier>,
    pub dtype: DType,
    pub elements: usize,
    /// Elements of a row, for sizes on the device.
    pub row: usize,
    pub in_place: bool,
}

impl CollectiveCase {
    pub fn new(
        kind: CollectiveKind,
        variant: CollectiveVariant,
        dtype: DType,
        elements: usize,
    ) -> CollectiveCase {
        let droppable =
            variant.contract(&kind).is_some_and(|c| c.exit_barrier == ExitBarrierPolicy::Droppable);
        let exit = droppable.then_some(ExitBarrier::Kept);
        CollectiveCase { kind, variant, exit, dtype, elements, row: 1, in_place: false }
    }
}

/// The ranks that run the cases.
#[derive(Clone, Debug)]
pub struct RankSetup {
    pub ranks: u32,
    pub cells: Vec<Vec<u32>>,
    pub chaos: Option<u64>,
    pub first: u32,
    /// Before this case every rank fills its landing zones from this byte on with ones, as if flags of the
    /// first epoch were left there.
    pub stale: Option<(usize, usize)>,
}

impl RankSetup {
    pub fn new(ranks: usize, cells: Vec<Vec<u32>>) -> RankSetup {
        RankSetup { ranks: ranks as u32, cells, chaos: None, first: 0, stale: None }
    }
}

/// Every kind, operation, variant, exit and placement for cells of `n` ranks and about this many elements.
pub fn every_way(n: usize, elements: usize, dtypes: &[DType]) -> Vec<CollectiveCase> {
    let mut kinds = vec![
        CollectiveKind::AllGather,
        CollectiveKind::AllToAll(AllToAllSplits::Even),
        CollectiveKind::Broadcast { root: n as u32 - 1 },
        CollectiveKind::Permute { pairs: (1..n as u32).map(|r| (r - 1, r)).collect() },
        CollectiveKind::Permute { pairs: (0..n as u32).map(|r| (r, (r + 1) % n as u32)).collect() },
        // The first to itself, the last to the second.
        CollectiveKind::Permute { pairs: (0..n as u32).step_by(n.max(3) - 1).zip(0..n as u32).collect() },
        CollectiveKind::Permute { pairs: vec![] },
    ];
    for &op in CollectiveReduceOp::ALL {
        kinds.extend([CollectiveKind::AllReduce(op), CollectiveKind::ReduceScatter(op)]);
    }
    let mut out = Vec::new();
    for kind in kinds {
        for &variant in CollectiveVariant::ALL {
            let Some(contract) = variant.contract(&kind) else { continue };
            let is_reduced = kind.facts().reduces;
            for &dtype in dtypes.iter().filter(|dtype| !(is_reduced && dtype.is_storage_float())) {
                let pieces = matches!(kind, CollectiveKind::ReduceScatter(_) | CollectiveKind::AllToAll(_));
                let elements = if pieces { elements * n } else { elements };
                let case = CollectiveCase::new(kind.clone(), variant, dtype, elements);
                out.push(case.clone());
                if contract.exit_barrier == ExitBarrierPolicy::Droppable {
                    out.push(CollectiveCase { exit: Some(ExitBarrier::Dropped), ..case.clone() });
                }
                if contract.in_place {
                    out.push(CollectiveCase { in_place: true, ..case });
                }
            }
        }
    }
    out
}

/// Runs the cases one after another on every rank and compares each result.
pub fn run_cases(setup: &RankSetup, cases: &[CollectiveCase]) {
    let n = setup.cells[0].len();
    let largest =
        |f: &dyn Fn(&CollectiveCase) -> usize| cases.iter().map(f).max().unwrap_or(0).next_multiple_of(64);
    let bytes = |c: &CollectiveCase| c.elements * c.dtype.size();
    let zone = largest(&|c| c.variant.landing_bytes(&c.kind, bytes(c) as u64, n as u64) as usize);
    let region = largest(&|c| bytes(c) * n) + 2 * n * SHIFT;
    let layout = &ArenaLayout { zone, whole: region };
    let domain = SharedRunMemory::create(setup.ranks, 2, layout.size(), setup.first).unwrap();
    std::thread::scope(|s| {
        for cell in &setup.cells {
            for (me, &rank) in cell.iter().enumerate() {
                let domain = domain.clone();
                s.spawn(move || {
                    let comm = RankCommunicator::new(domain, rank, Duration::from_secs(60));
                    let comm = comm.with_chaos(setup.chaos);
                    for (i, case) in cases.iter().enumerate() {
                        if let Some((_, from)) = setup.stale.filter(|s| s.0 == i) {
                            let ones: Vec<u8> = 1u32.to_le_bytes().repeat((layout.zone - from) / 4);
                            write_own(&comm, from, &ones);
                            write_own(&comm, layout.zone + from, &ones);
                        }
                        run_case(&comm, cell, me, i, case, layout);
                    }
                });
            }
        }
    });
}

/// The bytes by which operands are shifted from each rank to the next, if they are.
const SHIFT: usize = 192;

/// The symmetric arena: two landing zones, two operands in turn, two results in turn.
struct ArenaLayout {
    zone: usize,
    whole: usize,
}

impl ArenaLayout {
    fn size(&self) -> usize {
        2 * self.zone + 4 * self.whole
    }
    fn operand(&self, i: usize) -> usize {
        2 * self.zone + (i % 2) * self.whole
    }
    fn result(&self, i: usize) -> usize {
        2 * self.zone + (2 + i % 2) * self.whole
    }

    /// The operand and result of case `i`: in place, the shard inside the whole; otherwise half of the cases
    /// have the same offset on all ranks and half have different offsets.
    fn case(&self, case: &CollectiveCase, i: usize, n: usize) -> Places {
        let bytes = case.elements * case.dtype.size();
        let (operand, result) = (self.operand(i), self.result(i));
        let shift = i / 2 % 2 * SHIFT;
        match (&case.kind, case.in_place) {
            (_, false) => [(operand, shift), (result, shift * 2)],
            (CollectiveKind::AllGather, _) => [(operand, bytes), (operand, 0)],
            (CollectiveKind::ReduceScatter(_), _) => [(operand, 0), (operand, bytes / n)],
            _ => [(operand, shift), (operand, shift)],
        }
    }
}

fn run_case(
    comm: &RankCommunicator,
    cell: &[u32],
    me: usize,
    i: usize,
    case: &CollectiveCase,
    layout: &ArenaLayout,
) {
    let n = cell.len();
    let operands: Vec<Vec<u8>> = cell.iter().map(|&r| operand(i, r, case)).collect();
    let splits: Vec<Vec<i64>> = cell.iter().map(|&r| splits(i, r, n, case)).collect();
    let expected = expected_result(case, &operands, &splits, me);
    let starts = starts(cell, &layout.case(case, i, n));
    let [mut operand_at, result_at] = starts.each_ref().map(|list| CallRegion {
        memory: RegionMemory::Symmetric,
        offset: list[comm.rank() as usize],
        by_rank: Some(list),
    });
    write_own(comm, result_at.offset, &vec![0xaa; expected.len()]);
    write_own(comm, operand_at.offset, &operands[me]);
    let mut private = operands[me].clone();
    let contract = case.variant.contract(&case.kind).expect("the variant runs the kind");
    if !contract.symmetric_operand && !case.in_place && i.is_multiple_of(3) {
        operand_at = private_region(&mut private);
    }
    let mut sizes: Vec<u8> = splits[me].iter().flat_map(|s| s.to_le_bytes()).collect();
    let mut received = vec![0xaau8; 8 * n];
    let device = matches!(case.kind, CollectiveKind::AllToAll(AllToAllSplits::Device));
    let call = CollectiveCall {
        step: i,
        name: "x",
        kind: &case.kind,
        variant: case.variant,
        exit: case.exit,
        cell,
        group: 1,
        dtype: case.dtype,
        elements: case.elements,
        row: case.row,
        operand: operand_at,
        result: result_at,
        landing: Some([0, layout.zone]),
        splits: device.then(|| (private_region(&mut sizes), private_region(&mut received))),
        rows: None,
    };
    // SAFETY: all regions are as large as the call says, and no case writes what an earlier one still needs.
    unsafe { comm.run_collective(&call) }.expect("the collective runs");
    let actual = read_arena(comm, result_at.offset, expected.len());
    if actual != expected {
        let position = actual.iter().zip(&expected).position(|(a, b)| a != b);
        panic!("case {i} {case:?} on number {me} of {n}: differs at byte {position:?}");
    }
    if device {
        let counts: Vec<u8> = splits.iter().flat_map(|s| s[me].to_le_bytes()).collect();
        assert_eq!(received, counts, "case {i}, received sizes");
    }
}

/// The start of operand and result of a case on rank number 0, and the bytes by which each next rank's is
/// shifted.
type Places = [(usize, usize); 2];

/// The start of operand and result on each rank of the run.
fn starts(cell: &[u32], places: &Places) -> [Vec<usize>; 2] {
    let ranks = cell.iter().max().map_or(0, |&r| r as usize + 1);
    let number = |rank: usize| cell.iter().position(|&r| r as usize == rank).unwrap_or(0);
    places.map(|(start, step)| (0..ranks).map(|rank| start + step * number(rank)).collect())
}

/// Memory of this rank alone.
fn private_region(bytes: &mut [u8]) -> CallRegion<'static> {
    CallRegion { memory: RegionMemory::Private(bytes.as_mut_ptr()), offset: 0, by_rank: None }
}

fn write_own(comm: &RankCommunicator, at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= comm.arena().len());
    // SAFETY: the range lies within this rank's arena, and no peer touches it before this rank arrives.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), comm.arena().as_ptr().add(at), bytes.len());
    }
}

fn read_arena(comm: &RankCommunicator, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    assert!(at + len <= comm.arena().len());
    // SAFETY: the range lies within this rank's arena, and the collective has completed.
    unsafe { std::ptr::copy_nonoverlapping(comm.arena().as_ptr().add(at), out.as_mut_ptr(), len) };
    out
}

fn hash(parts: [usize; 3]) -> u64 {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for p in parts {
        x = (x ^ p as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x ^= x >> 33;
    }
    x
}

fn operand(case: usize, rank: u32, c: &CollectiveCase) -> Vec<u8> {
    let mut out = vec![0; c.elements * c.dtype.size()];
    for i in 0..c.elements {
        let h = hash([case, rank as usize, i]);
        match c.dtype {
            DType::Bool => out[i] = (h & 1) as u8,
            d if d.is_float() => write_f64(d, &mut out, i, (h % 4096) as f64 / 1000.0 - 2.0),
            d => write_i64(d, &mut out, i, h as i64),
        }
    }
    out
}

fn splits(case: usize, rank: u32, n: usize, c: &CollectiveCase) -> Vec<i64> {
    (0..n)
        .map(|p| (hash([case, rank as usize, p]) % (c.elements / c.row / n.max(1) + 1).max(1) as u64) as i64)
        .collect()
}

fn expected_result(case: &CollectiveCase, operands: &[Vec<u8>], splits: &[Vec<i64>], me: usize) -> Vec<u8> {
    let n = operands.len();
    let x = &operands[me];
    let piece = x.len() / n;
    match &case.kind {
        CollectiveKind::AllReduce(op) => reduced(*op, case, operands),
        CollectiveKind::AllGather => operands.concat(),
        CollectiveKind::ReduceScatter(op) => {
            reduced(*op, case, operands)[me * piece..(me + 1) * piece].to_vec()
        }
        CollectiveKind::AllToAll(AllToAllSplits::Even) => {
            operands.iter().flat_map(|o| o[me * piece..(me + 1) * piece].to_vec()).collect()
        }
        CollectiveKind::AllToAll(AllToAllSplits::Device) => {
            let row = case.row * case.dtype.size();
            let mut out = Vec::new();
            for (o, s) in operands.iter().zip(splits) {
                let start = s[..me].iter().sum::<i64>() as usize * row;
                out.extend_from_slice(&o[start..start + s[me] as usize * row]);
            }
            out.resize(x.len(), 0);
            out
        }
        CollectiveKind::Broadcast { root } => operands[*root as usize].clone(),
        CollectiveKind::Permute { pairs } => match pairs.iter().find(|p| p.1 as usize == me) {
            Some((from, _)) => operands[*from as usize].clone(),
            None => vec![0; x.len()],
        },
        CollectiveKind::DispatchRows | CollectiveKind::CombineRows | CollectiveKind::ReduceRows => {
            unreachable!("tests of programs cover exchanges of rows")
        }
    }
}

fn reduced(op: CollectiveReduceOp, case: &CollectiveCase, operands: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0; operands[0].len()];
    let d = case.dtype;
    for i in 0..case.elements {
        if d.is_float() {
            let narrow = |x: f64| if d == DType::F64 { x } else { f64::from(x as f32) };
            let elements = operands.iter().map(|o| read_f64(d, o, i));
            let y = elements
                .reduce(|a, b| {
                    narrow(match op {
                        CollectiveReduceOp::Sum | CollectiveReduceOp::Avg => a + b,
                        CollectiveReduceOp::Prod => a * b,
                        CollectiveReduceOp::Max => a.max(b),
                        CollectiveReduceOp::Min => a.min(b),
                    })
                })
                .unwrap();
            let y = if op == CollectiveReduceOp::Avg { narrow(y / operands.len() as f64) } else { y };
            match d {
                DType::F64 => write_f64(d, &mut out, i, y),
                _ => store_f32(d, &mut out, i, y as f32),
            }
        } else {
            let elements = operands.iter().map(|o| read_i64(d, o, i));
            let y = elements
                .reduce(|a, b| match op {
                    CollectiveReduceOp::Sum | CollectiveReduceOp::Avg => a.wrapping_add(b),
                    CollectiveReduceOp::Prod => a.wrapping_mul(b),
                    CollectiveReduceOp::Max => a.max(b),
                    CollectiveReduceOp::Min => a.min(b),
                })
                .unwrap();
            write_i64(
                d,
                &mut out,
                i,
                if op == CollectiveReduceOp::Avg { y / operands.len() as i64 } else { y },
            );
        }
    }
    out
}

fn store_f32(dtype: DType, out: &mut [u8], i: usize, x: f32) {
    match dtype {
        DType::F16 => out[2 * i..2 * i + 2].copy_from_slice(&half::f16::from_f32(x).to_le_bytes()),
        DType::BF16 => out[2 * i..2 * i + 2].copy_from_slice(&half::bf16::from_f32(x).to_le_bytes()),
        _ => out[4 * i..4 * i + 4].copy_from_slice(&x.to_le_bytes()),
    }
}
