//! Proofs that two regions are equal.
//!
//! An element of each value becomes a term over the elements that both programs have (`evaluate`). Terms have one form
//! for all ways to move elements: views, concatenations, padding, and collectives between the coordinates of ranks.
//! Regions are equal if their terms are ([`canonical`]).
//!
//! A proof never draws values and runs only ops on single numbers. It trusts the equations, the definitions and
//! [`symmc_ir::Op::axes`], which tests hold against the interpreter. Absent are equations that narrow values, and
//! routes of tokens to experts.

mod attention;
mod bind;
mod canonical;
mod collectives;
mod definitions;
pub mod equations;
mod evaluate;
mod index;
mod ranks;
mod simplify;
#[cfg(test)]
mod sweeps;
mod term;

use std::collections::HashMap;

use symmc_ir::{Dim, GroupMembers, Node, RejectedData, Replication, SymbolTable, ValueId};

use self::canonical::Canonicalizer;
pub use self::equations::EquationClass;
use self::evaluate::{Evaluated, Place, ProofTables, RegionEvaluator, Stop, ValueRef, is_of, reshape_index};
use self::index::{AxisTable, Index};
use self::ranks::{Cells, RankMesh};
use self::term::{TermId, TermTable};
use crate::elements::ElementClass;
use crate::number::NumberedProgram;
use crate::region::{ComparedRegion, PairedRegions};

/// The most requests for elements of one proof.
const MAX_REQUESTS: usize = 50_000;
/// The most pieces in which values are compared.
const MAX_ROOT_PIECES: usize = 64;

/// Two programs whose regions may be proven equal.
pub struct ProofPrograms<'p, 'a> {
    pub source: &'p NumberedProgram<'a>,
    pub planned: &'p NumberedProgram<'a>,
    pub symbols: &'p SymbolTable,
    pub ranks: u32,
    pub replication: &'p HashMap<ElementClass, Replication>,
    /// Whether the plan allows floats to be added in another order.
    pub reassociates: bool,
}

impl<'p, 'a> ProofPrograms<'p, 'a> {
    /// Proves that the roots of two regions are equal, with the weakest class of equations that shows it. The text is the
    /// reason why there is no proof.
    pub fn prove(&self, regions: &PairedRegions) -> Result<EquationClass, &'static str> {
        let class = self.prove_values(regions, [regions.of_source.root, regions.of_planned.root])?;
        self.prove_rejections(regions)?;
        Ok(class)
    }

    /// Proves that the planned program runs on all data on which the source runs: each of its nodes that rejects data is a
    /// node of the source.
    fn prove_rejections(&self, regions: &PairedRegions) -> Result<(), &'static str> {
        let of_source = rejecting_values(self.source, &regions.of_source, self.symbols);
        for planned in rejecting_values(self.planned, &regions.of_planned, self.symbols) {
            let is_of_source = |&source: &ValueId| self.prove_values(regions, [source, planned]).is_ok();
            if !of_source.iter().any(is_of_source) {
                return Err("the planned program may reject other data");
            }
        }
        Ok(())
    }

    /// Proves that two values of the regions are equal.
    fn prove_values(
        &self,
        regions: &PairedRegions,
        roots: [ValueId; 2],
    ) -> Result<EquationClass, &'static str> {
        let groups = [self.source, self.planned].map(group_cells);
        let mut reason = "no attempt";
        let mut met_rounding = false;
        for allowed in [EquationClass::Bits, EquationClass::Rounding, EquationClass::Reassociate] {
            let is_needed = match allowed {
                EquationClass::Bits => true,
                EquationClass::Rounding => met_rounding,
                EquationClass::Reassociate => self.reassociates,
            };
            if !is_needed {
                continue;
            }
            for sums_ranks in [false, true] {
                let mut tables = ProofTables {
                    terms: TermTable::default(),
                    axes: AxisTable::new(self.symbols),
                    mesh: RankMesh::new(self.ranks, groups.iter().flatten()),
                    remaining_requests: MAX_REQUESTS,
                    allowed,
                    met_rounding: false,
                    sums_ranks,
                    met_sum_over_ranks: false,
                };
                match self.attempt(regions, roots, &mut tables) {
                    Ok(()) => return Ok(allowed),
                    Err(e) => reason = e,
                }
                met_rounding |= tables.met_rounding;
                if !tables.met_sum_over_ranks {
                    break;
                }
            }
        }
        Err(reason)
    }

    fn attempt(
        &self,
        regions: &PairedRegions,
        roots: [ValueId; 2],
        tables: &mut ProofTables<'_>,
    ) -> Result<(), &'static str> {
        let mut source = RegionEvaluator::new(self.source, &regions.of_source, self.replication);
        let mut planned = RegionEvaluator::new(self.planned, &regions.of_planned, self.replication);
        let ty = &self.source.types[roots[0]];
        let other = &self.planned.types[roots[1]];
        if ty.dtype != other.dtype || ty.numel() != other.numel() {
            return Err("the types differ");
        }
        let [s, p] = roots.map(ValueRef::of_program);
        let pairs = compare_places(tables, &ty.shape, |tables, place| {
            let index = reshape_index(&mut tables.axes, &ty.shape, &other.shape, &place.index)?;
            let of_planned = Place { ranks: place.ranks.clone(), index };
            Ok([source.element(tables, s, place)?, planned.element(tables, p, &of_planned)?])
        })?;
        for [a, b] in pairs {
            if !Canonicalizer::new(tables).are_equal(a, b) {
                return Err("the terms differ");
            }
        }
        Ok(())
    }
}

