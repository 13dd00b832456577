//! Measures collectives and programs on GPUs, and builds machine profiles from the measurements.

use std::time::Duration;

use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use symmc_check::CheckedPlan;
use symmc_control::{LaunchConfig, LocateStep, RankCommand, RankConfig, launch_ranks};
use symmc_cuda::GpuConfig;
use symmc_ir::machine::{
    self, Backend, CollectiveCurve, CopyCurve, DispatchCapabilities, ExitBarrier, MachineProfile, Provenance,
};
use symmc_ir::{CollectiveName, CollectiveVariant, SymbolBindings};
use symmc_runtime::job;

pub use symmc_cuda::bench::{BenchConfig, Measurements, ProgramBench};

pub use crate::tune::TuneResult;

use crate::error::{Error, ErrorKind};
use crate::measure_task::{CollectivesTask, ProgramTask};
use crate::rank_task::RankTask;
use crate::repeat::{measure_program_steadily, measure_steadily};
use crate::tune::tune_profile;

/// Runs per CUDA graph of the programs that measure a profile's computation.
const RUNS: u32 = 3;

/// Measures collectives on `ranks` ranks, each a process with a GPU. Returns the measurements of each rank. `command` starts
/// a rank and calls [`run_rank_from_fd`](crate::run_rank_from_fd). `gpus` names the GPU of each rank; if it is empty, rank `r`
/// takes GPU `r`. Sizes with times that stick out from those of their neighbours are measured again.
///
/// # Errors
/// There are too few GPUs, a library is missing, or a rank failed.
pub fn measure_collectives(
    ranks: u32,
    gpus: &[u32],
    config: &BenchConfig,
    command: &RankCommand,
) -> Result<Vec<Measurements>, Error> {
    let gpus = GpuConfig::default().with_gpus(gpus.to_vec());
    let limit = Duration::from_secs(600);
    measure_steadily(config, &|config| {
        let launch = LaunchConfig {
            ranks,
            groups: 1,
            arena: 0,
            limit,
            locate_step: LocateStep::default(),
            segments: &|_| Vec::new(),
            files: Vec::new(),
        };
        let task = CollectivesTask { gpus: gpus.clone(), limit, config: config.clone() };
        let task = RankTask::MeasureCollectives(task);
        read_answers(&launch_ranks(launch, command, &task)?)
    })
}

/// Parses the measurements that each rank sent.
fn read_answers<T: DeserializeOwned>(answers: &[String]) -> Result<Vec<T>, Error> {
    let failure = |e| Error::new(ErrorKind::Run, format!("the measurements of a rank cannot be read: {e}"));
    answers.iter().map(|text| serde_json::from_str(text).map_err(failure)).collect()
}

/// By how much of the least time a larger number of blocks may be slower and still be taken.
const MAX_LOSS_TO_MORE_BLOCKS: f64 = 0.03;

/// Builds the profile of a machine from the measurements of its ranks. A point of a curve is the median of the slowest rank, at
/// the largest number of blocks that takes the least such time or at most 3 % more: beside other kernels, few blocks lose bandwidth
/// (an all-to-all of 8 MiB by `push` on two H200 takes 16 µs with 16 blocks as with 64, but 30 µs and 19 µs beside copies).
///
/// The curves obey two rules, since measurements contain noise. Times never fall with the size: if they do, the smaller size
/// takes the time of the larger one. Dropping an exit barrier is never slower: if it is, the barrier costs nothing.
///
/// # Errors
/// Nothing was measured.
pub fn build_profile(name: &str, measured: &[Measurements], date: &str) -> Result<MachineProfile, Error> {
    let ranks = measured.len() as u32;
    let Some(first) = measured.first() else {
        return Err(Error::invalid_request("no rank measured anything"));
    };
    let mut copies = CurvePoints::default();
    for (i, (bytes, _)) in first.copies.iter().enumerate() {
        copies.push(*bytes, None, measured.iter().filter_map(|m| m.copies.get(i).map(|c| c.1)));
    }
    let mut series: IndexMap<(&str, &str, Option<bool>), CurvePoints> = IndexMap::new();
    for (i, m) in first.collectives.iter().enumerate().filter(|(_, m)| m.us.is_some()) {
        let points = series.entry((m.collective.as_str(), m.variant.as_str(), m.exit)).or_default();
        points.push(
            m.bytes,
            m.blocks,
            measured.iter().filter_map(|m| m.collectives.get(i).and_then(|c| c.us)),
        );
    }
    copies.make_monotonic();
    series.values_mut().for_each(CurvePoints::make_monotonic);
    let dropped: IndexMap<(&str, &str), CurvePoints> =
        series.iter().filter(|(k, _)| k.2 == Some(false)).map(|(k, p)| ((k.0, k.1), p.clone())).collect();
    let curves = series.into_iter().map(|((collective, variant, exit), mut points)| {
        if let (Some(true), Some(floor)) = (exit, dropped.get(&(collective, variant))) {
            points.list.iter_mut().zip(&floor.list).for_each(|(p, f)| p.1 = p.1.max(f.1));
        }
        let named = CollectiveName::from_name(collective).zip(CollectiveVariant::from_name(variant));
        let (collective, variant) = named.ok_or_else(|| {
            let message = format!(
                "a rank measured {collective} {variant}, which is not a known collective and variant"
            );
            Error::new(ErrorKind::Defect, message)
        })?;
        Ok(CollectiveCurve {
            collective,
            variant,
            exit: exit.map(|kept| if kept { ExitBarrier::Kept } else { ExitBarrier::Dropped }),
            ranks,
            provenance: Provenance::Measured,
            note: String::new(),
            points: points.list,
            spread: points.spread,
            blocks: points.blocks,
        })
    });
    let copy = CopyCurve { provenance: Provenance::Measured, note: String::new(), points: copies.list };
    Ok(MachineProfile {
        version: machine::VERSION,
        name: name.into(),
        about: describe_measurement(ranks, &first.machine, date),
        backend: Backend::Cuda,
        multiprocessors: Some(first.multiprocessors),
        dispatches: DispatchCapabilities::GPU,
        throughput: MachineProfile::builtin(MachineProfile::nearest_builtin(ranks))
            .and_then(|p| p.throughput),
        product_rates: vec![],
        contention: vec![],
        copy,
        curves: curves.collect::<Result<_, Error>>()?,
    })
}

