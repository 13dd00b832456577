//! Rounds in which every rank publishes a few words for all others.
//!
//! A rank has two slots in its symmetric arena, which rounds use in turn. A slot has the words of the rank and,
//! stored after them, the number of the round. A rank begins a round only after it has read the words of all ranks
//! in the round before. So a slot that a rank writes again was read by all of its peers.
//!
//! A round can begin a call, in which ranks do other work together. A rank that fails in it leaves a notice after its
//! slots ([`Notices`]), which the others read wherever they wait in this call. Calls use two notices of a rank in turn,
//! since slow ranks may read the notice of a call while the rank fails in the next one.
//!
//! Rounds run on the thread of the caller, which mostly finds its peers within microseconds. A run of a session
//! would move to the thread of the session and back.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use symmc_support::shorten_middle;

use crate::control::RankProgress;
use crate::coordinator::{PlanSubject, RunKind};
use crate::domain::SharedRunMemory;
use crate::error::{Result, RunError, session_ended_error};
use crate::group::Group;
use crate::join::JoinRequest;
use crate::joined_rank::{JoinedRank, LeaveMode, ProgressRecording};
use crate::rendezvous::{RendezvousStep, StepRendezvous};
use crate::steps::{LocateStep, StepName};
use crate::wait::{SleepState, SpinConfig, WaitFailure, YieldMode};

/// Two cache lines: processors fetch them in pairs.
const PADDING_BYTES: usize = 128;
/// How long a rank polls before it sleeps, if each rank has a processor. Waking a sleeping thread takes tens of
/// microseconds, more on a virtual machine, and ranks often come hundreds of microseconds late.
const MAX_SPIN_TIME: Duration = Duration::from_millis(1);

/// The longest text of a notice in bytes, a multiple of a word.
const NOTICE_TEXT: usize = 2048;
/// The words of a notice before its text: the call, the culprit, and the number of bytes.
const NOTICE_HEADER: usize = 3;
const NOTICE_BYTES: usize = NOTICE_HEADER * size_of::<u64>() + NOTICE_TEXT;

/// The names of a round in errors.
const AGREEMENT_OP: &str = "agreement";
const AGREEMENT_NODE: &str = "call";

/// A board on which each rank of a group publishes the same number of words, round by round.
#[derive(Debug)]
pub struct Board {
    /// `None` while the board is dropped.
    rank: Option<JoinedRank>,
    /// The error that ended the board on all ranks.
    failure: Option<RunError>,
    words: usize,
    /// The number of the last round that this rank has begun, from 1; 0 before.
    round: u64,
    /// The wait for the peers, while the round has not ended.
    wait: Option<SleepState>,
    /// The words of all ranks in the last round that has ended.
    found: Vec<u64>,
}

impl Board {
    /// Opens a board of `words` words for each rank; returns when all ranks of the group have opened it. `limit` is
    /// the longest wait for other ranks. Fails if the other ranks do not come or open something else.
    pub fn open(group: &Group, words: usize, limit: Duration) -> Result<Board> {
        let place = group.next_session_membership()?;
        let about = vec![("words of a board".to_string(), words.to_string())];
        let request = JoinRequest {
            subject: PlanSubject { hash: format!("board of {words} words"), about },
            terms: Vec::new(),
            groups: 1,
            arena: notice_offset(words) + 2 * NOTICE_BYTES,
            run_kind: RunKind::Session,
            locate_step: LocateStep::new(name_round),
            limit,
        };
        let close_timeout = if group.is_within_process() { Duration::ZERO } else { limit };
        let rank = JoinedRank::join(&place, &request)?.with_close_timeout(close_timeout);
        let rank = rank.with_spin(spin_config(group.ranks()));
        rank.start().map_err(|error| rank.fail_run(error))?;
        Ok(Board { rank: Some(rank), failure: None, words, round: 0, wait: None, found: Vec::new() })
    }

