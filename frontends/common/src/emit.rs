//! The methods by which frontends emit graph nodes: nodes with one result, without the no-ops among them, and
//! conventions that several frameworks share, such as positions that count from the end, shapes with an open
//! extent, and triangular masks.
//!
//! A frontend implements [`Emit`] for the node that it lowers. Its rules then call the methods.

use symmc_ir::axes::AxisMap;
use symmc_ir::dim::check_shape_complexity;
use symmc_ir::text::with_symbol_names;
use symmc_ir::{
    ArgOp, AttentionBound, BinaryOp, Collective, CollectiveKind, DType, Dim, FloatAttribute, GraphBuilder,
    GroupId, Op, ReductionKind, Scalar, TensorType, UnaryOp, ValueDef, ValueId, infer,
};

use crate::failure::{RuleFailure, RuleResult};
use crate::guards::fallible_operands;
use crate::requirement;

/// The result of a method that emits one value.
type EmitResult<E> = RuleResult<ValueId, E>;

/// Emits graph nodes for one node of a program. See the [module](self). Every emitting method fails if the
/// operands violate the typing rule of the op, or if extents exceed the limits of [`symmc_ir::dim`].
pub trait Emit {
    type Error;

    fn builder(&self) -> &GraphBuilder;
    fn builder_mut(&mut self) -> &mut GraphBuilder;
    /// The prefix of the names of emitted values.
    fn label(&self) -> &str;

    /// Wraps one sentence that says what is wrong with this node.
    fn invalid_node(&self, message: String) -> RuleFailure<Self::Error> {
        RuleFailure::Invalid(with_symbol_names(&message, &self.builder().graph().symbols))
    }

    fn ty(&self, v: ValueId) -> &TensorType {
        self.builder().graph().ty(v)
    }

    fn dtype(&self, v: ValueId) -> DType {
        self.ty(v).dtype
    }

    fn shape(&self, v: ValueId) -> Vec<Dim> {
        self.ty(v).shape.clone()
    }

    fn rank(&self, v: ValueId) -> usize {
        self.ty(v).rank()
    }

    /// The extent of an axis. A tensor without axes counts as having one axis of extent 1.
    fn extent(&self, x: ValueId, axis: usize) -> Dim {
        self.ty(x).shape.get(axis).cloned().unwrap_or(1.into())
    }

    /// The axis, counted from 0, of `n` axes. Negative axes count from the end.
    fn axis_within(&self, axis: i64, n: usize) -> RuleResult<usize, Self::Error> {
        let n = n as i64;
        if (-n..n).contains(&axis) {
            Ok(axis.rem_euclid(n) as usize)
        } else {
            Err(self.invalid_node(format!("expected an axis from {} to {}, found {axis}", -n, n - 1)))
        }
    }

    /// The axes of `n`, counted from 0 and ascending. Negative axes count from the end. Fails if an axis
    /// occurs twice.
    fn axes_within(&self, axes: &[i64], n: usize) -> RuleResult<Vec<usize>, Self::Error> {
        let mut axes: Vec<usize> = axes.iter().map(|&a| self.axis_within(a, n)).collect::<Result<_, _>>()?;
        axes.sort_unstable();
        if axes.windows(2).any(|w| w[0] == w[1]) {
            return Err(self.invalid_node(format!("expected distinct axes, found {axes:?}")));
        }
        Ok(axes)
    }

    fn dim_bounds(&self, d: &Dim) -> (i64, i64) {
        d.bounds(&self.builder().graph().symbols)
    }

    /// Emits a node in another form, where its operands need one. `types` are the declared result types.
    fn emit_adapted(
        &mut self,
        _hint: &str,
        _op: &Op,
        _inputs: &[ValueId],
        _types: Option<&[TensorType]>,
    ) -> RuleResult<Option<Vec<ValueId>>, Self::Error> {
        Ok(None)
    }

    /// The bool without axes that holds where the branch of the present node runs ([`crate::branches`]). `None` outside of branches.
    fn guard(&self) -> Option<ValueId> {
        None
    }

    /// The operands with which a node is emitted in a branch, if they are others.
    fn guard_operands(
        &mut self,
        op: &Op,
        inputs: &[ValueId],
    ) -> RuleResult<Option<Vec<ValueId>>, Self::Error> {
        let Some(guard) = self.guard() else { return Ok(None) };
        let replaced = fallible_operands(self.builder().graph(), op, inputs);
        if replaced.is_empty() {
            return Ok(None);
        }
        let mut operands = inputs.to_vec();
        for (operand, number) in replaced {
            let dtype = self.dtype(operands[operand]);
            let safe = self.full(Scalar::Int(number), dtype, vec![])?;
            operands[operand] = self.select(guard, operands[operand], safe)?;
        }
        Ok(Some(operands))
    }

