//! Rules about values that several ranks hold change no bit. The test covers every collective of values that
//! some ranks have in common, on groups of every shape, for every dtype with its special values.
//!
//! One program for each number of ranks and dtype gives the ranks of the cells of one group a common value.
//! It applies every collective on every group to that value and to its pieces.

use std::sync::Arc;

use symmc_ir::{
    AllToAllSplits, BinaryOp, Collective, CollectiveKind, CollectiveReduceOp, DType, Dim, FloatAttribute,
    Graph, GraphBuilder, GroupId, GroupMembers, InputKind, Op, Scalar, SymbolBindings, Tensor, TensorType,
    ValueId, interp,
};
use symmc_passes::canon::canonicalize;

use crate::folding::specials;

/// Groups of this many ranks: all, all in another order, halves, every other one, and each alone.
pub(crate) fn groups(ranks: u32) -> Vec<GroupMembers> {
    let half = ranks / 2;
    let mut out = vec![
        GroupMembers::World,
        GroupMembers::Cells(vec![(0..ranks).rev().collect()]),
        GroupMembers::Cells((0..ranks).map(|rank| vec![rank]).collect()),
    ];
    if ranks > 2 && ranks.is_multiple_of(2) {
        out.push(GroupMembers::Cells(vec![(0..half).collect(), (half..ranks).collect()]));
        out.push(GroupMembers::Cells((0..half).map(|rank| vec![rank, rank + half]).collect()));
        out.push(GroupMembers::Cells((0..half).rev().map(|rank| vec![rank + half, rank]).collect()));
    }
    out
}

fn kinds(n: u32, dtype: DType) -> Vec<CollectiveKind> {
    let next = |n: u32| (0..n).map(|rank| (rank, (rank + 1) % n)).collect();
    let mut out = vec![
        CollectiveKind::AllGather,
        CollectiveKind::AllToAll(AllToAllSplits::Even),
        CollectiveKind::Broadcast { root: n - 1 },
        CollectiveKind::Permute { pairs: next(n) },
        CollectiveKind::Permute { pairs: (1..n).map(|rank| (rank - 1, rank)).collect() },
    ];
    if dtype != DType::Bool {
        out.extend(
            CollectiveReduceOp::ALL
                .iter()
                .flat_map(|&op| [CollectiveKind::AllReduce(op), CollectiveKind::ReduceScatter(op)]),
        );
    }
    out
}

pub(crate) fn add_collective(
    builder: &mut GraphBuilder,
    kind: CollectiveKind,
    group: GroupId,
    x: ValueId,
) -> ValueId {
    let op = Op::Collective(Collective { kind, group, variant: None });
    builder.op("c", op, &[x]).expect("the extents are multiples of all numbers of ranks")
}

struct CollectiveSweep {
    builder: GraphBuilder,
    groups: Vec<GroupId>,
    dtype: DType,
}

impl CollectiveSweep {
    fn collective(&mut self, kind: CollectiveKind, group: GroupId, x: ValueId) -> ValueId {
        add_collective(&mut self.builder, kind, group, x)
    }

    /// Adds the patterns that rules match in values that the ranks of a group's cells have in common.
    fn apply(&mut self, common: ValueId) {
        for group in self.groups.clone() {
            let n = self.builder.graph().group_size(group).expect("known");
            for kind in kinds(n, self.dtype) {
                let y = self.collective(kind, group, common);
                self.builder.output(y);
            }
            let own = self.builder.op("own", Op::Shard { axis: 0, group }, &[common]).expect("divisible");
            let twice = if self.dtype == DType::Bool {
                own
            } else {
                let two =
                    if self.dtype.is_float() { Scalar::Float(FloatAttribute(2.0)) } else { Scalar::Int(2) };
                let op = Op::BinaryScalar { op: BinaryOp::Mul, scalar: two, scalar_left: false };
                self.builder.op("twice", op, &[own]).expect("of one type")
            };
            for inner in self.groups.clone() {
                let y = self.collective(CollectiveKind::AllGather, inner, twice);
                self.builder.output(y);
            }
        }
    }

