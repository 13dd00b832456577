//! The ops of attention, in the form that cuDNN recognises.
//!
//! Each op is a descriptor whose operands are tensors; tensors between two ops have no memory. The ops of the
//! gradients are in `gradient`.

use symmc_ir::DType;

use super::attention::{AttentionBias, AttentionTensor, CudnnAttention};
use super::descriptor::{AttributeValue, CudnnDescriptor, DescriptorAttribute, DescriptorKind};
use super::library::CudnnLibrary;
use crate::error::{CudaError, Result};

/// Element types, with the numbers of `cudnnDataType_t`.
pub(super) const F32: i32 = 0;
const F16: i32 = 2;
const I32: i32 = 4;
const BF16: i32 = 9;
const BOOL: i32 = 11;

/// Element-wise ops, with the numbers of `cudnnPointwiseMode_t`.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum PointwiseMode {
    Add = 0,
    Mul = 1,
    Div = 6,
    Sub = 9,
    Exp = 13,
    Log = 15,
    Tanh = 101,
    Greater = 302,
    GreaterEqual = 303,
    /// The index along an axis.
    Index = 501,
    Select = 601,
}

/// Reductions, with the numbers of `cudnnReduceTensorOp_t`.
pub(super) const SUM: i32 = 0;
const MAX: i32 = 3;

pub(super) fn data_type(dtype: DType) -> Result<i32> {
    match dtype {
        DType::BF16 => Ok(BF16),
        DType::F16 => Ok(F16),
        DType::F32 => Ok(F32),
        other => Err(CudaError::Unsupported(format!("cuDNN's attention does not support {other}"))),
    }
}

/// The properties of a tensor of the graph.
#[derive(Clone, Copy)]
pub(super) struct GraphTensor {
    /// Its index among the tensors; its number in the library is one more.
    pub index: usize,
    pub extents: [i64; 4],
}

/// The data of a tensor of the graph.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum CudnnTensorData {
    Queries,
    Keys,
    Values,
    Result,
    /// The log-sum-exp of each row, aligned to 16 or to 4 bytes.
    Sums {
        aligned: bool,
    },
    OfResult,
    /// The sum of the gradient times the result of each row.
    Means,
    OfQueries,
    OfKeys,
    OfValues,
    /// A bias with rows at multiples of 16 bytes, or of its element size.
    Bias {
        aligned: bool,
    },
    /// Four bytes in host memory.
    Constant([u8; 4]),
}

pub(super) struct CudnnGraphBuilder {
    pub cudnn: &'static CudnnLibrary,
    pub tensors: Vec<CudnnDescriptor>,
    /// Descriptions of ops, to which the ops refer.
    pub kinds: Vec<CudnnDescriptor>,
    pub ops: Vec<CudnnDescriptor>,
    pub data: Vec<(i64, CudnnTensorData)>,
}

/// Row-major strides.
pub(super) fn dense(extents: [i64; 4]) -> [i64; 4] {
    let [_, b, c, d] = extents;
    [b * c * d, c * d, d, 1]
}

impl CudnnGraphBuilder {
    pub(super) fn tensor(
        &mut self,
        extents: [i64; 4],
        strides: [i64; 4],
        kind: i32,
        data: Option<CudnnTensorData>,
    ) -> Result<GraphTensor> {
        let index = self.tensors.len();
        let id = index as i64 + 1;
        let alignment = match data {
            Some(CudnnTensorData::Bias { aligned: false }) => 2,
            Some(CudnnTensorData::Sums { aligned: false }) => 4,
            _ => 16,
        };
        let mut tensor = CudnnDescriptor::new(self.cudnn, DescriptorKind::Tensor)?
            .with(DescriptorAttribute::TensorId, AttributeValue::Ints(&[id]))?
            .with(DescriptorAttribute::TensorType, AttributeValue::DataType(kind))?
            .with(DescriptorAttribute::TensorExtents, AttributeValue::Ints(&extents))?
            .with(DescriptorAttribute::TensorStrides, AttributeValue::Ints(&strides))?
            .with(DescriptorAttribute::TensorAlignment, AttributeValue::Ints(&[alignment]))?;
        match data {
            None => tensor = tensor.with(DescriptorAttribute::TensorVirtual, AttributeValue::Bool(true))?,
            Some(CudnnTensorData::Constant(_)) => {
                tensor = tensor.with(DescriptorAttribute::TensorByValue, AttributeValue::Bool(true))?
            }
            Some(_) => {}
        }
        self.tensors.push(tensor.finish()?);
        self.data.extend(data.map(|data| (id, data)));
        Ok(GraphTensor { index, extents })
    }

