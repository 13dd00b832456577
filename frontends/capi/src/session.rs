//! Sessions: one rank of a plan that stays.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

use symmc::unstable::runtime::RunError;
use symmc::{Error, MemoryUsage, Session, SessionConfig};

use crate::error::{
    borrow_handle, borrow_handle_mut, free_handle, guard, input_error, read_slice, read_text, symmc_status,
    write_bytes, write_result,
};
use crate::group::symmc_group;
use crate::options::symmc_session_options;
use crate::plan::symmc_plan;
use crate::program::symmc_weights;
use crate::values::{DescribedValue, SYMMC_ARGUMENT, SYMMC_OUTPUT, storage_code, symmc_memory, symmc_value};

/// A plan on one rank, ready to run again and again. One thread at a time uses it, and it may be handed to another thread.
/// After a run that failed every call gives the error of that.
pub struct symmc_session {
    pub(crate) session: Session,
    /// What the caller was told of values, until other sizes are set.
    described: Option<Vec<DescribedValue>>,
}

impl symmc_session {
    fn described_values(&mut self) -> Result<&[DescribedValue], Error> {
        if self.described.is_none() {
            let (arguments, parameters) = (self.session.inputs()?, self.session.parameters()?);
            let all = arguments.into_iter().chain(parameters).chain(self.session.outputs()?);
            self.described = Some(all.map(DescribedValue::from_value).collect::<Result<_, _>>()?);
        }
        Ok(self.described.as_deref().unwrap_or_default())
    }
}

/// What most calls are: something with a session.
///
/// # Safety
/// `session` is a session that no other thread uses, or NULL.
unsafe fn with_session(
    session: *mut symmc_session,
    work: impl FnOnce(&mut symmc_session) -> Result<(), Error>,
) -> symmc_status {
    // SAFETY: by the caller.
    guard(|| work(unsafe { borrow_handle_mut(session, "session") }?))
}

/// Bytes that a session takes of its device: of a GPU, or of the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct symmc_session_memory {
    /// The ordinary arena.
    pub ordinary: u64,
    /// The symmetric arena, which peers reach.
    pub symmetric: u64,
    /// Words by which ranks signal each other, and what they pass chunks through: of what ranks of the host have together,
    /// this rank's part.
    pub flags: u64,
    /// Workspaces of kernels.
    pub scratch: u64,
    /// Inputs and outputs that the caller binds no memory for.
    pub held: u64,
}

impl From<MemoryUsage> for symmc_session_memory {
    fn from(taken: MemoryUsage) -> Self {
        let [ordinary, symmetric, flags, scratch, held] =
            [taken.ordinary, taken.symmetric, taken.flags, taken.scratch, taken.ports].map(|n| n as u64);
        symmc_session_memory { ordinary, symmetric, flags, scratch, held }
    }
}

/// What was said of a session; NULL for nothing.
///
/// # Safety
/// `options` are options or NULL, and stream and communicator what was said of them.
unsafe fn session_config(options: *const symmc_session_options) -> Result<SessionConfig, Error> {
    // SAFETY: by the caller.
    unsafe {
        options.as_ref().map_or_else(|| Ok(SessionConfig::default()), |options| options.session_config())
    }
}

/// What the session of a rank will take of its device when it is opened with these options, which may be NULL: arenas and
/// flags as they will be; workspaces, inputs and outputs at most, at any sizes that the plan serves and with nothing bound.
/// Nothing is allocated, and no GPU is asked. What libraries, drivers and code take for themselves is not in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_plan_get_memory(
    plan: *const symmc_plan,
    rank: u32,
    options: *const symmc_session_options,
    memory: *mut symmc_session_memory,
) -> symmc_status {
    guard(|| {
        // SAFETY: by the caller.
        let (plan, config) = unsafe { (borrow_handle(plan, "plan")?, session_config(options)?) };
        let told = Session::budget(&plan.plan, rank, &config)?;
        // SAFETY: by the caller.
        unsafe { write_result(memory, told.into()) }
    })
}

