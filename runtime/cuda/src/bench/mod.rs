//! Measures collectives on this machine's GPUs, every variant next to the vendor's own.
//!
//! A case is recorded ten times in a row into one graph, on two pairs of operands and results in turn. The
//! graph is replayed; the reported time is the median of the replays divided by the number of calls. Ranks
//! agree on the host that all of them can run a case, and synchronize there before each replay. The result of
//! the first replay is compared with the expected one.

mod norm;
mod rank;
mod results;

use std::time::Duration;

use symmc_control::JoinedRank;
use symmc_ir::collective::{CollectiveVariant, ExitBarrierPolicy};
use symmc_ir::{CollectiveKind, DType};
use symmc_runtime::RunError;
use symmc_runtime::job::SessionRequest;

use self::rank::{CollectiveCase, MAX_LL_BYTES, RankBench, prepared_on_all_ranks};
pub use self::results::{BenchConfig, MeasuredCollective, MeasuredNorm, Measurements, NormImplementation};
use crate::device::driver::{self, CallersContext};
use crate::error::{CudaError, Result};

pub use crate::session::ProgramBench;
use crate::session::{CudaSession, GpuConfig};

/// Measures a plan on a rank that has joined the others. Returns the minimum, median and maximum of one run
/// in microseconds. All ranks call this together. Fails if GPUs cannot run a step, there is no such GPU, a
/// library or memory is missing, or a peer failed.
pub fn measure_program(
    request: &SessionRequest<'_>,
    gpu: &GpuConfig,
    bench: &ProgramBench,
) -> Result<[f64; 3], RunError> {
    CudaSession::open_joined(request, gpu)?.measure_program(request, bench)
}

/// Measures all cases, and copies, on a rank that has joined the others. All ranks call this together. Fails
/// if the machine lacks something that every case needs, or a peer failed.
pub fn collectives(
    rank: &JoinedRank,
    gpu: &GpuConfig,
    limit: Duration,
    config: &BenchConfig,
) -> Result<Measurements, RunError> {
    let comm = rank.comm();
    let gpu = gpu.gpu_of_rank(comm.rank(), comm.ranks())?;
    rank.start()?;
    let dtype = DType::from_name(&config.dtype)
        .ok_or_else(|| CudaError::Unsupported(format!("unknown dtype {}", config.dtype)))?;
    // This value is dropped after everything below.
    let _caller = CallersContext::keep()?;
    let mut bench = RankBench::new(gpu, limit, config, dtype, comm)?;
    let measured = bench.measure_all(config, &|| rank.expect_running());
    // A failure ends the session, so that peers are notified and leave.
    Ok(measured.inspect_err(|_| bench.resources.mark_failed())?)
}

impl RankBench<'_> {
    fn measure_all(
        &mut self,
        config: &BenchConfig,
        alive: &dyn Fn() -> Result<(), RunError>,
    ) -> Result<Measurements> {
        let mut copies = Vec::new();
        for &bytes in &config.bytes {
            copies.push((bytes, self.measure_copies(bytes, config.replays, alive)?));
        }
        let mut collectives = Vec::new();
        for case in cases(config, self.exchange.ranks()) {
            // The library may connect ranks while its calls are recorded, so either all ranks record or none
            // does.
            let prepared = match self.off.get(&case.variant) {
                Some(text) => Err(CudaError::Unsupported(text.clone())),
                None => self.prepare(&self.case_steps(&case)),
            };
            let recorded = match prepared_on_all_ranks(prepared, self.exchange)? {
                Ok(()) => prepared_on_all_ranks(self.record(), self.exchange)?,
                Err(text) => Err(text),
            };
            let (us, failed) = match recorded {
                Ok(graph) => {
                    let (us, failed) = self.measure_case(&graph, &case, config.replays, alive)?;
                    (Some(us), failed)
                }
                Err(text) => (None, Some(text)),
            };
            let CollectiveCase { kind, bytes, variant, exit, blocks } = case;
            let collective = kind.name().to_string();
            let variant = variant.name().to_string();
            collectives.push(MeasuredCollective { collective, variant, exit, bytes, blocks, us, failed });
        }
        let norms = self.measure_norms(&config.norms, config.replays, alive)?;
        let nccl = self.resources.nccl.version().map_or("no NCCL".into(), |v| format!("NCCL {v}"));
        let [major, minor] = driver::cuda_version()?;
        let machine = format!("{}, CUDA {major}.{minor}, {nccl}", self.resources.device.name());
        let multiprocessors = self.resources.device.multiprocessors();
        Ok(Measurements { machine, multiprocessors, copies, collectives, norms })
    }
}

