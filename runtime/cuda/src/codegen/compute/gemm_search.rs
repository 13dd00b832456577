//! Chooses an algorithm for each matrix product, by measurement.
//!
//! Several candidates of the library's heuristic are timed on the device, once per shape. The result is
//! cached on disk for this device, driver and library. Rank 0 chooses for all ranks: algorithms sum in
//! different orders, and ranks that compute the same value must get the same bits. Products are timed in the
//! memory that the program has for them, before it holds other data. Products of one shape are timed in turn,
//! so that their weights come from memory, as they do when the program runs. The runs are recorded, because a
//! launch takes longer than a small product.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::IndexMap;

use super::gemm::{Gemm, GemmAlgorithm, GemmPlanner, PreparedGemm};
use super::machine::{AlgorithmSelection, KernelTarget};
use crate::device::cache::{FileCache, entry_name};
use crate::device::driver::{Device, Event, Stream, cuda_version};
use crate::device::launch::{Address, DevicePtr, PortBases};
use crate::error::Result;
use crate::exchange::{RankExchange, value_of_rank_0};

/// The number of algorithms that are timed for a product.
const MAX_CANDIDATES: usize = 8;
/// The number of runs that are timed together: all products of a shape, clamped to this range.
const RUNS_PER_TIMING: [usize; 2] = [8, 32];
/// The number of repetitions; the least time counts.
const TIMING_ROUNDS: usize = 2;
/// The fraction of the time by which an algorithm must be faster than the heuristic's first.
const MIN_GAIN: f64 = 0.02;
/// The search ends after this time, or after a quarter of the ranks' wait limit. Products that were not
/// measured by then use the heuristic's first algorithm.
pub(super) const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);

pub struct GemmSearch<'a> {
    /// The other ranks, which search for the same products.
    pub exchange: &'a dyn RankExchange,
    /// How to choose. Ranks measure only if all ranks ask for it.
    pub products: AlgorithmSelection,
    pub device: &'a Device,
    pub stream: &'a Stream,
    /// How long ranks wait for each other.
    pub limit: Duration,
    /// Memory whose data must be preserved. Products that write to it are not timed.
    pub protected_ranges: &'a [Range<Address>],
    /// The bases of the ports during the search.
    pub bases: PortBases<'a>,
}

impl GemmSearch<'_> {
    /// Whether the search may write to this address.
    pub(super) fn may_write(&self, at: DevicePtr) -> bool {
        let address = at.resolve(self.bases);
        !self.protected_ranges.iter().any(|range| range.contains(&address))
    }
}

#[derive(Clone)]
pub(crate) struct GemmChoices {
    planner: Option<GemmPlanner>,
    chosen: Arc<[Option<GemmAlgorithm>]>,
}

impl fmt::Debug for GemmSearch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GemmSearch").field("products", &self.products).finish_non_exhaustive()
    }
}

/// Prepares all matrix products of a program: with earlier choices, else with those that `search` makes, if
/// there is one. Fails if the library is missing or has no algorithm for a product, or as the search.
pub(crate) fn prepare(
    choices: Option<&GemmChoices>,
    search: Option<&GemmSearch<'_>>,
    device: &Arc<Device>,
    machine: &KernelTarget,
    gemms: &[Gemm],
) -> Result<(Vec<PreparedGemm>, GemmChoices)> {
    let choices = match choices.filter(|choices| choices.chosen.len() == gemms.len()) {
        Some(choices) => choices.clone(),
        None => {
            let planner = if gemms.is_empty() { None } else { Some(GemmPlanner::new(device)?) };
            // Ranks without products take part too.
            let chosen = match search {
                Some(search) => search.choose(planner.as_ref(), gemms, machine)?,
                None => vec![None; gemms.len()],
            };
            GemmChoices { planner, chosen: chosen.into() }
        }
    };
    let Some(planner) = &choices.planner else { return Ok((vec![], choices)) };
    let workspace = machine.workspace_bytes;
    let mut prepared = Vec::with_capacity(gemms.len());
    for (gemm, chosen) in gemms.iter().zip(choices.chosen.iter().copied()) {
        let as_chosen = chosen.and_then(|algorithm| planner.prepare_as(gemm, &algorithm, workspace).ok());
        prepared.push(match as_chosen {
            Some(prepared) => prepared,
            None => planner.prepare(gemm, workspace)?,
        });
    }
    Ok((prepared, choices))
}

