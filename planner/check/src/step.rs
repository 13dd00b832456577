//! The steps of a bucket, resolved: which values each touches, by whom, and how it orders ranks.

use std::collections::{HashMap, HashSet};

use symmc_ir::collective::{Exit, Meets};
use symmc_ir::entity::Entity;
use symmc_ir::{
    CollectiveKind, Contract, Dim, Form, Graph, Node, NodeId, Op, Symbols, Table, ValueId, Variant,
};
use symmc_plan::{Bucket, ExitBarrier, Lane, Role, Run};

use super::context::{Context, is_whole, share};
use super::error::{At, CheckError, Side};
use super::findings::Findings;
use super::inplace::{InPlace, Overlay, Reading, overlay};
use super::overlap::Overlaps;
use super::place::{Location, written_each_run};
use super::program::PlannedProgram;

/// The alignment of what peers reach.
const PEER_ALIGNMENT: i64 = 16;

pub struct Schedule<'a> {
    pub index: usize,
    pub bucket: &'a Bucket,
    pub program: &'a PlannedProgram,
    pub symbols: Symbols,
    pub locations: Table<ValueId, Option<Location>>,
    /// Which of them share bytes in one run.
    pub overlaps: Overlaps,
    pub steps: Vec<Step>,
    /// The inputs that lie in fixed memory, or in that of the outputs that replace them, and whether the caller writes them
    /// before each run.
    pub bound: Vec<(ValueId, bool)>,
}

impl Schedule<'_> {
    pub fn at(&self, step: usize) -> At {
        let node = self.bucket.steps.get(step).map(|s| s.node.clone()).unwrap_or_default();
        At { bucket: self.index, step, node }
    }
}

/// A step, resolved. All values are bases.
#[derive(Clone, Debug)]
pub struct Step {
    pub lane: usize,
    pub waits: Vec<usize>,
    pub reads: Vec<ValueId>,
    pub writes: Vec<ValueId>,
    /// What peers read, all of it among `reads`.
    pub peer_reads: Vec<ValueId>,
    /// What peers write, all of it among `writes`.
    pub peer_writes: Vec<ValueId>,
    /// Operands that a result lies on and that hold the same bytes afterwards.
    pub keeps: HashSet<ValueId>,
    /// How it orders ranks, if it is a collective or touches peers.
    pub sync: Option<Sync>,
    /// The pairs of ranks that meet, as numbers within a cell of the group, sender first.
    pub pairs: Vec<(u32, u32)>,
}

/// How a step orders the ranks of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sync {
    /// An index of [`Programs::groups`].
    pub group: usize,
    /// Whether it touches no peer before every peer has arrived.
    pub entry: bool,
    /// Whose arrival its completion tells of.
    pub meets: Meets,
    /// Whether a rank writes its own result only after the group has met.
    pub result_after_rendezvous: bool,
    /// Whether it completes on no rank before all peers have stopped touching this rank.
    pub exit: bool,
    /// Whether it writes the peers' landing zones.
    pub landing: bool,
}

impl Schedule<'_> {
    /// Whether two values share bytes in one run, as far as is known.
    pub fn share(&self, a: ValueId, b: ValueId) -> bool {
        share(&self.overlaps, &self.locations, a, b)
    }
}

pub fn steps(ctx: &Context<'_>, errors: &mut Findings) -> Vec<Step> {
    let graph = &ctx.program.graph;
    let mut step_of: HashMap<NodeId, usize> = HashMap::with_capacity(ctx.bucket.steps.len());
    let mut runs = Vec::with_capacity(ctx.bucket.steps.len());
    for (s, run) in ctx.program.runs(ctx.bucket).enumerate() {
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                errors.push(CheckError::Unresolved { bucket: ctx.index, error });
                continue;
            }
        };
        runs.push((s, run));
        if let Some(&first) = step_of.get(&run.first) {
            errors.push(CheckError::StepTwice { at: ctx.at(s), first });
        } else {
            step_of.extend(run.nodes().map(|n| (n, s)));
        }
    }
    for id in graph.nodes.keys().filter(|&n| !ctx.program.is_view(n) && !step_of.contains_key(&n)) {
        errors.push(CheckError::StepMissing { bucket: ctx.index, node: graph.node_name(id).to_string() });
    }
    let resolved = runs.into_iter().map(|(s, run)| {
        order(ctx, s, run, &step_of, errors);
        resolve(ctx, s, run, errors)
    });
    resolved.collect()
}