    /// A tensor with one f32 number per row.
    pub(super) fn add_row_scalars(
        &mut self,
        x: &CudnnAttention,
        strides: [i64; 3],
        data: CudnnTensorData,
    ) -> Result<GraphTensor> {
        let [b, h, l] = strides;
        let extents = [x.batch, x.heads, x.queries, 1].map(|n| n as i64);
        self.tensor(extents, [b, h, l, 1], F32, Some(data))
    }

    /// The log-sum-exp of each row.
    pub(super) fn sums(&mut self, x: &CudnnAttention, sums: AttentionTensor) -> Result<GraphTensor> {
        self.add_row_scalars(x, sums.strides, CudnnTensorData::Sums { aligned: sums.at.is_multiple_of(16) })
    }

    /// A tensor without memory.
    pub(super) fn add_virtual_tensor(&mut self, extents: [i64; 4], kind: i32) -> Result<GraphTensor> {
        self.tensor(extents, dense(extents), kind, None)
    }

    fn constant(&mut self, bytes: [u8; 4], kind: i32) -> Result<GraphTensor> {
        self.tensor([1; 4], [1; 4], kind, Some(CudnnTensorData::Constant(bytes)))
    }

    pub(super) fn float(&mut self, number: f32) -> Result<GraphTensor> {
        self.constant(number.to_le_bytes(), F32)
    }

    fn int(&mut self, number: i32) -> Result<GraphTensor> {
        self.constant(number.to_le_bytes(), I32)
    }

    /// Adds an op of up to three operands whose result tensor exists.
    pub(super) fn add_pointwise(
        &mut self,
        mode: PointwiseMode,
        operands: &[GraphTensor],
        precision: i32,
        axis: Option<i64>,
        to: GraphTensor,
    ) -> Result<GraphTensor> {
        let mut kind = CudnnDescriptor::new(self.cudnn, DescriptorKind::Pointwise)?
            .with(DescriptorAttribute::PointwiseMode, AttributeValue::PointwiseMode(mode as i32))?
            .with(DescriptorAttribute::PointwisePrecision, AttributeValue::DataType(precision))?;
        if let Some(axis) = axis {
            kind = kind.with(DescriptorAttribute::PointwiseAxis, AttributeValue::Ints(&[axis]))?;
        }
        let kind = kind.finish()?;
        let mut op = CudnnDescriptor::new(self.cudnn, DescriptorKind::OperationPointwise)?
            .with(DescriptorAttribute::OperationPointwise, AttributeValue::One(&kind))?
            .with(DescriptorAttribute::OperationPointwiseY, AttributeValue::One(&self.tensors[to.index]))?;
        let places = [
            DescriptorAttribute::OperationPointwiseX,
            DescriptorAttribute::OperationPointwiseB,
            DescriptorAttribute::OperationPointwiseT,
        ];
        for (attribute, operand) in places.into_iter().zip(operands) {
            op = op.with(attribute, AttributeValue::One(&self.tensors[operand.index]))?;
        }
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(to)
    }

    /// Adds an op on floats.
    pub(super) fn pointwise_float(
        &mut self,
        mode: PointwiseMode,
        operands: &[GraphTensor],
    ) -> Result<GraphTensor> {
        let result = self.add_virtual_tensor(operands[0].extents, F32)?;
        self.add_pointwise(mode, operands, F32, None, result)
    }

    /// Adds an op on integers.
    fn pointwise_int(&mut self, mode: PointwiseMode, x: GraphTensor, y: GraphTensor) -> Result<GraphTensor> {
        let result = self.add_virtual_tensor(x.extents, I32)?;
        self.add_pointwise(mode, &[x, y], I32, None, result)
    }

