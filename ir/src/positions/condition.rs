//! Bools that are conjunctions of comparisons of positions.
//!
//! Each [`ConditionAtom`] states its comparison and has a witness: a bool of the program that can replace
//! the atom, so that an atom that does not become a bound is computed as before. The conjunction of all
//! atoms stays the same if any of them are replaced by their witnesses. A single atom may differ from its
//! witness.

use super::linear::{AxisView, ElementRef, LinearExpr};
use crate::graph::Graph;
use crate::ids::ValueId;
use crate::op::BinaryOp;

/// Integers in the forms that comparisons understand.
#[derive(Clone, PartialEq, Debug)]
pub enum IndexExpr {
    /// A sum of positions.
    Linear(LinearExpr),
    Max(Vec<LinearExpr>),
    Min(Vec<LinearExpr>),
    /// The floor of a quotient by a positive number.
    Floor(LinearExpr, i64),
    /// The difference of two floors of quotients by the same number.
    Floors(LinearExpr, LinearExpr, i64),
}

/// A conjunction of atoms, or the negation of one.
#[derive(Clone, PartialEq, Debug)]
pub struct MaskCondition {
    pub negated: bool,
    /// The terms of the conjunction.
    pub atoms: Vec<ConditionAtom>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ConditionAtom {
    pub kind: AtomKind,
    pub witness: AtomWitness,
}

/// Elements of a bool value, possibly negated.
#[derive(Clone, PartialEq, Debug)]
pub struct AtomWitness {
    pub leaf: ElementRef,
    pub negated: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum AtomKind {
    AtLeastZero(LinearExpr),
    /// `floor(a / by) >= floor(b / by)`.
    ChunkAtLeast {
        a: LinearExpr,
        b: LinearExpr,
        by: i64,
    },
    /// No more is known than the witness.
    Opaque,
}

/// The most atoms of a conjunction.
const MAX_ATOMS: usize = 16;

impl IndexExpr {
    pub fn constant(number: i64, rank: usize) -> IndexExpr {
        IndexExpr::Linear(LinearExpr::constant(number, rank))
    }

    /// The integer at the positions of a view.
    pub fn through_view(&self, view: &AxisView) -> Option<IndexExpr> {
        self.map_linear(|x| x.through_view(view))
    }

    pub fn map_linear(&self, f: impl Fn(&LinearExpr) -> Option<LinearExpr>) -> Option<IndexExpr> {
        Some(match self {
            IndexExpr::Linear(x) => IndexExpr::Linear(f(x)?),
            IndexExpr::Max(operands) => IndexExpr::Max(map_all(operands, f)?),
            IndexExpr::Min(operands) => IndexExpr::Min(map_all(operands, f)?),
            IndexExpr::Floor(x, by) => IndexExpr::Floor(f(x)?, *by),
            IndexExpr::Floors(x, y, by) => IndexExpr::Floors(f(x)?, f(y)?, *by),
        })
    }

    /// `self + sign * other`, if that has one of these forms.
    pub fn add_signed(&self, sign: i64, other: &IndexExpr) -> Option<IndexExpr> {
        Some(match (self, other) {
            (IndexExpr::Linear(a), IndexExpr::Linear(b)) => IndexExpr::Linear(a.add_scaled(sign, b)?),
            (IndexExpr::Max(operands), IndexExpr::Linear(b)) => {
                IndexExpr::Max(map_all(operands, |x| x.add_scaled(sign, b))?)
            }
            (IndexExpr::Min(operands), IndexExpr::Linear(b)) => {
                IndexExpr::Min(map_all(operands, |x| x.add_scaled(sign, b))?)
            }
            (IndexExpr::Linear(a), IndexExpr::Max(operands) | IndexExpr::Min(operands)) => {
                let operands = map_all(operands, |y| a.add_scaled(sign, y))?;
                if matches!(other, IndexExpr::Max(_)) == (sign > 0) {
                    IndexExpr::Max(operands)
                } else {
                    IndexExpr::Min(operands)
                }
            }
            (IndexExpr::Floor(x, by), IndexExpr::Floor(y, other_by)) if by == other_by && sign == -1 => {
                IndexExpr::Floors(x.clone(), y.clone(), *by)
            }
            (IndexExpr::Floor(x, by), IndexExpr::Linear(c)) => {
                IndexExpr::Floor(add_multiple(x, c, sign, *by)?, *by)
            }
            (IndexExpr::Linear(c), IndexExpr::Floor(x, by)) if sign == 1 => {
                IndexExpr::Floor(add_multiple(x, c, 1, *by)?, *by)
            }
            (IndexExpr::Floors(x, y, by), IndexExpr::Linear(c)) => {
                IndexExpr::Floors(add_multiple(x, c, sign, *by)?, y.clone(), *by)
            }
            (IndexExpr::Linear(c), IndexExpr::Floors(x, y, by)) => match sign {
                1 => IndexExpr::Floors(add_multiple(x, c, 1, *by)?, y.clone(), *by),
                _ => IndexExpr::Floors(add_multiple(y, c, 1, *by)?, x.clone(), *by),
            },
            _ => return None,
        })
    }

