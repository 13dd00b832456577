//! The computation of one element, as a term.
//!
//! A term gives an element of a value as a function of axes. Views, concatenations and the movement of elements between
//! ranks only change positions, so they have no terms of their own. A term that reads several elements has a
//! [`Lambda`] for each operand, with axes of its own.

use std::collections::HashMap;

use symmc_ir::{DType, Dim, Op};

use super::index::Index;
use crate::elements::ElementClass;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TermId(pub u32);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Term {
    /// An element of a class that both programs have, on the rank with these coordinates.
    Leaf { class: ElementClass, position: Index, ranks: Vec<Index> },
    /// A number of the dtype, by its bits.
    Scalar(u64),
    /// The integer that an index is.
    Position(Index),
    /// Whether a sum of an index and of integers with factors is at least 0.
    NotNegative { index: Index, atoms: Vec<(TermId, i64)> },
    /// An element-wise op.
    Apply { op: Op, args: Vec<TermId> },
    /// The element at `at` of the result with the number `result` of an op on whole operands.
    Bind { op: Op, result: usize, shape: OpShape, at: Vec<Index>, args: Vec<Lambda> },
}

/// What the meaning of an op depends on besides its attributes and operands.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct OpShape {
    /// The extents of the axes along which elements are computed together.
    pub extents: Vec<Dim>,
    /// The ranks of operands and results, and which of their axes the op has in this term. Empty if the op has one form only.
    pub axes: Vec<Vec<usize>>,
}

/// The elements of an operand as a function of positions along axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lambda {
    pub extents: Vec<Dim>,
    /// The positions along all axes of a part of them, and the element there.
    pub pieces: Vec<LambdaPiece>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LambdaPiece {
    pub params: Vec<Index>,
    pub body: TermId,
}

/// The most terms of one proof.
const MAX_TERMS: usize = 50_000;

#[derive(Default)]
pub struct TermTable {
    terms: Vec<(DType, Term)>,
    ids: HashMap<(DType, Term), TermId>,
}

impl TermTable {
    /// The number of a term; `None` if there are too many.
    pub fn intern(&mut self, dtype: DType, term: Term) -> Option<TermId> {
        let key = (dtype, term);
        if let Some(&id) = self.ids.get(&key) {
            return Some(id);
        }
        let id = TermId(u32::try_from(self.terms.len()).ok().filter(|_| self.terms.len() < MAX_TERMS)?);
        self.terms.push(key.clone());
        self.ids.insert(key, id);
        Some(id)
    }

    pub fn term(&self, id: TermId) -> &Term {
        &self.terms[id.0 as usize].1
    }

    pub fn dtype(&self, id: TermId) -> DType {
        self.terms[id.0 as usize].0
    }
}
