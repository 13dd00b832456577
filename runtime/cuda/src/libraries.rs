//! Which of the vendor's libraries this process finds: versions and files.
//!
//! Each is loaded as a run would load it, so what is named here is what a run takes. Nothing is asked of a GPU.

use std::ffi::{CStr, OsStr, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nccl_sys::Nccl;

use crate::compute::gemm;
use crate::{cudnn, driver};

/// A library that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its version, as its vendor writes it.
    pub version: String,
    /// The file that it was loaded from, if the system's loader tells.
    pub file: Option<PathBuf>,
}

/// A library that runs on GPUs use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Library {
    /// What its vendor calls it.
    pub name: &'static str,
    /// What was found, or why nothing was.
    pub found: Result<Found, String>,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Ok(Found { version, file: Some(file) }) => {
                write!(f, "{} {version} ({})", self.name, file.display())
            }
            Ok(Found { version, file: None }) => write!(f, "{} {version}", self.name),
            Err(why) => {
                let lines: Vec<&str> = why.lines().map(str::trim).collect();
                write!(f, "{}: {}", self.name, lines.join(" "))
            }
        }
    }
}

/// The driver, cuBLASLt, cuDNN and NCCL.
pub fn libraries() -> [Library; 4] {
    let text = |error: &dyn fmt::Display| error.to_string();
    let found = |version: String, symbol| Found { version, file: file_of(symbol) };
    let driver = driver::version()
        .map(|[major, minor]| Found { version: format!("CUDA {major}.{minor}"), file: None });
    let products = gemm::library().map(|(version, symbol)| found(version, symbol));
    let attention = cudnn::library().map(|(version, symbol)| found(version, symbol));
    let collectives = Nccl::load()
        .map(|nccl| found(nccl.version().to_string(), nccl.functions().get_version as *const c_void));
    [
        Library { name: "driver", found: driver.map_err(|e| text(&e)) },
        Library { name: "cuBLASLt", found: products.map_err(|e| text(&e)) },
        Library { name: "cuDNN", found: attention.map_err(|e| text(&e)) },
        Library { name: "NCCL", found: collectives.map_err(|e| text(&e)) },
    ]
}

/// The file that a function of this process was loaded from.
fn file_of(symbol: *const c_void) -> Option<PathBuf> {
    // SAFETY: all zeros are a description of nothing.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the loader looks the address up in what is loaded, whatever it is, and writes a description of it.
    let known = unsafe { libc::dladdr(symbol, &mut about) } != 0 && !about.dli_fname.is_null();
    // SAFETY: the name is a text of the loader that stays while the library is loaded.
    let name = known.then(|| unsafe { CStr::from_ptr(about.dli_fname) })?;
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_tells_its_file() {
        let own = file_of(file_of as *const c_void).expect("this program is a file");
        let program = std::env::current_exe().expect("this program");
        assert_eq!(own.file_name(), program.file_name());
        assert_eq!(file_of(std::ptr::null()), None);
    }

    #[test]
    fn a_library_is_one_line_with_version_and_file_or_why_there_is_none() {
        let of = |found| Library { name: "cuDNN", found }.to_string();
        let at = |file: &str| Ok(Found { version: "9.19.0".into(), file: Some(file.into()) });
        assert_eq!(of(at("/a/libcudnn.so.9")), "cuDNN 9.19.0 (/a/libcudnn.so.9)");
        assert_eq!(
            of(Err("was not found; tried:\n  a: absent\n".into())),
            "cuDNN: was not found; tried: a: absent"
        );
    }
}
