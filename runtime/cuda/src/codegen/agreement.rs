//! Checks that all ranks run the same kernel for each collective.
//!
//! The kernels of some collectives must be the same on all ranks: the packing of messages, the number of
//! rounds, the number of blocks. They follow from the plan and the machine, so they differ if ranks have
//! different GPUs or versions of symmc. A run would then hang or compute wrong values. Therefore ranks
//! compare their kernels before the first run.

use sha2::{Digest, Sha256};
use symmc_ir::{CollectiveKind as Kind, CollectiveVariant};
use symmc_runtime::RunError;
use symmc_runtime::exec::{ExecutableStep, StepWork};

use crate::codegen::command::GpuCommand;
use crate::error::{CudaError, Result};
use crate::exchange::RankExchange;

/// The size in bytes of the digest of a step.
const BYTES: usize = 8;

/// The digests of all steps: how a collective is launched, without its parameters. The digest is zero for
/// steps without a collective, and for collectives whose kernels may differ by rank.
pub fn launch_digests(list: &[ExecutableStep], work: &[Vec<GpuCommand>]) -> Vec<u8> {
    let mut out = vec![0; list.len() * BYTES];
    for ((step, work), word) in list.iter().zip(work).zip(out.chunks_mut(BYTES)) {
        if step.work.node_work().any(needs_same_launch) {
            word.copy_from_slice(&launch_digest(work)[..BYTES]);
        }
    }
    out
}

/// Whether all ranks must run the same kernel for a collective: peers expect messages in the sender's
/// protocol (LL, LL128) and from the sender's blocks. Ranks that only load from peers, or store into their
/// results, may choose kernels by their own memory.
fn needs_same_launch(work: &StepWork) -> bool {
    let StepWork::Collective(call) = work else { return false };
    match call.variant {
        CollectiveVariant::Ll => true,
        CollectiveVariant::TwoShot => matches!(call.kind, Kind::AllReduce(_)),
        CollectiveVariant::OneShot
        | CollectiveVariant::Pull
        | CollectiveVariant::Push
        | CollectiveVariant::Copies
        | CollectiveVariant::PullCopies
        | CollectiveVariant::Put => false,
        // The library launches its own kernels.
        CollectiveVariant::Plain | CollectiveVariant::NcclWindow | CollectiveVariant::CopyEngine => false,
    }
}

fn launch_digest(work: &[GpuCommand]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    // Peers observe only the first kernel.
    if let Some(GpuCommand::Kernel(kernel)) = work.first() {
        // The number after the name of a protocol is dropped, and access widths may depend on a rank's own
        // memory.
        hasher.update(kernel.entry.trim_end_matches(|c: char| c.is_ascii_digit()));
        for n in kernel.grid.into_iter().chain(kernel.block).chain([kernel.cluster, kernel.shared]) {
            hasher.update(n.to_le_bytes());
        }
    }
    hasher.finalize().into()
}

/// Compares the launches of all ranks. Fails with the first step whose collective has another kernel on
/// another rank, or if a peer failed.
pub fn check_agreement(list: &[ExecutableStep], mine: &[u8], exchange: &dyn RankExchange) -> Result<()> {
    for (other, theirs) in exchange.all_gather(mine)?.iter().enumerate() {
        let differs = mine.chunks(BYTES).zip(theirs.chunks(BYTES)).position(|(a, b)| a != b);
        let fewer = (mine.len() != theirs.len()).then(|| list.len().saturating_sub(1));
        let Some(step) = differs.or(fewer).and_then(|s| list.get(s)) else { continue };
        return Err(CudaError::Run(RunError::Step {
            rank: exchange.rank(),
            step: step.index,
            node: step.node.clone(),
            op: step.op_name.clone(),
            detail: format!(
                "expected the kernel that rank {other} runs, found another: all ranks need GPUs of one kind and one \
                 version of symmc"
            ),
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use symmc_plan::Lane;

    use super::*;

    /// A rank whose peers send these digests.
    struct Rank(Mutex<Vec<Vec<u8>>>);

    impl RankExchange for Rank {
        fn rank(&self) -> u32 {
            0
        }
        fn ranks(&self) -> u32 {
            2
        }
        fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
            let mut gathered = vec![mine.to_vec()];
            gathered.append(&mut self.0.lock().expect("nobody panics"));
            Ok(gathered)
        }
    }

    #[test]
    fn the_first_step_that_another_rank_runs_otherwise_is_named() {
        let steps = (0..3).map(|index| ExecutableStep {
            index,
            lane: Lane::Comm,
            waits: vec![],
            node: format!("n{index}"),
            op_name: "all_reduce".into(),
            joins_previous: false,
            work: StepWork::Kernel { op: symmc_ir::Op::Copy, operands: vec![], results: vec![] },
        });
        let list: Vec<ExecutableStep> = steps.collect();
        let mine = vec![7; 3 * BYTES];
        let check_with = |theirs: Vec<u8>| check_agreement(&list, &mine, &Rank(Mutex::new(vec![theirs])));
        check_with(mine.clone()).expect("they agree");
        let mut differing = mine.clone();
        differing[BYTES] = 8;
        let error = check_with(differing).expect_err("step 1 differs").to_string();
        assert!(error.contains("step 1 (all_reduce %n1)") && error.contains("rank 1 runs"), "{error}");
        assert!(check_with(vec![7; 2 * BYTES]).is_err(), "it has fewer steps");
    }
}