    /// Adds an op whose result is boolean.
    fn pointwise_bool(&mut self, mode: PointwiseMode, x: GraphTensor, y: GraphTensor) -> Result<GraphTensor> {
        let result = self.add_virtual_tensor(x.extents, BOOL)?;
        self.add_pointwise(mode, &[x, y], BOOL, None, result)
    }

    /// Adds the index of each score along an axis.
    fn index(&mut self, scores: GraphTensor, axis: i64) -> Result<GraphTensor> {
        let result = self.add_virtual_tensor(scores.extents, I32)?;
        self.add_pointwise(PointwiseMode::Index, &[scores], F32, Some(axis), result)
    }

    /// Selects the scores where `seen` is true, and minus infinity elsewhere.
    fn hide(&mut self, scores: GraphTensor, seen: GraphTensor) -> Result<GraphTensor> {
        let nothing = self.float(f32::NEG_INFINITY)?;
        self.pointwise_float(PointwiseMode::Select, &[scores, nothing, seen])
    }

    /// Adds a reduction of the last axis.
    pub(super) fn reduce(&mut self, operator: i32, x: GraphTensor) -> Result<GraphTensor> {
        let [a, b, c, _] = x.extents;
        let result = self.add_virtual_tensor([a, b, c, 1], F32)?;
        self.reduce_to(operator, x, result)
    }

    /// Adds a reduction to the extents of an existing result tensor.
    pub(super) fn reduce_to(
        &mut self,
        operator: i32,
        x: GraphTensor,
        to: GraphTensor,
    ) -> Result<GraphTensor> {
        let kind = CudnnDescriptor::new(self.cudnn, DescriptorKind::Reduction)?
            .with(DescriptorAttribute::ReductionOperator, AttributeValue::Reduction(operator))?
            .with(DescriptorAttribute::ReductionPrecision, AttributeValue::DataType(F32))?
            .finish()?;
        let op = CudnnDescriptor::new(self.cudnn, DescriptorKind::OperationReduction)?
            .with(DescriptorAttribute::OperationReduction, AttributeValue::One(&kind))?
            .with(DescriptorAttribute::OperationReductionX, AttributeValue::One(&self.tensors[x.index]))?
            .with(DescriptorAttribute::OperationReductionY, AttributeValue::One(&self.tensors[to.index]))?;
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(to)
    }

    pub(super) fn product(&mut self, [a, b, c]: [GraphTensor; 3]) -> Result<()> {
        let kind = CudnnDescriptor::new(self.cudnn, DescriptorKind::MatMul)?
            .with(DescriptorAttribute::MatMulPrecision, AttributeValue::DataType(F32))?
            .finish()?;
        let op = CudnnDescriptor::new(self.cudnn, DescriptorKind::OperationMatMul)?
            .with(DescriptorAttribute::OperationMatMul, AttributeValue::One(&kind))?
            .with(DescriptorAttribute::OperationMatMulA, AttributeValue::One(&self.tensors[a.index]))?
            .with(DescriptorAttribute::OperationMatMulB, AttributeValue::One(&self.tensors[b.index]))?
            .with(DescriptorAttribute::OperationMatMulC, AttributeValue::One(&self.tensors[c.index]))?;
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(())
    }

