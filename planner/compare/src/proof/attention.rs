//! Attention as a function of the elements that it reads.
//!
//! All forms of attention become one: a row of queries, the keys, the column of values, and for each column of the scores
//! whether the row sees it. Bounds, and masks of bools, are conditions on row and column; a condition compares a sum of
//! positions and of integers with 0. As everywhere in bounds of attention, integers of 64 bits are assumed to be far from
//! the ends of their range (`ir/src/positions.rs`). Heads of queries that share a head of keys read its elements.

use symmc_ir::attention::AttentionOperands;
use symmc_ir::{AttentionBound, BinaryOp, BoundSide, DType, Dim, Op, Scalar};

use super::evaluate::{Evaluated, NodeRef, Place, ProofTables, RegionEvaluator, Stop, ValueRef};
use super::index::Index;
use super::term::{Lambda, LambdaPiece, OpShape, Term, TermId};

impl RegionEvaluator<'_, '_> {
    pub fn attention(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        result: usize,
        place: &Place,
    ) -> Evaluated<TermId> {
        let Op::Attention { scale, cap, bounds, sink, .. } = &node.node.op else {
            return Err(Stop::Unknown("not an attention"));
        };
        let operands = node.operands();
        let parts = AttentionOperands::from_operands(bounds, *sink, &operands)
            .ok_or(Stop::Unknown("an attention has too few operands"))?;
        let rank = self.shape(*parts.q).len();
        let row = place.index[..rank - 1].to_vec();
        let zero = Index::constant(Dim::from(0));
        let at_row = |last: &Index| {
            let index = row.iter().chain([last]).cloned().collect();
            Place { ranks: place.ranks.clone(), index }
        };
        let key_shape = self.shape(*parts.k);
        let width = [key_shape[rank - 1].clone()];
        let columns = [key_shape[rank - 2].clone()];
        let head = self.key_head(tables, *parts.q, *parts.k, &row[rank - 3])?;
        let of_head = |column: &Index, last: &Index| {
            let mut index = row[..rank - 3].to_vec();
            index.extend([head.clone(), column.clone(), last.clone()]);
            Place { ranks: place.ranks.clone(), index }
        };
        let queries = self.lambda(tables, &width, |this, tables, params| {
            let place = this.broadcast(*parts.q, &at_row(&params[0]));
            this.element(tables, *parts.q, &place)
        })?;
        let both = [columns[0].clone(), width[0].clone()];
        let keys = self.lambda(tables, &both, |this, tables, params| {
            let place = this.broadcast(*parts.k, &of_head(&params[0], &params[1]));
            this.element(tables, *parts.k, &place)
        })?;
        let mut args = vec![queries, keys];
        if result == 0 {
            args.push(self.lambda(tables, &columns, |this, tables, params| {
                let place = this.broadcast(*parts.v, &of_head(&params[0], &place.index[rank - 1]));
                this.element(tables, *parts.v, &place)
            })?);
        }
        args.push(self.visible_columns(tables, node, &parts, &row, place)?);
        let mut shape = OpShape::default();
        if let Some(&mask) = parts.mask.filter(|&&mask| self.is_bias(mask)) {
            shape.axes.push(vec![args.len()]);
            args.push(self.lambda(tables, &columns, |this, tables, params| {
                let place = this.broadcast(mask, &at_row(&params[0]));
                this.element(tables, mask, &place)
            })?);
        }
        if let Some(&sink) = parts.sink {
            let place = self.broadcast(sink, &at_row(&zero));
            let body = self.element(tables, sink, &place)?;
            args.push(Lambda { extents: Vec::new(), pieces: vec![LambdaPiece { params: Vec::new(), body }] });
        }
        let op = Op::Attention {
            scale: *scale,
            cap: *cap,
            bounds: Vec::new(),
            sink: *sink,
            log_sum_exp: result == 1,
        };
        let dtype = self.ty(node.result(result)).dtype;
        tables.intern(dtype, Term::Bind { op, result, shape, at: Vec::new(), args })
    }

    /// Whether a mask is added to the scores.
    fn is_bias(&self, mask: ValueRef) -> bool {
        self.ty(mask).dtype.is_float()
    }

