//! Formulas: compositions of ops in the notation of arithmetic.
//!
//! A rule passes its values to [`EmitFormulas::formula`], and combines the [`Term`]s that it gets by operators and
//! methods. Each of them emits its node at once, so nodes have the order in which Rust evaluates a formula. After
//! a failure no more nodes are emitted, and the formula returns that failure. Numbers take the dtype of the term
//! that they are combined with.

use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Op, ReductionKind, Scalar, UnaryOp, ValueId};

use crate::emit::Emit;
use crate::failure::{RuleFailure, RuleResult};

/// The node for which a formula emits, and its first failure.
pub struct Formula<'f, E> {
    emit: RefCell<&'f mut dyn Emit<Error = E>>,
    failure: RefCell<Option<RuleFailure<E>>>,
}

/// A value within a formula. After a failure it holds an arbitrary value, whose rank and extents the formula must not rely on.
pub struct Term<'f, E> {
    formula: &'f Formula<'f, E>,
    value: ValueId,
}

impl<E> Clone for Term<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Term<'_, E> {}

/// The right operand of a binary op: a term or a number.
pub enum TermOperand<'f, E> {
    Term(Term<'f, E>),
    Scalar(Scalar),
}

impl<'f, E> From<Term<'f, E>> for TermOperand<'f, E> {
    fn from(term: Term<'f, E>) -> Self {
        TermOperand::Term(term)
    }
}

impl<E> From<Scalar> for TermOperand<'_, E> {
    fn from(scalar: Scalar) -> Self {
        TermOperand::Scalar(scalar)
    }
}

impl<E> From<f64> for TermOperand<'_, E> {
    fn from(number: f64) -> Self {
        TermOperand::Scalar(Scalar::Float(FloatAttribute(number)))
    }
}

impl<E> From<i64> for TermOperand<'_, E> {
    fn from(number: i64) -> Self {
        TermOperand::Scalar(Scalar::Int(number))
    }
}

impl<E> From<i32> for TermOperand<'_, E> {
    fn from(number: i32) -> Self {
        TermOperand::Scalar(Scalar::Int(number.into()))
    }
}

/// Methods named after the ops of one or of two operands that they emit.
macro_rules! ops {
    ($($unary:ident => $unary_op:ident),*; $($binary:ident => $binary_op:ident),*) => {
        $(pub fn $unary(self) -> Self {
            self.unary(UnaryOp::$unary_op)
        })*

        $(pub fn $binary(self, other: impl Into<TermOperand<'f, E>>) -> Self {
            self.binary(BinaryOp::$binary_op, other)
        })*
    };
}

impl<'f, E> Term<'f, E> {
    ops! {
        abs => Abs, sign => Sign, exp => Exp, log => Log, sqrt => Sqrt, rsqrt => Rsqrt,
        reciprocal => Reciprocal, sin => Sin, cos => Cos, tanh => Tanh, erf => Erf, sigmoid => Sigmoid,
        floor => Floor, relu => Relu, is_nan => IsNan, is_finite => IsFinite;
        max => Max, min => Min, atan2 => Atan2, floor_div => FloorDiv, eq => Eq, ne => Ne, lt => Lt, le => Le,
        gt => Gt, ge => Ge
    }

    /// Emits what a function of [`Emit`] emits from the value. The function uses no terms.
    pub fn map(self, emit: impl FnOnce(&mut dyn Emit<Error = E>, ValueId) -> RuleResult<ValueId, E>) -> Self {
        if self.formula.failure.borrow().is_some() {
            return self;
        }
        let result = emit(&mut **self.formula.emit.borrow_mut(), self.value);
        match result {
            Ok(value) => Term { value, ..self },
            Err(error) => {
                *self.formula.failure.borrow_mut() = Some(error);
                self
            }
        }
    }

    /// The term of another value.
    pub fn term(self, value: ValueId) -> Self {
        Term { value, ..self }
    }

    /// See [`Emit::is_non_negative`].
    pub fn is_non_negative(self) -> bool {
        self.formula.emit.borrow().is_non_negative(self.value)
    }

    pub fn dtype(self) -> DType {
        self.formula.emit.borrow().dtype(self.value)
    }

