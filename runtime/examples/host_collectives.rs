//! Measures the collectives of the host backend between processes.
//!
//! ```text
//! host_collectives measure RANKS KIB        lines: kind, bytes, ranks, variant, microseconds
//! host_collectives measure-all RANKS KIB    the same for all kinds, and for local copies
//! host_collectives table FILE               compares such lines of variants with those of `openmpi`
//! host_collectives profile FILE             such lines as a machine profile
//! ```
//!
//! Bytes are those of the tensor (all-reduce, all-to-all, broadcast, permute), of the result (all-gather) or
//! of the operand (reduce-scatter). A measurement is the median over calls on each rank, and of these the
//! largest. The operand is rewritten before each call, outside of the measured time. If a file contains
//! several measurements of the same thing, their median counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use symmc_control::{MemorySegment, RankCommunicator, SharedRunMemory};
use symmc_ir::collective::{
    AllToAllSplits, CollectiveKind, CollectiveName, CollectiveReduceOp, CollectiveVariant, ExitBarrierPolicy,
};
use symmc_ir::machine::{Backend, CollectiveCurve, CopyCurve, ExitBarrier, MachineProfile, Provenance};
use symmc_ir::types::DType;
use symmc_runtime::call::{CallRegion, CollectiveCall, RegionMemory};
use symmc_runtime::exec::Communicator;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize| args.get(i).map(String::as_str);
    match argument(0) {
        Some(what @ ("measure" | "measure-all")) => {
            let ranks: u32 = argument(1).ok_or("missing argument: the number of ranks")?.parse()?;
            let largest =
                argument(2).ok_or("missing argument: the largest size in KiB")?.parse::<usize>()? << 10;
            let mut kinds = kinds(ranks);
            if what == "measure" {
                kinds.truncate(COMPARED);
            }
            measure(ranks, largest, &trials(&kinds, largest))?;
            if what == "measure-all" { copies(largest) } else { Ok(()) }
        }
        Some("table") => table(&read(argument(1).ok_or("missing argument: the file of measurements")?)?),
        Some("profile") => profile(&read(argument(1).ok_or("missing argument: the file of measurements")?)?),
        _ => Err("expected measure, table or profile".into()),
    }
}

/// A way to run a collective of a given size.
struct CollectiveTrial {
    kind: CollectiveKind,
    variant: CollectiveVariant,
    exit: Option<ExitBarrier>,
    bytes: usize,
}

impl CollectiveTrial {
    fn name(&self) -> String {
        match self.exit {
            Some(ExitBarrier::Kept) => format!("{}+exit", self.variant),
            _ => self.variant.to_string(),
        }
    }
    /// Bytes of operand and result.
    fn sizes(&self, n: usize) -> (usize, usize) {
        let (operand, result) = self.kind.operand_and_result_sizes(self.bytes as u64, n as u64);
        (operand as usize, result as usize)
    }
    /// Bytes of a landing zone.
    fn zone(&self, n: usize) -> usize {
        self.variant.landing_bytes(&self.kind, self.sizes(n).0 as u64, n as u64) as usize
    }
}

/// The number of kinds that are compared with Open MPI.
const COMPARED: usize = 3;

/// All kinds; those that are compared come first.
fn kinds(n: u32) -> Vec<CollectiveKind> {
    vec![
        CollectiveKind::AllReduce(CollectiveReduceOp::Sum),
        CollectiveKind::AllGather,
        CollectiveKind::AllToAll(AllToAllSplits::Even),
        CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum),
        CollectiveKind::Broadcast { root: 0 },
        CollectiveKind::Permute { pairs: (0..n).map(|r| (r, (r + 1) % n)).collect() },
    ]
}

fn trials(kinds: &[CollectiveKind], largest: usize) -> Vec<CollectiveTrial> {
    let mut out = Vec::new();
    for bytes in sizes(largest) {
        for kind in kinds {
            for &variant in CollectiveVariant::ALL {
                let Some(contract) = variant.contract(kind) else { continue };
                let exits = match contract.exit_barrier {
                    ExitBarrierPolicy::Droppable => vec![Some(ExitBarrier::Dropped), Some(ExitBarrier::Kept)],
                    _ => vec![None],
                };
                for exit in exits {
                    out.push(CollectiveTrial { kind: kind.clone(), variant, exit, bytes });
                }
            }
        }
    }
    out
}

