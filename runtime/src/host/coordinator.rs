//! The coordinator of a run: compares what the ranks run, starts them together, watches them, and decides
//! why a run ended.
//!
//! It talks to every rank over a control socket and reads how far each came from the control segment. When
//! something ends the run it sets the abort word, so that every wait ends, listens a moment longer for a
//! better explanation (a rank that died explains why another one waited too long), and tells every rank.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use symmc_ir::entity::Entity;
use symmc_ir::{Bindings, SymbolId};
use symmc_plan::Plan;

use super::channel::{Channel, FromRank, Identity, PROTOCOL, ToRank};
use super::control::Control;
use super::job::locate;
use super::terms::Term;
use crate::error::RunError;

/// How often the clock and the ranks' progress are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long after the first failure others are listened to.
const GRACE: Duration = Duration::from_millis(150);
/// Ranks have at least this long to start.
const STARTING: Duration = Duration::from_secs(10);
/// How long ranks may take to read their contents.
const DIGESTING: Duration = Duration::from_secs(600);
/// A rank that hangs is noticed this much later than its peers' waits end, because they know more.
const PATIENCE: Duration = Duration::from_secs(1);

/// The name and version that ranks compare.
pub(super) fn version() -> String {
    format!("symmc {}", env!("CARGO_PKG_VERSION"))
}

/// What a rank says about itself: what it runs, under which terms and under which other settings.
pub(super) fn identity(
    plan: &Plan,
    mut terms: Vec<(String, String)>,
    settings: &[Term],
) -> Result<Identity, RunError> {
    for term in settings {
        terms.push(term.first()?);
    }
    let contents = settings.iter().filter(|t| t.is_content()).map(|t| t.name.clone()).collect();
    let (plan, about) = (plan.hash(), about(plan));
    Ok(Identity { protocol: PROTOCOL, version: version(), plan, about, terms, contents })
}

/// The sizes of a job and how often it runs, as terms.
pub(super) fn job_terms(plan: &Plan, bindings: &Bindings, repeats: u32) -> Vec<(String, String)> {
    let names = plan.buckets.first().into_iter().flat_map(|b| b.symbols.keys()).enumerate();
    let size =
        |(i, name): (usize, &String)| Some((name.clone(), bindings.get(SymbolId::new(i))?.to_string()));
    let runs = ("runs".to_string(), repeats.to_string());
    names.filter_map(size).chain([runs]).collect()
}

/// What people tell a plan from others by.
fn about(plan: &Plan) -> Vec<(String, String)> {
    let short = |text: &str| text.chars().take(12).collect::<String>();
    let ranges: Vec<String> = plan.buckets.iter().map(|bucket| bucket.range()).collect();
    let ranges: String = ranges.join("; ").chars().take(200).collect();
    let about = [
        ("program", plan.source.name.clone()),
        ("program text", short(&plan.source.hash)),
        ("machine", plan.machine.clone()),
        ("buckets", ranges),
        ("bytes of the symmetric arena", plan.arenas.symmetric.to_string()),
        ("bytes of the ordinary arena", plan.arenas.ordinary.to_string()),
    ];
    about.map(|(name, value)| (name.to_string(), value)).to_vec()
}

/// A plan by its hash, and by what `other` does not have alike.
fn plan_text(identity: &Identity, other: &Identity) -> String {
    let differ = identity.about.iter().filter(|term| !other.about.contains(term));
    let differ: Vec<String> = differ.map(|(name, value)| format!("{name} {value}")).collect();
    match differ.is_empty() {
        true => format!("the plan {} (of the same program, made otherwise)", identity.plan),
        false => format!("the plan {} ({})", identity.plan, differ.join(", ")),
    }
}

/// The terms of `a` that `b` does not have alike: `tokens=7, seed=1`.
fn unlike(a: &[(String, String)], b: &[(String, String)]) -> String {
    let differ: Vec<String> =
        a.iter().filter(|t| !b.contains(t)).map(|(name, value)| format!("{name}={value}")).collect();
    if differ.is_empty() { "without".into() } else { format!("with {}", differ.join(", ")) }
}