    pub fn rank(self) -> usize {
        self.formula.emit.borrow().rank(self.value)
    }

    /// See [`Emit::extent`].
    pub fn extent(self, axis: usize) -> Dim {
        self.formula.emit.borrow().extent(self.value, axis)
    }

    pub fn shape(self) -> Vec<Dim> {
        self.formula.emit.borrow().shape(self.value)
    }

    pub fn unary(self, op: UnaryOp) -> Self {
        self.map(|c, x| c.unary(op, x))
    }

    pub fn binary(self, op: BinaryOp, other: impl Into<TermOperand<'f, E>>) -> Self {
        match other.into() {
            TermOperand::Term(y) => self.map(|c, x| c.binary(op, x, y.value)),
            TermOperand::Scalar(s) => self.map(|c, x| c.binary_scalar(op, x, s)),
        }
    }

    /// `self op dim`. The dim takes the dtype of this term.
    pub fn binary_dim(self, op: BinaryOp, dim: &Dim) -> Self {
        self.map(|c, x| c.binary_dim(op, x, dim))
    }

    /// `scalar op self`.
    pub fn scalar_binary(self, op: BinaryOp, scalar: Scalar) -> Self {
        self.map(|c, x| c.scalar_binary(op, scalar, x))
    }

    /// `number ^ self`.
    pub fn power_of(self, number: f64) -> Self {
        self.scalar_binary(BinaryOp::Pow, Scalar::Float(FloatAttribute(number)))
    }

    pub fn square(self) -> Self {
        self * self
    }

    pub fn cast(self, dtype: DType) -> Self {
        self.map(|c, x| c.cast(x, dtype))
    }

    /// The elements of `x` where this condition holds, and those of `y` elsewhere. At least one of them is a term.
    pub fn select(self, x: impl Into<TermOperand<'f, E>>, y: impl Into<TermOperand<'f, E>>) -> Self {
        let (x, y) = match (x.into(), y.into()) {
            (TermOperand::Term(x), TermOperand::Term(y)) => (x, y),
            (TermOperand::Term(x), TermOperand::Scalar(s)) => (x, x.scalar(s)),
            (TermOperand::Scalar(s), TermOperand::Term(y)) => (y.scalar(s), y),
            (TermOperand::Scalar(s), TermOperand::Scalar(t)) => (self.scalar(s), self.scalar(t)),
        };
        self.map(|c, condition| c.select(condition, x.value, y.value))
    }

    /// A number as a tensor without axes, in the dtype of this term.
    pub fn constant(self, number: f64) -> Self {
        self.scalar(Scalar::Float(FloatAttribute(number)))
    }

    fn scalar(self, number: Scalar) -> Self {
        self.map(|c, x| c.full(number, c.dtype(x), vec![]))
    }

    pub fn zeros_like(self) -> Self {
        self.map(|c, x| c.full(Scalar::Int(0), c.dtype(x), c.shape(x)))
    }

    pub fn reduce(self, op: ReductionKind, axes: &[usize], keep: bool) -> Self {
        self.map(|c, x| c.reduce(op, x, axes.to_vec(), keep))
    }

    pub fn sum(self, axes: &[usize], keep: bool) -> Self {
        self.reduce(ReductionKind::Sum, axes, keep)
    }

    pub fn mean(self, axes: &[usize], keep: bool) -> Self {
        self.reduce(ReductionKind::Mean, axes, keep)
    }

    pub fn reshape(self, shape: Vec<Dim>) -> Self {
        self.map(|c, x| c.reshape(x, shape))
    }

    pub fn unsqueeze(self, axis: usize) -> Self {
        self.map(|c, x| c.unsqueeze(x, axis))
    }

    pub fn drop_axis(self, axis: usize) -> Self {
        self.map(|c, x| c.drop_axis(x, axis))
    }

    pub fn permute(self, perm: &[usize]) -> Self {
        self.map(|c, x| c.permute(x, perm.to_vec()))
    }

    pub fn expand(self, shape: Vec<Dim>) -> Self {
        self.map(|c, x| c.expand(x, shape))
    }

    /// `len` elements of an axis, from `start` on.
    pub fn slice(self, axis: usize, start: impl Into<Dim>, len: impl Into<Dim>) -> Self {
        self.strided_slice(axis, start, len, 1)
    }

