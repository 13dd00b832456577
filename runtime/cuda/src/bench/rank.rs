//! A rank of a measurement: its memory, the calls of a case as a program, and replays of the recorded calls.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use symmc_ir::collective::{CollectiveVariant, ProtocolThresholds};
use symmc_ir::{CollectiveKind, CollectiveReduceOp, DType, Op, Tensor};
use symmc_plan::{ExitBarrier, Lane};
use symmc_runtime::RunError;
use symmc_runtime::exec::{
    ExecutableStep, LocatedTensor, MemorySpace, ResolvedCollective, ResolvedRegion, StepWork,
};

use super::results::BenchConfig;
use crate::arena::{ArenaSource, SymmetricArena};
use crate::codegen::addresses::AddressMap;
use crate::codegen::collective::{self, ControlRegion, PeerContext, VariantGrids};
use crate::codegen::command::GpuCommand;
use crate::codegen::compile;
use crate::codegen::compute::KernelTarget;
use crate::device::driver::{Device, DeviceBuffer, ExecutableGraph, PinnedBuffer};
use crate::device::launch::{Address, PortBases};
use crate::device::streams::LaneStreams;
use crate::error::{CudaError, Result};
use crate::exchange::RankExchange;
use crate::nccl::{CommunicatorContext, Communicators};
use crate::program::{DeviceProgram, ProgramContext};
use crate::session::resources::{self, Resources};
use crate::session::wait;

/// The number of calls in one graph.
pub(super) const CALLS_PER_GRAPH: usize = 10;

/// Warm-up replays, which are not counted.
const WARMUP_REPLAYS: usize = 3;

/// The size in bytes up to which results are compared.
const MAX_COMPARED_BYTES: usize = 4 << 20;

/// The size in bytes up to which `ll` is measured; the landing zones have a slot of this size per peer.
pub(super) const MAX_LL_BYTES: usize = 4 << 20;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct CollectiveCase {
    pub kind: CollectiveKind,
    /// The larger side in bytes.
    pub bytes: usize,
    pub variant: CollectiveVariant,
    /// Whether a droppable exit barrier is kept.
    pub exit: Option<bool>,
    /// The block limit of its kernel.
    pub blocks: Option<u32>,
}

pub(super) struct RankBench<'a> {
    pub exchange: &'a dyn RankExchange,
    pub dtype: DType,
    pub resources: Resources,
    pub peers: PeerContext,
    pub addresses: AddressMap,
    /// The bytes of each region: two operands, two results, two landing zones.
    pub region: usize,
    pub zone: usize,
    /// Library variants that this machine cannot run, with the reasons.
    pub off: IndexMap<CollectiveVariant, String>,
}

