//! Pointers that change while runs are in flight: every input and output of recorded programs in turn and together, graphs
//! of the caller that keep the old ones, and what is copied in a run that has everything in the caller's memory.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use symmc::unstable::control::RankConfig;
use symmc::unstable::cuda::CudaSession;
use symmc::unstable::cuda::device::driver::{Device, Stream};
use symmc::unstable::runtime::session::{DeviceRange, DeviceSession, Port, RawStream};
use symmc::{
    ArgumentBinding, CheckedPlan, CollectiveVariant, CompileConfig, DrawConfig, GpuConfig, Group,
    MachineProfile, OpenOptions, PortStorage, Program, RecordingCounts, Session, TensorFile, Workload,
};

use crate::common::{DeviceBlock, WAIT_TIMEOUT, config, floats, on_ranks, opened, planned, values};

/// Memory of a caller for an input or output, and what an input holds before each run.
struct LentPort {
    port: Port,
    bytes: usize,
    data: Option<DeviceBlock>,
    block: DeviceBlock,
}

/// A session all of whose inputs and outputs lie in memory of the caller.
struct CallerSession<'d> {
    session: CudaSession,
    device: &'d Arc<Device>,
    stream: Stream,
    lent: Vec<LentPort>,
    /// Memory that runs in flight may use still.
    old: Vec<DeviceBlock>,
    /// What the outputs were after each run.
    found: Vec<Vec<DeviceBlock>>,
}

impl CallerSession<'_> {
    fn open<'d>(
        plan: &CheckedPlan,
        work: &Workload,
        group: &Group,
        device: &'d Arc<Device>,
    ) -> Result<CallerSession<'d>> {
        let config = RankConfig { limit: WAIT_TIMEOUT, ..RankConfig::default() };
        let mut session = CudaSession::open(plan, group, &GpuConfig::new(group.rank()), &config)?;
        session.set_sizes(&work.bindings)?;
        let mut ports = Vec::new();
        let source = plan.source_program();
        for (i, tensor) in work.inputs[group.rank() as usize].iter().enumerate() {
            let (port, tensor) = (Port::Input(i), tensor.load_to_memory()?);
            if source.inputs.values().nth(i).is_some_and(|input| input.data.is_some()) {
                continue;
            }
            let data = tensor.data();
            // What the plan holds in symmetric memory is written there, so that nothing is copied.
            if matches!(session.port_memory(port)?.storage, PortStorage::Symmetric(_)) {
                session.write_input(i, data)?;
                continue;
            }
            let (block, bytes) = (DeviceBlock::holding(device, data)?, data.len());
            ports.push(LentPort { port, bytes, data: Some(DeviceBlock::holding(device, data)?), block });
        }
        for (k, output) in
            session.resolved_program()?.outputs.iter().enumerate().filter(|(_, o)| o.mutates.is_none())
        {
            let block = DeviceBlock::of(device, output.bytes)?;
            ports.push(LentPort { port: Port::Output(k), bytes: output.bytes, data: None, block });
        }
        let stream = Stream::new(device)?;
        let mut caller = CallerSession { session, device, stream, lent: ports, old: vec![], found: vec![] };
        (0..caller.lent.len()).try_for_each(|l| caller.lend(l))?;
        Ok(caller)
    }

    fn lend(&mut self, l: usize) -> Result<()> {
        let LentPort { port, bytes, block, .. } = &self.lent[l];
        let memory = DeviceRange { address: block.address(), bytes: *bytes };
        // SAFETY: blocks live as long as the session.
        unsafe { self.session.bind_port(*port, Some(memory))? };
        Ok(())
    }

    /// Has something lie elsewhere in the runs that come, at a place that is a multiple of 16 and of no more.
    fn shift(&mut self, l: usize) -> Result<()> {
        let block = DeviceBlock::at(self.device, self.lent[l].bytes, 16 * (1 + 2 * (self.old.len() % 5)))?;
        self.old.push(std::mem::replace(&mut self.lent[l].block, block));
        self.lend(l)
    }

    /// Puts one run on the stream: inputs as they are, outputs of before wiped out, and what was given up, too.
    fn run(&mut self) -> Result<()> {
        for lent in &self.lent {
            let address = lent.block.address();
            // SAFETY: all blocks have as many bytes, and what is on the stream follows one another.
            unsafe {
                match &lent.data {
                    Some(data) => self.stream.copy(address, data.address(), lent.bytes)?,
                    None => self.stream.fill(address, 0xa5, lent.bytes)?,
                }
            }
        }
        self.session.enqueue(Some(RawStream(self.stream.handle().cast())))?;
        let mut copies = Vec::new();
        for lent in &self.lent {
            let copy = DeviceBlock::of(self.device, lent.bytes)?;
            // SAFETY: as above.
            unsafe { self.stream.copy(copy.address(), lent.block.address(), lent.bytes)? };
            copies.push(copy);
        }
        self.found.push(copies);
        for old in &self.old {
            // SAFETY: as above; runs in front of this may use it, those behind do not.
            unsafe { self.stream.fill(old.address(), 0x5a, old.bytes())? };
        }
        Ok(())
    }

    /// Compares what all runs left with what the first did.
    fn compare(&mut self) -> Result<()> {
        self.session.wait(WAIT_TIMEOUT)?;
        self.stream.synchronize()?;
        let read = |blocks: &Vec<DeviceBlock>| -> Result<Vec<Vec<u8>>> {
            blocks.iter().zip(&self.lent).map(|(block, lent)| block.read(lent.bytes)).collect()
        };
        let first = read(self.found.first().context("a run")?)?;
        for (run, blocks) in self.found.iter().enumerate() {
            for ((found, expected), lent) in read(blocks)?.iter().zip(&first).zip(&self.lent) {
                ensure!(found == expected, "run {run}: {:?} differs from that of the first run", lent.port);
            }
        }
        Ok(())
    }

    /// Refuses copies of the host, and of what the caller lends.
    fn no_copies(&self) -> Result<usize> {
        let copies = self.session.copies()?;
        for copy in &copies {
            ensure!(!copy.host, "a copy between host and device: {copy:?}");
            for lent in self.lent.iter().filter(|lent| lent.bytes > 0) {
                let range = lent.block.address()..lent.block.address() + lent.bytes as u64;
                let ends = [copy.to, copy.from];
                ensure!(!ends.iter().any(|end| range.contains(end)), "a copy of {:?}: {copy:?}", lent.port);
            }
        }
        Ok(copies.len())
    }
}

