//! All-reduce, reduce-scatter, all-gather and all-to-all by `ll`: the choice of protocol, LL or LL128, and
//! the kernel.
//!
//! Small messages use LL: a thread can receive a word without its neighbours. Large messages use LL128, whose
//! lines carry nearly twice as much data. A large all-reduce among more than two ranks goes in two rounds.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, CollectiveReduceOp};

use super::blocks::{LlProtocol, MAX_THREADS};
use super::call::RankCollective;
use super::kernel_call::{KernelCall, SendPattern, message_slices, reduction};
use super::params::LandingParams;
use crate::device::launch::{Address, DevicePtr, KernelParam};
use crate::device::pointer::all_multiples_of;
use crate::error::Result;

/// The number of 8-byte data words in a line of LL128, as in `kernels/ll128.cu`.
const LINE: usize = 15;

/// The number of 16-byte units of a message.
pub(super) fn units(protocol: LlProtocol, message: usize) -> usize {
    let words = message.div_ceil(8);
    match protocol {
        LlProtocol::Ll => words,
        LlProtocol::Ll128 => words.div_ceil(LINE) * 8,
    }
}

/// An all-reduce from the operand to the result.
pub(super) fn reduce(running: &RankCollective, op: CollectiveReduceOp) -> Result<KernelCall> {
    let vector = all_multiples_of([running.operand, running.result], 8);
    build_reduction(running, op, vector, None)
}

/// An all-reduce in two rounds with an addition, given as a parameter. With `vector` all addresses are
/// multiples of 8.
pub(super) fn reduce_and_add(
    running: &RankCollective,
    op: CollectiveReduceOp,
    vector: bool,
    addition: (&'static str, KernelParam),
) -> Result<KernelCall> {
    build_reduction(running, op, vector, Some(addition))
}

fn build_reduction(
    running: &RankCollective,
    op: CollectiveReduceOp,
    vector: bool,
    addition: Option<(&'static str, KernelParam)>,
) -> Result<KernelCall> {
    let n = running.n;
    let protocol = running.protocol(running.bytes);
    let two_rounds = running.thresholds().uses_two_rounds(running.bytes as u64, n as u64);
    let slice = running.bytes.div_ceil(n).next_multiple_of(8);
    let (units, rounds) =
        if two_rounds { (units(protocol, slice), 2) } else { (units(protocol, running.bytes), 1) };
    let mut call = running.ll(running.bytes, protocol, units, rounds)?;
    call.from[0] = running.operand;
    call.out[0] = running.result;
    call.slice = slice as u64;
    let (element, operation) = reduction(running.bound.dtype, op);
    let blocks = grid(running, protocol, units);
    let body = match (two_rounds, addition.is_some()) {
        (false, _) => one_round_body(protocol, &element, operation, n, SendPattern::SameToAll, vector),
        (true, false) => format!("ll128_reduce_twice<{element}, {operation}, {n}, {vector}>"),
        (true, true) => format!("ll128_add_twice<{element}, {operation}, {n}, {vector}>"),
    };
    Ok(KernelCall {
        extra_param: addition,
        ..landing_kernel(format!("ll_{}", running.bound.dtype), body, call, blocks)
    })
}

/// A reduction in one round of the messages of all ranks.
fn one_round_body(
    protocol: LlProtocol,
    element: &str,
    operation: &str,
    n: usize,
    sends: SendPattern,
    vector: bool,
) -> String {
    let same_to_all = sends == SendPattern::SameToAll;
    format!("ll_reduce<{}, {element}, {operation}, {n}, {same_to_all}, {vector}>", protocol.name())
}

/// A reduce-scatter: each rank sends every other rank the slice that the receiver reduces.
pub(super) fn reduce_scatter(running: &RankCollective, op: CollectiveReduceOp) -> Result<KernelCall> {
    let LandingSend { mut call, protocol, blocks, .. } = LandingSend::from_call(running)?;
    call.out[0] = running.result;
    let vector = all_vectors(&call.from[..running.n], &call.out[..1]);
    let dtype = running.bound.dtype;
    let (element, operation) = reduction(dtype, op);
    let body = one_round_body(protocol, &element, operation, running.n, SendPattern::OnePerPeer, vector);
    Ok(landing_kernel(format!("ll_reduce_scatter_{dtype}"), body, call, blocks))
}

/// The messages of each rank to all others, and its own slice.
struct LandingSend {
    call: LandingParams,
    /// The size of each message in bytes.
    piece: usize,
    protocol: LlProtocol,
    blocks: [u32; 2],
}

impl LandingSend {
    fn from_call(running: &RankCollective) -> Result<LandingSend> {
        let (piece, source) = message_slices(running)?;
        let protocol = running.protocol(piece);
        let units = units(protocol, piece);
        let mut call = running.ll(piece, protocol, units, 1)?;
        for (from, p) in call.from.iter_mut().zip(running.peers_then_self()) {
            *from = running.operand + source(p);
        }
        Ok(LandingSend { call, piece, protocol, blocks: grid(running, protocol, units) })
    }
}

fn all_vectors(from: &[DevicePtr], out: &[DevicePtr]) -> bool {
    all_multiples_of(from.iter().chain(out).copied(), 8)
}

pub(super) fn movement(running: &RankCollective) -> Result<KernelCall> {
    let pieces = LandingSend::from_call(running)?;
    let stride = pieces.piece;
    build_movement(running, pieces, stride, false)
}

/// An all-gather of rows of `row` bytes, a multiple of 8, that interleaves the rows of all ranks.
pub(super) fn gather_rows(running: &RankCollective, row: usize) -> Result<KernelCall> {
    let mut pieces = LandingSend::from_call(running)?;
    pieces.call.slice = row as u64;
    build_movement(running, pieces, row, true)
}

/// Moves messages to places that are `stride` bytes from each other, optionally in rows.
fn build_movement(
    running: &RankCollective,
    pieces: LandingSend,
    stride: usize,
    rows: bool,
) -> Result<KernelCall> {
    let n = running.n;
    let LandingSend { mut call, protocol, blocks, .. } = pieces;
    for (i, out) in call.out[..n].iter_mut().enumerate() {
        *out = running.result + (i * stride) as Address;
    }
    let vector = all_vectors(&call.from[..n], &call.out[..n]);
    let element = element(running.bound.dtype);
    let same_to_all = SendPattern::of_kind(&running.bound.kind) == SendPattern::SameToAll;
    let body = format!("ll_move<{}, {element}, {n}, {same_to_all}, {vector}, {rows}>", protocol.name());
    Ok(landing_kernel(format!("ll_{}", Kind::name(&running.bound.kind)), body, call, blocks))
}

/// The type of an element that is only moved.
fn element(dtype: DType) -> &'static str {
    match dtype.size() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

fn grid(running: &RankCollective, protocol: LlProtocol, units: usize) -> [u32; 2] {
    match protocol {
        LlProtocol::Ll => running.grid(|b| &b.ll, units),
        LlProtocol::Ll128 => running.grid(|b| &b.ll128, units),
    }
}

fn landing_kernel(what: String, body: String, call: LandingParams, blocks: [u32; 2]) -> KernelCall {
    let params = ("LandingParams", KernelParam::from_value(&call));
    KernelCall { what, body, params, extra_param: None, most_threads: MAX_THREADS, blocks }
}
