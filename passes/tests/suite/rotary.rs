//! Rotary embeddings in the forms in which they are written, with random shapes. Each is recognised and
//! keeps its bits, and none with a fault is recognised.

use symmc_ir::*;
use symmc_passes::canon::canonicalize;
use symmc_support::random::SplitMix;

use crate::common::{bindings, difference};

/// One deviation from a rotary embedding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RotaryFault {
    None,
    /// The sign is at the other half.
    Sign,
    /// The products are subtracted where they must be added.
    Difference,
    /// The halves are not exchanged.
    Order,
    /// The second members begin one element early.
    OneOff,
    /// Another value is multiplied with the sines.
    Other,
    /// The numbers of one member are those of another.
    Numbers,
}

const FAULTS: [RotaryFault; 6] = [
    RotaryFault::Sign,
    RotaryFault::Difference,
    RotaryFault::Order,
    RotaryFault::OneOff,
    RotaryFault::Other,
    RotaryFault::Numbers,
];

/// A form in which it is written.
#[derive(Clone, Debug)]
struct RotaryForm {
    dtype: DType,
    /// The dtype of the cosines; the rotated operand is cast to it and back.
    numbers: DType,
    interleaved: bool,
    /// Members of the pairs are multiplied separately, instead of `rotate_half`.
    apart: bool,
    /// A number for each pair, repeated where the form needs one for each element.
    by_pair: bool,
    /// Half of the rotated elements of a row. `rest` elements follow them, and they begin at `first` in a
    /// longer row.
    half: i64,
    rest: i64,
    first: i64,
    heads: i64,
    fault: RotaryFault,
}

impl RotaryForm {
    fn random(r: &mut SplitMix) -> RotaryForm {
        let (dtype, numbers) = r.pick(&[
            (DType::F32, DType::F32),
            (DType::BF16, DType::BF16),
            (DType::F16, DType::F16),
            (DType::BF16, DType::F32),
            (DType::F64, DType::F64),
        ]);
        RotaryForm {
            dtype,
            numbers,
            interleaved: r.one_in(2),
            apart: r.one_in(2),
            by_pair: r.one_in(2),
            half: 2 + r.below(4) as i64,
            rest: if r.one_in(2) { 0 } else { 1 + r.below(5) as i64 },
            first: if r.one_in(2) { 0 } else { 3 },
            heads: 1 + r.below(3) as i64,
            fault: RotaryFault::None,
        }
    }
}

struct RotaryWriter<'f> {
    b: GraphBuilder,
    form: &'f RotaryForm,
}

impl RotaryWriter<'_> {
    fn ty(&self, x: ValueId) -> TensorType {
        self.b.graph().ty(x).clone()
    }

    fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        self.b.op("n", op, inputs).unwrap()
    }

    fn mul(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.op(Op::Binary(BinaryOp::Mul), &[x, y])
    }

    fn cast(&mut self, x: ValueId, dtype: DType) -> ValueId {
        let ty = TensorType::new(dtype, self.ty(x).shape);
        self.b.op_as("c", Op::Cast, &[x], ty).unwrap()
    }

    /// A slice of the last axis.
    fn part(&mut self, x: ValueId, start: i64, step: i64, n: i64) -> ValueId {
        let mut ty = self.ty(x);
        let axis = ty.rank() - 1;
        ty.shape[axis] = Dim::from(n);
        let op = Op::Slice { axis, start: Dim::from(start), step };
        self.b.op_as("s", op, &[x], ty).unwrap()
    }

    /// The first and the second members of the pairs.
    fn members(&mut self, x: ValueId) -> [ValueId; 2] {
        let h = self.form.half;
        match self.form.interleaved {
            true => [self.part(x, 0, 2, h), self.part(x, 1, 2, h)],
            false => [self.part(x, 0, 1, h), self.part(x, h, 1, h)],
        }
    }

    /// Pairs of these members.
    fn pairs(&mut self, members: [ValueId; 2]) -> ValueId {
        let ty = self.ty(members[0]);
        let axis = ty.rank();
        if !self.form.interleaved {
            return self.op(Op::Concat { axis: axis - 1 }, &members);
        }
        let mut shape = ty.shape.clone();
        shape.push(Dim::from(1));
        let stacked = members.map(|m| self.b.reshape("u", m, shape.clone()).unwrap());
        let stacked = self.op(Op::Concat { axis }, &stacked);
        let mut shape = ty.shape;
        shape[axis - 1] = shape[axis - 1].clone() * Dim::from(2);
        self.b.reshape("f", stacked, shape).unwrap()
    }

    /// The rotated value, with these cosines and sines.
    fn turned(&mut self, x: ValueId, [cos, sin]: [ValueId; 2], other: ValueId) -> ValueId {
        let fault = self.form.fault;
        let add = |subtracts: bool| Op::Binary(if subtracts { BinaryOp::Sub } else { BinaryOp::Add });
        let [a, mut b] = self.members(x);
        if fault == RotaryFault::OneOff {
            let (start, step) = if self.form.interleaved { (0, 2) } else { (self.form.half - 1, 1) };
            b = self.part(x, start, step, self.form.half);
        }
        if self.form.apart {
            let [ca, cb] = if self.form.by_pair { [cos; 2] } else { self.members(cos) };
            let [sa, mut sb] = if self.form.by_pair { [sin; 2] } else { self.members(sin) };
            if fault == RotaryFault::Numbers {
                sb = cb;
            }
            let source = if fault == RotaryFault::Other { self.members(other)[0] } else { a };
            let (aa, bb) = (self.mul(a, ca), self.mul(sb, source));
            let (ab, ba) = if fault == RotaryFault::Order {
                (self.mul(a, sa), self.mul(b, cb))
            } else {
                (self.mul(b, sa), self.mul(b, cb))
            };
            let first_sum = self.op(add(fault != RotaryFault::Sign), &[aa, ab]);
            let right = self.op(add(fault == RotaryFault::Difference), &[ba, bb]);
            return self.pairs([first_sum, right]);
        }
        let numbers = |w: &mut Self, v: ValueId| if w.form.by_pair { w.pairs([v, v]) } else { v };
        let (cos, sin) = (numbers(self, cos), numbers(self, sin));
        // Sines of pairs are the same on both sides of the rotation.
        let fault = match fault {
            RotaryFault::Numbers if self.form.by_pair => RotaryFault::Difference,
            fault => fault,
        };
        if fault == RotaryFault::Numbers {
            let product = self.mul(x, sin);
            let [a, b] = self.members(product);
            let negative = self.op(Op::Unary(UnaryOp::Neg), &[b]);
            let (one, two) = (self.mul(cos, x), self.pairs([negative, a]));
            return self.op(add(false), &[one, two]);
        }
        let negative = if fault == RotaryFault::Sign { a } else { b };
        let negative = self.op(Op::Unary(UnaryOp::Neg), &[negative]);
        let halves = match fault {
            RotaryFault::Sign => [b, negative],
            RotaryFault::Order => [a, negative],
            _ => [negative, a],
        };
        let rotated = self.pairs(halves);
        let source = if fault == RotaryFault::Other { other } else { x };
        let (one, two) = (self.mul(cos, source), self.mul(rotated, sin));
        self.op(add(fault == RotaryFault::Difference), &[one, two])
    }
}

