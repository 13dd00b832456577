//! Resources that this machine gives a process that runs ranks: memory that processes share, descriptors that
//! they pass to each other, and limits.
//!
//! Everything here queries or tries. Resources that it creates for a trial are freed before it returns, and
//! nothing on the machine is changed.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket, socketpair};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use crate::channel::Channel;
use crate::error::{Result, RunError};
use crate::memory::{MemorySegment, SegmentAccess};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResourceLimit {
    Descriptors,
    /// Bytes that the process may lock in memory.
    LockedMemory,
    /// Bytes of a file, and therefore of a segment of shared memory.
    FileSize,
    Addresses,
    /// Bytes to which the stack of the first thread may grow.
    Stack,
}

/// The limit in force; `None` without a limit, or if the system does not report it.
pub fn resource_limit(what: ResourceLimit) -> Option<u64> {
    let resource = match what {
        ResourceLimit::Descriptors => libc::RLIMIT_NOFILE,
        ResourceLimit::LockedMemory => libc::RLIMIT_MEMLOCK,
        ResourceLimit::FileSize => libc::RLIMIT_FSIZE,
        ResourceLimit::Addresses => libc::RLIMIT_AS,
        ResourceLimit::Stack => libc::RLIMIT_STACK,
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes only to the given struct and keeps no pointer to it.
    let is_known = unsafe { libc::getrlimit(resource, &raw mut limit) } == 0;
    (is_known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Bytes of memory that a process can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineMemory {
    /// All memory of the machine.
    pub total: u64,
    /// Memory that is available without swapping.
    pub available: u64,
    /// The limit of the control group of the process, if there is one.
    pub group: Option<u64>,
}

/// The machine's memory; `None` if the system does not report it.
pub fn machine_memory() -> Option<MachineMemory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(MachineMemory {
        total: read_memory_field(&text, "MemTotal:")?,
        available: read_memory_field(&text, "MemAvailable:")?,
        group: control_group_limit(),
    })
}

/// The bytes of one line of `/proc/meminfo`.
fn read_memory_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The lowest memory limit of the control group of this process and of its ancestors (version 2).
fn control_group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|l| l.strip_prefix("0::"))?;
    let folders = Path::new(path.strip_prefix('/')?).ancestors();
    let limits = folders.filter_map(|folder| {
        let file = Path::new("/sys/fs/cgroup").join(folder).join("memory.max");
        std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    limits.min()
}

/// Total and free bytes of the file system of a folder; `None` if the folder does not exist.
pub fn file_system_space(folder: &str) -> Option<[u64; 2]> {
    let stats = statvfs(folder).ok()?;
    let block = stats.fragment_size();
    Some([stats.blocks().saturating_mul(block), stats.blocks_available().saturating_mul(block)])
}

/// Whether this process may create files in a folder.
pub fn is_writable(folder: &Path) -> bool {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// The bytes of a segment that is created for a trial.
const TRIED: usize = 4096;
/// The timeout for passing descriptors within one process.
const PASSING: Duration = Duration::from_secs(5);

pub fn try_shared_memory() -> Result<()> {
    MemorySegment::create("trial", TRIED).map(|_| ())
}

/// Passes a segment over a socket, as ranks pass their memory to each other, and maps the received segment.
/// Sockets with abstract names, at which ranks meet, are tried as well.
pub fn try_passing_descriptors() -> Result<()> {
    let kind = SockType::SeqPacket;
    let flags = SockFlag::SOCK_CLOEXEC;
    let point = socket(AddressFamily::Unix, kind, flags, None).map_err(|e| socket_error("socket", e))?;
    // The system chooses a name in the abstract namespace for a socket that is bound to an unnamed address.
    bind(point.as_raw_fd(), &UnixAddr::new_unnamed()).map_err(|e| socket_error("bind", e))?;
    let (first, second) =
        socketpair(AddressFamily::Unix, kind, None, flags).map_err(|e| socket_error("socketpair", e))?;
    let sender = Channel::new(first, 0);
    let there = Channel::new(second, 0);
    let segment = MemorySegment::create("trial", TRIED)?;
    let fd =
        segment.fd().ok_or_else(|| RunError::system("passing memory", "a segment without a descriptor"))?;
    sender.send_fds(&[fd])?;
    let arrived = there.receive_fds(1, Instant::now() + PASSING)?.and_then(|mut fds| fds.pop());
    let arrived = arrived.ok_or_else(|| RunError::system("passing memory", "no descriptor arrived"))?;
    let mapped = MemorySegment::map_shared("trial", arrived, TRIED, SegmentAccess::Read)?;
    const MARK: u8 = 0x5c;
    // SAFETY: both segments have this many bytes, and nothing else uses them.
    let is_same = unsafe {
        segment.as_ptr().add(TRIED - 1).write_volatile(MARK);
        mapped.as_ptr().add(TRIED - 1).read_volatile() == MARK
    };
    if is_same {
        Ok(())
    } else {
        Err(RunError::system("passing memory", "the received segment is not the one that was sent"))
    }
}

fn socket_error(call: &'static str, error: nix::Error) -> RunError {
    RunError::from_system_call("opening a Unix socket", call, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_and_passed_here() {
        try_shared_memory().unwrap();
        try_passing_descriptors().unwrap();
    }

    #[test]
    fn limits_and_room_are_those_of_the_system() {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        assert!(resource_limit(ResourceLimit::Descriptors).is_none_or(|n| n >= open));
        let room = machine_memory().expect("Linux says");
        assert!(room.available <= room.total && room.group.is_none_or(|n| n > 0), "{room:?}");
        let [all, free] = file_system_space("/").expect("a root");
        assert!(free <= all && all > 0);
        assert_eq!(file_system_space("/no such folder"), None);
    }
}