    /// Emits a node as it is, without [`emit_adapted`](Self::emit_adapted). `types` are the declared result types.
    fn emit_plain(
        &mut self,
        hint: &str,
        op: Op,
        inputs: &[ValueId],
        types: Option<&[TensorType]>,
    ) -> RuleResult<Vec<ValueId>, Self::Error> {
        for ty in types.into_iter().flatten() {
            check_shape_complexity(&ty.shape).map_err(|m| self.invalid_node(m))?;
        }
        let guarded = self.guard_operands(&op, inputs)?;
        let inputs = guarded.as_deref().unwrap_or(inputs);
        let name = format!("{}.{hint}", self.label());
        let results = match types {
            Some(types) => self.builder_mut().node_as(&name, op, inputs, types.to_vec())?,
            None => self.builder_mut().node(&name, op, inputs)?,
        };
        for &r in &results {
            check_shape_complexity(&self.ty(r).shape).map_err(|m| self.invalid_node(m))?;
        }
        Ok(results)
    }

    /// The types of the results of a node that is not emitted yet, and how their axes correspond to those of its operands.
    fn typed_axes(
        &self,
        op: &Op,
        inputs: &[ValueId],
        types: Option<&[TensorType]>,
    ) -> RuleResult<(Vec<TensorType>, AxisMap), Self::Error> {
        let operands: Vec<&TensorType> = inputs.iter().map(|v| self.ty(*v)).collect();
        let results = match types {
            Some(types) => types.to_vec(),
            None => {
                infer::infer_types(op, &operands, None).map_err(RuleFailure::Invalid)?.unwrap_or_default()
            }
        };
        let operand_shapes: Vec<&[Dim]> = operands.iter().map(|ty| &ty.shape[..]).collect();
        let result_shapes: Vec<&[Dim]> = results.iter().map(|ty| &ty.shape[..]).collect();
        let axes = op.axes(&operand_shapes, &result_shapes);
        Ok((results, axes))
    }

    /// Emits a node whose op determines its result types.
    fn emit_all(&mut self, hint: &str, op: Op, inputs: &[ValueId]) -> RuleResult<Vec<ValueId>, Self::Error> {
        match self.emit_adapted(hint, &op, inputs, None)? {
            Some(results) => Ok(results),
            None => self.emit_plain(hint, op, inputs, None),
        }
    }

    fn emit(&mut self, hint: &str, op: Op, inputs: &[ValueId]) -> EmitResult<Self::Error> {
        Ok(self.emit_all(hint, op, inputs)?[0])
    }

    /// Emits a node with a declared result type.
    fn emit_as(&mut self, hint: &str, op: Op, inputs: &[ValueId], ty: TensorType) -> EmitResult<Self::Error> {
        check_shape_complexity(&ty.shape).map_err(|m| self.invalid_node(m))?;
        let types = std::slice::from_ref(&ty);
        Ok(match self.emit_adapted(hint, &op, inputs, Some(types))? {
            Some(results) => results[0],
            None => self.emit_plain(hint, op, inputs, Some(types))?[0],
        })
    }

    // Element-wise.

    fn cast(&mut self, x: ValueId, dtype: DType) -> EmitResult<Self::Error> {
        if self.dtype(x) == dtype {
            return Ok(x);
        }
        let ty = TensorType::new(dtype, self.shape(x));
        self.emit_as("cast", Op::Cast, &[x], ty)
    }

    fn unary(&mut self, op: UnaryOp, x: ValueId) -> EmitResult<Self::Error> {
        self.emit(op.name(), Op::Unary(op), &[x])
    }

    /// `x op y` for two operands of the same dtype. Addition and multiplication of bools become `or` and
    /// `and`.
    fn binary(&mut self, op: BinaryOp, x: ValueId, y: ValueId) -> EmitResult<Self::Error> {
        let op = as_logical_op(op, self.dtype(x));
        self.emit(op.name(), Op::Binary(op), &[x, y])
    }

