//! Walks resolved steps: calls kernels and collectives.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use symmc_ir::InputKind;
use symmc_ir::collective::SyncScope;
use symmc_plan::Lane;
use symmc_support::parallel::spawn_scoped;

use super::bucket::MemorySpace;
use super::communicator::Communicator;
use super::config::{ExecConfig, Lanes, RunReport, Timing};
use super::custom::CustomStep;
use super::memory::{ByteSpan, RankMemory};
use super::resolved::{
    ExecutableStep, ResolvedCollective, ResolvedInput, ResolvedOutput, ResolvedProgram, ResolvedRegion,
    StepWork,
};
use super::slabs::{slab_step, tensor_shapes};
use super::step::{SpaceBases, StepRun};
use crate::call::{CallRegion, CollectiveCall, RegionMemory};
use crate::error::{Result, RunError};
use crate::kernels::{self, KernelCall, Scratch, ScratchNeeds, TensorView, TensorViewMut, compute_with};

/// The longest sleep of a lane before it checks its condition again; a wake-up normally comes first.
const NAP: Duration = Duration::from_millis(50);

impl ResolvedProgram {
    /// Copies parameters and constants that the plan holds in fixed memory to this memory. An input without
    /// caller's memory is left unchanged, unless it is a constant. Fails if the caller's memory does not fit
    /// the program.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    pub unsafe fn load_fixed_inputs(&self, memory: &RankMemory) -> Result<()> {
        self.check_memory(memory)?;
        // SAFETY: the caller's promise; `check_memory` has verified that the memory is large enough.
        unsafe { self.write_fixed_inputs(memory, |kind| kind != InputKind::Argument) };
        Ok(())
    }

    /// Adds the scratch memory of its kernels, in addition to operands and results: that of both lanes, if
    /// they run concurrently.
    pub(super) fn add_scratch_needs(&self, lanes: Lanes, needs: &mut [ScratchNeeds; 2]) {
        fn work_needs(work: &StepWork) -> ScratchNeeds {
            match work {
                StepWork::Kernel { op, operands, results } => {
                    kernels::scratch_needs(op, &tensor_shapes(operands), &tensor_shapes(results))
                }
                StepWork::Dispatch(dispatch) => {
                    let mut dispatch_needs = ScratchNeeds::default();
                    dispatch.members.iter().for_each(|m| dispatch_needs.merge(&work_needs(&m.work)));
                    dispatch_needs.add_bytes(dispatch.inner_bytes);
                    dispatch_needs
                }
                StepWork::Custom { .. } | StepWork::Collective(_) => ScratchNeeds::default(),
            }
        }
        let [compute, comm] = needs;
        for step in &self.steps {
            let step_needs = work_needs(&step.work);
            match (lanes, step.lane) {
                (Lanes::Threads, Lane::Comm) => comm.merge(&step_needs),
                _ => compute.merge(&step_needs),
            }
        }
    }

    /// Whether a step may refuse its data after the last collective in which all of `ranks` ranks meet. If
    /// so, a rank that has run all steps does not know yet whether the run succeeded on all ranks.
    pub fn may_fail_on_one_rank(&self, ranks: u32, lanes: Lanes) -> bool {
        if ranks <= 1 {
            return false;
        }
        for step in self.steps.iter().rev() {
            if meets_all_ranks(&step.work, ranks, lanes) {
                return false;
            }
            if step.work.node_work().any(may_refuse_data) {
                return true;
            }
        }
        false
    }

    /// Runs the program once. Fails if the caller's memory does not fit the program, a kernel refused its
    /// operands, or a collective failed. Inputs that outputs mutate may then be partly changed.
    ///
    /// # Safety
    /// The spans of `memory` must be valid for reads and writes (inputs that no output mutates: for reads)
    /// until this returns. Nothing else may use them meanwhile, except that peers may use the symmetric arena
    /// as the checked plan says. Inputs and outputs overlap neither each other nor the arenas.
    pub unsafe fn run(
        &self,
        memory: &RankMemory,
        comm: &dyn Communicator,
        config: &ExecConfig,
        scratch: &mut [Scratch; 2],
    ) -> Result<RunReport> {
        self.check_memory(memory)?;
        // SAFETY: the caller's promise; `check_memory` has verified that the memory is large enough.
        unsafe { self.write_fixed_inputs(memory, |kind| kind == InputKind::Argument) };
        let bases = self.space_bases(memory);
        let timed = if config.timing == Timing::Steps { self.steps.len() } else { 0 };
        let walk = LaneRunner {
            bound: self,
            bases: &bases,
            comm,
            times: (0..timed).map(|_| AtomicU64::new(0)).collect(),
            done: self.steps.iter().map(|_| AtomicBool::new(false)).collect(),
            failure: Mutex::new(None),
            changed: Condvar::new(),
        };
        match config.lanes {
            Lanes::Inline => walk.run_inline(&mut scratch[0])?,
            Lanes::Threads => walk.run_on_threads(scratch)?,
        }
        // SAFETY: the caller's promise; all steps have ended.
        unsafe { self.write_back_outputs(memory) };
        let times = walk.times.into_iter().map(AtomicU64::into_inner).collect();
        Ok(RunReport { bucket: self.bucket, step_ns: (timed > 0).then_some(times) })
    }

    /// Checks that the memory exists, is large enough and aligned.
    fn check_memory(&self, memory: &RankMemory) -> Result<()> {
        check_span(|| "the ordinary arena".into(), &memory.ordinary, self.ordinary_bytes, 64)?;
        check_span(|| "the symmetric arena".into(), &memory.symmetric, self.symmetric_bytes, 64)?;
        check_count("inputs", self.inputs.len(), memory.inputs.len())?;
        check_count("outputs", self.outputs.len(), memory.outputs.len())?;
        for (i, (input, span)) in self.inputs.iter().zip(&memory.inputs).enumerate() {
            let is_bound = !span.ptr.is_null();
            if is_bound || (input.direct && self.constants[i].is_none()) {
                let describe = || format!("input {i} (%{})", input.name);
                check_span(describe, span, input.bytes, input.dtype.size())?;
            }
        }
        for (k, (output, span)) in self.outputs.iter().zip(&memory.outputs).enumerate() {
            let describe = || format!("output {k} (%{})", output.name);
            check_span(describe, span, output.bytes, output.dtype.size())?;
        }
        Ok(())
    }

    /// The data of an input: the caller's memory, or without it the constant.
    fn input_address(&self, memory: &RankMemory, input: usize) -> *mut u8 {
        match (memory.inputs[input].ptr, &self.constants[input]) {
            (ptr, Some(constant)) if ptr.is_null() && constant.len() > 0 => constant.as_ptr().cast_mut(),
            (ptr, _) => ptr,
        }
    }

    /// The memory in which the steps write an output: that of the input that it replaces, if they share it.
    fn output_address(&self, memory: &RankMemory, output: &ResolvedOutput, span: &ByteSpan) -> *mut u8 {
        output.input_in_place().map_or(span.ptr, |input| self.input_address(memory, input))
    }

    fn space_bases(&self, memory: &RankMemory) -> SpaceBases {
        SpaceBases {
            ordinary: memory.ordinary.ptr,
            symmetric: memory.symmetric.ptr,
            inputs: (0..self.inputs.len()).map(|i| self.input_address(memory, i)).collect(),
            outputs: self
                .outputs
                .iter()
                .zip(&memory.outputs)
                .map(|(o, s)| self.output_address(memory, o, s))
                .collect(),
        }
    }

    /// Copies inputs of the kinds that `which` accepts to the fixed memory that holds them.
    ///
    /// # Safety
    /// As [`run`](Self::run), after [`check_memory`](Self::check_memory).
    unsafe fn write_fixed_inputs(&self, memory: &RankMemory, which: impl Fn(InputKind) -> bool) {
        for (i, input) in self.inputs.iter().enumerate().filter(|(_, input)| which(input.kind)) {
            let Some(offset) = input.fixed else { continue };
            let from = self.input_address(memory, i);
            let destination = memory.symmetric.ptr.wrapping_add(offset);
            if !from.is_null() && from != destination {
                // SAFETY: both hold the bytes of the input: `check_memory` and the resolution of its
                // placement have verified it.
                unsafe { std::ptr::copy(from, destination, input.bytes) };
            }
        }
    }

    /// Copies outputs that mutate inputs to the memory of these inputs: the plan's and the caller's. Outputs
    /// that were written in the memory of the input are copied to the caller's memory of the output instead.
    ///
    /// # Safety
    /// As [`run`](Self::run), after all steps.
    unsafe fn write_back_outputs(&self, memory: &RankMemory) {
        for (output, span) in self.outputs.iter().zip(&memory.outputs) {
            let Some(i) = output.mutates else { continue };
            let from = self.output_address(memory, output, span);
            if output.in_place && from != span.ptr && output.bytes > 0 {
                // SAFETY: both hold the bytes of the output: `check_memory` has verified it.
                unsafe { std::ptr::copy(from, span.ptr, output.bytes) };
                continue;
            }
            let ResolvedInput { fixed, bytes, .. } = self.inputs[i];
            let fixed_address = fixed.map(|offset| memory.symmetric.ptr.wrapping_add(offset));
            let input_address = Some(memory.inputs[i].ptr).filter(|p| !p.is_null());
            for destination in [fixed_address, input_address].into_iter().flatten() {
                if bytes == output.bytes && destination != span.ptr {
                    // SAFETY: both hold the bytes of the output, which has the type of the input.
                    unsafe { std::ptr::copy(span.ptr, destination, bytes) };
                }
            }
        }
    }
}

