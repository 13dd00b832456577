//! Finds the steps of a plan that GPUs cannot run, when the plan is made.
//!
//! The steps of a plan are lowered as for a device, with every symbol at the upper end of its bucket and with
//! fictitious addresses. A step that a session would refuse is refused here with the same message. Buckets of
//! one program are lowered once, at the largest sizes. CUDA is not needed.
//!
//! Not checked here: the libraries, GPUs, memory and peer access of a machine, which only that machine knows.

use indexmap::IndexSet;
use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind, CollectiveReduceOp};
use symmc_ir::types::NcclType;
use symmc_plan::ParsedPlan;
use symmc_runtime::RunError;
use symmc_runtime::custom::ValueMismatch;
use symmc_runtime::exec::expect_kernels;
use symmc_runtime::exec::{
    CustomKernelRegistry, LocatedTensor, ResolvedCollective, ResolvedProgram, StepWork,
};
use symmc_support::parallel;

use crate::codegen::addresses::AddressMap;
use crate::codegen::compute::{AlgorithmSelection, KernelLowering};
use crate::codegen::lowered::lower_step;
use crate::codegen::lowering_context::DeviceFreeContext;
use crate::codegen::{largest_sizes, workspace};
use crate::error::CudaError;
use crate::nccl::is_run_by_library;

/// A step that GPUs cannot run.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UnsupportedStep {
    /// The name of its first result.
    pub node: String,
    pub op: String,
    /// The reason: what was found and what was expected.
    pub reason: String,
}

impl std::fmt::Display for UnsupportedStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{} ({}): GPUs cannot run it: {}", self.node, self.op, self.reason)
    }
}

/// The support of GPUs for a plan at its largest sizes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuSupport {
    /// The unsupported steps, in order. Custom and opaque ops are not included: their kernels are registered
    /// by the caller who runs the plan.
    pub unsupported: Vec<UnsupportedStep>,
    /// The workspace bytes that the steps of each bucket share, apart from the arenas; 0 if the bucket cannot
    /// be bound.
    pub workspaces: Vec<u64>,
}

/// Checks the support of GPUs for a plan with one GPU per rank.
pub fn check_gpu_support(plan: &ParsedPlan) -> GpuSupport {
    let largest: Vec<usize> = largest_sizes::largest_buckets(plan).collect();
    let steps = plan.buckets.iter().map(|bucket| bucket.steps.len()).sum();
    let buckets = parallel::map((0..plan.buckets.len()).collect(), steps, |bucket| {
        let bound = largest_sizes::bind_largest(plan, bucket, 0)?;
        let refusals = largest.contains(&bucket).then(|| unsupported_steps(&bound, plan.ranks, &[]));
        Some((refusals.unwrap_or_default(), workspace::upper_bound_bytes(&bound)))
    });
    let (mut refusals, workspaces): (Vec<_>, _) = buckets.into_iter().map(Option::unwrap_or_default).unzip();
    let of_largest = largest.iter().flat_map(|&bucket| std::mem::take(&mut refusals[bucket]));
    GpuSupport { unsupported: distinct(of_largest), workspaces }
}

/// The unsupported steps of a plan, in order. `gpus` holds the GPU of each rank; if it is empty, each rank
/// has its own GPU.
pub fn find_unsupported(plan: &ParsedPlan, gpus: &[u32]) -> Vec<UnsupportedStep> {
    let largest = largest_sizes::largest_buckets(plan)
        .filter_map(|bucket| largest_sizes::bind_largest(plan, bucket, 0));
    distinct(largest.flat_map(|bound| unsupported_steps(&bound, plan.ranks, gpus)))
}

fn distinct(refusals: impl Iterator<Item = UnsupportedStep>) -> Vec<UnsupportedStep> {
    refusals.collect::<IndexSet<_>>().into_iter().collect()
}

/// Checks that GPUs can run all steps of a plan. Custom ops are refused.
pub(crate) fn check_supported(plan: &ParsedPlan, gpus: &[u32]) -> Result<(), RunError> {
    expect_kernels(plan, &CustomKernelRegistry::new())?;
    match find_unsupported(plan, gpus).into_iter().next() {
        None => Ok(()),
        Some(UnsupportedStep { node, op, reason }) => {
            Err(RunError::CannotRun { rank: None, node, op, why: ValueMismatch::Backend(reason) })
        }
    }
}

