//! The ops of the gradients of attention, in the form that cuDNN recognises.
//!
//! The chain is that of cuDNN's own frontend (`scaled_dot_product_flash_attention.h`, the composite backward
//! node) without dropout. The last product writes the gradient of the queries directly. With an intermediate
//! f32 result, the library would add to it with atomics, in an order that differs between runs. Without one,
//! it stores the gradient of the scores, and each run gives the same bits.

use super::attention::{AttentionGradient, CudnnAttention};
use super::builder::{
    CudnnGraphBuilder, CudnnTensorData, F32, GraphTensor, PointwiseMode, SUM, data_type, extents,
};
use super::descriptor::{AttributeValue, CudnnDescriptor, DescriptorAttribute, DescriptorKind};
use crate::error::{CudaError, Result};

impl CudnnGraphBuilder {
    /// Adds the ops of the whole graph.
    pub(super) fn gradient(&mut self, x: &CudnnAttention, g: &AttentionGradient) -> Result<()> {
        let kind = data_type(x.dtype)?;
        let of_scores = extents([x.batch, x.heads, x.queries, x.keys]);
        let values_of_rows = extents([x.batch, x.heads, x.queries, x.f]);
        let of_r =
            self.tensor(values_of_rows, by_rows(g.of_r.strides), kind, Some(CudnnTensorData::OfResult))?;
        let r = self.tensor(values_of_rows, by_rows(x.r.strides), kind, Some(CudnnTensorData::Result))?;
        let means = self.means(x, of_r, r)?;

        let q = extents([x.batch, x.heads, x.queries, x.e]);
        let q = self.tensor(q, by_rows(x.q.strides), kind, Some(CudnnTensorData::Queries))?;
        let turned_k = extents([x.batch, x.key_heads, x.e, x.keys]);
        let turned_k = self.tensor(turned_k, by_columns(x.k.strides), kind, Some(CudnnTensorData::Keys))?;
        let mut scores = self.add_virtual_tensor(of_scores, F32)?;
        self.product([q, turned_k, scores])?;
        let scale = self.float(x.scale)?;
        scores = self.pointwise_float(PointwiseMode::Mul, &[scores, scale])?;
        let sums = x.sums.ok_or_else(|| {
            CudaError::Unsupported("gradients of attention need the log-sum-exp, found none".into())
        })?;
        let sums = self.sums(x, sums)?;
        scores = self.pointwise_float(PointwiseMode::Sub, &[scores, sums])?;
        scores = self.band(scores, x)?;
        let weights = self.pointwise_float(PointwiseMode::Exp, &[scores])?;
        let of_v = self.add_key_tensor(
            extents([x.batch, x.key_heads, x.keys, x.f]),
            g.of_v.strides,
            kind,
            CudnnTensorData::OfValues,
        )?;
        self.turned_product(weights, of_r, of_v, kind)?;

        let turned_v = extents([x.batch, x.key_heads, x.f, x.keys]);
        let turned_v = self.tensor(turned_v, by_columns(x.v.strides), kind, Some(CudnnTensorData::Values))?;
        let mut of_weights = self.add_virtual_tensor(of_scores, F32)?;
        self.product([of_r, turned_v, of_weights])?;
        of_weights = self.pointwise_float(PointwiseMode::Sub, &[of_weights, means])?;
        of_weights = self.pointwise_float(PointwiseMode::Mul, &[of_weights, weights])?;
        let of_products = self.pointwise_float(PointwiseMode::Mul, &[of_weights, scale])?;
        let of_k = self.add_key_tensor(
            extents([x.batch, x.key_heads, x.keys, x.e]),
            g.of_k.strides,
            kind,
            CudnnTensorData::OfKeys,
        )?;
        self.turned_product(of_products, q, of_k, kind)?;

        let k = extents([x.batch, x.key_heads, x.keys, x.e]);
        let k = self.reshape(turned_k, k, by_rows(x.k.strides), F32)?;
        let of_q = extents([x.batch, x.heads, x.queries, x.e]);
        let of_q = self.tensor(of_q, by_rows(g.of_q.strides), kind, Some(CudnnTensorData::OfQueries))?;
        self.product([of_products, k, of_q])
    }

    /// The sum of the gradient times the result of each row.
    fn means(&mut self, x: &CudnnAttention, of_r: GraphTensor, r: GraphTensor) -> Result<GraphTensor> {
        let products = self.pointwise_float(PointwiseMode::Mul, &[of_r, r])?;
        let sum = self.reduce(SUM, products)?;
        let unit = self.float(1.0)?;
        let [heads, queries] = [x.heads as i64, x.queries as i64];
        let means = self.add_row_scalars(x, [heads * queries, queries, 1], CudnnTensorData::Means)?;
        self.add_pointwise(PointwiseMode::Mul, &[sum, unit], F32, None, means)
    }

    fn add_key_tensor(
        &mut self,
        extents: [i64; 4],
        strides: [i64; 3],
        kind: i32,
        data: CudnnTensorData,
    ) -> Result<GraphTensor> {
        self.tensor(extents, by_rows(strides), kind, Some(data))
    }

    /// Adds the product of the transposed `x` and `y`, summed over the heads that share a head of the result.
    fn turned_product(&mut self, x: GraphTensor, y: GraphTensor, to: GraphTensor, kind: i32) -> Result<()> {
        let [batch, heads, rows, columns] = x.extents;
        let strides = [heads * rows * columns, rows * columns, 1, columns];
        let turned = self.reshape(x, [batch, heads, columns, rows], strides, kind)?;
        if heads == to.extents[1] {
            return self.product([turned, y, to]);
        }
        let of_each = self.add_virtual_tensor([batch, heads, columns, y.extents[3]], kind)?;
        self.product([turned, y, of_each])?;
        self.reduce_to(SUM, of_each, to).map(drop)
    }

    /// The same elements with other extents and strides.
    fn reshape(
        &mut self,
        x: GraphTensor,
        extents: [i64; 4],
        strides: [i64; 4],
        kind: i32,
    ) -> Result<GraphTensor> {
        let result = self.tensor(extents, strides, kind, None)?;
        let op = CudnnDescriptor::new(self.cudnn, DescriptorKind::OperationReshape)?
            .with(DescriptorAttribute::OperationReshapeX, AttributeValue::One(&self.tensors[x.index]))?
            .with(DescriptorAttribute::OperationReshapeY, AttributeValue::One(&self.tensors[result.index]))?;
        self.ops.push(op.finish()?);
        Ok(result)
    }
}

/// The strides of a tensor whose rows are contiguous.
fn by_rows([batch, head, row]: [i64; 3]) -> [i64; 4] {
    [batch, head, row, 1]
}

/// The strides of its transpose.
fn by_columns([batch, head, row]: [i64; 3]) -> [i64; 4] {
    [batch, head, 1, row]
}
