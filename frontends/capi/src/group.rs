//! Groups: how ranks find each other.

use std::ffi::{c_int, c_void};

use symmc::unstable::ir::verify::MAX_RANKS;
use symmc::{Bootstrap, Error, Group, Membership};

use crate::error::{create_handle, create_handles, free_handle, input_error, symmc_status};

/// One rank's membership in a group of ranks. The rank opens sessions in it one after the other, in the same order as the other
/// ranks.
pub struct symmc_group(pub(crate) Group);

/// A function of the caller that gathers bytes from all ranks. It copies the `bytes` bytes at `mine` of every rank, in the order
/// of ranks, to `all`, which has room for them. It returns 0 when it has the bytes of all ranks, and another number if it
/// failed. It is called on the thread and during the call that received it.
pub type symmc_all_gather = Option<
    unsafe extern "C" fn(context: *mut c_void, mine: *const c_void, bytes: usize, all: *mut c_void) -> c_int,
>;

/// Creates a group of `ranks` threads of this process. `groups` receives one handle for each rank, in order. If `ranks` is not
/// between 1 and 1024 nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_threads(ranks: u32, groups: *mut *mut symmc_group) -> symmc_status {
    let is_valid = (1..=MAX_RANKS).contains(&ranks);
    let create = |pointer: Result<(), Error>| {
        pointer?;
        if !is_valid {
            return Err(input_error(format!("expected 1 to {MAX_RANKS} ranks, found {ranks}")));
        }
        Ok(Group::threads(ranks).into_iter().map(symmc_group))
    };
    // SAFETY: the caller ensures that there is room for all ranks.
    unsafe { create_handles(groups, if is_valid { ranks as usize } else { 0 }, create) }
}

/// Creates the group in which a launcher started this process, from its environment: torchrun, `mpirun` and `mpiexec` of Open
/// MPI, MPICH, Intel MPI and MVAPICH, or `srun`. Fails without such a launcher.
///
/// # Safety
/// `out` takes a pointer, and nothing changes the environment during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_from_environment(out: *mut *mut symmc_group) -> symmc_status {
    let none = || input_error("the environment names no rank: expected one of torchrun, mpirun or srun");
    // SAFETY: the caller ensures it.
    unsafe {
        create_handle(out, || {
            Ok(symmc_group(Group::from_membership(Membership::from_env()?.ok_or_else(none)?)))
        })
    }
}

/// Creates the group of `ranks` ranks on one machine that can communicate by means of the caller. All ranks call this at the
/// same time. `context` is passed to `all_gather`.
///
/// # Safety
/// `all_gather` obeys the contract of its type.
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
                "rank {rank} of {ranks}: expected 1 to {MAX_RANKS} ranks, numbered from 0"
            )));
        }
        let mut bootstrap = CallerBootstrap { call, context, ranks };
        Ok(symmc_group(Group::bootstrap(rank, ranks, &mut bootstrap)?))
    };
    // SAFETY: the caller ensures it.
    unsafe { create_handle(out, open) }
}

/// The caller's function, as a bootstrap.
struct CallerBootstrap {
    call: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int,
    context: *mut c_void,
    ranks: u32,
}

impl Bootstrap for CallerBootstrap {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let bytes = mine.len();
        if bytes == 0 {
            return Err("expected at least one byte to gather".into());
        }
        let size = bytes.checked_mul(self.ranks as usize).filter(|&size| size <= isize::MAX as usize);
        let mut gathered = vec![0u8; size.ok_or("there are too many ranks")?];
        let mine = mine.as_ptr().cast::<c_void>();
        // SAFETY: the caller of `symmc_group_bootstrap` ensures it; `gathered` has room for all ranks.
        match unsafe { (self.call)(self.context, mine, bytes, gathered.as_mut_ptr().cast()) } {
            0 => Ok(gathered.chunks_exact(bytes).map(<[u8]>::to_vec).collect()),
            code => Err(format!("all_gather returned {code}")),
        }
    }
}

/// The rank of this group's member; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_rank(group: *const symmc_group) -> u32 {
    // SAFETY: the caller ensures it.
    unsafe { group.as_ref() }.map_or(0, |group| group.0.rank())
}

/// The number of ranks of a group; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_ranks(group: *const symmc_group) -> u32 {
    // SAFETY: the caller ensures it.
    unsafe { group.as_ref() }.map_or(0, |group| group.0.ranks())
}

/// Frees a group. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn symmc_group_free(group: *mut symmc_group) {
    // SAFETY: the caller ensures it.
    unsafe { free_handle(group) }
}