    /// Collectives of collectives, and pieces of collectives, on every pair of groups.
    fn nested(&mut self, x: ValueId) {
        let (pairs, last) = (self.groups.clone(), DType::Bool);
        for (outer, inner) in pairs.iter().flat_map(|&a| pairs.iter().map(move |&b| (a, b))) {
            let mut kinds = vec![CollectiveKind::AllGather];
            if self.dtype != last {
                kinds.extend(CollectiveReduceOp::ALL.iter().map(|&op| CollectiveKind::AllReduce(op)));
            }
            for kind in kinds {
                let first = self.collective(kind.clone(), inner, x);
                let own =
                    self.builder.op("own", Op::Shard { axis: 0, group: outer }, &[first]).expect("divisible");
                let second = self.collective(kind, outer, first);
                self.builder.output(own);
                self.builder.output(second);
            }
        }
    }
}

/// The elements of each rank: special values, different on each rank.
fn inputs(ranks: u32, dtype: DType, n: usize) -> Vec<Vec<Arc<Tensor>>> {
    let special = specials(dtype);
    let of_rank = |rank: usize| {
        let element = |i: usize| special[(i * (rank + 1) + rank * 5) % special.len()];
        let tensor = match dtype.is_float() {
            true => {
                Tensor::from_f64(dtype, vec![n], &(0..n).map(|i| element(i).as_f64()).collect::<Vec<_>>())
            }
            false => {
                Tensor::from_i64(dtype, vec![n], &(0..n).map(|i| element(i).as_i64()).collect::<Vec<_>>())
            }
        };
        vec![Arc::new(tensor.expect("it has these elements"))]
    };
    (0..ranks as usize).map(of_rank).collect()
}

/// Runs both programs and compares all bits, except those of NaN. Returns the number of outputs.
pub(crate) fn check(source: &Graph, ranks: u32, dtype: DType, n: usize) -> usize {
    let (out, _) = canonicalize(source).expect("the program is valid");
    let inputs = inputs(ranks, dtype, n);
    let run = |graph: &Graph| interp::run(graph, &SymbolBindings::new(), &inputs).expect("it runs");
    for (rank, (expected, found)) in run(source).iter().zip(run(&out)).enumerate() {
        for (i, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let is_same = |k: usize| match dtype.is_float() {
                true => {
                    let (a, b) = (expected.get_f64(k), found.get_f64(k));
                    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
                }
                false => expected.get_i64(k) == found.get_i64(k),
            };
            let name = source.value_name(source.outputs[i].value);
            assert_eq!(expected.shape(), found.shape(), "{dtype}, {ranks} ranks, rank {rank}: %{name}");
            let wrong = (0..expected.numel()).find(|&k| !is_same(k));
            assert_eq!(
                wrong.map(|k| (expected.element_text(k), found.element_text(k))),
                None,
                "{dtype}, {ranks} ranks, rank {rank}: %{name}\n{}",
                symmc_ir::text::print(source)
            );
        }
    }
    source.outputs.len()
}

#[test]
fn no_bit_changes() {
    let mut outputs = 0;
    let reduced = || DType::ALL.iter().filter(|dtype| !dtype.is_storage_float());
    for (ranks, &dtype) in [2, 3, 4, 5, 6, 8].into_iter().flat_map(|n| reduced().map(move |d| (n, d))) {
        let n = 2 * ranks as usize * ranks as usize;
        for first in 0..2 + groups(ranks).len() {
            let mut builder = GraphBuilder::new("replicated", Some(ranks));
            let groups: Vec<GroupId> = groups(ranks)
                .into_iter()
                .enumerate()
                .map(|(i, m)| builder.group(&format!("g{i}"), m))
                .collect();
            let ty = TensorType::new(dtype, vec![Dim::from(n as i64)]);
            let x = builder.input(InputKind::Argument, "x", "", ty, None);
            let mut sweep = CollectiveSweep { builder, groups, dtype };
            match first.checked_sub(2) {
                Some(at) => {
                    let group = sweep.groups[at];
                    let common = sweep.collective(CollectiveKind::AllGather, group, x);
                    sweep.apply(common);
                }
                None if first == 0 => {
                    let group = sweep.groups[sweep.groups.len() - 1];
                    let common = sweep.collective(CollectiveKind::Broadcast { root: 0 }, group, x);
                    sweep.apply(common);
                }
                None => sweep.nested(x),
            }
            outputs += check(&sweep.builder.finish(), ranks, dtype, n);
        }
    }
    assert!(outputs > 10_000, "{outputs}");
}