/// A program of this form.
fn program(form: &RotaryForm) -> Graph {
    let mut b = GraphBuilder::new("rotary", Some(1));
    let t = b.symbol("t", 1, 5);
    let (turned, kept) = (2 * form.half, 2 * form.half + form.rest);
    let width = form.first + kept;
    let n = |n: i64| Dim::from(n);
    let mut arg = |name: &str, dtype, shape: Vec<Dim>| {
        b.input(InputKind::Argument, name, "", TensorType::new(dtype, shape), None)
    };
    let flat = arg("x", form.dtype, vec![Dim::from(t), n(form.heads * width)]);
    let unrelated = arg("other", form.numbers, vec![n(form.heads), Dim::from(t), n(turned)]);
    let angles = if form.by_pair { form.half } else { turned };
    let numbers = ["cos", "sin"].map(|name| arg(name, form.numbers, vec![Dim::from(t), n(angles)]));
    let mut w = RotaryWriter { b, form };
    let rows = w.b.reshape("v", flat, vec![Dim::from(t), n(form.heads), n(width)]).unwrap();
    let x = w.op(Op::Permute { perm: vec![1, 0, 2] }, &[rows]);
    let mut rotated = w.part(x, form.first, 1, turned);
    if form.numbers != form.dtype {
        rotated = w.cast(rotated, form.numbers);
    }
    let mut y = w.turned(rotated, numbers, unrelated);
    if form.numbers != form.dtype {
        y = w.cast(y, form.dtype);
    }
    if form.rest > 0 {
        let tail = w.part(x, form.first + turned, 1, form.rest);
        y = w.op(Op::Concat { axis: 2 }, &[y, tail]);
    }
    w.b.output(y);
    w.b.finish()
}

fn found(form: &RotaryForm) -> (usize, usize) {
    let source = program(form);
    verify::verify(&source).unwrap();
    let canonical = canonicalize(&source).unwrap().0;
    for which in [0, 3] {
        let worst = difference(&source, &canonical, &bindings(&source, which), 17);
        assert_eq!(worst, 0.0, "{form:?}\n{}\n{}", text::print(&source), text::print(&canonical));
    }
    let count = |f: fn(&Op) -> bool| canonical.nodes.values().filter(|node| f(&node.op)).count();
    let turned = count(|op| matches!(op, Op::RotaryEmbedding { .. }));
    // Slices take a part of a row, and are views.
    let op_count = count(|op| !matches!(op, Op::RotaryEmbedding { .. }) && !op.is_view());
    (turned, op_count)
}

#[test]
fn rotary_compositions_become_one_op_with_equal_bits() {
    let r = &mut SplitMix(5);
    for _ in 0..300 {
        let form = RotaryForm::random(r);
        assert_eq!(
            found(&form),
            (1, 0),
            "{form:?}\n{}",
            text::print(&canonicalize(&program(&form)).unwrap().0)
        );
    }
}

#[test]
fn near_rotary_compositions_are_unchanged() {
    let r = &mut SplitMix(6);
    for _ in 0..60 {
        let form = RotaryForm::random(r);
        for fault in FAULTS {
            let form = RotaryForm { fault, ..form.clone() };
            let (turned, _) = found(&form);
            assert_eq!(turned, 0, "{form:?}\n{}", text::print(&canonicalize(&program(&form)).unwrap().0));
        }
    }
}
