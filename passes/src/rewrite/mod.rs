//! The driver of the rewriting passes: it rebuilds a graph node by node and lets rules replace each node as
//! it is added.
//!
//! A pass is a table of [`RewriteRule`]s. Nodes are visited in program order. A node whose operands are
//! already rewritten is offered to the rules in the order of the table. The first rule that fires replaces
//! it, either by an existing value or by another node, which is offered again. A rule may add nodes that its
//! replacement needs ([`Rewriter::emit`]); they pass through the same rules. A node to which no rule applies
//! any more is interned: an op with equal operands and equal result types exists once. Nodes that no output
//! needs are dropped at the end ([`compact`]).
//!
//! Rules see the graph under construction, whose nodes are all fully rewritten. A rule must give an equal
//! value of the same type and must not undo another rule. A bound on the number of steps for one node keeps
//! a defect from running forever.
//!
//! For each value the rewriter also knows its elements as a function of positions ([`PositionFacts`]), and
//! which ranks hold the same bits of it ([`Replication`]).

mod compact;
mod piece_demand;
mod replaced_collectives;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use indexmap::IndexMap;
use symmc_ir::positions::{ElementForm, PositionCache, PositionFacts, stored_series_form};
use symmc_ir::{
    BoundsChecks, Dim, EntityMap, Graph, GraphOutput, GroupDef, GroupId, GroupMembers, NodeId, Op,
    Replication, Scalar, SymbolTable, TensorType, ValueId,
};

pub use compact::compact;
pub use piece_demand::{Piece, divided_operands};
use replaced_collectives::find_collective;
pub use replaced_collectives::{CollectiveChange, ReplacedCollective, collective_changes};
pub use symmc_ir::copying::{UniqueNames, ValueMap, copy_inputs, copy_node, copy_outputs};

pub struct RewriteRule {
    pub name: &'static str,
    /// The equation, for readers.
    pub equation: &'static str,
    pub apply: fn(&mut Rewriter, &CandidateNode) -> Option<Rewrite>,
}

/// A node with one result that is about to be added.
#[derive(Clone, Debug)]
pub struct CandidateNode {
    pub op: Op,
    /// Its operands, values of the graph under construction.
    pub inputs: Vec<ValueId>,
    pub ty: TensorType,
}

#[derive(Clone, Debug)]
pub enum Rewrite {
    Value(ValueId),
    Node(Op, Vec<ValueId>),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RewriteReport {
    /// How often each rule fired, in order of first use.
    pub fired: IndexMap<&'static str, usize>,
    pub nodes_before: usize,
    pub nodes_after: usize,
    /// Whether a rule asked about a value that several nodes or outputs of the source need, of which fewer may need
    /// it in the result, or a node that a rule added was nested too deeply to be rewritten. Rewriting again may then
    /// change more.
    pub met_shared: bool,
    /// The collectives that rules replaced, in order. Some of them may still be in the graph.
    pub replaced: Vec<ReplacedCollective>,
}

/// The most rewrites of one node, after which it is added unchanged.
const MAX_STEPS: usize = 64;
/// The deepest nesting of nodes that rules add for replacements.
const MAX_DEPTH: usize = 128;

pub struct Rewriter<'r> {
    graph: Graph,
    replication: EntityMap<ValueId, Replication>,
    positions: PositionCache,
    /// Whether the bounds checks of the source cover the node that is being rewritten.
    covers_node: bool,
    /// Values that several nodes or outputs of the source need.
    shared: HashSet<ValueId>,
    /// The pieces that shards gave. Without these, a shard would be moved once for each path to its operand.
    given_pieces: HashMap<(ValueId, Piece), ValueId>,
    /// For values of the source, the piece that all its readers need, if they need nothing else.
    demanded_pieces: HashMap<ValueId, Option<Piece>>,
    met_shared: Cell<bool>,
    /// Whether a node was added unchanged because it was nested too deeply.
    met_depth: bool,
    interned: HashMap<u64, Vec<NodeId>>,
    rules: &'r [&'r [RewriteRule]],
    fired: IndexMap<&'static str, usize>,
    /// The first rule that fired for the node that is being rewritten.
    first_rule: Option<&'r RewriteRule>,
    replaced: Vec<ReplacedCollective>,
    name: String,
    depth: usize,
}

