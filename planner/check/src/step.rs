//! The rules for the steps of a bucket, and the resolved form of a step: the values that it accesses, the accesses
//! that peers make, and the way in which it orders ranks.

use std::collections::{HashMap, HashSet};

use symmc_ir::collective::{ExitBarrierPolicy, SyncScope};
use symmc_ir::entity::Entity;
use symmc_ir::{
    CollectiveKind, CollectiveVariant, Contract, Dim, DispatchForm, EntityMap, Graph, Node, NodeId, Op,
    SymbolTable, ValueId,
};
use symmc_plan::{Bucket, ExitBarrier, FixedRole, Lane, StepNodes};

use super::context::{CheckContext, covers_base, share_bytes};
use super::error::{CheckError, StepLocation, ValueSide};
use super::findings::Findings;
use super::inplace::{InPlaceConcat, OperandRead, OverlayEffect, overlay};
use super::location::{ValueLocation, written_each_run};
use super::overlap::ValueOverlaps;
use super::program::PlannedProgram;

/// The alignment in bytes of memory that peers access.
const PEER_ALIGNMENT: i64 = 16;

/// A resolved bucket.
pub struct BucketSchedule<'a> {
    /// The index of the bucket.
    pub index: usize,
    pub bucket: &'a Bucket,
    pub program: &'a PlannedProgram,
    pub symbols: SymbolTable,
    pub locations: EntityMap<ValueId, Option<ValueLocation>>,
    /// The values that may share bytes in one run.
    pub overlaps: ValueOverlaps,
    pub steps: Vec<CheckStep>,
    /// The inputs that lie in fixed memory or in the memory of the output that replaces them, each with whether the
    /// caller writes it before each run.
    pub bound: Vec<(ValueId, bool)>,
}

impl BucketSchedule<'_> {
    pub fn step_location(&self, step: usize) -> StepLocation {
        let node = self.bucket.steps.get(step).map(|s| s.node.clone()).unwrap_or_default();
        StepLocation { bucket: self.index, step, node }
    }
}

/// A resolved step. All values are bases.
#[derive(Clone, Debug)]
pub struct CheckStep {
    pub lane: usize,
    pub waits: Vec<usize>,
    pub reads: Vec<ValueId>,
    pub writes: Vec<ValueId>,
    /// The values that peers read, a subset of `reads`.
    pub peer_reads: Vec<ValueId>,
    /// The values that peers write, a subset of `writes`.
    pub peer_writes: Vec<ValueId>,
    /// Operands that stay intact although a result overlaps them.
    pub keeps: HashSet<ValueId>,
    /// The order between ranks, if the step is a collective or accesses peers.
    pub sync: Option<StepSync>,
    /// The pairs of ranks that meet, as numbers within a cell of the group. The sender comes first.
    pub pairs: Vec<(u32, u32)>,
}

/// The order that a step imposes on the ranks of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepSync {
    /// An index of [`PlanPrograms::groups`](super::program::PlanPrograms::groups).
    pub group: usize,
    /// Whether the step has an entry barrier: it accesses no peer before every peer has arrived.
    pub entry: bool,
    /// The ranks that are known to have arrived once the step completes.
    pub meets: SyncScope,
    /// Whether a rank writes its own result only after the rendezvous of the group.
    pub result_after_rendezvous: bool,
    /// Whether the step has an exit barrier: it completes on a rank only after all peers have stopped accessing that
    /// rank.
    pub exit: bool,
    /// Whether the step writes landing zones of peers.
    pub landing: bool,
}

impl BucketSchedule<'_> {
    /// Whether two base values may share bytes in one run.
    pub fn share_bytes(&self, a: ValueId, b: ValueId) -> bool {
        share_bytes(&self.overlaps, &self.locations, a, b)
    }
}

