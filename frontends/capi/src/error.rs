//! Statuses, and the last error of each thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
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

/// The numbers of the last error of a thread.
#[derive(Clone, Copy)]
struct ErrorNumbers {
    status: symmc_status,
    culprit: i64,
    reporter: i64,
    step: i64,
}

/// The texts of the last error of a thread.
struct ErrorTexts {
    message: CString,
    node: Option<CString>,
    op: Option<CString>,
}

/// The bytes of [`LATE_MESSAGE`], which ends with a NUL.
const MAX_LATE_BYTES: usize = 512;

// Destructors of thread-local storage run before those of static objects and of a thread's keys, and before `atexit` handlers.
// Storage without a destructor remains until the thread is gone.
thread_local! {
    static LAST_NUMBERS: Cell<ErrorNumbers> =
        const { Cell::new(ErrorNumbers { status: SYMMC_OK, culprit: -1, reporter: -1, step: -1 }) };
    static LAST_TEXTS: TextStorage = const { TextStorage(RefCell::new(None)) };
    /// The beginning of the message, after `LAST_TEXTS` has ended.
    static LATE_MESSAGE: RefCell<[u8; MAX_LATE_BYTES]> = const { RefCell::new([0; MAX_LATE_BYTES]) };
}

struct TextStorage(RefCell<Option<ErrorTexts>>);

impl Drop for TextStorage {
    fn drop(&mut self) {
        if let Some(texts) = self.0.get_mut() {
            store_late_message(&texts.message);
        }
    }
}

/// Stores as many whole characters of a message as [`LATE_MESSAGE`] has room for.
fn store_late_message(message: &CStr) {
    let text = message.to_str().unwrap_or_default();
    let mut end = text.len().min(MAX_LATE_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    LATE_MESSAGE.with_borrow_mut(|late| {
        late.fill(0);
        late[..end].copy_from_slice(&text.as_bytes()[..end]);
    });
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

/// Defers cancellation of the calling thread (`pthread_cancel`) while it exists. Cancellation unwinds the stack, and no unwinding
/// may pass through this library.
struct CancellationDeferred(c_int);

impl CancellationDeferred {
    fn new() -> CancellationDeferred {
        let mut before = 0;
        // SAFETY: the pointer is valid for a write.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        CancellationDeferred(before)
    }
}

impl Drop for CancellationDeferred {
    fn drop(&mut self) {
        // SAFETY: the state is one that the function returned. NULL is allowed.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// The crate `libc` does not declare this function for Linux.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs the body of a function. Stores its error, or its panic, as the last error of the thread.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Error>) -> symmc_status {
    let _deferred = CancellationDeferred::new();
    // The first call of a thread registers the destructor of its storage. It is then the last of this library to run.
    let has_storage = LAST_TEXTS.try_with(|_| ()).is_ok();
    let catch = || catch_unwind(AssertUnwindSafe(|| start_log().and_then(|()| work())));
    let ended = if has_storage { Ok(catch()) } else { run_on_new_thread(catch) };
    let result = ended.unwrap_or_else(|error| {
        let message = format!("the calling thread has no storage, and no other can be started: {error}");
        Ok(Err(Error::new(ErrorKind::Resources, message)))
    });
    match result.unwrap_or_else(|panic| Err(panic_error(panic))) {
        Ok(()) => SYMMC_OK,
        Err(error) => store_error(&error),
    }
}

fn panic_error(panic: Box<dyn Any + Send>) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "without a message".into());
    // The payload of a panic may panic when it is dropped.
    std::mem::forget(panic);
    Error::new(ErrorKind::Defect, format!("symmc panicked: {text}"))
}

/// Runs a closure on a new thread and waits for it. A thread whose storage has ended cannot run code that needs any, such as the
/// log and the compiler. `std::thread` is such code too. The closure does not unwind.
fn run_on_new_thread<T, W: FnOnce() -> T>(work: W) -> std::io::Result<T> {
    struct Task<W, T> {
        work: Option<W>,
        result: Option<T>,
    }
    extern "C" fn run<T, W: FnOnce() -> T>(task: *mut c_void) -> *mut c_void {
        // SAFETY: the pointer is that of `pthread_create` below, and the task exists until this thread has ended.
        let task = unsafe { &mut *task.cast::<Task<W, T>>() };
        task.result = task.work.take().map(|work| work());
        std::ptr::null_mut()
    }
    let mut task = Task { work: Some(work), result: None };
    let mut thread = 0;
    // SAFETY: objects of this library can change threads, and this thread uses none before the other has ended.
    let code = unsafe {
        libc::pthread_create(&raw mut thread, std::ptr::null(), run::<T, W>, (&raw mut task).cast())
    };
    if code != 0 {
        return Err(std::io::Error::from_raw_os_error(code));
    }
    // SAFETY: the thread was created and is joined once.
    let code = unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
    task.result.ok_or_else(|| std::io::Error::from_raw_os_error(code))
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
    let status = status_of(error.kind());
    LAST_NUMBERS.set(ErrorNumbers {
        status,
        culprit: number(error.culprit().map(i64::from)),
        reporter: number(error.reporter().map(i64::from)),
        step: number(error.step().and_then(|step| i64::try_from(step).ok())),
    });
    let message = c_text(&format!("{error}{}", remedy(error)));
    let store = |storage: &TextStorage| {
        let texts = ErrorTexts {
            message: message.clone(),
            node: error.node().map(c_text),
            op: error.op().map(c_text),
        };
        *storage.0.borrow_mut() = Some(texts);
    };
    if LAST_TEXTS.try_with(store).is_err() {
        store_late_message(&message);
    }
    status
}

/// A text of the last error. `none` if there is no such text, no call of the thread failed, or the storage has ended.
fn read_text_pointer(
    none: *const c_char,
    read: impl FnOnce(&ErrorTexts) -> Option<&CString>,
) -> *const c_char {
    let pointer = |storage: &TextStorage| {
        let texts = storage.0.borrow();
        texts.as_ref().and_then(read).map_or(none, |text| text.as_ptr())
    };
    LAST_TEXTS.try_with(pointer).unwrap_or(none)
}

/// The status of the last failed call of this thread, `SYMMC_OK` if none failed. Successful calls do not change it.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_kind() -> symmc_status {
    LAST_NUMBERS.get().status
}

