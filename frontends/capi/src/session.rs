//! Sessions: one rank of a plan that stays open.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

use symmc::unstable::runtime::RunError;
use symmc::{Error, MemoryUsage, Session, SessionConfig};

use crate::error::{
    borrow_handle, borrow_handle_mut, create_handles, free_handle, guard, input_error, read_slice, read_text,
    symmc_status, write_bytes, write_result,
};
use crate::group::symmc_group;
use crate::options::symmc_session_options;
use crate::plan::symmc_plan;
use crate::program::symmc_weights;
use crate::values::{DescribedValue, SYMMC_ARGUMENT, SYMMC_OUTPUT, storage_code, symmc_memory, symmc_value};

/// A plan on one rank, ready to run again and again. After a run has failed, calls that run, wait, read, write or close return
/// its error. `symmc_session_close` and `symmc_session_abort` end the session and keep the handle: later calls except
/// `symmc_session_free` and `symmc_session_rank` return `SYMMC_ERROR_INPUT`.
pub struct symmc_session {
    rank: u32,
    /// The session, or the name of the function that ended it.
    state: Result<OpenSession, &'static str>,
}

/// A session that has not ended.
pub(crate) struct OpenSession {
    pub(crate) session: Session,
    /// The descriptions of values that the caller may hold, until other sizes are set.
    described: Option<Vec<DescribedValue>>,
}

impl symmc_session {
    fn open_session(&mut self) -> Result<&mut OpenSession, Error> {
        self.state.as_mut().map_err(|ended_by| ended_error(ended_by))
    }

    /// Takes the session out of the handle, which from then on names the function that ended it.
    fn end_by(&mut self, function: &'static str) -> Result<Session, Error> {
        self.open_session()?;
        let state = std::mem::replace(&mut self.state, Err(function));
        state.map(|open| open.session).map_err(ended_error)
    }
}

fn ended_error(ended_by: &str) -> Error {
    input_error(format!("the session has ended: {ended_by} was called"))
}

impl OpenSession {
    fn described_values(&mut self) -> Result<&[DescribedValue], Error> {
        if self.described.is_none() {
            let arguments = self.session.inputs()?;
            let parameters = self.session.parameters()?;
            let values = arguments.into_iter().chain(parameters).chain(self.session.outputs()?);
            self.described = Some(values.map(DescribedValue::from_value).collect::<Result<_, _>>()?);
        }
        Ok(self.described.as_deref().unwrap_or_default())
    }
}

/// Borrows a session that has not ended.
///
/// # Safety
/// `session` is a handle that no other thread uses, or NULL.
pub(crate) unsafe fn borrow_session<'a>(session: *mut symmc_session) -> Result<&'a mut OpenSession, Error> {
    // SAFETY: the caller ensures it.
    unsafe { borrow_handle_mut(session, "session") }?.open_session()
}

/// Runs the body of a function on a session.
///
/// # Safety
/// As [`borrow_session`].
unsafe fn with_session(
    session: *mut symmc_session,
    work: impl FnOnce(&mut OpenSession) -> Result<(), Error>,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    guard(|| work(unsafe { borrow_session(session) }?))
}

/// The bytes that a session uses on its device: a GPU, or the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct symmc_session_memory {
    /// The ordinary arena.
    pub ordinary: u64,
    /// The symmetric arena, which peers can access.
    pub symmetric: u64,
    /// Flags by which ranks signal each other, and staging memory for chunks. On the host ranks share these; this is the part
    /// of one rank.
    pub flags: u64,
    /// Workspaces of kernels.
    pub scratch: u64,
    /// Inputs and outputs for which the caller has bound no memory.
    pub held: u64,
}

impl From<MemoryUsage> for symmc_session_memory {
    fn from(usage: MemoryUsage) -> Self {
        symmc_session_memory {
            ordinary: usage.ordinary as u64,
            symmetric: usage.symmetric as u64,
            flags: usage.flags as u64,
            scratch: usage.scratch as u64,
            held: usage.ports as u64,
        }
    }
}

/// The options of a session in Rust; NULL gives the defaults.
///
/// # Safety
/// `options` is a handle or NULL, and its stream and communicator obey the contracts of their setters.
unsafe fn session_config(options: *const symmc_session_options) -> Result<SessionConfig, Error> {
    // SAFETY: the caller ensures it.
    unsafe {
        options.as_ref().map_or_else(|| Ok(SessionConfig::default()), |options| options.session_config())
    }
}

