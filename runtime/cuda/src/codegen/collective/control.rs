//! The words of memory through which kernels, peers and the host tell each other how far they are.
//!
//! - *Flags*, at the end of every rank's arena: `[group][block][number]` of 8 bytes, set by peers.
//! - Behind them, for all-to-alls with sizes on the device: the *sizes*, `[group][block][number][number]` of 8 bytes,
//!   row by row written by the rank of that number, and one *staging* area for all groups.
//! - *Private words* of a rank: one shared record of 64 bytes, then `[group][block]` records of 16 bytes.
//! - *Status words* in pinned memory: the host's order to end, and the report of a wait that ended early.
//!
//! `kernels/waits.cu` declares the same layouts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use symmc_ir::collective::{AllToAllSplits, CollectiveKind as Kind};
use symmc_ir::machine::model::MAX_GPU_CELL_RANKS;
use symmc_runtime::exec::{ExecutableStep, StepWork};

use crate::device::driver::PinnedBuffer;

/// The most blocks of a kernel that meets peers.
pub const MAX_BLOCKS: usize = 128;
/// The most ranks of a cell.
pub const MAX_RANKS: usize = 8;
const _: () = assert!(MAX_RANKS == MAX_GPU_CELL_RANKS as usize, "plans leave larger cells to the library");
pub const STATUS_BYTES: usize = 128;
/// The bytes of a block that are on their way to one peer at a time, where rows go through staging.
pub const STAGING_BYTES: usize = 16 << 10;

/// The control region begins at a multiple of this.
pub(super) const PAGE: usize = 4096;
/// Flags of one group.
const FLAGS: usize = MAX_BLOCKS * MAX_RANKS * 8;
/// Sizes of one group.
const SIZES: usize = MAX_BLOCKS * MAX_RANKS * MAX_RANKS * 8;
/// What stands before the private words of the groups.
const SHARED: usize = 64;
/// Private words of one group.
const WORDS: usize = MAX_BLOCKS * 16;

/// What the control region behind the arena of each rank holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControlRegion {
    pub groups: usize,
    /// The most ranks of a cell that runs an all-to-all with sizes on the device; 0 if none does.
    pub max_exchange_ranks: usize,
    /// The bytes that a block stages for one peer at a time, a multiple of 16: [`STAGING_BYTES`] wherever a plan runs.
    pub staging_bytes: usize,
}

impl ControlRegion {
    pub fn bytes(&self) -> usize {
        let staging = 2 * self.max_exchange_ranks * MAX_BLOCKS * self.staging_bytes;
        (self.staging_at() + staging).next_multiple_of(PAGE)
    }

    /// Where the sizes of a group begin, for each block `[number][number]`.
    pub(super) fn sizes_at(&self, group: usize) -> usize {
        self.groups * FLAGS + group * SIZES
    }

    /// Where the staging area begins: `[round][number][block]` parts of [`staged`](Self::staged) bytes.
    pub(super) fn staging_at(&self) -> usize {
        if self.max_exchange_ranks == 0 { self.groups * FLAGS } else { self.sizes_at(self.groups) }
    }
}

/// What these steps need of the control region: as many groups as one more than the highest that they communicate on.
pub fn control_of<'b>(steps: impl IntoIterator<Item = &'b ExecutableStep>) -> ControlRegion {
    let mut out = ControlRegion { groups: 0, max_exchange_ranks: 0, staging_bytes: STAGING_BYTES };
    for work in steps.into_iter().flat_map(|step| step.work.node_work()) {
        let StepWork::Collective(call) = work else { continue };
        out.groups = out.groups.max(call.group + 1);
        if call.kind == Kind::AllToAll(AllToAllSplits::Device) {
            out.max_exchange_ranks = out.max_exchange_ranks.max(call.cell.len());
        }
    }
    out
}

/// A word among the private ones that nobody reads.
pub(super) const UNREAD: usize = SHARED - 8;

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

/// Where reports have the number of the program above that of the step.
const STEP_BITS: u32 = 24;

/// A step of a program as reports name it.
pub(super) fn tagged_step(program: u8, step: usize) -> u32 {
    u32::from(program) << STEP_BITS | step as u32 & ((1 << STEP_BITS) - 1)
}

