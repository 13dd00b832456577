//! Compiles CUDA C to machine code with NVRTC, with a cache on disk.
//!
//! A [`KernelSource`] gathers functions and deduplicates equal ones. The cache holds one file per source,
//! architecture and compiler version.

use std::ffi::{CString, c_void};
use std::time::Instant;

use cudarc::nvrtc::{result, sys};
use indexmap::IndexMap;

use crate::device::cache::{FileCache, entry_name};
use crate::error::{CudaError, Result};

/// The function that every kernel calls first.
const ENTRY_SOURCE: &str = include_str!("entry.cu");

/// CUDA C that is compiled as one unit.
#[derive(Clone, Default, Debug)]
pub struct KernelSource {
    /// The texts before the functions, without duplicates.
    preludes: Vec<&'static str>,
    functions: IndexMap<String, String>,
    /// The name of each text. In the text, `@` stands for the name.
    known: IndexMap<String, String>,
}

impl KernelSource {
    pub fn new() -> KernelSource {
        KernelSource::default()
    }

    /// Adds declarations before all functions.
    pub fn prelude(&mut self, text: &'static str) {
        if !self.preludes.contains(&text) {
            self.preludes.push(text);
        }
    }

    /// Adds a function and returns its name; `@` in `text` stands for the name. A text that was added before
    /// keeps its name. `what` is the prefix of the name, which profilers show. A kernel calls `symmc_enter()`
    /// before it accesses memory of other kernels
    /// ([`LaunchOrder::Dependent`](crate::device::launch::LaunchOrder::Dependent)).
    ///
    /// # Panics
    /// The text of a kernel contains no such call.
    pub fn function(&mut self, what: &str, text: String) -> String {
        assert!(
            !text.contains("__global__") || text.contains("symmc_enter("),
            "{what} does not call symmc_enter"
        );
        if let Some(name) = self.known.get(&text) {
            return name.clone();
        }
        let name = format!("{what}_{}", self.known.len());
        self.functions.insert(name.clone(), text.replace('@', &name));
        self.known.insert(text, name.clone());
        name
    }

    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(String::as_str)
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        self.preludes.iter().for_each(|p| out.push_str(p));
        out.push_str(ENTRY_SOURCE);
        self.functions.values().for_each(|f| {
            out.push_str(f);
            out.push('\n');
        });
        out
    }
}

/// Compiles `source` for compute capability `major.minor`, or reads an earlier result from the cache.
pub fn compile(source: &KernelSource, [major, minor]: [u32; 2]) -> Result<Vec<u8>> {
    let version = version()?;
    let text = source.text();
    let suffix = if [major, minor] == [9, 0] && version >= MIN_NVRTC_FOR_SM90A { "a" } else { "" };
    let target = format!("sm_{major}{minor}{suffix}");
    let cache = FileCache::for_user();
    let name = entry_name(&["symmc 2", &format!("{}.{}", version[0], version[1]), &target, &text], "cubin");
    if let Some(code) = cache.read(&name) {
        tracing::debug!(target: "symmc::gpu", kernels = source.functions.len(), "read kernels from the cache");
        return Ok(code);
    }
    let started = Instant::now();
    let code = translate(&text, &target)?;
    tracing::debug!(target: "symmc::gpu", kernels = source.functions.len(), elapsed = ?started.elapsed(), "compiled kernels");
    cache.write(&name, &code);
    Ok(code)
}

/// The lowest version of NVRTC that supports the features specific to compute capability 9.0 (`sm_90a`).
pub(crate) const MIN_NVRTC_FOR_SM90A: [i32; 2] = [12, 1];

/// The version of NVRTC, major and minor.
pub(crate) fn version() -> Result<[i32; 2]> {
    // SAFETY: only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Missing {
            library: "NVRTC (libnvrtc.so)",
            install: "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` and put its folder into LD_LIBRARY_PATH",
        });
    }
    let mut major = 0;
    let mut minor = 0;
    // SAFETY: the library is loaded, and writes two integers.
    let code = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    code.result().map_err(|e| failed("nvrtcVersion", &e))?;
    Ok([major, minor])
}

/// The version as text, and the address of one of the library's functions.
pub(crate) fn library() -> Result<(String, *const c_void)> {
    let [major, minor] = version()?;
    // SAFETY: the function is only looked up.
    let symbol = unsafe { sys::culib().get::<unsafe extern "C" fn() -> i32>(b"nvrtcVersion\0") };
    Ok((format!("{major}.{minor}"), symbol.map_or(std::ptr::null(), |f| *f as *const c_void)))
}

fn failed(call: &str, error: &result::NvrtcError) -> CudaError {
    CudaError::Library { call: call.into(), detail: format!("{:?}", error.0) }
}

fn translate(text: &str, target: &str) -> Result<Vec<u8>> {
    let text = CString::new(text).map_err(|e| CudaError::Compile { detail: e.to_string() })?;
    let program = result::create_program(&text, None).map_err(|e| failed("nvrtcCreateProgram", &e))?;
    let architecture = format!("--gpu-architecture={target}");
    let options =
        [architecture.as_str(), "--std=c++17", "--fmad=true", "--disable-warnings"].map(String::from);
    // SAFETY: the program lives until it is destroyed below.
    let compiled = unsafe { result::compile_program(program, &options) };
    let out = match compiled {
        Err(_) => Err(CudaError::Compile { detail: log(program) }),
        Ok(()) => machine_code(program),
    };
    // SAFETY: the program is not used any more.
    let _ = unsafe { result::destroy_program(program) };
    out
}

fn log(program: sys::nvrtcProgram) -> String {
    // SAFETY: the program exists.
    let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_string()
}

fn machine_code(program: sys::nvrtcProgram) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: the program exists and has been compiled; the size is written.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }
        .result()
        .map_err(|e| failed("nvrtcGetCUBINSize", &e))?;
    let mut code = vec![0u8; size];
    // SAFETY: the buffer has the size that the library returned.
    unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()) }
        .result()
        .map_err(|e| failed("nvrtcGetCUBIN", &e))?;
    Ok(code)
}
