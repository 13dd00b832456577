//! A loaded library: opening it, its version, and the calls that need no handle.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::config::NcclConfig;
use crate::error::{LoadAttempt, LoadError, LoadFailure, MissingFunction, NcclError};
use crate::functions::{Functions, later};
use crate::search::{LibrarySearch, NCCL};
use crate::trust;
use crate::types::{Comm, ResultCode, Stream, UniqueId, Window, result_code};
use crate::version::Version;

/// The longest text that is read from NCCL, which keeps its last message in 1024 bytes.
const MAX_TEXT_BYTES: usize = 1024;

#[derive(Debug)]
pub struct Nccl {
    path: PathBuf,
    version: Version,
    functions: Functions,
}

/// The library of this process, once one was loaded.
static LOADED_LIBRARY: Mutex<Option<&'static Nccl>> = Mutex::new(None);

impl Nccl {
    /// The library of this process. The first call that succeeds selects it; a failed call may be repeated.
    /// Fails if there is no usable library; the error lists the attempts and the loader's messages.
    pub fn load() -> Result<&'static Nccl, LoadError> {
        let mut loaded = LOADED_LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nccl) = *loaded {
            return Ok(nccl);
        }
        let nccl: &'static Nccl = Box::leak(Box::new(Nccl::find_library(&LibrarySearch::from_env(&NCCL))?));
        Ok(*loaded.insert(nccl))
    }

    /// The first usable library of a search. Its symbols are local: it neither uses nor disturbs another NCCL
    /// that the process has loaded in the same way. There are two exceptions. A bare name resolves to a
    /// library that is already loaded under this name. Symbols that the process made global take precedence
    /// in every library.
    pub fn find_library(search: &LibrarySearch) -> Result<Nccl, LoadError> {
        let mut attempts = Vec::new();
        for path in search.candidates(&NCCL) {
            match Nccl::open_path(&path) {
                Ok(nccl) => return Ok(nccl),
                Err(refusal) => attempts.push(LoadAttempt { path, failure: refusal }),
            }
        }
        Err(LoadError { attempts })
    }

    fn open_path(path: &Path) -> Result<Nccl, LoadFailure> {
        if path.is_absolute() && !path.exists() {
            return Err(LoadFailure::Absent);
        }
        let opened = trust::resolve_library(path)
            .map_err(|path_error| LoadFailure::Untrusted { found: path_error })?;
        // SAFETY: the file is NCCL by its name or by the user's choice, and NCCL's initialisers may run at
        // any time.
        let library = unsafe { Library::open(Some(opened), RTLD_NOW | RTLD_LOCAL) };
        // NCCL keeps threads and exit handlers, so an opened library is never closed.
        let library = ManuallyDrop::new(library.map_err(|e| LoadFailure::Loader(loader_text(&e)))?);
        let version = query_version(&library)?;
        if version < Version::OLDEST {
            return Err(LoadFailure::Old { found: version });
        }
        // SAFETY: the library reports an accepted version of NCCL, and stays open.
        let functions = unsafe { Functions::of(&library) }?;
        Ok(Nccl { path: path.to_path_buf(), version, functions })
    }

    /// The path of the file that was opened, with its links, or the name that the system's loader resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// All functions, as they are in C.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// `ncclAlltoAll`. Fails if the library is older than 2.28.
    pub fn all_to_all(
        &self,
    ) -> Result<
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> ResultCode,
        MissingFunction,
    > {
        self.require_version(self.functions.all_to_all, later::all_to_all.0, later::all_to_all.1)
    }

    /// `ncclGetLsaDevicePointer`: window, offset in bytes, rank within the window's NVLink domain, the address. Fails
    /// if the library is older than 2.29.2.
    pub fn get_lsa_device_pointer(
        &self,
    ) -> Result<unsafe extern "C" fn(Window, usize, c_int, *mut *mut c_void) -> ResultCode, MissingFunction>
    {
        self.require_version(
            self.functions.get_lsa_device_pointer,
            later::get_lsa_device_pointer.0,
            later::get_lsa_device_pointer.1,
        )
    }

    fn require_version<F>(
        &self,
        function: Option<F>,
        symbol: &'static str,
        since: Version,
    ) -> Result<F, MissingFunction> {
        function.ok_or(MissingFunction { symbol, since, found: self.version })
    }

    /// Turns the result code of `call` into a result. Only success is `Ok`: on a nonblocking communicator,
    /// check for [`IN_PROGRESS`](result_code::IN_PROGRESS) first.
    pub fn check_code(&self, call: &'static str, code: ResultCode) -> Result<(), NcclError> {
        if code == result_code::SUCCESS { Ok(()) } else { Err(self.call_error(call, code)) }
    }

    fn call_error(&self, call: &'static str, code: ResultCode) -> NcclError {
        // SAFETY: the function accepts any code and returns a constant string.
        let mut text = unsafe { read_c_text((self.functions.get_error_string)(code)) };
        // SAFETY: the function also accepts a null communicator, and returns a static buffer of `MAX_TEXT_BYTES` bytes
        // that always ends with a zero.
        let last_message = unsafe { read_c_text((self.functions.get_last_error)(Comm::NULL)) };
        if !last_message.is_empty() {
            text = format!("{text}; last message: {last_message}");
        }
        NcclError { call, code, text }
    }

    /// A new id, which one rank creates and all ranks get. Fails if NCCL found no network interface, or its
    /// environment is invalid.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId::from_bytes([0; UniqueId::BYTES]);
        // SAFETY: the function writes one id.
        let code = unsafe { (self.functions.get_unique_id)(&mut id) };
        self.check_code("ncclGetUniqueId", code).map(|()| id)
    }

    /// Joins `ranks` ranks that all hold `id`, with the current CUDA device, as `rank`. Waits for all of them
    /// unless the config is nonblocking; then the communicator is still being created. Must not be called
    /// within a group, where NCCL would access the arguments after this call.
    pub fn comm_init_rank(
        &self,
        ranks: u32,
        id: UniqueId,
        rank: u32,
        config: &NcclConfig,
    ) -> Result<Comm, NcclError> {
        const CALL_NAME: &str = "ncclCommInitRankConfig";
        let (Ok(ranks), Ok(rank)) = (c_int::try_from(ranks), c_int::try_from(rank)) else {
            let text = format!("rank {rank} of {ranks}: expected numbers up to {}", c_int::MAX);
            return Err(NcclError { call: CALL_NAME, code: result_code::INVALID_ARGUMENT, text });
        };
        let mut comm = Comm::NULL;
        let mut config = config.clone();
        // SAFETY: the function writes one handle, and reads the config, whose size the config states, during
        // the call.
        let code = unsafe { (self.functions.comm_init_rank_config)(&mut comm, ranks, id, rank, &mut config) };
        if code == result_code::IN_PROGRESS {
            Ok(comm)
        } else {
            self.check_code(CALL_NAME, code).map(|()| comm)
        }
    }

    /// The state of a nonblocking communicator: [`IN_PROGRESS`](result_code::IN_PROGRESS) while a call on it
    /// continues, success when it is done, else its failure.
    ///
    /// # Safety
    /// The communicator exists.
    pub unsafe fn async_state(&self, comm: Comm) -> Result<ResultCode, NcclError> {
        let mut state = result_code::IN_PROGRESS;
        // SAFETY: the caller's promise; the function writes one code.
        let code = unsafe { (self.functions.comm_get_async_error)(comm, &mut state) };
        self.check_code("ncclCommGetAsyncError", code).map(|()| state)
    }

    /// Allocates `size` bytes on the current CUDA device that can be registered as a window. They are freed
    /// with `ncclMemFree`.
    pub fn mem_alloc(&self, size: usize) -> Result<*mut c_void, NcclError> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the function writes one address.
        let code = unsafe { (self.functions.mem_alloc)(&mut address, size) };
        self.check_code("ncclMemAlloc", code).map(|()| address)
    }
}