/// Resolves the steps of a bucket. Steps that name no node of the program are reported and left out. Every node must
/// have exactly one step, except views.
pub fn resolve_steps(ctx: &CheckContext<'_>, errors: &mut Findings) -> Vec<CheckStep> {
    let graph = &ctx.program.graph;
    let mut step_of: HashMap<NodeId, usize> = HashMap::with_capacity(ctx.bucket.steps.len());
    let mut runs = Vec::with_capacity(ctx.bucket.steps.len());
    for (s, run) in ctx.program.resolve_steps(ctx.bucket).enumerate() {
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                errors.push(CheckError::Unresolved { bucket: ctx.index, error });
                continue;
            }
        };
        runs.push((s, run));
        if let Some(&first) = step_of.get(&run.first) {
            errors.push(CheckError::StepTwice { at: ctx.step_location(s), first });
        } else {
            step_of.extend(run.nodes().map(|n| (n, s)));
        }
    }
    for id in graph.nodes.keys().filter(|&n| !ctx.program.is_view(n) && !step_of.contains_key(&n)) {
        errors.push(CheckError::StepMissing { bucket: ctx.index, node: graph.node_name(id).to_string() });
    }
    let resolved = runs.into_iter().map(|(s, run)| {
        check_order(ctx, s, run, &step_of, errors);
        resolve_step(ctx, s, run, errors)
    });
    resolved.collect()
}

/// The inputs of a program that lie in a space that steps may write, each with whether the caller writes it before
/// each run.
pub fn bound_inputs(
    source: &Graph,
    program: &PlannedProgram,
    locations: &EntityMap<ValueId, Option<ValueLocation>>,
) -> Vec<(ValueId, bool)> {
    let inputs = program.graph.inputs.iter().filter(|(_, input)| {
        let location = locations[input.value].as_ref();
        location.is_some_and(|location| location.space.is_some())
    });
    inputs.map(|(id, input)| (input.value, written_each_run(source, id.index()))).collect()
}

/// Checks that operands are defined by earlier steps, and that each wait names an earlier step of the other lane
/// once.
fn check_order(
    ctx: &CheckContext<'_>,
    s: usize,
    run: StepNodes,
    step_of: &HashMap<NodeId, usize>,
    errors: &mut Findings,
) {
    let graph = &ctx.program.graph;
    for (_, _, x) in run.operands(ctx.program) {
        let def = graph.defining_node(ctx.program.base(x)).and_then(|n| step_of.get(&n));
        if let Some(&defined) = def.filter(|&&d| d >= s) {
            let operand = graph.value_name(x).to_string();
            errors.push(CheckError::StepOrder { at: ctx.step_location(s), operand, defined });
        }
    }
    let step = &ctx.bucket.steps[s];
    let mut seen_waits = HashSet::with_capacity(step.waits.len());
    for &wait in &step.waits {
        if !seen_waits.insert(wait) {
            errors.push(CheckError::WaitTwice { at: ctx.step_location(s), found: wait });
        } else if wait >= s {
            errors.push(CheckError::WaitNotEarlier { at: ctx.step_location(s), found: wait });
        } else if ctx.bucket.steps[wait].lane == step.lane {
            errors.push(CheckError::WaitOwnLane { at: ctx.step_location(s), found: wait });
        }
    }
}

fn resolve_step(ctx: &CheckContext<'_>, s: usize, run: StepNodes, errors: &mut Findings) -> CheckStep {
    let program = ctx.program;
    let step = &ctx.bucket.steps[s];
    let mut out = CheckStep {
        lane: match step.lane {
            Lane::Compute => 0,
            Lane::Comm => 1,
        },
        waits: step.waits.clone(),
        reads: Vec::new(),
        writes: run.results(program),
        peer_reads: Vec::new(),
        peer_writes: Vec::new(),
        keeps: HashSet::new(),
        sync: None,
        pairs: Vec::new(),
    };
    let mut distinct = HashSet::new();
    let bases = run.operands(program).map(|(_, _, x)| program.base(x));
    out.reads.extend(bases.filter(|&base| distinct.insert(base)));
    let mut contract = None;
    let mut communicates = false;
    for node in run.nodes().map(|n| &program.graph.nodes[n]) {
        match &node.op {
            Op::Collective(_) => {
                communicates = true;
                contract = resolve_collective(ctx, s, node, &mut out, errors);
            }
            Op::Custom(_) => resolve_custom_op(ctx, s, node, &mut out, errors),
            _ => {}
        }
    }
    if run.dispatch.is_some_and(|d| d.form == DispatchForm::Reduction) {
        check_reduction_placement(ctx, s, run, errors);
    }
    if out.sync.is_none() && step.exit.is_some() && !communicates {
        errors.push(CheckError::ExitUnexpected { at: ctx.step_location(s) });
    }
    check_fields(ctx, s, communicates, errors);
    check_shared_bytes(ctx, s, run, contract.as_ref(), &mut out, errors);
    out
}