/// The inputs of a program that lie in memory which steps may write, and whether the caller writes them before each run.
pub fn bound_inputs(
    source: &Graph,
    program: &PlannedProgram,
    locations: &Table<ValueId, Option<Location>>,
) -> Vec<(ValueId, bool)> {
    let within = |v: ValueId| locations[v].as_ref().is_some_and(|h| h.space.is_some());
    let inputs = program.graph.inputs.iter().filter(|(_, i)| within(i.value));
    inputs.map(|(id, i)| (i.value, written_each_run(source, id.index()))).collect()
}

fn order(ctx: &Context<'_>, s: usize, run: Run, step_of: &HashMap<NodeId, usize>, errors: &mut Findings) {
    let graph = &ctx.program.graph;
    for (_, _, x) in run.operands(ctx.program) {
        let def = graph.def_node(ctx.program.base(x)).and_then(|n| step_of.get(&n));
        if let Some(&defined) = def.filter(|&&d| d >= s) {
            let operand = graph.name_of(x).to_string();
            errors.push(CheckError::StepOrder { at: ctx.at(s), operand, defined });
        }
    }
    let step = &ctx.bucket.steps[s];
    let mut known = HashSet::with_capacity(step.waits.len());
    for &found in &step.waits {
        if !known.insert(found) {
            errors.push(CheckError::WaitTwice { at: ctx.at(s), found });
        } else if found >= s {
            errors.push(CheckError::WaitNotEarlier { at: ctx.at(s), found });
        } else if ctx.bucket.steps[found].lane == step.lane {
            errors.push(CheckError::WaitOwnLane { at: ctx.at(s), found });
        }
    }
}