pub(crate) fn unsupported_steps(bound: &ResolvedProgram, ranks: u32, gpus: &[u32]) -> Vec<UnsupportedStep> {
    let addresses = match AddressMap::new(bound, 1 << 40, 1 << 41) {
        Ok(addresses) => addresses,
        Err(error) => {
            let first = bound.steps.first();
            let [node, op] = [first.map(|step| &step.node), first.map(|step| &step.op_name)];
            let [node, op] = [node, op].map(|name| name.cloned().unwrap_or_default());
            return vec![UnsupportedStep { node, op, reason: error.to_string() }];
        }
    };
    let dry = DeviceFreeContext::new(bound, ranks, addresses, AlgorithmSelection::Heuristic);
    let setting = dry.context();
    let address_of = |value: &LocatedTensor| setting.addresses.address_of(value);
    let mut l = KernelLowering::new(&address_of, setting.machine);
    let mut refused = Vec::new();
    for step in &bound.steps {
        // Kernels of custom ops are known only when the plan runs.
        if matches!(step.work, StepWork::Custom { .. }) {
            continue;
        }
        let calls = step.work.node_work().filter_map(|work| match work {
            StepWork::Collective(call) => Some(call),
            _ => None,
        });
        let on_group = calls.filter_map(|call| unsupported_collective(call, gpus)).next();
        let Some(error) = on_group.or_else(|| lower_step(bound.rank(), step, &setting, &mut l).err()) else {
            continue;
        };
        let reason = match error {
            CudaError::Run(RunError::Step { detail, .. }) => detail,
            other => other.to_string(),
        };
        refused.push(UnsupportedStep { node: step.node.clone(), op: step.op_name.clone(), reason });
    }
    refused
}

/// The reason why the library cannot run a collective on a group, if any.
fn unsupported_collective(call: &ResolvedCollective, gpus: &[u32]) -> Option<CudaError> {
    if !is_run_by_library(call) {
        return None;
    }
    let wraps = matches!(
        call.kind,
        CollectiveKind::AllReduce(CollectiveReduceOp::Avg)
            | CollectiveKind::ReduceScatter(CollectiveReduceOp::Avg)
    ) && call.dtype.is_integer()
        && call.dtype != DType::I64;
    let dtype = call.dtype;
    let is_sum_missing = call.kind.facts().reduces && matches!(dtype.facts().nccl, NcclType::Moved(_));
    if is_sum_missing {
        return Some(CudaError::Unsupported(format!(
            "NCCL does not reduce {dtype}; expected another dtype, or a variant other than plain"
        )));
    }
    if wraps {
        return Some(CudaError::Unsupported(format!(
            "NCCL adds {dtype} in {dtype} before it divides, so that averages wrap around; expected i64 or floats, or a \
             variant other than plain"
        )));
    }
    for (k, rank) in call.cell.iter().enumerate() {
        let Some(gpu) = gpus.get(*rank as usize) else { continue };
        if let Some(other) = call.cell[..k].iter().find(|r| gpus.get(**r as usize) == Some(gpu)) {
            return Some(CudaError::Unsupported(format!(
                "the variant {} is NCCL's, which takes one rank for each GPU; ranks {other} and {rank} share GPU {gpu}",
                call.variant
            )));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use symmc_ir::text;
    use symmc_planner::{BucketInput, PlanConfig, plan};

    use super::*;

    fn refused(program: &str, gpus: &[u32]) -> Vec<String> {
        let graph = text::parse(program).expect("a program");
        let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
        let plan = plan(&graph, &[bucket], &PlanConfig::default()).expect("a plan");
        let plan = ParsedPlan::parse(Arc::new(plan)).expect("programs");
        find_unsupported(&plan, gpus).iter().map(UnsupportedStep::to_string).collect()
    }

    fn program(ranks: u32, dtype: &str, nodes: &str) -> String {
        let x = format!("arg %x: {dtype}[n, 7]\narg %n: i64[{ranks}]\n");
        format!("program \"p\" ranks {ranks}\nsymbol n in 1..=64\ngroup @w world\n{x}{nodes}\nreturn %y\n")
    }

    #[test]
    fn steps_that_a_session_would_refuse_are_refused_before_it() {
        assert_eq!(refused(&all_to_all_with_sizes(8), &[]), [""; 0]);
        let [nine] = &refused(&all_to_all_with_sizes(9), &[])[..] else { panic!("one step") };
        assert!(
            nine.starts_with("%y (all_to_all): GPUs cannot run it: ") && nine.contains("at most 8 ranks"),
            "{nine}"
        );
        for (dtype, op, fits) in [("i32", "avg", false), ("i32", "sum", true), ("i64", "avg", true)] {
            assert_eq!(refused(&all_reduce(dtype, op, "plain"), &[]).is_empty(), fits, "{dtype} {op}");
            assert_eq!(refused(&all_reduce(dtype, op, "two_shot"), &[]), [""; 0], "{dtype} {op}");
        }
    }

    fn all_to_all_with_sizes(ranks: u32) -> String {
        let nodes = "%y: f32[n, 7], %r: i64[RANKS] = all_to_all %x, %n splits=device group=@w via=plain";
        program(ranks, "f32", &nodes.replace("RANKS", &ranks.to_string()))
    }

    fn all_reduce(dtype: &str, op: &str, via: &str) -> String {
        program(2, dtype, &format!("%y: {dtype}[n, 7] = all_reduce %x op={op} group=@w via={via}"))
    }

    #[test]
    fn ranks_that_share_a_gpu_leave_the_library_out() {
        assert_eq!(refused(&all_reduce("f32", "sum", "plain"), &[0, 1]), [""; 0]);
        assert_eq!(refused(&all_reduce("f32", "sum", "ll"), &[0, 0]), [""; 0]);
        let [shared] = &refused(&all_reduce("f32", "sum", "plain"), &[3, 3])[..] else { panic!("one step") };
        assert!(shared.ends_with("ranks 0 and 1 share GPU 3"), "{shared}");
    }
}
