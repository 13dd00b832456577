//! Helpers of the interpreter suites: tensors in one line and single-op programs.
#![allow(dead_code)]

use std::sync::Arc;

use symmc_ir::interp::{self, InterpError, Tolerance, compare};
use symmc_ir::{
    DType, Dim, GraphBuilder, GroupId, GroupMembers, InputKind, Op, SymbolBindings, Tensor, TensorType,
    ValueId,
};

/// A tensor of floats, or of integers and bools given as floats.
pub fn t(dtype: DType, shape: &[usize], elements: &[f64]) -> Tensor {
    Tensor::from_f64(dtype, shape, elements).expect("as many elements as the shape says")
}

pub fn f32s(shape: &[usize], elements: &[f64]) -> Tensor {
    t(DType::F32, shape, elements)
}

pub fn i64s(shape: &[usize], elements: &[i64]) -> Tensor {
    Tensor::from_i64(DType::I64, shape, elements).expect("as many elements as the shape says")
}

pub fn bools(shape: &[usize], elements: &[i64]) -> Tensor {
    Tensor::from_i64(DType::Bool, shape, elements).expect("as many elements as the shape says")
}

pub fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape.iter().map(|&d| Dim::from(d as i64)).collect::<Vec<_>>())
}

pub fn type_of(tensor: &Tensor) -> TensorType {
    ty(tensor.dtype(), tensor.shape())
}

/// Runs one op on one rank; `results` are the types to declare.
pub fn apply(op: Op, inputs: &[Tensor], results: Vec<TensorType>) -> Result<Vec<Tensor>, InterpError> {
    let rank = inputs.to_vec();
    let mut out = apply_on_ranks(&[], |_| op.clone(), &[rank], results)?;
    Ok(out.remove(0))
}

/// Runs one op with one rank per input, and a group of these cells (all ranks if there are none).
pub fn apply_on_ranks(
    cells: &[&[u32]],
    op: impl Fn(GroupId) -> Op,
    inputs: &[Vec<Tensor>],
    results: Vec<TensorType>,
) -> Result<Vec<Vec<Tensor>>, InterpError> {
    let mut b = GraphBuilder::new("one op", Some(inputs.len() as u32));
    let members = match cells {
        [] => GroupMembers::World,
        cells => GroupMembers::Cells(cells.iter().map(|c| c.to_vec()).collect()),
    };
    let group = b.group("g", members);
    let operands: Vec<ValueId> =
        inputs[0].iter().map(|x| b.input(InputKind::Argument, "x", "", type_of(x), None)).collect();
    let outputs = b.node_as("y", op(group), &operands, results).unwrap_or_else(|e| panic!("{e}"));
    outputs.into_iter().for_each(|v| b.output(v));
    let inputs: Vec<Vec<Arc<Tensor>>> =
        inputs.iter().map(|rank| rank.iter().cloned().map(Arc::new).collect()).collect();
    interp::run(&b.finish(), &SymbolBindings::new(), &inputs)
}

/// The op gives exactly the expected results.
#[track_caller]
pub fn check(op: Op, inputs: &[Tensor], expected: &[Tensor]) {
    check_near(op, inputs, expected, 0.0);
}

/// The op gives the expected results within `tolerance`.
#[track_caller]
pub fn check_near(op: Op, inputs: &[Tensor], expected: &[Tensor], tolerance: f64) {
    let name = format!("{op:?}");
    let results = apply(op, inputs, expected.iter().map(type_of).collect()).unwrap_or_else(|e| panic!("{e}"));
    assert_same(&name, &results, expected, tolerance);
}

/// Asserts that the op fails on these inputs with exactly this message after rank, node and op.
#[track_caller]
pub fn check_error(op: Op, inputs: &[Tensor], results: &[TensorType], expected: &str) {
    match apply(op, inputs, results.to_vec()) {
        Err(InterpError::Op { rank: 0, node, error, .. }) => {
            assert_eq!((node.as_str(), error.to_string().as_str()), ("y", expected));
        }
        other => panic!("expected `{expected}`, found {other:?}"),
    }
}

#[track_caller]
pub fn assert_same(name: &str, found: &[Tensor], expected: &[Tensor], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let c = compare(found, expected, Tolerance::absolute(tolerance));
        assert!(
            c.agrees(),
            "{name}, result {i}: {c}\nfound {:?}\nexpected {:?}",
            found.to_f64(),
            expected.to_f64()
        );
    }
}