impl Identity {
    /// Whether ranks that are alike in all but their contents are so identified.
    fn differs_in_contents_alone(&self, other: &Identity) -> bool {
        let text = |i: &Identity| {
            let texts = i.terms.iter().filter(|(name, _)| !i.contents.contains(name));
            texts.cloned().collect::<Vec<_>>()
        };
        let head = |i: &Identity| (i.protocol, i.version.clone(), i.plan.clone(), i.contents.clone());
        head(self) == head(other) && text(self) == text(other)
    }
}

/// How far a rank is in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing was heard of it.
    New,
    /// It said what it runs.
    Known,
    /// It reads its contents, to give their digests.
    Asked,
    /// Its memory is loaded.
    Ready,
    /// It has run the plan.
    Done,
    /// It failed, or is gone.
    Gone,
}

/// A rank as the coordinator sees it.
#[derive(Debug)]
pub(super) struct Member {
    channel: Channel,
    phase: Phase,
    identity: Option<Identity>,
    /// Its progress when it last changed, and when that was.
    beats: u64,
    since: Instant,
}

impl Member {
    /// A rank behind this channel.
    pub fn new(channel: Channel) -> Self {
        Member { channel, phase: Phase::New, identity: None, beats: 0, since: Instant::now() }
    }
}

/// What the ranks are watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watched {
    /// A job: ranks run from the start to the end.
    Job,
    /// A session: between runs ranks may take as long as their callers want, until one of them closes.
    Session,
}

/// Watches the ranks of one run.
pub(super) struct Coordinator<'a> {
    pub watched: Watched,
    pub plan: &'a Plan,
    pub control: &'a Control,
    /// The limit of every wait.
    pub limit: Duration,
    /// The ranks in order.
    pub members: Vec<Member>,
    /// When ranks were asked for digests of their contents, if they were.
    pub asked: Option<Instant>,
    /// Tells how the process of a rank ended, if it has.
    pub ended: &'a mut dyn FnMut(u32) -> Option<End>,
}