/// Rewrites a graph by tables of rules. If the graph is the source of a plan, `checks` are its bounds
/// checks, which the plan's runs evaluate; otherwise they are empty.
pub fn rewrite(graph: &Graph, rules: &[&[RewriteRule]], checks: &BoundsChecks) -> (Graph, RewriteReport) {
    let mut rewriter = Rewriter::new(graph, rules);
    let shared = shared_values(graph);
    let pieces = piece_demand::demanded_pieces(graph);
    let mut map: EntityMap<ValueId, Option<ValueId>> = EntityMap::filled(None, graph.values.len());
    for (old, new) in graph.inputs.values().zip(rewriter.graph.inputs.values()) {
        map[old.value] = Some(new.value);
    }
    for (id, node) in graph.nodes.iter() {
        rewriter.covers_node = checks.covers(id);
        let inputs: Vec<ValueId> = node.inputs.iter().filter_map(|&v| map[v]).collect();
        if let [result] = node.outputs[..] {
            let value = &graph.values[result];
            rewriter.name.clone_from(&value.name);
            rewriter.first_rule = None;
            let communicates = node.op.as_collective().is_some();
            let new = rewriter.add_rewritten(CandidateNode {
                op: node.op.clone(),
                inputs: inputs.clone(),
                ty: value.ty.clone(),
            });
            rewriter.record_replaced_collectives(communicates, &inputs, new);
            if shared[result] {
                rewriter.shared.insert(new);
            }
            let known = *rewriter.demanded_pieces.entry(new).or_insert(pieces[result]);
            if known != pieces[result] {
                rewriter.demanded_pieces.insert(new, None);
            }
            map[result] = Some(new);
        } else {
            let results = node.outputs.iter().map(|&v| graph.values[v].clone());
            let results: Vec<(String, TensorType)> = results.map(|v| (v.name, v.ty)).collect();
            let (op, inputs) = rewriter.rewrite_multi_result(node.op.clone(), inputs, &results);
            let new = rewriter.intern(op, inputs, results);
            for (&old, &new) in node.outputs.iter().zip(&rewriter.graph.nodes[new].outputs) {
                map[old] = Some(new);
            }
        }
    }
    let outputs =
        graph.outputs.iter().filter_map(|o| Some(GraphOutput { value: map[o.value]?, kind: o.kind }));
    rewriter.graph.outputs = outputs.collect();
    let out = compact(&rewriter.graph);
    let report = RewriteReport {
        fired: rewriter.fired,
        nodes_before: graph.nodes.len(),
        nodes_after: out.nodes.len(),
        met_shared: rewriter.met_shared.get() || rewriter.met_depth,
        replaced: rewriter.replaced,
    };
    (out, report)
}

fn shared_values(graph: &Graph) -> EntityMap<ValueId, bool> {
    let mut returned = EntityMap::filled(0, graph.values.len());
    graph.outputs.iter().for_each(|o| returned[o.value] += 1);
    let mut shared = EntityMap::new();
    for (value, users) in graph.users().iter() {
        let differ = users.first().is_some_and(|&first| {
            let first_node = &graph.nodes[first];
            users.iter().map(|&n| &graph.nodes[n]).any(|node| {
                let mut results = node.outputs.iter().zip(&first_node.outputs);
                (&node.op, &node.inputs) != (&first_node.op, &first_node.inputs)
                    || results.any(|(&v, &first)| graph.ty(v) != graph.ty(first))
            })
        });
        shared.push(differ || returned[value] + usize::from(!users.is_empty()) > 1);
    }
    shared
}

