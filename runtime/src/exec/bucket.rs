//! One bucket of a plan on one rank: everything that does not depend on the bindings of a run.

use std::sync::Arc;

use symmc_ir::layout::Layout;
use symmc_ir::{Dim, Dispatch, EntityMap, Graph, GroupId, InputId, NodeId, Op, OutputKind, Tensor, ValueId};
use symmc_plan::{
    ArenaKind, Bucket, ExitBarrier, FixedRole, Lane, MemoryRef, ParsedPlan, Plan, PlanProgramError,
    ResolvedPlacement, StepNodes,
};

use crate::custom::{CustomKernelRegistry, KernelEntry};
use crate::error::{Result, RunError};

/// The memory of a base value, as a run addresses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemorySpace {
    Ordinary,
    Symmetric,
    /// The caller's memory of an input.
    Input(usize),
    /// The caller's memory of an output.
    Output(usize),
    /// Memory that belongs to a dispatch while it runs. If a dispatch is one kernel, values in this space
    /// have no memory.
    Inner,
}

#[derive(Clone, Debug)]
pub(super) struct BasePlacement {
    pub space: MemorySpace,
    /// The start of the buffer in its arena.
    pub start: usize,
    /// The bytes from `start` that the value may use; `None` for the caller's memory.
    pub capacity: Option<usize>,
    /// Bytes after `start`.
    pub offset: Dim,
    pub by_rank: Option<RankOffset>,
}

impl BasePlacement {
    /// The factor of the stride for a rank; 0 for a value with the same start on all ranks.
    pub fn cell_number(&self, rank: u32) -> usize {
        let list = self.by_rank.as_ref().map(|b| &b.numbers);
        list.and_then(|numbers| numbers.get(rank as usize)).copied().unwrap_or(0)
    }
}

/// The part of an offset that depends on the rank.
#[derive(Clone, Debug)]
pub(super) struct RankOffset {
    pub stride: Dim,
    /// The number of every rank of the run within its cell of the placement's group.
    pub numbers: Arc<[usize]>,
}

#[derive(Clone, Debug)]
pub(super) struct PreparedStep {
    pub node: NodeId,
    /// The dispatch that the step runs; `node` is its first node.
    pub dispatch: Option<Dispatch>,
    pub lane: Lane,
    pub waits: Vec<usize>,
    pub exit: Option<ExitBarrier>,
    pub blocks: Option<u32>,
    pub custom: Option<CustomKernel>,
}

#[derive(Clone)]
pub struct CustomKernel(pub(super) KernelEntry);

impl std::fmt::Debug for CustomKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("kernel")
    }
}

#[derive(Debug)]
pub struct PreparedBucket {
    pub(super) bucket: usize,
    pub(super) rank: u32,
    pub(super) graph: Graph,
    pub(super) layouts: EntityMap<ValueId, Layout>,
    pub(super) placements: EntityMap<ValueId, Option<BasePlacement>>,
    pub(super) steps: Vec<PreparedStep>,
    /// Bytes of the two arenas.
    pub(super) arenas: symmc_plan::ArenaSizes,
    pub(super) landing_offsets: EntityMap<GroupId, [Option<usize>; 2]>,
    /// The data of each constant input, aligned.
    pub(super) constants: Arc<[Option<AlignedBytes>]>,
}

/// Bytes at an address that is aligned for every dtype.
#[derive(Debug)]
pub(super) struct AlignedBytes {
    words: Vec<u64>,
    len: usize,
}

