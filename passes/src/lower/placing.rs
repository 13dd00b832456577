//! The steps that run what was taken of an e-graph.

use std::collections::BTreeMap;

use egg::{Id, Language};
use symmc_ir::{BinaryOp, DType, Dim, Float, Op, ReduceOp, Scalar, Type, infer};

use super::extract::Taken;
use super::imported::Imported;
use super::language::{self, Attr, Graph, Lang};

pub struct Step {
    pub op: Op,
    pub operands: Vec<Operand>,
    pub types: Vec<Type>,
    /// The node of the region whose value it gives, if it gives one.
    pub stands_for: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    Leaf(usize),
    Step(usize, usize),
}

/// The steps of a region, and the values that stand for its classes.
#[derive(Default)]
pub struct Plan {
    /// The steps, each after those that it uses.
    pub steps: Vec<Step>,
    pub at: BTreeMap<Id, Operand>,
}

impl Plan {
    fn add(&mut self, op: Op, operands: Vec<Operand>, ty: &Type) -> Operand {
        self.steps.push(Step { op, operands, types: vec![ty.clone()], stands_for: None });
        Operand::Step(self.steps.len() - 1, 0)
    }

    fn cast(&mut self, value: Operand, from: &Type, to: &Type) -> Operand {
        if from.dtype == to.dtype { value } else { self.add(Op::Cast, vec![value], to) }
    }
}

/// The steps that give some classes.
pub fn place_all(graph: &Graph, imported: &Imported, taken: &Taken, roots: &[Id]) -> Option<Plan> {
    let placing = Placing { graph, imported, taken };
    let mut plan = Plan::default();
    for &root in roots {
        placing.place(graph.find(root), &mut plan)?;
    }
    Some(plan)
}

/// What turns taken nodes into steps.
struct Placing<'a> {
    graph: &'a Graph,
    imported: &'a Imported,
    taken: &'a Taken,
}

impl Placing<'_> {
    /// The value of a class, computed by steps that are added if they are missing.
    fn place(&self, class: Id, plan: &mut Plan) -> Option<Operand> {
        if let Some(&at) = plan.at.get(&class) {
            return Some(at);
        }
        let node = self.taken.get(&class)?;
        let source = match node {
            Lang::Leaf(i) => Operand::Leaf(*i),
            Lang::Attr(_) => return None,
            Lang::Result(i, [x]) => match self.place(self.graph.find(*x), plan)? {
                Operand::Step(step, 0) => Operand::Step(step, *i),
                _ => return None,
            },
            Lang::SumPieces(of) => self.place_sum_of_pieces(class, of, plan)?,
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
                let operands = children.iter().map(|&c| self.place(self.graph.find(c), plan));
                let operands = operands.collect::<Option<Vec<_>>>()?;
                let types = language::value(self.graph, class)?.types.clone();
                let stands_for = self.imported.find(self.graph, class);
                plan.steps.push(Step { op, operands, types, stands_for });
                Operand::Step(plan.steps.len() - 1, 0)
            }
        };
        plan.at.insert(class, source);
        Some(source)
    }

    /// The sum of terms, by additions one after another.
    fn place_sum(&self, class: Id, terms: &[Id], plan: &mut Plan) -> Option<Operand> {
        let mut total: Option<(Operand, Type)> = None;
        for &term in terms {
            let own = self.place(self.graph.find(term), plan)?;
            let ty = language::value(self.graph, term)?.ty()?;
            total = Some(match total {
                None => (own, ty.clone()),
                Some((sum, of)) => {
                    let op = Op::Binary(BinaryOp::Add);
                    let ty = infer::infer(&op, &[&of, ty], None).ok()??.into_iter().next()?;
                    (plan.add(op, vec![sum, own], &ty), ty)
                }
            });
        }
        plan.steps.last_mut()?.stands_for = self.imported.find(self.graph, class);
        Some(total?.0)
    }

    /// The sum of the pieces of a value, by element-wise steps.
    fn place_sum_of_pieces(
        &self,
        class: Id,
        &[op, group, _, x]: &[Id; 4],
        plan: &mut Plan,
    ) -> Option<Operand> {
        let (Attr::Reduce(op), Attr::Group(group)) =
            (language::attr(self.graph, op)?, language::attr(self.graph, group)?)
        else {
            return None;
        };
        let ranks = i64::from(self.graph.analysis.context.ranks(*group));
        let ty = language::value(self.graph, class)?.ty()?.clone();
        let piece = Type::new(language::value(self.graph, x)?.ty()?.dtype, ty.shape.clone());
        let x = self.place(self.graph.find(x), plan)?;
        let rows = ty.shape.first()?.clone();
        let accumulated = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let wide = Type::new(accumulated, ty.shape.clone());
        let mut total: Option<Operand> = None;
        for rank in 0..ranks {
            let slice = Op::Slice { axis: 0, start: rows.clone() * Dim::from(rank), step: 1 };
            let own = plan.add(slice, vec![x], &piece);
            let own = plan.cast(own, &piece, &wide);
            total = Some(match total {
                Some(total) => plan.add(Op::Binary(BinaryOp::Add), vec![total, own], &wide),
                None => own,
            });
        }
        let mut total = total?;
        if *op == ReduceOp::Avg {
            let scalar = Scalar::Float(Float(ranks as f64));
            let op = Op::BinaryScalar { op: BinaryOp::Div, scalar, scalar_left: false };
            total = plan.add(op, vec![total], &wide);
        }
        let total = plan.cast(total, &wide, &ty);
        plan.steps.last_mut()?.stands_for = self.imported.find(self.graph, class);
        Some(total)
    }
}
