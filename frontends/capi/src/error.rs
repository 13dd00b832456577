//! Statuses, and the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symmc::{Error, ErrorKind};

/// The result of a call: `SYMMC_OK`, or the kind of its error.
pub type symmc_status = i32;

/// Success.
pub const SYMMC_OK: symmc_status = 0;
/// An input is invalid: a file, an argument, a tensor, the size of a symbol.
pub const SYMMC_ERROR_INPUT: symmc_status = 1;
/// The input is valid, but this build, this backend or this machine cannot plan or run it.
pub const SYMMC_ERROR_UNSUPPORTED: symmc_status = 2;
/// More memory, threads or files are needed than a limit or the system allows.
pub const SYMMC_ERROR_RESOURCES: symmc_status = 3;
/// The ranks of one session were started with different plans, versions or sizes.
pub const SYMMC_ERROR_DISAGREEMENT: symmc_status = 4;
/// A plan is not proved safe, or computes something else than its source.
pub const SYMMC_ERROR_CHECK: symmc_status = 5;
/// A step failed, or the system refused something that a run needs.
pub const SYMMC_ERROR_RUN: symmc_status = 6;
/// A rank died, did not join or made no progress.
pub const SYMMC_ERROR_PEER: symmc_status = 7;
/// A defect of symmc itself, whatever the input.
pub const SYMMC_ERROR_DEFECT: symmc_status = 8;

/// The last error of a thread, in the types of C.
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

/// The status of a kind. A kind that this interface does not know is reported as a defect.
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

/// A text for C. It ends at the first NUL.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text.as_bytes()[..end]).unwrap_or_default()
}

/// An error of the caller's arguments.
pub(crate) fn input_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Input, message)
}

/// Starts the log from the environment variables, at the first call of the process.
fn start_log() -> Result<(), Error> {
    symmc_log::init_from_env().map_err(|error| input_error(error.to_string()))
}

/// Runs the body of a function. Stores its error, or its panic, as the last error of the thread.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Error>) -> symmc_status {
    let ended =
        catch_unwind(AssertUnwindSafe(|| start_log().and_then(|()| work()))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "without a message".into());
            // The payload of a panic may panic when it is dropped.
            std::mem::forget(panic);
            Err(Error::new(ErrorKind::Defect, format!("symmc panicked: {text}")))
        });
    match ended {
        Ok(()) => SYMMC_OK,
        Err(error) => store_error(&error),
    }
}

/// A remedy for errors whose remedy depends on this interface; else empty.
fn remedy(error: &Error) -> String {
    let groups = error.unknown_groups();
    let Some(first) = groups.first() else { return String::new() };
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    let ranks = first.all_ranks.map_or(String::new(), |ranks| {
        format!("; if the group is all ranks, pass {ranks} as `ranks` of symmc_program_open")
    });
    format!(
        "; the C interface cannot state the ranks of the group {}: compile the program with the symmc command or in Python, \
         and read the plan with symmc_plan_read{ranks}",
        names.join(", ")
    )
}

fn store_error(error: &Error) -> symmc_status {
    let number = |n: Option<i64>| n.unwrap_or(-1);
    let last = LastError {
        status: status_of(error.kind()),
        text: c_text(&format!("{error}{}", remedy(error))),
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

/// The status of the last failed call of this thread, `SYMMC_OK` if none failed. Successful calls do not change it.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_kind() -> symmc_status {
    read_last_error(SYMMC_OK, |last| last.status)
}

/// The message of the last failed call of this thread. It names the thing, what was expected and what was found. It is empty if
/// no call failed. The library owns the text, which is valid until another call of this thread fails or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error() -> *const c_char {
    read_last_error(c"".as_ptr(), |last| last.text.as_ptr())
}

/// The rank at fault in the last error of this thread: the one that failed, died, stopped, left, did not join, or differs from
/// the others. It is never a rank that only waited. -1 if there is no such rank or it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_culprit() -> i64 {
    read_last_error(-1, |last| last.culprit)
}

/// The rank that noticed the last error of this thread, -1 if it is not known. Culprit and reporter are equal on all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_reporter() -> i64 {
    read_last_error(-1, |last| last.reporter)
}

/// Another name of symmc_last_error_culprit.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_rank() -> i64 {
    read_last_error(-1, |last| last.culprit)
}