/// Queries the version of an opened library, before any other symbol is resolved.
fn query_version(library: &Library) -> Result<Version, LoadFailure> {
    const CALL_NAME: &str = "ncclGetVersion";
    // SAFETY: the function has had this type since NCCL 2.0.
    let function = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> ResultCode>(CALL_NAME) };
    let function = function.map_err(|_| LoadFailure::NoSymbol(CALL_NAME))?;
    let mut code = 0;
    // SAFETY: the function writes one integer.
    match unsafe { function(&mut code) } {
        result_code::SUCCESS => Ok(Version::from_code(code)),
        code => {
            Err(NcclError { call: CALL_NAME, code, text: "the library does not report its version".into() }
                .into())
        }
    }
}

/// The message of the system's loader: the error's source, because the error itself names only the call.
fn loader_text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| source.to_string())
}

/// The text at an address, up to its zero or `MAX_TEXT_BYTES` bytes.
///
/// # Safety
/// The address is null, or that of a string or of a buffer of `MAX_TEXT_BYTES` bytes. The buffer may change meanwhile.
unsafe fn read_c_text(address: *const c_char) -> String {
    let mut bytes = Vec::new();
    while !address.is_null() && bytes.len() < MAX_TEXT_BYTES {
        // SAFETY: the caller's promise; volatile, because another thread of NCCL may write a message
        // concurrently.
        let byte = unsafe { address.add(bytes.len()).read_volatile() } as u8;
        if byte == 0 {
            break;
        }
        bytes.push(byte);
    }
    String::from_utf8_lossy(&bytes).trim_end().to_string()
}
