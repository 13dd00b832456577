//! Times of collectives on the GPUs at hand, every variant beside the vendor's own.
//!
//! A case is recorded ten times in a row into one graph, on two pairs of operands and results in turn, and
//! the graph is replayed; what counts is the median of the replays over the number of calls. Ranks agree on the
//! host that all of them can run a case, and meet there before each replay. The first replay's result is compared with
//! what the collective must give.

mod norm;

use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use symmc_ir::collective::{Exit, Forms, Splits, Variant};
use symmc_ir::{CollectiveKind, DType, Op, ReduceOp, Tensor};
use symmc_plan::{Barrier, Lane};
use symmc_runtime::RunError;
use symmc_runtime::exec::{BoundCollective, BoundRegion, BoundStep, Home, Located, Work as StepWork};

use crate::arena::{Exchange, Source, SymmetricArena};
use crate::collective::{self, BlockCounts, Control, Peers};
use crate::compile;
use crate::compute::Machine;
use crate::driver::{Device, Graph, Memory, Pinned};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::{Address, Work};
use crate::lowered::Distances;
use crate::nccl::{Communicators, Making};
use crate::program::{Parts, Program, Streams};
use crate::rig::{self, Rig};
use crate::watch;

pub use self::norm::{How, MeasuredNorm};

/// Calls in one graph.
const CALLS: usize = 10;
/// Replays that do not count.
const WARM: usize = 3;
/// Bytes up to which results are compared.
const COMPARED: usize = 4 << 20;
/// Bytes up to which packets are measured; the landing zones have a slot of as many for every peer.
const MOST_PACKETS: usize = 4 << 20;

/// What is measured: nothing, until a `with_…` says what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BenchConfig {
    /// The larger side of each collective, in bytes.
    pub bytes: Vec<usize>,
    /// The type of the elements.
    pub dtype: String,
    /// Replays of each graph that count.
    pub replays: usize,
    /// All-reduces with a residual and a norm: rows, and elements of a row.
    pub norms: Vec<[usize; 2]>,
    /// The most blocks that kernels of collectives are tried with; without any, as many as they have by themselves.
    pub blocks: Vec<u32>,
}

impl Default for BenchConfig {
    fn default() -> Self {
        BenchConfig { bytes: vec![], dtype: "bf16".into(), replays: 20, norms: vec![], blocks: vec![] }
    }
}

impl BenchConfig {
    /// Sets the larger sides of collectives, in bytes.
    pub fn with_bytes(self, bytes: impl Into<Vec<usize>>) -> BenchConfig {
        BenchConfig { bytes: bytes.into(), ..self }
    }

    /// Sets the type of the elements.
    pub fn with_dtype(self, dtype: impl Into<String>) -> BenchConfig {
        BenchConfig { dtype: dtype.into(), ..self }
    }

    /// Sets how many replays of each graph count.
    pub fn with_replays(self, replays: usize) -> BenchConfig {
        BenchConfig { replays, ..self }
    }

    /// Sets all-reduces with a residual and a norm: rows, and elements of a row.
    pub fn with_norms(self, norms: impl Into<Vec<[usize; 2]>>) -> BenchConfig {
        BenchConfig { norms: norms.into(), ..self }
    }

    /// Sets the most blocks that kernels of collectives are tried with.
    pub fn with_blocks(self, blocks: impl Into<Vec<u32>>) -> BenchConfig {
        BenchConfig { blocks: blocks.into(), ..self }
    }
}

/// One measured case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The collective's name.
    pub collective: String,
    /// The variant's name.
    pub variant: String,
    /// Of a variant whose exit barrier can be dropped: whether it was kept.
    pub exit: Option<bool>,
    /// The larger side in bytes.
    pub bytes: usize,
    /// The most blocks that its kernel was given, if any were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// Microseconds: least, median, most. `None` if it cannot run.
    pub us: Option<[f64; 3]>,
    /// What is wrong with its result, or why it cannot run.
    pub failed: Option<String>,
}

