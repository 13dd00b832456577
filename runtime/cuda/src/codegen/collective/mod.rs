//! Collectives as kernels on peer pointers: every variant that does not leave the work to a library.
//!
//! [`lower`] turns one collective of one rank into launches. A kernel takes the addresses of this rank and of
//! its peers as parameters and finds what its group has counted in memory, so a graph that holds it is replayed without work of
//! the host. `kernels/` holds the kernels as templates; what is generated is one small function for each
//! combination of variant, dtype, ranks and operation that a program uses.
//!
//! # Flags
//! Each rank's arena ends in a control region: for each group, block and rank a flag that this rank's peers
//! set. Block `b` of a kernel meets block `b` of the same kernel on the peers; all ranks launch equal grids.
//! Barriers are counted: a block stores the number of a barrier into the peers' flags and waits for it in its own;
//! numbers are 64 bits wide and never wrap around in practice. What the group has counted lies in private
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
//! - *LL* (NCCL's low latency protocol): eight bytes in one store, four of data and a flag that no earlier word at that
//!   place has. Words are sent after arrival, and each thread waits for its words of all peers before it writes their
//!   part of the result. The flag is the *epoch*, which counts the group's collectives by `ll`. Nothing but a word's own data has to be visible to who reads it, so there is no
//!   fence: what ranks read before they sent has been read. Zones alternate with each collective; before the
//!   flag wraps around, ranks meet, clear their zones and meet again.
//! - *copies*: a rendezvous of one block, copies that need no kernel, and a second rendezvous, whose arrival comes after
//!   the copies have completed: it is the exit, without which copies that only read peers do.
//! - *pairs*: a receiver's first flag goes to its sender alone, which writes after it and then sets the second.
//!
//! - *LL128*: lines of 128 bytes, 120 of data and a flag, which arrive together (`kernels/device.cu`). LL and
//!   LL128 have parts of a zone to themselves, so that neither finds the other's data where it looks for a flag.
//!   A round that sends on what it reduced ends when every peer's part has come, each of which its sender made of
//!   lines of all ranks: it tells of every arrival as one round does.
//! - *shared rows*: where an all-reduce with a norm has few rows, several blocks send each, and one receives it and
//!   writes its results (`kernels/norm.cu`). A line needs no particular sender, but zones are cleared block by
//!   block: the collective that cleared them sends as it receives, a row to a block. A result that lies on the operand is
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
//! ([`Start::Dependent`](crate::device::launch::LaunchOrder)).
//!
//! # Waits
//! No wait is without a limit. A wait that reaches it reports once to the pinned status words ([`read_missed_peer`]) and
//! stops all waits of this rank, as does the host by [`abort_waits`]; kernels that follow go through without waiting
//! for long, and what they leave in memory is meaningless.
//!
//! [`lower_norm`] is the all-reduce by `ll` with what often follows it in a model, [`lower_addition`] the two-shot of large
//! tensors with a residual; `follow` makes them of a dispatch. `rows` makes an all-gather that stores rows of all ranks in turn.
//! [`lower_several`] is one kernel of several collectives.
//!
//! Before the first run control region, landing zones and private words are zero on all ranks.

mod barrier;
mod blocks;
mod call;
mod control;
pub(crate) mod fused_tail;
mod kernel_call;
mod ll;
mod multi_collective;
mod norm;
mod params;
mod peers;
pub(crate) mod rows;
mod splits;
#[cfg(test)]
mod tests;
mod two_shot;

use symmc_ir::collective::{AllToAllSplits, CollectiveKind as Kind, CollectiveVariant};
use symmc_plan::ExitBarrier;
use symmc_runtime::exec::ResolvedCollective;

pub use self::blocks::{GridLimits, VariantGrids};
use self::call::RankCollective;
pub use self::control::{
    ControlRegion, InvalidSplits, MAX_BLOCKS, MAX_RANKS, MissedPeer, STAGING_BYTES, STATUS_BYTES,
    SplitDirection, abort_waits, control_of, local_bytes, read_invalid_splits, read_missed_peer,
};
pub use self::multi_collective::lower_several;
pub use self::norm::{AllReduceNorm, lower_norm};
pub use self::params::Addition;
pub use self::peers::{CollectivePointers, PeerContext, SplitPointers, unread};
pub use self::two_shot::lower_addition;
use crate::codegen::command::GpuCommand;
use crate::codegen::compile::KernelSource;
use crate::error::{CudaError, Result};
use crate::nccl::is_run_by_library;

/// The launches that run `call` on this rank; `None` for what the library runs. `step` is for reports. Fails if the
/// group has more ranks than kernels are made for, or the call does not fit its memory.
pub fn lower(
    step: usize,
    call: &ResolvedCollective,
    ends: &CollectivePointers,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Result<Option<Vec<GpuCommand>>> {
    if is_run_by_library(call) {
        return Ok(None);
    }
    let running = RankCollective::new(step, call, [ends.operand, ends.result], peers)?;
    if let (CollectiveVariant::Plain | CollectiveVariant::Pull, Kind::AllToAll(AllToAllSplits::Device)) =
        (call.variant, &call.kind)
    {
        let kernel = splits::exchange(&running, ends.sizes)?;
        return Ok(Some(vec![GpuCommand::Kernel(kernel.launch(peers, source))]));
    }
    if running.n == 1 {
        return Ok(Some(barrier::lower_single_rank(&running)));
    }
    let exit = call.exit.unwrap_or(ExitBarrier::Kept);
    let kernel = match (call.variant, &call.kind) {
        (CollectiveVariant::Copies, Kind::AllGather | Kind::AllToAll(_)) if running.bytes > 0 => {
            return barrier::push_copies(&running, peers, source).map(Some);
        }
        (CollectiveVariant::PullCopies, Kind::AllGather | Kind::AllToAll(_)) if running.bytes > 0 => {
            return barrier::pull_copies(&running, exit, peers, source).map(Some);
        }
        (CollectiveVariant::Put, Kind::Broadcast { .. } | Kind::Permute { .. }) => {
            barrier::put_kernel(&running)?
        }
        _ if running.bytes == 0 => barrier::rendezvous(&running),
        (CollectiveVariant::OneShot, Kind::AllReduce(op)) => barrier::one_shot(&running, *op, exit)?,
        (CollectiveVariant::TwoShot, Kind::AllReduce(op)) => two_shot::reduce(&running, *op)?,
        (CollectiveVariant::Pull, Kind::ReduceScatter(op)) => barrier::reduce_scatter(&running, *op, exit)?,
        (CollectiveVariant::Pull, Kind::AllGather | Kind::AllToAll(_)) => barrier::pull(&running, exit)?,
        (CollectiveVariant::Push, Kind::AllGather | Kind::AllToAll(_)) => barrier::push(&running)?,
        (CollectiveVariant::Ll, Kind::AllReduce(op)) => ll::reduce(&running, *op)?,
        (CollectiveVariant::Ll, Kind::ReduceScatter(op)) => ll::reduce_scatter(&running, *op)?,
        (CollectiveVariant::Ll, Kind::AllGather | Kind::AllToAll(_)) => ll::movement(&running)?,
        (variant, kind) => {
            let text = format!("{} as {variant}: GPUs have no kernel for it", kind.name());
            return Err(CudaError::Unsupported(text));
        }
    };
    Ok(Some(vec![GpuCommand::Kernel(kernel.launch(peers, source))]))
}