impl<'a> RankBench<'a> {
    pub fn new(
        gpu: u32,
        limit: Duration,
        config: &BenchConfig,
        dtype: DType,
        exchange: &'a dyn RankExchange,
    ) -> Result<RankBench<'a>> {
        let device = Device::open(gpu)?;
        let n = exchange.ranks() as usize;
        let norm = config.norms.iter().map(|[rows, hidden]| rows * hidden * dtype.size()).max().unwrap_or(0);
        let bytes = config.bytes.iter().copied().max().unwrap_or(0);
        let largest = bytes.max(norm).next_multiple_of(4096);
        let sum = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
        let zone =
            CollectiveVariant::Ll.landing_bytes(&sum, bytes.min(MAX_LL_BYTES).max(norm) as u64, n as u64);
        let zone = (zone as usize).next_multiple_of(4096);
        let symmetric = 4 * largest + 2 * zone;
        let control = ControlRegion { groups: 1, ..ControlRegion::default() };
        let arena =
            SymmetricArena::new(ArenaSource::Vmm, &device, exchange, symmetric + control.bytes(), limit)?;
        let local = collective::local_bytes(1).next_multiple_of(256);
        let memory = DeviceBuffer::new(&device, "operands of plain collectives", local + 4 * largest)?;
        let status = PinnedBuffer::new(&device, 4096)?;
        let streams = LaneStreams::new(&device)?;
        // SAFETY: the memory was just allocated.
        unsafe { streams.compute.fill(memory.address(), 0, local)? };
        streams.compute.synchronize()?;
        let peers = PeerContext {
            program: 0,
            rank: exchange.rank(),
            arenas: arena.addresses(),
            arena: symmetric,
            control,
            local: memory.address(),
            status: status.address(),
            limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
            chaos: None,
            blocks: VariantGrids::default(),
            thresholds: ProtocolThresholds::default(),
            links: device.links()?,
        };
        let addresses = AddressMap::without_ports(memory.address() + local as Address, arena.address());
        let resources = resources::ResourceParts {
            programs: vec![],
            streams,
            nccl: Communicators::default(),
            arena,
            status: Arc::new(status),
            _memory: memory,
            device,
        };
        let resources = Resources::new(resources);
        let off = IndexMap::new();
        let mut bench =
            RankBench { exchange, dtype, resources, peers, addresses, region: largest, zone, off };
        for variant in CollectiveVariant::ALL.iter().copied().filter(|v| v.is_library()) {
            match bench.communicator(variant, limit)? {
                Ok(()) => {}
                Err(text) if variant == CollectiveVariant::Plain => return Err(CudaError::Unsupported(text)),
                Err(text) => drop(bench.off.insert(variant, text)),
            }
        }
        Ok(bench)
    }

    /// Creates the communicator of a library variant, or notes why there is none.
    pub fn communicator(
        &mut self,
        variant: CollectiveVariant,
        limit: Duration,
    ) -> Result<Result<(), String>> {
        let kind = CollectiveKind::AllGather;
        let steps = self.case_steps(&CollectiveCase { kind, bytes: 0, variant, exit: None, blocks: None });
        let device = self.resources.device.clone();
        let exchange = self.exchange;
        let arena = (self.resources.arena.address(), self.resources.arena.len());
        let making = CommunicatorContext { exchange, device: &device, arena, limit, lent: None };
        prepared_on_all_ranks(self.resources.nccl.create_missing(&steps, &making), exchange)
    }

    pub fn case_steps(&self, case: &CollectiveCase) -> Vec<ExecutableStep> {
        let CollectiveCase { kind, bytes, variant, exit, blocks } = case;
        let n = self.exchange.ranks() as usize;
        let space =
            if *variant == CollectiveVariant::Plain { MemorySpace::Ordinary } else { MemorySpace::Symmetric };
        let elements = bytes / self.dtype.size() / n * n;
        let operand_elements = kind.operand_and_result_sizes(elements as u64, n as u64).0 as usize;
        let zones = 4 * self.region;
        let steps = (0..CALLS_PER_GRAPH).map(|index| {
            let turn = index % 2;
            ExecutableStep {
                index,
                lane: Lane::Compute,
                waits: vec![],
                node: format!("call{index}"),
                op_name: kind.name().to_string(),
                joins_previous: false,
                work: StepWork::Collective(ResolvedCollective {
                    kind: kind.clone(),
                    variant: *variant,
                    exit: exit.map(|kept| if kept { ExitBarrier::Kept } else { ExitBarrier::Dropped }),
                    cell: (0..self.exchange.ranks()).collect(),
                    group: 0,
                    dtype: self.dtype,
                    elements: operand_elements,
                    row_elements: 1,
                    operand: ResolvedRegion::uniform(space, turn * self.region),
                    result: ResolvedRegion::uniform(space, (2 + turn) * self.region),
                    blocks: *blocks,
                    landing: (*variant == CollectiveVariant::Ll).then_some([zones, zones + self.zone]),
                    splits: None,
                    rows: None,
                }),
            }
        });
        steps.collect()
    }

    /// Measures copies of this many bytes between two buffers.
    pub fn measure_copies(
        &mut self,
        bytes: usize,
        replays: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<[f64; 3]> {
        let elements = bytes / self.dtype.size();
        let mut steps = Vec::with_capacity(CALLS_PER_GRAPH);
        for index in 0..CALLS_PER_GRAPH {
            steps.push(ExecutableStep {
                index,
                lane: Lane::Compute,
                waits: vec![],
                node: format!("copy{index}"),
                op_name: "copy".into(),
                joins_previous: false,
                work: StepWork::Kernel {
                    op: Op::Copy,
                    operands: vec![self.locate(MemorySpace::Ordinary, index % 2, &[elements])],
                    results: vec![self.locate(MemorySpace::Ordinary, 2 + index % 2, &[elements])],
                },
            });
        }
        self.prepare(&steps)?;
        let graph = self.record()?;
        let times = self.measure_times(&graph, replays, alive, &mut || Ok(()))?;
        Ok(times)
    }

    /// A dense tensor at the start of a region; `shape` has one or two extents.
    pub(super) fn locate(&self, space: MemorySpace, region: usize, shape: &[usize]) -> LocatedTensor {
        LocatedTensor {
            space,
            offset: region * self.region,
            by_rank: 0,
            dtype: self.dtype,
            shape: shape.into(),
            strides: if shape.len() == 1 { [1].into() } else { [shape[1] as isize, 1].into() },
        }
    }

    /// Measures a case whose calls were recorded. Returns the times, and a description of a wrong result.
    pub fn measure_case(
        &self,
        graph: &ExecutableGraph,
        case: &CollectiveCase,
        replays: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<([f64; 3], Option<String>)> {
        let kind = &case.kind;
        let bytes = case.bytes;
        let base = if case.variant == CollectiveVariant::Plain {
            self.addresses.ordinary
        } else {
            self.addresses.symmetric
        };
        let n = self.exchange.ranks() as usize;
        let elements = bytes / self.dtype.size() / n * n;
        let mut wrong = None;
        if elements == 0 || bytes > MAX_COMPARED_BYTES {
            return Ok((self.measure_times(graph, replays, alive, &mut || Ok(()))?, wrong));
        }
        let operand = small_integers(self.dtype, elements, self.exchange.rank())?;
        let poison = vec![0x7f; bytes];
        for turn in 0..2 {
            let operand_address = base + (turn * self.region) as Address;
            // SAFETY: the regions exist; no run is in progress.
            unsafe {
                self.resources.streams.compute.upload(operand_address, operand.data())?;
                self.resources
                    .streams
                    .compute
                    .upload(operand_address + 2 * self.region as Address, &poison)?;
            }
        }
        let times = self.measure_times(graph, replays, alive, &mut || {
            wrong = self.compare(kind, base, elements)?;
            Ok(())
        })?;
        Ok((times, wrong))
    }

    /// Compiles these calls, which replace the previous program.
    pub fn prepare(&mut self, steps: &[ExecutableStep]) -> Result<()> {
        let program =
            self.with_program_context(|context| DeviceProgram::new(self.exchange.rank(), steps, context))?;
        self.resources.programs = vec![program];
        Ok(())
    }

    /// Loads calls that are already lowered.
    pub fn prepare_lowered(
        &mut self,
        steps: &[ExecutableStep],
        lowered: Vec<Vec<GpuCommand>>,
        source: &compile::KernelSource,
    ) -> Result<()> {
        let program = self
            .with_program_context(|context| DeviceProgram::from_commands(steps, lowered, source, context))?;
        self.resources.programs = vec![program];
        Ok(())
    }

    /// Calls `make` with the context in which programs of the bench run.
    pub fn with_program_context<T>(&self, make: impl FnOnce(&ProgramContext<'_>) -> T) -> T {
        let machine = KernelTarget {
            status: self.resources.status.address() + 2048,
            ..KernelTarget::from_device(&self.resources.device)
        };
        let context = ProgramContext {
            device: &self.resources.device,
            addresses: &self.addresses,
            peers: &self.peers,
            machine: &machine,
            nccl: &self.resources.nccl,
            search: None,
            settled: None,
            progress: None,
            bases: PortBases::NONE,
        };
        make(&context)
    }

    pub fn record(&self) -> Result<ExecutableGraph> {
        let Some(program) = self.resources.programs.last() else {
            return Err(CudaError::Unsupported("no program was prepared".into()));
        };
        program.record(PortBases::NONE, &self.resources.streams, &self.resources.nccl, 1)
    }

    /// The minimum, median and maximum microseconds of one recorded call over the replays. `first` is called
    /// after the first replay.
    pub fn measure_times(
        &self,
        graph: &ExecutableGraph,
        replays: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
        first: &mut dyn FnMut() -> Result<()>,
    ) -> Result<[f64; 3]> {
        let mut times = Vec::with_capacity(replays);
        for replay in 0..replays + WARMUP_REPLAYS {
            self.exchange.all_gather(&[0])?;
            // SAFETY: the graph was recorded from a program of the resources.
            let time = unsafe { self.resources.replay(graph, alive)? };
            self.check_reports()?;
            if replay == 0 {
                first()?;
            }
            if replay >= WARMUP_REPLAYS {
                times.push(time / CALLS_PER_GRAPH as f64);
            }
        }
        Ok(wait::min_median_max(times))
    }

    pub fn check_reports(&self) -> Result<()> {
        match collective::read_missed_peer(&self.resources.status) {
            Some(m) => Err(CudaError::Run(RunError::system(
                "a collective",
                format!("rank {} did not arrive at call {}", m.peer, m.step),
            ))),
            None => Ok(()),
        }
    }

    /// Describes the first wrong element of either result.
    pub fn compare(&self, kind: &CollectiveKind, base: Address, elements: usize) -> Result<Option<String>> {
        let n = self.exchange.ranks() as usize;
        let me = self.exchange.rank() as usize;
        let operands: Vec<Vec<f64>> = (0..n)
            .map(|r| small_integers(self.dtype, elements, r as u32).map(|t| t.to_f64()))
            .collect::<Result<_, _>>()?;
        let piece = elements / n;
        let facts = kind.facts();
        // The part of the operands that this rank gets: its slice of each, or all of each.
        let (start, count) = if facts.operand_pieces { (me * piece, piece) } else { (0, piece * n) };
        let count = if facts.is_sized_by_result() { piece } else { count };
        let expected: Vec<f64> = if facts.reduces {
            (start..start + count).map(|i| operands.iter().map(|x| x[i]).sum()).collect()
        } else if facts.result_pieces {
            operands.iter().flat_map(|x| &x[start..start + count]).copied().collect()
        } else {
            kind.sender_to(me as u32).map_or_else(|| vec![0.0; count], |from| operands[from as usize].clone())
        };
        for turn in 0..2 {
            let mut bytes = vec![0; expected.len() * self.dtype.size()];
            let result_address = base + ((2 + turn) * self.region) as Address;
            // SAFETY: the region exists; no run is in progress.
            unsafe { self.resources.streams.compute.download(&mut bytes, result_address)? };
            let actual = Tensor::new(self.dtype, vec![expected.len()], bytes);
            let actual = actual.map(|t| t.to_f64()).unwrap_or_default();
            for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                if actual != expected {
                    let text = format!("result {turn}, element {i}: expected {expected}, found {actual}");
                    return Ok(Some(text));
                }
            }
        }
        Ok(None)
    }
}

/// The value that a rank prepared, if every rank succeeded; otherwise the reason of this rank, or the rank
/// that failed. The outer error is a missing resource that every case needs, or a failed peer.
pub(super) fn prepared_on_all_ranks<T>(
    mine: Result<T>,
    exchange: &dyn RankExchange,
) -> Result<Result<T, String>> {
    let mine = match mine {
        Ok(value) => Ok(value),
        Err(e @ (CudaError::Unsupported(_) | CudaError::Library { .. })) => Err(e.to_string()),
        Err(e) => return Err(e),
    };
    let outcomes = exchange.all_gather(&[u8::from(mine.is_ok())])?;
    let value = match mine {
        Ok(value) => value,
        Err(text) => return Ok(Err(text)),
    };
    Ok(match outcomes.iter().position(|outcome| outcome[..] != [1]) {
        None => Ok(value),
        Some(rank) => Err(format!("rank {rank} cannot run it")),
    })
}

/// Small integers, whose sums are exact in every dtype.
pub(super) fn small_integers(dtype: DType, elements: usize, rank: u32) -> Result<Tensor> {
    let numbers: Vec<f64> =
        (0..elements).map(|i| ((i * 7 + i / 11 + rank as usize * 5) % 13) as f64 - 6.0).collect();
    Tensor::from_f64(dtype, vec![elements], &numbers)
        .ok_or_else(|| CudaError::Unsupported(format!("dtype {dtype} holds no numbers")))
}