impl Coordinator<'_> {
    /// Takes the run from the first message of every rank to the end, and tells every rank how it ended.
    ///
    /// # Errors
    /// The cause.
    pub fn run(&mut self) -> Result<(), RunError> {
        let result = self.until_the_end();
        let verdict = ToRank::Verdict(result.as_ref().err().cloned());
        for member in &self.members {
            // A rank that cannot be told is gone.
            let _ = member.channel.send(&verdict);
        }
        result
    }

    fn until_the_end(&mut self) -> Result<(), RunError> {
        let started = Instant::now();
        let mut errors: Vec<RunError> = Vec::new();
        let mut last = None;
        loop {
            if let Err(error) = self.step(started) {
                if errors.is_empty() {
                    self.control.abort(error.rank().unwrap_or(0), &error.to_string());
                    last = Some(Instant::now() + GRACE);
                }
                errors.push(error);
            }
            let gone = self.members.iter().all(|m| m.phase == Phase::Gone);
            if last.is_some_and(|last| gone || Instant::now() >= last) {
                return Err(cause(errors));
            }
            if errors.is_empty() && self.members.iter().all(|m| m.phase == Phase::Done) {
                return Ok(());
            }
        }
    }

    /// Waits for the next event and handles it.
    fn step(&mut self, started: Instant) -> Result<(), RunError> {
        for rank in self.poll()? {
            self.hear(rank)?;
        }
        let (since, limit) = match self.asked {
            Some(asked) => (asked, self.limit.max(DIGESTING)),
            None => (started, self.limit.max(STARTING)),
        };
        let late = since.elapsed() > limit;
        let unready = |m: &Member| matches!(m.phase, Phase::New | Phase::Known | Phase::Asked);
        let silent = self.members.iter().position(unready);
        if let (true, Some(rank)) = (late, silent) {
            self.members[rank].phase = Phase::Gone;
            return Err(self.stuck(rank as u32));
        }
        if silent.is_none() {
            self.check_closed()?;
            for rank in 0..self.members.len() {
                self.check_progress(rank)?;
            }
        }
        Ok(())
    }

    /// The ranks that have something to say.
    fn poll(&self) -> Result<Vec<usize>, RunError> {
        let listening = |m: &Member| m.phase != Phase::Gone && m.phase != Phase::Done;
        let ranks: Vec<usize> = (0..self.members.len()).filter(|&r| listening(&self.members[r])).collect();
        let fd = |&r: &usize| PollFd::new(self.members[r].channel.fd(), PollFlags::POLLIN);
        let mut fds: Vec<PollFd> = ranks.iter().map(fd).collect();
        let tick = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, tick) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(RunError::system("waiting for the ranks", e)),
        }
        let speaks = |fd: &PollFd| fd.revents().is_some_and(|e| !e.is_empty());
        Ok(ranks.into_iter().zip(&fds).filter(|(_, fd)| speaks(fd)).map(|(r, _)| r).collect())
    }

    /// Handles the next message of a rank.
    fn hear(&mut self, rank: usize) -> Result<(), RunError> {
        let member = &mut self.members[rank];
        member.since = Instant::now();
        let message = member.channel.receive(Some(Instant::now() + self.limit));
        match message.inspect_err(|_| member.phase = Phase::Gone)? {
            Some(FromRank::Hello(identity)) if member.phase == Phase::New => {
                member.phase = Phase::Known;
                member.identity = Some(identity);
                if self.all(Phase::Known) { self.settle() } else { Ok(()) }
            }
            Some(FromRank::Digests(digests)) if member.phase == Phase::Asked => {
                member.phase = Phase::Known;
                for (name, value) in member.identity.iter_mut().flat_map(|i| &mut i.terms) {
                    let digest = digests.iter().find(|(of, _)| of == name);
                    digest.iter().for_each(|(_, digest)| value.clone_from(digest));
                }
                if self.all(Phase::Known) { self.settle() } else { Ok(()) }
            }
            Some(FromRank::Ready) if member.phase == Phase::Known => {
                member.phase = Phase::Ready;
                match self.all(Phase::Ready) {
                    true => self.tell(&ToRank::Start),
                    false => Ok(()),
                }
            }
            Some(FromRank::Done) if member.phase == Phase::Ready => {
                member.phase = Phase::Done;
                Ok(())
            }
            Some(FromRank::Failed(error)) => {
                member.phase = Phase::Gone;
                Err(error)
            }
            Some(other) => {
                let detail = format!("unexpected {other:?} in phase {:?}", member.phase);
                member.phase = Phase::Gone;
                Err(RunError::Protocol { rank: rank as u32, detail })
            }
            None => {
                member.phase = Phase::Gone;
                Err(self.died(rank as u32))
            }
        }
    }

    fn all(&self, phase: Phase) -> bool {
        self.members.iter().all(|m| m.phase == phase)
    }

    fn tell(&mut self, message: &ToRank) -> Result<(), RunError> {
        let now = Instant::now();
        self.members.iter_mut().for_each(|m| m.since = now);
        self.members.iter().try_for_each(|m| m.channel.send(message))
    }

    /// Lets the ranks load, if they are alike. Contents that are identified otherwise may be equal: then digests are
    /// asked for, once.
    fn settle(&mut self) -> Result<(), RunError> {
        let identities: Vec<&Identity> = self.members.iter().filter_map(|m| m.identity.as_ref()).collect();
        let Some((first, others)) = identities.split_first() else { return Ok(()) };
        let alike = others.iter().all(|other| other.terms == first.terms);
        if !alike && self.asked.is_none() && others.iter().all(|o| o.differs_in_contents_alone(first)) {
            self.asked = Some(Instant::now());
            self.members.iter_mut().for_each(|m| m.phase = Phase::Asked);
            return self.tell(&ToRank::Digest);
        }
        self.compare()?;
        self.tell(&ToRank::Proceed)
    }

    /// Whether all ranks run the same version and plan.
    fn compare(&self) -> Result<(), RunError> {
        let identities = self.members.iter().filter_map(|m| m.identity.as_ref());
        let mut identities = (0..).zip(identities);
        let Some((_, first)) = identities.next() else { return Ok(()) };
        let name = |i: &Identity| format!("{}, protocol {}", i.version, i.protocol);
        for (rank, other) in identities {
            if (other.protocol, &other.version) != (first.protocol, &first.version) {
                return Err(RunError::VersionDiffers { rank, expected: name(first), found: name(other) });
            }
            if other.plan != first.plan {
                let (expected, found) = (plan_text(first, other), plan_text(other, first));
                return Err(RunError::PlanDiffers { rank, expected, found });
            }
            if other.terms != first.terms {
                let (found, expected) =
                    (unlike(&other.terms, &first.terms), unlike(&first.terms, &other.terms));
                return Err(RunError::Invalid(format!(
                    "rank {rank} runs {found}, rank 0 {expected}: all ranks must run alike"
                )));
            }
        }
        Ok(())
    }

    /// Notices that a session cannot run any more, because a rank has closed it for longer than the limit.
    fn check_closed(&mut self) -> Result<(), RunError> {
        let closed = |m: &Member| m.phase == Phase::Done && m.since.elapsed() > self.limit;
        let Some(rank) = self.members.iter().position(closed) else { return Ok(()) };
        if self.watched == Watched::Job || self.all(Phase::Done) {
            return Ok(());
        }
        Err(RunError::Aborted { rank: rank as u32, reason: "it closed its session".into() })
    }

    /// Notices a rank that begins no step for longer than the limit.
    fn check_progress(&mut self, rank: usize) -> Result<(), RunError> {
        let progress = self.control.progress(rank as u32);
        let member = &mut self.members[rank];
        if member.phase != Phase::Ready {
            return Ok(());
        }
        let idle = self.watched == Watched::Session && !progress.running;
        if progress.beats != member.beats || idle {
            member.beats = progress.beats;
            member.since = Instant::now();
            return Ok(());
        }
        if member.since.elapsed() > self.limit + PATIENCE {
            member.phase = Phase::Gone;
            return Err(self.stuck(rank as u32));
        }
        Ok(())
    }

    fn stuck(&self, rank: u32) -> RunError {
        let progress = self.control.progress(rank);
        let at = match locate(self.plan, &progress) {
            Some((step, node, op)) => format!("at step {step} ({op} %{node}), run {}", progress.run),
            None if self.watched == Watched::Session && progress.running => {
                format!("in run {}", progress.run)
            }
            None => "before the first step".into(),
        };
        RunError::Stuck { rank, at, limit_ms: self.limit.as_millis() as u64 }
    }

    /// The error of a rank whose socket closed.
    fn died(&mut self, rank: u32) -> RunError {
        let mut how = (self.ended)(rank);
        let until = Instant::now() + GRACE;
        while how.is_none() && Instant::now() < until {
            // The socket closes a moment before the process can be reaped.
            std::thread::sleep(Duration::from_millis(1));
            how = (self.ended)(rank);
        }
        match how {
            Some(End { code: Some(REFUSED), .. }) => RunError::Refused { rank },
            how => death(self.plan, self.control, rank, how.map(|end| end.how)),
        }
    }
}

