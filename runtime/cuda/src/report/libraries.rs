//! The vendor's libraries that this process finds: versions, files, and remedies for missing ones.
//!
//! Each library is loaded exactly as a run loads it, so the report names the libraries that runs use. No GPU
//! is queried. Threads and state that a library then creates stay until the process ends.

use std::ffi::{CStr, OsStr, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nccl_sys::{LoadFailure, Nccl};
use symmc_ir::CollectiveVariant;

use crate::codegen::compile;
use crate::codegen::compute::gemm;
use crate::cudnn;
use crate::device::cache::FileCache;
use crate::device::driver;
use crate::error::CudaError;
use crate::nccl as comms;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundLibrary {
    /// Its version, in the vendor's notation.
    pub version: String,
    /// The file that it was loaded from, if the system's loader reports it.
    pub file: Option<PathBuf>,
}

impl FoundLibrary {
    /// Describes a library by its version and the address of one of its functions.
    fn from_symbol((version, symbol): (String, *const c_void)) -> FoundLibrary {
        FoundLibrary { version, file: file_of_symbol(symbol) }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnusableLibrary {
    pub found: String,
    pub remedy: String,
}

impl fmt::Display for UnusableLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.found, self.remedy)
    }
}

impl From<CudaError> for UnusableLibrary {
    fn from(error: CudaError) -> UnusableLibrary {
        match error {
            CudaError::Missing { library, install } => {
                UnusableLibrary { found: format!("{library} was not found"), remedy: install.into() }
            }
            other => UnusableLibrary { found: other.to_string(), remedy: "install another version".into() },
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibraryStatus {
    /// The vendor's name of the library.
    pub name: &'static str,
    pub found: Result<FoundLibrary, UnusableLibrary>,
}

impl fmt::Display for LibraryStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Ok(FoundLibrary { version, file: Some(file) }) => {
                write!(f, "{} {version} ({})", self.name, file.display())
            }
            Ok(FoundLibrary { version, file: None }) => write!(f, "{} {version}", self.name),
            Err(why) => write!(f, "{}: {why}", self.name),
        }
    }
}

/// The driver, NVRTC, cuBLASLt, cuDNN and NCCL.
pub fn libraries() -> [LibraryStatus; 5] {
    let driver = driver::cuda_version()
        .map(|[major, minor]| FoundLibrary { version: format!("CUDA {major}.{minor}"), file: None });
    [
        LibraryStatus { name: "driver", found: driver.map_err(UnusableLibrary::from) },
        LibraryStatus { name: "NVRTC", found: nvrtc() },
        LibraryStatus { name: "cuBLASLt", found: cublaslt() },
        LibraryStatus { name: "cuDNN", found: cudnn() },
        LibraryStatus { name: "NCCL", found: nccl().map(|nccl| nccl.library) },
    ]
}

/// NVRTC, which compiles kernels.
pub fn nvrtc() -> Result<FoundLibrary, UnusableLibrary> {
    Ok(FoundLibrary::from_symbol(compile::library()?))
}

/// cuBLASLt, which computes matrix products.
pub fn cublaslt() -> Result<FoundLibrary, UnusableLibrary> {
    Ok(FoundLibrary::from_symbol(gemm::library()?))
}

/// cuDNN, which can compute attention.
pub fn cudnn() -> Result<FoundLibrary, UnusableLibrary> {
    cudnn::library().map(FoundLibrary::from_symbol).map_err(|tried| UnusableLibrary {
        found: describe_attempts("libcudnn.so.9", tried.iter().cloned()),
        remedy: format!("expected {}", cudnn::expected()),
    })
}

/// NCCL, and the properties of its version that affect plans.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundNccl {
    pub library: FoundLibrary,
    /// Whether it has collectives by copy engines.
    pub copy_engines: bool,
    /// Whether its kernels on windows are dependent launches that do not wait for earlier work in their
    /// stream ([`PDL_WITHOUT_WAIT`](comms::PDL_WITHOUT_WAIT)). Each such call of a plan is then preceded by
    /// an operation other than a kernel.
    pub skips_pdl_wait: bool,
}

