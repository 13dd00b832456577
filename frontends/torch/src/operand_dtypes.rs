//! Requirements of operators on the dtypes of their operands, and on the numbers among their arguments.
//!
//! Rules convert operands to a common dtype where PyTorch does. Where PyTorch raises an error instead, as for
//! a product of f32 and f64, the operator has a row here, and a program that violates it is rejected with
//! [`ImportError::Dtypes`]. The tests compare the rows with PyTorch for all pairs of dtypes
//! (`tests/suite/dtypes.txt`). If devices differ, the dtypes that any of them accepts are accepted.
//!
//! Kernels that fill a tensor with a number, or use it as a factor, convert it to the dtype of the tensor, and raise if it does
//! not fit. Arithmetic and comparisons wrap it instead. The tests compare these rows with PyTorch as well
//! (`tests/suite/special.txt`).

use symmc_import::has_word;
use symmc_ir::{DType, Scalar};

use crate::call::OpCall;
use crate::dtype;
use crate::effects::bare_target;
use crate::error::ImportError;
use crate::lower::{RuleFailure, RuleResult};

/// A requirement of an operator. Omitted operands always satisfy it, and so do scalars where dtypes are required.
enum DtypeRequirement {
    /// All of these have the dtype of the first.
    Same(&'static [&'static str]),
    /// All of these have the dtype of the first argument, or all are f32 next to a first argument of f16 or
    /// bf16.
    SameOrF32(&'static str, &'static [&'static str]),
    OneOf(&'static str, &'static [DType]),
    NoBool(&'static [&'static str]),
    /// The dtype of the first argument is a float if one of these is, and no bool if one of these is none: it is that of the
    /// result.
    Holds(&'static str, &'static [&'static str]),
    /// At least one of these is neither integer nor bool.
    SomeFloat(&'static [&'static str]),
    /// These numbers fit into the dtype of the result.
    Fits(&'static [&'static str]),
    /// These numbers fit into the dtype in which the result is computed.
    FitsComputed(&'static [&'static str]),
    /// As [`FitsComputed`](Self::FitsComputed), for the factor of the second operand of a sum, or of a difference, which adds
    /// the negative product. The factor of integers is no float, and that of numbers no bool.
    Factor(&'static str, Sign),
    /// The lower and the upper bound of the results. For integers, each bound leaves values of the dtype.
    Bounds(&'static str, &'static str),
    /// The exponent of integers is not negative.
    Exponent(&'static str),
}

#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Plus,
    Minus,
}

use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32};
use DtypeRequirement::{
    Bounds, Exponent, Factor, Fits, FitsComputed, Holds, NoBool, OneOf, Same, SameOrF32, SomeFloat,
};

const INDEX_DTYPES: &[DType] = &[I32, I64];
/// Bools and bytes are masks when they are indices, and numbers elsewhere.
const INTEGER_DTYPES: &[DType] = &[Bool, U8, U16, U32, I8, I16, I32, I64];
const FLOAT_DTYPES: &[DType] = &[F16, BF16, F32, F64];

const BAG_REQUIREMENTS: &[DtypeRequirement] = &[
    OneOf("weight", FLOAT_DTYPES),
    OneOf("indices", INTEGER_DTYPES),
    OneOf("offsets", INTEGER_DTYPES),
    Same(&["weight", "per_sample_weights"]),
];

/// The condition of `where` with three operands. The form that lists positions accepts numbers.
const CONDITION_REQUIREMENTS: &[DtypeRequirement] = &[OneOf("condition", &[Bool, U8])];
const SELECTION_REQUIREMENTS: &[DtypeRequirement] =
    &[OneOf("condition", &[Bool, U8]), FitsComputed(&["self", "other"])];
const FACTOR_REQUIREMENT: DtypeRequirement = FitsComputed(&["alpha", "beta"]);