fn may_refuse_data(work: &StepWork) -> bool {
    match work {
        StepWork::Kernel { op, operands, .. } => kernels::may_refuse_data(op, &tensor_shapes(operands)),
        _ => false,
    }
}

/// Whether all ranks have completed the earlier steps of the run when one of them has completed this work.
fn meets_all_ranks(work: &StepWork, ranks: u32, lanes: Lanes) -> bool {
    match work {
        StepWork::Collective(c) if lanes == Lanes::Inline && c.cell.len() == ranks as usize => {
            c.variant.contract(&c.kind).is_some_and(|contract| contract.sync_scope == SyncScope::Group)
        }
        _ => false,
    }
}

fn check_span(describe: impl FnOnce() -> String, span: &ByteSpan, bytes: usize, align: usize) -> Result<()> {
    let is_aligned = span.ptr.addr().is_multiple_of(align);
    if bytes == 0 || (!span.ptr.is_null() && span.len >= bytes && is_aligned) {
        return Ok(());
    }
    let actual =
        if is_aligned { format!("{} bytes", span.len) } else { "memory without this alignment".into() };
    Err(RunError::Invalid(format!(
        "{}: expected {bytes} bytes aligned to {align}, found {actual}",
        describe()
    )))
}

fn check_count(what: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(RunError::Invalid(format!("expected {expected} {what}, found {found}")))
}

