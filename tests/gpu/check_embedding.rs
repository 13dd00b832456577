//! Sessions on GPUs, two ranks as threads of one process, each with a GPU of its own: recorded programs in memory of the
//! session and of the caller, sizes and pointers that change, other streams, the caller's graphs, what callers do wrong, and
//! that nothing is left behind.
//!
//! ```text
//! check_embedding [all]          the checks
//! check_embedding times FILE [SYMBOL=VALUE]   times of a program for two ranks
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use symmc::unstable::cuda::driver::{Device, Memory, Stream};
use symmc::unstable::ir::interp::{Tolerance, compare};
use symmc::{
    Bind, CheckedPlan, Config, Draw, Gpu, Group, OpenOptions, Profile, Program, Session, SessionConfig,
    Tensor, TensorFile, Workload,
};

const RANKS: u32 = 2;
const LIMIT: Duration = Duration::from_secs(20);

/// A sum over ranks, and a state that counts the runs.
const COUNTED: &str = "program \"counted\" ranks 2\nsymbol n in 1..=64\ngroup @all world\n\
    arg %x: f32[n, 4]\nparam %w: f32[4]\nparam %state: f32[4]\nconst %one: f32[4] = hex\"0000803f0000803f0000803f0000803f\"\n\
    %a: f32[n, 4] = mul %x, %w\n%y: f32[n, 4] = all_reduce %a op=sum group=@all\n\
    %next: f32[4] = add %state, %one\nreturn %y\nmutate %state = %next\n";

/// The same work on a thread for each rank, with its GPU.
fn on_ranks<T: Send>(work: impl Fn(&Group, &Arc<Device>) -> Result<T> + Sync) -> Result<Vec<T>> {
    let groups = Group::threads(RANKS);
    std::thread::scope(|scope| {
        let work = &work;
        let rank = |group: Group| {
            let device = Device::open(group.rank())?;
            work(&group, &device).with_context(|| format!("rank {}", group.rank()))
        };
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a rank panicked"))).collect()
    })
}

fn config(group: &Group) -> SessionConfig {
    SessionConfig::default().with_limit(LIMIT).with_gpu(Gpu::new(group.rank()))
}

/// Memory of the caller on a GPU.
struct Block {
    memory: Memory,
    stream: Stream,
}

impl Block {
    fn of(device: &Arc<Device>, bytes: usize) -> Result<Block> {
        device.enter()?;
        Ok(Block {
            memory: Memory::new(device, "a block of the caller", bytes)?,
            stream: Stream::new(device)?,
        })
    }

    fn holding(device: &Arc<Device>, data: &[u8]) -> Result<Block> {
        let block = Block::of(device, data.len())?;
        block.write(data)?;
        Ok(block)
    }

    fn write(&self, data: &[u8]) -> Result<()> {
        ensure!(data.len() <= self.memory.len(), "{} bytes in {}", data.len(), self.memory.len());
        // SAFETY: the memory has as many bytes, and no run uses it now.
        unsafe { self.stream.upload(self.memory.address(), data)? };
        Ok(())
    }

    fn read(&self, bytes: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; bytes.min(self.memory.len())];
        // SAFETY: as above.
        unsafe { self.stream.download(&mut out, self.memory.address())? };
        Ok(out)
    }

    fn ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.memory.address() as usize)
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn planned(program: &Program, bind: Bind) -> Result<CheckedPlan> {
    let profile = Profile::builtin("h200x2").context("no profile h200x2")?;
    Ok(symmc::compile(program, &Config::default().with_profile(profile).with_bind(bind))?)
}

fn counted() -> Result<CheckedPlan> {
    planned(&Program::from_text(COUNTED)?, Bind::None)
}

/// A session of the counting program with its weight and its state written.
fn opened(plan: &CheckedPlan, group: &Group) -> Result<Session> {
    let mut session = Session::open(plan, group, &config(group))?;
    session.set("n", 4)?;
    session.write("w", &floats(&[1.0, 2.0, 3.0, 4.0]))?;
    session.write("state", &floats(&[0.0; 4]))?;
    session.write("x", &floats(&[1.0; 16]))?;
    Ok(session)
}

