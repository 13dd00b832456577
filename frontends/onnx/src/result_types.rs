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
const SAME_RANK: &[&str] = &["CenterCropPad", "Pad", "Resize", "Slice", "Tile", "Transpose", "Upsample"];

/// Recurrent layers.
const RECURRENT: &[&str] = &["GRU", "LSTM", "RNN"];

/// Products with compressed weights. The attribute `N` is the last extent of the result.
const PACKED_PRODUCTS: &[&str] = &["com.microsoft::MatMulBnb4", "com.microsoft::MatMulNBits"];

/// Ops with two operands or more, whose result has the shape to which the operands broadcast.
const BROADCAST: &[&str] =
    &["Add", "And", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Xor"];

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
    let operand = |i: usize| operands.get(i).and_then(Option::as_ref);
    let first = PartialType::same_as(operand(0)?);
    if let Some(quantised) = quantised_type(op, &first, operand, result) {
        return Some(quantised);
    }
    if RECURRENT.contains(&op) {
        return recurrent_type(node, operand(0)?, operand(2)?, result);
    }
    if op == "Split" {
        return Some(PartialType { dtype: first.dtype, shape: vec![None; first.shape.len()] });
    }
    if result != 0 {
        return None;
    }
    let dtype = first.dtype;
    let mut shape = first.shape;
    match op {
        "NonZero" => return Some(PartialType { dtype: DType::I64, shape: vec![known(shape.len()), None] }),
        "NonMaxSuppression" => return Some(PartialType { dtype: DType::I64, shape: vec![None, known(3)] }),
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => {
            return Some(PartialType { dtype: DType::Bool, shape: broadcast(operands)? });
        }
        "Concat" => {
            let axis = node.attribute.iter().find(|a| a.name == "axis")?.i;
            let axis = if axis < 0 { axis.checked_add(shape.len() as i64)? } else { axis };
            *shape.get_mut(usize::try_from(axis).ok()?)? = None;
        }
        "Flatten" => shape = vec![None, None],
        "Squeeze" => shape = vec![None; shape.len().checked_sub(axis_count(node, operand(1))?)?],
        "Unsqueeze" => shape = unknown_axes(shape.len().checked_add(axis_count(node, operand(1))?)?)?,
        "Expand" => {
            let rank = usize::try_from(operand(1)?.shape.first()?.as_const()?).ok()?;
            shape = unknown_axes(rank.max(shape.len()))?;
        }
        "Gather" => shape = unknown_axes((shape.len() + operand(1)?.rank()).checked_sub(1)?)?,
        "Gemm" => shape = vec![None, None],
        "MatMul" => shape = product_shape(operand(0)?, operand(1)?)?,
        "Reshape" => {
            let rank = operand(1)?.shape.first()?.as_const()?;
            shape = unknown_axes(usize::try_from(rank).ok()?)?;
        }
        _ if PACKED_PRODUCTS.contains(&op) => {
            let n = node.attribute.iter().find(|a| a.name == "N")?.i;
            *shape.last_mut()? = Some(Dim::from(n)).filter(|_| n >= 0);
        }
        _ if SAME_BATCH.contains(&op) => shape.iter_mut().skip(1).for_each(|extent| *extent = None),
        _ if SAME_RANK.contains(&op) => shape.fill(None),
        _ if BROADCAST.contains(&op) => shape = broadcast(operands)?,
        _ if SAME_TYPE.contains(&op) => {}
        _ => return None,
    }
    Some(PartialType { dtype, shape })
}

/// Axes of unknown extents, if the IR has so many.
fn unknown_axes(count: usize) -> Option<Vec<Option<Dim>>> {
    (count <= symmc_ir::dim::MAX_RANK).then(|| vec![None; count])
}

/// The number of axes in the operand or the attribute `axes`.
fn axis_count(node: &proto::NodeProto, axes: Option<&TensorType>) -> Option<usize> {
    match axes {
        Some(axes) => usize::try_from(axes.numel().as_const()?).ok(),
        None => node.attribute.iter().find(|a| a.name == "axes").map(|a| a.ints.len()),
    }
}

