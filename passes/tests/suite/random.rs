//! Random programs compute the same before and after the passes.
//!
//! A program is grown from a stream of choices: a node of a random op on random values is kept if it
//! type-checks. The ops are biased towards those that rules match: views of views, known values, casts,
//! broadcasts, collectives.

use proptest::prelude::*;
use symmc_ir::SymbolId;
use symmc_ir::machine::MachineProfile;
use symmc_ir::*;
use symmc_passes::canon::canonicalize;
use symmc_passes::{LowerConfig, lower};

use crate::common::{bindings, difference};

/// The choices that grow a program; past their end every choice is 0.
struct GrowthChoices<'a>(std::slice::Iter<'a, u16>);

impl GrowthChoices<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |&c| usize::from(c) % n.max(1))
    }
    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

fn grow_program(choices: &[u16]) -> Graph {
    let mut c = GrowthChoices(choices.iter());
    let mut b = GraphBuilder::new("random", Some(2));
    let t = b.symbol("t", 1, 6);
    let world = b.group("all", GroupMembers::World);
    let ty = |dtype, shape: Vec<Dim>| TensorType::new(dtype, shape);
    let mut values = vec![
        b.input(InputKind::Argument, "f", "", ty(DType::F32, vec![t.into(), 4.into()]), None),
        b.input(InputKind::Argument, "g", "", ty(DType::F32, vec![2.into(), 1.into(), 4.into()]), None),
        b.input(InputKind::Parameter, "w", "", ty(DType::F32, vec![4.into(), 4.into()]), None),
        b.input(InputKind::Argument, "h", "", ty(DType::BF16, vec![1.into(), t.into()]), None),
        b.input(InputKind::Argument, "i", "", ty(DType::I64, vec![t.into()]), None),
        b.input(InputKind::Argument, "m", "", ty(DType::Bool, vec![2.into(), t.into()]), None),
    ];
    while c.0.len() > 0 {
        if let Some(value) = node(&mut c, &mut b, &values, t, world)
            && b.graph().ty(value).bytes().upper_bound(&b.graph().symbols) <= 1 << 14
        {
            values.push(value);
        }
    }
    // The last values depend on most others; a few others are returned by chance.
    for &v in values.iter().rev().take(3) {
        b.output(v);
    }
    let extra = values[c.below(values.len())];
    b.output(extra);
    b.finish()
}