/// The bytes that the session of a rank will use on its device when it is opened with these options, which may be NULL. Arenas
/// and flags are exact. Workspaces, inputs and outputs are the most that any sizes need that the plan serves, with nothing bound.
/// Nothing is allocated, and no GPU is queried. Memory of libraries, drivers and code is not included.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_get_memory(
    plan: *const symmc_plan,
    rank: u32,
    options: *const symmc_session_options,
    memory: *mut symmc_session_memory,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let (plan, config) = unsafe { (borrow_handle(plan, "plan")?, session_config(options)?) };
        let budget = Session::budget(&plan.plan, rank, &config)?;
        // SAFETY: the caller ensures it.
        unsafe { write_result(memory, budget.into()) }
    })
}

/// Opens the session of the group's rank. Returns when all ranks have opened theirs with the same plan. `options` may be NULL,
/// for the host. If an argument is invalid, such as a plan that is NULL, the call fails on all ranks with an error that names
/// this rank, and the ranks can open the next session together. If the group is NULL, the other ranks are not notified.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_open(
    plan: *const symmc_plan,
    group: *mut symmc_group,
    options: *const symmc_session_options,
    out: *mut *mut symmc_session,
) -> symmc_status {
    let open = |pointer: Result<(), Error>| {
        // SAFETY: the caller ensures it.
        let group = unsafe { borrow_handle_mut(group, "group") }?;
        let arguments = || {
            pointer?;
            // SAFETY: the caller ensures it.
            unsafe { Ok((borrow_handle(plan, "plan")?, session_config(options)?)) }
        };
        let (plan, config) = arguments().map_err(|error: Error| decline_session(group, &error))?;
        let session = Session::open(&plan.plan, &group.0, &config)?;
        let rank = session.rank();
        Ok([symmc_session { rank, state: Ok(OpenSession { session, described: None }) }])
    };
    // SAFETY: the caller ensures it.
    unsafe { create_handles(out, 1, open) }
}

/// Notifies the other ranks of a group that this rank does not open a session, with the reason. Returns the error that all
/// ranks get.
fn decline_session(group: &symmc_group, error: &Error) -> Error {
    group.0.decline(RunError::Invalid(error.to_string())).into()
}

/// The rank of a session; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_rank(session: *const symmc_session) -> u32 {
    // SAFETY: the caller ensures it.
    unsafe { session.as_ref() }.map_or(0, |session| session.rank)
}

/// Sets the values of `count` symbols for the next runs. Inputs and outputs have sizes once all symbols have a value. If no
/// bucket serves a value, the sizes do not change. The next run checks that bound memory is large enough for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_set(
    session: *mut symmc_session,
    symbols: *const *const c_char,
    values: *const i64,
    count: usize,
) -> symmc_status {
    let set = |session: &mut OpenSession| {
        // SAFETY: the caller ensures it.
        let (names, values) =
            unsafe { (read_slice(symbols, count, "symbols")?, read_slice(values, count, "values")?) };
        // SAFETY: the caller ensures it.
        let name = |name: &*const c_char| unsafe { read_text(*name, "the name of a symbol") };
        let names = names.iter().map(name).collect::<Result<Vec<_>, _>>()?;
        let sizes: Vec<(&str, i64)> = names.into_iter().zip(values.iter().copied()).collect();
        session.session.set_all(&sizes)?;
        session.described = None;
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, set) }
}

/// The number of values of a kind: `SYMMC_ARGUMENT`, `SYMMC_PARAMETER` or `SYMMC_OUTPUT`. All symbols must have a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_count(
    session: *mut symmc_session,
    kind: i32,
    count: *mut usize,
) -> symmc_status {
    let count_values = |session: &mut OpenSession| {
        let total = session.described_values()?.iter().filter(|value| value.kind == kind).count();
        expect_kind(kind)?;
        // SAFETY: the caller ensures it.
        unsafe { write_result(count, total) }
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, count_values) }
}

/// The value of a kind with this index, counted from 0. Arguments and outputs have the order of the program. Constants are among
/// the parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_value(
    session: *mut symmc_session,
    kind: i32,
    index: usize,
    value: *mut symmc_value,
) -> symmc_status {
    let read_value = |session: &mut OpenSession| {
        expect_kind(kind)?;
        let mut values = session.described_values()?.iter().filter(|value| value.kind == kind);
        let none = || input_error(format!("there is no value {index} of kind {kind}"));
        let described = values.nth(index).ok_or_else(none)?.to_c_value();
        // SAFETY: the caller ensures it.
        unsafe { write_result(value, described) }
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, read_value) }
}

fn expect_kind(kind: i32) -> Result<(), Error> {
    if (SYMMC_ARGUMENT..=SYMMC_OUTPUT).contains(&kind) {
        return Ok(());
    }
    Err(input_error(format!("there is no kind {kind}: expected SYMMC_ARGUMENT to SYMMC_OUTPUT")))
}