impl GemmSearch<'_> {
    /// The algorithm of each product; `None` for the heuristic's first. All ranks call this with products of
    /// the same shapes.
    fn choose(
        &self,
        planner: Option<&GemmPlanner>,
        gemms: &[Gemm],
        machine: &KernelTarget,
    ) -> Result<Vec<Option<GemmAlgorithm>>> {
        let cache = FileCache::for_user();
        let [major, minor] = cuda_version()?;
        let end = Instant::now() + SEARCH_TIMEOUT.min(self.limit / 4);
        choose_on_rank_0(self.exchange, self.products, gemms, |similar, alignments| {
            let (Some(planner), Some(gemm)) = (planner, similar.first()) else { return Ok(None) };
            let library = planner.version();
            let shape = key(gemm, alignments, machine.workspace_bytes);
            let key_parts = ["product 5", self.device.name(), &format!("{major}.{minor} {library}"), &shape];
            let name = entry_name(&key_parts, "algorithm");
            let cached = cache.read(&name).and_then(|bytes| GemmAlgorithm::from_bytes(&bytes));
            if let Some(algorithm) =
                cached.filter(|a| planner.prepare_as(gemm, a, machine.workspace_bytes).is_ok())
            {
                return Ok(Some(algorithm));
            }
            if Instant::now() > end {
                return Ok(None);
            }
            let fastest = self.measure(planner, similar, alignments, machine, end)?;
            // A search that was cut short is not cached.
            if let Some(algorithm) = fastest.as_ref().filter(|_| Instant::now() <= end) {
                cache.write(&name, &algorithm.to_bytes());
            }
            Ok(fastest)
        })
    }

    /// The fastest candidate for products of one shape, among those that were timed before `until`.
    fn measure(
        &self,
        planner: &GemmPlanner,
        similar: &[&Gemm],
        alignments: Alignments,
        machine: &KernelTarget,
        until: Instant,
    ) -> Result<Option<GemmAlgorithm>> {
        let similar: Vec<&Gemm> = similar.iter().copied().filter(|gemm| self.may_write(gemm.c.at)).collect();
        let Some(first) = similar.first() else { return Ok(None) };
        let workspace = machine.workspace_bytes;
        let candidates = planner.candidates(first, alignments, workspace, MAX_CANDIDATES)?;
        let [min_runs, max_runs] = RUNS_PER_TIMING;
        let runs = similar.len().clamp(min_runs, max_runs);
        let mut tried = Vec::with_capacity(candidates.len());
        for algorithm in &candidates {
            let of_each =
                similar.iter().take(max_runs).map(|gemm| planner.prepare_as(gemm, algorithm, workspace));
            let Ok(products) = of_each.collect::<Result<Vec<_>, _>>() else { continue };
            let graph = self.stream.capture(|| {
                products.iter().cycle().take(runs).try_for_each(|product| {
                    // SAFETY: the operands, the results and the workspace exist, and nothing else runs.
                    unsafe { product.run(self.stream, machine.workspace, self.bases) }
                })
            });
            // An algorithm that the library rejects is not a candidate.
            if let Ok(graph) = graph {
                tried.push((algorithm, graph, f64::INFINITY));
            }
        }
        let begin = Event::timed()?;
        let end = Event::timed()?;
        for _ in 0..=TIMING_ROUNDS {
            for (_, graph, best) in &mut tried {
                if Instant::now() > until {
                    break;
                }
                begin.record(self.stream)?;
                // SAFETY: as above.
                unsafe { self.stream.replay(graph)? };
                end.record(self.stream)?;
                self.stream.synchronize()?;
                *best = best.min(begin.microseconds_to(&end)?);
            }
        }
        let times: Vec<f64> = tried.iter().map(|t| t.2).collect();
        Ok(fastest(&times).map(|i| *tried[i].0))
    }
}