/// The description of a profile's measurements.
fn describe_measurement(ranks: u32, machine: &str, date: &str) -> String {
    format!(
        "{ranks} × {machine}, {date}. Medians of replays of a CUDA graph of ten calls, the slowest rank's."
    )
}

/// Measures how fast GPUs compute, and how much collectives and computation slow each other down. `profile` has the curves of
/// these GPUs; the result is the profile with these measurements added. Each program is measured as by [`measure_program`], in
/// `replays` replays.
pub fn measure_computation(
    profile: MachineProfile,
    ranks: u32,
    gpus: &[u32],
    replays: u32,
    command: &RankCommand,
) -> TuneResult {
    let config = GpuConfig::default().with_gpus(gpus.to_vec());
    let measure = |plan: &CheckedPlan| {
        let support = symmc_cuda::codegen::unsupported::check_gpu_support(plan);
        if let Some(refusal) = support.unsupported.first() {
            return Err(Error::new(ErrorKind::Unsupported, refusal.to_string()));
        }
        let plan = plan.clone().with_workspaces(&support.workspaces);
        let bench = ProgramBench { replays, runs: RUNS, trace: None };
        measure_program_steadily(&|| {
            let times = measure_program(&plan, &SymbolBindings::new(), &config, &bench, command)?;
            Ok(times.into_iter().max_by(|a, b| a[1].total_cmp(&b[1])).unwrap_or_default())
        })
    };
    tune_profile(profile, ranks, &measure)
}

/// The points of a curve, with their spread.
#[derive(Clone, Default)]
struct CurvePoints {
    list: Vec<(u64, f64)>,
    spread: Vec<f64>,
    /// One for each point, or empty.
    blocks: Vec<u32>,
    /// The least time of the last size, with any number of blocks.
    least: f64,
}

impl CurvePoints {
    /// Adds the times of the slowest rank, unless the same bytes took less time with another number of blocks. The numbers of blocks
    /// of one size ascend.
    fn push(&mut self, bytes: usize, blocks: Option<u32>, times: impl Iterator<Item = [f64; 3]>) {
        let Some([least, median, most]) = times.max_by(|a, b| a[1].total_cmp(&b[1])) else { return };
        let round = |x: f64, digits: f64| (x * digits).round() / digits;
        let point = (bytes as u64, round(median, 1e3));
        if self.list.last().is_some_and(|p| p.0 == point.0) {
            if point.1 > self.least * (1.0 + MAX_LOSS_TO_MORE_BLOCKS) {
                return;
            }
            self.list.pop();
            self.spread.pop();
            self.blocks.pop();
            self.least = self.least.min(point.1);
        } else {
            self.least = point.1;
        }
        self.list.push(point);
        self.spread.push(round((most - least) / median, 1e3));
        self.blocks.extend(blocks);
    }

    /// Lowers each time to that of the next larger size, if that is less.
    fn make_monotonic(&mut self) {
        for i in (1..self.list.len()).rev() {
            self.list[i - 1].1 = self.list[i - 1].1.min(self.list[i].1);
        }
    }
}

/// Measures a plan on GPUs, with inputs generated there. Returns for each rank the least, median and greatest time of one run,
/// in microseconds.
///
/// # Errors
/// There are too few GPUs, a library is missing, an op has no kernel for GPUs, or a rank failed.
pub fn measure_program(
    plan: &CheckedPlan,
    bindings: &SymbolBindings,
    gpus: &GpuConfig,
    bench: &ProgramBench,
    command: &RankCommand,
) -> Result<Vec<[f64; 3]>, Error> {
    let config = RankConfig { limit: Duration::from_secs(120), ..RankConfig::default() };
    let gpus = gpus.clone();
    let bench = bench.clone();
    let task = |plan| RankTask::MeasureProgram(ProgramTask { plan, gpus, bench });
    read_answers(&job::launch_plan_task(plan, bindings, &config, command, task)?)
}