fn measure(ranks: u32, largest: usize, trials: &[CollectiveTrial]) -> Result<(), Failure> {
    let n = ranks as usize;
    let zone = trials.iter().map(|t| t.zone(n)).max().unwrap_or(0).next_multiple_of(4096);
    let domain = SharedRunMemory::create(ranks, 1, 2 * zone + 4 * largest, 0)?;
    let times = MemorySegment::create("times", 8 * n * trials.len())?;
    let children = (0..ranks).map(|rank| {
        // SAFETY: this process has one thread.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(child),
            ForkResult::Child => {
                let done = run_rank(domain.clone(), rank, trials, zone, largest, &times);
                std::process::exit(i32::from(done.is_err()));
            }
        }
    });
    for child in children.collect::<Result<Vec<_>, nix::Error>>()? {
        if !matches!(waitpid(child, None)?, WaitStatus::Exited(_, 0)) {
            return Err("a rank failed".into());
        }
    }
    for (i, trial) in trials.iter().enumerate() {
        // SAFETY: every rank wrote one number for each trial and has ended.
        let time = |rank: usize| unsafe { *times.as_ptr().cast::<f64>().add(rank * trials.len() + i) };
        let time = (0..n).map(time).fold(0.0, f64::max);
        println!("{} {} {ranks} {} {time:.3}", trial.kind.name(), trial.bytes, trial.name());
    }
    Ok(())
}

fn run_rank(
    domain: SharedRunMemory,
    rank: u32,
    trials: &[CollectiveTrial],
    zone: usize,
    largest: usize,
    times: &MemorySegment,
) -> Result<(), Failure> {
    let comm = RankCommunicator::new(domain, rank, Duration::from_secs(60));
    for (i, trial) in trials.iter().enumerate() {
        let time = run_trial(&comm, trial, zone, largest)?;
        // SAFETY: the segment has room for one number for each rank and trial.
        unsafe { *times.as_ptr().cast::<f64>().add(rank as usize * trials.len() + i) = time };
    }
    Ok(())
}

fn copies(largest: usize) -> Result<(), Failure> {
    let memory = MemorySegment::create_private("the buffers", 2 * largest)?;
    for bytes in sizes(largest) {
        let calls = (100_000_000 / (bytes + 40_000)).clamp(9, 1000);
        let copy = |i: usize| {
            let start = Instant::now();
            // SAFETY: both halves of the segment hold as many bytes.
            unsafe {
                memory.as_ptr().write(i as u8);
                let destination = memory.as_ptr().add(largest);
                std::ptr::copy_nonoverlapping(memory.as_ptr(), destination, bytes);
            }
            start.elapsed().as_nanos() as f64 / 1000.0
        };
        let mut times: Vec<f64> = (0..calls).map(copy).collect();
        println!("copy {bytes} 1 plain {:.3}", median(&mut times));
    }
    Ok(())
}

/// The measured sizes in bytes.
fn sizes(largest: usize) -> impl Iterator<Item = usize> {
    (10..).map(|p| 1usize << p).take_while(move |&b| b <= largest)
}

/// The median time of a call in microseconds.
fn run_trial(
    comm: &RankCommunicator,
    trial: &CollectiveTrial,
    zone: usize,
    largest: usize,
) -> Result<f64, Failure> {
    let n = comm.ranks() as usize;
    let cell: Vec<u32> = (0..n as u32).collect();
    let operand = trial.sizes(n).0;
    let calls = (100_000_000 / (trial.bytes * n + 40_000)).clamp(9, 1000);
    let mut times = Vec::with_capacity(calls);
    for i in 0..calls + calls / 4 + 2 {
        let region = |slot: usize| {
            let offset = 2 * zone + (2 * slot + i % 2) * largest;
            CallRegion { memory: RegionMemory::Symmetric, offset, by_rank: None }
        };
        let (x, y) = (region(0), region(1));
        // SAFETY: the operand lies within this rank's arena; peers finished reading it in the call before the
        // last, because the last call synchronised all ranks.
        unsafe {
            let elements = comm.arena().as_ptr().add(x.offset).cast::<f32>();
            (0..operand / 4).for_each(|k| elements.add(k).write((i + k) as f32));
        }
        let call = CollectiveCall {
            step: 0,
            name: "x",
            kind: &trial.kind,
            variant: trial.variant,
            exit: trial.exit,
            cell: &cell,
            group: 0,
            dtype: DType::F32,
            elements: operand / 4,
            row: 1,
            operand: x,
            result: y,
            landing: Some([0, zone]),
            splits: None,
            rows: None,
        };
        let start = Instant::now();
        // SAFETY: all regions lie within the arena.
        unsafe { comm.run_collective(&call)? };
        if i >= calls / 4 + 2 {
            times.push(start.elapsed().as_nanos() as f64 / 1000.0);
        }
    }
    Ok(median(&mut times))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// Measurements by kind, bytes, ranks and name.
type Measured = BTreeMap<(String, usize, u32), BTreeMap<String, f64>>;

fn read(path: &str) -> Result<Measured, Failure> {
    let mut times_by_case: BTreeMap<(String, usize, u32), BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, bytes, ranks, name, time] = words[..] else {
            return Err(format!("expected five words, found {line:?}").into());
        };
        let key = (kind.to_string(), bytes.parse()?, ranks.parse()?);
        times_by_case.entry(key).or_default().entry(name.to_string()).or_default().push(time.parse()?);
    }
    let medians = |times: BTreeMap<String, Vec<f64>>| {
        times.into_iter().map(|(name, mut times)| (name, median(&mut times))).collect()
    };
    Ok(times_by_case.into_iter().map(|(key, times)| (key, medians(times))).collect())
}

