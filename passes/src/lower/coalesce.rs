//! Finds collectives that pay to coalesce: one collective of several operands replaces one collective each
//! (bucketing; XLA's collective combiner).
//!
//! Collectives can be coalesced if they have the same kind, attributes, cells and dtype, and none needs
//! another. Sets are chosen in one walk in program order, except that collectives come right after their
//! operands: a program may have the all-reduces of all gradients at its end. A collective joins an open set
//! if that saves time by the profile: its time alone must exceed the growth of the larger collective plus
//! the copies of its operand and its result. A set is closed once the computation since its first member
//! exceeds a window, because members wait for each other. Whether waiting pays depends on the schedule, so
//! the driver tries several windows and compares plans.
//!
//! The same walk finds sets of collectives that run as one step without being packed
//! ([`JoinMode::Together`]). These need no copies, so their collectives may differ in kind and dtype, but
//! not in their cells.
//!
//! Invariant: the coalesced program can be ordered. The walk knows, as bits, the open sets on which each
//! node and each open set depends. A collective joins no set on which it depends, directly or through other
//! sets. Two sets therefore never depend on each other.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::entity::Entity;
use symmc_ir::layout::{Layout, compute_layouts, view_layout};
use symmc_ir::{
    Collective, CollectiveKind, CollectiveVariant, DType, Dim, EntityMap, Graph, InputId, Node, NodeId, Op,
    TensorType, ValueId,
};
use symmc_plan::{AppliedRule, Decision};

use super::computation;
use super::conditions::{CollectiveConditions, LowerConditions};
use super::context::LowerContext;
use super::decisions::absorbed_decision;
use super::joint_costs::{self, JointLossModel, JointLosses};

/// Collectives that become one, in the order in which their operands become available.
pub type CollectiveSet = Vec<NodeId>;

/// The most bytes of a coalesced collective: start-up is a negligible part of larger ones.
const MAX_COALESCED_BYTES: u64 = 1 << 28;
/// The most sets that are open at once: each is a bit of a word.
const MAX_OPEN_SETS: usize = u64::BITS as usize;
/// The least time that a member must save, in microseconds. Smaller savings are noise of the profile.
const MIN_SAVED_US: f64 = 0.25;

/// Limits on the distance and the size of collectives in one set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CoalesceReach {
    /// The most computation between the operands of the first and the last member, in microseconds.
    pub window_us: f64,
    /// The least fraction of a member's own time that must be start-up, from 0 to 1; 0 admits collectives of
    /// all sizes.
    pub least_startup: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JoinMode {
    /// As one collective, with operands packed next to each other.
    Packed,
    /// As one step, each with its own operand and result.
    Together,
}

#[derive(Clone, Debug)]
pub struct CoalesceConfig {
    pub joining: JoinMode,
    pub reach: CoalesceReach,
    /// The names of the results of collectives that must not join a set.
    pub kept: BTreeSet<String>,
}

/// The name of the coalescing rule in decisions.
pub const COALESCE_RULE: &str = "coalesce_collectives";

/// Gives each coalesced collective, which has the name in `names`, the conditions of its members.
pub fn rename_in_conditions(
    graph: &Graph,
    sets: &[CollectiveSet],
    names: &[String],
    conditions: &mut LowerConditions,
) {
    for (set, name) in sets.iter().zip(names) {
        let joined = conditions.of(set.iter().map(|&id| graph.node_name(id)));
        conditions.by_name.insert(name.clone(), joined);
    }
}

/// Turns the decisions of a program with coalesced collectives into decisions of the program before
/// coalescing. The first member of each set stands for the coalesced collective, and the others are
/// absorbed.
pub fn expand_decisions(
    graph: &Graph,
    sets: &[CollectiveSet],
    names: &[String],
    context: &LowerContext,
    decisions: Vec<Decision>,
) -> Vec<Decision> {
    let rule = AppliedRule { name: COALESCE_RULE.into(), us: None };
    let set_of: HashMap<&str, &CollectiveSet> = names.iter().map(String::as_str).zip(sets).collect();
    let mut out = Vec::with_capacity(decisions.len());
    for mut decision in decisions {
        let Some((&first, others)) = set_of.get(decision.collective.as_str()).and_then(|s| s.split_first())
        else {
            out.push(decision);
            continue;
        };
        decision.collective = graph.node_name(first).to_string();
        decision.rules.insert(0, rule.clone());
        out.push(decision);
        for &id in others {
            let Some((collective, bytes)) = sized_collective(graph, context, &graph.nodes[id]) else {
                continue;
            };
            let plain_us = context.estimate_us(
                &collective.kind,
                collective.group,
                CollectiveVariant::Plain,
                bytes.into(),
                0.0,
                CollectiveConditions::default(),
            );
            out.push(absorbed_decision(graph.node_name(id), bytes, 0.0, plain_us, rule.clone()));
        }
    }
    out
}