    /// For each column whether a row sees it, by the mask and all bounds.
    fn visible_columns(
        &mut self,
        tables: &mut ProofTables<'_>,
        node: &NodeRef,
        parts: &AttentionOperands<'_, ValueRef>,
        row: &[Index],
        place: &Place,
    ) -> Evaluated<Lambda> {
        let Op::Attention { bounds, .. } = &node.node.op else {
            return Err(Stop::Unknown("not an attention"));
        };
        let at_row = |last: &Index| {
            let index = row.iter().chain([last]).cloned().collect();
            Place { ranks: place.ranks.clone(), index }
        };
        let key_shape = self.shape(*parts.k);
        let columns = [key_shape[key_shape.len() - 2].clone()];
        self.lambda(tables, &columns, |this, tables, params| {
            let mut sees = tables.scalar((DType::Bool, 1))?;
            if let Some(&mask) = parts.mask.filter(|&&mask| !this.is_bias(mask)) {
                let place = this.broadcast(mask, &at_row(&params[0]));
                let mask = this.element(tables, mask, &place)?;
                let mask = tables.visibility(mask)?;
                sees = tables.apply(Op::Binary(BinaryOp::And), vec![sees, mask], DType::Bool)?;
            }
            let mut positions = parts.positions.iter();
            for bound in bounds {
                let operand = if bound.operand { positions.next() } else { None };
                let operand = match operand {
                    Some(&x) => {
                        let place = this.broadcast(x, &at_row(&Index::constant(Dim::from(0))));
                        Some(this.element(tables, x, &place)?)
                    }
                    None => None,
                };
                let add = this.map_dim(node, &bound.add);
                let condition =
                    tables.bound_condition(bound, &add, &row[row.len() - 1], &params[0], operand)?;
                sees = tables.apply(Op::Binary(BinaryOp::And), vec![sees, condition], DType::Bool)?;
            }
            Ok(sees)
        })
    }

    /// The head of keys that a head of queries reads.
    fn key_head(
        &self,
        tables: &mut ProofTables<'_>,
        q: ValueRef,
        k: ValueRef,
        head: &Index,
    ) -> Evaluated<Index> {
        let of_head = |x: ValueRef| {
            let shape = self.shape(x);
            shape[shape.len() - 3].clone()
        };
        let [heads, key_heads] = [of_head(q), of_head(k)];
        let shared = heads.exact_div(&key_heads).ok_or(Stop::Unknown("heads are not shared evenly"))?;
        let divided = tables.axes.divide(head, &shared);
        divided.map(|[head, _]| head).ok_or(Stop::Unknown("heads are not shared evenly"))
    }
}

/// A sum of positions and of integers with factors.
struct LinearSum {
    index: Index,
    atoms: Vec<(TermId, i64)>,
}

impl LinearSum {
    fn of_index(index: Index) -> LinearSum {
        LinearSum { index, atoms: Vec::new() }
    }

    fn plus(mut self, other: &LinearSum, factor: i64) -> LinearSum {
        self.index = self.index.plus(&other.index.times(&Dim::from(factor)));
        for &(atom, own) in &other.atoms {
            match self.atoms.iter_mut().find(|(term, _)| *term == atom) {
                Some((_, known)) => *known = known.saturating_add(own.saturating_mul(factor)),
                None => self.atoms.push((atom, own.saturating_mul(factor))),
            }
        }
        self.atoms.retain(|(_, factor)| *factor != 0);
        self
    }
}

/// The deepest sum that is followed.
const MAX_SUM_DEPTH: usize = 32;

