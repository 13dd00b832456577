//! Puts: the sender of a pair writes into the receiver's result and signals it; used by broadcast and
//! permute.
//!
//! Each receiver has two signals in each group. Both hold the number of a put; all ranks of the cell count
//! puts in the same way, including ranks without a pair. `free` means that the receiver has arrived, so its
//! result may be written. `landed` means that its sender has written it. A rank sets its own `free` before it
//! waits for anything, so ranks never wait for each other in a circle. Numbers have 64 bits and never wrap.
//!
//! Ranks that form no pair do not wait for each other: nothing here is a barrier.

use std::sync::atomic::Ordering;

use symmc_control::PutSignal;
use symmc_ir::collective::CollectiveKind;

use super::running::{RunningCollective, copy_slices};
use crate::error::Result;

pub(super) fn run(running: &RunningCollective) -> Result<()> {
    let call = running.call;
    let me = running.me as u32;
    let pairs = call.kind.send_pairs(running.n as u32).unwrap_or_default();
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, running.bytes)?;
    let number = running.group.puts.load(Ordering::Relaxed) + 1;
    running.group.puts.store(number, Ordering::Relaxed);

    let sender = pairs.iter().find(|(_, to)| *to == me).map(|(from, _)| *from as usize);
    if let Some(from) = sender {
        post_signal(running, running.me, PutSignal::Free, number, from);
    }
    for to in pairs.iter().filter(|(from, _)| *from == me).map(|(_, to)| *to as usize) {
        let there = running.peer_region_address(&call.result, to, running.bytes)?;
        await_signal(running, to, PutSignal::Free, number, to)?;
        copy_slices(running, there, operand, running.bytes);
        post_signal(running, to, PutSignal::Landed, number, to);
    }
    match sender {
        Some(from) => await_signal(running, running.me, PutSignal::Landed, number, from)?,
        None if keeps_own_operand(call.kind, me) => copy_slices(running, result, operand, running.bytes),
        // SAFETY: the result holds the bytes, and no peer writes it.
        None => unsafe { std::ptr::write_bytes(result, 0, running.bytes) },
    }
    Ok(())
}

/// Whether a rank without another sender has its own operand as the result.
fn keeps_own_operand(kind: &CollectiveKind, me: u32) -> bool {
    match kind {
        CollectiveKind::Broadcast { root } => *root == me,
        CollectiveKind::Permute { pairs } => pairs.contains(&(me, me)),
        _ => false,
    }
}

/// Sets a signal of receiver number `receiver`, for which rank number `peer` may be waiting.
fn post_signal(running: &RunningCollective, receiver: usize, signal: PutSignal, number: u64, peer: usize) {
    running.delay_peer_access();
    let control = running.comm.control();
    let word = control.signal(running.call.group, running.call.cell[receiver], signal);
    word.store(number, Ordering::Release);
    control.wake_ranks(std::iter::once(running.call.cell[peer]));
}

/// Waits for a signal of receiver number `receiver`, which rank number `peer` sets.
fn await_signal(
    running: &RunningCollective,
    receiver: usize,
    signal: PutSignal,
    number: u64,
    peer: usize,
) -> Result<()> {
    let word = running.comm.control().signal(running.call.group, running.call.cell[receiver], signal);
    let is_set = || word.load(Ordering::Acquire) >= number;
    running
        .comm
        .waiter()
        .wait_until(is_set)
        .map_err(|ended| running.wait_error(ended, |q| q != peer || is_set()))?;
    running.delay_peer_access();
    Ok(())
}
