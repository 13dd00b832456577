//! Matrix products by cuBLASLt.
//!
//! A [`Gemm`] is data. A [`GemmPlanner`] prepares it: descriptors and an algorithm, which is the first one of
//! the library's heuristic or one of several ([`super::gemm_search`]). A [`PreparedGemm`] only enqueues work,
//! so it can be recorded into a graph.
//!
//! The library is column-major. A row-major matrix is the transpose of a column-major one, so `C = A B` is
//! computed as `Cᵀ = Bᵀ Aᵀ`.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use symmc_ir::DType;

use crate::device::driver::{Device, Stream};
use crate::device::launch::{Address, DevicePtr, PortBases};
use crate::error::{CudaError, Result};

/// A matrix of a product: `[rows, columns]` with one unit stride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMatrix {
    pub at: DevicePtr,
    /// The distance in elements between neighbours along the axis without unit stride.
    pub step: usize,
    pub order: MatrixOrder,
    /// The distance in elements between the matrices of a batch; 0 if all share one.
    pub batch: isize,
}

/// The axis of a matrix with unit stride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatrixOrder {
    /// Elements of a row are adjacent.
    Rows,
    /// Elements of a column are adjacent.
    Columns,
}

/// A matrix product `c = a b + bias` with `a [m, k]`, `b [k, n]` and `c [m, n]`, for each matrix of a batch.
/// Sums are in f32 (f64 for f64), without TF32, and include the bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gemm {
    /// The dtype of `a`, `b` and the bias.
    pub dtype: DType,
    /// The dtype in which `b` is stored. The library requires that it is [`dtype`](Self::dtype).
    pub stored: DType,
    /// The dtype of `c`: that of the operands, or f32 for f16 and bf16.
    pub result_dtype: DType,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The number of terms of each sum; at least 1.
    pub k: usize,
    pub batch: usize,
    pub a: DeviceMatrix,
    pub b: DeviceMatrix,
    /// The result; its rows are contiguous.
    pub c: DeviceMatrix,
    /// `n` numbers that are added to each row of the sums.
    pub bias: Option<DevicePtr>,
}

impl Gemm {
    pub(crate) fn pointers(&self) -> impl Iterator<Item = DevicePtr> {
        [self.a.at, self.b.at, self.c.at].into_iter().chain(self.bias)
    }

    /// The alignments of `a`, `b` and `c` in every product of the batch, as powers of two in bytes. They are
    /// at most 16, which is the largest that algorithms require. A chosen algorithm therefore works for any
    /// memory that a caller binds.
    pub(crate) fn alignments(&self) -> [u8; 3] {
        let operand_size = self.dtype.size() as u64;
        let result_size = self.result_dtype.size() as u64;
        [(self.a, operand_size), (self.b, operand_size), (self.c, result_size)].map(|(matrix, size)| {
            let step = (matrix.batch as i64 as u64).wrapping_mul(size);
            (matrix.at.alignment(16) | step).trailing_zeros() as u8
        })
    }
}

/// The library's algorithm for a product, in its serialised form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GemmAlgorithm {
    words: [u64; 8],
    workspace: usize,
}

impl GemmAlgorithm {
    /// The length of its serialised form.
    pub(crate) const BYTES: usize = 73;

    /// Serialises it for other processes with the same library and device. The last byte distinguishes it
    /// from zeros.
    pub(crate) fn to_bytes(self) -> [u8; GemmAlgorithm::BYTES] {
        let mut out = [1; GemmAlgorithm::BYTES];
        let words = self.words.into_iter().chain([self.workspace as u64]);
        out.chunks_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        out
    }

    /// Parses the result of [`to_bytes`](Self::to_bytes); `None` for anything else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<GemmAlgorithm> {
        let (bytes, [1]) = bytes.split_at_checked(GemmAlgorithm::BYTES - 1)? else { return None };
        let mut words = bytes.chunks_exact(8).map(|b| b.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b)));
        let mut out = GemmAlgorithm { words: [0; 8], workspace: 0 };
        for word in &mut out.words {
            *word = words.next()?;
        }
        out.workspace = usize::try_from(words.next()?).ok()?;
        Some(out)
    }
}

fn failed(call: &str, error: &result::CublasError) -> CudaError {
    CudaError::Library { call: call.into(), detail: format!("{:?}", error.0) }
}

struct CublasHandle {
    handle: sys::cublasLtHandle_t,
    _device: Arc<Device>,
}

// SAFETY: the library's handles may be used from any thread.
unsafe impl Send for CublasHandle {}
// SAFETY: as above; it holds no state that calls change.
unsafe impl Sync for CublasHandle {}