    pub fn linear(&self) -> Option<&LinearExpr> {
        match self {
            IndexExpr::Linear(x) => Some(x),
            _ => None,
        }
    }
}

impl AtomKind {
    fn through_view(&self, view: &AxisView) -> Option<AtomKind> {
        self.map_linear(|x| x.through_view(view))
    }

    pub fn map_linear(&self, f: impl Fn(&LinearExpr) -> Option<LinearExpr>) -> Option<AtomKind> {
        Some(match self {
            AtomKind::AtLeastZero(x) => AtomKind::AtLeastZero(f(x)?),
            AtomKind::ChunkAtLeast { a, b, by } => AtomKind::ChunkAtLeast { a: f(a)?, b: f(b)?, by: *by },
            AtomKind::Opaque => AtomKind::Opaque,
        })
    }

    fn negate(&self) -> Option<AtomKind> {
        Some(match self {
            AtomKind::AtLeastZero(x) => AtomKind::AtLeastZero(x.times(-1)?.offset_by(-1)?),
            AtomKind::ChunkAtLeast { a, b, by } => {
                AtomKind::ChunkAtLeast { a: b.clone(), b: a.offset_by(*by)?, by: *by }
            }
            AtomKind::Opaque => AtomKind::Opaque,
        })
    }
}

impl MaskCondition {
    pub fn constant(holds: bool) -> MaskCondition {
        MaskCondition { negated: !holds, atoms: Vec::new() }
    }

    /// A bool value about which nothing is known.
    pub fn opaque(graph: &Graph, value: ValueId) -> MaskCondition {
        MaskCondition::of_leaf(ElementRef::whole_value(graph, value))
    }

    /// Bool elements about which nothing is known.
    pub fn of_leaf(leaf: ElementRef) -> MaskCondition {
        let witness = AtomWitness { leaf, negated: false };
        MaskCondition { negated: false, atoms: vec![ConditionAtom { kind: AtomKind::Opaque, witness }] }
    }

    pub fn negate(mut self) -> MaskCondition {
        if let [atom] = &mut self.atoms[..]
            && let Some(kind) = atom.kind.negate()
        {
            atom.kind = kind;
            atom.witness.negated = !atom.witness.negated;
            return self;
        }
        self.negated = !self.negated;
        self
    }

    /// `self` and `other`, if that is a conjunction.
    pub fn and(self, other: MaskCondition) -> Option<MaskCondition> {
        match (self.is_constant(), other.is_constant()) {
            (Some(true), _) | (_, Some(false)) => return Some(other),
            (_, Some(true)) | (Some(false), _) => return Some(self),
            _ => {}
        }
        if self.negated || other.negated {
            return None;
        }
        let mut atoms = self.atoms;
        for atom in other.atoms {
            if !atoms.contains(&atom) {
                atoms.push(atom);
            }
        }
        (atoms.len() <= MAX_ATOMS).then_some(MaskCondition { negated: false, atoms })
    }

    /// `self` or `other`, if that is the negation of a conjunction.
    pub fn or(self, other: MaskCondition) -> Option<MaskCondition> {
        self.negate().and(other.negate()).map(MaskCondition::negate)
    }

    pub fn is_constant(&self) -> Option<bool> {
        self.atoms.is_empty().then_some(!self.negated)
    }