    /// `x op scalar`; the scalar takes the dtype of `x`.
    fn binary_scalar(&mut self, op: BinaryOp, x: ValueId, s: Scalar) -> EmitResult<Self::Error> {
        let dtype = self.dtype(x);
        let op = as_logical_op(op, dtype);
        self.emit(op.name(), Op::BinaryScalar { op, scalar: s.convert_to(dtype), scalar_left: false }, &[x])
    }

    /// `scalar op x`; the scalar takes the dtype of `x`.
    fn scalar_binary(&mut self, op: BinaryOp, s: Scalar, x: ValueId) -> EmitResult<Self::Error> {
        let dtype = self.dtype(x);
        let op = as_logical_op(op, dtype);
        self.emit(op.name(), Op::BinaryScalar { op, scalar: s.convert_to(dtype), scalar_left: true }, &[x])
    }

    fn binary_float(&mut self, op: BinaryOp, x: ValueId, y: f64) -> EmitResult<Self::Error> {
        self.binary_scalar(op, x, Scalar::Float(FloatAttribute(y)))
    }

    /// `x op dim`; the dim takes the dtype of `x`.
    fn binary_dim(&mut self, op: BinaryOp, x: ValueId, dim: &Dim) -> EmitResult<Self::Error> {
        match dim.as_const() {
            Some(number) => self.binary_scalar(op, x, Scalar::Int(number)),
            None => {
                let dim = self.emit_dim(dim, self.dtype(x))?;
                self.binary(op, x, dim)
            }
        }
    }

    /// `condition ? x : y`.
    fn select(&mut self, condition: ValueId, x: ValueId, y: ValueId) -> EmitResult<Self::Error> {
        self.emit("select", Op::Select, &[condition, x, y])
    }

    // Creation.

    fn full(&mut self, s: Scalar, dtype: DType, shape: Vec<Dim>) -> EmitResult<Self::Error> {
        self.emit_as("full", Op::Full(s.convert_to(dtype)), &[], TensorType::new(dtype, shape))
    }

    /// `len` integers `start`, `start + step`, ….
    fn iota(&mut self, len: Dim, start: i64, step: i64, dtype: DType) -> EmitResult<Self::Error> {
        self.emit_as("iota", Op::Iota { start, step }, &[], TensorType::new(dtype, vec![len]))
    }

    /// A tensor without axes that holds the value of a dim: the last element of an iota.
    fn emit_dim(&mut self, d: &Dim, dtype: DType) -> EmitResult<Self::Error> {
        if let Some(i) = d.as_const() {
            return self.full(Scalar::Int(i), dtype, vec![]);
        }
        let start = self.dim_bounds(d).0.min(0);
        let index = d.clone() - Dim::from(start);
        let iota = self.iota(index.clone() + Dim::from(1), start, 1, DType::I64)?;
        let element = self.slice(iota, 0, index, Dim::from(1), 1)?;
        let scalar = self.reshape(element, vec![])?;
        self.cast(scalar, dtype)
    }

    /// `len` positions `start`, `start + step`, …. The start may be symbolic.
    fn emit_positions(&mut self, start: &Dim, step: i64, len: Dim) -> EmitResult<Self::Error> {
        if let Some(start) = start.as_const() {
            return self.iota(len, start, step, DType::I64);
        }
        let iota = self.iota(len, 0, step, DType::I64)?;
        let start = self.emit_dim(start, DType::I64)?;
        self.binary(BinaryOp::Add, iota, start)
    }

    /// The integers from `start` by `step` up to `end`, exclusive.
    fn range(&mut self, start: &Dim, end: &Dim, step: i64, dtype: DType) -> EmitResult<Self::Error> {
        let distance = match step {
            0 => return Err(self.invalid_node("expected a step other than 0".into())),
            1.. => end.clone() - start.clone(),
            _ => start.clone() - end.clone(),
        };
        let by = step.saturating_abs();
        let len = (distance + Dim::from(by - 1)).floor_div(&by.into());
        let len = if self.dim_bounds(&len).0 < 0 { len.max_with(&0.into()) } else { len };
        match start.as_const() {
            Some(start) => self.iota(len, start, step, dtype),
            None => {
                let y = self.emit_positions(start, step, len)?;
                self.cast(y, dtype)
            }
        }
    }

    /// `column - offset op row` for each element of a matrix with this many rows and columns.
    fn compare_positions(
        &mut self,
        (rows, columns): (Dim, Dim),
        op: BinaryOp,
        offset: &Dim,
    ) -> EmitResult<Self::Error> {
        let row = self.iota(rows, 0, 1, DType::I64)?;
        let row = self.unsqueeze(row, 1)?;
        let column = self.emit_positions(&(Dim::from(0) - offset.clone()), 1, columns)?;
        self.binary(op, column, row)
    }

