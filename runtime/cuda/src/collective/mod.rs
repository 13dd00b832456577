//! Collectives as kernels on peer pointers: every variant that does not leave the work to a library.
//!
//! [`lower`] turns one collective of one rank into launches. A kernel takes the addresses of this rank and of
//! its peers as parameters and finds its turn in memory, so a graph that holds it is replayed without work of
//! the host. `kernels/` holds the kernels as templates; what is generated is one small function for each
//! combination of variant, dtype, ranks and operation that a program uses.
//!
//! # Flags
//! Each rank's arena ends in a control region: for each group, block and rank a flag that this rank's peers
//! set. Block `b` of a kernel meets block `b` of the same kernel on the peers; all ranks launch equal grids.
//! A barrier is one number, the *epoch*, that a block stores into the peers' flags and waits for in its own;
//! epochs are 64 bits wide and never wrap around in practice. What the group has counted lies in private
//! memory, one copy for each block: a block reads its own copy, and writes it and those of blocks that this
//! grid lacks, so all copies are equal between kernels and no block waits for another of its grid to count.
//!
//! Why these flags hold what the contracts in `symmc_ir::collective` promise:
//! - *arrival*: a kernel starts after the steps before it have completed, and completion of a kernel makes its
//!   writes visible to all kernels after it, and through this device's cache, which serves peers too, to
//!   whoever acquired a flag that such a kernel set. So any block's first flag tells of the whole rank's
//!   arrival, and needs no fence.
//! - *entry, meets*: a block touches a peer, and writes the result, only after it has seen the flag of one
//!   block of every peer.
//! - *exit*: threads of a block synchronise, then a release orders all that they read and wrote before its
//!   flag. A kernel completes when all its blocks have seen the flags of all blocks of all peers, which is
//!   when every peer has stopped touching this rank; what peers wrote here is then in this device's memory and
//!   visible to later kernels, which wait for the end of this one (`symmc_enter`) before they read.
//! - *packets*: eight bytes in one store, four of data and a flag that no earlier packet at that place has.
//!   A packet is sent after arrival, and each thread waits for its packets of all peers before it writes their
//!   part of the result. Nothing but a packet's own data has to be visible to who reads it, so there is no
//!   fence: what ranks read before they sent has been read. Zones alternate with each collective; before the
//!   flag wraps around, ranks meet, clear their zones and meet again.
//! - *copies*: a meeting of one block, copies that need no kernel, and a second meeting, whose arrival comes after
//!   the copies have completed: it is the exit.
//! - *pairs*: a receiver's first flag goes to its sender alone, which writes after it and then sets the second.
//!
//! - *lines*: the same with 120 bytes of data before a flag, which arrive together (`kernels/device.cu`). Words and
//!   lines have parts of a zone to themselves, so that neither finds the other's data where it looks for a flag.
//!   A round that sends on what it reduced ends when every peer's part has come, each of which its sender made of
//!   packets of all ranks: it tells of every arrival as one round does.
//! - *shared rows*: where an all-reduce with a norm has few rows, several blocks send each, and one receives it and
//!   writes its results (`kernels/norm.cu`). A packet needs no particular sender, but zones are cleared block by
//!   block: the turn that cleared them sends as it receives, a row to a block. A result that lies on the operand is
//!   not written before the other blocks of the row have read their shares, which each tells with the flag of this
//!   rank to itself.
//! - *stores alone*: a two-shot of large tensors stores into the peers' results what they reduce, tells them chunk
//!   by chunk with the block's flags, and overwrites it with the result (`kernels/pushed.cu`). A chunk of the result is
//!   read for what follows it once all peers have told that they stored it. In place, a chunk of the operand is loaded
//!   before peers are told that they may store there.
//! - *sizes on the device*: every block tells the blocks of its number on all peers how many rows go where before
//!   they meet, and a group's table of that is not written again before they have met once more (`kernels/splits.cu`).
//!
//! A block waits for blocks of the same number on peers and for no other, so a grid need not be resident as a
//! whole, but its first unfinished block must get to run on every rank. (Blocks that share rows wait for others: such a
//! grid must be resident.) The collectives of a rank run in one lane, one after another, and grids have at most
//! [`MAX_BLOCKS`] blocks, so that the whole grid is resident on a device of as many multiprocessors; compute kernels
//! beside it end by themselves and make room. Those behind it are launched once it is resident as a whole, not sooner
//! ([`Start::Early`](crate::launch::Start)).
//!
//! # Waits
//! No wait is without a limit. A wait that reaches it reports once to the pinned status words ([`missed`]) and
//! stops all waits of this rank, as does the host by [`end`]; kernels that follow go through without waiting
//! for long, and what they leave in memory is meaningless.
//!
//! [`lower_norm`] is the packets all-reduce with what often follows it in a model, [`lower_addition`] the two-shot of large
//! tensors with a residual; `follow` makes them of a dispatch.
//!
//! Before the first run control region, landing zones and private words are zero on all ranks.

