//! Small random cases of every op, against the interpreter; and cases that must fail.

use symmc_ir::{BinaryOp, DType, Op, Tensor};
use symmc_runtime::kernels::KernelError;
use symmc_support::random::SplitMix;

use crate::case::OpCase;
use crate::layout::PlacedTensor;
use crate::ops::OP_THEMES;
use crate::random::of;

/// How many cases of each theme.
const COUNTS: [u64; OP_THEMES.len()] = [100, 40, 60, 60, 40, 24, 60, 40, 40, 60, 60];

/// All small cases.
pub(crate) fn list() -> Vec<OpCase> {
    let mut out = Vec::new();
    for ((theme, make), count) in OP_THEMES.into_iter().zip(COUNTS) {
        for seed in 0..count {
            let r = &mut SplitMix(seed);
            let draft = make(r);
            // A draft that the interpreter refuses for its data has no expected result.
            let Some(expected) = draft.expected() else { continue };
            let operands = draft.operands.into_iter().map(|t| PlacedTensor::scattered(t, r)).collect();
            let expected = expected.into_iter().map(|t| PlacedTensor::scattered(t, r)).collect();
            let name = format!("{theme} {seed}: {:?}", draft.op);
            out.push(OpCase {
                name,
                op: draft.op,
                operands,
                expected: Ok(expected),
                scale: Some(draft.scale),
            });
        }
    }
    out.extend(failing());
    out
}

/// Data that are out of range.
fn failing() -> Vec<OpCase> {
    let x = || PlacedTensor::dense(of(Tensor::from_f64(DType::F32, [3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])));
    let ints = |shape: &[usize], v: &[i64]| PlacedTensor::dense(of(Tensor::from_i64(DType::I64, shape, v)));
    let index = |index| KernelError::Index { index, axis: 0, extent: 3 };
    let src = || PlacedTensor::dense(of(Tensor::from_f64(DType::F32, [1, 2], &[7.0, 8.0])));
    let make = |name: &str, op: Op, operands: Vec<PlacedTensor>, error: KernelError| OpCase {
        name: format!("failing: {name}"),
        op,
        operands,
        expected: Err(error),
        scale: Some(1.0),
    };
    let mut out = Vec::new();
    for bad in [3, -4, i64::MIN, i64::MAX] {
        out.push(make("take", Op::Take { axis: 0 }, vec![x(), ints(&[1], &[bad])], index(bad)));
    }
    let two = || ints(&[1, 2], &[1, -9]);
    out.push(make("gather", Op::GatherElements { axis: 0 }, vec![x(), two()], index(-9)));
    let scatter = Op::ScatterElements { axis: 0, combine: None };
    out.push(make("scatter", scatter, vec![x(), two(), src()], index(-9)));
    out.push(make("index_add", Op::IndexAdd { axis: 0 }, vec![x(), ints(&[1], &[5]), src()], index(5)));
    let index_put = Op::IndexPut { axis: 0, accumulate: false };
    out.push(make("index_put", index_put, vec![x(), src(), ints(&[1], &[-5])], index(-5)));
    for (end, bad) in [(1, [2, 1, 3]), (-1, [-1, 2, 3]), (4, [0, 4, 4]), (i64::MIN, [3, i64::MIN, i64::MAX])]
    {
        let y = PlacedTensor::dense(of(Tensor::from_f64(DType::F32, [3, 2, 1], &[1.0; 6])));
        let error = KernelError::GroupEnd { end, rows: 3 };
        out.push(make("grouped_matmul", Op::GroupedMatMul, vec![x(), y, ints(&[3], &bad)], error.clone()));
        let (y, turned) = (x(), PlacedTensor::dense(of(Tensor::from_f64(DType::F32, [2, 3], &[1.0; 6]))));
        out.push(make(
            "grouped_matmul by terms",
            Op::GroupedMatMul,
            vec![turned, y, ints(&[3], &bad)],
            error,
        ));
    }
    let divided = vec![ints(&[2], &[1, 2]), ints(&[2], &[1, 0])];
    out.push(make("division", Op::Binary(BinaryOp::FloorDiv), divided, KernelError::ZeroDivisor));
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use symmc_ir::CollectiveKind;
    use symmc_ir::text::{op_name, op_names};

    use super::*;
    use crate::special;

    /// Ops without a kernel, and routes, which have their own tests.
    const OTHERS: [&str; 7] = ["permute", "slice", "expand", "shard", "opaque", "custom", "route"];

    #[test]
    fn every_op_with_a_kernel_has_a_case() {
        let cases: BTreeSet<&str> = list().iter().chain(&special()).map(|case| op_name(&case.op)).collect();
        let collectives: Vec<&str> =
            CollectiveKind::sample_kinds(2).iter().map(CollectiveKind::name).collect();
        let missing: Vec<&str> = op_names()
            .filter(|name| !cases.contains(name) && !OTHERS.contains(name) && !collectives.contains(name))
            .collect();
        assert!(missing.is_empty(), "ops without a case in OP_THEMES: {missing:?}");
    }
}