/// The exit code of a rank that the system refused something.
const REFUSED: i32 = 2;

/// How the process of a rank ended.
#[derive(Debug)]
pub(super) struct End {
    /// `signal 9, SIGKILL` or `exit code 3`.
    pub how: String,
    /// Its exit code, if it ended by itself.
    pub code: Option<i32>,
}

/// The error of a rank that is gone, and how if that is known.
pub(super) fn death(plan: &Plan, control: &Control, rank: u32, how: Option<String>) -> RunError {
    let how = how.unwrap_or_else(|| "its process is gone".into());
    let progress = control.progress(rank);
    match locate(plan, &progress) {
        Some((step, node, op)) => RunError::Died { rank, how, step, node, op, run: progress.run },
        None if progress.beats == 0 => {
            RunError::DiedOutside { rank, how, when: "before the first step".into() }
        }
        None => RunError::DiedOutside { rank, how, when: "between steps".into() },
    }
}

/// The error that explains the others.
pub(super) fn cause(errors: Vec<RunError>) -> RunError {
    let weight = |e: &RunError| match e {
        RunError::Died { .. } | RunError::DiedOutside { .. } | RunError::Refused { .. } => 0,
        RunError::PlanDiffers { .. } | RunError::VersionDiffers { .. } => 1,
        RunError::SizesDiffer { .. } => 1,
        RunError::Invalid(_) | RunError::Defect(_) | RunError::CannotRun { .. } => 1,
        RunError::Unsupported(_) => 1,
        RunError::Step { .. } | RunError::Data { .. } => 2,
        RunError::Memory { .. } | RunError::Exhausted { .. } | RunError::System { .. } => 2,
        RunError::Protocol { .. } => 3,
        RunError::Limit { .. } => 4,
        RunError::Stuck { .. } | RunError::Absent { .. } => 5,
        RunError::Aborted { .. } => 6,
    };
    let none = || RunError::system("the run", "failed without an error");
    errors.into_iter().min_by_key(weight).unwrap_or_else(none)
}