    /// The number of the last round that this rank has begun, from 1; 0 before the first.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whether an error has ended the board on all ranks, and this rank has got it.
    pub fn has_ended(&self) -> bool {
        self.failure.is_some()
    }

    /// The notices of its ranks, which can be used while a round waits, and after the board has ended.
    pub fn notices(&self) -> Result<Notices> {
        let comm = self.rank.as_ref().ok_or_else(session_ended_error)?.comm();
        Ok(Notices { domain: comm.domain.clone(), rank: comm.rank(), offset: notice_offset(self.words) })
    }

    /// Publishes the words of this rank in the round of this number, and waits for those of all ranks for at most
    /// `part`. Returns them in the order of the ranks, or `None` if a rank has not published its words yet. The same
    /// call continues a round that has begun, and returns the words of the last round again.
    ///
    /// Fails if the number is not that of the last round or the next one, if the last round has not ended, or if a
    /// rank failed, left, or did not come within the timeout. Each failure of a rank ends the board on all ranks.
    pub fn exchange(&mut self, round: u64, words: &[u64], part: Duration) -> Result<Option<&[u64]>> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let rank = self.rank.as_ref().ok_or_else(session_ended_error)?;
        if round != self.round {
            self.expect_next(round, words)?;
            if let Err(error) = publish(rank, round, words) {
                return Err(self.failure.insert(rank.fail_run(error)).clone());
            }
            (self.round, self.wait) = (round, Some(SleepState::default()));
        }
        let Some(wait) = &mut self.wait else { return Ok(Some(&self.found)) };
        match await_peers(rank, round, self.words, wait, part) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(ended) => {
                let error = rank.fail_run(wait_error(rank, round, self.words, ended));
                return Err(self.failure.insert(error).clone());
            }
        }
        self.wait = None;
        self.found.clear();
        for peer in 0..rank.comm().ranks() {
            let slot = slot_words(rank, peer, round, self.words);
            self.found.extend(slot[1..].iter().map(|word| word.load(Ordering::Relaxed)));
        }
        rank.comm().end_run();
        Ok(Some(&self.found))
    }

    fn expect_next(&self, round: u64, words: &[u64]) -> Result<()> {
        if words.len() != self.words {
            let found = words.len();
            return Err(RunError::Invalid(format!(
                "expected {} words of a board, found {found}",
                self.words
            )));
        }
        let last = self.round;
        if round != last + 1 || self.wait.is_some() {
            let state = if self.wait.is_some() { "has not ended" } else { "has ended" };
            return Err(RunError::Defect(format!(
                "round {round} of a board after round {last}, which {state}"
            )));
        }
        Ok(())
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let Some(rank) = self.rank.take() else { return };
        if self.failure.is_none() && (self.wait.is_some() || std::thread::panicking()) {
            let how = "closed its board during a round".to_string();
            let left = RunError::Left { rank: rank.comm().rank(), how };
            drop(rank.fail_run(left));
        }
        rank.leave_session(ProgressRecording::All, self.round, LeaveMode::Dropped);
    }
}

/// How ranks wait for each other.
fn spin_config(ranks: u32) -> SpinConfig {
    let config = SpinConfig::for_threads(ranks as usize);
    match config.yields {
        YieldMode::Always => config,
        YieldMode::Never => SpinConfig { max_ns: MAX_SPIN_TIME.as_nanos() as u32, ..config },
    }
}

/// The failure of a rank in a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The rank at fault: the one that left the notice, or another one.
    pub culprit: u32,
    pub text: String,
}

/// The notices of the ranks of a board. Calls have numbers from 1, which ascend: those of the rounds that began them, or
/// others on which the ranks agree.
#[derive(Clone, Debug)]
pub struct Notices {
    domain: SharedRunMemory,
    rank: u32,
    /// The offset of the notices of a rank in its arena.
    offset: usize,
}

