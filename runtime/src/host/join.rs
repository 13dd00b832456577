//! Ranks that another launcher started: torchrun, `mpirun` or Slurm.
//!
//! Each process finds its rank in the environment and meets the others at an abstract Unix socket, where
//! rank 0 coordinates. The name of the socket is made of the user and of what identifies the run, so runs
//! do not meet each other; an abstract name vanishes with its process. Both sides accept only processes of
//! the same user, by the kernel's word. All ranks are on one host.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use nix::unistd::getuid;
use symmc_ir::{Bindings, Tensor};
use symmc_planner::CheckedPlan;

use super::channel::{Channel, FromRank, ToRank, Welcome, accept, same_user};
use super::comm::{Comm, World};
use super::coordinator::{Coordinator, Member};
use super::engine::{Engines, RankRun};
use super::job::{HostConfig, Needs};
use super::rank::{Protocol, agree, map_world, receive_welcome};
use super::walk::{LocalMemory, arena_size};
use crate::error::RunError;

/// Ranks have at least this long to find each other.
const JOINING: Duration = Duration::from_secs(60);
/// How long a process that connected has to say which rank it is.
const GREETING: Duration = Duration::from_secs(5);
/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

/// This process's place in a run that another launcher started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// This process's rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// What tells this run from others of the user.
    pub run: String,
}

impl Membership {
    /// The place that the environment gives: `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` (torchrun),
    /// `OMPI_COMM_WORLD_RANK` and `OMPI_COMM_WORLD_SIZE` (Open MPI) or `SLURM_PROCID` and `SLURM_NTASKS`.
    /// `None` if it gives none.
    ///
    /// # Errors
    /// A variable is missing or no number, or the ranks are on several hosts.
    pub fn from_env() -> Result<Option<Membership>, RunError> {
        Membership::from_variables(&|name| std::env::var(name).ok())
    }

    fn from_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Membership>, RunError> {
        let families = [
            ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
        ];
        let Some((rank, size, local)) = families.into_iter().find(|f| get(f.0).is_some()) else {
            return Ok(None);
        };
        let number = |name: &str| -> Result<u32, RunError> {
            let text = get(name)
                .ok_or_else(|| RunError::Invalid(format!("the environment sets {rank}, but not {name}")))?;
            let invalid = |_| RunError::Invalid(format!("{name}: expected a number, found {text:?}"));
            text.trim().parse().map_err(invalid)
        };
        let (me, ranks) = (number(rank)?, number(size)?);
        if ranks == 0 {
            return Err(RunError::Invalid(format!("{size}: expected at least 1 rank, found 0")));
        }
        if me >= ranks {
            return Err(RunError::Invalid(format!("{rank}: expected a number below {ranks}, found {me}")));
        }
        let nodes = get("SLURM_STEP_NUM_NODES").or(get("SLURM_NNODES")).filter(|_| rank == "SLURM_PROCID");
        let here = get(local).filter(|_| rank != "SLURM_PROCID");
        if here.is_some_and(|n| n.trim() != ranks.to_string()) || nodes.is_some_and(|n| n.trim() != "1") {
            return Err(RunError::Invalid(format!(
                "the {ranks} ranks are on several hosts: host ranks share memory and must be on one"
            )));
        }
        let identity = match rank {
            "RANK" => ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"],
            "OMPI_COMM_WORLD_RANK" => ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
            _ => ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME"],
        };
        if rank == "RANK" && get("MASTER_PORT").is_none() {
            return Err(RunError::Invalid("the environment sets RANK, but not MASTER_PORT".into()));
        }
        let run = identity.map(|name| get(name).unwrap_or_default()).join("/");
        Ok(Some(Membership { rank: me, ranks, run: format!("{rank}/{run}") }))
    }

    /// The address where the ranks meet.
    fn address(&self) -> Result<UnixAddr, RunError> {
        let name = format!("symmc-{}-{:016x}", getuid(), fnv(self.run.as_bytes()));
        UnixAddr::new_abstract(name.as_bytes()).map_err(|e| RunError::system("naming the meeting point", e))
    }
}

/// What one rank of such a run brings along.
#[derive(Clone, Debug)]
pub struct RankJob<'a> {
    /// The plan; the same on all ranks.
    pub plan: &'a CheckedPlan,
    /// The values of the imported program's symbols; the same on all ranks.
    pub bindings: Bindings,
    /// This rank's tensor for each input of the program, constants included.
    pub inputs: &'a [Arc<Tensor>],
    /// How often the plan runs, at least once; the same on all ranks.
    pub repeats: u32,
    /// What else must be the same on all ranks, by name: the seed of drawn inputs, the file of recorded ones.
    pub settings: &'a [(String, String)],
    /// How it runs.
    pub config: HostConfig,
}

