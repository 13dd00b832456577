//! How the ranks of sessions find each other.
//!
//! The ranks of a session meet at one abstract socket whose name they all know ([`crate::join`]). The name
//! comes from the environment of a launcher, from the process whose threads the ranks are, or from the first
//! rank, which drew it at random and passed it on by the caller's own means.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Result, RunError};
use crate::membership::{DRAWN, Membership};
use crate::process;

/// The number of groups of threads that this process has made.
static THREADS: AtomicU64 = AtomicU64::new(0);

/// One rank of a group, which opens sessions together with the other ranks.
#[derive(Debug)]
pub struct Group {
    place: Membership,
    within_process: bool,
    sessions: AtomicU64,
    /// The process that opened these sessions; 0 before the first.
    process: AtomicU32,
}

/// The caller's means to exchange bytes among ranks.
pub trait Bootstrap {
    /// Returns the bytes of every rank, by rank. All ranks pass the same number of bytes.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String>;

    fn barrier(&mut self) -> Result<(), String> {
        self.all_gather(&[0]).map(drop)
    }

    /// Whether the other ranks learn of a failure of this rank by these means, also if they wait elsewhere.
    fn reports_failures(&self) -> bool {
        false
    }
}

impl Group {
    /// The group and rank that a launcher gave this process: torchrun, `mpirun`, Slurm or another launcher
    /// that sets their variables. `None` if there was no launcher. Fails if its variables contradict each
    /// other, or say that ranks are on several machines.
    pub fn from_env() -> Result<Option<Group>> {
        Ok(Membership::from_env()?.map(Group::from_membership))
    }

    /// The group of a process that knows its rank by other means.
    pub fn from_membership(place: Membership) -> Group {
        Group { place, within_process: false, sessions: AtomicU64::new(0), process: AtomicU32::new(0) }
    }

    pub fn threads(ranks: u32) -> Vec<Group> {
        let number = THREADS.fetch_add(1, Ordering::Relaxed);
        let run = format!("threads {number} of process {}", std::process::id());
        let groups = (0..ranks).map(|rank| {
            let membership = Membership { rank, ranks, run: run.clone() };
            Group { within_process: true, ..Group::from_membership(membership) }
        });
        groups.collect()
    }

    /// Joins `rank` to a group of ranks of one machine that have their own means to exchange bytes. All of
    /// them call this at the same time. Fails if these means fail, or the ranks contradict each other. If only
    /// the barrier of this rank fails, the others may have passed it: they get the error in the first session of
    /// the group.
    pub fn bootstrap(rank: u32, ranks: u32, means: &mut dyn Bootstrap) -> Result<Group> {
        let failed = |e| {
            RunError::Invalid(format!("rank {rank} of {ranks}: exchanging data with the other ranks: {e}"))
        };
        let mut mine = [0u8; 24];
        mine[8..].copy_from_slice(&random_secret()?);
        mine[..4].copy_from_slice(&rank.to_le_bytes());
        mine[4..8].copy_from_slice(&ranks.to_le_bytes());
        let answers = means.all_gather(&mine).map_err(failed)?;
        if answers.len() != ranks as usize {
            return Err(failed(format!("expected {ranks} answers, found {}", answers.len())));
        }
        for r in 0..ranks {
            let expected = [r.to_le_bytes(), ranks.to_le_bytes()].concat();
            let answer = answers.get(r as usize);
            if answer.is_none_or(|answer| answer.len() != mine.len() || answer[..8] != expected) {
                // An answer ends with the secret of a rank, which must not appear in a message.
                let actual = answer.map_or_else(String::new, |answer| describe_answer(answer));
                return Err(failed(format!(
                    "expected the answer of rank {r} of {ranks} as answer {r}, found {actual}"
                )));
            }
        }
        let first =
            answers.first().map(|answer| answer[8..].iter().map(|b| format!("{b:02x}")).collect::<String>());
        let run = format!("{DRAWN}{}", first.unwrap_or_default());
        let group = Group::from_membership(Membership { rank, ranks, run });
        match means.barrier() {
            Ok(()) => Ok(group),
            Err(e) if means.reports_failures() => Err(failed(e)),
            Err(e) => {
                let how = format!("did not open its session: exchanging data with the other ranks: {e}");
                group.decline(RunError::Left { rank, how });
                Err(failed(e))
            }
        }
    }

    pub fn rank(&self) -> u32 {
        self.place.rank
    }

    pub fn ranks(&self) -> u32 {
        self.place.ranks
    }