impl Notices {
    /// Notifies the other ranks in the call of this number that this rank has failed in it. A rank does so once in a
    /// call.
    pub fn leave(&self, call: u64, notice: &Notice) {
        let text = shorten_middle(&notice.text, NOTICE_TEXT);
        let own = self.words_of(self.rank, call % 2);
        // A rank that reads the earlier notice meanwhile finds that its number has changed.
        own[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, bytes) in own[NOTICE_HEADER..].iter().zip(text.as_bytes().chunks(size_of::<u64>())) {
            let mut word = [0; size_of::<u64>()];
            word[..bytes.len()].copy_from_slice(bytes);
            to.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        own[1].store(u64::from(notice.culprit), Ordering::Relaxed);
        own[2].store(text.len() as u64, Ordering::Relaxed);
        own[0].store(call, Ordering::Release);
    }

    /// The notice of another rank in one of these calls. That of the rank at fault says most.
    pub fn find(&self, calls: RangeInclusive<u64>) -> Option<Notice> {
        let others = (0..self.domain.arenas.len() as u32).filter(|rank| *rank != self.rank);
        let mut notices = others.filter_map(|rank| Some((rank, self.notice_of(rank, &calls)?)));
        let first = notices.next()?;
        let of_culprit = |(rank, notice): &(u32, Notice)| *rank == notice.culprit;
        if of_culprit(&first) {
            return Some(first.1);
        }
        Some(notices.find(of_culprit).unwrap_or(first).1)
    }

    fn notice_of(&self, rank: u32, calls: &RangeInclusive<u64>) -> Option<Notice> {
        let mut numbered = [0, 1].map(|slot| (self.words_of(rank, slot)[0].load(Ordering::Acquire), slot));
        // The first failure explains the later ones.
        numbered.sort_unstable();
        numbered
            .into_iter()
            .filter(|(call, _)| calls.contains(call))
            .find_map(|(call, slot)| read_notice(self.words_of(rank, slot), call))
    }

    fn words_of(&self, rank: u32, slot: u64) -> &[AtomicU64] {
        let arena = &self.domain.arenas[rank as usize];
        debug_assert!(self.offset + 2 * NOTICE_BYTES <= arena.len());
        // SAFETY: the arena has room for two notices there, is aligned to pages, and lives as long as the domain. Its
        // words are only accessed as atomics.
        unsafe {
            let start = arena.as_ptr().add(self.offset + slot as usize * NOTICE_BYTES).cast();
            std::slice::from_raw_parts(start, NOTICE_BYTES / size_of::<u64>())
        }
    }
}

/// The notice in these words, unless it is no longer that of the call.
fn read_notice(words: &[AtomicU64], call: u64) -> Option<Notice> {
    let culprit = words[1].load(Ordering::Relaxed) as u32;
    let bytes = words[2].load(Ordering::Relaxed).min(NOTICE_TEXT as u64) as usize;
    let text = words[NOTICE_HEADER..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    let text = text.take(bytes).collect::<Vec<u8>>();
    fence(Ordering::Acquire);
    let is_unchanged = words[0].load(Ordering::Relaxed) == call;
    is_unchanged.then(|| Notice { culprit, text: String::from_utf8_lossy(&text).into_owned() })
}

/// The offset of the notices of a rank in its arena. They follow the slots.
fn notice_offset(words: usize) -> usize {
    2 * slot_bytes(words)
}

fn slot_bytes(words: usize) -> usize {
    ((words + 1) * size_of::<u64>()).next_multiple_of(PADDING_BYTES)
}

/// The slot of a rank in a round: the number of the round, then the words.
fn slot_words(of: &JoinedRank, rank: u32, round: u64, words: usize) -> &[AtomicU64] {
    let arena = &of.comm().domain.arenas[rank as usize];
    let at = (round % 2) as usize * slot_bytes(words);
    debug_assert!(at + slot_bytes(words) <= arena.len());
    // SAFETY: the arena has two slots, is aligned to pages, and lives as long as the rank. Its words are only
    // accessed as atomics.
    unsafe { std::slice::from_raw_parts(arena.as_ptr().add(at).cast(), words + 1) }
}

/// Stores the words of this rank and wakes peers that sleep.
fn publish(rank: &JoinedRank, round: u64, words: &[u64]) -> Result<()> {
    rank.expect_running()?;
    let comm = rank.comm();
    // Rounds count from 1, and runs from 0.
    comm.expect_open(round - 1)?;
    comm.begin_run(round - 1, 0);
    comm.begin_step(0);
    let slot = slot_words(rank, comm.rank(), round, words.len());
    slot[1..].iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
    slot[0].store(round, Ordering::Release);
    comm.control().wake_ranks((0..comm.ranks()).filter(|peer| *peer != comm.rank()));
    Ok(())
}

fn has_published(rank: &JoinedRank, peer: u32, round: u64, words: usize) -> bool {
    slot_words(rank, peer, round, words)[0].load(Ordering::Acquire) == round
}

/// Whether all peers have published their words of a round within this part of the wait.
fn await_peers(
    rank: &JoinedRank,
    round: u64,
    words: usize,
    wait: &mut SleepState,
    part: Duration,
) -> std::result::Result<bool, WaitFailure> {
    let ready = || (0..rank.comm().ranks()).all(|peer| has_published(rank, peer, round, words));
    rank.comm().waiter.wait_for(wait, part, ready)
}

fn wait_error(rank: &JoinedRank, round: u64, words: usize, ended: WaitFailure) -> RunError {
    let cell: Vec<u32> = (0..rank.comm().ranks()).collect();
    let info = RendezvousStep { step: 0, node: AGREEMENT_NODE, op: AGREEMENT_OP, cell: &cell, group: 0 };
    match StepRendezvous::new(rank.comm(), info) {
        Ok(waiting) => waiting.wait_error(ended, |peer| has_published(rank, cell[peer], round, words)),
        Err(error) => error,
    }
}

/// The round as the step in which a rank died or stopped.
fn name_round(progress: &RankProgress) -> Option<StepName> {
    progress.step.map(|_| StepName { step: 0, node: AGREEMENT_NODE.into(), op: AGREEMENT_OP.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_TIMEOUT: Duration = Duration::from_secs(20);

    fn on_each_rank(ranks: u32, limit: Duration, work: impl Fn(u64, Board) + Sync) {
        std::thread::scope(|scope| {
            for group in Group::threads(ranks) {
                let work = &work;
                scope.spawn(move || {
                    let rank = u64::from(group.rank());
                    work(rank, Board::open(&group, 2, limit).expect("all ranks open it"));
                });
            }
        });
    }

    #[test]
    fn every_rank_gets_the_words_of_all_ranks_in_every_round() {
        on_each_rank(3, LONG_TIMEOUT, |rank, mut board| {
            for round in 1..=500 {
                let words = [rank * 1000 + round, rank];
                let expected: Vec<u64> = (0..3).flat_map(|rank| [rank * 1000 + round, rank]).collect();
                for _ in 0..2 {
                    // The second call returns the same words again.
                    let found = loop {
                        if let Some(found) =
                            board.exchange(round, &words, Duration::from_millis(1)).expect("it runs")
                        {
                            break found.to_vec();
                        }
                    };
                    assert_eq!(found, expected);
                }
            }
            assert_eq!(board.round(), 500);
        });
    }

    #[test]
    fn a_wait_for_a_late_rank_continues_in_the_next_call() {
        on_each_rank(2, LONG_TIMEOUT, |rank, mut board| {
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(150));
            }
            let mut parts = 0;
            while board.exchange(1, &[rank, 7], Duration::from_millis(20)).expect("it runs").is_none() {
                parts += 1;
            }
            assert!(rank == 1 || parts >= 2, "rank 0 waited in {parts} parts");
        });
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        on_each_rank(2, Duration::from_millis(300), |rank, mut board| {
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(900));
                let error = board.exchange(1, &[1, 1], LONG_TIMEOUT).expect_err("rank 0 has given up");
                assert_eq!(error.culprit(), Some(1), "{error}");
                return;
            }
            let error = board.exchange(1, &[0, 0], LONG_TIMEOUT).expect_err("rank 1 does not come");
            assert_eq!(error.culprit(), Some(1), "{error}");
            assert!(error.to_string().contains("waited 300 ms for rank 1"), "{error}");
            let after = board.exchange(2, &[0, 0], LONG_TIMEOUT).expect_err("the board has ended");
            assert_eq!(after.to_string(), error.to_string());
        });
    }

