//! Jobs on processes that this one starts: the message for each rank, and the shared memory of its inputs and
//! outputs.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use symmc_control::{
    JoinedRank, LaunchConfig, LaunchedRank, MemorySegment, RankCommand, RankConfig, SegmentAccess,
    launch_ranks,
};
use symmc_ir::entity::Entity;
use symmc_ir::{SymbolBindings, SymbolId, Tensor};
use symmc_plan::{ParsedPlan, Plan};
use symmc_support::Backing;

use super::inputs::{FileStamp, InputLocation, LocatedInput, OpenFile};
use super::needs::TensorSlot;
use super::rank::{Job, JobResult, expect_all_inputs, expect_rank_count, job_terms};
use super::run::{OpenSession, RankWorkload, run_joined_rank};
use crate::error::{Result, RunError};
use crate::exec::unread_plan_error;
use crate::session::join::{plan_subject, session_groups, step_locator, symmetric_bytes};

/// A plan at some sizes, as sent to ranks that are processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlanMessage {
    /// The plan as JSON.
    plan: String,
    /// The value of each symbol of the imported program, by id.
    bindings: Vec<Option<i64>>,
    pub config: RankConfig,
}

/// A job as sent to ranks that are processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobMessage {
    plan: PlanMessage,
    repeats: u32,
    trace: Option<PathBuf>,
    /// The location of the data for each rank and input.
    inputs: Vec<Vec<InputLocation>>,
    files: Vec<FileStamp>,
    /// The offset and size of each output in the segment of the rank.
    outputs: Vec<[usize; 2]>,
}

/// The indices of a job's segments; its text has index 0.
const INPUTS: usize = 1;
const OUTPUTS: usize = 2;

/// Runs a job on one process for each rank. `task` makes each process's message from the message of the job;
/// the process passes this to [`JobMessage::run`]. Fails if the inputs do not fit the plan, a process cannot
/// be started, or a rank failed, died or hung.
pub fn launch_job<T: Serialize>(
    job: &Job<'_>,
    command: &RankCommand,
    task: impl FnOnce(JobMessage) -> T,
) -> Result<JobResult> {
    let ranks = expect_rank_count(job)?;
    let slots = expect_all_inputs(job)?;
    let memory = JobMemory::new(job, &slots)?;
    let config = LaunchConfig {
        segments: &|rank| vec![&memory.inputs, &memory.outputs[rank as usize]],
        files: memory.files.iter().filter_map(|file| file.file()).collect::<Vec<BorrowedFd<'_>>>(),
        ..launch_config(job.plan, &job.config, ranks)?
    };
    let answers = launch_ranks(config, command, &task(memory.job_message(job)))?;
    let times = answers.iter().map(|text| serde_json::from_str(text));
    let times = times.collect::<Result<_, _>>().map_err(|e| RunError::system("reading the times", e))?;
    Ok(JobResult { outputs: memory.read_outputs(&slots)?, times })
}

/// A launch of ranks that run a plan, without segments or files.
fn launch_config<'a>(plan: &ParsedPlan, config: &RankConfig, ranks: u32) -> Result<LaunchConfig<'a>> {
    Ok(LaunchConfig {
        ranks,
        groups: session_groups(plan, config),
        arena: symmetric_bytes(plan, config)?,
        limit: config.limit,
        locate_step: step_locator(plan),
        segments: &|_| Vec::new(),
        files: Vec::new(),
    })
}

/// Starts one process for each rank of a plan for a task that is not a job, such as a measurement; returns
/// the answer of each. Fails if a process cannot be started, or a rank failed, died or hung.
pub fn launch_plan_task<T: Serialize>(
    plan: &ParsedPlan,
    bindings: &SymbolBindings,
    config: &RankConfig,
    command: &RankCommand,
    task: impl FnOnce(PlanMessage) -> T,
) -> Result<Vec<String>> {
    let launch = launch_config(plan, config, plan.ranks)?;
    launch_ranks(launch, command, &task(PlanMessage::new(plan, bindings, config)))
}

impl PlanMessage {
    fn new(plan: &ParsedPlan, bindings: &SymbolBindings, config: &RankConfig) -> PlanMessage {
        let symbols = plan.source_program().symbols.keys();
        PlanMessage {
            plan: plan.to_json(),
            bindings: symbols.map(|symbol| bindings.get(symbol)).collect(),
            config: config.clone(),
        }
    }

