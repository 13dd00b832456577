//! The control segment: the words through which the ranks of a run signal each other.
//!
//! The segment holds, each on separate cache lines:
//! - the coordinator's heartbeat ([`crate::heartbeat`]);
//! - the abort word, with the error that ended the run;
//! - per rank: a doorbell (a futex), the number of its sleepers, its progress, its heartbeat, the number of
//!   runs after which it closed its session, and its latest announcements of runs;
//! - per group and rank three counters that this rank advances and its peers wait for: `meet` (barriers
//!   passed), `filled` and `drained` (chunks of the plain variant written and read);
//! - per group and rank two signals of puts into that rank, `free` and `landed`.
//!
//! Counters wrap around and are compared by their signed distance. A waiting rank sleeps on its own doorbell,
//! whatever it waits for. A rank that advances a counter rings the doorbells of the peers that have sleepers.
//! The protocol of waiting is in [`crate::wait`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::error::{Result, RunError};
use crate::memory::MemorySegment;

/// Two cache lines: processors fetch them in pairs.
const LINE: usize = 128;
const ABORT: usize = LINE;
const ABORT_TEXT: usize = 2 * LINE;
const RANKS: usize = 4096;
const ABORT_TEXT_LEN: usize = RANKS - ABORT_TEXT;
/// The number of milliseconds that the reason of an abort may take to be written.
const WRITING_LOOKS: u32 = 200;
/// The reason of a run that was ended by a process that did not store its error completely.
const UNKNOWN_CAUSE: &str = "the run ended, and the cause is unknown";
const RANK_SIZE: usize = 2 * LINE + ANNOUNCED as usize * 8;
const FLAGS_SIZE: usize = 5 * LINE;
/// The number of runs whose announcements are kept for each rank.
pub const ANNOUNCED: u64 = 64;
/// Offsets after a rank's progress: whether it is within a run, its heartbeat, and the number of runs before
/// it closed its session, plus one.
const RUNNING: usize = 24;
const HEARTBEAT: usize = 64;
const CLOSED: usize = 72;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupCounter {
    /// Barriers that the rank has arrived at.
    Meet = 0,
    /// Chunks that the rank has written to its staging.
    Filled = 1,
    /// Chunks of its peers that the rank has read.
    Drained = 2,
}

/// A signal between the sender and the receiver of a put. Its word holds the largest number of a put for
/// which it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutSignal {
    /// The receiver's result may be written. The receiver gives this signal.
    Free = 3,
    /// The result has been written. The sender gives this signal.
    Landed = 4,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankProgress {
    /// The repetition of the plan, from 0.
    pub run: u64,
    pub bucket: u32,
    pub running: bool,
    /// The step that began last; `None` outside of a run.
    pub step: Option<u32>,
    /// A number that changes when the rank begins a step.
    pub beats: u64,
}

/// The control segment of a run, as mapped by one process.
#[derive(Clone, Debug)]
pub struct ControlSegment {
    segment: Arc<MemorySegment>,
    ranks: u32,
    groups: usize,
}

impl ControlSegment {
    /// The bytes of a control segment; a size that no segment has if the number does not fit.
    pub fn segment_bytes(ranks: u32, groups: usize) -> usize {
        let ranks = ranks as usize;
        let flags = groups.saturating_mul(ranks).saturating_mul(FLAGS_SIZE);
        (RANKS + ranks * RANK_SIZE).saturating_add(flags)
    }

    pub fn new(segment: Arc<MemorySegment>, ranks: u32, groups: usize) -> Result<ControlSegment> {
        let size = ControlSegment::segment_bytes(ranks, groups);
        if segment.len() < size {
            let len = segment.len();
            return Err(RunError::Invalid(format!("control segment: expected {size} bytes, found {len}")));
        }
        Ok(ControlSegment { segment, ranks, groups })
    }

    pub fn preset_counters(&self, first: u32) {
        for group in 0..self.groups {
            for rank in 0..self.ranks {
                for counter in [GroupCounter::Meet, GroupCounter::Filled, GroupCounter::Drained] {
                    self.counter(group, rank, counter).store(first, Ordering::Release);
                }
            }
        }
    }

    pub(crate) fn segment(&self) -> &MemorySegment {
        &self.segment
    }

    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The counter of a rank in a group. Both must exist.
    #[inline]
    pub fn counter(&self, group: usize, rank: u32, counter: GroupCounter) -> &AtomicU32 {
        self.word_at(self.flags_offset(group, rank) + counter as usize * LINE)
    }

