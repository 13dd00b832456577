//! A rank's link to the coordinator of its run, from the comparison of plans to the verdict.
//!
//! While the link is open a thread of its own waits for the coordinator's verdict, so that what happens elsewhere ends
//! this rank's waits early. A run that ends on this rank is reported through the link, also when it is dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use symmc_ir::parallel;

use super::channel::{Channel, FromRank, Identity, ToRank, Welcome};
use super::comm::Comm;
use super::terms::Term;
use crate::error::RunError;

/// How often a listening rank looks whether it is still to listen, and how long a rank waits for news at a time.
const TICK: Duration = Duration::from_millis(50);
/// The coordinator gives up on ranks earlier than this behind the limit.
const PATIENCE: Duration = Duration::from_secs(5);
/// The coordinator explains a run that was ended earlier than this, if it can.
const EXPLAINING: Duration = Duration::from_secs(1);

/// How a run ended for all ranks.
type Verdict = Result<(), RunError>;

/// An open link.
#[derive(Debug)]
pub(super) struct Link {
    ends: Arc<Ends>,
    listener: Mutex<Listener>,
}

/// What the rank and its listener share.
#[derive(Debug)]
struct Ends {
    channel: Channel,
    rank: u32,
    ranks: u32,
    /// Whether rank 0 coordinates the run, not a launcher.
    by_rank_0: bool,
    comm: Comm,
    limit: Duration,
    /// Whether nobody waits for a verdict any more.
    ended: AtomicBool,
    /// Whether the coordinator knows how the run ended on this rank.
    told: AtomicBool,
}

/// Where the verdict comes from.
#[derive(Debug, Default)]
struct Listener {
    /// From the thread, if there is one.
    verdicts: Option<mpsc::Receiver<Verdict>>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// The link behind `channel` of the rank that was welcomed, which communicates by `comm`.
    pub fn new(channel: Channel, welcome: &Welcome, comm: Comm, limit: Duration) -> Link {
        let (ended, told) = (AtomicBool::new(false), AtomicBool::new(false));
        let Welcome { rank, ranks, .. } = *welcome;
        let by_rank_0 = welcome.job.is_none();
        let ends = Ends { channel, rank, ranks, by_rank_0, comm, limit, ended, told };
        Link { ends: Arc::new(ends), listener: Mutex::default() }
    }

    /// The rank's communicator.
    pub fn comm(&self) -> &Comm {
        &self.ends.comm
    }

    /// Says what this rank runs; returns when all ranks run the same.
    ///
    /// # Errors
    /// They do not, or the coordinator is gone.
    pub fn agree(&self, identity: Identity, settings: &[Term]) -> Result<(), RunError> {
        agree(&self.ends.channel, self.ends.rank, identity, settings)
    }

    /// Says that this rank is ready; returns when all ranks are. From then on the verdict is listened for.
    ///
    /// # Errors
    /// A rank failed before, or the coordinator is gone.
    pub fn start(&self) -> Result<(), RunError> {
        self.ends.channel.send(&FromRank::Ready)?;
        expect(&self.ends.channel, self.ends.rank, &ToRank::Start)?;
        let (sender, verdicts) = mpsc::channel();
        let ends = self.ends.clone();
        // Without a listener the abort word alone ends this rank's waits early.
        if let Ok(thread) = parallel::spawn(move || ends.listen(&sender)) {
            *self.listener() = Listener { verdicts: Some(verdicts), thread: Some(thread) };
        }
        Ok(())
    }

    /// Tells the coordinator how the run ended on this rank, and waits for how it ended for all.
    ///
    /// # Errors
    /// What ended the run; the error that explains it best.
    pub fn finish(&self, result: Result<(), RunError>) -> Result<(), RunError> {
        match result {
            Ok(()) => self.done().and_then(|()| {
                let patience = self.ends.limit + PATIENCE;
                self.await_verdict(patience).unwrap_or_else(|| Err(self.coordinator_stuck()))
            }),
            Err(error) => Err(self.report(error)),
        }
    }

