//! The ops of attention, as cuDNN recognises them.
//!
//! Each op is a descriptor whose operands are tensors; those between two ops have no memory. The ops of the gradients are in
//! `gradient`.

use symmc_ir::DType;

use super::attention::{Attention, Bias, Tensor};
use super::descriptor::{Attribute, Descriptor, Kind, Value};
use super::library::Cudnn;
use crate::error::{CudaError, Result};

/// Types of elements, as `cudnnDataType_t` numbers them.
pub(super) const F32: i32 = 0;
const F16: i32 = 2;
const I32: i32 = 4;
const BF16: i32 = 9;
const BOOL: i32 = 11;

/// Element-wise ops, as `cudnnPointwiseMode_t` numbers them.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Mode {
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

/// The reductions, as `cudnnReduceTensorOp_t` numbers them.
pub(super) const SUM: i32 = 0;
const MAX: i32 = 3;

pub(super) fn data_type(dtype: DType) -> Result<i32> {
    match dtype {
        DType::BF16 => Ok(BF16),
        DType::F16 => Ok(F16),
        DType::F32 => Ok(F32),
        other => Err(CudaError::Unsupported(format!("cuDNN's attention has no {other}"))),
    }
}

/// What is known of a tensor besides its descriptor.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    /// Its place among the tensors; its number for the library is one more.
    pub index: usize,
    pub extents: [i64; 4],
}

/// Where the data of a tensor of the graph is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Data {
    Queries,
    Keys,
    Values,
    Result,
    /// The log-sum-exp of each row; at a multiple of 16, or of 4.
    Sums {
        aligned: bool,
    },
    OfResult,
    /// The sum of the gradient times the result of each row.
    Means,
    OfQueries,
    OfKeys,
    OfValues,
    /// With rows at multiples of 16 bytes, or of its elements.
    Bias {
        aligned: bool,
    },
    /// Four bytes in the host's memory.
    Constant([u8; 4]),
}

pub(super) struct Builder {
    pub cudnn: &'static Cudnn,
    pub tensors: Vec<Descriptor>,
    /// Descriptions of ops, which the ops name.
    pub kinds: Vec<Descriptor>,
    pub ops: Vec<Descriptor>,
    pub data: Vec<(i64, Data)>,
}

/// Row-major strides.
pub(super) fn dense(extents: [i64; 4]) -> [i64; 4] {
    let [_, b, c, d] = extents;
    [b * c * d, c * d, d, 1]
}

impl Builder {
    pub(super) fn tensor(
        &mut self,
        extents: [i64; 4],
        strides: [i64; 4],
        kind: i32,
        data: Option<Data>,
    ) -> Result<Edge> {
        let index = self.tensors.len();
        let id = index as i64 + 1;
        let alignment = match data {
            Some(Data::Bias { aligned: false }) => 2,
            Some(Data::Sums { aligned: false }) => 4,
            _ => 16,
        };
        let mut made = Descriptor::new(self.cudnn, Kind::Tensor)?
            .with(Attribute::TensorId, Value::Ints(&[id]))?
            .with(Attribute::TensorType, Value::DataType(kind))?
            .with(Attribute::TensorExtents, Value::Ints(&extents))?
            .with(Attribute::TensorStrides, Value::Ints(&strides))?
            .with(Attribute::TensorAlignment, Value::Ints(&[alignment]))?;
        match data {
            None => made = made.with(Attribute::TensorVirtual, Value::Bool(true))?,
            Some(Data::Constant(_)) => made = made.with(Attribute::TensorByValue, Value::Bool(true))?,
            Some(_) => {}
        }
        self.tensors.push(made.finish()?);
        self.data.extend(data.map(|data| (id, data)));
        Ok(Edge { index, extents })
    }

    /// A number in f32 for each row.
    pub(super) fn of_rows(&mut self, x: &Attention, strides: [i64; 3], data: Data) -> Result<Edge> {
        let [b, h, l] = strides;
        let extents = [x.batch, x.heads, x.queries, 1].map(|n| n as i64);
        self.tensor(extents, [b, h, l, 1], F32, Some(data))
    }

    /// The log-sum-exp of each row.
    pub(super) fn sums(&mut self, x: &Attention, sums: Tensor) -> Result<Edge> {
        self.of_rows(x, sums.strides, Data::Sums { aligned: sums.at.is_multiple_of(16) })
    }

    /// A tensor without memory.
    pub(super) fn between(&mut self, extents: [i64; 4], kind: i32) -> Result<Edge> {
        self.tensor(extents, dense(extents), kind, None)
    }