/// The properties that collectives must share to be coalesced, or to run as one step.
#[derive(PartialEq, Eq, Hash)]
enum JoinKey {
    Packed { kind: CollectiveKind, cells: Option<Vec<Vec<u32>>>, dtype: DType },
    Together { cells: Option<Vec<Vec<u32>>> },
}

/// The layout of members within the coalesced operand and result, as numbers of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberRows {
    /// The rows of the operand: 1, or as many as the group has ranks.
    pub operand: i64,
    pub result: i64,
}

impl MemberRows {
    /// The rows for a kind of collective among this many ranks; `None` if it cannot be coalesced.
    pub fn for_kind(kind: &CollectiveKind, ranks: u32) -> Option<MemberRows> {
        if ranks < 2 || kind.moves_by_data() {
            return None;
        }
        let facts = kind.facts();
        let ranks = i64::from(ranks);
        Some(MemberRows {
            operand: if facts.operand_pieces { ranks } else { 1 },
            result: if facts.result_pieces { ranks } else { 1 },
        })
    }
}

struct JoinCandidate {
    /// The number of its [`JoinKey`].
    kin: usize,
    bytes: u64,
    alone_us: f64,
    copies_us: f64,
    /// The time lost if it runs with others as one step.
    losses: JointLosses,
}

/// The sets of a program that save time by the profile, each with at least two members.
pub fn find_sets(
    graph: &Graph,
    context: &LowerContext,
    bound: &BTreeSet<InputId>,
    config: &CoalesceConfig,
) -> Vec<CollectiveSet> {
    let max_members = match config.joining {
        JoinMode::Packed => usize::MAX,
        JoinMode::Together => {
            context.profile.dispatches.collectives.map_or(0, |limits| limits.nodes as usize)
        }
    };
    if max_members < 2 {
        return Vec::new();
    }
    let candidates = candidates(graph, context, bound, config);
    if candidates.is_empty() {
        return Vec::new();
    }
    let needs = vec![0; graph.nodes.len()];
    let mut walk =
        CoalesceWalk { graph, context, config, most: max_members, needs, open: Vec::new(), done: Vec::new() };
    let mut now_us = 0.0;
    for id in by_operands(graph) {
        walk.close_before(now_us);
        let defs = graph.nodes[id].inputs.iter().filter_map(|&v| graph.defining_node(v));
        walk.needs[id.index()] = defs.fold(0, |acc, def| acc | walk.needs[def.index()]);
        match candidates.get(&id) {
            Some(candidate) => {
                let slot = walk.join_set(id, candidate, now_us);
                walk.needs[id.index()] = 1 << slot;
            }
            None => now_us += computation::node_computation_us(graph, id, context),
        }
    }
    walk.open.drain(..).flatten().for_each(|open| walk.done.push(open.members));
    walk.done.retain(|set| set.len() > 1);
    walk.done.sort_unstable();
    walk.done
}

/// The nodes in an executable order: program order, with collectives and views right after their operands.
fn by_operands(graph: &Graph) -> Vec<NodeId> {
    // For each node, the last node before it that keeps its place.
    let mut position: EntityMap<NodeId, NodeId> = graph.nodes.keys().collect();
    for (id, node) in graph.nodes.iter() {
        if node.op.is_view() || node.op.as_collective().is_some() {
            let operands =
                node.inputs.iter().filter_map(|&v| graph.defining_node(v)).map(|def| position[def]);
            position[id] = operands.max().unwrap_or(NodeId::new(0));
        }
    }
    let mut order: Vec<NodeId> = graph.nodes.keys().collect();
    order.sort_by_key(|&id| (position[id], id));
    order
}

