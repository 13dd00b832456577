//! Bools that are conjunctions of comparisons of positions.
//!
//! Each [`Atom`] says what it compares and has a witness: a bool of the program that may stand in its place, so that
//! what is not used as a bound is computed as before. The conjunction of all atoms stays the same with any of them
//! replaced by their witnesses; an atom alone need not be its witness.

use symmc_ir::{Graph, ValueId};

use super::linear::{Leaf, Linear, View};

/// Integers as comparisons know them.
#[derive(Clone, PartialEq, Debug)]
pub enum Number {
    /// A sum of positions.
    Linear(Linear),
    Max(Vec<Linear>),
    Min(Vec<Linear>),
    /// The floor of a quotient by a positive number.
    Floor(Linear, i64),
    /// The difference of two such floors by one number.
    Floors(Linear, Linear, i64),
}

/// A conjunction of atoms, or its contrary.
#[derive(Clone, PartialEq, Debug)]
pub struct Condition {
    pub negated: bool,
    /// All of which hold.
    pub atoms: Vec<Atom>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Atom {
    pub kind: Kind,
    pub witness: Witness,
}

/// Elements of a bool value, or their contraries.
#[derive(Clone, PartialEq, Debug)]
pub struct Witness {
    pub leaf: Leaf,
    pub negated: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    AtLeastZero(Linear),
    /// `floor(a / by) >= floor(b / by)`.
    ChunkAtLeast {
        a: Linear,
        b: Linear,
        by: i64,
    },
    /// No more than the witness says.
    Opaque,
}

/// Conjunctions have at most so many atoms.
const MAX_ATOMS: usize = 16;

impl Number {
    /// The same for the positions of a view.
    pub fn viewed(&self, view: &View) -> Option<Number> {
        self.map(|x| x.viewed(view))
    }

    pub fn map(&self, f: impl Fn(&Linear) -> Option<Linear>) -> Option<Number> {
        let all = |x: &[Linear]| x.iter().map(&f).collect::<Option<Vec<_>>>();
        Some(match self {
            Number::Linear(x) => Number::Linear(f(x)?),
            Number::Max(x) => Number::Max(all(x)?),
            Number::Min(x) => Number::Min(all(x)?),
            Number::Floor(x, by) => Number::Floor(f(x)?, *by),
            Number::Floors(x, y, by) => Number::Floors(f(x)?, f(y)?, *by),
        })
    }

    /// `self + sign * other`, where that is a number.
    pub fn plus(&self, sign: i64, other: &Number) -> Option<Number> {
        let each = |all: &[Linear], f: &dyn Fn(&Linear) -> Option<Linear>| {
            all.iter().map(f).collect::<Option<Vec<_>>>()
        };
        let moved = |x: &Linear, c: &Linear, sign: i64, by: i64| {
            x.shifted(constant(c)?.checked_mul(by.checked_mul(sign)?)?)
        };
        Some(match (self, other) {
            (Number::Linear(a), Number::Linear(b)) => Number::Linear(a.plus(sign, b)?),
            (Number::Max(all), Number::Linear(b)) => Number::Max(each(all, &|x| x.plus(sign, b))?),
            (Number::Min(all), Number::Linear(b)) => Number::Min(each(all, &|x| x.plus(sign, b))?),
            (Number::Linear(a), Number::Max(all) | Number::Min(all)) => {
                let all = each(all, &|y| a.plus(sign, y))?;
                match matches!(other, Number::Max(_)) == (sign > 0) {
                    true => Number::Max(all),
                    false => Number::Min(all),
                }
            }
            (Number::Floor(x, by), Number::Floor(y, same)) if by == same && sign == -1 => {
                Number::Floors(x.clone(), y.clone(), *by)
            }
            (Number::Floor(x, by), Number::Linear(c)) => Number::Floor(moved(x, c, sign, *by)?, *by),
            (Number::Linear(c), Number::Floor(x, by)) if sign == 1 => {
                Number::Floor(moved(x, c, 1, *by)?, *by)
            }
            (Number::Floors(x, y, by), Number::Linear(c)) => {
                Number::Floors(moved(x, c, sign, *by)?, y.clone(), *by)
            }
            (Number::Linear(c), Number::Floors(x, y, by)) => match sign {
                1 => Number::Floors(moved(x, c, 1, *by)?, y.clone(), *by),
                _ => Number::Floors(moved(y, c, 1, *by)?, x.clone(), *by),
            },
            _ => return None,
        })
    }

    pub fn linear(&self) -> Option<&Linear> {
        match self {
            Number::Linear(x) => Some(x),
            _ => None,
        }
    }
}

impl Kind {
    fn viewed(&self, view: &View) -> Option<Kind> {
        self.map(|x| x.viewed(view))
    }

