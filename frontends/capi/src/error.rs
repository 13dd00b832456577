//! Statuses, and what is kept of the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symmc::{Error, ErrorKind};

/// How a call ended: `SYMMC_OK`, or the kind of its error.
pub type symmc_status = i32;

/// It did what it is for.
pub const SYMMC_OK: symmc_status = 0;
/// What was given is not what it should be: a file, an argument, a tensor, the size of a symbol.
pub const SYMMC_ERROR_INPUT: symmc_status = 1;
/// What was given is sound, but this build, this backend or this machine has nothing that plans or runs it.
pub const SYMMC_ERROR_UNSUPPORTED: symmc_status = 2;
/// More memory, threads or files are needed than a limit or the system gives.
pub const SYMMC_ERROR_RESOURCES: symmc_status = 3;
/// The ranks of one session were started for different things: plans, versions, sizes.
pub const SYMMC_ERROR_DISAGREEMENT: symmc_status = 4;
/// A plan is not proved safe, or computes something else than its source.
pub const SYMMC_ERROR_CHECK: symmc_status = 5;
/// A step failed, or the system refused something that a run needs.
pub const SYMMC_ERROR_RUN: symmc_status = 6;
/// A rank died, did not come or made no progress.
pub const SYMMC_ERROR_PEER: symmc_status = 7;
/// A fault of symmc itself, whatever the input.
pub const SYMMC_ERROR_DEFECT: symmc_status = 8;

/// What is known of an error.
struct LastError {
    status: symmc_status,
    text: CString,
    node: Option<CString>,
    op: Option<CString>,
    culprit: i64,
    reporter: i64,
    step: i64,
}

thread_local! {
    static LAST: RefCell<Option<LastError>> = const { RefCell::new(None) };
}

/// The status of a kind. Kinds that this interface does not know yet are faults of symmc.
pub(crate) fn status_of(kind: ErrorKind) -> symmc_status {
    match kind {
        ErrorKind::Input => SYMMC_ERROR_INPUT,
        ErrorKind::Unsupported => SYMMC_ERROR_UNSUPPORTED,
        ErrorKind::Resources => SYMMC_ERROR_RESOURCES,
        ErrorKind::Disagreement => SYMMC_ERROR_DISAGREEMENT,
        ErrorKind::Check => SYMMC_ERROR_CHECK,
        ErrorKind::Run => SYMMC_ERROR_RUN,
        ErrorKind::Peer => SYMMC_ERROR_PEER,
        _ => SYMMC_ERROR_DEFECT,
    }
}

/// A text as C has it; it ends at a NUL.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text.as_bytes()[..end]).unwrap_or_default()
}

/// What the caller did wrong.
pub(crate) fn input_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Input, message)
}

/// Starts the log by the environment, when the process first calls a function.
fn start_log() -> Result<(), Error> {
    symmc_log::init_from_env().map_err(|error| input_error(error.to_string()))
}

/// Does what a function is for. An error is kept for the thread, a panic too.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Error>) -> symmc_status {
    let ended =
        catch_unwind(AssertUnwindSafe(|| start_log().and_then(|()| work()))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "without a text".into());
            // What a panic carries may panic when it is dropped.
            std::mem::forget(panic);
            Err(Error::new(ErrorKind::Defect, format!("symmc panicked: {text}")))
        });
    match ended {
        Ok(()) => SYMMC_OK,
        Err(error) => store_error(&error),
    }
}

fn store_error(error: &Error) -> symmc_status {
    let number = |n: Option<i64>| n.unwrap_or(-1);
    let last = LastError {
        status: status_of(error.kind()),
        text: c_text(&error.to_string()),
        node: error.node().map(c_text),
        op: error.op().map(c_text),
        culprit: number(error.culprit().map(i64::from)),
        reporter: number(error.reporter().map(i64::from)),
        step: number(error.step().and_then(|step| i64::try_from(step).ok())),
    };
    let status = last.status;
    LAST.with(|cell| *cell.borrow_mut() = Some(last));
    status
}

fn read_last_error<T>(none: T, of: impl FnOnce(&LastError) -> T) -> T {
    LAST.with(|cell| cell.borrow().as_ref().map_or(none, of))
}

fn text_pointer(text: Option<&CString>) -> *const c_char {
    text.map_or(std::ptr::null(), |text| text.as_ptr())
}

/// The status of the last call of this thread that failed, `SYMMC_OK` if none did. Calls that succeed leave it.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_kind() -> symmc_status {
    read_last_error(SYMMC_OK, |last| last.status)
}

/// What went wrong in the last call of this thread that failed: what it is about, what was expected and what was found. Empty
/// if none did. The text is the library's; it stays until another call of this thread fails, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error() -> *const c_char {
    read_last_error(c"".as_ptr(), |last| last.text.as_ptr())
}

