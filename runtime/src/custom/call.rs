//! The arguments of a custom op's kernel: its operands and results, and the memory of peers that it may
//! access.

use std::borrow::Cow;
use std::marker::PhantomData;

use symmc_ir::DType;

use super::element::Element;
use super::error::CustomError;
use super::signature::KernelSignature;
use crate::kernels::TensorView;

/// A dense result before it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultMemory<'a> {
    pub dtype: DType,
    pub shape: &'a [usize],
    pub ptr: *mut u8,
}

/// The operands and results of one rank of the cell; `None` for those that the kernel may not touch there.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankTensors<'a> {
    pub operands: Vec<Option<TensorView<'a>>>,
    pub results: Vec<Option<ResultMemory<'a>>>,
}

/// One call of a kernel on one rank.
///
/// Elements of a tensor are given in row-major order. Numbers count ranks within the cell of the op's group;
/// an op without a group has a cell of this rank alone.
pub struct CustomCall<'a> {
    name: &'a str,
    cell: &'a [u32],
    number: usize,
    signature: &'a KernelSignature,
    tensors_by_rank: &'a [RankTensors<'a>],
    borrowed_results: Vec<bool>,
    touch: &'a dyn Fn(),
}

impl<'a> CustomCall<'a> {
    /// A call on rank number `number` of `cell`; `touch` is called before and after each access to a peer's
    /// memory.
    ///
    /// # Safety
    /// For `'a`, the memory of all tensors is valid and aligned. Nothing writes the operands. Only this call
    /// and those of peers write the results, and only this call writes results that `signature` does not
    /// share. No result overlaps an operand or another result. `tensors` has an entry for each rank of the
    /// cell, and that of this rank has all operands and results.
    pub(crate) unsafe fn new(
        name: &'a str,
        cell: &'a [u32],
        number: usize,
        signature: &'a KernelSignature,
        tensors: &'a [RankTensors<'a>],
        touch: &'a dyn Fn(),
    ) -> Self {
        let borrowed_results = vec![false; tensors[number].results.len()];
        CustomCall { name, cell, number, signature, tensors_by_rank: tensors, borrowed_results, touch }
    }

    /// The name of the op, `namespace::op`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    pub fn rank(&self) -> u32 {
        self.cell[self.number]
    }

    /// The ranks of the cell, by number.
    pub fn cell(&self) -> &'a [u32] {
        self.cell
    }

    /// This rank's number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The shape of an operand, equal on all ranks.
    ///
    /// # Errors
    /// There is no such operand.
    pub fn operand_shape(&self, position: usize) -> Result<&'a [usize], CustomError> {
        self.own_operand(position).map(|view| view.shape())
    }

    /// The shape of a result, equal on all ranks.
    ///
    /// # Errors
    /// There is no such result.
    pub fn result_shape(&self, position: usize) -> Result<&'a [usize], CustomError> {
        self.own_result(position).map(|result| result.shape)
    }

    /// The elements of an operand of this rank.
    ///
    /// # Errors
    /// There is no such operand, or it has another dtype.
    pub fn operand<T: Element>(&self, position: usize) -> Result<Cow<'a, [T]>, CustomError> {
        operand_elements(self.own_operand(position)?, position)
    }

    /// The elements of an operand of rank number `number`.
    ///
    /// # Errors
    /// As [`operand`](Self::operand); there is no such rank, or the signature does not name the operand.
    pub fn peer_operand<T: Element>(
        &self,
        number: usize,
        position: usize,
    ) -> Result<Cow<'a, [T]>, CustomError> {
        self.own_operand(position)?;
        let undeclared = CustomError::Undeclared { access: "read", what: "operand", position };
        let is_declared = self.signature.peer_operands().contains(&position);
        let view = self.rank_tensors(number)?.operands[position].as_ref();
        let view = view.filter(|_| is_declared).ok_or(undeclared)?;
        (self.touch)();
        let elements = operand_elements(view, position);
        (self.touch)();
        elements
    }

    /// The elements of a result of this rank, to be written; their previous contents are not specified.
    ///
    /// # Errors
    /// There is no such result, it has another dtype, the kernel has borrowed it already, or peers write it
    /// too (use [`peer_result`](Self::peer_result) then).
    pub fn result<T: Element>(&mut self, position: usize) -> Result<&'a mut [T], CustomError> {
        let result = *self.own_result(position)?;
        if self.signature.peer_results().contains(&position) {
            return Err(CustomError::Shared { position });
        }
        let (ptr, elements) = typed_result::<T>(&result, position)?;
        if std::mem::replace(&mut self.borrowed_results[position], true) {
            return Err(CustomError::Taken { position });
        }
        if elements == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the result is dense memory that nothing else touches for `'a`, by the promise of `new`; it
        // is borrowed once, and any bytes are a valid element.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, elements) })
    }

    /// A result of rank number `number` (which may be this rank) that the ranks of the cell write together.
    /// Each element is written by one of them.
    ///
    /// # Errors
    /// There is no such result or rank, it has another dtype, or the signature does not name it.
    pub fn peer_result<T: Element>(
        &self,
        number: usize,
        position: usize,
    ) -> Result<PeerResult<'a, T>, CustomError> {
        self.own_result(position)?;
        let undeclared = CustomError::Undeclared { access: "write", what: "result", position };
        let is_declared = self.signature.peer_results().contains(&position);
        let result = self.rank_tensors(number)?.results[position].as_ref();
        let result = result.filter(|_| is_declared).ok_or(undeclared)?;
        let (ptr, elements) = typed_result::<T>(result, position)?;
        Ok(PeerResult { ptr, elements, position, touch: self.touch, memory: PhantomData })
    }

    fn own_operand(&self, position: usize) -> Result<&'a TensorView<'a>, CustomError> {
        let operands = &self.tensors_by_rank[self.number].operands;
        let missing = CustomError::Position { what: "operand", position, count: operands.len() };
        operands.get(position).and_then(Option::as_ref).ok_or(missing)
    }

    fn own_result(&self, position: usize) -> Result<&'a ResultMemory<'a>, CustomError> {
        let results = &self.tensors_by_rank[self.number].results;
        let missing = CustomError::Position { what: "result", position, count: results.len() };
        results.get(position).and_then(Option::as_ref).ok_or(missing)
    }

    fn rank_tensors(&self, number: usize) -> Result<&'a RankTensors<'a>, CustomError> {
        self.tensors_by_rank
            .get(number)
            .ok_or(CustomError::Number { number, ranks: self.tensors_by_rank.len() })
    }
}