/// The collectives whose [`JoinKey`] others share.
fn candidates(
    graph: &Graph,
    context: &LowerContext,
    bound: &BTreeSet<InputId>,
    config: &CoalesceConfig,
) -> HashMap<NodeId, JoinCandidate> {
    let mut numbers: HashMap<JoinKey, usize> = HashMap::new();
    let mut by_key: Vec<Vec<NodeId>> = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let Some(key) = join_key(graph, context, node, config.joining)
            .filter(|_| !config.kept.contains(graph.node_name(id)))
        else {
            continue;
        };
        let next = numbers.len();
        let number = *numbers.entry(key).or_insert(next);
        by_key.resize(numbers.len(), Vec::new());
        by_key[number].push(id);
    }
    by_key.retain(|nodes| nodes.len() > 1 && !is_chain(graph, nodes));
    if by_key.is_empty() {
        return HashMap::new();
    }
    let copies = (config.joining == JoinMode::Packed).then(|| CopyCosts::new(graph, context));
    let losses = (config.joining == JoinMode::Together).then(|| JointLossModel::new(graph, context, bound));
    let mut placed = BTreeSet::new();
    let mut out = HashMap::new();
    for (kin, nodes) in by_key.into_iter().enumerate() {
        for id in nodes {
            let node = &graph.nodes[id];
            let Some((collective, bytes)) = sized_collective(graph, context, node) else { continue };
            let times = fastest(context, collective, bytes).zip(fastest(context, collective, 1));
            let Some((alone_us, startup_us)) = times else { continue };
            if startup_us < config.reach.least_startup * alone_us {
                continue;
            }
            let copies_us = copies.as_ref().map_or(0.0, |c| c.needed_us(node, collective, &mut placed));
            let losses =
                losses.as_ref().map_or(JointLosses::default(), |l| l.collective_losses(node, collective));
            out.insert(id, JoinCandidate { kin, bytes, alone_us, copies_us, losses });
        }
    }
    out
}

/// Whether each of these nodes, in program order, depends on the one before it at any distance, as in the
/// layers of a model.
fn is_chain(graph: &Graph, nodes: &[NodeId]) -> bool {
    let mut next = nodes.iter().peekable();
    // The number of these nodes on the longest path to each node.
    let mut depth: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.nodes.iter() {
        let defs = node.inputs.iter().filter_map(|&v| graph.defining_node(v));
        let longest = defs.map(|def| depth[def.index()]).max().unwrap_or(0);
        depth.push(longest + usize::from(next.next_if_eq(&&id).is_some()));
    }
    nodes.iter().map(|id| depth[id.index()]).eq(1..=nodes.len())
}

/// The key of a collective; `None` if it cannot be in a set.
fn join_key(graph: &Graph, context: &LowerContext, node: &Node, joining: JoinMode) -> Option<JoinKey> {
    let (collective, bytes) = sized_collective(graph, context, node)?;
    MemberRows::for_kind(&collective.kind, context.ranks(collective.group))?;
    if bytes == 0 || bytes >= MAX_COALESCED_BYTES {
        return None;
    }
    Some(match joining {
        JoinMode::Together => JoinKey::Together { cells: graph.cells(collective.group) },
        JoinMode::Packed => JoinKey::Packed {
            kind: collective.kind.clone(),
            cells: graph.cells(collective.group),
            dtype: graph.ty(*node.inputs.first()?).dtype,
        },
    })
}

/// A collective with the bytes for which its time is estimated.
pub fn sized_collective<'g>(
    graph: &'g Graph,
    context: &LowerContext,
    node: &'g Node,
) -> Option<(&'g Collective, u64)> {
    let collective = node.op.as_collective()?;
    let (&[operand], &[result]) = (&node.inputs[..], &node.outputs[..]) else { return None };
    let sizes = context.collective_sizes(&collective.kind, &[graph.ty(operand)], &[graph.ty(result)]);
    Some((collective, sizes.moved))
}

/// The time of the fastest variant without concurrent computation.
fn fastest(context: &LowerContext, collective: &Collective, bytes: u64) -> Option<f64> {
    let kind = &collective.kind;
    let variants = context.profile.supported_variants(kind).into_iter();
    let times_us = variants.filter_map(|variant| {
        context.estimate_us(
            kind,
            collective.group,
            variant,
            bytes.into(),
            0.0,
            CollectiveConditions::default(),
        )
    });
    times_us.min_by(f64::total_cmp)
}

