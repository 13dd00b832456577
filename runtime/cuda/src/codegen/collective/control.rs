//! The memory words through which kernels, peers and the host synchronize.
//!
//! - *Flags*, at the end of every rank's arena: `[group][block][number]` of 8 bytes, set by peers. *Number*
//!   is the index of a rank in its cell.
//! - After the flags, for all-to-alls with sizes on the device and exchanges of rows: the *sizes*, `[group][block][number][number]`
//!   of 8 bytes, each row written by the rank with that number, and one *staging* area for all groups.
//! - *Private words* of a rank: one shared record of 64 bytes, then `[group][block]` records of 16 bytes.
//! - *Status words* in pinned memory: the host's abort request, and the report of a wait that ended early.
//!
//! `kernels/waits.cu` declares the same layouts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use symmc_ir::collective::{AllToAllSplits, CollectiveKind as Kind, CollectiveVariant};
use symmc_ir::machine::model::MAX_GPU_CELL_RANKS;
use symmc_runtime::exec::{ExecutableStep, StepWork};

use crate::device::driver::PinnedBuffer;

/// The largest number of blocks of a kernel that synchronizes with peers.
pub const MAX_BLOCKS: usize = 128;
/// The largest number of ranks in a cell.
pub const MAX_RANKS: usize = 8;
const _: () = assert!(MAX_RANKS == MAX_GPU_CELL_RANKS as usize, "plans leave larger cells to the library");
pub const STATUS_BYTES: usize = 128;
/// The bytes that a block sends to one peer at a time, if rows go through staging.
pub const STAGING_BYTES: usize = 16 << 10;

/// The alignment of the control region.
pub(super) const PAGE_BYTES: usize = 4096;
/// The size of the flags of one group.
const GROUP_FLAGS_BYTES: usize = MAX_BLOCKS * MAX_RANKS * 8;
/// The size of the sizes of one group.
const GROUP_SIZES_BYTES: usize = MAX_BLOCKS * MAX_RANKS * MAX_RANKS * 8;
/// The size of the shared record before the private words of the groups.
const SHARED_RECORD_BYTES: usize = 64;
/// The size of the private words of one group.
const GROUP_WORDS_BYTES: usize = MAX_BLOCKS * 16;

/// The contents of the control region after the arena of each rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControlRegion {
    pub groups: usize,
    /// The largest number of ranks of a cell that runs an all-to-all with sizes on the device, or an exchange
    /// of rows through staging; 0 if there is none.
    pub max_exchange_ranks: usize,
    /// The bytes that a block stages per peer at a time, a multiple of 16. Plans always use
    /// [`STAGING_BYTES`].
    pub staging_bytes: usize,
}

impl ControlRegion {
    pub fn bytes(&self) -> usize {
        let staging = 2 * self.max_exchange_ranks * MAX_BLOCKS * self.staging_bytes;
        (self.staging_at() + staging).next_multiple_of(PAGE_BYTES)
    }

    /// The offset of the sizes of a group: `[number][number]` per block.
    pub(super) fn sizes_at(&self, group: usize) -> usize {
        self.groups * GROUP_FLAGS_BYTES + group * GROUP_SIZES_BYTES
    }

    /// The offset of the staging area: `[round][number][block]` parts of
    /// [`staging_bytes`](Self::staging_bytes) bytes.
    pub(super) fn staging_at(&self) -> usize {
        if self.max_exchange_ranks == 0 {
            self.groups * GROUP_FLAGS_BYTES
        } else {
            self.sizes_at(self.groups)
        }
    }
}

/// The control region that these steps need. The number of groups is one more than the highest that they
/// communicate on.
pub fn control_of<'b>(steps: impl IntoIterator<Item = &'b ExecutableStep>) -> ControlRegion {
    let mut out = ControlRegion { groups: 0, max_exchange_ranks: 0, staging_bytes: STAGING_BYTES };
    for work in steps.into_iter().flat_map(|step| step.work.node_work()) {
        let StepWork::Collective(call) = work else { continue };
        out.groups = out.groups.max(call.group + 1);
        let uses_staging = match &call.kind {
            Kind::AllToAll(AllToAllSplits::Device) => true,
            kind if kind.exchanges_rows() => call.variant == CollectiveVariant::Plain,
            _ => false,
        };
        if uses_staging {
            out.max_exchange_ranks = out.max_exchange_ranks.max(call.cell.len());
        }
    }
    out
}

/// A private word that is never read.
pub(super) const UNREAD_WORD_OFFSET: usize = SHARED_RECORD_BYTES - 8;

/// The size of the private words of each rank, for plans with this many groups.
pub fn local_bytes(groups: usize) -> usize {
    SHARED_RECORD_BYTES + groups * GROUP_WORDS_BYTES
}

/// The offset of the flags of a group in the control region.
pub(super) fn flags_at(group: usize) -> usize {
    group * GROUP_FLAGS_BYTES
}