/// What a machine measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurements {
    /// The GPU, the driver and NCCL, with their versions.
    pub machine: String,
    /// The multiprocessors of a GPU.
    pub multiprocessors: u32,
    /// Copies within the memory of one rank: bytes, and the least, median and most microseconds.
    pub copies: Vec<(usize, [f64; 3])>,
    /// Collectives.
    pub collectives: Vec<Measured>,
    /// All-reduces with a residual and a norm.
    pub norms: Vec<MeasuredNorm>,
}

/// What is measured by itself.
#[derive(Clone, PartialEq, Debug)]
struct Case {
    kind: CollectiveKind,
    /// The larger side.
    bytes: usize,
    variant: Variant,
    /// Whether a droppable exit barrier is kept.
    exit: Option<bool>,
    /// The most blocks of its kernel.
    blocks: Option<u32>,
}

/// Cases by collective, in the order in which they are measured: for each size the plain variant first.
fn cases(config: &BenchConfig, ranks: u32) -> Vec<Case> {
    let kinds = [
        CollectiveKind::AllReduce(ReduceOp::Sum),
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter(ReduceOp::Sum),
        CollectiveKind::AllToAll(Splits::Even),
        CollectiveKind::Broadcast { root: 0 },
        CollectiveKind::Permute { pairs: (0..ranks).map(|r| (r, (r + 1) % ranks)).collect() },
    ];
    let mut out = Vec::new();
    for kind in kinds {
        for &bytes in &config.bytes {
            for &variant in Variant::ALL {
                let Some(contract) = variant.contract(&kind) else { continue };
                // Far beyond where they are of use.
                if variant == Variant::Packets && bytes > MOST_PACKETS {
                    continue;
                }
                let exits = match contract.exit {
                    Exit::Droppable => &[Some(false), Some(true)][..],
                    _ => &[None],
                };
                for &exit in exits {
                    let case = |blocks| Case { kind: kind.clone(), bytes, variant, exit, blocks };
                    out.extend(tried(&config.blocks, variant, bytes).into_iter().map(case));
                }
            }
        }
    }
    out
}

/// The numbers of blocks that a variant is tried with for so many bytes: of those beyond what the work can have, one.
fn tried(blocks: &[u32], variant: Variant, bytes: usize) -> Vec<Option<u32>> {
    if blocks.is_empty() || variant.is_library() || variant == Variant::Copies {
        return vec![None];
    }
    // A block has at least a KiB.
    let most = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    let first_beyond = blocks.iter().copied().filter(|&b| b >= most).min().unwrap_or(u32::MAX);
    let within = blocks.iter().copied().filter(|&b| b < most || b == first_beyond);
    within.map(Some).collect()
}

/// Measures all cases on this rank, together with its peers, and copies on the way.
///
/// # Errors
/// The machine lacks something that every case needs, or a peer failed.
pub fn run(
    gpu: u32,
    limit: Duration,
    config: &BenchConfig,
    exchange: &dyn Exchange,
    alive: &dyn Fn() -> Result<(), RunError>,
) -> Result<Measurements, CudaError> {
    let dtype = DType::from_name(&config.dtype)
        .ok_or_else(|| CudaError::Unsupported(format!("unknown dtype {}", config.dtype)))?;
    let mut bench = Bench::new(gpu, limit, config, dtype, exchange)?;
    let measured = bench.all(config, alive);
    // Peers learn of a failure and leave.
    measured.inspect_err(|_| bench.rig.fail())
}

/// What a rank prepared, if every rank could; else why this one could not, or which other.
///
/// # Errors
/// What no other case can do without, or a peer failed.
fn agreed<T>(mine: Result<T, CudaError>, exchange: &dyn Exchange) -> Result<Result<T, String>, CudaError> {
    let mine = match mine {
        Ok(value) => Ok(value),
        Err(e @ (CudaError::Unsupported(_) | CudaError::Library { .. })) => Err(e.to_string()),
        Err(e) => return Err(e),
    };
    let all = exchange.all_gather(&[u8::from(mine.is_ok())])?;
    let value = match mine {
        Ok(value) => value,
        Err(text) => return Ok(Err(text)),
    };
    Ok(match all.iter().position(|said| said[..] != [1]) {
        None => Ok(value),
        Some(rank) => Err(format!("rank {rank} cannot run it")),
    })
}