/// Runs this process's rank together with the others on the engine that the job chooses; its outputs.
///
/// # Errors
/// The inputs do not fit the plan, an op has no kernel, the other ranks do not come or run something else, or a rank failed.
pub fn run_rank(place: &Membership, job: &RankJob, engines: &Engines<'_>) -> Result<Vec<Tensor>, RunError> {
    if job.plan.ranks != place.ranks {
        let (expected, found) = (job.plan.ranks, place.ranks);
        return Err(RunError::Invalid(format!("the plan is for {expected} ranks, the run has {found}")));
    }
    let inputs = [job.inputs.to_vec()];
    let needs = Needs::of(job.plan, &job.bindings, &inputs, place.rank)?;
    let until = Instant::now() + joining(job);
    if place.rank != 0 {
        return run_joined(place, job, engines, &needs, until);
    }
    let listener = meeting_point(place)?;
    std::thread::scope(|scope| {
        let coordinator = scope.spawn(|| coordinate(place, job, &needs, &listener));
        let result = run_joined(place, job, engines, &needs, until);
        let verdict =
            coordinator.join().unwrap_or_else(|_| Err(RunError::system("the coordinator", "panicked")));
        verdict.and(result)
    })
}

/// How long ranks may take to find each other.
fn joining(job: &RankJob) -> Duration {
    job.config.limit.max(JOINING)
}

/// Joins as this rank and runs.
fn run_joined(
    place: &Membership,
    job: &RankJob,
    engines: &Engines<'_>,
    needs: &Needs,
    until: Instant,
) -> Result<Vec<Tensor>, RunError> {
    let channel = connect_to(place, until)?;
    let (rank, ranks, run) = (place.rank, place.ranks, place.run.clone());
    channel.send(&FromRank::Join { rank, ranks, run })?;
    let (welcome, fds) = receive_welcome(&channel, until)?;
    if welcome.arena != arena_size(job.plan.arenas.symmetric)? {
        // The plans differ; comparing their hashes names the ranks.
        agree(&channel, rank, job.plan, &job.bindings, job.repeats, job.settings)?;
        return Err(RunError::system("the symmetric arena", "has another size than the plan says"));
    }
    let world = map_world(&welcome, &mut fds.into_iter())?;
    let comm = Comm::new(world, rank, job.config.comm(ranks))?;
    let memory = LocalMemory::new(job.plan.arenas.ordinary, job.inputs, &needs.mutated, &needs.outputs)?;
    let run = RankRun {
        plan: job.plan,
        bindings: &job.bindings,
        repeats: job.repeats,
        config: &job.config,
        comm: &comm,
    };
    let protocol =
        Protocol { channel: &channel, welcome: &welcome, run: &run, settings: job.settings, engines };
    // SAFETY: the memory is this rank's own and as large as the program says; the inputs live in the job.
    unsafe { protocol.start(&memory.rank(&comm))? };
    memory.outputs(&needs.outputs)
}

/// The socket at which ranks meet.
fn meeting_point(place: &Membership) -> Result<OwnedFd, RunError> {
    let failed = |e: Errno| match e {
        Errno::EADDRINUSE => RunError::Invalid(format!(
            "another run of this user meets at the same point ({}): is MASTER_PORT in use?",
            place.run
        )),
        e => RunError::system("opening the meeting point", e),
    };
    let fd = seqpacket().map_err(failed)?;
    bind(fd.as_raw_fd(), &place.address()?).map_err(failed)?;
    let backlog = Backlog::new(place.ranks.min(1024) as i32).unwrap_or(Backlog::MAXCONN);
    listen(&fd, backlog).map_err(failed)?;
    Ok(fd)
}

fn seqpacket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}

/// Connects to rank 0, which may not be there yet.
fn connect_to(place: &Membership, until: Instant) -> Result<Channel, RunError> {
    let address = place.address()?;
    loop {
        let fd = seqpacket().map_err(|e| RunError::system("opening a control socket", e))?;
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) if same_user(&fd) => return Ok(Channel::new(fd, 0)),
            Ok(()) => {
                return Err(RunError::Invalid(format!(
                    "the meeting point of {} belongs to another user",
                    place.run
                )));
            }
            Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::EAGAIN | Errno::EINTR)
                if Instant::now() < until =>
            {
                std::thread::sleep(RETRY);
            }
            Err(e) => return Err(RunError::system(format!("rank {} did not find rank 0", place.rank), e)),
        }
    }
}

