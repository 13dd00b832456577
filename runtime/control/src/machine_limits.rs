//! What this machine gives a process that runs ranks: memory that processes share, descriptors that they pass to each
//! other, and limits.
//!
//! Everything here asks or tries. What it makes to try is gone when it returns, and nothing of the machine is changed.

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
    /// Bytes that it may lock in memory.
    LockedMemory,
    /// Bytes of a file, and so of a segment of shared memory.
    FileSize,
    Addresses,
    /// Bytes to which the stack of the first thread may grow.
    Stack,
}

/// The limit in force; none without one, or where the system does not say.
pub fn resource_limit(what: ResourceLimit) -> Option<u64> {
    let resource = match what {
        ResourceLimit::Descriptors => libc::RLIMIT_NOFILE,
        ResourceLimit::LockedMemory => libc::RLIMIT_MEMLOCK,
        ResourceLimit::FileSize => libc::RLIMIT_FSIZE,
        ResourceLimit::Addresses => libc::RLIMIT_AS,
        ResourceLimit::Stack => libc::RLIMIT_STACK,
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the place it is given and keeps nothing.
    let is_known = unsafe { libc::getrlimit(resource, &raw mut limit) } == 0;
    (is_known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Bytes of memory that a process can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineMemory {
    /// All there are.
    pub total: u64,
    /// Those that can be had without swapping.
    pub available: u64,
    /// What the control group of the process may take, where it is limited.
    pub group: Option<u64>,
}

/// The machine's memory; none where the system does not say.
pub fn machine_memory() -> Option<MachineMemory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let of = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(MachineMemory {
        total: of("MemTotal:")?,
        available: of("MemAvailable:")?,
        group: control_group_limit(),
    })
}

/// The least limit of memory of the control group of this process and of those around it (version 2).
fn control_group_limit() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|l| l.strip_prefix("0::"))?;
    let folders = Path::new(path.strip_prefix('/')?).ancestors();
    let limits = folders.filter_map(|folder| {
        let file = Path::new("/sys/fs/cgroup").join(folder).join("memory.max");
        std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    limits.min()
}

/// Bytes in all and bytes that are free of the file system of a folder; none where there is no such folder.
pub fn file_system_space(folder: &str) -> Option<[u64; 2]> {
    let found = statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Some([bytes(found.blocks()), bytes(found.blocks_available())])
}

/// Whether this process may make files in a folder.
pub fn is_writable(folder: &Path) -> bool {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// The bytes of a segment that is made to try.
const TRIED: usize = 4096;
/// How long descriptors may take within one process.
const PASSING: Duration = Duration::from_secs(5);

pub fn try_shared_memory() -> Result<()> {
    MemorySegment::create("trial", TRIED).map(|_| ())
}

/// Passes a segment over a socket, as ranks pass their memory to each other, and maps what arrives. Sockets with abstract
/// names, which ranks meet at, are tried as well.
pub fn try_passing_descriptors() -> Result<()> {
    let failed = |call: &str, e: nix::Error| RunError::from_system_call("opening a Unix socket", call, e);
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let point = socket(AddressFamily::Unix, kind, flags, None).map_err(|e| failed("socket", e))?;
    // The system draws a name in the abstract namespace for a socket that is bound to none.
    bind(point.as_raw_fd(), &UnixAddr::new_unnamed()).map_err(|e| failed("bind", e))?;
    let (here, there) =
        socketpair(AddressFamily::Unix, kind, None, flags).map_err(|e| failed("socketpair", e))?;
    let (here, there) = (Channel::new(here, 0), Channel::new(there, 0));
    let segment = MemorySegment::create("trial", TRIED)?;
    let fd =
        segment.fd().ok_or_else(|| RunError::system("passing memory", "a segment without a descriptor"))?;
    here.send_fds(&[fd])?;
    let arrived = there.receive_fds(1, Instant::now() + PASSING)?.pop();
    let arrived = arrived.ok_or_else(|| RunError::system("passing memory", "no descriptor arrived"))?;
    let mapped = MemorySegment::map_shared("trial", arrived, TRIED, SegmentAccess::Read)?;
    const MARK: u8 = 0x5c;
    // SAFETY: both segments have this many bytes, and nobody else has them.
    let same = unsafe {
        segment.as_ptr().add(TRIED - 1).write_volatile(MARK);
        mapped.as_ptr().add(TRIED - 1).read_volatile() == MARK
    };
    if same { Ok(()) } else { Err(RunError::system("passing memory", "the memory that arrived is another")) }
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
