//! Complex numbers, as rotary embeddings and Fourier transforms use them.
//!
//! A complex tensor is stored as in PyTorch: floats with one more axis, of extent 2, for the real and the
//! imaginary part. `view_as_complex` and `view_as_real` are therefore the same value under another name.
//! Complex inputs, outputs and stored tensors are floats with that axis. The declared type of a name says
//! whether it is complex. An op with a complex operand or result only uses the tables of this module. Other
//! ops are rejected.
//!
//! - Ops that move, add up or fill treat each component like a real tensor ([`per_component`]).
//! - Products, and ops that are made of products, have formulas ([`arithmetic`]).
//! - Fourier transforms are products with matrices of roots of unity ([`fourier`]).

mod arithmetic;
mod components;
mod fourier;
mod per_component;

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid};
use symmc_ir::{BinaryOp, DType, Dim, Scalar, UnaryOp};

use super::{OpRule, RuleRow, row, row_of_results};
use crate::aliasing::note_alias;
use crate::call::OpCall;
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::scope::tensor_names;

use components::{
    complex_rank, component, declared_component_type, is_complex, is_complex_result, is_first_complex,
    join_components, set_complex_result,
};
pub(super) use fourier::RULE_ROWS as TRANSFORMS;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row("aten.view_as_complex aten.view_as_real", "(identity)", identity),
    row_of_results("aten.polar", "cos, sin, mul, concat", |c| {
        let [length, angle] = c.tensors_named(["abs", "angle"])?;
        let [x, y] = c.formulas([length, angle], |[length, angle]| arithmetic::polar(length, angle))?;
        set_complex_result(c, x, y)
    }),
    row_of_results("aten.complex", "concat", |c| {
        let [x, y] = c.tensors_named(["real", "imag"])?;
        set_complex_result(c, x, y)
    }),
];

/// Ops that have other rows for real operands.
const ALSO_COMPLEX: &[RuleRow] = &[
    row_of_results("aten.mul", "mul, sub, add, concat", arithmetic::mul),
    row_of_results("aten.div.Tensor", "mul, div, concat", arithmetic::div),
    row_of_results("aten.add", "add", |c| arithmetic::sum(c, BinaryOp::Add)),
    row_of_results("aten.sub", "sub", |c| arithmetic::sum(c, BinaryOp::Sub)),
    row("aten.neg", "neg", |c| {
        let x = c.first_tensor()?;
        c.unary(UnaryOp::Neg, x)
    }),
    row_of_results("aten.reciprocal", "mul, div, concat", arithmetic::reciprocal),
    row("aten.abs", "mul, add, sqrt", arithmetic::abs),
    row("aten.sgn", "mul, add, sqrt, div", arithmetic::sgn),
    row_of_results("aten.exp", "exp, cos, sin, mul, concat", arithmetic::exp),
    row_of_results("aten.square", "mul, sub, add, concat", arithmetic::square),
    row("aten.conj aten._conj aten.conj_physical aten._conj_physical", "mul", conjugate),
    row(
        "aten.resolve_conj aten.resolve_neg aten.clone aten.contiguous aten.alias aten.detach \
         aten.lift_fresh_copy",
        "(identity)",
        identity,
    ),
    row_of_results("aten.mm aten.bmm", "matmul, sub, add, concat", |c| arithmetic::product(c, "mat2")),
    row_of_results("aten.mv", "matmul, sub, add, concat", |c| arithmetic::product(c, "vec")),
    row_of_results("aten.dot", "matmul, sub, add, concat", |c| arithmetic::product(c, "tensor")),
    row_of_results("aten.matmul", "matmul, sub, add, concat", |c| arithmetic::product(c, "other")),
    row("aten.real", "slice, reshape", |c| component_of_first(c, 0)),
    row("aten.imag", "slice, reshape", |c| component_of_first(c, 1)),
    row_of_results("aten.to aten._to_copy prims.convert_element_type", "cast", convert_complex),
    row("aten.copy", "cast, expand", copy_complex),
    row_of_results("aten._assert_tensor_metadata", "(nothing)", |c| {
        c.ignore_all();
        Ok(())
    }),
    row("aten.unsqueeze", "reshape", |c| {
        let x = c.first_tensor()?;
        let axis = c.axis("dim", complex_rank(c, x) + 1)?;
        c.unsqueeze(x, axis)
    }),
    row("aten.view.default aten._unsafe_view", "reshape", |c| reshape(c, "size")),
    row("aten.reshape", "reshape", |c| reshape(c, "shape")),
    row("aten.expand", "expand", expand),
    row("aten.transpose.int", "permute", |c| {
        let x = c.first_tensor()?;
        let a = c.axis("dim0", complex_rank(c, x))?;
        let b = c.axis("dim1", complex_rank(c, x))?;
        let mut order: Vec<usize> = (0..c.rank(x)).collect();
        order.swap(a, b);
        c.permute(x, order)
    }),
    row("aten.slice.Tensor", "slice", |c| {
        let x = c.first_tensor()?;
        let axis = c.axis_or("dim", 0, complex_rank(c, x))?;
        let step = c.int_or("step", 1)?;
        let (start, len) = super::slicing::slice_range(c, &c.extent(x, axis), step)?;
        c.slice(x, axis, start, len, step)
    }),
];

