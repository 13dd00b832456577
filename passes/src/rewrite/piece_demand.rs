//! Pieces: which values are read only by the piece that a `shard` takes, and how ops compute pieces.
//!
//! The analysis goes from the outputs backwards. A `shard` demands its piece of its operand. An op that is independent
//! along the axis of a piece demands the same piece of its operands ([`Op::axes`](symmc_ir::Op::axes)). All other
//! nodes demand their operands whole, and so do two different pieces of one value.

use symmc_ir::{
    Dim, EntityMap, Graph, GroupId, Node, Op, OpCost, OperandAxis, RejectedData, ResultAxis, ValueId,
};

/// The part of a value that a `shard` takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    pub axis: usize,
    pub group: GroupId,
}

impl Piece {
    /// The same positions along another axis.
    pub fn along(self, axis: usize) -> Piece {
        Piece { axis, ..self }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PieceDemand {
    Nothing,
    Piece(Piece),
    Whole,
}

/// For each value the piece that all its readers need, if they need nothing else.
pub fn demanded_pieces(graph: &Graph) -> EntityMap<ValueId, Option<Piece>> {
    let mut demands = EntityMap::filled(PieceDemand::Nothing, graph.values.len());
    if !graph.nodes.values().any(|node| matches!(node.op, Op::Shard { .. })) {
        return EntityMap::filled(None, graph.values.len());
    }
    graph.outputs.iter().for_each(|output| demands[output.value] = PieceDemand::Whole);
    for node in graph.nodes.values().rev() {
        let needed = operand_demands(graph, node, &demands);
        for (&v, need) in node.inputs.iter().zip(needed) {
            demands[v] = match demands[v] {
                PieceDemand::Nothing => need,
                known if known == need => known,
                _ => PieceDemand::Whole,
            };
        }
    }
    let mut pieces = EntityMap::new();
    for demand in demands.values() {
        pieces.push(match demand {
            PieceDemand::Piece(piece) => Some(*piece),
            PieceDemand::Nothing | PieceDemand::Whole => None,
        });
    }
    pieces
}

fn operand_demands(
    graph: &Graph,
    node: &Node,
    demands: &EntityMap<ValueId, PieceDemand>,
) -> Vec<PieceDemand> {
    let mut out = vec![PieceDemand::Whole; node.inputs.len()];
    if let Op::Shard { axis, group } = node.op {
        return vec![PieceDemand::Piece(Piece { axis, group })];
    }
    if let [result] = node.outputs[..]
        && let PieceDemand::Piece(piece) = demands[result]
        && let Some(divided) = divided_operands(graph, node, piece)
    {
        divided.into_iter().for_each(|(i, axis)| out[i] = PieceDemand::Piece(piece.along(axis)));
    }
    out
}

/// The operands of a node with one result that must be sharded to compute a piece of the result, each with its axis.
/// `None` if the op does not compute pieces by itself.
pub fn divided_operands(graph: &Graph, node: &Node, piece: Piece) -> Option<Vec<(usize, usize)>> {
    let [result] = node.outputs[..] else { return None };
    let (op, dtype) = (&node.op, graph.ty(result).dtype);
    // Ops that report bad data are not computed in part, so that a run still fails.
    if op.divides_integers(dtype) || op.facts().rejected_data == RejectedData::Positions {
        return None;
    }
    match op {
        Op::Shard { .. } => return None,
        // Ranks that communicate must have the same piece.
        Op::Collective(c) if !graph.has_equal_rank_within(piece.group, c.group) => return None,
        _ => {}
    }
    let axes = graph.node_axes(node);
    if *op == Op::Reshape {
        let pieces = Dim::from(i64::from(graph.group_size(piece.group)?));
        let is_divided = |&axis: &usize| match axes.operands[0][axis] {
            OperandAxis::Aligned(result_axis) | OperandAxis::Outer(result_axis) => {
                result_axis == piece.axis && graph.ty(node.inputs[0]).shape[axis].exact_div(&pieces).is_some()
            }
            OperandAxis::Broadcast | OperandAxis::Whole => false,
        };
        let axis = (0..axes.operands[0].len()).find(is_divided)?;
        return Some(vec![(0, axis)]);
    }
    if axes.results[piece.axis] != ResultAxis::Independent {
        return None;
    }
    let operands = (0..node.inputs.len()).filter_map(|i| Some((i, axes.operand_axis(i, piece.axis)?)));
    let operands: Vec<(usize, usize)> = operands.collect();
    // Products keep all of their columns, so that matrices are read whole.
    let is_product = !matches!(op.facts().cost, OpCost::Bytes | OpCost::Sort);
    let divides_columns = operands.iter().any(|&(i, axis)| axis + 1 == graph.ty(node.inputs[i]).rank());
    (!(is_product && divides_columns)).then_some(operands)
}