/// The requirements of operators, with all their overloads, or of single overloads. Names are separated by spaces.
const REQUIREMENT_ROWS: &[(&str, &[DtypeRequirement])] = &[
    (
        "aten.linear aten.conv1d aten.conv2d aten.conv3d aten.conv_transpose1d aten.conv_transpose2d \
         aten.conv_transpose3d aten.convolution aten._convolution",
        &[Same(&["input", "weight", "bias"])],
    ),
    ("aten.grid_sampler aten.grid_sampler_2d aten.grid_sampler_3d", &[Same(&["input", "grid"])]),
    ("aten._weight_norm aten._weight_norm_interface", &[Same(&["v", "g"])]),
    (
        "aten.batch_norm aten.native_batch_norm aten._native_batch_norm_legit aten._native_batch_norm_legit_functional \
         aten._native_batch_norm_legit_no_training aten._batch_norm_with_update aten._batch_norm_with_update_functional \
         aten._batch_norm_no_update aten.instance_norm",
        &[SameOrF32("input", &["weight", "bias", "running_mean", "running_var"])],
    ),
    ("aten.mm aten.bmm aten._grouped_mm", &[Same(&["self", "mat2"])]),
    ("aten.mv", &[Same(&["self", "vec"])]),
    ("aten.dot", &[Same(&["self", "tensor"])]),
    ("aten.vdot aten.matmul aten.linalg_matmul", &[Same(&["self", "other"])]),
    ("aten.addmm", &[Same(&["self", "mat1", "mat2"]), FACTOR_REQUIREMENT]),
    ("aten.addmv", &[Same(&["self", "mat", "vec"]), FACTOR_REQUIREMENT]),
    ("aten.baddbmm aten.addbmm", &[Same(&["self", "batch1", "batch2"]), FACTOR_REQUIREMENT]),
    ("aten.addr", &[FACTOR_REQUIREMENT]),
    ("aten.einsum aten.meshgrid", &[Same(&["tensors"])]),
    ("aten.scaled_dot_product_attention", &[Same(&["query", "key", "value"])]),
    ("aten.convolution_backward", &[Same(&["grad_output", "input", "weight"])]),
    ("aten.avg_pool2d_backward", &[Same(&["grad_output", "self"])]),
    ("aten.max_pool2d_with_indices_backward", &[Same(&["grad_output", "self"]), OneOf("indices", &[I64])]),
    ("aten._softmax_backward_data aten._log_softmax_backward_data", &[Same(&["grad_output", "output"])]),
    (
        "aten.layer_norm aten.native_layer_norm aten.group_norm aten.native_group_norm",
        &[SameOrF32("input", &["weight", "bias"])],
    ),
    (
        "aten.native_layer_norm_backward",
        &[
            Same(&["grad_out", "input"]),
            SameOrF32("input", &["mean", "rstd"]),
            SameOrF32("input", &["weight", "bias"]),
        ],
    ),
    ("aten.lerp", &[Same(&["self", "end", "weight"]), FitsComputed(&["weight"])]),
    ("aten.add", &[Factor("alpha", Sign::Plus)]),
    ("aten.sub aten.subtract aten.rsub", &[NoBool(&["self", "other"]), Factor("alpha", Sign::Minus)]),
    ("aten.pow.Tensor_Scalar", &[Exponent("exponent")]),
    ("aten.addcmul", &[FitsComputed(&["value"])]),
    ("aten.addcdiv", &[SomeFloat(&["tensor1", "tensor2"]), FitsComputed(&["value"])]),
    ("aten.clamp aten.clip aten.clamp_min aten.clamp_max", &[Bounds("min", "max")]),
    ("aten._foreach_clamp_min", &[Bounds("scalar", "max")]),
    ("aten._foreach_clamp_max", &[Bounds("min", "scalar")]),
    ("aten.hardtanh", &[Bounds("min_val", "max_val")]),
    ("aten.leaky_relu", &[FitsComputed(&["negative_slope"])]),
    ("aten.elu", &[FitsComputed(&["alpha", "scale", "input_scale"])]),
    ("aten.softplus", &[FitsComputed(&["beta", "threshold"])]),
    ("aten.threshold", &[FitsComputed(&["threshold"]), Fits(&["value"])]),
    ("aten.full aten.full_like aten.new_full", &[Fits(&["fill_value"])]),
    ("aten.fill aten.constant_pad_nd aten.pad", &[Fits(&["value"])]),
    ("aten.linspace", &[Fits(&["start", "end"])]),
    ("aten.scalar_tensor", &[FitsComputed(&["s"])]),
    ("aten.where.self", CONDITION_REQUIREMENTS),
    ("aten.where.ScalarSelf aten.where.ScalarOther aten.where.Scalar", SELECTION_REQUIREMENTS),
    ("aten.masked_fill", &[OneOf("mask", &[Bool]), Fits(&["value"])]),
    ("aten.embedding aten.embedding_dense_backward aten.take_along_dim", &[OneOf("indices", INDEX_DTYPES)]),
    ("aten.gather aten.index_select", &[OneOf("index", INDEX_DTYPES)]),
    ("aten.take", &[OneOf("index", &[I64])]),
    ("aten.index", &[OneOf("indices", &[Bool, U8, I32, I64])]),
    ("aten.index_put", &[OneOf("indices", INTEGER_DTYPES), Same(&["self", "values"])]),
    ("aten.index_add", &[OneOf("index", INDEX_DTYPES), Same(&["self", "source"]), Fits(&["alpha"])]),
    ("aten.index_copy", &[OneOf("index", &[I64]), Same(&["self", "source"])]),
    ("aten.index_fill", &[OneOf("index", &[I64]), Fits(&["value"])]),
    ("aten.scatter", &[OneOf("index", INDEX_DTYPES), Same(&["self", "src"]), Fits(&["value"])]),
    ("aten.scatter_add aten.scatter_reduce", &[OneOf("index", INDEX_DTYPES), Same(&["self", "src"])]),
    ("aten.nll_loss aten.nll_loss_forward", &[OneOf("target", &[U8, I64]), Same(&["self", "weight"])]),
    (
        "aten.nll_loss_backward",
        &[OneOf("target", &[U8, I64]), Same(&["grad_output", "self", "weight", "total_weight"])],
    ),
    ("aten.huber_loss aten.soft_margin_loss", &[Holds("self", &["target"])]),
    ("aten.mse_loss_backward aten.smooth_l1_loss_backward", &[Holds("self", &["grad_output", "target"])]),
    ("aten.huber_loss_backward", &[Same(&["self", "grad_output", "target"])]),
    ("aten.binary_cross_entropy", &[Same(&["self", "target", "weight"])]),
    ("aten.binary_cross_entropy_with_logits", &[OneOf("target", FLOAT_DTYPES)]),
    ("aten.cdist aten._cdist_forward", &[Same(&["x1", "x2"]), OneOf("x1", FLOAT_DTYPES)]),
    ("aten._embedding_bag aten._embedding_bag_forward_only", BAG_REQUIREMENTS),
    ("aten._embedding_bag_backward", &[OneOf("grad", FLOAT_DTYPES), Same(&["grad", "per_sample_weights"])]),
];

