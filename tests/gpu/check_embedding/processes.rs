//! Ranks that are processes of this program, started as a launcher starts them; what they do, and what becomes of those whose
//! peer is killed or stopped.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symmc::unstable::cuda::device::driver::{Device, Stream};
use symmc::{ArgumentBinding, ErrorKind, GpuConfig, Group, Program, Session, SessionConfig};
use symmc_tests::ProcessGuard;

use crate::common::{DeviceBlock, GPU_COUNT, floats, planned};
use crate::recorded;

/// No wait for a peer that does not answer takes longer.
const SHORT_TIMEOUT: Duration = Duration::from_secs(6);

/// A product and a sum over ranks, again and again.
const STEP_PROGRAM: &str = "program \"step\" ranks 2\ngroup @all world\narg %x: f32[64, 256]\nparam %w: f32[256, 256]\n\
    %m: f32[64, 256] = matmul %x, %w\n%y: f32[64, 256] = all_reduce %m op=sum group=@all\nreturn %y\n";

static GROUP_COUNTER: AtomicU32 = AtomicU32::new(0);

/// Starts so many ranks, of which each does a task.
fn start(ranks: u32, task: &str) -> Result<ProcessGuard> {
    let port = 20000 + std::process::id() % 20000 + GROUP_COUNTER.fetch_add(1, Ordering::Relaxed);
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["rank", task]).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, number) in
            [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)]
        {
            command.env(name, number.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.spawn().context("starting a rank")
    };
    let mut processes = ProcessGuard(Vec::new());
    for rank in 0..ranks {
        processes.0.push(start(rank)?);
    }
    Ok(processes)
}

/// What a rank does.
pub fn rank(task: &str) -> Result<()> {
    let group = Group::from_env()?.context("no launcher's environment")?;
    match task {
        "recorded" => recorded::as_a_process(&group),
        "endure" => endure(&group),
        other => bail!("no task {other}"),
    }
}

/// The programs of so many ranks, each a process.
pub fn programs(ranks: u32) -> Result<()> {
    let mut processes = start(ranks, "recorded")?;
    let mut done = Vec::new();
    for (rank, child) in processes.0.drain(..).enumerate() {
        let output = child.wait_with_output()?;
        let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "rank {rank} of {ranks}: {}\n{out}{log}", output.status);
        done.push(out.matches("said: ").count());
    }
    let expected = recorded::stems(ranks)?.len();
    ensure!(done.iter().all(|&n| n == expected), "{ranks} processes: {done:?} of {expected} programs");
    println!("{expected} programs of {ranks} ranks on {GPU_COUNT} GPUs, each a process: as recorded");
    Ok(())
}

