//! Collectives as kernels with peer pointers: every variant that the library does not run.
//!
//! [`lower`] turns one collective of one rank into launches. A kernel receives the addresses of this rank and
//! its peers as parameters. It finds the counters of its group in memory, so a graph that holds the kernel
//! can be replayed without work on the host. `kernels/` holds the kernels as templates. The generated code is
//! one small function per combination of variant, dtype, ranks and operation that a program uses.
//!
//! # Flags
//! Each rank's arena ends in a control region: for each group, block and rank, a flag that this rank's peers
//! set. Block `b` of a kernel synchronizes with block `b` of the same kernel on the peers; all ranks launch
//! equal grids. Barriers are counted: a block stores the number of a barrier into the peers' flags and waits
//! for it in its own flags. Numbers have 64 bits and never wrap around in practice. The counters of a group
//! are in private memory, one copy per block. A block reads its own copy, and writes it and the copies of
//! blocks that this grid lacks. Therefore all copies are equal between kernels, and no block waits for
//! another block of its grid to count.
//!
//! These flags implement the contracts of `symmc_ir::collective` as follows:
//! - *arrival*: a kernel starts after the steps before it have completed. The completion of a kernel makes
//!   its writes visible to all later kernels. Because peers are served through this device's cache, the
//!   writes are also visible to any peer that acquired a flag which such a later kernel set. Hence the first
//!   flag of any block announces the arrival of the whole rank, and needs no fence.
//! - *entry, meets*: a block accesses a peer, and writes the result, only after it has seen the flag of one
//!   block of every peer.
//! - *exit*: the threads of a block synchronize; then a release orders all of their reads and writes before
//!   the block's flag. A kernel completes when all of its blocks have seen the flags of all blocks of all
//!   peers. At that time every peer has finished its accesses to this rank. The peers' writes are then in
//!   this device's memory and visible to later kernels, which wait for the end of this one (`symmc_enter`)
//!   before they read.
//! - *LL* (NCCL's low latency protocol): eight bytes in one store, four of them data and four a flag that no
//!   earlier word at the same place has. Words are sent after arrival. Each thread waits for its words from
//!   all peers before it writes their part of the result. The flag is the *epoch*, which counts the group's
//!   collectives by `ll`. A reader needs only the data of the word itself, so there is no fence: all reads of
//!   a rank before its sends have completed. Zones alternate with each collective. Before the flag wraps
//!   around, ranks synchronize, clear their zones and synchronize again.
//! - *copies*: a rendezvous of one block, copies that need no kernel, and a second rendezvous. The second one
//!   arrives after the copies have completed: it is the exit. Copies that only read from peers can omit it.
//! - *pairs*: a receiver's first flag goes only to its sender, which writes after it and then sets the second
//!   flag.
//!
//! - *LL128*: lines of 128 bytes, 120 of data and a flag, which arrive together (`kernels/device.cu`). LL and
//!   LL128 use separate parts of a zone, so neither finds the other's data in place of a flag. In two rounds,
//!   a rank sends its reduced slice in the second round, which ends when the slice of every peer has come.
//!   Each sender made its slice from lines of all ranks, so the second round announces every arrival, as a
//!   single round does.
//! - *shared rows*: if an all-reduce with a norm has few rows, several blocks send each row, and one of them
//!   receives it and writes its results (`kernels/norm.cu`). A line may come from any sender, but zones are
//!   cleared block by block. Therefore, in the collective that cleared them, each row is sent by the block
//!   that receives it. A result in place of the operand is written only after the other blocks of the row
//!   have read their shares. Each of these blocks signals this with the flag of this rank to itself.
//! - *stores only*: a two-shot of large tensors stores its operands into the peers' results, where they are
//!   reduced. It signals each chunk with the block's flags, and then overwrites the chunk with the result
//!   (`kernels/pushed.cu`). The fused addition reads a chunk of the result after all peers have signalled
//!   that they stored it. In place, a chunk of the operand is loaded before peers are notified that they may
//!   store there.
//! - *sizes on the device*: before the barrier, every block sends the row counts to the blocks with its
//!   number on all peers. The group's table of counts is not written again before the next barrier
//!   (`kernels/splits.cu`).
//!
//! - *tables of rows*: dispatch-rows and combine-rows read the peers' operands as other pulls do. Through
//!   staging, each round ends with a barrier, and rounds alternate between two parts of the staging area
//!   (`kernels/row_exchange.cu`). Reduce-rows stores sums to the peers in rounds, and signals each round. A
//!   block then adds the sums that the blocks of its number have signalled; the last signal is the exit
//!   (`kernels/row_sums.cu`).
//!
//! A block waits only for blocks with the same number on peers. A grid therefore need not be resident as a
//! whole, but its first unfinished block must be scheduled on every rank. (Blocks that share rows wait for
//! other blocks: such a grid must be resident.) The collectives of a rank run in one lane, one after another,
//! and grids have at most [`MAX_BLOCKS`] blocks. The whole grid is therefore resident on a device with that
//! many multiprocessors; concurrent compute kernels end on their own and make room. Kernels after it are
//! launched only when it is resident as a whole
//! ([`LaunchOrder::Dependent`](crate::device::launch::LaunchOrder::Dependent)).
//!
//! # Waits
//! Every wait has a limit. A wait that reaches it reports once to the pinned status words
//! ([`read_missed_peer`]) and stops all waits of this rank; the host can do the same with [`abort_waits`].
//! Later kernels then pass without long waits, and leave meaningless data in memory.
//!
//! [`lower_norm`] is the all-reduce by `ll` with the steps that often follow it in a model.
//! [`lower_addition`] is the two-shot of large tensors with a residual. [`lower_gather_of_rows`] is an
//! all-gather that interleaves the rows of all ranks. Callers derive them from dispatches. [`lower_several`]
//! makes one kernel for several collectives.
//!
//! Before the first run, the control region, the landing zones and the private words are zero on all ranks.