impl DtypeRequirement {
    /// The violation of the requirement by a call, if there is one.
    fn find_violation(&self, call: &OpCall<'_, '_>) -> Option<String> {
        match self {
            Same(names) => {
                let mut arguments = names.iter().flat_map(|name| argument_dtypes(call, name));
                let (first, dtype) = arguments.next()?;
                let (name, actual) = arguments.find(|(_, actual)| *actual != dtype)?;
                Some(if first == name {
                    format!("expected tensors of the same dtype as `{name}`, found {dtype} and {actual}")
                } else {
                    format!("expected `{name}` to have the dtype of `{first}`, {dtype}, found {actual}")
                })
            }
            SameOrF32(first, others) => {
                let (_, dtype) = argument_dtypes(call, first).into_iter().next()?;
                let arguments: Vec<(&str, DType)> =
                    others.iter().flat_map(|name| argument_dtypes(call, name)).collect();
                let is_narrow = matches!(dtype, F16 | BF16);
                if is_narrow && arguments.iter().all(|(_, actual)| *actual == F32) {
                    return None;
                }
                let (name, actual) = arguments.into_iter().find(|(_, actual)| *actual != dtype)?;
                let wide = if is_narrow { " or f32" } else { "" };
                Some(format!(
                    "expected `{name}` to have the dtype of `{first}`, {dtype}{wide}, found {actual}"
                ))
            }
            OneOf(name, dtypes) => {
                let (name, actual) =
                    argument_dtypes(call, name).into_iter().find(|(_, actual)| !dtypes.contains(actual))?;
                let accepted: Vec<String> = dtypes.iter().map(DType::to_string).collect();
                Some(format!("expected a tensor of {} as `{name}`, found {actual}", accepted.join(", ")))
            }
            NoBool(names) => {
                let mut arguments = names.iter().flat_map(|name| argument_dtypes(call, name));
                let (name, _) = arguments.find(|(_, actual)| *actual == Bool)?;
                Some(format!("expected numbers as `{name}`, found bools, which cannot be subtracted"))
            }
            Holds(first, others) => {
                let (_, dtype) = argument_dtypes(call, first).into_iter().next()?;
                let mut arguments = others.iter().flat_map(|name| argument_dtypes(call, name));
                let (name, actual) = arguments.find(|(_, actual)| {
                    actual.is_float() && !dtype.is_float() || dtype == Bool && *actual != Bool
                })?;
                Some(format!(
                    "expected `{name}` to have a dtype that {dtype}, that of `{first}`, holds, found {actual}"
                ))
            }
            SomeFloat(names) => {
                let arguments: Vec<(&str, DType)> =
                    names.iter().flat_map(|name| argument_dtypes(call, name)).collect();
                let is_whole =
                    !arguments.is_empty() && arguments.iter().all(|(_, actual)| !actual.is_float());
                let (name, actual) = *arguments.first().filter(|_| is_whole)?;
                Some(format!(
                    "expected a floating-point dtype among {}, found {actual} as `{name}`",
                    names.join(", ")
                ))
            }
            Fits(names) => names.iter().find_map(|name| misfit(call, name, |dtype| dtype)),
            FitsComputed(names) => names.iter().find_map(|name| misfit(call, name, computed)),
            Factor(name, sign) => {
                let dtype = result_dtype(call)?;
                let number = call.plain_number(name)?;
                let kind = match number {
                    Scalar::Float(_) if !dtype.is_float() => "a float",
                    Scalar::Bool(_) if dtype != Bool => "a bool",
                    Scalar::Int(i)
                        if *sign == Sign::Minus && dtype::fits(Scalar::Int(i.wrapping_neg()), dtype) =>
                    {
                        return None;
                    }
                    _ => return misfit(call, name, computed),
                };
                Some(format!("expected a number of {dtype} as `{name}`, found {kind}, {number}"))
            }
            Bounds(low, high) => {
                let dtype = result_dtype(call)?;
                if dtype.is_float() || dtype == Bool {
                    return [low, high].iter().find_map(|name| misfit(call, name, computed));
                }
                let is_above = |x: f64| x > dtype::greatest(dtype);
                let is_below = |x: f64| x < dtype::least(dtype);
                let beyond = |name: &str, is_beyond: &dyn Fn(f64) -> bool| {
                    let bound = call.plain_number(name).filter(|bound| is_beyond(bound.as_f64()))?;
                    Some(format!("expected a bound that leaves values of {dtype} as `{name}`, found {bound}"))
                };
                beyond(low, &is_above).or_else(|| beyond(high, &is_below))
            }
            Exponent(name) => {
                let dtype = result_dtype(call).filter(|dtype| *dtype != F32)?;
                let number = call.plain_number(name)?;
                if !dtype.is_float() && number.as_f64() < 0.0 {
                    return Some(format!("expected no negative `{name}` of integers, found {number}"));
                }
                misfit(call, name, |dtype| dtype)
            }
        }
    }
}