struct Bench<'a> {
    exchange: &'a dyn Exchange,
    dtype: DType,
    rig: Rig,
    peers: Peers,
    homes: Homes,
    /// Bytes of each of the regions: two operands, two results, two landing zones.
    region: usize,
    zone: usize,
    /// Variants of the library that this machine cannot run, and why.
    off: IndexMap<Variant, String>,
}

impl<'a> Bench<'a> {
    fn new(
        gpu: u32,
        limit: Duration,
        config: &BenchConfig,
        dtype: DType,
        exchange: &'a dyn Exchange,
    ) -> Result<Bench<'a>, CudaError> {
        let device = Device::open(gpu)?;
        let n = exchange.ranks() as usize;
        let norm = config.norms.iter().map(|[rows, hidden]| rows * hidden * dtype.size()).max().unwrap_or(0);
        let bytes = config.bytes.iter().copied().max().unwrap_or(0);
        let largest = bytes.max(norm).next_multiple_of(4096);
        let sum = CollectiveKind::AllReduce(ReduceOp::Sum);
        let zone = Variant::Packets.landing_bytes(&sum, bytes.min(MOST_PACKETS).max(norm) as u64, n as u64);
        let zone = (zone as usize).next_multiple_of(4096);
        let symmetric = 4 * largest + 2 * zone;
        let control = Control { groups: 1, ..Control::default() };
        let arena = SymmetricArena::new(Source::Vmm, &device, exchange, symmetric + control.bytes(), limit)?;
        let local = collective::local_bytes(1).next_multiple_of(256);
        let memory = Memory::new(&device, "operands of plain collectives", local + 4 * largest)?;
        let status = Pinned::new(&device, 4096)?;
        let streams = Streams::new(&device)?;
        // SAFETY: the memory was just allocated.
        unsafe { streams.compute.fill(memory.address(), 0, local)? };
        streams.compute.synchronize()?;
        let peers = Peers {
            rank: exchange.rank(),
            arenas: arena.addresses(),
            arena: symmetric,
            control,
            local: memory.address(),
            status: status.address(),
            limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
            chaos: None,
            blocks: BlockCounts::default(),
            forms: Forms::default(),
            links: device.links()?,
        };
        let homes = Homes {
            ordinary: memory.address() + local as Address,
            symmetric: arena.address(),
            inputs: vec![],
            outputs: vec![],
        };
        let (nccl, _arena, _memory) = (Communicators::default(), arena, memory);
        let rig = rig::Parts { programs: vec![], streams, nccl, arena: _arena, status, _memory, device };
        let rig = Rig::new(rig);
        let off = IndexMap::new();
        let mut bench = Bench { exchange, dtype, rig, peers, homes, region: largest, zone, off };
        for variant in Variant::ALL.iter().copied().filter(|v| v.is_library()) {
            match bench.communicator(variant, limit)? {
                Ok(()) => {}
                Err(text) if variant == Variant::Plain => return Err(CudaError::Unsupported(text)),
                Err(text) => drop(bench.off.insert(variant, text)),
            }
        }
        Ok(bench)
    }

    /// Makes the communicator of a variant of the library, or says why there is none.
    fn communicator(&mut self, variant: Variant, limit: Duration) -> Result<Result<(), String>, CudaError> {
        let kind = CollectiveKind::AllGather;
        let steps = self.steps(&Case { kind, bytes: 0, variant, exit: None, blocks: None });
        let (device, exchange) = (self.rig.device.clone(), self.exchange);
        let arena = (self.rig.arena.address(), self.rig.arena.len());
        let making = Making { exchange, device: &device, arena, limit, lent: None };
        agreed(self.rig.nccl.add(&steps, &making), exchange)
    }

    /// All copies and cases.
    fn all(
        &mut self,
        config: &BenchConfig,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<Measurements, CudaError> {
        let mut copies = Vec::new();
        for &bytes in &config.bytes {
            copies.push((bytes, self.copies(bytes, config.replays, alive)?));
        }
        let mut collectives = Vec::new();
        for case in cases(config, self.exchange.ranks()) {
            // The library may connect ranks while its calls are recorded, so all record or none does.
            let prepared = match self.off.get(&case.variant) {
                Some(text) => Err(CudaError::Unsupported(text.clone())),
                None => self.prepare(&self.steps(&case)),
            };
            let recorded = match agreed(prepared, self.exchange)? {
                Ok(()) => agreed(self.record(), self.exchange)?,
                Err(text) => Err(text),
            };
            let (us, failed) = match recorded {
                Ok(graph) => {
                    let (us, failed) = self.case(&graph, &case, config.replays, alive)?;
                    (Some(us), failed)
                }
                Err(text) => (None, Some(text)),
            };
            let Case { kind, bytes, variant, exit, blocks } = case;
            let (collective, variant) = (kind.name().to_string(), variant.name().to_string());
            collectives.push(Measured { collective, variant, exit, bytes, blocks, us, failed });
        }
        let norms = self.norms(&config.norms, config.replays, alive)?;
        let nccl = self.rig.nccl.version().map_or("no NCCL".into(), |v| format!("NCCL {v}"));
        let [major, minor] = crate::driver::version()?;
        let machine = format!("{}, CUDA {major}.{minor}, {nccl}", self.rig.device.name());
        let multiprocessors = self.rig.device.multiprocessors();
        Ok(Measurements { machine, multiprocessors, copies, collectives, norms })
    }

    /// The calls of a case.
    fn steps(&self, case: &Case) -> Vec<BoundStep> {
        let Case { kind, bytes, variant, exit, blocks } = case;
        let n = self.exchange.ranks() as usize;
        let home = if *variant == Variant::Plain { Home::Ordinary } else { Home::Symmetric };
        let elements = bytes / self.dtype.size() / n * n;
        let operand_elements = if *kind == CollectiveKind::AllGather { elements / n } else { elements };
        let zones = 4 * self.region;
        let step = |index: usize| {
            let turn = index % 2;
            let at = |i: usize| BoundRegion::even(home, i * self.region);
            BoundStep {
                index,
                lane: Lane::Comm,
                waits: vec![],
                node: format!("call{index}"),
                op_name: kind.name().to_string(),
                work: StepWork::Collective(BoundCollective {
                    kind: kind.clone(),
                    variant: *variant,
                    exit: exit.map(|kept| if kept { Barrier::Kept } else { Barrier::Dropped }),
                    cell: (0..self.exchange.ranks()).collect(),
                    group: 0,
                    dtype: self.dtype,
                    elements: operand_elements,
                    row: 1,
                    operand: at(turn),
                    result: at(2 + turn),
                    blocks: *blocks,
                    landing: (*variant == Variant::Packets).then_some([zones, zones + self.zone]),
                    splits: None,
                }),
            }
        };
        (0..CALLS).map(step).collect()
    }

    /// Times of copies of so many bytes between two buffers.
    fn copies(
        &mut self,
        bytes: usize,
        replays: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<[f64; 3], CudaError> {
        let elements = bytes / self.dtype.size();
        let at = |i: usize| Located {
            home: Home::Ordinary,
            offset: i * self.region,
            by_rank: 0,
            dtype: self.dtype,
            shape: [elements].into(),
            strides: [1].into(),
        };
        let step = |index: usize| BoundStep {
            index,
            lane: Lane::Compute,
            waits: vec![],
            node: format!("copy{index}"),
            op_name: "copy".into(),
            work: StepWork::Kernel {
                op: Op::Copy,
                operands: vec![at(index % 2)],
                results: vec![at(2 + index % 2)],
            },
        };
        let steps: Vec<BoundStep> = (0..CALLS).map(step).collect();
        self.prepare(&steps)?;
        let graph = self.record()?;
        let times = self.times(&graph, replays, alive, &mut || Ok(()))?;
        Ok(times)
    }

    /// Times of a case whose calls were recorded, and what is wrong with its result.
    fn case(
        &self,
        graph: &Graph,
        case: &Case,
        replays: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<([f64; 3], Option<String>), CudaError> {
        let (kind, bytes) = (&case.kind, case.bytes);
        let base = if case.variant == Variant::Plain { self.homes.ordinary } else { self.homes.symmetric };
        let n = self.exchange.ranks() as usize;
        let elements = bytes / self.dtype.size() / n * n;
        let mut wrong = None;
        if elements == 0 || bytes > COMPARED {
            return Ok((self.times(graph, replays, alive, &mut || Ok(()))?, wrong));
        }
        let operand = numbers(self.dtype, elements, self.exchange.rank())?;
        let poison = vec![0x7f; bytes];
        for turn in 0..2 {
            let at = base + (turn * self.region) as Address;
            // SAFETY: the regions exist; nothing runs.
            unsafe {
                self.rig.streams.compute.upload(at, operand.data())?;
                self.rig.streams.compute.upload(at + 2 * self.region as Address, &poison)?;
            }
        }
        let mut compare = || {
            wrong = self.compare(kind, base, elements)?;
            Ok(())
        };
        let times = self.times(graph, replays, alive, &mut compare)?;
        Ok((times, wrong))
    }

    /// Compiles these calls, which are the only program then.
    fn prepare(&mut self, steps: &[BoundStep]) -> Result<(), CudaError> {
        let program = self.with_parts(|parts| Program::new(self.exchange.rank(), steps, parts))?;
        self.rig.programs = vec![program];
        Ok(())
    }

    /// The same for calls that are lowered already.
    fn prepare_lowered(
        &mut self,
        steps: &[BoundStep],
        lowered: Vec<Vec<Work>>,
        source: &compile::Source,
    ) -> Result<(), CudaError> {
        let program = self.with_parts(|parts| Program::of_work(steps, lowered, source, parts))?;
        self.rig.programs = vec![program];
        Ok(())
    }

    /// Calls `make` with what programs of the bench run with.
    fn with_parts<T>(&self, make: impl FnOnce(&Parts<'_>) -> T) -> T {
        let machine = Machine { status: self.rig.status.address() + 2048, ..Machine::of(&self.rig.device) };
        let parts = Parts {
            device: &self.rig.device,
            homes: &self.homes,
            peers: &self.peers,
            machine: &machine,
            nccl: &self.rig.nccl,
            search: None,
            settled: None,
            progress: None,
            distances: Distances::Alike,
            shifted: None,
        };
        make(&parts)
    }

    /// Records what was prepared.
    fn record(&self) -> Result<Graph, CudaError> {
        let missing = || CudaError::Unsupported("nothing was prepared".into());
        let program = self.rig.programs.last().ok_or_else(missing)?;
        program.record(&self.rig.streams, &self.rig.nccl, 1)
    }

    /// Least, median and most microseconds of one of the recorded calls over the replays; `first` is called after
    /// the first replay.
    fn times(
        &self,
        graph: &Graph,
        replays: usize,
        alive: &dyn Fn() -> Result<(), RunError>,
        first: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<[f64; 3], CudaError> {
        let mut times = Vec::with_capacity(replays);
        for replay in 0..replays + WARM {
            self.exchange.all_gather(&[0])?;
            // SAFETY: the graph was recorded from a program of the rig.
            let time = unsafe { self.rig.replay(graph, alive)? };
            self.reported()?;
            if replay == 0 {
                first()?;
            }
            if replay >= WARM {
                times.push(time / CALLS as f64);
            }
        }
        Ok(watch::spread(times))
    }

    /// What kernels reported.
    fn reported(&self) -> Result<(), CudaError> {
        match collective::missed(&self.rig.status) {
            Some(m) => Err(CudaError::Run(RunError::system(
                "a collective",
                format!("rank {} did not come to call {}", m.peer, m.step),
            ))),
            None => Ok(()),
        }
    }

    /// The first element of either result that is not what the collective gives.
    fn compare(
        &self,
        kind: &CollectiveKind,
        base: Address,
        elements: usize,
    ) -> Result<Option<String>, CudaError> {
        let n = self.exchange.ranks() as usize;
        let me = self.exchange.rank() as usize;
        let all: Vec<Vec<f64>> = (0..n)
            .map(|r| numbers(self.dtype, elements, r as u32).map(|t| t.to_f64()))
            .collect::<Result<_, _>>()?;
        let sum = |i: usize| all.iter().map(|x| x[i]).sum::<f64>();
        let piece = elements / n;
        let expected: Vec<f64> = match kind {
            CollectiveKind::AllReduce(_) => (0..elements).map(sum).collect(),
            CollectiveKind::AllGather => (0..elements).map(|i| all[i / piece][i % piece]).collect(),
            CollectiveKind::ReduceScatter(_) => (0..piece).map(|i| sum(me * piece + i)).collect(),
            CollectiveKind::Broadcast { root } => all[*root as usize].clone(),
            CollectiveKind::Permute { .. } => all[(me + n - 1) % n].clone(),
            CollectiveKind::AllToAll(_) => {
                (0..elements).map(|i| all[i / piece][me * piece + i % piece]).collect()
            }
        };
        for turn in 0..2 {
            let mut bytes = vec![0; expected.len() * self.dtype.size()];
            let at = base + ((2 + turn) * self.region) as Address;
            // SAFETY: the region exists; nothing runs.
            unsafe { self.rig.streams.compute.download(&mut bytes, at)? };
            let found = Tensor::new(self.dtype, vec![expected.len()], bytes);
            let found = found.map(|t| t.to_f64()).unwrap_or_default();
            let differs = |(i, (f, e)): (usize, (&f64, &f64))| {
                (f != e).then(|| format!("result {turn}, element {i}: expected {e}, found {f}"))
            };
            if let Some(text) = found.iter().zip(&expected).enumerate().find_map(differs) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }
}

/// Small whole numbers, whose sums are exact in every dtype.
fn numbers(dtype: DType, elements: usize, rank: u32) -> Result<Tensor, CudaError> {
    let number = |i: usize| ((i * 7 + i / 11 + rank as usize * 5) % 13) as f64 - 6.0;
    let numbers: Vec<f64> = (0..elements).map(number).collect();
    Tensor::from_f64(dtype, vec![elements], &numbers)
        .ok_or_else(|| CudaError::Unsupported(format!("no numbers of dtype {dtype}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 0 of three, whose peers say this.
    struct Peers([u8; 2]);

    impl Exchange for Peers {
        fn rank(&self) -> u32 {
            0
        }
        fn ranks(&self) -> u32 {
            3
        }
        fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
            Ok([mine[0], self.0[0], self.0[1]].map(|b| vec![b]).to_vec())
        }
    }

    #[test]
    fn as_many_blocks_are_tried_as_the_work_can_have() {
        let tried = |variant, bytes| tried(&[8, 16, 32, 128], variant, bytes);
        assert_eq!(tried(Variant::OneShot, 1 << 10), [Some(8)]);
        assert_eq!(tried(Variant::OneShot, 20 << 10), [8, 16, 32].map(Some));
        assert_eq!(tried(Variant::Push, 1 << 30), [8, 16, 32, 128].map(Some));
        assert_eq!(tried(Variant::Plain, 1 << 30), [None]);
        assert_eq!(tried(Variant::Copies, 1 << 30), [None]);
        assert_eq!(super::tried(&[], Variant::OneShot, 1 << 30), [None]);
    }

    #[test]
    fn a_case_runs_only_if_every_rank_can_run_it() {
        let unable = || CudaError::Unsupported("no such kernel".into());
        assert_eq!(agreed(Ok(7), &Peers([1, 1])), Ok(Ok(7)));
        assert_eq!(agreed(Ok(7), &Peers([1, 0])), Ok(Err("rank 2 cannot run it".into())));
        assert_eq!(agreed::<u8>(Err(unable()), &Peers([1, 1])), Ok(Err("no such kernel".into())));
        let broken = CudaError::Compile { detail: "nothing runs".into() };
        assert_eq!(agreed::<u8>(Err(broken.clone()), &Peers([1, 1])), Err(broken));
    }
}
