//! Two ranks as threads of one process, each with a GPU of its own, memory of a caller, and a program that counts its runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use symmc::unstable::cuda::device::driver::{Device, DeviceBuffer, Stream};
use symmc::{
    ArgumentBinding, CheckedPlan, CompileConfig, GpuConfig, Group, MachineProfile, Program, Session,
    SessionConfig,
};

pub const RANK_COUNT: u32 = 2;

/// The GPUs that are used.
pub const GPU_COUNT: u32 = 2;

pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A sum over ranks, and a state that counts the runs.
pub const COUNTED_PROGRAM: &str = "program \"counted\" ranks 2\nsymbol n in 1..=64\ngroup @all world\n\
    arg %x: f32[n, 4]\nparam %w: f32[4]\nparam %state: f32[4]\nconst %one: f32[4] = hex\"0000803f0000803f0000803f0000803f\"\n\
    %a: f32[n, 4] = mul %x, %w\n%y: f32[n, 4] = all_reduce %a op=sum group=@all\n\
    %next: f32[4] = add %state, %one\nreturn %y\nmutate %state = %next\n";

/// The same work on a thread for each rank, with its GPU.
pub fn on_ranks<T: Send>(work: impl Fn(&Group, &Arc<Device>) -> Result<T> + Sync) -> Result<Vec<T>> {
    let groups = Group::threads(RANK_COUNT);
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

pub fn config(group: &Group) -> SessionConfig {
    SessionConfig::default().with_timeout(WAIT_TIMEOUT).with_gpu(GpuConfig::new(group.rank()))
}

/// Memory of the caller on a GPU.
pub struct DeviceBlock {
    memory: DeviceBuffer,
    /// Where it begins in that.
    from: usize,
    stream: Stream,
}

impl DeviceBlock {
    pub fn of(device: &Arc<Device>, bytes: usize) -> Result<DeviceBlock> {
        DeviceBlock::at(device, bytes, 0)
    }

    /// The same, so many bytes behind a multiple of 256.
    pub fn at(device: &Arc<Device>, bytes: usize, from: usize) -> Result<DeviceBlock> {
        device.enter()?;
        let memory = DeviceBuffer::new(device, "a block of the caller", bytes + from)?;
        Ok(DeviceBlock { memory, from, stream: Stream::new(device)? })
    }

    pub fn holding(device: &Arc<Device>, data: &[u8]) -> Result<DeviceBlock> {
        let block = DeviceBlock::of(device, data.len())?;
        block.write(data)?;
        Ok(block)
    }

    pub fn write(&self, data: &[u8]) -> Result<()> {
        ensure!(data.len() <= self.bytes(), "{} bytes in {}", data.len(), self.bytes());
        // SAFETY: the memory has as many bytes, and no run uses it now.
        unsafe { self.stream.upload(self.address(), data)? };
        Ok(())
    }

    pub fn read(&self, bytes: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; bytes.min(self.bytes())];
        // SAFETY: as above.
        unsafe { self.stream.download(&mut out, self.address())? };
        Ok(out)
    }

    pub fn bytes(&self) -> usize {
        self.memory.len() - self.from
    }

    pub fn address(&self) -> u64 {
        self.memory.address() + self.from as u64
    }

    pub fn ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address() as usize)
    }
}

pub fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn planned(program: &Program, bind: ArgumentBinding) -> Result<CheckedPlan> {
    let machine = MachineProfile::nearest_builtin(program.graph.ranks.unwrap_or(1));
    let profile = MachineProfile::builtin(machine).with_context(|| format!("no profile {machine}"))?;
    Ok(symmc::compile(program, &CompileConfig::default().with_profile(profile).with_bind(bind))?)
}

pub fn counted() -> Result<CheckedPlan> {
    planned(&Program::from_text(COUNTED_PROGRAM)?, ArgumentBinding::None)
}

/// A session of the counting program with its weight and its state written.
pub fn opened(plan: &CheckedPlan, group: &Group) -> Result<Session> {
    opened_on(plan, group, GpuConfig::new(group.rank()))
}

/// The same on a GPU as it is described.
pub fn opened_on(plan: &CheckedPlan, group: &Group, gpu: GpuConfig) -> Result<Session> {
    opened_as(plan, group, &SessionConfig::default().with_timeout(WAIT_TIMEOUT).with_gpu(gpu))
}

/// The same, opened as this says.
pub fn opened_as(plan: &CheckedPlan, group: &Group, config: &SessionConfig) -> Result<Session> {
    let mut session = Session::open(plan, group, config)?;
    session.set("n", 4)?;
    session.write("w", &floats(&[1.0, 2.0, 3.0, 4.0]))?;
    session.write("state", &floats(&[0.0; 4]))?;
    session.write("x", &floats(&[1.0; 16]))?;
    Ok(session)
}