/// NCCL, which runs the plain variants of collectives, and the variants by windows and copy engines.
pub fn nccl() -> Result<FoundNccl, UnusableLibrary> {
    let nccl = Nccl::load().map_err(|error| {
        let tried = error.attempts.iter().map(|a| match a.failure {
            LoadFailure::Absent => format!("{}{ABSENT}", a.path.display()),
            ref refusal => format!("{}: {refusal}", a.path.display()),
        });
        // The last line of the text is the remedy.
        let remedy = error.to_string().lines().last().unwrap_or_default().to_string();
        UnusableLibrary { found: describe_attempts("libnccl.so.2", tried), remedy }
    })?;
    let symbol = nccl.functions().get_version as *const c_void;
    Ok(FoundNccl {
        library: FoundLibrary::from_symbol((nccl.version().to_string(), symbol)),
        copy_engines: comms::has(CollectiveVariant::CopyEngine),
        skips_pdl_wait: comms::skips_pdl_wait(nccl.version(), CollectiveVariant::NcclWindow),
    })
}

/// The end of a message about a missing file.
const ABSENT: &str = " does not exist";
/// Up to this many missing files are named; more are only counted.
const NAMED: usize = 2;

/// Describes a failed search: the files that were refused, or that there was none.
fn describe_attempts(name: &str, tried: impl Iterator<Item = String>) -> String {
    let (absent, refused): (Vec<String>, Vec<String>) = tried.partition(|text| {
        text.ends_with(ABSENT) || text.contains("cannot open shared object file: No such file")
    });
    match (refused.as_slice(), absent.as_slice()) {
        ([], few) if few.len() <= NAMED => format!("{name} was not found: {}", few.join("; ")),
        ([], many) => format!("{name} was not found in any of the {} searched places", many.len()),
        (failures, _) => format!("no usable {name}: {}", failures.join("; ")),
    }
}

/// The folder for the user's compiled kernels and measured choices; `None` if the environment names no home
/// directory.
pub fn cache_folder() -> Option<PathBuf> {
    FileCache::for_user().folder().map(Path::to_path_buf)
}

/// The reason why the folder of [`cache_folder`] is not used (another user can change its contents), and the
/// remedy.
pub fn cache_refusal() -> Option<UnusableLibrary> {
    let refusal = FileCache::for_user().refusal()?;
    Some(UnusableLibrary { found: refusal.to_string(), remedy: refusal.remedy() })
}

/// The version of the driver's kernel module, if it is loaded. It is also visible in a container without
/// GPUs.
pub fn kernel_module() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let line = text.lines().next()?;
    let version = line.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
    version.map(str::to_string)
}

fn file_of_symbol(symbol: *const c_void) -> Option<PathBuf> {
    // SAFETY: an all-zero description is valid.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the loader looks up any address among the loaded files, and writes a description of it.
    let has_name = unsafe { libc::dladdr(symbol, &mut about) } != 0 && !about.dli_fname.is_null();
    // SAFETY: the name belongs to the loader and is valid while the library is loaded.
    let name = has_name.then(|| unsafe { CStr::from_ptr(about.dli_fname) })?;
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_tells_its_file() {
        let own = file_of_symbol(file_of_symbol as *const c_void).expect("this program is a file");
        let program = std::env::current_exe().expect("this program");
        assert_eq!(own.file_name(), program.file_name());
        assert_eq!(file_of_symbol(std::ptr::null()), None);
    }

    #[test]
    fn a_library_is_one_line_with_version_and_file_or_why_there_is_none() {
        let library = FoundLibrary { version: "9.19.0".into(), file: Some("/a/libcudnn.so.9".into()) };
        let status = LibraryStatus { name: "cuDNN", found: Ok(library) };
        assert_eq!(status.to_string(), "cuDNN 9.19.0 (/a/libcudnn.so.9)");
        let none = UnusableLibrary { found: "was not found".into(), remedy: "install it".into() };
        let status = LibraryStatus { name: "cuDNN", found: Err(none) };
        assert_eq!(status.to_string(), "cuDNN: was not found: install it");
    }

    #[test]
    fn what_is_there_and_refused_is_named() {
        let absent = [
            "/a/libx.so does not exist",
            "libx.so: libx.so: cannot open shared object file: No such file or directory",
            "/c/libx.so does not exist",
        ];
        let old = "/b/libx.so: found version 2.18.3, expected 2.27.0 or newer";
        assert_eq!(describe(&[absent[0], old, absent[1]]), format!("no usable libx.so: {old}"));
        assert_eq!(describe(&absent), "libx.so was not found in any of the 3 searched places");
        assert_eq!(describe(&absent[..1]), "libx.so was not found: /a/libx.so does not exist");
    }

    fn describe(tried: &[&str]) -> String {
        describe_attempts("libx.so", tried.iter().map(ToString::to_string))
    }
}
