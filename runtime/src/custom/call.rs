//! What a kernel of a custom op is called with: its operands and results, and what it may touch on peers.

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

/// The operands and results of one rank of the cell; `None` for what the kernel may not touch there.
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
    /// A call on the rank of `number` within `cell`; `touch` comes before and after each touch of a peer.
    ///
    /// # Safety
    /// For `'a`, the memory of every side is valid and aligned; nobody writes the operands, nobody but this
    /// call and those of peers writes the results, nobody but this call those that `signature` does not share,
    /// and no result overlaps an operand or another result. There is a side for each rank of the cell, with all
    /// operands and results on the own one.
    pub(crate) unsafe fn new(
        name: &'a str,
        cell: &'a [u32],
        number: usize,
        signature: &'a KernelSignature,
        sides: &'a [RankTensors<'a>],
        touch: &'a dyn Fn(),
    ) -> Self {
        let taken = vec![false; sides[number].results.len()];
        CustomCall { name, cell, number, signature, tensors_by_rank: sides, borrowed_results: taken, touch }
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

    /// The elements of an operand of the rank of this number.
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
        let declared = |_: &&TensorView| self.signature.peer_operands().contains(&position);
        let view =
            self.rank_tensors(number)?.operands[position].as_ref().filter(declared).ok_or(undeclared)?;
        (self.touch)();
        let elements = operand_elements(view, position);
        (self.touch)();
        elements
    }

    /// The elements of a result of this rank, to be written; what they hold before is not specified.
    ///
    /// # Errors
    /// There is no such result, it has another dtype, the kernel has it already, or peers write it too
    /// ([`peer_result`](Self::peer_result) then).
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
        // SAFETY: the result is dense memory that nobody else touches for `'a`, by the promise of `new`; it is
        // given away once, and any bytes are a valid element.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, elements) })
    }

    /// A result of the rank of this number, this rank included, that the ranks of the cell write together. Each
    /// element is written by one of them.
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
        let declared = |_: &&ResultMemory| self.signature.peer_results().contains(&position);
        let result =
            self.rank_tensors(number)?.results[position].as_ref().filter(declared).ok_or(undeclared)?;
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
            let (position, len, elements) = (self.position, from.len(), self.elements);
            return Err(CustomError::Range { position, at, len, elements });
        }
        (self.touch)();
        for (i, &x) in from.iter().enumerate() {
            // SAFETY: the element lies within the result, as was just seen; ranks write shared results through
            // this function alone and nobody reads them meanwhile, by the promise of `CustomCall::new`.
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
    let found = result.dtype;
    if !T::holds(found) {
        return Err(CustomError::Type { what: "result", position, found, expected: T::NAME });
    }
    Ok((result.ptr.cast(), result.shape.iter().product()))
}

/// The elements of an operand, where they lie if that is in row-major order.
fn operand_elements<'a, T: Element>(
    view: &TensorView<'a>,
    position: usize,
) -> Result<Cow<'a, [T]>, CustomError> {
    let found = view.dtype();
    if !T::holds(found) {
        return Err(CustomError::Type { what: "operand", position, found, expected: T::NAME });
    }
    let (shape, strides, ptr) = (view.shape(), view.strides(), view.as_ptr().cast::<T>());
    let count = shape.iter().product();
    if count == 0 {
        return Ok(Cow::Borrowed(&[]));
    }
    if crate::kernels::is_dense(shape, strides) {
        // SAFETY: the elements are one run, which nobody writes for `'a`, by the promise of `CustomCall::new`;
        // any bytes are a valid element.
        return Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(ptr, count) }));
    }
    let mut out = Vec::with_capacity(count);
    for i in 0..count {
        let (mut rest, mut at) = (i, 0);
        for (&n, &stride) in shape.iter().zip(strides).rev() {
            at += (rest % n) as isize * stride;
            rest /= n;
        }
        // SAFETY: shape and strides reach the element, as whoever made the view promised.
        out.push(unsafe { ptr.offset(at).read() });
    }
    Ok(Cow::Owned(out))
}