    /// The elements of the last two axes for which `column - offset op row` holds; 0 elsewhere.
    fn triangle(&mut self, x: ValueId, op: BinaryOp, offset: &Dim) -> EmitResult<Self::Error> {
        let shape = self.shape(x);
        let [.., rows, columns] = shape.as_slice() else {
            return Err(self.invalid_node(format!("expected at least two axes, found {}", shape.len())));
        };
        let keep = self.compare_positions((rows.clone(), columns.clone()), op, offset)?;
        let zero = self.full(Scalar::Int(0), self.dtype(x), vec![])?;
        self.select(keep, x, zero)
    }

    // Views.

    fn reshape(&mut self, x: ValueId, shape: Vec<Dim>) -> EmitResult<Self::Error> {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        let ty = TensorType::new(self.dtype(x), shape);
        self.emit_as("reshape", Op::Reshape, &[x], ty)
    }

    /// A shape with its -1, if any, replaced so that the number of elements is `numel`.
    fn resolve_open_extent(&self, shape: Vec<Dim>, numel: &Dim) -> RuleResult<Vec<Dim>, Self::Error> {
        if !shape.iter().any(is_open_extent) {
            return Ok(shape);
        }
        let known_extents: Vec<Dim> = shape.iter().filter(|d| !is_open_extent(d)).cloned().collect();
        if known_extents.len() + 1 != shape.len() {
            return Err(self.invalid_node(format!("expected at most one extent of -1, found {shape:?}")));
        }
        check_shape_complexity(&known_extents).map_err(|m| self.invalid_node(m))?;
        let known_numel = extent_product(&known_extents);
        if known_numel.as_const() == Some(0) {
            let message = format!("expected other extents than 0 next to the extent -1, found {shape:?}");
            return Err(self.invalid_node(message));
        }
        let open_extent = match numel.exact_div(&known_numel) {
            Some(exact) => exact,
            None if known_numel.as_const().is_some() && numel.as_const().is_some() => {
                return Err(
                    self.invalid_node(format!("expected a shape of {numel:?} elements, found {shape:?}"))
                );
            }
            None => numel.floor_div(&known_numel),
        };
        Ok(shape.into_iter().map(|d| if is_open_extent(&d) { open_extent.clone() } else { d }).collect())
    }

    fn permute(&mut self, x: ValueId, perm: Vec<usize>) -> EmitResult<Self::Error> {
        if perm.iter().copied().eq(0..self.rank(x)) {
            return Ok(x);
        }
        self.emit("permute", Op::Permute { perm }, &[x])
    }

    /// The matrix transpose: the last two axes swapped.
    fn transposed(&mut self, x: ValueId) -> EmitResult<Self::Error> {
        let mut perm: Vec<usize> = (0..self.rank(x)).collect();
        if let [.., a, b] = perm.as_mut_slice() {
            std::mem::swap(a, b);
        }
        self.permute(x, perm)
    }

    fn expand(&mut self, x: ValueId, shape: Vec<Dim>) -> EmitResult<Self::Error> {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        let ty = TensorType::new(self.dtype(x), shape);
        self.emit_as("expand", Op::Expand, &[x], ty)
    }

    /// `len` elements of an axis, from `start` on, in steps of `step`.
    fn slice(&mut self, x: ValueId, axis: usize, start: Dim, len: Dim, step: i64) -> EmitResult<Self::Error> {
        let mut shape = self.shape(x);
        if start.as_const() == Some(0) && step == 1 && shape.get(axis) == Some(&len) {
            return Ok(x);
        }
        match shape.get_mut(axis) {
            Some(d) => *d = len,
            None => {
                let n = shape.len();
                return Err(self.invalid_node(format!("expected an axis below {n}, found {axis}")));
            }
        }
        check_shape_complexity(std::slice::from_ref(&start)).map_err(|m| self.invalid_node(m))?;
        let ty = TensorType::new(self.dtype(x), shape);
        self.emit_as("slice", Op::Slice { axis, start, step }, &[x], ty)
    }