/// Every input and output of a recorded program moves in turn, and all together, while the runs before are in flight.
pub fn moves(stem: &str) -> Result<()> {
    let folder = std::path::Path::new("tests/programs");
    let tensors = Arc::new(TensorFile::open(&folder.join(format!("{stem}.safetensors")))?);
    let options = OpenOptions::default().with_tensors(tensors.clone());
    let program = Program::open(&folder.join(format!("{stem}.pt2")), &options)?;
    let work = Workload::gather(&program.graph, &program.weights, Some(&tensors), &DrawConfig::default())?;
    let plan = planned(&program, ArgumentBinding::All)?;
    let summaries = on_ranks(|group, device| {
        let mut caller = CallerSession::open(&plan, &work, group, device)?;
        caller.run()?;
        let copies = caller.no_copies()?;
        let count = caller.lent.len();
        for l in 0..count {
            caller.shift(l)?;
            caller.run()?;
        }
        (0..count).try_for_each(|l| caller.shift(l))?;
        caller.run()?;
        caller.compare()?;
        let RecordingCounts { retargeted: moved, created: recorded, .. } = caller.session.recording_counts();
        ensure!(moved > 0, "nothing was moved, {recorded} runs were recorded");
        Box::new(caller.session).close()?;
        Ok((count, moved, recorded, copies))
    })?;
    for (rank, (count, moved, recorded, copies)) in summaries.into_iter().enumerate() {
        println!(
            "{stem}, rank {rank}: {count} inputs and outputs move in flight, {moved} times in a recording, {recorded} recorded; \
             {copies} copies in a run, none of the host or of theirs"
        );
    }
    Ok(())
}

/// An argument that the plan holds in symmetric memory is copied there in each run, from wherever it lies.
pub fn copied() -> Result<()> {
    const SUMS: u32 = 6;
    let mut text = "program \"sums\" ranks 2\ngroup @all world\narg %x: f32[16, 64]\n".to_string();
    // The ranks add their own operands to each sum, so that every all_reduce is needed.
    text += "%y1: f32[16, 64] = all_reduce %x op=sum group=@all\n";
    for sum in 2..=SUMS {
        text += &format!("%p{sum}: f32[16, 64] = add %y{}, %x\n", sum - 1);
        text += &format!("%y{sum}: f32[16, 64] = all_reduce %p{sum} op=sum group=@all\n");
    }
    text += &format!("return %y{SUMS}\n");
    let profile = MachineProfile::builtin("h200x2").context("no profile h200x2")?;
    let one_shot =
        CompileConfig::default().with_profile(profile).with_variants(vec![CollectiveVariant::OneShot]);
    let plan = symmc::compile(&Program::from_text(&text)?, &one_shot.with_bind(ArgumentBinding::All))?;
    let bytes = 16 * 64 * 4;
    let summaries = on_ranks(|group, device| {
        let mut session = Session::open(&plan, group, &config(group))?;
        ensure!(
            matches!(session.address("x")?.storage, PortStorage::Symmetric(_)),
            "the plan holds %x in symmetric memory"
        );
        let x: Vec<DeviceBlock> = (0..3)
            .map(|i| DeviceBlock::holding(device, &floats(&[i as f32 + 1.0; 16 * 64])))
            .collect::<Result<_>>()?;
        for run in 0..9 {
            // SAFETY: the blocks live until the session has ended.
            unsafe { session.bind("x", x[run % 3].ptr(), bytes)? };
            session.run()?;
            let expected = (run % 3 + 1) as f32 * (2f32.powi(SUMS as i32 + 1) - 2.0);
            let output = values(session.read("out.0")?.data());
            ensure!(
                output == vec![expected; 16 * 64],
                "run {run}: found {:?}, expected {expected}",
                &output[..4]
            );
        }
        let recordings = session.recordings();
        ensure!(recordings.retargeted > 0, "nothing was moved: {recordings:?}");
        session.close()?;
        Ok(recordings)
    })?;
    println!("what is copied moves: {summaries:?}");
    Ok(())
}

