//! Runs of one program: sizes, pointers and streams that change, what callers do wrong, and what is left behind.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use symmc::unstable::cuda::device::driver::{Device, Stream};
use symmc::{
    CheckedPlan, CollectiveVariant, CompileConfig, GpuConfig, MachineProfile, Program, ProgressReporting,
    Session, SessionConfig,
};

use crate::common::{
    COUNTED_PROGRAM, DeviceBlock, GPU_COUNT, RANK_COUNT, WAIT_TIMEOUT, config, floats, on_ranks, opened,
    opened_as, values,
};
use crate::processes::free_memory;

/// Sizes and pointers that change from run to run; a state in the caller's memory that is changed where it lies.
pub fn changes(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        let state = DeviceBlock::holding(device, &floats(&[0.0; 4]))?;
        // SAFETY: the blocks live until the session has ended.
        unsafe { session.bind("state", state.ptr(), 16)? };
        let blocks =
            [DeviceBlock::of(device, 1024)?, DeviceBlock::of(device, 1024)?, DeviceBlock::of(device, 1024)?];
        let output = DeviceBlock::of(device, 1024)?;
        // SAFETY: as above.
        unsafe { session.bind("out.0", output.ptr(), 1024)? };
        for (run, n) in [2usize, 5, 64, 1, 5, 64, 2, 2, 2].into_iter().enumerate() {
            session.set("n", n as i64)?;
            let block = &blocks[run % 3];
            block.write(&floats(&vec![run as f32 + group.rank() as f32; n * 4]))?;
            // SAFETY: as above.
            unsafe { session.bind("x", block.ptr(), n * 16)? };
            session.run()?;
            let each = 2.0 * run as f32 + 1.0;
            let wanted: Vec<f32> = (0..n * 4).map(|i| each * (i % 4 + 1) as f32).collect();
            ensure!(values(&output.read(n * 16)?) == wanted, "run {run} of n={n}");
            ensure!(values(&state.read(16)?) == [run as f32 + 1.0; 4], "the state after run {run}");
        }
        session.close()?;
        Ok(())
    })?;
    println!("sizes and pointers change between runs, and a state of the caller is changed where it lies");
    Ok(())
}

/// Runs on two streams of the caller, and in its graph.
pub fn streams(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        device.enter()?;
        let streams = [Stream::new(device)?, Stream::new(device)?];
        for run in 0..20 {
            // SAFETY: the streams live until all runs have ended.
            unsafe { session.enqueue_on(streams[run % 2].handle().cast())? };
            session.enqueue()?;
        }
        session.wait(WAIT_TIMEOUT)?;
        ensure!(values(session.read("state")?.data()) == [40.0; 4], "the state after 40 runs");
        // SAFETY: as above.
        let mut enqueue = || unsafe { session.enqueue_on(streams[0].handle().cast()) };
        let graph = streams[0].capture(|| {
            (0..2)
                .try_for_each(|_| enqueue())
                .map_err(|e| symmc::unstable::cuda::CudaError::Unsupported(e.to_string()))
        })?;
        for _ in 0..3 {
            // SAFETY: the session, which the graph uses, is there.
            unsafe { streams[0].replay(&graph)? };
        }
        streams[0].synchronize()?;
        ensure!(session.poll()?, "the caller's replays have ended");
        ensure!(values(session.read("state")?.data()) == [46.0; 4], "the state after 46 runs");
        drop(graph);
        session.release()?;
        let error = session.run().err().context("it gave its memory back")?;
        ensure!(error.to_string().contains("resume"), "{error}");
        session.resume()?;
        session.run()?;
        ensure!(
            values(session.read("state")?.data()) == [47.0; 4],
            "the state after the memory was taken again"
        );
        session.close()?;
        Ok(())
    })?;
    println!(
        "runs on other streams, in a graph of the caller, and after the memory was given back and taken again"
    );
    Ok(())
}