/// The rank at fault in the last error of this thread: the one that failed, died, stopped, left, did not come, or differs from
/// the others; never a rank that only waited. -1 if there is none or it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_culprit() -> i64 {
    read_last_error(-1, |last| last.culprit)
}

/// The rank that noticed the last error of this thread, -1 if it is not known. Culprit and reporter are the same on all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_reporter() -> i64 {
    read_last_error(-1, |last| last.reporter)
}

/// Another name of symmc_last_error_culprit.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_rank() -> i64 {
    read_last_error(-1, |last| last.culprit)
}

/// The step that the last error of this thread is about, counted from 0 in its bucket, -1 if it is about none.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_step() -> i64 {
    read_last_error(-1, |last| last.step)
}

/// The node that the last error of this thread is about, by the name of its first result; NULL if it is about none. Stays as
/// long as the text.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_node() -> *const c_char {
    read_last_error(std::ptr::null(), |last| text_pointer(last.node.as_ref()))
}

/// The op of that node; NULL if it is not known. Stays as long as the text.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_op() -> *const c_char {
    read_last_error(std::ptr::null(), |last| text_pointer(last.op.as_ref()))
}

/// A text that the caller gave; `what` names it.
///
/// # Safety
/// It ends with a NUL, or is NULL.
pub(crate) unsafe fn read_text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(input_error(format!("{what} is NULL")));
    }
    // SAFETY: by the caller.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|e| input_error(format!("{what} is not UTF-8: {e}")))
}

/// The same where it may be left out.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn read_optional_text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Error> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller.
    unsafe { read_text(pointer, what) }.map(Some)
}

/// An array that the caller gave. It may be NULL where it has no elements.
///
/// # Safety
/// It has so many elements that nobody writes meanwhile, or is NULL.
pub(crate) unsafe fn read_slice<'a, T>(
    pointer: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Error> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(input_error(format!("{what} is NULL, and has {count} elements")));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(input_error(format!("{what} has {count} elements: no memory has so many")));
    }
    // SAFETY: by the caller; the size was asked.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A handle that the caller gave.
///
/// # Safety
/// It came from this library and was not freed, or is NULL.
pub(crate) unsafe fn borrow_handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| input_error(format!("the handle of the {what} is NULL")))
}

/// The same to be changed.
///
/// # Safety
/// As [`handle`], and no other thread uses it.
pub(crate) unsafe fn borrow_handle_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Error> {
    // SAFETY: by the caller.
    unsafe { pointer.as_mut() }.ok_or_else(|| input_error(format!("the handle of the {what} is NULL")))
}

/// Gives the caller a result through its pointer.
///
/// # Safety
/// The pointer is valid for a write, or NULL.
pub(crate) unsafe fn write_result<T>(out: *mut T, value: T) -> Result<(), Error> {
    if out.is_null() {
        return Err(input_error("the pointer to the result is NULL"));
    }
    // SAFETY: by the caller.
    unsafe { out.write(value) };
    Ok(())
}

/// Gives the caller bytes; `what` they are of.
///
/// # Safety
/// `to` has `room` bytes, none of which are those of `from`.
pub(crate) unsafe fn write_bytes(
    to: *mut std::ffi::c_void,
    room: usize,
    from: &[u8],
    what: &str,
) -> Result<(), Error> {
    if from.len() != room {
        return Err(input_error(format!("{what}: it has {} bytes, the memory for it {room}", from.len())));
    }
    if room > 0 && to.is_null() {
        return Err(input_error(format!("{what}: the memory for it is NULL")));
    }
    // SAFETY: by the caller.
    unsafe { std::ptr::copy(from.as_ptr(), to.cast(), room) };
    Ok(())
}

/// Makes a handle and gives it to the caller, who gets NULL where that fails.
///
/// # Safety
/// As [`give`].
pub(crate) unsafe fn create_handle<T>(
    out: *mut *mut T,
    what: impl FnOnce() -> Result<T, Error>,
) -> symmc_status {
    guard(|| {
        // SAFETY: by the caller.
        unsafe { write_result(out, std::ptr::null_mut()) }?;
        let made = Box::into_raw(Box::new(what()?));
        // SAFETY: by the caller.
        unsafe { write_result(out, made) }
    })
}

/// Frees a handle; NULL is none.
///
/// # Safety
/// It came from [`make`] and was not freed.
pub(crate) unsafe fn free_handle<T>(handle: *mut T) {
    if !handle.is_null() {
        // What goes wrong has no one to be told.
        guard(|| {
            // SAFETY: by the caller.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