/// The memory that the next runs use for an input or output. While no run is in progress, the caller may write inputs and read
/// outputs there. The session owns the memory. It is valid until a symbol is set that needs more, other memory is bound, or the
/// session ends. `name` is the name of a value, the name under which a weight is stored, or `in.<i>` (arguments), `w.<name>`
/// (weights) or `out.<i>`, here and below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_address(
    session: *mut symmc_session,
    name: *const c_char,
    memory: *mut symmc_memory,
) -> symmc_status {
    let read_address = |session: &mut OpenSession| {
        // SAFETY: the caller ensures it.
        let address = session.session.address(unsafe { read_text(name, "the name") }?)?;
        let described = symmc_memory {
            data: address.as_ptr().cast(),
            bytes: address.bytes,
            place: storage_code(address.storage),
        };
        // SAFETY: the caller ensures it.
        unsafe { write_result(memory, described) }
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, read_address) }
}

/// Makes the next runs read an input from memory of the caller, or write an output there, in place. There is one case of a copy:
/// the plan holds the input in symmetric memory (`SYMMC_PLACE_SYMMETRIC` before it is bound). Then a parameter is copied before
/// the first run, and an argument before every run.
///
/// The caller owns the memory. It must be valid until other memory is bound or the session has ended, and the runs that use it
/// have ended. While a run is in progress nothing else writes it, or reads bytes that the run writes. Inputs that no output
/// replaces may share memory with each other. An output may share the memory of the input that it replaces. No other memory may
/// overlap. The memory must be aligned for its elements and not be the session's own. For a session on a GPU it is memory of
/// that GPU, aligned to 16 bytes. If the size of the value does not depend on symbols, it must be large enough. The next run
/// checks sizes that depend on symbols, and overlaps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_bind(
    session: *mut symmc_session,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> symmc_status {
    let bind = |session: &mut OpenSession| {
        // SAFETY: the caller ensures it.
        unsafe { session.session.bind(read_text(name, "the name")?, data.cast(), bytes) }
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, bind) }
}

/// Makes the next runs use memory of the session again. The data in the caller's memory is not copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_unbind(
    session: *mut symmc_session,
    name: *const c_char,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| session.session.unbind(read_text(name, "the name")?)) }
}

/// Makes the next runs read the weights of this rank in place. Several sessions may share them. All symbols must have a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_share_weights(
    session: *mut symmc_session,
    weights: *const symmc_weights,
) -> symmc_status {
    let share = |session: &mut OpenSession| {
        // SAFETY: the caller ensures it.
        let weights = unsafe { borrow_handle(weights, "weights") }?;
        let mut each = weights.0.iter();
        each.try_for_each(|(name, tensor)| session.session.share(&format!("w.{name}"), tensor.clone()))
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, share) }
}

/// Copies host memory to an input. `bytes` is the size of the whole input. No run may be in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_write(
    session: *mut symmc_session,
    name: *const c_char,
    data: *const c_void,
    bytes: usize,
) -> symmc_status {
    let write = |session: &mut OpenSession| {
        // SAFETY: the caller ensures it.
        unsafe {
            session.session.write(read_text(name, "the name")?, read_slice(data.cast(), bytes, "the data")?)
        }
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, write) }
}

/// Copies the current value of an output or an input to host memory. `bytes` is its whole size. No run may be in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_read(
    session: *mut symmc_session,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> symmc_status {
    let read = |session: &mut OpenSession| {
        // SAFETY: the caller ensures it.
        let name = unsafe { read_text(name, "the name") }?;
        let tensor = session.session.read(name)?;
        // SAFETY: the caller ensures it; the tensor is a copy.
        unsafe { write_bytes(data, bytes, tensor.data(), name) }
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, read) }
}

/// Writes the extents of an output in the last run to `extents`, which has room for `rank` numbers, the number of axes. They are
/// those of its memory, except along axes whose number of elements is data: only the first elements there are the result, and
/// `symmc_session_read` copies these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_extents(
    session: *mut symmc_session,
    name: *const c_char,
    extents: *mut usize,
    rank: usize,
) -> symmc_status {
    let read = |session: &mut OpenSession| {
        // SAFETY: the caller ensures it.
        let name = unsafe { read_text(name, "the name") }?;
        let found = session.session.read_extents(name)?;
        if found.len() != rank {
            return Err(input_error(format!(
                "{name}: expected room for {} extents, found {rank}",
                found.len()
            )));
        }
        if rank > 0 && extents.is_null() {
            return Err(input_error(format!("{name}: expected memory for {rank} extents, found NULL")));
        }
        for (axis, extent) in found.into_iter().enumerate() {
            // SAFETY: the caller ensures that there is room for as many numbers as axes.
            unsafe { extents.add(axis).write(extent) };
        }
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, read) }
}