/// The first results of the nodes of a region that reject some data of these types.
fn rejecting_values(
    program: &NumberedProgram<'_>,
    region: &ComparedRegion,
    symbols: &SymbolTable,
) -> Vec<ValueId> {
    let rejects = |node: &Node| {
        let x = node.inputs.first().map(|&v| &program.types[v]);
        match node.op.facts().rejected_data {
            RejectedData::Nothing => false,
            RejectedData::Positions => true,
            RejectedData::ZeroDivisor { scalar } => {
                x.is_none_or(|ty| !ty.dtype.is_float())
                    && scalar.is_none_or(|divisor| divisor.as_f64() == 0.0)
            }
            RejectedData::NoElements { axes } => x.is_none_or(|ty| {
                let mut extents = axes.iter().map(|&axis| ty.shape.get(axis));
                !extents.all(|extent| extent.is_some_and(|extent| Dim::from(1).provably_le(extent, symbols)))
            }),
        }
    };
    let nodes = region.nodes.iter().map(|&n| &program.graph.nodes[n]).filter(|node| rejects(node));
    nodes.filter_map(|node| node.outputs.first().copied()).collect()
}

/// The terms at all places of a value, in pieces if they differ.
fn compare_places(
    tables: &mut ProofTables<'_>,
    shape: &[Dim],
    mut evaluate: impl FnMut(&mut ProofTables<'_>, &Place) -> Evaluated<[TermId; 2]>,
) -> Result<Vec<[TermId; 2]>, &'static str> {
    const TOO_MANY: &str = "too many axes";
    let extents: Vec<Dim> = tables.mesh.extent_dims().into_iter().chain(shape.iter().cloned()).collect();
    let rank_axes = tables.mesh.extents().len();
    let params: Option<Vec<Index>> = extents.iter().map(|extent| tables.axes.add(extent)).collect();
    let mut open = vec![params.ok_or(TOO_MANY)?];
    let mut out = Vec::new();
    while let Some(params) = open.pop() {
        let (ranks, index) = params.split_at(rank_axes);
        let place = Place { ranks: ranks.to_vec(), index: index.to_vec() };
        match evaluate(tables, &place) {
            Ok(pair) => out.push(pair),
            Err(Stop::Cut(cut))
                if is_of(&tables.axes, &params, &cut) && out.len() + open.len() < MAX_ROOT_PIECES =>
            {
                let [low, high] = tables.axes.apply_cut(&params, &cut).ok_or(TOO_MANY)?;
                open.extend([high, low]);
            }
            Err(Stop::Cut(_)) => return Err("too many pieces"),
            Err(Stop::Unknown(reason)) => return Err(reason),
        }
    }
    Ok(out)
}

fn group_cells(program: &NumberedProgram<'_>) -> Vec<Cells> {
    let groups = program.graph.groups.values().filter_map(|group| match &group.members {
        GroupMembers::Cells(cells) => Some(cells.clone()),
        _ => None,
    });
    groups.collect()
}