/// Opens the session of the group's rank; returns when all ranks have opened theirs, of the same plan. `options` may be NULL,
/// for the host. Plan, group and options may be freed before the session. It is the caller's, ended by `symmc_session_close`,
/// `symmc_session_abort` or `symmc_session_free`. Where an argument is wrong, such as a plan that is NULL, the call fails on all
/// ranks with an error that names this one, and the next session is opened together again. A group that is NULL reaches no
/// other rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_open(
    plan: *const symmc_plan,
    group: *const symmc_group,
    options: *const symmc_session_options,
    out: *mut *mut symmc_session,
) -> symmc_status {
    guard(|| {
        // SAFETY: by the caller.
        let group = unsafe { borrow_handle(group, "group") }?;
        let arguments = || {
            // SAFETY: by the caller.
            unsafe { write_result(out, std::ptr::null_mut()) }?;
            // SAFETY: by the caller.
            unsafe { Ok((borrow_handle(plan, "plan")?, session_config(options)?)) }
        };
        let (plan, config) = arguments().map_err(|error: Error| decline_session(group, &error))?;
        let session = Session::open(&plan.plan, &group.0, &config)?;
        let made = Box::into_raw(Box::new(symmc_session { session, described: None }));
        // SAFETY: by the caller.
        unsafe { write_result(out, made) }
    })
}

/// Notifies the other ranks of a group that this one does not open a session, and why; the error as all ranks get it.
fn decline_session(group: &symmc_group, error: &Error) -> Error {
    group.0.decline(RunError::Invalid(error.to_string())).into()
}

/// The rank of a session; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_rank(session: *const symmc_session) -> u32 {
    // SAFETY: by the caller.
    unsafe { session.as_ref() }.map_or(0, |session| session.session.rank())
}

/// Sets the values of `count` symbols for the runs that come. Nothing has a size before all symbols have a value. Where a value
/// has no bucket, or bound memory is too small for it, the sizes stay as they were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_set(
    session: *mut symmc_session,
    symbols: *const *const c_char,
    values: *const i64,
    count: usize,
) -> symmc_status {
    let set = |session: &mut symmc_session| {
        // SAFETY: by the caller.
        let (names, values) =
            unsafe { (read_slice(symbols, count, "symbols")?, read_slice(values, count, "values")?) };
        // SAFETY: by the caller.
        let name = |name: &*const c_char| unsafe { read_text(*name, "the name of a symbol") };
        let names = names.iter().map(name).collect::<Result<Vec<_>, _>>()?;
        let all: Vec<(&str, i64)> = names.into_iter().zip(values.iter().copied()).collect();
        session.session.set_all(&all)?;
        session.described = None;
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, set) }
}

/// The number of values of a kind: `SYMMC_ARGUMENT`, `SYMMC_PARAMETER` or `SYMMC_OUTPUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_count(
    session: *mut symmc_session,
    kind: i32,
    count: *mut usize,
) -> symmc_status {
    let of = |session: &mut symmc_session| {
        let found = session.described_values()?.iter().filter(|value| value.kind == kind).count();
        expect_kind(kind)?;
        // SAFETY: by the caller.
        unsafe { write_result(count, found) }
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, of) }
}

/// The value of a kind by its number, from 0 on. Arguments and outputs are those of the program in its order, constants stand
/// among the parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_value(
    session: *mut symmc_session,
    kind: i32,
    index: usize,
    value: *mut symmc_value,
) -> symmc_status {
    let of = |session: &mut symmc_session| {
        expect_kind(kind)?;
        let mut all = session.described_values()?.iter().filter(|value| value.kind == kind);
        let none = || input_error(format!("there is no value {index} of the kind {kind}"));
        let found = all.nth(index).ok_or_else(none)?.to_c_value();
        // SAFETY: by the caller.
        unsafe { write_result(value, found) }
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, of) }
}

fn expect_kind(kind: i32) -> Result<(), Error> {
    match (SYMMC_ARGUMENT..=SYMMC_OUTPUT).contains(&kind) {
        true => Ok(()),
        false => {
            Err(input_error(format!("there is no kind {kind}: expected SYMMC_ARGUMENT to SYMMC_OUTPUT")))
        }
    }
}

