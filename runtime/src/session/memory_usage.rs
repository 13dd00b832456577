//! What sessions take of memory, told before anything is allocated.

use symmc_plan::{FixedRole, Plan};

use crate::exec::{PreparedBucket, ResolvedProgram};

/// Bytes that a session takes of its device: has taken, or will take at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryUsage {
    pub ordinary: usize,
    /// The symmetric arena, which peers reach.
    pub symmetric: usize,
    /// Words by which ranks signal each other, and what they pass chunks through: of what ranks of the host have together,
    /// this rank's part.
    pub flags: usize,
    /// Workspaces of kernels.
    pub scratch: usize,
    /// Inputs and outputs that the caller lends no memory for.
    pub ports: usize,
}

impl MemoryUsage {
    pub fn total_bytes(&self) -> usize {
        let MemoryUsage { ordinary, symmetric, flags, scratch, ports: held } = *self;
        [ordinary, symmetric, flags, scratch, held].into_iter().fold(0, usize::saturating_add)
    }
}

/// Whether a device has constants of the program in memory of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConstantStorage {
    /// They are read where the program has them.
    Read,
    Copied,
}

/// What inputs and outputs take at most at any sizes that the plan serves, if the caller lends memory for none: those that
/// the plan does not hold in the symmetric arena, and outputs that do not lie in the input that they replace.
/// `largest` is what [`Executor::largest`](crate::exec::Executor::largest_buckets) gives.
pub fn max_port_bytes(
    plan: &Plan,
    largest: &[(&PreparedBucket, Option<ResolvedProgram>)],
    constants: ConstantStorage,
) -> usize {
    let Some((first, _)) = largest.first() else { return 0 };
    let (inputs, outputs) = (first.graph().inputs.len(), first.graph().outputs.len());
    let fixed = |input: usize| plan.fixed.iter().any(|memory| memory.role == FixedRole::Bound { input });
    let most = |of: &dyn Fn(&PreparedBucket, &Option<ResolvedProgram>) -> Option<usize>| {
        largest.iter().filter_map(|(program, bound)| of(program, bound)).max().unwrap_or(0)
    };
    let bytes = |program: &PreparedBucket, value| {
        let graph = program.graph();
        usize::try_from(graph.ty(value).bytes().upper_bound(&graph.symbols)).unwrap_or(0)
    };
    let of_input = |i: usize| {
        most(&|program, _| {
            let input = program.graph().inputs.values().nth(i)?;
            let is_elsewhere = fixed(i) || (constants == ConstantStorage::Read && input.data.is_some());
            (!is_elsewhere).then(|| bytes(program, input.value))
        })
    };
    let of_output = |k: usize| {
        most(&|program, bound| {
            let lies_there = bound.as_ref().and_then(|b| b.outputs.get(k)?.input_in_place()).is_some();
            (!lies_there).then_some(bytes(program, program.graph().outputs.get(k)?.value))
        })
    };
    let all = (0..inputs).map(of_input).chain((0..outputs).map(of_output));
    all.fold(0, usize::saturating_add)
}