/// The message of the last failed call of this thread. It names the thing, what was expected and what was found. It is empty if
/// no call failed. The library owns the text, which is valid until another call of this thread fails or the thread ends. While
/// a thread or the process ends (in a destructor of a thread's key or of a static object, and in an `atexit` handler) the
/// message may be shortened to 511 bytes, and its node and op are not known.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error() -> *const c_char {
    let late = LATE_MESSAGE.with(|late| late.as_ptr().cast::<c_char>().cast_const());
    read_text_pointer(late, |texts| Some(&texts.message))
}

/// The rank at fault in the last error of this thread: the one that failed, died, stopped, left, did not join, or differs from
/// the others. It is never a rank that only waited. -1 if there is no such rank or it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_culprit() -> i64 {
    LAST_NUMBERS.get().culprit
}

/// The rank that noticed the last error of this thread, -1 if it is not known. Culprit and reporter are equal on all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_reporter() -> i64 {
    LAST_NUMBERS.get().reporter
}

/// Another name of symmc_last_error_culprit.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_rank() -> i64 {
    LAST_NUMBERS.get().culprit
}

/// The step of the last error of this thread, counted from 0 in its bucket; -1 if the error is not about a step.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_step() -> i64 {
    LAST_NUMBERS.get().step
}

/// The node of the last error of this thread, as the name of its first result; NULL if the error is not about a node. Valid as
/// long as the message.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_node() -> *const c_char {
    read_text_pointer(std::ptr::null(), |texts| texts.node.as_ref())
}

/// The op of that node; NULL if it is not known. Valid as long as the message.
#[unsafe(no_mangle)]
pub extern "C" fn symmc_last_error_op() -> *const c_char {
    read_text_pointer(std::ptr::null(), |texts| texts.op.as_ref())
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

/// Checks that a pointer of the caller is aligned for its elements. `what` names it in errors.
fn expect_aligned<T>(pointer: *const T, what: &str) -> Result<(), Error> {
    if pointer.is_aligned() {
        return Ok(());
    }
    let address = pointer.addr();
    Err(input_error(format!("{what} at {address:#x}: expected a multiple of {} bytes", align_of::<T>())))
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
    expect_aligned(pointer, what)?;
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

/// Checks the pointer to a result.
pub(crate) fn expect_result_pointer<T>(out: *mut T) -> Result<(), Error> {
    if out.is_null() {
        return Err(input_error("the pointer to the result is NULL"));
    }
    expect_aligned(out.cast_const(), "the pointer to the result")
}

/// Writes a result through a pointer of the caller.
///
/// # Safety
/// The pointer is valid for a write if it is aligned, or NULL.
pub(crate) unsafe fn write_result<T>(out: *mut T, value: T) -> Result<(), Error> {
    expect_result_pointer(out)?;
    // SAFETY: the caller ensures it.
    unsafe { out.write(value) };
    Ok(())
}

/// Copies bytes to memory of the caller. `what` names them in errors.
///
/// # Safety
/// `to` has `room` bytes, which do not overlap `from`.
pub(crate) unsafe fn write_bytes(to: *mut c_void, room: usize, from: &[u8], what: &str) -> Result<(), Error> {
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

/// Creates a handle and writes it through a pointer of the caller. After every error the caller has NULL.
///
/// # Safety
/// As [`write_result`].
pub(crate) unsafe fn create_handle<T>(
    out: *mut *mut T,
    create: impl FnOnce() -> Result<T, Error>,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { create_handles(out, 1, |pointer| pointer.and_then(|()| create().map(|handle| [handle]))) }
}

/// Creates `count` handles and writes them to an array of the caller, which has NULL in each place after every error. `create`
/// receives the check of the array.
///
/// # Safety
/// As [`write_result`], for an array with `count` places.
pub(crate) unsafe fn create_handles<T, H: IntoIterator<Item = T>>(
    out: *mut *mut T,
    count: usize,
    create: impl FnOnce(Result<(), Error>) -> Result<H, Error>,
) -> symmc_status {
    let pointer = expect_result_pointer(out);
    if pointer.is_ok() {
        for index in 0..count {
            // SAFETY: the caller ensures it.
            unsafe { out.add(index).write(std::ptr::null_mut()) };
        }
    }
    guard(|| {
        for (index, handle) in create(pointer)?.into_iter().enumerate().take(count) {
            // SAFETY: the pointer was checked, and the caller ensures that the array has the place.
            unsafe { out.add(index).write(Box::into_raw(Box::new(handle))) };
        }
        Ok(())
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