/// The dtype that the program declares for the first result.
fn result_dtype(call: &OpCall<'_, '_>) -> Option<DType> {
    call.declared_result_type(0).ok().map(|ty| ty.dtype)
}

/// The dtype in which a kernel has the factors of a result: not narrower than f32, if it is a float.
fn computed(dtype: DType) -> DType {
    if dtype.is_float() { dtype.compute_dtype() } else { dtype }
}

/// The fault of a number that does not fit into a dtype, given as a function of the result's.
fn misfit(call: &OpCall<'_, '_>, name: &str, of: impl FnOnce(DType) -> DType) -> Option<String> {
    let dtype = of(result_dtype(call)?);
    let number = call.plain_number(name).filter(|number| !dtype::fits(*number, dtype))?;
    Some(format!("expected a number that {dtype} holds as `{name}`, found {number}"))
}

fn argument_dtypes<'n>(call: &OpCall<'_, '_>, name: &'n str) -> Vec<(&'n str, DType)> {
    call.dtypes(name).into_iter().map(|dtype| (name, dtype)).collect()
}

/// Rejects a call whose operands have dtypes for which PyTorch raises an error.
pub(crate) fn check_operand_dtypes(call: &OpCall<'_, '_>, target: &str) -> RuleResult {
    let target = bare_target(target);
    let op = target.rsplit_once('.').map_or(target, |(op, _)| op);
    let requirements = REQUIREMENT_ROWS
        .iter()
        .filter(|(names, _)| has_word(names, op) || has_word(names, target))
        .flat_map(|(_, requirements)| *requirements);
    match requirements.into_iter().find_map(|requirement| requirement.find_violation(call)) {
        None => Ok(()),
        Some(message) => Err(dtype_failure(call, message)),
    }
}

/// The failure of a call for which PyTorch raises an error as well.
pub(crate) fn dtype_failure(call: &OpCall<'_, '_>, message: String) -> RuleFailure {
    RuleFailure::Error(ImportError::Dtypes {
        node: call.node.name().into(),
        op: call.node.target.to_string(),
        message,
    })
}
