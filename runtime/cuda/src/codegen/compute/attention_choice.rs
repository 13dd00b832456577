//! Chooses between cuDNN and generated kernels for each attention, by measurement.
//!
//! Both are timed on the device as recorded launches, once per shape. The result is cached on disk for this
//! device, driver and library. Rank 0 chooses for all ranks, as for matrix products, and an attention that
//! one rank cannot prepare is not used by any rank. The two forms sum in different orders, and ranks that
//! compute the same value must get the same bits.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use indexmap::{IndexMap, IndexSet};

use super::gemm_search::{GemmSearch, SEARCH_TIMEOUT, do_all_ranks_measure};
use super::library_attention::{AttentionCandidates, TimingFill};
use super::machine::KernelTarget;
use crate::cudnn::{AttentionPlanner, PreparedAttention};
use crate::device::cache::{FileCache, entry_name};
use crate::device::driver::{Device, Event, cuda_version};
use crate::device::launch::{DevicePtr, KernelLaunch, LaunchOrder};
use crate::error::{CudaError, Result};
use crate::exchange::{RankExchange, value_of_rank_0};

/// The number of runs that are timed together.
const RUNS_PER_TIMING: usize = 8;
/// The number of repetitions; the least time counts.
const TIMING_ROUNDS: usize = 3;
/// The fraction of the kernels' time by which the library must be faster. A smaller gain is noise.
const MIN_GAIN_FRACTION: f64 = 0.01;

/// Launches a kernel of the program on the stream of the search.
pub(crate) type Launch<'a> = &'a dyn Fn(&KernelLaunch, LaunchOrder) -> Result<()>;

/// The attentions of a program that the library computes, and the planner that prepares them.
#[derive(Clone, Default)]
pub(crate) struct AttentionChoices {
    planner: Option<Arc<AttentionPlanner>>,
    chosen: Arc<[bool]>,
}

fn kernels_only(all: &[&AttentionCandidates]) -> (Vec<Option<PreparedAttention>>, AttentionChoices) {
    let chosen = vec![false; all.len()].into();
    (all.iter().map(|_| None).collect(), AttentionChoices { planner: None, chosen })
}

/// Prepares the attentions for which the library was chosen earlier.
fn prepare_chosen(
    settled: &AttentionChoices,
    machine: &KernelTarget,
    all: &[&AttentionCandidates],
) -> Result<(Vec<Option<PreparedAttention>>, AttentionChoices)> {
    let mut all_prepared = Vec::with_capacity(all.len());
    for (x, &chosen) in all.iter().zip(settled.chosen.iter()) {
        let Some(planner) = settled.planner.as_ref().filter(|_| chosen) else {
            all_prepared.push(None);
            continue;
        };
        let prepared = planner.prepare(&x.attention, machine.workspace, x.library_workspace_bytes)?;
        if prepared.is_none() {
            return Err(CudaError::Unsupported(format!("cuDNN no longer supports {}", x.key())));
        }
        all_prepared.push(prepared);
    }
    Ok((all_prepared, settled.clone()))
}

/// Prepares the attentions that the library computes, by earlier choices or by new ones; `None` for
/// attentions that kernels compute. Without earlier choices, all ranks call this with attentions of the same
/// shapes.
pub(crate) fn choose_attentions(
    choices: Option<&AttentionChoices>,
    search: Option<&GemmSearch<'_>>,
    device: &Arc<Device>,
    machine: &KernelTarget,
    candidates: &[&AttentionCandidates],
    launch: Launch<'_>,
) -> Result<(Vec<Option<PreparedAttention>>, AttentionChoices)> {
    if let Some(choices) = choices.filter(|choices| choices.chosen.len() == candidates.len()) {
        return prepare_chosen(choices, machine, candidates);
    }
    let Some(search) = search else { return Ok(kernels_only(candidates)) };
    if !do_all_ranks_measure(search.exchange, search.products, candidates.len())? {
        return Ok(kernels_only(candidates));
    }
    // A rank without the library prepares nothing below, which informs the others.
    let planner = AttentionPlanner::new(device).ok().map(Arc::new);
    let prepare = |x: &AttentionCandidates| match &planner {
        // The trial run below writes the result.
        Some(planner) if x.attention.results().into_iter().all(|address| search.may_write(address)) => {
            planner.prepare(&x.attention, machine.workspace, x.library_workspace_bytes)
        }
        _ => Ok(None),
    };
    let chosen = choose_on_rank_0(search.exchange, candidates, |similar| {
        let Some(planner) = &planner else { return Ok(false) };
        let until = Instant::now() + SEARCH_TIMEOUT.min(search.limit / 4);
        let [major, minor] = cuda_version()?;
        let shape = format!("{}, {} multiprocessors", similar[0].key(), machine.multiprocessors);
        let versions = format!("{major}.{minor} {}", planner.version());
        let name = entry_name(&["attention 5", search.device.name(), &versions, &shape], "algorithm");
        if let Some([cached @ (0 | 1)]) = FileCache::for_user().read(&name).as_deref() {
            return Ok(*cached == 1);
        }
        let uses_library = measure(search, similar, &prepare, launch)?;
        // A measurement that took too long may have been disturbed.
        if Instant::now() <= until {
            FileCache::for_user().write(&name, &[u8::from(uses_library)]);
        }
        Ok(uses_library)
    })?;
    let mut warm = IndexSet::new();
    let mut ready = Vec::with_capacity(candidates.len());
    for (x, chosen) in candidates.iter().zip(chosen) {
        let prepared = if chosen { prepare(x).ok().flatten() } else { None };
        ready.push(prepared.filter(|p| !warm.insert(x.key()) || run_once(p, search).is_ok()));
    }
    let prepared = keep_if_prepared_everywhere(search.exchange, ready)?;
    let chosen = prepared.iter().map(Option::is_some).collect();
    Ok((prepared, AttentionChoices { planner, chosen }))
}

