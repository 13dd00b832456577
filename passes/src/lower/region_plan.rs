//! Turns an extraction from an e-graph into steps.

use std::collections::BTreeMap;

use egg::{Id, Language};
use symmc_ir::{BinaryOp, CollectiveReduceOp, Dim, FloatAttribute, Op, Scalar, TensorType, infer};

use super::extract::Extraction;
use super::imported_region::ImportedRegion;
use super::language::{self, Lang, LangAttribute, LangEGraph};

pub struct RegionStep {
    pub op: Op,
    pub operands: Vec<StepSource>,
    pub types: Vec<TensorType>,
    /// The node of the region whose value it computes, if any.
    pub stands_for: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepSource {
    Leaf(usize),
    Step(usize, usize),
}

/// The steps of a region, and the sources of the values of its classes.
#[derive(Default)]
pub struct RegionPlan {
    /// The steps, in dependency order.
    pub steps: Vec<RegionStep>,
    pub class_operands: BTreeMap<Id, StepSource>,
}

impl RegionPlan {
    fn add_step(&mut self, op: Op, operands: Vec<StepSource>, ty: &TensorType) -> StepSource {
        self.steps.push(RegionStep { op, operands, types: vec![ty.clone()], stands_for: None });
        StepSource::Step(self.steps.len() - 1, 0)
    }

    fn add_cast(&mut self, value: StepSource, from: &TensorType, to: &TensorType) -> StepSource {
        if from.dtype == to.dtype { value } else { self.add_step(Op::Cast, vec![value], to) }
    }
}

/// Plans the steps that compute some classes.
pub fn plan_classes(
    graph: &LangEGraph,
    imported: &ImportedRegion,
    taken: &Extraction,
    roots: &[Id],
) -> Option<RegionPlan> {
    let placing = RegionPlanner { graph, imported, taken };
    let mut plan = RegionPlan::default();
    for &root in roots {
        placing.plan_class(graph.find(root), &mut plan)?;
    }
    Some(plan)
}

/// Turns extracted nodes into steps.
struct RegionPlanner<'a> {
    graph: &'a LangEGraph,
    imported: &'a ImportedRegion,
    taken: &'a Extraction,
}

impl RegionPlanner<'_> {
    /// Returns the source of the value of a class, and adds missing steps.
    fn plan_class(&self, class: Id, plan: &mut RegionPlan) -> Option<StepSource> {
        if let Some(&source) = plan.class_operands.get(&class) {
            return Some(source);
        }
        let node = self.taken.get(&class)?;
        let source = match node {
            Lang::Leaf(i) => StepSource::Leaf(*i),
            Lang::Attr(_) => return None,
            Lang::Result(i, [x]) => match self.plan_class(self.graph.find(*x), plan)? {
                StepSource::Step(step, 0) => StepSource::Step(step, *i),
                _ => return None,
            },
            Lang::SumPieces(pieces) => self.place_sum_of_pieces(class, pieces, plan)?,
            Lang::Sum(terms) => self.place_sum(class, terms, plan)?,
            _ => {
                let (op, children) = match node {
                    Lang::Collective(..) => {
                        let (collective, operands) = language::as_collective(self.graph, node)?;
                        (Op::Collective(collective), operands)
                    }
                    Lang::Reshape(x) => (Op::Reshape, &x[1..]),
                    Lang::Cast(x) => (Op::Cast, &x[1..]),
                    _ => (Op::Binary(BinaryOp::Add), node.children()),
                };
                let operands = children.iter().map(|&c| self.plan_class(self.graph.find(c), plan));
                let operands = operands.collect::<Option<Vec<_>>>()?;
                let types = language::class_value(self.graph, class)?.types.clone();
                let stands_for = self.imported.node_of_class(self.graph, class);
                plan.steps.push(RegionStep { op, operands, types, stands_for });
                StepSource::Step(plan.steps.len() - 1, 0)
            }
        };
        plan.class_operands.insert(class, source);
        Some(source)
    }

    /// Adds terms one after another.
    fn place_sum(&self, class: Id, terms: &[Id], plan: &mut RegionPlan) -> Option<StepSource> {
        let mut total: Option<(StepSource, TensorType)> = None;
        for &term in terms {
            let source = self.plan_class(self.graph.find(term), plan)?;
            let ty = language::class_value(self.graph, term)?.ty()?;
            total = Some(match total {
                None => (source, ty.clone()),
                Some((sum, sum_ty)) => {
                    let op = Op::Binary(BinaryOp::Add);
                    let ty = infer::infer_types(&op, &[&sum_ty, ty], None).ok()??.into_iter().next()?;
                    (plan.add_step(op, vec![sum, source], &ty), ty)
                }
            });
        }
        plan.steps.last_mut()?.stands_for = self.imported.node_of_class(self.graph, class);
        Some(total?.0)
    }

    /// Adds the pieces of a value by element-wise steps.
    fn place_sum_of_pieces(
        &self,
        class: Id,
        &[op, group, _, x]: &[Id; 4],
        plan: &mut RegionPlan,
    ) -> Option<StepSource> {
        let (LangAttribute::Reduce(op), LangAttribute::Group(group)) =
            (language::class_attribute(self.graph, op)?, language::class_attribute(self.graph, group)?)
        else {
            return None;
        };
        let ranks = i64::from(self.graph.analysis.context.ranks(*group));
        let ty = language::class_value(self.graph, class)?.ty()?.clone();
        let piece = TensorType::new(language::class_value(self.graph, x)?.ty()?.dtype, ty.shape.clone());
        let x = self.plan_class(self.graph.find(x), plan)?;
        let rows = ty.shape.first()?.clone();
        let wide = TensorType::new(ty.dtype.compute_dtype(), ty.shape.clone());
        let mut total: Option<StepSource> = None;
        for rank in 0..ranks {
            let slice = Op::Slice { axis: 0, start: rows.clone() * Dim::from(rank), step: 1 };
            let term = plan.add_step(slice, vec![x], &piece);
            let term = plan.add_cast(term, &piece, &wide);
            total = Some(match total {
                Some(total) => plan.add_step(Op::Binary(BinaryOp::Add), vec![total, term], &wide),
                None => term,
            });
        }
        let mut total = total?;
        if *op == CollectiveReduceOp::Avg {
            let scalar = Scalar::Float(FloatAttribute(ranks as f64));
            let op = Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: false };
            total = plan.add_step(op, vec![total], &wide);
        }
        let total = plan.add_cast(total, &wide, &ty);
        plan.steps.last_mut()?.stands_for = self.imported.node_of_class(self.graph, class);
        Some(total)
    }
}