    fn constant(&mut self, bytes: [u8; 4], kind: i32) -> Result<Edge> {
        self.tensor([1; 4], [1; 4], kind, Some(Data::Constant(bytes)))
    }

    pub(super) fn float(&mut self, number: f32) -> Result<Edge> {
        self.constant(number.to_le_bytes(), F32)
    }

    fn int(&mut self, number: i32) -> Result<Edge> {
        self.constant(number.to_le_bytes(), I32)
    }

    /// An op of up to three operands with a result that exists.
    pub(super) fn put(
        &mut self,
        mode: Mode,
        operands: &[Edge],
        precision: i32,
        axis: Option<i64>,
        to: Edge,
    ) -> Result<Edge> {
        let mut kind = Descriptor::new(self.cudnn, Kind::Pointwise)?
            .with(Attribute::PointwiseMode, Value::PointwiseMode(mode as i32))?
            .with(Attribute::PointwisePrecision, Value::DataType(precision))?;
        if let Some(axis) = axis {
            kind = kind.with(Attribute::PointwiseAxis, Value::Ints(&[axis]))?;
        }
        let kind = kind.finish()?;
        let mut op = Descriptor::new(self.cudnn, Kind::OperationPointwise)?
            .with(Attribute::OperationPointwise, Value::One(&kind))?
            .with(Attribute::OperationPointwiseY, Value::One(&self.tensors[to.index]))?;
        let places =
            [Attribute::OperationPointwiseX, Attribute::OperationPointwiseB, Attribute::OperationPointwiseT];
        for (place, operand) in places.into_iter().zip(operands) {
            op = op.with(place, Value::One(&self.tensors[operand.index]))?;
        }
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(to)
    }

    /// An op of floats.
    pub(super) fn map(&mut self, mode: Mode, operands: &[Edge]) -> Result<Edge> {
        let to = self.between(operands[0].extents, F32)?;
        self.put(mode, operands, F32, None, to)
    }

    /// An op of integers.
    fn count(&mut self, mode: Mode, x: Edge, y: Edge) -> Result<Edge> {
        let to = self.between(x.extents, I32)?;
        self.put(mode, &[x, y], I32, None, to)
    }

    /// An op whose result is true or false.
    fn test(&mut self, mode: Mode, x: Edge, y: Edge) -> Result<Edge> {
        let to = self.between(x.extents, BOOL)?;
        self.put(mode, &[x, y], BOOL, None, to)
    }

    /// The index of each score along an axis.
    fn index(&mut self, scores: Edge, axis: i64) -> Result<Edge> {
        let to = self.between(scores.extents, I32)?;
        self.put(Mode::Index, &[scores], F32, Some(axis), to)
    }

    /// The scores where `seen`, minus infinity elsewhere.
    fn hide(&mut self, scores: Edge, seen: Edge) -> Result<Edge> {
        let nothing = self.float(f32::NEG_INFINITY)?;
        self.map(Mode::Select, &[scores, nothing, seen])
    }

    /// A reduction of the last axis.
    pub(super) fn reduce(&mut self, operator: i32, x: Edge) -> Result<Edge> {
        let [a, b, c, _] = x.extents;
        let to = self.between([a, b, c, 1], F32)?;
        self.reduce_to(operator, x, to)
    }

    /// A reduction to the extents of a result that exists.
    pub(super) fn reduce_to(&mut self, operator: i32, x: Edge, to: Edge) -> Result<Edge> {
        let kind = Descriptor::new(self.cudnn, Kind::Reduction)?
            .with(Attribute::ReductionOperator, Value::Reduction(operator))?
            .with(Attribute::ReductionPrecision, Value::DataType(F32))?
            .finish()?;
        let op = Descriptor::new(self.cudnn, Kind::OperationReduction)?
            .with(Attribute::OperationReduction, Value::One(&kind))?
            .with(Attribute::OperationReductionX, Value::One(&self.tensors[x.index]))?
            .with(Attribute::OperationReductionY, Value::One(&self.tensors[to.index]))?;
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(to)
    }

    pub(super) fn product(&mut self, [a, b, c]: [Edge; 3]) -> Result<()> {
        let kind = Descriptor::new(self.cudnn, Kind::MatMul)?
            .with(Attribute::MatMulPrecision, Value::DataType(F32))?
            .finish()?;
        let op = Descriptor::new(self.cudnn, Kind::OperationMatMul)?
            .with(Attribute::OperationMatMul, Value::One(&kind))?
            .with(Attribute::OperationMatMulA, Value::One(&self.tensors[a.index]))?
            .with(Attribute::OperationMatMulB, Value::One(&self.tensors[b.index]))?
            .with(Attribute::OperationMatMulC, Value::One(&self.tensors[c.index]))?;
        self.ops.push(op.finish()?);
        self.kinds.push(kind);
        Ok(())
    }

