//! Walks resolved steps: kernels and collectives are called here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use symmc_ir::InputKind;
use symmc_ir::collective::Meets;
use symmc_plan::Lane;
use symmc_support::parallel::start;

use super::bound::{Bound, BoundCollective, BoundInput, BoundOutput, BoundRegion, BoundStep, Located, Work};
use super::bucket::MemorySpace;
use super::communicator::Communicator;
use super::config::{ExecConfig, Lanes, RunReport, Timing};
use super::custom::CustomStep;
use super::memory::{RankMemory, Span};
use super::step::{Bases, StepRun};
use crate::call::{CollectiveCall, Region, RegionMemory};
use crate::error::{Result, RunError};
use crate::kernels::{self, Needs, Scratch, Shaped, View, ViewMut, compute_with};

/// Values as kernels are asked about them, without addresses.
fn shaped(values: &[Located]) -> SmallVec<[Shaped<'_>; 4]> {
    values.iter().map(|x| (x.dtype, &*x.shape, &*x.strides)).collect()
}

/// How long a lane sleeps at most before it looks again; a wake-up normally comes first.
const NAP: Duration = Duration::from_millis(50);

impl Bound {
    /// Writes parameters and constants that the plan holds in fixed memory there. An input without caller's
    /// memory is left as it is, unless it is a constant. Fails if the caller's memory does not fit the program.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    pub unsafe fn load(&self, memory: &RankMemory) -> Result<()> {
        self.check(memory)?;
        // SAFETY: the caller's promise; `check` saw that the memory is large enough.
        unsafe { self.write_fixed(memory, |kind| kind != InputKind::Argument) };
        Ok(())
    }

    /// Adds what its kernels need beside operands and results: those of both lanes where they run side by side.
    pub(super) fn add_needs(&self, lanes: Lanes, needs: &mut [Needs; 2]) {
        fn of(work: &Work) -> Needs {
            match work {
                Work::Kernel { op, operands, results } => {
                    kernels::needs(op, &shaped(operands), &shaped(results))
                }
                Work::Dispatch(dispatch) => {
                    let mut all = Needs::default();
                    dispatch.members.iter().for_each(|m| all.merge(&of(&m.work)));
                    all.add_bytes(dispatch.inner);
                    all
                }
                Work::Custom { .. } | Work::Collective(_) => Needs::default(),
            }
        }
        let [compute, comm] = needs;
        for step in &self.steps {
            let found = of(&step.work);
            match (lanes, step.lane) {
                (Lanes::Threads, Lane::Comm) => comm.merge(&found),
                _ => compute.merge(&found),
            }
        }
    }

    /// Whether a step may refuse its data after the last collective in which all of `ranks` ranks meet. Then a rank that has
    /// run all steps does not know yet whether the run succeeded on all ranks.
    pub fn may_fail_alone(&self, ranks: u32, lanes: Lanes) -> bool {
        let refuses = |work: &Work| match work {
            Work::Kernel { op, operands, .. } => kernels::may_refuse_data(op, &shaped(operands)),
            _ => false,
        };
        let meets_all = |work: &Work| match work {
            Work::Collective(c) if lanes == Lanes::Inline && c.cell.len() == ranks as usize => {
                c.variant.contract(&c.kind).is_some_and(|contract| contract.meets == Meets::Group)
            }
            _ => false,
        };
        let last = self.steps.iter().rev().find_map(|step| match meets_all(&step.work) {
            true => Some(false),
            false => step.work.parts().any(refuses).then_some(true),
        });
        ranks > 1 && last.unwrap_or(false)
    }

    /// Runs the program once. Fails if the caller's memory does not fit the program, a kernel refused its operands, or
    /// a collective failed. Inputs that outputs mutate may be half changed then.
    ///
    /// # Safety
    /// The spans of `memory` must be valid for reads and writes (inputs that no output mutates: for reads)
    /// until this returns. Nobody else may use them meanwhile, but the peers the symmetric arena as the
    /// checked plan says. Inputs and outputs overlap neither each other nor the arenas.
    pub unsafe fn run(
        &self,
        memory: &RankMemory,
        comm: &dyn Communicator,
        config: &ExecConfig,
        scratch: &mut [Scratch; 2],
    ) -> Result<RunReport> {
        self.check(memory)?;
        // SAFETY: the caller's promise; `check` saw that the memory is large enough.
        unsafe { self.write_fixed(memory, |kind| kind == InputKind::Argument) };
        let bases = self.bases(memory);
        let timed = if config.timing == Timing::Steps { self.steps.len() } else { 0 };
        let walk = Walk {
            bound: self,
            bases: &bases,
            comm,
            times: (0..timed).map(|_| AtomicU64::new(0)).collect(),
            done: self.steps.iter().map(|_| AtomicBool::new(false)).collect(),
            failure: Mutex::new(None),
            changed: Condvar::new(),
        };
        match config.lanes {
            Lanes::Inline => walk.inline(&mut scratch[0])?,
            Lanes::Threads => walk.threads(scratch)?,
        }
        // SAFETY: the caller's promise; all steps have ended.
        unsafe { self.write_back(memory) };
        let times = walk.times.into_iter().map(AtomicU64::into_inner).collect();
        Ok(RunReport { bucket: self.bucket, step_ns: (timed > 0).then_some(times) })
    }

    /// Checks that the memory is there, large enough and aligned.
    fn check(&self, memory: &RankMemory) -> Result<()> {
        let fits = |what: &dyn Fn() -> String, span: &Span, bytes: usize, align: usize| {
            let aligned = span.ptr.addr().is_multiple_of(align);
            if bytes == 0 || (!span.ptr.is_null() && span.len >= bytes && aligned) {
                return Ok(());
            }
            let found =
                if !aligned { "memory without this alignment".into() } else { format!("{} bytes", span.len) };
            Err(RunError::Invalid(format!(
                "{}: expected {bytes} bytes aligned to {align}, found {found}",
                what()
            )))
        };
        fits(&|| "the ordinary arena".into(), &memory.ordinary, self.ordinary, 64)?;
        fits(&|| "the symmetric arena".into(), &memory.symmetric, self.symmetric, 64)?;
        let count = |what: &str, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(RunError::Invalid(format!("expected {expected} {what}, found {found}"))),
        };
        count("inputs", self.inputs.len(), memory.inputs.len())?;
        count("outputs", self.outputs.len(), memory.outputs.len())?;
        for (i, (input, span)) in self.inputs.iter().zip(&memory.inputs).enumerate() {
            let given = !span.ptr.is_null();
            if given || (input.direct && self.constants[i].is_none()) {
                fits(&|| format!("input {i} (%{})", input.name), span, input.bytes, input.dtype.size())?;
            }
        }
        for (k, (output, span)) in self.outputs.iter().zip(&memory.outputs).enumerate() {
            fits(&|| format!("output {k} (%{})", output.name), span, output.bytes, output.dtype.size())?;
        }
        Ok(())
    }

    /// The data of an input: the caller's, else that of a constant.
    fn data(&self, memory: &RankMemory, input: usize) -> *mut u8 {
        match (memory.inputs[input].ptr, &self.constants[input]) {
            (ptr, Some(constant)) if ptr.is_null() && constant.len() > 0 => constant.as_ptr().cast_mut(),
            (ptr, _) => ptr,
        }
    }

    /// Where the steps write an output: in the memory of the input that it replaces, if that lies there.
    fn held(&self, memory: &RankMemory, output: &BoundOutput, given: &Span) -> *mut u8 {
        output.held_by().map_or(given.ptr, |input| self.data(memory, input))
    }

    fn bases(&self, memory: &RankMemory) -> Bases {
        Bases {
            ordinary: memory.ordinary.ptr,
            symmetric: memory.symmetric.ptr,
            inputs: (0..self.inputs.len()).map(|i| self.data(memory, i)).collect(),
            outputs: self.outputs.iter().zip(&memory.outputs).map(|(o, s)| self.held(memory, o, s)).collect(),
        }
    }

    /// Copies inputs of some kinds to the fixed memory that holds them.
    ///
    /// # Safety
    /// As [`run`](Self::run), after [`check`](Self::check).
    unsafe fn write_fixed(&self, memory: &RankMemory, which: impl Fn(InputKind) -> bool) {
        for (i, input) in self.inputs.iter().enumerate().filter(|(_, input)| which(input.kind)) {
            let (Some(offset), from) = (input.fixed, self.data(memory, i)) else { continue };
            let to = memory.symmetric.ptr.wrapping_add(offset);
            if !from.is_null() && from != to {
                // SAFETY: both hold the bytes of the input: `check` and the resolution of its place saw it.
                unsafe { std::ptr::copy(from, to, input.bytes) };
            }
        }
    }

    /// Copies outputs that mutate inputs to them: where the plan holds them, and where the caller does. Those that were
    /// written in the memory of the input are copied to the caller's instead.
    ///
    /// # Safety
    /// As [`run`](Self::run), after all steps.
    unsafe fn write_back(&self, memory: &RankMemory) {
        for (output, span) in self.outputs.iter().zip(&memory.outputs) {
            let Some(i) = output.mutates else { continue };
            let from = self.held(memory, output, span);
            if output.in_place && from != span.ptr && output.bytes > 0 {
                // SAFETY: both hold the bytes of the output: `check` saw it.
                unsafe { std::ptr::copy(from, span.ptr, output.bytes) };
                continue;
            }
            let BoundInput { fixed, bytes, .. } = self.inputs[i];
            let held = fixed.map(|offset| memory.symmetric.ptr.wrapping_add(offset));
            let given = Some(memory.inputs[i].ptr).filter(|p| !p.is_null());
            for to in [held, given].into_iter().flatten() {
                if bytes == output.bytes && to != span.ptr {
                    // SAFETY: both hold the bytes of the output, which is typed as the input.
                    unsafe { std::ptr::copy(span.ptr, to, bytes) };
                }
            }
        }
    }
}

