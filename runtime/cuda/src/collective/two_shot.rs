//! All-reduce as two-shot: each rank reduces a slice of all operands and gives it to all.
//!
//! Large tensors go by stores alone. Then the kernel can also add a residual to the result, chunk by chunk as it comes.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, ReduceOp, Variant};
use symmc_plan::Barrier;
use symmc_runtime::exec::{BoundCollective, MemorySpace};

use super::barrier::{self, Reduction};
use super::blocks::MAX_THREADS;
use super::call::Turn;
use super::peers::Peers;
use super::prepared::{Prepared, reduction};
use crate::command::Command;
use crate::compile::Source;
use crate::error::CudaError;
use crate::launch::{Address, Param, plain};

/// The most threads of a block by stores alone, so that there are registers for what it adds. Whether it adds makes no
/// difference to the grid, which is the same on all ranks.
const PUSHED_THREADS: u32 = 512;

pub(super) fn reduce(turn: &Turn, op: ReduceOp) -> Result<Prepared, CudaError> {
    if let Some(slice) = pushes(turn) {
        return pushed(turn, op, slice, None);
    }
    let (size, elements) = (turn.bound.dtype.size(), turn.bound.elements);
    let (units, unit) = (turn.units(turn.bytes), 16 / size);
    let start = |p: usize| (units * p / turn.n * unit).min(elements);
    let (from, to) = (start(turn.me), start(turn.me + 1));
    let offset = (from * size) as Address;
    let mut call = turn.call();
    for p in 0..turn.n {
        call.from[p] = turn.operand_of(p, turn.bytes)? + offset;
    }
    for (slot, p) in call.to.iter_mut().zip(turn.rotated()) {
        *slot = turn.result_of(p, turn.bytes)? + offset;
    }
    let how = Reduction { op, outs: turn.n, elements: to - from, exit: Barrier::Kept };
    // Slices differ by a unit at most; grids are equal.
    let blocks = turn.grid(|b| &b.two_shot, units.div_ceil(turn.n));
    Ok(barrier::reduce(turn, call, how, blocks, "two_shot"))
}

/// The bytes of a slice of a two-shot all-reduce by stores alone, if it can be one. All ranks answer alike, for
/// offsets are equal on all.
fn pushes(turn: &Turn) -> Option<usize> {
    let [operand, result] = [&turn.bound.operand, &turn.bound.result];
    let slice = turn.bytes / turn.n;
    let fits = turn.thresholds().stores(turn.bytes as u64, turn.n as u64)
        && slice.is_multiple_of(16)
        && turn.bytes.is_multiple_of(turn.n)
        && [operand, result].iter().all(|r| r.space == MemorySpace::Symmetric && r.by_rank.is_none())
        && (operand.offset | result.offset).is_multiple_of(16)
        && (operand.offset == result.offset || operand.offset.abs_diff(result.offset) >= turn.bytes);
    fits.then_some(slice)
}

fn pushed(
    turn: &Turn,
    op: ReduceOp,
    slice: usize,
    addition: Option<&Addition>,
) -> Result<Prepared, CudaError> {
    let (element, operation) = reduction(turn.bound.dtype, op);
    let (n, at) = (turn.n, |p: usize| (p * slice) as Address);
    let mut call = turn.call();
    for (i, p) in turn.rotated().enumerate() {
        call.from[i] = turn.operand + at(p);
        call.to[i] = turn.result_of(p, turn.bytes)? + at(turn.me);
        call.slots[p] = turn.result + at(p);
    }
    call.slice = slice as u64;
    let [blocks, threads] = turn.grid(|b| &b.pushed, turn.units(slice));
    let in_place = turn.operand == turn.result;
    let (kernel, most_threads) = match addition {
        Some(_) => ("pushed_add", PUSHED_THREADS),
        None => ("pushed_reduce", MAX_THREADS),
    };
    Ok(Prepared {
        what: format!("{kernel}_{}", turn.bound.dtype),
        body: format!("{kernel}<{element}, {operation}, {n}, {}, {in_place}>", (8 / n).max(1)),
        call,
        beside: addition.map(|a| ("Addition", Param::of(a))),
        most_threads,
        blocks: [blocks, threads.min(PUSHED_THREADS)],
    })
}

plain! {
    /// What is added to an all-reduce, in its dtype, as `kernels/pushed.cu` declares it: addresses on this rank, of as many
    /// elements as the operand has. The sum may lie on the operand, the result or the residual, element on element.
    #[derive(PartialEq, Debug)]
    pub struct Addition {
        /// What is added to the reduction.
        pub residual: Address,
        /// Where the sum goes.
        pub sum: Address,
    }
}

/// The launch that runs `call` on this rank, whose own operand and result lie at these addresses, and the addition;
/// `None` if it does not go by stores alone.
///
/// # Errors
/// As for [`super::lower`].
pub fn lower_addition(
    step: usize,
    call: &BoundCollective,
    [operand, result]: [Address; 2],
    addition: &Addition,
    peers: &Peers,
    source: &mut Source,
) -> Result<Option<Command>, CudaError> {
    let (Variant::TwoShot, Kind::AllReduce(op)) = (call.variant, &call.kind) else { return Ok(None) };
    let fits = matches!(call.dtype, DType::F32 | DType::F16 | DType::BF16)
        && call.cell.len() > 1
        && (addition.residual | addition.sum).is_multiple_of(16);
    if !fits {
        return Ok(None);
    }
    let turn = Turn::new(step, call, [operand, result], peers)?;
    let Some(slice) = pushes(&turn) else { return Ok(None) };
    let kernel = pushed(&turn, *op, slice, Some(addition))?.launch(peers, source);
    Ok(Some(Command::Kernel(kernel)))
}