/// Pointers that a session refuses by name.
pub fn wrong_pointers(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        let other_device = Device::open(1 - group.rank())?;
        let foreign = DeviceBlock::of(&other_device, 1024)?;
        let block = DeviceBlock::of(device, 1024)?;
        let mut host = vec![0u64; 128];
        let refusals = [
            ("x", host.as_mut_ptr().cast::<u8>(), 64, "host memory, or no memory"),
            ("x", foreign.ptr(), 64, "found memory of GPU"),
            ("x", block.ptr().wrapping_add(4), 64, "multiple of 16"),
            ("w", block.ptr(), 8, "expected 16"),
            ("x", std::ptr::null_mut(), 64, "no address"),
        ];
        for (name, at, bytes, part) in refusals {
            // SAFETY: all blocks outlive the session, which refuses these.
            let error = unsafe { session.bind(name, at, bytes) }.err().context(part)?;
            ensure!(error.to_string().contains(part) && error.is_bad_input(), "{part}: {error}");
        }
        // SAFETY: as above.
        unsafe {
            session.bind("x", block.ptr(), 32)?;
        }
        let error = session.run().err().context("too small")?.to_string();
        ensure!(error.contains("input %x") && error.contains("expected 64"), "{error}");
        block.write(&floats(&[1.0; 64]))?;
        // SAFETY: as above.
        unsafe {
            session.bind("x", block.ptr(), 64)?;
            session.bind("out.0", block.ptr().wrapping_add(32), 64)?;
        }
        let error = session.run().err().context("they overlap")?.to_string();
        ensure!(error.contains("overlaps"), "{error}");
        session.unbind("out.0")?;
        session.run()?;
        session.close()?;
        Ok(())
    })?;
    println!("wrong pointers are refused by name, and do no harm");
    Ok(())
}

/// A session that is dropped within a run.
pub fn dropped(plan: &CheckedPlan) -> Result<()> {
    let start = Instant::now();
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        session.run()?;
        if group.rank() == 0 {
            session.enqueue()?;
            drop(session);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(300));
        let error = (0..2).find_map(|_| session.run().err()).context("its peer has gone")?;
        println!("the peer of a dropped session: {error}");
        drop(session);
        // The context of the caller works.
        DeviceBlock::holding(device, &[1; 64])?.read(64)?;
        Ok(())
    })?;
    ensure!(start.elapsed() < Duration::from_secs(15), "it took {:?}", start.elapsed());
    Ok(())
}

/// A rank that waits in one of NCCL's collectives for a peer that does not come.
pub fn stuck() -> Result<()> {
    let profile = MachineProfile::builtin("h200x2").context("no profile h200x2")?;
    let config_of =
        CompileConfig::default().with_profile(profile).with_variants(vec![CollectiveVariant::Plain]);
    let plan = symmc::compile(&Program::from_text(COUNTED_PROGRAM)?, &config_of)?;
    let (limit, both) = (Duration::from_secs(2), Barrier::new(RANK_COUNT as usize));
    for progress in [ProgressReporting::Enabled, ProgressReporting::Disabled] {
        on_ranks(|group, _| {
            let gpu = GpuConfig::new(group.rank()).with_progress(progress);
            let config = SessionConfig::default().with_timeout(limit).with_gpu(gpu);
            let ready = opened_as(&plan, group, &config).and_then(|mut session| {
                session.run()?;
                Ok(session)
            });
            if group.rank() == 1 {
                // Its session is there until the other has ended.
                both.wait();
                return ready.map(drop);
            }
            let start = Instant::now();
            let error = ready.map(|mut session| session.run().err());
            both.wait();
            let error = error?.context("its peer did not come")?;
            println!("{:.1} s after a peer stopped calling: {error}", start.elapsed().as_secs_f64());
            ensure!(
                error.culprit() == Some(1),
                "expected rank 1 as the culprit, found {:?}",
                error.culprit()
            );
            ensure!(error.to_string().contains("after run 0"), "expected the last run of rank 1");
            ensure!(start.elapsed() < 8 * limit, "it took {:?}", start.elapsed());
            Ok(())
        })?;
    }
    Ok(())
}

