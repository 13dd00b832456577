//! The memory use of sessions, known before anything is allocated.

use symmc_ir::ValueId;
use symmc_plan::{FixedRole, Plan};

use crate::exec::{PreparedBucket, ResolvedProgram};

/// Bytes that a session uses on its device: currently, or at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryUsage {
    pub ordinary: usize,
    /// The symmetric arena, which peers reach.
    pub symmetric: usize,
    /// The words by which ranks signal each other, and the staging for chunks. If ranks of the host share
    /// them, this is the part of this rank.
    pub flags: usize,
    /// Workspaces of kernels.
    pub scratch: usize,
    /// Inputs and outputs for which the caller binds no memory.
    pub ports: usize,
}

impl MemoryUsage {
    pub fn total_bytes(&self) -> usize {
        let MemoryUsage { ordinary, symmetric, flags, scratch, ports: held } = *self;
        [ordinary, symmetric, flags, scratch, held].into_iter().fold(0, usize::saturating_add)
    }
}

/// Whether a device copies constants of the program to memory of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConstantStorage {
    /// They are read from the program.
    Read,
    Copied,
}

/// The maximum bytes of inputs and outputs at any sizes that the plan serves, if the caller binds memory to
/// none. Excluded are inputs that the plan holds in the symmetric arena, and outputs that share the memory of
/// the input that they replace. `largest` is the result of
/// [`Executor::largest_buckets`](crate::exec::Executor::largest_buckets).
pub fn max_port_bytes(
    plan: &Plan,
    largest: &[(&PreparedBucket, Option<ResolvedProgram>)],
    constants: ConstantStorage,
) -> usize {
    let Some((first, _)) = largest.first() else { return 0 };
    let inputs = first.graph().inputs.len();
    let outputs = first.graph().outputs.len();
    let mut total = 0usize;
    for i in 0..inputs {
        let is_fixed = plan.fixed.iter().any(|memory| memory.role == FixedRole::Bound { input: i });
        let sizes = largest.iter().filter_map(|(program, _)| {
            let input = program.graph().inputs.values().nth(i)?;
            let is_elsewhere = is_fixed || (constants == ConstantStorage::Read && input.data.is_some());
            (!is_elsewhere).then(|| max_value_bytes(program, input.value))
        });
        total = total.saturating_add(sizes.max().unwrap_or(0));
    }
    for k in 0..outputs {
        let sizes = largest.iter().filter_map(|(program, bound)| {
            let is_in_place = bound.as_ref().and_then(|b| b.outputs.get(k)?.input_in_place()).is_some();
            let output = program.graph().outputs.get(k)?;
            (!is_in_place).then(|| max_value_bytes(program, output.value))
        });
        total = total.saturating_add(sizes.max().unwrap_or(0));
    }
    total
}

fn max_value_bytes(program: &PreparedBucket, value: ValueId) -> usize {
    let graph = program.graph();
    usize::try_from(graph.ty(value).bytes().upper_bound(&graph.symbols)).unwrap_or(0)
}