#[cfg(test)]
mod tests {
    use symmc_cuda::bench::MeasuredCollective;
    use symmc_ir::collective::{CollectiveKind, CollectiveReduceOp};
    use symmc_ir::{DType, text};
    use symmc_runtime::CustomKernelRegistry;
    use symmc_runtime::exec::{ExecConfig, Executor, StepWork};

    use super::*;
    use crate::program::Program;

    /// The measurements of a rank for one-shot all-reduces, from bytes, blocks and the median.
    fn rank(cases: &[(usize, u32, f64)]) -> Measurements {
        let case = |&(bytes, blocks, us): &(usize, u32, f64)| MeasuredCollective {
            collective: "all_reduce".into(),
            variant: "one_shot".into(),
            exit: Some(false),
            bytes,
            blocks: Some(blocks),
            us: Some([us, us, us * 1.5]),
            failed: None,
        };
        Measurements {
            machine: "a machine".into(),
            multiprocessors: 132,
            copies: vec![(1024, [1.0; 3]), (1 << 20, [2.0; 3])],
            collectives: cases.iter().map(case).collect(),
            norms: vec![],
        }
    }

    #[test]
    fn a_profile_keeps_the_most_blocks_that_are_nearly_fastest_on_the_slowest_rank() {
        let measured = [
            rank(&[(1024, 8, 3.0), (1024, 16, 2.5), (4096, 8, 5.0), (4096, 16, 4.0), (4096, 32, 4.5)]),
            rank(&[(1024, 8, 3.0), (1024, 16, 3.5), (4096, 8, 5.0), (4096, 16, 4.0), (4096, 32, 3.0)]),
        ];
        let profile = build_profile("p", &measured, "today").expect("measurements");
        let [curve] = &profile.curves[..] else { panic!("{:?}", profile.curves) };
        assert_eq!((&curve.points[..], &curve.blocks[..]), (&[(1024, 3.0), (4096, 4.0)][..], &[8, 16][..]));
        assert_eq!(curve.spread, [0.5; 2]);
        // Losses do not add up: each is to the least time.
        let near =
            rank(&[(1024, 8, 3.0), (1024, 16, 3.08), (1024, 32, 3.1), (1024, 64, 3.05), (4096, 8, 5.0)]);
        let near = build_profile("p", &[near], "today").expect("measurements");
        let kept = (&near.curves[0].points[..], &near.curves[0].blocks[..]);
        assert_eq!(kept, (&[(1024, 3.05), (4096, 5.0)][..], &[64, 8][..]));
        assert_eq!(MachineProfile::from_json(&profile.to_json()).expect("what was written"), profile);
    }

    #[test]
    fn the_blocks_of_a_profile_reach_the_kernels_call() {
        let mut profile = MachineProfile::builtin("h200x2").expect("built in");
        profile.curves.edit(|curves| {
            for curve in curves {
                let first = curve.points[0].0;
                let kernel = !curve.variant.is_library();
                // One more for each point.
                curve.blocks = curve.points.iter().map(|p| 3 + (p.0 / first).ilog2()).collect();
                curve.blocks.retain(|_| kernel);
            }
        });
        let text = "program \"p\" ranks 2\nsymbol n in 1..=65536\ngroup @all world\narg %x: bf16[n, 4]\n\
                    %y: bf16[n, 4] = neg %x\n%z: bf16[n, 4] = all_reduce %y op=sum group=@all\nreturn %z\n";
        let graph = text::parse(text).expect("a program");
        let config = crate::CompileConfig::default().with_profile(profile.clone());
        let plan =
            crate::compile(&Program::from_graph(graph).expect("it verifies"), &config).expect("a plan");
        let decision = &plan.buckets[0].decisions[0];
        let registry = CustomKernelRegistry::new();
        let mut executor = Executor::new(&plan, 0, &registry, ExecConfig::default()).expect("a plan");
        let mut bindings = SymbolBindings::new();
        bindings.set(plan.source_program().symbols.keys().next().expect("n"), 16);
        let bound = executor.resolve_bindings(&bindings).expect("it serves 16");
        let call = bound
            .steps
            .iter()
            .find_map(|s| if let StepWork::Collective(c) = &s.work { Some(c) } else { None });
        let (call, sum) = (call.expect("an all-reduce"), CollectiveKind::AllReduce(CollectiveReduceOp::Sum));
        let expected = profile.max_blocks(&sum, call.variant, decision.bytes, 2);
        assert_eq!((decision.chosen.as_str(), call.dtype), (call.variant.name(), DType::BF16));
        assert!(expected.is_some_and(|b| b > 3) && call.blocks == expected, "{:?} {expected:?}", call.blocks);
    }
}
