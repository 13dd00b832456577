//! The launcher: one process for each rank, started by this one.
//!
//! A rank inherits one control socket and is handed the shared memory over it. Ranks die with the launcher
//! (`PR_SET_PDEATHSIG`), and the launcher kills and reaps every rank before it returns, whatever happened. It waits no
//! longer than the limit for the process of a rank to begin.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::{Deserialize, Serialize};
use symmc_ir::entity::Entity;
use symmc_ir::{SymbolId, Tensor};
use symmc_support::Backing;

use super::channel::{Channel, ToRank, Welcome};
use super::comm::World;
use super::coordinator::{Coordinator, End, Member, RankProcesses};
use super::inputs::{FileStamp, InputPlace};
use super::job::{HostConfig, Job, Needs, Ran, RankCommand};
use super::memory::Segment;
use super::rank_memory::{arena_size, lay_out, read_tensor};
use super::spawn::{CallFailure, RankProcess};
use super::threads::expect_ranks;
use super::trace::enter_coordinator_span;
use crate::error::RunError;

/// How long ranks have to end by themselves after a run.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long reaping killed ranks may take.
const REAPING: Duration = Duration::from_secs(5);

/// The job as ranks read it from shared memory.
#[derive(Serialize, Deserialize)]
pub(super) struct JobText {
    /// The plan as JSON.
    pub plan: String,
    /// The value of each symbol of the imported program, by id.
    pub bindings: Vec<Option<i64>>,
    pub repeats: u32,
    pub config: HostConfig,
    /// For each rank and input where its data lie.
    pub inputs: Vec<Vec<InputPlace>>,
    /// For each input that an output mutates, its offset in the rank's own segment.
    pub mutated: Vec<Option<usize>>,
    /// The offset and size of each output in the rank's own segment.
    pub outputs: Vec<[usize; 2]>,
}

/// Runs a job on one process for each rank; the outputs of each rank.
///
/// # Errors
/// The inputs do not fit the plan, a process cannot be started, or a rank failed, died or hung.
pub fn launch(job: &Job, command: &RankCommand) -> Result<Vec<Vec<Tensor>>, RunError> {
    launch_timed(job, command).map(|ran| ran.outputs)
}

/// As [`launch`], with the times of the runs.
///
/// # Errors
/// As [`launch`].
pub fn launch_timed(job: &Job, command: &RankCommand) -> Result<Ran, RunError> {
    let ranks = expect_ranks(job)?;
    let needs = Needs::of(job.plan, &job.bindings, job.inputs, 0)?;
    let memory = JobMemory::new(job, &needs)?;
    let arena = arena_size(job.plan.arenas.symmetric)?;
    let world = World::create(ranks, needs.groups, arena, job.config.first)?;

    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|e| RunError::of_call("opening /dev/null", "open", e))?;
    let mut processes = Processes { children: Vec::new(), null };
    let mut members = Vec::new();
    for rank in 0..ranks {
        let channel = processes.spawn(command, rank, job.config.limit)?;
        let welcome = Welcome {
            rank,
            ranks,
            groups: needs.groups,
            arena,
            first: job.config.first,
            job: Some([memory.text.len(), memory.inputs.len(), memory.own[rank as usize].len()]),
            files: memory.files.iter().map(|file| FileStamp::of(&**file)).collect(),
        };
        channel.send(&ToRank::Welcome(welcome))?;
        let mut fds = world.fds();
        fds.extend([&memory.text, &memory.inputs, &memory.own[rank as usize]].map(Segment::fd));
        fds.extend(memory.files.iter().map(|file| file.file()));
        channel.send_fds(&fds.into_iter().flatten().collect::<Vec<BorrowedFd>>())?;
        members.push(Member::new(channel));
    }
    let _span = enter_coordinator_span();
    let mut coordinator = Coordinator {
        processes: Some(&mut processes),
        ..Coordinator::new(job.plan, &world.control, members, job.config.limit)
    };
    coordinator.run()?;
    drop(coordinator);
    processes.farewell();
    let times = (0..ranks).map(|rank| world.control.times(rank)).collect();
    Ok(Ran { outputs: memory.outputs(&needs)?, times })
}