/// Where an input or output lies for the runs that come: the caller writes inputs there, or reads outputs, while no run is in
/// progress. The memory is the session's and stays until a symbol is set that needs more, the input or output is bound
/// elsewhere, or the session ends. Names are those of values, those under which weights are stored, or `in.<i>` (arguments),
/// `w.<name>` and `out.<i>`, here and below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_address(
    session: *mut symmc_session,
    name: *const c_char,
    memory: *mut symmc_memory,
) -> symmc_status {
    let of = |session: &mut symmc_session| {
        // SAFETY: by the caller.
        let found = session.session.address(unsafe { read_text(name, "the name") }?)?;
        let found = symmc_memory {
            data: found.as_ptr().cast(),
            bytes: found.bytes,
            place: storage_code(found.storage),
        };
        // SAFETY: by the caller.
        unsafe { write_result(memory, found) }
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, of) }
}

/// Has the runs that come find an input, or write an output, in memory of the caller, where it lies. Nothing is copied, unless
/// the plan holds the input in symmetric memory (`SYMMC_PLACE_SYMMETRIC` before it is bound): a parameter is copied there
/// before the first run then, an argument in every run. The memory stays the caller's. It must be valid until something else
/// is bound or the session has ended, and the runs that take it have ended; meanwhile nobody else writes it during a run, nor
/// reads what the run writes. Inputs that no output replaces may share memory with each other, an output with the input that
/// it replaces, nothing else. It must be aligned for its elements and not be the session's own; where the size of the value
/// never changes it must have that. For a session on a GPU it is memory of that GPU at a multiple of 16 bytes. Whether it has the bytes of the sizes that are set, and overlaps what it may not, is asked
/// by the next run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_bind(
    session: *mut symmc_session,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> symmc_status {
    let bind = |session: &mut symmc_session| {
        // SAFETY: by the caller.
        unsafe { session.session.bind(read_text(name, "the name")?, data.cast(), bytes) }
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, bind) }
}

/// Has the runs that come use memory of the session again. What was in the caller's is not copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_unbind(
    session: *mut symmc_session,
    name: *const c_char,
) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| session.session.unbind(read_text(name, "the name")?)) }
}

/// Has the runs that come read the weights of this rank where they lie: several sessions may share them. All symbols must have
/// a value. The session keeps what it needs: the caller may free its handle at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_share_weights(
    session: *mut symmc_session,
    weights: *const symmc_weights,
) -> symmc_status {
    let share = |session: &mut symmc_session| {
        // SAFETY: by the caller.
        let weights = unsafe { borrow_handle(weights, "weights") }?;
        let mut each = weights.0.iter();
        each.try_for_each(|(name, tensor)| session.session.share(&format!("w.{name}"), tensor.clone()))
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, share) }
}

/// Copies the data of an input from memory of the host to where it lies; `bytes` is its whole size. No run may be in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_write(
    session: *mut symmc_session,
    name: *const c_char,
    data: *const c_void,
    bytes: usize,
) -> symmc_status {
    let write = |session: &mut symmc_session| {
        // SAFETY: by the caller.
        unsafe {
            session.session.write(read_text(name, "the name")?, read_slice(data.cast(), bytes, "the data")?)
        }
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, write) }
}

/// Copies an output, or an input, as it is now to memory of the caller on the host; `bytes` is its whole size. No run may be in
/// progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_read(
    session: *mut symmc_session,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> symmc_status {
    let read = |session: &mut symmc_session| {
        // SAFETY: by the caller.
        let name = unsafe { read_text(name, "the name") }?;
        let tensor = session.session.read(name)?;
        // SAFETY: by the caller; the tensor is a copy.
        unsafe { write_bytes(data, bytes, tensor.data(), name) }
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, read) }
}

/// Runs once and waits for the end. All ranks run the same, in the same order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_run(session: *mut symmc_session) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| session.session.run()) }
}

/// Starts one run behind those that were started, and returns. It takes the sizes and the memory that are set now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_enqueue(session: *mut symmc_session) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| session.session.enqueue()) }
}

/// As `symmc_session_enqueue`, on a stream of the caller, a `cudaStream_t` or `CUstream` of the session's GPU: the run begins
/// after what is there, and what is put there next begins after the run. The stream stays the caller's and exists until the
/// runs there have ended. While the caller records the stream the run becomes part of the recording instead: the caller then
/// waits for the replays before `symmc_session_poll` tells how they went, and replays as long as the session is open and keeps
/// its memory. Fails for sessions of the host.
///
/// # Safety
/// `session` is a session that no other thread uses, `stream` is such a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_enqueue_on(
    session: *mut symmc_session,
    stream: *mut c_void,
) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| session.session.enqueue_on(stream)) }
}