fn node(
    c: &mut GrowthChoices,
    b: &mut GraphBuilder,
    values: &[ValueId],
    t: SymbolId,
    all: GroupId,
) -> Option<ValueId> {
    // Recent values make chains.
    let recent = values.len().saturating_sub(4);
    let x = if c.below(3) > 0 { values[recent + c.below(values.len() - recent)] } else { c.of(values) };
    let y = c.of(values);
    let tx = b.graph().ty(x).clone();
    let rank = tx.rank();
    let number = |c: &mut GrowthChoices| match tx.dtype {
        DType::Bool => Scalar::Bool(c.below(2) == 1),
        d if d.is_float() => {
            Scalar::Float(FloatAttribute(c.of(&[0.0, 1.0, 2.0, -0.0, 0.5, f64::NEG_INFINITY])))
        }
        _ => Scalar::Int(c.of(&[0, 1, 2, -1, 3])),
    };
    let extent = |c: &mut GrowthChoices| c.of(&[0, 1, 2, 3, 4]);
    let dim = |i: i64| if i == 0 { Dim::from(t) } else { Dim::from(i) };
    let name = "n";
    match c.below(24) {
        0 => b.op_as(name, Op::Full(number(c)), &[], TensorType::new(tx.dtype, tx.shape.clone())),
        1 => {
            let (start, step) = (c.of(&[0, 1, -2]), c.of(&[1, 2, -1]));
            let shape = vec![dim(extent(c))];
            b.op_as(name, Op::Iota { start, step }, &[], TensorType::new(DType::I64, shape))
        }
        2 | 3 => {
            let op = c.of(&[
                BinaryOp::Add,
                BinaryOp::Sub,
                BinaryOp::Mul,
                BinaryOp::Max,
                BinaryOp::And,
                BinaryOp::Or,
            ]);
            b.op(name, Op::Binary(op), &[x, y])
        }
        4 | 5 => {
            let op =
                c.of(&[BinaryOp::Le, BinaryOp::Lt, BinaryOp::Eq, BinaryOp::Ne, BinaryOp::Ge, BinaryOp::Gt]);
            b.op(name, Op::Binary(op), &[x, y])
        }
        6 | 7 => {
            let op = c.of(&[
                BinaryOp::Add,
                BinaryOp::Sub,
                BinaryOp::Mul,
                BinaryOp::Div,
                BinaryOp::Pow,
                BinaryOp::FloorDiv,
                BinaryOp::And,
                BinaryOp::Xor,
                BinaryOp::Shl,
                BinaryOp::Shr,
                BinaryOp::Ne,
                BinaryOp::Lt,
            ]);
            let scalar = number(c);
            // Whole division by zero and powers of integers fail or overflow at run time.
            let is_integral = matches!(op, BinaryOp::FloorDiv | BinaryOp::Pow) && !tx.dtype.is_float();
            if is_integral && scalar.as_i64() < 1 {
                return None;
            }
            let scalar_left = c.below(3) == 0 && !is_integral;
            b.op(name, Op::BinaryScalar { op, scalar, scalar_left }, &[x])
        }
        8 => {
            let op = c.of(&[
                UnaryOp::Neg,
                UnaryOp::Not,
                UnaryOp::Abs,
                UnaryOp::Sigmoid,
                UnaryOp::Exp,
                UnaryOp::Relu,
            ]);
            b.op(name, Op::Unary(op), &[x])
        }
        9 => {
            let dtype = c.of(&[DType::F32, DType::BF16, DType::F64, DType::I64, DType::I32, DType::Bool]);
            let risky = tx.dtype.is_float() && !dtype.is_float();
            if risky {
                return None;
            }
            b.op_as(name, Op::Cast, &[x], TensorType::new(dtype, tx.shape.clone()))
        }
        10 | 11 => {
            // New shapes by splitting, merging and unit axes.
            let mut shape = tx.shape.clone();
            match c.below(4) {
                0 => shape.insert(c.below(rank + 1), Dim::from(1)),
                1 if rank > 0 => {
                    let a = c.below(rank);
                    (shape[a].as_const() == Some(1)).then(|| shape.remove(a))?;
                }
                2 if rank > 1 => {
                    let a = c.below(rank - 1);
                    let merged = shape.remove(a + 1);
                    shape[a] = shape[a].clone() * merged;
                }
                _ => {
                    let a = c.below(rank);
                    let half = shape.get(a)?.exact_div(&Dim::from(2))?;
                    shape[a] = half;
                    shape.insert(a, Dim::from(2));
                }
            }
            b.reshape(name, x, shape)
        }
        12 | 13 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            let (i, j) = (c.below(rank), c.below(rank));
            if rank > 0 {
                perm.swap(i, j);
            }
            b.op(name, Op::Permute { perm }, &[x])
        }
        14 | 15 => {
            let axis = c.below(rank);
            let n = tx.shape.get(axis)?.clone();
            let mut shape = tx.shape.clone();
            let (start, extent, step) = match (c.below(4), n.as_const()) {
                (0, _) => (Dim::from(0), Dim::from(1), 1),
                (1, _) => (n.clone() - Dim::from(1), Dim::from(1), 1),
                (2, Some(n)) if n > 1 => (Dim::from(1), Dim::from(n - 1), 1),
                (3, Some(n)) => (Dim::from(0), Dim::from((n + 1) / 2), 2),
                _ => (Dim::from(0), n, 1),
            };
            shape[axis] = extent;
            b.op_as(name, Op::Slice { axis, start, step }, &[x], TensorType::new(tx.dtype, shape))
        }
        16 | 17 => {
            let mut shape = tx.shape.clone();
            if c.below(2) == 0 {
                shape.insert(0, dim(extent(c)));
            }
            let wider = dim(extent(c));
            for d in shape.iter_mut().filter(|d| d.as_const() == Some(1)) {
                *d = wider.clone();
            }
            b.op_as(name, Op::Expand, &[x], TensorType::new(tx.dtype, shape))
        }
        18 => b.op(name, Op::Concat { axis: c.below(rank) }, &[x, y]),
        19 => {
            let axis = c.below(rank);
            let mut shape = tx.shape.clone();
            let wider = shape.get(axis)?.clone() + Dim::from(2);
            shape[axis] = wider;
            let mut low = vec![Dim::from(0); rank];
            low[axis] = Dim::from(c.below(3) as i64);
            let value = number(c);
            b.op_as(name, Op::Pad { low, value }, &[x], TensorType::new(tx.dtype, shape))
        }
        20 => b.op(name, Op::Select, &[x, y, c.of(values)]),
        21 => match c.below(3) {
            0 => b.op(name, Op::MATMUL, &[x, y]),
            1 => b.op(name, Op::CumSum { axis: c.below(rank) }, &[x]),
            _ => {
                let op =
                    c.of(&[ReductionKind::Sum, ReductionKind::Max, ReductionKind::Any, ReductionKind::Mean]);
                b.op(name, Op::Reduce { op, axes: vec![c.below(rank)], keep: c.below(2) == 0 }, &[x])
            }
        },
        22 => b.op(name, Op::Copy, &[x]),
        _ => {
            let kind = match c.below(4) {
                0 => CollectiveKind::AllReduce(c.of(&[CollectiveReduceOp::Sum, CollectiveReduceOp::Max])),
                1 => CollectiveKind::AllGather,
                2 => CollectiveKind::ReduceScatter(CollectiveReduceOp::Sum),
                _ => CollectiveKind::AllToAll(AllToAllSplits::Even),
            };
            b.collective(name, kind, all, &[x]).map(|r| r[0])
        }
    }
    .ok()
}

/// Rules whose two sides round differently.
const RECOGNISED: [&str; 7] = [
    "rms_norm",
    "rms_norm_between_casts",
    "rms_norm_weight",
    "silu",
    "softmax",
    "between_casts",
    "attention",
];

fn check(choices: &[u16]) {
    let source = grow_program(choices);
    if symmc_ir::verify::verify(&source).is_err() {
        return;
    }
    let (canonical, report) = canonicalize(&source).unwrap();
    let (again, twice) = canonicalize(&canonical).unwrap();
    assert_eq!(text::print(&canonical), text::print(&again), "a second time {:?} fired", twice.fired);
    let exact = !RECOGNISED.iter().any(|r| report.fired.contains_key(r));
    let mut config = LowerConfig::new(MachineProfile::builtin("h200x2").unwrap());
    config.symbols.insert(source.symbols.keys().next().unwrap(), (1, 4));
    let (lowered, ..) = lower(&canonical, &config).unwrap();
    symmc_ir::verify::verify(&lowered).unwrap();
    for which in [0, 2, 3] {
        let bindings = bindings(&source, which);
        let worst = difference(&source, &lowered, &bindings, 11);
        let allowed = if exact { 0.0 } else { 1e-5 };
        assert!(
            worst <= allowed,
            "differs by {worst} at {which}; fired {:?}\n{}\n{}",
            report.fired,
            text::print(&source),
            text::print(&lowered)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_keep_their_values(choices in proptest::collection::vec(any::<u16>(), 40..400)) {
        check(&choices);
    }
}
