//! Element-wise ops on terms: integers that are positions, ops on numbers, and the equations.

use symmc_ir::{
    BinaryOp, DType, Dim, FloatAttribute, Graph, GraphOutput, Op, OutputKind, Scalar, SymbolBindings,
    TensorType, interp,
};

use super::equations::{EquationClass, ParsedEquation, Pattern, parsed_equations};
use super::evaluate::{Evaluated, ProofTables, Stop};
use super::index::Index;
use super::term::{Term, TermId};
use crate::number::scalar_operand;

/// The terms for the operands of an equation, by name.
type Operands = Vec<(char, TermId)>;

impl ProofTables<'_> {
    pub fn intern(&mut self, dtype: DType, term: Term) -> Evaluated<TermId> {
        self.terms.intern(dtype, term).ok_or(Stop::Unknown("too many terms"))
    }

    pub fn scalar(&mut self, (dtype, bits): (DType, u64)) -> Evaluated<TermId> {
        self.intern(dtype, Term::Scalar(bits))
    }

    /// The term of an element-wise op.
    pub fn apply(&mut self, op: Op, args: Vec<TermId>, dtype: DType) -> Evaluated<TermId> {
        self.spend()?;
        if let Some(term) = self.position(&op, &args, dtype)? {
            return Ok(term);
        }
        if let Some(number) = self.fold(&op, &args, dtype) {
            return self.scalar(number);
        }
        if let (Op::Cast, &[x]) = (&op, &args[..]) {
            let middle = self.terms.dtype(x);
            if middle == dtype {
                return Ok(x);
            }
            if let Term::Apply { op: Op::Cast, args } = self.terms.term(x)
                && middle.represents(self.terms.dtype(args[0]))
            {
                let inner = args.clone();
                return self.apply(Op::Cast, inner, dtype);
            }
        }
        for ParsedEquation { equation, left, right } in parsed_equations() {
            let Pattern::Apply(of_left, patterns) = left else { continue };
            if *of_left != op || !equation.types.contain(dtype) {
                continue;
            }
            let Some(operands) = self.match_operands(&op, patterns, &args, Vec::new()) else { continue };
            let fits = |&(name, term): &(char, TermId)| {
                name == 'c' || equation.types.contain(self.terms.dtype(term))
            };
            if operands.iter().all(fits) && self.allows(equation.class) {
                return self.build(right, &operands, dtype);
            }
        }
        self.intern(dtype, Term::Apply { op, args })
    }

    fn build(&mut self, pattern: &Pattern, operands: &Operands, dtype: DType) -> Evaluated<TermId> {
        match pattern {
            Pattern::Operand(name) => {
                let operand = operands.iter().find(|(n, _)| n == name);
                operand.map(|(_, term)| *term).ok_or(Stop::Unknown("an equation has no operand"))
            }
            Pattern::Number(_) | Pattern::Truth(_) => Err(Stop::Unknown("a number has no op")),
            Pattern::Apply(op, patterns) => {
                let mut args = Vec::new();
                for pattern in patterns {
                    args.push(match (op, pattern) {
                        (Op::Binary(op), Pattern::Number(number)) => {
                            self.scalar(scalar_operand(*op, dtype, number_of(dtype, *number)))?
                        }
                        _ => self.build(pattern, operands, dtype)?,
                    });
                }
                self.apply(op.clone(), args, dtype)
            }
        }
    }

    fn match_operands(
        &self,
        op: &Op,
        patterns: &[Pattern],
        args: &[TermId],
        known: Operands,
    ) -> Option<Operands> {
        let in_order = |order: &[TermId]| {
            let mut pairs = patterns.iter().zip(order);
            pairs
                .try_fold(known.clone(), |known, (pattern, &arg)| self.match_pattern(op, pattern, arg, known))
        };
        match args {
            [a, b] if commutes(op) => in_order(&[*a, *b]).or_else(|| in_order(&[*b, *a])),
            args if args.len() == patterns.len() => in_order(args),
            _ => None,
        }
    }

    fn match_pattern(
        &self,
        parent: &Op,
        pattern: &Pattern,
        term: TermId,
        mut known: Operands,
    ) -> Option<Operands> {
        let dtype = self.terms.dtype(term);
        match pattern {
            Pattern::Operand(name) => match known.iter().find(|(n, _)| n == name) {
                Some((_, other)) => (*other == term).then_some(known),
                None => {
                    known.push((*name, term));
                    Some(known)
                }
            },
            Pattern::Number(number) => {
                let Op::Binary(op) = parent else { return None };
                let (_, bits) = scalar_operand(*op, dtype, number_of(dtype, *number));
                (*self.terms.term(term) == Term::Scalar(bits)).then_some(known)
            }
            Pattern::Truth(truth) => (*self.terms.term(term) == Term::Scalar(u64::from(*truth))
                && dtype == DType::Bool)
                .then_some(known),
            Pattern::Apply(op, patterns) => match self.terms.term(term) {
                Term::Apply { op: of_term, args } if of_term == op => {
                    self.match_operands(op, patterns, args, known)
                }
                _ => None,
            },
        }
    }

    /// The op on positions: sums, differences and products of integers that stay within their dtype, and comparisons
    /// that have one result everywhere.
    pub fn position(&mut self, op: &Op, args: &[TermId], dtype: DType) -> Evaluated<Option<TermId>> {
        let indices: Option<Vec<Index>> = args.iter().map(|&arg| self.as_index(arg)).collect();
        let Some(indices) = indices else { return Ok(None) };
        let minus_one = Dim::from(-1);
        let difference = |a: &Index, b: &Index| a.clone().plus(&b.times(&minus_one));
        if let (Op::Binary(op), [a, b]) = (op, &indices[..])
            && op.is_comparison()
        {
            let truth = self.decide(*op, &difference(a, b));
            return truth.map(|truth| self.scalar((DType::Bool, u64::from(truth)))).transpose();
        }
        let index = match (op, &indices[..]) {
            (Op::Cast, [x]) => x.clone(),
            (Op::Binary(BinaryOp::Add), [a, b]) => a.clone().plus(b),
            (Op::Binary(BinaryOp::Sub), [a, b]) => difference(a, b),
            (Op::Binary(BinaryOp::Mul), [a, b]) => match (a.as_constant(), b.as_constant()) {
                (Some(factor), _) => b.times(factor),
                (_, Some(factor)) => a.times(factor),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        let Some((least, largest)) = dtype.integer_bounds().filter(|_| dtype != DType::Bool) else {
            return Ok(None);
        };
        // Sums of dims saturate at the ends of 64 bits.
        let limits = [least.max(i64::MIN / 4), largest.min(i64::MAX / 4)];
        let fits = self.axes.bounds(&index).is_some_and(|[low, high]| {
            low.bounds(self.axes.symbols).0 >= limits[0] && high.bounds(self.axes.symbols).1 <= limits[1]
        });
        if !fits {
            return Ok(None);
        }
        match index.as_constant().and_then(Dim::as_const) {
            Some(number) => self.scalar((dtype, number as u64)).map(Some),
            None => self.intern(dtype, Term::Position(index)).map(Some),
        }
    }

    pub fn as_index(&self, term: TermId) -> Option<Index> {
        let dtype = self.terms.dtype(term);
        match self.terms.term(term) {
            Term::Position(index) => Some(index.clone()),
            Term::Scalar(bits) if !dtype.is_float() && dtype != DType::Bool => {
                Some(Index::constant(Dim::from(*bits as i64)))
            }
            _ => None,
        }
    }

    /// The result of the comparison of a difference with 0, if it is the same everywhere.
    pub fn decide(&self, op: BinaryOp, difference: &Index) -> Option<bool> {
        let [low, high] = self.axes.bounds(difference)?;
        let least = low.bounds(self.axes.symbols).0;
        let largest = high.bounds(self.axes.symbols).1;
        let is_small = |x: i64| x.unsigned_abs() < u64::MAX / 8;
        if !is_small(least) || !is_small(largest) {
            return None;
        }
        match op {
            BinaryOp::Lt | BinaryOp::Ge if largest < 0 || least >= 0 => {
                Some((op == BinaryOp::Lt) == (largest < 0))
            }
            BinaryOp::Gt | BinaryOp::Le if least > 0 || largest <= 0 => {
                Some((op == BinaryOp::Gt) == (least > 0))
            }
            BinaryOp::Eq | BinaryOp::Ne if least > 0 || largest < 0 => Some(op == BinaryOp::Ne),
            BinaryOp::Eq | BinaryOp::Ne if least == 0 && largest == 0 => Some(op == BinaryOp::Eq),
            _ => None,
        }
    }

    /// The result of an op on numbers, by the interpreter.
    fn fold(&self, op: &Op, args: &[TermId], dtype: DType) -> Option<(DType, u64)> {
        let mut graph = Graph::new("number");
        graph.ranks = Some(1);
        let mut inputs = Vec::new();
        for &arg in args {
            let Term::Scalar(bits) = self.terms.term(arg) else { return None };
            let of_arg = self.terms.dtype(arg);
            // Scalars of narrow types may have more bits than a tensor.
            if of_arg.is_narrow_float() {
                return None;
            }
            let scalar = match of_arg {
                DType::Bool => Scalar::Bool(*bits != 0),
                of_arg if of_arg.is_float() => Scalar::Float(FloatAttribute(f64::from_bits(*bits))),
                _ => Scalar::Int(*bits as i64),
            };
            let ty = TensorType::new(of_arg, Vec::new());
            let n = graph.add_node(Op::Full(scalar), Vec::new(), vec![(format!("x{}", inputs.len()), ty)]);
            inputs.push(graph.nodes[n].outputs[0]);
        }
        let n = graph.add_node(op.clone(), inputs, vec![("y".into(), TensorType::new(dtype, Vec::new()))]);
        graph.outputs.push(GraphOutput { value: graph.nodes[n].outputs[0], kind: OutputKind::Returned });
        let results = interp::run(&graph, &SymbolBindings::new(), &[Vec::new()]).ok()?;
        let result = results.first()?.first()?;
        Some(match dtype {
            dtype if dtype.is_float() => (dtype, result.get_f64(0).to_bits()),
            dtype => (dtype, result.get_i64(0) as u64),
        })
    }
}

fn number_of(dtype: DType, number: f64) -> Scalar {
    if dtype.is_float() { Scalar::Float(FloatAttribute(number)) } else { Scalar::Int(number as i64) }
}

/// Whether the operands of an op may be exchanged. Maxima and minima of zeros of both signs depend on the order.
pub fn commutes(op: &Op) -> bool {
    use BinaryOp::*;
    matches!(op, Op::Binary(Add | Mul | And | Or | Xor | Eq | Ne))
}

impl ProofTables<'_> {
    /// Whether equations of this class may be used. Notes that one was, or would have been.
    pub fn allows(&mut self, class: EquationClass) -> bool {
        self.met_rounding |= class == EquationClass::Rounding;
        class <= self.allowed
    }

    pub fn spend(&mut self) -> Evaluated<()> {
        self.remaining_requests =
            self.remaining_requests.checked_sub(1).ok_or(Stop::Unknown("too many elements"))?;
        Ok(())
    }
}