impl Drop for CublasHandle {
    fn drop(&mut self) {
        // SAFETY: created by `GemmPlanner::new`.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Checks that cuBLASLt can be loaded.
fn present() -> Result<()> {
    // SAFETY: only tries to load the library.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(CudaError::Missing {
        library: "cuBLASLt (libcublasLt.so)",
        install: "install the CUDA toolkit, or `pip install nvidia-cublas` and put its folder into LD_LIBRARY_PATH",
    })
}

/// The version of the library, such as `13.0.2`, and the address of one of its functions.
pub(crate) fn library() -> Result<(String, *const c_void)> {
    present()?;
    // SAFETY: the library is loaded; the call only returns its version.
    let version = unsafe { sys::cublasLtGetVersion() };
    // SAFETY: the function is only looked up.
    let symbol = unsafe { sys::culib().get::<unsafe extern "C" fn() -> usize>(b"cublasLtGetVersion\0") };
    let address = symbol.map_or(ptr::null(), |f| *f as *const c_void);
    Ok((format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100), address))
}

#[derive(Clone)]
pub struct GemmPlanner {
    handle: Arc<CublasHandle>,
}

impl GemmPlanner {
    /// A planner for the device, whose context is current.
    pub fn new(device: &Arc<Device>) -> Result<GemmPlanner> {
        present()?;
        let handle = result::create_handle().map_err(|e| failed("cublasLtCreate", &e))?;
        Ok(GemmPlanner { handle: Arc::new(CublasHandle { handle, _device: device.clone() }) })
    }

    pub(crate) fn version(&self) -> usize {
        // SAFETY: the library is loaded; the call only returns its version.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Prepares a product with `workspace` bytes of workspace and the first algorithm of the library's
    /// heuristic.
    pub fn prepare(&self, gemm: &Gemm, workspace: usize) -> Result<PreparedGemm> {
        let candidates = self.candidates(gemm, gemm.alignments(), workspace, 1)?;
        let Some(algorithm) = candidates.first() else {
            return Err(no_algorithm(gemm, sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        };
        self.prepare_as(gemm, algorithm, workspace)
    }

    /// Algorithms for a product whose matrices have at least these alignments, the most promising first.
    pub(crate) fn candidates(
        &self,
        gemm: &Gemm,
        alignments: [u8; 3],
        workspace: usize,
        max_candidates: usize,
    ) -> Result<Vec<GemmAlgorithm>> {
        let d = GemmDescriptors::new(gemm, UNBOUND_BIAS)?;
        let preference = GemmPreference::new(gemm, alignments, workspace)?;
        // SAFETY: plain data for which zero is a valid value.
        let mut results: Vec<sys::cublasLtMatmulHeuristicResult_t> =
            vec![unsafe { std::mem::zeroed() }; max_candidates];
        let mut count = 0;
        // SAFETY: all descriptors exist, and there is room for `max_candidates` results.
        let code = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle.handle,
                d.product,
                d.layouts[0],
                d.layouts[1],
                d.layouts[2],
                d.layouts[2],
                preference.0,
                max_candidates as i32,
                results.as_mut_ptr(),
                &mut count,
            )
        };
        code.result().map_err(|e| no_algorithm(gemm, e.0))?;
        results.truncate(usize::try_from(count).unwrap_or(0));
        results.retain(|f| f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let algorithms =
            results.iter().map(|f| GemmAlgorithm { words: f.algo.data, workspace: f.workspaceSize });
        Ok(algorithms.collect())
    }

    /// Prepares a product with this algorithm and `workspace` bytes of workspace.
    pub(crate) fn prepare_as(
        &self,
        gemm: &Gemm,
        algorithm: &GemmAlgorithm,
        workspace: usize,
    ) -> Result<PreparedGemm> {
        let descriptors = Arc::new(GemmDescriptors::new(gemm, UNBOUND_BIAS)?);
        let d = &descriptors;
        let algo = sys::cublasLtMatmulAlgo_t { data: algorithm.words };
        // SAFETY: plain data for which zero is a valid value.
        let mut heuristic: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: all descriptors exist; the library checks the algorithm's words, and rejects unknown ones.
        let checked = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle.handle,
                d.product,
                d.layouts[0],
                d.layouts[1],
                d.layouts[2],
                d.layouts[2],
                &algo,
                &mut heuristic,
            )
        };
        checked.result().map_err(|e| no_algorithm(gemm, e.0))?;
        let needed = heuristic.workspaceSize.max(algorithm.workspace);
        if needed > workspace {
            let text =
                format!("the matrix product {gemm:?} needs {needed} bytes of workspace, found {workspace}");
            return Err(CudaError::Unsupported(text));
        }
        Ok(PreparedGemm { handle: self.handle.clone(), descriptors, algorithm: algo, gemm: *gemm, needed })
    }
}