impl AlignedBytes {
    fn new(tensor: &Tensor) -> Self {
        let data = tensor.data();
        let words = data
            .chunks(8)
            .map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_ne_bytes(word)
            })
            .collect();
        AlignedBytes { words, len: data.len() }
    }
    pub fn as_ptr(&self) -> *const u8 {
        self.words.as_ptr().cast()
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words hold at least `len` bytes, and plain bytes have every alignment.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl PreparedBucket {
    /// Bucket `bucket` of a checked plan on rank `rank`. Fails if the bucket refers to something that it does
    /// not have, or contains an op that has no kernel here.
    pub fn new(plan: &ParsedPlan, bucket: usize, rank: u32, registry: &CustomKernelRegistry) -> Result<Self> {
        let index = bucket;
        let bucket =
            plan.buckets.get(index).ok_or_else(|| invalid_plan(format!("there is no bucket {index}")))?;
        let program = plan.program(bucket.program).map_err(unread_plan_error)?;
        if program.graph.ranks != Some(plan.ranks) {
            return Err(invalid_plan(format!("program {} is not for {} ranks", bucket.program, plan.ranks)));
        }
        let symbols = program.resolve_symbols(bucket).map_err(|e| invalid_plan(e.to_string()))?;
        let (placed, unresolved) = program.resolve_placements(bucket, &symbols);
        if let Some(error) = unresolved.first() {
            return Err(invalid_plan(error.to_string()));
        }
        let runs: Result<Vec<StepNodes>, _> = program.resolve_steps(bucket).collect();
        let runs = runs.map_err(|e| invalid_plan(e.to_string()))?;
        let context = BucketContext { plan, bucket, program, rank };
        let places = context.base_placements(&placed)?;
        let steps = context.prepare_steps(&runs, registry)?;
        let landing = context.landing_offsets();
        let graph = Graph { symbols, ..program.graph.clone() };
        let constants =
            graph.inputs.values().map(|i| i.data.as_ref().map(|t| AlignedBytes::new(t))).collect();
        Ok(PreparedBucket {
            bucket: index,
            rank,
            layouts: program.layouts.clone(),
            placements: places,
            steps,
            arenas: plan.arenas,
            landing_offsets: landing,
            constants,
            graph,
        })
    }

    /// The program, with its symbols narrowed to the bucket.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn step_count(&self) -> usize {
        self.steps.len()
    }

    /// The outputs that write into inputs, each with its input.
    pub(super) fn mutated_inputs(&self) -> impl Iterator<Item = (usize, InputId)> {
        self.graph.outputs.iter().enumerate().filter_map(|(k, o)| match o.kind {
            OutputKind::Mutates(input) => Some((k, input)),
            OutputKind::Returned | OutputKind::Length { .. } => None,
        })
    }
}

fn invalid_plan(message: String) -> RunError {
    RunError::Defect(format!("the plan cannot run: {message}"))
}

struct BucketContext<'a> {
    plan: &'a Plan,
    bucket: &'a Bucket,
    program: &'a symmc_plan::ParsedProgram,
    rank: u32,
}