/// The step of the last error of this thread, counted from 0 in its bucket; -1 if the error is not about a step.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_step() -> i64 {
    read_last_error(-1, |last| last.step)
}

/// The node of the last error of this thread, as the name of its first result; NULL if the error is not about a node. Valid as
/// long as the message.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_node() -> *const c_char {
    read_last_error(std::ptr::null(), |last| text_pointer(last.node.as_ref()))
}

/// The op of that node; NULL if it is not known. Valid as long as the message.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_op() -> *const c_char {
    read_last_error(std::ptr::null(), |last| text_pointer(last.op.as_ref()))
}

/// Reads a text of the caller. `what` names it in errors.
///
/// # Safety
/// The text ends with a NUL, or the pointer is NULL.
pub(crate) unsafe fn read_text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(input_error(format!("{what} is NULL")));
    }
    // SAFETY: the caller ensures it.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|e| input_error(format!("{what} is not UTF-8: {e}")))
}

/// As [`read_text`]; NULL gives `None`.
///
/// # Safety
/// As [`read_text`].
pub(crate) unsafe fn read_optional_text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Error> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller ensures it.
    unsafe { read_text(pointer, what) }.map(Some)
}

/// Borrows an array of the caller. The pointer may be NULL if the array has no elements.
///
/// # Safety
/// The array has `count` elements, which nothing writes during the borrow, or the pointer is NULL.
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
        return Err(input_error(format!("{what} has {count} elements, more than memory can hold")));
    }
    // SAFETY: the caller ensures it. The size was checked.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Borrows a handle of the caller.
///
/// # Safety
/// The handle came from this library and was not freed, or is NULL.
pub(crate) unsafe fn borrow_handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: the caller ensures it.
    unsafe { pointer.as_ref() }.ok_or_else(|| input_error(format!("the handle of the {what} is NULL")))
}

/// Borrows a handle of the caller for changes.
///
/// # Safety
/// As [`borrow_handle`], and no other thread uses the handle.
pub(crate) unsafe fn borrow_handle_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Error> {
    // SAFETY: the caller ensures it.
    unsafe { pointer.as_mut() }.ok_or_else(|| input_error(format!("the handle of the {what} is NULL")))
}

/// Writes a result through a pointer of the caller.
///
/// # Safety
/// The pointer is valid for a write, or NULL.
pub(crate) unsafe fn write_result<T>(out: *mut T, value: T) -> Result<(), Error> {
    if out.is_null() {
        return Err(input_error("the pointer to the result is NULL"));
    }
    // SAFETY: the caller ensures it.
    unsafe { out.write(value) };
    Ok(())
}

/// Copies bytes to memory of the caller. `what` names them in errors.
///
/// # Safety
/// `to` has `room` bytes, which do not overlap `from`.
pub(crate) unsafe fn write_bytes(
    to: *mut std::ffi::c_void,
    room: usize,
    from: &[u8],
    what: &str,
) -> Result<(), Error> {
    if from.len() != room {
        return Err(input_error(format!("{what} has {} bytes, the memory for it has {room}", from.len())));
    }
    if room > 0 && to.is_null() {
        return Err(input_error(format!("{what}: the memory for it is NULL")));
    }
    // SAFETY: the caller ensures it.
    unsafe { std::ptr::copy(from.as_ptr(), to.cast(), room) };
    Ok(())
}

/// Creates a handle and writes it through a pointer of the caller. On failure the caller gets NULL.
///
/// # Safety
/// As [`write_result`].
pub(crate) unsafe fn create_handle<T>(
    out: *mut *mut T,
    what: impl FnOnce() -> Result<T, Error>,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        unsafe { write_result(out, std::ptr::null_mut()) }?;
        let made = Box::into_raw(Box::new(what()?));
        // SAFETY: the caller ensures it.
        unsafe { write_result(out, made) }
    })
}

/// Frees a handle. NULL is ignored.
///
/// # Safety
/// The handle came from [`create_handle`] and was not freed.
pub(crate) unsafe fn free_handle<T>(handle: *mut T) {
    if !handle.is_null() {
        // The caller gets no status, so errors of the drop are only stored.
        guard(|| {
            // SAFETY: the caller ensures it.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