/// Runs once and waits for the end. All ranks start the same runs in the same order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_run(session: *mut symmc_session) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| session.session.run()) }
}

/// Starts one run after those that were started before, and returns at once. The run uses the current sizes and memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_enqueue(session: *mut symmc_session) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| session.session.enqueue()) }
}

/// As `symmc_session_enqueue`, on a stream of the caller, a `cudaStream_t` or `CUstream` of the session's GPU. The run begins
/// after the work that is on the stream, and work that is enqueued there later begins after the run. The caller owns the stream,
/// which exists until the runs on it have ended. While the caller captures the stream, the run becomes part of the captured
/// graph instead. The caller then waits for its replays before it calls `symmc_session_poll`, and replays the graph only while
/// the session is open and keeps its memory. Fails for sessions on the host.
///
/// # Safety
/// `session` is a handle that no other thread uses, and `stream` is such a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_enqueue_on(
    session: *mut symmc_session,
    stream: *mut c_void,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| session.session.enqueue_on(stream)) }
}

/// The bytes that the session uses on its device now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_taken(
    session: *mut symmc_session,
    memory: *mut symmc_session_memory,
) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| write_result(memory, session.session.memory_usage().into())) }
}

/// The number of runs that the session recorded on its GPU (`made`), the number of recordings that were changed to other memory
/// (`moved`), and the number of recordings that were dropped because too many were kept (`evicted`). All are 0 on the host. Each
/// pointer may be NULL.
///
/// # Safety
/// `session` is a handle that no other thread uses, and each pointer takes a number or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_recordings(
    session: *mut symmc_session,
    made: *mut u64,
    moved: *mut u64,
    evicted: *mut u64,
) -> symmc_status {
    let read = |session: &mut OpenSession| {
        let recordings = session.session.recordings();
        for (to, number) in
            [(made, recordings.created), (moved, recordings.retargeted), (evicted, recordings.evicted)]
        {
            if !to.is_null() {
                // SAFETY: the caller ensures it.
                unsafe { write_result(to, number) }?;
            }
        }
        Ok(())
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, read) }
}

/// Sets `done` to 1 if all runs have ended, else to 0. Fails if a run failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_poll(session: *mut symmc_session, done: *mut c_int) -> symmc_status {
    let poll = |session: &mut OpenSession| {
        let ended = session.session.poll()?;
        // SAFETY: the caller ensures it.
        unsafe { write_result(done, c_int::from(ended)) }
    };
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, poll) }
}

/// Waits until all runs have ended, with a timeout of `limit_ms` milliseconds. Fails if a run failed, and if the wait timed out.
/// After a timeout the runs continue; `symmc_session_poll` then succeeds, which distinguishes the two cases.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_wait(session: *mut symmc_session, limit_ms: u64) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| session.session.wait(Duration::from_millis(limit_ms))) }
}

/// Releases the memory of the arenas until `symmc_session_resume`. All ranks call both, between runs. The memory of inputs and
/// outputs outside of the arenas is kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_release(session: *mut symmc_session) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| session.session.release()) }
}

/// Allocates the memory of the arenas again. Inputs in symmetric memory must be written again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_resume(session: *mut symmc_session) -> symmc_status {
    // SAFETY: the caller ensures it.
    unsafe { with_session(session, |session| session.session.resume()) }
}

/// Waits until all runs of this rank have ended, and ends the session, also if it returns an error. The error of an earlier
/// failed run is returned again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_close(session: *mut symmc_session) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let handle = unsafe { borrow_handle_mut(session, "session") }?;
        handle.end_by("symmc_session_close")?.close()
    })
}

/// Ends the session on every rank at once, without waiting for runs. The other ranks get an error that names this rank and the
/// reason. `reason` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_abort(
    session: *mut symmc_session,
    reason: *const c_char,
) -> symmc_status {
    guard(|| {
        // SAFETY: the caller ensures it.
        let handle = unsafe { borrow_handle_mut(session, "session") }?;
        let reason = if reason.is_null() {
            "no reason was given".into()
        } else {
            // SAFETY: the caller ensures it. A text that is not UTF-8 ends the session as well.
            unsafe { CStr::from_ptr(reason) }.to_string_lossy()
        };
        handle.end_by("symmc_session_abort")?.abort(&reason)
    })
}

/// Frees a session. One that has not ended ends without waiting for its runs. Between runs this behaves like
/// symmc_session_close, but waits for other ranks for half a second at most. The other ranks finish the runs that this rank has
/// finished, and get an error that names it when they start or wait for another run. During a run the sessions of the other
/// ranks end at once, with such an error. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_free(session: *mut symmc_session) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(session) }
}