pub(crate) fn involves_complex(c: &OpCall<'_, '_>) -> bool {
    let operands = c.node.inputs.iter().flat_map(|i| tensor_names(&i.arg));
    operands.chain(c.node.results().into_iter().flatten()).any(|n| c.lowering.is_complex(n))
}

/// Applies the rule of an op for complex numbers. `plain` is its rule for real numbers.
pub(crate) fn lower_complex(c: &mut OpCall<'_, '_>, target: &str, plain: Option<OpRule>) -> RuleResult {
    let done = match (find_complex_rule(target), plain) {
        (Some(rule), _) => rule.apply(c),
        (None, Some(plain)) if per_component::has_component_rule(target) => {
            per_component::lower_per_component(c, target, plain)
        }
        _ => return Err(unsupported_complex_op()),
    };
    // An opaque op cannot have complex results, so it is an error here.
    done.map_err(|e| match e {
        RuleFailure::Opaque(why) => RuleFailure::Invalid(format!("complex operands or results: {why}")),
        other => other,
    })
}

/// The error for an op without a rule for complex numbers.
pub(crate) fn unsupported_complex_op() -> RuleFailure {
    let rows = RULE_ROWS.iter().chain(ALSO_COMPLEX).flat_map(|r| r.names());
    let others = [per_component::MOVING_OPS, per_component::FILLING_OPS].into_iter();
    let supported: Vec<&str> = rows.chain(others.flat_map(|names| names.split(' '))).collect();
    let supported = supported.join(", ");
    RuleFailure::Invalid(format!(
        "this operator is not supported for complex numbers; supported are {supported}, and their in-place forms"
    ))
}

fn find_complex_rule(target: &str) -> Option<OpRule> {
    complex_rule_named(target).or_else(|| complex_rule_named(target.rsplit_once('.')?.0))
}

fn complex_rule_named(name: &str) -> Option<OpRule> {
    let mut rows = RULE_ROWS.iter().chain(TRANSFORMS).chain(ALSO_COMPLEX);
    rows.find(|row| row.has_name(name)).map(|row| row.rule)
}

fn identity(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.first_tensor()
}

fn component_of_first(c: &mut OpCall<'_, '_>, which: i64) -> EmitResult {
    let x = c.first_tensor()?;
    component(c, x, which)
}

/// Negates the imaginary part: the components are multiplied by 1 and -1.
fn conjugate(c: &mut OpCall<'_, '_>) -> EmitResult {
    let x = c.first_tensor()?;
    let signs = c.iota(2.into(), 1, -2, DType::I64)?;
    let signs = c.cast(signs, c.dtype(x))?;
    let y = c.binary(BinaryOp::Mul, x, signs)?;
    note_alias(c, y, x);
    Ok(y)
}

/// Copies `src` into `self`, which keeps its type and extents.
fn copy_complex(c: &mut OpCall<'_, '_>) -> EmitResult {
    let [destination, from] = c.tensors_named(["self", "src"])?;
    let value = match (is_first_complex(c), is_complex(c, "src")) {
        (true, false) => {
            let zero = c.full(Scalar::Int(0), c.dtype(from), c.shape(from))?;
            join_components(c, from, zero)?
        }
        (false, true) => component(c, from, 0)?,
        _ => from,
    };
    let value = c.cast(value, c.dtype(destination))?;
    c.expand(value, c.shape(destination))
}

/// A conversion of dtype. Real numbers get an imaginary part of 0, and complex numbers that become real lose
/// theirs.
fn convert_complex(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["copy", "dtype", "other"]);
    let x = c.first_tensor()?;
    let result_type = declared_component_type(c)?;
    match (is_first_complex(c), is_complex_result(c)) {
        (true, true) => {
            let y = c.cast(x, result_type.dtype)?;
            c.set_only_result(y)
        }
        (true, false) => {
            let y = component(c, x, 0)?;
            let y = c.cast(y, result_type.dtype)?;
            c.set_only_result(y)
        }
        (false, _) => {
            let y = c.cast(x, result_type.dtype)?;
            let zero = c.full(Scalar::Int(0), result_type.dtype, c.shape(y))?;
            set_complex_result(c, y, zero)
        }
    }
}

fn reshape(c: &mut OpCall<'_, '_>, name: &str) -> EmitResult {
    let x = c.first_tensor()?;
    let extents = c.shape(x);
    let count = extents.iter().take(complex_rank(c, x)).cloned().fold(Dim::from(1), |a, b| a * b);
    let mut shape = c.resolve_open_extent(c.dims(name)?, &count)?;
    shape.push(2.into());
    c.reshape(x, shape)
}

/// An extent of -1 keeps the extent of `x`.
fn expand(c: &mut OpCall<'_, '_>) -> EmitResult {
    c.ignore(&["implicit"]);
    let x = c.first_tensor()?;
    let extents = c.shape(x);
    let mut shape = c.dims("size")?;
    shape.push(2.into());
    let Some(new) = shape.len().checked_sub(extents.len()) else {
        return invalid!("expected at least {} axes, found {}", complex_rank(c, x), shape.len() - 1);
    };
    for (d, o) in shape.iter_mut().skip(new).zip(extents) {
        if d.as_const() == Some(-1) {
            *d = o;
        }
    }
    c.expand(x, shape)
}