/// Runs an attention once. The library loads code at its first run, which is not possible during a capture.
fn run_once(prepared: &PreparedAttention, search: &GemmSearch<'_>) -> Result<()> {
    // SAFETY: the operands, the result and the workspace exist, and nothing else runs.
    unsafe { prepared.run(search.stream, search.bases) }?;
    search.stream.synchronize()
}

/// The choice of rank 0 for each attention.
fn choose_on_rank_0(
    exchange: &dyn RankExchange,
    all: &[&AttentionCandidates],
    mut choose: impl FnMut(&[&AttentionCandidates]) -> Result<bool>,
) -> Result<Vec<bool>> {
    let mut mine = vec![0u8; all.len()];
    if exchange.rank() == 0 {
        let mut shapes: IndexMap<String, Vec<usize>> = IndexMap::new();
        for (i, x) in all.iter().enumerate() {
            shapes.entry(x.key()).or_default().push(i);
        }
        for places in shapes.values() {
            let similar: Vec<&AttentionCandidates> = places.iter().map(|&i| all[i]).collect();
            if choose(&similar)? {
                places.iter().for_each(|&i| mine[i] = 1);
            }
        }
    }
    let first = value_of_rank_0(exchange, &mine)?;
    Ok(first.iter().map(|&b| b == 1).collect())
}

/// Keeps the attentions that every rank has prepared.
fn keep_if_prepared_everywhere<T>(
    exchange: &dyn RankExchange,
    prepared: Vec<Option<T>>,
) -> Result<Vec<Option<T>>> {
    let mine: Vec<u8> = prepared.iter().map(|p| u8::from(p.is_some())).collect();
    let flags_by_rank = exchange.all_gather(&mine)?;
    let on_all_ranks = prepared
        .into_iter()
        .enumerate()
        .map(|(i, p)| p.filter(|_| flags_by_rank.iter().all(|rank| rank.get(i) == Some(&1))));
    Ok(on_all_ranks.collect())
}

/// The operands that are filled before attentions are timed, if they may be written. Inputs keep their data.
fn operands_to_fill<'x>(
    all: &[&'x AttentionCandidates],
    may_write: impl Fn(DevicePtr) -> bool,
) -> impl Iterator<Item = &'x TimingFill> {
    let filled = all.iter().flat_map(|candidates| &candidates.filled);
    filled.filter(move |filled| may_write(filled.at))
}

/// Whether the library computes attentions of one shape faster than kernels.
fn measure(
    search: &GemmSearch<'_>,
    similar: &[&AttentionCandidates],
    prepare: &dyn Fn(&AttentionCandidates) -> Result<Option<PreparedAttention>>,
    launch: Launch<'_>,
) -> Result<bool> {
    let some: Vec<&AttentionCandidates> = similar.iter().copied().take(RUNS_PER_TIMING).collect();
    // Kernels compute an attention that the library refuses.
    let refused = || {
        tracing::debug!(target: "symmc::gpu", shape = %some[0].key(), "the library does not compute an attention");
        Ok(false)
    };
    let Ok(Some(prepared)) = some.iter().map(|x| prepare(x)).collect::<Result<Option<Vec<_>>, _>>() else {
        return refused();
    };
    if prepared.iter().take(1).any(|p| run_once(p, search).is_err()) {
        return refused();
    }
    let stream = search.stream;
    for filled in operands_to_fill(&some, |address| search.may_write(address)) {
        // SAFETY: the operands exist, and their data need not be preserved.
        unsafe { stream.fill(filled.at.resolve(search.bases), filled.byte, filled.bytes)? };
    }
    // As in a program, where a kernel follows others.
    let start = Cell::new(LaunchOrder::After);
    let enqueue_dependent = |kernel: &KernelLaunch| launch(kernel, start.replace(LaunchOrder::Dependent));
    // A library that fails at run time is treated like one that does not prepare.
    let by_library = stream.capture(|| {
        start.set(LaunchOrder::After);
        some.iter().zip(&prepared).cycle().take(RUNS_PER_TIMING).try_for_each(|(x, prepared)| {
            x.numbers.iter().try_for_each(enqueue_dependent)?;
            // SAFETY: the operands, the results and the workspace exist, and nothing else runs.
            unsafe { prepared.run(stream, search.bases) }?;
            start.set(LaunchOrder::Dependent);
            x.amend.iter().try_for_each(enqueue_dependent)
        })
    });
    let Ok(by_library) = by_library else { return refused() };
    let by_kernels = stream.capture(|| {
        start.set(LaunchOrder::After);
        some.iter()
            .cycle()
            .take(RUNS_PER_TIMING)
            .try_for_each(|x| x.kernels.iter().try_for_each(enqueue_dependent))
    })?;
    let graphs = [by_kernels, by_library];
    let begin = Event::timed()?;
    let end = Event::timed()?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..=TIMING_ROUNDS {
        for (graph, best) in graphs.iter().zip(&mut best) {
            begin.record(stream)?;
            // SAFETY: the recorded work uses memory that exists, and nothing else runs.
            unsafe { stream.replay(graph)? };
            end.record(stream)?;
            stream.synchronize()?;
            *best = best.min(begin.microseconds_to(&end)?);
        }
    }
    let [kernels, library] = best.map(|of_all| of_all / RUNS_PER_TIMING as f64);
    tracing::debug!(target: "symmc::gpu", shape = %some[0].key(), kernels, library, "timed an attention, in microseconds");
    Ok(library < kernels * (1.0 - MIN_GAIN_FRACTION))
}