/// Runs until a peer fails, and then sees whether what is the caller's is as it was.
fn endure(group: &Group) -> Result<()> {
    let device = Device::open(group.rank() % GPU_COUNT)?;
    let (x, y) =
        (DeviceBlock::holding(&device, &floats(&[1.0; 64 * 256]))?, DeviceBlock::of(&device, 64 * 256 * 4)?);
    let stream = Stream::new(&device)?;
    let plan = planned(&Program::from_text(STEP_PROGRAM)?, ArgumentBinding::None)?;
    // SAFETY: the stream lives until the session has ended.
    let gpu = unsafe { GpuConfig::new(group.rank() % GPU_COUNT).with_stream(stream.handle().cast()) };
    let config = SessionConfig::default().with_timeout(SHORT_TIMEOUT).with_gpu(gpu);
    let mut session = Session::open(&plan, group, &config)?;
    session.write("w", &floats(&[1.0; 256 * 256]))?;
    // SAFETY: the blocks live until the session has ended.
    unsafe {
        session.bind("x", x.ptr(), 64 * 256 * 4)?;
        session.bind("out.0", y.ptr(), 64 * 256 * 4)?;
    }
    let mut runs = 0u64;
    let error = loop {
        let ran = session.enqueue().and_then(|()| session.run());
        match ran {
            Ok(()) if runs == 20 => say("ready")?,
            Ok(()) => {}
            Err(error) => break error,
        }
        runs += 1;
    };
    ensure!(runs > 20, "it failed too early: {error}");
    ensure!(error.kind() == ErrorKind::Peer, "kind {:?}: {error}", error.kind());
    say(&error.to_string())?;
    let second_error = session.run().err().context("a session that failed")?;
    ensure!(second_error.to_string() == error.to_string(), "{error}; then {second_error}");
    drop(session);
    // The caller's memory, stream and context work.
    let data = floats(&[3.0; 64 * 256]);
    x.write(&data)?;
    // SAFETY: both blocks have as many bytes, and nothing else runs.
    unsafe { stream.copy(y.address(), x.address(), data.len())? };
    stream.synchronize()?;
    ensure!(y.read(data.len())? == data, "the caller's memory");
    say("usable")
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Signals a rank in the middle of runs; the other one learns it by name and in time, and keeps what is its caller's.
pub fn signalled(signal: Signal, victim: usize) -> Result<()> {
    let mut processes = start(2, "endure")?;
    let mut outputs: Vec<BufReader<ChildStdout>> = processes
        .0
        .iter_mut()
        .map(|child| child.stdout.take().map(BufReader::new).context("its output"))
        .collect::<Result<_>>()?;
    for (rank, out) in outputs.iter_mut().enumerate() {
        let line = line(out)?;
        ensure!(line == "ready", "rank {rank}: {line:?}: {}", log(&mut processes.0[rank]));
    }
    let pid = i32::try_from(processes.0[victim].id()).context("a process id")?;
    let begun = Instant::now();
    kill(Pid::from_raw(pid), signal).context("signalling a rank")?;
    let survivor = 1 - victim;
    let error = line(&mut outputs[survivor])?;
    let took = begun.elapsed();
    let usable = line(&mut outputs[survivor])?;
    ensure!(usable == "usable", "{error:?}, then {usable:?}: {}", log(&mut processes.0[survivor]));
    ensure!(processes.0[survivor].wait()?.success(), "the survivor's exit");
    ensure!(error.contains(&format!("rank {victim}")), "it does not name rank {victim}: {error}");
    // The host does not know at which step a GPU was.
    ensure!(signal != Signal::SIGKILL || !error.contains("at step"), "it names a step: {error}");
    ensure!(took < SHORT_TIMEOUT + Duration::from_secs(4), "it took {took:?}: {error}");
    println!("{signal:?} of rank {victim}: after {} ms: {error}", took.as_millis());
    Ok(())
}

fn line(out: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    out.read_line(&mut line)?;
    Ok(line.trim_end().to_string())
}

/// What a process wrote to its errors; it is ended for that.
fn log(child: &mut Child) -> String {
    let _ = child.kill();
    let mut text = String::new();
    if let Some(mut errors) = child.stderr.take() {
        let _ = errors.read_to_string(&mut text);
    }
    text
}

/// The free bytes of each GPU.
pub fn free_memory() -> Result<Vec<usize>> {
    (0..GPU_COUNT)
        .map(|gpu| {
            let device = Device::open(gpu)?;
            Ok(device.free()?)
        })
        .collect()
}

/// Nothing is left of processes that have gone, before which so many bytes were free on each GPU.
pub fn nothing_left(before: &[usize]) -> Result<()> {
    let start = Instant::now();
    // The driver frees what they had when it comes to it.
    while free_memory()?.iter().zip(before).any(|(now, before)| now < before) {
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "free bytes before {before:?}, now {:?}",
            free_memory()?
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let sockets_left: Vec<&str> = sockets.lines().filter(|line| line.contains("@symmc-")).collect();
    ensure!(sockets_left.is_empty(), "sockets are left: {sockets_left:?}");
    let shared: Vec<_> =
        std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|f| f.file_name()).collect();
    let ours = |name: &&std::ffi::OsString| name.to_string_lossy().contains("symmc");
    ensure!(!shared.iter().any(|name| ours(&name)), "shared memory is left: {shared:?}");
    Ok(())
}