    /// Splits an axis into consecutive slices of these lengths. The lengths must add up to the extent of the
    /// axis.
    fn split_by_lengths(
        &mut self,
        x: ValueId,
        axis: usize,
        lengths: Vec<Dim>,
    ) -> RuleResult<Vec<ValueId>, Self::Error> {
        let n = self.extent(x, axis);
        let mut pieces = Vec::with_capacity(lengths.len());
        let mut start = Dim::from(0);
        for len in lengths {
            pieces.push(self.slice(x, axis, start.clone(), len.clone(), 1)?);
            start = start + len;
        }
        let (low, high) = self.dim_bounds(&(n.clone() - start.clone()));
        if low > 0 || high < 0 {
            return Err(self.invalid_node(format!("expected lengths that add up to {n:?}, found {start:?}")));
        }
        self.require_equal("pieces", &start, &n)?;
        Ok(pieces)
    }

    /// Requires two dims to be equal for the sizes of each run; see [`crate::requirement`].
    fn require_equal(&mut self, what: &str, found: &Dim, expected: &Dim) -> RuleResult<(), Self::Error> {
        let label = format!("{}.{what}", self.label());
        let added = requirement::require_equal(self.builder_mut(), &label, found, expected);
        added.map_err(|message| self.invalid_node(format!("{what}: {message}")))
    }

    fn require_at_most(&mut self, what: &str, count: &Dim, limit: &Dim) -> RuleResult<(), Self::Error> {
        let label = format!("{}.{what}", self.label());
        let added = requirement::require_at_most(self.builder_mut(), &label, count, limit);
        added.map_err(|message| self.invalid_node(format!("{what}: {message}")))
    }

    /// Requires an axis to have at least as many elements as the negative numbers of a padding remove.
    fn require_cropped(&mut self, extent: &Dim, before: &Dim, after: &Dim) -> RuleResult<(), Self::Error> {
        let mut cropped = Dim::from(0);
        for pad in [before, after] {
            if self.dim_bounds(pad).0 < 0 {
                cropped = cropped + (Dim::from(0) - pad.clone()).max_with(&0.into());
            }
        }
        self.require_at_most("cropped", &cropped, extent)
    }

    /// Start and length of the slice from `start` to `end`, exclusive, of `n` elements, in steps of `step`.
    /// An `end` of `None` is the end of the axis. Positions below 0 count from the end, and all positions are
    /// limited to the axis. The step is at least 1.
    fn slice_range(&self, n: &Dim, start: Dim, end: Option<Dim>, step: i64) -> (Dim, Dim) {
        let start = self.clamp_position(start, n);
        let end = end.map_or_else(|| n.clone(), |end| self.clamp_position(end, n));
        let mut len = end - start.clone();
        if self.dim_bounds(&len).0 < 0 {
            len = len.max_with(&0.into());
        }
        if step > 1 {
            len = (len + Dim::from(step - 1)).floor_div(&step.into());
        }
        (start, len)
    }

    /// The position counted from 0. A negative one counts from the end of an axis of extent `n`.
    fn index_from_start(&self, position: Dim, n: &Dim) -> Dim {
        if self.dim_bounds(&position).1 < 0 { n.clone() + position } else { position }
    }

    /// A position of a slice: counted from the end if negative, then limited to the axis.
    fn clamp_position(&self, position: Dim, n: &Dim) -> Dim {
        let p = self.index_from_start(position, n);
        let p = if self.dim_bounds(&p).0 < 0 { p.max_with(&0.into()) } else { p };
        match self.dim_bounds(&(n.clone() - p.clone())) {
            (low, _) if low >= 0 => p,
            (_, high) if high <= 0 => n.clone(),
            _ => p.min_with(n),
        }
    }

    fn unsqueeze(&mut self, x: ValueId, axis: usize) -> EmitResult<Self::Error> {
        let mut shape = self.shape(x);
        shape.insert(axis.min(shape.len()), Dim::from(1));
        self.reshape(x, shape)
    }

    /// `x` without an axis of extent 1.
    fn drop_axis(&mut self, x: ValueId, axis: usize) -> EmitResult<Self::Error> {
        let mut shape = self.shape(x);
        if axis < shape.len() {
            shape.remove(axis);
        }
        self.reshape(x, shape)
    }

    fn reverse_axis(&mut self, x: ValueId, axis: usize) -> EmitResult<Self::Error> {
        let n = self.extent(x, axis);
        let from_last = match n.as_const() {
            Some(n) => self.iota(n.into(), n - 1, -1, DType::I64)?,
            None => {
                let last_index = self.emit_dim(&(n.clone() - Dim::from(1)), DType::I64)?;
                let iota = self.iota(n, 0, 1, DType::I64)?;
                self.binary(BinaryOp::Sub, last_index, iota)?
            }
        };
        self.emit("take", Op::Take { axis }, &[x, from_last])
    }

