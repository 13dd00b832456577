//! How ranks find each other.

use std::ffi::{c_int, c_void};

use symmc::unstable::ir::verify::MAX_RANKS;
use symmc::{Bootstrap, Group, Membership};

use crate::error::{create_handle, free_handle, guard, input_error, symmc_status};

/// One rank's place among others. Its rank opens sessions in it, one after the other, in the same order as the others: one
/// thread at a time uses it. It may be handed to another thread.
pub struct symmc_group(pub(crate) Group);

/// A function of the caller that tells all ranks something: it copies the `bytes` bytes at `mine` of every rank, by rank, to
/// `all`, which has room for them, and returns 0 when it has those of all ranks; another number says that it failed. It is
/// called by the thread that gives it, during that call, and does not return by an exception or a jump.
pub type symmc_all_gather = Option<
    unsafe extern "C" fn(context: *mut c_void, mine: *const c_void, bytes: usize, all: *mut c_void) -> c_int,
>;

/// Places for `ranks` threads of this process: `groups` takes one pointer for each, by rank. Each is the caller's, freed by
/// `symmc_group_free`. Where it fails none is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_threads(ranks: u32, groups: *mut *mut symmc_group) -> symmc_status {
    guard(|| {
        if groups.is_null() {
            return Err(input_error("the pointer to the groups is NULL"));
        }
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(input_error(format!("expected 1 to {MAX_RANKS} ranks, found {ranks}")));
        }
        for (rank, group) in Group::threads(ranks).into_iter().enumerate() {
            // SAFETY: by the caller, there are so many.
            unsafe { groups.add(rank).write(Box::into_raw(Box::new(symmc_group(group)))) };
        }
        Ok(())
    })
}

/// The place that a launcher gave this process through its environment: torchrun, `mpirun` and `mpiexec` of Open MPI, MPICH,
/// Intel MPI and MVAPICH, or `srun`. Fails where none did. It is the caller's, freed by `symmc_group_free`.
///
/// # Safety
/// `out` takes a pointer; nobody changes the environment meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_from_environment(out: *mut *mut symmc_group) -> symmc_status {
    let none = || input_error("the environment names no rank: expected that of torchrun, mpirun or srun");
    // SAFETY: by the caller.
    unsafe {
        create_handle(out, || {
            Ok(symmc_group(Group::from_membership(Membership::from_env()?.ok_or_else(none)?)))
        })
    }
}

/// The place of `rank` among `ranks` ranks of one machine that have means of their own to tell each other something. All of
/// them call this at the same time; `context` is what `all_gather` gets. It is the caller's, freed by `symmc_group_free`.
///
/// # Safety
/// `all_gather` does what is said of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_bootstrap(
    rank: u32,
    ranks: u32,
    all_gather: symmc_all_gather,
    context: *mut c_void,
    out: *mut *mut symmc_group,
) -> symmc_status {
    let open = || {
        let call = all_gather.ok_or_else(|| input_error("all_gather is NULL"))?;
        if rank >= ranks || ranks > MAX_RANKS {
            return Err(input_error(format!(
                "rank {rank} of {ranks}: expected 1 to {MAX_RANKS} ranks, from 0 on"
            )));
        }
        let mut means = CallerBootstrap { call, context, ranks };
        Ok(symmc_group(Group::bootstrap(rank, ranks, &mut means)?))
    };
    // SAFETY: by the caller.
    unsafe { create_handle(out, open) }
}

/// The caller's means.
struct CallerBootstrap {
    call: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int,
    context: *mut c_void,
    ranks: u32,
}

impl Bootstrap for CallerBootstrap {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let bytes = mine.len();
        if bytes == 0 {
            return Err("no bytes are to be told".into());
        }
        let all = bytes.checked_mul(self.ranks as usize).filter(|&all| all <= isize::MAX as usize);
        let mut all = vec![0u8; all.ok_or("there are too many ranks")?];
        let mine = mine.as_ptr().cast::<c_void>();
        // SAFETY: by whoever gave the function; `all` has room for all ranks.
        match unsafe { (self.call)(self.context, mine, bytes, all.as_mut_ptr().cast()) } {
            0 => Ok(all.chunks_exact(bytes).map(<[u8]>::to_vec).collect()),
            code => Err(format!("all_gather returned {code}")),
        }
    }
}

/// The rank of a place; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_rank(group: *const symmc_group) -> u32 {
    // SAFETY: by the caller.
    unsafe { group.as_ref() }.map_or(0, |group| group.0.rank())
}

/// The number of ranks; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_ranks(group: *const symmc_group) -> u32 {
    // SAFETY: by the caller.
    unsafe { group.as_ref() }.map_or(0, |group| group.0.ranks())
}

/// Frees a place. Sessions that were opened in it go on. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_free(group: *mut symmc_group) {
    // SAFETY: by the caller.
    unsafe { free_handle(group) }
}
