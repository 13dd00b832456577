//! Loads libcudnn when it is first used.
//!
//! A system loader passes the parts of one version to another version that is opened later, so a process can
//! have only one cuDNN. Unless the environment variable names a library, the search order is: the one that
//! the process has already loaded, one of a Python package (which frameworks bring and keep current), those
//! of the toolkit, those of the system. A library that was opened is never closed, because it keeps threads
//! and handlers.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nccl_sys::{LibraryNames, LibrarySearch, trust};

use crate::error::{CudaError, Result};

/// The environment variable that names the library: a file, or the folder that holds `libcudnn.so.9`.
pub const PATH_VARIABLE: &str = "SYMMC_CUDNN_PATH";

const CUDNN_NAMES: LibraryNames = LibraryNames {
    variable: PATH_VARIABLE,
    names: ["libcudnn.so.9", "libcudnn.so"],
    wheel_path: "nvidia/cudnn/lib/libcudnn.so.9",
};

/// The oldest supported version; attention of older versions has known faults. Among the supported versions,
/// 9.14.0 and 9.19.0 have computed all attention cases on Hopper like the interpreter. Known faults of a
/// version are refused where a graph is built, or avoided: with one row, causal order is expressed as a
/// number of columns, because the library's causal graph of one row is wrong for heads that share keys.
const MIN_CUDNN_VERSION: usize = 91_100;
/// The first version whose constants and graphs may differ.
const TOO_NEW: usize = 100_000;

/// A result code of the library; 0 is success.
pub(super) type Status = i32;
pub(super) type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($arg:ty),*) -> $answer:ty;)*) => {
        /// The functions of the library that are called. Calling one is unsafe: handles and descriptors must
        /// be alive.
        pub(super) struct Functions {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $answer,)*
        }

        impl Functions {
            /// # Safety
            /// The library is cuDNN 9 and stays open.
            unsafe fn of(library: &Library) -> Result<Functions, String> {
                Ok(Functions {
                    // SAFETY: the functions of cuDNN 9 have these types.
                    $($field: *unsafe { library.get($symbol) }.map_err(|_| format!("has no {}", $symbol))?,)*
                })
            }
        }
    };
}

functions! {
    version = "cudnnGetVersion"() -> usize;
    text = "cudnnGetErrorString"(Status) -> *const c_char;
    create = "cudnnCreate"(*mut Handle) -> Status;
    destroy = "cudnnDestroy"(Handle) -> Status;
    set_stream = "cudnnSetStream"(Handle, *mut c_void) -> Status;
    make = "cudnnBackendCreateDescriptor"(i32, *mut Handle) -> Status;
    unmake = "cudnnBackendDestroyDescriptor"(Handle) -> Status;
    set = "cudnnBackendSetAttribute"(Handle, i32, i32, i64, *const c_void) -> Status;
    get = "cudnnBackendGetAttribute"(Handle, i32, i32, i64, *mut i64, *mut c_void) -> Status;
    finalize = "cudnnBackendFinalize"(Handle) -> Status;
    execute = "cudnnBackendExecute"(Handle, Handle, Handle) -> Status;
}

pub(super) struct CudnnLibrary {
    pub functions: Functions,
    pub version: usize,
}

