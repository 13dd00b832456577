//! All-reduce, reduce-scatter, all-gather and all-to-all by `ll`: which protocol a message takes, LL or LL128, and its
//! kernel.
//!
//! Small messages go by LL, whose receipt needs nothing of neighbouring threads; large ones by LL128, whose lines carry
//! nearly twice as much. A large all-reduce among more than two ranks goes in two rounds.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, ReduceOp};

use super::blocks::{MAX_THREADS, Protocol};
use super::call::Running;
use super::params::LandingParams;
use super::prepared::{Prepared, Sends, pieces, reduction};
use crate::device::launch::{Address, DevicePtr, Param};
use crate::device::pointer::all_multiples_of;
use crate::error::Result;

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
pub(super) fn reduce(running: &Running, op: ReduceOp) -> Result<Prepared> {
    let vector = all_multiples_of([running.operand, running.result], 8);
    reduce_to(running, op, vector, None)
}

/// An all-reduce in two rounds to which `beside` says what is added; with `vector` all addresses are multiples of 8.
pub(super) fn reduce_and_add(
    running: &Running,
    op: ReduceOp,
    vector: bool,
    beside: (&'static str, Param),
) -> Result<Prepared> {
    reduce_to(running, op, vector, Some(beside))
}

fn reduce_to(
    running: &Running,
    op: ReduceOp,
    vector: bool,
    beside: Option<(&'static str, Param)>,
) -> Result<Prepared> {
    let n = running.n;
    let protocol = running.protocol(running.bytes);
    let two_rounds = running.thresholds().two_rounds(running.bytes as u64, n as u64);
    let slice = running.bytes.div_ceil(n).next_multiple_of(8);
    let (units, rounds) =
        if two_rounds { (units(protocol, slice), 2) } else { (units(protocol, running.bytes), 1) };
    let mut call = running.ll(running.bytes, protocol, units, rounds)?;
    call.from[0] = running.operand;
    call.out[0] = running.result;
    call.slice = slice as u64;
    let (element, operation) = reduction(running.bound.dtype, op);
    let blocks = grid(running, protocol, units);
    let body = match (two_rounds, beside.is_some()) {
        (false, _) => of_one_round(protocol, (element, operation), n, Sends::One, vector),
        (true, false) => format!("ll128_reduce_twice<{element}, {operation}, {n}, {vector}>"),
        (true, true) => format!("ll128_add_twice<{element}, {operation}, {n}, {vector}>"),
    };
    Ok(Prepared { beside, ..prepared(format!("ll_{}", running.bound.dtype), body, call, blocks) })
}

/// A reduction in one round of what all ranks send.
fn of_one_round(
    protocol: Protocol,
    (element, operation): (String, &str),
    n: usize,
    sends: Sends,
    vector: bool,
) -> String {
    let same = sends == Sends::One;
    format!("ll_reduce<{}, {element}, {operation}, {n}, {same}, {vector}>", protocol.name())
}

/// A reduce-scatter: each rank sends every other the piece that it reduces.
pub(super) fn reduce_scatter(running: &Running, op: ReduceOp) -> Result<Prepared> {
    let Pieces { mut call, protocol, blocks, .. } = Pieces::of(running)?;
    call.out[0] = running.result;
    let vector = all_vectors(&call.from[..running.n], &call.out[..1]);
    let dtype = running.bound.dtype;
    let body = of_one_round(protocol, reduction(dtype, op), running.n, Sends::Each, vector);
    Ok(prepared(format!("ll_reduce_scatter_{dtype}"), body, call, blocks))
}

/// What each rank sends to every other, and its own piece.
struct Pieces {
    call: LandingParams,
    /// The bytes of each.
    piece: usize,
    protocol: Protocol,
    blocks: [u32; 2],
}

impl Pieces {
    fn of(running: &Running) -> Result<Pieces> {
        let (piece, source) = pieces(running)?;
        let protocol = running.protocol(piece);
        let units = units(protocol, piece);
        let mut call = running.ll(piece, protocol, units, 1)?;
        for (from, p) in call.from.iter_mut().zip(running.rotated()) {
            *from = running.operand + source(p);
        }
        Ok(Pieces { call, piece, protocol, blocks: grid(running, protocol, units) })
    }
}

fn all_vectors(from: &[DevicePtr], out: &[DevicePtr]) -> bool {
    all_multiples_of(from.iter().chain(out).copied(), 8)
}

pub(super) fn movement(running: &Running) -> Result<Prepared> {
    let pieces = Pieces::of(running)?;
    let apart = pieces.piece;
    movement_to(running, pieces, apart, false)
}

/// An all-gather of rows of `row` bytes, a multiple of 8, in which the rows of all ranks follow each other.
pub(super) fn gather_rows(running: &Running, row: usize) -> Result<Prepared> {
    let mut pieces = Pieces::of(running)?;
    pieces.call.slice = row as u64;
    movement_to(running, pieces, row, true)
}

/// What ranks send, to places that are `apart` bytes from each other, perhaps in rows.
fn movement_to(running: &Running, pieces: Pieces, apart: usize, rows: bool) -> Result<Prepared> {
    let n = running.n;
    let Pieces { mut call, protocol, blocks, .. } = pieces;
    for (i, out) in call.out[..n].iter_mut().enumerate() {
        *out = running.result + (i * apart) as Address;
    }
    let vector = all_vectors(&call.from[..n], &call.out[..n]);
    let element = element(running.bound.dtype);
    let same = Sends::of(&running.bound.kind) == Sends::One;
    let body = format!("ll_move<{}, {element}, {n}, {same}, {vector}, {rows}>", protocol.name());
    Ok(prepared(format!("ll_{}", Kind::name(&running.bound.kind)), body, call, blocks))
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

fn grid(running: &Running, protocol: Protocol, units: usize) -> [u32; 2] {
    match protocol {
        Protocol::Ll => running.grid(|b| &b.ll, units),
        Protocol::Ll128 => running.grid(|b| &b.ll128, units),
    }
}

fn prepared(what: String, body: String, call: LandingParams, blocks: [u32; 2]) -> Prepared {
    let params = ("LandingParams", Param::of(&call));
    Prepared { what, body, params, beside: None, most_threads: MAX_THREADS, blocks }
}
