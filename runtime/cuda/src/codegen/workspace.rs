//! The workspace of steps: memory apart from the arenas, used by one compute step at a time.
//!
//! A session allocates the maximum that its steps need (`bytes_of_steps`). For a plan, the maximum is
//! estimated with every symbol at the upper end of its bucket, for a GPU like those of the built-in profiles
//! with every library present (`upper_bound_bytes`).

use symmc_runtime::exec::{ExecutableStep, ResolvedProgram, StepWork};

use crate::codegen::compute::{self, AlgorithmSelection, KernelTarget};

/// The workspace bytes that these steps share.
pub(crate) fn bytes_of_steps<'b>(
    steps: impl Iterator<Item = &'b ExecutableStep>,
    machine: &KernelTarget,
) -> usize {
    let mut max_bytes = 0;
    for work in steps.flat_map(|step| step.work.node_work()) {
        if let StepWork::Kernel { op, operands, results } = work {
            max_bytes = max_bytes.max(compute::workspace(op, operands, results, machine));
        }
    }
    max_bytes
}

/// An upper bound for the workspace bytes of a program at these sizes, independent of the available
/// libraries.
pub(crate) fn upper_bound_bytes(bound: &ResolvedProgram) -> u64 {
    let machine = KernelTarget { attention: AlgorithmSelection::Measured, ..KernelTarget::PROFILE_GPU };
    bytes_of_steps(bound.steps.iter(), &machine) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use symmc_ir::text;
    use symmc_plan::{ParsedPlan, Plan};
    use symmc_planner::{BucketInput, PlanConfig, plan};

    use crate::codegen::compute::GEMM_WORKSPACE;
    use crate::{codegen::unsupported, cudnn};

    fn workspaces(plan: Plan) -> Vec<u64> {
        let plan = ParsedPlan::parse(Arc::new(plan)).expect("programs");
        unsupported::check_gpu_support(&plan).workspaces
    }

    /// The workspace of attention in `dtype` with a mask of another dtype.
    fn of(dtype: &str, mask: &str) -> usize {
        let program = format!(
            "program \"p\" ranks 1\nsymbol n in 1..=512\narg %q: {dtype}[2, 8, n, 64]\narg %k: {dtype}[2, 2, n, 64]\n\
             arg %m: {mask}[2, 1, 1, n]\n\
             %y: {dtype}[2, 8, n, 64] = attention %q, %k, %k, %m causal=true scale=0.125\nreturn %y\n"
        );
        let graph = text::parse(&program).expect("a program");
        let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
        workspaces(plan(&graph, &[bucket], &PlanConfig::default()).expect("a plan"))[0] as usize
    }

    #[test]
    fn the_library_counts_where_it_may_compute() {
        let [numbers, none] = [of("bf16", "bf16"), of("f32", "f32")];
        assert!(numbers >= cudnn::attention::workspace() && none < numbers, "{numbers} {none}");
        // A mask of bools becomes a bias of two-byte numbers.
        assert_eq!(of("bf16", "bool"), numbers + 2 * 512 * 2);
    }

    /// The workspace of attention gradients with this many heads and tokens.
    fn of_gradients(heads: usize, key_heads: usize, tokens: usize) -> usize {
        let (q, k) =
            (format!("bf16[1, {heads}, {tokens}, 128]"), format!("bf16[1, {key_heads}, {tokens}, 128]"));
        let program = format!(
            "program \"p\" ranks 1\narg %q: {q}\narg %k: {k}\narg %s: f32[1, {heads}, {tokens}]\n\
             %dq: {q}, %dk: {k}, %dv: {k} = attention_gradient %q, %q, %s, %q, %k, %k causal=true scale=0.125\nreturn %dq\nreturn %dk\n"
        );
        let graph = text::parse(&program).expect("a program");
        let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
        workspaces(plan(&graph, &[bucket], &PlanConfig::default()).expect("a plan"))[0] as usize
    }

    #[test]
    fn gradients_of_attention_do_with_what_a_part_of_their_heads_needs() {
        let limit = 300 << 20;
        for (heads, key_heads, tokens) in [(32, 32, 2048), (32, 8, 2048), (32, 32, 8192), (64, 8, 4096)] {
            let bytes = of_gradients(heads, key_heads, tokens);
            assert!(bytes <= limit, "{heads} heads, {tokens} tokens: {bytes}");
        }
        // One head of keys is the smallest part.
        let pairs = 8 * 8192 * 8192 * 2;
        assert!((pairs..pairs + pairs / 2).contains(&of_gradients(32, 4, 8192)));
        assert!(of_gradients(4, 4, 256) < 32 << 20);
    }

    #[test]
    fn products_count_too() {
        let program = "program \"p\" ranks 1\narg %x: f32[4, 8]\narg %w: f32[8, 8]\n%y: f32[4, 8] = matmul %x, %w\nreturn %y\n";
        let graph = text::parse(program).expect("a program");
        let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
        let plan = plan(&graph, &[bucket], &PlanConfig::default()).expect("a plan");
        assert_eq!(workspaces(plan), [GEMM_WORKSPACE as u64]);
    }
}
