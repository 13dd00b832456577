//! A stream and a communicator that an engine lends to sessions, which are its own again behind them.

use std::sync::{Arc, Barrier, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use nccl_sys::{Comm, Nccl, UniqueId, data_type, red_op};
use symmc::unstable::cuda::device::driver::{Device, Stream};
use symmc::{CheckedPlan, CompileConfig, GpuConfig, Group, MachineProfile, Program, Session};

use crate::common::{COUNTED_PROGRAM, DeviceBlock, RANK_COUNT, floats, on_ranks, opened, opened_on, values};

/// An engine's stream and communicator.
struct EngineHandles {
    device: Arc<Device>,
    stream: Stream,
    nccl: &'static Nccl,
    communicator: Comm,
}

impl EngineHandles {
    /// All ranks call this together.
    fn new(
        group: &Group,
        device: &Arc<Device>,
        id: &(Mutex<Option<UniqueId>>, Barrier),
    ) -> Result<EngineHandles> {
        device.enter()?;
        let nccl = Nccl::load().map_err(|e| anyhow!("{e}"))?;
        if group.rank() == 0 {
            let id_result = nccl.unique_id().map_err(|e| anyhow!("{e}"));
            *id.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(id_result?);
        }
        id.1.wait();
        let id = id.0.lock().unwrap_or_else(PoisonError::into_inner).context("no id")?;
        let created = nccl.comm_init_rank(RANK_COUNT, id, group.rank(), &nccl_sys::NcclConfig::default());
        let communicator = created.map_err(|e| anyhow!("{e}"))?;
        Ok(EngineHandles { device: device.clone(), stream: Stream::new(device)?, nccl, communicator })
    }

    fn open(&self, plan: &CheckedPlan, group: &Group) -> Result<Session> {
        // SAFETY: both live until the session has ended, belong to this GPU, and the library is the one that symmc finds.
        let gpu = unsafe {
            GpuConfig::new(group.rank())
                .with_stream(self.stream.handle().cast())
                .with_communicator(self.communicator.0, (0..RANK_COUNT).collect())
        };
        opened_on(plan, group, gpu)
    }

    /// A sum of the engine's own over both ranks, behind what is on its stream.
    fn sum(&self, block: &DeviceBlock) -> Result<()> {
        let address = block.ptr().cast();
        let all_reduce = self.nccl.functions().all_reduce;
        // SAFETY: the block has 4 numbers; the communicator and the stream are there.
        let code = unsafe {
            all_reduce(
                address,
                address,
                4,
                data_type::F32,
                red_op::SUM,
                self.communicator,
                self.stream.handle().cast(),
            )
        };
        self.nccl.check_code("ncclAllReduce", code).map_err(|e| anyhow!("{e}"))
    }

    /// Whether stream, communicator and context work.
    fn works(&self) -> Result<()> {
        let block = DeviceBlock::holding(&self.device, &floats(&[1.0; 4]))?;
        (0..3).try_for_each(|_| self.sum(&block))?;
        self.stream.synchronize()?;
        ensure!(values(&block.read(16)?) == [8.0; 4], "sums of the engine's own");
        Ok(())
    }

    fn end(self) -> Result<()> {
        // SAFETY: nothing runs on it.
        let code = unsafe { (self.nccl.functions().comm_destroy)(self.communicator) };
        self.nccl.check_code("ncclCommDestroy", code).map_err(|e| anyhow!("{e}"))
    }
}

/// Sessions whose collectives are NCCL's, among an engine's own on one stream and one communicator.
pub fn lent() -> Result<()> {
    let profile = MachineProfile::builtin("h200x2").context("no profile h200x2")?;
    let plain = CompileConfig::default().with_profile(profile).with_variants(vec![]);
    let plan = symmc::compile(&Program::from_text(COUNTED_PROGRAM)?, &plain)?;
    let id = (Mutex::new(None), Barrier::new(RANK_COUNT as usize));
    on_ranks(|group, device| {
        let mut session = opened(&plan, group)?;
        session.run()?;
        ensure!(values(session.read("y")?.data())[..4] == [2.0, 4.0, 6.0, 8.0], "a communicator of its own");
        session.close()?;
        let engine = EngineHandles::new(group, device, &id)?;
        let mut session = engine.open(&plan, group)?;
        let block = DeviceBlock::holding(device, &floats(&[1.0; 4]))?;
        for _ in 0..10 {
            session.enqueue()?;
            engine.sum(&block)?;
        }
        engine.stream.synchronize()?;
        ensure!(session.poll()?, "all is behind the engine's stream");
        ensure!(values(session.read("state")?.data()) == [10.0; 4], "the state after 10 runs");
        ensure!(values(session.read("y")?.data())[..4] == [2.0, 4.0, 6.0, 8.0], "the sum");
        ensure!(values(&block.read(16)?) == [1024.0; 4], "the engine's own sums");
        session.close()?;
        engine.works()?;
        // A run that ranks begin with other sizes fails on all of them.
        let mut session = engine.open(&plan, group)?;
        session.run()?;
        session.set("n", 5 + i64::from(group.rank()))?;
        session.address("x")?;
        let error = session.run().err().context("the ranks differ")?;
        ensure!(error.to_string().contains("run"), "{error}");
        drop(session);
        engine.works()?;
        engine.end()
    })?;
    println!("a stream and a communicator that were lent work behind sessions, and behind one that failed");
    Ok(())
}
