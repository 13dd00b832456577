//! Layouts: the position of a value's elements within the memory of its base.
//!
//! Every value that is not a view is stored contiguously in row-major order in its own memory: it is a *base*.
//! A view shares the memory of its base at an offset and with strides, both dims. A `reshape` is a view only if
//! the strides of its operand allow it for every binding of the symbols; otherwise its result is a base.

use crate::dim::Dim;
use crate::entity::EntityMap;
use crate::graph::{Graph, ValueDef};
use crate::ids::ValueId;
use crate::op::Op;
use crate::types::TensorType;

/// The layout of a value within its base, in elements of the value's dtype.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// The value whose memory this value uses; the value itself for a base.
    pub base: ValueId,
    /// The position of the first element.
    pub offset: Dim,
    /// The distance between adjacent elements along each axis; 0 along an expanded axis.
    pub strides: Vec<Dim>,
}

impl Layout {
    /// Whether the elements of a value of this type are contiguous in row-major order in the base, from the
    /// offset on. Strides of axes with extent 1 do not matter.
    pub fn is_contiguous(&self, ty: &TensorType) -> bool {
        let dense = ty.contiguous_strides();
        self.strides.iter().zip(&dense).zip(&ty.shape).all(|((s, d), n)| s == d || n.as_const() == Some(1))
    }
}

pub fn compute_layouts(graph: &Graph) -> EntityMap<ValueId, Layout> {
    let mut out: EntityMap<ValueId, Layout> = EntityMap::new();
    for (id, value) in graph.values.iter() {
        let view = match value.def {
            ValueDef::Node(n, 0) => {
                let node = &graph.nodes[n];
                node.inputs.first().and_then(|&x| view_layout(&node.op, out.get(x)?, graph.ty(x), &value.ty))
            }
            _ => None,
        };
        out.push(view.unwrap_or_else(|| Layout {
            base: id,
            offset: Dim::from(0),
            strides: value.ty.contiguous_strides(),
        }));
    }
    out
}

/// The layout of a view of `x`; `None` if the op is not a view of this operand.
pub fn view_layout(op: &Op, layout: &Layout, x: &TensorType, result: &TensorType) -> Option<Layout> {
    let base = layout.base;
    match op {
        Op::Permute { perm } => Some(Layout {
            base,
            offset: layout.offset.clone(),
            strides: perm.iter().map(|&p| layout.strides.get(p).cloned()).collect::<Option<_>>()?,
        }),
        Op::Slice { axis, start, step } => {
            let mut strides = layout.strides.clone();
            let stride = strides.get(*axis)?.clone();
            strides[*axis] = stride.clone() * Dim::from(*step);
            Some(Layout { base, offset: layout.offset.clone() + start.clone() * stride, strides })
        }
        Op::Expand => {
            let new = result.rank().checked_sub(x.rank())?;
            let strides = (0..result.rank())
                .map(|a| match a.checked_sub(new) {
                    Some(b) if x.shape[b] == result.shape[a] => layout.strides[b].clone(),
                    _ => Dim::from(0),
                })
                .collect();
            Some(Layout { base, offset: layout.offset.clone(), strides })
        }
        Op::Reshape => {
            let strides = reshape_strides(&x.shape, &layout.strides, &result.shape)?;
            Some(Layout { base, offset: layout.offset.clone(), strides })
        }
        _ => None,
    }
}

/// The strides of a reshaped view; `None` if no strides represent it. Adjacent axes that are dense within each
/// other are merged, and each merged run is then split over the new axes. (This is the method of PyTorch's and
/// NumPy's no-copy reshape, for symbolic extents.)
fn reshape_strides(old: &[Dim], old_strides: &[Dim], new: &[Dim]) -> Option<Vec<Dim>> {
    // Merged runs, outermost first: (number of elements, stride of the innermost axis).
    let mut runs: Vec<(Dim, Dim)> = Vec::new();
    for (n, s) in old.iter().zip(old_strides) {
        if n.as_const() == Some(1) {
            continue;
        }
        match runs.last_mut() {
            Some((count, stride)) if *stride == s.clone() * n.clone() => {
                *count = count.clone() * n.clone();
                *stride = s.clone();
            }
            _ => runs.push((n.clone(), s.clone())),
        }
    }
    let mut strides = vec![Dim::from(0); new.len()];
    let mut run = runs.pop();
    for (axis, n) in new.iter().enumerate().rev() {
        if n.as_const() == Some(1) {
            strides[axis] = match &run {
                Some((_, stride)) => stride.clone(),
                None => Dim::from(1),
            };
            continue;
        }
        while run.as_ref().is_some_and(|(count, _)| count.as_const() == Some(1)) {
            run = runs.pop();
        }
        let (count, stride) = run.take()?;
        strides[axis] = stride.clone();
        run = Some((count.exact_div(n)?, stride * n.clone()));
    }
    let done = runs.is_empty() && run.is_none_or(|(count, _)| count.as_const() == Some(1));
    done.then_some(strides)
}
