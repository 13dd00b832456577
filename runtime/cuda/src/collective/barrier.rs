//! Collectives whose ranks meet at barriers, and touch each other's operands and results between them.

use symmc_ir::collective::{CollectiveKind as Kind, ReduceOp};
use symmc_plan::Barrier;

use super::blocks::MAX_THREADS;
use super::call::{Call, Turn};
use super::control::MAX_RANKS;
use super::peers::Peers;
use super::prepared::{Prepared, Sends, pieces, reduction};
use crate::command::Command;
use crate::compile::Source;
use crate::error::CudaError;
use crate::launch::Address;

pub(super) fn one_shot(turn: &Turn, op: ReduceOp, exit: Barrier) -> Result<Prepared, CudaError> {
    let mut call = turn.call();
    for p in 0..turn.n {
        call.from[p] = turn.operand_of(p, turn.bytes)?;
    }
    call.to[0] = turn.result;
    let how = Reduction { op, outs: 1, elements: turn.bound.elements, exit };
    Ok(reduce(turn, call, how, turn.grid(|b| &b.one_shot, turn.units(turn.bytes)), "one_shot"))
}

pub(super) fn reduce_scatter(turn: &Turn, op: ReduceOp, exit: Barrier) -> Result<Prepared, CudaError> {
    let piece = turn.piece()?;
    let mut call = turn.call();
    for p in 0..turn.n {
        call.from[p] = turn.operand_of(p, turn.bytes)? + (turn.me * piece) as Address;
    }
    call.to[0] = turn.result;
    let how = Reduction { op, outs: 1, elements: turn.bound.elements / turn.n, exit };
    Ok(reduce(turn, call, how, turn.grid(|b| &b.reduce_scatter, turn.units(piece)), "reduce_scatter"))
}

pub(super) fn pull(turn: &Turn, exit: Barrier) -> Result<Prepared, CudaError> {
    let (piece, source) = pieces(turn)?;
    let mut call = turn.call();
    for (i, p) in turn.rotated().enumerate() {
        call.from[i] = turn.operand_of(p, turn.bytes)? + source(turn.me);
        call.to[i] = turn.result + (p * piece) as Address;
    }
    Ok(movement(turn, call, Moves { sends: Sends::Each, exit, bytes: piece }))
}

pub(super) fn push(turn: &Turn) -> Result<Prepared, CudaError> {
    let (piece, source) = pieces(turn)?;
    let mut call = turn.call();
    for (i, p) in turn.rotated().enumerate() {
        call.from[i] = turn.operand + source(p);
        call.to[i] = turn.result_of(p, turn.n * piece)? + (turn.me * piece) as Address;
    }
    let sends = Sends::of(&turn.bound.kind);
    Ok(movement(turn, call, Moves { sends, exit: Barrier::Kept, bytes: piece }))
}

/// A meeting of the group and nothing else.
pub(super) fn meeting(turn: &Turn) -> Prepared {
    movement(turn, turn.call(), Moves { sends: Sends::Each, exit: Barrier::Dropped, bytes: 0 })
}

/// Copies between two meetings. The first is the entry. Copies before a kernel on a stream have completed when it
/// starts, so that the second is the exit.
pub(super) fn copies(turn: &Turn, peers: &Peers, source: &mut Source) -> Result<Vec<Command>, CudaError> {
    let (piece, from) = pieces(turn)?;
    let mut work = vec![Command::Kernel(meeting(turn).launch(peers, source))];
    // This rank is the last, so that peers need not wait for its own piece.
    for p in turn.rotated() {
        let to = turn.result_of(p, turn.n * piece)? + (turn.me * piece) as Address;
        let from = turn.operand + from(p);
        if to != from {
            work.push(Command::Copy { to, from, bytes: piece });
        }
    }
    work.push(Command::Kernel(meeting(turn).launch(peers, source)));
    Ok(work)
}