/// Recorded programs, with memory of the session and of the caller.
fn recorded(stem: &str) -> Result<()> {
    let folder = std::path::Path::new("tests/programs");
    let tensors = Arc::new(TensorFile::open(&folder.join(format!("{stem}.safetensors")))?);
    let options = OpenOptions::default().with_tensors(tensors.clone());
    let program = Program::open(&folder.join(format!("{stem}.pt2")), &options)?;
    let work = Workload::gather(&program.graph, &program.weights, Some(&tensors), &Draw::default())?;
    let expected = work.expected.clone().context("no recorded outputs")?;
    for bind in [Bind::None, Bind::All] {
        let plan = planned(&program, bind.clone())?;
        for lent in [false, true] {
            let found = on_ranks(|group, device| {
                let mut session = Session::open(&plan, group, &config(group))?;
                let outputs = one_run(&mut session, &work, device, group.rank() as usize, lent)?;
                session.close()?;
                Ok(outputs)
            });
            let found = found.with_context(|| format!("{stem}, {bind:?}, lent {lent}"))?;
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                let Some(expected) = expected else { continue };
                let comparison = compare(found, expected, Tolerance::of(expected));
                ensure!(comparison.agrees(), "{stem}, {bind:?}, lent {lent}: {comparison}");
            }
        }
    }
    println!("{stem}: as recorded, with memory of the session and of the caller");
    Ok(())
}

fn one_run(
    session: &mut Session,
    work: &Workload,
    device: &Arc<Device>,
    rank: usize,
    lent: bool,
) -> Result<Vec<Tensor>> {
    let source = session.plan().source_program().clone();
    for (id, symbol) in source.symbols.iter() {
        session.set(&symbol.name, work.bindings.get(id).context("no value")?)?;
    }
    let mut blocks = Vec::new();
    for (input, tensor) in source.inputs.values().zip(&work.inputs[rank]) {
        if input.data.is_some() {
            continue;
        }
        let (name, tensor) = (source.name_of(input.value), tensor.loaded()?);
        if !lent {
            session.write(name, tensor.data())?;
            continue;
        }
        let block = Block::holding(device, tensor.data())?;
        // SAFETY: the block lives until the session has ended.
        unsafe { session.bind(name, block.ptr(), tensor.data().len())? };
        blocks.push(block);
    }
    session.enqueue()?;
    session.wait(LIMIT)?;
    let outputs = session.outputs()?;
    let mut returned = 0;
    let mut out = Vec::new();
    for output in &outputs {
        out.push(match &output.replaces {
            Some(input) => session.read(input)?,
            None => {
                returned += 1;
                session.read(&format!("out.{}", returned - 1))?
            }
        });
    }
    // Before the blocks go.
    for input in source.inputs.values().filter(|input| input.data.is_none()) {
        let _ = session.unbind(source.name_of(input.value));
    }
    Ok(out)
}

