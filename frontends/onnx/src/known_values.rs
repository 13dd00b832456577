//! Values that are known at import: constants, and integer tensors whose elements are expressions of the
//! program's symbols, such as shapes. Arithmetic on such integers happens here, so that a computed shape is
//! known to the nodes that use it.

use std::sync::Arc;

use symmc_ir::dim::check_shape_complexity;
use symmc_ir::{BinaryOp, DType, Dim, FloatAttribute, Scalar, Tensor, TensorType};

/// The largest number of elements of an integer tensor that is tracked as expressions.
pub(crate) const MAX_FOLLOWED: usize = 1024;

/// An integer tensor whose elements are expressions of symbols.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SymbolicInts {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub dims: Vec<Dim>,
}

#[derive(Clone, Debug)]
pub(crate) enum KnownValue {
    Data(Arc<Tensor>),
    /// Expressions. At least one of them is not a constant.
    Ints(SymbolicInts),
}

/// A comparison of two expressions of sizes.
#[derive(Clone, Debug)]
pub(crate) struct SizeCondition {
    pub op: BinaryOp,
    pub left: Dim,
    pub right: Dim,
}

impl KnownValue {
    /// The elements as expressions, if they are integers and at most [`MAX_FOLLOWED`].
    pub fn as_ints(&self) -> Option<SymbolicInts> {
        match self {
            KnownValue::Ints(i) => Some(i.clone()),
            KnownValue::Data(t) if !t.dtype().is_float() && t.numel() <= MAX_FOLLOWED => Some(SymbolicInts {
                dtype: t.dtype(),
                shape: t.shape().to_vec(),
                dims: t.to_i64().into_iter().map(Dim::from).collect(),
            }),
            KnownValue::Data(_) => None,
        }
    }
}

impl SymbolicInts {
    pub fn vector(dims: Vec<Dim>) -> SymbolicInts {
        SymbolicInts { dtype: DType::I64, shape: vec![dims.len()], dims }
    }

    pub fn scalar(dim: Dim) -> SymbolicInts {
        SymbolicInts { dtype: DType::I64, shape: vec![], dims: vec![dim] }
    }

    /// Converts to a known value: a constant if all elements are constants. `None` if an expression exceeds
    /// the limits of [`symmc_ir::dim`], or there are too many elements.
    pub fn into_known(self) -> Option<KnownValue> {
        if self.dims.len() > MAX_FOLLOWED || self.dims.len() != self.shape.iter().product::<usize>() {
            return None;
        }
        let constants: Option<Vec<i64>> = self.dims.iter().map(Dim::as_const).collect();
        match constants {
            Some(elements) => {
                Tensor::from_i64(self.dtype, self.shape, &elements).map(|t| KnownValue::Data(Arc::new(t)))
            }
            None if self.dtype == DType::Bool => None,
            None => {
                let fits = self.dims.iter().all(|d| check_shape_complexity(std::slice::from_ref(d)).is_ok());
                fits.then_some(KnownValue::Ints(self))
            }
        }
    }

    /// Combines the elements with those of another tensor, with broadcasting. `None` if `f` returns `None`
    /// for any pair.
    pub fn zip_broadcast(
        &self,
        other: &SymbolicInts,
        dtype: DType,
        mut f: impl FnMut(&Dim, &Dim) -> Option<Dim>,
    ) -> Option<SymbolicInts> {
        let shape = broadcast_shapes(&self.shape, &other.shape)?;
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|n| *n <= MAX_FOLLOWED)?;
        let dims = (0..count)
            .map(|i| f(self.broadcast_element(&shape, i)?, other.broadcast_element(&shape, i)?))
            .collect::<Option<Vec<Dim>>>()?;
        Some(SymbolicInts { dtype, shape, dims })
    }

    /// The element at position `i` of a shape to which this tensor broadcasts.
    pub fn broadcast_element(&self, shape: &[usize], mut i: usize) -> Option<&Dim> {
        let mut offset = 0;
        let mut stride = 1;
        for (axis, &n) in shape.iter().enumerate().rev() {
            let position = i % n.max(1);
            i /= n.max(1);
            if let Some(own) = (axis + self.shape.len()).checked_sub(shape.len()) {
                offset += if self.shape[own] == 1 { 0 } else { position * stride };
                stride *= self.shape[own];
            }
        }
        self.dims.get(offset)
    }

    /// The elements at these positions along an axis. The axes `replacing` take the place of the axis.
    pub fn take_positions(
        &self,
        axis: usize,
        positions: &[i64],
        replacing: &[usize],
    ) -> Option<SymbolicInts> {
        let n = *self.shape.get(axis)?;
        let outer = element_count(&self.shape[..axis])?;
        let inner = element_count(&self.shape[axis + 1..])?;
        let shape = [&self.shape[..axis], replacing, &self.shape[axis + 1..]].concat();
        let count = outer.checked_mul(inner)?.checked_mul(positions.len()).filter(|n| *n <= MAX_FOLLOWED)?;
        let mut dims = Vec::with_capacity(count);
        for o in 0..outer {
            for &p in positions {
                let p = if p < 0 { p.checked_add(n as i64)? } else { p };
                let p = usize::try_from(p).ok().filter(|p| *p < n)?;
                dims.extend_from_slice(&self.dims[(o * n + p) * inner..(o * n + p + 1) * inner]);
            }
        }
        Some(SymbolicInts { dtype: self.dtype, shape, dims })
    }

    pub fn with_shape(mut self, shape: Vec<usize>) -> Option<SymbolicInts> {
        let count = element_count(&shape)?;
        self.shape = shape;
        (count == self.dims.len()).then_some(self)
    }
}

fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

fn broadcast_shapes(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extents =
        (0..rank).map(|axis| match (broadcast_extent(a, axis, rank), broadcast_extent(b, axis, rank)) {
            (1, d) | (d, 1) => Some(d),
            (d, e) => (d == e).then_some(d),
        });
    extents.collect()
}

/// The extent at an axis of a shape that is extended to `rank` axes.
fn broadcast_extent(shape: &[usize], axis: usize, rank: usize) -> usize {
    (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i])
}

pub(crate) fn type_of_tensor(data: &Tensor) -> TensorType {
    let shape: Vec<Dim> =
        data.shape().iter().map(|&d| Dim::from(i64::try_from(d).unwrap_or(i64::MAX))).collect();
    TensorType::new(data.dtype(), shape)
}

/// The value of all elements, if they are equal.
pub(crate) fn uniform_scalar(data: &Tensor) -> Option<Scalar> {
    let size = data.dtype().size();
    let first = data.data().get(..size)?;
    if !data.data().chunks(size).all(|element| element == first) {
        return None;
    }
    let scalar = match data.dtype() {
        d if d.is_float() => Scalar::Float(FloatAttribute(data.get_f64(0))),
        _ => Scalar::Int(symmc_ir::tensor::read_i64(data.dtype(), data.data(), 0)),
    };
    Some(scalar.convert_to(data.dtype()))
}