    /// A signal of the puts into a rank in a group. Both must exist.
    #[inline]
    pub fn signal(&self, group: usize, receiver: u32, signal: PutSignal) -> &AtomicU64 {
        self.long_word_at(self.flags_offset(group, receiver) + signal as usize * LINE)
    }

    /// The doorbell of a rank: a futex word that changes when it rings.
    #[inline]
    pub fn doorbell(&self, rank: u32) -> &AtomicU32 {
        self.word_at(self.rank_offset(rank))
    }

    /// The number of threads of a rank that sleep or are about to.
    #[inline]
    pub fn sleepers(&self, rank: u32) -> &AtomicU32 {
        self.word_at(self.rank_offset(rank) + 4)
    }

    /// Wakes the sleeping ranks of `peers`. The caller must store the value that they wait for before this
    /// call.
    #[inline]
    pub fn wake_ranks(&self, peers: impl Iterator<Item = u32>) {
        // Orders the earlier stores before the loads below. The matching fence is in the sleeper, which
        // counts itself and then checks its condition again.
        fence(Ordering::SeqCst);
        for peer in peers {
            if self.sleepers(peer).load(Ordering::Relaxed) != 0 {
                self.wake_rank(peer);
            }
        }
    }

    #[cold]
    fn wake_rank(&self, rank: u32) {
        let bell = self.doorbell(rank);
        bell.fetch_add(1, Ordering::SeqCst);
        futex_wake_all(bell);
    }

    /// The word in which `rank` announces a run: the run's number plus one in the upper half, then a digest
    /// of its sizes.
    pub fn announcement_word(&self, rank: u32, run: u64) -> &AtomicU64 {
        self.long_word_at(self.rank_offset(rank) + 2 * LINE + (run % ANNOUNCED) as usize * 8)
    }

    #[inline]
    pub fn begin_step(&self, rank: u32, step: u32) {
        let offset = self.rank_offset(rank) + LINE;
        self.word_at(offset).store(step.wrapping_add(1), Ordering::Relaxed);
        let beats = self.long_word_at(offset + 16);
        beats.store(beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Records that `rank` is outside of any step.
    pub fn end_step(&self, rank: u32) {
        self.word_at(self.rank_offset(rank) + LINE).store(0, Ordering::Relaxed);
    }

    pub(crate) fn heartbeat(&self, rank: u32) -> &AtomicU32 {
        self.word_at(self.rank_offset(rank) + LINE + HEARTBEAT)
    }

    /// Increments the heartbeat of a rank; one thread of the rank does this.
    pub(crate) fn publish_heartbeat(&self, rank: u32) {
        increment_word(self.heartbeat(rank));
    }

    pub(crate) fn publish_coordinator_heartbeat(&self) {
        increment_word(self.coordinator_heartbeat());
    }

    pub(crate) fn coordinator_heartbeat(&self) -> &AtomicU32 {
        self.word_at(0)
    }

    pub fn set_closed(&self, rank: u32, runs: u64) {
        self.long_word_at(self.rank_offset(rank) + LINE + CLOSED)
            .store(runs.wrapping_add(1), Ordering::Release);
    }

    /// The number of runs after which `rank` closed its session, if it has closed it.
    pub fn runs_before_close(&self, rank: u32) -> Option<u64> {
        self.long_word_at(self.rank_offset(rank) + LINE + CLOSED).load(Ordering::Acquire).checked_sub(1)
    }

    /// Records that `rank` makes progress, wherever it is.
    pub fn record_progress(&self, rank: u32) {
        self.long_word_at(self.rank_offset(rank) + LINE + 16).fetch_add(1, Ordering::Relaxed);
    }

    /// Records that `rank` begins a run; with `None`, that its last run has ended.
    pub fn begin_run(&self, rank: u32, run: Option<(u64, u32)>) {
        let offset = self.rank_offset(rank) + LINE;
        self.word_at(offset).store(0, Ordering::Relaxed);
        if let Some((run, bucket)) = run {
            self.long_word_at(offset + 8).store(run, Ordering::Relaxed);
            self.word_at(offset + 4).store(bucket, Ordering::Relaxed);
        }
        self.word_at(offset + RUNNING).store(u32::from(run.is_some()), Ordering::Relaxed);
        self.long_word_at(offset + 16).fetch_add(1, Ordering::Relaxed);
    }

    pub fn progress(&self, rank: u32) -> RankProgress {
        let offset = self.rank_offset(rank) + LINE;
        RankProgress {
            run: self.long_word_at(offset + 8).load(Ordering::Relaxed),
            bucket: self.word_at(offset + 4).load(Ordering::Relaxed),
            running: self.word_at(offset + RUNNING).load(Ordering::Relaxed) != 0,
            step: self.word_at(offset).load(Ordering::Relaxed).checked_sub(1),
            beats: self.long_word_at(offset + 16).load(Ordering::Relaxed),
        }
    }

    /// Ends the run for all ranks, for a reason that `rank` reports. Later calls keep the first reason.
    pub fn abort(&self, rank: u32, reason: &RunError) {
        let state = self.word_at(ABORT);
        let text = encode_error(rank, reason);
        if state.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let len = text.len().min(ABORT_TEXT_LEN);
            // SAFETY: the text lies within the segment, and only the caller that moved the state from 0 to 1
            // writes it; readers read it after they have seen state 2.
            unsafe {
                let text_address = self.segment.as_ptr().add(ABORT_TEXT);
                std::ptr::copy_nonoverlapping(text.as_ptr(), text_address, len);
            }
            self.word_at(ABORT + 4).store(rank, Ordering::Relaxed);
            self.word_at(ABORT + 8).store(len as u32, Ordering::Relaxed);
            state.store(2, Ordering::SeqCst);
        }
        (0..self.ranks).for_each(|r| self.wake_rank(r));
    }

    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.word_at(ABORT).load(Ordering::Acquire) != 0
    }