    pub fn read_plan(&self) -> Result<ParsedPlan> {
        let plan = Plan::from_json(&self.plan).map_err(|e| RunError::Invalid(e.to_string()))?;
        ParsedPlan::parse(Arc::new(plan)).map_err(unread_plan_error)
    }

    pub fn bindings(&self) -> SymbolBindings {
        let mut bindings = SymbolBindings::new();
        for (id, value) in self.bindings.iter().enumerate() {
            value.iter().for_each(|&value| bindings.set(SymbolId::new(id), value));
        }
        bindings
    }

    pub fn join(&self, rank: &mut LaunchedRank, plan: &ParsedPlan, runs: u32) -> Result<JoinedRank> {
        let terms = job_terms(plan, &self.bindings(), runs);
        let joined = rank.join(plan_subject(plan), &terms, step_locator(plan))?;
        Ok(joined.with_chaos(self.config.chaos))
    }
}

impl JobMessage {
    /// Runs the job on its rank, in the session that `open` opens.
    pub fn run(self, rank: &mut LaunchedRank, open: &OpenSession<'_>) -> Result<()> {
        let plan = self.plan.read_plan()?;
        let bindings = self.plan.bindings();
        let shared = rank.map_segment(INPUTS, "the inputs", SegmentAccess::Read)?;
        let output_segment = rank.map_segment(OUTPUTS, "the outputs of a rank", SegmentAccess::ReadWrite)?;
        let places = self.inputs.get(rank.rank() as usize).map_or(&[][..], |places| places);
        let files = rank.take_files().into_iter().zip(self.files.iter().copied());
        let files = files.map(|(fd, stamp)| OpenFile::new(fd, stamp)).collect::<Result<Vec<_>, _>>()?;
        let mut inputs = Vec::with_capacity(places.len());
        for location in places {
            inputs.push(match location.file {
                None => {
                    let start = shared.checked_address(location.offset, location.len)?;
                    // SAFETY: the launcher wrote the inputs before it sent the segment, and nothing writes
                    // them again.
                    LocatedInput::Memory(unsafe { std::slice::from_raw_parts(start, location.len) })
                }
                Some(file) => {
                    let file = files.get(file).ok_or_else(|| {
                        RunError::system("reading the job", "a file of inputs was not sent")
                    })?;
                    file.locate_input(location)?
                }
            });
        }
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for &[offset, len] in &self.outputs {
            let start = output_segment.checked_address(offset, len)?;
            // SAFETY: the launcher placed the outputs disjointly; nothing else touches them before the end.
            outputs.push(unsafe { std::slice::from_raw_parts_mut(start, len) });
        }
        let joined = self.plan.join(rank, &plan, self.repeats)?;
        let runs = RankWorkload {
            plan: &plan,
            bindings: &bindings,
            config: &self.plan.config,
            repeats: self.repeats,
            trace: self.trace.as_deref(),
            inputs: inputs.iter().map(LocatedInput::data).collect(),
            outputs,
        };
        run_joined_rank(joined, runs, open).map(drop)
    }
}

/// The shared memory through which ranks receive the inputs of a job and return its outputs.
struct JobMemory {
    /// The data of all inputs of all ranks that do not lie in files; equal tensors are stored once.
    inputs: MemorySegment,
    places: Vec<Vec<InputLocation>>,
    /// The files that contain inputs, which ranks read directly.
    files: Vec<Arc<dyn Backing>>,
    /// The outputs of each rank, and the place of each output in its segment.
    outputs: Vec<MemorySegment>,
    output_places: Vec<[usize; 2]>,
}