struct CopyCosts<'a> {
    graph: &'a Graph,
    context: &'a LowerContext,
    layouts: EntityMap<ValueId, Layout>,
    returned: BTreeSet<ValueId>,
    /// Results of collectives that can be one kernel with the following step.
    fused: BTreeSet<ValueId>,
}

impl<'a> CopyCosts<'a> {
    fn new(graph: &'a Graph, context: &'a LowerContext) -> Self {
        let fused =
            symmc_dispatch::fusible_collectives(graph, &context.profile).into_iter().map(|(value, _)| value);
        CopyCosts {
            graph,
            context,
            layouts: compute_layouts(graph),
            returned: graph.outputs.iter().map(|o| o.value).collect(),
            fused: fused.collect(),
        }
    }

    /// The time of the copies of a member's operand and result. `placed` holds the bases that already lie in
    /// a coalesced operand.
    fn needed_us(&self, node: &Node, collective: &Collective, placed: &mut BTreeSet<ValueId>) -> f64 {
        let Some(rows) = MemberRows::for_kind(&collective.kind, self.context.ranks(collective.group)) else {
            return 0.0;
        };
        let (&[operand], &[result]) = (&node.inputs[..], &node.outputs[..]) else { return 0.0 };
        let is_placed = self.can_be_placed_in_operand(operand, rows.operand, placed);
        let operand_us = if is_placed { 0.0 } else { self.kernel_us(operand) };
        let is_copied = self.returned.contains(&result) || !self.is_view(result, rows.result);
        let result_us = if is_copied { self.kernel_us(result) } else { 0.0 };
        // Without fusion, the following step is a kernel of its own.
        let following_us = match &collective.kind {
            _ if !self.fused.contains(&result) => 0.0,
            CollectiveKind::AllGather => self.kernel_us(result),
            _ => self.context.copy_kernel_us(0),
        };
        operand_us + result_us + following_us
    }

    fn kernel_us(&self, value: ValueId) -> f64 {
        self.context.copy_kernel_us(self.context.bytes(self.graph.ty(value)))
    }

    /// Whether an operand can be computed directly in the coalesced operand.
    fn can_be_placed_in_operand(&self, operand: ValueId, rows: i64, placed: &mut BTreeSet<ValueId>) -> bool {
        let graph = self.graph;
        let layout = &self.layouts[operand];
        let ty = graph.ty(operand);
        let is_whole_base = layout.is_contiguous(ty) && ty.numel() == graph.ty(layout.base).numel();
        let computed = graph.defining_node(layout.base).is_some() && !self.returned.contains(&layout.base);
        rows == 1 && is_whole_base && computed && placed.insert(layout.base)
    }

    /// Whether a result is a view of its columns of the coalesced result, which has `rows` rows.
    fn is_view(&self, result: ValueId, rows: i64) -> bool {
        let ty = self.graph.ty(result);
        if rows == 1 {
            return true;
        }
        let Some(columns) = ty.numel().exact_div(&Dim::from(rows)) else { return false };
        let columns_type = TensorType::new(ty.dtype, vec![Dim::from(rows), columns.clone()]);
        // Any row distance that differs from a row's number of elements.
        let strides = vec![columns * Dim::from(2), Dim::from(1)];
        let layout = Layout { base: result, offset: Dim::from(0), strides };
        view_layout(&Op::Reshape, &layout, &columns_type, ty).is_some()
    }
}

/// A set that may still grow.
struct OpenSet {
    kin: usize,
    members: CollectiveSet,
    bytes: u64,
    saved_us: f64,
    alone_us: f64,
    copies_us: f64,
    losses: JointLosses,
    /// The computation before its first member.
    since_us: f64,
    /// The open sets on which it depends.
    needs: u64,
}

struct CoalesceWalk<'a> {
    graph: &'a Graph,
    context: &'a LowerContext,
    config: &'a CoalesceConfig,
    most: usize,
    /// For each visited node, the open sets on which it directly depends;
    /// [`CoalesceWalk::dependency_closure`] adds those on which these depend.
    needs: Vec<u64>,
    /// The open sets, indexed by their bits.
    open: Vec<Option<OpenSet>>,
    done: Vec<CollectiveSet>,
}