    pub fn through_view(&self, view: &AxisView) -> Option<MaskCondition> {
        let atoms = self.atoms.iter().map(|atom| {
            let leaf = atom.witness.leaf.through_view(view)?;
            Some(ConditionAtom {
                kind: atom.kind.through_view(view)?,
                witness: AtomWitness { leaf, ..atom.witness },
            })
        });
        Some(MaskCondition { negated: self.negated, atoms: atoms.collect::<Option<_>>()? })
    }
}

fn map_all(all: &[LinearExpr], f: impl Fn(&LinearExpr) -> Option<LinearExpr>) -> Option<Vec<LinearExpr>> {
    all.iter().map(f).collect()
}

/// `x + sign * by * c` for a constant `c`.
fn add_multiple(x: &LinearExpr, c: &LinearExpr, sign: i64, by: i64) -> Option<LinearExpr> {
    x.offset_by(as_small_constant(c)?.checked_mul(by.checked_mul(sign)?)?)
}

fn as_small_constant(x: &LinearExpr) -> Option<i64> {
    x.as_number().filter(|c| c.unsigned_abs() < 1 << 40)
}

/// A comparison, with `witness` as the bool that the program computes for it.
pub fn comparison_condition(
    op: BinaryOp,
    a: &IndexExpr,
    b: &IndexExpr,
    witness: AtomWitness,
) -> Option<MaskCondition> {
    let contrary = AtomWitness { negated: true, ..witness.clone() };
    match op {
        BinaryOp::Ge => at_least_condition(a, b, &witness),
        BinaryOp::Le => at_least_condition(b, a, &witness),
        BinaryOp::Lt => at_least_condition(a, b, &contrary).map(MaskCondition::negate),
        BinaryOp::Gt => at_least_condition(b, a, &contrary).map(MaskCondition::negate),
        BinaryOp::Eq => at_least_condition(a, b, &witness)?.and(at_least_condition(b, a, &witness)?),
        BinaryOp::Ne => {
            Some(at_least_condition(a, b, &contrary)?.and(at_least_condition(b, a, &contrary)?)?.negate())
        }
        _ => None,
    }
}

/// The result of an op on bools, if it is a conjunction or a disjunction.
pub fn logical_condition(op: BinaryOp, a: MaskCondition, b: MaskCondition) -> Option<MaskCondition> {
    match op {
        BinaryOp::And | BinaryOp::Min | BinaryOp::Mul => a.and(b),
        BinaryOp::Or | BinaryOp::Max => a.or(b),
        _ => None,
    }
}

/// The condition `a >= b`, with `witness` as the bool that the program computes for it.
fn at_least_condition(a: &IndexExpr, b: &IndexExpr, witness: &AtomWitness) -> Option<MaskCondition> {
    let kind = match (a, b) {
        (IndexExpr::Linear(a), IndexExpr::Linear(b)) => AtomKind::AtLeastZero(a.add_scaled(-1, b)?),
        (a, IndexExpr::Max(terms)) => {
            return conjunction(map_conditions(terms, |x| at_least_condition(a, x, witness))?);
        }
        (IndexExpr::Min(terms), b) => {
            return conjunction(map_conditions(terms, |x| at_least_condition(x, b, witness))?);
        }
        (a, IndexExpr::Min(terms)) => {
            return disjunction(map_conditions(terms, |x| at_least_condition(a, x, witness))?);
        }
        (IndexExpr::Max(terms), b) => {
            return disjunction(map_conditions(terms, |x| at_least_condition(x, b, witness))?);
        }
        (IndexExpr::Floor(a, by), IndexExpr::Floor(b, same)) if by == same => {
            AtomKind::ChunkAtLeast { a: a.clone(), b: b.clone(), by: *by }
        }
        // floor(x / by) - floor(y / by) >= c, and <= c, for a constant c.
        (IndexExpr::Floors(x, y, by), IndexExpr::Linear(c)) => {
            AtomKind::ChunkAtLeast { a: x.clone(), b: add_multiple(y, c, 1, *by)?, by: *by }
        }
        (IndexExpr::Linear(c), IndexExpr::Floors(x, y, by)) => {
            AtomKind::ChunkAtLeast { a: add_multiple(y, c, 1, *by)?, b: x.clone(), by: *by }
        }
        (IndexExpr::Floor(a, by), IndexExpr::Linear(b)) => {
            AtomKind::AtLeastZero(a.add_scaled(by.checked_neg()?, b)?)
        }
        (IndexExpr::Linear(a), IndexExpr::Floor(b, by)) => {
            AtomKind::AtLeastZero(a.times(*by)?.offset_by(by - 1)?.add_scaled(-1, b)?)
        }
        _ => return None,
    };
    Some(MaskCondition { negated: false, atoms: vec![ConditionAtom { kind, witness: witness.clone() }] })
}

fn map_conditions(
    terms: &[LinearExpr],
    compare: impl Fn(&IndexExpr) -> Option<MaskCondition>,
) -> Option<Vec<MaskCondition>> {
    terms.iter().map(|x| compare(&IndexExpr::Linear(x.clone()))).collect()
}

fn conjunction(conditions: Vec<MaskCondition>) -> Option<MaskCondition> {
    conditions.into_iter().try_fold(MaskCondition::constant(true), MaskCondition::and)
}

fn disjunction(conditions: Vec<MaskCondition>) -> Option<MaskCondition> {
    conditions.into_iter().try_fold(MaskCondition::constant(false), MaskCondition::or)
}