impl ProofTables<'_> {
    /// Whether a row sees a column by a bound.
    fn bound_condition(
        &mut self,
        bound: &AttentionBound,
        add: &Dim,
        row: &Index,
        column: &Index,
        operand: Option<TermId>,
    ) -> Evaluated<TermId> {
        let mut limit = LinearSum::of_index(Index::constant(add.clone()));
        if bound.row {
            limit = limit.plus(&LinearSum::of_index(row.clone()), 1);
        }
        if let Some(operand) = operand {
            limit = limit.plus(&self.linear_sum(operand, 0), 1);
        }
        let column = LinearSum::of_index(column.clone());
        if let Some(chunk) = bound.chunk {
            let begin = self.chunk_begin(&limit, chunk)?;
            limit = LinearSum { index: Index::constant(Dim::from(0)), atoms: vec![(begin, 1)] };
            if bound.side == BoundSide::Below {
                limit.index = Index::constant(Dim::from(chunk as i64));
            }
        }
        match bound.side {
            BoundSide::From => self.not_negative(column.plus(&limit, -1)),
            BoundSide::Below => {
                let one = LinearSum::of_index(Index::constant(Dim::from(1)));
                self.not_negative(limit.plus(&column, -1).plus(&one, -1))
            }
        }
    }

    /// The begin of the chunk of a position.
    fn chunk_begin(&mut self, position: &LinearSum, chunk: u64) -> Evaluated<TermId> {
        let unknown = Stop::Unknown("a chunk has no position");
        if !position.atoms.is_empty() {
            return Err(unknown);
        }
        let position = self.intern(DType::I64, Term::Position(position.index.clone()))?;
        let chunk = i64::try_from(chunk).map_err(|_| unknown)?;
        let number = self.scalar(crate::number::scalar_bits(DType::I64, Scalar::Int(chunk)))?;
        let quotient = self.apply(Op::Binary(BinaryOp::FloorDiv), vec![position, number], DType::I64)?;
        self.apply(Op::Binary(BinaryOp::Mul), vec![quotient, number], DType::I64)
    }

    /// A condition of a mask with comparisons of integers as comparisons of sums with 0.
    pub fn visibility(&mut self, term: TermId) -> Evaluated<TermId> {
        let Term::Apply { op: Op::Binary(op), args } = self.terms.term(term).clone() else { return Ok(term) };
        let &[a, b] = &args[..] else { return Ok(term) };
        if op == BinaryOp::And && self.terms.dtype(term) == DType::Bool {
            let args = vec![self.visibility(a)?, self.visibility(b)?];
            return self.apply(Op::Binary(op), args, DType::Bool);
        }
        if self.terms.dtype(a).is_float() || self.terms.dtype(a) == DType::Bool {
            return Ok(term);
        }
        let [a, b] = [a, b].map(|x| self.linear_sum(x, 0));
        let one = LinearSum::of_index(Index::constant(Dim::from(1)));
        match op {
            BinaryOp::Ge => self.not_negative(a.plus(&b, -1)),
            BinaryOp::Le => self.not_negative(b.plus(&a, -1)),
            BinaryOp::Gt => self.not_negative(a.plus(&b, -1).plus(&one, -1)),
            BinaryOp::Lt => self.not_negative(b.plus(&a, -1).plus(&one, -1)),
            _ => Ok(term),
        }
    }

    fn linear_sum(&self, term: TermId, depth: usize) -> LinearSum {
        let dtype = self.terms.dtype(term);
        let atom = LinearSum { index: Index::constant(Dim::from(0)), atoms: vec![(term, 1)] };
        if let Some(index) = self.as_index(term) {
            return LinearSum::of_index(index);
        }
        let Term::Apply { op, args } = self.terms.term(term) else { return atom };
        if depth >= MAX_SUM_DEPTH || dtype != DType::I64 {
            return atom;
        }
        match (op, &args[..]) {
            (Op::Cast, &[x])
                if dtype.represents(self.terms.dtype(x)) && self.terms.dtype(x) != DType::Bool =>
            {
                self.linear_sum(x, depth + 1)
            }
            (Op::Binary(BinaryOp::Add), &[a, b]) => {
                self.linear_sum(a, depth + 1).plus(&self.linear_sum(b, depth + 1), 1)
            }
            (Op::Binary(BinaryOp::Sub), &[a, b]) => {
                self.linear_sum(a, depth + 1).plus(&self.linear_sum(b, depth + 1), -1)
            }
            _ => atom,
        }
    }

    fn not_negative(&mut self, sum: LinearSum) -> Evaluated<TermId> {
        if sum.atoms.is_empty()
            && let Some(truth) = self.decide(BinaryOp::Ge, &sum.index)
        {
            return self.scalar((DType::Bool, u64::from(truth)));
        }
        self.intern(DType::Bool, Term::NotNegative { index: sum.index, atoms: sum.atoms })
    }
}
