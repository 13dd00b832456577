//! The variant `ll`: every rank pushes its operand, or each peer's piece of it, into the peers' landing
//! zones, with data and flag in one line, and reads its own zone. There is no barrier; the flag of each line
//! shows that it has arrived.
//!
//! The two zones of a group are used in turn, and the flag of a line is the epoch of its collective. Lines of
//! earlier collectives are therefore never mistaken for this one. Epochs run from 1 to the largest `u32` and
//! then begin again; before they do, the ranks meet, clear their zones and meet again.
//!
//! A zone has one slot for each rank of the cell, its sender; the slot of the rank itself stays empty.

use std::sync::atomic::{Ordering, fence};

use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp};

use super::copy::{StoreMode, copy_bytes};
use super::ll;
use super::reduce::{AccumulatorBlock, BLOCK_ELEMENTS};
use super::running::{PerRank, RunningCollective};
use crate::error::Result;

const MAX_EPOCHS: u64 = u32::MAX as u64;
/// Elements that are reduced together. Such a block of any dtype fills whole lines.
const PIECE_ELEMENTS: usize = BLOCK_ELEMENTS / ll::DATA * ll::DATA;

/// Bytes of the peers' slots of the next collective whose cache lines a rank prefetches for writing.
const PREFETCH_BYTES: usize = 4096;

struct LandingZones {
    /// The zone of this epoch in each arena of the cell, by number.
    zones: PerRank<*mut u8>,
    /// From these zones to those of the next epoch, in bytes.
    next_zone_distance: isize,
    epoch: u32,
    /// Bytes of the message in each slot.
    message: usize,
}

impl LandingZones {
    fn slot(&self, on: usize, from: usize) -> *mut u8 {
        self.zones[on].wrapping_add(self.slot_offset(from))
    }

    fn slot_offset(&self, from: usize) -> usize {
        from * ll::line_count(self.message) * ll::LINE
    }

    /// Called after all lines were received. The next message most likely has this size and goes to the other
    /// zones. The peers no longer read these, since they have sent lines for the current zones.
    fn prefetch_next_zones(&self, running: &RunningCollective) {
        let max_bytes = PREFETCH_BYTES / running.n.saturating_sub(1).max(1);
        for p in running.peer_numbers() {
            let slot = self.zones[p]
                .wrapping_offset(self.next_zone_distance)
                .wrapping_add(self.slot_offset(running.me));
            ll::prefetch_for_stores(slot, self.slot_offset(1).min(max_bytes));
        }
    }
}

pub(super) fn run(running: &RunningCollective) -> Result<()> {
    match running.call.kind {
        CollectiveKind::AllReduce(op) => reduce_messages(running, *op, running.bytes, 0),
        CollectiveKind::ReduceScatter(op) => {
            reduce_messages(running, *op, running.bytes / running.n, running.bytes / running.n)
        }
        CollectiveKind::AllGather => exchange_messages(running, running.bytes, 0),
        CollectiveKind::AllToAll(AllToAllSplits::Even) => {
            exchange_messages(running, running.bytes / running.n, running.bytes / running.n)
        }
        kind => Err(running.call_error(format!("the variant ll does not run {} on the host", kind.name()))),
    }
}

fn begin_message(running: &RunningCollective, message: usize) -> Result<LandingZones> {
    let Some(offsets) = running.call.landing else {
        return Err(running.call_error("expected landing zones for ll, found none".into()));
    };
    let used = running.n * ll::line_count(message) * ll::LINE;
    if offsets.iter().any(|o| !o.is_multiple_of(ll::LINE)) {
        return Err(
            running.call_error(format!("expected landing zones at multiples of 64, found {offsets:?}"))
        );
    }
    let state = running.group;
    let number = state.ll.load(Ordering::Relaxed);
    if number > 0 && number.is_multiple_of(MAX_EPOCHS) {
        clear_flags(running, offsets)?;
    }
    state.ll.store(number + 1, Ordering::Relaxed);
    state.landing_used.fetch_max(used, Ordering::Relaxed);
    let offset = offsets[(number & 1) as usize];
    let next = offsets[(number & 1 ^ 1) as usize];
    running.arena_address(running.me, next, used)?;
    let zones = (0..running.n).map(|p| running.arena_address(p, offset, used)).collect::<Result<_, _>>()?;
    let epoch = (number % MAX_EPOCHS) as u32 + 1;
    let next_zone_distance = next as isize - offset as isize;
    Ok(LandingZones { zones, next_zone_distance, epoch, message })
}

/// Removes all flags from this rank's zones while no peer writes there.
#[cold]
fn clear_flags(running: &RunningCollective, offsets: [usize; 2]) -> Result<()> {
    running.await_barrier()?;
    let used = running.group.landing_used.load(Ordering::Relaxed);
    for offset in offsets {
        let zone = running.arena_address(running.me, offset, used)?;
        // SAFETY: the range lies within the arena; between the two barriers no rank sends lines.
        unsafe { std::ptr::write_bytes(zone, 0, used) };
    }
    running.await_barrier()
}