impl World {
    /// The descriptors of all segments: control, staging, then the arenas.
    pub(super) fn fds(&self) -> Vec<Option<BorrowedFd<'_>>> {
        let first = [self.control.segment().fd(), self.staging.fd()];
        first.into_iter().chain(self.arenas.iter().map(|a| a.fd())).collect()
    }
}

/// The shared memory through which ranks get their job and give their outputs.
struct JobMemory {
    text: Segment,
    /// The data of all inputs of all ranks that do not lie in files; equal tensors lie there once.
    inputs: Segment,
    /// The files that inputs lie in, which ranks read as well.
    files: Vec<Arc<dyn Backing>>,
    /// For each rank its outputs and the inputs that they mutate.
    own: Vec<Segment>,
    outputs: Vec<[usize; 2]>,
}

impl JobMemory {
    fn new(job: &Job, needs: &Needs) -> Result<JobMemory, RunError> {
        let files = files_of(job.inputs);
        let mut known: BTreeMap<*const Tensor, usize> = BTreeMap::new();
        let mut tensors: Vec<&Arc<Tensor>> = Vec::new();
        for tensor in job.inputs.iter().flatten().filter(|t| in_file(t, &files).is_none()) {
            known.entry(Arc::as_ptr(tensor)).or_insert_with(|| {
                tensors.push(tensor);
                tensors.len() - 1
            });
        }
        let (starts, end) = lay_out(tensors.iter().map(|t| t.data().len()))?;
        let inputs = Segment::create("the inputs", end)?;
        for (tensor, &start) in tensors.iter().zip(&starts) {
            store(&inputs, start, tensor)?;
        }
        let place = |t: &Arc<Tensor>| {
            let start = known.get(&Arc::as_ptr(t)).map_or(0, |&i| starts[i]);
            let copied = InputPlace { file: None, offset: start, len: t.data().len() };
            in_file(t, &files).unwrap_or(copied)
        };
        let places = job.inputs.iter().map(|inputs| inputs.iter().map(place).collect()).collect();

        let mutated: Vec<usize> = (0..needs.mutated.len()).filter(|&i| needs.mutated[i]).collect();
        let first = job.inputs.first().map_or(&[][..], |inputs| &inputs[..]);
        let sizes = needs.outputs.iter().map(|o| o.bytes);
        let (starts, end) = lay_out(sizes.chain(mutated.iter().map(|&i| first[i].data().len())))?;
        let (outputs, copies) = starts.split_at(needs.outputs.len());
        let outputs: Vec<[usize; 2]> =
            outputs.iter().zip(&needs.outputs).map(|(&s, o)| [s, o.bytes]).collect();
        let mut own = Vec::new();
        for inputs in job.inputs {
            let segment = Segment::create("the outputs of a rank", end)?;
            mutated.iter().zip(copies).try_for_each(|(&i, &at)| store(&segment, at, &inputs[i]))?;
            own.push(segment);
        }
        let mut at = vec![None; needs.mutated.len()];
        mutated.iter().zip(copies).for_each(|(&i, &offset)| at[i] = Some(offset));

        let text = JobText {
            plan: job.plan.to_json(),
            bindings: (0..needs.symbols).map(|i| job.bindings.get(SymbolId::new(i))).collect(),
            repeats: job.repeats,
            config: job.config.clone(),
            inputs: places,
            mutated: at,
            outputs: outputs.clone(),
        };
        let text = serde_json::to_vec(&text).map_err(|e| RunError::system("writing the job", e))?;
        let segment = Segment::create("the job", text.len())?;
        put(&segment, 0, text.len()).copy_from_slice(&text);
        Ok(JobMemory { text: segment, inputs, files, own, outputs })
    }

