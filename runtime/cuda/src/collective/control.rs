//! The words of memory through which kernels, peers and the host tell each other how far they are.
//!
//! - *Flags*, at the end of every rank's arena: `[group][block][number]` of 8 bytes, set by peers.
//! - *Private words* of a rank: one shared record of 64 bytes, then `[group][block]` records of 16 bytes.
//! - *Status words* in pinned memory: the host's order to end, and the report of a wait that ended early.
//!
//! `kernels/waits.cu` declares the same layouts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::driver::Pinned;

/// The most blocks of a kernel that meets peers.
pub const MAX_BLOCKS: usize = 128;
/// The most ranks of a cell.
pub const MAX_RANKS: usize = 8;
/// The bytes of the status words.
pub const STATUS_BYTES: usize = 64;

/// The control region begins at a multiple of this.
pub(super) const PAGE: usize = 4096;
/// Flags of one group.
const FLAGS: usize = MAX_BLOCKS * MAX_RANKS * 8;
/// What stands before the private words of the groups.
const SHARED: usize = 64;
/// Private words of one group.
const WORDS: usize = MAX_BLOCKS * 16;

/// The bytes of the control region behind the arena of each rank, for plans with this many groups.
pub fn control_bytes(groups: usize) -> usize {
    (groups * FLAGS).next_multiple_of(PAGE)
}

/// The bytes of private words of each rank, for plans with this many groups.
pub fn local_bytes(groups: usize) -> usize {
    SHARED + groups * WORDS
}

/// Where the flags of a group begin in the control region.
pub(super) fn flags_at(group: usize) -> usize {
    group * FLAGS
}

/// Where the words of a group begin in the private words.
pub(super) fn words_at(group: usize) -> usize {
    SHARED + group * WORDS
}

/// The status words, as `kernels/waits.cu` declares them.
#[repr(C)]
struct Status {
    abort: AtomicU32,
    code: AtomicU32,
    step: AtomicU32,
    peer: AtomicU32,
    epoch: AtomicU64,
    group: AtomicU32,
    block: AtomicU32,
}

/// A wait that reached its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missed {
    /// The step that waited.
    pub step: usize,
    /// The rank that did not come. Others may be missing too.
    pub peer: u32,
    /// The group of the step.
    pub group: usize,
    /// The block that waited.
    pub block: u32,
    /// What it waited for: the number of a barrier, or the flag of packets.
    pub epoch: u64,
}

fn words(status: &Pinned) -> Option<&Status> {
    let at = status.as_ptr().cast::<Status>();
    // SAFETY: the memory is as large, zeroed when it was made, and lives as long as the reference; the words
    // are atomic, and the device writes whole words.
    (status.len() >= size_of::<Status>() && at.is_aligned()).then(|| unsafe { &*at })
}

/// Tells this rank's kernels to wait no more. `status` begins with [`STATUS_BYTES`] bytes of status words.
pub fn end(status: &Pinned) {
    if let Some(words) = words(status) {
        words.abort.store(1, Ordering::Release);
    }
}

/// The first wait of this rank that reached its limit.
pub fn missed(status: &Pinned) -> Option<Missed> {
    words(status).and_then(read)
}

fn read(words: &Status) -> Option<Missed> {
    (words.code.load(Ordering::Acquire) != 0).then(|| Missed {
        step: words.step.load(Ordering::Relaxed) as usize,
        peer: words.peer.load(Ordering::Relaxed),
        group: words.group.load(Ordering::Relaxed) as usize,
        block: words.block.load(Ordering::Relaxed),
        epoch: words.epoch.load(Ordering::Relaxed),
    })
}

#[cfg(test)]
pub(super) fn missed_at(status: usize) -> Option<Missed> {
    // SAFETY: tests pass the address of live status words.
    read(unsafe { &*std::ptr::with_exposed_provenance::<Status>(status) })
}