    /// Why the run ended, as a [`RunError::Reported`].
    pub fn abort_reason(&self) -> Option<RunError> {
        let state = self.word_at(ABORT);
        let mut looks = 0;
        // The process that writes the reason may be descheduled or die before it is complete.
        while state.load(Ordering::Acquire) == 1 && looks < WRITING_LOOKS {
            std::thread::sleep(Duration::from_millis(1));
            looks += 1;
        }
        match state.load(Ordering::Acquire) {
            0 => None,
            1 => Some(RunError::Aborted { rank: 0, reason: UNKNOWN_CAUSE.into() }),
            _ => {
                let reporter = self.word_at(ABORT + 4).load(Ordering::Relaxed);
                let len = self.word_at(ABORT + 8).load(Ordering::Relaxed) as usize;
                let mut text = vec![0; len.min(ABORT_TEXT_LEN)];
                // SAFETY: the text lies within the segment and does not change after state 2.
                unsafe {
                    let from = self.segment.as_ptr().add(ABORT_TEXT);
                    std::ptr::copy_nonoverlapping(from, text.as_mut_ptr(), text.len());
                }
                let cause = serde_json::from_slice(&text)
                    .unwrap_or_else(|_| RunError::Aborted { rank: reporter, reason: UNKNOWN_CAUSE.into() });
                Some(match cause {
                    RunError::Reported { .. } => cause,
                    cause => RunError::Reported { reporter, cause: Box::new(cause) },
                })
            }
        }
    }

    /// The reason for which a run ended that is known to have ended.
    pub fn end_reason(&self) -> RunError {
        self.abort_reason().unwrap_or_else(|| RunError::Aborted { rank: 0, reason: UNKNOWN_CAUSE.into() })
    }

    #[inline]
    fn flags_offset(&self, group: usize, rank: u32) -> usize {
        debug_assert!(group < self.groups && rank < self.ranks);
        let ranks = self.ranks as usize;
        RANKS + ranks * RANK_SIZE + (group * ranks + rank as usize) * FLAGS_SIZE
    }

    fn rank_offset(&self, rank: u32) -> usize {
        debug_assert!(rank < self.ranks);
        RANKS + rank as usize * RANK_SIZE
    }

    #[inline]
    fn word_at(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.segment.len() && offset.is_multiple_of(4));
        // SAFETY: the offset lies within the segment and is aligned, and these words are only ever accessed
        // as atomics.
        unsafe { AtomicU32::from_ptr(self.segment.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn long_word_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.segment.len() && offset.is_multiple_of(8));
        // SAFETY: as in `word_at`.
        unsafe { AtomicU64::from_ptr(self.segment.as_ptr().add(offset).cast()) }
    }
}

/// Increments a word that one thread writes. 0 means that no thread increments it.
fn increment_word(word: &AtomicU32) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(1).max(1), Ordering::Relaxed);
}

