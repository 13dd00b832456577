//! Ops that create tensors: constants, fills, ranges, triangles.

use std::sync::Arc;

use symmc_import::{Emit, EmitFormulas, RuleCall, invalid, invalid_if, unsupported};
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, Tensor};

use super::{RuleRow, row, row_of_results};
use crate::call::OpCall;
use crate::known_values::{KnownValue, uniform_scalar};
use crate::lower::{EmitResult, RuleFailure, RuleResult};
use crate::proto::attribute_type as kind;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("Constant", 25, "(a constant)", constant),
    row("ConstantOfShape", 25, "full", |c| {
        let shape = c.ints(0, "the shape")?.dims;
        let value = match c.attribute_data("value")? {
            Some(data) => {
                let value = uniform_scalar(&data).filter(|_| data.numel() == 1);
                let value = value.ok_or_else(|| {
                    RuleFailure::Invalid(format!("expected one number as `value`, found {}", data.numel()))
                })?;
                (value, data.dtype())
            }
            None => (Scalar::Int(0), DType::F32),
        };
        c.full(value.0, value.1, shape)
    }),
    row("Range", 27, "iota", |c| {
        let dtype = c.operand_type(0)?.dtype;
        if dtype.is_float() {
            return float_range(c, dtype);
        }
        let start = single_dim(c, 0, "the start")?;
        let end = single_dim(c, 1, "the end")?;
        let step = single_dim(c, 2, "the step")?.as_const();
        let step = step.ok_or_else(|| RuleFailure::Opaque("the step is symbolic".into()))?;
        c.range(&start, &end, step, dtype)
    }),
    row("EyeLike", 22, "eq of iotas", |c| {
        let ty = c.operand_type(0)?;
        let [rows, columns] = ty.shape.as_slice() else {
            return invalid!("expected two axes, found {}", ty.rank());
        };
        let dtype = c.opt_dtype("dtype")?.unwrap_or(ty.dtype);
        let y =
            c.compare_positions((rows.clone(), columns.clone()), BinaryOp::Eq, &c.int_or("k", 0)?.into())?;
        c.cast(y, dtype)
    }),
    row("HannWindow", 17, "cos of an iota", |c| window(c, [0.5, -0.5, 0.0])),
    row("HammingWindow", 17, "cos of an iota", |c| window(c, [25.0 / 46.0, -21.0 / 46.0, 0.0])),
    row("BlackmanWindow", 17, "cos of an iota", |c| window(c, [0.42, -0.5, 0.08])),
    row("Trilu", 14, "select", |c| {
        let x = c.tensor(0)?;
        let k = c.opt_ints(1, "k")?.and_then(|k| k.dims.first().cloned()).unwrap_or(0.into());
        let op = if c.int_or("upper", 1)? != 0 { BinaryOp::Ge } else { BinaryOp::Le };
        c.triangle(x, op, &k)
    }),
];

/// A sum of a constant and the cosines of one and two periods, with these factors.
fn window(c: &mut OpCall<'_, '_>, [constant, once, twice]: [f64; 3]) -> EmitResult {
    let size = single_dim(c, 0, "the size")?;
    let dtype = c.opt_dtype("output_datatype")?.unwrap_or(DType::F32);
    let period = if c.int_or("periodic", 1)? != 0 { size.clone() } else { size.clone() - Dim::from(1) };
    let position = c.iota(size, 0, 1, DType::F64)?;
    let period = c.emit_dim(&period, DType::I64)?;
    let period = c.cast(period, DType::F64)?;
    let y = c.formula([position, period], |[position, period]| {
        let angle = position * std::f64::consts::TAU / period;
        angle.cos() * once + (angle * 2.0).cos() * twice + constant
    })?;
    c.cast(y, dtype)
}