struct Walk<'a> {
    bound: &'a Bound,
    bases: &'a Bases,
    comm: &'a dyn Communicator,
    /// Nanoseconds of each step; empty when nothing is measured.
    times: Vec<AtomicU64>,
    /// Which steps have completed.
    done: Vec<AtomicBool>,
    failure: Mutex<Option<RunError>>,
    /// A step completed, or the run failed.
    changed: Condvar,
}

impl Walk<'_> {
    /// All steps in the order of the plan.
    fn inline(&self, scratch: &mut Scratch) -> Result<()> {
        for step in &self.bound.steps {
            self.timed(step, scratch).inspect_err(|error| self.tell(error))?;
        }
        Ok(())
    }

    /// One thread for each lane; one for both where the system gives no more.
    fn threads(&self, scratch: &mut [Scratch; 2]) -> Result<()> {
        let [compute, comm] = scratch;
        let started = thread::scope(|scope| {
            let lane = || self.lane(Lane::Compute, compute);
            let started = start(scope, lane).is_ok();
            if started {
                self.lane(Lane::Comm, comm);
            }
            started
        });
        if !started {
            return self.inline(comm);
        }
        match self.failed().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Tells the peers of an error that began here.
    fn tell(&self, error: &RunError) {
        if !error.is_consequence() {
            self.comm.abort(error);
        }
    }

    fn failed(&self) -> MutexGuard<'_, Option<RunError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The steps of one lane, in order. Ends early when another lane failed.
    fn lane(&self, lane: Lane, scratch: &mut Scratch) {
        for step in self.bound.steps.iter().filter(|s| s.lane == lane) {
            if !self.await_steps(&step.waits) {
                return;
            }
            let result = self.timed(step, scratch);
            let mut failure = self.failed();
            match result {
                Ok(()) => self.done[step.index].store(true, Ordering::Release),
                Err(error) => {
                    self.tell(&error);
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

    /// Waits until these steps have completed; false when the run failed.
    fn await_steps(&self, waits: &[usize]) -> bool {
        let done = || waits.iter().all(|&w| self.done[w].load(Ordering::Acquire));
        if done() {
            return true;
        }
        let mut failure = self.failed();
        loop {
            if failure.is_some() {
                return false;
            }
            if done() {
                return true;
            }
            failure = match self.changed.wait_timeout(failure, NAP) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn timed(&self, step: &BoundStep, scratch: &mut Scratch) -> Result<()> {
        self.comm.begin(step.index);
        let Some(time) = self.times.get(step.index) else { return self.step(step, scratch) };
        let start = Instant::now();
        let result = self.step(step, scratch);
        time.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn step(&self, step: &BoundStep, scratch: &mut Scratch) -> Result<()> {
        let run = StepRun {
            rank: self.bound.rank,
            index: step.index,
            node: &step.node,
            op: &step.op_name,
            comm: self.comm,
            bases: self.bases,
            inner: std::ptr::null_mut(),
        };
        let Work::Dispatch(dispatch) = &step.work else { return run.work(&step.work, scratch) };
        let mut inner = scratch.take_bytes(dispatch.inner);
        let at = inner.as_mut_ptr();
        let mut members = dispatch.members.iter();
        let result = members.try_for_each(|member| {
            StepRun { node: &member.node, op: &member.op_name, inner: at, ..run }.work(&member.work, scratch)
        });
        scratch.give_bytes(inner);
        result
    }
}

impl StepRun<'_> {
    fn work(&self, work: &Work, scratch: &mut Scratch) -> Result<()> {
        match work {
            Work::Kernel { op, operands, results } => {
                let operands: SmallVec<[View<'_>; 4]> = operands.iter().map(|x| self.view(x)).collect();
                let mut results: SmallVec<[ViewMut<'_>; 2]> =
                    results.iter().map(|y| self.view_mut(y)).collect();
                compute_with(op, &operands, &mut results, scratch).map_err(|e| match e.data_fault() {
                    Some(fault) => self.unfit(fault, e.to_string()),
                    None => self.failed(e.to_string()),
                })
            }
            Work::Custom { name, kernel, operands, results, peers } => {
                let (op, peers) = (self.op, peers.as_ref());
                let custom = CustomStep { name, op, kernel: &kernel.0, operands, results, peers };
                // SAFETY: as for a collective.
                unsafe { custom.run(self) }
            }
            Work::Collective(c) => self.collective(c),
            Work::Dispatch(_) => {
                Err(RunError::Defect(format!("%{}: a dispatch within a dispatch", self.node)))
            }
        }
    }

    fn collective(&self, c: &BoundCollective) -> Result<()> {
        fn region<'r>(run: &StepRun<'_>, region: &'r BoundRegion) -> Region<'r> {
            let memory = match region.space {
                MemorySpace::Symmetric => RegionMemory::Symmetric,
                space => RegionMemory::Private(run.bases.of(space, run.inner)),
            };
            Region { memory, offset: region.offset, by_rank: region.by_rank.as_deref() }
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
            row: c.row,
            operand: region(self, &c.operand),
            result: region(self, &c.result),
            landing: c.landing,
            splits: c.splits.as_ref().map(|(a, b)| (region(self, a), region(self, b))),
        };
        // SAFETY: the regions were resolved against memory that `check` saw to be large enough, and the plan
        // orders the step.
        unsafe { self.comm.collective(&call) }
    }
}