/// Sizes and pointers that change from run to run; a state in the caller's memory that is changed where it lies.
fn changes(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        let state = Block::holding(device, &floats(&[0.0; 4]))?;
        // SAFETY: the blocks live until the session has ended.
        unsafe { session.bind("state", state.ptr(), 16)? };
        let blocks = [Block::of(device, 1024)?, Block::of(device, 1024)?, Block::of(device, 1024)?];
        let output = Block::of(device, 1024)?;
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
fn streams(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        device.enter()?;
        let streams = [Stream::new(device)?, Stream::new(device)?];
        for run in 0..20 {
            // SAFETY: the streams live until all runs have ended.
            unsafe { session.enqueue_on(streams[run % 2].handle().cast())? };
            session.enqueue()?;
        }
        session.wait(LIMIT)?;
        ensure!(values(session.read("state")?.data()) == [40.0; 4], "the state after 40 runs");
        // SAFETY: as above.
        let mut put = || unsafe { session.enqueue_on(streams[0].handle().cast()) };
        let graph = streams[0].capture(|| {
            (0..2)
                .try_for_each(|_| put())
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
fn wrong_pointers(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        let other = Device::open(1 - group.rank())?;
        let foreign = Block::of(&other, 1024)?;
        let block = Block::of(device, 1024)?;
        let mut host = vec![0u64; 128];
        let refusals = [
            ("x", host.as_mut_ptr().cast::<u8>(), 64, "memory of the host"),
            ("x", foreign.ptr(), 64, "found at"),
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
fn dropped(plan: &CheckedPlan) -> Result<()> {
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
        Block::holding(device, &[1; 64])?.read(64)?;
        Ok(())
    })?;
    ensure!(start.elapsed() < Duration::from_secs(15), "it took {:?}", start.elapsed());
    Ok(())
}

/// Many sessions, one behind another.
fn many(plan: &CheckedPlan) -> Result<()> {
    let mut free = Vec::new();
    let start = Instant::now();
    for round in 0..200 {
        let left = on_ranks(|group, device| {
            let mut session = opened(plan, group)?;
            session.run()?;
            session.close()?;
            device.enter()?;
            Ok(device.free()?)
        })?;
        if round == 9 || round == 199 {
            free.push(left);
        }
    }
    println!("200 sessions in {:.1} s; free bytes after 10 and 200: {free:?}", start.elapsed().as_secs_f64());
    ensure!(free[0] == free[1], "memory is left behind");
    Ok(())
}

/// What was announced is what is taken.
fn budget(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, _| {
        let session = opened(plan, group)?;
        let (told, taken) = (symmc::gpu_memory_of(plan, group.rank()), session.taken());
        ensure!(
            (told.ordinary, told.symmetric) == (taken.ordinary, taken.symmetric)
                && told.scratch >= taken.scratch
                && told.held >= taken.held,
            "told {told:?}, taken {taken:?}"
        );
        session.close()?;
        Ok(())
    })?;
    println!("sessions take what was told before");
    Ok(())
}

/// Times of a program: opening, the host's part of a run, a run with another pointer, and the run.
fn times(file: &str, symbols: &[(String, i64)]) -> Result<()> {
    let program = Program::open(file.as_ref(), &OpenOptions::default().with_ranks(RANKS))?;
    let plan = planned(&program, Bind::None)?;
    let steps = plan.buckets.first().map_or(0, |bucket| bucket.steps.len());
    println!("{file}: {steps} steps");
    on_ranks(|group, device| {
        let start = Instant::now();
        let mut session = Session::open(&plan, group, &config(group))?;
        let open = start.elapsed();
        for (symbol, value) in symbols {
            session.set(symbol, *value)?;
        }
        for value in session.inputs()?.into_iter().chain(session.parameters()?) {
            session.address(&value.name)?;
        }
        let start = Instant::now();
        session.run()?;
        let first = start.elapsed();
        let mut host = Vec::new();
        for _ in 0..300 {
            let start = Instant::now();
            session.enqueue()?;
            host.push(start.elapsed());
            session.wait(LIMIT)?;
        }
        let start = Instant::now();
        for _ in 0..300 {
            session.enqueue()?;
        }
        session.wait(LIMIT)?;
        let each = start.elapsed() / 300;
        let argument = session.inputs()?.into_iter().next().context("no argument")?;
        let blocks = [Block::of(device, argument.bytes)?, Block::of(device, argument.bytes)?];
        let mut other = Vec::new();
        for run in 0..6 {
            // SAFETY: the blocks live until the session has ended.
            unsafe { session.bind(&argument.name, blocks[run % 2].ptr(), argument.bytes)? };
            let start = Instant::now();
            session.enqueue()?;
            other.push(start.elapsed());
            session.wait(LIMIT)?;
        }
        host.sort();
        println!(
            "rank {}: open {open:?}, first run {first:?}, enqueue {:?} (median), run {each:?}, with another pointer {other:?}",
            group.rank(),
            host[host.len() / 2]
        );
        session.close()?;
        Ok(())
    })?;
    Ok(())
}

fn check(args: &[String]) -> Result<()> {
    if let [command, file, symbols @ ..] = args
        && command == "times"
    {
        let symbol = |text: &String| {
            let (name, value) = text.split_once('=').context("SYMBOL=VALUE")?;
            Ok((name.to_string(), value.parse()?))
        };
        return times(file, &symbols.iter().map(symbol).collect::<Result<Vec<_>>>()?);
    }
    let plan = counted()?;
    let mut failed = 0;
    let mut check = |name: &str, result: Result<()>| {
        if let Err(error) = result {
            failed += 1;
            println!("{name} FAILED: {error:#}");
        }
    };
    check("changes", changes(&plan));
    check("streams", streams(&plan));
    check("wrong pointers", wrong_pointers(&plan));
    check("budget", budget(&plan));
    for stem in ["hf_llama_tp2", "families/qwen3_tp2", "expert_gather2"] {
        check(stem, recorded(stem));
    }
    check("dropped", dropped(&plan));
    check("many", many(&plan));
    ensure!(failed == 0, "{failed} checks failed");
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match check(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
