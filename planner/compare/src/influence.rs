//! The leaves of a region that influence its result, for each rank.
//!
//! A difference in how two programs use a leaf shows only if some drawn element of the leaf changes a result. A
//! comparison therefore counts only if every leaf of every rank that can influence a result did so. For most
//! leaves this follows from the ops: a change of a summand changes the sum. For leaves of which ops select some
//! elements, such as the operands of a maximum, both programs run again with other elements of that leaf on that
//! rank ([`crate::judge`]).

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::{
    BinaryOp, CollectiveKind, CollectiveReduceOp, DType, EntityMap, Graph, Node, Op, ReductionKind, UnaryOp,
    ValueId,
};

use crate::concrete::{ConcreteRegion, LeafOfRank, extent};
use crate::elements::ElementClass;
use crate::reach::find_reaching_leaves;

/// The largest magnitude of a constant summand to which drawn floats add without a doubt that the sum changes.
const MAX_SHOWN_SUMMAND: f64 = 16.0;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeafInfluence {
    /// The leaves that can influence a result.
    pub possible: BTreeSet<LeafOfRank>,
    /// The leaves that influenced a result.
    pub shown: BTreeSet<LeafOfRank>,
}

impl LeafInfluence {
    pub fn extend(&mut self, other: &LeafInfluence) {
        self.possible.extend(&other.possible);
        self.shown.extend(&other.shown);
    }

    pub fn missing(&self) -> impl Iterator<Item = LeafOfRank> {
        self.possible.difference(&self.shown).copied()
    }
}

/// A set of leaves of ranks, with one bit for each.
#[derive(Clone, Default)]
struct LeafSet {
    words: Vec<u64>,
}

impl LeafSet {
    fn insert(&mut self, index: usize) {
        let word = index / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (index % 64);
    }

    fn extend(&mut self, other: &LeafSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    /// Removes the leaves that are in both sets.
    fn remove_common(&mut self, x: &LeafSet, y: &LeafSet) {
        let common = x.words.iter().zip(&y.words).map(|(x, y)| x & y);
        self.words.iter_mut().zip(common).for_each(|(word, common)| *word &= !common);
    }

    fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn indices(&self) -> impl Iterator<Item = usize> {
        let bits = |(k, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * k + bit)
        };
        self.words.iter().enumerate().flat_map(bits)
    }
}

/// The influence of leaves on one value of one rank.
#[derive(Clone, Default)]
struct ValueInfluence {
    possible: LeafSet,
    /// The leaves that influence the value whatever the other leaves are, apart from chance.
    certain: LeafSet,
    /// Whether the value is put together from several values, so that a part of it may not depend on all of
    /// `certain`.
    is_joined: bool,
}

impl ValueInfluence {
    fn join<'i>(operands: impl Iterator<Item = (&'i ValueInfluence, bool)>) -> ValueInfluence {
        let mut out = ValueInfluence::default();
        for (operand, passes) in operands {
            out.possible.extend(&operand.possible);
            if passes {
                out.certain.extend(&operand.certain);
            }
            out.is_joined |= operand.is_joined;
        }
        out
    }
}

/// The leaves that can influence the results of a pair of regions, and those that do by the ops of the source alone
/// (in `shown`). A leaf that only the planned program uses can influence its result, too.
pub fn derive_influence([source, planned]: [&ConcreteRegion; 2]) -> LeafInfluence {
    let mut out = follow_influence(source);
    out.possible.extend(follow_influence(planned).possible);
    out
}

/// Leaves out the leaves with no element that can reach a result of either region.
pub fn restrict_to_reaching(influence: &mut LeafInfluence, pair: [&ConcreteRegion; 2]) {
    if let [Some(in_source), Some(in_planned)] = pair.map(find_reaching_leaves) {
        influence.possible.retain(|leaf| in_source.contains(leaf) || in_planned.contains(leaf));
    }
}

fn follow_influence(concrete: &ConcreteRegion) -> LeafInfluence {
    let graph = &concrete.graph;
    let ranks = graph.ranks.unwrap_or(1);
    let mut values: EntityMap<ValueId, Vec<ValueInfluence>> =
        EntityMap::filled(vec![ValueInfluence::default(); ranks as usize], graph.values.len());
    for (input, leaf) in graph.inputs.values().zip(&concrete.leaves) {
        let is_drawn = leaf.data.is_none() && count(graph, input.value, 0) > 0;
        for rank in (0..ranks).filter(|_| is_drawn) {
            let index = leaf.number * ranks as usize + leaf.representative_rank(rank) as usize;
            let influence = &mut values[input.value][rank as usize];
            influence.possible.insert(index);
            influence.certain.insert(index);
        }
    }
    for node in graph.nodes.values() {
        let of_ranks = match &node.op {
            Op::Collective(c) => exchange_influence(graph, node, &c.kind, &values),
            Op::Route(_) => join_ranks(node, &values, ranks),
            _ => (0..ranks as usize)
                .map(|rank| {
                    let operands: Vec<&ValueInfluence> =
                        node.inputs.iter().map(|&v| &values[v][rank]).collect();
                    let passing =
                        operands.iter().enumerate().map(|(k, x)| (*x, passes(graph, node, k, &operands)));
                    let mut out = ValueInfluence::join(passing);
                    if let (Op::Binary(_), [x, y]) = (&node.op, &operands[..]) {
                        // The two operands may cancel a leaf, as in x - x.
                        out.certain.remove_common(&x.possible, &y.possible);
                    }
                    out.is_joined |= matches!(node.op, Op::Concat { .. } | Op::Pad { .. });
                    out
                })
                .collect(),
        };
        for &v in &node.outputs {
            values[v] = of_ranks.clone();
        }
    }
    let roots = graph.outputs.iter().flat_map(|output| &values[output.value]);
    let root = ValueInfluence::join(roots.map(|influence| (influence, true)));
    let of_index = |index: usize| (index / ranks as usize, (index % ranks as usize) as u32);
    LeafInfluence {
        possible: root.possible.indices().map(of_index).collect(),
        shown: root.certain.indices().map(of_index).collect(),
    }
}