mod blocks;
mod call;
mod control;
pub(crate) mod follow;
mod norm;
mod packets;
mod splits;
#[cfg(test)]
mod tests;
mod two_shot;

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, Forms, ReduceOp, Splits, Variant};
use symmc_plan::Barrier;
use symmc_runtime::exec::{BoundCollective, BoundStep, Work as StepWork};

pub use self::blocks::{BlockCounts, Blocks};
use self::blocks::{Form, MAX_THREADS};
use self::call::{Call, Turn};
pub use self::control::{
    Control, Flow, MAX_BLOCKS, MAX_RANKS, Missed, STAGED, STATUS_BYTES, Unfit, end, local_bytes, missed,
    unfit,
};
pub use self::norm::{FusedNorm, lower_norm};
pub use self::splits::Sizes;
pub use self::two_shot::{Addition, lower_addition};
use crate::compile::Source;
use crate::error::CudaError;
use crate::launch::{Address, Kernel, Param, Work};

/// Operations that reach peers.
const DEVICE: &str = include_str!("kernels/device.cu");
/// The kernels.
const KERNELS: &str = concat!(
    include_str!("kernels/waits.cu"),
    include_str!("kernels/elements.cu"),
    include_str!("kernels/barrier.cu"),
    include_str!("kernels/pushed.cu"),
    include_str!("kernels/packets.cu"),
    include_str!("kernels/lines.cu"),
    include_str!("kernels/norm.cu"),
    include_str!("kernels/splits.cu"),
);
/// What stands before them for delays around every touch of a peer.
const CHAOS: &str = "#define SYMMC_CHAOS\n";
/// What stands before them where links may split lines.
const SPLIT_LINES: &str = "#define SYMMC_SPLIT_LINES\n";

/// What a rank's kernels know of the run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Peers {
    /// This rank.
    pub rank: u32,
    /// Where the symmetric arena of each rank is mapped in this rank's context; this rank's is among them.
    pub arenas: Vec<Address>,
    /// The bytes of the plan's symmetric arena. The control region begins there, rounded up to 4096.
    pub arena: usize,
    /// What the control region holds.
    pub control: Control,
    /// [`local_bytes`] bytes of device memory of this rank alone, at a multiple of 16.
    pub local: Address,
    /// [`STATUS_BYTES`] bytes of pinned memory, as the device sees them.
    pub status: Address,
    /// The longest wait for a peer, in nanoseconds.
    pub limit_ns: u64,
    /// The seed of random delays around every touch of a peer, if wanted.
    pub chaos: Option<u64>,
    /// The grids; equal on all ranks.
    pub blocks: BlockCounts,
    /// Which forms variants take; equal on all ranks.
    pub forms: Forms,
    /// What the links to peers promise.
    pub links: Links,
}

/// Whether 128 bytes that a warp stores at once arrive at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Links {
    /// They do: NVLink, and ranks on one device.
    Whole,
    /// They may not, or nobody knows. Lines then go with a fence before their flag.
    #[default]
    MaySplit,
}

/// Where on this rank a collective finds what is its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The operand.
    pub operand: Address,
    /// The result.
    pub result: Address,
    /// The sizes of an all-to-all with sizes on the device.
    pub sizes: Option<Sizes>,
}

impl Ends {
    /// Of a collective whose sizes are all known.
    pub fn new(operand: Address, result: Address) -> Ends {
        Ends { operand, result, sizes: None }
    }
}

/// A word of this rank's own memory that nobody reads.
pub fn unread(peers: &Peers) -> Address {
    peers.local + control::UNREAD as Address
}

/// What these steps need of the control region: as many groups as one more than the highest that they communicate on.
pub fn control_of<'b>(steps: impl IntoIterator<Item = &'b BoundStep>) -> Control {
    let mut out = Control { groups: 0, exchanging: 0, staged: STAGED };
    for work in steps.into_iter().flat_map(|step| step.work.parts()) {
        let StepWork::Collective(call) = work else { continue };
        out.groups = out.groups.max(call.group + 1);
        if call.kind == Kind::AllToAll(Splits::Device) {
            out.exchanging = out.exchanging.max(call.cell.len());
        }
    }
    out
}

/// Whether the library runs a collective: it has none with sizes on the device, and a rank alone needs none.
pub fn by_library(call: &BoundCollective) -> bool {
    call.variant.is_library() && call.cell.len() > 1 && call.kind != Kind::AllToAll(Splits::Device)
}