fn no_algorithm(gemm: &Gemm, status: sys::cublasStatus_t) -> CudaError {
    let call = format!("choosing an algorithm for the matrix product {gemm:?}");
    CudaError::Library { call, detail: format!("{status:?}") }
}

#[derive(Clone)]
pub struct PreparedGemm {
    handle: Arc<CublasHandle>,
    descriptors: Arc<GemmDescriptors>,
    algorithm: sys::cublasLtMatmulAlgo_t,
    gemm: Gemm,
    needed: usize,
}

impl PreparedGemm {
    pub(crate) fn gemm(&self) -> Gemm {
        self.gemm
    }

    pub fn workspace(&self) -> usize {
        self.needed
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The operands, the result and [`workspace`](Self::workspace) bytes at `workspace` exist until the
    /// stream has computed the product, and nothing else uses the workspace during this time.
    pub unsafe fn run(&self, stream: &Stream, workspace: Address, bases: PortBases<'_>) -> Result<()> {
        // One and zero in the type that scales sums.
        let (one, zero) = match self.gemm.dtype {
            DType::F64 => (1f64.to_bits(), 0),
            _ => (u64::from(1f32.to_bits()), 0u64),
        };
        let Gemm { a, b, c, .. } = self.gemm;
        let with_bias = self.gemm.bias.map(|bias| GemmDescriptors::new(&self.gemm, bias.resolve(bases)));
        let with_bias = with_bias.transpose()?;
        let d = with_bias.as_ref().unwrap_or(&self.descriptors);
        // SAFETY: the descriptors exist; the scalars are read before the call returns; the rest by the caller.
        let ran = unsafe {
            result::matmul(
                self.handle.handle,
                d.product,
                ptr::from_ref(&one).cast(),
                ptr::from_ref(&zero).cast(),
                b.at.resolve(bases) as *const c_void,
                d.layouts[0],
                a.at.resolve(bases) as *const c_void,
                d.layouts[1],
                c.at.resolve(bases) as *const c_void,
                d.layouts[2],
                c.at.resolve(bases) as *mut c_void,
                d.layouts[2],
                &self.algorithm,
                workspace as *mut c_void,
                self.needed,
                stream.handle().cast(),
            )
        };
        ran.map_err(|e| failed(&format!("the matrix product {:?}", self.gemm), &e))
    }
}

/// An aligned address for descriptions of products before the memory of their bias is known. It is not
/// accessed.
const UNBOUND_BIAS: Address = 1 << 12;
/// `CUBLASLT_EPILOGUE_BIAS`, from an enumeration that the bindings lack.
const BIAS_EPILOGUE: i32 = 4;

/// The library's description of a product: of `Bᵀ`, `Aᵀ` and `Cᵀ`.
struct GemmDescriptors {
    product: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
}

// SAFETY: descriptors are plain memory of the library.
unsafe impl Send for GemmDescriptors {}
// SAFETY: as above; calls only read them.
unsafe impl Sync for GemmDescriptors {}

impl GemmDescriptors {
    /// A description with a bias at this address, if the product has one.
    fn new(gemm: &Gemm, bias: Address) -> Result<GemmDescriptors> {
        use sys::cublasComputeType_t as Compute;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let (compute, scale) = match gemm.dtype {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, sys::cudaDataType_t::CUDA_R_64F),
            _ => (Compute::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F),
        };
        let created = result::create_matmul_desc(compute, scale);
        let product = created.map_err(|e| failed("cublasLtMatmulDescCreate", &e))?;
        let mut out = GemmDescriptors { product, layouts: [ptr::null_mut(); 3] };
        let sides = [
            (gemm.b, gemm.dtype, gemm.k, gemm.n, Some(Attribute::CUBLASLT_MATMUL_DESC_TRANSA)),
            (gemm.a, gemm.dtype, gemm.m, gemm.k, Some(Attribute::CUBLASLT_MATMUL_DESC_TRANSB)),
            (gemm.c, gemm.result_dtype, gemm.m, gemm.n, None),
        ];
        for (i, (matrix, dtype, rows, columns, transposed)) in sides.into_iter().enumerate() {
            out.layouts[i] = layout(gemm, dtype, &matrix, rows, columns)?;
            if let (Some(attribute), MatrixOrder::Columns) = (transposed, matrix.order) {
                // CUBLAS_OP_T, from an enumeration that the bindings lack.
                out.set_attribute(attribute, &1i32)?;
            }
        }
        if gemm.bias.is_some() {
            out.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &BIAS_EPILOGUE)?;
            out.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
            out.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &library_dtype(gemm.dtype)?)?;
        }
        Ok(out)
    }

    /// Sets an attribute whose type in the library is `T`.
    fn set_attribute<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the descriptor exists; the value has the size of the attribute.
        let set = unsafe {
            result::set_matmul_desc_attribute(
                self.product,
                attribute,
                ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        set.map_err(|e| failed("cublasLtMatmulDescSetAttribute", &e))
    }
}