    #[test]
    fn a_rank_that_leaves_is_named_by_those_that_wait_for_it() {
        on_each_rank(2, LONG_TIMEOUT, |rank, mut board| {
            while board.exchange(1, &[rank, 0], LONG_TIMEOUT).expect("both come").is_none() {}
            if rank == 0 {
                let error = board.exchange(2, &[0, 0], LONG_TIMEOUT).expect_err("rank 1 has left");
                assert_eq!(error.culprit(), Some(1), "{error}");
            }
        });
    }

    /// Long texts, culprits other than the reporting rank, and notices of other calls.
    #[test]
    fn finds_notices_of_the_call_they_belong_to() {
        let barrier = std::sync::Barrier::new(3);
        on_each_rank(3, LONG_TIMEOUT, |rank, mut board| {
            let notices = board.notices().expect("the board is open");
            for round in 1..=6 {
                while board.exchange(round, &[rank, 0], LONG_TIMEOUT).expect("all come").is_none() {}
                let failing = round % 3;
                let text = format!("rank {failing} failed: {}", "\u{e9}".repeat(500 * round as usize));
                let expected = Notice { culprit: failing as u32, text: shorten_middle(&text, NOTICE_TEXT) };
                assert_eq!(notices.find(round..=round), None);
                barrier.wait();
                let is_second = rank == (failing + 1) % 3;
                if is_second {
                    // It has waited for the failing rank.
                    notices.leave(round, &Notice { text: "second hand".into(), ..expected.clone() });
                }
                if rank == failing {
                    notices.leave(round, &Notice { text, ..expected.clone() });
                }
                barrier.wait();
                let found = notices.find(round..=round);
                assert_eq!(found.is_some_and(|found| found == expected), rank != failing, "rank {rank}");
                assert_eq!(notices.find(round + 1..=round + 1), None);
            }
        });
    }