/// The type of a result of a recurrent layer with these inputs and weights of states.
fn recurrent_type(
    node: &proto::NodeProto,
    x: &TensorType,
    weights: &TensorType,
    result: usize,
) -> Option<PartialType> {
    let batch_first = node.attribute.iter().any(|a| a.name == "layout" && a.i != 0);
    let [first, second] = match x.shape.as_slice() {
        [first, second, _] => [Some(first), Some(second)],
        _ => [None, None],
    };
    let [directions, hidden] = match weights.shape.as_slice() {
        [directions, _, hidden] => [Some(directions), Some(hidden)],
        _ => [None, None],
    };
    let (steps, batch) = if batch_first { (second, first) } else { (first, second) };
    let shape = match (result, batch_first) {
        (0, false) => vec![steps, directions, batch, hidden],
        (0, true) => vec![batch, steps, directions, hidden],
        (_, false) => vec![directions, batch, hidden],
        (_, true) => vec![batch, directions, hidden],
    };
    Some(PartialType { dtype: x.dtype, shape: shape.into_iter().map(Option::<&Dim>::cloned).collect() })
}

fn known(extent: usize) -> Option<Dim> {
    Some(Dim::from(extent as i64))
}

/// The types of ops between floats and integers of 8 bits.
fn quantised_type<'t>(
    op: &str,
    first: &PartialType,
    operand: impl Fn(usize) -> Option<&'t TensorType>,
    result: usize,
) -> Option<PartialType> {
    let shape = first.shape.clone();
    let (dtype, shape) = match (op, result) {
        ("DequantizeLinear" | "com.microsoft::DequantizeLinear", 0) => (operand(1)?.dtype, shape),
        ("QuantizeLinear" | "com.microsoft::QuantizeLinear", 0) => {
            (operand(2).map_or(DType::U8, |zero| zero.dtype), shape)
        }
        ("DynamicQuantizeLinear", 0) => (DType::U8, shape),
        ("DynamicQuantizeLinear", 1) => (DType::F32, vec![]),
        ("DynamicQuantizeLinear", 2) => (DType::U8, vec![]),
        ("MatMulInteger", 0) => (DType::I32, product_shape(operand(0)?, operand(1)?)?),
        ("ConvInteger", 0) => {
            let spatial = shape.iter().skip(1).map(|_| None);
            (DType::I32, shape.iter().take(1).cloned().chain(spatial).collect())
        }
        _ => return None,
    };
    Some(PartialType { dtype, shape })
}

/// The shape to which operands broadcast. Extents that differ are not known.
fn broadcast(operands: &[Option<TensorType>]) -> Option<Vec<Option<Dim>>> {
    let types: Vec<&TensorType> = operands.iter().flatten().collect();
    let rank = types.iter().map(|ty| ty.rank()).max()?;
    let extent = |ty: &TensorType, axis: usize| {
        (axis + ty.rank()).checked_sub(rank).and_then(|own| ty.shape.get(own)).cloned().unwrap_or(1.into())
    };
    let axes = (0..rank).map(|axis| {
        let mut extents = types.iter().map(|ty| extent(ty, axis)).filter(|e| e.as_const() != Some(1));
        let Some(found) = extents.next() else { return known(1) };
        extents.all(|other| other == found).then_some(found)
    });
    Some(axes.collect())
}

/// The shape of a product of matrices.
fn product_shape(x: &TensorType, y: &TensorType) -> Option<Vec<Option<Dim>>> {
    let (x_axes, y_axes) = (x.rank().checked_sub(2)?, y.rank().checked_sub(2)?);
    let batches = [(x, x_axes), (y, y_axes)]
        .map(|(ty, axes)| Some(TensorType::new(ty.dtype, ty.shape.get(..axes).unwrap_or_default().to_vec())));
    let mut shape = broadcast(&batches)?;
    shape.push(x.shape.get(x_axes).cloned());
    shape.push(y.shape.last().cloned());
    Some(shape)
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