    /// Notifies the other ranks that this one does not join the next session, and why. Returns the error that
    /// all of them get.
    pub fn decline(&self, error: RunError) -> RunError {
        match self.next_session_membership() {
            Ok(membership) => membership.decline(error),
            Err(refusal) => refusal,
        }
    }

    pub fn is_within_process(&self) -> bool {
        self.within_process
    }

    /// The address of the ranks for one more session. Fails if this process is a fork of the process that
    /// opened sessions of the group: it would take that process's rank.
    pub fn next_session_membership(&self) -> Result<Membership> {
        let current = process::current_process();
        let first = self.process.compare_exchange(0, current, Ordering::Relaxed, Ordering::Relaxed);
        match first.err().filter(|owner| *owner != current) {
            Some(owner) => Err(RunError::Invalid(format!(
                "the group has sessions of process {owner}, and this process is a fork of it: create a new group in this process"
            ))),
            None => {
                let number = self.sessions.fetch_add(1, Ordering::Relaxed);
                Ok(Membership { run: format!("{}, session {number}", self.place.run), ..self.place.clone() })
            }
        }
    }
}

/// Describes an answer of [`Group::bootstrap`], without the secret at its end.
fn describe_answer(answer: &[u8]) -> String {
    match (answer.len(), read_number(answer, 0), read_number(answer, 4)) {
        (24, Some(rank), Some(ranks)) => format!("that of rank {rank} of {ranks}"),
        (bytes, ..) => format!("{bytes} bytes, expected 24"),
    }
}

fn read_number(answer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(answer.get(at..at + 4)?.try_into().ok()?))
}

/// 16 random bytes: the secret name under which ranks meet.
pub fn random_secret() -> Result<[u8; 16]> {
    let mut out = [0u8; 16];
    let read = File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut out));
    read.map_err(|e| RunError::from_system_call("opening /dev/urandom", "open", e))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks that get their own answer, modified by `change`.
    struct Answers<F>(Vec<Vec<u8>>, F);

    impl<F: Fn(&[u8]) -> Vec<Vec<u8>>> Bootstrap for Answers<F> {
        fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
            self.0.push(mine.to_vec());
            Ok((self.1)(mine))
        }
    }

    /// Every way in which answers can be wrong: the message describes it, and has no byte of the secret in
    /// any notation.
    #[test]
    fn no_message_has_the_secret() {
        let with = |mine: &[u8], rank: u8, ranks: u8| {
            let mut answer = mine.to_vec();
            // The barrier has no such fields.
            if answer.len() == 24 {
                (answer[0], answer[4]) = (rank, ranks);
            }
            answer
        };
        type Change<'a> = &'a dyn Fn(&[u8]) -> Vec<Vec<u8>>;
        let changes: [(Change<'_>, &str); 6] = [
            (&|mine| vec![mine.to_vec()], "expected 2 answers, found 1"),
            (&|mine| vec![mine.to_vec(); 1000], "expected 2 answers, found 1000"),
            (&|mine| vec![with(mine, 1, 2), mine.to_vec()], "as answer 0, found that of rank 1 of 2"),
            (&|mine| vec![mine.to_vec(), with(mine, 1, 3)], "as answer 1, found that of rank 1 of 3"),
            (&|mine| vec![mine.to_vec(), mine[..20].to_vec()], "found 20 bytes, expected 24"),
            (&|mine| vec![mine.to_vec(), [mine, &[0; 1 << 16]].concat()], "found 65560 bytes, expected 24"),
        ];
        for (change, expected) in changes {
            let mut answers = Answers(Vec::new(), change);
            let text = Group::bootstrap(0, 2, &mut answers).unwrap_err().to_string();
            assert!(text.contains(expected) && text.len() < 200, "{text}");
            let secret = &answers.0[0][8..];
            let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
            let list = format!("{secret:?}");
            assert!(!text.contains(&hex) && !text.contains(list.trim_matches(['[', ']'])), "{text}");
        }
        let mut answers = Answers(Vec::new(), |mine: &[u8]| vec![mine.to_vec(), with(mine, 1, 2)]);
        let group = Group::bootstrap(0, 2, &mut answers).unwrap();
        let hex: String = answers.0[0][8..].iter().map(|b| format!("{b:02x}")).collect();
        let next = group.next_session_membership().unwrap();
        assert!(next.run.contains(&hex), "the ranks meet by it");
        assert!(!format!("{group:?} {next:?} {}", next.public_run_name()).contains(&hex));
    }
}