fn constant(c: &mut OpCall<'_, '_>) -> RuleResult {
    let Some(attribute) = c.node.attribute.iter().find(|a| a.name.starts_with("value")) else {
        return unsupported!("the constant has no dense value");
    };
    let Some(a) = c.attribute(&attribute.name) else {
        return invalid!("expected an attribute `{}`, found none", attribute.ref_attr_name);
    };
    let data = match (attribute.name.as_str(), a.r#type) {
        ("value", _) => c.attribute_data("value")?,
        ("value_int", _) => Tensor::from_i64(DType::I64, vec![], &[a.i]).map(Arc::new),
        ("value_ints", _) => Tensor::from_i64(DType::I64, vec![a.ints.len()], &a.ints).map(Arc::new),
        ("value_float", _) => Tensor::from_f64(DType::F32, vec![], &[f64::from(a.f)]).map(Arc::new),
        ("value_floats", _) => {
            let wide: Vec<f64> = a.floats.iter().map(|x| f64::from(*x)).collect();
            Tensor::from_f64(DType::F32, vec![wide.len()], &wide).map(Arc::new)
        }
        (_, kind::STRING | kind::STRINGS) => return unsupported!("text constants are not supported"),
        _ => None,
    };
    let data = data.ok_or_else(|| {
        RuleFailure::Opaque(format!("a constant with `{}` is not supported", attribute.name))
    })?;
    if a.t.as_deref().is_some_and(|t| c.lowering.parameters.differs(t)) {
        let label = c.label.clone();
        let value = c.lowering.add_renamed_parameter(&label, data)?;
        return c.set_only_result(value);
    }
    c.set_known(0, KnownValue::Data(data));
    Ok(())
}

/// The integer in a float operand, if it is a constant or converted from an extent.
fn integer_as_float(c: &mut OpCall<'_, '_>, i: usize) -> RuleResult<Option<Dim>> {
    if let Some(number) = c.scalar(i)?.map(Scalar::as_f64) {
        let is_integer = number.fract() == 0.0 && number.abs() < f64::from(1 << 24);
        return Ok(is_integer.then(|| Dim::from(number as i64)));
    }
    let value = c.tensor(i)?;
    let graph = c.builder().graph();
    let mut source = value;
    // Extents are elements of an iota ([`Emit::emit_dim`]).
    while let Some((Op::Cast | Op::Reshape, &[x])) = graph.definition(source)
        && matches!(graph.ty(source).dtype, DType::F32 | DType::F64 | DType::I64)
    {
        source = x;
    }
    let Some((Op::Slice { axis: 0, start: index, .. }, &[x])) = graph.definition(source) else {
        return Ok(None);
    };
    let Some((Op::Iota { start, step: 1 }, _)) = graph.definition(x) else { return Ok(None) };
    let is_number = graph.ty(source).numel().as_const() == Some(1);
    Ok(is_number.then(|| index.clone() + Dim::from(*start)))
}

/// A range of floats with constant bounds: `max(ceil((end - start) / step), 0)` elements.
fn float_range(c: &mut OpCall<'_, '_>, dtype: DType) -> EmitResult {
    let start = c.scalar(0)?.map(Scalar::as_f64);
    let end = c.scalar(1)?.map(Scalar::as_f64);
    let step = c.scalar(2)?.map(Scalar::as_f64);
    let (Some(start), Some(end), Some(step)) = (start, end, step) else {
        let bounds = [integer_as_float(c, 0)?, integer_as_float(c, 1)?, integer_as_float(c, 2)?];
        return match bounds {
            [Some(start), Some(end), Some(step)] if step.as_const().is_some_and(|step| step != 0) => {
                c.range(&start, &end, step.as_const().unwrap_or(1), dtype)
            }
            _ => unsupported!("the bounds are floats and neither constants nor extents"),
        };
    };
    let count = ((end - start) / step).ceil();
    // A NaN is not contained in any range.
    invalid_if!(
        !(f64::NEG_INFINITY..f64::from(1 << 30)).contains(&count),
        "expected a finite range, found {start} to {end} by {step}"
    );
    let y = c.iota(Dim::from(count.max(0.0) as i64), 0, 1, DType::F64)?;
    let y = c.binary_float(BinaryOp::Mul, y, step)?;
    let y = c.binary_float(BinaryOp::Add, y, start)?;
    c.cast(y, dtype)
}

fn single_dim(c: &mut OpCall<'_, '_>, i: usize, what: &str) -> RuleResult<Dim> {
    match c.ints(i, what)?.dims.as_slice() {
        [dim] => Ok(dim.clone()),
        many => invalid!("expected one number as {what}, found {}", many.len()),
    }
}