/// The launches that run `call` on this rank; `None` for what the library runs. `step` is for reports.
///
/// # Errors
/// The group has more ranks than kernels are made for, or the call does not fit its memory.
pub fn lower(
    step: usize,
    call: &BoundCollective,
    ends: &Ends,
    peers: &Peers,
    source: &mut Source,
) -> Result<Option<Vec<Work>>, CudaError> {
    if by_library(call) {
        return Ok(None);
    }
    let turn = Turn::new(step, call, [ends.operand, ends.result], peers)?;
    if let (Variant::Plain | Variant::Pull, Kind::AllToAll(Splits::Device)) = (call.variant, &call.kind) {
        let kernel = splits::exchange(&turn, ends.sizes)?;
        return Ok(Some(vec![Work::Kernel(kernel.launch(peers, source))]));
    }
    if turn.n == 1 {
        return Ok(Some(alone(&turn)));
    }
    let exit = call.exit.unwrap_or(Barrier::Kept);
    let kernel = match (call.variant, &call.kind) {
        (Variant::Copies, Kind::AllGather | Kind::AllToAll(_)) if turn.bytes > 0 => {
            return copies(&turn, peers, source).map(Some);
        }
        (Variant::Put, Kind::Broadcast { .. } | Kind::Permute { .. }) => put(&turn)?,
        _ if turn.bytes == 0 => meeting(&turn),
        (Variant::OneShot, Kind::AllReduce(op)) => one_shot(&turn, *op, exit)?,
        (Variant::TwoShot, Kind::AllReduce(op)) => two_shot::reduce(&turn, *op)?,
        (Variant::Pull, Kind::ReduceScatter(op)) => reduce_scatter(&turn, *op, exit)?,
        (Variant::Pull, Kind::AllGather | Kind::AllToAll(_)) => pull(&turn, exit)?,
        (Variant::Push, Kind::AllGather | Kind::AllToAll(_)) => push(&turn)?,
        (Variant::Packets, Kind::AllReduce(op)) => packets::reduce(&turn, *op)?,
        (Variant::Packets, Kind::AllGather | Kind::AllToAll(_)) => packets::movement(&turn)?,
        (variant, kind) => {
            let text = format!("{} as {variant}: GPUs have no kernel for it", kind.name());
            return Err(CudaError::Unsupported(text));
        }
    };
    Ok(Some(vec![Work::Kernel(kernel.launch(peers, source))]))
}

/// A kernel to be launched.
struct Prepared {
    /// What it does, for profilers.
    what: String,
    /// Its body, without namespace.
    body: String,
    call: Call,
    /// A second parameter and its type.
    beside: Option<(&'static str, Param)>,
    /// The most threads of a block that it is compiled for: fewer may have more registers.
    most_threads: u32,
    blocks: [u32; 2],
}

impl Prepared {
    fn launch(self, peers: &Peers, source: &mut Source) -> Kernel {
        if peers.chaos.is_some() {
            source.prelude(CHAOS);
        }
        if peers.links == Links::MaySplit {
            source.prelude(SPLIT_LINES);
        }
        source.prelude(DEVICE);
        source.prelude(KERNELS);
        let [blocks, threads] = self.blocks;
        let (declared, passed) = match &self.beside {
            Some((ty, _)) => (format!(", const __grid_constant__ {ty} beside"), ", beside"),
            None => (String::new(), ""),
        };
        // In the namespace of the kernels, so that other code in the program may use the same names.
        let text = format!(
            "namespace symmc_peer {{\nextern \"C\" __global__ void __launch_bounds__({}) \
             @(const __grid_constant__ Call call{declared}) {{\n    symmc_enter();\n    {}(call{passed});\n}}\n}}\n",
            self.most_threads, self.body
        );
        let beside = self.beside.map(|(_, param)| param);
        Kernel {
            entry: source.function(&self.what, text),
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            cluster: 1,
            shared: 0,
            params: [Param::of(&self.call)].into_iter().chain(beside).collect(),
        }
    }
}

/// A cell of one rank: the operand is the result.
fn alone(turn: &Turn) -> Vec<Work> {
    let [from, to] = [turn.operand, turn.result];
    let nothing_sent = matches!(&turn.bound.kind, Kind::Permute { pairs } if pairs.is_empty());
    match (nothing_sent, turn.bytes) {
        (_, 0) => vec![],
        (true, bytes) => vec![Work::Zero { at: to, bytes }],
        (false, _) if from == to => vec![],
        (false, bytes) => vec![Work::Copy { to, from, bytes }],
    }
}

/// The types of the kernels' elements and operation.
fn reduction(dtype: DType, op: ReduceOp) -> (&'static str, &'static str) {
    let average = op == ReduceOp::Avg;
    let element = match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::I32 if average => "WideI32",
        DType::I32 => "I32",
        DType::U8 if average => "WideU8",
        DType::U8 | DType::Bool => "U8",
    };
    let operation = match (dtype, op) {
        (DType::Bool, ReduceOp::Sum | ReduceOp::Max) => "Or",
        (DType::Bool, ReduceOp::Prod | ReduceOp::Min | ReduceOp::Avg) => "And",
        (_, ReduceOp::Sum) => "Sum",
        (_, ReduceOp::Avg) => "Avg",
        (_, ReduceOp::Max) => "Max",
        (_, ReduceOp::Min) => "Min",
        (_, ReduceOp::Prod) => "Prod",
    };
    (element, operation)
}