const MAX_BLOCKS: u32 = 1024;

/// Checks the optional fields of a step. Only a step with a collective may have them.
fn check_fields(ctx: &CheckContext<'_>, s: usize, communicates: bool, errors: &mut Findings) {
    let step = &ctx.bucket.steps[s];
    let mut report = |field, expected, actual: String| {
        errors.push(CheckError::StepField { at: ctx.step_location(s), field, expected, found: actual });
    };
    match step.blocks {
        Some(blocks) if !communicates => {
            report("blocks", "no value because the step has no collective", blocks.to_string());
        }
        Some(blocks) if !(1..=MAX_BLOCKS).contains(&blocks) => {
            report("blocks", "1 to 1024", blocks.to_string());
        }
        _ => {}
    }
    if let Some(bytes) = step.exit_bytes.filter(|_| !communicates) {
        report("exit_bytes", "no value because the step has no collective", bytes.to_string());
    }
}

/// Checks that the operands and results of a reduction are contiguous and at the same place on all ranks.
fn check_reduction_placement(ctx: &CheckContext<'_>, s: usize, run: StepNodes, errors: &mut Findings) {
    let graph = &ctx.program.graph;
    let operands = run.operands(ctx.program).map(|(_, _, x)| (x, ValueSide::Operand));
    let results = run.results(ctx.program).into_iter().map(|r| (r, ValueSide::Result));
    for (v, side) in operands.chain(results) {
        let layout = &ctx.program.layouts[v];
        let location = ctx.step_location(s);
        let value = graph.value_name(v).to_string();
        let rank = ctx.locations[layout.base].as_ref().and_then(|location| location.range.rank.as_ref());
        if !layout.is_contiguous(graph.ty(v)) {
            errors.push(CheckError::NotContiguous { at: location.clone(), value: value.clone() });
        }
        if let Some(rank) = rank {
            let group = ctx.programs.groups[rank.group].name.clone();
            errors.push(CheckError::ReductionUneven { at: location, side, value, group });
        }
    }
}

/// Checks that the results of a step share no bytes with each other, and that they share bytes with operands only if
/// the op or the form of the dispatch allows it ([`inplace`](super::inplace)).
fn check_shared_bytes(
    ctx: &CheckContext<'_>,
    s: usize,
    run: StepNodes,
    contract: Option<&Contract>,
    out: &mut CheckStep,
    errors: &mut Findings,
) {
    let graph = &ctx.program.graph;
    for (i, &r) in out.writes.iter().enumerate() {
        let in_place = match run.dispatch {
            Some(_) => InPlaceConcat::default(),
            None => InPlaceConcat::from_node(ctx, &graph.nodes[run.first], r),
        };
        for &other in &out.writes[..i] {
            if ctx.share_bytes(other, r) {
                let first = graph.value_name(other).to_string();
                let second = graph.value_name(r).to_string();
                errors.push(CheckError::ResultsOverlap { at: ctx.step_location(s), first, second });
            }
        }
        for (node, k, x) in run.operands(ctx.program) {
            let base = ctx.program.base(x);
            if !ctx.share_bytes(base, r) {
                continue;
            }
            let reading = OperandRead { node, operand: k, dispatch: run.dispatch };
            match overlay(ctx, reading, r, contract, &in_place) {
                OverlayEffect::Replaces => {}
                OverlayEffect::Keeps if covers_base(ctx.program, x) => drop(out.keeps.insert(base)),
                OverlayEffect::Keeps => {}
                OverlayEffect::Illegal => {
                    let operand = graph.value_name(x).to_string();
                    let result = graph.value_name(r).to_string();
                    errors.push(CheckError::InPlace { at: ctx.step_location(s), operand, result });
                }
            }
        }
    }
}

