//! How the ranks of sessions find each other.
//!
//! Whatever told them apart at first, the ranks of a session meet at one abstract socket whose name they all know
//! ([`super::join`]): from the environment of a launcher, because they are threads of one process, or because the first
//! rank drew it and the caller's own means told the others.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::membership::Membership;
use crate::error::RunError;
use crate::process;

/// Groups of threads that this process has made.
static THREADS: AtomicU64 = AtomicU64::new(0);

/// One rank's place in a group, in which it opens sessions together with the others.
#[derive(Debug)]
pub struct Group {
    place: Membership,
    within_process: bool,
    /// Sessions that were opened.
    sessions: AtomicU64,
    /// The process that opened them; 0 before the first.
    process: AtomicU32,
}

/// What the caller has to tell other ranks something.
pub trait Bootstrap {
    /// Every rank's bytes, by rank. All ranks give equally many.
    ///
    /// # Errors
    /// Why not, in words.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String>;

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// Why not, in words.
    fn barrier(&mut self) -> Result<(), String> {
        self.all_gather(&[0]).map(drop)
    }
}

impl Group {
    /// The place that a launcher gave this process: torchrun, `mpirun`, Slurm or another that sets their variables. `None`
    /// where no launcher did.
    ///
    /// # Errors
    /// Its variables contradict each other, or say that ranks are on several machines.
    pub fn from_env() -> Result<Option<Group>, RunError> {
        Ok(Membership::from_env()?.map(Group::of))
    }

    /// The place of a process that knows it otherwise.
    pub fn of(place: Membership) -> Group {
        Group { place, within_process: false, sessions: AtomicU64::new(0), process: AtomicU32::new(0) }
    }

    /// A place for each of `ranks` threads of this process.
    pub fn threads(ranks: u32) -> Vec<Group> {
        let number = THREADS.fetch_add(1, Ordering::Relaxed);
        let run = format!("threads {number} of process {}", std::process::id());
        let place = |rank| Membership { rank, ranks, run: run.clone() };
        (0..ranks).map(|rank| Group { within_process: true, ..Group::of(place(rank)) }).collect()
    }

    /// The place of `rank` among ranks of one machine that have means of their own to tell each other something. All of
    /// them call this at the same time.
    ///
    /// # Errors
    /// These means fail, or the ranks do not fit each other.
    pub fn bootstrap(rank: u32, ranks: u32, means: &mut dyn Bootstrap) -> Result<Group, RunError> {
        let failed = |e| RunError::Invalid(format!("rank {rank} of {ranks}: telling the other ranks: {e}"));
        let mut mine = [0u8; 24];
        mine[8..].copy_from_slice(&secret()?);
        mine[..4].copy_from_slice(&rank.to_le_bytes());
        mine[4..8].copy_from_slice(&ranks.to_le_bytes());
        let all = means.all_gather(&mine).map_err(failed)?;
        let says = |r: usize| all.get(r).filter(|said| said.len() == mine.len());
        for r in 0..ranks {
            let expected = [r.to_le_bytes(), ranks.to_le_bytes()].concat();
            if says(r as usize).is_none_or(|said| said[..8] != expected) || all.len() != ranks as usize {
                return Err(failed(format!("expected {ranks} answers by rank, found {all:?}")));
            }
        }
        let first = says(0).map(|said| said[8..].iter().map(|b| format!("{b:02x}")).collect::<String>());
        let run = format!("bootstrap {}", first.unwrap_or_default());
        means.barrier().map_err(failed)?;
        Ok(Group::of(Membership { rank, ranks, run }))
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.place.rank
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.place.ranks
    }

    /// Tells the other ranks that this one does not come to the next session, and why; the error as all of them have it.
    pub fn decline(&self, error: RunError) -> RunError {
        match self.next() {
            Ok(place) => place.decline(error),
            Err(refusal) => refusal,
        }
    }

    /// Whether all ranks are of this process.
    pub(super) fn is_within_process(&self) -> bool {
        self.within_process
    }

    /// Where the ranks meet for one more session.
    ///
    /// # Errors
    /// This is a fork of the process that opened sessions of the group, and would take its place.
    pub(super) fn next(&self) -> Result<Membership, RunError> {
        let here = process::current();
        let first = self.process.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed);
        match first.err().filter(|owner| *owner != here) {
            Some(owner) => Err(RunError::Invalid(format!(
                "the group has sessions of process {owner}, of which this process is a fork: make a group of its own here"
            ))),
            None => {
                let number = self.sessions.fetch_add(1, Ordering::Relaxed);
                Ok(Membership { run: format!("{}, session {number}", self.place.run), ..self.place.clone() })
            }
        }
    }
}

/// 16 bytes that nobody guesses: what ranks tell each other as the name of a place to meet.
///
/// # Errors
/// The system draws none.
pub fn secret() -> Result<[u8; 16], RunError> {
    let mut out = [0u8; 16];
    let read = File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut out));
    read.map_err(|e| RunError::system("reading /dev/urandom", e))?;
    Ok(out)
}
