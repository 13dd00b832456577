//! Operands whose neighbours along the last axis are a few elements apart, at all alignments.

use symmc_ir::{BinaryOp, DType, Op, UnaryOp};
use symmc_support::random::SplitMix;

use crate::case::OpCase;
use crate::layout::{ElementLayout, PlacedTensor};
use crate::ops::OpDraft;
use crate::random::{indices, tensor};

/// Rows, columns, elements between rows, and elements before the first.
const PLACES: [[usize; 4]; 9] = [
    [4, 64, 0, 0],
    [4, 64, 0, 1],
    [3, 64, 8, 5],
    [5, 24, 4, 3],
    [1, 37, 0, 2],
    [1, 1000, 0, 9],
    [6, 40, 3, 1],
    [3, 33, 0, 0],
    [4, 16, 2, 7],
];

/// A matrix of rows with `step` between columns.
fn matrix(
    r: &mut SplitMix,
    dtype: DType,
    [rows, columns, gap, offset]: [usize; 4],
    step: usize,
) -> PlacedTensor {
    let strides = vec![(columns * step + gap) as isize, step as isize];
    PlacedTensor { tensor: tensor(r, dtype, &[rows, columns]), layout: ElementLayout { strides, offset } }
}

pub(crate) fn list() -> Vec<OpCase> {
    let r = &mut SplitMix(23);
    let mut out = Vec::new();
    for dtype in [DType::BF16, DType::F32, DType::U8, DType::I64] {
        for step in [2, 3, 4, 5] {
            // Each dtype and step has three of the places, in turn, and each op other places each time.
            for number in 0..3 {
                let turn = out.len() / 3;
                let position = PLACES[(2 * turn + 4 * number) % PLACES.len()];
                let name = format!("strided {dtype} by {step}, {position:?}");
                out.push(case(r, name, dtype, position, step, number));
            }
        }
    }
    out
}

fn case(r: &mut SplitMix, name: String, dtype: DType, place: [usize; 4], step: usize, kind: usize) -> OpCase {
    let x = matrix(r, dtype, place, step);
    let [rows, columns, ..] = place;
    let (op, others) = match kind {
        0 => (Op::Binary(BinaryOp::Add), vec![PlacedTensor::dense(tensor(r, dtype, &[rows, columns]))]),
        1 if dtype == DType::U8 => (Op::Copy, vec![]),
        1 => (Op::Unary(UnaryOp::Abs), vec![]),
        _ => (Op::Take { axis: 0 }, vec![PlacedTensor::dense(indices(r, &[7], rows))]),
    };
    let operands: Vec<PlacedTensor> = std::iter::once(x).chain(others).collect();
    let draft = OpDraft::new(op.clone(), operands.iter().map(|x| x.tensor.clone()).collect());
    let results = draft.expected().unwrap_or_default().into_iter().map(PlacedTensor::dense);
    OpCase { name, op, operands, expected: Ok(results.collect()), scale: Some(draft.scale) }
}