#[cfg(test)]
mod tests {
    use symmc_ir::DType;

    use super::super::machine::AlgorithmSelection;
    use super::*;
    use crate::cudnn::{AttentionTensor, CudnnAttention, VisibleBand};
    use crate::device::launch::PortBases;
    use crate::exchange::tests::{ThreadPair, ThreadRank};

    fn candidates(queries: usize, at: u64) -> AttentionCandidates {
        let attention = CudnnAttention {
            dtype: DType::BF16,
            batch: 1,
            heads: 2,
            key_heads: 1,
            queries,
            keys: 64,
            e: 64,
            f: 64,
            scale: 0.125,
            cap: None,
            band: VisibleBand::default(),
            bias: None,
            q: tensor(at),
            k: tensor(at + 4096),
            v: tensor(at + 8192),
            r: tensor(at + 12288),
            sums: None,
            gradient: None,
        };
        AttentionCandidates {
            attention,
            library_workspace_bytes: 0,
            numbers: None,
            filled: vec![],
            amend: None,
            kernels: vec![],
        }
    }

    fn tensor(at: u64) -> AttentionTensor {
        AttentionTensor { at: at.into(), strides: [4096, 64, 64] }
    }

    fn on_both<T: Send>(run: impl Fn(&ThreadRank<'_>) -> T + Sync) -> [T; 2] {
        let pair = ThreadPair::new();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| run(&ThreadRank(&pair, 1)));
            [run(&ThreadRank(&pair, 0)), second.join().unwrap()]
        })
    }

    #[test]
    fn rank_0_chooses_once_for_each_shape_wherever_it_lies() {
        let candidates = [candidates(64, 4096), candidates(1, 4096), candidates(64, 1 << 20)];
        let candidates: Vec<&AttentionCandidates> = candidates.iter().collect();
        let chosen = on_both(|rank| {
            let mut asked_counts = vec![];
            let chosen = choose_on_rank_0(rank, &candidates, |similar| {
                asked_counts.push(similar.len());
                Ok(similar[0].attention.queries > 1)
            });
            (chosen.unwrap(), asked_counts)
        });
        let expected = vec![true, false, true];
        assert_eq!(chosen, [(expected.clone(), vec![2, 1]), (expected, vec![])]);
    }

    #[test]
    fn masks_that_callers_filled_are_not_written_for_measurements() {
        let mut of_input = candidates(64, 4096);
        of_input.filled = vec![mask(0x2000)];
        let mut of_arena = candidates(64, 4096);
        of_arena.filled = vec![mask(0x9000), mask(0x2040)];
        let candidates = [&of_input, &of_arena];
        let input = 0x2000..0x3000;
        let filled = operands_to_fill(&candidates, |at| !input.contains(&at.resolve(PortBases::NONE)));
        assert_eq!(filled.copied().collect::<Vec<TimingFill>>(), [mask(0x9000)]);
    }

    fn mask(at: u64) -> TimingFill {
        TimingFill { at: at.into(), bytes: 64, byte: 1 }
    }

    #[test]
    fn the_library_computes_only_what_all_ranks_prepared() {
        let prepared =
            |rank: &ThreadRank<'_>| [vec![Some(1), Some(2), None], vec![Some(3), None, None]][rank.1].clone();
        let available = on_both(|rank| keep_if_prepared_everywhere(rank, prepared(rank)).unwrap());
        assert_eq!(available, [vec![Some(1), None, None], vec![Some(3), None, None]]);
        assert_eq!(on_both(|rank| do_all_measure(rank, 2)), [true, true]);
        assert_eq!(on_both(|rank| do_all_measure(rank, rank.1)), [false, false]);
        assert_eq!(on_both(|rank| do_all_measure(rank, 0)), [false, false]);
    }

    fn do_all_measure(rank: &ThreadRank<'_>, count: usize) -> bool {
        do_all_ranks_measure(rank, AlgorithmSelection::Measured, count).unwrap()
    }
}