fn library_dtype(dtype: DType) -> Result<sys::cudaDataType_t> {
    match dtype {
        DType::F16 => Ok(sys::cudaDataType_t::CUDA_R_16F),
        DType::BF16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        DType::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        DType::F64 => Ok(sys::cudaDataType_t::CUDA_R_64F),
        other => Err(CudaError::Unsupported(format!("cuBLASLt does not support {other}"))),
    }
}

impl Drop for GemmDescriptors {
    fn drop(&mut self) {
        // SAFETY: created by `new`; null if `new` failed earlier.
        unsafe {
            for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.product);
        }
    }
}

/// A row-major `[rows, columns]` matrix is described as the equivalent column-major `[columns, rows]`; a
/// column-major matrix is described directly.
fn layout(
    gemm: &Gemm,
    dtype: DType,
    matrix: &DeviceMatrix,
    rows: usize,
    columns: usize,
) -> Result<sys::cublasLtMatrixLayout_t> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let dtype = library_dtype(dtype)?;
    let (fast, slow) = match matrix.order {
        MatrixOrder::Rows => (columns, rows),
        MatrixOrder::Columns => (rows, columns),
    };
    let step = matrix.step.max(fast) as i64;
    let created = result::create_matrix_layout(dtype, fast as u64, slow as u64, step);
    let layout = created.map_err(|e| failed("cublasLtMatrixLayoutCreate", &e))?;
    let count = gemm.batch as i32;
    let stride = matrix.batch as i64;
    // SAFETY: the layout exists; the attributes are a 32-bit and a 64-bit integer.
    let set = unsafe {
        result::set_matrix_layout_attribute(
            layout,
            Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
            ptr::from_ref(&count).cast(),
            4,
        )
        .and_then(|()| {
            result::set_matrix_layout_attribute(
                layout,
                Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                ptr::from_ref(&stride).cast(),
                8,
            )
        })
    };
    match set {
        Ok(()) => Ok(layout),
        Err(error) => {
            // SAFETY: created above and not shared.
            let _ = unsafe { result::destroy_matrix_layout(layout) };
            Err(failed("cublasLtMatrixLayoutSetAttribute", &error))
        }
    }
}

/// The place where the partial sums of several blocks are added: in the result, in the result's type and in order; or
/// in the workspace, in the type in which sums are computed.
const IN_PLACE: u32 = 1;
const COMPUTE_TYPE: u32 = 2;

/// The constraints on the choice of an algorithm.
struct GemmPreference(sys::cublasLtMatmulPreference_t);

impl GemmPreference {
    fn new(gemm: &Gemm, [a, b, c]: [u8; 3], workspace: usize) -> Result<GemmPreference> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let created =
            result::create_matmul_pref().map_err(|e| failed("cublasLtMatmulPreferenceCreate", &e))?;
        let out = GemmPreference(created);
        let bytes = workspace as u64;
        // SAFETY: the preference exists; the attribute is a 64-bit integer.
        let set = unsafe {
            result::set_matmul_pref_attribute(
                out.0,
                Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                ptr::from_ref(&bytes).cast(),
                8,
            )
        };
        set.map_err(|e| failed("cublasLtMatmulPreferenceSetAttribute", &e))?;
        // Partial sums are added in f32 (f64) before they are rounded.
        let schemes = if gemm.result_dtype.size() == 2 { COMPUTE_TYPE } else { IN_PLACE | COMPUTE_TYPE };
        for (attribute, value) in [
            (Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 1u32 << b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 1 << a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 1 << c),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 1 << c),
        ] {
            // SAFETY: as above, a 32-bit integer.
            let set = unsafe {
                result::set_matmul_pref_attribute(out.0, attribute, ptr::from_ref(&value).cast(), 4)
            };
            set.map_err(|e| failed("cublasLtMatmulPreferenceSetAttribute", &e))?;
        }
        Ok(out)
    }
}

impl Drop for GemmPreference {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