/// The index of the least time, or the first one if no other is clearly less; `None` if none is finite.
fn fastest(times: &[f64]) -> Option<usize> {
    let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b]))?;
    let clearly = times[best] < times[0] * (1.0 - MIN_GAIN);
    times[best].is_finite().then_some(if clearly { best } else { 0 })
}

/// The alignments of the left and right operand and the result, as powers of two in bytes.
pub(crate) type Alignments = [u8; 3];

/// The properties of a product that the choice of an algorithm depends on.
fn key(gemm: &Gemm, alignments: Alignments, workspace: usize) -> String {
    let Gemm { dtype, stored: _, result_dtype, m, n, k, batch, a, b, c, bias } = gemm;
    let bias = if bias.is_some() { " with a bias" } else { "" };
    // The distance between the matrices of a batch matters only by its alignment, and by whether it is zero.
    let sides = [a, b, c].map(|x| format!("{:?} {} {}", x.order, x.step, x.batch != 0)).join(", ");
    format!("{dtype} {result_dtype} {m} {n} {k} of {batch}{bias}: {sides}; {alignments:?}, {workspace}")
}

/// The choice of rank 0 for each product, at the least alignments of all ranks. There are no choices unless
/// all ranks measure and have the same number of products.
fn choose_on_rank_0(
    exchange: &dyn RankExchange,
    products: AlgorithmSelection,
    gemms: &[Gemm],
    mut choose: impl FnMut(&[&Gemm], Alignments) -> Result<Option<GemmAlgorithm>>,
) -> Result<Vec<Option<GemmAlgorithm>>> {
    if !do_all_ranks_measure(exchange, products, gemms.len())? {
        return Ok(vec![None; gemms.len()]);
    }
    let mine: Vec<u8> = gemms.iter().flat_map(Gemm::alignments).collect();
    let alignments_by_rank = exchange.all_gather(&mine)?;
    let mut text = vec![0; gemms.len() * GemmAlgorithm::BYTES];
    if exchange.rank() == 0 {
        let mut shapes: IndexMap<String, (Alignments, Vec<usize>)> = IndexMap::new();
        for (i, gemm) in gemms.iter().enumerate() {
            let alignments = [3 * i, 3 * i + 1, 3 * i + 2]
                .map(|k| alignments_by_rank.iter().filter_map(|a| a.get(k).copied()).min().unwrap_or(0));
            let shape = shapes.entry(key(gemm, alignments, 0)).or_insert((alignments, vec![]));
            shape.1.push(i);
        }
        for (alignments, places) in shapes.values() {
            let similar: Vec<&Gemm> = places.iter().map(|&i| &gemms[i]).collect();
            let Some(algorithm) = choose(&similar, *alignments)? else { continue };
            for i in places {
                text[i * GemmAlgorithm::BYTES..][..GemmAlgorithm::BYTES]
                    .copy_from_slice(&algorithm.to_bytes());
            }
        }
    }
    let first = value_of_rank_0(exchange, &text)?;
    Ok(first.chunks(GemmAlgorithm::BYTES).map(GemmAlgorithm::from_bytes).collect())
}