    /// The scores, with what is hidden at minus infinity.
    fn scores(&mut self, x: &Attention) -> Result<Edge> {
        let n = |n: usize| n as i64;
        let kind = data_type(x.dtype)?;
        let [b, h, l] = x.q.strides;
        let q = [n(x.batch), n(x.heads), n(x.queries), n(x.e)];
        let q = self.tensor(q, [b, h, l, 1], kind, Some(Data::Queries))?;
        let [b, h, s] = x.k.strides;
        let k = [n(x.batch), n(x.key_heads), n(x.e), n(x.keys)];
        let k = self.tensor(k, [b, h, 1, s], kind, Some(Data::Keys))?;
        let mut scores = self.between([n(x.batch), n(x.heads), n(x.queries), n(x.keys)], F32)?;
        self.product([q, k, scores])?;
        let scale = self.float(x.scale)?;
        scores = self.map(Mode::Mul, &[scores, scale])?;
        if let Some(cap) = x.cap {
            let cap = self.float(cap)?;
            scores = self.map(Mode::Div, &[scores, cap])?;
            scores = self.map(Mode::Tanh, &[scores])?;
            scores = self.map(Mode::Mul, &[scores, cap])?;
        }
        if let Some(Bias { at, dtype, extents, strides }) = x.bias {
            let aligned = at.is_multiple_of(16) && strides[..3].iter().all(|s| s % 8 == 0);
            let bias = self.tensor(extents, strides, data_type(dtype)?, Some(Data::Bias { aligned }))?;
            scores = self.map(Mode::Add, &[scores, bias])?;
        }
        self.band(scores, x)
    }

    pub(super) fn band(&mut self, mut scores: Edge, x: &Attention) -> Result<Edge> {
        let far = || CudaError::Unsupported(format!("cuDNN's attention has no band as far as {:?}", x.band));
        if let Some(below) = x.band.below {
            let (mut row, column) = (self.index(scores, 2)?, self.index(scores, 3)?);
            // Column `row + below - 1` is the last.
            let shift = below.checked_sub(1).and_then(|s| i32::try_from(s).ok()).ok_or_else(far)?;
            if shift != 0 {
                let shift = self.int(shift)?;
                row = self.count(Mode::Add, row, shift)?;
            }
            let seen = self.test(Mode::GreaterEqual, row, column)?;
            scores = self.hide(scores, seen)?;
        }
        if let Some(from) = x.band.from {
            let (row, column) = (self.index(scores, 2)?, self.index(scores, 3)?);
            // Column + window > row. The library wants this number as a float.
            let window = 1i64.checked_sub(from).filter(|w| w.unsigned_abs() < 1 << 24).ok_or_else(far)?;
            let window = self.float(window as f32)?;
            let column = self.map(Mode::Add, &[column, window])?;
            let seen = self.test(Mode::Greater, column, row)?;
            scores = self.hide(scores, seen)?;
        }
        Ok(scores)
    }

    /// The whole graph's ops.
    pub(super) fn attention(&mut self, x: &Attention) -> Result<()> {
        let scores = self.scores(x)?;
        let n = |n: usize| n as i64;
        let kind = data_type(x.dtype)?;
        let top = self.reduce(MAX, scores)?;
        let less = self.map(Mode::Sub, &[scores, top])?;
        let weights = self.map(Mode::Exp, &[less])?;
        let sum = self.reduce(SUM, weights)?;
        // The library knows the chain by its statistics, although nobody reads them.
        let log = self.map(Mode::Log, &[sum])?;
        match x.sums {
            None => self.map(Mode::Add, &[top, log])?,
            Some(sums) => {
                let sums = self.sums(x, sums)?;
                self.put(Mode::Add, &[top, log], F32, None, sums)?
            }
        };
        let parts = self.between(scores.extents, kind)?;
        self.put(Mode::Div, &[weights, sum], F32, None, parts)?;
        let [b, h, s] = x.v.strides;
        let v = [n(x.batch), n(x.key_heads), n(x.keys), n(x.f)];
        let v = self.tensor(v, [b, h, s, 1], kind, Some(Data::Values))?;
        let [b, h, l] = x.r.strides;
        let r = [n(x.batch), n(x.heads), n(x.queries), n(x.f)];
        let r = self.tensor(r, [b, h, l, 1], kind, Some(Data::Result))?;
        self.product([parts, v, r])
    }
}