/// The influence on the results of a collective.
fn exchange_influence(
    graph: &Graph,
    node: &Node,
    kind: &CollectiveKind,
    values: &EntityMap<ValueId, Vec<ValueInfluence>>,
) -> Vec<ValueInfluence> {
    let ranks = graph.ranks.unwrap_or(1);
    let mut out = vec![ValueInfluence::default(); ranks as usize];
    let has_one_sender = kind.facts().preserves_positions() && !kind.facts().reduces;
    let cells = node.op.group().and_then(|group| graph.cells(group)).unwrap_or_default();
    for cell in cells {
        for (position, &rank) in cell.iter().enumerate() {
            let senders: Vec<u32> = if has_one_sender {
                let sender = kind.sender_to(position as u32).and_then(|from| cell.get(from as usize));
                sender.copied().into_iter().collect()
            } else {
                cell.clone()
            };
            let passes = match kind.reduce_op() {
                Some(op) => matches!(op, CollectiveReduceOp::Sum | CollectiveReduceOp::Avg),
                None => node.inputs.len() == 1,
            };
            let operands = senders.iter().flat_map(|&sender| node.inputs.iter().map(move |&v| (v, sender)));
            let influences = operands.map(|(v, sender)| (&values[v][sender as usize], passes));
            let mut joined = ValueInfluence::join(influences);
            joined.is_joined |= matches!(kind, CollectiveKind::AllGather | CollectiveKind::AllToAll(_));
            if let Some(of_rank) = out.get_mut(rank as usize) {
                *of_rank = joined;
            }
        }
    }
    out
}

/// The influence on the results of an op whose results may depend on the operands of all ranks.
fn join_ranks(
    node: &Node,
    values: &EntityMap<ValueId, Vec<ValueInfluence>>,
    ranks: u32,
) -> Vec<ValueInfluence> {
    let influences = node.inputs.iter().flat_map(|&v| &values[v]).map(|influence| (influence, false));
    vec![ValueInfluence::join(influences); ranks as usize]
}

/// Whether a change of all elements of an operand changes a result, apart from chance.
fn passes(graph: &Graph, node: &Node, operand: usize, operands: &[&ValueInfluence]) -> bool {
    let x = node.inputs[operand];
    let dtype = graph.ty(x).dtype;
    let result = graph.ty(node.outputs[0]).dtype;
    let others_vary = || (0..operands.len()).all(|k| k == operand || !operands[k].certain.is_empty());
    match &node.op {
        Op::Unary(op) => {
            use UnaryOp::*;
            match op {
                Neg | Not => true,
                Exp | Sin | Cos | Tanh | Erf | Sigmoid | Silu | Gelu | GeluTanh | Reciprocal => true,
                Abs | Sign | Log | Sqrt | Rsqrt | Floor | Ceil | Round | Trunc | Relu | IsNan | IsFinite => {
                    false
                }
            }
        }
        Op::Binary(BinaryOp::Add | BinaryOp::Sub) => !dtype.is_float() || others_vary(),
        Op::Binary(BinaryOp::Mul | BinaryOp::Div) => dtype.is_float() && others_vary(),
        Op::BinaryScalar { op: BinaryOp::Add | BinaryOp::Sub, scalar, .. } => {
            !dtype.is_float() || scalar.as_f64().abs() <= MAX_SHOWN_SUMMAND
        }
        Op::BinaryScalar { op: BinaryOp::Mul | BinaryOp::Div, scalar, .. } => {
            let scalar = scalar.as_f64();
            dtype.is_float() && scalar != 0.0 && scalar.is_finite()
        }
        Op::Cast => dtype == DType::Bool || result != DType::Bool && dtype.is_float() == result.is_float(),
        Op::Copy | Op::Reshape | Op::Permute { .. } | Op::Expand | Op::Concat { .. } | Op::Pad { .. } => true,
        Op::Slice { .. } | Op::Shard { .. } => {
            !operands[operand].is_joined && count(graph, node.outputs[0], 0) > 0
        }
        Op::MatMul { .. } => dtype.is_float() && others_vary(),
        Op::Reduce { op: ReductionKind::Sum | ReductionKind::Mean, .. } | Op::CumSum { .. } => true,
        Op::Softmax { axis, .. } => extent(graph, x, *axis) > 1,
        Op::RmsNorm { axes, .. } | Op::LayerNorm { axes, .. } => {
            operand > 0 || count(graph, x, graph.ty(x).rank().saturating_sub(*axes)) > 2
        }
        Op::RotaryEmbedding { .. } => others_vary(),
        _ => false,
    }
}

/// The number of positions along the axes from `first` on.
fn count(graph: &Graph, value: ValueId, first: usize) -> i64 {
    (first..graph.ty(value).rank()).map(|axis| extent(graph, value, axis)).product()
}

/// The class of each leaf, by its number.
pub fn leaf_classes(pair: [&ConcreteRegion; 2]) -> BTreeMap<usize, ElementClass> {
    pair.into_iter().flat_map(|side| &side.leaves).map(|leaf| (leaf.number, leaf.class)).collect()
}

/// The number of comparisons that show the influence of leaves, if each leaf shows in the first draw.
pub fn count_influence_runs(pair: [&ConcreteRegion; 2], known: &BTreeSet<LeafOfRank>) -> u64 {
    derive_influence(pair).missing().filter(|leaf| !known.contains(leaf)).count() as u64
}