    /// `len` elements of an axis, from `start` on, in steps of `step`.
    pub fn strided_slice(self, axis: usize, start: impl Into<Dim>, len: impl Into<Dim>, step: i64) -> Self {
        self.map(|c, x| c.slice(x, axis, start.into(), len.into(), step))
    }

    /// The sums of the elements up to each one along an axis.
    pub fn cumulative_sum(self, axis: usize) -> Self {
        self.map(|c, x| c.emit("cumsum", Op::CumSum { axis }, &[x]))
    }

    pub fn matmul(self, other: Self) -> Self {
        self.map(|c, x| c.matmul(x, other.value))
    }

    /// See [`Emit::numpy_matmul`].
    pub fn numpy_matmul(self, other: Self) -> Self {
        self.map(|c, x| c.numpy_matmul(x, other.value))
    }

    /// The concatenation with another term.
    pub fn concat(self, other: Self, axis: usize) -> Self {
        self.map(|c, x| c.concat(&[x, other.value], axis))
    }

    /// The elements at the positions of an axis that an index gives for each of them.
    pub fn gather(self, axis: usize, index: Self) -> Self {
        self.map(|c, x| c.emit("gather", Op::GatherElements { axis }, &[x, index.value]))
    }

    /// The slices of an axis at an index.
    pub fn take(self, axis: usize, index: Self) -> Self {
        self.map(|c, x| c.emit("take", Op::Take { axis }, &[x, index.value]))
    }
}

macro_rules! operators {
    ($($operator:ident $method:ident),*) => {
        $(impl<'f, E, R: Into<TermOperand<'f, E>>> $operator<R> for Term<'f, E> {
            type Output = Self;

            fn $method(self, other: R) -> Self {
                self.binary(BinaryOp::$operator, other)
            }
        })*
    };
}

operators! { Add add, Sub sub, Mul mul, Div div, Rem rem }

macro_rules! logical_operators {
    ($($operator:ident $method:ident $op:ident),*) => {
        $(impl<E> $operator for Term<'_, E> {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                self.binary(BinaryOp::$op, other)
            }
        })*
    };
}

logical_operators! { BitAnd bitand And, BitOr bitor Or, BitXor bitxor Xor }

macro_rules! operators_of_numbers {
    ($($operator:ident $method:ident),*) => {
        $(impl<'f, E> $operator<Term<'f, E>> for f64 {
            type Output = Term<'f, E>;

            fn $method(self, other: Term<'f, E>) -> Term<'f, E> {
                other.scalar_binary(BinaryOp::$operator, Scalar::Float(FloatAttribute(self)))
            }
        })*
    };
}

operators_of_numbers! { Sub sub, Div div }

impl<E> Neg for Term<'_, E> {
    type Output = Self;

    fn neg(self) -> Self {
        self.unary(UnaryOp::Neg)
    }
}

impl<E> Not for Term<'_, E> {
    type Output = Self;

    fn not(self) -> Self {
        self.unary(UnaryOp::Not)
    }
}

/// Emits formulas.
pub trait EmitFormulas: Emit + Sized {
    /// Emits a formula of these values.
    fn formula<const N: usize>(
        &mut self,
        values: [ValueId; N],
        formula: impl for<'f> FnOnce([Term<'f, Self::Error>; N]) -> Term<'f, Self::Error>,
    ) -> RuleResult<ValueId, Self::Error> {
        self.formulas(values, |terms| [formula(terms)]).map(|[value]| value)
    }

    /// Emits a formula of these values that has several results.
    fn formulas<const N: usize, const M: usize>(
        &mut self,
        values: [ValueId; N],
        formula: impl for<'f> FnOnce([Term<'f, Self::Error>; N]) -> [Term<'f, Self::Error>; M],
    ) -> RuleResult<[ValueId; M], Self::Error> {
        let state = Formula { emit: RefCell::new(self), failure: RefCell::new(None) };
        let results = formula(values.map(|value| Term { formula: &state, value })).map(|term| term.value);
        let failure = state.failure.take();
        failure.map_or(Ok(results), Err)
    }
}

impl<C: Emit> EmitFormulas for C {}