/// An error as stored in the segment. Texts of an error that is too long are shortened.
fn encode_error(rank: u32, reason: &RunError) -> Vec<u8> {
    serde_json::to_vec(&reason.with_bounded_size(rank, ABORT_TEXT_LEN)).unwrap_or_default()
}

/// Whether a counter has reached `target`, also after both wrapped around.
#[inline]
pub fn has_reached(counter: u32, target: u32) -> bool {
    counter.wrapping_sub(target) as i32 >= 0
}

/// Sleeps on a word of shared memory while `word` is `value`, for at most `time`. May return at any time.
pub fn futex_wait(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word outlives the call and `time` is a valid timespec; the word may be shared between
    // processes, so the operation is not the private one.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &time) };
}

fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> ControlSegment {
        let segment = MemorySegment::create("test", ControlSegment::segment_bytes(3, 2)).unwrap();
        ControlSegment::new(Arc::new(segment), 3, 2).unwrap()
    }

    #[test]
    fn counters_compare_across_the_wrap() {
        assert!(has_reached(5, 5) && has_reached(6, 5) && !has_reached(4, 5));
        assert!(has_reached(1, u32::MAX) && !has_reached(u32::MAX, 1));
    }

    #[test]
    fn words_do_not_overlap() {
        let c = control();
        let mut value = 1;
        for group in 0..2 {
            for rank in 0..3 {
                for counter in [GroupCounter::Meet, GroupCounter::Filled, GroupCounter::Drained] {
                    assert_eq!(c.counter(group, rank, counter).swap(value, Ordering::Relaxed), 0);
                    value += 1;
                }
                for signal in [PutSignal::Free, PutSignal::Landed] {
                    let word = c.signal(group, rank, signal);
                    assert_eq!(word.swap(u64::from(value) << 32 | 1, Ordering::Relaxed), 0);
                    value += 1;
                }
            }
        }
        for rank in 0..3 {
            assert_eq!(c.doorbell(rank).load(Ordering::Relaxed), 0);
            assert_eq!(c.progress(rank).step, None);
            c.begin_run(rank, Some((9, 1)));
            c.begin_step(rank, 4);
            let p = c.progress(rank);
            assert_eq!((p.run, p.bucket, p.step, p.beats), (9, 1, Some(4), 2));
            assert_eq!((c.runs_before_close(rank), c.heartbeat(rank).load(Ordering::Relaxed)), (None, 0));
            c.set_closed(rank, 0);
            c.publish_heartbeat(rank);
            assert_eq!((c.runs_before_close(rank), c.progress(rank)), (Some(0), p));
        }
        assert!(!c.is_aborted());
    }

    #[test]
    fn the_first_abort_stays_with_all_that_is_known_of_it() {
        let c = control();
        let step =
            |rank| RunError::Step { rank, step: 4, node: "y".into(), op: "add".into(), detail: "no".into() };
        c.abort(1, &step(1));
        c.abort(2, &step(2));
        let reason = c.abort_reason().expect("it has ended");
        assert_eq!((reason.culprit(), reason.reporter(), reason.step()), (Some(1), Some(1), Some(4)));
        assert_eq!((reason.cause(), reason.to_string()), (&step(1), step(1).to_string()));
        assert!(reason.is_consequence());
    }

    #[test]
    fn long_reasons_keep_their_kind() {
        let long = "\u{1}\u{10ffff}".repeat(5000);
        let c = control();
        c.abort(1, &RunError::Invalid(long.clone()));
        let reason = c.abort_reason().expect("it has ended");
        assert_eq!((reason.culprit(), reason.reporter()), (Some(1), Some(1)));
        let RunError::Invalid(text) = reason.cause() else { panic!("{reason:?}") };
        assert!(text.starts_with("\u{1}\u{10ffff}") && text.ends_with('\u{10ffff}'), "{reason}");
        let c = control();
        c.abort(1, &RunError::Step { rank: 2, step: 4, node: long.clone(), op: long.clone(), detail: long });
        let reason = c.abort_reason().expect("it has ended");
        assert_eq!((reason.culprit(), reason.reporter(), reason.step()), (Some(2), Some(1), Some(4)));
        // Numbers cannot be shortened.
        let c = control();
        c.abort(1, &RunError::Absent { ranks: (7..4000).collect(), limit_ms: 5 });
        let reason = c.abort_reason().expect("it has ended");
        assert_eq!(reason.culprit(), Some(7));
        assert!(reason.to_string().starts_with("rank 7 stopped: "), "{reason}");
    }
}