/// Checks a collective against the contract of its variant, and fills in the accesses of peers and the order between
/// ranks. Returns the contract, or `None` if the variant or the exit barrier is wrong.
fn resolve_collective(
    ctx: &CheckContext<'_>,
    s: usize,
    node: &Node,
    out: &mut CheckStep,
    errors: &mut Findings,
) -> Option<Contract> {
    let c = node.op.as_collective()?;
    let location = || ctx.step_location(s);
    let Some((variant, contract)) = c.variant.and_then(|v| Some((v, v.contract(&c.kind)?))) else {
        errors.push(CheckError::VariantMissing { at: location() });
        return None;
    };
    let exit = match (contract.exit_barrier, ctx.bucket.steps[s].exit) {
        (ExitBarrierPolicy::Droppable, None) => {
            errors.push(CheckError::ExitMissing { at: location(), variant: variant.to_string() });
            return None;
        }
        (ExitBarrierPolicy::Always | ExitBarrierPolicy::Never, Some(_)) => {
            errors.push(CheckError::ExitUnexpected { at: location() });
            return None;
        }
        (ExitBarrierPolicy::Droppable, Some(barrier)) => barrier == ExitBarrier::Kept,
        (policy, None) => policy == ExitBarrierPolicy::Always,
    };
    let shared = &node.inputs[..c.kind.shared_operands().min(node.inputs.len())];
    let written = node.outputs.get(c.kind.shared_results(node.outputs.len())).unwrap_or_default();
    for &x in &node.inputs {
        let graph = &ctx.program.graph;
        if !ctx.program.layouts[x].is_contiguous(graph.ty(x)) {
            errors.push(CheckError::NotContiguous { at: location(), value: graph.value_name(x).to_string() });
        }
    }
    if contract.symmetric_operand {
        shared.iter().for_each(|&x| check_symmetric(ctx, s, x, ValueSide::Operand, errors));
    }
    if contract.symmetric_result {
        written.iter().for_each(|&r| check_symmetric(ctx, s, r, ValueSide::Result, errors));
    }
    if variant.uses_nccl_window() {
        check_windows(ctx, s, node, errors);
    }
    if contract.peer_access.reads_operand() {
        out.peer_reads.extend(shared.iter().map(|&x| ctx.program.base(x)));
    }
    if contract.peer_access.writes_result() {
        out.peer_writes.extend(written);
    }
    let group = ctx.program.group_index(c.group);
    let landing = check_landing_zones(ctx, s, node, variant, errors);
    if contract.sync_scope == SyncScope::Pairs {
        out.pairs = c.kind.send_pairs(ctx.programs.groups[group].size).unwrap_or_default();
    }
    let Contract { entry_barrier: entry, sync_scope: meets, result_after_rendezvous, .. } = contract;
    out.sync = Some(StepSync { group, entry, meets, result_after_rendezvous, exit, landing });
    Some(contract)
}

/// Checks that the operands and results of a variant that uses NCCL windows have the same place in the window on all
/// ranks of a cell. The operand of an all-gather is only read by its own rank, and may lie at that rank's piece of the
/// result.
fn check_windows(ctx: &CheckContext<'_>, s: usize, node: &Node, errors: &mut Findings) {
    let Some(c) = node.op.as_collective() else { return };
    let graph = &ctx.program.graph;
    let gathers = c.kind == CollectiveKind::AllGather;
    let operands = node.inputs.iter().map(|&x| (x, ValueSide::Operand, gathers));
    for (value, side, gathered) in operands.chain(node.outputs.iter().map(|&r| (r, ValueSide::Result, false)))
    {
        let location = ctx.locations[ctx.program.base(value)].as_ref();
        let Some(rank) = location.and_then(|location| location.range.rank.as_ref()) else { continue };
        let name = &ctx.programs.groups[rank.group].name;
        let is_own_piece = gathered && rank.group == ctx.program.group_index(c.group);
        let group = graph.groups.iter().find(|(_, g)| g.name == *name).map(|(id, _)| id);
        if !is_own_piece && !group.is_some_and(|group| graph.has_equal_rank_within(group, c.group)) {
            errors.push(CheckError::WindowUneven {
                at: ctx.step_location(s),
                side,
                value: graph.value_name(value).to_string(),
                group: name.clone(),
            });
        }
    }
}