pub(super) fn put(turn: &Turn) -> Result<Prepared, CudaError> {
    let (me, n) = (turn.me as u32, turn.n as u32);
    let pairs: Vec<(u32, u32)> = match &turn.bound.kind {
        Kind::Permute { pairs } => pairs.clone(),
        Kind::Broadcast { root } => (0..n).map(|to| (*root, to)).collect(),
        _ => vec![],
    };
    if let Some(pair) = pairs.iter().find(|(from, to)| *from >= n || *to >= n) {
        return Err(turn.unfit(format!("expected pairs of ranks below {n}, found {pair:?}")));
    }
    let sender = pairs.iter().find(|pair| pair.1 == me).map(|pair| pair.0);
    let mut call = turn.call();
    call.sender = sender.filter(|&s| s != me).unwrap_or(MAX_RANKS as u32);
    call.zero = u32::from(sender.is_none());
    call.from[0] = turn.operand;
    call.to[0] = turn.result;
    call.count = turn.bytes as u64;
    let mut count = 0;
    for p in turn.rotated().filter(|&p| pairs.contains(&(me, p as u32))) {
        let to = turn.result_of(p, turn.bytes)?;
        if to != turn.operand {
            (call.out[count], call.receiver[count]) = (to, p as u32);
            count += 1;
        }
    }
    call.receivers = count as u32;
    let addresses = call.out[..count].iter().chain([&call.from[0], &call.to[0]]);
    let unit = unit(addresses.copied(), turn.bytes);
    Ok(Prepared {
        what: turn.bound.kind.name().into(),
        body: format!("put<{unit}, {n}>"),
        call,
        beside: None,
        most_threads: MAX_THREADS,
        blocks: turn.grid(|b| &b.put, turn.units(turn.bytes)),
    })
}

/// A reduction behind a barrier: of `elements` elements at `from` into the first `outs` of `to`.
pub(super) struct Reduction {
    pub op: ReduceOp,
    pub outs: usize,
    pub elements: usize,
    pub exit: Barrier,
}

pub(super) fn reduce(turn: &Turn, mut call: Call, how: Reduction, blocks: [u32; 2], what: &str) -> Prepared {
    let (element, operation) = reduction(turn.bound.dtype, how.op);
    let (outs, exit) = (how.outs, how.exit == Barrier::Kept);
    let addresses = call.from[..turn.n].iter().chain(&call.to[..outs]);
    let vector = addresses.fold(0, |all, a| all | a).is_multiple_of(16);
    call.count = how.elements as u64;
    let n = turn.n;
    Prepared {
        what: format!("{what}_{}", turn.bound.dtype),
        body: format!("reduce<{element}, {operation}, {n}, {outs}, {exit}, {vector}>"),
        call,
        beside: None,
        most_threads: MAX_THREADS,
        blocks,
    }
}

/// How bytes move behind a barrier.
struct Moves {
    sends: Sends,
    exit: Barrier,
    bytes: usize,
}

fn movement(turn: &Turn, mut call: Call, how: Moves) -> Prepared {
    let bytes = how.bytes;
    let (same, exit) = (how.sends == Sends::One, how.exit == Barrier::Kept);
    let n = turn.n;
    let unit = unit(call.from[..n].iter().chain(&call.to[..n]).copied(), bytes);
    call.count = bytes as u64;
    Prepared {
        what: turn.bound.kind.name().into(),
        body: format!("move<{unit}, {n}, {same}, {exit}>"),
        call,
        beside: None,
        most_threads: MAX_THREADS,
        blocks: turn.grid(|b| if same { &b.push } else { &b.pull }, turn.units(bytes)),
    }
}

/// The unit in which bytes move between these addresses.
fn unit(addresses: impl Iterator<Item = Address>, bytes: usize) -> &'static str {
    let all = addresses.fold(0, |all, a| all | a);
    match all {
        a if a.is_multiple_of(16) => "Sixteens",
        a if a.is_multiple_of(4) && bytes.is_multiple_of(4) => "Fours",
        _ => "Bytes",
    }
}