    /// The outputs of all ranks, after all have ended.
    fn outputs(&self, needs: &Needs) -> Result<Vec<Vec<Tensor>>, RunError> {
        let of_rank = |own: &Segment| {
            let at = |[offset, _]: &[usize; 2]| own.as_ptr().wrapping_add(*offset);
            // SAFETY: the places were laid out within the segment; the ranks have ended.
            let read = |(place, slot)| unsafe { read_tensor(at(place), slot) };
            self.outputs.iter().zip(&needs.outputs).map(read).collect()
        };
        self.own.iter().map(of_rank).collect()
    }
}

/// The files that these tensors lie in.
fn files_of(inputs: &[Vec<Arc<Tensor>>]) -> Vec<Arc<dyn Backing>> {
    let mut out: Vec<Arc<dyn Backing>> = Vec::new();
    for part in inputs.iter().flatten().filter_map(|t| t.part()) {
        if part.backing().file().is_some() && !out.iter().any(|known| Arc::ptr_eq(known, part.backing())) {
            out.push(part.backing().clone());
        }
    }
    out
}

/// Where a tensor lies in one of these files.
fn in_file(tensor: &Tensor, files: &[Arc<dyn Backing>]) -> Option<InputPlace> {
    let part = tensor.part()?;
    let file = files.iter().position(|file| Arc::ptr_eq(file, part.backing()))?;
    Some(InputPlace { file: Some(file), offset: part.range().start, len: part.range().len() })
}

/// Writes a tensor at `start` of a segment that was laid out for it.
fn store(segment: &Segment, start: usize, tensor: &Tensor) -> Result<(), RunError> {
    let into = put(segment, start, tensor.data().len());
    tensor.read(0, into).map_err(|e| RunError::Invalid(format!("the inputs: {e}")))
}

/// So many bytes at `start` of a segment of this process.
#[allow(clippy::mut_from_ref)]
fn put(segment: &Segment, start: usize, len: usize) -> &mut [u8] {
    assert!(start + len <= segment.len(), "tensors lie within the segment laid out for them");
    // SAFETY: the range lies within the segment, which no other process has yet, and callers write one place at a time.
    unsafe { std::slice::from_raw_parts_mut(segment.as_ptr().add(start), len) }
}

/// The processes of the ranks. None outlives this value.
struct Processes {
    children: Vec<RankProcess>,
    /// What they read from and write to.
    null: File,
}

impl RankProcesses for Processes {
    fn ended(&mut self, rank: u32) -> Option<End> {
        let status = self.children.get_mut(rank as usize)?.ended()?;
        Some(End { how: how(status), code: status.code() })
    }

    fn is_stopped(&mut self, rank: u32) -> bool {
        self.children.get_mut(rank as usize).is_some_and(RankProcess::is_stopped)
    }
}

impl Processes {
    /// Starts the process of a rank; the launcher's end of its control socket.
    fn spawn(&mut self, command: &RankCommand, rank: u32, limit: Duration) -> Result<Channel, RunError> {
        let failed = |failure: CallFailure| {
            let what = format!("starting rank {rank} ({})", command.program.display());
            RunError::of_call(what, failure.call, failure.error)
        };
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (ours, theirs): (OwnedFd, OwnedFd) =
            pair.map_err(|e| failed(CallFailure::new("socketpair", e)))?;
        let child = RankProcess::start(command, &theirs, &self.null).map_err(failed)?;
        self.children.push(child);
        let begun = self.children.last().map_or(Ok(true), |child| child.await_begin(limit));
        if begun.map_err(failed)? {
            return Ok(Channel::new(ours, rank));
        }
        let (at, limit_ms) = ("before its program began".into(), limit.as_millis() as u64);
        Err(RunError::Stuck { rank, at, limit_ms })
    }

    /// Lets the ranks end by themselves.
    fn farewell(&mut self) {
        self.reap(Instant::now() + FAREWELL);
    }

    /// Waits until all have ended; whether they have.
    fn reap(&mut self, until: Instant) -> bool {
        let mut pause = Duration::from_micros(50);
        loop {
            if self.children.iter_mut().all(|child| child.ended().is_some()) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(RankProcess::kill);
        self.reap(Instant::now() + REAPING);
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(number), _) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number}, {signal}"),
            Err(_) => format!("signal {number}"),
        },
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "unknown status".into(),
    }
}