/// A reduction behind a barrier: of `elements` elements at `from` into the first `outs` of `to`.
struct Reduction {
    op: ReduceOp,
    outs: usize,
    elements: usize,
    exit: Barrier,
}

fn reduce(turn: &Turn, mut call: Call, how: Reduction, blocks: [u32; 2], what: &str) -> Prepared {
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

fn one_shot(turn: &Turn, op: ReduceOp, exit: Barrier) -> Result<Prepared, CudaError> {
    let mut call = turn.call();
    for p in 0..turn.n {
        call.from[p] = turn.operand_of(p, turn.bytes)?;
    }
    call.to[0] = turn.result;
    let how = Reduction { op, outs: 1, elements: turn.bound.elements, exit };
    Ok(reduce(turn, call, how, turn.grid(|b| &b.one_shot, turn.units(turn.bytes)), "one_shot"))
}

fn reduce_scatter(turn: &Turn, op: ReduceOp, exit: Barrier) -> Result<Prepared, CudaError> {
    let piece = turn.piece()?;
    let mut call = turn.call();
    for p in 0..turn.n {
        call.from[p] = turn.operand_of(p, turn.bytes)? + (turn.me * piece) as Address;
    }
    call.to[0] = turn.result;
    let how = Reduction { op, outs: 1, elements: turn.bound.elements / turn.n, exit };
    Ok(reduce(turn, call, how, turn.grid(|b| &b.reduce_scatter, turn.units(piece)), "reduce_scatter"))
}

/// What a rank sends to its peers.
#[derive(Clone, Copy, PartialEq)]
enum Sends {
    /// The same bytes to all.
    One,
    /// To each its own.
    Each,
}

impl Sends {
    fn of(kind: &Kind) -> Sends {
        if matches!(kind, Kind::AllGather) { Sends::One } else { Sends::Each }
    }
}

/// How bytes move behind a barrier.
struct Moves {
    sends: Sends,
    exit: Barrier,
    bytes: usize,
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

/// The bytes that each rank gets of each, and from where in a sender's operand the receiver of this number
/// takes them.
fn pieces(turn: &Turn) -> Result<(usize, impl Fn(usize) -> Address + use<>), CudaError> {
    let whole = Sends::of(&turn.bound.kind) == Sends::One;
    let piece = if whole { turn.bytes } else { turn.piece()? };
    Ok((piece, move |receiver| if whole { 0 } else { (receiver * piece) as Address }))
}

fn pull(turn: &Turn, exit: Barrier) -> Result<Prepared, CudaError> {
    let (piece, source) = pieces(turn)?;
    let mut call = turn.call();
    for (i, p) in turn.rotated().enumerate() {
        call.from[i] = turn.operand_of(p, turn.bytes)? + source(turn.me);
        call.to[i] = turn.result + (p * piece) as Address;
    }
    Ok(movement(turn, call, Moves { sends: Sends::Each, exit, bytes: piece }))
}

fn push(turn: &Turn) -> Result<Prepared, CudaError> {
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
fn meeting(turn: &Turn) -> Prepared {
    movement(turn, turn.call(), Moves { sends: Sends::Each, exit: Barrier::Dropped, bytes: 0 })
}

/// Copies between two meetings. The first is the entry. Copies before a kernel on a stream have completed when it
/// starts, so that the second is the exit.
fn copies(turn: &Turn, peers: &Peers, source: &mut Source) -> Result<Vec<Work>, CudaError> {
    let (piece, from) = pieces(turn)?;
    let mut work = vec![Work::Kernel(meeting(turn).launch(peers, source))];
    // This rank is the last, so that peers need not wait for its own piece.
    for p in turn.rotated() {
        let to = turn.result_of(p, turn.n * piece)? + (turn.me * piece) as Address;
        let from = turn.operand + from(p);
        if to != from {
            work.push(Work::Copy { to, from, bytes: piece });
        }
    }
    work.push(Work::Kernel(meeting(turn).launch(peers, source)));
    Ok(work)
}

fn put(turn: &Turn) -> Result<Prepared, CudaError> {
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
