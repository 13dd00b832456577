//! Times of a program: opening, the host's part of a run with the same pointers and with others, and the run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use symmc::unstable::cuda::device::driver::Device;
use symmc::{ArgumentBinding, Group, OpenOptions, Program, Session, SessionValue};

use crate::common::{DeviceBlock, RANK_COUNT, WAIT_TIMEOUT, config, on_ranks, planned};

/// How often each is timed.
const RUNS: usize = 1000;

/// The median and the most of some times, in µs.
fn format_times(mut times: Vec<Duration>) -> String {
    times.sort();
    let us = |time: Option<&Duration>| time.map_or(0.0, |t| t.as_secs_f64() * 1e6);
    let near = times.get(times.len() * 99 / 100);
    format!("{:>8.2} {:>8.2} {:>8.2}", us(times.get(times.len() / 2)), us(near), us(times.last()))
}

/// The time of `enqueue` alone, of runs that are waited for; what is done `before` each is not in it.
fn enqueued(
    session: &mut Session,
    runs: usize,
    mut before: impl FnMut(&mut Session, usize) -> Result<()>,
) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(runs);
    for run in 0..runs {
        before(session, run)?;
        let start = Instant::now();
        session.enqueue()?;
        times.push(start.elapsed());
        session.wait(WAIT_TIMEOUT)?;
    }
    Ok(times)
}

/// The time of one run of many behind each other, in µs.
fn each(session: &mut Session, mut before: impl FnMut(&mut Session, usize) -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for run in 0..RUNS {
        before(session, run)?;
        session.enqueue()?;
    }
    session.wait(WAIT_TIMEOUT)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / RUNS as f64)
}

/// Memory of the caller, with many places for something in it.
struct BlockPlaces {
    block: DeviceBlock,
    bytes: usize,
}

impl BlockPlaces {
    const STEP: usize = 256;

    fn of(device: &Arc<Device>, value: &SessionValue) -> Result<BlockPlaces> {
        Ok(BlockPlaces {
            block: DeviceBlock::of(device, value.bytes + RUNS * BlockPlaces::STEP)?,
            bytes: value.bytes,
        })
    }

    fn bind(&self, session: &mut Session, name: &str, place: usize) -> Result<()> {
        let address = self.block.ptr().wrapping_add(place * BlockPlaces::STEP);
        // SAFETY: the block lives until something else is bound, and has room behind its last place.
        unsafe { session.bind(name, address, self.bytes)? };
        Ok(())
    }
}

/// Every input and output in memory of the caller: nothing changed, one pointer that changes, all of them.
fn all_bound(session: &mut Session, device: &Arc<Device>) -> Result<Vec<String>> {
    let (arguments, parameters) = (session.inputs()?, session.parameters()?);
    let outputs = session.outputs()?.into_iter().filter(|output| output.replaces.is_none());
    let mut places_by_value = Vec::new();
    for value in arguments.into_iter().chain(parameters).chain(outputs) {
        let places = BlockPlaces::of(device, &value)?;
        places.bind(session, &value.name, 0)?;
        places_by_value.push((value.name, places));
    }
    let (first, places) = places_by_value.first().context("no argument")?;
    let turns = enqueued(session, RUNS, |s, run| {
        places_by_value.iter().try_for_each(|(name, places)| places.bind(s, name, run % 2))
    })?;
    let unchanged = enqueued(session, RUNS, |_, _| Ok(()))?;
    let new = enqueued(session, RUNS, |s, run| places.bind(s, first, run))?;
    let every = enqueued(session, 20, |s, run| {
        places_by_value.iter().try_for_each(|(name, places)| places.bind(s, name, run + 1))
    })?;
    let behind = each(session, |_, _| Ok(()))?;
    let moving = each(session, |s, run| places.bind(s, first, run))?;
    let count = places_by_value.len();
    for (name, _) in &places_by_value {
        session.unbind(name)?;
    }
    session.run()?;
    Ok(vec![
        format!("all {count:>4} bound: enqueue, nothing changed:     {}", format_times(unchanged)),
        format!("                enqueue, a new pointer:         {}", format_times(new)),
        format!("                enqueue, all pointers new:      {}", format_times(every)),
        format!("                enqueue, two sets in turn:      {}", format_times(turns)),
        format!("                a run behind others:            {behind:>8.2}"),
        format!("                the same, a new pointer each:   {moving:>8.2}"),
    ])
}