    fn concat(&mut self, tensors: &[ValueId], axis: usize) -> EmitResult<Self::Error> {
        match tensors {
            [one] => Ok(*one),
            _ => self.emit("concat", Op::Concat { axis }, tensors),
        }
    }

    /// Repeats `x` along each axis.
    fn repeat(&mut self, x: ValueId, repeats: &[Dim]) -> EmitResult<Self::Error> {
        let mut shape = self.shape(x);
        if repeats.len() < shape.len() {
            let minimum = shape.len();
            let count = repeats.len();
            return Err(self.invalid_node(format!("expected at least {minimum} repeats, found {count}")));
        }
        while shape.len() < repeats.len() {
            shape.insert(0, 1.into());
        }
        if repeats.iter().all(|r| r.as_const() == Some(1)) {
            return self.reshape(x, shape);
        }
        let once: Vec<Dim> = shape.iter().flat_map(|d| [Dim::from(1), d.clone()]).collect();
        let interleaved: Vec<Dim> =
            repeats.iter().zip(&shape).flat_map(|(r, d)| [r.clone(), d.clone()]).collect();
        let joined: Vec<Dim> = repeats.iter().zip(&shape).map(|(r, d)| r.clone() * d.clone()).collect();
        let y = self.reshape(x, once)?;
        let y = self.expand(y, interleaved)?;
        self.reshape(y, joined)
    }

    /// A row of bools in a form that broadcasts along an axis of `x`.
    fn mask_along(&mut self, mask: ValueId, x: ValueId, axis: usize) -> EmitResult<Self::Error> {
        let mut shape = vec![Dim::from(1); self.rank(x) - axis];
        if let Some(first) = shape.first_mut() {
            *first = self.extent(x, axis);
        }
        self.reshape(mask, shape)
    }

    /// Repeats each element of an axis, so that its copies are adjacent.
    fn repeat_elements(&mut self, x: ValueId, axis: usize, times: &Dim) -> EmitResult<Self::Error> {
        let mut shape = self.shape(x);
        let once = self.unsqueeze(x, axis + 1)?;
        let mut repeated = self.shape(once);
        repeated[axis + 1] = times.clone();
        let repeated = self.expand(once, repeated)?;
        shape[axis] = shape[axis].clone() * times.clone();
        self.reshape(repeated, shape)
    }

    // Products, reductions, normalization, attention, collectives.

    /// `x @ y` over the last two axes.
    fn matmul(&mut self, x: ValueId, y: ValueId) -> EmitResult<Self::Error> {
        self.emit("matmul", Op::MATMUL, &[x, y])
    }

    /// NumPy's `matmul`: a vector is a row on the left and a column on the right, and that axis is dropped
    /// from the result.
    fn numpy_matmul(&mut self, x: ValueId, y: ValueId) -> EmitResult<Self::Error> {
        self.numpy_product(Op::MATMUL, x, y)
    }

    /// [`numpy_matmul`](Self::numpy_matmul) before its sums are rounded: f32 for f16 and bf16. Use it where
    /// more is added to the sums, or a factor is applied; [`scale_and_add`](Self::scale_and_add) rounds them.
    fn product_sums(&mut self, x: ValueId, y: ValueId) -> EmitResult<Self::Error> {
        let is_narrow = self.dtype(x).is_narrow_float();
        self.numpy_product(if is_narrow { Op::MATMUL_UNROUNDED } else { Op::MATMUL }, x, y)
    }

    /// `alpha * sums + beta * bias` in the dtype of the sums, rounded once to `dtype`. A bias is not read if
    /// `beta` is 0.
    fn scale_and_add(
        &mut self,
        sums: ValueId,
        alpha: f64,
        bias: Option<ValueId>,
        beta: f64,
        dtype: DType,
    ) -> EmitResult<Self::Error> {
        let compute = self.dtype(sums);
        let mut y = sums;
        if alpha != 1.0 {
            y = self.binary_float(BinaryOp::Mul, y, alpha)?;
        }
        if let Some(bias) = bias.filter(|_| beta != 0.0) {
            let mut bias = self.cast(bias, compute)?;
            if beta != 1.0 {
                bias = self.binary_float(BinaryOp::Mul, bias, beta)?;
            }
            y = self.binary(BinaryOp::Add, y, bias)?;
        }
        self.cast(y, dtype)
    }

