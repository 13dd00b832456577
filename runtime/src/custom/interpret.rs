//! Kernels in the reference interpreter: the ranks of a cell run one after another, on separate tensors.
//!
//! This is a possible order of a real run, because nothing orders the kernels of one op among each other. The
//! interpreter does not check a kernel itself; it is the reference for placement, barriers and the plan.

use symmc_ir::{DType, Tensor, interp};

use super::call::{CustomCall, RankTensors, ResultMemory};
use super::registry::{CustomKernelRegistry, KernelEntry, invoke_kernel};
use crate::kernels::{TensorView, contiguous_strides};

impl CustomKernelRegistry {
    /// The same kernels for the interpreter. [`expect_kernels`](Self::expect_kernels) compares signatures.
    pub fn to_interpreter_registry(&self) -> interp::ReferenceKernelRegistry {
        let mut out = interp::ReferenceKernelRegistry::new();
        for (name, entry) in self.kernels() {
            let entry = entry.clone();
            out.register(name, move |call| interpret_kernel(&entry, call));
        }
        out
    }
}

/// A tensor at an address that is aligned for every dtype.
struct AlignedTensor {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<isize>,
    words: Vec<u64>,
    bytes: usize,
}

impl AlignedTensor {
    fn new(dtype: DType, shape: &[usize]) -> Self {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let words = vec![0; bytes.div_ceil(8)];
        AlignedTensor { dtype, shape: shape.to_vec(), strides: contiguous_strides(shape), words, bytes }
    }

    fn from_tensor(tensor: &Tensor) -> Self {
        let mut aligned = AlignedTensor::new(tensor.dtype(), tensor.shape());
        for (word, from) in aligned.words.iter_mut().zip(tensor.data().chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            *word = u64::from_ne_bytes(bytes);
        }
        aligned
    }

    fn to_tensor(&self) -> Result<Tensor, String> {
        let bytes = self.words.iter().flat_map(|w| w.to_ne_bytes()).take(self.bytes).collect();
        Tensor::new(self.dtype, self.shape.clone(), bytes).ok_or_else(|| "a result is too large".to_string())
    }
}

/// Runs a kernel on all ranks of a cell; returns the results of each rank.
fn interpret_kernel(
    entry: &KernelEntry,
    call: &interp::CustomKernelCall<'_>,
) -> Result<Vec<Vec<Tensor>>, String> {
    let operands: Vec<Vec<AlignedTensor>> =
        call.operands.iter().map(|x| x.iter().map(AlignedTensor::from_tensor).collect()).collect();
    let mut results: Vec<Vec<AlignedTensor>> = call
        .ranks
        .iter()
        .map(|_| call.results.iter().map(|(dtype, shape)| AlignedTensor::new(*dtype, shape)).collect())
        .collect();
    let pointers: Vec<Vec<*mut u8>> = results
        .iter_mut()
        .map(|of_rank| of_rank.iter_mut().map(|tensor| tensor.words.as_mut_ptr().cast()).collect())
        .collect();
    for number in 0..call.ranks.len() {
        let sides: Vec<RankTensors<'_>> = (0..call.ranks.len())
            .map(|p| rank_tensors(entry, p == number, &operands[p], call.results, &pointers[p]))
            .collect();
        let signature = &entry.signature;
        // SAFETY: the tensors belong to this function, and nothing else touches them meanwhile.
        let mut on_rank =
            unsafe { CustomCall::new(call.name, call.ranks, number, signature, &sides, &|| ()) };
        invoke_kernel(entry, &mut on_rank).map_err(|e| format!("rank {}: {e}", call.ranks[number]))?;
    }
    results.iter().map(|of_rank| of_rank.iter().map(AlignedTensor::to_tensor).collect()).collect()
}

/// The tensors of one rank that a kernel may access.
fn rank_tensors<'a>(
    entry: &KernelEntry,
    is_own: bool,
    operands: &'a [AlignedTensor],
    results: &'a [(DType, Vec<usize>)],
    pointers: &[*mut u8],
) -> RankTensors<'a> {
    let reads = entry.signature.peer_operands();
    let writes = entry.signature.peer_results();
    let operands = operands.iter().enumerate().map(|(i, x)| {
        let ptr = x.words.as_ptr().cast();
        // SAFETY: the tensor is held for `'a`, dense, aligned, and never written.
        (is_own || reads.contains(&i)).then(|| unsafe { TensorView::new(x.dtype, &x.shape, &x.strides, ptr) })
    });
    let results = results.iter().zip(pointers).enumerate().map(|(i, ((dtype, shape), &ptr))| {
        (is_own || writes.contains(&i)).then_some(ResultMemory { dtype: *dtype, shape, ptr })
    });
    RankTensors { operands: operands.collect(), results: results.collect() }
}