/// The program and the step that a report names.
fn untagged_step(tagged: u32) -> (u8, usize) {
    ((tagged >> STEP_BITS) as u8, (tagged & ((1 << STEP_BITS) - 1)) as usize)
}

/// The status words, as `kernels/waits.cu` declares them.
#[repr(C)]
struct Status {
    abort: AtomicU32,
    code: AtomicU32,
    step: AtomicU32,
    peer: AtomicU32,
    awaited: AtomicU64,
    group: AtomicU32,
    block: AtomicU32,
    sizes: [AtomicU64; MAX_RANKS],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissedPeer {
    /// The number of the program in its session, modulo 256.
    pub program: u8,
    pub step: usize,
    /// The rank that did not come. Others may be missing too.
    pub peer: u32,
    pub group: usize,
    pub block: u32,
    /// What it waited for: the number of a barrier, or the flag of an epoch of LL.
    pub awaited: u64,
}

/// Sizes on the device that no rank's rows fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidSplits {
    /// The number of the program in its session, modulo 256.
    pub program: u8,
    pub step: usize,
    /// The rank whose sizes they are.
    pub rank: u32,
    /// Whether it sends or receives so many rows.
    pub direction: SplitDirection,
    /// The rows to or from each number of the cell; what is behind its ranks means nothing.
    pub sizes: [i64; MAX_RANKS],
}

/// Which way rows go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitDirection {
    /// From the rank.
    Sent,
    /// To it.
    Received,
}

/// What `code` of the status words says.
const MISSED: u32 = 1;
const SENT: u32 = 2;
const RECEIVED: u32 = 3;

fn status_words(status: &PinnedBuffer) -> Option<&Status> {
    let at = status.as_ptr().cast::<Status>();
    // SAFETY: the memory is as large, zeroed when it was made, and lives as long as the reference; the words
    // are atomic, and the device writes whole words.
    (status.len() >= size_of::<Status>() && at.is_aligned()).then(|| unsafe { &*at })
}

/// Tells this rank's kernels to wait no more. `status` begins with [`STATUS_BYTES`] bytes of status words.
pub fn abort_waits(status: &PinnedBuffer) {
    if let Some(words) = status_words(status) {
        words.abort.store(1, Ordering::Release);
    }
}

/// The first wait of this rank that reached its limit.
pub fn read_missed_peer(status: &PinnedBuffer) -> Option<MissedPeer> {
    status_words(status).and_then(read)
}

/// The first sizes on the device that do not fit, if this rank saw some.
pub fn read_invalid_splits(status: &PinnedBuffer) -> Option<InvalidSplits> {
    status_words(status).and_then(read_unfit)
}

fn read_unfit(words: &Status) -> Option<InvalidSplits> {
    let way = match words.code.load(Ordering::Acquire) {
        SENT => SplitDirection::Sent,
        RECEIVED => SplitDirection::Received,
        _ => return None,
    };
    let (program, step) = untagged_step(words.step.load(Ordering::Relaxed));
    Some(InvalidSplits {
        program,
        step,
        rank: words.peer.load(Ordering::Relaxed),
        direction: way,
        sizes: std::array::from_fn(|i| words.sizes[i].load(Ordering::Relaxed).cast_signed()),
    })
}

fn read(words: &Status) -> Option<MissedPeer> {
    let is_missed = words.code.load(Ordering::Acquire) == MISSED;
    let (program, step) = untagged_step(words.step.load(Ordering::Relaxed));
    is_missed.then(|| MissedPeer {
        program,
        step,
        peer: words.peer.load(Ordering::Relaxed),
        group: words.group.load(Ordering::Relaxed) as usize,
        block: words.block.load(Ordering::Relaxed),
        awaited: words.awaited.load(Ordering::Relaxed),
    })
}

#[cfg(test)]
pub(super) fn unfit_at(status: usize) -> Option<InvalidSplits> {
    // SAFETY: tests pass the address of live status words.
    read_unfit(unsafe { &*std::ptr::with_exposed_provenance::<Status>(status) })
}

#[cfg(test)]
pub(super) fn missed_at(status: usize) -> Option<MissedPeer> {
    // SAFETY: tests pass the address of live status words.
    read(unsafe { &*std::ptr::with_exposed_provenance::<Status>(status) })
}