/// Whether all ranks measure, and have the same nonzero number of candidates.
pub(super) fn do_all_ranks_measure(
    exchange: &dyn RankExchange,
    products: AlgorithmSelection,
    count: usize,
) -> Result<bool> {
    let mine = if products == AlgorithmSelection::Measured { count as u64 } else { 0 };
    let counts = exchange.all_gather(&mine.to_le_bytes())?;
    Ok(mine > 0 && counts.iter().all(|c| c[..] == mine.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use symmc_ir::DType;

    use super::super::gemm::{DeviceMatrix, MatrixOrder};
    use super::*;
    use crate::exchange::tests::{ThreadPair, ThreadRank};

    fn gemm(n: usize, at: u64) -> Gemm {
        let [a, b, c] = [at, 4096, 8192].map(|at| DeviceMatrix {
            at: at.into(),
            step: n,
            order: MatrixOrder::Rows,
            batch: 0,
        });
        Gemm {
            dtype: DType::BF16,
            stored: DType::BF16,
            result_dtype: DType::BF16,
            m: 8,
            n,
            k: 16,
            batch: 1,
            a,
            b,
            c,
            bias: None,
        }
    }

    fn algorithm(first: u64) -> GemmAlgorithm {
        GemmAlgorithm::from_bytes(
            &[[first, 2, 3, 4, 5, 6, 7, 8, 9].map(u64::to_le_bytes).concat(), vec![1]].concat(),
        )
        .unwrap()
    }

    type Chosen = Vec<Option<GemmAlgorithm>>;

    /// The choices of two ranks, and the columns, product counts and alignments for which rank 0 was asked.
    fn choose(
        products: [AlgorithmSelection; 2],
        gemms: [&[Gemm]; 2],
    ) -> ([Chosen; 2], Vec<(usize, usize, Alignments)>) {
        let pair = ThreadPair::new();
        let asked = Mutex::new(vec![]);
        let choose_on = |rank: usize| {
            choose_on_rank_0(&ThreadRank(&pair, rank), products[rank], gemms[rank], |similar, alignments| {
                assert_eq!(rank, 0);
                asked.lock().unwrap().push((similar[0].n, similar.len(), alignments));
                Ok((similar[0].n > 8).then(|| algorithm(similar[0].n as u64)))
            })
            .unwrap()
        };
        let chosen = std::thread::scope(|scope| {
            let second = scope.spawn(|| choose_on(1));
            [choose_on(0), second.join().unwrap()]
        });
        (chosen, asked.into_inner().unwrap())
    }

    #[test]
    fn rank_0_chooses_for_all_at_the_least_alignment() {
        let measured = [AlgorithmSelection::Measured; 2];
        let mine = [gemm(64, 4096), gemm(8, 4096), gemm(64, 4096)];
        let theirs = [gemm(64, 4096 + 8), gemm(8, 4096), gemm(64, 4096 + 8)];
        let (chosen, asked) = choose(measured, [&mine, &theirs]);
        let expected = vec![Some(algorithm(64)), None, Some(algorithm(64))];
        assert_eq!(chosen, [expected.clone(), expected]);
        assert_eq!(asked, [(64, 2, [3, 4, 4]), (8, 1, [4, 4, 4])]);
    }

    #[test]
    fn nothing_is_measured_unless_all_ranks_do() {
        let mine = [gemm(64, 4096)];
        let (chosen, asked) =
            choose([AlgorithmSelection::Measured, AlgorithmSelection::Heuristic], [&mine, &mine]);
        assert_eq!((chosen, asked), ([vec![None], vec![None]], vec![]));
        assert_eq!(choose([AlgorithmSelection::Measured; 2], [&mine, &[]]).0, [vec![None], vec![]]);
    }

    #[test]
    fn the_first_stays_unless_another_is_clearly_faster() {
        assert_eq!(fastest(&[10.0, 9.9, 12.0]), Some(0));
        assert_eq!(fastest(&[10.0, 9.0, 8.0]), Some(2));
        assert_eq!(fastest(&[f64::INFINITY, 9.0]), Some(1));
        assert_eq!(fastest(&[f64::INFINITY]), None);
        assert_eq!(fastest(&[]), None);
    }

    #[test]
    fn an_algorithm_survives_its_bytes() {
        let bytes = algorithm(7).to_bytes();
        assert_eq!(GemmAlgorithm::from_bytes(&bytes), Some(algorithm(7)));
        assert_eq!(GemmAlgorithm::from_bytes(&bytes[1..]), None);
        assert_eq!(GemmAlgorithm::from_bytes(&[0; GemmAlgorithm::BYTES]), None);
    }
}