/// Opens, runs and ends 1,000 sessions one after the other: device memory stays as it was after the first ten. The process
/// keeps the contexts of its GPUs, as an engine does, so that nothing is released with them. Half of the sessions are
/// closed and half dropped.
pub fn many(plan: &CheckedPlan) -> Result<()> {
    let _contexts: Vec<_> = (0..GPU_COUNT).map(Device::open).collect::<Result<_, _>>()?;
    let mut free = Vec::new();
    let start = Instant::now();
    for round in 1..=1000 {
        on_ranks(|group, _| {
            let mut session = opened(plan, group)?;
            session.run()?;
            if round % 2 == 0 {
                session.close()?;
            }
            Ok(())
        })?;
        if [10, 100, 1000].contains(&round) {
            free.push(free_memory()?);
        }
    }
    println!(
        "1000 sessions in {:.1} s; free bytes after 10, 100 and 1000: {free:?}",
        start.elapsed().as_secs_f64()
    );
    ensure!(free.iter().all(|bytes| *bytes == free[0]), "sessions leave device memory behind");
    Ok(())
}

/// The driver rounds each memory up, and recordings take some.
const ROUNDING: usize = 8 << 20;

/// What was announced is what is taken, by the session and by what the driver says is free.
pub fn budget(plan: &CheckedPlan) -> Result<()> {
    let usages = on_ranks(|group, device| {
        // What a process takes once is taken then.
        let mut first = opened(plan, group)?;
        first.run()?;
        first.close()?;
        device.enter()?;
        let before = device.free()?;
        let mut session = opened(plan, group)?;
        session.run()?;
        device.enter()?;
        let driver = before.saturating_sub(device.free()?);
        let (told, taken) = (Session::budget(plan, group.rank(), &config(group))?, session.memory_usage());
        ensure!(
            driver.abs_diff(taken.total_bytes()) <= ROUNDING,
            "the driver gave {driver} bytes, taken were {taken:?}"
        );
        ensure!(
            (told.ordinary, told.symmetric, told.flags) == (taken.ordinary, taken.symmetric, taken.flags)
                && told.scratch >= taken.scratch
                && told.ports >= taken.ports,
            "told {told:?}, taken {taken:?}"
        );
        session.close()?;
        Ok((told.total_bytes(), taken.total_bytes(), driver))
    })?;
    println!(
        "sessions take what was told before; bytes told at most, taken, and given by the driver: {usages:?}"
    );
    Ok(())
}

/// A capture that a wait for the whole context invalidates, in another thread of the application, is repeated.
pub fn invalidated_capture() -> Result<()> {
    // SAFETY: the name is a C string; the driver's library has no effects when it is loaded.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    ensure!(!driver.is_null(), "there is no CUDA driver");
    // SAFETY: the library stays loaded.
    let symbol = unsafe { libc::dlsym(driver, c"cuCtxSynchronize".as_ptr()) };
    ensure!(!symbol.is_null(), "the driver has no cuCtxSynchronize");
    // SAFETY: this is the function's type; it waits for the context that is current on the thread.
    let wait_for_context =
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(symbol) };
    let device = Device::open(0)?;
    device.enter()?;
    let stream = Stream::new(&device)?;
    let block = DeviceBlock::holding(&device, &[0; 64])?;
    let mut statuses = Vec::new();
    let graph = stream.capture(|| {
        // SAFETY: the block outlives the graph.
        unsafe { stream.fill(block.address(), 7, 64)? };
        if statuses.is_empty() {
            let waited = || device.enter().map(|()| wait_for_context());
            let joined = std::thread::scope(|scope| scope.spawn(waited).join());
            statuses.push(joined.ok().and_then(Result::ok));
        }
        // SAFETY: as above.
        unsafe { stream.fill(block.address(), 9, 32) }
    })?;
    ensure!(
        statuses.iter().all(|s| s.is_some_and(|s| s != 0)),
        "the wait did not meet the capture: {statuses:?}"
    );
    // SAFETY: as above.
    unsafe { stream.replay(&graph)? };
    stream.synchronize()?;
    ensure!(block.read(64)? == [[9; 32], [7; 32]].concat(), "the graph does what was captured");
    println!("a capture that a wait in another thread invalidated was repeated");
    Ok(())
}