mod barrier;
mod blocks;
mod call;
mod control;
mod kernel_call;
mod ll;
mod multi_collective;
mod norm;
mod params;
mod peers;
mod row_exchange;
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
    ControlRegion, InvalidRowEntry, InvalidSplits, MAX_BLOCKS, MAX_RANKS, MissedPeer, STAGING_BYTES,
    STATUS_BYTES, SplitDirection, abort_waits, control_of, local_bytes, read_invalid_row_entry,
    read_invalid_splits, read_missed_peer,
};
pub use self::multi_collective::lower_several;
pub use self::norm::{AllReduceNorm, lower_norm};
pub use self::params::Addition;
pub use self::peers::{PeerContext, unread};
pub use self::two_shot::lower_addition;
use crate::codegen::addresses::CollectivePointers;
use crate::codegen::command::GpuCommand;
use crate::codegen::compile::KernelSource;
use crate::error::{CudaError, Result};
use crate::nccl::is_run_by_library;

/// The launches that run `call` on this rank; `None` if the library runs it. `step` is for reports. Fails if
/// the group has more ranks than kernels support, or the call does not fit its memory.
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
    let exchanges_rows = match call.kind {
        Kind::DispatchRows | Kind::CombineRows => {
            matches!(call.variant, CollectiveVariant::Plain | CollectiveVariant::Pull)
        }
        Kind::ReduceRows => matches!(call.variant, CollectiveVariant::Plain | CollectiveVariant::Push),
        _ => false,
    };
    if exchanges_rows && call.row_elements > 0 {
        let kernel = row_exchange::exchange(&running, ends.rows)?;
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

/// The launch of an all-gather whose result has the rows of all ranks interleaved: row `r` of every rank, then
/// row `r + 1`. `None` if its variant has no such kernel.
pub fn lower_gather_of_rows(
    step: usize,
    call: &ResolvedCollective,
    ends: &CollectivePointers,
    row_bytes: usize,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Result<Option<Vec<GpuCommand>>> {
    let running = RankCollective::new(step, call, [ends.operand, ends.result], peers)?;
    let exit = call.exit.unwrap_or(ExitBarrier::Kept);
    let kernel = match call.variant {
        CollectiveVariant::Pull => barrier::pull_rows(&running, row_bytes, exit)?,
        CollectiveVariant::Ll if row_bytes.is_multiple_of(8) => ll::gather_rows(&running, row_bytes)?,
        _ => return Ok(None),
    };
    Ok(Some(vec![GpuCommand::Kernel(kernel.launch(peers, source))]))
}