    /// A rank fails, and fails in the next call before a slow rank has read the first notice.
    #[test]
    fn keeps_notice_of_previous_call() {
        on_each_rank(2, LONG_TIMEOUT, |rank, mut board| {
            let notices = board.notices().expect("the board is open");
            let notice = |call: u64| Notice { culprit: 0, text: format!("failure {call}") };
            while board.exchange(1, &[rank, 0], LONG_TIMEOUT).expect("both come").is_none() {}
            if rank == 0 {
                for call in 1..=3 {
                    notices.leave(call, &notice(call));
                }
            }
            while board.exchange(2, &[rank, 0], LONG_TIMEOUT).expect("both come").is_none() {}
            if rank == 1 {
                assert_eq!(notices.find(1..=1), None);
                assert_eq!(notices.find(2..=2), Some(notice(2)));
                assert_eq!(notices.find(1..=u64::MAX), Some(notice(2)));
                assert_eq!(notices.find(4..=u64::MAX), None);
            }
            while board.exchange(3, &[rank, 0], LONG_TIMEOUT).expect("both come").is_none() {}
        });
    }

    #[test]
    fn rounds_follow_each_other() {
        on_each_rank(1, LONG_TIMEOUT, |_, mut board| {
            assert!(board.exchange(2, &[0, 0], LONG_TIMEOUT).is_err());
            assert!(board.exchange(1, &[0], LONG_TIMEOUT).is_err());
            assert_eq!(board.exchange(1, &[5, 6], LONG_TIMEOUT).expect("it runs"), Some(&[5, 6][..]));
        });
    }
}