impl JobMemory {
    fn new(job: &Job<'_>, slots: &[TensorSlot]) -> Result<JobMemory> {
        let files = backing_files(job.inputs);
        let mut index_of_tensor: BTreeMap<*const Tensor, usize> = BTreeMap::new();
        let mut tensors: Vec<&Arc<Tensor>> = Vec::new();
        for tensor in job.inputs.iter().flatten().filter(|t| location_in_file(t, &files).is_none()) {
            index_of_tensor.entry(Arc::as_ptr(tensor)).or_insert_with(|| {
                tensors.push(tensor);
                tensors.len() - 1
            });
        }
        let (starts, end) = segment_layout(tensors.iter().map(|t| t.data().len()))?;
        let inputs = MemorySegment::create("the inputs", end)?;
        for (tensor, &start) in tensors.iter().zip(&starts) {
            store_tensor(&inputs, start, tensor)?;
        }
        let mut places = Vec::with_capacity(job.inputs.len());
        for inputs in job.inputs {
            let of_rank = inputs.iter().map(|t| {
                let start = index_of_tensor.get(&Arc::as_ptr(t)).map_or(0, |&i| starts[i]);
                let copied = InputLocation { file: None, offset: start, len: t.data().len() };
                location_in_file(t, &files).unwrap_or(copied)
            });
            places.push(of_rank.collect());
        }
        let (starts, end) = segment_layout(slots.iter().map(|slot| slot.bytes))?;
        let output_places = starts.iter().zip(slots).map(|(&start, slot)| [start, slot.bytes]).collect();
        let outputs = job.inputs.iter().map(|_| MemorySegment::create("the outputs of a rank", end));
        Ok(JobMemory { inputs, places, files, outputs: outputs.collect::<Result<_, _>>()?, output_places })
    }

    fn job_message(&self, job: &Job<'_>) -> JobMessage {
        JobMessage {
            plan: PlanMessage::new(job.plan, &job.bindings, &job.config),
            repeats: job.repeats,
            trace: job.trace.clone(),
            inputs: self.places.clone(),
            files: self.files.iter().map(|file| FileStamp::from_backing(&**file)).collect(),
            outputs: self.output_places.clone(),
        }
    }

    fn read_outputs(&self, slots: &[TensorSlot]) -> Result<Vec<Vec<Tensor>>> {
        let mut tensors_by_rank = Vec::with_capacity(self.outputs.len());
        for segment in &self.outputs {
            let tensors = self.output_places.iter().zip(slots).map(|(&[offset, len], slot)| {
                // SAFETY: the places were laid out within the segment; the ranks have ended.
                let bytes = unsafe { std::slice::from_raw_parts(segment.as_ptr().add(offset), len) };
                slot.to_tensor(bytes.to_vec())
            });
            tensors_by_rank.push(tensors.collect::<Result<_>>()?);
        }
        Ok(tensors_by_rank)
    }
}

/// The start of each of these sizes when they are stored one after another, aligned for every dtype, and the
/// end.
pub(super) fn segment_layout(sizes: impl Iterator<Item = usize>) -> Result<(Vec<usize>, usize)> {
    let mut starts = Vec::new();
    let mut end = 0usize;
    for size in sizes {
        starts.push(end);
        let next = end.checked_add(size).and_then(|e| e.checked_next_multiple_of(64));
        end = next.ok_or_else(|| RunError::system("laying out tensors", "their size overflows"))?;
    }
    Ok((starts, end))
}

fn backing_files(inputs: &[Vec<Arc<Tensor>>]) -> Vec<Arc<dyn Backing>> {
    let mut out: Vec<Arc<dyn Backing>> = Vec::new();
    for slice in inputs.iter().flatten().filter_map(|t| t.backing_slice()) {
        if slice.backing().file().is_some()
            && !out.iter().any(|backing| Arc::ptr_eq(backing, slice.backing()))
        {
            out.push(slice.backing().clone());
        }
    }
    out
}

fn location_in_file(tensor: &Tensor, files: &[Arc<dyn Backing>]) -> Option<InputLocation> {
    let slice = tensor.backing_slice()?;
    let file = files.iter().position(|file| Arc::ptr_eq(file, slice.backing()))?;
    Some(InputLocation { file: Some(file), offset: slice.range().start, len: slice.range().len() })
}

/// Writes a tensor at `start` of a segment that was laid out for it.
fn store_tensor(segment: &MemorySegment, start: usize, tensor: &Tensor) -> Result<()> {
    let into = segment_slice(segment, start, tensor.data().len());
    tensor.read(0, into).map_err(|e| RunError::Invalid(format!("the inputs: {e}")))
}

/// The `len` bytes at `start` of a segment of this process.
#[allow(clippy::mut_from_ref)]
fn segment_slice(segment: &MemorySegment, start: usize, len: usize) -> &mut [u8] {
    assert!(start + len <= segment.len(), "tensors lie within the segment laid out for them");
    // SAFETY: the range lies within the segment, which no other process has yet, and callers write one range
    // at a time.
    unsafe { std::slice::from_raw_parts_mut(segment.as_ptr().add(start), len) }
}