/// The cases by collective, in the order of measurement: for each size the plain variant first.
fn cases(config: &BenchConfig, ranks: u32) -> Vec<CollectiveCase> {
    // Sizes that only the device knows take as long as even ones.
    let kinds = CollectiveKind::sample_kinds(ranks);
    let kinds = kinds.into_iter().filter(|kind| !kind.moves_by_data());
    let mut out = Vec::new();
    for kind in kinds {
        for &bytes in &config.bytes {
            for &variant in CollectiveVariant::ALL {
                let Some(contract) = variant.contract(&kind) else { continue };
                // These sizes are far beyond the useful range of this variant.
                if variant == CollectiveVariant::Ll && bytes > MAX_LL_BYTES {
                    continue;
                }
                let exits = match contract.exit_barrier {
                    ExitBarrierPolicy::Droppable => &[Some(false), Some(true)][..],
                    _ => &[None],
                };
                for &exit in exits {
                    for blocks in block_counts_to_try(&config.blocks, variant, bytes) {
                        out.push(CollectiveCase { kind: kind.clone(), bytes, variant, exit, blocks });
                    }
                }
            }
        }
    }
    out
}

/// The block counts that a variant is tried with for this size. Of the counts beyond what the work can use,
/// only one is kept.
fn block_counts_to_try(blocks: &[u32], variant: CollectiveVariant, bytes: usize) -> Vec<Option<u32>> {
    if blocks.is_empty()
        || variant.is_library()
        || matches!(variant, CollectiveVariant::Copies | CollectiveVariant::PullCopies)
    {
        return vec![None];
    }
    // A block handles at least a KiB.
    let max_blocks = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    let first_beyond = blocks.iter().copied().filter(|&b| b >= max_blocks).min().unwrap_or(u32::MAX);
    let within = blocks.iter().copied().filter(|&b| b < max_blocks || b == first_beyond);
    within.map(Some).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::RankExchange;

    /// Rank 0 of three, whose peers send these values.
    struct Peers([u8; 2]);

    impl RankExchange for Peers {
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
        let counts = [8, 16, 32, 128];
        assert_eq!(block_counts_to_try(&counts, CollectiveVariant::OneShot, 1 << 10), [Some(8)]);
        assert_eq!(block_counts_to_try(&counts, CollectiveVariant::OneShot, 20 << 10), [8, 16, 32].map(Some));
        assert_eq!(block_counts_to_try(&counts, CollectiveVariant::Push, 1 << 30), counts.map(Some));
        assert_eq!(block_counts_to_try(&counts, CollectiveVariant::Plain, 1 << 30), [None]);
        assert_eq!(block_counts_to_try(&counts, CollectiveVariant::Copies, 1 << 30), [None]);
        assert_eq!(block_counts_to_try(&[], CollectiveVariant::OneShot, 1 << 30), [None]);
    }

    #[test]
    fn a_case_runs_only_if_every_rank_can_run_it() {
        let unable = CudaError::Unsupported("no such kernel".into());
        assert_eq!(prepared_on_all_ranks(Ok(7), &Peers([1, 1])), Ok(Ok(7)));
        assert_eq!(prepared_on_all_ranks(Ok(7), &Peers([1, 0])), Ok(Err("rank 2 cannot run it".into())));
        assert_eq!(
            prepared_on_all_ranks::<u8>(Err(unable), &Peers([1, 1])),
            Ok(Err("no such kernel".into()))
        );
        let broken = CudaError::Compile { detail: "nothing runs".into() };
        assert_eq!(prepared_on_all_ranks::<u8>(Err(broken.clone()), &Peers([1, 1])), Err(broken));
    }
}