    fn numpy_product(&mut self, op: Op, x: ValueId, y: ValueId) -> EmitResult<Self::Error> {
        let row = self.rank(x) == 1;
        let column = self.rank(y) == 1;
        let x = if row { self.unsqueeze(x, 0)? } else { x };
        let y = if column { self.unsqueeze(y, 1)? } else { y };
        let mut z = self.emit("matmul", op, &[x, y])?;
        if column {
            z = self.drop_axis(z, self.rank(z) - 1)?;
        }
        if row {
            let axis = self.rank(z) - if column { 1 } else { 2 };
            z = self.drop_axis(z, axis)?;
        }
        Ok(z)
    }

    fn reduce(
        &mut self,
        op: ReductionKind,
        x: ValueId,
        axes: Vec<usize>,
        keep: bool,
    ) -> EmitResult<Self::Error> {
        self.emit(op.name(), Op::Reduce { op, axes, keep }, &[x])
    }

    /// The index of the largest or smallest element along `axis`; of equal elements, the first.
    fn arg_reduce(&mut self, op: ArgOp, x: ValueId, axis: usize, keep: bool) -> EmitResult<Self::Error> {
        self.emit(op.name(), Op::ArgReduce { op, axis, keep }, &[x])
    }

    /// A layer norm over the last `axes` axes. The optional weight and bias have the shape of those axes.
    fn layer_norm(
        &mut self,
        x: ValueId,
        (weight, bias): (Option<ValueId>, Option<ValueId>),
        axes: usize,
        eps: f64,
    ) -> EmitResult<Self::Error> {
        let dtype = self.dtype(x);
        let mut operands = vec![x];
        if let Some(w) = weight {
            operands.push(self.cast(w, dtype)?);
        } else if bias.is_some() {
            let tail = self.shape(x).split_off(self.rank(x).saturating_sub(axes));
            operands.push(self.full(Scalar::Int(1), dtype, tail)?);
        }
        if let Some(b) = bias {
            operands.push(self.cast(b, dtype)?);
        }
        self.emit("layer_norm", Op::LayerNorm { axes, eps: FloatAttribute(eps) }, &operands)
    }

    /// Reshapes `[n, channels, …]` to `[n, groups, elements of a group]`.
    fn group_channels(&mut self, x: ValueId, groups: i64) -> EmitResult<Self::Error> {
        let shape = self.shape(x);
        let [n, channels, ..] = shape.as_slice() else {
            return Err(self.invalid_node(format!("expected at least two axes, found {}", shape.len())));
        };
        match extent_product(&shape[1..]).exact_div(&groups.into()) {
            Some(each) => self.reshape(x, vec![n.clone(), groups.into(), each]),
            None => {
                Err(self.invalid_node(format!("expected {groups} groups to divide {channels:?} channels")))
            }
        }
    }

    /// Reshapes a vector over the channels of `[n, channels, …]` so that it broadcasts to that shape.
    fn reshape_per_channel(&mut self, x: ValueId, shape: &[Dim]) -> EmitResult<Self::Error> {
        let after = shape.iter().skip(2).map(|_| Dim::from(1));
        self.reshape(x, shape.iter().skip(1).take(1).cloned().chain(after).collect())
    }

    /// The scale of attention: the given one, or by default `1 / sqrt(head size)`.
    fn attention_scale(&self, q: ValueId, scale: Option<f64>) -> RuleResult<f64, Self::Error> {
        match (scale, self.ty(q).shape.last().and_then(Dim::as_const)) {
            (Some(scale), _) => Ok(scale),
            (None, Some(size @ 1..)) => Ok(1.0 / (size as f64).sqrt()),
            _ => Err(RuleFailure::Opaque("the head size is symbolic and no scale is given".into())),
        }
    }

    /// Attention. A bool mask selects elements, and a float mask is added to the scores.
    fn emit_attention(
        &mut self,
        [q, k, v]: [ValueId; 3],
        mask: Option<ValueId>,
        scale: f64,
        cap: Option<FloatAttribute>,
        bounds: Vec<AttentionBound>,
    ) -> EmitResult<Self::Error> {
        let mut operands = vec![q, k, v];
        if let Some(mask) = mask {
            operands.push(if self.dtype(mask).is_float() { mask } else { self.cast(mask, DType::Bool)? });
        }
        self.emit(
            "attention",
            Op::Attention { scale: FloatAttribute(scale), cap, bounds, sink: false, log_sum_exp: false },
            &operands,
        )
    }