impl<'r> Rewriter<'r> {
    fn new(graph: &Graph, rules: &'r [&'r [RewriteRule]]) -> Self {
        let mut out = graph.without_nodes();
        let mut positions = PositionCache::default();
        let mut replication = EntityMap::new();
        for input in graph.inputs.values() {
            let value = &graph.values[input.value];
            let ty = value.ty.clone();
            positions.add(input.data.as_ref().and_then(|data| stored_series_form(data)));
            replication.push(Replication::of_input(graph, input.data.is_some()));
            out.add_input(input.kind, value.name.clone(), input.source.clone(), ty, input.data.clone());
        }
        Rewriter {
            graph: out,
            replication,
            positions,
            covers_node: false,
            shared: HashSet::new(),
            given_pieces: HashMap::new(),
            demanded_pieces: HashMap::new(),
            met_shared: Cell::new(false),
            met_depth: false,
            interned: HashMap::new(),
            rules,
            fired: IndexMap::new(),
            first_rule: None,
            replaced: Vec::new(),
            name: String::new(),
            depth: 0,
        }
    }

    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    pub fn shape(&self, value: ValueId) -> &[Dim] {
        &self.graph.ty(value).shape
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn symbols(&self) -> &SymbolTable {
        &self.graph.symbols
    }

    /// The op and the operands of the node that gives this value as its only result.
    pub fn def(&self, value: ValueId) -> Option<(&Op, &[ValueId])> {
        self.graph.definition(value)
    }

    /// The elements of a value, if they are known for all data.
    pub fn known_elements(&self, value: ValueId) -> Option<&ElementForm> {
        self.facts().exact(value)
    }

    /// The scalar that all elements of a value equal, if one is known.
    pub fn known_full(&self, value: ValueId) -> Option<Scalar> {
        self.facts().full(value)
    }

    pub fn replication(&self, value: ValueId) -> &Replication {
        &self.replication[value]
    }

    /// The group with these cells, each with its ranks in this order. If there is none, it is added under
    /// `name`; `None` if another group has that name.
    pub fn find_or_add_group(&mut self, cells: Vec<Vec<u32>>, name: &str) -> Option<GroupId> {
        let existing = self.graph.group_with_cells(&cells);
        let is_taken = self.graph.groups.values().any(|g| g.name == name);
        if existing.is_some() || is_taken {
            return existing;
        }
        Some(self.graph.groups.push(GroupDef { name: name.to_string(), members: GroupMembers::Cells(cells) }))
    }

    /// The result of a node with these operands and one result of this type, if there is one.
    pub fn existing(&self, op: &Op, inputs: &[ValueId], ty: &TensorType) -> Option<ValueId> {
        let candidates = self.interned.get(&Self::hash(op, inputs, std::iter::once(ty)))?;
        let results =
            candidates.iter().map(|&n| &self.graph.nodes[n]).filter(|n| n.op == *op && n.inputs == inputs);
        results.filter_map(|n| n.outputs.first().copied()).find(|&v| self.ty(v) == ty)
    }

    fn hash<'t>(op: &Op, inputs: &[ValueId], types: impl Iterator<Item = &'t TensorType>) -> u64 {
        let mut hasher = DefaultHasher::new();
        (op, inputs).hash(&mut hasher);
        types.for_each(|ty| ty.hash(&mut hasher));
        hasher.finish()
    }

    /// Facts about values as functions of positions.
    pub fn facts(&self) -> PositionFacts<'_> {
        self.positions.facts(&self.graph)
    }

    /// Whether every run checks that the indices of the node that is being rewritten lie within their axes.
    /// A node that a rule adds has no such check.
    pub fn indices_are_checked(&self) -> bool {
        self.depth == 1 && self.covers_node
    }

    /// Whether several nodes or outputs of the source need this value. It is then computed even if one of
    /// them changes.
    pub fn is_shared(&self, value: ValueId) -> bool {
        let is_shared = self.shared.contains(&value);
        self.met_shared.set(self.met_shared.get() || is_shared);
        is_shared
    }

    /// The piece of a value that the source needs, if it needs nothing else of it.
    pub fn demanded_piece(&self, value: ValueId) -> Option<Piece> {
        self.demanded_pieces.get(&value).copied().flatten()
    }

    /// Adds a node that a replacement needs; `part` becomes a part of its name.
    pub fn emit(&mut self, part: &str, op: Op, inputs: &[ValueId], ty: TensorType) -> ValueId {
        let name = format!("{}.{part}", self.name);
        let outer = std::mem::replace(&mut self.name, name);
        let value = self.add_rewritten(CandidateNode { op, inputs: inputs.to_vec(), ty });
        self.name = outer;
        value
    }

    /// `value` under another shape with the same number of elements.
    pub fn reshape(&mut self, value: ValueId, shape: Vec<Dim>) -> ValueId {
        let ty = TensorType::new(self.ty(value).dtype, shape);
        if ty == *self.ty(value) { value } else { self.emit("view", Op::Reshape, &[value], ty) }
    }

    pub fn expand(&mut self, value: ValueId, shape: Vec<Dim>) -> ValueId {
        let ty = TensorType::new(self.ty(value).dtype, shape);
        if ty == *self.ty(value) { value } else { self.emit("expand", Op::Expand, &[value], ty) }
    }

    fn add_rewritten(&mut self, mut node: CandidateNode) -> ValueId {
        let piece = match (&node.op, &node.inputs[..]) {
            (&Op::Shard { axis, group }, &[x]) => Some((x, Piece { axis, group })),
            _ => None,
        };
        if let Some(&given) = piece.as_ref().and_then(|piece| self.given_pieces.get(piece)) {
            return given;
        }
        self.depth += 1;
        let is_too_deep = self.depth > MAX_DEPTH;
        self.met_depth |= is_too_deep;
        let steps = if is_too_deep { 0 } else { MAX_STEPS };
        let mut done = None;
        for _ in 0..steps {
            match self.apply_first_rule(&node) {
                Some(Rewrite::Value(value)) => {
                    done = Some(value);
                    break;
                }
                Some(Rewrite::Node(op, inputs)) => node = CandidateNode { op, inputs, ty: node.ty },
                None => break,
            }
        }
        self.depth -= 1;
        let value = done.unwrap_or_else(|| {
            let name = self.name.clone();
            let id = self.intern(node.op, node.inputs, vec![(name, node.ty.clone())]);
            self.graph.nodes[id].outputs[0]
        });
        if self.depth == 0 && self.covers_node {
            self.positions.mark_checked_indices(value);
        }
        debug_assert_eq!(*self.ty(value), node.ty, "a rule changed the type of %{}", self.name);
        if let Some(piece) = piece {
            self.given_pieces.insert(piece, value);
        }
        value
    }

    /// Rewrites the op and the operands of a node with several results. Only attention and its gradient are
    /// offered to rules: as a node with their first result, and the gradient as its forward attention.
    fn rewrite_multi_result(
        &mut self,
        mut op: Op,
        mut inputs: Vec<ValueId>,
        results: &[(String, TensorType)],
    ) -> (Op, Vec<ValueId>) {
        let Some((name, ty)) = results.first() else { return (op, inputs) };
        self.name.clone_from(name);
        self.depth += 1;
        for _ in 0..MAX_STEPS {
            let Some((offered, skipped)) =
                Self::candidate_of_first_result(&op, &inputs, ty, |v| self.ty(v).clone())
            else {
                break;
            };
            let Some((name, next, operands)) = self.first_multi_result_rewrite(&offered, skipped > 0) else {
                break;
            };
            *self.fired.entry(name).or_default() += 1;
            inputs.truncate(skipped);
            inputs.extend(operands);
            op = match (op, next) {
                (Op::AttentionGradient { .. }, Op::Attention { scale, bounds, .. }) => {
                    Op::AttentionGradient { scale, bounds }
                }
                (_, next) => next,
            };
        }
        self.depth -= 1;
        (op, inputs)
    }

    /// The node that is offered to rules for a node with several results, and the number of leading operands
    /// that it does not have.
    fn candidate_of_first_result(
        op: &Op,
        inputs: &[ValueId],
        ty: &TensorType,
        type_of: impl Fn(ValueId) -> TensorType,
    ) -> Option<(CandidateNode, usize)> {
        match op {
            Op::Attention { .. } => {
                Some((CandidateNode { op: op.clone(), inputs: inputs.to_vec(), ty: ty.clone() }, 0))
            }
            Op::AttentionGradient { scale, bounds } => {
                let op = Op::Attention {
                    scale: *scale,
                    cap: None,
                    bounds: bounds.clone(),
                    sink: false,
                    log_sum_exp: true,
                };
                let (&[_, result, _], forward) = inputs.split_first_chunk::<3>()?;
                Some((CandidateNode { op, inputs: forward.to_vec(), ty: type_of(result) }, 3))
            }
            _ => None,
        }
    }

    /// The first replacement by an attention with several results. With `same_operands`, it must also keep
    /// the queries, keys and values.
    fn first_multi_result_rewrite(
        &mut self,
        node: &CandidateNode,
        same_operands: bool,
    ) -> Option<(&'static str, Op, Vec<ValueId>)> {
        for rule in self.rules.iter().copied().flatten() {
            if let Some(Rewrite::Node(op, inputs)) = (rule.apply)(self, node)
                && matches!(op, Op::Attention { log_sum_exp: true, .. })
                && (!same_operands || inputs.get(..3) == node.inputs.get(..3))
            {
                return Some((rule.name, op, inputs));
            }
        }
        None
    }

    fn apply_first_rule(&mut self, node: &CandidateNode) -> Option<Rewrite> {
        for rule in self.rules.iter().copied().flatten() {
            if let Some(rewrite) = (rule.apply)(self, node) {
                *self.fired.entry(rule.name).or_default() += 1;
                if self.depth == 1 {
                    self.first_rule.get_or_insert(rule);
                }
                return Some(rewrite);
            }
        }
        None
    }

    /// Records the collectives that a node was or reads as replaced, now that `new` replaces the node.
    fn record_replaced_collectives(&mut self, communicates: bool, inputs: &[ValueId], new: ValueId) {
        let by = find_collective(&self.graph, new).map(|v| self.graph.value_name(v).to_string());
        let replaced = communicates.then(|| self.name.clone()).filter(|name| by.as_ref() != Some(name));
        let (rule, what) = match self.first_rule {
            Some(rule) => (rule.name, rule.equation.to_string()),
            None if communicates => {
                ("equal_nodes", "equal collectives of equal operands run once".to_string())
            }
            None => return,
        };
        // A replacement of a node that reads collectives may itself be a collective in their place.
        let read = inputs.iter().filter_map(|&v| find_collective(&self.graph, v)).filter(|_| by.is_some());
        let read =
            read.map(|v| self.graph.value_name(v).to_string()).filter(|name| by.as_ref() != Some(name));
        let read: Vec<String> = read.filter(|_| self.first_rule.is_some()).collect();
        for collective in replaced.into_iter().chain(read) {
            self.replaced.push(ReplacedCollective {
                collective,
                rule,
                what: what.clone(),
                by: by.iter().cloned().collect(),
            });
        }
    }

    /// The node of this op on these operands, added if there is none yet.
    fn intern(&mut self, op: Op, inputs: Vec<ValueId>, results: Vec<(String, TensorType)>) -> NodeId {
        let hash = Self::hash(&op, &inputs, results.iter().map(|r| &r.1));
        // An op that may not be a function of its operands alone is never merged.
        let mergeable = !op.is_opaque();
        if mergeable && let Some(candidates) = self.interned.get(&hash) {
            for &n in candidates {
                let node = &self.graph.nodes[n];
                let types = node.outputs.iter().map(|&v| self.graph.ty(v));
                if node.op == op && node.inputs == inputs && types.eq(results.iter().map(|r| &r.1)) {
                    return n;
                }
            }
        }
        let form = match &results[..] {
            [(_, ty)] => self.facts().exact_of_node(&op, &inputs, ty),
            _ => None,
        };
        let replication = Replication::of_node(&self.graph, &self.replication, &op, &inputs);
        let n = self.graph.add_node(op, inputs, results);
        let count = self.graph.nodes[n].outputs.len();
        (0..count).for_each(|i| {
            self.positions.add(if i == 0 { form.clone() } else { None });
            self.replication.push(replication.clone());
        });
        self.interned.entry(hash).or_default().push(n);
        n
    }
}

/// Whether an op may have effects other than its results.
pub fn keeps_effects(op: &Op) -> bool {
    op.is_opaque()
}

/// Whether an op is a collective of one operand that only moves elements.
pub fn moves_elements(op: &Op) -> bool {
    op.as_collective().is_some_and(|c| !c.kind.facts().reduces && !c.kind.moves_by_data())
}