/// Two pointers of each run change while all runs before are in flight; each run's result is its own.
pub fn in_flight(plan: &CheckedPlan) -> Result<()> {
    const RUNS: usize = 200;
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        let inputs: Vec<DeviceBlock> = (0..3)
            .map(|i| DeviceBlock::holding(device, &floats(&[i as f32 + 1.0; 16])))
            .collect::<Result<_>>()?;
        let outputs = DeviceBlock::of(device, RUNS * 64)?;
        for run in 0..RUNS {
            // SAFETY: the blocks live until the session has ended.
            unsafe {
                session.bind("x", inputs[run * run % 3].ptr(), 64)?;
                session.bind("out.0", outputs.ptr().wrapping_add(run * 64), 64)?;
            }
            session.enqueue()?;
        }
        session.wait(WAIT_TIMEOUT)?;
        for (run, found) in values(&outputs.read(RUNS * 64)?).chunks(16).enumerate() {
            let each = 2.0 * ((run * run % 3) as f32 + 1.0);
            let wanted: Vec<f32> = (0..16).map(|i| each * (i % 4 + 1) as f32).collect();
            ensure!(found == wanted, "run {run}: found {found:?}, expected {wanted:?}");
        }
        session.close()?;
        Ok(())
    })?;
    println!("{RUNS} runs in flight, each with an input and an output of its own");
    Ok(())
}

/// Graphs of the caller take pointers that the session never ran with, and keep them, whatever the session does since.
pub fn kept_by_graphs(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, device| {
        let mut session = opened(plan, group)?;
        device.enter()?;
        let stream = Stream::new(device)?;
        let x: Vec<DeviceBlock> = (0..3)
            .map(|i| DeviceBlock::holding(device, &floats(&[i as f32 + 1.0; 16])))
            .collect::<Result<_>>()?;
        let y: Vec<DeviceBlock> = (0..3).map(|_| DeviceBlock::of(device, 64)).collect::<Result<_>>()?;
        let mut graphs = Vec::new();
        session.run()?;
        for (x, y) in x.iter().zip(&y) {
            // SAFETY: the blocks and the stream live until the session has ended.
            let mut enqueue = || unsafe {
                session.bind("x", x.ptr(), 64)?;
                session.bind("out.0", y.ptr(), 64)?;
                session.enqueue_on(stream.handle().cast())
            };
            graphs.push(stream.capture_strictly(|| {
                enqueue().map_err(|e| symmc::unstable::cuda::CudaError::Unsupported(e.to_string()))
            })?);
        }
        let wanted =
            |i: usize| (0..16).map(|j| 2.0 * (i as f32 + 1.0) * (j % 4 + 1) as f32).collect::<Vec<f32>>();
        for turn in 0..6 {
            y.iter().try_for_each(|y| y.write(&[0xa5; 64]))?;
            // The session runs in other memory meanwhile.
            let own = (turn + 1) % 3;
            // SAFETY: as above.
            unsafe {
                session.bind("x", x[own].ptr(), 64)?;
                session.bind("out.0", y[own].ptr(), 64)?;
                session.enqueue_on(stream.handle().cast())?;
                stream.replay(&graphs[turn % 3])?;
            }
            session.wait(WAIT_TIMEOUT)?;
            stream.synchronize()?;
            for (i, y) in y.iter().enumerate() {
                let output = values(&y.read(64)?);
                let expected = if i == own || i == turn % 3 { wanted(i) } else { values(&[0xa5; 64]) };
                ensure!(output == expected, "turn {turn}, memory {i}: found {output:?}");
            }
        }
        drop(graphs);
        session.close()?;
        Ok(())
    })?;
    println!("graphs of the caller take new pointers, and keep those that they were recorded with");
    Ok(())
}
