//! Cases of scatters and indexed stores with many places, against the CPU kernels.

use symmc_ir::{DType, Op, ReductionKind, Tensor};
use symmc_support::random::SplitMix;

use crate::case::OpCase;
use crate::large::{case, columns_first};
use crate::layout::PlacedTensor;
use crate::random::{indices, of, tensor};

pub(crate) fn list() -> Vec<OpCase> {
    let r = &mut SplitMix(8);
    let mut out = Vec::new();
    rows(r, &mut out);
    on_several_axes(r, &mut out);
    elements(r, &mut out);
    out
}

fn rows(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    for (height, width, places) in [(5, 3, 1100), (300, 24, 2500), (70_000, 1, 5000)] {
        let shape = [height, width];
        for dtype in [DType::BF16, DType::F32, DType::F64, DType::I64] {
            let x = PlacedTensor::dense(tensor(r, dtype, &shape));
            let source = tensor(r, dtype, &[places, width]);
            let positions = PlacedTensor::dense(indices(r, &[places], height));
            let result: &[(DType, &[usize])] = &[(dtype, &shape)];
            let mut add = |what: &str, op: Op, operands: [PlacedTensor; 3]| {
                out.push(case(
                    &format!("many places: {what} {dtype} {shape:?}"),
                    op,
                    operands.to_vec(),
                    result,
                    500.0,
                ));
            };
            let dense = PlacedTensor::dense(source.clone());
            add("index_add", Op::IndexAdd { axis: 0 }, [x.clone(), positions.clone(), dense.clone()]);
            for accumulate in [false, true] {
                let index_put = Op::IndexPut { axis: 0, accumulate };
                add("index_put", index_put.clone(), [x.clone(), dense.clone(), positions.clone()]);
                add(
                    "index_put of columns",
                    index_put.clone(),
                    [x.clone(), columns_first(source.clone()), positions.clone()],
                );
                let last_row = PlacedTensor::dense(of(Tensor::from_i64(
                    DType::I64,
                    [places],
                    &vec![height as i64 - 1; places],
                )));
                add("index_put to one row", index_put, [x.clone(), dense.clone(), last_row]);
            }
        }
    }
}

/// Pieces of axes before and after the indexed ones.
fn on_several_axes(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    let shape = [2, 40, 9, 6];
    let x = PlacedTensor::dense(tensor(r, DType::F32, &shape));
    let source = PlacedTensor::dense(tensor(r, DType::F32, &[2, 30, 50, 6]));
    let positions = [indices(r, &[30, 1], 40), indices(r, &[30, 50], 9)].map(PlacedTensor::dense);
    for accumulate in [false, true] {
        let operands = [x.clone(), source.clone()].into_iter().chain(positions.clone()).collect();
        let index_put = Op::IndexPut { axis: 1, accumulate };
        out.push(case(
            "many places: index_put on two axes",
            index_put,
            operands,
            &[(DType::F32, &shape)],
            100.0,
        ));
    }
}

fn elements(r: &mut SplitMix, out: &mut Vec<OpCase>) {
    for axis in [0, 1] {
        let oriented = |mut shape: [usize; 2]| {
            shape.rotate_left(axis);
            shape
        };
        let [shape, few] = [oriented([50, 4]), oriented([600, 3])];
        // A scatter takes at most as many elements as the operand has on other axes.
        for combine in std::iter::once(None).chain(ReductionKind::ALL.iter().copied().map(Some)) {
            for dtype in [DType::F16, DType::I32] {
                let x = PlacedTensor::dense(tensor(r, dtype, &shape));
                let (index, source) = (indices(r, &few, 50), tensor(r, dtype, &few));
                let operands = vec![x, PlacedTensor::dense(index), PlacedTensor::dense(source)];
                let name = format!("many places: scatter {combine:?} {dtype} axis {axis}");
                let op = Op::ScatterElements { axis, combine };
                out.push(case(&name, op, operands, &[(dtype, &shape)], 500.0));
            }
        }
    }
    // More lines than are sorted at a time.
    let [shape, few] = [[6, 30], [400_000, 4]];
    let places = indices(r, &few, 6);
    let [x, source] = [tensor(r, DType::F32, &shape), tensor(r, DType::F32, &few)];
    let scatter = Op::ScatterElements { axis: 0, combine: Some(ReductionKind::Max) };
    let operands = [x, places, source].map(PlacedTensor::dense).to_vec();
    out.push(case("large parts: scatter", scatter, operands, &[(DType::F32, &shape)], 1.0));
    // A result without elements.
    let [x, source] = [0, 300].map(|n| PlacedTensor::dense(tensor(r, DType::F32, &[n])));
    let index = PlacedTensor::dense(of(Tensor::from_i64(DType::I64, [300], &[0; 300])));
    let scatter = Op::ScatterElements { axis: 0, combine: None };
    out.push(case(
        "failing: many places: nowhere",
        scatter,
        vec![x, index, source],
        &[(DType::F32, &[0])],
        1.0,
    ));
    // An index out of range among many.
    let mut index = vec![1; 3000];
    index[2077] = 4;
    let index = PlacedTensor::dense(of(Tensor::from_i64(DType::I64, [3000], &index)));
    let [x, source] = [4, 3000].map(|n| PlacedTensor::dense(tensor(r, DType::F32, &[n])));
    let result: &[(DType, &[usize])] = &[(DType::F32, &[4])];
    let index_put = Op::IndexPut { axis: 0, accumulate: true };
    let operands = vec![x.clone(), source.clone(), index.clone()];
    out.push(case("failing: many places: index_put", index_put, operands, result, 1.0));
    let scatter = Op::ScatterElements { axis: 0, combine: None };
    out.push(case("failing: many places: scatter", scatter, vec![x, index, source], result, 1.0));
}