    fn collective(&mut self, kind: CollectiveKind, group: GroupId, x: ValueId) -> EmitResult<Self::Error> {
        let hint = kind.name();
        self.emit(hint, Op::Collective(Collective { kind, group, variant: None }), &[x])
    }

    /// The index counted from 0. Negative elements count from the end of `n` elements.
    fn wrap_negative_index(&mut self, index: ValueId, n: &Dim) -> EmitResult<Self::Error> {
        if self.is_non_negative(index) {
            return Ok(index);
        }
        let from_end = self.binary_dim(BinaryOp::Add, index, n)?;
        let negative = self.binary_scalar(BinaryOp::Lt, index, Scalar::Int(0))?;
        self.select(negative, from_end, index)
    }

    /// Whether no element of an integer value can be negative, judged by the nodes that compute it.
    fn is_non_negative(&self, v: ValueId) -> bool {
        is_computed_non_negative(self.builder(), v, &mut 64)
    }
}

fn is_open_extent(extent: &Dim) -> bool {
    extent.as_const() == Some(-1)
}

pub fn extent_product(extents: &[Dim]) -> Dim {
    extents.iter().cloned().fold(Dim::from(1), |a, b| a * b)
}

fn as_logical_op(op: BinaryOp, dtype: DType) -> BinaryOp {
    match (op, dtype) {
        (BinaryOp::Add, DType::Bool) => BinaryOp::Or,
        (BinaryOp::Mul, DType::Bool) => BinaryOp::And,
        _ => op,
    }
}

/// Whether no element can be negative. `budget` bounds the number of values that are visited.
fn is_computed_non_negative(builder: &GraphBuilder, v: ValueId, budget: &mut usize) -> bool {
    let graph = builder.graph();
    let dtype = graph.ty(v).dtype;
    if matches!(dtype, DType::Bool | DType::U8) {
        return true;
    }
    let (node, result) = match graph.values[v].def {
        ValueDef::Node(node, result) => (node, result),
        ValueDef::Input(input) => {
            let data = graph.inputs[input].data.as_ref();
            return data.is_some_and(|t| t.numel() <= 4096 && t.to_i64().iter().all(|&i| i >= 0));
        }
    };
    if *budget == 0 {
        return false;
    }
    *budget -= 1;
    let node = &graph.nodes[node];
    let mut operand =
        |i: usize| node.inputs.get(i).is_some_and(|&x| is_computed_non_negative(builder, x, budget));
    match &node.op {
        Op::Iota { start, step } => *start >= 0 && *step >= 0,
        Op::Full(s) => s.as_f64() >= 0.0,
        Op::ArgReduce { .. } => true,
        Op::TopK { .. } | Op::Sort { .. } => result == 1 || operand(0),
        Op::Unary(UnaryOp::Abs | UnaryOp::Relu) => true,
        Op::BinaryScalar { op, scalar, scalar_left: false } => match op {
            BinaryOp::Add | BinaryOp::Mul | BinaryOp::FloorDiv => scalar.as_f64() >= 0.0 && operand(0),
            BinaryOp::Rem => scalar.as_f64() > 0.0,
            BinaryOp::Max => scalar.as_f64() >= 0.0 || operand(0),
            BinaryOp::Min => scalar.as_f64() >= 0.0 && operand(0),
            _ => false,
        },
        Op::Binary(BinaryOp::Add | BinaryOp::Mul | BinaryOp::Min | BinaryOp::FloorDiv) => {
            operand(0) && operand(1)
        }
        Op::Binary(BinaryOp::Max) => operand(0) || operand(1),
        Op::Select => operand(1) && operand(2),
        Op::Cast
        | Op::Copy
        | Op::Reshape
        | Op::Permute { .. }
        | Op::Slice { .. }
        | Op::Expand
        | Op::Shard { .. }
        | Op::CumSum { .. }
        | Op::Reduce { .. }
        | Op::Take { .. }
        | Op::Index { .. }
        | Op::GatherElements { .. } => operand(0),
        Op::Concat { .. } => (0..node.inputs.len()).all(operand),
        Op::Collective(c) => matches!(c.kind, CollectiveKind::AllGather) && operand(0),
        _ => false,
    }
}