struct LaneRunner<'a> {
    bound: &'a ResolvedProgram,
    bases: &'a SpaceBases,
    comm: &'a dyn Communicator,
    /// Nanoseconds of each step; empty when nothing is measured.
    times: Vec<AtomicU64>,
    /// Which steps have completed.
    done: Vec<AtomicBool>,
    failure: Mutex<Option<RunError>>,
    /// A step completed, or the run failed.
    changed: Condvar,
}

impl LaneRunner<'_> {
    /// Runs all steps in the order of the plan.
    fn run_inline(&self, scratch: &mut Scratch) -> Result<()> {
        for steps in self.bound.steps.chunk_by(|_, next| next.joins_previous) {
            let result = match steps {
                [_, _, ..] if self.times.is_empty() => self.run_in_slabs(steps, scratch),
                _ => steps.iter().try_for_each(|step| self.run_timed_step(step, scratch)),
            };
            result.inspect_err(|error| self.notify_peers(error))?;
        }
        Ok(())
    }

    /// Runs steps together, slab by slab.
    fn run_in_slabs(&self, steps: &[ExecutableStep], scratch: &mut Scratch) -> Result<()> {
        let mut axes = usize::MAX;
        let mut calls: SmallVec<[KernelCall<'_>; 8]> = SmallVec::new();
        for step in steps {
            let (Some(slab), StepWork::Kernel { op, .. }) = (slab_step(step), &step.work) else {
                return steps.iter().try_for_each(|step| self.run_timed_step(step, scratch));
            };
            let run = self.step_run(step);
            axes = axes.min(slab.axes);
            calls.push(KernelCall {
                op,
                operands: slab.operands.iter().map(|x| run.view(x)).collect(),
                result: run.view_mut(slab.result),
            });
        }
        steps.iter().for_each(|step| self.comm.begin_step(step.index));
        kernels::compute_in_slabs(&mut calls, axes, scratch).map_err(|(number, error)| {
            let failed = steps.get(number).or(steps.first());
            failed.map_or_else(
                || RunError::Defect(error.to_string()),
                |step| self.step_run(step).kernel_error(&error),
            )
        })
    }

    /// Runs each lane on a thread; both on one thread if the system cannot start another.
    fn run_on_threads(&self, scratch: &mut [Scratch; 2]) -> Result<()> {
        let [compute, comm] = scratch;
        let started = thread::scope(|scope| {
            let started = spawn_scoped(scope, || self.run_lane(Lane::Compute, compute)).is_ok();
            if started {
                self.run_lane(Lane::Comm, comm);
            }
            started
        });
        if !started {
            return self.run_inline(comm);
        }
        match self.lock_failure().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Notifies the peers of an error that began on this rank.
    fn notify_peers(&self, error: &RunError) {
        if !error.is_consequence() {
            self.comm.abort(error);
        }
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<RunError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the steps of one lane, in order. Ends early when another lane failed.
    fn run_lane(&self, lane: Lane, scratch: &mut Scratch) {
        for step in self.bound.steps.iter().filter(|s| s.lane == lane) {
            if !self.await_steps(&step.waits) {
                return;
            }
            let result = self.run_timed_step(step, scratch);
            let mut failure = self.lock_failure();
            match result {
                Ok(()) => self.done[step.index].store(true, Ordering::Release),
                Err(error) => {
                    self.notify_peers(&error);
                    failure.get_or_insert(error);
                }
            }
            let ended = failure.is_some();
            drop(failure);
            self.changed.notify_all();
            if ended {
                return;
            }
        }
    }

    /// Waits until these steps have completed; returns false if the run failed.
    fn await_steps(&self, waits: &[usize]) -> bool {
        if self.are_done(waits) {
            return true;
        }
        let mut failure = self.lock_failure();
        loop {
            if failure.is_some() {
                return false;
            }
            if self.are_done(waits) {
                return true;
            }
            failure = match self.changed.wait_timeout(failure, NAP) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn are_done(&self, steps: &[usize]) -> bool {
        steps.iter().all(|&step| self.done[step].load(Ordering::Acquire))
    }

    fn run_timed_step(&self, step: &ExecutableStep, scratch: &mut Scratch) -> Result<()> {
        self.comm.begin_step(step.index);
        let Some(time) = self.times.get(step.index) else { return self.run_step(step, scratch) };
        let start = Instant::now();
        let result = self.run_step(step, scratch);
        time.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn step_run<'s>(&'s self, step: &'s ExecutableStep) -> StepRun<'s> {
        StepRun {
            rank: self.bound.rank,
            index: step.index,
            node: &step.node,
            op: &step.op_name,
            comm: self.comm,
            bases: self.bases,
            inner: std::ptr::null_mut(),
        }
    }

    fn run_step(&self, step: &ExecutableStep, scratch: &mut Scratch) -> Result<()> {
        let run = self.step_run(step);
        let StepWork::Dispatch(dispatch) = &step.work else { return run.run_work(&step.work, scratch) };
        let mut inner = scratch.allocate_bytes(dispatch.inner_bytes);
        let inner_address = inner.as_mut_ptr();
        let mut members = dispatch.members.iter();
        let result = members.try_for_each(|member| {
            StepRun { node: &member.node, op: &member.op_name, inner: inner_address, ..run }
                .run_work(&member.work, scratch)
        });
        scratch.return_bytes(inner);
        result
    }
}

impl StepRun<'_> {
    fn run_work(&self, work: &StepWork, scratch: &mut Scratch) -> Result<()> {
        match work {
            StepWork::Kernel { op, operands, results } => {
                let operands: SmallVec<[TensorView<'_>; 4]> = operands.iter().map(|x| self.view(x)).collect();
                let mut results: SmallVec<[TensorViewMut<'_>; 2]> =
                    results.iter().map(|y| self.view_mut(y)).collect();
                compute_with(op, &operands, &mut results, scratch).map_err(|e| self.kernel_error(&e))
            }
            StepWork::Custom { name, kernel, operands, results, peers } => {
                let op = self.op;
                let peers = peers.as_ref();
                let custom = CustomStep { name, op, kernel: &kernel.0, operands, results, peers };
                // SAFETY: as for a collective.
                unsafe { custom.run(self) }
            }
            StepWork::Collective(c) => self.run_collective(c),
            StepWork::Dispatch(_) => {
                Err(RunError::Defect(format!("%{}: a dispatch contains another dispatch", self.node)))
            }
        }
    }

    fn run_collective(&self, c: &ResolvedCollective) -> Result<()> {
        fn call_region<'r>(run: &StepRun<'_>, region: &'r ResolvedRegion) -> CallRegion<'r> {
            let memory = match region.space {
                MemorySpace::Symmetric => RegionMemory::Symmetric,
                space => RegionMemory::Private(run.bases.space_start(space, run.inner)),
            };
            CallRegion { memory, offset: region.offset, by_rank: region.by_rank.as_deref() }
        }
        let call = CollectiveCall {
            step: self.index,
            name: self.node,
            kind: &c.kind,
            variant: c.variant,
            exit: c.exit,
            cell: &c.cell,
            group: c.group,
            dtype: c.dtype,
            elements: c.elements,
            row: c.row_elements,
            operand: call_region(self, &c.operand),
            result: call_region(self, &c.result),
            landing: c.landing,
            splits: c.splits.as_ref().map(|(a, b)| (call_region(self, a), call_region(self, b))),
            rows: c.rows.as_ref().map(|tables| tables.map(|region| call_region(self, region))),
        };
        // SAFETY: the regions were resolved against memory that `check_memory` has verified to be large
        // enough, and the plan orders the step.
        unsafe { self.comm.run_collective(&call) }
    }
}