/// The offset of the words of a group in the private words.
pub(super) fn words_at(group: usize) -> usize {
    SHARED_RECORD_BYTES + group * GROUP_WORDS_BYTES
}

/// In reports, the program number is stored above this many bits of the step.
const STEP_BITS: u32 = 24;

/// The identifier of a step of a program in reports.
pub(super) fn tagged_step(program: u8, step: usize) -> u32 {
    u32::from(program) << STEP_BITS | step as u32 & ((1 << STEP_BITS) - 1)
}

/// The program and the step of an identifier in a report.
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
    /// The program number in its session, modulo 256.
    pub program: u8,
    pub step: usize,
    /// The rank that did not arrive. Others may be missing too.
    pub peer: u32,
    pub group: usize,
    pub block: u32,
    /// The value that was awaited: the number of a barrier, or the epoch flag of LL.
    pub awaited: u64,
}

/// Sizes on the device that exceed the rows of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidSplits {
    /// The program number in its session, modulo 256.
    pub program: u8,
    pub step: usize,
    /// The rank whose sizes are invalid.
    pub rank: u32,
    /// Whether the rank sends or receives these rows.
    pub direction: SplitDirection,
    /// The rows to or from each number of the cell; entries beyond its ranks are meaningless.
    pub sizes: [i64; MAX_RANKS],
}

/// An entry of a table of rows that is out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidRowEntry {
    /// The program number in its session, modulo 256.
    pub program: u8,
    pub step: usize,
    /// The slot of a row of a dispatch, or the row of a slot of a combination.
    pub entry: i64,
    /// The position in the table.
    pub position: u64,
}

/// The direction of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitDirection {
    /// Sent by the rank.
    Sent,
    /// Received by the rank.
    Received,
}

/// Values of `code` in the status words.
const CODE_MISSED: u32 = 1;
const CODE_SENT: u32 = 2;
const CODE_RECEIVED: u32 = 3;
const CODE_ENTRY: u32 = 4;

fn status_words(status: &PinnedBuffer) -> Option<&Status> {
    let pointer = status.as_ptr().cast::<Status>();
    // SAFETY: the memory is large enough, was zeroed when it was allocated, and lives as long as the
    // reference. The words are atomic, and the device writes whole words.
    (status.len() >= size_of::<Status>() && pointer.is_aligned()).then(|| unsafe { &*pointer })
}

/// Ends the waits of this rank's kernels. `status` begins with [`STATUS_BYTES`] bytes of status words.
pub fn abort_waits(status: &PinnedBuffer) {
    if let Some(words) = status_words(status) {
        words.abort.store(1, Ordering::Release);
    }
}

/// The first wait of this rank that reached its limit.
pub fn read_missed_peer(status: &PinnedBuffer) -> Option<MissedPeer> {
    status_words(status).and_then(read)
}

/// The first invalid sizes on the device that this rank saw.
pub fn read_invalid_splits(status: &PinnedBuffer) -> Option<InvalidSplits> {
    status_words(status).and_then(read_unfit)
}

/// The first entry of a table of rows that is out of range and that this rank saw.
pub fn read_invalid_row_entry(status: &PinnedBuffer) -> Option<InvalidRowEntry> {
    status_words(status).and_then(read_entry)
}

fn read_entry(words: &Status) -> Option<InvalidRowEntry> {
    let is_entry = words.code.load(Ordering::Acquire) == CODE_ENTRY;
    let (program, step) = untagged_step(words.step.load(Ordering::Relaxed));
    is_entry.then(|| InvalidRowEntry {
        program,
        step,
        entry: words.awaited.load(Ordering::Relaxed).cast_signed(),
        position: words.sizes[0].load(Ordering::Relaxed),
    })
}

fn read_unfit(words: &Status) -> Option<InvalidSplits> {
    let direction = match words.code.load(Ordering::Acquire) {
        CODE_SENT => SplitDirection::Sent,
        CODE_RECEIVED => SplitDirection::Received,
        _ => return None,
    };
    let (program, step) = untagged_step(words.step.load(Ordering::Relaxed));
    Some(InvalidSplits {
        program,
        step,
        rank: words.peer.load(Ordering::Relaxed),
        direction,
        sizes: std::array::from_fn(|i| words.sizes[i].load(Ordering::Relaxed).cast_signed()),
    })
}

fn read(words: &Status) -> Option<MissedPeer> {
    let is_missed = words.code.load(Ordering::Acquire) == CODE_MISSED;
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
pub(super) fn row_entry_at(status: usize) -> Option<InvalidRowEntry> {
    // SAFETY: tests pass the address of live status words.
    read_entry(unsafe { &*std::ptr::with_exposed_provenance::<Status>(status) })
}

#[cfg(test)]
pub(super) fn missed_at(status: usize) -> Option<MissedPeer> {
    // SAFETY: tests pass the address of live status words.
    read(unsafe { &*std::ptr::with_exposed_provenance::<Status>(status) })
}