impl CudnnLibrary {
    /// The library of this process. The result of the first call is kept.
    pub fn load() -> Result<&'static CudnnLibrary> {
        CudnnLibrary::find_or_attempts().map_err(|tried| CudaError::Unsupported(missing(&tried.join("; "))))
    }

    /// The library, or the attempted files with the reasons for refusing each.
    fn find_or_attempts() -> Result<&'static CudnnLibrary, &'static [String]> {
        static LOADED_LIBRARY: OnceLock<Result<CudnnLibrary, Vec<String>>> = OnceLock::new();
        let loaded = LOADED_LIBRARY.get_or_init(|| {
            let search = LibrarySearch::from_env(&CUDNN_NAMES);
            let loaded = if search.explicit_path.is_none() { CudnnLibrary::already_loaded() } else { None };
            loaded.map_or_else(|| CudnnLibrary::find(&search), Ok)
        });
        loaded.as_ref().map_err(Vec::as_slice)
    }

    /// The library that this process has already loaded, if it is usable.
    fn already_loaded() -> Option<CudnnLibrary> {
        // SAFETY: the flags only return a library that is already open.
        let library =
            unsafe { Library::open(Some(CUDNN_NAMES.names[0]), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) };
        CudnnLibrary::from_library(ManuallyDrop::new(library.ok()?)).ok()
    }

    fn find(search: &LibrarySearch) -> Result<CudnnLibrary, Vec<String>> {
        let mut tried = Vec::new();
        for path in search_order(search.candidates(&CUDNN_NAMES)) {
            match CudnnLibrary::open(&path) {
                Ok(cudnn) => return Ok(cudnn),
                Err(why) => tried.push(format!("{} {why}", path.display())),
            }
        }
        Err(tried)
    }

    fn open(path: &Path) -> Result<CudnnLibrary, String> {
        if path.is_absolute() && !path.exists() {
            return Err("does not exist".into());
        }
        let opened =
            trust::resolve_library(path).map_err(|e| format!("is not loaded: {e}; {}", e.remedy()))?;
        // SAFETY: the file is cuDNN by its name or by the user's choice, and its initialisers may run at any
        // time.
        let library = unsafe { Library::open(Some(opened), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|e| {
            // The error itself names only the call.
            let reason = std::error::Error::source(&e).map_or(e.to_string(), |s| s.to_string());
            format!("does not load ({reason})")
        })?;
        CudnnLibrary::from_library(ManuallyDrop::new(library))
    }

    fn from_library(library: ManuallyDrop<Library>) -> Result<CudnnLibrary, String> {
        // SAFETY: the library stays open, and is cuDNN by its name; its version is checked below.
        let functions = unsafe { Functions::of(&library) }?;
        // SAFETY: the function has no parameters and only returns a number.
        let version = unsafe { (functions.version)() };
        if !(MIN_CUDNN_VERSION..TOO_NEW).contains(&version) {
            return Err(format!(
                "is version {}; expected {} to 9",
                version_text(version),
                version_text(MIN_CUDNN_VERSION)
            ));
        }
        Ok(CudnnLibrary { functions, version })
    }

    pub fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the returned text is never freed by the library.
        let text = unsafe {
            let text = (self.functions.text)(status);
            if text.is_null() { "".into() } else { std::ffi::CStr::from_ptr(text).to_string_lossy() }
        };
        Err(CudaError::Library { call: format!("cuDNN: {call}"), detail: format!("{text} ({status})") })
    }
}

/// Sorts files of Python packages first, then other files, then names for the system's loader.
fn search_order(mut candidates: Vec<PathBuf>) -> Vec<PathBuf> {
    candidates.sort_by_key(|path| (!path.ends_with(CUDNN_NAMES.wheel_path), !path.is_absolute()));
    candidates
}

fn missing(tried: &str) -> String {
    format!("cuDNN was not found; expected {}; tried: {tried}", expected())
}

/// Describes the expected library to users.
pub(crate) fn expected() -> String {
    format!(
        "libcudnn.so.9 of version {} or newer, for example from `pip install nvidia-cudnn-cu13`, or {PATH_VARIABLE} set \
         to its file or folder",
        version_text(MIN_CUDNN_VERSION)
    )
}

fn version_text(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// The version of the library, such as `9.19.0`.
pub fn version() -> Result<String> {
    Ok(version_text(CudnnLibrary::load()?.version))
}

/// The version and the address of one of the library's functions; or the attempted files with the reasons for
/// refusing each.
pub(crate) fn library() -> Result<(String, *const c_void), &'static [String]> {
    let cudnn = CudnnLibrary::find_or_attempts()?;
    Ok((version_text(cudnn.version), cudnn.functions.version as *const c_void))
}

/// The flag of `dlopen` that only returns a library which the process has already loaded.
const RTLD_NOLOAD: i32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_before_the_toolkit_and_that_before_the_system() {
        let wheel = PathBuf::from("/py/lib/python3.12/site-packages").join(CUDNN_NAMES.wheel_path);
        let candidates = ["libcudnn.so.9", "libcudnn.so", "/cuda/lib64/libcudnn.so.9"].map(PathBuf::from);
        let expected = [wheel.clone(), candidates[2].clone(), candidates[0].clone(), candidates[1].clone()];
        assert_eq!(search_order([&candidates[..], &[wheel]].concat()), expected);
    }

    #[test]
    fn what_is_no_cudnn_is_named_with_what_it_is() {
        let folder = std::env::temp_dir().join(format!("symmc-cudnn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libcudnn.so.9"), "no library").unwrap();
        let search = LibrarySearch { explicit_path: Some(folder.clone()), ..LibrarySearch::default() };
        let Err(tried) = CudnnLibrary::find(&search) else { panic!("it is no library") };
        let tried = tried.join("; ");
        assert!(tried.contains("libcudnn.so.9 does not load ("), "{tried}");
        assert!(tried.contains("libcudnn.so does not exist"), "{tried}");
        assert!(missing(&tried).contains(PATH_VARIABLE));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(version_text(91_900), "9.19.0");
    }
}