    /// Adds the scores, with hidden columns at minus infinity.
    fn scores(&mut self, x: &CudnnAttention) -> Result<GraphTensor> {
        let kind = data_type(x.dtype)?;
        let [b, h, l] = x.q.strides;
        let q = extents([x.batch, x.heads, x.queries, x.e]);
        let q = self.tensor(q, [b, h, l, 1], kind, Some(CudnnTensorData::Queries))?;
        let [b, h, s] = x.k.strides;
        let k = extents([x.batch, x.key_heads, x.e, x.keys]);
        let k = self.tensor(k, [b, h, 1, s], kind, Some(CudnnTensorData::Keys))?;
        let mut scores = self.add_virtual_tensor(extents([x.batch, x.heads, x.queries, x.keys]), F32)?;
        self.product([q, k, scores])?;
        let scale = self.float(x.scale)?;
        scores = self.pointwise_float(PointwiseMode::Mul, &[scores, scale])?;
        if let Some(cap) = x.cap {
            let cap = self.float(cap)?;
            scores = self.pointwise_float(PointwiseMode::Div, &[scores, cap])?;
            scores = self.pointwise_float(PointwiseMode::Tanh, &[scores])?;
            scores = self.pointwise_float(PointwiseMode::Mul, &[scores, cap])?;
        }
        if let Some(AttentionBias { at, dtype, extents, strides }) = x.bias {
            let aligned = at.is_multiple_of(16) && strides[..3].iter().all(|s| s % 8 == 0);
            let bias =
                self.tensor(extents, strides, data_type(dtype)?, Some(CudnnTensorData::Bias { aligned }))?;
            scores = self.pointwise_float(PointwiseMode::Add, &[scores, bias])?;
        }
        self.band(scores, x)
    }

    pub(super) fn band(&mut self, mut scores: GraphTensor, x: &CudnnAttention) -> Result<GraphTensor> {
        let unsupported =
            || CudaError::Unsupported(format!("cuDNN's attention does not support the band {:?}", x.band));
        if let Some(below) = x.band.below {
            let mut row = self.index(scores, 2)?;
            let column = self.index(scores, 3)?;
            // Column `row + below - 1` is the last visible one.
            let shift = below.checked_sub(1).and_then(|s| i32::try_from(s).ok()).ok_or_else(unsupported)?;
            if shift != 0 {
                let shift = self.int(shift)?;
                row = self.pointwise_int(PointwiseMode::Add, row, shift)?;
            }
            let visible = self.pointwise_bool(PointwiseMode::GreaterEqual, row, column)?;
            scores = self.hide(scores, visible)?;
        }
        if let Some(from) = x.band.from {
            let row = self.index(scores, 2)?;
            let column = self.index(scores, 3)?;
            // The condition is column + window > row. The library requires this number as a float.
            let window = 1i64.checked_sub(from).filter(|w| w.unsigned_abs() < 1 << 24);
            let window = window.ok_or_else(unsupported)?;
            let window = self.float(window as f32)?;
            let column = self.pointwise_float(PointwiseMode::Add, &[column, window])?;
            let visible = self.pointwise_bool(PointwiseMode::Greater, column, row)?;
            scores = self.hide(scores, visible)?;
        }
        Ok(scores)
    }

    /// Adds the ops of the whole graph.
    pub(super) fn attention(&mut self, x: &CudnnAttention) -> Result<()> {
        let scores = self.scores(x)?;
        let kind = data_type(x.dtype)?;
        let top = self.reduce(MAX, scores)?;
        let less = self.pointwise_float(PointwiseMode::Sub, &[scores, top])?;
        let weights = self.pointwise_float(PointwiseMode::Exp, &[less])?;
        let sum = self.reduce(SUM, weights)?;
        // The library recognises the chain by its statistics, although they are not read.
        let log = self.pointwise_float(PointwiseMode::Log, &[sum])?;
        match x.sums {
            None => self.pointwise_float(PointwiseMode::Add, &[top, log])?,
            Some(sums) => {
                let sums = self.sums(x, sums)?;
                self.add_pointwise(PointwiseMode::Add, &[top, log], F32, None, sums)?
            }
        };
        let probabilities = self.add_virtual_tensor(scores.extents, kind)?;
        self.add_pointwise(PointwiseMode::Div, &[weights, sum], F32, None, probabilities)?;
        let [b, h, s] = x.v.strides;
        let v = extents([x.batch, x.key_heads, x.keys, x.f]);
        let v = self.tensor(v, [b, h, s, 1], kind, Some(CudnnTensorData::Values))?;
        let [b, h, l] = x.r.strides;
        let r = extents([x.batch, x.heads, x.queries, x.f]);
        let r = self.tensor(r, [b, h, l, 1], kind, Some(CudnnTensorData::Result))?;
        self.product([probabilities, v, r])
    }
}

pub(super) fn extents(sizes: [usize; 4]) -> [i64; 4] {
    sizes.map(|size| size as i64)
}