    pub fn map(&self, f: impl Fn(&Linear) -> Option<Linear>) -> Option<Kind> {
        Some(match self {
            Kind::AtLeastZero(x) => Kind::AtLeastZero(f(x)?),
            Kind::ChunkAtLeast { a, b, by } => Kind::ChunkAtLeast { a: f(a)?, b: f(b)?, by: *by },
            Kind::Opaque => Kind::Opaque,
        })
    }

    fn contrary(&self) -> Option<Kind> {
        Some(match self {
            Kind::AtLeastZero(x) => Kind::AtLeastZero(x.times(-1)?.shifted(-1)?),
            Kind::ChunkAtLeast { a, b, by } => {
                Kind::ChunkAtLeast { a: b.clone(), b: a.shifted(*by)?, by: *by }
            }
            Kind::Opaque => Kind::Opaque,
        })
    }
}

impl Condition {
    pub fn constant(holds: bool) -> Condition {
        Condition { negated: !holds, atoms: Vec::new() }
    }

    /// A bool value of which no more is known.
    pub fn opaque(graph: &Graph, value: ValueId) -> Condition {
        let witness = Witness { leaf: Leaf::whole(graph, value), negated: false };
        Condition { negated: false, atoms: vec![Atom { kind: Kind::Opaque, witness }] }
    }

    pub fn contrary(mut self) -> Condition {
        if let [atom] = &mut self.atoms[..]
            && let Some(kind) = atom.kind.contrary()
        {
            atom.kind = kind;
            atom.witness.negated = !atom.witness.negated;
            return self;
        }
        self.negated = !self.negated;
        self
    }

    /// Both, where that is a conjunction.
    pub fn and(self, other: Condition) -> Option<Condition> {
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
        (atoms.len() <= MAX_ATOMS).then_some(Condition { negated: false, atoms })
    }

    /// One or the other, where that is the contrary of a conjunction.
    pub fn or(self, other: Condition) -> Option<Condition> {
        self.contrary().and(other.contrary()).map(Condition::contrary)
    }

    pub fn is_constant(&self) -> Option<bool> {
        self.atoms.is_empty().then_some(!self.negated)
    }

    pub fn viewed(&self, view: &View) -> Option<Condition> {
        let atoms = self.atoms.iter().map(|atom| {
            let leaf = atom.witness.leaf.viewed(view)?;
            Some(Atom { kind: atom.kind.viewed(view)?, witness: Witness { leaf, ..atom.witness } })
        });
        Some(Condition { negated: self.negated, atoms: atoms.collect::<Option<_>>()? })
    }
}

fn constant(x: &Linear) -> Option<i64> {
    let still = x.terms.is_empty() && x.steps.iter().all(|s| *s == 0);
    x.constant.as_const().filter(|c| still && c.unsigned_abs() < 1 << 40)
}

/// `a >= b`, which `witness` says.
pub fn at_least(a: &Number, b: &Number, witness: &Witness) -> Option<Condition> {
    let one = |kind| Some(Condition { negated: false, atoms: vec![Atom { kind, witness: witness.clone() }] });
    let each = |of: &[Linear], compare: &dyn Fn(&Number) -> Option<Condition>| {
        of.iter().map(|x| compare(&Number::Linear(x.clone()))).collect::<Option<Vec<_>>>()
    };
    let all = |x: Vec<Condition>| x.into_iter().try_fold(Condition::constant(true), Condition::and);
    let any = |x: Vec<Condition>| x.into_iter().try_fold(Condition::constant(false), Condition::or);
    match (a, b) {
        (Number::Linear(a), Number::Linear(b)) => one(Kind::AtLeastZero(a.plus(-1, b)?)),
        (a, Number::Max(of)) => all(each(of, &|x| at_least(a, x, witness))?),
        (Number::Min(of), b) => all(each(of, &|x| at_least(x, b, witness))?),
        (a, Number::Min(of)) => any(each(of, &|x| at_least(a, x, witness))?),
        (Number::Max(of), b) => any(each(of, &|x| at_least(x, b, witness))?),
        (Number::Floor(a, by), Number::Floor(b, same)) if by == same => {
            one(Kind::ChunkAtLeast { a: a.clone(), b: b.clone(), by: *by })
        }
        // floor(x / by) - floor(y / by) >= c, and <= c, of a constant c.
        (Number::Floors(x, y, by), Number::Linear(c)) => {
            one(Kind::ChunkAtLeast { a: x.clone(), b: y.shifted(constant(c)?.checked_mul(*by)?)?, by: *by })
        }
        (Number::Linear(c), Number::Floors(x, y, by)) => {
            one(Kind::ChunkAtLeast { a: y.shifted(constant(c)?.checked_mul(*by)?)?, b: x.clone(), by: *by })
        }
        (Number::Floor(a, by), Number::Linear(b)) => one(Kind::AtLeastZero(a.plus(by.checked_neg()?, b)?)),
        (Number::Linear(a), Number::Floor(b, by)) => {
            one(Kind::AtLeastZero(a.times(*by)?.shifted(by - 1)?.plus(-1, b)?))
        }
        _ => None,
    }
}