/// The first argument in memory of the caller, which changes.
fn one_bound(session: &mut Session, argument: &SessionValue, device: &Arc<Device>) -> Result<Vec<String>> {
    let (name, places) = (&argument.name, BlockPlaces::of(device, argument)?);
    let two = enqueued(session, RUNS, |s, run| places.bind(s, name, run % 2))?;
    let new = enqueued(session, RUNS, |s, run| places.bind(s, name, run))?;
    let mut bind = Vec::with_capacity(RUNS);
    for run in 0..RUNS {
        let start = Instant::now();
        places.bind(session, name, run)?;
        bind.push(start.elapsed());
    }
    session.unbind(name)?;
    Ok(vec![
        format!("one bound:      bind:                           {}", format_times(bind)),
        format!("                enqueue, two pointers in turn:  {}", format_times(two)),
        format!("                enqueue, a new pointer:         {}", format_times(new)),
    ])
}

/// A new pointer of each input in turn, in memory that is taken for it alone.
fn each_bound(session: &mut Session, values: &[SessionValue], device: &Arc<Device>) -> Result<String> {
    let mut times = Vec::new();
    for value in values {
        let places = BlockPlaces::of(device, value)?;
        let times_of_runs = enqueued(session, 8, |s, run| places.bind(s, &value.name, run))?;
        times.extend(times_of_runs.into_iter().skip(1));
        session.unbind(&value.name)?;
        session.run()?;
    }
    Ok(format!("each in turn:   enqueue, a new pointer:         {}", format_times(times)))
}

/// Times of a program: opening, the host's part of a run, runs with other pointers, and the run.
pub fn times(file: &str, symbols: &[(String, i64)]) -> Result<()> {
    let program = Program::open(file.as_ref(), &OpenOptions::default().with_ranks(RANK_COUNT))?;
    let plan = planned(&program, ArgumentBinding::None)?;
    let steps = plan.buckets.first().map_or(0, |bucket| bucket.steps.len());
    // Of processes that a launcher started, or of threads of this one.
    let launched = Group::from_env()?;
    let time = |group: &Group, device: &Arc<Device>| -> Result<Vec<String>> {
        let start = Instant::now();
        let mut session = Session::open(&plan, group, &config(group))?;
        let open = start.elapsed();
        for (symbol, value) in symbols {
            session.set(symbol, *value)?;
        }
        let values: Vec<SessionValue> = session.inputs()?.into_iter().chain(session.parameters()?).collect();
        for value in &values {
            session.address(&value.name)?;
        }
        let start = Instant::now();
        session.run()?;
        let mut lines = vec![format!("open {open:?}, first run {:?}", start.elapsed())];
        let unchanged = enqueued(&mut session, RUNS, |_, _| Ok(()))?;
        lines.push(format!("none bound:     enqueue, nothing changed:       {}", format_times(unchanged)));
        let behind = each(&mut session, |_, _| Ok(()))?;
        lines.push(format!("                a run behind others:            {behind:>8.2}"));
        lines.extend(one_bound(&mut session, values.first().context("no argument")?, device)?);
        session.run()?;
        lines.push(each_bound(&mut session, &values, device)?);
        lines.extend(all_bound(&mut session, device)?);
        session.close()?;
        Ok(lines.into_iter().map(|line| format!("rank {}: {line}", group.rank())).collect())
    };
    let ranks = match launched {
        Some(group) => vec![time(&group, &Device::open(group.rank())?)?],
        None => on_ranks(time)?,
    };
    println!("{file}: {steps} steps; µs: the median, 99 of 100, the most");
    ranks.iter().flatten().for_each(|line| println!("{line}"));
    Ok(())
}
