//! Replication: which ranks hold the same bits of a value.
//!
//! A [`Replication`] is a partition of the ranks: ranks of one part hold the same bits of the value in every
//! run, on every backend. Ranks of different parts may or may not hold the same bits. Constants are the same on
//! all ranks. Arguments and parameters are assumed to differ on each. A collective gives the same bits to ranks
//! that receive the same parts of the same operands ([`Contract::same_bits`](crate::Contract::same_bits)).
//! Every other op gives the same bits to ranks whose operands have the same bits: the GPUs of a run use the
//! kernels that rank 0 chooses, and no kernel depends on the order in which threads finish. There is no such
//! guarantee for kernels of custom ops and opaque ops.
//!
//! Groups are compared by their cells, never by their names. The order in which a cell sums floats may differ
//! between cells, so the bits of such a sum are known to be the same only within a cell.

use std::collections::HashMap;
use std::sync::Arc;

use crate::collective::{CollectiveKind, ResultDistribution};
use crate::entity::EntityMap;
use crate::graph::{Graph, ValueDef};
use crate::ids::{GroupId, ValueId};
use crate::numerics::RoundingEffect;
use crate::op::Op;
use crate::types::DType;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replication {
    /// For each rank the lowest rank of its part.
    first: Arc<[u32]>,
}

impl Replication {
    /// Every rank may hold different bits.
    pub fn none(ranks: u32) -> Self {
        Replication { first: (0..ranks).collect() }
    }

    pub fn is_none(&self) -> bool {
        self.first.iter().enumerate().all(|(rank, &first)| first as usize == rank)
    }

    /// All ranks hold the same bits.
    pub fn full(ranks: u32) -> Self {
        Replication { first: vec![0; ranks as usize].into() }
    }

    /// Ranks with equal keys hold the same bits.
    fn from_keys<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> Self {
        let mut first = HashMap::new();
        Replication {
            first: keys.enumerate().map(|(rank, key)| *first.entry(key).or_insert(rank as u32)).collect(),
        }
    }

    /// The lowest rank that is known to hold the same bits as this rank.
    pub fn representative_rank(&self, rank: u32) -> u32 {
        self.first.get(rank as usize).copied().unwrap_or(rank)
    }

    pub fn are_replicas(&self, a: u32, b: u32) -> bool {
        let first = self.first.get(a as usize);
        first.is_some() && first == self.first.get(b as usize)
    }

    pub fn is_uniform_within_cells(&self, cells: &[Vec<u32>]) -> bool {
        cells.iter().all(|cell| cell.iter().all(|&rank| self.are_replicas(rank, cell[0])))
    }

    /// The replication of a function of two values with these replications.
    #[must_use]
    pub fn intersect(&self, other: &Replication) -> Self {
        if Arc::ptr_eq(&self.first, &other.first) || self == other || other.first.iter().all(|&f| f == 0) {
            return self.clone();
        }
        if self.first.iter().all(|&f| f == 0) {
            return other.clone();
        }
        Replication::from_keys(self.first.iter().zip(other.first.iter()))
    }

    pub fn of_graph(graph: &Graph) -> EntityMap<ValueId, Replication> {
        let mut out: EntityMap<ValueId, Replication> = EntityMap::new();
        for value in graph.values.values() {
            let replication = match value.def {
                ValueDef::Input(input) => Replication::of_input(graph, graph.inputs[input].data.is_some()),
                ValueDef::Node(node, _) => {
                    let node = &graph.nodes[node];
                    Replication::of_node(graph, &out, &node.op, &node.inputs)
                }
            };
            out.push(replication);
        }
        out
    }

    /// The replication of an input: constants are the same on all ranks.
    pub fn of_input(graph: &Graph, has_data: bool) -> Self {
        let ranks = graph.ranks.unwrap_or(0);
        if has_data { Replication::full(ranks) } else { Replication::none(ranks) }
    }

    pub fn of_node(
        graph: &Graph,
        replications: &EntityMap<ValueId, Replication>,
        op: &Op,
        inputs: &[ValueId],
    ) -> Self {
        let ranks = graph.ranks.unwrap_or(0);
        if op.is_opaque() {
            return Replication::none(ranks);
        }
        let operands = inputs.iter().map(|&v| &replications[v]);
        let common = operands.fold(None, |common: Option<Replication>, x| {
            Some(common.map_or_else(|| x.clone(), |common| common.intersect(x)))
        });
        let common = common.unwrap_or_else(|| Replication::full(ranks));
        let Some(group) = op.group() else { return common };
        let Some(cells) = CellMembership::new(graph, group) else { return Replication::none(ranks) };
        match op.as_collective() {
            Some(c) => {
                let dtype = inputs.first().map_or(DType::Bool, |&x| graph.ty(x).dtype);
                cells.collective(&c.kind, dtype, &common)
            }
            None => cells.shard(&common),
        }
    }
}

/// The cells of a group, and for each rank its cell and its position within the cell.
struct CellMembership {
    cells: Vec<Vec<u32>>,
    place: Vec<(usize, usize)>,
}

impl CellMembership {
    fn new(graph: &Graph, group: GroupId) -> Option<CellMembership> {
        let cells = graph.cells(group)?;
        let mut positions = vec![(0, 0); graph.ranks? as usize];
        for (c, cell) in cells.iter().enumerate() {
            for (number, &rank) in cell.iter().enumerate() {
                *positions.get_mut(rank as usize)? = (c, number);
            }
        }
        Some(CellMembership { cells, place: positions })
    }

    fn shard(&self, x: &Replication) -> Replication {
        Replication::from_keys(
            self.place.iter().zip(x.first.iter()).map(|((_, number), first)| (*number, *first)),
        )
    }

    fn collective(&self, kind: &CollectiveKind, dtype: DType, x: &Replication) -> Replication {
        // Cells with equal keys have the same operands, in the same order.
        let mut numbers = HashMap::new();
        let of_cell: Vec<usize> = self
            .cells
            .iter()
            .map(|cell| {
                let next = numbers.len();
                let key: Vec<u32> = cell.iter().map(|&rank| x.first[rank as usize]).collect();
                *numbers.entry(key).or_insert(next)
            })
            .collect();
        let places = self.place.iter().copied();
        // The order of a float sum may differ between cells.
        let rounds = dtype.is_float() && kind.rounding() == RoundingEffect::Accumulates;
        let operands: Vec<usize> = if rounds { (0..self.cells.len()).collect() } else { of_cell };
        let facts = kind.facts();
        if facts.preserves_positions() && !facts.reduces {
            Replication::from_keys(places.map(|(cell, number)| {
                let from = kind.sender_to(number as u32)?;
                self.cells[cell].get(from as usize).map(|&rank| x.first[rank as usize])
            }))
        } else if facts.result_distribution == ResultDistribution::Sharded {
            Replication::from_keys(places.map(|(cell, number)| (operands[cell], number)))
        } else {
            Replication::from_keys(places.map(|(cell, _)| operands[cell]))
        }
    }
}