impl BucketContext<'_> {
    fn base_placements(
        &self,
        placed: &EntityMap<ValueId, Option<ResolvedPlacement>>,
    ) -> Result<EntityMap<ValueId, Option<BasePlacement>>> {
        let graph = &self.program.graph;
        let inner = BasePlacement {
            space: MemorySpace::Inner,
            start: 0,
            capacity: None,
            offset: Dim::from(0),
            by_rank: None,
        };
        placed
            .iter()
            .map(|(value, placed)| match placed {
                Some(placed) => self
                    .base_placement(placed)
                    .map(Some)
                    .map_err(|e| invalid_plan(format!("the placement of %{}: {e}", graph.value_name(value)))),
                None => Ok(self.program.is_dispatch_internal(value).then(|| inner.clone())),
            })
            .collect()
    }

    fn base_placement(&self, placement: &ResolvedPlacement) -> Result<BasePlacement, String> {
        let graph = &self.program.graph;
        let (space, start, room) = match placement.memory {
            MemoryRef::Buffer(b) => {
                let b = self.bucket.buffers.get(b).ok_or_else(|| format!("there is no buffer {b}"))?;
                let (space, arena) = match b.arena {
                    ArenaKind::Ordinary => (MemorySpace::Ordinary, self.plan.arenas.ordinary),
                    ArenaKind::Symmetric => (MemorySpace::Symmetric, self.plan.arenas.symmetric),
                };
                (space, b.offset, Some(check_within_arena(b.offset, b.size, arena)?))
            }
            MemoryRef::Fixed(f) => {
                let f = self.plan.fixed.get(f).ok_or_else(|| format!("there is no fixed memory {f}"))?;
                (
                    MemorySpace::Symmetric,
                    f.offset,
                    Some(check_within_arena(f.offset, f.size, self.plan.arenas.symmetric)?),
                )
            }
            MemoryRef::Input(i) if i < graph.inputs.len() => (MemorySpace::Input(i), 0, None),
            MemoryRef::Output(o) if o < graph.outputs.len() => (MemorySpace::Output(o), 0, None),
            MemoryRef::Input(i) => return Err(format!("there is no input {i}")),
            MemoryRef::Output(o) => return Err(format!("there is no output {o}")),
        };
        let by_rank = match &placement.by_rank {
            None => None,
            Some((group, stride)) => {
                let numbers = graph
                    .ranks_within_cells(*group)
                    .ok_or_else(|| format!("group @{} has no ranks", graph.groups[*group].name))?;
                Some(RankOffset { stride: stride.clone(), numbers: numbers.into() })
            }
        };
        Ok(BasePlacement {
            space,
            start: start as usize,
            capacity: room,
            offset: placement.offset.clone(),
            by_rank,
        })
    }

    fn prepare_steps(
        &self,
        runs: &[StepNodes],
        registry: &CustomKernelRegistry,
    ) -> Result<Vec<PreparedStep>> {
        let graph = &self.program.graph;
        let mut out = Vec::with_capacity(runs.len());
        for (index, (step, run)) in self.bucket.steps.iter().zip(runs).enumerate() {
            if step.waits.iter().any(|&w| w >= index) {
                return Err(invalid_plan(format!("step {index}, %{}, waits for a later step", step.node)));
            }
            let custom = registry.find_kernel(graph, run.first, Some(self.rank))?.map(CustomKernel);
            for node in run.nodes() {
                self.expect_variant(&graph.nodes[node].op, graph.node_name(node))?;
            }
            let StepNodes { first: node, dispatch } = *run;
            out.push(PreparedStep {
                node,
                dispatch,
                lane: step.lane,
                waits: step.waits.clone(),
                exit: step.exit,
                blocks: step.blocks,
                custom,
            });
        }
        Ok(out)
    }

    /// Refuses a collective without a variant that runs it.
    fn expect_variant(&self, op: &Op, node: &str) -> Result<()> {
        match op.as_collective() {
            Some(c) if c.variant.and_then(|v| v.contract(&c.kind)).is_none() => {
                Err(invalid_plan(format!("%{node}: it names no variant that runs {}", c.kind.name())))
            }
            _ => Ok(()),
        }
    }

    fn landing_offsets(&self) -> EntityMap<GroupId, [Option<usize>; 2]> {
        let groups = self.program.graph.groups.values();
        groups.map(|g| [self.landing_offset(&g.name, 0), self.landing_offset(&g.name, 1)]).collect()
    }

    fn landing_offset(&self, group_name: &str, zone_number: u32) -> Option<usize> {
        self.plan.fixed.iter().find_map(|memory| match &memory.role {
            FixedRole::Landing { group, zone } if group == group_name && *zone == zone_number => {
                Some(memory.offset as usize)
            }
            _ => None,
        })
    }
}

/// Checks that `size` bytes from `offset` lie within an arena; returns the size.
fn check_within_arena(offset: u64, size: u64, arena: u64) -> Result<usize, String> {
    match offset.checked_add(size) {
        Some(end) if end <= arena => Ok(size as usize),
        _ => Err(format!("{size} bytes at {offset} exceed an arena of {arena} bytes")),
    }
}

/// The error of a run whose plan cannot be read. Plans are checked before they run.
pub fn unread_plan_error(unread: PlanProgramError) -> RunError {
    RunError::Defect(format!("the plan cannot run: {unread}"))
}
