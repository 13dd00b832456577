//! Collectives and the ranks of groups.
//!
//! A collective reads elements at other coordinates of ranks. A reduction over ranks is a term with a lambda over the
//! ranks of a cell. Sums over few ranks may instead be sums of the elements of each rank, as after an exchange.

use symmc_ir::entity::Entity;
use symmc_ir::{
    AllToAllSplits, BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, DType, Dim, FloatAttribute,
    GroupId, GroupMembers, Op, Scalar,
};

use super::evaluate::{Evaluated, NodeRef, Place, ProofTables, RegionEvaluator, Stop, ValueRef};
use super::index::{AxisCut, Index};
use super::ranks::Cells;
use super::term::{OpShape, Term, TermId};
use crate::number::{scalar_bits, scalar_operand};

/// The most ranks over which a sum may be a sum of the elements of each rank.
const MAX_SUMMED_RANKS: usize = 8;

impl RegionEvaluator<'_, '_> {
    pub fn cells(&self, group: GroupId) -> Evaluated<Cells> {
        let graph = self.program.graph;
        match graph.groups.get(group).map(|group| &group.members) {
            Some(GroupMembers::Cells(cells)) => Ok(cells.clone()),
            Some(_) => Ok(vec![(0..graph.ranks.unwrap_or(1)).collect()]),
            None => Err(Stop::Unknown("a group is missing")),
        }
    }

    /// The number of the rank of a place within its cell.
    pub fn number_in_cell(&self, tables: &ProofTables<'_>, cells: &Cells, place: &Place) -> Evaluated<Index> {
        if have_one_rank(cells) {
            return Ok(Index::constant(Dim::from(0)));
        }
        if let Some(axes) = tables.mesh.axes_of(cells) {
            let mut number = Index::constant(Dim::from(0));
            for axis in axes {
                number = number.times(&tables.mesh.extent_dims()[axis]).plus(&place.ranks[axis]);
            }
            return Ok(number);
        }
        let (_, number) = self.constant_rank_in_cell(tables, cells, place)?;
        Ok(Index::constant(Dim::from(number)))
    }