/// A result that several ranks write together.
pub struct PeerResult<'a, T> {
    ptr: *mut T,
    elements: usize,
    position: usize,
    touch: &'a dyn Fn(),
    memory: PhantomData<&'a [T]>,
}

impl<T: Element> PeerResult<'_, T> {
    pub fn len(&self) -> usize {
        self.elements
    }

    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Writes elements from element `at` on.
    ///
    /// # Errors
    /// They do not lie within the result.
    pub fn write(&self, at: usize, from: &[T]) -> Result<(), CustomError> {
        if at.checked_add(from.len()).is_none_or(|end| end > self.elements) {
            let position = self.position;
            let len = from.len();
            let elements = self.elements;
            return Err(CustomError::Range { position, at, len, elements });
        }
        (self.touch)();
        for (i, &x) in from.iter().enumerate() {
            // SAFETY: the element lies within the result, as checked above; ranks write shared results
            // through this function alone and nothing reads them meanwhile, by the promise of
            // `CustomCall::new`.
            unsafe { x.store(self.ptr.add(at + i)) };
        }
        (self.touch)();
        Ok(())
    }
}

/// The address and number of the elements of a result.
fn typed_result<T: Element>(
    result: &ResultMemory<'_>,
    position: usize,
) -> Result<(*mut T, usize), CustomError> {
    let dtype = result.dtype;
    if !T::holds(dtype) {
        return Err(CustomError::Type { what: "result", position, found: dtype, expected: T::NAME });
    }
    Ok((result.ptr.cast(), result.shape.iter().product()))
}

/// The elements of an operand: borrowed if they are stored in row-major order, otherwise copied.
fn operand_elements<'a, T: Element>(
    view: &TensorView<'a>,
    position: usize,
) -> Result<Cow<'a, [T]>, CustomError> {
    let dtype = view.dtype();
    if !T::holds(dtype) {
        return Err(CustomError::Type { what: "operand", position, found: dtype, expected: T::NAME });
    }
    let shape = view.shape();
    let strides = view.strides();
    let ptr = view.as_ptr().cast::<T>();
    let count = shape.iter().product();
    if count == 0 {
        return Ok(Cow::Borrowed(&[]));
    }
    if crate::kernels::is_dense(shape, strides) {
        // SAFETY: the elements are contiguous, and nothing writes them for `'a`, by the promise of
        // `CustomCall::new`; any bytes are a valid element.
        return Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(ptr, count) }));
    }
    let mut out = Vec::with_capacity(count);
    for i in 0..count {
        let mut remaining = i;
        let mut offset = 0;
        for (&n, &stride) in shape.iter().zip(strides).rev() {
            offset += (remaining % n) as isize * stride;
            remaining /= n;
        }
        // SAFETY: shape and strides reach the element, by the promise of the code that made the view.
        out.push(unsafe { ptr.offset(offset).read() });
    }
    Ok(Cow::Owned(out))
}