    /// Says that this rank has run what it wanted.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn done(&self) -> Result<(), RunError> {
        self.ends.told.store(true, Ordering::Relaxed);
        self.ends.channel.send(&FromRank::Done)
    }

    /// Tells the coordinator of a failure; the error that explains it best.
    pub fn report(&self, error: RunError) -> RunError {
        if !self.ends.told.swap(true, Ordering::Relaxed) {
            // The coordinator may have ended the run itself; then it does not listen any more.
            let _ = self.ends.channel.send(&FromRank::Failed(error.clone()));
        }
        match error.is_consequence().then(|| self.await_verdict(EXPLAINING)).flatten() {
            Some(Err(cause)) if !cause.is_consequence() => cause,
            _ => error,
        }
    }

    fn listener(&self) -> MutexGuard<'_, Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The verdict, if it comes within a tick: from the thread that listens, or else from the socket.
    fn next_verdict(&self) -> Option<Verdict> {
        if let Some(verdicts) = &self.listener().verdicts {
            return match verdicts.recv_timeout(TICK) {
                Ok(verdict) => Some(verdict),
                Err(RecvTimeoutError::Disconnected) => Some(Err(self.ends.coordinator_gone())),
                Err(RecvTimeoutError::Timeout) => None,
            };
        }
        let channel = &self.ends.channel;
        match channel.readable(Some(Instant::now() + TICK)) {
            Ok(true) => Some(self.ends.verdict_of(channel.receive(None))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The coordinator's verdict, which comes when all ranks have ended; `None` if none made progress for so long.
    fn await_verdict(&self, patience: Duration) -> Option<Verdict> {
        let Ends { comm, ranks, .. } = &*self.ends;
        let beats = || (0..*ranks).map(|r| comm.control().progress(r).beats).collect::<Vec<_>>();
        let (mut last, mut since) = (beats(), Instant::now());
        loop {
            if let Some(verdict) = self.next_verdict() {
                return Some(verdict);
            }
            let now = beats();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > patience {
                return None;
            }
        }
    }

    fn coordinator_stuck(&self) -> RunError {
        let at = "as coordinator after the last step".into();
        let error = RunError::Stuck { rank: 0, at, limit_ms: self.ends.limit.as_millis() as u64 };
        self.ends.comm.abort(&error);
        error
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ends.ended.store(true, Ordering::Relaxed);
        // The listener wakes up; what was sent before arrives.
        self.ends.channel.close();
        if let Some(thread) = self.listener().thread.take() {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Ends {
    /// Waits for the verdict while the rank runs; ends the run if it is bad or cannot come any more.
    fn listen(&self, verdicts: &mpsc::Sender<Verdict>) {
        let message = loop {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            match self.channel.readable(Some(Instant::now() + TICK)) {
                Ok(true) => break self.channel.receive::<ToRank>(None),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
        };
        if self.ended.load(Ordering::Relaxed) {
            return;
        }
        let verdict = self.verdict_of(message);
        if let Err(error) = &verdict {
            self.comm.abort(error);
        }
        // The rank may have ended without waiting for it.
        let _ = verdicts.send(verdict);
    }

    fn verdict_of(&self, message: Result<Option<ToRank>, RunError>) -> Verdict {
        match message? {
            Some(ToRank::Verdict(None)) => Ok(()),
            Some(ToRank::Verdict(Some(error))) => Err(error),
            None => Err(self.coordinator_gone()),
            other => Err(unexpected("a verdict", &other)),
        }
    }

    /// The end of who coordinates the run, before it said how that ended.
    fn coordinator_gone(&self) -> RunError {
        match self.by_rank_0 {
            true => RunError::DiedOutside {
                rank: 0,
                how: "its process is gone".into(),
                when: "and with it what coordinated the run".into(),
            },
            false => coordinator_gone(self.rank),
        }
    }
}

/// Says what a rank runs; returns when all ranks run the same.
pub(super) fn agree(
    channel: &Channel,
    rank: u32,
    identity: Identity,
    settings: &[Term],
) -> Result<(), RunError> {
    channel.send(&FromRank::Hello(identity))?;
    match channel.receive::<ToRank>(None)? {
        Some(ToRank::Proceed) => return Ok(()),
        Some(ToRank::Digest) => {}
        Some(ToRank::Verdict(Some(error))) => return Err(error),
        None => return Err(coordinator_gone(rank)),
        other => return Err(unexpected(&format!("{:?}", ToRank::Proceed), &other)),
    }
    let digests = settings.iter().filter_map(|term| term.digest().transpose()).collect::<Result<_, _>>()?;
    channel.send(&FromRank::Digests(digests))?;
    expect(channel, rank, &ToRank::Proceed)
}

/// Waits for one message. The coordinator's limits bound the wait.
fn expect(channel: &Channel, rank: u32, expected: &ToRank) -> Result<(), RunError> {
    match channel.receive::<ToRank>(None)? {
        Some(message) if message == *expected => Ok(()),
        Some(ToRank::Verdict(Some(error))) => Err(error),
        None => Err(coordinator_gone(rank)),
        other => Err(unexpected(&format!("{expected:?}"), &other)),
    }
}

fn coordinator_gone(rank: u32) -> RunError {
    RunError::Aborted { rank, reason: "the coordinator of the run is gone".into() }
}

/// A message that is not the one which was expected.
pub(super) fn unexpected(expected: &str, found: &Option<ToRank>) -> RunError {
    let found = match found {
        Some(message) => format!("{message:?}"),
        None => "the end".into(),
    };
    RunError::Protocol { rank: 0, detail: format!("expected {expected}, found {found}") }
}