impl CoalesceWalk<'_> {
    /// Adds a collective to the open set that gains most by it, or opens a new set. Returns the bit of the
    /// set.
    fn join_set(&mut self, id: NodeId, candidate: &JoinCandidate, now_us: f64) -> usize {
        let before = self.dependency_closure(self.needs[id.index()]);
        let gains = self.open.iter().enumerate().filter_map(|(slot, open)| {
            let open = open.as_ref().filter(|open| open.kin == candidate.kin && before & (1 << slot) == 0)?;
            let saved_us = self.saved_us(id, open, candidate)?;
            let more_us = saved_us - open.saved_us;
            (more_us > MIN_SAVED_US).then_some((slot, saved_us))
        });
        let best = gains.max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)));
        let Some((slot, saved_us)) = best else {
            let slot = self.free_slot();
            let before = self.dependency_closure(self.needs[id.index()]);
            self.open[slot] = Some(OpenSet {
                kin: candidate.kin,
                members: vec![id],
                bytes: candidate.bytes,
                saved_us: 0.0,
                alone_us: candidate.alone_us,
                copies_us: candidate.copies_us,
                losses: candidate.losses,
                since_us: now_us,
                needs: before,
            });
            return slot;
        };
        if let Some(open) = &mut self.open[slot] {
            open.members.push(id);
            open.bytes = open.bytes.saturating_add(candidate.bytes);
            open.alone_us += candidate.alone_us;
            open.copies_us += candidate.copies_us;
            open.losses = joint_costs::sum_losses(open.losses, candidate.losses);
            open.saved_us = saved_us;
        }
        for (other, open) in self.open.iter_mut().enumerate() {
            if let Some(open) = open.as_mut().filter(|open| other == slot || open.needs & (1 << slot) != 0) {
                open.needs |= before;
            }
        }
        slot
    }

    /// The time that a set would save with one more member.
    fn saved_us(&self, id: NodeId, open: &OpenSet, candidate: &JoinCandidate) -> Option<f64> {
        let bytes = open.bytes.checked_add(candidate.bytes).filter(|&bytes| bytes < MAX_COALESCED_BYTES)?;
        if open.members.len() >= self.most {
            return None;
        }
        let collective = self.graph.nodes[id].op.as_collective()?;
        let joined_us = match self.config.joining {
            JoinMode::Packed => {
                fastest(self.context, collective, bytes)? + open.copies_us + candidate.copies_us
            }
            JoinMode::Together => {
                let members = open.members.iter().chain([&id]);
                let sized: Vec<(&Collective, u64)> = members
                    .map(|&id| sized_collective(self.graph, self.context, &self.graph.nodes[id]))
                    .collect::<Option<_>>()?;
                let losses = joint_costs::sum_losses(open.losses, candidate.losses);
                joint_costs::best_joint_variant(
                    self.context,
                    &sized,
                    &losses,
                    CollectiveConditions::default(),
                )?
                .1
            }
        };
        Some(open.alone_us + candidate.alone_us - joined_us)
    }

    /// These open sets, and those on which they depend.
    fn dependency_closure(&self, sets: u64) -> u64 {
        let needed = self.open.iter().enumerate().filter(|(slot, _)| sets & (1 << slot) != 0);
        needed.filter_map(|(_, open)| open.as_ref()).fold(sets, |needs, open| needs | open.needs)
    }

    /// Closes the sets that began too long ago.
    fn close_before(&mut self, now_us: f64) {
        for slot in 0..self.open.len() {
            let since_us = self.open[slot].as_ref().map(|open| open.since_us);
            if since_us.is_some_and(|since_us| now_us - since_us > self.config.reach.window_us) {
                self.close(slot);
            }
        }
    }

    fn free_slot(&mut self) -> usize {
        if let Some(slot) = self.open.iter().position(Option::is_none) {
            return slot;
        }
        if self.open.len() < MAX_OPEN_SETS {
            self.open.push(None);
            return self.open.len() - 1;
        }
        let oldest = (0..self.open.len())
            .min_by_key(|&slot| self.open[slot].as_ref().and_then(|open| open.members.first().copied()))
            .unwrap_or(0);
        self.close(oldest);
        oldest
    }

    /// Closes a set. Nodes that depended on it then depend on the open sets on which it depended.
    fn close(&mut self, slot: usize) {
        let Some(closed) = self.open[slot].take() else { return };
        let bit = 1 << slot;
        self.open.iter_mut().flatten().for_each(|open| open.needs &= !bit);
        for needs in &mut self.needs {
            if *needs & bit != 0 {
                *needs = (*needs & !bit) | closed.needs;
            }
        }
        self.done.push(closed.members);
    }
}