/// Checks that both landing zones exist and are large enough, if the variant uses them. Returns whether it does.
fn check_landing_zones(
    ctx: &CheckContext<'_>,
    s: usize,
    node: &Node,
    variant: CollectiveVariant,
    errors: &mut Findings,
) -> bool {
    let Some(c) = node.op.as_collective() else { return false };
    let uses = variant
        .contract(&c.kind)
        .is_some_and(|c| c.peer_access == symmc_ir::collective::PeerAccess::WriteLanding);
    if !uses {
        return false;
    }
    let group = &ctx.programs.groups[ctx.program.group_index(c.group)];
    let bytes = node.inputs.first().map_or(0, |&x| ctx.program.graph.ty(x).bytes().upper_bound(ctx.symbols));
    let expected = variant.landing_bytes(&c.kind, u64::try_from(bytes).unwrap_or(0), u64::from(group.size));
    for zone in 0..2 {
        let role = FixedRole::Landing { group: group.name.clone(), zone };
        let location = ctx.step_location(s);
        let group = group.name.clone();
        match ctx.programs.fixed.find_role(&role).and_then(|f| ctx.plan.fixed.get(f)).map(|f| f.size) {
            None => errors.push(CheckError::LandingMissing { at: location, group, zone }),
            Some(size) if size < expected => {
                errors.push(CheckError::LandingTooSmall { at: location, group, zone, expected, found: size });
            }
            Some(_) => {}
        }
    }
    true
}

/// Resolves a custom op. Peers access its symmetric operands and results between its entry and exit barriers.
fn resolve_custom_op(
    ctx: &CheckContext<'_>,
    s: usize,
    node: &Node,
    out: &mut CheckStep,
    errors: &mut Findings,
) {
    let Op::Custom(id) = node.op else { return };
    let op = &ctx.program.graph.customs[id];
    let operands: Vec<ValueId> =
        op.symmetric_operands.iter().filter_map(|&k| node.inputs.get(k)).copied().collect();
    let results: Vec<ValueId> =
        op.symmetric_results.iter().filter_map(|&k| node.outputs.get(k)).copied().collect();
    operands.iter().for_each(|&x| check_symmetric(ctx, s, x, ValueSide::Operand, errors));
    results.iter().for_each(|&r| check_symmetric(ctx, s, r, ValueSide::Result, errors));
    let Some(group) = op.group else { return };
    if ctx.bucket.steps[s].exit.is_some() {
        errors.push(CheckError::ExitUnexpected { at: ctx.step_location(s) });
    }
    for x in operands {
        let base = ctx.program.base(x);
        if !out.peer_reads.contains(&base) {
            out.peer_reads.push(base);
        }
    }
    out.peer_writes = results;
    let group = ctx.program.group_index(group);
    out.sync = Some(StepSync {
        group,
        entry: true,
        meets: SyncScope::Group,
        result_after_rendezvous: true,
        exit: true,
        landing: false,
    });
}

/// Checks that peers can access a value: it lies in the symmetric arena and is aligned.
fn check_symmetric(ctx: &CheckContext<'_>, s: usize, value: ValueId, side: ValueSide, errors: &mut Findings) {
    let graph = &ctx.program.graph;
    let layout = &ctx.program.layouts[value];
    let Some(location) = &ctx.locations[layout.base] else { return };
    let name = graph.value_name(value).to_string();
    if !location.symmetric {
        let memory = location.range.memory;
        errors.push(CheckError::NotSymmetric { at: ctx.step_location(s), side, value: name, found: memory });
        return;
    }
    let element = Dim::from(graph.ty(value).dtype.size() as i64);
    let start = location.range.start.clone() + layout.offset.clone() * element;
    let stride = location.range.rank.as_ref().map(|n| &n.stride);
    for dim in [Some(&start), stride].into_iter().flatten() {
        if !dim.is_divisible_by(PEER_ALIGNMENT) {
            let expected = PEER_ALIGNMENT as u64;
            let dim_text = dim.display(ctx.symbols).to_string();
            errors.push(CheckError::Misaligned {
                at: ctx.step_location(s),
                side,
                value: name,
                expected,
                found: dim_text,
            });
            return;
        }
    }
}