/// All-reduce and reduce-scatter: sends `message` bytes to each peer, those for peer `p` at `p * stride` of
/// the operand, and reduces the received messages with its own.
fn reduce_messages(
    running: &RunningCollective,
    op: CollectiveReduceOp,
    message: usize,
    stride: usize,
) -> Result<()> {
    let call = running.call;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, message)?;
    let zones = begin_message(running, message)?;
    for p in running.peer_numbers() {
        send_message(running, &zones, p, operand.wrapping_add(p * stride));
    }
    running.wake_peers();

    let own_message = operand.wrapping_add(running.me * stride);
    let size = call.dtype.size();
    let count = message / size;
    let reducer = running.reducer(op);
    let mut acc = AccumulatorBlock::new();
    let mut low = AccumulatorBlock::new();
    let mut high = AccumulatorBlock::new();
    let mut start = 0;
    while start < count {
        let elements = PIECE_ELEMENTS.min(count - start);
        let from = start * size;
        let end = (start + elements) * size;
        // SAFETY: the blocks have room for elements of any dtype. This rank's part of the operand and the
        // result have the size of the whole message. A block of the operand is read before that of the result
        // is written.
        unsafe {
            let source = |p: usize, room: &mut AccumulatorBlock| -> Result<*const u8> {
                if p == running.me {
                    return Ok(own_message.wrapping_add(from));
                }
                receive_message(running, &zones, p, room.as_mut_ptr(), from, end)?;
                Ok(room.as_mut_ptr())
            };
            let a = source(0, &mut low)?;
            let b = source(1, &mut high)?;
            reducer.start(&mut acc, a, b, elements);
            for p in 2..running.n {
                reducer.combine(&mut acc, source(p, &mut low)?, elements);
            }
            let out = result.wrapping_add(from);
            reducer.finish(&mut acc, running.n, &[out], elements, StoreMode::Cached);
        }
        start += elements;
    }
    zones.prefetch_next_zones(running);
    Ok(())
}

/// All-gather and all-to-all: sends `message` bytes to each peer, those for peer `p` at `p * stride` of the
/// operand.
fn exchange_messages(running: &RunningCollective, message: usize, stride: usize) -> Result<()> {
    let call = running.call;
    let operand = running.region_address(&call.operand, running.bytes)?;
    let result = running.region_address(&call.result, message * running.n)?;
    let zones = begin_message(running, message)?;
    for p in running.peer_numbers() {
        send_message(running, &zones, p, operand.wrapping_add(p * stride));
    }
    running.wake_peers();

    // The result is written only after every peer has arrived.
    for p in running.peer_numbers() {
        await_line(running, &zones, p, 0)?;
    }
    for p in running.peer_numbers() {
        receive_message(running, &zones, p, result.wrapping_add(p * message), 0, message)?;
        running.delay_peer_access();
    }
    zones.prefetch_next_zones(running);
    let own_message = operand.wrapping_add(running.me * stride);
    // SAFETY: operand and result hold as many bytes; they belong to this rank.
    unsafe { copy_bytes(result.wrapping_add(running.me * message), own_message, message, StoreMode::Cached) };
    Ok(())
}

fn send_message(running: &RunningCollective, zones: &LandingZones, p: usize, from: *const u8) {
    running.delay_peer_access();
    // Effects of this rank before it arrived happen before a peer sees a line.
    fence(Ordering::Release);
    // SAFETY: the zone lies within the peer's arena and holds lines only; the operand holds the message.
    unsafe { ll::store_lines(zones.slot(p, running.me), from, zones.message, zones.epoch) };
}

/// Copies the bytes from `from` to `to` of the message of `p` to `out`, as they arrive. A line begins at
/// `from`.
fn receive_message(
    running: &RunningCollective,
    zones: &LandingZones,
    p: usize,
    out: *mut u8,
    from: usize,
    to: usize,
) -> Result<()> {
    let first = from / ll::DATA;
    let slot = zones.slot(running.me, p).wrapping_add(first * ll::LINE);
    let bytes = to - from;
    let mut done = 0;
    // The last line is polled first: polling each line as it arrives slows the sender down.
    await_line(running, zones, p, ll::line_count(to) - 1)?;
    loop {
        // SAFETY: the slot lies within this rank's zone and holds lines only; `out` has room for the bytes.
        done = unsafe { ll::load_lines(out, slot, bytes, zones.epoch, done) };
        if done == ll::line_count(bytes) {
            fence(Ordering::Acquire);
            return Ok(());
        }
        await_line(running, zones, p, first + done)?;
    }
}

fn await_line(running: &RunningCollective, zones: &LandingZones, p: usize, i: usize) -> Result<()> {
    let slot = zones.slot(running.me, p);
    // SAFETY: the slot lies within this rank's zone, holds lines only and has a line `i`.
    let has_arrived = || unsafe { ll::has_line_arrived(slot, i, zones.epoch) };
    running
        .comm
        .waiter()
        .wait_until(has_arrived)
        .map_err(|ended| running.wait_error(ended, |q| q != p || has_arrived()))
}