/// Prints the best variant next to Open MPI for everything that both measured.
fn table(measured: &Measured) -> Result<(), Failure> {
    println!("kind                bytes ranks  openmpi us     symmc us  ratio  variant");
    for ((kind, bytes, ranks), times) in measured {
        let Some(peer) = times.get("openmpi") else { continue };
        let ours = times.iter().filter(|(name, _)| *name != "openmpi");
        let Some((name, time)) = ours.min_by(|a, b| a.1.total_cmp(b.1)) else { continue };
        let ratio = peer / time;
        println!("{kind:<14} {bytes:>10} {ranks:>5} {peer:>11.2} {time:>12.2} {ratio:>6.2}  {name}");
    }
    Ok(())
}

/// Kind, name and ranks of a series of measurements.
type Key<'a> = (&'a str, &'a str, u32);
/// Bytes and microseconds.
type Points = Vec<(u64, f64)>;

/// Prints a machine profile. A larger message never takes less time in it, and an exit barrier costs.
fn profile(measured: &Measured) -> Result<(), Failure> {
    let mut series = BTreeMap::<Key, Points>::new();
    for ((kind, bytes, ranks), times) in measured {
        for (name, &time) in times.iter().filter(|(name, _)| *name != "openmpi") {
            series.entry((kind, name, *ranks)).or_default().push((*bytes as u64, time));
        }
    }
    for points in series.values_mut() {
        (1..points.len()).rev().for_each(|i| points[i - 1].1 = points[i - 1].1.min(points[i].1));
    }
    let copy = series
        .remove(&("copy", "plain", 1))
        .ok_or("the file has no measurements of copies: was it written by measure-all?")?;
    let curve = |(&(kind, name, ranks), points): (&Key, &Points)| {
        let exit_variant = name.strip_suffix("+exit");
        let without = exit_variant.and_then(|variant| series.get(&(kind, variant, ranks)));
        let floor = |i: usize| without.and_then(|w| w.get(i)).map_or(0.0, |p| p.1);
        let exit = match exit_variant {
            Some(_) => Some(ExitBarrier::Kept),
            None if matches!(name, "one_shot" | "pull") => Some(ExitBarrier::Dropped),
            None => None,
        };
        let variant = exit_variant.unwrap_or(name);
        Ok(CollectiveCurve {
            collective: CollectiveName::from_name(kind)
                .ok_or_else(|| format!("{kind} is not a collective"))?,
            variant: CollectiveVariant::from_name(variant)
                .ok_or_else(|| format!("{variant} is not a variant"))?,
            exit,
            ranks,
            provenance: Provenance::Measured,
            note: String::new(),
            points: points.iter().enumerate().map(|(i, p)| (p.0, p.1.max(floor(i)))).collect(),
            spread: Vec::new(),
            blocks: vec![],
        })
    };
    let cores = std::thread::available_parallelism()?;
    let profile = MachineProfile {
        version: symmc_ir::machine::VERSION,
        name: "host".into(),
        about: format!("Processes of one machine with {cores} processors, over shared memory."),
        backend: Backend::Host,
        multiprocessors: None,
        throughput: None,
        product_rates: vec![],
        contention: vec![],
        dispatches: Default::default(),
        copy: CopyCurve { provenance: Provenance::Measured, note: String::new(), points: copy },
        curves: series.iter().map(curve).collect::<Result<_, Failure>>()?,
    };
    print!("{}", MachineProfile::from_json(&profile.to_json())?.to_json());
    Ok(())
}