/// Collects all ranks, then coordinates them.
fn coordinate(place: &Membership, job: &RankJob, needs: &Needs, listener: &OwnedFd) -> Result<(), RunError> {
    let mut channels: Vec<Option<Channel>> = (0..place.ranks).map(|_| None).collect();
    let result = collect(place, listener, joining(job), &mut channels).and_then(|()| {
        let arena = arena_size(job.plan.arenas.symmetric)?;
        World::create(place.ranks, needs.groups, arena, job.config.first)
    });
    let channels: Vec<Channel> = channels.into_iter().flatten().collect();
    let world = result.inspect_err(|error| {
        for channel in &channels {
            // A rank that cannot be told is gone.
            let _ = channel.send(&ToRank::Verdict(Some(error.clone())));
        }
    })?;
    for (rank, channel) in (0..).zip(&channels) {
        let (ranks, groups, arena) = (place.ranks, needs.groups, world.arenas[0].len());
        let welcome =
            Welcome { rank, ranks, groups, arena, first: job.config.first, job: None, files: vec![] };
        channel.send(&ToRank::Welcome(welcome))?;
        channel.send_fds(&world.fds().into_iter().flatten().collect::<Vec<_>>())?;
    }
    let mut ended = |_| None;
    let mut coordinator = Coordinator {
        plan: job.plan,
        control: &world.control,
        limit: job.config.limit,
        members: channels.into_iter().map(Member::new).collect(),
        ended: &mut ended,
    };
    coordinator.run()
}

/// Accepts one connection for each rank.
fn collect(
    place: &Membership,
    listener: &OwnedFd,
    limit: Duration,
    channels: &mut [Option<Channel>],
) -> Result<(), RunError> {
    let until = Instant::now() + limit;
    while let Some(missing) = channels.iter().position(Option::is_none) {
        let Some(fd) = accept(listener, until)? else {
            let at = "before joining the run".into();
            let limit_ms = limit.as_millis() as u64;
            return Err(RunError::Stuck { rank: missing as u32, at, limit_ms });
        };
        if !same_user(&fd) {
            continue;
        }
        let mut channel = Channel::new(fd, 0);
        // A process that says nothing sensible is not a rank.
        let Ok(Some(FromRank::Join { rank, ranks, run })) = channel.receive(Some(Instant::now() + GREETING))
        else {
            continue;
        };
        channel.set_peer(rank);
        let known = channels.get(rank as usize).is_some_and(Option::is_some);
        if run != place.run || ranks != place.ranks || rank >= place.ranks || known {
            let reason = match known {
                true => format!("two processes say that they are rank {rank} of this run"),
                false => format!("rank {rank} of {ranks} came to a run of {} ranks", place.ranks),
            };
            let error = RunError::Invalid(reason);
            // The stranger is told as the others are.
            let _ = channel.send(&ToRank::Verdict(Some(error.clone())));
            return Err(error);
        }
        channels[rank as usize] = Some(channel);
    }
    Ok(())
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Option<Membership>, RunError> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
        Membership::from_variables(&get)
    }

    #[test]
    fn places_from_the_environment() {
        assert_eq!(place(&[]), Ok(None));
        let torch = [("RANK", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let found = place(&torch).unwrap().unwrap();
        assert_eq!((found.rank, found.ranks), (2, 4));
        let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_NAMESPACE", "x")];
        let other = place(&mpi).unwrap().unwrap();
        assert_eq!((other.rank, other.ranks), (0, 2));
        assert_ne!(found.address().unwrap(), other.address().unwrap());
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "3"), ("SLURM_NNODES", "1")];
        assert_eq!(place(&slurm).unwrap().map(|p| p.rank), Some(1));
    }

    #[test]
    fn impossible_places_are_refused() {
        let error = |variables: &[(&str, &str)]| place(variables).unwrap_err().to_string();
        assert!(error(&[("RANK", "0")]).contains("WORLD_SIZE"));
        assert!(error(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("expected a number"));
        assert!(error(&[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "1")]).contains("below 2"));
        let hosts = [("RANK", "0"), ("WORLD_SIZE", "16"), ("LOCAL_WORLD_SIZE", "8"), ("MASTER_PORT", "1")];
        assert!(error(&hosts).contains("several hosts"));
    }
}