    /// The cell of the rank of a place, and the number of the rank in it. The coordinates of the rank become
    /// numbers.
    fn constant_rank_in_cell<'c>(
        &self,
        tables: &ProofTables<'_>,
        cells: &'c Cells,
        place: &Place,
    ) -> Evaluated<(&'c [u32], i64)> {
        let coordinates = place.ranks.iter().map(|index| constant_of(tables, index));
        let coordinates = coordinates.collect::<Evaluated<Vec<i64>>>()?;
        let rank = tables.mesh.rank_of(&coordinates);
        let found = cells.iter().find_map(|cell| {
            let number = cell.iter().position(|r| Some(*r) == rank)?;
            Some((&cell[..], number as i64))
        });
        found.ok_or(Stop::Unknown("a rank is in no cell"))
    }

    /// The coordinates of the rank with a number in the cell of the rank of a place.
    fn rank_in_cell(
        &self,
        tables: &mut ProofTables<'_>,
        cells: &Cells,
        place: &Place,
        number: &Index,
    ) -> Evaluated<Vec<Index>> {
        if have_one_rank(cells) {
            return Ok(place.ranks.clone());
        }
        if let Some(axes) = tables.mesh.axes_of(cells) {
            let mut ranks = place.ranks.clone();
            let mut remaining = number.clone();
            for axis in axes.clone().rev() {
                if axis == axes.start {
                    ranks[axis] = remaining;
                    break;
                }
                let extent = tables.mesh.extent_dims()[axis].clone();
                let [outer, inner] =
                    tables.axes.divide(&remaining, &extent).ok_or(Stop::Unknown("ranks are not divided"))?;
                ranks[axis] = inner;
                remaining = outer;
            }
            return Ok(ranks);
        }
        let (cell, _) = self.constant_rank_in_cell(tables, cells, place)?;
        let number = constant_of(tables, number)?;
        let rank = usize::try_from(number).ok().and_then(|number| cell.get(number)).copied();
        let rank = rank.ok_or(Stop::Unknown("a rank is in no cell"))?;
        let coordinates = tables.mesh.coordinates(rank).into_iter();
        Ok(coordinates.map(|c| Index::constant(Dim::from(i64::from(c)))).collect())
    }

    pub fn collective(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        kind: &CollectiveKind,
        place: &Place,
    ) -> Evaluated<TermId> {
        let Op::Collective(collective) = &node.node.op else { return Err(Stop::Unknown("not a collective")) };
        let cells = self.cells(collective.group)?;
        let count = cells.first().map_or(1, Vec::len) as i64;
        let x = node.operand(0);
        let mut index = place.index.clone();
        let from = match kind {
            CollectiveKind::AllReduce(_) | CollectiveKind::ReduceScatter(_) => {
                let reduce = kind.reduce_op().ok_or(Stop::Unknown("not a reduction"))?;
                if let CollectiveKind::ReduceScatter(_) = kind {
                    let number = self.number_in_cell(tables, &cells, place)?;
                    index[0] = number.times(&self.shape(node.result(0))[0]).plus(&index[0]);
                }
                return self.reduce_over_ranks(tables, reduce, &cells, x, &place.with_index(index));
            }
            CollectiveKind::AllGather => {
                let divided = tables.axes.divide(&index[0], &self.shape(x)[0]);
                let [number, inner] = divided.ok_or(Stop::Unknown("a gathered axis is not divided"))?;
                index[0] = inner;
                number
            }
            CollectiveKind::AllToAll(AllToAllSplits::Even) => {
                let piece = self.shape(x)[0].exact_div(&Dim::from(count));
                let piece = piece.ok_or(Stop::Unknown("an exchanged axis is not divided"))?;
                let divided = tables.axes.divide(&index[0], &piece);
                let [number, inner] = divided.ok_or(Stop::Unknown("an exchanged axis is not divided"))?;
                index[0] = self.number_in_cell(tables, &cells, place)?.times(&piece).plus(&inner);
                number
            }
            CollectiveKind::Broadcast { root } => Index::constant(Dim::from(i64::from(*root))),
            CollectiveKind::Permute { .. } => {
                let number = self.number_in_cell(tables, &cells, place)?;
                let number = constant_of(tables, &number)?;
                let sender = u32::try_from(number).ok().and_then(|number| kind.sender_to(number));
                match sender {
                    Some(sender) => Index::constant(Dim::from(i64::from(sender))),
                    None => {
                        let dtype = self.ty(x).dtype;
                        return tables.scalar(scalar_bits(dtype, Scalar::Int(0)));
                    }
                }
            }
            CollectiveKind::AllToAll(AllToAllSplits::Device)
            | CollectiveKind::DispatchRows
            | CollectiveKind::CombineRows
            | CollectiveKind::ReduceRows => return Err(Stop::Unknown("rows are exchanged by data")),
        };
        let ranks = self.rank_in_cell(tables, &cells, place, &from)?;
        self.element(tables, x, &Place { ranks, index })
    }

    /// The reduction of the elements of a value at a place of all ranks of a cell.
    fn reduce_over_ranks(
        &mut self,
        tables: &mut ProofTables<'_>,
        reduce: CollectiveReduceOp,
        cells: &Cells,
        x: ValueRef,
        place: &Place,
    ) -> Evaluated<TermId> {
        let count = cells.first().map_or(1, Vec::len);
        if count == 1 {
            return self.element(tables, x, place);
        }
        let dtype = self.ty(x).dtype;
        let is_sum = reduce == CollectiveReduceOp::Sum && dtype != DType::Bool
            || reduce == CollectiveReduceOp::Avg && dtype.is_float();
        if is_sum && count <= MAX_SUMMED_RANKS {
            tables.met_sum_over_ranks = true;
            if tables.sums_ranks {
                return self.sum_over_ranks(tables, reduce, cells, x, place);
            }
        }
        let lambda = self.lambda(tables, &[Dim::from(count as i64)], |this, tables, params| {
            let ranks = this.rank_in_cell(tables, cells, place, &params[0])?;
            this.element(tables, x, &Place { ranks, index: place.index.clone() })
        })?;
        let kind = CollectiveKind::AllReduce(reduce);
        let op = Op::Collective(Collective { kind, group: GroupId::new(0), variant: None });
        let term =
            Term::Bind { op, result: 0, shape: OpShape::default(), at: Vec::new(), args: vec![lambda] };
        tables.intern(dtype, term)
    }

    /// A sum or average over ranks as a sum of the elements of each rank. Floats are added in f32 or f64 and rounded once.
    fn sum_over_ranks(
        &mut self,
        tables: &mut ProofTables<'_>,
        reduce: CollectiveReduceOp,
        cells: &Cells,
        x: ValueRef,
        place: &Place,
    ) -> Evaluated<TermId> {
        let count = cells.first().map_or(1, Vec::len) as i64;
        let dtype = self.ty(x).dtype;
        let wide = if dtype.is_float() { dtype.compute_dtype() } else { dtype };
        let mut sum = None;
        for number in 0..count {
            let ranks = self.rank_in_cell(tables, cells, place, &Index::constant(Dim::from(number)))?;
            let element = self.element(tables, x, &Place { ranks, index: place.index.clone() })?;
            let element = tables.apply(Op::Cast, vec![element], wide)?;
            sum = Some(match sum {
                Some(sum) => tables.apply(Op::Binary(BinaryOp::Add), vec![sum, element], wide)?,
                None => element,
            });
        }
        let mut sum = sum.ok_or(Stop::Unknown("a cell has no ranks"))?;
        if reduce == CollectiveReduceOp::Avg {
            let divisor = tables.scalar(scalar_operand(
                BinaryOp::Div,
                wide,
                Scalar::Float(FloatAttribute(count as f64)),
            ))?;
            sum = tables.apply(Op::Binary(BinaryOp::Div), vec![sum, divisor], wide)?;
        }
        tables.apply(Op::Cast, vec![sum], dtype)
    }
}

fn have_one_rank(cells: &Cells) -> bool {
    cells.iter().all(|cell| cell.len() == 1)
}

/// The number that an index is. If it is one of several, the axis is cut.
fn constant_of(tables: &ProofTables<'_>, index: &Index) -> Evaluated<i64> {
    let index = tables.axes.resolve(index);
    if let Some(number) = index.as_constant() {
        return number.as_const().ok_or(Stop::Unknown("a rank is not a number"));
    }
    let cut = index.terms.keys().next().map(|&axis| AxisCut { axis, at: Dim::from(1) });
    cut.map_or(Err(Stop::Unknown("a rank is not a number")), |cut| Err(Stop::Cut(cut)))
}
