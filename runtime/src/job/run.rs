//! The runs of a job on one rank: opens a session, provides the inputs, runs, reads the outputs.
//!
//! Sessions of the host borrow memory of this process: they read inputs and write outputs in place. Sessions
//! of other devices copy. An input that a run replaces is copied on every device.

use std::path::Path;
use std::sync::Arc;

use symmc_control::{JoinedRank, RankConfig};
use symmc_ir::{InputKind, SymbolBindings};
use symmc_plan::ParsedPlan;

use super::times::{RunClock, RunTimes};
use super::trace;
use crate::error::{Result, RunError};
use crate::exec::{CustomKernelRegistry, InputData};
use crate::host::HostSession;
use crate::session::{DeviceName, DeviceRange, DeviceSession, Port};

#[derive(Clone, Copy)]
pub struct SessionRequest<'a> {
    /// The rank that the session runs as. It remains with the job when the session ends.
    pub rank: &'a Arc<JoinedRank>,
    pub plan: &'a ParsedPlan,
    /// The values of the imported program's symbols, the only ones that the session runs with.
    pub bindings: &'a SymbolBindings,
    pub config: &'a RankConfig,
}

/// Opens the session of a rank on its device, together with all other ranks.
pub type OpenSession<'o> = dyn Fn(&SessionRequest<'_>) -> Result<Box<dyn DeviceSession>> + Sync + 'o;

/// Opens the session on the host, with these kernels of custom ops.
pub fn open_on_host(
    request: &SessionRequest<'_>,
    kernels: &CustomKernelRegistry,
) -> Result<Box<dyn DeviceSession>> {
    let SessionRequest { rank, plan, config, .. } = *request;
    Ok(Box::new(HostSession::open_joined(rank, plan, kernels, config)?))
}

/// The workload of a rank: its plan, and the location of its data.
pub(super) struct RankWorkload<'a> {
    pub plan: &'a ParsedPlan,
    pub bindings: &'a SymbolBindings,
    pub config: &'a RankConfig,
    pub repeats: u32,
    /// The file for the times of the steps of the last run, which then runs step by step.
    pub trace: Option<&'a Path>,
    pub inputs: Vec<InputData<'a>>,
    /// The destination of the outputs of the last run.
    pub outputs: Vec<&'a mut [u8]>,
}

/// Runs a job on a rank that has joined; returns the times of its runs once the job has ended on all ranks.
pub(super) fn run_joined_rank(
    rank: JoinedRank,
    runs: RankWorkload<'_>,
    open: &OpenSession<'_>,
) -> Result<RunTimes> {
    let rank = Arc::new(rank);
    let RankWorkload { plan, bindings, config, .. } = runs;
    let opened = open(&SessionRequest { rank: &rank, plan, bindings, config });
    let ran = opened.and_then(|session| run_and_close(session, &rank, runs));
    let ran = ran.map_err(|error| rank.fail_run(error));
    let answered = ran.and_then(|times| rank.send_answer(&times).map(|()| times));
    let times = answered.as_ref().copied().unwrap_or_default();
    let result = answered.map(drop);
    let rank = Arc::into_inner(rank)
        .ok_or_else(|| RunError::Defect("the session of a job was not closed".into()))?;
    rank.conclude_job(result)?;
    Ok(times)
}

fn run_and_close(
    mut session: Box<dyn DeviceSession>,
    rank: &JoinedRank,
    runs: RankWorkload<'_>,
) -> Result<RunTimes> {
    match run_repeats(&mut *session, rank, runs) {
        Ok(times) => session.close().map(|()| times),
        Err(error) => {
            // Peers get this reason, instead of one that the session would give.
            let error = rank.fail_run(error);
            session.abort("its job failed");
            Err(error)
        }
    }
}

