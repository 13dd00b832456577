//! Kernels in the reference interpreter: the ranks of a cell run one after another, on tensors of their own.
//!
//! That is a possible order of a real run, because nothing orders kernels of one op among each other. It says
//! nothing about a kernel itself; it is what placement, barriers and the plan are compared with.

use symmc_ir::{DType, Tensor, interp};

use super::call::{CustomCall, Side, Written};
use super::registry::{Entry, Registry, invoke};
use crate::kernels::{View, contiguous_strides};

impl Registry {
    /// The same kernels for the interpreter. Signatures are [`check`](Self::check)'s to compare.
    pub fn interpreted(&self) -> interp::Registry {
        let mut out = interp::Registry::new();
        for (name, entry) in self.entries() {
            let entry = entry.clone();
            out.register(name, move |call| interpret(&entry, call));
        }
        out
    }
}

/// A tensor at an address that is aligned for every dtype.
struct Held {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<isize>,
    words: Vec<u64>,
    bytes: usize,
}

impl Held {
    fn new(dtype: DType, shape: &[usize]) -> Self {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let words = vec![0; bytes.div_ceil(8)];
        Held { dtype, shape: shape.to_vec(), strides: contiguous_strides(shape), words, bytes }
    }

    fn of(tensor: &Tensor) -> Self {
        let mut held = Held::new(tensor.dtype(), tensor.shape());
        for (word, from) in held.words.iter_mut().zip(tensor.data().chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            *word = u64::from_ne_bytes(bytes);
        }
        held
    }

    fn tensor(&self) -> Result<Tensor, String> {
        let bytes = self.words.iter().flat_map(|w| w.to_ne_bytes()).take(self.bytes).collect();
        Tensor::new(self.dtype, self.shape.clone(), bytes).ok_or_else(|| "a result is too large".to_string())
    }
}

/// Runs a kernel on all ranks of a cell; the results of each.
fn interpret(entry: &Entry, call: &interp::CustomCall<'_>) -> Result<Vec<Vec<Tensor>>, String> {
    let operands: Vec<Vec<Held>> = call.operands.iter().map(|x| x.iter().map(Held::of).collect()).collect();
    let fresh = || call.results.iter().map(|(dtype, shape)| Held::new(*dtype, shape)).collect();
    let mut results: Vec<Vec<Held>> = call.ranks.iter().map(|_| fresh()).collect();
    let pointers: Vec<Vec<*mut u8>> = results
        .iter_mut()
        .map(|of_rank| of_rank.iter_mut().map(|held| held.words.as_mut_ptr().cast()).collect())
        .collect();
    for number in 0..call.ranks.len() {
        let sides: Vec<Side<'_>> = (0..call.ranks.len())
            .map(|p| side(entry, p == number, &operands[p], call.results, &pointers[p]))
            .collect();
        let signature = &entry.signature;
        // SAFETY: the sides are tensors of this function, which nothing else touches meanwhile.
        let mut on_rank =
            unsafe { CustomCall::new(call.name, call.ranks, number, signature, &sides, &|| ()) };
        invoke(entry, &mut on_rank).map_err(|e| format!("rank {}: {e}", call.ranks[number]))?;
    }
    results.iter().map(|of_rank| of_rank.iter().map(Held::tensor).collect()).collect()
}

/// What a kernel sees of one rank.
fn side<'a>(
    entry: &Entry,
    own: bool,
    operands: &'a [Held],
    results: &'a [(DType, Vec<usize>)],
    pointers: &[*mut u8],
) -> Side<'a> {
    let (reads, writes) = (entry.signature.reads(), entry.signature.writes());
    let view = |(i, x): (usize, &'a Held)| {
        let ptr = x.words.as_ptr().cast();
        // SAFETY: the tensor is held for `'a`, dense, aligned, and never written.
        (own || reads.contains(&i)).then(|| unsafe { View::new(x.dtype, &x.shape, &x.strides, ptr) })
    };
    let written = |(i, (y, &ptr)): (usize, (&'a (DType, Vec<usize>), &*mut u8))| {
        (own || writes.contains(&i)).then_some(Written { dtype: y.0, shape: &y.1, ptr })
    };
    Side {
        operands: operands.iter().enumerate().map(view).collect(),
        results: results.iter().zip(pointers).enumerate().map(written).collect(),
    }
}
