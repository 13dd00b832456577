//! The types of the results of ops that no rule lowers, as far as the schema of the op gives them. Extents that the
//! schema does not give are `None`.

use symmc_ir::{DType, Dim, TensorType};

use crate::node::display_name;
use crate::proto;
use crate::tensor_data::dtype_from_code;

/// A type some of whose extents are not known.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PartialType {
    pub dtype: DType,
    pub shape: Vec<Option<Dim>>,
}

impl PartialType {
    fn same_as(ty: &TensorType) -> PartialType {
        PartialType { dtype: ty.dtype, shape: ty.shape.iter().cloned().map(Some).collect() }
    }
}

/// Ops whose first result has the type of the first operand.
const SAME_TYPE: &[&str] = &[
    "Acosh",
    "Asinh",
    "Atanh",
    "BatchNormalization",
    "Bernoulli",
    "Cosh",
    "CumProd",
    "Dropout",
    "GroupNormalization",
    "Hardmax",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "MeanVarianceNormalization",
    "RMSNormalization",
    "ReverseSequence",
    "RotaryEmbedding",
    "Shrink",
    "Sinh",
    "TensorScatter",
    "com.microsoft::BiasAdd",
    "com.microsoft::BiasDropout",
    "com.microsoft::GroupNorm",
    "com.microsoft::MoE",
    "com.microsoft::QMoE",
    "com.microsoft::RotaryEmbedding",
    "com.microsoft::SkipGroupNorm",
    "com.microsoft::SkipLayerNormalization",
    "com.microsoft::SkipSimplifiedLayerNormalization",
];

/// Ops whose first result has the dtype, the number of axes and the batch of the first operand.
const SAME_BATCH: &[&str] = &[
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "DFT",
    "DeformConv",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "GridSample",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "com.microsoft::FusedConv",
    "com.microsoft::NhwcConv",
    "com.microsoft::NhwcFusedConv",
];

/// Ops whose first result has the dtype and the number of axes of the first operand.
const SAME_RANK: &[&str] = &["CenterCropPad", "Pad", "Resize", "Slice", "Tile", "Upsample"];

/// Products with compressed weights. The attribute `N` is the last extent of the result.
const PACKED_PRODUCTS: &[&str] = &["com.microsoft::MatMulBnb4", "com.microsoft::MatMulNBits"];

/// The type of a result by the schema of its op. `operands` are the types of the operands that are tensors.
pub(crate) fn schema_result_type(
    node: &proto::NodeProto,
    operands: &[Option<TensorType>],
    result: usize,
) -> Option<PartialType> {
    if let Some(body) = body_result_type(node, result) {
        return Some(body);
    }
    let op = display_name(node);
    let op = op.as_str();
    let first = operands.first().and_then(Option::as_ref);
    if result != 0 {
        return None;
    }
    let integers = |shape| Some(PartialType { dtype: DType::I64, shape });
    match op {
        "NonZero" => return integers(vec![Some(Dim::from(first?.rank() as i64)), None]),
        "NonMaxSuppression" => return integers(vec![None, Some(3.into())]),
        "DequantizeLinear" | "com.microsoft::DequantizeLinear" => {
            let dtype = operands.get(1)?.as_ref()?.dtype;
            return Some(PartialType { dtype, ..PartialType::same_as(first?) });
        }
        _ => {}
    }
    let mut ty = PartialType::same_as(first?);
    if PACKED_PRODUCTS.contains(&op) {
        let n = node.attribute.iter().find(|a| a.name == "N")?.i;
        *ty.shape.last_mut()? = Some(Dim::from(n)).filter(|_| n >= 0);
    } else if SAME_BATCH.contains(&op) {
        ty.shape.iter_mut().skip(1).for_each(|extent| *extent = None);
    } else if SAME_RANK.contains(&op) {
        ty.shape.fill(None);
    } else if !SAME_TYPE.contains(&op) {
        return None;
    }
    Some(ty)
}

/// The type of a result of a node that runs a graph, as that graph declares it. Extents that are not constants
/// are left out, because they may differ between iterations and branches.
fn body_result_type(node: &proto::NodeProto, result: usize) -> Option<PartialType> {
    let name = match node.op_type.as_str() {
        "If" => "then_branch",
        "Loop" | "Scan" => "body",
        _ => return None,
    };
    let body = node.attribute.iter().find(|a| a.name == name)?.g.as_deref()?;
    let (output, is_stacked) = match node.op_type.as_str() {
        "If" => (result, false),
        "Loop" => (result + 1, result + 2 >= node.input.len()),
        _ => {
            let scanned = node.attribute.iter().find(|a| a.name == "num_scan_inputs")?.i;
            let states = node.input.len().checked_sub(usize::try_from(scanned).ok()?)?;
            (result, result >= states)
        }
    };
    let ty = declared_tensor(body.output.get(output)?)?;
    let mut shape: Vec<Option<Dim>> = ty
        .shape
        .as_ref()?
        .dim
        .iter()
        .map(|d| d.dim_value.filter(|n| *n >= 0 && d.dim_param.is_none()).map(Dim::from))
        .collect();
    if let Some(other) = node.attribute.iter().find(|a| a.name == "else_branch").and_then(|a| a.g.as_deref())
    {
        let other = declared_tensor(other.output.get(output)?)?.shape.as_ref()?;
        if other.dim.len() != shape.len() {
            return None;
        }
        for (extent, other) in shape.iter_mut().zip(&other.dim) {
            extent.take_if(|e| e.as_const() != other.dim_value);
        }
    }
    if is_stacked {
        shape.insert(0, None);
    }
    Some(PartialType { dtype: dtype_from_code(ty.elem_type).ok()?, shape })
}

fn declared_tensor(value: &proto::ValueInfoProto) -> Option<&proto::TensorTypeProto> {
    value.r#type.as_ref()?.tensor_type.as_ref()
}