fn resolve(ctx: &Context<'_>, s: usize, run: Run, errors: &mut Findings) -> Step {
    let program = ctx.program;
    let step = &ctx.bucket.steps[s];
    let mut out = Step {
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
    let mut known = HashSet::new();
    let bases = run.operands(program).map(|(_, _, x)| program.base(x));
    out.reads.extend(bases.filter(|&base| known.insert(base)));
    let mut contract = None;
    let mut communicates = false;
    for node in run.nodes().map(|n| &program.graph.nodes[n]) {
        match &node.op {
            Op::Collective(_) => {
                communicates = true;
                contract = collective(ctx, s, node, &mut out, errors);
            }
            Op::Custom(_) => custom(ctx, s, node, &mut out, errors),
            _ => {}
        }
    }
    if run.dispatch.is_some_and(|d| d.form == Form::Reduction) {
        level(ctx, s, run, errors);
    }
    if out.sync.is_none() && step.exit.is_some() && !communicates {
        errors.push(CheckError::ExitUnexpected { at: ctx.at(s) });
    }
    fields(ctx, s, communicates, errors);
    shared_bytes(ctx, s, run, contract.as_ref(), &mut out, errors);
    out
}

const MAX_BLOCKS: u32 = 1024;

/// What a step says beside its node, lane and waits belongs to a collective.
fn fields(ctx: &Context<'_>, s: usize, communicates: bool, errors: &mut Findings) {
    let step = &ctx.bucket.steps[s];
    let mut unfit = |field, expected, found| {
        errors.push(CheckError::StepField { at: ctx.at(s), field, expected, found });
    };
    match step.blocks {
        Some(found) if !communicates => {
            unfit("blocks", "none where no collective runs", found.to_string());
        }
        Some(found) if !(1..=MAX_BLOCKS).contains(&found) => {
            unfit("blocks", "1 to 1024", found.to_string());
        }
        _ => {}
    }
    if let Some(found) = step.exit_bytes.filter(|_| !communicates) {
        unfit("exit_bytes", "none where no collective runs", found.to_string());
    }
}

/// What a reduction reads and writes is stored contiguously, at one place on all ranks.
fn level(ctx: &Context<'_>, s: usize, run: Run, errors: &mut Findings) {
    let graph = &ctx.program.graph;
    let operands = run.operands(ctx.program).map(|(_, _, x)| (x, Side::Operand));
    let results = run.results(ctx.program).into_iter().map(|r| (r, Side::Result));
    for (v, side) in operands.chain(results) {
        let (layout, name) = (&ctx.program.layouts[v], || graph.name_of(v).to_string());
        if !layout.is_contiguous(graph.ty(v)) {
            errors.push(CheckError::NotContiguous { at: ctx.at(s), value: name() });
        }
        let numbered = ctx.locations[layout.base].as_ref().and_then(|h| h.range.rank.as_ref());
        if let Some(numbered) = numbered {
            let group = ctx.programs.groups[numbered.group].name.clone();
            errors.push(CheckError::ReductionUneven { at: ctx.at(s), side, value: name(), group });
        }
    }
}

/// Results must not lie on each other, and on operands only where the op, or the form of the dispatch, allows it.
fn shared_bytes(
    ctx: &Context<'_>,
    s: usize,
    run: Run,
    contract: Option<&Contract>,
    out: &mut Step,
    errors: &mut Findings,
) {
    let graph = &ctx.program.graph;
    for (i, &r) in out.writes.iter().enumerate() {
        let in_place = match run.dispatch {
            Some(_) => InPlace::default(),
            None => InPlace::of(ctx, &graph.nodes[run.first], r),
        };
        for &other in &out.writes[..i] {
            if ctx.share(other, r) {
                let (first, second) = (graph.name_of(other).to_string(), graph.name_of(r).to_string());
                errors.push(CheckError::ResultsOverlap { at: ctx.at(s), first, second });
            }
        }
        for (node, k, x) in run.operands(ctx.program) {
            let base = ctx.program.base(x);
            if !ctx.share(base, r) {
                continue;
            }
            let form = run.dispatch.map(|d| d.form);
            match overlay(ctx, Reading { node, operand: k, form }, r, contract, &in_place) {
                Overlay::Replaces => {}
                Overlay::Keeps if is_whole(ctx.program, x) => drop(out.keeps.insert(base)),
                Overlay::Keeps => {}
                Overlay::Illegal => {
                    let (operand, result) = (graph.name_of(x).to_string(), graph.name_of(r).to_string());
                    errors.push(CheckError::InPlace { at: ctx.at(s), operand, result });
                }
            }
        }
    }
}

fn collective(
    ctx: &Context<'_>,
    s: usize,
    node: &Node,
    out: &mut Step,
    errors: &mut Findings,
) -> Option<Contract> {
    let c = node.op.as_collective()?;
    let at = || ctx.at(s);
    let runs = c.variant.and_then(|v| Some((v, v.contract(&c.kind)?)));
    let Some((variant, contract)) = runs else {
        errors.push(CheckError::VariantMissing { at: at() });
        return None;
    };
    let exit = match (contract.exit, ctx.bucket.steps[s].exit) {
        (Exit::Droppable, None) => {
            errors.push(CheckError::ExitMissing { at: at(), variant: variant.to_string() });
            return None;
        }
        (Exit::Always | Exit::Never, Some(_)) => {
            errors.push(CheckError::ExitUnexpected { at: at() });
            return None;
        }
        (Exit::Droppable, Some(barrier)) => barrier == ExitBarrier::Kept,
        (kind, None) => kind == Exit::Always,
    };
    for &x in &node.inputs {
        let graph = &ctx.program.graph;
        if !ctx.program.layouts[x].is_contiguous(graph.ty(x)) {
            errors.push(CheckError::NotContiguous { at: at(), value: graph.name_of(x).to_string() });
        }
        if contract.symmetric_operand {
            symmetric(ctx, s, x, Side::Operand, errors);
        }
    }
    if contract.symmetric_result {
        node.outputs.iter().for_each(|&r| symmetric(ctx, s, r, Side::Result, errors));
    }
    if variant.in_window() {
        windows(ctx, s, node, errors);
    }
    if contract.touch.reads_operand() {
        out.peer_reads.extend(node.inputs.iter().map(|&x| ctx.program.base(x)));
    }
    if contract.touch.writes_result() {
        out.peer_writes.extend(&node.outputs);
    }
    let group = ctx.program.group(c.group);
    let landing = landing(ctx, s, node, variant, errors);
    if contract.meets == Meets::Pairs {
        out.pairs = c.kind.pairs(ctx.programs.groups[group].size).unwrap_or_default();
    }
    let Contract { entry, meets, result_after_rendezvous, .. } = contract;
    out.sync = Some(Sync { group, entry, meets, result_after_rendezvous, exit, landing });
    Some(contract)
}

/// Checks that the library finds the operands and results of all ranks of a cell at one place in its window. The operand
/// of an all-gather is read by its own rank alone, and may lie at its piece of what the group gathers.
fn windows(ctx: &Context<'_>, s: usize, node: &Node, errors: &mut Findings) {
    let Some(c) = node.op.as_collective() else { return };
    let graph = &ctx.program.graph;
    let gathers = c.kind == CollectiveKind::AllGather;
    let operands = node.inputs.iter().map(|&x| (x, Side::Operand, gathers));
    for (value, side, gathered) in operands.chain(node.outputs.iter().map(|&r| (r, Side::Result, false))) {
        let location = ctx.locations[ctx.program.base(value)].as_ref();
        let Some(numbered) = location.and_then(|h| h.range.rank.as_ref()) else { continue };
        let by = &ctx.programs.groups[numbered.group].name;
        let own = gathered && numbered.group == ctx.program.group(c.group);
        let group = graph.groups.iter().find(|(_, g)| g.name == *by).map(|(id, _)| id);
        if !own && !group.is_some_and(|group| graph.level(group, c.group)) {
            let (value, group) = (graph.name_of(value).to_string(), by.clone());
            errors.push(CheckError::WindowUneven { at: ctx.at(s), side, value, group });
        }
    }
}

/// Checks the two landing zones of a variant that uses them; whether it does.
fn landing(ctx: &Context<'_>, s: usize, node: &Node, variant: Variant, errors: &mut Findings) -> bool {
    let Some(c) = node.op.as_collective() else { return false };
    let uses =
        variant.contract(&c.kind).is_some_and(|c| c.touch == symmc_ir::collective::Touch::WriteLanding);
    if !uses {
        return false;
    }
    let group = &ctx.programs.groups[ctx.program.group(c.group)];
    let bytes = node.inputs.first().map_or(0, |&x| ctx.program.graph.ty(x).bytes().upper(ctx.symbols));
    let expected = variant.landing_bytes(&c.kind, u64::try_from(bytes).unwrap_or(0), u64::from(group.size));
    for zone in 0..2 {
        let role = Role::Landing { group: group.name.clone(), zone };
        let (at, group) = (ctx.at(s), group.name.clone());
        match ctx.programs.fixed.of_role(&role).and_then(|f| ctx.plan.fixed.get(f)).map(|f| f.size) {
            None => errors.push(CheckError::LandingMissing { at, group, zone }),
            Some(found) if found < expected => {
                errors.push(CheckError::LandingTooSmall { at, group, zone, expected, found });
            }
            Some(_) => {}
        }
    }
    true
}

/// A custom op touches the symmetric operands and results of its peers between entry and exit.
fn custom(ctx: &Context<'_>, s: usize, node: &Node, out: &mut Step, errors: &mut Findings) {
    let Op::Custom(id) = node.op else { return };
    let op = &ctx.program.graph.customs[id];
    let operands: Vec<ValueId> =
        op.symmetric_operands.iter().filter_map(|&k| node.inputs.get(k)).copied().collect();
    let results: Vec<ValueId> =
        op.symmetric_results.iter().filter_map(|&k| node.outputs.get(k)).copied().collect();
    operands.iter().for_each(|&x| symmetric(ctx, s, x, Side::Operand, errors));
    results.iter().for_each(|&r| symmetric(ctx, s, r, Side::Result, errors));
    let Some(group) = op.group else { return };
    if ctx.bucket.steps[s].exit.is_some() {
        errors.push(CheckError::ExitUnexpected { at: ctx.at(s) });
    }
    for x in operands {
        let base = ctx.program.base(x);
        if !out.peer_reads.contains(&base) {
            out.peer_reads.push(base);
        }
    }
    out.peer_writes = results;
    let group = ctx.program.group(group);
    out.sync = Some(Sync {
        group,
        entry: true,
        meets: Meets::Group,
        result_after_rendezvous: true,
        exit: true,
        landing: false,
    });
}

/// Checks that peers can reach a value: it lies in the symmetric arena, aligned.
fn symmetric(ctx: &Context<'_>, s: usize, value: ValueId, side: Side, errors: &mut Findings) {
    let (graph, layout) = (&ctx.program.graph, &ctx.program.layouts[value]);
    let Some(location) = &ctx.locations[layout.base] else { return };
    let name = graph.name_of(value).to_string();
    if !location.symmetric {
        let found = location.range.memory;
        errors.push(CheckError::NotSymmetric { at: ctx.at(s), side, value: name, found });
        return;
    }
    let element = Dim::from(graph.ty(value).dtype.size() as i64);
    let start = location.range.start.clone() + layout.offset.clone() * element;
    let stride = location.range.rank.as_ref().map(|n| &n.stride);
    for found in [Some(&start), stride].into_iter().flatten() {
        if !found.divisible_by(PEER_ALIGNMENT) {
            let expected = PEER_ALIGNMENT as u64;
            let found = found.display(ctx.symbols).to_string();
            errors.push(CheckError::Misaligned { at: ctx.at(s), side, value: name, expected, found });
            return;
        }
    }
}
