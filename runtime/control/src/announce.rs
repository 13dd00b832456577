//! Ranks of a session announce each run before they begin it, so that no rank begins a run with other sizes
//! than its peers.
//!
//! A rank stores a digest of its sizes under the number of the run, and then reads the digests that its peers
//! stored under this number. Of two ranks at least the later one sees the other's digest. If they differ it
//! refuses before it touches anything, and the other rank's waits end. No rank waits for a peer that has not
//! announced the run yet, unless that peer is so many runs late that its announcement would be overwritten.

use std::sync::atomic::{Ordering, fence};

use crate::communicator::RankCommunicator;
use crate::control::ANNOUNCED;
use crate::error::{Result, RunError};
use crate::wait::WaitFailure;

impl RankCommunicator {
    /// Announces that this rank begins `run` with the sizes of `digest`. `sizes` describes them as text, for
    /// the error. Fails if a peer begins the run with other sizes, is too many runs late, or failed. Each
    /// failure ends the run on all ranks.
    pub fn announce_run(&self, run: u64, digest: u32, sizes: &dyn Fn() -> String) -> Result<()> {
        let agreed = self.expect_open(run).and_then(|()| self.await_near_peers(run));
        let agreed = agreed.and_then(|()| self.compare_announcements(run, digest, sizes));
        agreed.inspect_err(|error| self.abort(error))
    }

    /// Refuses a run after which a peer does not run any more, because it closed its session.
    pub(crate) fn expect_open(&self, run: u64) -> Result<()> {
        for rank in 0..self.ranks() {
            if let Some(runs) = self.control().runs_before_close(rank).filter(|runs| *runs <= run) {
                return Err(RunError::session_closed(rank, runs));
            }
        }
        Ok(())
    }

    /// Waits until all peers are at most [`ANNOUNCED`] runs late.
    fn await_near_peers(&self, run: u64) -> Result<()> {
        // The word of this run at a peer that is not too late: for this run, or for the run whose slot it
        // reuses.
        let near = [run_word(run), run.checked_sub(ANNOUNCED).map_or(0, run_word)];
        let control = self.control();
        let is_near = |peer| {
            let word = control.announcement_word(peer, run).load(Ordering::Acquire);
            near.contains(&((word >> 32) as u32))
        };
        let waited = self.waiter.wait_until(|| (0..self.ranks()).all(is_near));
        match waited {
            Ok(()) => Ok(()),
            Err(WaitFailure::Aborted) => Err(control.end_reason()),
            Err(WaitFailure::Limit { silent }) => {
                let late = (0..self.ranks()).find(|&peer| !is_near(peer));
                let peer = silent.or(late).unwrap_or(0);
                let location =
                    format!("more than {ANNOUNCED} runs behind rank {}, which begins run {run}", self.rank());
                let limit_ms = self.waiter.limit().as_millis() as u64;
                Err(RunError::Stuck { rank: peer, at: location, limit_ms })
            }
        }
    }

    fn compare_announcements(&self, run: u64, digest: u32, sizes: &dyn Fn() -> String) -> Result<()> {
        let control = self.control();
        let mine = u64::from(run_word(run)) << 32 | u64::from(digest);
        control.announcement_word(self.rank(), run).store(mine, Ordering::Release);
        // This rank's store precedes its loads: of two ranks one sees the other's digest.
        fence(Ordering::SeqCst);
        let differing = (0..self.ranks()).find(|&peer| {
            let word = control.announcement_word(peer, run).load(Ordering::Acquire);
            (word >> 32) as u32 == run_word(run) && word != mine
        });
        match differing {
            None => Ok(()),
            Some(peer) => Err(RunError::SizesDiffer { rank: self.rank(), peer, run, sizes: sizes() }),
        }
    }
}

/// The number of a run in its word; never 0 for the first 4 billion runs.
fn run_word(run: u64) -> u32 {
    (run as u32).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::SharedRunMemory;

    fn ranks(limit_ms: u64) -> [RankCommunicator; 2] {
        let domain = SharedRunMemory::create(2, 1, 64, 0).expect("shared memory");
        [0, 1].map(|rank| RankCommunicator::new(domain.clone(), rank, Duration::from_millis(limit_ms)))
    }

    #[test]
    fn the_later_of_two_ranks_that_differ_is_refused_and_ends_both() {
        let [a, b] = ranks(1000);
        for run in 0..200 {
            a.announce_run(run, 7, &String::new).expect("nobody differs");
            b.announce_run(run, 7, &String::new).expect("both are alike");
        }
        b.announce_run(200, 8, &String::new).expect("it is the first");
        let error = a.announce_run(200, 7, &|| "n=4".into()).expect_err("they differ");
        assert!(error.to_string().contains("run 200: rank 0 runs it with n=4"), "{error}");
        assert!(b.control().is_aborted());
    }

    #[test]
    fn a_run_that_a_peer_closed_its_session_before_is_refused() {
        let [a, b] = ranks(1000);
        for run in 0..3 {
            a.announce_run(run, 7, &String::new).expect("it is the first");
        }
        b.control().set_closed(1, 2);
        a.announce_run(1, 7, &String::new).expect("rank 1 ran that too");
        let error = a.announce_run(2, 7, &String::new).expect_err("rank 1 has closed its session");
        assert_eq!(
            (error.culprit(), error.to_string().as_str()),
            (Some(1), "rank 1 closed its session after 2 runs")
        );
        assert_eq!(b.control().abort_reason().and_then(|e| e.reporter()), Some(0));
    }

    #[test]
    fn a_rank_runs_ahead_as_far_as_announcements_are_kept() {
        let [a, b] = ranks(50);
        b.announce_run(0, 1, &String::new).expect("it is the first");
        for run in 0..=ANNOUNCED {
            a.announce_run(run, 1, &String::new).expect("it is near");
        }
        let error = a.announce_run(ANNOUNCED + 1, 1, &String::new).expect_err("rank 1 is behind");
        assert!(matches!(error, RunError::Stuck { rank: 1, .. }), "{error}");
    }
}