/// What the session takes of its device now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_taken(
    session: *mut symmc_session,
    memory: *mut symmc_session_memory,
) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| write_result(memory, session.session.memory_usage().into())) }
}

/// How often the session recorded runs on its GPU (`made`), had a recording take over other memory instead (`moved`), and gave
/// one up because more were kept than may be (`evicted`). The host records none. Each pointer may be NULL.
///
/// # Safety
/// `session` is a session that no other thread uses, each pointer takes a number or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_recordings(
    session: *mut symmc_session,
    made: *mut u64,
    moved: *mut u64,
    evicted: *mut u64,
) -> symmc_status {
    let tell = |session: &mut symmc_session| {
        let found = session.session.recordings();
        for (to, number) in [(made, found.created), (moved, found.retargeted), (evicted, found.evicted)] {
            if !to.is_null() {
                // SAFETY: by the caller.
                unsafe { to.write(number) };
            }
        }
        Ok(())
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, tell) }
}

/// Asks whether all runs have ended: `done` becomes 1, else 0. Fails if one failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_poll(session: *mut symmc_session, done: *mut c_int) -> symmc_status {
    let poll = |session: &mut symmc_session| {
        let ended = session.session.poll()?;
        // SAFETY: by the caller.
        unsafe { write_result(done, c_int::from(ended)) }
    };
    // SAFETY: by the caller.
    unsafe { with_session(session, poll) }
}

/// Waits until all runs have ended, for `limit_ms` milliseconds at most. Fails if one failed, or if they have not ended by
/// then, in which case they go on: `symmc_session_poll` succeeds then, and tells the two apart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_wait(session: *mut symmc_session, limit_ms: u64) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| session.session.wait(Duration::from_millis(limit_ms))) }
}

/// Gives the memory of the arenas back until `symmc_session_resume`. All ranks call both, between runs. Memory of inputs and
/// outputs stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_release(session: *mut symmc_session) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| session.session.release()) }
}

/// Takes the memory of the arenas again. Inputs in symmetric memory are to be written again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_resume(session: *mut symmc_session) -> symmc_status {
    // SAFETY: by the caller.
    unsafe { with_session(session, |session| session.session.resume()) }
}

/// Waits until all runs of this rank have ended, and ends and frees the session, also on errors. In a process that was forked
/// from the one that opened it this is an error, and the session of the parent is not affected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_close(session: *mut symmc_session) -> symmc_status {
    guard(|| {
        if session.is_null() {
            return Err(input_error("the handle of the session is NULL"));
        }
        // SAFETY: by the caller.
        let session = unsafe { Box::from_raw(session) };
        session.session.close()
    })
}

/// Ends and frees the session on every rank at once, without waiting for runs: the other ranks get an error that names this rank
/// and the reason. `reason` may be NULL. In a process that was forked from the one that opened it this is an error, and the
/// session of the parent is not affected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_abort(
    session: *mut symmc_session,
    reason: *const c_char,
) -> symmc_status {
    guard(|| {
        if session.is_null() {
            return Err(input_error("the handle of the session is NULL"));
        }
        // SAFETY: by the caller.
        let session = unsafe { Box::from_raw(session) };
        let reason = match reason.is_null() {
            true => "no reason was given".into(),
            // SAFETY: by the caller. A text that is not UTF-8 ends the session as well.
            false => unsafe { CStr::from_ptr(reason) }.to_string_lossy(),
        };
        session.session.abort(&reason)
    })
}

/// Ends a session without waiting for its runs. Between runs this behaves like symmc_session_close, but waits for other ranks for
/// half a second at most: other ranks finish the runs that this rank has ended, and get an error that names it when they begin or wait in another one. During a run the
/// sessions of the other ranks end at once, with such an error. In a process that was forked from the one that opened it,
/// the session of the parent is not affected. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_session_free(session: *mut symmc_session) {
    // SAFETY: by the caller.
    unsafe { free_handle(session) }
}