fn run_repeats(
    session: &mut dyn DeviceSession,
    rank: &JoinedRank,
    mut runs: RankWorkload<'_>,
) -> Result<RunTimes> {
    session.set_sizes(runs.bindings)?;
    let copied = provide_inputs(session, &runs.inputs)?;
    session.write_inputs(&copied)?;
    let are_bound = bind_outputs(session, &mut runs.outputs)?;
    session.prepare_run()?;
    rank.start()?;
    let renewed = inputs_to_rewrite(session, copied)?;
    let mut clock = RunClock::default();
    let mut steps = Vec::new();
    let repeats = runs.repeats.max(1);
    for repeat in 1..=repeats {
        clock.begin_run();
        if repeat > 1 {
            session.write_inputs(&renewed)?;
        }
        match runs.trace {
            Some(_) if repeat == repeats => steps = session.run_traced()?,
            _ => session.run()?,
        }
        clock.end_run();
    }
    if let Some(path) = runs.trace {
        trace::write_trace(path, &steps, rank.comm())?;
    }
    for (index, output) in runs.outputs.iter_mut().enumerate().filter(|(index, _)| !are_bound[*index]) {
        session.read_port(Port::Output(index), output)?;
    }
    Ok(clock.run_times())
}

/// Binds the inputs that the session may read in place; returns those that are to be copied.
fn provide_inputs<'d>(
    session: &mut dyn DeviceSession,
    inputs: &[InputData<'d>],
) -> Result<Vec<(usize, InputData<'d>)>> {
    let on_host = session.device() == DeviceName::Host;
    let bound = session.resolved_program()?;
    let mut bound_inputs = Vec::new();
    let mut copied = Vec::new();
    for (index, (input, data)) in bound.inputs.iter().zip(inputs).enumerate() {
        match data {
            // The program contains the data of constants.
            _ if bound.constant_data(index).is_some() => {}
            InputData::Memory(bytes)
                if on_host && !bound.is_replaced(index) && is_aligned(bytes, input.dtype.size()) =>
            {
                bound_inputs.push((index, memory_range(bytes.as_ptr(), bytes.len())));
            }
            _ => copied.push((index, *data)),
        }
    }
    for (index, memory) in bound_inputs {
        // SAFETY: the memory outlives the session, which is closed before the job ends; nothing writes it
        // meanwhile.
        unsafe { session.bind_port(Port::Input(index), Some(memory))? };
    }
    Ok(copied)
}

/// Binds the memory of outputs that the session may write in place; returns for each output whether it was
/// bound.
fn bind_outputs(session: &mut dyn DeviceSession, outputs: &mut [&mut [u8]]) -> Result<Vec<bool>> {
    let on_host = session.device() == DeviceName::Host;
    let aligns: Vec<usize> =
        session.resolved_program()?.outputs.iter().map(|output| output.dtype.size()).collect();
    let mut are_bound = Vec::with_capacity(outputs.len());
    for (index, (output, align)) in outputs.iter_mut().zip(aligns).enumerate() {
        let is_bound = on_host && is_aligned(output, align);
        if is_bound {
            let memory = memory_range(output.as_mut_ptr(), output.len());
            // SAFETY: the memory outlives the session, and nothing else uses it.
            unsafe { session.bind_port(Port::Output(index), Some(memory))? };
        }
        are_bound.push(is_bound);
    }
    Ok(are_bound)
}

/// The copied inputs whose memory may have changed after a run: arguments in fixed memory, which their caller
/// writes before each run, unless an output replaces them.
fn inputs_to_rewrite<'d>(
    session: &dyn DeviceSession,
    copied: Vec<(usize, InputData<'d>)>,
) -> Result<Vec<(usize, InputData<'d>)>> {
    let bound = session.resolved_program()?;
    let renewed = copied.into_iter().filter(|&(index, _)| {
        let input = &bound.inputs[index];
        input.kind == InputKind::Argument && input.fixed.is_some() && !bound.is_replaced(index)
    });
    Ok(renewed.collect())
}

fn is_aligned(bytes: &[u8], align: usize) -> bool {
    bytes.as_ptr().addr().is_multiple_of(align)
}

fn memory_range(start: *const u8, bytes: usize) -> DeviceRange {
    DeviceRange { address: start.expose_provenance() as u64, bytes }
}
