//! All-reduce, all-gather and all-to-all by `ll`: which protocol a message takes, LL or LL128, and its kernel.
//!
//! Small messages go by LL, whose receipt needs nothing of neighbouring threads; large ones by LL128, whose lines carry
//! nearly twice as much. A large all-reduce among more than two ranks goes in two rounds.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, ReduceOp};

use super::blocks::{MAX_THREADS, Protocol};
use super::call::{Call, Turn};
use super::prepared::{Prepared, Sends, pieces, reduction};
use crate::error::CudaError;
use crate::launch::{Address, Param};

/// Words of 8 bytes with data in a line of LL128, as `kernels/ll128.cu` has them.
const LINE: usize = 15;

/// The units of 16 bytes of a message.
pub(super) fn units(protocol: Protocol, message: usize) -> usize {
    let words = message.div_ceil(8);
    match protocol {
        Protocol::Ll => words,
        Protocol::Ll128 => words.div_ceil(LINE) * 8,
    }
}

/// An all-reduce from the operand to the result.
pub(super) fn reduce(turn: &Turn, op: ReduceOp) -> Result<Prepared, CudaError> {
    let vector = (turn.operand | turn.result).is_multiple_of(8);
    reduce_to(turn, op, vector, None)
}

/// An all-reduce in two rounds to which `beside` says what is added; all addresses are multiples of 8.
pub(super) fn reduce_and_add(
    turn: &Turn,
    op: ReduceOp,
    beside: (&'static str, Param),
) -> Result<Prepared, CudaError> {
    reduce_to(turn, op, true, Some(beside))
}

fn reduce_to(
    turn: &Turn,
    op: ReduceOp,
    vector: bool,
    beside: Option<(&'static str, Param)>,
) -> Result<Prepared, CudaError> {
    let n = turn.n;
    let protocol = turn.protocol(turn.bytes);
    let two_rounds = turn.thresholds().two_rounds(turn.bytes as u64, n as u64);
    let slice = turn.bytes.div_ceil(n).next_multiple_of(8);
    let (units, rounds) =
        if two_rounds { (units(protocol, slice), 2) } else { (units(protocol, turn.bytes), 1) };
    let mut call = turn.ll(turn.bytes, protocol, units, rounds)?;
    call.from[0] = turn.operand;
    call.out[0] = turn.result;
    call.slice = slice as u64;
    let (element, operation) = reduction(turn.bound.dtype, op);
    let blocks = grid(turn, protocol, units);
    let kernel = match (protocol, two_rounds) {
        (Protocol::Ll, _) => "ll_reduce",
        (_, false) => "ll128_reduce",
        (_, true) if beside.is_some() => "ll128_add_twice",
        (_, true) => "ll128_reduce_twice",
    };
    let body = format!("{kernel}<{element}, {operation}, {n}, {vector}>");
    Ok(Prepared { beside, ..prepared(format!("ll_{}", turn.bound.dtype), body, call, blocks) })
}

pub(super) fn movement(turn: &Turn) -> Result<Prepared, CudaError> {
    let n = turn.n;
    let (piece, source) = pieces(turn)?;
    let protocol = turn.protocol(piece);
    let units = units(protocol, piece);
    let mut call = turn.ll(piece, protocol, units, 1)?;
    for (i, p) in turn.rotated().enumerate() {
        call.from[i] = turn.operand + source(p);
        call.out[i] = turn.result + (i * piece) as Address;
    }
    let vector = call.from[..n].iter().chain(&call.out[..n]).fold(0, |all, a| all | a).is_multiple_of(8);
    let element = element(turn.bound.dtype);
    let same = Sends::of(&turn.bound.kind) == Sends::One;
    let blocks = grid(turn, protocol, units);
    let body = match protocol {
        Protocol::Ll => format!("ll_move<{element}, {n}, {same}, {vector}>"),
        Protocol::Ll128 => format!("ll128_move<{element}, {n}, {same}, {vector}>"),
    };
    Ok(prepared(format!("ll_{}", Kind::name(&turn.bound.kind)), body, call, blocks))
}

/// An element that only moves.
fn element(dtype: DType) -> &'static str {
    match dtype.size() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

fn grid(turn: &Turn, protocol: Protocol, units: usize) -> [u32; 2] {
    match protocol {
        Protocol::Ll => turn.grid(|b| &b.ll, units),
        Protocol::Ll128 => turn.grid(|b| &b.ll128, units),
    }
}

fn prepared(what: String, body: String, call: Call, blocks: [u32; 2]) -> Prepared {
    Prepared { what, body, call, beside: None, most_threads: MAX_THREADS, blocks }
}
